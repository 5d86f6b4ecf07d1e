//! The listening half: the user's audio cut into utterances, and utterances into words.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_audio::{TurnDetector, TurnEvent};
use antiphon_live::{LiveEvent, SpeakerInfo, TextUpdate, VoiceActivity};
use antiphon_types::AudioFrame;

use super::{Job, JobId, JobOutput, Outputs, Settings};
use crate::{Transcript, Utterance};

/// A partial transcript is made at most so often, in the time of the audio.
const PARTIAL_EVERY: Duration = Duration::from_millis(500);
/// Each partial result takes all of the segment so far, so they come more seldom the longer it is:
/// after another quarter. All of them together then take five times the segment, however long.
const PARTIAL_GROWTH: u64 = 4;
/// Longer utterances are recognised in segments, cut where it is quietest: what was said long ago is
/// not gone through again for each partial result. Recognisers take less than half the time for two
/// halves of a long clip.
const MAX_SEGMENT: Duration = Duration::from_secs(15);
/// How far back from its end a segment may be cut.
const CUT_WITHIN: Duration = Duration::from_secs(5);
/// A segment of at least this length is over at a pause. A shorter one goes on after it: to
/// understand a few words a recogniser needs those around them.
const MIN_SEGMENT: Duration = Duration::from_secs(6);
/// The stretch of which the quietest is looked for.
const CUT_WINDOW: Duration = Duration::from_millis(200);
/// An utterance is at most so long. A voice that goes on (or a detector that is stuck on a noise)
/// is taken as a turn then; by hand, the rest is not listened to.
const MAX_UTTERANCE: Duration = Duration::from_secs(300);
/// Audio of less than this is nothing to commit.
const MIN_COMMIT: Duration = Duration::from_millis(100);
/// Audio kept beside the prefix, since a detector is sure of speech only after a while.
const DETECTOR_LAG: Duration = Duration::from_secs(1);
/// Utterances that may wait for their words. A recogniser that falls further behind loses the
/// oldest.
const MAX_CLOSED: usize = 8;

/// What was heard, for the conversation.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    /// The user begins to speak.
    Started,
    /// The user stopped.
    Stopped,
    /// These are the words of the user's item.
    Turn(Arc<str>, Transcript),
}

/// The listening half of a connection.
pub(crate) struct Ears {
    settings: Arc<Settings>,
    /// Hears speech; only where nobody else says when the user speaks.
    turns: Option<TurnDetector>,
    /// Recent audio: a prefix, and all that is not yet with the recogniser for good.
    audio: Vec<i16>,
    /// Samples heard before those in `audio`.
    base: u64,
    /// No utterance begins before this sample: the one before had it.
    floor: u64,
    open: Option<Open>,
    closed: VecDeque<Closed>,
    items: u64,
    /// By hand: audio came since the last turn was taken.
    fresh: bool,
    /// When audio came last.
    last_audio: Option<Instant>,
    /// Milliseconds of speech given to the recogniser since they were asked for.
    recognized_ms: u64,
    pub(crate) heard: VecDeque<Heard>,
}

/// An utterance that goes on.
struct Open {
    item: Arc<str>,
    start: u64,
    /// Where the segment that is collected begins.
    segment_start: u64,
    /// Earlier segments of the same utterance.
    segments: Vec<Segment>,
    partial: Option<JobId>,
    /// The sample at which the last partial result was asked for.
    partial_at: u64,
    shown: String,
    /// The final result, begun before it is certain that the user has finished.
    early: Option<Segment>,
    /// The sample up to which `early` goes.
    early_to: u64,
    overflown: bool,
}

/// An utterance that is over.
struct Closed {
    item: Arc<str>,
    segments: Vec<Segment>,
    /// The host said that there is a turn.
    asked: bool,
}

struct Segment {
    job: JobId,
    words: Option<Transcript>,
}

impl Ears {
    /// The ears of a connection; with [`VoiceActivity::Auto`], `turns` tells when the user speaks.
    pub(crate) fn new(settings: Arc<Settings>, turns: Option<TurnDetector>) -> Self {
        let turns = turns.filter(|_| settings.voice_activity == VoiceActivity::Auto);
        Self {
            settings,
            turns,
            audio: Vec::new(),
            base: 0,
            floor: 0,
            open: None,
            closed: VecDeque::new(),
            items: 0,
            fresh: false,
            last_audio: None,
            recognized_ms: 0,
            heard: VecDeque::new(),
        }
    }

    /// Whether the user speaks, as far as anyone says so.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some() && self.settings.voice_activity != VoiceActivity::Off
    }

    /// Whether words of a finished utterance are still to come.
    pub(crate) fn is_recognizing(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Milliseconds of audio recognised since the last time this was asked.
    pub(crate) fn take_recognized_ms(&mut self) -> u64 {
        std::mem::take(&mut self.recognized_ms)
    }

    /// When speech counts as over because no more audio comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.open.as_ref()?;
        self.turns.as_ref()?;
        let patience = (self.settings.silence * 2).max(Duration::from_secs(2));
        Some(self.last_audio? + patience)
    }

    /// The user's audio goes on.
    pub(crate) fn audio(&mut self, frame: &AudioFrame, now: Instant, out: &mut Outputs) {
        self.last_audio = Some(now);
        self.fresh = true;
        let from = self.audio.len();
        self.audio.extend(
            frame.data.chunks_exact(2).map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]])),
        );
        match self.settings.voice_activity {
            VoiceActivity::Auto => self.detect(from, out),
            VoiceActivity::Manual => {}
            VoiceActivity::Off => {
                if self.open.is_none() {
                    self.begin(self.floor);
                }
            }
        }
        self.collect(out);
        self.forget();
    }

    /// By hand: the user begins.
    pub(crate) fn start(&mut self, out: &mut Outputs) {
        if self.open.is_some() {
            return out.error("activity", "the user's activity has begun already");
        }
        let prefix = self.samples_in(self.settings.prefix_padding);
        self.begin(self.position().saturating_sub(prefix));
        self.heard.push_back(Heard::Started);
    }

    /// By hand: the user has finished.
    pub(crate) fn stop(&mut self, out: &mut Outputs) {
        if self.open.is_none() {
            return out.error("activity", "the user's activity has not begun");
        }
        self.commit(out);
        self.heard.push_back(Heard::Stopped);
    }

    /// The user's audio ends for now.
    pub(crate) fn end(&mut self, out: &mut Outputs) {
        match self.settings.voice_activity {
            VoiceActivity::Auto => self.end_speech(out),
            VoiceActivity::Manual if self.open.is_some() => self.stop(out),
            VoiceActivity::Manual if !self.fresh && self.floor > 0 => {}
            VoiceActivity::Manual | VoiceActivity::Off => self.commit(out),
        }
    }

    /// Forgets the audio that was not yet taken as a turn.
    pub(crate) fn clear(&mut self, out: &mut Outputs) {
        if let Some(open) = self.open.take() {
            let jobs = open.segments.iter().chain(&open.early).map(|segment| segment.job);
            for job in jobs.chain(open.partial) {
                out.cancel(job);
            }
            if self.turns.is_some() {
                self.speech_stopped(self.position(), out);
            }
            if !open.shown.is_empty() {
                out.event(transcript(open.item, TextUpdate::Final(Some(String::new()))));
            }
            if self.settings.voice_activity != VoiceActivity::Off {
                self.heard.push_back(Heard::Stopped);
            }
        }
        self.reset_detection();
        self.base = self.position();
        self.floor = self.base;
        self.fresh = false;
        self.audio.clear();
    }

    /// No more audio came by [`Ears::deadline`].
    pub(crate) fn timeout(&mut self, now: Instant, out: &mut Outputs) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.end_speech(out);
        }
    }

    /// A recognition gave something. False: it is none of ours.
    pub(crate) fn job(&mut self, job: JobId, output: &JobOutput, out: &mut Outputs) -> bool {
        if let Some(open) = &mut self.open {
            if open.partial == Some(job) {
                open.partial = None;
                if let JobOutput::Transcript(words) = output {
                    self.show(&words.text, out);
                }
                return true;
            }
            if open.early.as_ref().is_some_and(|early| early.job == job) {
                match output {
                    JobOutput::Transcript(words) => {
                        open.early = Some(Segment { job, words: Some(words.clone()) });
                    }
                    // When the user has really finished it is tried once more.
                    _ => open.early = None,
                }
                return true;
            }
        }
        let open = self.open.iter_mut().flat_map(|open| &mut open.segments);
        let closed = self.closed.iter_mut().flat_map(|closed| &mut closed.segments);
        let Some(segment) = open.chain(closed).find(|segment| segment.job == job) else {
            return false;
        };
        match output {
            JobOutput::Transcript(words) => segment.words = Some(words.clone()),
            JobOutput::Failed(message) => {
                out.error("recognizer", message);
                segment.words = Some(Transcript::default());
            }
            _ => segment.words = Some(Transcript::default()),
        }
        self.deliver(out);
        true
    }

    fn position(&self) -> u64 {
        self.base + self.audio.len() as u64
    }

    fn samples_in(&self, duration: Duration) -> u64 {
        self.settings.input.samples_in(duration)
    }

    fn detect(&mut self, from: usize, out: &mut Outputs) {
        let Some(turns) = &mut self.turns else { return };
        let mut events = Vec::new();
        turns.push(&self.audio[from..], &mut events);
        for event in events {
            match event {
                TurnEvent::Started { at_sample } => {
                    self.begin(at_sample);
                    out.event(LiveEvent::SpeechStarted {
                        audio_start_ms: Some(self.settings.input_ms(at_sample)),
                    });
                    self.heard.push_back(Heard::Started);
                }
                TurnEvent::Stopped { at_sample } => {
                    self.speech_stopped(at_sample, out);
                    self.close(false, out);
                    self.heard.push_back(Heard::Stopped);
                }
            }
        }
    }

    /// Opens an utterance whose audio begins at sample `start`, if that is still there.
    fn begin(&mut self, start: u64) {
        let start = start.max(self.floor).max(self.base);
        self.items += 1;
        self.open = Some(Open {
            item: format!("user_{}", self.items).into(),
            start,
            segment_start: start,
            segments: Vec::new(),
            partial: None,
            partial_at: start,
            shown: String::new(),
            early: None,
            early_to: start,
            overflown: false,
        });
    }

    /// Does what an utterance needs that goes on: segments, partial results, an early final one.
    fn collect(&mut self, out: &mut Outputs) {
        let Some(open) = &self.open else { return };
        let position = self.position();
        if position - open.start > self.samples_in(MAX_UTTERANCE) {
            return self.overflow(out);
        }
        if position - open.segment_start > self.samples_in(MAX_SEGMENT) {
            self.cut_segment(out);
        }
        let silent = self.turns.as_ref().map_or(0, TurnDetector::silent_samples);
        let early_after = self.samples_in(self.settings.silence / 2);
        let min_segment = self.samples_in(MIN_SEGMENT);
        let Some(open) = &mut self.open else { return };
        if silent == 0 {
            if let Some(early) = open.early.take() {
                if open.early_to - open.segment_start >= min_segment {
                    // What was said before the pause stays as it was heard.
                    open.segments.push(early);
                    open.segment_start = open.early_to - early_after / 2;
                    open.partial_at = open.segment_start;
                } else {
                    out.cancel(early.job);
                }
            }
        } else if silent >= early_after && open.early.is_none() {
            if let Some(partial) = open.partial.take() {
                out.cancel(partial);
            }
            let from = open.segment_start;
            let job = out.start(self.recognize(from, position, true));
            if let Some(open) = &mut self.open {
                open.early = Some(Segment { job, words: None });
                open.early_to = position;
            }
            return;
        }
        self.ask_for_partial(out);
    }

    fn ask_for_partial(&mut self, out: &mut Outputs) {
        let position = self.position();
        let Some(open) = &self.open else { return };
        let least = self.samples_in(PARTIAL_EVERY);
        let every = least.max(open.partial_at.saturating_sub(open.segment_start) / PARTIAL_GROWTH);
        let wanted = self.settings.input_transcripts
            && self.settings.voice_activity != VoiceActivity::Off
            && open.partial.is_none()
            && open.early.is_none()
            && position - open.partial_at >= every
            && position - open.segment_start >= least;
        if !wanted {
            return;
        }
        let job = out.start(self.recognize(open.segment_start, position, false));
        if let Some(open) = &mut self.open {
            open.partial = Some(job);
            open.partial_at = position;
        }
    }

    fn overflow(&mut self, out: &mut Outputs) {
        if self.turns.is_some() {
            return self.end_speech(out);
        }
        let keep = self.samples_in(self.settings.prefix_padding) as usize;
        let Some(open) = &mut self.open else { return };
        if !std::mem::replace(&mut open.overflown, true) {
            out.error("audio_overflow", format!("a turn is longer than {MAX_UTTERANCE:?}"));
            self.cut_segment(out);
        }
        // What comes now belongs to nobody.
        let surplus = self.audio.len().saturating_sub(keep);
        self.audio.drain(..surplus);
        self.base += surplus as u64;
        let position = self.position();
        if let Some(open) = &mut self.open {
            open.segment_start = position;
        }
    }

    /// Gives the collected segment to the recogniser, up to a pause.
    fn cut_segment(&mut self, out: &mut Outputs) {
        let Some(open) = &mut self.open else { return };
        for job in open.partial.take().into_iter().chain(open.early.take().map(|early| early.job)) {
            out.cancel(job);
        }
        let from = open.segment_start;
        let samples = &self.audio[(from - self.base) as usize..];
        let cut = from + quietest(samples, self.settings.input.sample_rate_hz()) as u64;
        let job = out.start(self.recognize(from, cut, true));
        if let Some(open) = &mut self.open {
            open.segments.push(Segment { job, words: None });
            open.segment_start = cut;
        }
    }

    /// The host takes what was collected as a turn.
    fn commit(&mut self, out: &mut Outputs) {
        let least = self.samples_in(MIN_COMMIT);
        let position = self.position();
        let enough = self.open.as_ref().is_some_and(|open| {
            !open.segments.is_empty() || position - open.segment_start >= least
        });
        self.fresh = false;
        if enough {
            return self.close(true, out);
        }
        self.open = None;
        self.floor = position;
        out.error("empty_commit", format!("there is less than {MIN_COMMIT:?} of audio to answer"));
    }

    /// Speech is over because the audio is.
    fn end_speech(&mut self, out: &mut Outputs) {
        if self.open.is_some() {
            self.speech_stopped(self.position(), out);
            self.close(false, out);
            self.heard.push_back(Heard::Stopped);
        }
        self.reset_detection();
    }

    fn close(&mut self, asked: bool, out: &mut Outputs) {
        let Some(mut open) = self.open.take() else { return };
        let position = self.position();
        if let Some(partial) = open.partial {
            out.cancel(partial);
        }
        match open.early {
            Some(early) => open.segments.push(early),
            None if position > open.segment_start => {
                let job = out.start(self.recognize(open.segment_start, position, true));
                open.segments.push(Segment { job, words: None });
            }
            None => {}
        }
        self.recognized_ms += self.settings.input_ms(position - open.start);
        self.floor = position;
        self.closed.push_back(Closed { item: open.item, segments: open.segments, asked });
        if self.closed.len() > MAX_CLOSED {
            out.error("recognizer", "the recognizer falls behind; the oldest utterance is lost");
            if let Some(lost) = self.closed.pop_front() {
                for segment in lost.segments {
                    out.cancel(segment.job);
                }
                out.event(transcript(lost.item, TextUpdate::Final(Some(String::new()))));
            }
        }
        self.deliver(out);
        self.forget();
    }

    /// Hands over utterances whose words are complete, in order.
    fn deliver(&mut self, out: &mut Outputs) {
        while let Some(closed) = self.closed.front() {
            if closed.segments.iter().any(|segment| segment.words.is_none()) {
                return;
            }
            let Some(Closed { item, asked, segments }) = self.closed.pop_front() else { return };
            let words = segments.into_iter().filter_map(|segment| segment.words);
            let words = words.fold(Transcript::default(), Transcript::followed_by);
            if self.settings.input_transcripts {
                let text = TextUpdate::Final(Some(words.text.clone()));
                let speaker = words.language.clone().map(|language| {
                    let mut speaker = SpeakerInfo::default();
                    speaker.language = Some(language);
                    speaker
                });
                out.event(LiveEvent::InputTranscript { item: item.clone(), text, speaker });
            }
            if !words.text.is_empty() {
                self.heard.push_back(Heard::Turn(item, words));
            } else if asked {
                out.error("no_speech", "there were no words in the user's turn");
            }
        }
    }

    /// Shows a partial result.
    fn show(&mut self, text: &str, out: &mut Outputs) {
        let Some(open) = &mut self.open else { return };
        let earlier = open.segments.iter().filter_map(|segment| segment.words.as_ref());
        let known = earlier.map(|words| words.text.trim()).chain([text.trim()]);
        let text = known.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ");
        if text.is_empty() || text == open.shown {
            return;
        }
        open.shown.clone_from(&text);
        out.event(transcript(open.item.clone(), TextUpdate::Snapshot(text)));
    }

    fn recognize(&self, from: u64, to: u64, last: bool) -> Job {
        let samples = &self.audio[(from - self.base) as usize..(to - self.base) as usize];
        Job::Recognize(Utterance {
            audio: AudioFrame::from_pcm16(self.settings.input.sample_rate_hz(), samples),
            last,
            locale: self.settings.locale.clone(),
            vocabulary: self.settings.vocabulary.clone(),
        })
    }

    fn speech_stopped(&self, at: u64, out: &mut Outputs) {
        let audio_end_ms = Some(self.settings.input_ms(at));
        out.event(LiveEvent::SpeechStopped { audio_end_ms });
    }

    fn reset_detection(&mut self) {
        if let Some(turns) = &mut self.turns {
            // What it says was said already: by whoever ends the utterance.
            let _ = turns.finish();
        }
    }

    /// Drops audio that no utterance can need.
    fn forget(&mut self) {
        let keep_from = match &self.open {
            Some(open) => open.segment_start,
            None => {
                let keep = self.samples_in(self.settings.prefix_padding + DETECTOR_LAG);
                self.position().saturating_sub(keep).max(self.floor)
            }
        };
        let surplus = keep_from.saturating_sub(self.base) as usize;
        // In larger steps, since what stays is moved.
        if surplus >= self.audio.len() / 2 {
            self.audio.drain(..surplus);
            self.base += surplus as u64;
        }
    }
}

fn transcript(item: Arc<str>, text: TextUpdate) -> LiveEvent {
    LiveEvent::InputTranscript { item, text, speaker: None }
}

/// The middle of the quietest stretch near the end of `samples`.
fn quietest(samples: &[i16], sample_rate_hz: u32) -> usize {
    let length = |duration: Duration| (duration.as_secs_f64() * f64::from(sample_rate_hz)) as usize;
    let window = length(CUT_WINDOW).max(2);
    let from = samples.len().saturating_sub(length(CUT_WITHIN));
    let loudness = |start: &usize| -> u64 {
        samples[*start..*start + window].iter().map(|sample| sample.unsigned_abs() as u64).sum()
    };
    (from..samples.len().saturating_sub(window))
        .step_by(window / 2)
        .min_by_key(loudness)
        .map_or(samples.len(), |start| start + window / 2)
}
