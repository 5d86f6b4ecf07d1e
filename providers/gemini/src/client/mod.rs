//! The client half of the protocol: commands to frames, frames to events, time as an input.

mod calls;
mod commands;
mod endpoint;
mod errors;
mod events;
mod hearing;
mod history;
mod messages;
mod options;
mod partial;
mod replies;
mod settings;
mod speaking;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{
    Capabilities, ErrorInfo, Frame, Handshake, HistoryItem, LiveCommand, LiveConfig, LiveError,
    LiveEvent, Outbox, Refusal, ReplyId, Resumption, Secrets, WireProtocol,
};
use antiphon_types::Usage;
use secrecy::ExposeSecret;

use self::{
    calls::Calls,
    errors::When,
    hearing::Hearing,
    messages::Messages,
    partial::Partials,
    replies::{AFTER_REQUEST, Remains, Reply},
    settings::Settings,
};
use crate::wire::{ApiError, ClientMessage, ServerMessage};

pub use endpoint::Platform;
pub(crate) use endpoint::account;

/// The provider's name.
pub(crate) const NAME: &str = "gemini";
/// Stands in a handle between the name of the model that gave it, if that is not the configuration's
/// own, and what the service knows it by.
pub(crate) const OF_MODEL: char = '\n';
/// A request for a reply that is not answered for so long is given up.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// Frames one after the other that are no messages, before the connection is given up.
const MAX_MALFORMED: u32 = 16;

/// The client half of Gemini Live as a pure state machine.
///
/// [`crate::Gemini`] joins it to a socket; by itself it is for tests and for other transports.
pub struct Client {
    settings: Arc<Settings>,
    phase: Phase,
    history: Vec<HistoryItem>,
    resume: Option<Resumption>,
    /// What handles begin with: whose they are.
    handle_prefix: String,
    /// What the names of replies and utterances begin with: they are told apart over connections.
    prefix: String,
    uplink: Uplink,
    messages: Messages,
    reply: Option<Reply>,
    replies: u64,
    /// The last reply, which may still be playing.
    last_reply: Option<ReplyId>,
    remains: Option<Remains>,
    /// A turn may still be ended that is over here.
    stray_end: bool,
    /// More comes of the last turn without having been asked for.
    in_progress: bool,
    asked: Option<Asked>,
    /// The model has the output that it waited for, and goes on.
    calls_answered: bool,
    hearing: Hearing,
    /// The server hears the user speak.
    speaking: bool,
    calls: Calls,
    /// Calls whose arguments are still coming.
    partials: Partials,
    bill: Bill,
    going_away: bool,
    malformed: u32,
    /// The server's last error.
    told: Option<ApiError>,
    /// What is told of things that belong to no reply; shared, since voice may be among them.
    stale: Arc<str>,
}

/// How far the set-up is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No socket.
    New,
    /// The session was asked for.
    Asked,
    /// It began.
    Ready,
}

/// The user's audio.
#[derive(Debug, Default)]
struct Uplink {
    /// An activity began and has not ended.
    active: bool,
    /// There was audio since its end was last told.
    flows: bool,
    /// There was audio since the last reply was done.
    since_reply: bool,
}

/// A request for a reply.
#[derive(Debug)]
struct Asked {
    /// The session's number for it.
    request: Option<u64>,
    /// The session does not want it any more.
    cancelled: bool,
    until: Instant,
}

/// What turns cost. The server tells the whole of a turn, perhaps several times.
#[derive(Debug, Default)]
struct Bill {
    /// Of the turn that goes on.
    turn: Option<Usage>,
    /// Of turns that were over before it came.
    late: Option<Usage>,
    /// The last turn ended without one.
    owed: bool,
}

impl Client {
    /// A client for one connection with this configuration. `platform`: where the configuration does
    /// not say it; else it is told from the address, or is the Gemini API.
    ///
    /// # Errors
    ///
    /// [`LiveError::InvalidConfig`].
    pub fn new(config: &LiveConfig, platform: Option<&Platform>) -> Result<Self, LiveError> {
        Self::with_model(config, platform, None)
    }

    /// With another model than the configuration's.
    pub(crate) fn with_model(
        config: &LiveConfig,
        platform: Option<&Platform>,
        model: Option<&str>,
    ) -> Result<Self, LiveError> {
        let settings = Settings::new(config, platform, model)?;
        let mut calls = Calls::default();
        calls.declare(&config.tools, &settings);
        Ok(Self {
            settings: Arc::new(settings),
            phase: Phase::New,
            history: Vec::new(),
            resume: None,
            handle_prefix: model.map(|model| format!("{model}{OF_MODEL}")).unwrap_or_default(),
            prefix: String::new(),
            uplink: Uplink::default(),
            messages: Messages::default(),
            reply: None,
            replies: 0,
            last_reply: None,
            remains: None,
            stray_end: false,
            in_progress: false,
            asked: None,
            calls_answered: false,
            hearing: Hearing::default(),
            speaking: false,
            calls,
            partials: Partials::default(),
            bill: Bill::default(),
            going_away: false,
            malformed: 0,
            told: None,
            stale: "remains of a reply".into(),
        })
    }

    /// What was said before this connection; it is put into the conversation, unless that is
    /// resumed.
    pub fn history(mut self, history: Vec<HistoryItem>) -> Self {
        self.history = history;
        self
    }

    /// Goes on with an earlier connection.
    pub fn resume(mut self, resume: Option<Resumption>) -> Self {
        self.resume = resume;
        self
    }

    /// The number of this connection within its session: the names of replies begin with it.
    pub fn epoch(mut self, epoch: u32) -> Self {
        self.prefix = format!("c{epoch}-");
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
}

/// The model that a connection with this configuration uses.
pub(crate) fn model_of(config: &LiveConfig) -> Arc<str> {
    settings::model(config, None)
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
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
            return Err(LiveError::unsupported(NAME, "resume where that is switched off"));
        }
        self.settings.endpoint.handshake(secrets)
    }

    fn refused(&self, refusal: &Refusal) -> LiveError {
        errors::refused_upgrade(refusal)
    }

    fn opened(&mut self, _: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let handle = self.resume.as_ref().map(|resume| resume.handle.expose_secret());
        let with_history = handle.is_none() && history::has_words(&self.history);
        let setup = self.settings.setup(handle, with_history);
        self.send(&ClientMessage::Setup(Box::new(setup)), out);
        self.phase = Phase::Asked;
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
        let waiting = out.frames.len();
        self.on_command(command, now, out)?;
        self.messages.sent(out.frames.len().saturating_sub(waiting));
        if self.settings.capabilities.handles_count_commands {
            self.messages.command();
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let waiting = out.frames.len();
        let taken = match frame {
            // The service sends binary frames, some proxies text.
            Frame::Text(text) => self.on_frame(text.as_bytes(), now, out),
            Frame::Binary(bytes) => self.on_frame(&bytes, now, out),
            Frame::Close(close) => Err(errors::closed(close, self.told.as_ref(), self.when())),
            Frame::Ping(_) | Frame::Pong(_) => Ok(()),
        };
        self.messages.sent(out.frames.len().saturating_sub(waiting));
        taken
    }

    fn timeout(&mut self, now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        self.hearing.timeout(now, out);
        self.remains.take_if(|remains| remains.until <= now);
        if let Some(late) = self.asked.take_if(|asked| asked.until <= now) {
            self.fail(&late, "no_answer", "the server did not begin a reply", out);
        }
        if self.reply.as_ref().and_then(|reply| reply.end_by).is_some_and(|at| at <= now) {
            self.end_unended_reply(out);
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        let times = [
            self.hearing.deadline(),
            self.remains.as_ref().map(|remains| remains.until),
            self.asked.as_ref().map(|asked| asked.until),
            self.reply.as_ref().and_then(|reply| reply.end_by),
        ];
        times.into_iter().flatten().min()
    }
}

/// What both directions use.
impl Client {
    fn send(&self, message: &ClientMessage, out: &mut Outbox) {
        out.frames.push_back(Frame::Text(message.encode().into()));
    }

    fn when(&self) -> When {
        match self.phase {
            Phase::Ready => When::Session { announced: self.going_away },
            Phase::New | Phase::Asked => When::SetUp { resuming: self.resume.is_some() },
        }
    }

    /// A reply is asked for. The wire does not say what a reply answers: it is the next one.
    fn ask(&mut self, request: Option<u64>, now: Instant, out: &mut Outbox) {
        // The server stops with it whatever it was saying, and says so; if not, this is waited for.
        if let Some(remains) = &mut self.remains {
            remains.until = remains.until.min(now + AFTER_REQUEST);
            remains.stopped = true;
        }
        let until = now + ANSWER_WITHIN;
        let asked = Asked { request, cancelled: false, until };
        if let Some(earlier) = self.asked.replace(asked) {
            self.fail(&earlier, "superseded", "another reply was asked for", out);
        }
    }

    fn fail(&self, asked: &Asked, code: &str, message: &str, out: &mut Outbox) {
        if let Some(request) = asked.request.filter(|_| !asked.cancelled) {
            let error = ErrorInfo::new(code, message).for_request(request);
            out.events.push_back(LiveEvent::Error(error));
        }
    }

    fn on_frame(&mut self, frame: &[u8], now: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        match ServerMessage::decode(frame) {
            Ok(message) => {
                self.malformed = 0;
                self.on_message(message, now, out)
            }
            Err(error) => self.on_malformed(error.to_string(), out),
        }
    }

    /// A frame that is no message. Told, and forgiven unless there are many in a row.
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
            tracing::warn!(what, "a frame that is no message");
        }
        Ok(())
    }
}

impl Bill {
    /// The server tells what a turn costs. `active`: a turn goes on.
    fn tell(&mut self, usage: Usage, active: bool) {
        if active || !self.owed {
            self.turn = Some(usage);
            return;
        }
        self.owed = false;
        self.late.get_or_insert_default().add(&usage);
    }

    /// A turn is over.
    fn take(&mut self) -> Option<Usage> {
        let turn = self.turn.take();
        self.owed = turn.is_none();
        match (turn, self.late.take()) {
            (Some(mut turn), Some(late)) => {
                turn.add(&late);
                Some(turn)
            }
            (turn, late) => turn.or(late),
        }
    }
}

fn ignored(kind: &str) -> LiveEvent {
    let end = kind.floor_char_boundary(80);
    LiveEvent::Ignored { kind: kind[..end].into() }
}
