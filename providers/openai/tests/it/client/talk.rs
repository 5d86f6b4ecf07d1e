//! A client and its peer's words, without a socket: time is whatever the test says.

use std::time::{Duration, Instant};

use antiphon_live::{
    Frame, LiveCommand, LiveConfig, LiveError, LiveEvent, Outbox, TextUpdate, WireProtocol,
};
use antiphon_openai::{
    Client,
    wire::{self, Dialect},
};
use antiphon_types::{AudioFrame, ToolResponse};
use base64_simd::STANDARD;
use serde_json::{Value, json};

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

    pub fn ready_client(client: Client) -> Self {
        let mut talk = Self::opened(client);
        talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
        talk.server(json!({"type": "session.updated", "session": {"type": "realtime"}}));
        assert!(matches!(talk.out.events.pop_front(), Some(LiveEvent::Ready { .. })));
        talk.out.frames.clear();
        talk
    }

    pub fn try_server(&mut self, frame: Value) -> Result<(), LiveError> {
        self.try_frame(Frame::Text(frame.to_string().into()))
    }

    pub fn try_frame(&mut self, frame: Frame) -> Result<(), LiveError> {
        self.client.frame(frame, self.now, &mut self.out)
    }

    pub fn server(&mut self, frame: Value) {
        self.try_server(frame).unwrap();
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

    /// What was sent since, each a valid GA event without unknown keys.
    pub fn sent(&mut self) -> Vec<Value> {
        let frames = self.out.frames.drain(..).map(|frame| match frame {
            Frame::Text(text) => serde_json::from_str::<Value>(&text).unwrap(),
            other => panic!("{other:?}"),
        });
        let frames: Vec<Value> = frames.collect();
        if matches!(self.client.dialect(), Dialect::Ga | Dialect::Azure) {
            for frame in &frames {
                assert_eq!(wire::unknown_keys(frame), Vec::<String>::new(), "{frame}");
            }
        }
        frames
    }

    /// What was sent since, by type.
    pub fn sent_kinds(&mut self) -> Vec<String> {
        self.sent().iter().map(|frame| frame["type"].as_str().unwrap().to_owned()).collect()
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
        let samples = vec![1_i16; (ms * 24) as usize];
        self.command(LiveCommand::AppendAudio(AudioFrame::from_pcm16(24_000, &samples)));
    }

    pub fn output(&mut self, call: &str) {
        let response = ToolResponse::new(call, "clock", serde_json::Map::new());
        self.command(LiveCommand::ToolResponse(response));
    }

    pub fn truncate(&mut self, item: &str, audio_end_ms: u32) {
        self.command(LiveCommand::Truncate {
            item: item.into(),
            content_index: 0,
            audio_end_ms,
            heard_text: None,
        });
    }

    /// The server begins a reply by itself.
    pub fn created(&mut self, id: &str) {
        self.server(json!({"type": "response.created", "response": {"id": id}}));
    }

    /// The server begins the reply that `create` asked for.
    pub fn created_for(&mut self, id: &str, create: &Value) {
        let metadata = create["response"]["metadata"].clone();
        assert!(metadata.is_object(), "{create}");
        let response = json!({"id": id, "metadata": metadata});
        self.server(json!({"type": "response.created", "response": response}));
    }

    pub fn voice(&mut self, reply: &str, item: &str, ms: usize) {
        let delta = STANDARD.encode_to_string(vec![0_u8; ms * 48]);
        self.server(json!({
            "type": "response.output_audio.delta", "response_id": reply, "item_id": item,
            "output_index": 0, "content_index": 0, "delta": delta,
        }));
    }

    pub fn done(&mut self, id: &str, status: &str) {
        self.server(json!({
            "type": "response.done", "response": {"id": id, "status": status, "output": []},
        }));
    }

    pub fn cancelled(&mut self, id: &str, reason: &str) {
        self.server(json!({"type": "response.done", "response": {
            "id": id, "status": "cancelled",
            "status_details": {"type": "cancelled", "reason": reason}, "output": [],
        }}));
    }

    pub fn call(&mut self, reply: &str, call: &str) {
        self.server(json!({
            "type": "response.function_call_arguments.done", "response_id": reply,
            "item_id": format!("item_{call}"), "output_index": 0, "call_id": call,
            "name": "clock", "arguments": "{}",
        }));
    }

    pub fn error(&mut self, code: Option<&str>, message: &str, event_id: Option<&Value>) {
        self.server(json!({"type": "error", "event_id": "e", "error": {
            "type": "invalid_request_error", "code": code, "message": message, "param": null,
            "event_id": event_id,
        }}));
    }

    pub fn already_active(&mut self, event_id: Option<&Value>) {
        let code = "conversation_already_has_active_response";
        self.error(Some(code), "There is an active response.", event_id);
    }

    pub fn speech(&mut self, started: bool, item: &str) {
        let (kind, at) = if started {
            ("input_audio_buffer.speech_started", "audio_start_ms")
        } else {
            ("input_audio_buffer.speech_stopped", "audio_end_ms")
        };
        self.server(json!({"type": kind, "item_id": item, at: 1_000}));
    }

    pub fn committed(&mut self, item: &str, previous: Option<&str>) {
        self.server(json!({
            "type": "input_audio_buffer.committed", "item_id": item, "previous_item_id": previous,
        }));
    }
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
        LiveEvent::InputCommitted { item } => format!("committed {item}"),
        LiveEvent::InputTranscript { item, text, .. } => format!("user {item} {}", words(text)),
        LiveEvent::ReplyStarted { reply, request: None } => format!("start {reply}"),
        LiveEvent::ReplyStarted { reply, request: Some(number) } => {
            format!("start {reply} for {number}")
        }
        LiveEvent::OutputTranscript { item, text, .. } => format!("say {item} {}", words(text)),
        LiveEvent::OutputText { item, text, .. } => format!("write {item} {}", words(text)),
        LiveEvent::Audio { item, frame, .. } => {
            format!("voice {item} {}", frame.duration().as_millis())
        }
        LiveEvent::ToolCalls { calls, .. } => {
            let calls: Vec<String> =
                calls.iter().map(|call| format!("{} {}", call.id, call.name)).collect();
            format!("call {}", calls.join(", "))
        }
        LiveEvent::ToolPermission { call, .. } => format!("asks {} {}", call.id, call.name),
        LiveEvent::ToolResultAccepted { id } => format!("accepted {id}"),
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
