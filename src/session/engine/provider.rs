//! What the provider tells.

use std::{sync::Arc, time::Duration};

use antiphon_live::{LiveCommand, LiveError, LiveEvent, ReplyId, ReplyOutcome, TextUpdate};
use antiphon_types::AudioFrame;

use super::{
    Engine, Phase, confirm,
    floor::WordsAre,
    io::{Origin, Output},
    sequencer::{Reply, Why},
    timers::Timer,
    transcripts::{self, Utterance},
};
use crate::session::{EventKind, RequestEnd, ResumeCause, SessionState};

/// After the user's speech its words are waited for this long; after that it was noise.
const TRANSCRIPT_WAIT: Duration = Duration::from_secs(5);
/// Speech whose end the provider does not tell is taken as over after this.
const LONGEST_SPEECH: Duration = Duration::from_secs(30);
/// After a reply, the user's words before it get this long to become final by themselves.
const TRANSCRIPT_FLUSH: Duration = Duration::from_secs(3);
/// A reply that was taken as over may still go on, after a pause or a tool of the server's own; when
/// nothing of it came for this long its end was lost, and what waits for it goes ahead.
const LOST_END: Duration = Duration::from_secs(30);

impl Engine {
    pub(super) fn on_provider(&mut self, epoch: u32, event: LiveEvent) {
        if epoch != self.epoch || !self.connected {
            match event {
                LiveEvent::Audio { .. } => self.stats.stale_audio_frames += 1,
                _ => self.stats.ignored_events += 1,
            }
            return;
        }
        self.note_progress(&event);
        match event {
            LiveEvent::Ready { capabilities } => self.capabilities = Some(capabilities),
            LiveEvent::SpeechStarted { audio_start_ms } => self.on_speech_started(audio_start_ms),
            LiveEvent::SpeechStopped { audio_end_ms } => self.on_speech_stopped(audio_end_ms),
            LiveEvent::Interrupted { reply } => self.on_interrupted(reply),
            LiveEvent::InputCommitted { item } => {
                self.utterances.committed(item, self.now);
                self.speech_is_taken();
            }
            LiveEvent::InputTranscript { item, text, speaker } => {
                let language = speaker.and_then(|speaker| speaker.language);
                self.on_input_transcript(item, text, language);
            }
            LiveEvent::ReplyStarted { reply, request } => self.on_reply_started(reply, request),
            LiveEvent::OutputTranscript { reply, item, text } => {
                self.on_output_text(reply, item, text, true);
            }
            LiveEvent::WordTimes { reply, item, words } => match self.replies.active_mut(&reply) {
                Some(reply) if !reply.cut => reply.ledger.word_times(&item, words),
                _ => self.stats.ignored_events += 1,
            },
            LiveEvent::OutputText { reply, item, text } => {
                self.on_output_text(reply, item, text, false);
            }
            LiveEvent::Audio { reply, item, content_index, frame } => {
                self.on_audio(reply, item, content_index, frame);
            }
            LiveEvent::ToolCalls { reply, calls } => self.on_tool_calls(reply, calls),
            LiveEvent::ToolPermission { reply, call } => self.on_tool_permission(reply, call),
            LiveEvent::ToolCallsCancelled { ids } => self.on_tool_calls_cancelled(ids),
            LiveEvent::ToolResultAccepted { .. } => {}
            LiveEvent::ReplyDone { reply, outcome, usage } => {
                self.note_reply_done(&reply, outcome, usage);
                if let Some(usage) = usage {
                    self.stats.usage.add(&usage);
                    self.check_cost();
                }
                self.on_reply_done(reply, outcome);
            }
            LiveEvent::Error(error) => {
                let refused = self
                    .replies
                    .asked
                    .is_some_and(|asked| asked.number.is_some() && asked.number == error.request);
                if refused {
                    self.give_up_asked(RequestEnd::Refused);
                }
                match error.call {
                    Some(call) => self.on_output_refused(call, &error.message),
                    None => {
                        self.emit_error("provider", format!("{}: {}", error.code, error.message));
                    }
                }
            }
            LiveEvent::GoingAway { time_left } => self.on_going_away(time_left),
            LiveEvent::Resumable(handle) => {
                let provider = self.reconnect.attempts.provider();
                let whole = self.is_told_whole();
                self.note_handle(provider, &handle, whole);
                self.reconnect.handle.renew(provider, handle, whole);
            }
            LiveEvent::NotResumable => self.outdate_handle(),
            // The driver keeps what a handle does not hold.
            LiveEvent::HandleHolds { .. } => {}
            _ => self.stats.ignored_events += 1,
        }
    }

    /// The connection refused a command; it stays usable.
    pub(super) fn on_refused(
        &mut self,
        epoch: u32,
        command: &'static str,
        origin: Origin,
        error: LiveError,
    ) {
        if epoch != self.epoch {
            return;
        }
        self.emit_error("provider", format!("{command} was refused: {error}"));
        if let Origin::Prompt(id) = origin {
            self.on_prompt_refused(id);
        }
        if matches!(origin, Origin::Asked | Origin::Prompt(_)) {
            self.give_up_asked(RequestEnd::Refused);
        }
        let awaits = self.replies.asked.is_some()
            || self.replies.active.is_some()
            || self.calls.any_at_work();
        if matches!(command, "activity_end" | "end_audio")
            && self.state == SessionState::Processing
            && !awaits
        {
            // A turn by hand that was not taken, such as a key that was only tapped, is none.
            self.turn.pending = false;
            self.utterances.speech_was_noise();
            self.set_state(SessionState::Listening);
        }
    }

    /// Whatever comes shows that the provider has not stalled.
    fn note_progress(&mut self, event: &LiveEvent) {
        let counts = !matches!(
            event,
            LiveEvent::Ignored { .. }
                | LiveEvent::Resumable(_)
                | LiveEvent::HandleHolds { .. }
                | LiveEvent::NotResumable
                | LiveEvent::GoingAway { .. }
        );
        if counts && self.timers.is_set(Timer::Answer) {
            self.answer_is_due();
        }
        if counts && self.timers.is_set(Timer::Stall) {
            self.stalled.since = Some(self.now);
            self.stalled.times = 0;
            self.timers.set(Timer::Stall, self.now + self.limits.stall);
        }
    }

    fn on_speech_started(&mut self, audio_start_ms: Option<u64>) {
        let late = self.late_by(audio_start_ms);
        let began = self.now.checked_sub(late).unwrap_or(self.now);
        self.times.barge_in.user_began(began);
        self.speeches.begins(self.now, began);
        self.emit(EventKind::SpeechStarted);
        self.user_begins(false);
        self.user_spoke(late);
        if !self.can(|can| can.input_transcripts) {
            self.user_is_active();
        }
    }

    /// The user begins to speak, as the provider or, `by_hand`, the host tells.
    pub(super) fn user_begins(&mut self, by_hand: bool) {
        self.attention.speech_begins(self.now);
        self.utterances.speech_begins(self.now);
        self.turn.pending = true;
        if by_hand {
            self.speeches.begins(self.now, self.now);
        }
        self.timers.set(Timer::TranscriptWait, self.now + LONGEST_SPEECH);
        self.timers.stop(Timer::TranscriptFlush);
        self.floor_is_wanted(by_hand);
    }

    /// The user spoke by hand when the last connection was lost, and still does.
    pub(super) fn speech_goes_on(&mut self) {
        self.attention.speech_begins(self.now);
        self.utterances.speech_begins(self.now);
        self.turn.pending = true;
    }

    fn on_speech_stopped(&mut self, audio_end_ms: Option<u64>) {
        self.emit(EventKind::SpeechStopped);
        self.attention.speech_is_over();
        self.timers.set(Timer::TranscriptWait, self.now + TRANSCRIPT_WAIT);
        let late = self.late_by(audio_end_ms);
        let ended = self.now.checked_sub(late).unwrap_or(self.now);
        self.latency.user_ended(ended);
        self.speeches.ends(ended);
        let until_told = audio_end_ms.map_or(self.end_silence(), |_| Duration::ZERO);
        self.speech_lasted(self.speeches.length_of_last().saturating_sub(until_told));
        self.floor_is_left();
    }

    /// A detector tells late, by the silence or the speech it waited for; the position in the user's
    /// audio tells the truth.
    fn late_by(&self, position_ms: Option<u64>) -> Duration {
        position_ms
            .map(|position| self.uplink_sent.saturating_sub(Duration::from_millis(position)))
            .filter(|late| *late < TRANSCRIPT_WAIT)
            .unwrap_or_default()
    }

    fn on_interrupted(&mut self, reply: Option<ReplyId>) {
        let meant = match &reply {
            None => true,
            Some(id) => self
                .replies
                .active
                .iter()
                .chain(&self.replies.playing)
                .any(|known| known.id.as_ref() == Some(id) && !known.cut),
        };
        // What is protected is heard as far as it came.
        let meant = meant && self.replies.protected().is_none();
        if !meant || !self.interrupt(false) {
            self.stats.ignored_events += 1;
            return;
        }
        // Somebody spoke.
        self.user_spoke(Duration::ZERO);
        self.speech_is_taken();
        if !self.attention.user_speaks() {
            self.answer_is_due();
        }
    }

    fn on_input_transcript(
        &mut self,
        item: Arc<str>,
        update: TextUpdate,
        language: Option<Arc<str>>,
    ) {
        if self.utterances.is_finished(&item) {
            self.stats.ignored_events += 1;
            return;
        }
        if self.utterances.find(&item).is_none() {
            // A new utterance: the ones before it are as complete as they will be.
            self.flush_utterances();
            let speech = self.utterances.take_wordless(&item);
            let began_at = speech
                .as_ref()
                .map(|speech| speech.began_at)
                .or(self.attention.speech_began)
                .unwrap_or(self.now);
            let turn = speech.and_then(|speech| speech.turn);
            let (item, text) = (item.clone(), String::new());
            self.utterances.open(Utterance { item, text, turn, began_at, language: None });
        }
        let Some(utterance) = self.utterances.find(&item) else { return };
        utterance.language = language.or(utterance.language.take());
        let done = transcripts::apply(&mut utterance.text, update);
        let text = utterance.text.clone();
        let (known_turn, began_at) = (utterance.turn, utterance.began_at);
        let earlier = self.attention.spoke_after(began_at);
        if text.trim().is_empty() {
            if done {
                self.utterances.finish(&item);
                if !earlier {
                    self.forget_over_agent(item);
                    self.dismiss_speech(ResumeCause::Noise);
                }
            }
            return;
        }
        // What was told as a turn once stays one, and the user's present speech says nothing of what
        // was said before it.
        let judgement = match known_turn {
            Some(_) => WordsAre::ATurn,
            None if earlier => WordsAre::ATurn,
            None => self.judge_words(&text, done),
        };
        match judgement {
            WordsAre::ATurn => {}
            WordsAre::Unclear => return,
            WordsAre::Nothing => {
                self.utterances.finish(&item);
                self.forget_over_agent(item);
                return;
            }
        }
        let turn = match known_turn {
            Some(turn) => turn,
            None => {
                let turn = self.begin_turn();
                // Speech whose words are still to come may be answered before they do.
                self.turn.pending = self.utterances.any_unanswered_after(began_at);
                turn
            }
        };
        if let Some(utterance) = self.utterances.find(&item) {
            utterance.turn = Some(turn);
        }
        self.words_are_awaited(turn);
        self.user_is_active();
        self.emit_in(turn, EventKind::UserTranscript { text, done });
        if done && let Some(utterance) = self.utterances.finish(&item) {
            self.user_message(utterance);
        }
    }

    /// The user's words are complete.
    fn user_message(&mut self, utterance: Utterance) {
        let turn = utterance.turn.unwrap_or(self.turn.number);
        let text = utterance.text.trim().to_owned();
        let earlier = self.attention.spoke_after(utterance.began_at);
        if !earlier {
            self.timers.stop(Timer::TranscriptWait);
            self.attention.speech_is_over();
            self.speech_is_answered();
        }
        self.note_utterance(turn, &utterance);
        self.emit_in(turn, EventKind::UserMessage { text: text.clone() });
        self.screen_words(turn, &text);
        self.remember_user(turn, &text);
        self.count_workflow_turn();
        let answers = self
            .asking
            .is_some_and(|(_, asked)| asked.is_some_and(|asked| utterance.began_at >= asked));
        if answers {
            self.user_is_answered();
            self.decide_read_back(confirm::parse(&text));
        }
        // What is being said now is waited for, and answered together with this.
        if !(earlier && self.attention.user_speaks()) {
            self.answer_user();
        }
        let awaited = turn == self.turn.number && !self.turn.replied;
        if self.state == SessionState::Listening && awaited && self.phase == Phase::Running {
            self.set_state(SessionState::Processing);
        }
    }

    /// Takes all open utterances as complete.
    pub(super) fn flush_utterances(&mut self) {
        self.timers.stop(Timer::TranscriptFlush);
        while let Some(utterance) = self.utterances.finish_oldest() {
            let text = utterance.text.clone();
            if !text.trim().is_empty() {
                let turn = utterance.turn.unwrap_or(self.turn.number);
                self.emit_in(turn, EventKind::UserTranscript { text, done: true });
                self.user_message(utterance);
            }
        }
    }

    pub(super) fn speech_was_noise(&mut self) {
        self.utterances.speech_was_noise();
        self.turn.pending = false;
        self.attention.speech_is_over();
        self.timers.stop(Timer::TranscriptWait);
        self.speech_is_answered();
    }

    /// The user's next turn begins.
    pub(super) fn begin_turn(&mut self) -> u64 {
        if std::mem::take(&mut self.turn.failed) {
            self.turn.replied = true;
            self.finish_turn();
        }
        self.outdate_handle();
        self.turn.number += 1;
        self.turn.open = true;
        self.turn.replied = false;
        self.turn.pending = false;
        self.stats.turns += 1;
        self.cancel_calls_on_interruption();
        self.user_is_active();
        self.turn.number
    }

    fn on_reply_started(&mut self, reply: ReplyId, request: Option<u64>) {
        if let Some(unfinished) = self.replies.active.as_ref().and_then(|reply| reply.id.clone()) {
            // The contract allows one active reply; a provider that forgot to end the last one
            // ends it with the next.
            self.end_reply(&unfinished, ReplyOutcome::Incomplete);
        }
        self.begin_reply(reply, request);
    }

    /// A reply begins; also one that the provider did not announce.
    fn begin_reply(&mut self, reply: ReplyId, request: Option<u64>) {
        self.outdate_handle();
        let asked = self.replies.asked.filter(|asked| asked.number == request);
        if let Some(asked) = asked {
            self.replies.asked = None;
            self.tell_request_end(asked.request, RequestEnd::Started);
        }
        let why = asked.map_or(Why::User, |asked| asked.request.why);
        let protected = asked.and_then(|asked| asked.request.protected);
        if why == Why::User && self.turn.pending {
            let turn = self.begin_turn();
            self.utterances.are_answered_in(turn, self.now);
            self.words_are_awaited(turn);
        }
        if let Why::ReadBack { call } = why {
            self.read_back_begins(call);
        }
        self.timers.stop(Timer::TranscriptWait);
        self.timers.stop(Timer::CancelAck);
        self.stats.replies += 1;
        self.turn.failed = false;
        let turn = self.turn.number;
        self.replies.start(reply, why, turn, protected);
        self.guard_reply();
        self.reply_meets_speech();
    }

    fn on_output_text(&mut self, id: ReplyId, item: Arc<str>, update: TextUpdate, spoken: bool) {
        if !self.is_current(&id) {
            self.stats.ignored_events += 1;
            return;
        }
        let Some(reply) = self.replies.active_mut(&id) else { return };
        let done = reply.ledger.text(&item, update);
        let text = reply.ledger.whole_text();
        let (turn, number, guarded) = (reply.turn, reply.number, reply.guard.is_some());
        self.timers.stop(Timer::LostEnd);
        self.agent_answers();
        if guarded {
            self.guard_words(number, text, done, spoken);
        } else if !text.is_empty() {
            self.emit_in(
                turn,
                if spoken {
                    EventKind::AgentTranscript { text, done }
                } else {
                    EventKind::AgentText { text, done }
                },
            );
        }
        if done {
            // Some send all words before the audio: an end of the words is no end of the reply.
            self.timers.set(Timer::Settle, self.now + self.limits.settle);
        } else if self.state == SessionState::Listening {
            self.set_state(SessionState::Processing);
        }
    }

    fn on_audio(&mut self, id: ReplyId, item: Arc<str>, content_index: u32, frame: AudioFrame) {
        if frame.is_empty() {
            return;
        }
        if !self.is_current(&id) {
            self.stats.stale_audio_frames += 1;
            return;
        }
        if self.has_hung_up() {
            return self.on_unheard_audio(&id, &item, content_index, &frame);
        }
        let length = frame.duration();
        let unheard = self.replies.unheard();
        let audible = self.replies.is_audible();
        let now = self.now;
        let Some(reply) = self.replies.active_mut(&id) else { return };
        if reply.over_limit {
            self.stats.stale_audio_frames += 1;
            return;
        }
        if unheard + length > self.limits.reply_audio {
            reply.over_limit = true;
            self.emit_error("provider", "the reply has more audio than may wait; it is cut short");
            self.cancel_at_provider(Some(id));
            return;
        }
        let first = !reply.ledger.has_audio();
        let silence = first && !audible;
        reply.ledger.audio(&item, content_index, length);
        if reply.guard.is_some() {
            let number = reply.number;
            self.hold_back(number, frame);
        } else {
            reply.began_at = reply.began_at.or(Some(now));
            reply.queued += length;
            let (generation, turn) = (reply.generation, reply.turn);
            self.prompt_outputs.push_back(Output::Play { generation, frame });
            if first {
                self.playback_starts(turn, silence);
            }
        }
        if first {
            self.agent_answers();
        }
        self.set_state(SessionState::Speaking);
        self.timers.stop(Timer::LostEnd);
        self.timers.set(Timer::Settle, self.now + self.limits.settle);
    }

    /// The first audio of a reply was handed over.
    pub(super) fn playback_starts(&mut self, turn: u64, after_silence: bool) {
        self.times.barge_in.reset();
        if let Some(latency) = self.latency.audio(self.now) {
            self.times.answers.add(latency);
        }
        self.emit_in(turn, EventKind::PlaybackStarted);
        self.agent_is_audible(after_silence);
    }

    /// Whether what belongs to this reply is let through. A reply that was not announced begins
    /// here, unless it is the remains of one that is over.
    fn is_current(&mut self, id: &ReplyId) -> bool {
        match &self.replies.active {
            Some(active) => active.id.as_ref() == Some(id) && !active.cut,
            None if self.replies.was_done(id) => false,
            None => {
                self.begin_reply(id.clone(), None);
                true
            }
        }
    }

    fn on_reply_done(&mut self, id: ReplyId, outcome: ReplyOutcome) {
        if self.replies.active_mut(&id).is_none() {
            // A reply that ended before anything of it came may still answer a request.
            self.stats.ignored_events += 1;
            return;
        }
        let silent = self.replies.active.as_ref().is_some_and(Reply::is_silent);
        self.end_reply(&id, outcome);
        if !matches!(outcome, ReplyOutcome::Interrupted | ReplyOutcome::Cancelled) {
            self.agent_answers();
        }
        self.judge_provider(!(silent && outcome == ReplyOutcome::Failed));
        if !self.connected {
            return;
        }
        if self.utterances.any_open() && !self.attention.user_speaks() {
            self.timers.set(Timer::TranscriptFlush, self.now + TRANSCRIPT_FLUSH);
        }
    }

    /// No more audio, and no word that the reply is over.
    pub(super) fn on_settle(&mut self) {
        self.turn.replied |= std::mem::take(&mut self.turn.failed) && self.connected;
        if matches!(self.state, SessionState::Speaking | SessionState::Processing)
            && !self.calls.any_at_work()
        {
            self.set_state(SessionState::Listening);
        }
        // Some tell the end when all would have been heard; some never say that anything is over, and
        // mean nothing by it.
        if !self.can(|can| can.continuous_duplex) {
            self.timers.set(Timer::LostEnd, self.now + self.replies.unheard() + LOST_END);
        }
    }

    /// The end of a reply was lost: it is over all the same.
    pub(super) fn on_lost_end(&mut self) {
        if self.calls.any_at_work() {
            self.timers.set(Timer::LostEnd, self.now + LOST_END);
            return;
        }
        let active = self.replies.active.as_ref().filter(|reply| !reply.cut);
        let Some(id) = active.and_then(|reply| reply.id.clone()) else { return };
        self.emit_error("provider", "the end of a reply never came");
        self.end_reply(&id, ReplyOutcome::Incomplete);
        // Whoever still waits for that end must not.
        self.send(LiveCommand::CancelReply { reply: Some(id) }, Origin::None);
    }
}
