//! The exchanges of Genkit's own agents, replayed.
//!
//! `recorded/` was recorded from Genkit JS 1.42.0: requests of its client and the answers of its
//! server, without the layer of HTTP, over the four agents that are made again in [`agents`]. Each
//! request goes through the JSON entry points here, and the answer must be the recorded one, but for
//! ids and times, and for [`differences`], each of which says what it follows instead.

mod agents;
mod differences;

use std::{collections::HashMap, time::Duration};

use antiphon_agent::{AgentAction, AgentHandle, RunError, RuntimeError, patch::apply_patch};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::agent::cx;

/// One request and its recorded answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Exchange {
    agent: String,
    action: String,
    /// How long after the one before, where that matters.
    #[serde(default)]
    pause_ms: u64,
    /// The client went away after so many chunks.
    cancel_after_chunks: Option<usize>,
    request: Map<String, Value>,
    chunks: Option<Vec<Value>>,
    result: Option<Value>,
    error: Option<Value>,
}

/// Replays a scenario of `recorded/`.
async fn replay(scenario: &str) {
    let path = format!("{}/tests/it/genkit/recorded/{scenario}.json", env!("CARGO_MANIFEST_DIR"));
    let recorded = std::fs::read_to_string(&path).unwrap();
    let exchanges: Vec<Exchange> = serde_json::from_str(&recorded).unwrap();
    let agents = agents::all();
    let mut ids = Ids::default();
    let mut wrong = Vec::new();
    for (n, exchange) in exchanges.iter().enumerate() {
        sleep(Duration::from_millis(exchange.pause_ms + 1)).await;
        let mut request = Value::Object(exchange.request.clone());
        ids.translate(&mut request);
        let agent = &agents[&*exchange.agent];
        let mut ours = answer(agent, exchange, request).await;
        let mut theirs = expected(exchange);
        for (patch, because) in differences::of(scenario, n) {
            let changed = apply_patch(&theirs, &patch).unwrap();
            assert_ne!(changed, theirs, "{scenario} {n}: no difference any more: {because}");
            theirs = changed;
        }
        normalise(&mut theirs);
        normalise(&mut ours);
        ids.learn(&theirs, &ours);
        ids.translate(&mut theirs);
        if theirs != ours {
            let patch = antiphon_agent::patch::diff(&theirs, &ours);
            let patch = serde_json::to_value(patch).unwrap();
            wrong.push(format!("{scenario}, exchange {n}: from theirs to ours {patch:#}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The recorded answer as one document.
fn expected(exchange: &Exchange) -> Value {
    let mut answer = Map::new();
    let members = [
        ("chunks", exchange.chunks.clone().map(Value::Array)),
        ("result", exchange.result.clone()),
        ("error", exchange.error.clone()),
    ];
    for (key, value) in members {
        answer.extend(value.map(|value| (key.to_owned(), value)));
    }
    Value::Object(answer)
}

/// The answer of an agent here, in the same form.
async fn answer(agent: &AgentHandle, exchange: &Exchange, mut request: Value) -> Value {
    let data = request["data"].take();
    let action = match &*exchange.action {
        "run" => return run(agent, exchange, data, request["init"].take()).await,
        "getSnapshot" => AgentAction::GetSnapshot,
        "abort" => AgentAction::Abort,
        other => panic!("unknown action {other}"),
    };
    let result = match agent.action(action) {
        Some(action) => action.run_json(&cx(), data).await,
        None => Err(RuntimeError::FailedPrecondition("there is no such action".into())),
    };
    match result {
        Ok(result) => json!({ "result": result }),
        Err(error) => json!({ "error": { "status": error.status() } }),
    }
}

async fn run(agent: &AgentHandle, exchange: &Exchange, data: Value, init: Value) -> Value {
    let mut chunks = Vec::new();
    let stop = CancellationToken::new();
    let cx = cx().with_cancellation(stop.clone());
    let result = agent
        .run_bidi_json(&cx, data, init, &mut |chunk| {
            // A client that went away sees nothing more.
            if !stop.is_cancelled() {
                chunks.push(chunk);
            }
            if exchange.cancel_after_chunks.is_some_and(|most| chunks.len() >= most) {
                stop.cancel();
            }
        })
        .await;
    let mut answer = match result {
        Ok(result) => json!({ "result": result }),
        Err(RunError { output: Some(_), .. }) => json!({}),
        Err(RunError { error, .. }) => json!({ "error": { "status": error.status() } }),
    };
    if exchange.chunks.is_some() {
        answer["chunks"] = Value::Array(chunks);
    }
    answer
}

/// Leaves out what says nothing: times are there or not, empty members are not, and errors of the
/// runtime have their own words.
fn normalise(value: &mut Value) {
    const TIMES: [&str; 3] = ["createdAt", "updatedAt", "heartbeatAt"];
    const EMPTY: [&str; 3] = ["artifacts", "messages", "metadata"];
    /// The text of an agent function's own error.
    const OWN: &str = "custom failure";
    match value {
        Value::Array(values) => values.iter_mut().for_each(normalise),
        Value::Object(members) => {
            members.retain(|key, value| {
                !EMPTY.contains(&&**key) || (*value != json!([]) && *value != json!({}))
            });
            for (key, value) in members {
                if TIMES.contains(&&**key) && value.is_string() {
                    *value = json!("<time>");
                }
                if key == "error"
                    && let Value::Object(error) = value
                {
                    let text = error.get("message").and_then(Value::as_str).unwrap_or_default();
                    if !text.contains(OWN) {
                        error.retain(|key, _| key == "status");
                    }
                }
                normalise(value);
            }
        }
        _ => {}
    }
}

/// Which of our ids stands for which of theirs.
#[derive(Default)]
struct Ids(HashMap<String, String>);

impl Ids {
    /// Learns ids from where both have one.
    fn learn(&mut self, theirs: &Value, ours: &Value) {
        const IDS: [&str; 3] = ["snapshotId", "sessionId", "parentId"];
        match (theirs, ours) {
            (Value::Object(theirs), Value::Object(ours)) => {
                for (key, value) in theirs {
                    match (value, ours.get(key)) {
                        (Value::String(their), Some(Value::String(our)))
                            if IDS.contains(&&**key) =>
                        {
                            self.0.entry(their.clone()).or_insert_with(|| our.clone());
                        }
                        (value, Some(our)) => self.learn(value, our),
                        _ => {}
                    }
                }
            }
            (Value::Array(theirs), Value::Array(ours)) => {
                theirs.iter().zip(ours).for_each(|(theirs, ours)| self.learn(theirs, ours));
            }
            _ => {}
        }
    }

    /// Puts ours in the place of theirs.
    fn translate(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Some(ours) = self.0.get(text) {
                    *text = ours.clone();
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.translate(value)),
            Value::Object(members) => {
                members.iter_mut().for_each(|(_, value)| self.translate(value));
            }
            _ => {}
        }
    }
}

macro_rules! scenarios {
    ($($name:ident $file:literal),+ $(,)?) => {$(
        #[tokio::test(start_paused = true)]
        async fn $name() {
            replay($file).await;
        }
    )+};
}

scenarios! {
    plain_turn "01-plain-turn",
    plain_turn_nonstream "02-plain-turn-nonstream",
    streaming_turn "03-streaming-turn",
    tool_turn "04-tool-turn",
    two_turns_same_chat "05-two-turns-same-chat",
    custom_state "06-custom-state",
    artifacts "07-artifacts",
    client_managed "08-client-managed",
    client_managed_prompt "09-client-managed-prompt",
    interrupt_respond "10-interrupt-respond",
    interrupt_restart "11-interrupt-restart",
    interrupt_restart_with_metadata "12-interrupt-restart-with-metadata",
    interrupt_with_finished_sibling "13-interrupt-with-finished-sibling",
    forged_restart "14-forged-restart",
    forged_respond "15-forged-respond",
    stale_resume "16-stale-resume",
    failing_turn "17-failing-turn",
    failing_first_turn "18-failing-first-turn",
    failing_custom "19-failing-custom",
    failing_client_managed "20-failing-client-managed",
    tool_throws "21-tool-throws",
    finish_reasons "22-finish-reasons",
    detach_poll_wait "23-detach-poll-wait",
    detach_abort "24-detach-abort",
    detach_fail "25-detach-fail",
    detach_prompt_abort "27-detach-prompt-abort",
    resume_while_pending "28-resume-while-pending",
    abort_unknown_and_settled "29-abort-unknown-and-settled",
    load_chat_by_session "30-loadChat-by-session",
    load_chat_missing "31-loadChat-missing",
    fork "32-fork",
    own_session_id "33-own-session-id",
    bad_init "34-bad-init",
    bad_input "35-bad-input",
    get_snapshot_raw "36-getSnapshot-raw",
    abort_inflight_turn "37-abort-inflight-turn",
    empty_input_continue "38-empty-input-continue",
    new_message_over_interrupt "39-new-message-over-interrupt",
    resume_plus_message "40-resume-plus-message",
    abort_header "41-abort-header",
    detach_no_store "99-detach-no-store",
}
