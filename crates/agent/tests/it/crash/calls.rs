//! A process that is killed while a tool runs: whoever goes on knows that the outcome is not known.

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use antiphon_agent::{
    Agent, AgentInit, FuncTool, InvocationContext, Prompt, PromptAgent, SessionStore, ToolExecutor,
    ToolRegistry, ledger::LEDGER,
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use serde_json::json;

use super::worker::{Kind, Opened};

/// Tells a process of this program what to do.
const JOB: &str = "ANTIPHON_CALL_JOB";

#[test]
fn a_call_of_a_killed_process_is_unknown_in_the_file_store() {
    kill_while_a_tool_runs(Kind::Files);
}

#[cfg(feature = "sqlite")]
#[test]
fn a_call_of_a_killed_process_is_unknown_in_the_sqlite_store() {
    kill_while_a_tool_runs(Kind::Sqlite);
}

fn kill_while_a_tool_runs(kind: Kind) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store");
    let mut process = Command::new(env::current_exe().unwrap())
        .args(["--exact", "crash::calls::runs_a_tool_when_told_to", "--nocapture"])
        .env(JOB, format!("{kind:?}|{}", path.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let running = lines.find_map(|line| line.unwrap().strip_prefix("at work: ").map(str::to_owned));
    process.kill().unwrap();
    process.wait().unwrap();
    let key = running.expect("the tool ran");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Opened::open(kind, &path).await.shared();
        let model = ScriptedModel::new(["I do not know.", "Still not."].map(ModelTurn::says));
        let agent = agent(store, &model);
        for _ in 0..2 {
            let init = AgentInit::session("s");
            agent.run_text(&InvocationContext::new(), "Paid?", init).await.unwrap();
        }
        for request in model.requests() {
            let told: Vec<_> =
                request.messages.iter().flat_map(|message| message.tool_responses()).collect();
            let [(part, response)] = &told[..] else { panic!("{told:?}") };
            assert_eq!((&*response.name, response.id.as_deref()), ("pay", Some("c1")));
            let note = part.metadata_entry(LEDGER).unwrap();
            assert_eq!(note, &json!({ "key": key, "outcome": "unknown" }));
        }
    });
}

fn agent(store: Arc<dyn SessionStore>, model: &ScriptedModel) -> Agent {
    let registry = ToolRegistry::new();
    registry.must_register(FuncTool::new("pay", "Pays.", None, |cx, _args| async move {
        let line = format!("\nat work: {}\n", cx.idempotency_key);
        io::stdout().write_all(line.as_bytes()).unwrap();
        std::future::pending().await
    }));
    let prompt = Prompt::builder("clerk").system("Pay.").build().unwrap();
    PromptAgent::inline(prompt)
        .model(model.shared())
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("clerk")
        .unwrap()
        .shared_store(store)
        .build()
}

/// Runs a tool until it is killed.
#[test]
fn runs_a_tool_when_told_to() {
    let Ok(job) = env::var(JOB) else { return };
    let (kind, path) = job.split_once('|').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Opened::open(Kind::parse(kind), Path::new(path)).await.shared();
        let turns = [ModelTurn::says("Hello."), ModelTurn::calls("c1", "pay", json!({}))];
        let model = ScriptedModel::new(turns);
        let agent = agent(store, &model);
        for text in ["Hello.", "Pay."] {
            let init = AgentInit::session("s");
            agent.run_text(&InvocationContext::new(), text, init).await.unwrap();
        }
    });
}
