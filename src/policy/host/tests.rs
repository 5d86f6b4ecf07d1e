use std::{
    fs::{self, File},
    io::BufReader,
    path::Path,
    sync::Mutex,
    time::Duration,
};

use antiphon_agent::{
    Admission, Caller, Executed, ExecutorLimits, FuncTool, InMemory, InvocationContext, Outcome,
    RunContext, ToolError, ToolExecutor, ToolRegistry, ledger::canonical_hash,
};
use antiphon_types::{JsonObject, ToolArguments, ToolCallRequest, ToolResponse};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::policy::{AllowList, AmountField, AskAbove, Per, receipts::verify};

/// Which call paid how much.
type Paid = (Arc<str>, u64);

/// A tool that pays, and tells what it paid.
#[derive(Clone, Default)]
struct Till {
    paid: Arc<Mutex<Vec<Paid>>>,
    /// Calls that began before their receipt was in the log.
    unreceipted: Arc<AtomicU64>,
}

impl Till {
    fn tools(&self, log: Option<&Path>) -> Arc<ToolRegistry> {
        let registry = ToolRegistry::new();
        let (till, log) = (self.clone(), log.map(Path::to_owned));
        let schema = json!({ "type": "object" });
        registry.must_register(FuncTool::new("pay", "Pays.", schema, move |cx, args| {
            let till = till.clone();
            let own = format!(r#""call":{}"#, json!(&*cx.call_id));
            let text = log.as_ref().map(|log| fs::read_to_string(log).unwrap());
            let receipted = text.is_none_or(|text| {
                let own = text.lines().filter(|line| line.contains(&own));
                own.filter(|line| line.contains(r#""verdict":"allow"#)).count() > 0
            });
            let (fails, refuses) = (args.contains_key("fails"), args.contains_key("refuses"));
            async move {
                till.unreceipted.fetch_add(u64::from(!receipted), Ordering::SeqCst);
                if refuses {
                    return Err(ToolError::new("no money").not_done());
                }
                if fails {
                    // It paid, and the answer of the bank got lost.
                    return Err(ToolError::new("502 Bad Gateway"));
                }
                if args.contains_key("hangs") {
                    std::future::pending::<()>().await;
                }
                let cents = args.get("cents").and_then(Value::as_u64).unwrap_or(0);
                till.paid.lock().unwrap().push((cx.call_id.clone(), cents));
                Ok(JsonObject::from_iter([("paid".to_owned(), json!(cents))]))
            }
        }));
        Arc::new(registry)
    }

    fn paid(&self) -> Vec<Paid> {
        self.paid.lock().unwrap().clone()
    }

    fn total(&self) -> u64 {
        self.paid().iter().map(|(_, cents)| cents).sum()
    }
}

fn cents() -> AmountField {
    AmountField::minor("cents")
}

fn daily(max: u64) -> Limit {
    let day = Duration::from_secs(24 * 60 * 60);
    Limit::new("daily", "pay", day).unwrap().per(Per::Caller).amount(cents(), max)
}

fn paying() -> PolicyHostBuilder {
    PolicyHost::builder().policy(AllowList::new("tools", ["pay"]).unwrap())
}

fn context() -> CallContext {
    let mut cx = CallContext::new("session", 3, Arc::new(InMemory::new()));
    cx.invocation = InvocationContext::new().with_caller(Caller::new("ann").scope("bank"));
    cx
}

/// Not the time of day of whoever runs the tests: calls have 30 s to be decided over.
const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

async fn call(tools: &ToolExecutor, id: &str, args: &str) -> Outcome {
    call_as(tools, context(), id, args).await
}

async fn call_as(tools: &ToolExecutor, cx: CallContext, id: &str, args: &str) -> Outcome {
    let arguments = ToolArguments::Json(args.to_owned());
    let request = ToolCallRequest { id: id.into(), name: "pay".into(), arguments };
    match tools.admit_within(&cx, request, PATIENCE).await {
        Admission::Run(admitted) => {
            let run = RunContext::new("session", 3, cx.memory.clone(), Default::default());
            tools.run(admitted, run.with_invocation(cx.invocation)).await.outcome
        }
        Admission::Refused(refused) => refused.outcome,
        Admission::Duplicate => Outcome::Cancelled,
        Admission::Confirm { .. } => Outcome::NotConfirmed,
        other => panic!("{other:?}"),
    }
}

fn entries(path: &Path) -> Vec<JsonObject> {
    verify(BufReader::new(File::open(path).unwrap()), None).unwrap();
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|line| line["entry"].as_object().unwrap().clone()).collect()
}

fn text<'a>(entry: &'a JsonObject, name: &str) -> &'a str {
    entry.get(name).and_then(Value::as_str).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_calls_at_once_cannot_overspend() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let log = ReceiptLog::open(&path).unwrap();
    let till = Till::default();
    let host = paying().limit(daily(50_000)).receipts(log).durable("pay").build().unwrap();
    let tools = ToolExecutor::new(till.tools(Some(&path)), Some(Arc::new(host.clone())));
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..50 {
        let tools = tools.clone();
        calls.spawn(async move { call(&tools, &n.to_string(), r#"{"cents":3000}"#).await });
    }
    let outcomes = calls.join_all().await;
    let of = |outcome| outcomes.iter().filter(|other| **other == outcome).count();
    assert_eq!((of(Outcome::Success), of(Outcome::RateLimited)), (16, 34));
    assert_eq!((till.total(), till.unreceipted.load(Ordering::SeqCst)), (48_000, 0));
    let entries = entries(&path);
    let verdicts = |verdict| entries.iter().filter(|e| text(e, "verdict") == verdict).count();
    // Some may have waited for a slot, and were decided over again.
    assert!(verdicts("allow") >= 16);
    assert_eq!(verdicts("rate_limited"), 34);
    assert_eq!(entries.iter().filter(|entry| text(entry, "kind") == "outcome").count(), 16);
    assert_eq!((host.statistics().allowed, host.statistics().not_allowed), (16, 34));
}

#[tokio::test]
async fn what_was_not_done_is_given_back_and_what_may_have_been_is_not() {
    let till = Till::default();
    let host = paying().limit(daily(100)).build().unwrap();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host)));
    assert_eq!(call(&tools, "1", r#"{"cents":100,"refuses":1}"#).await, Outcome::Error);
    assert_eq!(call(&tools, "2", r#"{"cents":60}"#).await, Outcome::Success);
    assert_eq!(call(&tools, "3", r#"{"cents":60}"#).await, Outcome::RateLimited);
    assert_eq!(call(&tools, "4", r#"{"cents":101}"#).await, Outcome::Denied);

    let arguments = ToolArguments::Json(r#"{"cents":40,"hangs":1}"#.to_owned());
    let request = ToolCallRequest { id: "5".into(), name: "pay".into(), arguments };
    let cx = context();
    let Admission::Run(admitted) = tools.admit_within(&cx, request, PATIENCE).await else {
        panic!("not admitted")
    };
    let token = tokio_util::sync::CancellationToken::new();
    let run = RunContext::new("session", 3, cx.memory.clone(), token.clone());
    let running = tools.run(admitted, run.with_invocation(cx.invocation));
    let stop = async {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        token.cancel();
    };
    let (executed, ()) = tokio::join!(running, stop);
    assert_eq!(executed.outcome, Outcome::Cancelled);
    assert_eq!(call(&tools, "6", r#"{"cents":1}"#).await, Outcome::RateLimited);
    assert_eq!(till.total(), 60);
}

#[tokio::test]
async fn what_a_tool_that_errs_may_have_paid_stays_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let till = Till::default();
    let host = paying().limit(daily(100)).receipts(ReceiptLog::open(&path).unwrap());
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host.build().unwrap())));
    assert_eq!(call(&tools, "1", r#"{"cents":60,"fails":1}"#).await, Outcome::Error);
    assert_eq!(call(&tools, "2", r#"{"cents":60,"fails":1}"#).await, Outcome::RateLimited);
    let entries = entries(&path);
    assert_eq!((text(&entries[1], "outcome"), text(&entries[1], "happened")), ("error", "unknown"));
}

#[tokio::test]
async fn what_is_hidden_is_nowhere_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    struct Quotes;
    impl Policy for Quotes {
        fn id(&self) -> &str {
            "quotes"
        }
        fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
            match call.args.get("denied") {
                Some(_) => Verdict::Deny(Denial::private(format!("no {}", call.args["iban"]))),
                None => Verdict::Allow,
            }
        }
    }
    let registry = ToolRegistry::new();
    let schema = json!({
        "type": "object", "properties": { "iban": { "type": "string", "pattern": "^DE" } },
    });
    registry.must_register(FuncTool::new(
        "pay",
        "Pays.",
        schema,
        |_, args: JsonObject| async move {
            Err::<JsonObject, _>(ToolError::new(format!("cannot pay {}", args["iban"])))
        },
    ));
    let host = PolicyHost::builder()
        .policy(Quotes)
        .receipts(ReceiptLog::open(&path).unwrap())
        .redact(Redaction::new("pay", "iban").unwrap())
        .build()
        .unwrap();
    let tools = ToolExecutor::new(Arc::new(registry), Some(Arc::new(host)));
    let outcomes = [
        call(&tools, "1", r#"{"iban":"DE4711"}"#).await,
        call(&tools, "2", r#"{"iban":"DE4711","denied":true}"#).await,
        call(&tools, "3", r#"{"iban":"XX4711"}"#).await,
        call(&tools, "4", r#"{"iban":4711}"#).await,
        call(&tools, "5", r#"{"iban":"DE4711","iban":"DE4711"}"#).await,
    ];
    let invalid = Outcome::InvalidArguments;
    assert_eq!(outcomes, [Outcome::Error, Outcome::Denied, invalid, invalid, invalid]);
    let arguments = ToolArguments::Json(r#"{"iban":"DE4711"}"#.to_owned());
    let request = ToolCallRequest { id: "6".into(), name: "Pay".into(), arguments };
    tools.admit_within(&context(), request, PATIENCE).await;
    let log = fs::read_to_string(&path).unwrap();
    assert!(!log.contains("4711"), "{log}");
    let entries = entries(&path);
    assert_eq!(text(&entries[2], "reason"), "no \"[redacted]\"");
    // What was meant can be proven all the same.
    let meant = json!({ "iban": "DE4711" });
    let meant = meant.as_object().unwrap();
    for at in [0, entries.len() - 1] {
        assert!(crate::policy::receipts::proves(&entries[at], meant), "{:?}", entries[at]);
    }
    let raw = &entries[entries.len() - 2];
    assert!(raw.get("arguments_sha256").is_none() && text(raw, "request_sha256").len() == 64);
}

#[tokio::test]
async fn the_receipt_of_a_policy_that_was_late_is_about_the_arguments_that_came() {
    struct Sleeps;
    impl Policy for Sleeps {
        fn id(&self) -> &str {
            "sleeps"
        }
        fn decide(&self, _: &PolicyContext, _: &ToolCall) -> Verdict {
            std::thread::sleep(Duration::from_millis(200));
            Verdict::Allow
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let host = PolicyHost::builder().policy(Sleeps).receipts(ReceiptLog::open(&path).unwrap());
    let till = Till::default();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host.build().unwrap())));
    let arguments = ToolArguments::Json(r#"{"cents":90000}"#.to_owned());
    let request = ToolCallRequest { id: "1".into(), name: "pay".into(), arguments };
    tools.admit_within(&context(), request, Some(Duration::from_millis(1))).await;
    let entry = &entries(&path)[0];
    assert_eq!(
        (text(entry, "verdict"), &entry["arguments"]),
        ("deny", &json!({ "cents": 90_000 }))
    );
}

#[tokio::test]
async fn what_was_spent_is_known_though_other_arguments_are_still_to_come() {
    struct Completes;
    impl Policy for Completes {
        fn id(&self) -> &str {
            "completes"
        }
        fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
            let mut args = call.args.clone();
            args.insert("cents".into(), 40.into());
            Verdict::AllowWith(args)
        }
    }
    struct Caps;
    impl Policy for Caps {
        fn id(&self) -> &str {
            "caps"
        }
        fn decide(&self, cx: &PolicyContext, _: &ToolCall) -> Verdict {
            match cx.spent[0].amount {
                0 => Verdict::Allow,
                _ => Verdict::Deny(Denial::private("something was spent")),
            }
        }
    }
    let till = Till::default();
    let host = paying().policy(Completes).policy(Caps).limit(daily(1_000)).build().unwrap();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host)));
    assert_eq!(call(&tools, "1", "{}").await, Outcome::Success);
    assert_eq!(call(&tools, "2", "{}").await, Outcome::Denied);
}

#[tokio::test]
async fn a_host_that_is_wrapped_in_a_closure_allows_nothing() {
    let (till, host) = (Till::default(), paying().build().unwrap());
    let wrapped = move |cx: &CallContext, call: &ToolCall| host.authorize_tool_call(cx, call);
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(wrapped)));
    assert_eq!(call(&tools, "1", r#"{"cents":1}"#).await, Outcome::Denied);
}

#[tokio::test]
async fn what_the_host_of_a_call_answers_is_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let host = paying().limit(daily(100)).receipts(ReceiptLog::open(&path).unwrap());
    let registry = Arc::new(ToolRegistry::new());
    let tools = ToolExecutor::new(registry, Some(Arc::new(host.build().unwrap())));
    let tools = tools.host_tools(["pay".into()]);
    let admit = async |id: &str| {
        let arguments = ToolArguments::Json(r#"{"cents":60}"#.to_owned());
        let request = ToolCallRequest { id: id.into(), name: "pay".into(), arguments };
        tools.admit_within(&context(), request, PATIENCE).await
    };
    assert!(matches!(admit("1").await, Admission::Host(_)));
    let response = ToolResponse::new("1", "pay", JsonObject::new());
    let executed = tools.answered_by_host(Executed::new(response, Outcome::Success)).await;
    assert_eq!(executed.receipt.map(|receipt| receipt.sequence), Some(2));
    let entries = entries(&path);
    assert_eq!(text(&entries[0], "answered_by"), "host");
    assert_eq!((text(&entries[1], "answered_by"), text(&entries[1], "happened")), ("host", "yes"));
    let again = admit("2").await;
    assert!(
        matches!(again, Admission::Refused(refused) if refused.outcome == Outcome::RateLimited)
    );
}

#[tokio::test]
async fn a_decision_and_an_outcome_say_all_there_is_to_say() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let log = Arc::new(ReceiptLog::open(&path).unwrap());
    let now: Timestamp = "2026-03-02T10:00:00.5Z".parse().unwrap();
    let host = paying()
        .policy(AskAbove::new("large", "pay", cents(), 1_000).unwrap())
        .limit(daily(5_000))
        .receipts(log)
        .redact(Redaction::new("pay", "iban").unwrap())
        .clock(move || now)
        .build()
        .unwrap();
    let till = Till::default();
    let tools = ToolExecutor::new(till.tools(Some(&path)), Some(Arc::new(host)));
    assert_eq!(call(&tools, "1", r#"{"cents":5,"iban":"DE02"}"#).await, Outcome::Success);
    assert_eq!(call(&tools, "2", r#"{"cents":1001}"#).await, Outcome::Paused);
    let mut approved = context();
    (approved.approved, approved.waited) = (true, true);
    approved.approved_by = Some("the night watch".into());
    assert_eq!(call_as(&tools, approved, "2b", r#"{"cents":1001}"#).await, Outcome::Success);
    assert_eq!(call(&tools, "3", r#"{"cents":1e3}"#).await, Outcome::Denied);
    assert_eq!(call(&tools, "3", r#"{"cents":1}"#).await, Outcome::Cancelled, "a duplicate");
    for broken in [r#"{"cents":1,"cents":2}"#, r#"{"cents":1e400}"#, r#"{"cents":NaN}"#, "[1]"] {
        assert_eq!(call(&tools, broken, broken).await, Outcome::InvalidArguments);
    }
    let huge = r#"{"cents":1,"id":9007199254740993}"#;
    assert_eq!(call(&tools, "4", huge).await, Outcome::Denied);

    let entries = entries(&path);
    let (decision, outcome) = (&entries[0], &entries[1]);
    let expected = json!({
        "v": 1, "seq": 1, "prev": "0".repeat(64), "kind": "decision", "verdict": "allow",
        "at": "2026-03-02T10:00:00.500Z", "session": "session", "turn": 3, "call": "1",
        "tool": "pay", "caller": "ann", "tenant": "bank", "point": "proposed",
        "policies": ["large", "tools"], "arguments": { "cents": 5, "iban": "[redacted]" },
        "redacted": ["/iban"],
        "arguments_sha256": canonical_hash(&json!({ "iban": "DE02", "cents": 5 })),
    });
    assert_eq!(Value::Object(decision.clone()), expected);
    assert_eq!((text(outcome, "outcome"), text(outcome, "happened")), ("success", "yes"));
    assert_eq!((&outcome["decision"], &outcome["ran"]), (&json!(1), &json!(true)));
    assert_eq!(text(outcome, "output_sha256"), canonical_hash(&json!({ "paid": 5 })).unwrap());
    assert_eq!((text(&entries[2], "verdict"), text(&entries[2], "call")), ("ask", "2"));
    assert_eq!(entries[2]["policies"], json!(["large"]));
    assert_eq!(text(&entries[3], "approved_by"), "the night watch");
    assert_eq!((text(&entries[3], "verdict"), text(&entries[3], "point")), ("allow", "start"));
    assert_eq!(text(&entries[4], "outcome"), "success");
    assert_eq!((text(&entries[5], "verdict"), text(&entries[5], "call")), ("deny", "3"));
    let broken = entries[6..10].iter().map(|entry| text(entry, "verdict"));
    assert!(broken.into_iter().all(|verdict| verdict == "invalid_arguments"));
    assert_eq!(text(&entries[10], "reason"), UNSAFE_NUMBER);
    assert_eq!(entries.len(), 11);
    assert_eq!(till.paid(), [("1".into(), 5), ("2b".into(), 1001)]);
}

#[tokio::test]
async fn a_policy_that_panics_or_sleeps_and_a_clock_that_panics_deny() {
    struct Bad(fn());
    impl Policy for Bad {
        fn id(&self) -> &str {
            "bad"
        }
        fn decide(&self, _: &PolicyContext, _: &ToolCall) -> Verdict {
            (self.0)();
            Verdict::Allow
        }
    }
    let till = Till::default();
    let panics = paying().policy(Bad(|| panic!("as tested"))).build().unwrap();
    let clock = paying().clock(|| panic!("as tested")).build().unwrap();
    let sleeps = paying().policy(Bad(|| std::thread::sleep(Duration::from_millis(200))));
    let sleeps = sleeps.build().unwrap();
    for host in [panics, clock, sleeps] {
        let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host)));
        let arguments = ToolArguments::Json("{}".to_owned());
        let request = ToolCallRequest { id: "1".into(), name: "pay".into(), arguments };
        let deadline = Some(Duration::from_millis(1));
        let admission = tools.admit_within(&context(), request, deadline).await;
        assert!(
            matches!(admission, Admission::Refused(refused) if refused.outcome == Outcome::Denied)
        );
    }
    assert!(till.paid().is_empty());
}

#[tokio::test]
async fn without_a_receipt_nothing_runs_and_what_was_taken_is_given_back() {
    let till = Till::default();
    let file = tempfile::NamedTempFile::new().unwrap();
    let full = ReceiptLog::read_only(file.path());
    let store = Arc::new(InMemoryLimits::new());
    struct Shared(Arc<InMemoryLimits>);
    impl LimitStore for Shared {
        fn reserve(
            &self,
            now: Timestamp,
            draws: &[Draw],
        ) -> Result<Reserved, crate::policy::LimitError> {
            self.0.reserve(now, draws)
        }
        fn settle(&self, id: ReservationId) -> Result<(), crate::policy::LimitError> {
            self.0.settle(id)
        }
        fn give_back(&self, id: ReservationId) -> Result<(), crate::policy::LimitError> {
            self.0.give_back(id)
        }
        fn spent(
            &self,
            now: Timestamp,
            draws: &[Draw],
        ) -> Result<Vec<crate::policy::Spent>, crate::policy::LimitError> {
            self.0.spent(now, draws)
        }
    }
    let broken = paying().limit(daily(100)).limit_store(Shared(store.clone())).receipts(full);
    let broken = broken.build().unwrap();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(broken.clone())));
    for id in ["1", "2"] {
        assert_eq!(call(&tools, id, r#"{"cents":100}"#).await, Outcome::Denied);
    }
    assert!(till.paid().is_empty());
    assert_eq!(broken.statistics().lost_receipts, 2);
    let whole = paying().limit(daily(100)).limit_store(Shared(store)).build().unwrap();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(whole)));
    assert_eq!(call(&tools, "3", r#"{"cents":100}"#).await, Outcome::Success);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_that_nobody_allows_run_nothing() {
    let till = Till::default();
    let host = PolicyHost::builder().policy(AllowList::new("none", ["other"]).unwrap());
    let host = host.build().unwrap();
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host.clone())));
    let mut calls = tokio::task::JoinSet::new();
    for task in 0..20 {
        let tools = tools.clone();
        calls.spawn(async move {
            for n in 0..500 {
                let outcome = call(&tools, &format!("{task}-{n}"), r#"{"cents":1}"#).await;
                assert_eq!(outcome, Outcome::Denied);
            }
        });
    }
    calls.join_all().await;
    assert!(till.paid().is_empty());
    assert_eq!(host.statistics().not_allowed, 10_000);
}

#[tokio::test]
async fn a_clock_that_steps_lets_nobody_spend_more() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("receipts");
    let clock = Arc::new(std::sync::atomic::AtomicI64::new(1_000_000_000));
    let reads = clock.clone();
    let till = Till::default();
    let host = paying()
        .limit(daily(100))
        .receipts(ReceiptLog::open(&path).unwrap())
        .clock(move || Timestamp::from_second(reads.load(Ordering::SeqCst)).unwrap());
    let tools = ToolExecutor::new(till.tools(None), Some(Arc::new(host.build().unwrap())));
    const DAY: i64 = 24 * 60 * 60;
    // Set back by two days, by a second, ahead by an hour; and back to where it was.
    let steps = [0, -2 * DAY, -1, 60 * 60, 0, -30 * DAY, 0];
    for (n, step) in steps.into_iter().enumerate() {
        clock.store(1_000_000_000 + step, Ordering::SeqCst);
        let expected = if n == 0 { Outcome::Success } else { Outcome::RateLimited };
        assert_eq!(call(&tools, &n.to_string(), r#"{"cents":60}"#).await, expected, "{step}");
    }
    clock.store(1_000_000_000 + 2 * DAY, Ordering::SeqCst);
    assert_eq!(call(&tools, "later", r#"{"cents":60}"#).await, Outcome::Success);
    // Whatever the clock says, the log is in the order in which things happened.
    assert_eq!(entries(&path).len(), steps.len() + 3);
    assert_eq!(till.total(), 120);
}

#[test]
fn hosts_that_cannot_be_are_refused() {
    assert!(paying().limit(daily(1)).limit(daily(2)).build().is_err());
    assert!(paying().policy(AllowList::new("tools", ["x"]).unwrap()).build().is_err());
    assert!(paying().durable("pay").build().is_err(), "nothing could be durable");
    let cx = context();
    let call = ToolCall { id: "1".into(), name: "pay".into(), args: JsonObject::new() };
    let nothing = PolicyHost::builder().build().unwrap();
    assert!(matches!(nothing.judge(&cx, &call).verdict, Verdict::Deny(_)));
    let minute = Duration::from_secs(60);
    assert!(paying().limit(Limit::new("none", "pay", minute).unwrap()).build().is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any stream of calls, those that run are exactly those with a receipt before them that
    /// allows them.
    #[test]
    fn what_runs_is_what_a_receipt_allows(
        calls in prop::collection::vec((0_u64..8, 0_u64..300, 0_u8..6), 1..40),
        max in 0_u64..3_000,
        above in 0_u64..300,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        let till = Till::default();
        let host = paying()
            .policy(AskAbove::new("large", "pay", cents(), above).unwrap())
            .limit(daily(max))
            .receipts(ReceiptLog::open(&path).unwrap())
            .build()
            .unwrap();
        let tools = ToolExecutor::new(till.tools(Some(&path)), Some(Arc::new(host)))
            .limits(ExecutorLimits::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2).enable_all().build().unwrap();
        let outcomes = runtime.block_on(async {
            let mut running = tokio::task::JoinSet::new();
            for (id, amount, kind) in calls {
                let tools = tools.clone();
                running.spawn(async move {
                    let args = match kind {
                        0 => format!(r#"{{"cents":{amount},"cents":0}}"#),
                        1 => format!(r#"{{"cents":"{amount}"}}"#),
                        2 => format!(r#"{{"cents":{amount},"fails":true}}"#),
                        _ => format!(r#"{{"cents":{amount}}}"#),
                    };
                    // Some ids come twice.
                    call(&tools, &format!("{id}-{}", kind % 3), &args).await
                });
            }
            running.join_all().await
        });
        drop(tools);
        let entries = entries(&path);
        let mut allowed: Vec<&str> = entries.iter()
            .filter(|entry| text(entry, "verdict") == "allow" && text(entry, "point") == "proposed")
            .map(|entry| text(entry, "call"))
            .collect();
        let mut ran: Vec<&str> = entries.iter()
            .filter(|entry| entry.get("ran") == Some(&json!(true)))
            .map(|entry| text(entry, "call"))
            .collect();
        allowed.sort_unstable();
        ran.sort_unstable();
        prop_assert_eq!(&allowed, &ran);
        prop_assert_eq!(till.unreceipted.load(Ordering::SeqCst), 0);
        let done = outcomes.iter().filter(|outcome| **outcome == Outcome::Success).count();
        prop_assert_eq!(till.paid().len(), done);
        prop_assert!(till.total() <= max);
    }
}
