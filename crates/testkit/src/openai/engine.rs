//! The behaving server: frames and time in, events out. It reads no clock and owns no socket.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_openai::wire::{
    self, ApiError, Bare, ClientEvent, ConversationCreated, DecodeError, Dialect, ErrorEvent,
    Facts, Images, Item, ItemEvent, ItemIdEvent, ItemRetrieved, ItemStatus, ItemTruncated, Names,
    ServerEvent, SessionEvent, peek_kind,
};
use serde_json::{Value, json};

use super::{
    conversation::{Conversation, invalid, unknown_item},
    dialect,
    kept::Kept,
    replying::Replying,
    script::Script,
    session::{NewSession, SessionState},
};
use crate::scripted::{Behaviour, Saying, Transcript, listening::Listening, voice};

/// The least audio that makes a turn.
const SHORTEST_TURN_MS: f64 = 100.0;
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
    /// The conversation that is to be gone on with.
    pub(super) resume: Option<String>,
    /// Those of earlier connections.
    pub(super) kept: Arc<Kept>,
}

/// One connection of a server that behaves.
pub(super) struct Engine {
    pub(super) opening: Opening,
    dialect: Dialect,
    /// What is known of it.
    pub(super) facts: &'static Facts,
    pub(super) ids: Ids,
    pub(super) session: SessionState,
    pub(super) conversation: Conversation,
    pub(super) listening: Listening,
    pub(super) replying: Replying,
    pub(super) transcripts: VecDeque<Transcript>,
    /// Transcripts on their way.
    pub(super) due_transcripts: VecDeque<(Instant, String, Transcript)>,
    /// The item that the speech under way will be.
    pub(super) speech_item: Option<String>,
    pub(super) idle_at: Option<Instant>,
    /// The conversation's name, where the server has one for it.
    name: Option<String>,
    /// The session asks for the conversation to be kept.
    keeps: bool,
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
            name: None,
            keeps: false,
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
                self.keep_conversation(text, now);
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

    /// The session may ask for its conversation to be kept; one that is gone on with is told then.
    fn keep_conversation(&mut self, update: &str, now: Instant) {
        let update: Value = serde_json::from_str(update).unwrap_or_default();
        let wish = update.pointer("/session/resumption/enabled").and_then(Value::as_bool);
        let Some(wish) = wish.filter(|_| self.facts.resumes_for.is_some()) else { return };
        let begins = wish && !std::mem::replace(&mut self.keeps, wish);
        let Some(name) = self.opening.resume.take().filter(|_| begins) else { return };
        let lines = self.opening.kept.of(&name, self.facts, now).unwrap_or_default();
        for id in self.conversation.adopt(lines) {
            let Some(item) = self.conversation.find(&id).map(|entry| entry.item.clone()) else {
                continue;
            };
            let (event_id, previous_item_id) = (self.ids.event(), self.conversation.before(&id));
            let event = ItemEvent { event_id, previous_item_id, item };
            self.emit(ServerEvent::ItemCreated(event));
        }
    }

    /// Keeps what was said so far.
    fn remember(&self, now: Instant) {
        if self.keeps
            && let Some(name) = &self.name
        {
            self.opening.kept.put(name, self.conversation.lines(), now);
        }
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
            let known = |name: &String| self.opening.kept.of(name, self.facts, now).is_some();
            self.opening.resume = self.opening.resume.take().filter(known);
            let new = || format!("conv_{}", self.opening.connection);
            let name = self.opening.resume.clone().unwrap_or_else(new);
            self.name = Some(name.clone());
            let object = Some("realtime.conversation".to_owned());
            let conversation = wire::Conversation { id: Some(name), object };
            let event = ConversationCreated { event_id, conversation };
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
        self.remember(now);
    }

    fn timeout(&mut self, now: Instant) {
        let due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        while due(self.due_transcripts.front().map(|(at, ..)| *at)) {
            if let Some((_, item, transcript)) = self.due_transcripts.pop_front() {
                self.tell_transcript(&item, transcript);
            }
        }
        let due_replies = self.replying.deadline().is_some_and(|at| at <= now);
        self.advance_replies(now);
        if due_replies {
            self.remember(now);
        }
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
pub(super) fn stamp(item: &mut Item) {
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
