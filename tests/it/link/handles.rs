//! The provider itself goes on with a conversation in a later run: Gemini's handles, over the wire.

use std::time::Duration;

use antiphon::{
    agent::{
        InMemory, Memory, Outcome,
        ledger::{CallChange, CallRecord, CallState},
    },
    audio::AudioFormat,
    live::LiveConfig,
    providers::gemini::Gemini,
    session::*,
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{
    LatchedTool, Speaker, SpeakerControl, ToolPlan,
    gemini::{Pace, Reply, Rule, Script, Server, Side, Step},
};
use serde_json::{Value, json};

use super::*;
use crate::rig::*;

/// What a handle is kept by, in a memory that holds nothing else.
const KEY: &str = "voice handle s";

/// Conversations of one agent with one server.
struct House {
    server: Server,
    agent: Agent,
    memory: Arc<InMemory>,
}

/// One of them.
struct Call {
    session: AgentSession,
    speaker: SpeakerControl,
    events: EventStream,
    /// The snapshots of its turns.
    committed: Vec<Arc<str>>,
}

impl House {
    fn new(script: Script) -> Self {
        Self { server: Server::new(script), agent: plain(), memory: Arc::default() }
    }

    async fn call(&self) -> Call {
        self.call_with(LiveConfig::new().api_key("key"), |builder| builder.resume("s")).await
    }

    async fn call_with(
        &self,
        config: LiveConfig,
        edit: impl FnOnce(SessionBuilder) -> SessionBuilder,
    ) -> Call {
        let provider = Gemini::new().connector(self.server.connector());
        let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
        let builder = AgentSession::builder(Arc::new(provider))
            .sink(sink)
            .memory(self.memory.clone())
            .agent(&self.agent)
            .keep_handles(self.memory.clone());
        let session = edit(builder).build().unwrap();
        let events = session.events();
        session.start(config, IdleConfig::OFF).await.unwrap();
        Call { session, speaker, events, committed: Vec::new() }
    }

    /// What each connection was asked to go on by.
    fn handles(&self) -> Vec<Option<String>> {
        let records = self.server.records().into_iter().filter(|it| it.from == Side::Client);
        let setups = records.map(|record| record.frame["setup"].clone());
        setups
            .filter(|setup| !setup.is_null())
            .map(|setup| setup["sessionResumption"]["handle"].as_str().map(Into::into))
            .collect()
    }

    /// The newest handle that a connection was given.
    fn given(&self, connection: u32) -> Option<String> {
        let records = self.server.records().into_iter().rev();
        let mut records =
            records.filter(|it| it.from == Side::Server && it.connection == connection);
        records.find_map(|record| {
            let handle = record.frame["sessionResumptionUpdate"]["newHandle"].as_str()?.to_owned();
            (!handle.is_empty()).then_some(handle)
        })
    }

    /// The words that a connection was told as what was said before it.
    fn told(&self, connection: u32) -> Vec<String> {
        let records = self.server.records().into_iter();
        let records = records.filter(|it| it.from == Side::Client && it.connection == connection);
        let turns = records.flat_map(|record| {
            let content = record.frame["clientContent"].clone();
            let reply = content["turnComplete"] == true
                && content["turns"].as_array().is_some_and(|it| it.len() == 1);
            let turns = content["turns"].as_array().cloned().unwrap_or_default();
            if reply { Vec::new() } else { turns }
        });
        turns.map(|turn| turn["parts"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// What is kept.
    async fn kept(&self) -> Option<Value> {
        let text = self.memory.get(KEY).await.unwrap()?;
        Some(serde_json::from_str(&text).unwrap())
    }
}

impl Call {
    /// All that is told up to the first that is wanted; what comes is heard at once.
    async fn until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        let mut seen = Vec::new();
        for _ in 0..60_000 {
            self.speaker.play_all();
            let Ok(next) = tokio::time::timeout(10 * MS, self.events.next()).await else {
                continue;
            };
            let kind = next.expect("the session goes on").kind;
            if let EventKind::TurnCommitted { snapshot_id: Some(id), .. } = &kind {
                self.committed.push(id.clone());
            }
            let found = is(&kind);
            seen.push(kind);
            if found {
                return seen;
            }
        }
        panic!("it did not come: {seen:#?}");
    }

    /// Writes to the agent and hears its answer, until that is on disk.
    async fn turn(&mut self, text: &str) {
        self.session.send_text(text).unwrap();
        self.until(is_committed).await;
        // Whatever comes after the turn.
        tokio::time::sleep(SECOND).await;
    }

    /// What it goes on from.
    async fn resumed(&mut self) -> ResumedFrom {
        let told = self.until(|kind| matches!(kind, EventKind::SessionResumed(_))).await;
        match told.into_iter().next_back() {
            Some(EventKind::SessionResumed(from)) => from,
            other => panic!("{other:?}"),
        }
    }

    async fn hang_up(self) -> Vec<Arc<str>> {
        self.session.shutdown(SECOND).await.unwrap();
        self.committed
    }
}

#[tokio::test(start_paused = true)]
async fn the_provider_goes_on_with_the_conversation_itself_and_is_told_nothing_again() {
    let house = House::new(Script::auto());
    let mut first = house.call().await;
    first.turn("My name is Ann.").await;
    first.turn("I live in Ulm.").await;
    let snapshots = first.hang_up().await;
    let kept = house.kept().await.unwrap();
    assert_eq!(kept["snapshot_id"], **snapshots.last().unwrap());
    assert_eq!(kept["handle"], *house.given(1).unwrap());

    let mut second = house.call().await;
    let from = second.resumed().await;
    assert!(from.by_handle, "{from:?}");
    assert_eq!((from.restored, from.items, from.left_out), (Restored::Full, 0, 0));
    assert_eq!(house.handles(), [None, house.given(1)]);
    assert_eq!(house.kept().await, None, "it is used once");
    second.turn("Who am I?").await;
    assert_eq!(house.told(2), [] as [&str; 0], "{:#?}", house.server.client_messages());
    let snapshots = second.hang_up().await;
    let row = house.agent.get_snapshot(&cx(), snapshots[0].clone()).await.unwrap();
    assert_eq!(lines(&row).len(), 6, "{:?}", lines(&row));
    assert_eq!(lines(&row)[4], "user: Who am I?");

    // And so on.
    let mut third = house.call().await;
    assert!(third.resumed().await.by_handle);
    assert_eq!(house.handles()[2], house.given(2));
    third.hang_up().await;
    assert_eq!(house.server.failures(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_the_provider_forgot_costs_nothing_but_the_attempt() {
    let mut script = Script::auto();
    script.handle_valid_s = Some(60);
    let house = House::new(script);
    let mut first = house.call().await;
    first.turn("My name is Ann.").await;
    first.hang_up().await;
    tokio::time::sleep(120 * SECOND).await;

    let mut second = house.call().await;
    let from = second.resumed().await;
    assert_eq!((from.by_handle, from.restored, from.items), (false, Restored::Full, 2));
    assert_eq!(house.handles(), [None, house.given(1), None]);
    assert_eq!(house.told(2), [] as [&str; 0]);
    assert_eq!(house.told(3), ["My name is Ann.", "You said: My name is Ann."]);
    second.turn("Who am I?").await;
    second.hang_up().await;
}

#[tokio::test(start_paused = true)]
async fn whatever_a_provider_says_to_a_handle_it_is_told_the_conversation_then() {
    for refusal in [
        Step::close(1007, "Request contains an invalid argument."),
        Step::close(1008, "Requested entity was not found."),
        Step::close(1011, "Internal error encountered."),
    ] {
        let what = format!("{refusal:?}");
        let refuses = Script::steps([Step::Expect(json!({ "setup": {} })), refusal]);
        let house = House::new(Script::connections([Script::auto(), refuses, Script::auto()]));
        let mut first = house.call().await;
        first.turn("My name is Ann.").await;
        first.hang_up().await;
        let mut second = house.call().await;
        let from = second.resumed().await;
        assert_eq!((from.by_handle, from.items), (false, 2), "{what}");
        assert_eq!(house.handles(), [None, house.given(1), None], "{what}");
        assert_eq!(house.told(3).len(), 2, "{what}");
        second.hang_up().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_of_no_use_where_the_conversation_went_on_without_it() {
    let house = House::new(Script::auto());
    let mut first = house.call().await;
    first.turn("My name is Ann.").await;
    first.turn("I live in Ulm.").await;
    let snapshots = first.hang_up().await;

    // A branch from an earlier turn. It gets a handle of its own, for its own end.
    let key = || LiveConfig::new().api_key("key");
    let earlier = snapshots[0].clone();
    let mut branch = house.call_with(key(), |builder| builder.resume_snapshot(earlier)).await;
    let from = branch.resumed().await;
    assert_eq!((from.by_handle, from.items), (false, 2));
    branch.turn("I live in Bonn.").await;
    branch.hang_up().await;
    assert_eq!(house.handles(), [None, None]);

    // The other one went on meanwhile with a provider that gives none.
    let tip = snapshots[1].clone();
    let mut rig = linked(&house.agent, |builder| builder.resume_snapshot(tip)).await;
    let row = rig.turn(&house.agent, "And where do I live?", "In Ulm.").await;
    rig.session.shutdown(SECOND).await.unwrap();
    let mut third =
        house.call_with(key(), |builder| builder.resume_snapshot(row.snapshot_id)).await;
    let from = third.resumed().await;
    assert_eq!((from.by_handle, from.items), (false, 6));
    third.hang_up().await;
    assert_eq!(house.handles(), [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_its_accounts_and_its_models_and_expires() {
    let key = || LiveConfig::new().api_key("key");
    let mut other_model = key();
    other_model.model = Some("gemini-3.1-flash-live-preview".into());
    let mut elsewhere = key();
    elsewhere.endpoint = Some("wss://proxy.example".into());
    let expired = "expired";
    for (config, what) in [
        (LiveConfig::new().api_key("another"), "account"),
        (other_model, "model"),
        (elsewhere, "address"),
        (key(), expired),
    ] {
        let house = House::new(Script::auto());
        let mut first = house.call().await;
        first.turn("My name is Ann.").await;
        first.hang_up().await;
        let mut kept = house.kept().await.unwrap();
        assert!(!kept.to_string().contains("\"key\""), "the key is not kept: {kept}");
        let good_for =
            kept["good_until_ms"].as_u64().unwrap() - kept["kept_at_ms"].as_u64().unwrap();
        assert_eq!(good_for, 2 * 3_600 * 1_000);
        if what == expired {
            kept["good_until_ms"] = kept["kept_at_ms"].clone();
            house.memory.set(KEY, &kept.to_string()).await.unwrap();
        }
        let mut second = house.call_with(config, |builder| builder.resume("s")).await;
        assert!(!second.resumed().await.by_handle, "{what}");
        assert_eq!(house.handles(), [None, None], "{what}");
        assert_eq!(house.told(2).len(), 2, "{what}");
        assert_eq!(house.kept().await.is_some(), what != expired, "{what}");
        second.hang_up().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_in_a_handle_is_told_in_words() {
    let mut slow = Pace::real_time();
    slow.think_ms = 200;
    let story = Rule::on_text("story", Reply::spoken("Once upon a time there was a king.", 6_000));
    let house = House::new(Script::auto().pace(slow).reply(story));
    let mut first = house.call().await;
    first.turn("My name is Ann.").await;
    first.session.send_text("Tell me a story.").unwrap();
    first.until(|kind| matches!(kind, EventKind::PlaybackStarted)).await;
    // In the middle of the reply, of which the last handle knows nothing.
    first.hang_up().await;
    let mut second = house.call().await;
    let from = second.resumed().await;
    assert!(!from.by_handle && from.items >= 3, "{from:?}");
    assert_eq!(house.handles(), [None, None]);
    assert!(house.told(2).contains(&"Tell me a story.".to_owned()), "{:?}", house.told(2));
    second.hang_up().await;
}

#[tokio::test(start_paused = true)]
async fn who_has_the_snapshots_or_a_tool_in_the_session_does_not_have_the_handle() {
    let house = House::new(Script::auto());
    let mut call = house.call().await;
    call.turn("My name is Ann.").await;
    let session = call.session.clone();
    let snapshots = call.hang_up().await;
    let handle = house.given(1).unwrap();
    let row = house.agent.get_snapshot(&cx(), snapshots[0].clone()).await.unwrap();
    assert!(!serde_json::to_string(&row).unwrap().contains(&handle));
    assert_eq!(session.scoped_memory().list("").await.unwrap(), [] as [&str; 0]);
    session.forget().await.unwrap();
    assert!(house.kept().await.is_some());
    // A session whose id is made to reach it does not.
    for id in ["voice handle s", "voice handle ", "voice handle", ""] {
        let scoped = antiphon::agent::ScopedMemory::new(house.memory.clone(), id);
        assert_eq!(scoped.list("").await.unwrap(), [] as [&str; 0], "{id:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_is_kept_only_with_the_outputs_of_its_calls() {
    let (tool, latch) = LatchedTool::new("look", ToolPlan::Succeed);
    let calls = Rule::on_text("look", Reply::call("look", json!({})));
    let mut house = House::new(Script::auto().reply(calls));
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    house.agent = speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry));
    let mut call = house.call().await;
    call.session.send_text("Please look.").unwrap();
    call.until(|kind| matches!(kind, EventKind::ToolCall { .. })).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(house.kept().await, None);
    latch.release(1);
    call.until(is_committed).await;
    tokio::time::sleep(SECOND).await;
    let snapshots = call.hang_up().await;
    assert_eq!(house.kept().await.unwrap()["snapshot_id"], **snapshots.last().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_call_of_which_no_snapshot_tells_is_told_in_words() {
    let store = Arc::new(InMemorySessionStore::new());
    let mut house = House::new(Script::auto());
    house.agent = speaking(store.clone(), Arc::default());
    let mut first = house.call().await;
    first.turn("My name is Ann.").await;
    let snapshots = first.hang_up().await;
    // A process that was killed in the next turn, after a tool of it had ended.
    let call = ToolCall { id: "c1".into(), name: "pay".into(), args: JsonObject::new() };
    let mut record = CallRecord::new("k1", "s", &call, jiff::Timestamp::now());
    record.parent_id = Some(snapshots[0].clone());
    record.state = CallState::Ended {
        at: jiff::Timestamp::now(),
        outcome: Outcome::Success,
        output: json!({ "paid": 5 }),
        detail: None,
    };
    let write = |_: Option<&CallRecord>| Ok(CallChange::Write(Box::new(record.clone())));
    store.call_ledger().unwrap().save_call(&cx(), "k1", &write).await.unwrap();

    let mut second = house.call().await;
    let from = second.resumed().await;
    assert_eq!((from.by_handle, from.items), (false, 3));
    assert!(house.told(2).iter().any(|told| told.contains("paid")), "{:?}", house.told(2));
    second.hang_up().await;
}
