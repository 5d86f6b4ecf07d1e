//! What the server tells, as events.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{ErrorInfo, LiveError, LiveEvent, Outbox, RateLimit, TextUpdate};
use serde_json::Value;

use super::{Client, Phase, ignored, replies::Stop};
use crate::wire::{AudioDelta, Item, ServerEvent, Unknown};

impl Client {
    pub(super) fn on_event(
        &mut self,
        event: ServerEvent,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        match &event {
            ServerEvent::SessionCreated(created) => {
                self.note_expiry(&created.session, now);
                self.first_word(now, out);
                return Ok(());
            }
            // xAI may say this instead (quirk 68).
            ServerEvent::ConversationCreated(created) => {
                self.conversation_begins(created.conversation.id.as_deref())?;
                self.first_word(now, out);
                return Ok(());
            }
            ServerEvent::SessionUpdated(updated) => {
                if matches!(self.phase, Phase::Asked { .. }) {
                    self.note_expiry(&updated.session, now);
                    self.become_ready(out)?;
                }
                return Ok(());
            }
            ServerEvent::Error(error) => return self.on_error(&error.error, now, out),
            _ if self.phase != Phase::Ready => {
                tracing::debug!(kind = event.kind(), "an event before the session began");
                return Ok(());
            }
            _ => {}
        }
        self.on_session_event(event, now, out);
        Ok(())
    }

    fn first_word(&mut self, now: Instant, out: &mut Outbox) {
        if matches!(self.phase, Phase::Opened { .. }) {
            self.ask_for_session(true, now, out);
        }
    }

    fn on_session_event(&mut self, event: ServerEvent, now: Instant, out: &mut Outbox) {
        match event {
            ServerEvent::SpeechStarted(event) => {
                self.speech_started(event.audio_start_ms, now, out)
            }
            ServerEvent::SpeechStopped(event) => {
                self.speech_stopped(Some(event.audio_end_ms), out);
            }
            ServerEvent::BufferCommitted(event) => {
                // Some servers do not say that the speech is over.
                self.speech_stopped(None, out);
                self.uplink.buffered = 0;
                self.server_turn = self.settings.server_replies;
                // A server that may not stop its reply may forget the turn.
                self.passed_over =
                    self.server_turn && !self.settings.interrupts && self.replies.active.is_some();
                if self.settings.input_transcripts {
                    let previous = event.previous_item_id.as_deref();
                    self.hearing.committed(&event.item_id, previous, out);
                }
            }
            ServerEvent::TranscriptionDelta(event) => {
                let words = TextUpdate::Delta(event.delta.unwrap_or_default());
                self.heard(&event.item_id, words, now, out);
            }
            ServerEvent::TranscriptionUpdated(event) => {
                let words = TextUpdate::Snapshot(event.transcript.unwrap_or_default());
                self.heard(&event.item_id, words, now, out);
            }
            ServerEvent::TranscriptionCompleted(event) => {
                if let Some([language]) = event.languages.as_deref() {
                    self.hearing.language(&event.item_id, &language.code);
                }
                let words = TextUpdate::Final(Some(event.transcript));
                self.heard(&event.item_id, words, now, out);
            }
            ServerEvent::TranscriptionFailed(event) => {
                let code =
                    event.error.code.as_deref().unwrap_or("input_audio_transcription_failed");
                let message = event.error.message.unwrap_or_default();
                out.events.push_back(LiveEvent::Error(ErrorInfo::new(code, message)));
                self.hearing.failed(&event.item_id, now, out);
            }
            ServerEvent::ResponseCreated(event) => self.reply_created(&event.response, now, out),
            ServerEvent::ResponseDone(event) => self.reply_done(*event.response, now, out),
            ServerEvent::OutputItemAdded(event) => {
                if self.current(&event.response_id, out) {
                    self.item_added(event.item);
                }
            }
            ServerEvent::OutputItemDone(event) => {
                if self.current(&event.response_id, out) {
                    self.item_done(event.item, out);
                }
            }
            // Only reached where the kind could not be seen without parsing.
            ServerEvent::AudioDelta(event) => {
                let delta = AudioDelta {
                    response_id: event.response_id.into(),
                    item_id: event.item_id.into(),
                    content_index: Some(event.content_index),
                    delta: event.delta.into(),
                };
                if self.on_audio(&delta, now, out).is_err() {
                    out.events.push_back(ignored("bad audio"));
                }
            }
            ServerEvent::AudioDone(event) => {
                if let Some(audio) = self.replies.audio_of(&event.item_id, event.content_index) {
                    audio.whole = true;
                    audio.carry = None;
                }
            }
            ServerEvent::TranscriptDelta(event) => {
                if self.current(&event.response_id, out) {
                    let words = TextUpdate::Delta(event.delta);
                    self.spoken(&event.item_id, event.content_index, words, out);
                }
            }
            ServerEvent::TranscriptDone(event) => {
                if self.current(&event.response_id, out) {
                    let words = TextUpdate::Final(event.transcript);
                    self.spoken(&event.item_id, event.content_index, words, out);
                }
            }
            ServerEvent::TextDelta(event) => {
                if self.current(&event.response_id, out) {
                    let words = TextUpdate::Delta(event.delta);
                    self.written(&event.item_id, event.content_index, words, out);
                }
            }
            ServerEvent::TextDone(event) => {
                if self.current(&event.response_id, out) {
                    let words = TextUpdate::Final(event.text);
                    self.written(&event.item_id, event.content_index, words, out);
                }
            }
            ServerEvent::ArgumentsDone(event) => {
                if self.current(&event.response_id, out) {
                    let known = self.item_of_active(&event.item_id);
                    let known = known.and_then(|item| item.call.clone());
                    let name = event.name.filter(|name| !name.is_empty());
                    let name = name.or_else(|| known.as_ref().map(|(_, name)| name.to_string()));
                    let id = event.call_id.or_else(|| known.map(|(id, _)| id.to_string()));
                    // Without a name it is told with the item.
                    if let (Some(id), Some(name)) = (id, name) {
                        self.tell_call(&id, &name, event.arguments, out);
                    }
                }
            }
            ServerEvent::ItemAdded(event) | ServerEvent::ItemCreated(event) => {
                if let Item::FunctionCallOutput(output) = event.item {
                    let id = self.calls.of_session(&output.call_id);
                    // What an earlier connection said is told again.
                    if self.conversation.is_old() && !self.has_answered(&id) {
                        return out.events.push_back(ignored("an output of an earlier connection"));
                    }
                    out.events.push_back(LiveEvent::ToolResultAccepted { id });
                    self.tell_resumable(out);
                }
            }
            ServerEvent::RateLimitsUpdated(event) => {
                let limits = event.rate_limits.into_iter().take(16).map(|limit| {
                    RateLimit::new(
                        limit.name.unwrap_or_default(),
                        limit.limit.and_then(|limit| u64::try_from(limit).ok()),
                        limit.remaining.and_then(|left| u64::try_from(left).ok()),
                        limit
                            .reset_seconds
                            .and_then(|after| Duration::try_from_secs_f64(after).ok()),
                    )
                });
                out.events.push_back(LiveEvent::RateLimits(limits.collect()));
            }
            ServerEvent::McpListToolsInProgress(_)
            | ServerEvent::McpListToolsCompleted(_)
            | ServerEvent::McpListToolsFailed(_)
            | ServerEvent::McpCallInProgress(_)
            | ServerEvent::McpCallCompleted(_)
            | ServerEvent::McpCallFailed(_)
            | ServerEvent::McpArgumentsDone(_)
            | ServerEvent::TranscriptionSegment(_)
            | ServerEvent::DtmfReceived(_)
            | ServerEvent::TimeoutTriggered(_) => pass_on(&event, out),
            // What they say is said by other events too.
            ServerEvent::ItemDone(event) => {
                if let Item::McpApprovalRequest(request) = event.item {
                    self.tell_permission(request, out);
                }
            }
            ServerEvent::ItemDeleted(_)
            | ServerEvent::ItemRetrieved(_)
            | ServerEvent::ItemTruncated(_)
            | ServerEvent::BufferCleared(_)
            | ServerEvent::ContentPartAdded(_)
            | ServerEvent::ContentPartDone(_)
            | ServerEvent::ArgumentsDelta(_)
            | ServerEvent::McpArgumentsDelta(_) => {}
            ServerEvent::Unknown(event) => self.on_unknown(&event, now, out),
            other => out.events.push_back(ignored(other.kind())),
        }
    }

    fn on_unknown(&mut self, event: &Unknown, now: Instant, out: &mut Outbox) {
        // Some mocks say it in place of `response.done`, some before it.
        if event.kind == "response.cancelled" {
            let id = event.raw.get("response_id").or_else(|| event.raw.pointer("/response/id"));
            let id = id.and_then(Value::as_str).unwrap_or_default();
            if id.is_empty() || self.replies.is_active(id) {
                let stopped = self.replies.active.as_ref().and_then(|reply| reply.stopped);
                self.end_reply(stopped.unwrap_or(Stop::Cancelled).outcome(), None, now, out);
                return;
            }
        }
        out.events.push_back(ignored(&event.kind));
    }
}

/// The user.
impl Client {
    fn speech_started(&mut self, start_ms: u64, now: Instant, out: &mut Outbox) {
        if std::mem::replace(&mut self.uplink.speaking, true) {
            return;
        }
        let audio_start_ms = Some(start_ms.saturating_sub(self.uplink.added_ms));
        out.events.push_back(LiveEvent::SpeechStarted { audio_start_ms });
        // The server stops its reply; what it has on the way is not wanted any more (quirk 36). It
        // is not asked to (quirk 35).
        self.interrupt(false, now, out);
    }

    fn speech_stopped(&mut self, end_ms: Option<u64>, out: &mut Outbox) {
        if std::mem::replace(&mut self.uplink.speaking, false) {
            let audio_end_ms = end_ms.map(|end| end.saturating_sub(self.uplink.added_ms));
            out.events.push_back(LiveEvent::SpeechStopped { audio_end_ms });
        }
    }

    fn heard(&mut self, item: &str, words: TextUpdate, now: Instant, out: &mut Outbox) {
        if !self.settings.input_transcripts || !self.hearing.words(item, words, now, out) {
            out.events.push_back(ignored("a transcript of words that were complete"));
        }
    }
}

/// Passes something on as it came.
pub(super) fn pass_on<T: serde::Serialize>(event: &T, out: &mut Outbox) {
    let payload = serde_json::to_value(event).unwrap_or_default();
    let kind = payload.get("type").and_then(Value::as_str).unwrap_or("mcp").into();
    out.events.push_back(LiveEvent::Native { kind, payload: Arc::new(payload) });
}
