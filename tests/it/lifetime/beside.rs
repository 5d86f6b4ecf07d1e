//! A planned change of connections: the next one is made beside the one that is used.

use std::sync::Arc;

use antiphon::{
    live::{LiveCommand, LiveError, LiveEvent},
    session::*,
    types::ToolDefinition,
};
use antiphon_testkit::{ConnectPlan, ScriptedProvider, full_capabilities, voice_like};
use tokio::{sync::Notify, time::Instant};

use super::*;

/// A session that was told that its connection ends in a minute. The next one is not made before the
/// notification comes.
async fn leaving(setup: Setup) -> (Rig, Arc<Notify>) {
    let mut rig = setup.start().await;
    rig.whole_turn("Hello", "Hi.").await;
    let answers = Arc::new(Notify::new());
    rig.provider.plan(ConnectPlan::Hang(answers.clone()));
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    rig.settle().await;
    assert_eq!(rig.provider.requests().len(), 2);
    (rig, answers)
}

fn gaps(events: &[EventKind]) -> Vec<u64> {
    let gap = |kind: &EventKind| match kind {
        EventKind::StateRestored { gap_ms, .. } => Some(*gap_ms),
        _ => None,
    };
    events.iter().filter_map(gap).collect()
}

#[tokio::test(start_paused = true)]
async fn the_old_connection_is_used_until_the_next_one_stands() {
    let (mut rig, answers) = leaving(Setup::new()).await;
    tokio::time::sleep(5 * SECOND).await;
    rig.session.send_audio(voice_like(16_000, 100).silenced()).unwrap();
    rig.settle().await;
    assert_eq!(names(&rig.far.drain()), ["append_audio"]);
    assert_eq!(rig.provider.open_connections(), 1);
    rig.now().await;
    answers.notify_one();
    let old = std::mem::replace(&mut rig.far, rig.provider.far_end().await);
    rig.session.send_audio(voice_like(16_000, 100).silenced()).unwrap();
    rig.settle().await;
    assert!(old.is_dropped());
    assert_eq!(names(&rig.far.drain()), ["append_audio"], "each frame goes up once");
    let events = rig.now().await;
    assert_eq!((gaps(&events), restored(&events)), (vec![0], vec![(Continuity::History, 0)]));
    assert_eq!(states(&events), [SessionState::Recovering, SessionState::Listening]);
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn one_that_was_not_told_what_was_said_meanwhile_is_made_anew() {
    let (mut rig, answers) = leaving(Setup::new()).await;
    rig.whole_turn("One more thing.", "Go on.").await;
    rig.now().await;
    answers.notify_one();
    let unused = rig.provider.far_end().await;
    rig.next_connection().await;
    assert!(unused.is_dropped());
    assert_eq!(rig.provider.requests()[2].history.len(), 4);
    assert_eq!(gaps(&rig.now().await), [0]);
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_conversation_is_not_left_for_one_that_refuses() {
    let refused = LiveError::Unauthorized("the key is not valid any more".into());
    let down = LiveError::Transport("down".into());
    for (error, asked_again) in [(refused, false), (down, true)] {
        let mut rig = start().await;
        rig.whole_turn("Hello", "Hi.").await;
        let told = Instant::now();
        rig.provider.plan(ConnectPlan::Refuse(error.clone()));
        rig.provider.plan(ConnectPlan::Refuse(error));
        rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
        rig.settle().await;
        rig.whole_turn("Are you there?", "Yes.").await;
        tokio::time::sleep(7 * SECOND).await;
        let requests = rig.provider.requests().len();
        assert_eq!(requests, if asked_again { 3 } else { 2 });
        if asked_again {
            rig.next_connection().await;
            assert!(told.elapsed() < 15 * SECOND, "{:?}", told.elapsed());
            assert_eq!(gaps(&rig.now().await), [0]);
        }
        rig.whole_turn("Still there?", "Yes.").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_being_made_keeps_the_connection() {
    let (mut rig, answers) = leaving(Setup::new()).await;
    rig.user_says("u2", "Wait").reply("r2").words("r2", "Waiting.").audio("r2", 100);
    rig.settle().await;
    answers.notify_one();
    rig.provider.far_end().await.dropped().await;
    assert_eq!(rig.provider.open_connections(), 1, "nothing is cut off");
    rig.done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    rig.next_connection().await;
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_meanwhile_leaves_nothing_open() {
    let (mut rig, answers) = leaving(Setup::new()).await;
    rig.session.stop();
    rig.end().await;
    answers.notify_one();
    rig.settle().await;
    assert_eq!(rig.provider.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_host_changes_meanwhile_reaches_the_next_connection() {
    for lost in [true, false] {
        let mut rig = start().await;
        rig.whole_turn("Hello", "Hi.").await;
        let answers = Arc::new(Notify::new());
        rig.provider.plan(ConnectPlan::Hang(answers.clone()));
        if lost {
            rig.far.fail(LiveError::Transport("reset".into()));
            tokio::time::sleep(SECOND).await;
        } else {
            rig.session.reconnect().unwrap();
            rig.settle().await;
        }
        assert_eq!(rig.provider.requests().len(), 2);
        rig.session.update_instructions("Do not talk about prices.").unwrap();
        rig.settle().await;
        answers.notify_one();
        rig.next_connection().await;
        rig.settle().await;
        let told = rig.far.drain_control();
        let is_told = |command: &LiveCommand| matches!(command, LiveCommand::UpdateInstructions(text) if text.contains("prices"));
        assert!(told.iter().any(is_told), "{told:#?}");
        rig.whole_turn("Still there?", "Yes.").await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_no_changes_is_made_anew_with_them() {
    let mut lesser = full_capabilities();
    (lesser.update_instructions, lesser.text_input) = (false, false);
    let second = ScriptedProvider::new(lesser);
    let fallback = Arc::new(second.clone());
    let setup = Setup::new().build(|builder| builder.fallback(fallback, |config| config));
    let mut rig = setup.start().await;
    let answers = Arc::new(Notify::new());
    rig.provider.plan(ConnectPlan::Refuse(LiveError::Transport("down".into())));
    second.plan(ConnectPlan::Hang(answers.clone()));
    rig.far.fail(LiveError::Transport("reset".into()));
    tokio::time::sleep(SECOND).await;
    rig.session.update_instructions("Do not talk about prices.").unwrap();
    rig.settle().await;
    answers.notify_one();
    second.far_end().await.dropped().await;
    rig.far = second.far_end().await;
    let request = second.requests().pop().unwrap();
    assert_eq!(request.config.instructions.as_deref(), Some("Do not talk about prices."));
    rig.whole_turn("Still there?", "Yes.").await;
}

#[tokio::test(start_paused = true)]
async fn tools_that_are_changed_meanwhile_reach_the_next_connection() {
    let mut rig = start().await;
    let answers = Arc::new(Notify::new());
    rig.provider.plan(ConnectPlan::Hang(answers.clone()));
    rig.far.fail(LiveError::Transport("reset".into()));
    tokio::time::sleep(SECOND).await;
    rig.session.update_tools(vec![ToolDefinition::new("late", "comes late")]).unwrap();
    rig.settle().await;
    answers.notify_one();
    rig.next_connection().await;
    rig.settle().await;
    let told = rig.far.drain_control();
    let is_told = |command: &LiveCommand| matches!(command, LiveCommand::UpdateTools(tools) if tools.iter().any(|tool| &*tool.name == "late"));
    assert!(told.iter().any(is_told), "{told:#?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_in_the_converter_at_a_change() {
    // The provider takes 16 kHz, the microphone gives 48.
    let mut rig = start().await;
    let samples = |commands: &[LiveCommand]| -> usize {
        let of = |command: &LiveCommand| match command {
            LiveCommand::AppendAudio(frame) => frame.samples(),
            _ => 0,
        };
        commands.iter().map(of).sum()
    };
    let mut heard = 0;
    for change in 0..4 {
        for _ in 0..25 {
            rig.session.send_audio(voice_like(48_000, 20).silenced()).unwrap();
            tokio::time::sleep(20 * MS).await;
        }
        rig.settle().await;
        heard += samples(&rig.far.drain());
        if change < 3 {
            rig.session.reconnect().unwrap();
            rig.next_connection().await;
            rig.settle().await;
        }
    }
    // But for what the last one still holds back: less than one frame.
    let said = 4 * 25 * 320;
    assert!((said - 320..=said).contains(&heard), "{heard} of {said}");
}
