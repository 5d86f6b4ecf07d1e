//! A user who spoke and is not answered: the provider is silent, or the connection that heard it is gone.

use antiphon::{
    audio::AudioFrame,
    live::{LiveCommand, LiveError, LiveEvent, TextUpdate},
    session::*,
};
use antiphon_testkit::voice_like;
use tokio::time::Instant;

use super::*;

fn stalls(events: &[EventKind]) -> Vec<Option<OnStall>> {
    let stall = |kind: &EventKind| match kind {
        EventKind::Stalled { reaction, .. } => Some(*reaction),
        _ => None,
    };
    events.iter().filter_map(stall).collect()
}

fn on_stall(setup: Setup, on_stall: OnStall) -> Setup {
    let mut limits = SessionLimits::default();
    limits.on_stall = on_stall;
    setup.build(|builder| builder.limits(limits))
}

fn audio(commands: &[LiveCommand]) -> Vec<u8> {
    let data = commands.iter().filter_map(|command| match command {
        LiveCommand::AppendAudio(frame) => Some(frame.data.to_vec()),
        _ => None,
    });
    data.flatten().collect()
}

impl Rig {
    /// The user speaks for so many tenths of a second; gives what went up.
    async fn speaks_for(&mut self, tenths: u32) -> Vec<u8> {
        for _ in 0..tenths {
            self.session.send_audio(voice_like(16_000, 100)).unwrap();
            tokio::time::sleep(100 * MS).await;
        }
        audio(&self.far.drain())
    }

    /// A second and a half of silence, as a microphone gives it.
    async fn is_silent(&mut self) {
        for _ in 0..15 {
            self.session.send_audio(voice_like(16_000, 100).silenced()).unwrap();
            tokio::time::sleep(100 * MS).await;
        }
    }

    fn starts(&self) -> &Self {
        self.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
    }

    fn stops(&self) -> &Self {
        self.emit(LiveEvent::SpeechStopped { audio_end_ms: None })
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_says_nothing_after_speech_has_stalled() {
    let mut rig = on_stall(Setup::new(), OnStall::Resume).start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.now().await;
    let spoke = Instant::now();
    rig.starts();
    let said = rig.speaks_for(20).await;
    rig.stops();
    rig.next_connection().await;
    assert!((11..=14).contains(&spoke.elapsed().as_secs()), "{:?}", spoke.elapsed());
    rig.settle().await;
    assert_eq!(stalls(&rig.now().await), [Some(OnStall::Resume)]);
    let again = audio(&rig.far.drain());
    assert!(again == said, "the next one hears it: {} of {} bytes", again.len(), said.len());
}

#[tokio::test(start_paused = true)]
async fn one_that_says_nothing_after_it_was_interrupted_has_stalled() {
    let mut rig =
        on_stall(Setup::able(|can| can.tells_speech = false), OnStall::Nudge).start().await;
    rig.user_says("u1", "Tell me").reply("r1").audio("r1", 5_000);
    rig.settle().await;
    rig.emit(LiveEvent::Interrupted { reply: Some("r1".into()) });
    rig.done_as("r1", antiphon::live::ReplyOutcome::Interrupted);
    rig.settle().await;
    rig.now().await;
    rig.far.drain();
    let events = rig.until(|kind| matches!(kind, EventKind::Stalled { .. })).await;
    assert_eq!(stalls(&events), [Some(OnStall::Nudge)]);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_says_that_the_user_speaks_their_voice_does() {
    for (tenths, stalled) in [(10, true), (2, false)] {
        let mut rig = Setup::able(|can| can.tells_speech = false).start().await;
        rig.speaks_for(tenths).await;
        tokio::time::sleep(30 * SECOND).await;
        let told = stalls(&rig.now().await);
        assert_eq!(told, vec![None; usize::from(stalled)], "{tenths} tenths of a second");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_a_noise_or_is_answered_stalls_nobody() {
    type Ends = (&'static str, fn(&mut Rig));
    let ends: [Ends; 3] = [
        ("there are no words", |rig| {
            rig.emit(heard("u1", TextUpdate::Final(Some(String::new()))));
        }),
        ("it is answered", |rig| {
            rig.says("r1", "Yes.", 10);
        }),
        ("its words come, and the answer", |rig| {
            rig.emit(heard("u1", TextUpdate::Final(Some("Hello".into()))));
            rig.says("r1", "Yes.", 10);
        }),
    ];
    for (what, end) in ends {
        let mut rig = start().await;
        rig.starts();
        rig.speaks_for(10).await;
        rig.stops();
        rig.settle().await;
        end(&mut rig);
        rig.settle().await;
        rig.speaker.play_all();
        tokio::time::sleep(30 * SECOND).await;
        assert_eq!(stalls(&rig.now().await), [], "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_that_was_heard_by_a_lost_connection_is_heard_by_the_next() {
    // Told by events or by the voice alone; in the middle of the sentence or after it.
    for (tells, over) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut rig = Setup::able(|can| can.tells_speech = tells).start().await;
        rig.emit(resumable("h1"));
        if tells {
            rig.starts();
        }
        let mut said = rig.speaks_for(20).await;
        if over {
            rig.is_silent().await;
            said.extend(audio(&rig.far.drain()));
            if tells {
                rig.stops();
            }
        }
        rig.settle().await;
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.next_connection().await;
        rig.settle().await;
        let again = audio(&rig.far.drain());
        assert!(again == said, "{tells} {over}: {} of {} bytes", again.len(), said.len());
        assert_eq!(restored(&rig.now().await), [(Continuity::Full, 0)]);
        // The next one answers as it would have.
        rig.says("r1", "Yes.", 10);
        rig.settle().await;
        rig.far.fail(LiveError::Transport("reset".into()));
        rig.next_connection().await;
        rig.settle().await;
        assert_eq!(audio(&rig.far.drain()).len(), 0, "it is answered");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_of_which_there_are_words_is_told_and_not_said_again() {
    let mut rig = start().await;
    rig.starts();
    rig.speaks_for(20).await;
    rig.stops().emit(heard("u1", TextUpdate::Final(Some("What time is it?".into()))));
    rig.settle().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.next_connection().await;
    rig.settle().await;
    let commands = rig.far.drain();
    assert_eq!(names(&commands), ["create_reply"], "{commands:#?}");
    assert_eq!(rig.provider.requests()[1].history.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_question_is_answered_before_its_connection_is_left() {
    let mut rig = Setup::able(|can| can.tells_speech = false).start().await;
    rig.emit(resumable("h1"));
    rig.speaks_for(20).await;
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    rig.is_silent().await;
    rig.is_silent().await;
    assert_eq!(rig.provider.requests().len(), 1, "the model is thinking");
    rig.says("r1", "Yes.", 10);
    rig.settle().await;
    rig.speaker.play_all();
    rig.emit(resumable("h2"));
    rig.is_silent().await;
    rig.is_silent().await;
    rig.next_connection().await;
    assert_eq!(restored(&rig.now().await), [(Continuity::Full, 0)]);
}

#[tokio::test(start_paused = true)]
async fn after_a_noise_a_moment_is_quiet_again() {
    let mut rig = start().await;
    let told = Instant::now();
    rig.starts().stops();
    rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
    rig.next_connection().await;
    assert!((5..=11).contains(&told.elapsed().as_secs()), "{:?}", told.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_no_handle_holds_is_said_again_to_who_continues_by_it() {
    for quiet in [false, true] {
        let setup = Setup::able(|can| {
            (can.tells_speech, can.handles_count_commands) = (false, true);
            can.close_before_resume = true;
        });
        let mut rig = setup.start().await;
        let frame = |value: i16| AudioFrame::from_pcm16(16_000, &[value; 320]);
        for value in 0..10 {
            rig.session.send_audio(frame(value)).unwrap();
        }
        rig.settle().await;
        rig.emit(LiveEvent::HandleHolds { commands: 4 }).emit(resumable("h1"));
        rig.settle().await;
        rig.far.drain();
        if quiet {
            tokio::time::sleep(5 * SECOND).await;
            rig.emit(LiveEvent::GoingAway { time_left: Some(60 * SECOND) });
        } else {
            rig.far.fail(LiveError::Transport("reset".into()));
        }
        rig.next_connection().await;
        rig.session.send_audio(frame(10)).unwrap();
        rig.settle().await;
        let first = if quiet { 10 } else { 4 };
        let expected: Vec<u8> = (first..11).flat_map(|value| frame(value).data.to_vec()).collect();
        assert!(audio(&rig.far.drain()) == expected, "{quiet}");
    }
}
