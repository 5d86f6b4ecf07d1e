//! What the server tells, as events.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{ErrorInfo, LiveError, LiveEvent, Outbox, ReplyOutcome, Resumption};
use antiphon_types::Usage;
use secrecy::SecretString;
use serde_json::Value;

use super::{Client, Phase, errors, history, ignored};
use crate::{
    generation::InitialHistory,
    wire::{
        ApiError, GoAway, MediaModality, ModalityTokenCount, ServerMessage,
        SessionResumptionUpdate, ToolCallCancellation, UsageMetadata, VadSignalType,
        VoiceActivityType, Whole,
    },
};

/// A connection lasts ten minutes; a notice of more is a mistake.
const LONGEST_NOTICE: Duration = Duration::from_secs(3_600);
/// Calls that may be taken back by one message.
const MAX_CANCELLED: usize = 256;

impl Client {
    pub(super) fn on_message(
        &mut self,
        message: ServerMessage,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if let Some(error) = message.error {
            return self.on_error(error, now, out);
        }
        if message.setup_complete.is_some() && self.phase == Phase::Asked {
            self.become_ready(out);
            return Ok(());
        }
        if self.phase != Phase::Ready {
            tracing::debug!(kind = message.kind(), "a message before the session began");
            return Ok(());
        }
        if message.kind().is_empty() || message.setup_complete.is_some() {
            out.events.push_back(ignored("a message that says nothing"));
            return Ok(());
        }
        // The end of a turn may come with what it costs.
        if let Some(usage) = &message.usage_metadata {
            self.bill.tell(usage_of(usage), self.reply.is_some());
        }
        if let Some(content) = message.server_content {
            self.on_content(content, now, out);
        }
        if let Some(calls) = message.tool_call {
            self.on_tool_call(calls, now, out);
        }
        if let Some(cancelled) = message.tool_call_cancellation {
            self.on_cancellation(cancelled, out);
        }
        if let Some(update) = message.session_resumption_update {
            self.on_resumption(update, out);
        }
        if let Some(going) = message.go_away {
            self.on_going_away(&going, out);
        }
        if let Some(activity) = message.voice_activity {
            let at = activity.audio_offset.as_ref().and_then(|offset| offset.duration());
            let at_ms = at.and_then(|at| u64::try_from(at.as_millis()).ok());
            match activity.voice_activity_type {
                Some(VoiceActivityType::Start) => self.speech(true, at_ms, out),
                Some(VoiceActivityType::End) => self.speech(false, at_ms, out),
                _ => out.events.push_back(ignored("voiceActivity")),
            }
        }
        if let Some(signal) = message.voice_activity_detection_signal {
            match signal.vad_signal_type {
                Some(VadSignalType::StartOfSpeech) => self.speech(true, None, out),
                Some(VadSignalType::EndOfSpeech) => self.speech(false, None, out),
                _ => out.events.push_back(ignored("voiceActivityDetectionSignal")),
            }
        }
        Ok(())
    }

    fn become_ready(&mut self, out: &mut Outbox) {
        self.phase = Phase::Ready;
        let capabilities = self.settings.capabilities.clone();
        out.events.push_back(LiveEvent::Ready { capabilities });
        let history = std::mem::take(&mut self.history);
        if self.resume.is_some() {
            return;
        }
        // Before any audio, which some models refuse until they have it (quirk 60).
        let ends = self.settings.generation.initial_history == InitialHistory::Announced;
        for message in history::messages(&history, ends) {
            self.send(&message, out);
        }
    }

    fn on_error(
        &mut self,
        error: ApiError,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if self.phase != Phase::Ready {
            return Err(errors::refused_setup(&error, self.resume.is_some()));
        }
        let code = error.status.as_deref().unwrap_or("error");
        let mut told = ErrorInfo::new(code, errors::describe(&error));
        // What was asked for and has not begun is what it refuses.
        let refused = self.asked.as_ref().filter(|_| self.reply.is_none());
        let number = refused.filter(|asked| !asked.cancelled).and_then(|asked| asked.request);
        // A text has no number by which it could be refused: it is answered by a reply that fails.
        let fails = refused.is_some() && number.is_none();
        if let Some(request) = number {
            self.asked = None;
            told = told.for_request(request);
        }
        out.events.push_back(LiveEvent::Error(told));
        if fails && self.begin_reply(now, out) {
            self.end_reply(ReplyOutcome::Failed, out);
        } else if fails {
            // Nobody wants it any more, and nothing of it comes.
            self.remains = None;
        }
        // A close follows, and may not say as much.
        self.told = Some(error);
        Ok(())
    }

    fn on_cancellation(&mut self, cancelled: ToolCallCancellation, out: &mut Outbox) {
        let ids = cancelled.ids.unwrap_or_default();
        let mut known: Vec<Arc<str>> = Vec::new();
        for id in ids.iter().take(MAX_CANCELLED) {
            match self.calls.find(id) {
                Some(call) if !call.cancelled => {
                    call.cancelled = true;
                    known.push(call.id.clone());
                }
                _ if self.partials.forget(id) => {
                    out.events.push_back(ignored("a call that was taken back before it was told"));
                }
                _ => out.events.push_back(ignored("a cancellation of an unknown call")),
            }
        }
        if !known.is_empty() {
            out.events.push_back(LiveEvent::ToolCallsCancelled { ids: known });
        }
    }

    /// Only what one can resume by is a handle: while the model speaks or calls, an empty one comes.
    fn on_resumption(&mut self, update: SessionResumptionUpdate, out: &mut Outbox) {
        let consumed = update.last_consumed_client_message_index;
        let handle = update.new_handle.filter(|handle| !handle.is_empty());
        match handle.filter(|_| update.resumable == Some(true)) {
            Some(handle) => {
                if let Some(last) = consumed
                    && self.settings.capabilities.handles_count_commands
                {
                    let commands = self.messages.held(last.count());
                    out.events.push_back(LiveEvent::HandleHolds { commands });
                }
                let handle = SecretString::from(format!("{}{handle}", self.handle_prefix));
                out.events.push_back(LiveEvent::Resumable(Resumption { handle }));
            }
            None => out.events.push_back(LiveEvent::NotResumable),
        }
    }

    fn on_going_away(&mut self, going: &GoAway, out: &mut Outbox) {
        self.going_away = true;
        let time_left = going.time_left.as_ref().and_then(|left| left.duration());
        let time_left = time_left.map(|left| left.min(LONGEST_NOTICE));
        out.events.push_back(LiveEvent::GoingAway { time_left });
    }

    /// The user begins to speak, or stops.
    pub(super) fn speech(&mut self, begins: bool, at_ms: Option<u64>, out: &mut Outbox) {
        if std::mem::replace(&mut self.speaking, begins) == begins {
            return;
        }
        out.events.push_back(if begins {
            LiveEvent::SpeechStarted { audio_start_ms: at_ms }
        } else {
            LiveEvent::SpeechStopped { audio_end_ms: at_ms }
        });
    }
}

/// Passes something on as it came.
pub(super) fn pass_on(kind: &str, payload: Value, out: &mut Outbox) {
    out.events.push_back(LiveEvent::Native { kind: kind.into(), payload: Arc::new(payload) });
}

fn usage_of(usage: &UsageMetadata) -> Usage {
    let count = |whole: &Option<Whole>| whole.map_or(0, Whole::count);
    let of = |details: &Option<Vec<ModalityTokenCount>>, kinds: &[MediaModality]| -> u64 {
        let details = details.iter().flatten();
        details
            .filter(|part| part.modality.as_ref().is_some_and(|kind| kinds.contains(kind)))
            .map(|part| count(&part.token_count))
            .fold(0, u64::saturating_add)
    };
    let both = |first: u64, second: u64| first.saturating_add(second);
    let images = [MediaModality::Image, MediaModality::Video];
    let (prompt, tools) = (&usage.prompt_tokens_details, &usage.tool_use_prompt_tokens_details);
    let mut counted = Usage::default();
    counted.input_audio_tokens =
        both(of(prompt, &[MediaModality::Audio]), of(tools, &[MediaModality::Audio]));
    counted.input_image_tokens = both(of(prompt, &images), of(tools, &images));
    // What is neither, and what servers tell only as a sum, is text.
    let whole = both(count(&usage.prompt_token_count), count(&usage.tool_use_prompt_token_count));
    counted.input_text_tokens =
        whole.saturating_sub(both(counted.input_audio_tokens, counted.input_image_tokens));
    counted.cached_tokens = count(&usage.cached_content_token_count);
    counted.cached_audio_tokens = of(&usage.cache_tokens_details, &[MediaModality::Audio]);
    counted.cached_image_tokens = of(&usage.cache_tokens_details, &images);
    counted.output_audio_tokens = of(&usage.response_tokens_details, &[MediaModality::Audio]);
    counted.output_text_tokens = both(
        count(&usage.response_token_count).saturating_sub(counted.output_audio_tokens),
        count(&usage.thoughts_token_count),
    );
    counted
}
