//! E1 to E16 over Gemini Live, and the user's audio: through sockets in memory, with an eye on the
//! frames that the server saw.

use std::{sync::Arc, time::Duration};

use antiphon::{
    audio::{AudioFormat, AudioFrame},
    live::LiveConfig,
    providers::gemini::Gemini,
    session::*,
};
use antiphon_testkit::{
    LatchedTool, Speaker, SpeakerControl, ToolPlan,
    gemini::{Fault, Pace, Record, Reply, Rule, Script, Server, Side, Step},
    voice_like,
};
use serde_json::{Value, json};

use super::{Continuity, is_restored, murmur, restored};
use crate::rig::{MS, SECOND, agent_messages, is_turn_finished, now, states};

/// A generation that waits for its tools.
const WAITS: &str = "gemini-3.1-flash-live-preview";

/// A running session, the server that it talks to, and who listens.
struct Talk {
    server: Server,
    session: AgentSession,
    speaker: SpeakerControl,
    events: EventStream,
}

async fn start(script: Script) -> Talk {
    start_with(script, None, IdleConfig::OFF, |builder| builder).await
}

async fn start_with(
    script: Script,
    model: Option<&str>,
    idle: IdleConfig,
    edit: impl FnOnce(SessionBuilder) -> SessionBuilder,
) -> Talk {
    let server = Server::new(script);
    let provider = Gemini::new().connector(server.connector());
    let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
    let builder = AgentSession::builder(Arc::new(provider)).sink(sink);
    let session = edit(builder).build().unwrap();
    let events = session.events();
    let mut config = LiveConfig::new().api_key("test");
    config.model = model.map(Into::into);
    session.start(config, idle).await.unwrap();
    Talk { server, session, speaker, events }
}

impl Talk {
    /// Lets so much time pass, while all that comes is heard at once. Gives what was told.
    async fn hear(&mut self, time: Duration) -> Vec<EventKind> {
        let until = tokio::time::Instant::now() + time;
        let mut seen = Vec::new();
        while tokio::time::Instant::now() < until {
            self.speaker.play_all();
            let next = tokio::time::timeout(10 * MS, self.events.next()).await;
            seen.extend(next.into_iter().flatten().map(|event| event.kind));
        }
        seen
    }

    /// The events up to the first that `is` wanted; all that comes is heard.
    async fn hear_until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        let mut seen = Vec::new();
        // Ten virtual minutes.
        for _ in 0..60_000 {
            self.speaker.play_all();
            if let Ok(next) = tokio::time::timeout(10 * MS, self.events.next()).await {
                let Some(event) = next else { break };
                let found = is(&event.kind);
                seen.push(event.kind);
                if found {
                    return seen;
                }
            }
        }
        panic!("it did not come: {seen:#?}\n{:#?}", self.server.client_messages());
    }

    /// Writes to the agent and hears its answer.
    async fn ask(&mut self, text: &str) -> Vec<EventKind> {
        self.session.send_text(text).unwrap();
        self.hear_until(is_turn_finished).await
    }

    /// The session lives: it answers, and once.
    async fn assert_alive(&mut self) {
        self.hear(SECOND).await;
        let events = self.ask("Are you there?").await;
        let said = agent_messages(&events);
        assert_eq!(said, [("You said: Are you there?".to_owned(), false)], "{events:#?}");
    }

    /// The records of one side.
    fn of(&self, side: Side) -> Vec<Record> {
        self.server.records().into_iter().filter(|record| record.from == side).collect()
    }

    /// The set-ups that the server was sent, of all connections.
    fn setups(&self) -> Vec<Value> {
        let frames = self.of(Side::Client).into_iter().map(|record| record.frame["setup"].clone());
        frames.filter(|setup| !setup.is_null()).collect()
    }

    /// All that a connection was told.
    fn told(&self, connection: u32) -> String {
        let frames = self.of(Side::Client).into_iter();
        let frames = frames.filter(|record| record.connection == connection);
        frames.map(|record| record.frame.to_string()).collect()
    }

    /// The handle that each connection was asked to go on by.
    fn handles(&self) -> Vec<Option<String>> {
        let handle = |setup: &Value| setup["sessionResumption"]["handle"].as_str().map(Into::into);
        self.setups().iter().map(handle).collect()
    }

    /// The newest handle that a connection told.
    fn told_handle(&self, connection: u32) -> Option<String> {
        self.of(Side::Server).into_iter().rev().find_map(|record| {
            let update = &record.frame["sessionResumptionUpdate"];
            (record.connection == connection && update["resumable"] == true)
                .then(|| update["newHandle"].as_str().unwrap().to_owned())
        })
    }

    /// The user's audio that the server was sent, of all connections from this one on, joined.
    fn audio(&self, from: u32) -> Vec<i16> {
        let frames = self.of(Side::Client).into_iter().filter(|record| record.connection >= from);
        let bytes = frames.filter_map(|record| {
            let data = record.frame["realtimeInput"]["audio"]["data"].as_str()?.to_owned();
            Some(base64_simd::STANDARD.decode_to_vec(data).unwrap())
        });
        let bytes: Vec<u8> = bytes.flatten().collect();
        bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
    }
}

fn errors(events: &[EventKind]) -> usize {
    events.iter().filter(|kind| matches!(kind, EventKind::Error { .. })).count()
}

#[tokio::test(start_paused = true)]
async fn gemini_hears_the_users_audio_once_and_whole_over_drops_in_mid_reply() {
    let losses = [
        vec![Step::Drop],
        vec![Step::close(1011, "Internal error encountered.")],
        vec![Step::DelayMs(7), Step::Drop],
    ];
    for loss in losses {
        let what = format!("{loss:?}");
        let loses = || {
            let mut slow = Pace::real_time();
            slow.think_ms = 203;
            Script::auto()
                .pace(slow)
                .reply(Rule::always(Reply::spoken("A long story.", 4_000)))
                .fault(Fault::after("modelTurn", loss.clone()).nth(5))
        };
        let script = Script::connections([loses(), loses(), Script::auto()]);
        let mut talk = start(script).await;
        let wav = murmur(16_000 * 8);
        talk.session.send_text("Tell me a story.").unwrap();
        for (number, frame) in wav.chunks(320).enumerate() {
            talk.session.send_audio(AudioFrame::from_pcm16(16_000, frame)).unwrap();
            tokio::time::sleep(20 * MS).await;
            if number == 200 {
                talk.session.send_text("And another one.").unwrap();
            }
        }
        tokio::time::sleep(5 * SECOND).await;
        assert_eq!(talk.server.connections(), 3, "{what}");
        let heard = talk.audio(1);
        assert_eq!(heard.len(), wav.len(), "{what}");
        assert!(heard == wav, "{what}: nothing is lost, nothing comes twice, nothing out of order");
        assert_eq!(restored(&now(&mut talk.events).await).len(), 2, "{what}");
        assert_eq!(talk.session.stats().uplink_dropped_ms, 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn gemini_hears_the_users_audio_once_and_whole_over_planned_changes() {
    let mut talk = start(Script::auto().lifetime(12, 6)).await;
    let wav = murmur(16_000 * 40);
    for (number, frame) in wav.chunks(320).enumerate() {
        talk.session.send_audio(AudioFrame::from_pcm16(16_000, frame)).unwrap();
        tokio::time::sleep(20 * MS).await;
        talk.speaker.play_all();
        if number % 400 == 300 {
            talk.session.send_text("Go on.").unwrap();
        }
    }
    tokio::time::sleep(SECOND).await;
    assert!(talk.server.connections() >= 4, "{}", talk.server.connections());
    assert!(talk.audio(1) == wav, "nothing is lost, nothing comes twice, nothing out of order");
    let events = now(&mut talk.events).await;
    assert!(restored(&events).iter().all(|told| *told == (Continuity::Full, 0)), "{events:#?}");
    assert_eq!((errors(&events), talk.session.stats().uplink_dropped_ms), (0, 0));
    let handles = talk.handles();
    assert!(handles[1..].iter().all(Option::is_some), "{handles:?}");
}

#[tokio::test(start_paused = true)]
async fn trial_e01_an_end_in_mid_reply_is_followed_by_a_connection_that_knows_what_was_said() {
    // Without handles it is told the conversation; with them it goes on by the last one.
    for handles in [false, true] {
        let why = "Deadline expired before operation could complete.";
        let expires = Script::auto()
            .reply(Rule::on_text("story", Reply::spoken("Once upon a time.", 2_000)))
            .fault(Fault::after("modelTurn", [Step::close(1011, why)]).nth(20));
        let script = Script::connections([expires, Script::auto()]);
        let server = Server::new(script);
        let provider = Gemini::new().connector(server.connector());
        let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
        let session = AgentSession::builder(Arc::new(provider)).sink(sink).build().unwrap();
        let events = session.events();
        let mut config = LiveConfig::new().api_key("test");
        config.provider_options.insert("session_resumption".into(), json!(handles));
        session.start(config, IdleConfig::OFF).await.unwrap();
        let mut talk = Talk { server, session, speaker, events };
        talk.ask("Hello.").await;
        talk.session.send_text("Tell me a story.").unwrap();
        talk.hear_until(is_restored).await;
        talk.hear(5 * SECOND).await;
        assert_eq!(talk.server.connections(), 2);
        let told = talk.told(2);
        assert!(told.contains("Tell me a story."), "the question is not lost: {told}");
        talk.assert_alive().await;
    }
}

#[tokio::test(start_paused = true)]
async fn trial_e03_a_connection_that_goes_away_is_resumed_by_the_newest_handle() {
    let mut talk = start(Script::auto().lifetime(30, 20).ends_at_once()).await;
    talk.session.send_text("one").unwrap();
    let mut events = talk.hear(5 * SECOND).await;
    // The server warns after ten seconds, and ends after thirty.
    events.extend(talk.hear(30 * SECOND).await);
    talk.session.send_text("two").unwrap();
    events.extend(talk.hear(5 * SECOND).await);
    let said = agent_messages(&events);
    assert_eq!(said, [("You said: one".into(), false), ("You said: two".into(), false)]);
    let handles = talk.handles();
    assert!(handles.len() >= 2 && handles[0].is_none(), "{handles:?}");
    for (connection, handle) in (1..).zip(&handles[1..]) {
        assert!(handle.is_some() && *handle == talk.told_handle(connection), "{handles:?}");
    }
    assert_eq!(errors(&events), 0, "{events:?}");
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::SessionEnded { .. })));
}

#[tokio::test(start_paused = true)]
async fn trial_e03_the_end_of_life_in_mid_reply_loses_nothing_that_was_asked() {
    // It warns while it speaks, and ends before it has said all.
    let mut slow = Pace::real_time();
    slow.think_ms = 5_000;
    let ends = Script::auto()
        .lifetime(12, 5)
        .pace(slow)
        .reply(Rule::always(Reply::spoken("A very long story.", 30_000)));
    let mut talk = start(Script::connections([ends, Script::auto()])).await;
    talk.session.send_text("Tell me a story.").unwrap();
    let events = talk.hear_until(is_restored).await;
    assert_eq!(talk.server.connections(), 2);
    let told = talk.told(2);
    assert!(told.contains("Tell me a story."), "no handle holds it: {told}");
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::SessionEnded { .. })));
    talk.hear(5 * SECOND).await;
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_refused_fails_its_turn_at_once_with_the_reason() {
    let error = json!({"error": {"code": 429, "message": "Slow down.", "status": "EXHAUSTED"}});
    let refuses = Script::steps([
        Step::Expect(json!({"setup": {}})),
        Step::Emit(json!({"setupComplete": {}})),
        Step::Expect(json!({"clientContent": {}})),
        Step::Emit(error),
        Step::DelayMs(600_000),
    ]);
    let mut talk = start(refuses).await;
    let asked = tokio::time::Instant::now();
    let events = talk.ask("Hello.").await;
    assert!(asked.elapsed() < SECOND, "{:?}", asked.elapsed());
    let why = |kind: &EventKind| match kind {
        EventKind::Error { message, .. } => message.contains("Slow down."),
        _ => false,
    };
    assert!(events.iter().any(why), "{events:#?}");
    assert_eq!(talk.session.state(), SessionState::Listening);
}

#[tokio::test(start_paused = true)]
async fn the_model_that_serves_is_told_and_goes_on_by_its_handle() {
    let refuses = || Script::steps([Step::close(1008, "models/one is not found for v1beta")]);
    let goes = || Script::auto().lifetime(30, 20).ends_at_once();
    // The first model is refused; the second gives a handle, by which it goes on without the first.
    let server = Server::new(Script::connections([refuses(), goes(), goes()]));
    let provider = Gemini::new().connector(server.connector());
    let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
    let session = AgentSession::builder(Arc::new(provider)).sink(sink).build().unwrap();
    let events = session.events();
    let mut config = LiveConfig::new().api_key("test").model("one");
    config.fallback_model = Some("two".into());
    session.start(config, IdleConfig::OFF).await.unwrap();
    let mut talk = Talk { server, session, speaker, events };
    let mut events = talk.ask("Hello.").await;
    events.extend(talk.hear_until(is_restored).await);
    let models: Vec<_> = events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::SessionStarted { model, .. } => Some(("started", model.to_string())),
            EventKind::ProviderChanged { model, .. } => Some(("changed", model.to_string())),
            _ => None,
        })
        .collect();
    assert_eq!(models, [("started", "two".to_owned())]);
    assert_eq!(restored(&events), [(Continuity::Full, 0)]);
    let asked: Vec<_> = talk.setups().iter().map(|setup| setup["model"].clone()).collect();
    assert_eq!((asked, talk.server.connections()), (vec!["models/two".into(); 2], 3));
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e05_going_away_during_a_tool_waits_for_the_handle_after_it() {
    let (tool, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let script = Script::auto()
        .lifetime(60, 50)
        .reply(Rule::on_text("work", Reply::call("slow", json!({}))))
        .reply(Rule::on_tool_output("slow", Reply::spoken("It is done.", 600)));
    let mut talk =
        start_with(script, Some(WAITS), IdleConfig::OFF, |builder| builder.tool(tool)).await;
    talk.hear(8 * SECOND).await;
    talk.session.send_text("work").unwrap();
    latch.started().await;
    // The notice comes after ten seconds.
    talk.hear(10 * SECOND).await;
    assert_eq!(talk.server.connections(), 1, "no handle knows of the call");
    latch.release(1);
    let events = talk.hear_until(is_restored).await;
    assert_eq!(restored(&events), [(Continuity::Full, 0)]);
    assert!(agent_messages(&events).contains(&("It is done.".into(), false)), "{events:#?}");
    let outputs: Vec<u32> = talk
        .of(Side::Client)
        .iter()
        .filter(|record| record.frame.get("toolResponse").is_some())
        .map(|record| record.connection)
        .collect();
    assert_eq!(outputs, [1], "the output goes to the connection that asked for it");
    assert_eq!(talk.handles()[1], talk.told_handle(1));
    let at = |is: &dyn Fn(&Record) -> bool| talk.server.records().iter().rposition(is).unwrap();
    let output = at(&|record| record.frame.get("toolResponse").is_some());
    let handle = at(&|record| {
        record.connection == 1 && record.frame["sessionResumptionUpdate"]["resumable"] == true
    });
    assert!(output < handle, "the handle is one that knows of the output");
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e07_slow_pongs_are_borne() {
    let stalls = Fault::after("turnComplete", [Step::StallMs(25_000)]);
    let mut talk = start(Script::auto().fault(stalls)).await;
    talk.ask("Hello.").await;
    // Nothing is read or written for 25 seconds, pongs among it.
    let events = talk.hear(30 * SECOND).await;
    assert_eq!((talk.server.connections(), errors(&events)), (1, 0), "{events:#?}");
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e07_an_old_socket_that_the_server_takes_for_open_is_waited_for() {
    // It says that it goes away, and then does not see for a while that the client went, who leaves
    // after two seconds of silence.
    let half_open = Fault::after("goAway", [Step::StallMs(2_400)]);
    let first = Script::auto().lifetime(30, 20).fault(half_open);
    let mut talk = start(Script::connections([first, Script::auto()])).await;
    talk.ask("Hello.").await;
    let events = talk.hear_until(is_restored).await;
    assert_eq!(restored(&events), [(Continuity::Full, 0)]);
    let handles = talk.handles();
    assert!(handles.len() > 2, "it was refused while the old one was open: {handles:?}");
    assert!(handles[1..].iter().all(|handle| *handle == talk.told_handle(1)), "{handles:?}");
    assert_eq!(errors(&events), 0, "{events:#?}");
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e09_a_drop_during_a_reply_leaves_nobody_waiting() {
    for loss in [Step::Drop, Step::close(1011, "Internal error encountered.")] {
        let mut first = Script::auto()
            .reply(Rule::on_text("story", Reply::spoken("Once upon a time there was.", 3_000)))
            .fault(Fault::after("modelTurn", [loss]).nth(8));
        first.pace = Pace::real_time();
        let mut talk = start(Script::connections([first, Script::auto()])).await;
        talk.session.send_text("Tell me a story.").unwrap();
        let mut events = talk.hear_until(is_restored).await;
        events.extend(talk.hear(5 * SECOND).await);
        let said = agent_messages(&events);
        assert!(said[0].1 && said[0].0.starts_with("Once"), "what was heard is kept: {said:?}");
        assert_eq!(talk.session.state(), SessionState::Listening);
        talk.assert_alive().await;
    }
}

#[tokio::test(start_paused = true)]
async fn trial_e10_a_clean_close_ends_the_session_and_after_a_notice_only_the_connection() {
    let closes = Fault::after("turnComplete", [Step::DelayMs(2_000), Step::close(1000, "bye")]);
    let mut talk = start(Script::auto().fault(closes)).await;
    talk.session.send_text("Hello.").unwrap();
    let is_end = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { .. });
    let events = talk.hear_until(is_end).await;
    let Some(EventKind::SessionEnded { reason, .. }) = events.last() else { unreachable!() };
    assert_eq!(*reason, EndReason::ProviderClosed { code: 1000, reason: "bye".into() });
    assert!(talk.events.next().await.is_none());
    assert!(talk.events.next().await.is_none());

    // Within a reply, so that it does not leave by itself before.
    let closes = Fault::after("goAway", [Step::DelayMs(1_000), Step::close(1000, "")]);
    let mut slow = Pace::real_time();
    slow.think_ms = 8_000;
    let first = Script::auto().lifetime(20, 15).pace(slow).fault(closes);
    let mut talk = start(Script::connections([first, Script::auto()])).await;
    talk.session.send_text("Hello.").unwrap();
    talk.hear_until(is_restored).await;
    talk.hear(10 * SECOND).await;
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e12_the_host_restarts_a_poisoned_connection_with_its_context() {
    let mut filtered = Reply::spoken("No.", 100);
    filtered.incomplete = Some("GENERATED_CONTENT_SAFETY".into());
    let first = Script::auto()
        .reply(Rule::on_text("first", Reply::spoken("Well.", 300)))
        .reply(Rule::always(filtered));
    let mut talk = start(Script::connections([first, Script::auto()])).await;
    talk.ask("My first question.").await;
    let events = talk.ask("Go on.").await;
    let blocked = |kind: &EventKind| match kind {
        EventKind::Error { message, .. } => message.contains("GENERATED_CONTENT_SAFETY"),
        _ => false,
    };
    assert!(events.iter().any(blocked), "{events:#?}");
    talk.hear(SECOND).await;
    talk.session.reconnect().unwrap();
    let events = talk.hear_until(is_restored).await;
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert_eq!(talk.handles(), [None, None], "what is poisoned is not continued");
    let frames = talk.of(Side::Client).into_iter().filter(|record| record.connection == 2);
    let mut contents = frames.map(|record| record.frame["clientContent"].clone());
    let history = contents.find(|content| !content.is_null()).unwrap();
    let said: Vec<_> = history["turns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| (turn["role"].as_str().unwrap(), turn["parts"][0]["text"].as_str().unwrap()))
        .collect();
    assert_eq!(said[..2], [("user", "My first question."), ("model", "Well.")], "{said:?}");
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e14_the_users_audio_goes_to_the_new_connection_and_is_answered_there() {
    let script = Script::auto().lifetime(30, 20).transcript("Is anybody there?");
    let mut talk = start(Script::connections([script.clone(), script])).await;
    talk.ask("Hello.").await;
    talk.hear_until(is_restored).await;
    talk.session.send_audio(voice_like(16_000, 1_000)).unwrap();
    talk.session.send_audio(AudioFrame::from_pcm16(16_000, &[0; 16_000])).unwrap();
    let events = talk.hear_until(is_turn_finished).await;
    assert_eq!(talk.audio(2).len(), 32_000, "every sample of it");
    let said = agent_messages(&events);
    assert_eq!(said, [("You said: Is anybody there?".into(), false)]);
}

#[tokio::test(start_paused = true)]
async fn trial_e16_an_idle_session_outlives_its_connections_without_an_error() {
    let mut talk = start(Script::auto()).await;
    talk.ask("Hello.").await;
    let events = talk.hear(3_600 * SECOND).await;
    assert!(talk.server.connections() >= 6, "{}", talk.server.connections());
    assert_eq!(errors(&events), 0, "{events:#?}");
    assert!(restored(&events).iter().all(|told| *told == (Continuity::Full, 0)));
    assert!(states(&events).contains(&SessionState::Recovering));
    assert_eq!(talk.server.open_connections(), 1);
    talk.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e16_an_idle_session_retires_before_its_connection_does() {
    let idle = IdleConfig::new(None, Some(300 * SECOND));
    let mut talk = start_with(Script::auto(), None, idle, |builder| builder).await;
    talk.ask("Hello.").await;
    let is_end = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { .. });
    let events = talk.hear_until(is_end).await;
    let Some(EventKind::SessionEnded { reason, .. }) = events.last() else { unreachable!() };
    assert_eq!(*reason, EndReason::Idle);
    assert_eq!((talk.server.connections(), errors(&events)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn vertex_hears_again_what_its_handle_does_not_hold() {
    // After the handle that holds the turn.
    let drops = Fault::after("sessionResumptionUpdate", [Step::DelayMs(2_000), Step::Drop]).nth(3);
    let server = Server::new(Script::connections([Script::auto().fault(drops), Script::auto()]));
    let provider = Gemini::new().connector(server.connector());
    let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
    let session = AgentSession::builder(Arc::new(provider)).sink(sink).build().unwrap();
    let events = session.events();
    let mut config = LiveConfig::new().api_key("ya29.token");
    for (option, value) in [
        ("platform", json!("vertex")),
        ("project", json!("p")),
        ("location", json!("us-central1")),
        ("transparent_resumption", json!(true)),
    ] {
        config.provider_options.insert(option.into(), value);
    }
    session.start(config, IdleConfig::OFF).await.unwrap();
    let mut talk = Talk { server, session, speaker, events };
    talk.ask("Hello.").await;
    let wav = murmur(16_000 * 4);
    for frame in wav.chunks(320) {
        talk.session.send_audio(AudioFrame::from_pcm16(16_000, frame)).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    tokio::time::sleep(SECOND).await;
    assert_eq!(talk.server.connections(), 2);
    assert_eq!(talk.handles()[1], talk.told_handle(1));
    assert!(talk.audio(1).len() > wav.len(), "the first one heard some of it");
    assert!(talk.audio(2) == wav, "the second one hears all that came after its handle, in order");
    assert_eq!(restored(&now(&mut talk.events).await), [(Continuity::Full, 0)]);
    talk.assert_alive().await;
}
