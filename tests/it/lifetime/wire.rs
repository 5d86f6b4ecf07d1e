//! E1, E2 and E16 over the wire.

use antiphon::session::*;
use antiphon_testkit::openai::{Fault, Reply, Rule, Script, Step};
use serde_json::json;

use super::{Continuity, restored};
use crate::{
    rig::{SECOND, states},
    wire::rig::start,
};

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
    // The next one stood before the last was left.
    let gap = |kind: &EventKind| matches!(kind, EventKind::StateRestored { gap_ms: 0, .. });
    assert!(events.iter().filter(|kind| super::is_restored(kind)).all(gap), "{events:#?}");
    wire.assert_alive().await;
    wire.assert_clean();
}
