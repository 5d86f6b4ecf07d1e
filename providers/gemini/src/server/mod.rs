//! The server half of the protocol: what a client may send, and when; what is refused, and in which
//! words.

mod handles;
mod session;

use std::time::Instant;

pub use self::{
    handles::{HandleRefused, Handles},
    session::Session,
};
use crate::wire::{
    ClientContent, ClientMessage, ContextUpdate, FunctionResponse, RealtimeInput, ServerMessage,
    SessionResumptionUpdate, Setup, SetupComplete, ToolResponseMessage, Whole, unknown_keys,
};

/// The largest message of a client, in bytes.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// Calls that wait for their outputs; of more, the oldest are forgotten.
const MAX_CALLS: usize = 1_024;
/// The vendor's words for most of what is wrong.
const INVALID: &str = "Request contains an invalid argument.";

/// The server half of one connection as a pure state machine, for servers that speak Gemini Live:
/// gateways, and tests.
///
/// It takes the client's frames, gives those that are right as messages, and refuses what the
/// vendor refuses, with the vendor's code and reason: anything before the set-up or before it is
/// complete, a second set-up, unknown keys, activity by hand beside automatic detection, tool outputs
/// that are no objects or of calls that nobody made, handles that are stale or whose socket is still
/// open. Of what the server says it keeps what that needs: each message passes [`Server::message`] on
/// its way out. It answers nothing, reads no clock and owns no socket.
///
/// `M` is what is remembered of a conversation for the next connection of it.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use antiphon_gemini::server::{Handles, Server};
///
/// let handles = Handles::<String>::new(Duration::from_secs(7_200));
/// let mut server = Server::new(&handles);
/// let now = Instant::now();
/// let setup = r#"{"setup":{"model":"models/gemini-3.8-live"}}"#;
/// assert!(server.frame(setup.as_bytes(), now).is_ok());
/// let text = r#"{"realtimeInput":{"text":"Hello."}}"#;
/// assert_eq!(server.frame(text.as_bytes(), now).unwrap_err().code, 1007);
/// let complete = server.setup_complete();
/// assert_eq!(server.message(&complete), r#"{"setupComplete":{}}"#);
/// assert!(server.frame(text.as_bytes(), now).is_ok());
/// ```
#[derive(Debug)]
pub struct Server<M: Clone = ()> {
    vertex: bool,
    handles: Handles<M>,
    session: Option<Session>,
    /// `setupComplete` was said.
    complete: bool,
    /// The conversation among those that can be resumed.
    chain: Option<u64>,
    memory: Option<M>,
    calls: Vec<OpenCall>,
    /// The index of the client's last message; the set-up is 0.
    received: i64,
}

/// A call that waits for its output.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenCall {
    /// Its id.
    pub id: String,
    /// The function.
    pub name: String,
    /// Whether the model waits for it.
    pub waits: bool,
}

/// Why a server hangs up. Most of it can only be told by the close frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("close {code}: {reason}")]
#[non_exhaustive]
pub struct Hangup {
    /// The close code.
    pub code: u16,
    /// The reason, in the vendor's words.
    pub reason: String,
}

impl Hangup {
    /// With a code and a reason.
    pub fn new(code: u16, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// Something is wrong with a message.
    pub fn invalid() -> Self {
        Self::new(1007, INVALID)
    }

    /// Something that does not exist is spoken of.
    pub fn not_found() -> Self {
        Self::new(1008, "Requested entity was not found.")
    }
}

impl<M: Clone> Server<M> {
    /// A connection of the Gemini API, whose conversations may be resumed by `handles`.
    pub fn new(handles: &Handles<M>) -> Self {
        Self {
            vertex: false,
            handles: handles.clone(),
            session: None,
            complete: false,
            chain: None,
            memory: None,
            calls: Vec::new(),
            received: 0,
        }
    }

    /// A connection of Vertex AI, which takes a few things more and names models otherwise.
    pub fn vertex(mut self) -> Self {
        self.vertex = true;
        self
    }

    /// A frame of the client, text or binary.
    ///
    /// # Errors
    ///
    /// With what the server hangs up.
    pub fn frame(&mut self, frame: &[u8], now: Instant) -> Result<ClientMessage, Hangup> {
        if frame.len() > MAX_MESSAGE {
            return Err(Hangup::new(1009, "message too big"));
        }
        let message = ClientMessage::decode(frame).map_err(|_| Hangup::invalid())?;
        // Audio comes fifty times a second, and its frame has no place for more.
        let is_audio = matches!(&message, ClientMessage::RealtimeInput(input)
            if input.audio.is_some()
                && **input
                    == RealtimeInput { audio: input.audio.clone(), ..RealtimeInput::default() });
        if !is_audio {
            refuse_unknown_keys(frame)?;
        }
        let counts = self.session.is_some();
        self.check(&message, now)?;
        self.received += i64::from(counts);
        Ok(message)
    }

    /// Whether a message may come now.
    fn check(&mut self, message: &ClientMessage, now: Instant) -> Result<(), Hangup> {
        if let ClientMessage::Setup(setup) = message {
            return self.set_up(setup, now);
        }
        let Some(session) = self.session.as_mut().filter(|_| self.complete) else {
            return Err(Hangup::invalid());
        };
        match message {
            ClientMessage::ClientContent(content) => {
                take_content(session, content);
                Ok(())
            }
            ClientMessage::RealtimeInput(input) => check_input(session, input),
            ClientMessage::ContextUpdate(update) => take_update(session, update),
            ClientMessage::ToolResponse(response) => self.take_outputs(response),
            ClientMessage::Setup(_) => Err(Hangup::invalid()),
        }
    }

    fn set_up(&mut self, setup: &Setup, now: Instant) -> Result<(), Hangup> {
        if self.session.is_some() {
            return Err(Hangup::invalid());
        }
        let session = Session::new(setup, self.vertex)?;
        let handle = setup.session_resumption.as_ref().and_then(|told| told.handle.as_deref());
        let handle = handle.filter(|handle| !handle.is_empty());
        self.chain = Some(match handle {
            Some(handle) => {
                let (chain, memory) =
                    self.handles.resume(handle, now).map_err(|refused| match refused {
                        HandleRefused::Stale => Hangup::not_found(),
                        HandleRefused::StillOpen => {
                            Hangup::new(1011, "Internal error encountered.")
                        }
                    })?;
                self.memory = memory;
                chain
            }
            None => self.handles.begin(now),
        });
        self.session = Some(session);
        Ok(())
    }

    /// An output is an object, and of a call that was made.
    fn take_outputs(&mut self, message: &ToolResponseMessage) -> Result<(), Hangup> {
        let responses = message.function_responses.as_deref().unwrap_or_default();
        if responses.is_empty() || responses.iter().any(|response| response.response.is_none()) {
            return Err(Hangup::invalid());
        }
        for response in responses {
            self.take_output(response)?;
        }
        Ok(())
    }

    fn take_output(&mut self, response: &FunctionResponse) -> Result<(), Hangup> {
        let id = response.id.as_deref().ok_or_else(Hangup::invalid)?;
        let at = self.calls.iter().position(|call| call.id == id).ok_or_else(Hangup::not_found)?;
        if self.calls[at].waits || response.will_continue != Some(true) {
            self.calls.remove(at);
        }
        Ok(())
    }

    /// The session, once it was asked for.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// What was remembered of the conversation that this connection goes on with, once.
    pub fn take_memory(&mut self) -> Option<M> {
        self.memory.take()
    }

    /// The calls that wait for their outputs, oldest first.
    pub fn calls(&self) -> &[OpenCall] {
        &self.calls
    }

    /// The message that begins the session.
    pub fn setup_complete(&self) -> ServerMessage {
        ServerMessage { setup_complete: Some(SetupComplete::default()), ..ServerMessage::default() }
    }

    /// The message with a handle that is good from here on; the ones before it are not any more.
    /// `handle` must not be guessed. `None`: the client asked for none.
    pub fn resumable(&mut self, handle: impl Into<String>, memory: M) -> Option<ServerMessage> {
        let chain = self.chain.filter(|_| self.hands_out_handles())?;
        let handle = handle.into();
        self.handles.renew(chain, handle.clone(), memory);
        let counts = self.session.as_ref().is_some_and(|session| session.counts_messages);
        Some(resumption(handle, true, counts.then_some(Whole(self.received))))
    }

    /// The message that something began that no handle holds.
    pub fn not_resumable(&self) -> Option<ServerMessage> {
        self.hands_out_handles().then(|| resumption(String::new(), false, None))
    }

    fn hands_out_handles(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.hands_out_handles)
    }

    /// The frame of a message, which goes out now.
    pub fn message(&mut self, message: &ServerMessage) -> String {
        self.complete |= message.setup_complete.is_some();
        for call in message.tool_call.iter().flat_map(|told| told.function_calls.iter().flatten()) {
            // A call without an id cannot be answered; of one in pieces the first names it.
            let Some(id) = call.id.clone().filter(|id| !id.is_empty()) else { continue };
            if self.calls.iter().any(|open| open.id == id) {
                continue;
            }
            if self.calls.len() == MAX_CALLS {
                self.calls.remove(0);
            }
            let name = call.name.clone().unwrap_or_default();
            let waits = self.session.as_ref().is_none_or(|session| session.waits_for(&name));
            self.calls.push(OpenCall { id, name, waits });
        }
        if let Some(cancelled) = &message.tool_call_cancellation {
            let ids = cancelled.ids.as_deref().unwrap_or_default();
            self.calls.retain(|call| !ids.contains(&call.id));
        }
        message.encode()
    }

    /// The socket is closed: from here on the conversation may be resumed elsewhere.
    pub fn closed(&mut self, now: Instant) {
        if let Some(chain) = self.chain.take() {
            self.handles.close(chain, now);
        }
    }
}

fn take_content(session: &mut Session, content: &ClientContent) {
    if content.turn_complete == Some(true) {
        session.history_comes = false;
    }
}

fn check_input(session: &Session, input: &RealtimeInput) -> Result<(), Hangup> {
    let by_hand = input.activity_start.is_some() || input.activity_end.is_some();
    let ends = input.audio_stream_end.is_some();
    let odd =
        |media: &crate::wire::Blob| media.mime_type.as_ref().is_none_or(|kind| !kind.is_audio());
    let old_audio = input.media_chunks.as_deref();
    let wrong = session.history_comes
        || session.automatic && by_hand
        || !session.automatic && ends
        || old_audio.is_some() && !session.takes_media_chunks()
        || input.audio.iter().chain(old_audio.unwrap_or_default()).any(odd);
    if wrong { Err(Hangup::invalid()) } else { Ok(()) }
}

fn take_update(session: &mut Session, update: &ContextUpdate) -> Result<(), Hangup> {
    if !session.generation.context_update {
        return Err(Hangup::invalid());
    }
    if let Some(tools) = &update.tools {
        session.declare(tools.tools.as_deref().unwrap_or_default());
    }
    Ok(())
}

fn resumption(handle: String, resumable: bool, consumed: Option<Whole>) -> ServerMessage {
    ServerMessage {
        session_resumption_update: Some(SessionResumptionUpdate {
            new_handle: Some(handle),
            resumable: Some(resumable),
            last_consumed_client_message_index: consumed,
        }),
        ..ServerMessage::default()
    }
}

/// Hangs up on keys that nobody knows, in the vendor's words.
fn refuse_unknown_keys(frame: &[u8]) -> Result<(), Hangup> {
    let unknown = unknown_keys(frame).map_err(|_| Hangup::invalid())?;
    let Some(path) = unknown.first() else { return Ok(()) };
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    Err(Hangup::new(
        1007,
        format!(
            "Invalid JSON payload received. Unknown name \"{name}\" at '{parent}': Cannot find \
             field."
        ),
    ))
}
