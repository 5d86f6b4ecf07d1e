//! Who has the floor: when the next thing may be said to the agent.

use std::{collections::HashSet, sync::Arc, time::Duration};

use antiphon::session::{EventKind, HostPromptKind, HostPromptStage};
use tokio::time::Instant;

/// Speech that became no message within this time was none.
const TRANSCRIPT_WITHIN: Duration = Duration::from_secs(3);
/// What the agent was asked to say is taken as said after this time.
const SPOKEN_WITHIN: Duration = Duration::from_secs(10);
/// A turn in which nothing at all happens for so long has no answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Follows the events of a session and knows whether the agent has finished. Pure: the time comes
/// in.
#[derive(Debug)]
pub struct Floor {
    user_speaking: bool,
    /// Since when speech waits for its transcript.
    transcribing: Option<Instant>,
    /// A message was given and its turn is not finished.
    turn_open: bool,
    playing: bool,
    running: HashSet<Arc<str>>,
    read_back: Option<ReadBack>,
    /// The host had the agent say something: its sound, its words, and since when.
    announced: Option<Announcement>,
    answered: bool,
    reminded: bool,
    last_event: Instant,
}

/// How far a question of the session's is.
#[derive(Debug, PartialEq)]
enum ReadBack {
    Asked(Instant),
    Playing,
    Heard,
}

#[derive(Debug)]
struct Announcement {
    at: Instant,
    sound: bool,
    words: bool,
}

impl Floor {
    /// Nobody speaks.
    pub fn new(now: Instant) -> Self {
        Self {
            user_speaking: false,
            transcribing: None,
            turn_open: false,
            playing: false,
            running: HashSet::new(),
            read_back: None,
            announced: None,
            answered: false,
            reminded: false,
            last_event: now,
        }
    }

    /// Something is about to be said to the agent.
    pub fn give(&mut self, now: Instant) {
        self.answered = false;
        self.last_event = now;
    }

    /// A text was sent: a turn without speech.
    pub fn give_text(&mut self, now: Instant) {
        self.give(now);
        self.turn_open = true;
    }

    /// The agent was asked to say something.
    pub fn announce(&mut self, now: Instant) {
        self.announced = Some(Announcement { at: now, sound: false, words: false });
    }

    /// Whether the idle reminder was sent.
    pub fn reminded(&self) -> bool {
        self.reminded
    }

    /// Something happened.
    pub fn event(&mut self, event: &EventKind, now: Instant) {
        self.last_event = now;
        match event {
            EventKind::SpeechStarted => self.user_speaking = true,
            EventKind::SpeechStopped => {
                self.user_speaking = false;
                self.transcribing = Some(now);
            }
            EventKind::UserMessage { .. } => {
                self.user_speaking = false;
                self.transcribing = None;
                self.turn_open = true;
                self.read_back = None;
            }
            EventKind::PlaybackStarted => {
                self.playing = true;
                if matches!(self.read_back, Some(ReadBack::Asked(_))) {
                    self.read_back = Some(ReadBack::Playing);
                }
                if let Some(announced) = &mut self.announced {
                    announced.sound = true;
                }
            }
            EventKind::PlaybackFinished => {
                self.playing = false;
                if self.read_back == Some(ReadBack::Playing) {
                    self.read_back = Some(ReadBack::Heard);
                    self.answered = true;
                }
            }
            EventKind::AgentMessage { .. } => {
                if let Some(announced) = &mut self.announced {
                    announced.words = true;
                }
            }
            EventKind::ToolConfirm { .. } => self.read_back = Some(ReadBack::Asked(now)),
            EventKind::ToolCall { id, .. } => {
                self.running.insert(id.clone());
                self.read_back = None;
            }
            EventKind::ToolResult { id, .. } => {
                self.running.remove(id);
            }
            EventKind::HostPrompt(prompt)
                if prompt.prompt == HostPromptKind::IdleReminder
                    && prompt.stage == HostPromptStage::Sent =>
            {
                self.reminded = true;
                self.announce(now);
            }
            EventKind::TurnFinished { .. } => {
                self.turn_open = false;
                self.answered = true;
            }
            _ => {}
        }
        if self.announced.as_ref().is_some_and(|announced| announced.sound && announced.words) {
            self.announced = None;
        }
    }

    /// Nobody speaks and nothing is under way.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let within = |since: Instant, limit: Duration| now < since + limit;
        if self.user_speaking || self.playing || !self.running.is_empty() {
            return false;
        }
        if self.transcribing.is_some_and(|since| within(since, TRANSCRIPT_WITHIN)) {
            return false;
        }
        if self.announced.as_ref().is_some_and(|announced| within(announced.at, SPOKEN_WITHIN)) {
            return false;
        }
        match &self.read_back {
            // The user is asked, and the agent waits for the answer.
            Some(ReadBack::Heard) => true,
            Some(ReadBack::Asked(since)) => !within(*since, SPOKEN_WITHIN),
            Some(ReadBack::Playing) => false,
            None => !self.turn_open || !within(self.last_event, ANSWER_WITHIN),
        }
    }

    /// Whether what was given has its answer, and that was heard.
    pub fn is_answered(&self, now: Instant) -> bool {
        self.answered && self.is_quiet(now)
    }

    /// For how long nothing happened.
    pub fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_event)
    }
}

#[cfg(test)]
mod tests {
    use antiphon::types::JsonObject;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn message() -> EventKind {
        EventKind::UserMessage { text: "hello".into() }
    }

    fn finished() -> EventKind {
        EventKind::TurnFinished { latency_ms: None }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_over_when_turn_and_playback_are() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        floor.give(now);
        for event in [EventKind::SpeechStarted, EventKind::SpeechStopped, message()] {
            floor.event(&event, now);
            assert!(!floor.is_answered(now));
        }
        floor.event(&EventKind::PlaybackStarted, now);
        floor.event(&EventKind::PlaybackFinished, now);
        assert!(!floor.is_answered(now));
        floor.event(&finished(), now);
        assert!(floor.is_answered(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_question_reopens_the_floor() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        floor.give(now);
        floor.event(&message(), now);
        floor.event(&finished(), now);
        floor.event(&EventKind::SpeechStarted, now);
        assert!(!floor.is_answered(now));
        floor.event(&EventKind::SpeechStopped, now);
        assert!(!floor.is_answered(now));
        assert!(floor.is_answered(now + TRANSCRIPT_WITHIN), "a cough is no question");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_of_the_agents_is_answered_once_it_was_heard() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        floor.give(now);
        floor.event(&message(), now);
        let confirm = EventKind::ToolConfirm {
            id: "1".into(),
            name: "send_money".into(),
            read_back: "Send 5 euros to Alice?".into(),
        };
        floor.event(&confirm, now);
        assert!(!floor.is_quiet(now + 1_000 * MS));
        floor.event(&EventKind::PlaybackStarted, now);
        assert!(!floor.is_quiet(now));
        floor.event(&EventKind::PlaybackFinished, now);
        assert!(floor.is_answered(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_tool_keeps_the_floor() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        let call =
            EventKind::ToolCall { id: "1".into(), name: "t".into(), args: JsonObject::new() };
        floor.event(&call, now);
        assert!(!floor.is_quiet(now + 100_000 * MS));
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_is_waited_for_but_not_for_ever() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        floor.announce(now);
        assert!(!floor.is_quiet(now));
        assert!(floor.is_quiet(now + SPOKEN_WITHIN));
        floor.event(&EventKind::PlaybackStarted, now);
        floor.event(&EventKind::PlaybackFinished, now);
        assert!(!floor.is_quiet(now), "the chime was heard, the words were not");
        let words = EventKind::AgentMessage {
            text: "Done.".into(),
            interrupted: false,
            generated: None,
            heard: None,
        };
        floor.event(&words, now);
        assert!(floor.is_quiet(now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_in_which_nothing_happens_is_given_up() {
        let now = Instant::now();
        let mut floor = Floor::new(now);
        floor.give_text(now);
        assert!(!floor.is_quiet(now + 29_000 * MS));
        assert!(floor.is_quiet(now + ANSWER_WITHIN));
        assert!(!floor.is_answered(now + ANSWER_WITHIN));
    }
}
