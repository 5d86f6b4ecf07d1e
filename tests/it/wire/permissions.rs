//! Tools of MCP servers, which the service runs itself: it asks, and the policy answers.

use std::{fs, path::Path};

use antiphon::{
    agent::{Authorizer, Denial, Outcome, Verdict},
    policy::{AllowList, PolicyHost, ReceiptLog},
    session::*,
    types::JsonObject,
};
use antiphon_testkit::openai::{Script, Step};
use serde_json::{Value, json};

use super::rig::*;
use crate::rig::{SECOND, outcomes, policy};

/// The service asks whether it may have `docs` run this.
fn asks(reply: &str, id: &str, name: &str, arguments: &str) -> Step {
    emit(json!({"type": "response.output_item.done", "response_id": reply, "output_index": 0,
        "item": {"type": "mcp_approval_request", "id": id, "server_label": "docs", "name": name,
            "arguments": arguments}}))
}

/// The answer to that, and what it has beside.
fn answered(id: &str, approve: bool, more: Value) -> Step {
    let mut item = json!({"type": "mcp_approval_response", "approval_request_id": id,
        "approve": approve});
    item.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    Step::Expect(json!({"type": "conversation.item.create", "item": item}))
}

fn with_docs(script: Script, require: Option<&str>, policy: impl Authorizer) -> Setup {
    let mut server = json!({"server_label": "docs", "server_url": "https://docs.example/mcp"});
    if let Some(word) = require {
        server["require_approval"] = word.into();
    }
    Setup::new(script).build(|it| it.authorize(policy)).config(|mut config| {
        config.provider_options.insert("mcp_servers".into(), json!([server]));
        config
    })
}

/// What the receipts say: of each entry, what it is and says.
fn story(log: &Path) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    let entries = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let said = entries.map(|line| {
        let entry = &line["entry"];
        let says = if entry["kind"] == "decision" { "verdict" } else { "happened" };
        json!([entry["tool"], entry[says], entry["runs_at"]])
    });
    said.collect()
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_over_tools_that_the_service_runs_and_receipts_tell() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("receipts");
    let host = PolicyHost::builder()
        .policy(AllowList::new("tools", ["docs/find"]).unwrap())
        .receipts(ReceiptLog::open(&log).unwrap())
        .build()
        .unwrap();
    let [create, next] = asked_for("r2");
    let [create_too, last] = asked_for("r3");
    let script = exactly([
        begins("r1"),
        asks("r1", "q1", "find", r#"{"what":"opening hours"}"#),
        // Twice the same is one request.
        asks("r1", "q1", "find", r#"{"what":"opening hours"}"#),
        done("r1"),
        answered("q1", true, json!({})),
        create,
        next,
        asks("r2", "q2", "erase", "{}"),
        done("r2"),
        answered("q2", false, json!({"reason": Outcome::Denied.fixed_text()})),
        create_too,
        last,
        done("r3"),
    ]);
    let mut wire = with_docs(script, None, host).start().await;
    let tools = wire.sent("session.update")[0]["session"]["tools"].clone();
    assert_eq!(tools[0]["require_approval"], "always", "{tools}");
    let mut events = Vec::new();
    while outcomes(&events).len() < 2 {
        events.extend(wire.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await);
    }
    assert_eq!(
        outcomes(&events),
        [("q1".into(), Outcome::Success), ("q2".into(), Outcome::Denied)]
    );
    wire.pass(SECOND).await;
    wire.assert_clean();
    wire.session.stop();
    wire.end().await;
    // Whether it was done is the service's to know.
    assert_eq!(
        story(&log),
        [
            json!(["docs/find", "allow", "provider"]),
            json!(["docs/find", "unknown", "provider"]),
            json!(["docs/erase", "deny", "provider"]),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_policy_would_change_or_nobody_can_ask_about_is_refused() {
    let narrows = policy(|call| match &*call.name {
        "docs/find" => Verdict::AllowWith(JsonObject::new()),
        "docs/ask" => Verdict::Ask { reason: "who knows".into() },
        _ => Verdict::Deny(Denial::told("not that one")),
    });
    let script = exactly([
        begins("r1"),
        asks("r1", "q1", "find", r#"{"what":"all"}"#),
        asks("r1", "q2", "ask", "{}"),
        asks("r1", "q3", "erase", "{}"),
        asks("r1", "q4", "erase", r#"{"a":1,"a":2}"#),
        answered("q1", false, json!({})),
        // Nobody attends to calls that wait without an agent that is linked.
        answered("q2", false, json!({"reason": Outcome::Denied.fixed_text()})),
        answered("q3", false, json!({"reason": "not that one"})),
        answered("q4", false, json!({})),
        done("r1"),
    ]);
    let mut wire = with_docs(script, Some("always"), narrows).start().await;
    let mut events = Vec::new();
    while outcomes(&events).len() < 4 {
        events.extend(wire.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await);
    }
    wire.pass(SECOND).await;
    assert_eq!(wire.server.failures(), Vec::<String>::new());
    let denied = |kind: &&EventKind| matches!(kind, EventKind::ToolDenied { .. });
    assert_eq!(events.iter().filter(denied).count(), 3, "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_cut_off_permits_nothing() {
    let allows = policy(|_| Verdict::Allow);
    let script = exactly([
        begins("r1"),
        voice("r1", 500),
        asks("r1", "q1", "find", "{}"),
        Step::Expect(json!({"type": "response.cancel"})),
        Step::Expect(json!({"type": "conversation.item.truncate"})),
        answered("q1", false, json!({"reason": Outcome::Interrupted.fixed_text()})),
        emit(json!({"type": "response.done", "response": {"id": "r1", "status": "cancelled"}})),
    ]);
    let mut wire = with_docs(script, None, allows).start().await;
    wire.until_speaking().await;
    wire.settle().await;
    wire.session.interrupt().unwrap();
    let is_over = |kind: &EventKind| matches!(kind, EventKind::ToolResult { .. });
    let events = wire.until(is_over).await;
    assert_eq!(outcomes(&events), [("q1".into(), Outcome::Interrupted)]);
    wire.pass(SECOND).await;
    assert_eq!(wire.server.failures(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_would_not_ask_is_refused_where_there_is_a_policy() {
    for require in ["never", "sometimes"] {
        let allows = policy(|_| Verdict::Allow);
        let (wire, config, idle) = with_docs(Script::auto(), Some(require), allows).ready();
        let error = wire.session.start(config, idle).await.unwrap_err();
        let StartError::InvalidConfig(why) = error else { panic!("{error:?}") };
        assert!(why.contains("docs") && why.contains("require_approval"), "{why}");
        assert_eq!(wire.server.client_events().len(), 0, "nothing was sent");
    }
    // Nor by the back door.
    let raw =
        json!({"tools": [{"type": "mcp", "server_label": "docs", "server_url": "https://x"}]});
    let allows = policy(|_| Verdict::Allow);
    let setup = Setup::new(Script::auto()).build(|it| it.authorize(allows)).config(|mut config| {
        config.provider_options.insert("session".into(), raw);
        config
    });
    let (wire, config, idle) = setup.ready();
    let error = wire.session.start(config, idle).await.unwrap_err();
    assert!(matches!(error, StartError::InvalidConfig(_)), "{error:?}");
}
