//! Calls that the provider runs itself: here it is decided whether it may.

use antiphon_agent::{
    Admission, CallContext, Denial, Outcome, ToolExecutor, ToolRegistry, Verdict, types::ToolCall,
};
use serde_json::json;

use crate::support::*;

fn asked() -> CallContext {
    let mut cx = call_context();
    cx.by_provider = true;
    cx
}

#[tokio::test]
async fn what_the_policy_allows_is_permitted_and_no_tool_of_ours_runs() {
    let counter = Counter::default();
    // Ours has the same name.
    let executor = guarded(pay(&counter), |_: &CallContext, _: &ToolCall| Verdict::Allow);
    let call = admitted(executor.admit(&asked(), request("1", "pay", r#"{"to":"Ann"}"#)));
    let executed = executor.run(call, run_context()).await;
    assert_eq!((executed.outcome, executed.output), (Outcome::Success, json!({"permitted": true})));
    assert_eq!(counter.count(), 0);
}

#[test]
fn what_it_would_change_denies_or_cannot_be_asked_is_refused() {
    let policy = |_: &CallContext, call: &ToolCall| match &*call.name {
        "docs/same" => Verdict::AllowWith(call.args.clone()),
        "docs/less" => Verdict::AllowWith(object(json!({"page": 1}))),
        _ => Verdict::Deny(Denial::told("not that")),
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let admit =
        |id: &str, name: &str, args: &str| executor.admit(&asked(), request(id, name, args));
    assert!(matches!(admit("1", "docs/same", r#"{"page":2}"#), Admission::Run(_)));
    let less = refused(admit("2", "docs/less", r#"{"page":2}"#));
    assert_eq!(less.outcome, Outcome::Denied);
    assert_eq!(error_text(&refused(admit("3", "docs/erase", "{}")).response.response), "not that");
    for (id, args) in [("4", "[1]"), ("5", r#"{"a":1,"a":2}"#)] {
        assert_eq!(refused(admit(id, "docs/same", args)).outcome, Outcome::InvalidArguments);
    }
    assert!(matches!(admit("1", "docs/same", "{}"), Admission::Duplicate));

    let nobody = ToolExecutor::new(ToolRegistry::new().into(), None);
    let unasked = refused(nobody.admit(&asked(), request("1", "docs/find", "{}")));
    assert_eq!(unasked.outcome, Outcome::Denied);
    // A function by that name is none.
    let unknown = refused(executor.admit(&call_context(), request("9", "docs/same", "{}")));
    assert_eq!(unknown.outcome, Outcome::UnknownTool);
}
