//! Other providers in a provider's place.

use std::sync::Arc;

use antiphon::{
    live::{LiveConfig, LiveError},
    session::*,
};
use antiphon_testkit::{ConnectPlan, ScriptedProvider, full_capabilities};

use super::*;

/// A session with two more providers to fall back on.
fn setup() -> (Setup, ScriptedProvider, ScriptedProvider) {
    let (second, third) = (ScriptedProvider::default(), ScriptedProvider::default());
    let (to_second, to_third) = (Arc::new(second.clone()), Arc::new(third.clone()));
    let setup = Setup::new()
        .config(|mut config| {
            config.options.insert("dialect".into(), "azure".into());
            config.options.insert("temperature".into(), 0.5.into());
            config.model("first-1").voice("marin").instructions("Be kind.")
        })
        .build(|builder| {
            builder
                .fallback(to_second, |config: LiveConfig| config.model("second-1"))
                .fallback(to_third, |config| config)
        });
    (setup, second, third)
}

fn down() -> ConnectPlan {
    ConnectPlan::Refuse(LiveError::Transport("down".into()))
}

fn changes(events: &[EventKind]) -> Vec<String> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::ProviderChanged { model, .. } => Some(model.to_string()),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_failed_connect_moves_the_conversation_to_the_next_with_its_history() {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.provider.plan(down());
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = second.far_end().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["second-1"]);
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    let request = &second.requests()[0];
    assert_eq!((request.epoch, request.history.len()), (3, 2));
    assert_eq!(request.config.instructions.as_deref(), Some("Be kind."));
    assert_eq!((request.config.model.as_deref(), &request.config.voice), (Some("second-1"), &None));
    let options: Vec<_> = request.config.options.keys().collect();
    assert_eq!(options, ["temperature"], "the dialect is another provider's");
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_provider_is_left_at_once_and_is_back_on_the_next_rotation() {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    rig.emit(resumable("of the first"));
    rig.whole_turn("Hello", "Hi.").await;
    rig.far.close(1008, "your account is closed");
    rig.far = second.far_end().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["second-1"]);
    assert!(second.requests()[0].resume.is_none(), "a handle is its provider's");
    // Lost again, it does not ask the dead one.
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = second.far_end().await;
    rig.emit(antiphon::live::LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first-1"]);
    assert_eq!(restored(&events).last(), Some(&(Continuity::History, 0)));
    let requests = rig.provider.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].resume.is_none(), "what was said with the second is not in its handle");
    assert_eq!(requests[1].history.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_first_connection_falls_back_too_and_all_failing_says_why_the_first_did() {
    let (setup, second, third) = setup();
    setup.provider.plan(down());
    second.plan(down());
    let (session, _, config, idle, _) = setup.ready();
    let mut events = session.events();
    session.start(config.clone(), idle).await.unwrap();
    assert_eq!(third.requests().len(), 1);
    let begun = until(&mut events, |kind| matches!(kind, EventKind::SessionStarted { .. })).await;
    assert!(matches!(
        begun.last(),
        Some(EventKind::SessionStarted { model, .. }) if &**model == "scripted-1"
    ));
    session.shutdown(SECOND).await.unwrap();

    let (setup, second, third) = super::failover::setup();
    setup.provider.plan(ConnectPlan::Refuse(LiveError::Unauthorized("no key".into())));
    second.plan(down());
    third.plan(down());
    let (session, _, config, idle, _) = setup.ready();
    let error = session.start(config, idle).await.unwrap_err();
    assert!(matches!(error, StartError::Connect(LiveError::Unauthorized(_))), "{error}");
}

#[tokio::test(start_paused = true)]
async fn rounds_end_and_the_cause_is_kept() {
    let (setup, second, third) = setup();
    let mut rig = setup.start().await;
    for provider in [&rig.provider, &second, &third] {
        for _ in 0..5 {
            provider.plan(down());
        }
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    let (_, reason) = rig.end().await;
    assert!(
        matches!(&reason, EndReason::Failed { message } if message.contains("down")),
        "{reason:?}"
    );
    assert_eq!((rig.provider.requests().len(), third.requests().len()), (6, 5));
}

#[tokio::test(start_paused = true)]
async fn a_fallback_that_cannot_do_what_is_needed_is_refused_before_anything_is_sent() {
    let mut capabilities = full_capabilities();
    capabilities.tools = false;
    let deaf = Arc::new(ScriptedProvider::new(capabilities));
    let (tool, _) =
        antiphon_testkit::LatchedTool::open("note", antiphon_testkit::ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| builder.tool(tool).fallback(deaf, |config| config));
    let (session, provider, config, idle, _) = setup.ready();
    let error = session.start(config, idle).await.unwrap_err();
    assert!(
        matches!(&error, StartError::InvalidConfig(what) if what.contains("fallback")),
        "{error}"
    );
    assert_eq!(provider.requests().len(), 0);
}
