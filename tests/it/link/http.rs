//! Calls that wait for a person, decided over by HTTP beside the session that lives.

use antiphon::{
    agent::{
        InMemory, InMemorySessionStore, InvocationContext, ToolRegistry,
        approval::{ApprovalError, Approvals},
    },
    live::LiveCommand,
    serve::approvals::{ApprovalRequest, ApprovalResponse, ApprovalsHttp, StoreDesk, Tokens},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use serde_json::json;

use super::{
    approvals::{ask, asking, goes_on, is_settled, parks},
    *,
};
use crate::rig::*;

const TOKEN: &str = "a token that nobody guesses";

fn tokens() -> Tokens {
    Tokens::one(TOKEN.into()).unwrap()
}

async fn post(http: &ApprovalsHttp, path: &str, body: &str) -> ApprovalResponse {
    http.respond(ApprovalRequest::new("POST", path, TOKEN).body(body.as_bytes())).await
}

async fn get(http: &ApprovalsHttp, path: &str) -> ApprovalResponse {
    http.respond(ApprovalRequest::new("GET", path, TOKEN)).await
}

#[tokio::test(start_paused = true)]
async fn what_is_approved_over_http_is_spoken_by_the_session_that_lives() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let http = ApprovalsHttp::new(rig.session.clone(), tokens());
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.commands().await;
    let list = get(&http, "/approvals").await;
    assert_eq!((list.status, &list.body["approvals"][0]["key"]), (200, &json!(key)));

    let done = post(&http, &format!("/approvals/{key}/approve"), r#"{"by": "ann"}"#).await;
    assert_eq!((done.status, &done.body["outcome"]), (200, &json!("success")), "{done:?}");
    rig.until(is_settled).await;
    let said = rig.commands().await.into_iter().find_map(|command| match command {
        LiveCommand::Say { text, .. } => Some(text),
        _ => None,
    });
    assert!(said.unwrap().contains("approved"));
    assert_eq!(latch.calls().len(), 1);
    let again = post(&http, &format!("/approvals/{key}/deny"), "").await;
    assert_eq!(again.status, 409);
    rig.session.stop();
    rig.end().await;
    let over = get(&http, "/approvals").await;
    assert_eq!((over.status, &over.body["error"]["status"]), (503, &json!("FAILED_PRECONDITION")));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_takes_long_runs_on_and_the_client_looks_again() {
    let (tool, latch) = LatchedTool::new("pay", ToolPlan::Succeed);
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    let registry = Arc::new(registry);
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store.clone(), registry.clone());
    let mut rig = linked(&agent, ask).await;
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    rig.session.stop();
    rig.end().await;

    let tools = ToolExecutor::new(registry, None);
    let desk = StoreDesk::new(Approvals::new(store).unwrap(), tools, Arc::new(InMemory::new()));
    let http = ApprovalsHttp::new(desk.context(InvocationContext::new()), tokens());
    let path = format!("/approvals/{key}");
    let began = tokio::time::Instant::now();
    let accepted = post(&http, &format!("{path}/approve"), "").await;
    assert_eq!((accepted.status, &accepted.body["state"]), (202, &json!("running")));
    assert_eq!(began.elapsed(), 5 * SECOND);
    // A second one does not run it again.
    let second = post(&http, &format!("{path}/approve"), "").await;
    assert_eq!((second.status, latch.calls().len()), (409, 1), "{second:?}");
    latch.release(1);
    http.drain(10 * SECOND).await;
    let ended = get(&http, &path).await;
    assert_eq!((ended.status, &ended.body["outcome"]), (200, &json!("success")));
    // The history of the session that is over has it.
    let tip = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
    assert!(lines(&tip).last().unwrap().starts_with("tool: !pay"), "{:#?}", lines(&tip));
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_token_learns_nothing() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let http = ApprovalsHttp::new(rig.session.clone(), tokens());
    let key = parks(&mut rig).await;
    let path = format!("/approvals/{key}/approve");
    for token in [None, Some(""), Some("a token that nobody guesses "), Some("a token")] {
        for path in ["/approvals", &*path, "/nothing"] {
            let mut request = ApprovalRequest::new("POST", path, "");
            request.token = token;
            let refused = http.respond(request).await;
            assert_eq!(refused.status, 401, "{token:?} {path}");
            assert!(!refused.body.to_string().contains("pay"), "{refused:?}");
        }
    }
    assert!(latch.calls().is_empty());
    assert!(!format!("{http:?}").contains("guesses"));
}

#[tokio::test(start_paused = true)]
async fn a_session_without_an_agent_has_nothing_to_approve() {
    let rig = start().await;
    let error = rig.session.waiting_calls(None).await.unwrap_err();
    assert!(matches!(error, ApprovalError::Unsupported), "{error:?}");
    let http = ApprovalsHttp::new(rig.session.clone(), tokens());
    assert_eq!(get(&http, "/approvals").await.status, 501);
}

#[tokio::test(start_paused = true)]
async fn who_decided_is_whose_the_token_is() {
    let (agent, _, latch) = asking();
    let mut rig = linked(&agent, ask).await;
    let of_ann = "the token of ann";
    let tokens = Tokens::new().named("ann", of_ann.into()).unwrap();
    let tokens = tokens.named("bob", "the token of bob".into()).unwrap();
    let http = ApprovalsHttp::new(rig.session.clone(), tokens);
    let key = parks(&mut rig).await;
    goes_on(&mut rig, &agent).await;
    let path = format!("/approvals/{key}/approve");
    let as_ann = |body: &'static str| {
        let request = ApprovalRequest::new("POST", &path, of_ann).body(body.as_bytes());
        http.respond(request)
    };
    let claimed = as_ann(r#"{"by": "bob"}"#).await;
    assert_eq!((claimed.status, latch.calls().len()), (403, 0), "{claimed:?}");
    assert_eq!(claimed.body["error"]["status"], "PERMISSION_DENIED");
    let done = as_ann("").await;
    assert_eq!((done.status, &done.body["decision"]["by"]), (200, &json!("ann")), "{done:?}");
    let settled = rig.until(is_settled).await;
    let by = settled.iter().find_map(|kind| match kind {
        EventKind::ApprovalSettled { by, .. } => by.clone(),
        _ => None,
    });
    assert_eq!(by.as_deref(), Some("ann"));
}
