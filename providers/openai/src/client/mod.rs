//! The client half of the protocol: commands to frames, frames to events, time as an input.

mod commands;
mod endpoint;
mod errors;
mod events;
mod hearing;
mod history;
mod options;
mod permissions;
mod refusals;
mod replies;
mod requests;
mod resumption;
mod settings;
mod speaking;

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{
    Capabilities, ErrorInfo, Frame, Handshake, HistoryItem, LiveCommand, LiveConfig, LiveError,
    LiveEvent, Outbox, Refusal, Resumption, Secrets, WireProtocol,
};
use antiphon_types::{ToolResponse, Usage};

use self::{
    hearing::Hearing,
    history::CallIds,
    permissions::Permissions,
    replies::{Replies, Stop},
    requests::{Ask, Requests, Wanted},
    resumption::Conversation,
    settings::Settings,
};
use crate::wire::{
    self, ApiError, AudioDelta, CancelResponse, ClientEvent, CreateItem, CreateResponse, Dialect,
    Item, RealtimeSession, ResponseParams, ServerEvent, Session, UpdateSession, peek_kind,
};

/// The provider's name.
pub(crate) const NAME: &str = "openai";
/// The server's first word is waited for this long; then the session is asked for without it.
const FIRST_WORD: Duration = Duration::from_secs(5);
/// The answer to the session that was asked for is waited for this long; some servers give none.
const SESSION_ANSWER: Duration = Duration::from_secs(5);
/// A server that stops its reply by itself gets this long before it is asked to.
const STOP_BY_ITSELF: Duration = Duration::from_secs(1);
/// A stopped reply that the server does not end is ended here after this.
const STOP_ANSWER: Duration = Duration::from_secs(5);
/// A turn that ended during a reply is answered by the server within this, or by our asking.
const ANSWER_BY_ITSELF: Duration = Duration::from_millis(700);
/// Before the session's end, so much time is left when that is told.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);
/// Frames one after the other that are no events, before the connection is given up.
const MAX_MALFORMED: u32 = 16;

/// The client half of OpenAI Realtime as a pure state machine.
///
/// [`crate::OpenAi`] joins it to a socket; by itself it is for tests and for other transports.
pub struct Client {
    settings: Arc<Settings>,
    phase: Phase,
    replies: Replies,
    requests: Requests,
    hearing: Hearing,
    calls: CallIds,
    permissions: Permissions,
    history: Vec<HistoryItem>,
    conversation: Conversation,
    uplink: Uplink,
    /// Outputs of calls whose reply is not done (quirk 12).
    held: Vec<ToolResponse>,
    /// Outputs were sent, and no reply was asked for since.
    after_tools: bool,
    /// The server is going to answer the user's turn by itself.
    server_turn: bool,
    /// A turn of the user ended during a reply, which the server may leave without an answer.
    passed_over: bool,
    /// When that turn is answered by our asking.
    answer_at: Option<Instant>,
    /// Names of the tools that were declared.
    declared: Vec<String>,
    /// Items that were cut, by our number.
    cuts: VecDeque<(u64, Arc<str>)>,
    /// Calls whose outputs were sent, by our number.
    outputs: VecDeque<(u64, Arc<str>)>,
    last_event: u64,
    malformed: u32,
    /// The server's last error that did not end the session.
    told: Option<ApiError>,
    unix_time: Option<Duration>,
    /// When the session's end is told.
    expiry: Option<Instant>,
    /// What is told of events that belong to no reply; shared, since audio may be among them.
    stale: Arc<str>,
}

/// How far the set-up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No socket.
    New,
    /// The server has not said anything.
    Opened { until: Instant },
    /// The session was asked for.
    Asked { until: Instant, with_voice: bool },
    /// The session may begin.
    Ready,
}

/// The user's audio.
#[derive(Debug, Default)]
struct Uplink {
    /// Bytes that were not taken as a turn, as far as is known here.
    buffered: usize,
    /// There was audio since its end was last told.
    flows: bool,
    /// There was audio on this connection.
    began: bool,
    /// Milliseconds of silence that we added.
    added_ms: u64,
    /// The server hears the user speak.
    speaking: bool,
}

impl Client {
    /// A client for one connection with this configuration. `dialect`: where the configuration does
    /// not say it; else it is told from the address, or is GA.
    ///
    /// # Errors
    ///
    /// [`LiveError::InvalidConfig`] and [`LiveError::MissingEndpoint`].
    pub fn new(config: &LiveConfig, dialect: Option<Dialect>) -> Result<Self, LiveError> {
        Self::with_model(config, dialect, None)
    }

    /// With another model than the configuration's.
    pub(crate) fn with_model(
        config: &LiveConfig,
        dialect: Option<Dialect>,
        model: Option<&str>,
    ) -> Result<Self, LiveError> {
        let settings = Settings::new(config, dialect, model)?;
        let declared = config.tools.iter().map(|tool| tool.name.to_string()).collect();
        Ok(Self {
            settings: Arc::new(settings),
            phase: Phase::New,
            replies: Replies::default(),
            requests: Requests::default(),
            hearing: Hearing::default(),
            calls: CallIds::default(),
            permissions: Permissions::default(),
            history: Vec::new(),
            conversation: Conversation::default(),
            uplink: Uplink::default(),
            held: Vec::new(),
            after_tools: false,
            server_turn: false,
            passed_over: false,
            answer_at: None,
            declared,
            cuts: VecDeque::new(),
            outputs: VecDeque::new(),
            last_event: 0,
            malformed: 0,
            told: None,
            unix_time: None,
            expiry: None,
            stale: "remains of a reply".into(),
        })
    }

    /// What was said before this connection; it is put into the conversation where the server takes it.
    pub fn history(mut self, history: Vec<HistoryItem>) -> Self {
        self.history = history;
        self
    }

    /// An id for the session, unique among those of the key, where the dialect's address holds one
    /// and the configuration has none.
    pub fn session_id(mut self, id: &str) -> Self {
        Arc::make_mut(&mut self.settings).endpoint.name_session(id);
        self
    }

    /// The time since 1970 when the connection is opened: without it, the session's end is not
    /// foretold.
    pub fn unix_time(mut self, time: Duration) -> Self {
        self.unix_time = Some(time);
        self
    }

    /// The model.
    pub fn model(&self) -> &Arc<str> {
        &self.settings.model
    }

    /// What a connection can do.
    pub fn capabilities(&self) -> &Arc<Capabilities> {
        &self.settings.capabilities
    }

    /// The dialect that is spoken.
    pub fn dialect(&self) -> Dialect {
        self.settings.dialect
    }
}

/// The model that a connection with this configuration uses. An option that is wrong is told by
/// [`Client::new`].
pub(crate) fn model_of(config: &LiveConfig, dialect: Option<Dialect>) -> Arc<str> {
    match Settings::new(config, dialect, None) {
        Ok(settings) => settings.model,
        Err(_) => {
            let dialect = settings::dialect(config, dialect).unwrap_or_default();
            settings::model(config, dialect, None)
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("dialect", &self.settings.dialect)
            .field("model", &self.settings.model)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}

impl WireProtocol for Client {
    fn provider(&self) -> &str {
        NAME
    }

    fn handshake(
        &self,
        _: &LiveConfig,
        secrets: &Secrets,
        resume: Option<&Resumption>,
    ) -> Result<Handshake, LiveError> {
        if resume.is_some() && !self.settings.capabilities.resumption {
            return Err(LiveError::unsupported(NAME, "resume by a handle"));
        }
        self.settings.endpoint.handshake(secrets, resume)
    }

    fn refused(&self, refusal: &Refusal) -> LiveError {
        errors::refused_upgrade(refusal)
    }

    fn opened(&mut self, now: Instant, _: &mut Outbox) -> Result<(), LiveError> {
        self.phase = Phase::Opened { until: now + FIRST_WORD };
        Ok(())
    }

    fn command(
        &mut self,
        command: LiveCommand,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if self.phase != Phase::Ready {
            return Err(LiveError::InvalidCommand("the session has not begun".into()));
        }
        self.on_command(command, now, out)
    }

    fn frame(&mut self, frame: Frame, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        match frame {
            Frame::Text(text) => self.on_text(&text, now, out),
            Frame::Binary(_) => self.on_malformed("a binary frame".into(), out),
            Frame::Close(close) => Err(errors::closed(close, self.told.as_ref())),
            Frame::Ping(_) | Frame::Pong(_) => Ok(()),
        }
    }

    fn timeout(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        match self.phase {
            Phase::Opened { until } if until <= now => {
                tracing::debug!("the server said nothing; asking for the session");
                self.ask_for_session(true, now, out);
            }
            Phase::Asked { until, .. } if until <= now => {
                tracing::warn!("the server did not answer the session that was asked for");
                self.become_ready(out)?;
            }
            _ => {}
        }
        if let Some(late) = self.requests.take_late(now) {
            self.fail_request(&late, "no_answer", "the server did not begin a reply", out);
        }
        self.hearing.timeout(now, out);
        if self.expiry.is_some_and(|at| at <= now) {
            self.expiry = None;
            out.events.push_back(LiveEvent::GoingAway { time_left: Some(EXPIRY_MARGIN) });
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer_at = None;
            self.requests.want(Wanted::default());
        }
        self.end_stopped_reply(now, out);
        self.pump(now, out);
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Opened { until } | Phase::Asked { until, .. } => Some(until),
            Phase::New | Phase::Ready => None,
        };
        let active = self.replies.active.as_ref();
        let others = [
            self.requests.deadline(active.is_some()),
            self.hearing.deadline(),
            active.and_then(|reply| reply.end_by),
            self.answer_at,
            self.expiry,
        ];
        others.into_iter().flatten().chain(phase).min()
    }
}

/// Set-up.
impl Client {
    /// Asks for the session. `with_voice`: some servers refuse to change it (`cannot_update_voice`).
    fn ask_for_session(&mut self, with_voice: bool, now: Instant, out: &mut Outbox) {
        let mut session = self.settings.session.clone();
        if !with_voice
            && let Some(output) = session.audio.as_mut().and_then(|audio| audio.output.as_mut())
        {
            output.voice = None;
        }
        self.update_whole_session(session, out);
        self.phase = Phase::Asked { until: now + SESSION_ANSWER, with_voice };
    }

    fn become_ready(&mut self, out: &mut Outbox) -> Result<(), LiveError> {
        self.refuse_another_conversation()?;
        self.phase = Phase::Ready;
        let capabilities = self.settings.capabilities.clone();
        out.events.push_back(LiveEvent::Ready { capabilities });
        self.tell_resumable(out);
        let mut history = std::mem::take(&mut self.history);
        if !self.settings.capabilities.history {
            history.clear();
        }
        for item in history::items(history, &mut self.calls) {
            self.create_item(item, out);
        }
        Ok(())
    }

    /// Reckons when the session ends.
    fn note_expiry(&mut self, session: &Session, now: Instant) {
        let expires_at = match session {
            Session::Realtime(session) => session.expires_at,
            Session::Transcription(session) => session.expires_at,
            Session::Other(session) => {
                session.get("expires_at").and_then(serde_json::Value::as_u64)
            }
        };
        let facts = self.settings.facts;
        if let (None, Some(limit)) = (expires_at, facts.session_limit)
            && !facts.tells_expiry
        {
            self.expiry = Some(now + limit.saturating_sub(EXPIRY_MARGIN));
            return;
        }
        let (Some(expires_at), Some(unix_time)) = (expires_at, self.unix_time) else { return };
        let left = Duration::from_secs(expires_at).saturating_sub(unix_time);
        // Clocks differ: only what can be meant is believed.
        if left > 2 * EXPIRY_MARGIN && left < Duration::from_secs(24 * 3600) {
            self.expiry = Some(now + left - EXPIRY_MARGIN);
        }
    }
}

/// What both directions use.
impl Client {
    fn send(&self, event: &ClientEvent, out: &mut Outbox) {
        let text = self.settings.dialect.encode_client(event);
        out.frames.push_back(Frame::Text(text.into()));
    }

    fn next_event(&mut self) -> u64 {
        self.last_event += 1;
        self.last_event
    }

    fn create_item(&mut self, item: Item, out: &mut Outbox) -> u64 {
        let number = self.next_event();
        let event_id = Some(format!("item-{number}"));
        let event = CreateItem { event_id, previous_item_id: None, item };
        self.send(&ClientEvent::CreateItem(event), out);
        number
    }

    fn update_session(&mut self, session: RealtimeSession, out: &mut Outbox) {
        let event_id = Some(format!("session-{}", self.next_event()));
        let session = Session::Realtime(Box::new(session));
        self.send(&ClientEvent::UpdateSession(UpdateSession { event_id, session }), out);
    }

    /// With what the dialect alone has.
    fn update_whole_session(&mut self, session: RealtimeSession, out: &mut Outbox) {
        self.update_session(session, out);
        let settings = &self.settings;
        if settings.extra.is_empty() {
            return;
        }
        let Some(Frame::Text(text)) = out.frames.back_mut() else { return };
        let Ok(mut event) = serde_json::from_str::<serde_json::Value>(text) else { return };
        if let Some(session) = event.get_mut("session") {
            settings.extra.add_to(session);
        }
        *text = event.to_string().into();
    }

    /// Asks for a reply as soon as there is none.
    fn want(&mut self, wanted: Wanted, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        if !self.requests.want(wanted) {
            return Err(LiveError::InvalidCommand("too many replies are asked for".into()));
        }
        self.pump(now, out);
        Ok(())
    }

    /// Sends the next request, if its time has come.
    fn pump(&mut self, now: Instant, out: &mut Outbox) {
        if self.replies.active.is_some() || self.phase != Phase::Ready {
            return;
        }
        let facts = self.settings.facts;
        let Some(sent) = self.requests.next(now) else { return };
        let id = requests::event_id(sent.number);
        let event = match &sent.wanted.ask {
            Ask::Forced(item) => ClientEvent::CreateItem(CreateItem {
                event_id: Some(id),
                previous_item_id: None,
                item: Item::Other(item.clone()),
            }),
            Ask::Response(params) => {
                let mut params = params.clone();
                if facts.response_metadata {
                    params.metadata = Some([(METADATA_KEY.to_owned(), id.clone())].into());
                }
                if !facts.response_tool_choice {
                    params.tool_choice = None;
                }
                let response = Some(params).filter(|params| **params != ResponseParams::default());
                ClientEvent::CreateResponse(CreateResponse { event_id: Some(id), response })
            }
        };
        self.send(&event, out);
    }

    fn fail_request(&self, wanted: &Wanted, code: &str, message: &str, out: &mut Outbox) {
        let error = ErrorInfo::new(code, message);
        out.events.push_back(LiveEvent::Error(match wanted.request {
            Some(request) => error.for_request(request),
            None => error,
        }));
    }

    /// Stops the active reply: nothing more of its voice passes.
    fn stop_reply(&mut self, why: Stop, ask: bool, now: Instant, out: &mut Outbox) {
        let Some(reply) = &mut self.replies.active else { return };
        reply.stopped.get_or_insert(why);
        if ask && !reply.cancel_sent {
            reply.cancel_sent = true;
            reply.end_by = Some(now + STOP_ANSWER);
            let response_id = reply.named.then(|| reply.id.to_string());
            let event = CancelResponse { event_id: None, response_id };
            self.send(&ClientEvent::CancelResponse(event), out);
        } else if reply.end_by.is_none() {
            reply.end_by = Some(now + STOP_BY_ITSELF);
        }
    }

    /// A stopped reply that the server did not end: asks, and at last ends it here.
    fn end_stopped_reply(&mut self, now: Instant, out: &mut Outbox) {
        let Some(reply) = self.replies.active.as_ref() else { return };
        if reply.end_by.is_none_or(|at| at > now) {
            return;
        }
        let why = reply.stopped.unwrap_or(Stop::Cancelled);
        if !reply.cancel_sent {
            self.stop_reply(why, true, now, out);
            return;
        }
        out.events.push_back(ignored("a stopped reply that was never ended"));
        self.end_reply(why.outcome(), None, now, out);
    }
}

/// Frames.
impl Client {
    fn on_text(&mut self, text: &str, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        if self.phase == Phase::Ready && peek_kind(text).is_some_and(AudioDelta::is_kind) {
            return match AudioDelta::decode(text) {
                Ok(delta) => self.on_audio(&delta, now, out),
                Err(error) => self.on_malformed(error.to_string(), out),
            };
        }
        let decoded = ServerEvent::decode(text).or_else(|error| {
            // Deltas are cut anywhere, also within a character that takes two escapes.
            wire::without_lone_surrogates(text)
                .and_then(|mended| ServerEvent::decode(&mended).ok())
                .ok_or(error)
        });
        match decoded {
            Ok(event) => {
                self.malformed = 0;
                self.on_event(event, now, out)
            }
            Err(error) => self.on_malformed(error.to_string(), out),
        }
    }

    /// A frame that is no event. Told, and forgiven unless there are many in a row.
    fn on_malformed(&mut self, what: String, out: &mut Outbox) -> Result<(), LiveError> {
        self.malformed += 1;
        if self.malformed >= MAX_MALFORMED {
            return Err(LiveError::Protocol(format!(
                "{MAX_MALFORMED} bad frames; the last: {what}"
            )));
        }
        if self.phase == Phase::Ready {
            out.events.push_back(LiveEvent::Error(ErrorInfo::new("malformed_event", what)));
        } else {
            tracing::warn!(what, "a frame that is no event");
        }
        Ok(())
    }
}

/// The key of our number in a response's metadata.
const METADATA_KEY: &str = "request";

fn ignored(kind: &str) -> LiveEvent {
    let end = kind.floor_char_boundary(80);
    LiveEvent::Ignored { kind: kind[..end].into() }
}

fn usage_of(usage: &wire::Usage) -> Usage {
    let input = usage.input_token_details.clone().unwrap_or_default();
    let output = usage.output_token_details.clone().unwrap_or_default();
    let mut counted = Usage::default();
    counted.input_text_tokens = input.text_tokens.unwrap_or_default();
    counted.input_audio_tokens = input.audio_tokens.unwrap_or_default();
    counted.input_image_tokens = input.image_tokens.unwrap_or_default();
    counted.cached_tokens = input.cached_tokens.unwrap_or_default();
    let cached = input.cached_tokens_details.unwrap_or_default();
    counted.cached_audio_tokens = cached.audio_tokens.unwrap_or_default();
    counted.cached_image_tokens = cached.image_tokens.unwrap_or_default();
    counted.output_text_tokens = output.text_tokens.unwrap_or_default();
    counted.output_audio_tokens = output.audio_tokens.unwrap_or_default();
    // Servers that tell only sums.
    if usage.input_token_details.is_none() {
        counted.input_text_tokens = usage.input_tokens.unwrap_or_default();
    }
    if usage.output_token_details.is_none() {
        counted.output_text_tokens = usage.output_tokens.unwrap_or_default();
    }
    counted
}
