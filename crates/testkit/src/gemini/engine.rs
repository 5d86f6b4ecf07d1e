//! The behaving server: frames and time in, messages out. It reads no clock and owns no socket.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_gemini::{
    server::{Handles, Hangup, Server, Session},
    wire::{
        ClientContent, ClientMessage, GoAway, RealtimeInput, Role, Seconds, ServerContent,
        ServerMessage, Setup, ToolResponseMessage, Transcription, VoiceActivity, VoiceActivityType,
    },
};
use serde_json::{Value, json};

use super::{
    replying::{Last, Replying},
    script::Script,
};
use crate::scripted::{
    Behaviour, Saying, Transcript,
    codec::Codec,
    listening::{FULL_THRESHOLD_RMS, Heard, Listening, TurnParameters},
};

/// Speech before it was taken for speech, in milliseconds.
const PREFIX_MS: u64 = 100;

/// How a connection begins.
pub(super) struct Opening {
    pub(super) script: Arc<Script>,
    /// The connection's number, from 1.
    pub(super) connection: u32,
    /// It speaks as Vertex AI does.
    pub(super) vertex: bool,
    /// The conversations of all connections, each with what was said last.
    pub(super) handles: Handles<String>,
}

/// One connection of a server that behaves.
pub(super) struct Engine {
    pub(super) opening: Opening,
    /// What the client may do, and what it did.
    server: Server<String>,
    /// Handles so far.
    handles: u32,
    /// When `setupComplete` is said; `None`: it was, or nothing was asked for.
    ready_at: Option<Instant>,
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
    /// With its frame.
    Message(Box<ServerMessage>, String),
    Close(Hangup),
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.closed(self.now);
    }
}

impl Engine {
    pub(super) fn new(opening: Opening, now: Instant) -> Self {
        let mut server = Server::new(&opening.handles);
        if opening.vertex {
            server = server.vertex();
        }
        Self {
            server,
            handles: 0,
            ready_at: None,
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

    /// The session, once it was asked for.
    pub(super) fn session(&self) -> Option<&Session> {
        self.server.session()
    }

    pub(super) fn say(&mut self, message: ServerMessage) {
        let text = self.server.message(&message);
        self.out.push_back(Out::Message(Box::new(message), text));
    }

    pub(super) fn tell(&mut self, content: ServerContent) {
        self.say(ServerMessage::content(content));
    }

    pub(super) fn hang_up(&mut self, why: Hangup) {
        self.out.push_back(Out::Close(why));
    }

    fn on_frame(&mut self, text: &str, now: Instant) -> Result<(), Hangup> {
        let history = self.session().is_some_and(|session| session.history_comes);
        match self.server.frame(text.as_bytes(), now)? {
            ClientMessage::Setup(_) => self.set_up(now),
            ClientMessage::ClientContent(content) => self.client_content(content, history, now),
            ClientMessage::RealtimeInput(input) => self.realtime_input(*input, now),
            ClientMessage::ToolResponse(response) => self.tool_response(response, now),
            // Other instructions and tools change nothing of what the script says.
            _ => {}
        }
        Ok(())
    }

    fn set_up(&mut self, now: Instant) {
        if let Some(words) = self.server.take_memory() {
            self.last = Last::Words(words);
        }
        self.ready_at = Some(now + self.opening.script.setup_time());
        let ends_at = now + self.opening.script.lifetime_of_connections();
        self.ends_at = Some(ends_at);
        self.go_away_at = ends_at.checked_sub(self.opening.script.notice());
    }

    /// A handle that is good from here on.
    pub(super) fn tell_handle(&mut self, resumable: bool) {
        let told = match resumable {
            true => {
                self.handles += 1;
                let handle = format!("handle-{}-{}", self.opening.connection, self.handles);
                self.server.resumable(handle, self.last.words().to_owned())
            }
            false => self.server.not_resumable(),
        };
        if let Some(told) = told {
            self.say(told);
        }
    }

    /// `history`: it is what was said before the connection.
    fn client_content(&mut self, content: ClientContent, history: bool, now: Instant) {
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
        if complete && !history {
            self.interrupt(now);
            self.begin_reply(now);
        }
    }

    fn realtime_input(&mut self, input: RealtimeInput, now: Instant) {
        let interrupts = self.session().is_some_and(|session| session.interrupts);
        for blob in input.audio.into_iter().chain(input.media_chunks.into_iter().flatten()) {
            self.listening.set_codec(match blob.mime_type.and_then(|media| media.rate_hz()) {
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
    }

    fn hear(&mut self, audio: &[u8], now: Instant) {
        let Some(session) = self.server.session() else { return };
        let turns = session.automatic.then_some(TurnParameters {
            rms: 0.5 * FULL_THRESHOLD_RMS,
            prefix_ms: PREFIX_MS,
            silence_ms: u64::try_from(session.silence.as_millis()).unwrap_or(u64::MAX),
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
        if self.session().is_some_and(|session| session.interrupts) {
            self.interrupt(now);
        }
    }

    fn speech_stopped(&mut self, at_ms: u64, now: Instant) {
        self.tell_speech(VoiceActivityType::End, at_ms);
        self.user_turn(now);
    }

    fn tell_speech(&mut self, kind: VoiceActivityType, at_ms: u64) {
        if self.session().is_some_and(|session| session.tells_speech) {
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
        if self.session().is_some_and(|session| session.input_transcripts) {
            let at = now + self.opening.script.pace.transcript();
            // In two pieces, and nothing says that the second is the last.
            let cut = words.find(' ').map_or(words.len(), |at| at + 1);
            for piece in [&words[..cut], &words[cut..]] {
                self.due_transcripts.push_back((at, piece.to_owned()));
            }
        }
        self.begin_reply(now);
    }

    fn tool_response(&mut self, message: ToolResponseMessage, now: Instant) {
        for response in message.function_responses.into_iter().flatten() {
            self.take_output(response, now);
        }
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
        let complete = self.server.setup_complete();
        self.say(complete);
        self.tell_handle(true);
    }
}

impl Behaviour for Engine {
    fn opened(&mut self, _: Instant, greet: bool) {
        if !greet && self.session().is_none() {
            // The steps before have set it up.
            let model = Some("models/gemini-3.8-live".into());
            let setup = Setup { model, ..Setup::default() };
            let setup = ClientMessage::Setup(Box::new(setup)).encode();
            let _ = self.server.frame(setup.as_bytes(), self.now);
            self.server.message(&self.server.setup_complete());
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
            self.hang_up(Hangup::new(1011, "Deadline expired before operation could complete."));
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
            Out::Message(message, text) => {
                Saying::Event { kind: kind(&message).to_owned(), text: Some(text) }
            }
            Out::Close(Hangup { code, reason, .. }) => Saying::Close(code, reason),
        })
    }

    fn complete(&mut self, event: &mut Value) -> bool {
        event.get("setupComplete").is_some()
    }

    fn error(&self, fields: &Value) -> Value {
        let invalid = Hangup::invalid().reason;
        let mut error = json!({"code": 400, "message": invalid, "status": "INVALID_ARGUMENT"});
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
