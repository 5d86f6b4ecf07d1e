//! What a decision of the policy host costs, and a receipt.
//!
//! `cargo bench --bench policy`

use std::{sync::Arc, time::Duration};

use antiphon::{
    agent::{Authorizer, CallContext, Caller, InMemory, InvocationContext},
    policy::{
        AllowList, AmountField, ArgumentBounds, AskAbove, Destinations, Limit, Per, PolicyHost,
        PolicyHostBuilder, ReceiptLog, TimeWindow,
    },
    types::{JsonObject, ToolCall},
};
use divan::{Bencher, black_box};
use jiff::{civil::time, tz::TimeZone};
use serde_json::json;

fn main() {
    divan::main();
}

fn call() -> ToolCall {
    let args = json!({"to": "+4930123456", "cents": 500, "note": "for the flowers"});
    let args = args.as_object().cloned().unwrap_or_default();
    ToolCall { id: "call_1".into(), name: "send_money".into(), args }
}

fn context() -> CallContext {
    let mut cx = CallContext::new("session", 1, Arc::new(InMemory::new()));
    cx.invocation = InvocationContext::new().with_caller(Caller::new("ann").scope("bank"));
    cx
}

/// One of each built-in policy.
fn built_in() -> PolicyHostBuilder {
    let policies = || -> Result<_, antiphon::policy::PolicyError> {
        let schema = json!({
            "required": ["to", "cents"],
            "properties": {"cents": {"type": "integer", "minimum": 1, "maximum": 100_000}},
        });
        let midnight = time(0, 0, 0, 0);
        Ok(PolicyHost::builder()
            .policy(AllowList::new("tools", ["look_up_*", "send_money"])?)
            .policy(ArgumentBounds::new("shape", "send_money", &schema)?)
            .policy(AskAbove::new("large", "send_money", AmountField::minor("cents"), 10_000)?)
            .policy(Destinations::new("numbers", "send_money", "to")?.allow("+49")?)
            .policy(TimeWindow::new("hours", "send_money", TimeZone::UTC, midnight, midnight)?))
    };
    policies().expect("they are valid")
}

#[divan::bench]
fn five_built_in_policies(bencher: Bencher<'_, '_>) {
    let host = built_in().build().expect("it is valid");
    let (cx, call) = (context(), call());
    bencher.bench(|| host.judge(black_box(&cx), black_box(&call)));
}

#[divan::bench]
fn five_built_in_policies_and_a_limit_in_memory(bencher: Bencher<'_, '_>) {
    let day = Duration::from_secs(24 * 60 * 60);
    let limit = Limit::new("daily", "send_money", day).expect("it is valid");
    let limit = limit.per(Per::Caller).amount(AmountField::minor("cents"), 50_000);
    let host = built_in().limit(limit).build().expect("it is valid");
    let (cx, call) = (context(), call());
    bencher.bench(|| host.judge(black_box(&cx), black_box(&call)));
}

#[divan::bench]
fn receipt_buffered(bencher: Bencher<'_, '_>) {
    receipts(bencher, |log, entry| log.append(entry).is_ok());
}

#[divan::bench(sample_size = 1)]
fn receipt_on_the_disk(bencher: Bencher<'_, '_>) {
    receipts(bencher, |log, entry| log.append_durably(entry).is_ok());
}

fn receipts(bencher: Bencher<'_, '_>, append: impl Fn(&ReceiptLog, JsonObject) -> bool + Sync) {
    let directory = tempfile::tempdir().expect("a directory for the log");
    let log = ReceiptLog::open(directory.path().join("receipts")).expect("a log");
    let entry = json!({
        "kind": "decision", "at": "2026-03-02T10:00:00.500Z", "session": "session", "turn": 3,
        "call": "call_1", "tool": "send_money", "caller": "ann", "tenant": "bank",
        "point": "proposed", "policies": ["hours", "large", "numbers", "shape", "tools"],
        "verdict": "allow", "arguments": call().args,
        "arguments_sha256": "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c",
    });
    let entry = entry.as_object().cloned().unwrap_or_default();
    bencher.with_inputs(|| entry.clone()).bench_values(|entry| assert!(append(&log, entry)));
}
