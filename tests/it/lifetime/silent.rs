//! A provider that hears the user and says nothing: over the wire, where it tells of speech and where it
//! does not.

use antiphon::session::*;

use super::*;

fn resumes() -> SessionLimits {
    let mut limits = SessionLimits::default();
    limits.on_stall = OnStall::Resume;
    limits
}

/// What was done about stalls.
fn reactions(events: &[EventKind]) -> Vec<Option<OnStall>> {
    let stall = |kind: &EventKind| match kind {
        EventKind::Stalled { reaction, .. } => Some(*reaction),
        _ => None,
    };
    events.iter().filter_map(stall).collect()
}

#[cfg(feature = "openai")]
#[tokio::test(start_paused = true)]
async fn a_server_that_takes_the_users_speech_and_says_nothing_more_is_left_for_one_that_answers() {
    use antiphon_testkit::openai::{Fault, Script, Step};

    use crate::wire::rig::Setup;

    let silent = [Step::DelayMs(600_000)];
    let hangs = Script::auto().fault(Fault::after("input_audio_buffer.committed", silent));
    let script = Script::connections([hangs, Script::auto()]);
    let setup = Setup::new(script).build(|builder| builder.limits(resumes()));
    let mut wire = setup.start().await;
    wire.speak(1_000).await;
    let began = tokio::time::Instant::now();
    let events = wire.hear().await;
    assert!(began.elapsed() < 15 * SECOND, "{:?}", began.elapsed());
    assert_eq!(reactions(&events), [Some(OnStall::Resume)]);
    assert_eq!(wire.server.connections(), 2);
    assert_eq!(agent_messages(&events).len(), 1, "the question was heard again: {events:#?}");
    wire.assert_alive().await;
}

#[cfg(feature = "gemini")]
#[tokio::test(start_paused = true)]
async fn a_gemini_that_tells_nothing_of_speech_and_never_reacts_to_it_is_left_for_one_that_does() {
    use std::sync::Arc;

    use antiphon::{live::LiveConfig, providers::gemini::Gemini};
    use antiphon_testkit::{
        gemini::{Fault, Script, Server, Step},
        tone, voice_like,
    };

    for model in ["gemini-2.5-flash-native-audio", "gemini-3.1-flash-live-preview"] {
        let hangs = Fault::after("setupComplete", [Step::DelayMs(600_000)]);
        let server =
            Server::new(Script::connections([Script::auto().fault(hangs), Script::auto()]));
        let provider = Gemini::new().connector(server.connector());
        let builder = AgentSession::builder(Arc::new(provider)).limits(resumes());
        let session = builder.build().unwrap();
        let mut events = session.events();
        let config = LiveConfig::new().api_key("test").model(model);
        session.start(config, IdleConfig::OFF).await.unwrap();
        session.send_audio(voice_like(16_000, 1_500)).unwrap();
        tokio::time::sleep(MS).await;
        session.send_audio(tone(16_000, 0.0, 1_500)).unwrap();
        let is_answer = |kind: &EventKind| matches!(kind, EventKind::AgentMessage { .. });
        let events = until(&mut events, is_answer).await;
        assert_eq!(reactions(&events), [Some(OnStall::Resume)], "{model}");
        assert_eq!(server.connections(), 2, "{model}");
        session.shutdown(SECOND).await.unwrap();
    }
}
