//! A client and its peer's words, without a socket: time is whatever the test says.

use std::time::{Duration, Instant};

use antiphon_gemini::{Client, wire};
use antiphon_live::{
    Frame, LiveCommand, LiveConfig, LiveError, LiveEvent, Outbox, TextUpdate, WireProtocol,
};
use antiphon_types::{AudioFrame, ToolDefinition, ToolResponse};
use base64_simd::STANDARD;
use serde_json::{Value, json};

pub const OLD: &str = "gemini-2.5-flash-native-audio-preview-12-2025";
pub const MIDDLE: &str = "gemini-3.1-flash-live-preview";
pub const NEW: &str = "gemini-3.8-live";

pub struct Talk {
    pub client: Client,
    pub out: Outbox,
    pub now: Instant,
}

impl Talk {
    /// After the upgrade.
    pub fn opened(client: Client) -> Self {
        let mut talk = Self { client, out: Outbox::default(), now: Instant::now() };
        talk.client.opened(talk.now, &mut talk.out).unwrap();
        talk
    }

    /// Ready, and all of the set-up taken.
    pub fn ready(config: &LiveConfig) -> Self {
        Self::ready_client(Client::new(config, None).unwrap())
    }

    /// Ready, with a model.
    pub fn with(model: &str) -> Self {
        Self::ready(&LiveConfig::new().model(model))
    }

    pub fn ready_client(client: Client) -> Self {
        let mut talk = Self::opened(client);
        talk.out.frames.clear();
        talk.server(json!({"setupComplete": {}}));
        assert!(matches!(talk.out.events.pop_front(), Some(LiveEvent::Ready { .. })));
        talk
    }

    pub fn try_server(&mut self, frame: Value) -> Result<(), LiveError> {
        self.try_frame(Frame::Binary(frame.to_string().into_bytes().into()))
    }

    pub fn try_frame(&mut self, frame: Frame) -> Result<(), LiveError> {
        self.client.frame(frame, self.now, &mut self.out)
    }

    pub fn server(&mut self, frame: Value) {
        self.try_server(frame).unwrap();
    }

    /// Something of the server's content.
    pub fn content(&mut self, content: Value) {
        self.server(json!({"serverContent": content}));
    }

    pub fn command(&mut self, command: LiveCommand) {
        self.try_command(command).unwrap();
    }

    pub fn try_command(&mut self, command: LiveCommand) -> Result<(), LiveError> {
        self.client.command(command, self.now, &mut self.out)
    }

    /// Lets time pass, as the driver does.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..1_000 {
            match self.client.deadline().filter(|at| *at <= until) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            self.client.timeout(self.now, &mut self.out).unwrap();
        }
        self.now = until;
    }

    pub fn pass_ms(&mut self, ms: u64) {
        self.pass(Duration::from_millis(ms));
    }

    /// What was sent since, each a valid message without unknown keys.
    pub fn sent(&mut self) -> Vec<Value> {
        let frames = self.out.frames.drain(..).map(|frame| match frame {
            Frame::Text(text) => {
                assert_eq!(wire::unknown_keys(text.as_bytes()).unwrap(), Vec::<String>::new());
                serde_json::from_str::<Value>(&text).unwrap()
            }
            other => panic!("{other:?}"),
        });
        frames.collect()
    }

    /// The one frame that was sent since.
    pub fn sent_one(&mut self) -> Value {
        let mut sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    /// What was told since, in short.
    pub fn told(&mut self) -> Vec<String> {
        self.out.events.drain(..).map(|event| short(&event)).collect()
    }

    pub fn text(&mut self, text: &str) {
        self.command(LiveCommand::Text { text: text.into(), reply: true });
    }

    pub fn audio(&mut self, ms: u64) {
        let samples = vec![1_i16; (ms * 16) as usize];
        self.command(LiveCommand::AppendAudio(AudioFrame::from_pcm16(16_000, &samples)));
    }

    pub fn output(&mut self, call: &str) {
        let response = ToolResponse::new(call, "clock", serde_json::Map::new());
        self.command(LiveCommand::ToolResponse(response));
    }

    pub fn voice(&mut self, ms: usize) {
        self.content(json!({"modelTurn": {"role": "model", "parts": [part(ms)]}}));
    }

    pub fn words(&mut self, text: &str) {
        self.content(json!({"outputTranscription": {"text": text}}));
    }

    pub fn heard(&mut self, text: &str) {
        self.content(json!({"inputTranscription": {"text": text}}));
    }

    pub fn call(&mut self, call: &str) {
        self.server(json!({"toolCall": {"functionCalls":
            [{"id": call, "name": "clock", "args": {"zone": "utc"}}]}}));
    }

    pub fn generated(&mut self) {
        self.content(json!({"generationComplete": true}));
    }

    pub fn interrupted(&mut self) {
        self.content(json!({"interrupted": true}));
    }

    pub fn done(&mut self) {
        self.content(json!({"turnComplete": true}));
    }
}

/// A piece of voice.
pub fn part(ms: usize) -> Value {
    let data = STANDARD.encode_to_string(vec![0_u8; ms * 48]);
    json!({"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": data}})
}

pub fn tool(name: &str) -> ToolDefinition {
    ToolDefinition::new(name, "A tool.")
}

pub fn short(event: &LiveEvent) -> String {
    let words = |text: &TextUpdate| match text {
        TextUpdate::Delta(text) => format!("+{text}"),
        TextUpdate::Snapshot(text) => format!("={text}"),
        TextUpdate::Final(Some(text)) => format!(".{text}"),
        TextUpdate::Final(None) => ".".to_owned(),
    };
    match event {
        LiveEvent::Ready { .. } => "ready".into(),
        LiveEvent::SpeechStarted { audio_start_ms } => format!("speech {audio_start_ms:?}"),
        LiveEvent::SpeechStopped { audio_end_ms } => format!("silence {audio_end_ms:?}"),
        LiveEvent::Interrupted { reply } => {
            format!("interrupted {}", reply.as_ref().map_or("", |id| &*id.0))
        }
        LiveEvent::InputTranscript { item, text, .. } => format!("{item} {}", words(text)),
        LiveEvent::ReplyStarted { reply, request: None } => format!("start {reply}"),
        LiveEvent::ReplyStarted { reply, request: Some(number) } => {
            format!("start {reply} for {number}")
        }
        LiveEvent::OutputTranscript { text, .. } => format!("say {}", words(text)),
        LiveEvent::OutputText { text, .. } => format!("write {}", words(text)),
        LiveEvent::Audio { frame, .. } => format!("voice {}", frame.duration().as_millis()),
        LiveEvent::ToolCalls { calls, .. } => {
            let calls: Vec<String> =
                calls.iter().map(|call| format!("{} {}", call.id, call.name)).collect();
            format!("call {}", calls.join(", "))
        }
        LiveEvent::ToolCallsCancelled { ids } => format!("cancel {}", ids.join(", ")),
        LiveEvent::ReplyDone { reply, outcome, .. } => format!("done {reply} {outcome:?}"),
        LiveEvent::Error(error) => match error.request {
            Some(request) => format!("error {} for {request}", error.code),
            None => format!("error {}", error.code),
        },
        LiveEvent::GoingAway { time_left } => format!("going away {time_left:?}"),
        LiveEvent::Ignored { kind } => format!("ignored {kind}"),
        LiveEvent::Native { kind, .. } => format!("native {kind}"),
        other => other.name().to_owned(),
    }
}
