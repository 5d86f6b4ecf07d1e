//! What a decision of the policy host costs, and a receipt; and what a policy that sleeps costs the audio.
//!
//! `cargo bench --bench policy --all-features`, or `-- decisions`, `-- receipts`, `-- audio` for a part.
//! The whole takes about 15 s. Times are of single operations, in the order of their length: the bars
//! are for p99.

use std::{
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use antiphon::{
    agent::{
        Authorizer, CallContext, Caller, Denial, FuncTool, InMemory, InvocationContext, Outcome,
        Verdict,
    },
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::{LiveConfig, LiveEvent, ReplyId, ReplyOutcome},
    policy::{
        AllowList, AmountField, ArgumentBounds, AskAbove, Destinations, Limit, Per, Policy,
        PolicyContext, PolicyHost, PolicyHostBuilder, ReceiptLog, TimeWindow,
    },
    session::{AgentSession, EventKind, IdleConfig},
    types::{JsonObject, ToolArguments, ToolCall, ToolCallRequest},
};
use antiphon_testkit::ScriptedProvider;
use jiff::{civil::time, tz::TimeZone};
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Operations that are measured, after some to warm up.
const OPERATIONS: usize = 20_000;
const WARM_UP: usize = 1_000;
const FRAME: Duration = Duration::from_millis(20);

fn main() -> Result<(), Error> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let wants = |part: &str| wanted.is_empty() || wanted.iter().any(|it| it == part);
    if wants("decisions") {
        decisions()?;
    }
    if wants("receipts") {
        receipts()?;
    }
    if wants("audio") {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(audio())?;
    }
    Ok(())
}

fn decisions() -> Result<(), Error> {
    let host = built_in()?.build()?;
    judged("five built-in policies (bar 5 us)", &host, &context(), &call())?;
    let day = Duration::from_secs(24 * 60 * 60);
    let daily = || -> Result<Limit, Error> {
        let limit = Limit::new("daily", "send_money", day)?;
        Ok(limit.per(Per::Caller).amount(AmountField::minor("cents"), 50_000))
    };
    judged("... and a limit", &built_in()?.limit(daily()?).build()?, &context(), &call())?;
    #[cfg(feature = "cedar")]
    {
        let host = PolicyHost::builder().policy(two_hundred()?).build()?;
        judged("Cedar, 200 policies, half match (bar 200 us)", &host, &context(), &call())?;
    }
    Ok(())
}

fn judged(what: &str, host: &PolicyHost, cx: &CallContext, call: &ToolCall) -> Result<(), Error> {
    if host.judge(cx, call).verdict != Verdict::Allow {
        return Err(format!("{what}: it is not allowed").into());
    }
    measured(what, || {
        std::hint::black_box(host.judge(std::hint::black_box(cx), call));
    });
    Ok(())
}

/// Two hundred policies over the tool with conditions on arguments and on who calls, half of which hold.
#[cfg(feature = "cedar")]
fn two_hundred() -> Result<antiphon::policy::Cedar, Error> {
    let policies = (0..200).map(|n| {
        let (from, kind) = if n % 2 == 0 { (n, "permit") } else { (1_000 + n, "forbid") };
        format!(
            "@id(\"p{n}\") {kind} (principal in Tenant::\"bank\", action, resource)\n\
             when {{ context.arguments.cents > {from} && principal.verified >= 0 && \
             context.arguments.to like \"+49*\" }};\n"
        )
    });
    let policies: String = policies.collect();
    let mut tool = antiphon::types::ToolDefinition::new("send_money", "Sends money.");
    let schema = json!({
        "type": "object", "required": ["to", "cents"],
        "properties": {"to": {"type": "string"}, "cents": {"type": "integer"},
                       "note": {"type": "string"}},
    });
    tool.input_schema = Some(Arc::new(schema));
    let policies = antiphon::policy::CedarPolicies::new("bank").text("bank.cedar", &policies)?;
    Ok(policies.for_tools(&[tool], &[])?)
}

fn receipts() -> Result<(), Error> {
    let directory = tempfile::tempdir()?;
    let entry = json!({
        "kind": "decision", "at": "2026-03-02T10:00:00.500Z", "session": "session", "turn": 3,
        "call": "call_1", "tool": "send_money", "caller": "ann", "tenant": "bank",
        "point": "proposed", "policies": ["hours", "large", "numbers", "shape", "tools"],
        "verdict": "allow", "arguments": call().args,
        "arguments_sha256": "b5bb9d8014a0f9b1d61e21e796d78dccdf1352f23cd32812f4850b878ae4944c",
    });
    let entry = entry.as_object().cloned().unwrap_or_default();
    let log = ReceiptLog::open(directory.path().join("buffered"))?;
    measured("receipt, buffered (bar 50 us)", || {
        log.append(entry.clone()).expect("a receipt");
    });
    // Sixteen at once: each waits for the disk, and one sync is for all that wait.
    let log = ReceiptLog::open(directory.path().join("durable"))?;
    let times = Mutex::new(Vec::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let asked = Instant::now();
                    log.append_durably(entry.clone()).expect("a receipt");
                    times.lock().expect("nothing panics under it").push(asked.elapsed());
                }
            });
        }
    });
    let took = began.elapsed();
    let times = times.into_inner()?;
    print(&format!("receipt on the disk, 16 at once ({took:.0?} for 800)"), times);
    Ok(())
}

fn measured(what: &str, operation: impl Fn()) {
    (0..WARM_UP).for_each(|_| operation());
    let times = (0..OPERATIONS).map(|_| {
        let began = Instant::now();
        operation();
        began.elapsed()
    });
    print(what, times.collect());
}

/// The value below which this share of a sorted list is.
fn at(sorted: &[Duration], share: f64) -> Duration {
    let place = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(place).copied().unwrap_or_default()
}

fn print(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let (half, most, worst) = (at(&times, 0.5), at(&times, 0.99), at(&times, 1.0));
    println!("{what:60} p50 {half:>9.1?}  p99 {most:>9.1?}  worst {worst:>9.1?}");
}

/// A policy that sleeps over one tool.
struct Sleeps;

impl Policy for Sleeps {
    fn id(&self) -> &str {
        "sleeps"
    }

    fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
        match &*call.name {
            "slow" => {
                thread::sleep(Duration::from_secs(2));
                Verdict::Deny(Denial::private("too late"))
            }
            _ => Verdict::Allow,
        }
    }
}

/// Four seconds of speech while a policy sleeps for two, over and over, and others are decided over.
async fn audio() -> Result<(), Error> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    let sink = ClockedSink::new(AudioFormat::pcm16(24_000)).observed_by(move |_, _| {
        hears.lock().expect("nothing panics under it").push(Instant::now());
    });
    let provider = ScriptedProvider::default();
    let schema = || json!({"type": "object"});
    let session = AgentSession::builder(Arc::new(provider.clone()))
        .sink(sink)
        .tool(FuncTool::new("slow", "Never.", schema(), |_, _| async { Ok(JsonObject::new()) }))
        .tool(FuncTool::new("quick", "Runs.", schema(), |_, _| async { Ok(JsonObject::new()) }))
        .authorize(PolicyHost::builder().policy(Sleeps).build()?)
        .build()?;
    let mut events = session.events();
    session.start(LiveConfig::new(), IdleConfig::OFF).await?;
    let far = provider.far_end().await;
    let reply = ReplyId::from("r1");
    far.emit(LiveEvent::ReplyStarted { reply: reply.clone(), request: None });
    let mut ticks = tokio::time::interval(FRAME);
    for n in 0..200 {
        ticks.tick().await;
        far.emit(LiveEvent::Audio {
            reply: reply.clone(),
            item: "item".into(),
            content_index: 0,
            frame: AudioFrame::from_pcm16(24_000, &[7; 480]),
        });
        if n % 20 == 5 {
            let name = if n % 40 == 5 { "slow" } else { "quick" };
            let arguments = ToolArguments::Json("{}".to_owned());
            let call = ToolCallRequest { id: format!("c{n}").into(), name: name.into(), arguments };
            far.emit(LiveEvent::ToolCalls { reply: Some(reply.clone()), calls: vec![call] });
        }
    }
    far.emit(LiveEvent::ReplyDone { reply, outcome: ReplyOutcome::Completed, usage: None });
    let (mut denied, mut ran) = (0, 0);
    let all = async {
        while denied + ran < 10 {
            match events.next().await.map(|event| event.kind) {
                Some(EventKind::ToolResult { outcome: Outcome::Success, .. }) => ran += 1,
                Some(EventKind::ToolResult { .. }) => denied += 1,
                Some(_) => {}
                None => break,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), all).await?;
    session.shutdown(Duration::from_secs(3)).await?;
    let heard = heard.lock().expect("nothing panics under it");
    let mut gaps: Vec<_> = heard.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_unstable();
    println!(
        "a policy that sleeps 2 s, five times: {denied} denied, {ran} others ran; {} frames, longest \
         gap {:.1?} (bar 40 ms)",
        heard.len(),
        at(&gaps, 1.0),
    );
    Ok(())
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
fn built_in() -> Result<PolicyHostBuilder, Error> {
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
}
