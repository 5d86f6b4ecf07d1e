//! What is said to the agent, and when.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use antiphon::{session::EventKind, types::AudioFrame};
use tokio::time::Instant;

use super::floor::Floor;

/// The rate of the user's voice. Files are brought to it when they are read.
pub const INPUT_RATE_HZ: u32 = 16_000;
/// One frame of the user's voice; [`Script::tick`] is to be called this often.
pub const FRAME: Duration = Duration::from_millis(20);

const FRAME_SAMPLES: usize = INPUT_RATE_HZ as usize / 50;
/// How long the agent's detector may take to notice the end of a file.
const NOTICE: Duration = Duration::from_millis(300);
/// Without any answer, the next thing is said after this long.
const NO_ANSWER: Duration = Duration::from_secs(3);
/// Timers that are due so soon are waited for at the end.
const TIMERS_WITHIN: Duration = Duration::from_secs(10);

/// One thing to say.
#[derive(Clone, Debug)]
pub enum Item {
    /// Spoken.
    Speech(Speech),
    /// Written.
    Text(String),
    /// From here on the microphone.
    Microphone,
}

/// A spoken file.
#[derive(Clone, Debug)]
pub struct Speech {
    /// The file's name, for notes.
    pub name: String,
    /// Samples at [`INPUT_RATE_HZ`].
    pub samples: Arc<[i16]>,
}

/// A file that is spoken over an answer.
#[derive(Clone, Debug)]
pub struct BargeIn {
    /// What is said.
    pub speech: Speech,
    /// How long after the answer's first sound.
    pub after: Duration,
}

/// What is to be done now.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Send this audio.
    Audio(AudioFrame),
    /// Send this text.
    Text(String),
    /// By hand: the user begins.
    ActivityStart,
    /// By hand: the user stops.
    ActivityEnd,
    /// Tell the person at the screen.
    Note(String),
    /// All is said and answered: end the session.
    Finish,
}

/// What ends the session once all is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The last answer.
    Answered,
    /// The idle reminder, once it was heard.
    Reminded,
    /// Not this side: the session's own idle time.
    Idle,
}

/// Says one thing after the other. Pure: the time comes in.
#[derive(Debug)]
pub struct Script {
    items: VecDeque<Item>,
    barge_ins: VecDeque<BargeIn>,
    /// When the first of `barge_ins` begins, once its answer began.
    barge_at: Option<Instant>,
    by_hand: bool,
    ending: Ending,
    /// Anything is spoken, so that silence is to be heard in between.
    audible: bool,
    phase: Phase,
    silence: AudioFrame,
}

#[derive(Debug)]
enum Phase {
    Ready,
    Speaking { speech: Speech, at: usize },
    Waiting { name: String, since: Instant },
    Microphone,
    Ending { since: Instant },
    Done,
}

impl Script {
    /// A script. `by_hand`: the user's turns are marked instead of heard.
    pub fn new(items: Vec<Item>, barge_ins: Vec<BargeIn>, by_hand: bool, ending: Ending) -> Self {
        let audible =
            !barge_ins.is_empty() || items.iter().any(|item| matches!(item, Item::Speech(_)));
        Self {
            items: items.into(),
            barge_ins: barge_ins.into(),
            barge_at: None,
            by_hand,
            ending,
            audible,
            phase: Phase::Ready,
            silence: AudioFrame::from_pcm16(INPUT_RATE_HZ, &[0; FRAME_SAMPLES]),
        }
    }

    /// Whether the microphone is to be heard now.
    pub fn listens(&self) -> bool {
        matches!(self.phase, Phase::Microphone)
    }

    /// Barge-ins for which there was no answer.
    pub fn unused_barge_ins(&self) -> usize {
        self.barge_ins.len()
    }

    /// Something happened in the session.
    pub fn event(&mut self, event: &EventKind, now: Instant) {
        if !matches!(event, EventKind::PlaybackStarted) || self.barge_at.is_some() {
            return;
        }
        if !matches!(self.phase, Phase::Waiting { .. } | Phase::Speaking { .. }) {
            return;
        }
        if let Some(barge_in) = self.barge_ins.front() {
            self.barge_at = Some(now + barge_in.after);
        }
    }

    /// A frame's time has passed. `next_timer`: when the next timer is due.
    pub fn tick(
        &mut self,
        floor: &mut Floor,
        next_timer: Option<Instant>,
        now: Instant,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        self.advance(floor, next_timer, now, &mut actions);
        if let Phase::Speaking { speech, at } = &mut self.phase {
            if *at == 0 && self.by_hand {
                actions.push(Action::ActivityStart);
            }
            let end = (*at + FRAME_SAMPLES).min(speech.samples.len());
            let mut frame = speech.samples[*at..end].to_vec();
            frame.resize(FRAME_SAMPLES, 0);
            *at = end;
            actions.push(Action::Audio(AudioFrame::from_pcm16(INPUT_RATE_HZ, &frame)));
            if end == speech.samples.len() {
                if self.by_hand {
                    actions.push(Action::ActivityEnd);
                }
                let name = std::mem::take(&mut speech.name);
                self.phase = Phase::Waiting { name, since: now };
            }
        } else if self.audible && !self.by_hand && !self.listens() {
            // A microphone never stops.
            actions.push(Action::Audio(self.silence.clone()));
        }
        actions
    }

    /// Moves on to the next thing, if it is time.
    fn advance(
        &mut self,
        floor: &mut Floor,
        next_timer: Option<Instant>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if let Phase::Waiting { name, since } = &self.phase {
            if let Some(at) = self.barge_at {
                if now >= at
                    && let Some(barge_in) = self.barge_ins.pop_front()
                {
                    self.barge_at = None;
                    floor.give(now);
                    self.phase = Phase::Speaking { speech: barge_in.speech, at: 0 };
                }
                return;
            }
            let waited = now.saturating_duration_since(*since);
            if waited >= NOTICE && floor.is_answered(now) {
                self.phase = Phase::Ready;
            } else if waited >= NO_ANSWER
                && floor.is_quiet(now)
                && floor.quiet_for(now) >= NO_ANSWER
            {
                actions.push(Action::Note(format!("no answer to {name}")));
                self.phase = Phase::Ready;
            }
        }
        if matches!(self.phase, Phase::Ready) {
            self.phase = match self.items.pop_front() {
                Some(Item::Speech(speech)) => {
                    floor.give(now);
                    Phase::Speaking { speech, at: 0 }
                }
                Some(Item::Text(text)) => {
                    floor.give_text(now);
                    let name = format!("{text:?}");
                    actions.push(Action::Text(text));
                    Phase::Waiting { name, since: now }
                }
                Some(Item::Microphone) => Phase::Microphone,
                None => Phase::Ending { since: now },
            };
        }
        if let Phase::Ending { since } = self.phase
            && self.may_end(floor, next_timer, since, now)
        {
            actions.push(Action::Finish);
            self.phase = Phase::Done;
        }
    }

    fn may_end(
        &self,
        floor: &Floor,
        next_timer: Option<Instant>,
        since: Instant,
        now: Instant,
    ) -> bool {
        let ended = match self.ending {
            Ending::Answered => true,
            Ending::Reminded => floor.reminded(),
            Ending::Idle => false,
        };
        ended
            && now.saturating_duration_since(since) >= NOTICE
            && floor.is_quiet(now)
            && next_timer.is_none_or(|due| due > since + TIMERS_WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stage {
        script: Script,
        floor: Floor,
        now: Instant,
        next_timer: Option<Instant>,
    }

    impl Stage {
        fn new(script: Script) -> Self {
            let now = Instant::now();
            Self { script, floor: Floor::new(now), now, next_timer: None }
        }

        fn tick(&mut self) -> Vec<Action> {
            self.now += FRAME;
            self.script.tick(&mut self.floor, self.next_timer, self.now)
        }

        /// The actions that are no audio, over a span of time.
        fn run(&mut self, span: Duration) -> Vec<Action> {
            (0..span.as_millis() / FRAME.as_millis())
                .flat_map(|_| self.tick())
                .filter(|action| !matches!(action, Action::Audio(_)))
                .collect()
        }

        fn event(&mut self, event: EventKind) {
            self.floor.event(&event, self.now);
            self.script.event(&event, self.now);
        }

        fn answer(&mut self) {
            self.event(EventKind::UserMessage { text: "x".into() });
            self.event(EventKind::PlaybackStarted);
            self.event(EventKind::PlaybackFinished);
            self.event(EventKind::TurnFinished { latency_ms: None });
        }
    }

    fn speech(name: &str, frames: usize) -> Speech {
        Speech { name: name.into(), samples: vec![7; FRAME_SAMPLES * frames - 5].into() }
    }

    fn text(text: &str) -> Item {
        Item::Text(text.into())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn things_are_said_one_after_the_other_and_then_it_ends() {
        let items = vec![Item::Speech(speech("a.wav", 50)), text("and now?")];
        let mut stage = Stage::new(Script::new(items, vec![], false, Ending::Answered));
        assert!(stage.run(2 * SECOND).is_empty());
        stage.answer();
        assert_eq!(stage.run(SECOND), [Action::Text("and now?".into())]);
        stage.answer();
        assert_eq!(stage.run(SECOND), [Action::Finish]);
        assert_eq!(stage.run(5 * SECOND), []);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_follows_speech_in_whole_frames() {
        let script =
            Script::new(vec![Item::Speech(speech("a", 2))], vec![], false, Ending::Answered);
        let mut stage = Stage::new(script);
        let frames: Vec<AudioFrame> = (0..4)
            .flat_map(|_| stage.tick())
            .filter_map(|action| match action {
                Action::Audio(frame) => Some(frame),
                _ => None,
            })
            .collect();
        assert_eq!(frames.len(), 4);
        assert!(frames.iter().all(|frame| frame.samples() == FRAME_SAMPLES));
        assert!(frames[1].data.iter().any(|byte| *byte != 0));
        assert!(frames[2..].iter().all(|frame| frame.data.iter().all(|byte| *byte == 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_answer_it_goes_on_after_a_while() {
        let items = vec![Item::Speech(speech("noise.wav", 5)), text("hello")];
        let mut stage = Stage::new(Script::new(items, vec![], false, Ending::Answered));
        assert!(stage.run(3 * SECOND).is_empty());
        assert_eq!(
            stage.run(SECOND),
            [Action::Note("no answer to noise.wav".into()), Action::Text("hello".into())]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_barge_in_comes_after_the_first_sound_of_the_answer() {
        let barge_in = BargeIn { speech: speech("stop.wav", 5), after: 400 * (SECOND / 1_000) };
        let script = Script::new(vec![text("tell me")], vec![barge_in], true, Ending::Answered);
        let mut stage = Stage::new(script);
        stage.run(SECOND);
        stage.event(EventKind::UserMessage { text: "tell me".into() });
        stage.event(EventKind::PlaybackStarted);
        assert_eq!(stage.run(SECOND / 1_000 * 380), []);
        assert_eq!(stage.run(SECOND), [Action::ActivityStart, Action::ActivityEnd]);
        stage.event(EventKind::PlaybackFinished);
        stage.event(EventKind::TurnFinished { latency_ms: None });
        stage.answer();
        assert_eq!(stage.run(SECOND), [Action::Finish]);
        assert_eq!(stage.script.unused_barge_ins(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn turns_by_hand_are_marked_and_silence_is_not_sent() {
        let script =
            Script::new(vec![Item::Speech(speech("a", 3))], vec![], true, Ending::Answered);
        let mut stage = Stage::new(script);
        let all: Vec<Action> = (0..10).flat_map(|_| stage.tick()).collect();
        assert_eq!(all.len(), 5);
        assert_eq!(all[0], Action::ActivityStart);
        assert_eq!(all[4], Action::ActivityEnd);
    }

    #[tokio::test(start_paused = true)]
    async fn timers_that_are_due_soon_are_waited_for() {
        let mut stage =
            Stage::new(Script::new(vec![text("timer")], vec![], false, Ending::Answered));
        stage.run(SECOND);
        stage.next_timer = Some(stage.now + 5 * SECOND);
        stage.answer();
        assert_eq!(stage.run(4 * SECOND), []);
        stage.next_timer = None;
        stage.floor.announce(stage.now);
        assert_eq!(stage.run(SECOND), []);
        stage.event(EventKind::PlaybackStarted);
        stage.event(EventKind::AgentMessage {
            text: "Done.".into(),
            interrupted: false,
            generated: None,
            heard: None,
        });
        stage.event(EventKind::PlaybackFinished);
        assert_eq!(stage.run(SECOND), [Action::Finish]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_for_tomorrow_is_not_waited_for() {
        let mut stage =
            Stage::new(Script::new(vec![text("timer")], vec![], false, Ending::Answered));
        stage.run(SECOND);
        stage.next_timer = Some(stage.now + 3_600 * SECOND);
        stage.answer();
        assert_eq!(stage.run(SECOND), [Action::Finish]);
    }

    #[tokio::test(start_paused = true)]
    async fn with_an_idle_stop_it_never_ends_by_itself() {
        let mut stage = Stage::new(Script::new(vec![text("hi")], vec![], false, Ending::Idle));
        stage.run(SECOND);
        stage.answer();
        assert_eq!(stage.run(100 * SECOND), []);
    }
}
