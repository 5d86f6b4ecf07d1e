//! Other providers in a provider's place.

use std::sync::Arc;

use antiphon::{
    live::{LiveConfig, LiveError, LiveEvent},
    session::*,
};
use antiphon_testkit::{ConnectPlan, ScriptedProvider, full_capabilities};
use tokio::sync::Notify;

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
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first-1"]);
    assert_eq!(restored(&events).last(), Some(&(Continuity::History, 0)));
    let requests = rig.provider.requests();
    assert_eq!(requests.len(), 2);
    assert!(requests[1].resume.is_none(), "what was said with the second is not in its handle");
    assert_eq!(requests[1].history.len(), 2);
}

/// A session that fell back on the second provider because the first does not answer, which was told
/// that its connection ends in a minute. Beside it: what has the first one answer.
async fn fallen_back() -> (Rig, ScriptedProvider, Arc<Notify>) {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    rig.whole_turn("Hello", "Hi.").await;
    let answers = Arc::new(Notify::new());
    rig.provider.plan(ConnectPlan::Hang(answers.clone()));
    rig.provider.plan(ConnectPlan::Hang(answers.clone()));
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = second.far_end().await;
    assert_eq!(changes(&rig.now().await), ["second-1"]);
    rig.emit(resumable("of the second"));
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    // One that was just connected with is not left at once.
    tokio::time::sleep(SECOND).await;
    assert_eq!(rig.provider.requests().len(), 3, "it is looked for");
    (rig, second, answers)
}

#[tokio::test(start_paused = true)]
async fn a_dead_provider_is_looked_for_while_the_conversation_goes_on() {
    let (mut rig, second, _) = fallen_back().await;
    tokio::time::sleep(5 * SECOND).await;
    rig.whole_turn("Are you there?", "Yes.").await;
    rig.emit(resumable("of the second again"));
    assert_eq!(second.requests().len(), 1, "the connection that works is kept");
    // Connecting may take fifteen seconds; only then is there nobody better.
    let mut events = rig.now().await;
    rig.far = second.far_end().await;
    events.extend(rig.now().await);
    assert_eq!(changes(&events), Vec::<String>::new());
    let gaps: Vec<_> = events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::StateRestored { restored, gap_ms, .. } => Some((*restored, *gap_ms)),
            _ => None,
        })
        .collect();
    assert_eq!(gaps, [(Continuity::Full, 0)], "by its own handle, without dead air: {events:#?}");
    assert!(second.requests()[1].resume.is_some());
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_back_has_the_conversation_without_a_gap() {
    let (mut rig, second, answers) = fallen_back().await;
    tokio::time::sleep(2 * SECOND).await;
    rig.now().await;
    answers.notify_one();
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first-1"]);
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert!(!states(&events).contains(&SessionState::Recovering), "{events:#?}");
    assert_eq!(second.open_connections(), 0);
    assert_eq!(rig.provider.requests()[2].history.len(), 2);
    rig.whole_turn("Back again?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_is_back_while_somebody_speaks_is_told_all_at_the_next_pause() {
    let (mut rig, second, answers) = fallen_back().await;
    let first = rig.provider.clone();
    rig.user_says("u2", "Wait").reply("r2").words("r2", "Waiting.").audio("r2", 100);
    rig.settle().await;
    answers.notify_one();
    let unused = first.far_end().await;
    unused.dropped().await;
    assert_eq!(second.open_connections(), 1, "nothing is cut off");
    rig.done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first-1"]);
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    let told = &first.requests()[3].history;
    assert_eq!(told.len(), 4, "with what was said meanwhile: {told:?}");
    rig.whole_turn("Back again?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_while_it_looks_for_its_provider_leaves_nothing_open() {
    let (mut rig, second, answers) = fallen_back().await;
    rig.session.stop();
    rig.end().await;
    answers.notify_one();
    rig.settle().await;
    assert_eq!((rig.provider.open_connections(), second.open_connections()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_time_that_is_left_bounds_how_long_a_provider_is_looked_for() {
    let (mut rig, second, _) = fallen_back().await;
    rig.emit(LiveEvent::GoingAway { time_left: Some(8 * SECOND) });
    rig.far = second.far_end().await;
    let events = rig.now().await;
    assert_eq!(restored(&events), [(Continuity::Full, 0)]);
    assert!(second.requests()[1].resume.is_some());
    rig.whole_turn("Still there?", "Yes.").await;
    // The connection that was lost is not waited for, nor the one that was looked for.
    assert_eq!(rig.provider.open_connections(), 0);
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

#[tokio::test(start_paused = true)]
async fn a_provider_that_could_not_be_reached_first_takes_over_from_one_that_dies_later() {
    let (setup, second, third) = setup();
    setup.provider.plan(down());
    let first = setup.provider.clone();
    let (session, _, config, idle, speaker) = setup.ready();
    let events = session.events();
    session.start(config, idle).await.unwrap();
    let far = second.far_end().await;
    let mut rig = Rig { provider: first, session, far, speaker, events };
    rig.whole_turn("Hello", "Hi.").await;
    for _ in 0..6 {
        second.plan(down());
        third.plan(down());
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    assert_eq!(changes(&rig.now().await), ["first-1"]);
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_back_to_its_provider_also_where_the_other_one_lasts_for_ever() {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.provider.plan(down());
    // It is still down when it is looked for first.
    rig.provider.plan(down());
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = second.far_end().await;
    rig.whole_turn("Are you there?", "Yes.").await;
    rig.now().await;
    let began = tokio::time::Instant::now();
    rig.next_connection().await;
    let after = began.elapsed().as_secs();
    assert!((8 * 60..=10 * 60).contains(&after), "after three minutes, and six more: {after}");
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first-1"]);
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert_eq!(rig.provider.requests()[3].history.len(), 4);
    rig.whole_turn("Back again?", "Yes.").await;
    tokio::time::sleep(3_600 * SECOND).await;
    assert_eq!(rig.provider.requests().len(), 4, "it is at home");
}

#[tokio::test(start_paused = true)]
async fn a_provider_whose_every_reply_fails_is_left_for_the_next_which_is_asked() {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    for number in 0..3 {
        let (item, reply) = (format!("u{number}"), format!("r{number}"));
        rig.user_says(&item, "Hello?").reply(&reply);
        rig.done_as(&reply, antiphon::live::ReplyOutcome::Failed);
        rig.settle().await;
    }
    rig.far = second.far_end().await;
    assert_eq!(changes(&rig.now().await), ["second-1"]);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
    rig.reply_to("r4", 1).words("r4", "Hello.").audio("r4", 10).done("r4");
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn failing_replies_between_losses_do_not_count_as_work() {
    let (setup, second, _) = setup();
    let mut rig = setup.start().await;
    for number in 0..2 {
        let reply = format!("r{number}");
        rig.user_says(&format!("u{number}"), "Hello?").reply(&reply);
        rig.done_as(&reply, antiphon::live::ReplyOutcome::Failed);
        rig.settle().await;
        rig.far.close(1011, "Internal error");
        rig.far = if number == 0 { rig.provider.far_end().await } else { second.far_end().await };
    }
    assert_eq!(changes(&rig.now().await), ["second-1"]);
}
