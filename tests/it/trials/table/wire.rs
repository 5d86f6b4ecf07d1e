//! Trials over the words of OpenAI and its dialects, through sockets in memory.

use antiphon::providers::openai::{
    OpenAi,
    wire::{Dialect, ServerEvent},
};
use antiphon_testkit::openai::{Script, Server, Side, Step};
use serde_json::{Value, json};

use super::{
    Line, Stage,
    script::{Do, Seen, Sent, Trial},
};
use crate::{rig::MS, wire::rig::config};

/// A dialect of OpenAI's words.
pub struct Wire(pub Dialect);

impl Line for Wire {
    fn name(&self) -> &'static str {
        self.0.facts().name
    }

    fn run(&self, trial: &'static Trial) -> std::pin::Pin<Box<dyn Future<Output = Seen> + '_>> {
        Box::pin(self.play(trial))
    }
}

impl Wire {
    async fn play(&self, trial: &'static Trial) -> Seen {
        let began = tokio::time::Instant::now();
        let server = Server::new(self.script(trial));
        let provider = OpenAi::new().dialect(self.0).connector(server.connector());
        let config = config(self.0).model("gpt-realtime-2");
        let mut stage = Stage::start(trial, provider, config).await;
        for (at, step) in trial.script {
            tokio::time::sleep_until(began + *at as u32 * MS).await;
            // What the provider does at this moment comes first.
            stage.settle().await;
            match step {
                Do::Starts | Do::Stops => stage.sound(20).await,
                other => stage.host(other).await,
            }
        }
        let mut seen = stage.end().await;
        let of_client = server.records().into_iter().filter(|record| record.from == Side::Client);
        for record in of_client {
            seen.sent.extend(sent(&record.frame));
            if record.frame["type"] == "input_audio_buffer.append" {
                let audio = record.frame["audio"].as_str().unwrap_or_default();
                let bytes_per_ms = self.0.facts().input.default_rate() as usize / 500;
                seen.uplink_ms += audio.len() * 3 / 4 / bytes_per_ms;
            }
        }
        seen.connections = server.connections();
        assert_eq!(server.failures(), Vec::<String>::new());
        seen
    }

    /// The provider's part of a trial.
    fn script(&self, trial: &Trial) -> Script {
        let session = json!({"type": "realtime"});
        let set_up = || {
            vec![
                self.emit(json!({"type": "session.created", "session": session})),
                Step::Expect(json!({"type": "session.update"})),
                self.emit(json!({"type": "session.updated", "session": session})),
            ]
        };
        let mut frames = Frames::default();
        let said = |step: &Do| match step {
            Do::Expires => {
                let error = json!({"code": "session_expired", "message": "60 minutes are over."});
                vec![Step::Error(error), Step::close(1001, "")]
            }
            other => frames.of(other).into_iter().map(|frame| self.emit(frame)).collect(),
        };
        let connections = trial.connections(set_up, said).into_iter();
        Script::connections(connections.map(|steps| Script::steps(steps).dialect(self.0)))
    }

    /// A frame in the words of the dialect.
    fn emit(&self, frame: Value) -> Step {
        let event = ServerEvent::decode(&frame.to_string()).unwrap();
        let text = self.0.encode_server(&event).unwrap();
        Step::Emit(serde_json::from_str(&text).unwrap())
    }
}

/// What was begun so far.
#[derive(Default)]
struct Frames {
    reply: usize,
    utterance: usize,
    parts: usize,
}

impl Frames {
    fn of(&mut self, step: &Do) -> Vec<Value> {
        let reply = format!("r{}", self.reply);
        let item = format!("r{}", self.reply);
        let done = |status: &str, details: Value| {
            json!({"type": "response.done", "response":
                {"id": reply, "status": status, "status_details": details}})
        };
        match step {
            Do::Starts => {
                self.utterance += 1;
                vec![json!({"type": "input_audio_buffer.speech_started", "audio_start_ms": 0,
                    "item_id": format!("u{}", self.utterance)})]
            }
            Do::Stops => vec![
                json!({"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 0,
                    "item_id": format!("u{}", self.utterance)}),
                json!({"type": "input_audio_buffer.committed",
                    "item_id": format!("u{}", self.utterance)}),
            ],
            Do::Heard(words) => vec![json!({
                "type": "conversation.item.input_audio_transcription.completed",
                "item_id": format!("u{}", self.utterance), "content_index": 0,
                "transcript": words})],
            Do::Begins => {
                self.reply += 1;
                vec![json!({"type": "response.created", "response":
                    {"id": format!("r{}", self.reply), "status": "in_progress"}})]
            }
            Do::Words(words) => vec![json!({"type": "response.output_audio_transcript.delta",
                "response_id": reply, "item_id": item, "output_index": 0, "content_index": 0,
                "delta": words})],
            Do::Voice(ms) => vec![voice(&reply, &item, *ms)],
            Do::VoiceOf(item, ms) => vec![voice(&reply, item, *ms)],
            Do::Call(id, name, arguments) => self.call(&reply, id, name, arguments),
            Do::CallOf(id, name, bytes) => {
                let arguments = json!({"text": "x".repeat(*bytes)}).to_string();
                self.call(&reply, id, name, &arguments)
            }
            Do::Done => vec![done("completed", Value::Null)],
            Do::Cancelled => vec![done(
                "cancelled",
                json!({"type": "cancelled",
                "reason": "client_cancelled"}),
            )],
            Do::Interrupted => vec![done(
                "cancelled",
                json!({"type": "cancelled",
                "reason": "turn_detected"}),
            )],
            Do::Fails => vec![done(
                "failed",
                json!({"type": "failed", "error": {"type": "server_error", "code": "server_error"}}),
            )],
            Do::Paid => vec![json!({"type": "response.done", "response": {"id": reply,
                "status": "completed", "usage": {"total_tokens": 1_800, "input_tokens": 800,
                "output_tokens": 1_000,
                "input_token_details": {"audio_tokens": 800, "text_tokens": 0,
                    "cached_tokens": 500, "cached_tokens_details":
                    {"audio_tokens": 500, "text_tokens": 0}},
                "output_token_details": {"audio_tokens": 1_000, "text_tokens": 0}}}})],
            Do::Busy { named } => {
                let mut error = json!({"type": "invalid_request_error",
                    "code": "conversation_already_has_active_response",
                    "message": "Conversation already has an active response"});
                if *named {
                    error["event_id"] = "reply-1".into();
                }
                vec![json!({"type": "error", "error": error})]
            }
            Do::Rejects(event_id) => vec![json!({"type": "error", "error":
                {"type": "invalid_request_error", "code": "invalid_value",
                "message": "Invalid output", "event_id": event_id}})],
            _ => Vec::new(),
        }
    }
}

impl Frames {
    fn call(&mut self, reply: &str, id: &str, name: &str, arguments: &str) -> Vec<Value> {
        self.parts += 1;
        let item = json!({"type": "function_call", "id": format!("item_{id}"),
            "call_id": id, "name": name, "arguments": arguments, "status": "completed"});
        vec![json!({"type": "response.output_item.done", "response_id": reply,
            "output_index": self.parts, "item": item})]
    }
}

fn voice(reply: &str, item: &str, ms: usize) -> Value {
    let audio = base64_simd::STANDARD.encode_to_string(vec![7; ms * 48]);
    json!({"type": "response.output_audio.delta", "response_id": reply, "item_id": item,
        "output_index": 0, "content_index": 0, "delta": audio})
}

fn sent(frame: &Value) -> Option<Sent> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(match frame["type"].as_str()? {
        "response.create" => Sent::Create,
        "response.cancel" => Sent::Cancel,
        "conversation.item.truncate" => {
            Sent::Truncate(text(&frame["item_id"]), frame["audio_end_ms"].as_u64()?)
        }
        "conversation.item.create" => match &frame["item"] {
            item if item["type"] == "function_call_output" => {
                let output: Value = serde_json::from_str(item["output"].as_str()?).ok()?;
                Sent::Output(text(&item["call_id"]), output.get("error").is_none())
            }
            item if item["type"] == "force_message" => Sent::Create,
            item => Sent::Text(text(&item["content"][0]["text"])),
        },
        _ => return None,
    })
}
