//! The responses of the behaving server.

use std::time::Instant;

use antiphon_openai::wire::{
    ApiError, ArgumentsDelta, ArgumentsDone, CachedTokens, CertainTool, ContentPartEvent,
    InputTokens, Item, ItemStatus, Modality, OutputItemEvent, OutputTokens, Part, PartDelta,
    PartDone, RateLimit, RateLimits, ResponseEvent, ResponseParams, ResponseStatus, Saying,
    ServerEvent, StatusDetails, TextDone, Tool, ToolChoice, ToolMode, TranscriptDone, Usage,
};
use serde_json::Value;

use super::{
    conversation::{Last, invalid, words},
    engine::Engine,
    response::{Act, Beat, Manner, Open, OpenKind, Running, details, plan},
    session::{SessionState, codec_of},
};
use crate::scripted::{Call, Reply, Rule, codec::Codec, voice};

/// Pairs in a response's metadata.
const MAX_METADATA: usize = 16;
/// Characters of a key of it.
const MAX_METADATA_KEY: usize = 64;
/// Characters of a value of it.
const MAX_METADATA_VALUE: usize = 512;

/// Responses that are being made, and what was made.
pub(super) struct Replying {
    conversation_id: String,
    running: Vec<Running>,
    /// Responses begun.
    count: u32,
    /// How often each rule was taken.
    taken: Vec<u32>,
    spoke: bool,
}

impl Replying {
    pub(super) fn new(connection: u32) -> Self {
        Self {
            conversation_id: format!("conv_{connection}"),
            running: Vec::new(),
            count: 0,
            taken: Vec::new(),
            spoke: false,
        }
    }

    /// Whether the model's voice was heard.
    pub(super) fn spoke(&self) -> bool {
        self.spoke
    }

    /// Whether a response writes to the conversation now.
    pub(super) fn is_active(&self) -> bool {
        self.active().is_some()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.iter().map(|running| running.due).min()
    }

    /// How the session's voice is coded.
    pub(super) fn codec(&self, session: &SessionState) -> Codec {
        let output = session.realtime().audio.as_ref().and_then(|audio| audio.output.as_ref());
        codec_of(output.and_then(|output| output.format.as_ref()))
    }

    fn active(&self) -> Option<usize> {
        self.running.iter().position(|running| running.in_conversation)
    }
}

impl Engine {
    /// A client asks for a response.
    pub(super) fn create_response(
        &mut self,
        params: Option<ResponseParams>,
        now: Instant,
    ) -> Result<(), ApiError> {
        if self.session.transcribes_only() {
            let message = "response.create is not supported in a transcription session.";
            return Err(ApiError { code: None, ..ApiError::invalid_request("", message) });
        }
        let params = params.unwrap_or_default();
        check_metadata(&params)?;
        let in_conversation = params.conversation.as_deref() != Some("none");
        if in_conversation && let Some(active) = self.replying.active() {
            let message = format!(
                "Conversation already has an active response in progress: {}. Wait until the \
                 response is finished before creating a new one.",
                self.replying.running[active].id
            );
            let code = "conversation_already_has_active_response";
            return Err(ApiError::invalid_request(code, message));
        }
        self.begin(params, in_conversation, now);
        Ok(())
    }

    /// The user's turn is over, and the session replies by itself.
    pub(super) fn reply_to_turn(&mut self, now: Instant) {
        if !self.session.transcribes_only() && !self.replying.is_active() {
            self.begin(ResponseParams::default(), true, now);
        }
    }

    pub(super) fn cancel_response(&mut self, id: Option<&str>) -> Result<(), ApiError> {
        let at = match id {
            None => self.replying.active(),
            Some(id) => self.replying.running.iter().position(|running| running.id == id),
        };
        let Some(at) = at else {
            let message = "Cancellation failed: no active response found";
            return Err(ApiError::invalid_request("response_cancel_not_active", message));
        };
        self.stop(at, "client_cancelled");
        Ok(())
    }

    /// The user speaks.
    pub(super) fn interrupt_response(&mut self) {
        if let Some(at) = self.replying.active() {
            self.stop(at, "turn_detected");
        }
    }

    /// Does what is due.
    pub(super) fn advance_replies(&mut self, now: Instant) {
        let mut at = 0;
        while at < self.replying.running.len() {
            if self.replying.running[at].due > now {
                at += 1;
                continue;
            }
            let Some(Beat { act, .. }) = self.replying.running[at].beats.pop_front() else {
                self.replying.running.remove(at);
                continue;
            };
            let mut running = self.replying.running.remove(at);
            if let Some(next) = running.beats.front() {
                running.due += next.after;
            }
            if self.act(&mut running, act, now) {
                self.replying.running.insert(at, running);
            }
        }
    }

    /// Whether an item is spoken as it is.
    pub(super) fn is_forced(&self, item: &Item) -> bool {
        self.facts.says == Saying::Forced && item.kind() == "force_message"
    }

    /// Speaks an item as it is, without a model.
    pub(super) fn speak_forced(&mut self, item: &Item, now: Instant) -> Result<(), ApiError> {
        let Item::Other(item) = item else { return Ok(()) };
        let text = item.pointer("/content/0/text").and_then(Value::as_str).unwrap_or_default();
        if item["role"] != "assistant" || text.is_empty() {
            let message = "A force_message has a role of assistant and a text.";
            return Err(invalid("invalid_value", message, "item"));
        }
        if self.replying.is_active() {
            let code = "conversation_already_has_active_response";
            let message = "Conversation already has an active response in progress.";
            return Err(ApiError::invalid_request(code, message));
        }
        self.replying.count += 1;
        self.begin_with(Reply::text(text), ResponseParams::default(), true, now);
        Ok(())
    }

    fn begin(&mut self, params: ResponseParams, in_conversation: bool, now: Instant) {
        self.replying.count += 1;
        let reply = self.choose(&params);
        self.begin_with(reply, params, in_conversation, now);
    }

    fn begin_with(
        &mut self,
        reply: Reply,
        params: ResponseParams,
        in_conversation: bool,
        now: Instant,
    ) {
        self.idle_at = None;
        let script = self.script();
        let pace = reply.pace.as_ref().unwrap_or(&script.pace);
        let manner = self.manner(&params, &reply);
        let texts = self.texts(&params, &reply);
        let beats = plan(&reply, texts, pace, manner.speaks);
        let due = now + beats.front().map_or_else(Default::default, |beat| beat.after);
        let running = Running {
            id: self.ids.response(),
            in_conversation,
            codec: codec_of(manner.format.as_ref()),
            manner,
            beats,
            due,
            open: None,
            output: Vec::new(),
            voice_ms: 0,
            words: 0,
        };
        let response = running.snapshot(
            ResponseStatus::InProgress,
            None,
            None,
            &self.replying.conversation_id,
        );
        let event_id = self.ids.event();
        self.emit(ServerEvent::ResponseCreated(ResponseEvent {
            event_id,
            response: Box::new(response),
        }));
        self.emit_others();
        self.replying.running.push(running);
        if !self.facts.tells_rate_limits {
            return;
        }
        let event_id = self.ids.event();
        let limit = |name: &str, limit, remaining| RateLimit {
            name: Some(name.into()),
            limit: Some(limit),
            remaining: Some(remaining),
            reset_seconds: Some(0.15),
        };
        let left = 1_000 - i64::from(self.replying.count);
        self.emit(ServerEvent::RateLimitsUpdated(RateLimits {
            event_id,
            rate_limits: vec![limit("requests", 1_000, left), limit("tokens", 40_000, 39_000)],
        }));
    }

    /// Stops a response before its end.
    fn stop(&mut self, at: usize, reason: &str) {
        let mut running = self.replying.running.remove(at);
        running.beats.clear();
        self.close(&mut running, ItemStatus::Incomplete);
        self.finish(&running, ResponseStatus::Cancelled, Some(details("cancelled", reason)));
    }

    /// Whether the response goes on.
    fn act(&mut self, running: &mut Running, act: Act, now: Instant) -> bool {
        match act {
            Act::OpenMessage => self.open(running, OpenKind::Message),
            Act::OpenCall(Call { name, call_id, .. }) => {
                let call_id = call_id.unwrap_or_else(|| self.ids.call());
                self.open(running, OpenKind::Call { name, call_id });
            }
            Act::Words(words) => self.words(running, words),
            Act::Voice { from_ms, to_ms } => self.voice(running, from_ms, to_ms),
            Act::Arguments(piece) => self.arguments(running, piece),
            Act::Close => self.close(running, ItemStatus::Completed),
            Act::Finish(status, details) => {
                self.close(running, ItemStatus::Incomplete);
                self.finish(running, status, details);
                if running.in_conversation {
                    self.idle_at = self.idle_after(running.voice_ms, now);
                }
                return false;
            }
        }
        true
    }

    fn open(&mut self, running: &mut Running, kind: OpenKind) {
        let id = self.ids.item();
        let is_message = matches!(kind, OpenKind::Message);
        let open = Open { id: id.clone(), kind, text: String::new() };
        let item = running.item(&open, ItemStatus::InProgress);
        let event_id = self.ids.event();
        self.emit(ServerEvent::OutputItemAdded(OutputItemEvent {
            event_id,
            response_id: running.id.clone(),
            output_index: running.output_index(),
            item: item.clone(),
        }));
        if running.in_conversation {
            self.conversation.push(id.clone(), item);
            self.emit_item(&id, false);
        }
        running.open = Some(open);
        if is_message {
            let part = part(running, "");
            let event = self.part_event(running, part);
            self.emit(ServerEvent::ContentPartAdded(event));
        }
    }

    fn words(&mut self, running: &mut Running, words: String) {
        let Some(delta) = self.delta(running, words.clone()) else { return };
        if let Some(open) = &mut running.open {
            open.text.push_str(&words);
        }
        running.words += 1;
        self.emit(match running.manner.speaks {
            true => ServerEvent::TranscriptDelta(delta),
            false => ServerEvent::TextDelta(delta),
        });
    }

    fn voice(&mut self, running: &mut Running, from_ms: u64, to_ms: u64) {
        let audio = voice::base64(running.codec, running.manner.hz, from_ms, to_ms);
        let Some(delta) = self.delta(running, audio.to_string()) else { return };
        running.voice_ms += to_ms - from_ms;
        // A message can be cut while it is made.
        if let Some(entry) = self.conversation.find_mut(&delta.item_id)
            && let Some(item) = running.item_so_far()
        {
            entry.voice_ms = to_ms;
            entry.item = item;
        }
        self.replying.spoke = true;
        self.emit(ServerEvent::AudioDelta(delta));
    }

    fn arguments(&mut self, running: &mut Running, delta: String) {
        let Some(open) = &mut running.open else { return };
        let OpenKind::Call { call_id, .. } = &open.kind else { return };
        open.text.push_str(&delta);
        let event = ArgumentsDelta {
            event_id: self.ids.event(),
            response_id: running.id.clone(),
            item_id: open.id.clone(),
            call_id: Some(call_id.clone()),
            delta,
            output_index: u32::try_from(running.output.len()).unwrap_or(u32::MAX),
            obfuscation: None,
        };
        self.emit(ServerEvent::ArgumentsDelta(event));
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, running: &mut Running, status: ItemStatus) {
        let Some(open) = &running.open else { return };
        let (id, text) = (open.id.clone(), open.text.clone());
        let item = running.item(open, status);
        match &open.kind {
            OpenKind::Message => self.close_message(running, text),
            OpenKind::Call { name, call_id } => {
                let event = ArgumentsDone {
                    event_id: self.ids.event(),
                    response_id: running.id.clone(),
                    item_id: id.clone(),
                    output_index: running.output_index(),
                    call_id: Some(call_id.clone()),
                    name: Some(name.clone()),
                    arguments: text,
                };
                self.emit(ServerEvent::ArgumentsDone(event));
            }
        }
        if let Some(entry) = self.conversation.find_mut(&id) {
            entry.item = item.clone();
            self.emit_item(&id, true);
        }
        let event_id = self.ids.event();
        self.emit(ServerEvent::OutputItemDone(OutputItemEvent {
            event_id,
            response_id: running.id.clone(),
            output_index: running.output_index(),
            item: item.clone(),
        }));
        running.open = None;
        running.output.push(item);
    }

    fn close_message(&mut self, running: &Running, text: String) {
        let Some(delta) = self.delta(running, String::new()) else { return };
        let PartDelta { event_id, response_id, item_id, output_index, content_index, .. } = delta;
        let done = PartDone { event_id, response_id, item_id, output_index, content_index };
        let part = part(running, &text);
        if running.manner.speaks {
            let next = self.ids.event();
            self.emit(ServerEvent::AudioDone(done.clone()));
            self.emit(ServerEvent::TranscriptDone(TranscriptDone {
                event_id: next,
                response_id: done.response_id,
                item_id: done.item_id,
                output_index,
                content_index,
                transcript: Some(text),
            }));
        } else {
            self.emit(ServerEvent::TextDone(TextDone {
                event_id: done.event_id,
                response_id: done.response_id,
                item_id: done.item_id,
                output_index,
                content_index,
                text: Some(text),
            }));
        }
        let event = self.part_event(running, part);
        self.emit(ServerEvent::ContentPartDone(event));
    }

    fn finish(
        &mut self,
        running: &Running,
        status: ResponseStatus,
        details: Option<StatusDetails>,
    ) {
        let usage = self.usage(running);
        let conversation = self.replying.conversation_id.clone();
        let usage = Some(usage).filter(|_| self.facts.tells_usage);
        let response = running.snapshot(status, details, usage, &conversation);
        let event_id = self.ids.event();
        self.emit(ServerEvent::ResponseDone(ResponseEvent {
            event_id,
            response: Box::new(response),
        }));
    }

    fn delta(&mut self, running: &Running, delta: String) -> Option<PartDelta> {
        let open = running.open.as_ref()?;
        Some(PartDelta {
            event_id: self.ids.event(),
            response_id: running.id.clone(),
            item_id: open.id.clone(),
            output_index: running.output_index(),
            content_index: 0,
            delta,
        })
    }

    fn part_event(&mut self, running: &Running, part: Part) -> ContentPartEvent {
        ContentPartEvent {
            event_id: self.ids.event(),
            response_id: running.id.clone(),
            item_id: running.open.as_ref().map(|open| open.id.clone()).unwrap_or_default(),
            output_index: running.output_index(),
            content_index: 0,
            part,
        }
    }

    /// The reply that the script has for what is to be answered.
    fn choose(&mut self, params: &ResponseParams) -> Reply {
        let script = self.script();
        self.replying.taken.resize(script.replies.len(), 0);
        let asked = self.asked(params);
        for (index, rule) in script.replies.iter().enumerate() {
            let taken = self.replying.taken[index];
            if rule.times.is_none_or(|times| taken < times) && self.fits(rule, params, &asked) {
                self.replying.taken[index] += 1;
                return rule.reply.clone();
            }
        }
        if let Some(call) = self.forced_call(params) {
            return Reply { calls: vec![call], ..Reply::default() };
        }
        Reply::text(match (&params.instructions, self.conversation.last()) {
            (Some(_), _) => "{instructions}",
            (None, Last::Output { .. }) => "The tool says: {output}",
            (None, _) if asked.is_empty() => "Hello.",
            (None, _) => "You said: {text}",
        })
    }

    fn fits(&self, rule: &Rule, params: &ResponseParams, asked: &str) -> bool {
        let when = &rule.when;
        let last = self.conversation.last();
        let text = when.text.as_ref().is_none_or(|text| {
            let here = params.input.is_some() || matches!(last, Last::User);
            here && asked.to_lowercase().contains(&text.to_lowercase())
        });
        let tool_output = when.tool_output.as_ref().is_none_or(
            |wanted| matches!(last, Last::Output { tool } if wanted == "*" || tool == wanted),
        );
        let instructions = when.instructions.as_ref().is_none_or(|wanted| {
            params.instructions.as_ref().is_some_and(|given| given.contains(wanted))
        });
        text && tool_output && instructions && when.nth.is_none_or(|nth| nth == self.replying.count)
    }

    /// The words to answer: those of the response's own input, or of the conversation.
    fn asked(&self, params: &ResponseParams) -> String {
        let Some(input) = &params.input else {
            return self.conversation.last_user_words().to_owned();
        };
        let found = input.iter().rev().find_map(|item| match item {
            Item::Message(message) => Some(words(message).to_owned()),
            _ => None,
        });
        found.unwrap_or_default()
    }

    fn texts(&self, params: &ResponseParams, reply: &Reply) -> Vec<String> {
        let asked = self.asked(params);
        let instructions = params.instructions.as_deref().unwrap_or("");
        let filled = |text: &String| {
            text.replace("{text}", &asked)
                .replace("{output}", self.conversation.last_output())
                .replace("{instructions}", instructions)
        };
        reply.text.iter().chain(&reply.more).map(filled).collect()
    }

    /// A call, where the client does not leave the model a choice.
    fn forced_call(&self, params: &ResponseParams) -> Option<Call> {
        let session = self.session.realtime();
        let choice = params.tool_choice.as_ref().or(session.tool_choice.as_ref())?;
        let tools = params.tools.as_ref().or(session.tools.as_ref())?;
        let first = tools.iter().find_map(|tool| match tool {
            Tool::Function(tool) => tool.name.clone(),
            _ => None,
        });
        let name = match choice {
            ToolChoice::Mode(ToolMode::Required) => first?,
            ToolChoice::Certain(CertainTool::Function { name }) => name.clone(),
            _ => return None,
        };
        Some(Call { name, arguments: serde_json::json!({}), call_id: None })
    }

    fn manner(&self, params: &ResponseParams, reply: &Reply) -> Manner {
        let session = self.session.realtime();
        let modalities = params.output_modalities.as_ref().or(session.output_modalities.as_ref());
        let wants_audio = modalities.is_none_or(|wanted| wanted.contains(&Modality::Audio));
        let output = session.audio.as_ref().and_then(|audio| audio.output.as_ref());
        let asked = params.audio.as_ref().and_then(|audio| audio.output.as_ref());
        Manner {
            speaks: wants_audio && !reply.text_only,
            format: asked
                .and_then(|output| output.format.clone())
                .or_else(|| output.and_then(|output| output.format.clone())),
            voice: asked
                .and_then(|output| output.voice.clone())
                .or_else(|| output.and_then(|output| output.voice.clone())),
            max_output_tokens: params
                .max_output_tokens
                .clone()
                .or_else(|| session.max_output_tokens.clone()),
            metadata: params.metadata.clone(),
            hz: reply.tone_hz.unwrap_or(voice::DEFAULT_HZ),
        }
    }

    fn usage(&self, running: &Running) -> Usage {
        let text_in = 10 + self.conversation.last_user_words().len() as u64 / 4;
        let text_out = running.words as u64;
        let audio_out = running.voice_ms / 50;
        let zeros =
            CachedTokens { text_tokens: Some(0), audio_tokens: Some(0), image_tokens: Some(0) };
        Usage {
            total_tokens: Some(text_in + text_out + audio_out),
            input_tokens: Some(text_in),
            output_tokens: Some(text_out + audio_out),
            input_token_details: Some(InputTokens {
                text_tokens: Some(text_in),
                audio_tokens: Some(0),
                image_tokens: Some(0),
                cached_tokens: Some(0),
                cached_tokens_details: Some(zeros),
            }),
            output_token_details: Some(OutputTokens {
                text_tokens: Some(text_out),
                audio_tokens: Some(audio_out),
            }),
        }
    }
}

fn part(running: &Running, words: &str) -> Part {
    match running.manner.speaks {
        true => {
            Part { kind: Some("audio".into()), transcript: Some(words.into()), ..Part::default() }
        }
        false => Part { kind: Some("text".into()), text: Some(words.into()), ..Part::default() },
    }
}

fn check_metadata(params: &ResponseParams) -> Result<(), ApiError> {
    let Some(metadata) = &params.metadata else { return Ok(()) };
    let fits = metadata.len() <= MAX_METADATA
        && metadata.iter().all(|(key, value)| {
            key.chars().count() <= MAX_METADATA_KEY && value.chars().count() <= MAX_METADATA_VALUE
        });
    if fits {
        return Ok(());
    }
    let message =
        "Invalid 'response.metadata': at most 16 pairs, keys of 64 characters, values of 512.";
    Err(invalid("invalid_value", message, "response.metadata"))
}
