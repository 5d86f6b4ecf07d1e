//! What the session asks, as frames.

use std::{sync::Arc, time::Instant};

use antiphon_live::{Frame, LiveCommand, LiveError, LiveEvent, Outbox, ReplyId, VoiceActivity};
use antiphon_types::{AudioFormat, AudioFrame, ToolDefinition, ToolResponse};
use base64_simd::STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

use super::{Client, NAME, ignored, replies::Stop, requests::Wanted, settings::functions};
use crate::wire::{
    ClientEvent, Command, Content, ContentType, FunctionCallOutput, Images, Item, ItemRef,
    MAX_APPEND_BYTES, Message, RealtimeSession, ResponseParams, Role, Saying, ToolChoice,
    TruncateItem, append_frame,
};

/// The shortest turn that the server takes, in milliseconds.
const SHORTEST_TURN_MS: u64 = 100;
/// Longer texts are refused.
const MAX_TEXT_BYTES: usize = 256 * 1024;
/// Larger images are refused: their base64 must fit into a frame of 16 MiB.
const MAX_IMAGE_BYTES: usize = 11 * 1024 * 1024;
/// Outputs that may wait for a reply's end.
const MAX_HELD: usize = 512;
/// Outputs that are remembered for their refusal.
const MAX_OUTPUTS: usize = 64;
/// Cuts that are remembered for their refusal.
const MAX_CUTS: usize = 16;

impl Client {
    pub(super) fn on_command(
        &mut self,
        command: LiveCommand,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        match command {
            LiveCommand::AppendAudio(frame) => {
                self.append(&frame, out);
                Ok(())
            }
            LiveCommand::EndAudio => self.end_audio(now, out),
            LiveCommand::ClearAudio => {
                self.clear_audio(out);
                Ok(())
            }
            LiveCommand::ActivityStart => {
                self.clear_audio(out);
                self.interrupt(true, now, out);
                Ok(())
            }
            LiveCommand::ActivityEnd => self.end_turn(now, out),
            LiveCommand::Text { text, reply } => self.text(text, reply, now, out),
            LiveCommand::Image { media_type, data } => self.image(&media_type, &data, out),
            LiveCommand::CreateReply { request } => {
                let mut params = ResponseParams::default();
                if std::mem::take(&mut self.after_tools) && self.settings.forces_calls {
                    params.tool_choice = Some(ToolChoice::AUTO);
                }
                self.want(Wanted::new(Some(request), params), now, out)
            }
            LiveCommand::Say { request, text } => self.say(request, &text, now, out),
            LiveCommand::CancelReply { reply } => {
                self.cancel(reply.as_ref(), now, out);
                Ok(())
            }
            LiveCommand::Truncate { item, content_index, audio_end_ms, .. } => {
                self.truncate(item, content_index, audio_end_ms.into(), out);
                Ok(())
            }
            LiveCommand::ForgetInput { item } => {
                let event = ItemRef { event_id: None, item_id: item.to_string() };
                self.send(&ClientEvent::DeleteItem(event), out);
                Ok(())
            }
            LiveCommand::ToolResponse(response) => self.tool_response(response, out),
            LiveCommand::PermitTool { id, permitted, reason } => {
                self.permit(&id, permitted, reason, out)
            }
            LiveCommand::UpdateInstructions(instructions) => {
                let instructions = Some(self.settings.instructions(&instructions));
                let session = RealtimeSession { instructions, ..RealtimeSession::default() };
                self.update_session(session, out);
                Ok(())
            }
            LiveCommand::UpdateTools(tools) => {
                self.update_tools(&tools, out);
                Ok(())
            }
            other => Err(LiveError::unsupported(NAME, other.name())),
        }
    }

    fn append(&mut self, frame: &AudioFrame, out: &mut Outbox) {
        let whole = frame.samples() * frame.format.bytes_per_sample();
        // Even, so that no sample is cut.
        for piece in frame.data[..whole].chunks(MAX_APPEND_BYTES & !1) {
            self.append_bytes(piece, out);
            (self.uplink.flows, self.uplink.began) = (true, true);
        }
    }

    fn append_bytes(&mut self, audio: &[u8], out: &mut Outbox) {
        out.frames.push_back(Frame::Text(append_frame(audio).into()));
        self.uplink.buffered = self.uplink.buffered.saturating_add(audio.len());
    }

    fn clear_audio(&mut self, out: &mut Outbox) {
        self.uplink.buffered = 0;
        self.uplink.flows = false;
        self.send(&ClientEvent::ClearAudio(Command::default()), out);
    }

    /// The user's audio ends for now. The server only ends a turn when it hears silence, so it gets
    /// some; where turns are taken by hand, what there is becomes one.
    fn end_audio(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let flowed = std::mem::take(&mut self.uplink.flows);
        if self.settings.voice_activity == VoiceActivity::Auto {
            if !flowed {
                return Ok(());
            }
            let tail = self.settings.tail;
            let format = self.settings.capabilities.input;
            let silence = vec![silent_byte(format); self.settings.input_bytes(tail)];
            self.uplink.added_ms += tail.as_millis() as u64;
            self.append_bytes(&silence, out);
            return Ok(());
        }
        if self.buffered_ms() < SHORTEST_TURN_MS {
            return Ok(());
        }
        self.end_turn(now, out)
    }

    /// What was buffered is the user's turn.
    fn end_turn(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let buffered = self.buffered_ms();
        if buffered < SHORTEST_TURN_MS {
            // The server would refuse it, and answer all the same.
            self.clear_audio(out);
            return Err(LiveError::InvalidCommand(format!(
                "a turn of {buffered} ms is shorter than {SHORTEST_TURN_MS} ms"
            )));
        }
        self.uplink.buffered = 0;
        self.uplink.flows = false;
        self.send(&ClientEvent::CommitAudio(Command::default()), out);
        self.want(Wanted::default(), now, out)
    }

    fn buffered_ms(&self) -> u64 {
        let format = self.settings.capabilities.input;
        let samples = self.uplink.buffered / format.bytes_per_sample();
        samples as u64 * 1_000 / u64::from(format.sample_rate_hz().max(1))
    }

    fn text(
        &mut self,
        text: String,
        reply: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        refuse_long(&text)?;
        let content = vec![Content::text(ContentType::InputText, text)];
        self.create_item(Item::Message(Message::new(Role::User, content)), out);
        if reply { self.want(Wanted::default(), now, out) } else { Ok(()) }
    }

    fn image(&mut self, media_type: &str, data: &Bytes, out: &mut Outbox) -> Result<(), LiveError> {
        let invalid = |message: String| Err(LiveError::InvalidCommand(message));
        let buffered = self.settings.facts.images == Images::Buffered;
        if !matches!(media_type, "image/png" | "image/jpeg") {
            return invalid(format!("an image is a PNG or a JPEG, not {media_type}"));
        }
        if buffered && media_type == "image/png" {
            return invalid("this server takes JPEGs".to_owned());
        }
        if buffered && !self.uplink.began {
            return invalid("this server takes images after the user's first audio".to_owned());
        }
        if data.is_empty() || data.len() > MAX_IMAGE_BYTES {
            let bytes = data.len();
            return invalid(format!("an image has 1 to {MAX_IMAGE_BYTES} bytes, not {bytes}"));
        }
        if buffered {
            let image = STANDARD.encode_to_string(data);
            let event = json!({"type": "input_image_buffer.append", "image": image});
            out.frames.push_back(Frame::Text(event.to_string().into()));
            return Ok(());
        }
        let url = format!("data:{media_type};base64,{}", STANDARD.encode_to_string(data));
        let content = vec![Content::image(url)];
        self.create_item(Item::Message(Message::new(Role::User, content)), out);
        Ok(())
    }

    /// Most servers have no word for "speak this": the model is told to, and nearly always does.
    fn say(
        &mut self,
        request: u64,
        text: &str,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        refuse_long(text)?;
        if self.settings.facts.says == Saying::Forced {
            return self.want(Wanted::forced(request, text), now, out);
        }
        let instructions = format!(
            "Say the text between the marks, word for word, in its own language, and nothing else. \
             Do not answer it.\n<<<\n{text}\n>>>"
        );
        let params = ResponseParams {
            instructions: Some(instructions),
            tool_choice: Some(ToolChoice::NONE),
            ..ResponseParams::default()
        };
        self.want(Wanted::new(Some(request), params), now, out)
    }

    /// Stops a reply; without a name also the one that was asked for and has not begun.
    fn cancel(&mut self, reply: Option<&ReplyId>, now: Instant, out: &mut Outbox) {
        match reply {
            // A late word about a reply that is over must not hit the next one.
            Some(id) if !self.replies.is_active(&id.0) => {
                out.events.push_back(ignored("a request to stop a reply that is over"));
            }
            Some(_) => self.stop_reply(Stop::Cancelled, true, now, out),
            None if self.replies.active.is_some() => {
                self.stop_reply(Stop::Cancelled, true, now, out);
            }
            None => {
                for wanted in self.requests.take_waiting() {
                    self.fail_request(&wanted, "cancelled", "the reply was not asked for yet", out);
                }
                if let Some(in_flight) = &mut self.requests.in_flight {
                    in_flight.cancelled = true;
                }
            }
        }
    }

    /// The user speaks: the active reply is stopped, here and at the server. `ask`: the server does
    /// not know.
    pub(super) fn interrupt(&mut self, ask: bool, now: Instant, out: &mut Outbox) {
        let Some(reply) = &self.replies.active else { return };
        if !self.settings.interrupts || reply.stopped.is_some() {
            return;
        }
        let id = reply.id.clone();
        self.stop_reply(Stop::Interrupted, ask, now, out);
        out.events.push_back(LiveEvent::Interrupted { reply: Some(id) });
    }

    /// Tells the server what was heard: never more than came, and nothing where that says nothing.
    fn truncate(&mut self, item: Arc<str>, content_index: u32, heard_ms: u64, out: &mut Outbox) {
        let format = self.settings.capabilities.output;
        let Some(audio) = self.replies.audio_of(&item, content_index) else {
            out.events.push_back(ignored("a cut of an item without audio"));
            return;
        };
        let samples = audio.bytes / format.bytes_per_sample() as u64;
        let received_ms = samples * 1_000 / u64::from(format.sample_rate_hz().max(1));
        if received_ms == 0 || audio.whole && heard_ms >= received_ms {
            return;
        }
        let number = self.next_event();
        if self.cuts.len() == MAX_CUTS {
            self.cuts.pop_front();
        }
        self.cuts.push_back((number, item.clone()));
        let event = TruncateItem {
            event_id: Some(format!("cut-{number}")),
            item_id: item.to_string(),
            content_index,
            audio_end_ms: heard_ms.min(received_ms),
        };
        self.send(&ClientEvent::TruncateItem(event), out);
    }

    /// The server refused to cut an item that nothing was heard of: it goes.
    pub(super) fn delete_uncuttable(&mut self, event_id: &str, out: &mut Outbox) {
        let number = event_id.strip_prefix("cut-").and_then(|number| number.parse::<u64>().ok());
        let at = self.cuts.iter().position(|(cut, _)| Some(*cut) == number);
        if let Some((_, item)) = at.and_then(|at| self.cuts.remove(at)) {
            let event = ItemRef { event_id: None, item_id: item.to_string() };
            self.send(&ClientEvent::DeleteItem(event), out);
        }
    }

    fn tool_response(&mut self, response: ToolResponse, out: &mut Outbox) -> Result<(), LiveError> {
        if response.will_continue == Some(true) {
            return Err(LiveError::unsupported(NAME, "take a tool's output in pieces"));
        }
        let of_active =
            self.replies.active.as_ref().is_some_and(|reply| reply.calls.contains(&response.id));
        if !of_active {
            self.send_output(response, out);
            return Ok(());
        }
        if self.held.len() >= MAX_HELD {
            return Err(LiveError::InvalidCommand("too many tool outputs wait".into()));
        }
        self.held.push(response);
        Ok(())
    }

    pub(super) fn send_output(&mut self, response: ToolResponse, out: &mut Outbox) {
        self.after_tools = true;
        let item = FunctionCallOutput {
            call_id: self.calls.on_wire(&response.id).to_owned(),
            output: Value::Object(response.response).to_string(),
            ..FunctionCallOutput::default()
        };
        let number = self.create_item(Item::FunctionCallOutput(item), out);
        if self.outputs.len() == MAX_OUTPUTS {
            self.outputs.pop_front();
        }
        self.outputs.push_back((number, response.id));
    }

    /// Whether the output of this call was sent by this connection.
    pub(super) fn has_answered(&self, call: &str) -> bool {
        self.outputs.iter().any(|(_, sent)| **sent == *call)
    }

    /// The call whose output the server refused.
    pub(super) fn refused_output(&mut self, event_id: &str) -> Option<Arc<str>> {
        let number = event_id.strip_prefix("item-")?.parse::<u64>().ok()?;
        let at = self.outputs.iter().position(|(sent, _)| *sent == number)?;
        self.outputs.remove(at).map(|(_, call)| call)
    }

    fn update_tools(&mut self, tools: &[ToolDefinition], out: &mut Outbox) {
        self.declared = tools.iter().map(|tool| tool.name.to_string()).collect();
        let own = self.settings.session.tools.iter().flatten();
        // The server's own tools stay.
        let others = own.filter(|tool| !matches!(tool, crate::wire::Tool::Function(_))).cloned();
        let tools = functions(tools).into_iter().chain(others).collect();
        let session = RealtimeSession { tools: Some(tools), ..RealtimeSession::default() };
        self.update_session(session, out);
    }
}

fn refuse_long(text: &str) -> Result<(), LiveError> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("the text is longer than {MAX_TEXT_BYTES} bytes");
        return Err(LiveError::InvalidCommand(message));
    }
    Ok(())
}

fn silent_byte(format: AudioFormat) -> u8 {
    match format {
        AudioFormat::Mulaw8k => 0xff,
        AudioFormat::Alaw8k => 0xd5,
        _ => 0,
    }
}
