//! What the model says, calls, and when its turn is over.

use std::time::Instant;

use antiphon_live::{
    ErrorInfo, LiveEvent, Outbox, ReplyId, ReplyOutcome, TextUpdate, VoiceActivity,
};
use antiphon_types::{AudioFrame, ToolCallRequest, ToolResponse};
use serde_json::json;

use super::{
    Client, Uplink,
    events::pass_on,
    hearing::is_repetition,
    ignored,
    partial::Complete,
    replies::{AFTER_CALL, AFTER_INTERRUPTION, AFTER_PIECE, AFTER_QUIET_CALL, Reply},
};
use crate::wire::{
    Blob, Content, FunctionCall, InteractionStatus, Part, ServerContent, ToolCallMessage,
    Transcription, TurnCompleteReason,
};

/// Calls of one message that are told.
const MAX_CALLS: usize = 256;
/// Words of one reply that are kept for telling what comes twice, in bytes.
const MAX_SPOKEN: usize = 64 * 1024;

impl Client {
    /// Every field counts, in this order: what was said and heard comes before its end.
    pub(super) fn on_content(&mut self, content: ServerContent, now: Instant, out: &mut Outbox) {
        if let Some(words) = content.interim_input_transcription
            && self.settings.input_transcripts
        {
            self.hearing.spoken_by(&words, out);
            let text = words.text.unwrap_or_default();
            self.hearing.interim(&text, &self.prefix, now, out);
        }
        if let Some(words) = content.input_transcription {
            self.heard(words, now, out);
        }
        if let Some(turn) = content.model_turn {
            self.on_turn(turn, now, out);
        }
        if let Some(words) = content.output_transcription {
            self.spoken(words, now, out);
        }
        if let Some(grounding) = content.grounding_metadata {
            pass_on("groundingMetadata", grounding, out);
        }
        if let Some(pages) = content.url_context_metadata {
            pass_on("urlContextMetadata", pages, out);
        }
        if content.generation_complete == Some(true) {
            let format = self.settings.capabilities.output;
            match (&mut self.reply, &mut self.remains) {
                (Some(reply), _) if !reply.interrupted => reply.all_said(format, now),
                (None, Some(remains)) => remains.generated = true,
                _ => out.events.push_back(ignored("generationComplete")),
            }
        }
        if content.interrupted == Some(true) {
            self.on_interrupted(now, out);
        }
        match content.interaction_status {
            Some(InteractionStatus::InProgress) => self.in_progress = true,
            Some(InteractionStatus::Idle) => self.in_progress = false,
            _ => {}
        }
        if content.turn_complete == Some(true) {
            self.on_turn_complete(content.turn_complete_reason.as_ref(), now, out);
        }
    }

    fn heard(&mut self, words: Transcription, now: Instant, out: &mut Outbox) {
        self.hearing.spoken_by(&words, out);
        let text = words.text.unwrap_or_default();
        let finished = words.finished == Some(true);
        let told = self.settings.input_transcripts
            && self.hearing.words(&text, finished, &self.prefix, now, out);
        if !told {
            out.events.push_back(ignored("a transcript that is not wanted"));
        }
    }

    /// A message may hold several parts (quirk 59).
    fn on_turn(&mut self, turn: Content, now: Instant, out: &mut Outbox) {
        for part in turn.parts.into_iter().flatten() {
            self.on_part(part, now, out);
        }
    }

    fn on_part(&mut self, part: Part, now: Instant, out: &mut Outbox) {
        let thought = part.thought == Some(true);
        if let Some(blob) = part.inline_data {
            self.voice(blob, now, out);
        }
        match part.text.filter(|text| !text.is_empty()) {
            Some(text) if thought => pass_on("thought", json!({"text": text}), out),
            Some(text) => self.written(text, now, out),
            None => {}
        }
        if let Some(code) = part.executable_code {
            pass_on("executableCode", code, out);
        }
        if let Some(result) = part.code_execution_result {
            pass_on("codeExecutionResult", result, out);
        }
        if let Some(call) = part.function_call {
            // Some servers put calls into the turn.
            self.on_tool_call(ToolCallMessage { function_calls: Some(vec![call]) }, now, out);
        }
    }

    /// Voice, which was decoded straight into shared bytes.
    fn voice(&mut self, blob: Blob, now: Instant, out: &mut Outbox) {
        let Some(mut data) = blob.data.filter(|data| !data.is_empty()) else { return };
        let format = self.settings.capabilities.output;
        let media = blob.mime_type;
        let rate = media.as_ref().and_then(|media| media.rate_hz());
        if media.as_ref().is_some_and(|media| !media.is_audio())
            || rate.is_some_and(|rate| rate != format.sample_rate_hz())
        {
            out.events.push_back(ignored("media in another format than was agreed"));
            return;
        }
        self.something_new(out);
        if let Some(remains) = &mut self.remains {
            let samples = data.len() / format.bytes_per_sample();
            remains.go_on(format.duration_of(samples as u64), now);
        }
        let Some(reply) = self.current(now, out) else { return };
        if !reply.generated && !reply.waits_for_tool {
            reply.end_by = None;
        }
        // A server may cut a sample in two; its second half comes with the next frame.
        if let Some(carry) = reply.carry.take() {
            data = std::iter::once(carry).chain(data).collect();
        }
        if data.len() % 2 != 0 {
            let last = data.split_off(data.len() - 1);
            reply.carry = last.first().copied();
        }
        if data.is_empty() {
            return;
        }
        reply.voice(data.len());
        out.events.push_back(LiveEvent::Audio {
            reply: reply.id.clone(),
            item: reply.item.clone(),
            content_index: 0,
            frame: AudioFrame::new(format, data),
        });
    }

    fn written(&mut self, text: String, now: Instant, out: &mut Outbox) {
        self.something_new(out);
        let Some(reply) = self.current(now, out) else { return };
        if !reply.waits_for_tool {
            reply.end_by = None;
        }
        reply.writes = true;
        let (reply, item) = (reply.id.clone(), reply.item.clone());
        let text = TextUpdate::Delta(text);
        out.events.push_back(LiveEvent::OutputText { reply, item, text });
    }

    /// Words of the voice. Not in step with it: they may come before and after.
    fn spoken(&mut self, words: Transcription, now: Instant, out: &mut Outbox) {
        let text = words.text.unwrap_or_default();
        let finished = words.finished == Some(true);
        if !self.settings.output_transcripts || text.is_empty() && !finished {
            return;
        }
        if text.is_empty() && self.reply.is_none() {
            return;
        }
        let Some(reply) = self.current(now, out) else { return };
        if is_repetition(&reply.spoken, &text) {
            out.events.push_back(ignored("words that were told before"));
            return;
        }
        let (id, item) = (reply.id.clone(), reply.item.clone());
        if !text.is_empty() {
            reply.speaks = true;
            if reply.spoken.len() + text.len() <= MAX_SPOKEN {
                reply.spoken.push_str(&text);
            }
            let text = TextUpdate::Delta(text);
            let (reply, item) = (id.clone(), item.clone());
            out.events.push_back(LiveEvent::OutputTranscript { reply, item, text });
        }
        if finished && std::mem::take(&mut reply.speaks) {
            let text = TextUpdate::Final(None);
            out.events.push_back(LiveEvent::OutputTranscript { reply: id, item, text });
        }
    }

    /// What the model says belongs to nothing that it had said all of: the end of that was lost.
    fn something_new(&mut self, out: &mut Outbox) {
        if let Some(reply) = self.reply.as_ref().filter(|reply| reply.generated) {
            let outcome = reply.outcome();
            self.end_reply(outcome, out);
        }
        self.remains.take_if(|remains| remains.generated);
    }

    /// The reply that something of the model belongs to; begins one where there is none. `None`: it
    /// belongs to one that is over here.
    fn current(&mut self, now: Instant, out: &mut Outbox) -> Option<&mut Reply> {
        let over =
            self.remains.is_some() || self.reply.as_ref().is_some_and(|reply| reply.interrupted);
        if over {
            out.events.push_back(LiveEvent::Ignored { kind: self.stale.clone() });
            return None;
        }
        if self.reply.is_none() && !self.begin_reply(now, out) {
            return None;
        }
        self.reply.as_mut()
    }

    /// `false`: the session did not want it any more.
    pub(super) fn begin_reply(&mut self, now: Instant, out: &mut Outbox) -> bool {
        let asked = self.asked.take();
        self.infer_speech(asked.is_some(), out);
        self.hearing.model_begins(now);
        self.calls_answered = false;
        self.stray_end = false;
        self.replies += 1;
        let id = ReplyId(format!("{}reply-{}", self.prefix, self.replies).into());
        let request = asked.as_ref().and_then(|asked| asked.request);
        out.events.push_back(LiveEvent::ReplyStarted { reply: id.clone(), request });
        self.reply = Some(Reply::new(id, now));
        if asked.is_some_and(|asked| asked.cancelled) {
            self.drop_reply(ReplyOutcome::Cancelled, now, out);
            return false;
        }
        true
    }

    /// Older models do not say that they hear the user. A reply that nobody asked for says so: its
    /// words may come later, or never (quirk 65).
    fn infer_speech(&mut self, asked: bool, out: &mut Outbox) {
        let hears = self.settings.voice_activity == VoiceActivity::Auto
            && !self.settings.tells_speech
            && std::mem::take(&mut self.uplink.since_reply);
        let others = asked || self.calls_answered || self.hearing.news || self.in_progress;
        if hears && !others && !self.speaking {
            self.speech(true, None, out);
            self.speech(false, None, out);
        }
    }

    fn on_interrupted(&mut self, now: Instant, out: &mut Outbox) {
        if self.reply.is_some() {
            self.interrupt(now + AFTER_INTERRUPTION, out);
            return;
        }
        if let Some(remains) = &mut self.remains {
            remains.until = remains.until.min(now + AFTER_INTERRUPTION);
            remains.stopped = true;
            return;
        }
        // What is over at the server may still be playing here (quirk 53).
        self.stray_end = true;
        if let Some(reply) = self.last_reply.take() {
            out.events.push_back(LiveEvent::Interrupted { reply: Some(reply) });
        } else {
            out.events.push_back(ignored("an interruption of nothing"));
        }
    }

    fn on_turn_complete(
        &mut self,
        reason: Option<&TurnCompleteReason>,
        now: Instant,
        out: &mut Outbox,
    ) {
        if self.remains.take().is_some() {
            return;
        }
        if self.reply.is_none() {
            let awaited = self.asked.is_some() || self.calls_answered || self.hearing.news;
            if std::mem::take(&mut self.stray_end) || !awaited {
                out.events.push_back(ignored("the end of a turn that was over"));
                return;
            }
            // The model had nothing to say (quirk 52): whoever waits for it must not.
            if !self.begin_reply(now, out) {
                self.remains = None;
                return;
            }
        }
        let outcome = match reason {
            _ if self.reply.as_ref().is_some_and(|reply| reply.interrupted) => {
                ReplyOutcome::Interrupted
            }
            None | Some(TurnCompleteReason::Unspecified | TurnCompleteReason::NeedMoreInput) => {
                ReplyOutcome::Completed
            }
            Some(reason) => {
                let code = reason.as_str().to_ascii_lowercase();
                let message = format!("the turn ended with {}", reason.as_str());
                out.events.push_back(LiveEvent::Error(ErrorInfo::new(code, message)));
                outcome_of(reason)
            }
        };
        self.end_reply(outcome, out);
    }

    /// The server does not end the active reply in its time.
    pub(super) fn end_unended_reply(&mut self, out: &mut Outbox) {
        let Some(reply) = &self.reply else { return };
        let (outcome, waits) = (reply.outcome(), reply.waits_for_tool);
        self.end_reply(outcome, out);
        // Its end may be late.
        self.stray_end = !waits || self.settings.generation.turn_ends_at_call;
    }

    pub(super) fn end_reply(&mut self, outcome: ReplyOutcome, out: &mut Outbox) {
        let Some(reply) = self.reply.take() else { return };
        let (id, item) = (reply.id, reply.item);
        self.hearing.model_ends(out);
        self.uplink = Uplink { since_reply: false, ..std::mem::take(&mut self.uplink) };
        let words = [(reply.speaks, true), (reply.writes, false)];
        for (_, aloud) in words.into_iter().filter(|(open, _)| *open) {
            let (reply, item, text) = (id.clone(), item.clone(), TextUpdate::Final(None));
            out.events.push_back(if aloud {
                LiveEvent::OutputTranscript { reply, item, text }
            } else {
                LiveEvent::OutputText { reply, item, text }
            });
        }
        for _ in 0..self.partials.clear() {
            out.events.push_back(ignored("a call whose arguments never ended"));
        }
        self.last_reply = (outcome == ReplyOutcome::Completed).then(|| id.clone());
        let usage = self.bill.take();
        out.events.push_back(LiveEvent::ReplyDone { reply: id, outcome, usage });
    }
}

/// Calls.
impl Client {
    pub(super) fn on_tool_call(
        &mut self,
        message: ToolCallMessage,
        now: Instant,
        out: &mut Outbox,
    ) {
        let calls = message.function_calls.unwrap_or_default();
        if calls.is_empty() {
            out.events.push_back(ignored("a toolCall without calls"));
            return;
        }
        if self.remains.is_some() {
            // The model waits for an answer, though nobody wants its reply any more.
            self.refuse(calls, out);
            return;
        }
        if self.reply.as_ref().is_some_and(|reply| reply.generated && !reply.waits_for_tool) {
            self.end_reply(ReplyOutcome::Completed, out);
        }
        if self.reply.is_none() && !self.begin_reply(now, out) {
            self.refuse(calls, out);
            return;
        }
        let (mut told, mut waits) = (Vec::new(), false);
        for call in calls.into_iter().take(MAX_CALLS) {
            if self.partials.is_stray(&call) {
                out.events.push_back(ignored("a piece of no call"));
                continue;
            }
            let Some(Complete { id, name, arguments }) = self.partials.take(call) else { continue };
            let Some(known) = self.calls.add(&id, &name, &self.prefix) else {
                out.events.push_back(ignored("a call that was told before"));
                continue;
            };
            waits |= known.waits;
            told.push(ToolCallRequest { id: known.id.clone(), name: name.into(), arguments });
        }
        let Some(reply) = &mut self.reply else { return };
        if told.is_empty() {
            if self.partials.any() && !reply.interrupted {
                reply.end_by = Some(now + AFTER_PIECE);
            }
            return;
        }
        // Nobody says that the model pauses: a call it waits for is the end of the reply, since
        // nothing more comes until it has the output (quirk 66).
        if !reply.interrupted {
            reply.waits_for_tool |= waits;
            let pause = if reply.waits_for_tool { AFTER_CALL } else { AFTER_QUIET_CALL };
            reply.end_by = Some(now + pause);
        }
        let reply = Some(reply.id.clone());
        out.events.push_back(LiveEvent::ToolCalls { reply, calls: told });
    }

    /// Answers calls of a reply that is over here.
    fn refuse(&mut self, calls: Vec<FunctionCall>, out: &mut Outbox) {
        for call in calls.into_iter().take(MAX_CALLS) {
            let stray = self.partials.is_stray(&call);
            let Some(Complete { id, name, .. }) = self.partials.take(call) else { continue };
            out.events.push_back(ignored("a call that is not to be answered"));
            if stray {
                continue;
            }
            let Some(known) = self.calls.add(&id, &name, &self.prefix) else { continue };
            let waits = known.waits;
            let response = ToolResponse::error(id.as_str(), name, "the reply was stopped");
            self.send_response((!id.is_empty()).then_some(id), response, waits, out);
        }
    }
}

/// How a reply ended whose turn ended for this reason.
fn outcome_of(reason: &TurnCompleteReason) -> ReplyOutcome {
    match reason {
        TurnCompleteReason::Unspecified | TurnCompleteReason::NeedMoreInput => {
            ReplyOutcome::Completed
        }
        TurnCompleteReason::MalformedFunctionCall => ReplyOutcome::Failed,
        TurnCompleteReason::MaxRegenerationReached | TurnCompleteReason::Other(_) => {
            ReplyOutcome::Incomplete
        }
        // All others are filters: of what came in, and of what was to go out.
        _ => ReplyOutcome::Blocked,
    }
}
