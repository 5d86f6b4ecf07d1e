//! Who has the floor: what the user's speech does to the agent's, and when it is answered.
//!
//! Speech that begins while the agent speaks is *judged*: it interrupts, or is dismissed as a noise,
//! an echo or a backchannel. Until then the agent pauses, where the policy says so.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{LiveCommand, VoiceActivity};
use antiphon_types::AudioFrame;

use super::{
    Engine,
    io::{Origin, Output},
    sequencer::{Wanted, Why},
    timers::Timer,
};
use crate::session::{
    EventKind,
    barge_in::{BargeIn, SpeechJudge, UserAudio, count_words},
    events::ResumeCause,
};

/// What is known of the user's speech over the agent's.
#[derive(Debug)]
pub(super) struct Floor {
    policy: BargeIn,
    speech: Speech,
    judged: Option<Judged>,
    /// The sink is paused.
    paused: bool,
    /// The agent's voice was first heard then, after silence.
    audible_since: Option<Instant>,
    echo_cancelled: bool,
    /// The user's audio is replaced by silence.
    pub(super) deaf: bool,
}

/// The user's present or last speech.
#[derive(Clone, Copy, Debug, Default)]
struct Speech {
    /// It began while the agent had the floor, and has not interrupted it.
    over_agent: bool,
    /// It is the agent's own voice.
    echo: bool,
    /// A reply to it was asked for, or none is wanted.
    answered: bool,
}

/// Speech that may interrupt.
#[derive(Clone, Copy, Debug)]
struct Judged {
    began: Instant,
    /// How long it was, once it is over.
    lasted: Option<Duration>,
    /// Words of it that were understood, unless they are a backchannel.
    words: u32,
}

/// What the words of an utterance are to the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WordsAre {
    /// The user's turn.
    ATurn,
    /// Not decided yet: nobody is told.
    Unclear,
    /// Nothing: they are dropped.
    Nothing,
}

impl Floor {
    pub(super) fn new(policy: BargeIn) -> Self {
        Self {
            policy,
            speech: Speech { answered: true, ..Speech::default() },
            judged: None,
            paused: false,
            audible_since: None,
            echo_cancelled: false,
            deaf: false,
        }
    }

    fn judge(&self) -> Option<&SpeechJudge> {
        match &self.policy {
            BargeIn::Judged(judge) => Some(judge),
            _ => None,
        }
    }
}

impl Engine {
    /// The user begins to speak: `by_hand`, if the host says so.
    pub(super) fn floor_is_wanted(&mut self, by_hand: bool) {
        self.floor.speech = Speech::default();
        self.floor.judged = None;
        match &self.floor.policy {
            BargeIn::Immediate => self.interrupt_by_provider(),
            BargeIn::Never { .. } => {}
            BargeIn::Judged(_) if by_hand => {
                self.floor.speech.answered = true;
                self.interrupt_by_user();
            }
            BargeIn::Judged(_) => self.judge_speech(),
        }
    }

    /// The provider stops its own reply, and says so. What it has finished while it is still being
    /// played is ours to stop; so is everything where the provider does not.
    fn interrupt_by_provider(&mut self) {
        if self.live.policies.activity.handling != antiphon_live::ActivityHandling::Interrupts {
            return;
        }
        let active = self.replies.active.as_ref().is_some_and(|reply| !reply.cut);
        if active && self.can(|can| can.interrupts) {
            return;
        }
        self.interrupt_by_user();
    }

    /// The user's speech stops the agent, unless what it says is protected.
    fn interrupt_by_user(&mut self) -> bool {
        if self.replies.protected().is_some() {
            return false;
        }
        self.floor.judged = None;
        self.timers.stop(Timer::BargeIn);
        self.floor.speech.over_agent = false;
        self.interrupt(true)
    }

    /// Begins to judge the speech that is heard, if it is over the agent's.
    fn judge_speech(&mut self) {
        let Some(judge) = self.floor.judge() else { return };
        let (min_speech, min_words, pause, guard) =
            (judge.min_speech, judge.min_words, judge.pause, judge.echo_guard);
        let agent = self.agent_has_floor();
        if !agent {
            return;
        }
        self.floor.speech.over_agent = true;
        if self.replies.protected().is_some() {
            return;
        }
        let guarded_until = self
            .floor
            .audible_since
            .filter(|_| !self.floor.echo_cancelled)
            .map(|since| since + guard)
            .filter(|until| *until > self.now);
        if let Some(until) = guarded_until {
            self.floor.speech.echo = true;
            self.timers.set(Timer::BargeIn, until);
            return;
        }
        self.floor.speech.echo = false;
        if min_speech.is_zero() && min_words == 0 {
            self.interrupt_by_user();
            return;
        }
        let began = self.attention.speech_began.unwrap_or(self.now);
        self.floor.judged = Some(Judged { began, lasted: None, words: 0 });
        if pause {
            self.pause_agent();
        }
        self.timers.set(Timer::BargeIn, (began + min_speech + self.end_silence()).max(self.now));
    }

    /// Speech that has not been told to be over may have ended so long ago.
    pub(super) fn end_silence(&self) -> Duration {
        self.capabilities.as_ref().map_or(Duration::ZERO, |can| can.end_silence)
    }

    /// A reply begins while the user speaks: it is as if they spoke over it.
    pub(super) fn reply_meets_speech(&mut self) {
        let auto = self.live.voice_activity == VoiceActivity::Auto;
        if auto && self.attention.user_speaks() && self.floor.judged.is_none() {
            self.judge_speech();
        }
    }

    /// A time of the judgement is over.
    pub(super) fn on_barge_in_timer(&mut self) {
        if self.floor.speech.echo {
            // What still goes on is more than an echo.
            if self.attention.user_speaks() {
                self.judge_speech();
            }
            return;
        }
        let Some(Judged { lasted, words, .. }) = self.floor.judged else { return };
        let Some(judge) = self.floor.judge() else { return };
        match lasted {
            Some(_) => self.dismiss_speech(ResumeCause::Noise),
            None if words >= judge.min_words => {
                self.interrupt_by_user();
            }
            None => {}
        }
    }

    /// The user stopped speaking.
    pub(super) fn floor_is_left(&mut self) {
        let transcripts = self.can(|can| can.input_transcripts);
        let Some(judge) = self.floor.judge() else { return };
        let patience = judge.patience;
        let silence = self.end_silence();
        if self.floor.speech.echo {
            self.timers.stop(Timer::BargeIn);
            self.floor.speech.answered = true;
            self.speech_was_noise();
            return;
        }
        if let Some(judged) = &mut self.floor.judged {
            let lasted = self.now.saturating_duration_since(judged.began);
            judged.lasted = Some(lasted.saturating_sub(silence));
            if transcripts {
                self.timers.set(Timer::BargeIn, self.now + patience);
            } else {
                self.dismiss_speech(ResumeCause::Noise);
            }
            return;
        }
        let waits_for_words =
            self.floor.speech.over_agent && transcripts || self.can(|can| can.answers_words);
        if !waits_for_words && !self.is_asking() {
            self.answer_user();
        }
    }

    /// The words of an utterance, as far as they are known, are judged.
    pub(super) fn judge_words(&mut self, text: &str, done: bool) -> WordsAre {
        let (asked, silence) = (self.is_asking(), self.end_silence());
        let Some(judge) = self.floor.judge() else { return WordsAre::ATurn };
        if self.floor.speech.echo {
            return WordsAre::Nothing;
        }
        if !self.floor.speech.over_agent {
            return WordsAre::ATurn;
        }
        let backchannel = judge.is_backchannel(text) && !asked;
        if backchannel && !done {
            return WordsAre::Unclear;
        }
        if backchannel {
            self.dismiss_speech(ResumeCause::Backchannel);
            return WordsAre::Nothing;
        }
        let words = count_words(text);
        let enough_words = words >= judge.min_words.max(1) || asked;
        let (pause, min_speech) = (judge.pause, judge.min_speech);
        // Also what was taken for a noise before its words came.
        self.floor.speech.answered = false;
        if let Some(judged) = &mut self.floor.judged {
            judged.words = words;
        }
        let enough_time = match self.floor.judged {
            Some(Judged { lasted: Some(lasted), .. }) => pause || lasted >= min_speech,
            Some(Judged { began, lasted: None, .. }) => {
                self.now >= began + min_speech + silence || asked
            }
            // It was taken for noise, or the words are late: they tell more than the time.
            None => pause,
        };
        let protected = self.replies.protected().is_some();
        if enough_words && enough_time && !protected && self.agent_has_floor() {
            self.interrupt_by_user();
        } else if done {
            self.end_judgement(ResumeCause::TooFewWords);
        } else {
            return WordsAre::Unclear;
        }
        WordsAre::ATurn
    }

    /// The speech was no interruption, and is not answered.
    pub(super) fn dismiss_speech(&mut self, cause: ResumeCause) {
        self.floor.speech.answered = true;
        self.speech_was_noise();
        self.end_judgement(cause);
    }

    /// Speech over the agent's that was nothing is not to be part of the conversation.
    pub(super) fn forget_over_agent(&mut self, item: Arc<str>) {
        if self.floor.speech.over_agent || self.floor.speech.echo {
            self.send(LiveCommand::ForgetInput { item }, Origin::None);
        }
    }

    fn end_judgement(&mut self, cause: ResumeCause) {
        self.floor.judged = None;
        self.timers.stop(Timer::BargeIn);
        if std::mem::take(&mut self.floor.paused) {
            self.times.barge_in.reset();
            self.prompt_outputs.push_back(Output::ResumePlayback);
            self.emit(EventKind::PlaybackResumed { cause });
        }
    }

    /// No more is known of the user's speech; nothing stays paused for it.
    pub(super) fn forget_speech(&mut self) {
        self.end_judgement(ResumeCause::Noise);
    }

    /// Asks for the answer to what the user said, where that is for the session to do.
    pub(super) fn answer_user(&mut self) {
        let ours = self.floor.judge().is_some() && self.can(|can| can.session_answers);
        if !ours || std::mem::replace(&mut self.floor.speech.answered, true) {
            return;
        }
        if !self.replies.is_waiting_for(Why::User) {
            self.want_reply(Wanted::Reply, Why::User);
        }
    }

    /// What the user said is answered by something else.
    pub(super) fn user_is_answered(&mut self) {
        self.floor.speech.answered = true;
    }

    /// Whether the agent speaks or is about to.
    pub(super) fn agent_has_floor(&self) -> bool {
        self.replies.active.as_ref().is_some_and(|reply| !reply.cut) || self.replies.is_audible()
    }

    /// The first audio of a reply was handed over.
    pub(super) fn agent_is_audible(&mut self, after_silence: bool) {
        if after_silence {
            self.floor.audible_since = Some(self.now);
        }
    }

    pub(super) fn set_echo_cancelled(&mut self, cancelled: bool) {
        self.floor.echo_cancelled = cancelled;
    }

    /// Whether the agent's voice waits.
    pub(super) fn agent_is_paused(&self) -> bool {
        self.floor.paused
    }

    fn pause_agent(&mut self) {
        if !std::mem::replace(&mut self.floor.paused, true) {
            self.prompt_outputs.push_back(Output::PausePlayback);
            self.times.barge_in.paused(self.now);
            self.emit(EventKind::PlaybackPaused);
        }
    }

    /// The agent was cut off: nothing is paused any more. `cleared`: clearing the playout ends the
    /// pause.
    pub(super) fn end_pause(&mut self, cleared: bool) {
        if std::mem::take(&mut self.floor.paused) && !cleared {
            self.prompt_outputs.push_back(Output::ResumePlayback);
        }
        self.floor.judged = None;
        self.timers.stop(Timer::BargeIn);
    }

    /// Whether the user is not to be heard now.
    pub(super) fn refresh_deafness(&mut self) {
        let dropped = |protected| protected == Some(UserAudio::Drop);
        self.floor.deaf = match self.floor.policy {
            BargeIn::Never { audio: UserAudio::Drop } => self.agent_has_floor(),
            _ => false,
        } || dropped(self.replies.protected());
    }

    /// The user's audio as it goes to the provider.
    pub(super) fn audible_to_provider(&mut self, frame: AudioFrame) -> AudioFrame {
        if !self.floor.deaf {
            return frame;
        }
        self.stats.muted_user_ms += frame.duration().as_millis() as u64;
        // A provider that gets nothing for long hangs up, and its positions in the user's audio
        // would not be ours.
        frame.silenced()
    }
}
