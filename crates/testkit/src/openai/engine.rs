//! The behaving server: frames and time in, events out. It reads no clock and owns no socket.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_openai::wire::{
    ApiError, AudioEnd, AudioStart, Bare, BufferCommitted, ClientEvent, Content, ContentType,
    ConversationCreated, DecodeError, Dialect, ErrorEvent, Facts, Images, Item, ItemEvent,
    ItemIdEvent, ItemRetrieved, ItemStatus, ItemTruncated, Message, Names, Patch, Role,
    ServerEvent, SessionEvent, TimeoutTriggered, TranscriptDone, TranscriptionCompleted,
    TranscriptionDelta, TranscriptionError, TranscriptionFailed, TranscriptionTokens,
    TranscriptionUsage, TurnDetection, peek_kind,
};
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, invalid, unknown_item},
    dialect,
    replying::Replying,
    script::Script,
    session::{NewSession, SessionState},
};
use crate::scripted::{
    Behaviour, Saying, Transcript,
    listening::{FULL_THRESHOLD_RMS, Heard, Listening, TurnParameters},
    voice,
};

/// The least audio that makes a turn.
const SHORTEST_TURN_MS: f64 = 100.0;
/// The largest append, in base64.
const MAX_APPEND: usize = 15 * 1024 * 1024;
/// How long a session lives where the script does not say.
const LIFETIME_S: u64 = 3_600;

/// What the engine wants done.
#[derive(Debug)]
enum Out {
    Event(Box<ServerEvent>),
    Close(u16, &'static str),
}

/// How a connection begins.
pub(super) struct Opening {
    pub(super) script: Arc<Script>,
    /// The connection's number, from 1; part of every id.
    pub(super) connection: u32,
    pub(super) model: String,
    pub(super) transcribes_only: bool,
    /// Seconds since 1970.
    pub(super) unix_now: u64,
    /// Whether the client asked for the beta, which is no more.
    pub(super) asks_for_beta: bool,
    /// What an ephemeral key says of the session.
    pub(super) bound: Value,
}

/// One connection of a server that behaves.
pub(super) struct Engine {
    opening: Opening,
    dialect: Dialect,
    /// What is known of it.
    pub(super) facts: &'static Facts,
    pub(super) ids: Ids,
    pub(super) session: SessionState,
    pub(super) conversation: Conversation,
    listening: Listening,
    pub(super) replying: Replying,
    transcripts: VecDeque<Transcript>,
    /// Transcripts on their way.
    due_transcripts: VecDeque<(Instant, String, Transcript)>,
    /// The item that the speech under way will be.
    speech_item: Option<String>,
    pub(super) idle_at: Option<Instant>,
    expires_at: Option<Instant>,
    out: VecDeque<Out>,
}

/// Where ids come from.
pub(super) struct Ids {
    connection: u32,
    events: u64,
    items: u64,
    responses: u64,
    calls: u64,
}

impl Ids {
    pub(super) fn event(&mut self) -> String {
        self.events += 1;
        format!("event_{}_{}", self.connection, self.events)
    }

    pub(super) fn item(&mut self) -> String {
        self.items += 1;
        format!("item_{}_{}", self.connection, self.items)
    }

    pub(super) fn response(&mut self) -> String {
        self.responses += 1;
        format!("resp_{}_{}", self.connection, self.responses)
    }

    pub(super) fn call(&mut self) -> String {
        self.calls += 1;
        format!("call_{}_{}", self.connection, self.calls)
    }
}

impl Engine {
    pub(super) fn new(opening: Opening) -> Self {
        let script = &opening.script;
        let ids =
            Ids { connection: opening.connection, events: 0, items: 0, responses: 0, calls: 0 };
        let dialect = script.dialect;
        let facts = dialect.facts();
        let session = SessionState::new(NewSession {
            id: format!("sess_{}", opening.connection),
            model: &opening.model,
            facts,
            expires_at: opening.unix_now + script.expires_in_s.unwrap_or(LIFETIME_S),
            transcribes_only: opening.transcribes_only,
            overrides: [&script.session, &opening.bound],
            plain: script.plain_sessions,
        });
        Self {
            dialect,
            facts,
            ids,
            listening: Listening::new(session.input_format()),
            session,
            conversation: Conversation::default(),
            replying: Replying::new(opening.connection),
            transcripts: script.transcripts.iter().cloned().collect(),
            due_transcripts: VecDeque::new(),
            speech_item: None,
            idle_at: None,
            expires_at: None,
            out: VecDeque::new(),
            opening,
        }
    }

    pub(super) fn script(&self) -> Arc<Script> {
        self.opening.script.clone()
    }

    pub(super) fn emit(&mut self, event: ServerEvent) {
        self.out.push_back(Out::Event(Box::new(event)));
    }

    pub(super) fn emit_item(&mut self, id: &str, done: bool) {
        let Some(item) = self.conversation.find(id).map(|entry| entry.item.clone()) else { return };
        let event_id = self.ids.event();
        let event = ItemEvent { event_id, previous_item_id: self.conversation.before(id), item };
        self.emit(if done { ServerEvent::ItemDone(event) } else { ServerEvent::ItemAdded(event) });
    }

    fn event(&mut self, event: ClientEvent, text: &str, now: Instant) -> Result<(), ApiError> {
        match event {
            ClientEvent::UpdateSession(update) => {
                let raw = match self.dialect {
                    Dialect::Ga | Dialect::Azure => serde_json::from_str::<Value>(text)
                        .ok()
                        .and_then(|mut event| event.get_mut("session").map(Value::take)),
                    _ => serde_json::to_value(&update.session).ok(),
                };
                self.session.update(&raw.unwrap_or_default(), self.replying.spoke())?;
                self.listening.set_codec(self.session.input_format());
                let (event_id, session) = (self.ids.event(), self.session.snapshot());
                self.emit(ServerEvent::SessionUpdated(SessionEvent { event_id, session }));
            }
            ClientEvent::AppendAudio(append) => self.append(&append.audio, now)?,
            ClientEvent::ClearAudio(_) => {
                self.listening.clear();
                self.speech_item = None;
                let event_id = self.ids.event();
                self.emit(ServerEvent::BufferCleared(Bare { event_id }));
            }
            ClientEvent::CommitAudio(_) => {
                let buffered = self.listening.buffered_ms();
                if buffered < SHORTEST_TURN_MS {
                    let message = format!(
                        "Error committing input audio buffer: buffer too small. Expected at least \
                         100ms of audio, but buffer only has {buffered:.2}ms of audio."
                    );
                    let code = "input_audio_buffer_commit_empty";
                    return Err(ApiError::invalid_request(code, message));
                }
                let item = self.speech_item.take().unwrap_or_else(|| self.ids.item());
                self.commit(item, now);
            }
            ClientEvent::CreateItem(create) if self.is_forced(&create.item) => {
                self.speak_forced(&create.item, now)?;
            }
            ClientEvent::CreateItem(create) => {
                if !self.facts.messages && !matches!(create.item, Item::FunctionCallOutput(_)) {
                    let message = format!("Invalid value: '{}'.", create.item.kind());
                    return Err(invalid("invalid_value", &message, "item.type"));
                }
                let ids = &mut self.ids;
                let previous = create.previous_item_id.as_deref();
                let mut item = create.item;
                stamp(&mut item);
                let beta = self.facts.names == Names::Beta;
                let id = self.conversation.create(item, previous, || ids.item(), beta)?;
                self.emit_item(&id, false);
                self.emit_item(&id, true);
            }
            ClientEvent::RetrieveItem(asked) => self.retrieve(&asked.item_id)?,
            ClientEvent::DeleteItem(asked) => {
                self.conversation.delete(&asked.item_id)?;
                let (event_id, item_id) = (self.ids.event(), asked.item_id);
                self.emit(ServerEvent::ItemDeleted(ItemIdEvent { event_id, item_id }));
            }
            ClientEvent::TruncateItem(cut) => {
                self.conversation.truncate(&cut.item_id, cut.content_index, cut.audio_end_ms)?;
                let event_id = self.ids.event();
                self.emit(ServerEvent::ItemTruncated(ItemTruncated {
                    event_id,
                    item_id: cut.item_id,
                    content_index: cut.content_index,
                    audio_end_ms: cut.audio_end_ms,
                }));
            }
            ClientEvent::CreateResponse(create) => {
                self.create_response(create.response.map(|params| *params), now)?;
            }
            ClientEvent::CancelResponse(cancel) => {
                self.cancel_response(cancel.response_id.as_deref())?;
            }
            ClientEvent::ClearOutput(_) => {
                let message = "output_audio_buffer.clear is for WebRTC and SIP.";
                return Err(ApiError::invalid_request("invalid_event", message));
            }
            ClientEvent::Unknown(event)
                if event.kind == "input_image_buffer.append"
                    && self.facts.images == Images::Buffered =>
            {
                let image = event.raw["image"].as_str().unwrap_or_default();
                if image.is_empty() || self.listening.written_ms() == 0 {
                    let message = "An image must follow the user's first audio.";
                    return Err(invalid("invalid_value", message, "image"));
                }
            }
            other => {
                let message = format!("Invalid value: '{}'.", other.kind());
                return Err(invalid("invalid_value", &message, "type"));
            }
        }
        Ok(())
    }

    /// Says what only this vendor's servers say.
    pub(super) fn emit_others(&mut self) {
        for kind in self.facts.other_events {
            let event = json!({"type": kind, "event_id": self.ids.event(), "timestamp": 0});
            if let Ok(event) = ServerEvent::decode(&event.to_string()) {
                self.emit(event);
            }
        }
    }

    fn append(&mut self, base64: &str, now: Instant) -> Result<(), ApiError> {
        if base64.len() > MAX_APPEND {
            return Err(invalid("invalid_value", "The audio is larger than 15 MiB.", "audio"));
        }
        let audio = base64_simd::STANDARD.decode_to_vec(base64).map_err(|_| {
            invalid("invalid_value", "Invalid 'audio': expected base64-encoded bytes.", "audio")
        })?;
        let turns = self.session.turns().cloned();
        for heard in self.listening.append(&audio, turns.as_ref().map(turn_parameters)) {
            match heard {
                Heard::Started { at_ms } => self.speech_started(at_ms),
                Heard::Stopped { at_ms } => self.speech_stopped(at_ms, turns.as_ref(), now),
            }
        }
        Ok(())
    }

    fn speech_started(&mut self, audio_start_ms: u64) {
        self.idle_at = None;
        let item_id = self.ids.item();
        self.speech_item = Some(item_id.clone());
        let event_id = self.ids.event();
        self.emit(ServerEvent::SpeechStarted(AudioStart { event_id, audio_start_ms, item_id }));
        if self.session.turns().is_some_and(TurnDetection::interrupts_replies) {
            self.interrupt_response();
        }
    }

    fn speech_stopped(&mut self, audio_end_ms: u64, turns: Option<&TurnDetection>, now: Instant) {
        let item_id = self.speech_item.take().unwrap_or_else(|| self.ids.item());
        let event_id = self.ids.event();
        let event = AudioEnd { event_id, audio_end_ms, item_id: item_id.clone() };
        self.emit(ServerEvent::SpeechStopped(event));
        self.commit(item_id, now);
        if turns.is_some_and(TurnDetection::creates_replies) {
            self.reply_to_turn(now);
        }
    }

    /// Makes the buffer an item.
    fn commit(&mut self, item_id: String, now: Instant) {
        let audio = self.listening.take();
        let ms = self.session.input_format().ms(audio.len()) as u64;
        let event = BufferCommitted {
            event_id: self.ids.event(),
            previous_item_id: self.conversation.last_id(),
            item_id: item_id.clone(),
        };
        self.emit(ServerEvent::BufferCommitted(event));
        let mut item =
            Item::Message(Message::new(Role::User, vec![Content::new(ContentType::InputAudio)]));
        item.set_id(item_id.clone());
        stamp(&mut item);
        let transcript = self
            .transcripts
            .pop_front()
            .unwrap_or_else(|| Transcript::Words(format!("{ms} milliseconds of speech")));
        let entry = self.conversation.push(item_id.clone(), item);
        entry.audio = audio;
        if let Transcript::Words(words) = &transcript {
            entry.heard = Some(words.clone());
        }
        self.emit_item(&item_id, false);
        self.emit_item(&item_id, true);
        if self.session.transcribes() {
            let due = now + self.opening.script.pace.transcript();
            self.due_transcripts.push_back((due, item_id, transcript));
        }
    }

    fn tell_transcript(&mut self, item_id: &str, transcript: Transcript) {
        match transcript {
            Transcript::Fails { fail } => {
                let event_id = self.ids.event();
                self.emit(ServerEvent::TranscriptionFailed(TranscriptionFailed {
                    event_id,
                    item_id: item_id.into(),
                    content_index: 0,
                    error: TranscriptionError {
                        kind: Some("server_error".into()),
                        code: Some("audio_unintelligible".into()),
                        message: Some(fail),
                        param: None,
                    },
                }));
            }
            Transcript::Words(words) => {
                let mut pieces: Vec<&str> = words.split_inclusive(' ').collect();
                if pieces.len() > 2 {
                    pieces = vec![pieces[0], &words[pieces[0].len()..]];
                }
                let mut so_far = String::new();
                for piece in pieces {
                    let event_id = self.ids.event();
                    if self.facts.cumulative_transcripts {
                        so_far.push_str(piece);
                        self.emit(ServerEvent::TranscriptionUpdated(TranscriptDone {
                            event_id,
                            item_id: item_id.into(),
                            transcript: Some(so_far.clone()),
                            ..TranscriptDone::default()
                        }));
                        continue;
                    }
                    self.emit(ServerEvent::TranscriptionDelta(TranscriptionDelta {
                        event_id,
                        item_id: item_id.into(),
                        content_index: Some(0),
                        delta: Some(piece.into()),
                        logprobs: None,
                    }));
                }
                let Some(entry) = self.conversation.find_mut(item_id) else { return };
                let seconds = self.session.input_format().ms(entry.audio.len()) / 1_000.0;
                if let Item::Message(message) = &mut entry.item
                    && let Some(part) = message.content.first_mut()
                {
                    part.transcript = Some(words.clone());
                }
                let (input, output) = (seconds as u64 * 10 + 1, words.len() as u64 / 4 + 1);
                let usage = TranscriptionUsage::Tokens {
                    input_tokens: input,
                    output_tokens: output,
                    total_tokens: input + output,
                    input_token_details: Some(TranscriptionTokens {
                        audio_tokens: Some(input),
                        text_tokens: Some(0),
                    }),
                };
                let event_id = self.ids.event();
                self.emit(ServerEvent::TranscriptionCompleted(TranscriptionCompleted {
                    event_id,
                    item_id: item_id.into(),
                    transcript: words,
                    usage: Some(usage).filter(|_| self.facts.tells_usage),
                    ..TranscriptionCompleted::default()
                }));
            }
        }
    }

    fn retrieve(&mut self, id: &str) -> Result<(), ApiError> {
        let codec = self.replying.codec(&self.session);
        let Some(entry) = self.conversation.find(id) else {
            return Err(unknown_item("item_retrieve_invalid_item_id", "retrieving", id));
        };
        let mut item = entry.item.clone();
        let audio = match entry.voice_ms {
            0 => entry.audio.clone(),
            ms => voice::bytes(codec, voice::DEFAULT_HZ, 0, ms),
        };
        if let Item::Message(message) = &mut item
            && let Some(part) = message.content.first_mut()
            && !audio.is_empty()
        {
            part.audio = Some(base64_simd::STANDARD.encode_to_string(&audio));
        }
        let event_id = self.ids.event();
        self.emit(ServerEvent::ItemRetrieved(ItemRetrieved { event_id, item }));
        Ok(())
    }

    /// The user said nothing for as long as the session allows.
    fn user_is_idle(&mut self, now: Instant) {
        if self.listening.is_speaking() || self.replying.is_active() {
            return;
        }
        let audio_end_ms = self.listening.written_ms();
        let buffered = self.listening.buffered_ms() as u64;
        let item_id = self.ids.item();
        let event = TimeoutTriggered {
            event_id: self.ids.event(),
            audio_start_ms: audio_end_ms.saturating_sub(buffered),
            audio_end_ms,
            item_id: item_id.clone(),
        };
        self.emit(ServerEvent::TimeoutTriggered(event));
        self.commit(item_id, now);
        self.reply_to_turn(now);
    }

    /// When the user has been idle for too long after a reply with so much voice.
    pub(super) fn idle_after(&self, voice_ms: u64, now: Instant) -> Option<Instant> {
        let Some(TurnDetection::ServerVad(vad)) = self.session.turns() else { return None };
        let Patch::Set(idle_ms) = vad.idle_timeout_ms else { return None };
        Some(now + Duration::from_millis(voice_ms + u64::from(idle_ms)))
    }

    fn refuse(&mut self, client_event: Option<String>, error: ApiError) {
        let event_id = self.ids.event();
        let error = ApiError { event_id: client_event, ..error };
        self.emit(ServerEvent::Error(ErrorEvent { event_id, error }));
    }
}

impl Behaviour for Engine {
    fn opened(&mut self, now: Instant, greet: bool) {
        if self.opening.asks_for_beta && self.dialect == Dialect::Ga {
            let message = "The Realtime Beta API is no longer supported. Please use /v1/realtime \
                           without the OpenAI-Beta header.";
            self.refuse(None, invalid("beta_api_shape_disabled", message, "OpenAI-Beta"));
            self.out.push_back(Out::Close(4000, "invalid_request_error.beta_api_shape_disabled"));
            return;
        }
        let lifetime = self.opening.script.expires_in_s.unwrap_or(LIFETIME_S);
        self.expires_at = Some(now + Duration::from_secs(lifetime));
        if greet && self.facts.begins_with_conversation {
            let event_id = self.ids.event();
            let event = ConversationCreated { event_id, ..ConversationCreated::default() };
            self.emit(ServerEvent::ConversationCreated(event));
        }
        if greet {
            let (event_id, session) = (self.ids.event(), self.session.snapshot());
            self.emit(ServerEvent::SessionCreated(SessionEvent { event_id, session }));
        }
    }

    fn frame(&mut self, text: &str, now: Instant) {
        let event = match self.dialect.decode_client(text) {
            Ok(event) => event,
            Err(error) => return self.refuse(None, not_an_event(&error)),
        };
        let id = event.event_id().map(str::to_owned);
        // Audio is most of what comes and has no keys that could be wrong.
        if peek_kind(text) != Some("input_audio_buffer.append") {
            let value: Value = serde_json::from_str(text).unwrap_or_default();
            if let Err(error) = dialect::check(self.dialect, &value) {
                return self.refuse(id, error);
            }
        }
        if let Err(error) = self.event(event, text, now) {
            self.refuse(id, error);
        }
        self.timeout(now);
    }

    fn timeout(&mut self, now: Instant) {
        let due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        while due(self.due_transcripts.front().map(|(at, ..)| *at)) {
            if let Some((_, item, transcript)) = self.due_transcripts.pop_front() {
                self.tell_transcript(&item, transcript);
            }
        }
        self.advance_replies(now);
        if due(self.idle_at) {
            self.idle_at = None;
            self.user_is_idle(now);
        }
        if due(self.expires_at) {
            self.expires_at = None;
            let message = "Your session hit the maximum duration of 60 minutes.";
            self.refuse(None, ApiError::invalid_request("session_expired", message));
            self.out.push_back(Out::Close(1001, ""));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let transcript = self.due_transcripts.front().map(|(due, ..)| *due);
        [transcript, self.replying.deadline(), self.idle_at, self.expires_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn next(&mut self) -> Option<Saying> {
        Some(match self.out.pop_front()? {
            // The words that the server speaks may have none for it.
            Out::Event(event) => Saying::Event {
                kind: event.kind().to_owned(),
                text: self.dialect.encode_server(&event),
            },
            Out::Close(code, reason) => Saying::Close(code, reason.to_owned()),
        })
    }

    fn complete(&mut self, event: &mut Value) -> bool {
        if let Value::Object(fields) = event
            && !fields.contains_key("event_id")
        {
            fields.insert("event_id".into(), self.ids.event().into());
        }
        event["type"] == "session.created"
    }

    fn error(&self, fields: &Value) -> Value {
        let mut error = json!({"type": "invalid_request_error", "message": ""});
        if let (Value::Object(error), Value::Object(fields)) = (&mut error, fields) {
            error.extend(fields.clone());
        }
        json!({"type": "error", "error": error})
    }

    fn is_audio(frame: &str) -> bool {
        match peek_kind(frame) {
            Some(kind) => kind == "input_audio_buffer.append",
            None => frame.contains("\"input_audio_buffer.append\""),
        }
    }
}

/// What the server adds to an item of a client's.
fn stamp(item: &mut Item) {
    let object = || Some("realtime.item".to_owned());
    let status = || Some(ItemStatus::Completed);
    match item {
        Item::Message(item) => (item.object, item.status) = (object(), status()),
        Item::FunctionCall(item) => (item.object, item.status) = (object(), status()),
        Item::FunctionCallOutput(item) => (item.object, item.status) = (object(), status()),
        _ => {}
    }
}

fn not_an_event(error: &DecodeError) -> ApiError {
    match error {
        DecodeError::Json(_) => ApiError::invalid_request(
            "invalid_event",
            format!("The frame is {error}. Events are JSON objects in text frames."),
        ),
        DecodeError::NoType => {
            invalid("missing_required_parameter", "Missing required parameter: 'type'.", "type")
        }
        other if other.to_string().contains("missing field") => {
            let message = other.to_string();
            let field = message.split('`').nth(1).unwrap_or("").to_owned();
            let message = format!("Missing required parameter: '{field}'.");
            invalid("missing_required_parameter", &message, &field)
        }
        other => ApiError::invalid_request("invalid_type", other.to_string()),
    }
}

/// How the session hears turns.
fn turn_parameters(turns: &TurnDetection) -> TurnParameters {
    match turns {
        TurnDetection::ServerVad(vad) => TurnParameters {
            rms: vad.threshold.unwrap_or(0.5) * FULL_THRESHOLD_RMS,
            prefix_ms: vad.prefix_padding_ms.unwrap_or(300).into(),
            silence_ms: vad.silence_duration_ms.unwrap_or(200).into(),
        },
        // It waits for meaning; we have none, so it waits a while.
        _ => TurnParameters { rms: 0.5 * FULL_THRESHOLD_RMS, prefix_ms: 300, silence_ms: 600 },
    }
}
