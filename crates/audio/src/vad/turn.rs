//! When a turn begins and ends.

use std::{fmt, time::Duration};

use antiphon_types::{AudioFormat, Sensitivity};

use super::SpeechDetector;
use crate::Framer;

/// How [`TurnDetector`] decides. Make one with [`TurnConfig::new`] or [`Default`] and change what
/// you need.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TurnConfig {
    /// Speech begins with scores of at least this, 0 to 1.
    pub start_threshold: f32,
    /// Once begun, it goes on with scores of at least this; not above `start_threshold`.
    pub end_threshold: f32,
    /// Speech shorter than this is no turn. Gaps of up to 50 ms within it are allowed, but do not
    /// count.
    pub min_speech: Duration,
    /// How much from before the speech belongs to the turn.
    pub prefix_padding: Duration,
    /// Silence after which the turn is over.
    pub silence: Duration,
}

impl TurnConfig {
    /// How readily a turn begins (medium: a score of 0.5 for 96 ms) and ends (medium: 600 ms of
    /// silence); 300 ms of padding.
    pub fn new(start: Sensitivity, end: Sensitivity) -> Self {
        let (start_threshold, min_speech_ms) = match start {
            Sensitivity::Low => (0.7, 160),
            Sensitivity::Medium => (0.5, 96),
            Sensitivity::High => (0.4, 48),
        };
        // Detectors give noise and silence up to 0.35: an end threshold in there would never end.
        let (end_threshold, silence_ms) = match end {
            Sensitivity::Low => (0.35, 900),
            Sensitivity::Medium => (0.4, 600),
            Sensitivity::High => (0.5, 400),
        };
        Self {
            start_threshold,
            end_threshold: f32::min(end_threshold, start_threshold),
            min_speech: Duration::from_millis(min_speech_ms),
            prefix_padding: Duration::from_millis(300),
            silence: Duration::from_millis(silence_ms),
        }
    }
}

impl Default for TurnConfig {
    fn default() -> Self {
        Self::new(Sensitivity::Medium, Sensitivity::Medium)
    }
}

/// What [`TurnDetector`] found. Positions are samples since the stream began, and never go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnEvent {
    /// Somebody began to speak.
    Started {
        /// Where the turn's audio begins: the speech less the padding, and not within the turn
        /// before.
        at_sample: u64,
    },
    /// They fell silent, or the stream ended.
    Stopped {
        /// Just after the last speech; the silence since then is not counted.
        at_sample: u64,
    },
}

/// Finds turns in a stream of samples. `Started` and `Stopped` alternate, `Started` first; the
/// sizes of the chunks make no difference. A frame's score counts once the frame is complete.
///
/// ```
/// use antiphon_audio::{EarshotDetector, TurnConfig, TurnDetector, TurnEvent};
///
/// let mut turns = TurnDetector::new(Box::new(EarshotDetector::new()), TurnConfig::default());
/// let mut events = Vec::new();
/// turns.push(&[0; 320], &mut events); // 20 ms of 16 kHz, as often as they come
/// for event in events.drain(..) {
///     match event {
///         TurnEvent::Started { at_sample } => println!("speech from {at_sample}"),
///         TurnEvent::Stopped { at_sample } => println!("silence from {at_sample}"),
///     }
/// }
/// ```
pub struct TurnDetector {
    detector: Box<dyn SpeechDetector>,
    framer: Framer,
    turns: Turns,
}

impl TurnDetector {
    /// Finds turns by the scores of `detector`, whose sample rate the stream must have.
    pub fn new(detector: Box<dyn SpeechDetector>, config: TurnConfig) -> Self {
        let framer = Framer::new(detector.frame_samples());
        let turns = Turns::new(config, detector.sample_rate_hz());
        Self { detector, framer, turns }
    }

    /// The sample rate of the stream, in Hz.
    pub fn sample_rate_hz(&self) -> u32 {
        self.detector.sample_rate_hz()
    }

    /// Takes the next samples and appends what they decide to `events`.
    pub fn push(&mut self, samples: &[i16], events: &mut Vec<TurnEvent>) {
        let Self { detector, framer, turns } = self;
        framer.push(samples, |frame| {
            let score = detector.score(frame);
            events.extend(turns.frame(score, frame.len() as u64));
        });
    }

    /// The stream ends or pauses: a turn that is going on stops here. The next samples go on with
    /// the positions; the incomplete frame, if any, is counted but not scored.
    pub fn finish(&mut self) -> Option<TurnEvent> {
        self.turns.position += self.framer.pending().len() as u64;
        self.framer.reset();
        self.detector.reset();
        self.turns.finish()
    }

    /// Decides by `config` from here on.
    pub fn set_config(&mut self, config: TurnConfig) {
        self.turns.configure(config, self.detector.sample_rate_hz());
    }

    /// Whether a turn is going on.
    pub fn is_speaking(&self) -> bool {
        matches!(self.turns.state, State::Speech { .. })
    }

    /// While a turn is going on, the samples since its last speech; 0 while nobody speaks.
    pub fn silent_samples(&self) -> u64 {
        match self.turns.state {
            State::Speech { last_voiced } => self.turns.position - last_voiced,
            State::Silence | State::Onset { .. } => 0,
        }
    }

    /// Samples taken so far.
    pub fn position(&self) -> u64 {
        self.turns.position + self.framer.pending().len() as u64
    }

    /// Another stream begins, at position 0. A turn that was going on gets no `Stopped`.
    pub fn reset(&mut self) {
        self.framer.reset();
        self.detector.reset();
        self.turns.state = State::Silence;
        (self.turns.position, self.turns.turn_end) = (0, 0);
    }
}

impl fmt::Debug for TurnDetector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnDetector").field("turns", &self.turns).finish_non_exhaustive()
    }
}

/// Gaps that do not break off speech that is about to be believed.
const GAP: Duration = Duration::from_millis(50);

/// The decision, over scores. All lengths in samples.
#[derive(Debug)]
struct Turns {
    start_threshold: f32,
    end_threshold: f32,
    min_speech: u64,
    padding: u64,
    silence: u64,
    gap: u64,
    state: State,
    position: u64,
    /// Where the turn before ended.
    turn_end: u64,
}

#[derive(Debug)]
enum State {
    Silence,
    /// Speech that is too short yet.
    Onset {
        began: u64,
        voiced: u64,
        last_voiced: u64,
    },
    Speech {
        last_voiced: u64,
    },
}

impl Turns {
    fn new(config: TurnConfig, sample_rate_hz: u32) -> Self {
        let mut turns = Self {
            start_threshold: 0.0,
            end_threshold: 0.0,
            min_speech: 0,
            padding: 0,
            silence: 0,
            gap: 0,
            state: State::Silence,
            position: 0,
            turn_end: 0,
        };
        turns.configure(config, sample_rate_hz);
        turns
    }

    fn configure(&mut self, config: TurnConfig, sample_rate_hz: u32) {
        let samples = |duration| AudioFormat::pcm16(sample_rate_hz).samples_in(duration);
        self.start_threshold = config.start_threshold;
        self.end_threshold = config.end_threshold.min(config.start_threshold);
        self.min_speech = samples(config.min_speech);
        self.padding = samples(config.prefix_padding);
        self.silence = samples(config.silence);
        self.gap = samples(GAP);
    }

    fn frame(&mut self, score: f32, samples: u64) -> Option<TurnEvent> {
        let began = self.position;
        self.position += samples;
        let end = self.position;
        let goes_on = score >= self.end_threshold;
        match &mut self.state {
            State::Silence if score >= self.start_threshold => {
                self.state = State::Onset { began, voiced: samples, last_voiced: end };
            }
            State::Silence => {}
            State::Onset { voiced, last_voiced, .. } if goes_on => {
                *voiced += samples;
                *last_voiced = end;
            }
            State::Onset { last_voiced, .. } => {
                if end - *last_voiced > self.gap {
                    self.state = State::Silence;
                }
            }
            State::Speech { last_voiced } if goes_on => *last_voiced = end,
            State::Speech { last_voiced } => {
                // At least one frame of silence ends a turn, even if none is asked for.
                if end - *last_voiced >= self.silence {
                    return self.finish();
                }
            }
        }
        self.believe()
    }

    /// Speech that is now long enough becomes a turn.
    fn believe(&mut self) -> Option<TurnEvent> {
        match self.state {
            State::Onset { began, voiced, last_voiced } if voiced >= self.min_speech => {
                self.state = State::Speech { last_voiced };
                let at_sample = began.saturating_sub(self.padding).max(self.turn_end);
                Some(TurnEvent::Started { at_sample })
            }
            _ => None,
        }
    }

    fn finish(&mut self) -> Option<TurnEvent> {
        match std::mem::replace(&mut self.state, State::Silence) {
            State::Speech { last_voiced } => {
                self.turn_end = last_voiced;
                Some(TurnEvent::Stopped { at_sample: last_voiced })
            }
            _ => None,
        }
    }
}
