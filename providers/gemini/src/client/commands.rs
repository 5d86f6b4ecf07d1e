//! What the session asks, as frames.

use std::time::Instant;

use antiphon_live::{
    Frame, LiveCommand, LiveError, LiveEvent, Outbox, ReplyId, ReplyOutcome, VoiceActivity,
};
use antiphon_types::{AudioFrame, ToolDefinition, ToolResponse, ToolResponseScheduling};
use bytes::Bytes;
use serde_json::Value;

use super::{
    Client, NAME, ignored,
    replies::{BEFORE_INTERRUPTION, Remains},
};
use crate::{
    generation::TextChannel,
    wire::{
        Blob, ClientContent, ClientMessage, Content, ContextUpdate, ContextUpdateTools, Empty,
        FunctionResponse, MAX_APPEND_BYTES, RealtimeInput, Role, Scheduling, ToolResponseMessage,
        append_frame,
    },
};

/// Longer texts are refused.
const MAX_TEXT_BYTES: usize = 256 * 1024;
/// Larger images are refused: their base64 must fit into a frame of 16 MiB.
const MAX_IMAGE_BYTES: usize = 11 * 1024 * 1024;

impl Client {
    pub(super) fn on_command(
        &mut self,
        command: LiveCommand,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        match command {
            LiveCommand::AppendAudio(frame) => self.append(&frame, out),
            LiveCommand::EndAudio => self.end_audio(out),
            LiveCommand::ActivityStart => self.start_activity(now, out),
            LiveCommand::ActivityEnd => self.end_activity(out),
            LiveCommand::Text { text, reply } => return self.text(text, reply, now, out),
            LiveCommand::Image { media_type, data } => return self.image(&media_type, data, out),
            LiveCommand::CreateReply { request } => {
                self.contents(Vec::new(), true, out);
                self.ask(Some(request), now, out);
            }
            LiveCommand::Say { request, text } => return self.say(request, &text, now, out),
            LiveCommand::CancelReply { reply } => self.cancel(reply.as_ref(), now, out),
            LiveCommand::ToolResponse(response) => {
                return self.tool_response(response, now, out);
            }
            LiveCommand::UpdateInstructions(instructions) => {
                self.update_instructions(&instructions, out);
            }
            LiveCommand::UpdateTools(tools) => return self.update_tools(&tools, out),
            other => return Err(LiveError::unsupported(NAME, other.name())),
        }
        Ok(())
    }

    fn append(&mut self, frame: &AudioFrame, out: &mut Outbox) {
        let whole = frame.samples() * frame.format.bytes_per_sample();
        if whole == 0 {
            return;
        }
        // Nobody says when the user speaks: their audio does.
        if self.settings.voice_activity == VoiceActivity::Off && !self.uplink.active {
            self.uplink.active = true;
            self.activity(true, out);
        }
        let rate = frame.format.sample_rate_hz();
        // Even, so that no sample is cut.
        for piece in frame.data[..whole].chunks(MAX_APPEND_BYTES & !1) {
            out.frames.push_back(Frame::Text(append_frame(rate, piece).into()));
        }
        self.uplink.flows = true;
        self.uplink.since_reply = true;
    }

    /// The user's audio ends for now.
    fn end_audio(&mut self, out: &mut Outbox) {
        let flowed = std::mem::take(&mut self.uplink.flows);
        if self.settings.voice_activity != VoiceActivity::Auto {
            self.end_activity(out);
        } else if flowed {
            let ends = RealtimeInput { audio_stream_end: Some(true), ..RealtimeInput::default() };
            self.input(ends, out);
        }
    }

    fn start_activity(&mut self, now: Instant, out: &mut Outbox) {
        if std::mem::replace(&mut self.uplink.active, true) {
            return;
        }
        self.activity(true, out);
        if self.settings.interrupts {
            // What is on the way is not wanted any more.
            self.interrupt(now + BEFORE_INTERRUPTION, out);
        }
    }

    fn end_activity(&mut self, out: &mut Outbox) {
        self.uplink.flows = false;
        if std::mem::take(&mut self.uplink.active) {
            self.activity(false, out);
        }
    }

    fn activity(&self, begins: bool, out: &mut Outbox) {
        let mut input = RealtimeInput::default();
        let mark = if begins { &mut input.activity_start } else { &mut input.activity_end };
        *mark = Some(Empty {});
        self.input(input, out);
    }

    fn text(
        &mut self,
        text: String,
        reply: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        refuse_long(&text)?;
        if !reply {
            if !self.settings.client_content {
                let message = "a text that wants no answer cannot be sent over this text channel";
                return Err(LiveError::InvalidCommand(message.into()));
            }
            self.contents(vec![Content::text(Some(Role::User), text)], false, out);
            return Ok(());
        }
        self.words(text, out);
        self.ask(None, now, out);
        Ok(())
    }

    /// There is no way to have a text read out: the model is asked to. It nearly always does.
    fn say(
        &mut self,
        request: u64,
        text: &str,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        refuse_long(text)?;
        let words = format!(
            "Say the following text exactly as it is, word for word, without anything before or \
             after it:\n\n{text}"
        );
        self.words(words, out);
        self.ask(Some(request), now, out);
        Ok(())
    }

    /// Words that ask for an answer.
    fn words(&self, text: String, out: &mut Outbox) {
        match self.settings.typed_text {
            TextChannel::ClientContent => {
                self.contents(vec![Content::text(Some(Role::User), text)], true, out);
            }
            TextChannel::RealtimeInput => {
                self.input(RealtimeInput { text: Some(text), ..RealtimeInput::default() }, out);
            }
        }
    }

    fn contents(&self, turns: Vec<Content>, complete: bool, out: &mut Outbox) {
        let turns = Some(turns).filter(|turns| !turns.is_empty());
        let content = ClientContent { turns, turn_complete: Some(complete) };
        self.send(&ClientMessage::ClientContent(content), out);
    }

    fn input(&self, input: RealtimeInput, out: &mut Outbox) {
        self.send(&ClientMessage::RealtimeInput(Box::new(input)), out);
    }

    fn image(&self, media_type: &str, data: Bytes, out: &mut Outbox) -> Result<(), LiveError> {
        let invalid = |message: String| Err(LiveError::InvalidCommand(message));
        if !media_type.starts_with("image/") {
            return invalid(format!("{media_type:?} is no image"));
        }
        if data.is_empty() || data.len() > MAX_IMAGE_BYTES {
            return invalid(format!("an image of {} bytes", data.len()));
        }
        let video = Some(Blob::new(media_type, data));
        self.input(RealtimeInput { video, ..RealtimeInput::default() }, out);
        Ok(())
    }

    /// The wire knows no cancelling: the reply ends here, what still comes of it is dropped, and the
    /// server stops with the next text or speech.
    fn cancel(&mut self, reply: Option<&ReplyId>, now: Instant, out: &mut Outbox) {
        let active = self.reply.as_ref();
        if active.is_some_and(|active| reply.is_none_or(|reply| *reply == active.id)) {
            self.drop_reply(ReplyOutcome::Cancelled, now, out);
        } else if active.is_none()
            && reply.is_none()
            && let Some(asked) = &mut self.asked
        {
            asked.cancelled = true;
        }
    }

    /// Ends the active reply here; what still comes of it is dropped.
    pub(super) fn drop_reply(&mut self, outcome: ReplyOutcome, now: Instant, out: &mut Outbox) {
        let format = self.settings.capabilities.output;
        let Some(reply) = &self.reply else { return };
        let (until, generated) = (reply.remains_until(format, now), reply.generated);
        self.end_reply(outcome, out);
        self.remains = Some(Remains { until, generated, stopped: false });
    }

    /// The user speaks over the active reply. It is over at `end_by`, if the server does not end it.
    pub(super) fn interrupt(&mut self, end_by: Instant, out: &mut Outbox) {
        let Some(reply) = &mut self.reply else { return };
        let known = std::mem::replace(&mut reply.interrupted, true);
        reply.end_by = Some(match reply.end_by {
            Some(earlier) if known => earlier.min(end_by),
            _ => end_by,
        });
        if known {
            return;
        }
        out.events.push_back(LiveEvent::Interrupted { reply: Some(reply.id.clone()) });
    }

    fn tool_response(
        &mut self,
        response: ToolResponse,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        let silent = response.scheduling == ToolResponseScheduling::Silent;
        let goes_on = response.will_continue == Some(true);
        let Some(call) = self.calls.find(&response.id) else {
            return self.tool_response_as_text(&response, !silent, now, out);
        };
        if goes_on && call.waits {
            return Err(LiveError::unsupported(NAME, "take a tool's output in pieces"));
        }
        if call.cancelled {
            out.events.push_back(ignored("an output of a call that was taken back"));
            return Ok(());
        }
        let waits = call.waits;
        let id = (!call.nameless).then(|| response.id.to_string());
        self.send_response(id, response, waits, out);
        if waits {
            // What the model says from now on is another reply.
            if self.reply.as_ref().is_some_and(|reply| reply.waits_for_tool) {
                self.end_reply(ReplyOutcome::Completed, out);
            }
            self.calls_answered = true;
            self.stray_end = false;
        }
        Ok(())
    }

    pub(super) fn send_response(
        &self,
        id: Option<String>,
        response: ToolResponse,
        waits: bool,
        out: &mut Outbox,
    ) {
        // Only where the model does not wait is there anything to choose.
        let scheduling = match response.scheduling {
            _ if waits => None,
            ToolResponseScheduling::Silent => Some(Scheduling::Silent),
            ToolResponseScheduling::WhenIdle => Some(Scheduling::WhenIdle),
            ToolResponseScheduling::Interrupt => Some(Scheduling::Interrupt),
            _ => None,
        };
        let response = FunctionResponse {
            id,
            name: Some(response.name.to_string()),
            response: Some(response.response),
            scheduling,
            will_continue: response.will_continue.filter(|_| !waits),
            parts: None,
        };
        let responses = ToolResponseMessage { function_responses: Some(vec![response]) };
        self.send(&ClientMessage::ToolResponse(responses), out);
    }

    /// A call does not outlive its connection: a resumed session ignores the output of one that it
    /// did not make, so it is told in words (quirk 64).
    fn tool_response_as_text(
        &mut self,
        response: &ToolResponse,
        speaks: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        let given = Value::Object(response.response.clone());
        let text = format!("The tool {} has finished. It gave: {given}", response.name);
        if !speaks && !self.settings.client_content {
            out.events.push_back(ignored("a silent output of an earlier connection's call"));
            return Ok(());
        }
        self.text(text, speaks, now, out)
    }

    fn update_instructions(&self, instructions: &str, out: &mut Outbox) {
        let text = self.settings.instructions(instructions);
        if self.settings.generation.context_update {
            let system_instruction = Some(Content::text(None, text));
            let update = ContextUpdate { system_instruction, tools: None };
            return self.send(&ClientMessage::ContextUpdate(update), out);
        }
        // Vertex AI takes them as a content of the system.
        self.contents(vec![Content::text(Some(Role::System), text)], false, out);
    }

    fn update_tools(
        &mut self,
        tools: &[ToolDefinition],
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        let declared = self.settings.tools(tools)?;
        self.calls.declare(tools, &self.settings);
        let tools = Some(ContextUpdateTools { tools: Some(declared) });
        let update = ContextUpdate { system_instruction: None, tools };
        self.send(&ClientMessage::ContextUpdate(update), out);
        Ok(())
    }
}

fn refuse_long(text: &str) -> Result<(), LiveError> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("the text is longer than {MAX_TEXT_BYTES} bytes");
        return Err(LiveError::InvalidCommand(message));
    }
    Ok(())
}
