//! A session whose host answers for what the model may do: limits, receipts, people.

use std::{
    fs,
    io::BufReader,
    path::{Path, PathBuf},
    sync::Arc,
};

use antiphon::{
    agent::{
        Agent, Caller, InMemorySessionStore, InvocationContext, Outcome, ToolExecutor,
        ToolRegistry, Voice,
        approval::{Answer, Approvals},
    },
    policy::{
        AllowList, AmountField, AskAbove, Limit, Per, PolicyHost, PolicyHostBuilder, ReceiptLog,
        receipts::{Head, Tampering, verify},
    },
    session::*,
    types::{JsonObject, ToolCall, ToolDefinition, ToolResponse},
};
use antiphon_testkit::{LatchedTool, ToolLatch, ToolPlan};
use serde_json::{Value, json};

use crate::rig::*;

/// A host over the tool `pay`, and its log.
struct Bank {
    host: PolicyHostBuilder,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// Up to 100 passes, more waits for a person; nobody has more than 1,000 a day.
fn bank() -> Bank {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipts");
    let cents = || AmountField::minor("cents");
    let limit = Limit::new("daily", "pay", 24 * 3_600 * SECOND).unwrap();
    let host = PolicyHost::builder()
        .policy(AllowList::new("tools", ["pay", "host_pays"]).unwrap())
        .policy(AskAbove::new("large", "pay", cents(), 100).unwrap())
        .limit(limit.per(Per::Caller).amount(cents(), 1_000))
        .receipts(ReceiptLog::open(&path).unwrap())
        .durable("pay");
    Bank { host, path, _folder: folder }
}

fn ann() -> Caller {
    Caller::new("ann").claim("verified_level", 2)
}

/// A session under this host, in Ann's name, whose tool does as planned.
async fn session(host: PolicyHostBuilder) -> (Rig, ToolLatch) {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let host = host.build().unwrap();
    let setup = Setup::new().build(|builder| builder.tool(tool).authorize(host).caller(ann()));
    (setup.start().await, latch)
}

fn entries(path: &Path) -> Vec<Value> {
    verified(path);
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.map(|mut line| line["entry"].take()).collect()
}

fn verified(path: &Path) -> Head {
    verify(BufReader::new(fs::File::open(path).unwrap()), None).unwrap()
}

/// What became of a call, in the order of the log: verdicts and outcomes.
fn story(entries: &[Value], call: &str) -> Vec<String> {
    let own = entries.iter().filter(|entry| entry["call"] == call);
    own.map(|entry| {
        let kind = if entry["kind"] == "decision" { "verdict" } else { "outcome" };
        entry[kind].as_str().unwrap().to_owned()
    })
    .collect()
}

/// The log once it has an entry that says this of a call; what nobody waits for is written behind.
async fn written(path: &Path, call: &str, says: &str) -> Vec<Value> {
    for _ in 0..10_000 {
        let entries = entries(path);
        if story(&entries, call).iter().any(|entry| entry == says) {
            return entries;
        }
        tokio::task::spawn_blocking(|| std::thread::sleep(MS)).await.unwrap();
    }
    panic!("{call} {says}: {}", fs::read_to_string(path).unwrap())
}

#[tokio::test(start_paused = true)]
async fn fifty_parallel_calls_hold_the_limit_and_one_changed_byte_is_found() {
    let bank = bank();
    let (mut rig, latch) = session(bank.host).await;
    let calls: Vec<_> = (0..50).map(|n| (format!("c{n}"), "pay", r#"{"cents":60}"#)).collect();
    let calls: Vec<_> = calls.iter().map(|(id, name, args)| (&**id, *name, *args)).collect();
    rig.reply("r1").calls("r1", &calls).done("r1");
    let mut outcomes = Vec::new();
    while outcomes.len() < 50 {
        let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
        outcomes.extend(crate::rig::outcomes(&events).into_iter().map(|(_, outcome)| outcome));
    }
    let of = |outcome| outcomes.iter().filter(|other| **other == outcome).count();
    assert_eq!((of(Outcome::Success), of(Outcome::RateLimited)), (16, 34));
    assert_eq!(latch.calls().len(), 16);
    rig.session.stop();
    rig.end().await;
    let entries = entries(&bank.path);
    for n in 0..50 {
        let story = story(&entries, &format!("c{n}"));
        match &*story[0] {
            // Some waited for a slot, and were decided over again.
            "allow" => assert_eq!(story.last().unwrap(), "success", "{story:?}"),
            _ => assert_eq!(story, ["rate_limited"]),
        }
    }
    let head = verified(&bank.path);
    let mut bytes = fs::read(&bank.path).unwrap();
    let at = bytes.len() / 3;
    let line = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    bytes[at] ^= 1;
    assert_eq!(verify(bytes.as_slice(), Some(&head)).unwrap_err().line, line);
    bytes[at] ^= 1;
    let cut = bytes.iter().rposition(|byte| *byte == b'{').unwrap();
    let cut = bytes[..cut].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    let found = verify(&bytes[..cut], Some(&head)).unwrap_err();
    assert!(matches!(found.what, Tampering::CutOff { .. }), "{found}");
}

#[tokio::test(start_paused = true)]
async fn small_amounts_pass_large_ones_need_a_store_and_other_tools_are_refused() {
    let bank = bank();
    let (mut rig, latch) = session(bank.host).await;
    for (n, (name, args)) in [
        ("pay", r#"{"cents":100}"#),
        ("pay", r#"{"cents":"5 000"}"#),
        ("pay", r#"{"cents":1,"cents":2}"#),
        ("pay", r#"{"cents":1e400}"#),
        ("fly", r#"{"cents":1}"#),
    ]
    .into_iter()
    .enumerate()
    {
        rig.calls_tool(&format!("r{n}"), &format!("c{n}"), name, args);
        rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
        rig.says(&format!("a{n}"), "Hm.", 10);
        rig.settle().await;
        rig.far.drain();
    }
    assert_eq!(latch.calls().len(), 1);
    let entries = entries(&bank.path);
    assert_eq!(story(&entries, "c0"), ["allow", "success"]);
    assert_eq!(entries[0]["caller"], "ann");
    assert_eq!(story(&entries, "c1"), ["deny"]);
    assert_eq!(story(&entries, "c2"), ["invalid_arguments"]);
    assert_eq!(story(&entries, "c3"), ["invalid_arguments"]);
    assert_eq!(story(&entries, "c4"), ["unknown_tool"]);
}

/// An agent whose tool `pay` and store are there.
fn agent() -> (Agent, Arc<InMemorySessionStore>, Arc<ToolRegistry>, ToolLatch) {
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let registry = Arc::new(ToolRegistry::new());
    registry.must_register(tool);
    let store = Arc::new(InMemorySessionStore::new());
    let voice = Voice::new("You are a clerk.").tools(ToolExecutor::new(registry.clone(), None));
    let agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(voice)
            .shared_store(store.clone())
            .build();
    (agent, store, registry, latch)
}

/// The model asks for 400, which waits. The key.
async fn parks(rig: &mut Rig) -> Arc<str> {
    rig.user_says("u1", "Pay.").calls_tool("r1", "c1", "pay", r#"{"cents":400}"#);
    let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    let key = events.iter().find_map(|kind| match kind {
        EventKind::ApprovalRequested { approval, .. } => Some(approval.clone()),
        _ => None,
    });
    key.expect("an approval was requested")
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_is_decided_over_again_with_a_receipt_of_its_own() {
    let bank = bank();
    let (agent, _, _, latch) = agent();
    let host = bank.host.build().unwrap();
    let setup = Setup::new().build(|it| it.agent(&agent).authorize(host).caller(ann()));
    let mut rig = setup.start().await;
    let key = parks(&mut rig).await;
    assert_eq!(story(&entries(&bank.path), "c1"), ["ask"]);
    rig.session.approve(&key, Answer::new().by("the night watch")).await.unwrap();
    assert_eq!(latch.calls().len(), 1);
    let entries = entries(&bank.path);
    assert_eq!(story(&entries, "c1"), ["ask", "allow", "success"]);
    let (asked, allowed) = (&entries[0], &entries[1]);
    assert_eq!((&asked["point"], &allowed["point"]), (&json!("proposed"), &json!("start")));
    assert_eq!(allowed["approved_by"], "the night watch");
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_told_of_a_call_that_waits_and_may_decide_over_it() {
    struct Approves;
    #[async_trait::async_trait]
    impl LifecycleHooks for Approves {
        async fn on_approval_requested(
            &self,
            cx: &SessionContext,
            key: &str,
            call: &ToolCall,
            question: &Value,
        ) {
            assert!(question["reason"].is_string());
            let answer = Answer::new().by("the hook").shown(&call.args);
            cx.session.approve(key, answer).await.unwrap();
        }
    }
    let bank = bank();
    let (agent, _, _, latch) = agent();
    let host = bank.host.build().unwrap();
    let setup = Setup::new();
    let setup = setup.build(|it| it.agent(&agent).authorize(host).caller(ann()).hooks(Approves));
    let mut rig = setup.start().await;
    parks(&mut rig).await;
    let log = written(&bank.path, "c1", "success").await;
    assert_eq!(story(&log, "c1"), ["ask", "allow", "success"]);
    assert_eq!((&log[1]["approved_by"], latch.calls().len()), (&json!("the hook"), 1));
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_another_process_approves_in_the_name_of_who_called() {
    let bank = bank();
    let (agent, store, registry, latch) = agent();
    let host = bank.host.build().unwrap();
    let under = host.clone();
    let setup = Setup::new().build(|it| it.agent(&agent).authorize(under).caller(ann()));
    let mut rig = setup.start().await;
    let mut keys = vec![parks(&mut rig).await];
    drop(rig);
    // The same host stands for one that reads the same files.
    let tools = ToolExecutor::new(registry, Some(Arc::new(host)));
    let approvals = Approvals::new(store).unwrap().witnessed_as(&tools);
    let clerk = InvocationContext::new().with_caller(Caller::new("a clerk"));
    for _ in 0..3 {
        let key = keys.pop().unwrap();
        let memory = Arc::new(antiphon::agent::InMemory::new());
        let done = approvals.approve(&clerk, &key, Answer::new(), &tools, memory).await.unwrap();
        assert_eq!(done.caller.as_ref().map(|caller| &*caller.id), Some("ann"));
        let setup = Setup::new().build(|it| {
            let host = tools.authorizer().unwrap().clone();
            it.agent(&agent).authorize(Shared(host)).caller(ann())
        });
        let mut rig = setup.start().await;
        keys.push(parks(&mut rig).await);
    }
    // 400 and 400 of 1,000 are Ann's, whoever approved them; the third does not fit.
    assert_eq!(latch.calls().len(), 2);
    let log = entries(&bank.path);
    let starts: Vec<_> = log.iter().filter(|entry| entry["point"] == "start").collect();
    let verdicts: Vec<_> = starts.iter().map(|entry| entry["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["allow", "allow", "rate_limited"]);
    for entry in &starts {
        assert_eq!((&entry["caller"], &entry["approved_by"]), (&json!("ann"), &json!("a clerk")));
    }
    // One that a person refuses has an entry that says who did.
    let refused = Answer::new().by("the night watch").reason("it is late");
    approvals.deny(&clerk, &keys[0], refused).await.unwrap();
    let log = written(&bank.path, "c1", "not_approved").await;
    let last = log.last().unwrap();
    assert_eq!(
        (&last["decided_by"], &last["reason"]),
        (&json!("the night watch"), &json!("it is late"))
    );
    assert_eq!((&last["caller"], latch.calls().len()), (&json!("ann"), 2));
}

/// An authoriser that several sessions share.
struct Shared(Arc<dyn antiphon::agent::Authorizer>);

impl antiphon::agent::Authorizer for Shared {
    fn authorize_tool_call(
        &self,
        cx: &antiphon::agent::CallContext,
        call: &antiphon::types::ToolCall,
    ) -> antiphon::agent::Verdict {
        self.0.authorize_tool_call(cx, call)
    }

    fn judge(
        &self,
        cx: &antiphon::agent::CallContext,
        call: &antiphon::types::ToolCall,
    ) -> antiphon::agent::Judgement {
        self.0.judge(cx, call)
    }

    fn witness(&self) -> Option<Arc<dyn antiphon::agent::Witness>> {
        self.0.witness()
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_user_does_not_confirm_and_what_is_interrupted_has_a_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipts");
    let rules = r#"{"policies": [{"kind": "rules", "default": "allow", "rules":
        [{"tool": "pay", "action": "confirm", "read_back": "Shall I pay?"}]}]}"#;
    let host = antiphon::policy::PolicyFile::parse("rules", rules).unwrap().host();
    let (rig, latch) = session(host.receipts(ReceiptLog::open(&path).unwrap())).await;
    rig.user_says("u1", "Pay.").calls_tool("r1", "c1", "pay", "{}");
    // Nobody answers.
    tokio::time::sleep(600 * SECOND).await;
    let log = written(&path, "c1", "not_confirmed").await;
    assert_eq!(story(&log, "c1"), ["confirm", "not_confirmed"]);
    assert!(latch.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_hook_makes_of_arguments_the_policy_judges_too() {
    struct Raises;
    #[async_trait::async_trait]
    impl LifecycleHooks for Raises {
        fn authorize_tool_call(
            &self,
            _: &SessionContext,
            call: &ToolCall,
        ) -> Result<JsonObject, DeniedCall> {
            let mut args = call.args.clone();
            if let Some(cents) = args.get_mut("cents").filter(|cents| **cents == 5) {
                *cents = json!(400);
            }
            Ok(args)
        }
    }
    let bank = bank();
    let (tool, latch) = LatchedTool::open("pay", ToolPlan::Succeed);
    let host = bank.host.build().unwrap();
    let setup = Setup::new().build(|it| it.tool(tool).authorize(host).caller(ann()).hooks(Raises));
    let mut rig = setup.start().await;
    rig.reply("r1")
        .calls("r1", &[("c1", "pay", r#"{"cents":5}"#), ("c2", "pay", r#"{"cents":6}"#)]);
    rig.done("r1");
    for _ in 0..2 {
        rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    }
    let log = entries(&bank.path);
    assert_eq!(story(&log, "c1"), ["deny"]);
    // One that the hook leaves as it is, is allowed as it is.
    assert_eq!(story(&log, "c2"), ["allow", "success"]);
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_host_answers_has_an_outcome_and_the_observer_its_receipt() {
    let bank = bank();
    let seen = Arc::new(std::sync::Mutex::new(None));
    struct Watches(Arc<std::sync::Mutex<Option<u64>>>);
    #[async_trait::async_trait]
    impl LifecycleHooks for Watches {
        async fn on_tool_result(&self, cx: &SessionContext, _: &ToolCall, _: &ToolResponse) {
            *self.0.lock().unwrap() = cx.receipt.as_ref().map(|receipt| receipt.sequence);
        }
    }
    let host = bank.host.build().unwrap();
    let watches = Watches(seen.clone());
    let setup = Setup::new().build(|it| it.authorize(host).caller(ann()).hooks(watches));
    let mut rig = setup
        .config(|config| config.host_tool(ToolDefinition::new("host_pays", "Pays.")))
        .start()
        .await;
    rig.calls_tool("r1", "c1", "host_pays", "{}");
    rig.settle().await;
    let response = ToolResponse::new("c1", "host_pays", JsonObject::new());
    rig.session.send_tool_response(response).unwrap();
    rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    let log = entries(&bank.path);
    assert_eq!(story(&log, "c1")[1..], ["success"]);
    assert_eq!((&log[0]["answered_by"], &log[1]["answered_by"]), (&json!("host"), &json!("host")));
    assert_eq!(*seen.lock().unwrap(), Some(2));
}

/// Lets calls run as long as the office is open, which is known when it is asked.
#[derive(Clone, Default)]
struct Office(Arc<std::sync::atomic::AtomicBool>);

impl Office {
    fn closes(&self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

impl antiphon::policy::Policy for Office {
    fn id(&self) -> &str {
        "office"
    }

    fn decide(
        &self,
        _: &antiphon::policy::PolicyContext,
        _: &ToolCall,
    ) -> antiphon::agent::Verdict {
        match self.0.load(std::sync::atomic::Ordering::SeqCst) {
            true => antiphon::agent::Verdict::Deny(antiphon::agent::Denial::told("closed")),
            false => antiphon::agent::Verdict::Allow,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_for_the_end_of_its_reply_is_decided_over_again() {
    let (bank, office) = (bank(), Office::default());
    let (mut rig, latch) = session(bank.host.policy(office.clone())).await;
    rig.user_says("u1", "Pay.").reply("r1").calls("r1", &[("c1", "pay", r#"{"cents":5}"#)]);
    rig.settle().await;
    // The agent speaks for twenty seconds.
    tokio::time::sleep(20 * SECOND).await;
    office.closes();
    rig.done("r1");
    rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    assert!(latch.calls().is_empty());
    let log = written(&bank.path, "c1", "denied").await;
    assert_eq!(story(&log, "c1"), ["allow", "deny", "denied"]);
    assert_eq!((&log[1]["point"], &log[1]["reason"]), (&json!("start"), &json!("closed")));
    assert_eq!(log[2]["happened"], "no", "what it took is given back");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_starts_after_the_caller_hung_up_is_decided_over_again() {
    for closes in [false, true] {
        let (bank, office) = (bank(), Office::default());
        let (agent, _, _, latch) = agent();
        let host = bank.host.policy(office.clone()).build().unwrap();
        let setup = Setup::new()
            .build(|it| it.agent(&agent).authorize(host).caller(ann()).on_hangup(OnHangup::Detach));
        let mut rig = setup.start().await;
        rig.user_says("u1", "Pay.").reply("r1").calls("r1", &[("c1", "pay", r#"{"cents":5}"#)]);
        rig.settle().await;
        rig.session.stop();
        rig.until(|kind| matches!(kind, EventKind::Detached { .. })).await;
        if closes {
            office.closes();
        }
        rig.done("r1");
        rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
        assert_eq!(latch.calls().len(), usize::from(!closes));
        let (last, second) = if closes { ("denied", "deny") } else { ("success", "allow") };
        let log = written(&bank.path, "c1", last).await;
        assert_eq!(story(&log, "c1"), ["allow", second, last]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_host_was_never_handed_did_not_happen_and_takes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipts");
    let day = 24 * 3_600 * SECOND;
    let host = PolicyHost::builder()
        .policy(AllowList::new("tools", ["host_pays"]).unwrap())
        .limit(Limit::new("once", "host_pays", day).unwrap().per(Per::Caller).calls(1))
        .receipts(ReceiptLog::open(&path).unwrap());
    let host = host.build().unwrap();
    let setup = Setup::new().build(|it| it.authorize(host).caller(ann()));
    let mut rig = setup
        .config(|config| config.host_tool(ToolDefinition::new("host_pays", "Pays.")))
        .start()
        .await;
    rig.user_says("u1", "Pay.").reply("r1").audio("r1", 500);
    rig.calls("r1", &[("c1", "host_pays", "{}")]);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.settle().await;
    rig.done_as("r1", antiphon::live::ReplyOutcome::Cancelled);
    let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    let handed = |kind: &EventKind| matches!(kind, EventKind::HostToolCall { .. });
    assert!(!events.iter().any(handed));
    let log = written(&path, "c1", "interrupted").await;
    let end = log.iter().find(|entry| entry["kind"] == "outcome").unwrap();
    assert_eq!((&end["ran"], &end["happened"]), (&json!(false), &json!("no")), "{end}");
    // So there is room.
    rig.user_says("u2", "Pay.").calls_tool("r2", "c2", "host_pays", "{}");
    rig.until(handed).await;
    rig.session.stop();
    rig.end().await;
    // That one was handed over, and nobody knows what came of it.
    let log = entries(&path);
    let end = log.iter().rfind(|entry| entry["kind"] == "outcome").unwrap();
    assert_eq!((&end["call"], &end["happened"]), (&json!("c2"), &json!("unknown")), "{end}");
}

#[tokio::test(start_paused = true)]
async fn of_two_who_approve_at_the_same_time_one_does_and_the_limit_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("receipts");
    let (agent, store, registry, latch) = agent();
    let host = PolicyHost::builder()
        .policy(AllowList::new("tools", ["pay"]).unwrap())
        .policy(AskAbove::new("large", "pay", AmountField::minor("cents"), 100).unwrap())
        .limit(Limit::new("once", "pay", 24 * 3_600 * SECOND).unwrap().per(Per::Caller).calls(1))
        .receipts(ReceiptLog::open(&path).unwrap())
        .build()
        .unwrap();
    let under = host.clone();
    let setup = Setup::new().build(|it| it.agent(&agent).authorize(under).caller(ann()));
    let mut rig = setup.start().await;
    let key = parks(&mut rig).await;
    drop(rig);
    let tools = ToolExecutor::new(registry, Some(Arc::new(host)));
    let approvals = Approvals::new(store).unwrap().witnessed_as(&tools);
    let cx = InvocationContext::new();
    let approves = async |by: &str| {
        let memory = Arc::new(antiphon::agent::InMemory::new());
        approvals.approve(&cx, &key, Answer::new().by(by), &tools, memory).await
    };
    let (one, other) = tokio::join!(approves("ann"), approves("bob"));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert_eq!(latch.calls().len(), 1);
    let ends = entries(&path).iter().filter(|entry| entry["outcome"] == "success").count();
    assert_eq!(ends, 1);
}
