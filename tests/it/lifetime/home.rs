//! Who is talked with, and when it is gone back to whom the session would rather talk with.

use std::sync::Arc;

use antiphon::{
    live::{LiveCommand, LiveConfig, LiveError, ReplyOutcome},
    session::*,
};
use antiphon_testkit::{ConnectPlan, ScriptedProvider};

use super::*;

const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);

/// A session with another provider to fall back on.
fn setup() -> (Setup, ScriptedProvider) {
    let second = ScriptedProvider::default();
    let with = Arc::new(second.clone());
    let setup = Setup::new()
        .config(|config| config.model("first"))
        .build(|builder| builder.fallback(with, |config: LiveConfig| config.model("second")));
    (setup, second)
}

fn down() -> ConnectPlan {
    ConnectPlan::Refuse(LiveError::Transport("down".into()))
}

fn changes(events: &[EventKind]) -> Vec<String> {
    let change = |kind: &EventKind| match kind {
        EventKind::ProviderChanged { model, .. } => Some(model.to_string()),
        _ => None,
    };
    events.iter().filter_map(change).collect()
}

impl Rig {
    /// The request that the provider was asked for an answer by.
    async fn asked(&mut self) -> u64 {
        let commands = self.commands().await;
        let request = commands.iter().find_map(|command| match command {
            LiveCommand::CreateReply { request } => Some(*request),
            _ => None,
        });
        request.unwrap_or_else(|| panic!("{commands:?}"))
    }
}

#[tokio::test(start_paused = true)]
async fn who_refused_at_the_start_is_not_tried_again_when_its_fallback_dies() {
    let (setup, second) = setup();
    setup.provider.plan(ConnectPlan::Refuse(LiveError::Unauthorized("no key".into())));
    let (session, provider, config, idle, speaker) = setup.ready();
    let events = session.events();
    session.start(config, idle).await.unwrap();
    let far = second.far_end().await;
    let mut rig = Rig { provider, session, far, speaker, events };
    rig.whole_turn("Hello", "Hi.").await;
    for _ in 0..10 {
        second.plan(down());
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.end().await;
    assert_eq!(rig.provider.requests().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_without_an_end_is_left_once_the_sessions_own_provider_is_back() {
    let (setup, second) = setup();
    let mut rig = setup.start().await;
    rig.whole_turn("Hello", "Hi.").await;
    for _ in 0..3 {
        rig.provider.plan(down());
    }
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = second.far_end().await;
    assert_eq!(changes(&rig.now().await), ["second"]);
    // It is down for long: it is looked for ever more seldom, and the conversation goes on.
    let looks = |rig: &Rig| rig.provider.requests().len() - 2;
    for (minutes, looked) in [(2, 0), (2, 1), (4, 1), (2, 2)] {
        tokio::time::sleep(minutes * MINUTE).await;
        assert_eq!(looks(&rig), looked);
    }
    rig.whole_turn("Still there?", "Yes.").await;
    assert_eq!(changes(&rig.now().await), Vec::<String>::new());
    assert_eq!(second.requests().len(), 1);
    // It is back, but nobody is cut off for it.
    tokio::time::sleep(10 * MINUTE + 50 * SECOND).await;
    rig.user_says("u3", "Wait").reply("r3").words("r3", "Waiting.").audio("r3", 100);
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(looks(&rig), 2);
    rig.done("r3");
    rig.settle().await;
    rig.speaker.play_all();
    rig.next_connection().await;
    let events = rig.now().await;
    assert_eq!(changes(&events), ["first"]);
    assert_eq!(restored(&events), [(Continuity::History, 0)]);
    assert!(!states(&events).contains(&SessionState::Recovering), "without a gap");
    assert_eq!(second.open_connections(), 0);
    rig.whole_turn("Back again?", "Yes.").await;
    tokio::time::sleep(60 * MINUTE).await;
    assert_eq!(looks(&rig), 3, "home is home");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_fails_each_reply_and_hangs_up_is_left_and_the_next_one_answers() {
    let (setup, second) = setup();
    let mut rig = setup.start().await;
    rig.user_says("u1", "Hello?").reply("r1").done_as("r1", ReplyOutcome::Failed);
    rig.far.close(1011, "server error");
    rig.next_connection().await;
    let asked = rig.asked().await;
    rig.reply_to("r2", asked).done_as("r2", ReplyOutcome::Failed);
    rig.far.close(1011, "server error");
    rig.far = second.far_end().await;
    assert_eq!(changes(&rig.now().await), ["second"]);
    let asked = rig.asked().await;
    rig.reply_to("r3", asked).words("r3", "Hi.").audio("r3", 10).done("r3");
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_whose_replies_all_fail_is_left_though_its_connection_stands() {
    let (setup, second) = setup();
    let mut rig = setup.start().await;
    for turn in ["1", "2"] {
        rig.user_says(turn, "Hello?").reply(turn).done_as(turn, ReplyOutcome::Failed);
        rig.until(is_turn_finished).await;
    }
    // One that works is no reason to go.
    rig.whole_turn("Hello", "Hi.").await;
    for turn in ["3", "4"] {
        rig.user_says(turn, "Hello?").reply(turn).done_as(turn, ReplyOutcome::Failed);
        rig.until(is_turn_finished).await;
    }
    assert_eq!(second.requests().len(), 0);
    rig.user_says("5", "Hello?").reply("5").done_as("5", ReplyOutcome::Failed);
    rig.far = second.far_end().await;
    assert_eq!(changes(&rig.now().await), ["second"]);
    rig.asked().await;
}
