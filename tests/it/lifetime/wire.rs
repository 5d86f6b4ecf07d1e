//! E1, E2, E16 and the user's audio, over the wire.

use antiphon::{audio::AudioFrame, session::*};
use antiphon_testkit::openai::{Fault, Pace, Reply, Rule, Script, Step};
use serde_json::json;

use super::{Continuity, restored};
use crate::{
    rig::{MS, SECOND, states},
    wire::rig::{Setup, start},
};

/// Sound that no detector takes for a voice, and of which no two pieces are the same.
fn murmur(samples: usize) -> Vec<i16> {
    let mut state = 7u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as i16 - 128
    };
    (0..samples).map(next).collect()
}

#[tokio::test(start_paused = true)]
async fn the_users_audio_arrives_once_and_whole_over_a_drop_in_mid_reply() {
    // Each way to lose a connection, in the middle of a reply and of a frame's time.
    let losses = [
        vec![Step::Drop],
        vec![Step::close(1011, "server fault")],
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
                .fault(Fault::after("response.output_audio.delta", loss.clone()).nth(5))
        };
        let script = Script::connections([loses(), loses(), Script::auto()]);
        let mut wire = Setup::new(script).start().await;
        let wav = murmur(24_000 * 8);
        wire.session.send_text("Tell me a story.").unwrap();
        for (number, frame) in wav.chunks(480).enumerate() {
            wire.session.send_audio(AudioFrame::from_pcm16(24_000, frame)).unwrap();
            wire.pass(20 * MS).await;
            if number == 200 {
                wire.session.send_text("And another one.").unwrap();
            }
        }
        wire.pass(5 * SECOND).await;
        assert_eq!(wire.server.connections(), 3, "{what}");
        let heard = wire.audio();
        assert_eq!(heard.len(), wav.len(), "{what}");
        assert!(heard == wav, "{what}: nothing is lost, nothing comes twice, nothing out of order");
        let events = wire.now().await;
        assert_eq!(restored(&events), [(Continuity::History, 0); 2], "{what}");
        assert_eq!(wire.session.stats().uplink_dropped_ms, 0, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn trial_e01_an_expiry_in_mid_reply_is_followed_by_a_seeded_connection() {
    let expired = json!({"code": "session_expired", "message": "60 minutes are over"});
    let expires =
        Script::auto().reply(Rule::on_text("story", Reply::spoken("Once.", 2_000))).fault(
            Fault::after(
                "response.output_audio.delta",
                [Step::Error(expired), Step::close(1001, "")],
            )
            .nth(4),
        );
    let mut wire = start(Script::connections([expires, Script::auto()])).await;
    wire.ask("Hello.").await;
    wire.session.send_text("Tell me a story.").unwrap();
    wire.hear_until(super::is_restored).await;
    wire.pass(SECOND).await;
    let items = wire.sent("conversation.item.create");
    let texts: Vec<_> =
        items.iter().map(|frame| frame["item"]["content"][0]["text"].clone()).collect();
    let told: Vec<_> = texts.iter().filter(|text| *text == "Hello.").collect();
    assert_eq!(told.len(), 2, "the second connection is told of the first turn: {texts:?}");
    wire.assert_alive().await;
}

#[tokio::test(start_paused = true)]
async fn trial_e16_an_idle_session_outlives_its_connections_without_an_error() {
    let mut script = Script::auto();
    script.expires_in_s = Some(600);
    let mut wire = start(script).await;
    wire.ask("Hello.").await;
    wire.pass(3_600 * SECOND).await;
    let events = wire.now().await;
    assert!(wire.server.connections() >= 6, "{}", wire.server.connections());
    let errors = events.iter().filter(|kind| matches!(kind, EventKind::Error { .. }));
    assert_eq!(errors.count(), 0, "{events:#?}");
    assert!(restored(&events).iter().all(|told| *told == (Continuity::History, 0)));
    assert!(states(&events).contains(&SessionState::Recovering));
    wire.assert_alive().await;
    wire.assert_clean();
}
