//! What the user said aloud and nobody has answered yet.
//!
//! A provider that hears the user and then says nothing is as silent as one that was asked and does not
//! answer, but there are no words by which that could be seen. It is seen by the speech itself: by the
//! provider's word that somebody speaks, and where it gives none, by a voice in the user's audio. Until
//! it is answered, or there are words of it, that audio is kept: if the connection that heard it is lost,
//! the next one hears it again.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_live::{LiveCommand, VoiceActivity};
use antiphon_types::AudioFrame;

use super::{Engine, Phase, lifetime::is_voice, timers::Timer};
use crate::session::{EndReason, EventKind, OnStall, SessionState};

/// Detectors tell late that somebody speaks: so much before that is part of it.
const BEFORE: Duration = Duration::from_secs(1);
/// And so much more is kept until they do: what went up at once, after a gap, is heard only then.
const LATE: Duration = Duration::from_secs(2);
/// So much of a voice is speech, and less a noise.
const SPEECH: Duration = Duration::from_millis(300);
/// After so long without a voice, what comes is another speech.
const PAUSE: Duration = Duration::from_secs(2);

/// The user's speech that waits for an answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    /// The last of what the connection took.
    audio: VecDeque<AudioFrame>,
    kept: Duration,
    /// So much of it is kept while somebody waits for an answer.
    limit: Duration,
    /// Since when somebody does.
    since: Option<Instant>,
    /// It is more than a noise: it was long enough, or the provider has acted on it.
    certain: bool,
    /// How much of a voice was heard of late, and when.
    voice: Duration,
    heard: Option<Instant>,
}

impl Unanswered {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            audio: VecDeque::new(),
            kept: Duration::ZERO,
            limit,
            since: None,
            certain: false,
            voice: Duration::ZERO,
            heard: None,
        }
    }

    /// The connection took this.
    pub(super) fn taken(&mut self, frame: &AudioFrame) {
        self.kept += frame.duration();
        self.audio.push_back(frame.clone());
        let awaited = self.since.is_some();
        self.keep(if awaited { self.limit } else { self.limit.min(BEFORE + LATE) });
    }

    fn keep(&mut self, limit: Duration) {
        while self.kept > limit
            && let Some(oldest) = self.audio.pop_front()
        {
            self.kept -= oldest.duration();
        }
    }

    /// The last frames that it took did not reach anybody.
    pub(super) fn returned(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(last) = self.audio.pop_back() else { return };
            self.kept -= last.duration();
        }
    }

    /// Somebody speaks, and began `late` ago.
    fn speech(&mut self, now: Instant, late: Duration) {
        if self.since.is_none() {
            self.since = Some(now);
            self.keep(self.limit.min(BEFORE + late));
        }
    }

    /// A voice is heard; whether it is speech by now.
    fn voice(&mut self, length: Duration, now: Instant) -> bool {
        let pause = self.heard.is_none_or(|heard| now.saturating_duration_since(heard) >= PAUSE);
        self.voice = if pause { length } else { self.voice + length };
        self.heard = Some(now);
        self.voice >= SPEECH
    }

    /// Whether an answer is waited for.
    pub(super) fn is_awaited(&self) -> bool {
        self.since.is_some()
    }

    /// It lasted so long, or has gone further than a noise would.
    fn is_speech(&mut self, lasted: Duration) {
        self.certain |= self.since.is_some() && lasted >= SPEECH;
    }

    fn answered(&mut self) {
        self.certain = false;
        (self.since, self.voice, self.heard) = (None, Duration::ZERO, None);
        self.forget_audio();
    }

    fn forget_audio(&mut self) {
        self.audio.clear();
        self.kept = Duration::ZERO;
    }

    /// What the next connection has to hear, in order.
    fn take_audio(&mut self) -> Vec<LiveCommand> {
        self.kept = Duration::ZERO;
        self.audio.drain(..).map(LiveCommand::AppendAudio).collect()
    }
}

impl Engine {
    /// The provider says that the user speaks, and did so `late`, or that it was interrupted.
    pub(super) fn user_spoke(&mut self, late: Duration) {
        let turns = self.live.voice_activity == VoiceActivity::Auto
            && !self.can(|can| can.continuous_duplex);
        if turns && self.phase == Phase::Running {
            self.unanswered.speech(self.now, late);
            self.timers.stop(Timer::Answer);
        }
    }

    /// The user's speech is over, after so long. Not everything that a detector hears is one.
    pub(super) fn speech_lasted(&mut self, lasted: Duration) {
        self.unanswered.is_speech(lasted);
        self.answer_is_due();
    }

    /// The provider has taken what was said for something that it will answer.
    pub(super) fn speech_is_taken(&mut self) {
        self.unanswered.is_speech(SPEECH);
    }

    /// No words came of the speech: if it was only a noise, nobody answers that.
    pub(super) fn no_words_come(&mut self) {
        if !self.unanswered.certain {
            self.speech_is_answered();
        } else if !self.timers.is_set(Timer::Answer) {
            self.answer_is_due();
        }
    }

    /// The user has stopped speaking: the answer is due.
    pub(super) fn answer_is_due(&mut self) {
        if self.unanswered.is_awaited() {
            self.timers.set(Timer::Answer, self.now + self.limits.stall);
        }
    }

    /// The user's audio, where nobody else says that they speak.
    pub(super) fn listen_for_speech(&mut self, frame: &AudioFrame) {
        let heard = self.connected
            && !self.can(|can| can.tells_speech)
            && !self.agent_has_floor()
            && is_voice(frame);
        if heard && self.unanswered.voice(frame.duration(), self.now) {
            self.user_spoke(Duration::ZERO);
            self.speech_lasted(SPEECH);
        }
    }

    /// Something came of the answer, or there are words to be answered.
    pub(super) fn speech_is_answered(&mut self) {
        self.unanswered.answered();
        self.timers.stop(Timer::Answer);
    }

    /// The agent answers, unless it is being talked over.
    pub(super) fn agent_answers(&mut self) {
        if !self.attention.user_speaks() {
            self.speech_is_answered();
        }
    }

    /// The next connection hears again what the last one was not done with. Whether there is any.
    pub(super) fn say_unanswered_again(&mut self, resumed: bool) -> bool {
        let unheld = std::mem::take(&mut self.reconnect.unheld);
        let quiet = std::mem::take(&mut self.reconnect.left_in_quiet);
        let awaited = self.unanswered.is_awaited();
        let again = match resumed && !quiet && !unheld.is_empty() {
            true => unheld,
            false if awaited => self.unanswered.take_audio(),
            false => Vec::new(),
        };
        self.unanswered.forget_audio();
        let any = !again.is_empty();
        self.uplink.say_again(again);
        self.answer_is_due();
        any && awaited
    }

    /// Nothing came after the user's speech.
    pub(super) fn on_unanswered(&mut self) {
        if !self.connected || self.phase != Phase::Running || self.has_hung_up() {
            return self.speech_is_answered();
        }
        let works = self.state == SessionState::Processing
            || self.attention.user_speaks()
            || self.replies.active.is_some()
            || self.replies.asked.is_some()
            || self.replies.is_waiting()
            || self.calls.any_at_work();
        if works {
            return self.answer_is_due();
        }
        let since = self.unanswered.since.unwrap_or(self.now);
        let ms = self.now.saturating_duration_since(since).as_millis() as u64;
        let reaction = self.reaction_to_stall();
        let told = Some(reaction).filter(|reaction| *reaction != OnStall::Tell);
        self.emit(EventKind::Stalled { what: "provider".into(), ms, reaction: told });
        match reaction {
            // It is said again there.
            OnStall::Resume if self.replace_because("the provider is silent", false) => return,
            OnStall::Nudge => self.nudge(),
            OnStall::Fail => {
                let message = format!("the provider was silent for {ms} ms");
                self.begin_close(EndReason::Failed { message }, None);
            }
            _ => {}
        }
        self.speech_is_answered();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(value: i16) -> AudioFrame {
        AudioFrame::from_pcm16(16_000, &[value; 1_600])
    }

    #[test]
    fn speech_is_kept_from_a_little_before_it_was_noticed_and_no_longer_than_is_kept() {
        let (now, mut unanswered) = (Instant::now(), Unanswered::new(3 * BEFORE));
        let values = |audio: Vec<LiveCommand>| -> Vec<LiveCommand> { audio };
        let expected = |range: std::ops::Range<i16>| -> Vec<LiveCommand> {
            range.map(|value| LiveCommand::AppendAudio(frame(value))).collect()
        };
        for value in 0..20 {
            unanswered.taken(&frame(value));
        }
        unanswered.speech(now, Duration::ZERO);
        for value in 20..25 {
            unanswered.taken(&frame(value));
        }
        unanswered.returned(2);
        assert_eq!(values(unanswered.take_audio()), expected(10..23));
        for value in 0..50 {
            unanswered.taken(&frame(value));
        }
        assert_eq!(values(unanswered.take_audio()), expected(20..50));
        unanswered.returned(1);
        unanswered.answered();
        assert!(!unanswered.is_awaited());
    }

    #[test]
    fn what_went_up_at_once_is_kept_until_somebody_says_that_it_was_speech() {
        let (now, mut unanswered) = (Instant::now(), Unanswered::new(30 * BEFORE));
        let burst = AudioFrame::from_pcm16(16_000, &[7; 24_000]);
        for _ in 0..2 {
            unanswered.taken(&burst);
        }
        unanswered.speech(now, 2 * BEFORE);
        assert_eq!(unanswered.take_audio().len(), 2);
    }

    #[test]
    fn a_knock_is_no_speech() {
        let ms = Duration::from_millis;
        let (now, mut unanswered) = (Instant::now(), Unanswered::new(BEFORE));
        assert!(!unanswered.voice(ms(200), now));
        assert!(!unanswered.voice(ms(200), now + PAUSE), "another one");
        assert!(unanswered.voice(ms(200), now + PAUSE + ms(500)));
    }
}
