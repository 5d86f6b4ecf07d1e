use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use antiphon_agent::{
    Admission, Authorizer, CallContext, Denial, ExecutorLimits, FuncTool, Judgement, Outcome,
    RateLimit, Receipt, ToolError, ToolExecutor, ToolRegistry, Verdict, Witness,
    types::{JsonObject, ToolCall},
    witness::{CallEnd, Commitment, Decision, DecisionPoint, Refusal, Ruling, together},
};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{
    Counter, admitted, call_context, cancellable, error_text, pay, refused, request, run_context,
};

/// A policy whose witness writes into a book.
#[derive(Clone, Default)]
struct Host {
    book: Arc<Mutex<Vec<String>>>,
    refuses: Option<Refusal>,
    panics: bool,
    blocks: Option<Duration>,
}

impl Host {
    fn told(&self) -> Vec<String> {
        self.book.lock().unwrap().clone()
    }

    fn executor(&self, tool: FuncTool) -> ToolExecutor {
        let registry = ToolRegistry::new();
        registry.must_register(tool);
        ToolExecutor::new(Arc::new(registry), Some(Arc::new(self.clone())))
    }
}

impl Authorizer for Host {
    fn authorize_tool_call(&self, _: &CallContext, call: &ToolCall) -> Verdict {
        match call.args.get("amount").and_then(|amount| amount.as_i64()) {
            Some(13) => Verdict::Deny(Denial::private("unlucky")),
            Some(14) => Verdict::Ask { reason: "large".into() },
            Some(15) => Verdict::Confirm { read_back: "15?".into() },
            Some(16) => Verdict::RateLimited(RateLimit::new(Timestamp::UNIX_EPOCH, "much")),
            Some(17) => Verdict::AllowWith(JsonObject::from_iter([("amount".into(), json!(7))])),
            _ => Verdict::Allow,
        }
    }

    fn judge(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        Judgement::new(self.authorize_tool_call(cx, call), vec!["the host".into()])
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        Some(Arc::new(self.clone()))
    }
}

impl Witness for Host {
    fn decided(
        &self,
        _: &CallContext,
        decision: &Decision,
    ) -> Result<Option<Box<dyn Commitment>>, Refusal> {
        let ruling = match &decision.ruling {
            Ruling::Run => "run".to_owned(),
            Ruling::HandOver => "hand over".to_owned(),
            Ruling::Refuse { outcome, .. } => format!("refuse {outcome:?}"),
            Ruling::Ask { .. } => "ask".to_owned(),
            Ruling::Confirm { .. } => "confirm".to_owned(),
            other => format!("{other:?}"),
        };
        let (id, policies) = (&decision.call.id, &decision.policies);
        self.book.lock().unwrap().push(format!("{id} {ruling} {policies:?}"));
        assert!(!self.panics, "as tested");
        if let Some(time) = self.blocks {
            std::thread::sleep(time);
        }
        match &self.refuses {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(Some(Box::new(Held { book: self.book.clone(), id: id.clone() }))),
        }
    }
}

struct Held {
    book: Arc<Mutex<Vec<String>>>,
    id: Arc<str>,
}

impl Commitment for Held {
    fn decided_again(&mut self, cx: &CallContext, decision: &Decision) -> Result<(), Refusal> {
        assert_eq!((cx.point(), decision.point), (DecisionPoint::Start, DecisionPoint::Start));
        self.book.lock().unwrap().push(format!("{} again", self.id));
        Ok(())
    }

    fn ended(self: Box<Self>, end: &CallEnd) -> Option<Receipt> {
        let (outcome, ran, happened) = (end.outcome, end.ran, end.happened());
        let mut book = self.book.lock().unwrap();
        book.push(format!("{} {outcome:?} ran={ran} happened={happened:?}", self.id));
        Some(Receipt::new(book.len() as u64, "00", JsonObject::new()))
    }
}

#[tokio::test]
async fn decisions_are_told_before_the_tool_runs_and_its_end_after() {
    let (host, counter) = (Host::default(), Counter::default());
    let executor = host.executor(pay(&counter));
    let (cx, request) = (call_context(), request("1", "pay", r#"{"amount":5}"#));
    let call = admitted(executor.admit_within(&cx, request, None).await);
    assert_eq!((host.told(), counter.count()), (vec![r#"1 run ["the host"]"#.into()], 0));
    let executed = executor.run(call, run_context()).await;
    assert_eq!(host.told()[1], "1 Success ran=true happened=Yes");
    assert_eq!(executed.receipt.unwrap().sequence, 2);
}

#[tokio::test]
async fn whatever_is_decided_is_told_once() {
    let (host, counter) = (Host::default(), Counter::default());
    let executor = host.executor(pay(&counter));
    for (amount, told) in [
        ("13", "refuse Denied"),
        ("14", "ask"),
        ("15", "confirm"),
        ("16", "refuse RateLimited"),
        ("-1", "refuse InvalidArguments"),
        // The last one, since its end is told behind.
        ("17", "run"),
    ] {
        host.book.lock().unwrap().clear();
        let args = format!(r#"{{"amount":{amount}}}"#);
        let cx = call_context();
        let admission = executor.admit_within(&cx, request(amount, "pay", &args), None).await;
        assert_eq!(host.told(), [format!(r#"{amount} {told} ["the host"]"#)]);
        let again = executor.admit_within(&cx, request(amount, "pay", &args), None).await;
        assert!(matches!(again, Admission::Duplicate));
        assert_eq!(host.told().len(), 1);
        if let Admission::Run(call) = admission
            && amount == "14"
        {
            executor.run(call, run_context()).await;
            assert_eq!(host.told().len(), 1, "a call that waits for a person has not begun");
        }
    }
    assert_eq!(counter.count(), 0);
}

#[tokio::test]
async fn a_witness_that_refuses_panics_or_is_late_refuses_the_call() {
    let counter = Counter::default();
    let until = Timestamp::from_second(1_000).unwrap();
    let hosts = [
        Host {
            refuses: Some(Refusal::Denied(Denial::told("the book is full"))),
            ..Host::default()
        },
        Host {
            refuses: Some(Refusal::RateLimited(RateLimit::new(until, "much"))),
            ..Host::default()
        },
        Host { panics: true, ..Host::default() },
        Host { blocks: Some(Duration::from_millis(300)), ..Host::default() },
    ];
    let mut told = Vec::new();
    for host in hosts {
        let mut limits = ExecutorLimits::default();
        limits.record_deadline = Duration::from_millis(match host.blocks {
            Some(_) => 1,
            None => 30_000,
        });
        let executor = host.executor(pay(&counter)).limits(limits);
        let request = request("1", "pay", r#"{"amount":5}"#);
        let refused = refused(executor.admit_within(&call_context(), request, None).await);
        told.push((refused.outcome, error_text(&refused.response.response).to_owned()));
    }
    let denied = "tool call denied by host policy";
    assert_eq!(told[0], (Outcome::Denied, "the book is full".into()));
    assert_eq!(told[1].0, Outcome::RateLimited);
    assert!(told[1].1.contains("1970-01-01T00:16:41Z"), "{}", told[1].1);
    assert_eq!(told[2..], [(Outcome::Denied, denied.into()), (Outcome::Denied, denied.into())]);
    assert_eq!(counter.count(), 0);
}

/// Waits until the book has so many lines.
async fn lines(host: &Host, count: usize) -> Vec<String> {
    loop {
        let told = host.told();
        if told.len() >= count {
            return told;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_call_that_does_not_run_is_told_so_however_it_is_given_up() {
    let (host, counter) = (Host::default(), Counter::default());
    let executor = host.executor(pay(&counter));
    let admit =
        |id| admitted(executor.admit(&call_context(), request(id, "pay", r#"{"amount":5}"#)));
    admit("1").withdraw(Outcome::Interrupted, "barge-in");
    assert_eq!(lines(&host, 2).await[1], "1 Interrupted ran=false happened=No");
    drop(admit("2"));
    assert_eq!(lines(&host, 4).await[3], "2 Cancelled ran=false happened=No");
    let token = tokio_util::sync::CancellationToken::new();
    token.cancel();
    executor.run(admit("3"), cancellable(token)).await;
    assert_eq!(lines(&host, 6).await[5], "3 Cancelled ran=false happened=No");
    assert_eq!(counter.count(), 0);
}

#[tokio::test]
async fn what_was_given_up_while_it_ran_may_have_happened() {
    let host = Host::default();
    let began = Arc::new(Notify::new());
    let begins = began.clone();
    let schema = json!({ "type": "object" });
    let tool = FuncTool::new("pay", "Pays.", schema, move |_cx, args: JsonObject| {
        let begins = begins.clone();
        async move {
            begins.notify_one();
            match args.get("fails") {
                Some(_) if args.contains_key("surely") => {
                    Err(ToolError::new("no money").not_done())
                }
                Some(_) => Err(ToolError::new("no money")),
                None => std::future::pending::<Result<JsonObject, ToolError>>().await,
            }
        }
    });
    let executor = host.executor(tool);
    let admit = |id, args| admitted(executor.admit(&call_context(), request(id, "pay", args)));
    let executed = executor.run(admit("1", r#"{"fails":true}"#), run_context()).await;
    assert_eq!(executed.outcome, Outcome::Error);
    assert_eq!(host.told()[1], "1 Error ran=true happened=Unknown");
    began.notified().await;
    executor.run(admit("1b", r#"{"fails":true,"surely":true}"#), run_context()).await;
    assert_eq!(host.told()[3], "1b Error ran=true happened=No");
    began.notified().await;
    tokio::select! {
        _ = executor.run(admit("2", "{}"), run_context()) => panic!("it never ends"),
        () = began.notified() => {}
    }
    assert_eq!(lines(&host, 6).await[5], "2 Cancelled ran=true happened=Unknown");
}

#[tokio::test]
async fn a_call_that_waited_for_a_slot_is_told_again() {
    let host = Host::default();
    let (began, gate) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begins, open) = (began.clone(), gate.clone());
    let schema = json!({ "type": "object" });
    let tool = FuncTool::new("pay", "Pays.", schema, move |_cx, args: JsonObject| {
        let (begins, open) = (begins.clone(), open.clone());
        async move {
            begins.notify_one();
            open.notified().await;
            Ok(args)
        }
    });
    let mut limits = ExecutorLimits::default();
    limits.max_concurrent = 1;
    let executor = host.executor(tool).limits(limits);
    let admit = |id| admitted(executor.admit(&call_context(), request(id, "pay", "{}")));
    let (one, two) = (admit("1"), admit("2"));
    let first = tokio::spawn({
        let executor = executor.clone();
        async move { executor.run(one, run_context()).await }
    });
    began.notified().await;
    let second = tokio::spawn({
        let executor = executor.clone();
        async move { executor.run(two, run_context()).await }
    });
    // The second one is surely waiting once the first has its answer only after this.
    tokio::task::yield_now().await;
    gate.notify_one();
    first.await.unwrap();
    began.notified().await;
    gate.notify_one();
    assert_eq!(second.await.unwrap().outcome, Outcome::Success);
    let told = host.told();
    assert!(told.contains(&"2 again".to_owned()), "{told:?}");
}

#[test]
fn several_witnesses_are_one_and_give_back_what_another_refuses() {
    let (first, second) = (Host::default(), Host::default());
    let refuses = Host { refuses: Some(Refusal::Denied(Denial::private("no"))), ..Host::default() };
    let decision = |executor: &ToolExecutor| {
        executor.admit(&call_context(), request("1", "pay", r#"{"amount":5}"#))
    };
    struct Of(Vec<Arc<dyn Witness>>);
    impl Authorizer for Of {
        fn authorize_tool_call(&self, _: &CallContext, _: &ToolCall) -> Verdict {
            Verdict::Allow
        }
        fn witness(&self) -> Option<Arc<dyn Witness>> {
            together(self.0.clone())
        }
    }
    let one: Arc<dyn Witness> = Arc::new(first.clone());
    let counter = Counter::default();
    let executor = |witnesses| {
        let registry = ToolRegistry::new();
        registry.must_register(pay(&counter));
        ToolExecutor::new(Arc::new(registry), Some(Arc::new(Of(witnesses))))
    };
    let both = executor(vec![one.clone(), one.clone(), Arc::new(second.clone())]);
    drop(decision(&both));
    assert_eq!(first.told(), ["1 run []", "1 Cancelled ran=false happened=No"]);
    assert_eq!(second.told(), first.told());
    let refused = executor(vec![one, Arc::new(refuses)]);
    assert!(matches!(decision(&refused), Admission::Refused(_)));
    assert_eq!(first.told()[2..], ["1 run []", "1 Denied ran=false happened=No"]);
    assert!(together(Vec::new()).is_none());
}
