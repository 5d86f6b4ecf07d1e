//! The account of tool calls, as a host and a model see it.

mod lasting;

use std::sync::{Arc, Mutex};

use antiphon_agent::{
    Agent, AgentInit, Effects, FuncTool, InMemorySessionStore, InvocationContext, Message, Prompt,
    PromptAgent, RuntimeError, SessionStore, ToolExecutor, ToolRegistry,
    ledger::{CallChange, CallRecord, CallState, LEDGER},
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::object;

fn cx() -> InvocationContext {
    InvocationContext::new()
}

/// What a tool saw when it ran: its key, and what the store knew of it.
type Seen = Arc<Mutex<Vec<(Arc<str>, Vec<CallRecord>)>>>;

/// A tool that looks into the store while it runs.
fn pay(store: Arc<dyn SessionStore>, effects: Effects) -> (FuncTool, Seen) {
    let seen = Seen::default();
    let noted = seen.clone();
    let tool = FuncTool::new("pay", "Pays.", json!({ "type": "object" }), move |cx, args| {
        let (store, noted) = (store.clone(), noted.clone());
        async move {
            let ledger = store.call_ledger().unwrap();
            let open = ledger.open_calls(&InvocationContext::new(), None).await.unwrap();
            noted.lock().unwrap().push((cx.idempotency_key.clone(), open));
            Ok(object(json!({ "paid": args["amount"] })))
        }
    });
    (tool.effects(effects), seen)
}

struct Rig {
    store: Arc<dyn SessionStore>,
    model: ScriptedModel,
    agent: Agent,
    seen: Seen,
}

fn rig(effects: Effects, turns: impl IntoIterator<Item = ModelTurn>) -> Rig {
    let store: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
    let (tool, seen) = pay(store.clone(), effects);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let model = ScriptedModel::new(turns);
    let prompt = Prompt::builder("clerk").system("Pay.").build().unwrap();
    let agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("clerk")
        .unwrap()
        .shared_store(store.clone())
        .build();
    Rig { store, model, agent, seen }
}

impl Rig {
    async fn say(&self, text: &str) -> Option<Arc<str>> {
        let output = self.agent.run_text(&cx(), text, AgentInit::session("s")).await.unwrap();
        assert_eq!(output.error, None);
        output.snapshot_id
    }

    async fn open(&self) -> Vec<CallRecord> {
        self.store.call_ledger().unwrap().open_calls(&cx(), Some("s")).await.unwrap()
    }

    /// Waits until what is written behind is written.
    async fn settled(&self) {
        while !self.open().await.is_empty() {
            tokio::task::yield_now().await;
        }
    }

    /// What a process leaves that was killed while the tool ran.
    async fn killed(&self, id: &str, args: Value, after: Option<Arc<str>>) -> CallRecord {
        let call = ToolCall { id: id.into(), name: "pay".into(), args: object(args) };
        let mut record = CallRecord::new(format!("key-{id}"), "s", &call, Timestamp::now());
        record.snapshot_id = Some("never".into());
        record.parent_id = after;
        self.put(&record).await;
        record
    }

    async fn put(&self, record: &CallRecord) {
        let write = |_: Option<&CallRecord>| -> Result<CallChange, RuntimeError> {
            Ok(CallChange::Write(Box::new(record.clone())))
        };
        self.store.call_ledger().unwrap().save_call(&cx(), &record.key, &write).await.unwrap();
    }

    /// The conversation as the model was last shown it.
    fn shown(&self) -> Vec<Arc<Message>> {
        self.model.requests().last().unwrap().messages.clone()
    }
}

fn calls(id: &str, amount: u64) -> ModelTurn {
    ModelTurn::calls(id, "pay", json!({ "amount": amount }))
}

fn outputs(messages: &[Arc<Message>]) -> Vec<(Option<Arc<str>>, Value)> {
    let responses = messages.iter().flat_map(|message| message.tool_responses());
    responses.map(|(_, it)| (it.id.clone(), it.output.clone().unwrap())).collect()
}

#[tokio::test]
async fn a_call_is_recorded_before_it_runs_and_until_a_snapshot_holds_it() {
    let rig = rig(Effects::Once, [calls("c1", 5), ModelTurn::says("Paid.")]);
    let snapshot = rig.say("Pay 5.").await;
    rig.settled().await;
    let seen = rig.seen.lock().unwrap().clone();
    let [(key, open)] = &seen[..] else { panic!("{seen:?}") };
    let [record] = &open[..] else { panic!("{open:?}") };
    assert_eq!((&record.key, &*record.call_id, &*record.tool), (key, "c1", "pay"));
    assert_eq!((&record.snapshot_id, &*record.session_id), (&snapshot, "s"));
    assert_eq!(record.arguments, object(json!({ "amount": 5 })));
    assert_eq!(record.arguments_hash.len(), 64);
    assert!(matches!(record.state, CallState::Running { .. }));
}

#[tokio::test]
async fn a_call_whose_process_was_killed_is_told_as_unknown_once() {
    let rig = rig(Effects::Once, ["One.", "Two.", "Three."].map(ModelTurn::says));
    let first = rig.say("Hello.").await;
    rig.killed("c1", json!({ "amount": 9 }), first.clone()).await;
    rig.say("Did you pay?").await;
    let shown = rig.shown();
    let told = outputs(&shown);
    let [(Some(id), output)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(&**id, "c1");
    assert!(output["error"].as_str().unwrap().contains("not known"), "{output}");
    let note = shown.iter().find_map(|message| message.tool_responses().next()).unwrap().0;
    assert_eq!(note.metadata_entry(LEDGER).unwrap()["outcome"], "unknown");
    rig.settled().await;
    rig.say("And now?").await;
    assert_eq!(outputs(&rig.shown()).len(), 1);
}

#[tokio::test]
async fn a_call_with_an_outcome_that_no_snapshot_holds_is_told_with_it() {
    let rig = rig(Effects::Once, ["One.", "Two."].map(ModelTurn::says));
    let first = rig.say("Hello.").await;
    let mut record = rig.killed("c1", json!({ "amount": 9 }), first).await;
    let output = json!({ "paid": 9 });
    let (at, outcome) = (Timestamp::now(), antiphon_agent::Outcome::Success);
    record.state = CallState::Ended { at, outcome, output: output.clone(), detail: None };
    rig.put(&record).await;
    rig.say("Did you pay?").await;
    assert_eq!(outputs(&rig.shown()), [(Some("c1".into()), output)]);
}

#[tokio::test]
async fn a_branch_that_knows_nothing_of_a_call_is_not_told_of_it() {
    let rig = rig(Effects::Once, ["One.", "Two.", "Branch."].map(ModelTurn::says));
    let first = rig.say("Hello.").await.unwrap();
    let second = rig.say("More.").await;
    rig.killed("c1", json!({}), second).await;
    rig.agent.run_text(&cx(), "Elsewhere.", AgentInit::snapshot(first)).await.unwrap();
    assert_eq!(outputs(&rig.shown()), []);
    assert_eq!(rig.open().await.len(), 1, "it is still to be told");
}

#[tokio::test]
async fn an_idempotent_tool_gets_the_key_of_the_call_that_is_unknown() {
    let turns = [ModelTurn::says("One."), calls("c2", 9), calls("c3", 9), ModelTurn::says("Paid.")];
    let rig = rig(Effects::Idempotent, turns);
    let first = rig.say("Hello.").await;
    let killed = rig.killed("c1", json!({ "amount": 9.0 }), first.clone()).await;
    let like = rig.killed("c0", json!({ "amount": 9 }), first).await;
    rig.say("Pay again.").await;
    let keys: Vec<_> = rig.seen.lock().unwrap().iter().map(|(key, _)| key.clone()).collect();
    // The same arguments, and only once.
    assert_eq!(keys[0], like.key);
    assert!(keys[1] != like.key && keys[1] != killed.key, "{keys:?}");
}

#[tokio::test]
async fn a_tool_that_asks_waits_where_a_call_like_it_is_unknown() {
    let turns = [ModelTurn::says("One."), calls("c2", 9), calls("c3", 8), ModelTurn::says("Paid.")];
    let rig = rig(Effects::Ask, turns);
    let first = rig.say("Hello.").await;
    rig.killed("c1", json!({ "amount": 9 }), first).await;
    let output = rig.agent.run_text(&cx(), "Pay.", AgentInit::session("s")).await.unwrap();
    assert_eq!(output.finish_reason, Some(antiphon_agent::AgentFinishReason::Interrupted));
    let interrupt = output.message.unwrap().content[0].metadata.clone().unwrap();
    assert!(interrupt["interrupt"]["reason"].as_str().unwrap().contains("not known"));
    // Somebody may decide over it from elsewhere.
    assert!(rig.open().await.iter().any(CallRecord::is_waiting));
    assert!(rig.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn reading_is_recorded_behind_and_leaves_nothing() {
    let rig = rig(Effects::ReadOnly, [calls("c1", 5), ModelTurn::says("Done.")]);
    rig.say("Look.").await;
    rig.settled().await;
    assert_eq!(rig.seen.lock().unwrap().len(), 1);
    assert!(matches!(rig.shown().last().unwrap().role, antiphon_agent::Role::Tool));
}

#[tokio::test]
async fn a_call_that_cannot_be_recorded_does_not_run() {
    let store: Arc<dyn SessionStore> = Arc::new(Full(InMemorySessionStore::new()));
    let (tool, seen) = pay(Arc::new(InMemorySessionStore::new()), Effects::Once);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let model = ScriptedModel::new([calls("c1", 5), ModelTurn::says("It failed.")]);
    let prompt = Prompt::builder("clerk").system("Pay.").build().unwrap();
    let agent: Agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("clerk")
        .unwrap()
        .shared_store(store)
        .build();
    agent.run_text(&cx(), "Pay 5.", AgentInit::session("s")).await.unwrap();
    assert!(seen.lock().unwrap().is_empty());
    let told = outputs(&model.requests().last().unwrap().messages);
    assert_eq!(told[0].1, json!({ "error": "the tool failed" }));
}

/// A store that takes snapshots but no calls.
pub struct Full(pub InMemorySessionStore);

#[async_trait::async_trait]
impl antiphon_agent::SnapshotReader for Full {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<antiphon_agent::SessionSnapshot>, RuntimeError> {
        self.0.get_snapshot(cx, id).await
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<antiphon_agent::SessionSnapshot>, RuntimeError> {
        self.0.get_latest_snapshot(cx, session).await
    }
}

#[async_trait::async_trait]
impl antiphon_agent::SnapshotWriter for Full {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &antiphon_agent::SnapshotUpdate<'_>,
    ) -> Result<Option<antiphon_agent::SessionSnapshot>, RuntimeError> {
        self.0.save_snapshot(cx, id, update).await
    }
}

impl SessionStore for Full {
    fn call_ledger(&self) -> Option<&dyn antiphon_agent::ledger::CallLedger> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl antiphon_agent::ledger::CallLedger for Full {
    async fn call(
        &self,
        _cx: &InvocationContext,
        _key: &str,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        Ok(None)
    }

    async fn open_calls(
        &self,
        _cx: &InvocationContext,
        _session: Option<&str>,
    ) -> Result<Vec<CallRecord>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn save_call(
        &self,
        _cx: &InvocationContext,
        _key: &str,
        _update: &antiphon_agent::ledger::CallUpdate<'_>,
    ) -> Result<Option<CallRecord>, RuntimeError> {
        Err(RuntimeError::internal("the disk is full"))
    }
}

#[test]
fn a_record_reads_back_however_deep_its_arguments_are() {
    let deep = (0..126).fold(json!(1), |inner, _| json!([inner]));
    let args = JsonObject::from_iter([("deep".to_owned(), deep)]);
    let call = ToolCall { id: "c".into(), name: "t".into(), args };
    let record = CallRecord::new("k", "s", &call, Timestamp::UNIX_EPOCH);
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<CallRecord>(&text).unwrap(), record);
}
