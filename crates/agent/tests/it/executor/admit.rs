use std::{sync::mpsc, time::Duration};

use antiphon_agent::{
    Admission, CallContext, Denial, ExecutorLimits, FuncTool, Outcome, Verdict,
    types::{ToolArguments, ToolCall, ToolCallRequest, ToolDefinition},
};
use serde_json::json;

use crate::support::*;

#[test]
fn c10_the_policy_sees_the_models_arguments_and_the_tool_the_approved_ones() {
    let policy = |_: &CallContext, call: &ToolCall| {
        assert_eq!(call.args, object(json!({"amount": 5, "note": "hi"})));
        Verdict::AllowWith(object(json!({"amount": 4})))
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let request = request("1", "pay", r#"{"amount":5,"note":"hi"}"#);
    let call = admitted(executor.admit(&call_context(), request));
    assert_eq!(call.call().args, object(json!({"amount": 4})));
    assert_eq!(&*call.call().id, "1");
    assert_eq!(&*call.call().name, "pay");
}

#[test]
fn c10_a_denial_discloses_nothing_unless_told() {
    let policy = |_: &CallContext, call: &ToolCall| {
        Verdict::Deny(match call.args["amount"].as_f64() {
            Some(amount) if amount > 100.0 => Denial::told("at most 100"),
            _ => Denial::private("user 17 is blocked"),
        })
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let private = refused(executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#)));
    assert_eq!(private.outcome, Outcome::Denied);
    assert_eq!(
        private.response.response,
        object(json!({"error": "tool call denied by host policy"}))
    );
    assert_eq!(private.reason, "user 17 is blocked");
    assert_eq!(private.args, Some(object(json!({"amount": 5}))));

    let told = refused(executor.admit(&call_context(), request("2", "pay", r#"{"amount":500}"#)));
    assert_eq!(error_text(&told.response.response), "at most 100");
}

#[test]
fn trial_d23_a_refused_call_never_reaches_the_body() {
    let counter = Counter::default();
    let executor =
        guarded(pay(&counter), |_: &CallContext, _: &ToolCall| Verdict::Deny(Denial::default()));
    for id in ["1", "2", "3"] {
        let refused =
            refused(executor.admit(&call_context(), request(id, "pay", r#"{"amount":5}"#)));
        assert_eq!(&*refused.response.id, id);
    }
    assert_eq!(counter.count(), 0);
}

#[test]
fn c11_unknown_tool_payload() {
    let executor = executor(pay(&Counter::default()));
    let refused = refused(executor.admit(&call_context(), request("1", "fly", "{}")));
    assert_eq!(refused.outcome, Outcome::UnknownTool);
    assert_eq!(refused.response.response, object(json!({"error": "unknown tool: \"fly\""})));
    assert_eq!(&*refused.response.name, "fly");
}

#[test]
fn an_unknown_tool_is_not_shown_to_the_policy() {
    let executor = guarded(pay(&Counter::default()), |_: &CallContext, _: &ToolCall| -> Verdict {
        panic!("asked about an unknown tool")
    });
    let refused = refused(executor.admit(&call_context(), request("1", "fly", "{}")));
    assert_eq!(refused.outcome, Outcome::UnknownTool);
}

#[test]
fn an_endless_name_is_shortened() {
    let executor = executor(pay(&Counter::default()));
    let name = "ö".repeat(1_000_000);
    let refused = refused(executor.admit(&call_context(), request("1", &name, "{}")));
    assert!(error_text(&refused.response.response).len() < 200);
}

#[test]
fn c13_id_and_name_are_echoed() {
    let executor = executor(pay(&Counter::default()));
    let refused = refused(executor.admit(&call_context(), request("call_7", "pay", "[]")));
    assert_eq!((&*refused.response.id, &*refused.response.name), ("call_7", "pay"));
}

#[test]
fn trial_d08_malformed_arguments_never_run_a_tool() {
    let executor = guarded(pay(&Counter::default()), |_: &CallContext, _: &ToolCall| -> Verdict {
        panic!("asked about malformed arguments")
    });
    for (id, text) in [
        "",
        "{\"amount\":",
        "null",
        "[]",
        "\"{}\"",
        "{} {}",
        "{\"amount\":5}x",
        "{\"amount\":5,\"amount\":900}",
        "{\"amount\":5,\"to\":{\"a\":1,\"a\":2}}",
        "{\"to\":\"\\ud800\",\"amount\":5}",
        "{amount:5}",
        "{'amount':5}",
        "{\"amount\":NaN}",
    ]
    .iter()
    .enumerate()
    {
        let request = request(&id.to_string(), "pay", text);
        let refused = refused(executor.admit(&call_context(), request));
        assert_eq!(refused.outcome, Outcome::InvalidArguments, "{text}");
        assert_eq!(refused.args, None);
        let told = error_text(&refused.response.response);
        assert!(told.starts_with("invalid arguments: "), "{told}");
        assert!(told.len() > "invalid arguments: ".len() + 8, "{told}");
    }
}

#[test]
fn trial_d07_arguments_are_bounded() {
    let executor = executor(pay(&Counter::default()));
    let text = format!("{{\"amount\":5,\"note\":\"{}\"}}", "x".repeat(5 << 20));
    let parsed = ToolArguments::Object(serde_json::from_str(&text).unwrap());
    for (id, arguments) in [("1", ToolArguments::Json(text)), ("2", parsed)] {
        let request = ToolCallRequest { id: id.into(), name: "pay".into(), arguments };
        let refused = refused(executor.admit(&call_context(), request));
        assert_eq!(refused.outcome, Outcome::InvalidArguments);
        assert!(error_text(&refused.response.response).contains("at most 1048576"));
    }
}

#[test]
fn arguments_that_break_the_schema_are_refused_with_what_is_wrong() {
    let executor = executor(pay(&Counter::default()));
    let refused_text = |id, args| {
        let refused = refused(executor.admit(&call_context(), request(id, "pay", args)));
        assert_eq!(refused.outcome, Outcome::InvalidArguments);
        assert!(refused.args.is_some());
        error_text(&refused.response.response).to_owned()
    };
    assert!(refused_text("1", "{}").contains("\"amount\""));
    assert!(refused_text("2", r#"{"amount":-1}"#).contains("/amount"));
    assert!(refused_text("3", r#"{"amount":"5"}"#).contains("number"));
    let long = format!("{{\"amount\":\"{}\"}}", "5".repeat(100_000));
    assert!(refused_text("4", &long).len() < 1_000);
}

#[test]
fn the_policys_arguments_pass_the_schema_too_and_stay_as_they_are() {
    let policy = |_: &CallContext, call: &ToolCall| match call.id.as_ref() {
        "bad" => Verdict::AllowWith(object(json!({"amount": "much"}))),
        _ => Verdict::AllowWith(object(json!({"amount": 5, "memo": null}))),
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let bad = executor.admit(&call_context(), request("bad", "pay", r#"{"amount":5}"#));
    assert_eq!(refused(bad).outcome, Outcome::InvalidArguments);
    let good = executor.admit(&call_context(), request("good", "pay", r#"{"amount":1}"#));
    assert_eq!(admitted(good).call().args, object(json!({"amount": 5, "memo": null})));
}

#[test]
fn a_schema_that_refers_to_itself_ends() {
    let schema = json!({
        "$defs": { "node": {
            "type": "object",
            "properties": { "next": { "$ref": "#/$defs/node" } },
            "additionalProperties": false,
        } },
        "$ref": "#/$defs/node",
    });
    let executor = executor(FuncTool::new("walk", "Walks.", schema, |_, args| async { Ok(args) }));
    let good = request("1", "walk", r#"{"next":{"next":{}}}"#);
    admitted(executor.admit(&call_context(), good));
    let bad = request("2", "walk", r#"{"next":{"next":{"prev":1}}}"#);
    assert_eq!(refused(executor.admit(&call_context(), bad)).outcome, Outcome::InvalidArguments);
}

#[test]
fn a_second_call_of_an_id_is_a_duplicate_whatever_the_first_became() {
    let executor = executor(pay(&Counter::default()));
    for args in [r#"{"amount":5}"#, "{", r#"{"amount":"x"}"#] {
        let first = executor.admit(&call_context(), request(args, "pay", args));
        assert!(!matches!(first, Admission::Duplicate));
        for again in [args, r#"{"amount":6}"#] {
            let second = executor.admit(&call_context(), request(args, "pay", again));
            assert!(matches!(second, Admission::Duplicate), "{second:?}");
        }
    }
    let given_up = request("given up", "pay", r#"{"amount":5}"#);
    executor.refuse(&given_up, Outcome::Interrupted, "barge-in");
    assert!(matches!(executor.admit(&call_context(), given_up), Admission::Duplicate));
}

#[test]
fn the_memory_of_ids_is_bounded() {
    let mut limits = ExecutorLimits::default();
    limits.max_remembered_calls = 2;
    let executor = executor(pay(&Counter::default())).limits(limits);
    let admit = |id| executor.admit(&call_context(), request(id, "pay", r#"{"amount":5}"#));
    for id in ["1", "2", "3"] {
        admitted(admit(id));
    }
    assert!(matches!(admit("3"), Admission::Duplicate));
    assert!(matches!(admit("2"), Admission::Duplicate));
    admitted(admit("1"));
}

#[test]
fn trial_d24_a_policy_that_panics_denies() {
    let executor = guarded(pay(&Counter::default()), |_: &CallContext, _: &ToolCall| -> Verdict {
        panic!("no rules loaded")
    });
    let refused = refused(executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#)));
    assert_eq!(refused.outcome, Outcome::Denied);
    assert_eq!(error_text(&refused.response.response), "tool call denied by host policy");
    assert!(refused.reason.contains("no rules loaded"));
}

#[tokio::test]
async fn trial_d24_a_policy_that_is_late_denies_and_its_answer_is_discarded() {
    let (release, latch) = mpsc::channel::<()>();
    let latch = std::sync::Mutex::new(latch);
    let policy = move |_: &CallContext, _: &ToolCall| {
        let _ = latch.lock().unwrap().recv();
        Verdict::Allow
    };
    let counter = Counter::default();
    let executor = guarded(pay(&counter), policy);
    let cx = call_context();
    let late = request("1", "pay", r#"{"amount":5}"#);
    let deadline = Some(Duration::from_millis(5));
    let refused = refused(executor.admit_within(&cx, late.clone(), deadline).await);
    assert_eq!(refused.outcome, Outcome::Denied);
    assert_eq!(error_text(&refused.response.response), "tool call denied by host policy");
    assert!(refused.reason.contains("5 ms"), "{}", refused.reason);

    release.send(()).unwrap();
    assert!(matches!(executor.admit_within(&cx, late, None).await, Admission::Duplicate));
    release.send(()).unwrap();
    let next = request("2", "pay", r#"{"amount":5}"#);
    admitted(executor.admit_within(&cx, next, None).await);
    assert_eq!(counter.count(), 0);
}

#[tokio::test]
async fn trial_d24_a_policy_that_hangs_costs_a_bounded_number_of_threads() {
    let (release, latch) = mpsc::channel::<()>();
    let latch = std::sync::Mutex::new(latch);
    let entered = Counter::default();
    let asked = entered.clone();
    let policy = move |_: &CallContext, _: &ToolCall| {
        asked.add();
        let _ = latch.lock().unwrap().recv();
        Verdict::Allow
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let cx = call_context();
    for id in 0..20 {
        let request = request(&id.to_string(), "pay", r#"{"amount":5}"#);
        let admission = executor.admit_within(&cx, request, Some(Duration::from_millis(2))).await;
        assert_eq!(refused(admission).outcome, Outcome::Denied);
    }
    assert!(entered.count() <= 8, "{}", entered.count());
    // A duplicate is none the less one, and has no second output.
    let again = request("0", "pay", r#"{"amount":5}"#);
    let again = executor.admit_within(&cx, again, Some(Duration::from_millis(2))).await;
    assert!(matches!(again, Admission::Duplicate), "{again:?}");
    drop(release);
}

#[test]
fn a_call_that_its_tool_wants_read_back_asks_and_then_runs() {
    let tool = pay(&Counter::default()).read_back("Pay {amount} euros?");
    let executor = executor(tool);
    let asked = executor.admit(&call_context(), request("1", "pay", r#"{"amount":5.0}"#));
    let Admission::Confirm { read_back, request } = asked else { panic!("{asked:?}") };
    assert_eq!(read_back, "Pay 5 euros?");
    // The provider may send it once more while the user thinks.
    let again = executor.admit(&call_context(), request.clone());
    assert!(matches!(again, Admission::Duplicate));
    let call = admitted(executor.admit(&call_context().confirmed(), request.clone()));
    assert_eq!(call.call().args, object(json!({"amount": 5.0})));
    let twice = executor.admit(&call_context().confirmed(), request);
    assert!(matches!(twice, Admission::Duplicate));
}

#[test]
fn an_invalid_call_is_not_read_back() {
    let executor = executor(pay(&Counter::default()).read_back("Pay {amount} euros?"));
    let invalid = executor.admit(&call_context(), request("1", "pay", r#"{"amount":5000}"#));
    assert_eq!(refused(invalid).outcome, Outcome::InvalidArguments);
}

#[test]
fn the_policy_may_want_a_read_back_and_is_asked_again() {
    let policy = |cx: &CallContext, call: &ToolCall| {
        if !cx.confirmed || call.args["amount"] == json!(6) {
            return Verdict::Confirm { read_back: format!("Really {}?", call.args["amount"]) };
        }
        if call.args["amount"] == json!(7) {
            return Verdict::Deny(Denial::default());
        }
        Verdict::Allow
    };
    // The tool's own question is not asked on top of the policy's.
    let executor = guarded(pay(&Counter::default()).read_back("Pay?"), policy);
    for amount in [5, 6, 7] {
        let args = json!({ "amount": amount }).to_string();
        let asked = executor.admit(&call_context(), request(&args, "pay", &args));
        let Admission::Confirm { read_back, request } = asked else { panic!("{asked:?}") };
        assert_eq!(read_back, format!("Really {amount}?"));
        let answered = executor.admit(&call_context().confirmed(), request);
        match amount {
            7 => assert_eq!(refused(answered).outcome, Outcome::Denied),
            _ => assert_eq!(admitted(answered).call().args["amount"], json!(amount)),
        }
    }
}

#[test]
fn a_yes_stands_for_the_arguments_that_were_read_back() {
    let executor = executor(pay(&Counter::default()).read_back("Pay?"));
    let asked = executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#));
    assert!(matches!(asked, Admission::Confirm { .. }));
    let changed = request("1", "pay", r#"{"amount":900}"#);
    let refused = refused(executor.admit(&call_context().confirmed(), changed));
    assert_eq!(refused.outcome, Outcome::Denied);
}

#[test]
fn arguments_that_the_policy_changes_after_the_yes_are_read_back_again() {
    let policy = |cx: &CallContext, _: &ToolCall| {
        Verdict::AllowWith(object(json!({ "amount": if cx.confirmed { 6 } else { 5 } })))
    };
    let executor = guarded(pay(&Counter::default()).read_back("Pay {amount}?"), policy);
    let mut request = request("1", "pay", r#"{"amount":1}"#);
    for (cx, words) in [(call_context(), "Pay 5?"), (call_context().confirmed(), "Pay 6?")] {
        let asked = executor.admit(&cx, request);
        let Admission::Confirm { read_back, request: back } = asked else { panic!("{asked:?}") };
        assert_eq!(read_back, words);
        request = back;
    }
    let call = admitted(executor.admit(&call_context().confirmed(), request));
    assert_eq!(call.call().args["amount"], json!(6));
}

#[test]
fn a_no_has_one_output() {
    let executor = executor(pay(&Counter::default()).read_back("Pay?"));
    let asked = executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#));
    let Admission::Confirm { request, .. } = asked else { panic!("{asked:?}") };
    let refused = executor.refuse(&request, Outcome::NotConfirmed, "the user said no");
    assert_eq!(error_text(&refused.response.response), "the user did not confirm the tool call");
    let late_yes = executor.admit(&call_context().confirmed(), request);
    assert!(matches!(late_yes, Admission::Duplicate));
}

#[test]
fn f11_host_tools_pass_policy_and_schema_and_are_left_to_the_host() {
    let policy = |_: &CallContext, call: &ToolCall| match call.args.contains_key("secret") {
        true => Verdict::Deny(Denial::default()),
        false => Verdict::Allow,
    };
    let executor = guarded(pay(&Counter::default()), policy);
    let mut definition = ToolDefinition::new("show_map", "Shows a map.");
    definition.input_schema = Some(
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
            .into(),
    );
    executor.set_host_tools(&[definition.clone()]).unwrap();

    let admit = |id, args| executor.admit(&call_context(), request(id, "show_map", args));
    let Admission::Host(call) = admit("1", r#"{"city":"Oslo"}"#) else { panic!("not the host's") };
    assert_eq!(call.args, object(json!({"city": "Oslo"})));
    assert_eq!(refused(admit("2", "{}")).outcome, Outcome::InvalidArguments);
    assert_eq!(refused(admit("3", r#"{"secret":1}"#)).outcome, Outcome::Denied);

    let taken = ToolDefinition::new("pay", "Pays, too.");
    assert!(executor.set_host_tools(&[taken]).is_err());
    assert!(executor.set_host_tools(&[definition.clone(), definition]).is_err());

    // The model was told of the host's, whoever registers one of its name later.
    executor.registry().must_register(FuncTool::new(
        "show_map",
        "Shows another.",
        None,
        |_, _| async { unreachable!() },
    ));
    assert!(matches!(admit("late", r#"{"city":"Oslo"}"#), Admission::Host(_)));
    executor.registry().unregister("show_map");

    executor.set_host_tools(&[]).unwrap();
    assert_eq!(refused(admit("4", r#"{"city":"Oslo"}"#)).outcome, Outcome::UnknownTool);
}

#[test]
fn a_call_that_is_withdrawn_before_it_starts_has_one_output() {
    let executor = executor(pay(&Counter::default()));
    let admission = executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#));
    let refused = admitted(admission).withdraw(Outcome::Interrupted, "barge-in");
    assert_eq!(refused.outcome, Outcome::Interrupted);
    assert_eq!(&*refused.response.id, "1");
    assert!(refused.response.response.contains_key("error"));
}
