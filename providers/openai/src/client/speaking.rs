//! What the server tells of its replies: begun, said, called, done.

use std::{sync::Arc, time::Instant};

use antiphon_live::{ErrorInfo, LiveError, LiveEvent, Outbox, ReplyOutcome, TextUpdate};
use antiphon_types::{AudioFrame, ToolArguments, ToolCallRequest, Usage};

use super::{
    ANSWER_BY_ITSELF, Client, METADATA_KEY,
    events::pass_on,
    ignored,
    replies::{Item as ReplyItem, MAX_CALLS, Stop, Words},
    requests, usage_of,
};
use crate::wire::{
    AudioDelta, ContentType, FunctionCall, Item, ItemStatus, Message, Response, ResponseStatus,
    decode_audio,
};

impl Client {
    pub(super) fn reply_created(&mut self, response: &Response, now: Instant, out: &mut Outbox) {
        let id = response.id.as_deref().unwrap_or_default();
        if !id.is_empty() && (self.replies.is_active(id) || self.replies.is_over(id)) {
            out.events.push_back(ignored("a reply that began twice"));
            return;
        }
        if let Some(unfinished) = &self.replies.active {
            // The server has one reply at a time: this one's end is late, or will not come
            // (quirk 11).
            let outcome = unfinished.stopped.map_or(ReplyOutcome::Incomplete, Stop::outcome);
            self.end_active(outcome, None, out);
        }
        (self.passed_over, self.answer_at) = (false, None);
        let answered = self.take_answered(response);
        let (request, cancelled) = match answered {
            Some(sent) => (sent.wanted.request, sent.cancelled),
            None => {
                self.server_turn = false;
                (None, false)
            }
        };
        self.begin_reply(id, request, out);
        if cancelled {
            self.stop_reply(Stop::Cancelled, true, now, out);
        }
    }

    fn begin_reply(&mut self, id: &str, request: Option<u64>, out: &mut Outbox) {
        let reply = self.replies.start(id);
        out.events.push_back(LiveEvent::ReplyStarted { reply: reply.id.clone(), request });
        self.tell_not_resumable(out);
    }

    /// The request that a response answers; `None`: the server began it by itself.
    fn take_answered(&mut self, response: &Response) -> Option<requests::InFlight> {
        let told = response.metadata.as_ref().and_then(|data| data.get(METADATA_KEY));
        let number = told.and_then(|id| requests::number_of(id));
        let sent = self.requests.in_flight.as_ref()?;
        match number {
            Some(number) if number == sent.number => {
                self.requests.metadata_returns = true;
                self.requests.in_flight.take()
            }
            Some(_) => None,
            None if told.is_some() => None,
            // It does not say. A server that returns metadata means its own reply, and so does one
            // that has a turn of the user to answer.
            None if sent.wanted.is_marked()
                && (self.requests.metadata_returns || self.server_turn) =>
            {
                None
            }
            None => self.requests.in_flight.take(),
        }
    }

    /// Whether what belongs to this response is let through. A reply that was not announced begins
    /// here (quirk 18), unless it is the remains of one that is over.
    pub(super) fn current(&mut self, id: &str, out: &mut Outbox) -> bool {
        match &self.replies.active {
            Some(active) if id.is_empty() || *active.id.0 == *id => true,
            None if !id.is_empty() && !self.replies.is_over(id) => {
                self.begin_reply(id, None, out);
                true
            }
            _ => {
                out.events.push_back(LiveEvent::Ignored { kind: self.stale.clone() });
                false
            }
        }
    }

    /// Voice, straight into shared bytes.
    pub(super) fn on_audio(
        &mut self,
        delta: &AudioDelta<'_>,
        _: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if !self.current(&delta.response_id, out) {
            return Ok(());
        }
        let Some(reply) = &mut self.replies.active else { return Ok(()) };
        if reply.stopped.is_some() {
            out.events.push_back(LiveEvent::Ignored { kind: self.stale.clone() });
            return Ok(());
        }
        let id = reply.id.clone();
        let item = reply.item(&delta.item_id).id.clone();
        let content_index = delta.content_index.unwrap_or_default();
        let format = self.settings.capabilities.output;
        let audio = self.replies.audio(&item, content_index);
        let mut data = match decode_audio(&delta.delta, audio.carry.take()) {
            Ok(data) => data,
            Err(error) => return self.on_malformed(error.to_string(), out),
        };
        self.malformed = 0;
        // A server may cut a sample in two; its second half comes with the next frame.
        if data.len() % format.bytes_per_sample() != 0 {
            let last = data.split_off(data.len() - 1);
            audio.carry = last.first().copied();
        }
        if data.is_empty() {
            return Ok(());
        }
        audio.bytes = audio.bytes.saturating_add(data.len() as u64);
        let frame = AudioFrame::new(format, data);
        out.events.push_back(LiveEvent::Audio { reply: id, item, content_index, frame });
        Ok(())
    }

    pub(super) fn spoken(&mut self, item: &str, part: u32, words: TextUpdate, out: &mut Outbox) {
        if !self.settings.output_transcripts {
            return;
        }
        let Some(reply) = &mut self.replies.active else { return };
        let id = reply.id.clone();
        let item = reply.item(item);
        if let Some(text) = next_words(&mut item.transcript, part, words) {
            let item = item.id.clone();
            out.events.push_back(LiveEvent::OutputTranscript { reply: id, item, text });
        }
    }

    pub(super) fn written(&mut self, item: &str, part: u32, words: TextUpdate, out: &mut Outbox) {
        let Some(reply) = &mut self.replies.active else { return };
        let id = reply.id.clone();
        let item = reply.item(item);
        if let Some(text) = next_words(&mut item.text, part, words) {
            let item = item.id.clone();
            out.events.push_back(LiveEvent::OutputText { reply: id, item, text });
        }
    }

    pub(super) fn item_of_active(&mut self, id: &str) -> Option<&mut ReplyItem> {
        self.replies.active.as_mut().map(|reply| reply.item(id))
    }

    pub(super) fn item_added(&mut self, item: Item) {
        let id = item.id().unwrap_or_default().to_owned();
        let Some(known) = self.item_of_active(&id) else { return };
        if let Item::FunctionCall(call) = item {
            let call_id = call.call_id.unwrap_or(id);
            known.call = Some((call_id.into(), call.name.into()));
        }
    }

    pub(super) fn item_done(&mut self, item: Item, out: &mut Outbox) {
        match item {
            Item::FunctionCall(call) => self.call_done(call, out),
            Item::Message(message) => self.message_done(&message, out),
            Item::McpApprovalRequest(request) => self.tell_permission(request, out),
            Item::McpCall(_) | Item::McpListTools(_) => pass_on(&item, out),
            _ => {}
        }
    }

    fn call_done(&mut self, call: FunctionCall, out: &mut Outbox) {
        // The remains of a call that was cut off are no call.
        if call.status == Some(ItemStatus::Incomplete) {
            return;
        }
        let id = call.call_id.or(call.id).unwrap_or_default();
        self.tell_call(&id, &call.name, call.arguments, out);
    }

    /// Tells a call, once, however often and by whatever event the server does (quirk 17).
    pub(super) fn tell_call(&mut self, id: &str, name: &str, arguments: String, out: &mut Outbox) {
        let own_tool =
            self.settings.facts.own_calls && !self.declared.iter().any(|declared| declared == name);
        let Some(reply) = &mut self.replies.active else { return };
        if id.is_empty() || reply.calls.iter().any(|told| **told == *id) {
            return;
        }
        if own_tool || reply.stopped.is_some() || reply.calls.len() >= MAX_CALLS {
            out.events.push_back(ignored("a call that is not to be answered"));
            return;
        }
        let id: Arc<str> = id.into();
        reply.calls.push(id.clone());
        let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
        let call =
            ToolCallRequest { id, name: name.into(), arguments: ToolArguments::Json(arguments) };
        let reply = Some(reply.id.clone());
        out.events.push_back(LiveEvent::ToolCalls { reply, calls: vec![call] });
    }

    /// The words of an item that were not told by events of their own.
    fn message_done(&mut self, message: &Message, out: &mut Outbox) {
        let id = message.id.as_deref().unwrap_or_default();
        let words = |kinds: [ContentType; 2]| {
            let parts = message.content.iter().filter(move |part| kinds.contains(&part.kind));
            let words: String = parts.filter_map(|part| part.words()).collect();
            Some(words).filter(|words| !words.is_empty())
        };
        let spoken = words([ContentType::OutputAudio, ContentType::Audio]);
        let written = words([ContentType::OutputText, ContentType::Text]);
        let Some(item) = self.item_of_active(id) else { return };
        let untold = |known: Words| known.are_missing() || known.are_open();
        let (transcript, text) = (untold(item.transcript), untold(item.text));
        if let Some(words) = spoken.filter(|_| transcript) {
            self.spoken(id, 0, TextUpdate::Final(Some(words)), out);
        }
        if let Some(words) = written.filter(|_| text) {
            self.written(id, 0, TextUpdate::Final(Some(words)), out);
        }
    }

    pub(super) fn reply_done(&mut self, response: Response, now: Instant, out: &mut Outbox) {
        let id = response.id.as_deref().unwrap_or_default();
        // Another one's end is late and says nothing of this one (quirk 14).
        if !self.current(id, out) {
            return;
        }
        let outcome = self.outcome(&response);
        for item in response.output.into_iter().flatten() {
            match item {
                Item::FunctionCall(call) if outcome == ReplyOutcome::Completed => {
                    self.call_done(call, out);
                }
                Item::McpApprovalRequest(request) if outcome == ReplyOutcome::Completed => {
                    self.tell_permission(request, out);
                }
                Item::Message(message) => self.message_done(&message, out),
                _ => {}
            }
        }
        let details = response.status_details.unwrap_or_default();
        if outcome == ReplyOutcome::Failed {
            let error = details.error.unwrap_or_default();
            let code = error.code.or(error.kind).unwrap_or_else(|| "response_failed".into());
            let message = error.message.unwrap_or_else(|| "the reply failed".into());
            out.events.push_back(LiveEvent::Error(ErrorInfo::new(code, message)));
        }
        self.end_reply(outcome, response.usage.as_ref().map(usage_of), now, out);
    }

    fn outcome(&self, response: &Response) -> ReplyOutcome {
        let stopped = self.replies.active.as_ref().and_then(|reply| reply.stopped);
        let reason = response.status_details.as_ref().and_then(|why| why.reason.as_deref());
        match &response.status {
            Some(ResponseStatus::Cancelled) => match (reason, stopped) {
                // We asked for it because the user spoke.
                (_, Some(Stop::Interrupted)) => ReplyOutcome::Interrupted,
                (Some("turn_detected"), _) => ReplyOutcome::Interrupted,
                _ => ReplyOutcome::Cancelled,
            },
            Some(ResponseStatus::Incomplete) if reason == Some("content_filter") => {
                ReplyOutcome::Blocked
            }
            Some(ResponseStatus::Incomplete) => ReplyOutcome::Incomplete,
            Some(ResponseStatus::Failed) => ReplyOutcome::Failed,
            _ => ReplyOutcome::Completed,
        }
    }

    /// Ends the active reply, and goes on with what waited for that.
    pub(super) fn end_reply(
        &mut self,
        outcome: ReplyOutcome,
        usage: Option<Usage>,
        now: Instant,
        out: &mut Outbox,
    ) {
        self.end_active(outcome, usage, out);
        if std::mem::take(&mut self.passed_over) {
            self.answer_at = Some(now + ANSWER_BY_ITSELF);
        }
        self.pump(now, out);
    }

    fn end_active(&mut self, outcome: ReplyOutcome, usage: Option<Usage>, out: &mut Outbox) {
        let Some(reply) = self.replies.end() else { return };
        if outcome == ReplyOutcome::Interrupted && reply.stopped != Some(Stop::Interrupted) {
            out.events.push_back(LiveEvent::Interrupted { reply: Some(reply.id.clone()) });
        }
        for item in &reply.items {
            let (id, text) = (item.id.clone(), TextUpdate::Final(None));
            if item.transcript.are_open() && self.settings.output_transcripts {
                let reply = reply.id.clone();
                out.events.push_back(LiveEvent::OutputTranscript {
                    reply,
                    item: id.clone(),
                    text: text.clone(),
                });
            }
            if item.text.are_open() {
                out.events.push_back(LiveEvent::OutputText {
                    reply: reply.id.clone(),
                    item: id,
                    text,
                });
            }
        }
        out.events.push_back(LiveEvent::ReplyDone { reply: reply.id, outcome, usage });
        self.tell_resumable(out);
        for response in std::mem::take(&mut self.held) {
            self.send_output(response, out);
        }
    }
}

impl Stop {
    pub(super) const fn outcome(self) -> ReplyOutcome {
        match self {
            Self::Cancelled => ReplyOutcome::Cancelled,
            Self::Interrupted => ReplyOutcome::Interrupted,
        }
    }
}

/// The update of an item's words to tell, if any.
fn next_words(known: &mut Words, part: u32, words: TextUpdate) -> Option<TextUpdate> {
    if !known.came(part) {
        return None;
    }
    if let TextUpdate::Final(whole) = words {
        known.end();
        // The text of one part must not replace those of the others.
        return Some(TextUpdate::Final(whole.filter(|_| !known.several)));
    }
    Some(words)
}
