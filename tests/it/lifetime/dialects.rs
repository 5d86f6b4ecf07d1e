//! Connections that end, in each dialect of OpenAI's words: the user's audio byte for byte, and what the
//! next connection knows.

use antiphon::{
    audio::AudioFrame,
    providers::openai::wire::{Dialect, Facts},
    session::*,
};
use antiphon_testkit::openai::{Fault, Pace, Reply, Rule, Script, Side, Step};
use serde_json::{Value, json};

use super::{Continuity, is_restored, murmur, restored};
use crate::{
    rig::{MS, SECOND, agent_messages},
    wire::rig::{Setup, Wire, start},
};

/// Frames of 20 ms of eight seconds of it, at the rate of the dialect.
fn recording(facts: &Facts) -> (Vec<i16>, Vec<AudioFrame>) {
    let rate = facts.input.default_rate();
    let wav = murmur(rate as usize * 8);
    let frames = wav.chunks(rate as usize / 50).map(|frame| AudioFrame::from_pcm16(rate, frame));
    let frames = frames.collect();
    (wav, frames)
}

/// What a connection knows that comes after a loss, where nothing was under way.
fn known(facts: &Facts) -> Continuity {
    match (facts.resumes_for, facts.messages) {
        (Some(_), _) => Continuity::Full,
        (None, true) => Continuity::History,
        (None, false) => Continuity::Digest,
    }
}

/// The server was sent exactly this, over all connections.
fn assert_arrived(wire: &Wire, wav: &[i16], what: &str) {
    let heard = wire.audio();
    assert_eq!(heard.len(), wav.len(), "{what}");
    assert!(heard == wav, "{what}: nothing is lost, nothing comes twice, nothing out of order");
    assert_eq!(wire.session.stats().uplink_dropped_ms, 0, "{what}");
}

#[tokio::test(start_paused = true)]
async fn the_users_audio_arrives_once_and_whole_over_drops_in_mid_reply() {
    // Each way to lose a connection, in the middle of a reply and of a frame's time.
    let losses = [
        vec![Step::Drop],
        vec![Step::close(1011, "server fault")],
        vec![Step::DelayMs(7), Step::Drop],
    ];
    for (number, dialect) in Dialect::ALL.into_iter().enumerate() {
        let facts = dialect.facts();
        let (wav, frames) = recording(facts);
        // All of them in one dialect, and in the others each in its turn.
        let shown = if number == 0 { &losses[..] } else { &losses[number % 3..=number % 3] };
        for loss in shown {
            let what = format!("{dialect}: {loss:?}");
            let loses = || {
                let mut slow = Pace::real_time();
                slow.think_ms = 203;
                Script::auto()
                    .pace(slow)
                    .reply(Rule::always(Reply::spoken("A long story.", 4_000)))
                    .fault(Fault::after("response.output_audio.delta", loss.clone()).nth(5))
            };
            let script = Script::connections([loses(), loses(), Script::auto()]);
            let mut wire = Setup::of(dialect, script).start().await;
            // Where it is spoken word for word it has to be long, too.
            let story = "A long story that goes on and on and on and on and on and on.";
            wire.session.say(story).unwrap();
            for (number, frame) in frames.iter().enumerate() {
                wire.session.send_audio(frame.clone()).unwrap();
                wire.pass(20 * MS).await;
                if number == 200 {
                    wire.session.say(story).unwrap();
                }
            }
            wire.pass(5 * SECOND).await;
            assert_eq!(wire.server.connections(), 3, "{what}");
            assert_arrived(&wire, &wav, &what);
            let events = wire.now().await;
            // Nobody keeps what was not said to its end: it is told.
            let knows = if facts.messages { Continuity::History } else { Continuity::Digest };
            assert_eq!(restored(&events), [(knows, 0); 2], "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_users_audio_arrives_once_and_whole_over_changes_by_plan() {
    for dialect in Dialect::ALL {
        let (wav, frames) = recording(dialect.facts());
        let mut wire = Setup::of(dialect, Script::auto()).start().await;
        for (number, frame) in frames.iter().enumerate() {
            wire.session.send_audio(frame.clone()).unwrap();
            wire.pass(20 * MS).await;
            if number % 40 == 39 {
                wire.session.reconnect().unwrap();
            }
        }
        wire.pass(5 * SECOND).await;
        assert_eq!(wire.server.connections(), 11, "{dialect}");
        assert_arrived(&wire, &wav, dialect.facts().name);
        let events = wire.now().await;
        assert_eq!(restored(&events), [(Continuity::Full, 0); 10], "{dialect}: nothing was said");
    }
}

/// The words of what a connection was told before its first reply was asked for.
fn told(wire: &Wire, connection: u32) -> String {
    let frames = wire.server.records().into_iter();
    let frames = frames.filter(|record| record.connection == connection);
    let frames = frames.filter(|record| record.from == Side::Client);
    frames.map(|record| record.frame.to_string()).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn what_was_said_is_known_to_the_next_connection_in_every_dialect() {
    for dialect in Dialect::ALL {
        let facts = dialect.facts();
        let first = Script::auto()
            .transcript("My name is Anna.")
            .reply(Rule::always(Reply::spoken("Hello Anna.", 300)))
            .fault(Fault::after("response.done", [Step::DelayMs(2_000), Step::Drop]));
        let script = Script::connections([first, Script::auto()]);
        let mut wire = Setup::of(dialect, script).start().await;
        let rate = facts.input.default_rate();
        wire.session.send_audio(antiphon_testkit::voice_like(rate, 600)).unwrap();
        wire.session.send_audio(antiphon_testkit::tone(rate, 0.0, 1_000)).unwrap();
        let events = wire.hear().await;
        assert_eq!(agent_messages(&events), [("Hello Anna.".into(), false)], "{dialect}");
        let events = wire.hear_until(is_restored).await;
        assert_eq!(restored(&events), [(known(facts), 0)], "{dialect}");
        wire.settle().await;
        let told = told(&wire, 2);
        let again = told.contains("My name is Anna.") && told.contains("Hello Anna.");
        // Who keeps the conversation need not be told.
        assert_eq!(again, facts.resumes_for.is_none(), "{dialect}: {told}");
        let items = wire.told("conversation.item.created").into_iter();
        let replayed: Vec<Value> = items.map(|frame| frame["item"]["type"].clone()).collect();
        if dialect == Dialect::Xai {
            assert_eq!(replayed, [json!("message"), json!("message")]);
        }
        wire.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_conversation_that_the_server_has_forgotten_is_told_again() {
    let emit = |frame: Value| Step::Emit(frame);
    let conversation =
        |id: &str| json!({"type": "conversation.created", "conversation": {"id": id}});
    let created = json!({"type": "session.created", "session": {"type": "realtime"}});
    let first = Script::auto()
        .reply(Rule::always(Reply::spoken("Hello Anna.", 300)))
        .fault(Fault::after("response.done", [Step::DelayMs(2_000), Step::Drop]));
    let another = Script::steps([emit(conversation("another")), emit(created), Step::auto()]);
    let script = Script::connections([first, another.clone(), another]);
    let mut wire = Setup::of(Dialect::Xai, script).start().await;
    wire.ask("My name is Anna.").await;
    let events = wire.hear_until(is_restored).await;
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert_eq!(wire.server.connections(), 3, "the one that goes on, and a new one");
    wire.settle().await;
    assert!(!told(&wire, 2).contains("Anna"));
    assert!(told(&wire, 3).contains("My name is Anna."));
    wire.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn the_code_and_the_reason_of_every_close_reach_the_host() {
    let survived = [1001, 1002, 1009, 1010, 1011, 1012, 1013];
    let ends = [1000, 1003, 1007, 1008, 3000, 3999, 4000, 4999];
    for code in survived.into_iter().chain(ends) {
        let reason = format!("because of {code}");
        let closes = [Step::DelayMs(500), Step::close(code, reason.as_str())];
        let first = Script::auto().fault(Fault::after("response.done", closes));
        let mut wire = start(Script::connections([first, Script::auto()])).await;
        wire.ask("Hello.").await;
        let is_told = |kind: &EventKind| {
            matches!(kind, EventKind::Reconnecting { .. } | EventKind::SessionEnded { .. })
        };
        let events = wire.hear_until(is_told).await;
        let last = events.last().unwrap();
        assert!(format!("{last:?}").contains(&reason), "{last:?}");
        let over = matches!(last, EventKind::SessionEnded { .. });
        assert_eq!(over, ends.contains(&code), "{code}");
        if !over {
            wire.assert_alive().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_words_of_every_refused_connection_reach_the_host() {
    let passing = [408, 425, 429, 500, 502, 503, 504];
    let ends = [400, 401, 403, 404, 410, 418];
    for status in passing.into_iter().chain(ends) {
        let words = format!("because of {status}");
        let first =
            Script::auto().fault(Fault::after("response.done", [Step::DelayMs(500), Step::Drop]));
        let refuses = Script::refuse(status, words.as_str());
        let mut wire = start(Script::connections([first, refuses, Script::auto()])).await;
        wire.ask("Hello.").await;
        let is_told = |kind: &EventKind| {
            matches!(kind, EventKind::Reconnecting { attempt: 2, .. })
                || matches!(kind, EventKind::SessionEnded { .. })
        };
        let events = wire.hear_until(is_told).await;
        let last = events.last().unwrap();
        assert!(format!("{last:?}").contains(&words), "{last:?}");
        let over = matches!(last, EventKind::SessionEnded { .. });
        assert_eq!(over, ends.contains(&status), "{status}");
        if !over {
            wire.assert_alive().await;
        }
    }
}
