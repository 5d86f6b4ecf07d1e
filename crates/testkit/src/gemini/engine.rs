//! The behaving server: frames and time in, messages out. It reads no clock and owns no socket.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_gemini::wire::{
    ClientContent, ClientMessage, ContextUpdate, GoAway, RealtimeInput, Role, Seconds,
    ServerContent, ServerMessage, SessionResumptionUpdate, Setup, SetupComplete,
    ToolResponseMessage, Transcription, VoiceActivity, VoiceActivityType,
};
use serde_json::{Value, json};

use super::{
    handles::{Handles, Refused},
    replying::{Last, Replying},
    script::Script,
    setup::{Hangup, INVALID, Session, invalid, refuse_unknown_keys},
};
use crate::scripted::{
    Behaviour, Saying, Transcript,
    codec::Codec,
    listening::{FULL_THRESHOLD_RMS, Heard, Listening, TurnParameters},
};

/// Speech before it was taken for speech, in milliseconds.
const PREFIX_MS: u64 = 100;
/// The most a message may be, in bytes.
const MAX_FRAME: usize = 16 * 1024 * 1024;

/// How a connection begins.
pub(super) struct Opening {
    pub(super) script: Arc<Script>,
    /// The connection's number, from 1.
    pub(super) connection: u32,
    /// It speaks as Vertex AI does.
    pub(super) vertex: bool,
    pub(super) handles: Arc<Handles>,
}

/// One connection of a server that behaves.
pub(super) struct Engine {
    pub(super) opening: Opening,
    /// The session, once it was asked for.
    pub(super) session: Option<Session>,
    /// When `setupComplete` is said; `None`: it was.
    ready_at: Option<Instant>,
    /// The conversation among those that can be resumed.
    chain: Option<u64>,
    listening: Listening,
    /// An activity of the client's began.
    activity: bool,
    transcripts: VecDeque<Transcript>,
    /// Transcripts on their way.
    due_transcripts: VecDeque<(Instant, String)>,
    pub(super) last: Last,
    pub(super) replying: Replying,
    go_away_at: Option<Instant>,
    ends_at: Option<Instant>,
    now: Instant,
    out: VecDeque<Out>,
}

enum Out {
    Message(Box<ServerMessage>),
    Close(Hangup),
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(chain) = self.chain {
            self.opening.handles.close(chain, self.now);
        }
    }
}

impl Engine {
    pub(super) fn new(opening: Opening, now: Instant) -> Self {
        Self {
            session: None,
            ready_at: None,
            chain: None,
            listening: Listening::new(Codec::Pcm(16_000)),
            activity: false,
            transcripts: opening.script.transcripts.iter().cloned().collect(),
            due_transcripts: VecDeque::new(),
            last: Last::Nothing,
            replying: Replying::new(opening.connection),
            go_away_at: None,
            ends_at: None,
            now,
            out: VecDeque::new(),
            opening,
        }
    }

    pub(super) fn script(&self) -> Arc<Script> {
        self.opening.script.clone()
    }

    pub(super) fn say(&mut self, message: ServerMessage) {
        self.out.push_back(Out::Message(Box::new(message)));
    }

    pub(super) fn tell(&mut self, content: ServerContent) {
        self.say(ServerMessage::content(content));
    }

    pub(super) fn hang_up(&mut self, why: Hangup) {
        self.out.push_back(Out::Close(why));
    }

    fn on_frame(&mut self, text: &str, now: Instant) -> Result<(), Hangup> {
        if text.len() > MAX_FRAME {
            return Err((1009, "message too big".into()));
        }
        let message = ClientMessage::decode(text.as_bytes()).map_err(|_| invalid())?;
        if !Self::is_audio(text) {
            refuse_unknown_keys(text)?;
        }
        match message {
            ClientMessage::Setup(setup) if self.session.is_none() => self.set_up(&setup, now),
            // A set-up comes first, and once; nothing before it is complete.
            _ if self.session.is_none() || self.ready_at.is_some() => Err(invalid()),
            ClientMessage::Setup(_) => Err(invalid()),
            ClientMessage::ClientContent(content) => {
                self.client_content(content, now);
                Ok(())
            }
            ClientMessage::RealtimeInput(input) => self.realtime_input(*input, now),
            ClientMessage::ToolResponse(response) => self.tool_response(response, now),
            ClientMessage::ContextUpdate(update) => self.context_update(update),
            _ => Err(invalid()),
        }
    }

    fn set_up(&mut self, setup: &Setup, now: Instant) -> Result<(), Hangup> {
        let session = Session::new(setup, self.opening.vertex)?;
        let handle = setup.session_resumption.as_ref().and_then(|told| told.handle.as_deref());
        match handle {
            Some(handle) => {
                let valid = self.opening.script.handles_last();
                match self.opening.handles.resume(handle, valid, now) {
                    Ok((chain, words)) => {
                        self.chain = Some(chain);
                        self.last = Last::Words(words);
                    }
                    Err(Refused::Stale) => {
                        return Err((1008, "Requested entity was not found.".into()));
                    }
                    Err(Refused::StillOpen) => {
                        return Err((1011, "Internal error encountered.".into()));
                    }
                }
            }
            None => self.chain = Some(self.opening.handles.begin()),
        }
        self.session = Some(session);
        self.ready_at = Some(now + self.opening.script.setup_time());
        let ends_at = now + self.opening.script.lifetime_of_connections();
        self.ends_at = Some(ends_at);
        self.go_away_at = ends_at.checked_sub(self.opening.script.notice());
        Ok(())
    }

    /// A handle that is good from here on.
    pub(super) fn tell_handle(&mut self, resumable: bool) {
        let asked = self.session.as_ref().is_some_and(|session| session.hands_out_handles);
        let Some(chain) = self.chain.filter(|_| asked) else { return };
        let new_handle = match resumable {
            true => self.opening.handles.renew(chain, self.last.words()),
            false => String::new(),
        };
        self.say(ServerMessage {
            session_resumption_update: Some(SessionResumptionUpdate {
                new_handle: Some(new_handle),
                resumable: Some(resumable),
                last_consumed_client_message_index: None,
            }),
            ..ServerMessage::default()
        });
    }

    fn client_content(&mut self, content: ClientContent, now: Instant) {
        let complete = content.turn_complete == Some(true);
        let turns = content.turns.unwrap_or_default();
        let users = turns.iter().filter(|turn| turn.role != Some(Role::Model));
        let words: Vec<&str> = users
            .flat_map(|turn| turn.parts.iter().flatten())
            .filter_map(|part| part.text.as_deref())
            .collect();
        if let Some(words) = words.last() {
            self.last = Last::Words((*words).to_owned());
        }
        let history = self.session.as_mut().is_some_and(|session| session.history_comes);
        if history {
            if complete && let Some(session) = &mut self.session {
                session.history_comes = false;
            }
            return;
        }
        if complete {
            self.interrupt(now);
            self.begin_reply(now);
        }
    }

    fn realtime_input(&mut self, input: RealtimeInput, now: Instant) -> Result<(), Hangup> {
        let Some(session) = &self.session else { return Err(invalid()) };
        let (automatic, interrupts) = (session.automatic, session.interrupts);
        let by_hand = input.activity_start.is_some() || input.activity_end.is_some();
        let old = session.generation.name == "2.5";
        if session.history_comes
            || automatic && by_hand
            || !automatic && input.audio_stream_end.is_some()
            || input.media_chunks.is_some() && !old
        {
            return Err(invalid());
        }
        for blob in input.audio.into_iter().chain(input.media_chunks.into_iter().flatten()) {
            let media = blob.mime_type.ok_or_else(invalid)?;
            if !media.is_audio() {
                return Err(invalid());
            }
            self.listening.set_codec(match media.rate_hz() {
                Some(24_000) => Codec::Pcm(24_000),
                _ => Codec::Pcm(16_000),
            });
            self.hear(&blob.data.unwrap_or_default(), now);
        }
        if input.audio_stream_end == Some(true) && self.listening.is_speaking() {
            self.speech_stopped(self.listening.written_ms(), now);
        }
        if input.activity_start.is_some() {
            self.activity = true;
            self.listening.clear();
            if interrupts {
                self.interrupt(now);
            }
        }
        if input.activity_end.is_some() && std::mem::take(&mut self.activity) {
            self.user_turn(now);
        }
        if let Some(text) = input.text {
            self.last = Last::Words(text);
            self.interrupt(now);
            self.begin_reply(now);
        }
        Ok(())
    }

    fn hear(&mut self, audio: &[u8], now: Instant) {
        let Some(session) = &self.session else { return };
        let turns = session.automatic.then_some(TurnParameters {
            rms: 0.5 * FULL_THRESHOLD_RMS,
            prefix_ms: PREFIX_MS,
            silence_ms: session.silence_ms,
        });
        for heard in self.listening.append(audio, turns) {
            match heard {
                Heard::Started { at_ms } => self.speech_started(at_ms, now),
                Heard::Stopped { at_ms } => self.speech_stopped(at_ms, now),
            }
        }
    }

    fn speech_started(&mut self, at_ms: u64, now: Instant) {
        self.tell_speech(VoiceActivityType::Start, at_ms);
        if self.session.as_ref().is_some_and(|session| session.interrupts) {
            self.interrupt(now);
        }
    }

    fn speech_stopped(&mut self, at_ms: u64, now: Instant) {
        self.tell_speech(VoiceActivityType::End, at_ms);
        self.user_turn(now);
    }

    fn tell_speech(&mut self, kind: VoiceActivityType, at_ms: u64) {
        if self.session.as_ref().is_some_and(|session| session.tells_speech) {
            let audio_offset = Some(Seconds::from(Duration::from_millis(at_ms)));
            let voice_activity_type = Some(kind);
            self.say(ServerMessage {
                voice_activity: Some(VoiceActivity { voice_activity_type, audio_offset }),
                ..ServerMessage::default()
            });
        }
    }

    /// What was heard is a turn.
    fn user_turn(&mut self, now: Instant) {
        let audio = self.listening.take();
        let ms = Codec::Pcm(16_000).ms(audio.len()) as u64;
        let transcript = self.transcripts.pop_front();
        let words = match transcript {
            Some(Transcript::Words(words)) => words,
            Some(_) => String::new(),
            None => format!("{ms} milliseconds of speech"),
        };
        self.last = Last::Words(words.clone());
        if self.session.as_ref().is_some_and(|session| session.input_transcripts) {
            let at = now + self.opening.script.pace.transcript();
            // In two pieces, and nothing says that the second is the last.
            let cut = words.find(' ').map_or(words.len(), |at| at + 1);
            for piece in [&words[..cut], &words[cut..]] {
                self.due_transcripts.push_back((at, piece.to_owned()));
            }
        }
        self.begin_reply(now);
    }

    fn tool_response(&mut self, message: ToolResponseMessage, now: Instant) -> Result<(), Hangup> {
        let responses = message.function_responses.unwrap_or_default();
        if responses.is_empty() || responses.iter().any(|response| response.response.is_none()) {
            return Err(invalid());
        }
        for response in responses {
            self.take_output(response, now)?;
        }
        Ok(())
    }

    fn context_update(&mut self, update: ContextUpdate) -> Result<(), Hangup> {
        let Some(session) = self.session.as_mut().filter(|s| s.generation.context_update) else {
            return Err(invalid());
        };
        if let Some(tools) = update.tools {
            session.declare(&tools.tools.unwrap_or_default());
        }
        Ok(())
    }

    fn tell_transcript(&mut self, text: String) {
        if !text.is_empty() {
            let words = Transcription { text: Some(text), ..Transcription::default() };
            self.tell(ServerContent {
                input_transcription: Some(words),
                ..ServerContent::default()
            });
        }
    }

    fn become_ready(&mut self) {
        self.ready_at = None;
        let setup_complete = Some(SetupComplete::default());
        self.say(ServerMessage { setup_complete, ..ServerMessage::default() });
        self.tell_handle(true);
    }
}

impl Behaviour for Engine {
    fn opened(&mut self, _: Instant, greet: bool) {
        if !greet && self.session.is_none() {
            // The steps before have set it up.
            let model = Some("models/gemini-3.8-live".into());
            let setup = Setup { model, ..Setup::default() };
            self.session = Session::new(&setup, false).ok();
        }
    }

    fn frame(&mut self, text: &str, now: Instant) {
        self.now = now;
        if let Err(why) = self.on_frame(text, now) {
            self.hang_up(why);
        }
        self.timeout(now);
    }

    fn timeout(&mut self, now: Instant) {
        self.now = now;
        let due = |due: Option<Instant>| due.is_some_and(|due| due <= now);
        if due(self.ready_at) {
            self.become_ready();
        }
        while due(self.due_transcripts.front().map(|(at, _)| *at)) {
            if let Some((_, text)) = self.due_transcripts.pop_front() {
                self.tell_transcript(text);
            }
        }
        self.advance_reply(now);
        if due(self.go_away_at) {
            self.go_away_at = None;
            let time_left = Some(Seconds::from(self.opening.script.notice()));
            let go_away = Some(GoAway { time_left });
            self.say(ServerMessage { go_away, ..ServerMessage::default() });
        }
        if due(self.ends_at) {
            self.ends_at = None;
            self.hang_up((1011, "Deadline expired before operation could complete.".into()));
        }
    }

    fn deadline(&self) -> Option<Instant> {
        let transcript = self.due_transcripts.front().map(|(at, _)| *at);
        let times =
            [self.ready_at, transcript, self.replying.deadline(), self.go_away_at, self.ends_at];
        times.into_iter().flatten().min()
    }

    fn next(&mut self) -> Option<Saying> {
        Some(match self.out.pop_front()? {
            Out::Message(message) => {
                Saying::Event { kind: kind(&message).to_owned(), text: Some(message.encode()) }
            }
            Out::Close((code, reason)) => Saying::Close(code, reason),
        })
    }

    fn complete(&mut self, event: &mut Value) -> bool {
        event.get("setupComplete").is_some()
    }

    fn error(&self, fields: &Value) -> Value {
        let mut error = json!({"code": 400, "message": INVALID, "status": "INVALID_ARGUMENT"});
        if let (Value::Object(error), Value::Object(fields)) = (&mut error, fields) {
            error.extend(fields.clone());
        }
        json!({ "error": error })
    }

    fn is_audio(frame: &str) -> bool {
        ClientMessage::peek_kind(frame).as_deref() == Some("realtimeInput")
            && frame.contains("\"audio\"")
    }
}

/// The finest thing in a message.
fn kind(message: &ServerMessage) -> &'static str {
    let Some(content) = &message.server_content else { return message.kind() };
    let kinds = [
        ("turnComplete", content.turn_complete.is_some()),
        ("interrupted", content.interrupted.is_some()),
        ("generationComplete", content.generation_complete.is_some()),
        ("modelTurn", content.model_turn.is_some()),
        ("inputTranscription", content.input_transcription.is_some()),
        ("outputTranscription", content.output_transcription.is_some()),
    ];
    kinds.into_iter().find(|(_, is)| *is).map_or("serverContent", |(kind, _)| kind)
}
