//! What the tests over the wire have in common.

use std::{sync::Arc, time::Duration};

use antiphon::{
    audio::AudioFormat,
    live::LiveConfig,
    providers::openai::{OpenAi, wire::Dialect},
    session::*,
    types::ToolDefinition,
};
use antiphon_testkit::{
    Speaker, SpeakerControl,
    openai::{Record, Reply, Rule, Script, Server, Side, Step},
    tone, voice_like,
};
use serde_json::{Value, json};

use crate::rig::{MS, until};

/// A configuration with what the dialect cannot do without.
pub fn config(dialect: Dialect) -> LiveConfig {
    let mut config = LiveConfig::new().api_key("sk-test");
    match dialect {
        Dialect::Azure | Dialect::AzurePreview => {
            config.endpoint = Some("wss://example.openai.azure.com".into());
            // Deployments, which only their owner knows the names of.
            config.model = Some("deployment".into());
            config.provider_options.insert("transcription_model".into(), "whisper".into());
        }
        Dialect::VoiceLive => config.endpoint = Some("wss://example.services.ai.azure.com".into()),
        _ => {}
    }
    config
}

/// A script whose connections all speak the dialect.
fn in_dialect(dialect: Dialect, script: Script) -> Script {
    let mut script = script.dialect(dialect);
    let connections = std::mem::take(&mut script.connections).into_iter();
    script.connections = connections.map(|script| in_dialect(dialect, script)).collect();
    script
}

/// A running session, the server that it talks to, and everything around it.
pub struct Wire {
    pub server: Server,
    pub session: AgentSession,
    pub speaker: SpeakerControl,
    pub events: EventStream,
}

/// A session that is not started.
pub struct Setup {
    pub server: Server,
    pub builder: SessionBuilder,
    pub config: LiveConfig,
    pub idle: IdleConfig,
    pub speaker: SpeakerControl,
}

impl Setup {
    pub fn new(script: Script) -> Self {
        Self::of(Dialect::Ga, script)
    }

    /// With a server that speaks a dialect.
    pub fn of(dialect: Dialect, script: Script) -> Self {
        let server = Server::new(in_dialect(dialect, script));
        let provider = OpenAi::new().dialect(dialect).connector(server.connector());
        let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
        Self {
            server,
            builder: AgentSession::builder(Arc::new(provider)).sink(sink),
            config: config(dialect),
            idle: IdleConfig::OFF,
            speaker,
        }
    }

    pub fn build(mut self, edit: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Self {
        self.builder = edit(self.builder);
        self
    }

    pub fn config(mut self, edit: impl FnOnce(LiveConfig) -> LiveConfig) -> Self {
        self.config = edit(self.config);
        self
    }

    /// With a tool that the host answers itself.
    pub fn host_tool(self, name: &str) -> Self {
        let tool = ToolDefinition::new(name, "the host's");
        self.config(|config| config.host_tool(tool))
    }

    /// Seconds to the reminder and to the end.
    pub fn idle(mut self, remind: Option<u64>, stop: Option<u64>) -> Self {
        self.idle = IdleConfig::new(remind.map(Duration::from_secs), stop.map(Duration::from_secs));
        self
    }

    /// All but the start, and what to start with.
    pub fn ready(self) -> (Wire, LiveConfig, IdleConfig) {
        let session = self.builder.build().unwrap();
        let events = session.events();
        let wire = Wire { server: self.server, session, speaker: self.speaker, events };
        (wire, self.config, self.idle)
    }

    pub async fn start(self) -> Wire {
        let (wire, config, idle) = self.ready();
        wire.session.start(config, idle).await.unwrap();
        wire
    }
}

/// A session with nothing special.
pub async fn start(script: Script) -> Wire {
    Setup::new(script).start().await
}

/// What happens.
impl Wire {
    /// The events up to the first that `is` wanted.
    pub async fn until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        until(&mut self.events, is).await
    }

    /// All events of what is under way, once nothing moves any more.
    pub async fn now(&mut self) -> Vec<EventKind> {
        crate::rig::now(&mut self.events).await
    }

    /// As [`Wire::until`], while the speaker plays whatever comes.
    pub async fn hear_until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        let mut seen = Vec::new();
        // Five virtual minutes.
        for _ in 0..30_000 {
            self.speaker.play_all();
            match tokio::time::timeout(10 * MS, self.events.next()).await {
                Ok(Some(event)) => {
                    let found = is(&event.kind);
                    seen.push(event.kind);
                    if found {
                        return seen;
                    }
                }
                Ok(None) => break,
                Err(_) => {}
            }
        }
        panic!("it did not come: {seen:#?}\n{:#?}", self.server.client_events());
    }

    /// The rest of the turn, heard to its end.
    pub async fn hear(&mut self) -> Vec<EventKind> {
        self.hear_until(crate::rig::is_turn_finished).await
    }

    /// Writes to the agent and hears its answer.
    pub async fn ask(&mut self, text: &str) -> Vec<EventKind> {
        self.session.send_text(text).unwrap();
        self.hear().await
    }

    /// The user speaks for so long, and then is silent; the server has heard it.
    pub async fn speak(&self, ms: u32) {
        self.session.send_audio(voice_like(24_000, ms)).unwrap();
        self.session.send_audio(tone(24_000, 0.0, 300)).unwrap();
        self.settle().await;
    }

    /// Waits until the agent is heard.
    pub async fn until_speaking(&mut self) -> Vec<EventKind> {
        self.until(|kind| matches!(kind, EventKind::PlaybackStarted)).await
    }

    /// The events up to the end, and why. The speaker plays whatever comes.
    pub async fn end(&mut self) -> (Vec<EventKind>, EndReason) {
        let is_end = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { .. });
        let events = self.hear_until(is_end).await;
        let Some(EventKind::SessionEnded { reason, .. }) = events.last() else { unreachable!() };
        let reason = reason.clone();
        (events, reason)
    }

    /// Lets so much time pass.
    pub async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    /// Lets everything that can happen now happen.
    pub async fn settle(&self) {
        self.pass(MS).await;
    }

    /// The session lives: it answers.
    pub async fn assert_alive(&mut self) {
        self.now().await;
        let events = self.ask("Are you there?").await;
        assert!(!crate::rig::agent_messages(&events).is_empty(), "{events:#?}");
    }
}

/// What the server saw.
impl Wire {
    /// The client's frames of this type, of all connections, in order.
    pub fn sent(&self, kind: &str) -> Vec<Value> {
        self.of(Side::Client, kind).into_iter().map(|record| record.frame).collect()
    }

    /// The server's frames of this type.
    pub fn told(&self, kind: &str) -> Vec<Value> {
        self.of(Side::Server, kind).into_iter().map(|record| record.frame).collect()
    }

    /// The records of this side's frames of this type.
    pub fn of(&self, side: Side, kind: &str) -> Vec<Record> {
        let records = self.server.records().into_iter();
        records.filter(|record| record.from == side && record.frame["type"] == kind).collect()
    }

    /// The types of the client's frames, audio left out.
    pub fn kinds(&self) -> Vec<String> {
        let events = self.server.client_events().into_iter();
        events.map(|frame| frame["type"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// The outputs of calls, as call id and what the model is given, in order.
    pub fn outputs(&self) -> Vec<(String, Value)> {
        let items =
            self.sent("conversation.item.create").into_iter().map(|frame| frame["item"].clone());
        items
            .filter(|item| item["type"] == "function_call_output")
            .map(|item| {
                let output = serde_json::from_str(item["output"].as_str().unwrap()).unwrap();
                (item["call_id"].as_str().unwrap().to_owned(), output)
            })
            .collect()
    }

    /// The place of the nth frame (from 1) of this kind among all frames of both directions. The
    /// output of a tool is of the kind `output`.
    pub fn place(&self, side: Side, kind: &str, nth: usize) -> usize {
        let is = |record: &Record| {
            let frame = &record.frame;
            let is_output = frame["item"]["type"] == "function_call_output";
            record.from == side
                && (frame["type"] == kind && !is_output
                    || kind == "output" && is_output && frame["type"] == "conversation.item.create")
        };
        let records = self.server.records();
        let mut places = records.iter().enumerate().filter(|(_, record)| is(record));
        match places.nth(nth - 1) {
            Some((place, _)) => place,
            None => panic!("no {kind} number {nth} in {records:#?}"),
        }
    }

    /// All of the user's audio that the server was sent.
    pub fn audio(&self) -> Vec<i16> {
        let appends = self.sent("input_audio_buffer.append").into_iter();
        let bytes = appends.flat_map(|frame| {
            let audio = frame["audio"].as_str().unwrap();
            base64_simd::STANDARD.decode_to_vec(audio).unwrap()
        });
        let bytes: Vec<u8> = bytes.collect();
        bytes.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
    }

    /// The server refused nothing, and the client kept to the script.
    pub fn assert_clean(&self) {
        assert_eq!(self.told("error"), Vec::<Value>::new());
        assert_eq!(self.server.failures(), Vec::<String>::new());
    }

    /// The client is gone.
    pub async fn assert_closed(&self) {
        self.settle().await;
        assert_eq!(self.server.open_connections(), 0);
    }
}

/// An error of the provider that says `what`.
pub fn is_error(what: &str) -> impl Fn(&EventKind) -> bool {
    move |kind| match kind {
        EventKind::Error { kind, message } => &**kind == "provider" && message.contains(what),
        _ => false,
    }
}

/// The session is, or is again, in this state.
pub fn is_state(wanted: SessionState) -> impl Fn(&EventKind) -> bool {
    move |kind| matches!(kind, EventKind::State { state } if *state == wanted)
}

/// A reply to a `response.create` whose instructions hold `text`.
pub fn on_instructions(text: &str, reply: Reply) -> Rule {
    let mut rule = Rule::always(reply);
    rule.when.instructions = Some(text.into());
    rule
}

/// A server that sets the session up and then takes exactly these steps.
pub fn exactly(steps: impl IntoIterator<Item = Step>) -> Script {
    let set_up = [
        emit(json!({"type": "session.created", "session": {"type": "realtime"}})),
        Step::Expect(json!({"type": "session.update", "session": "$session"})),
        emit(json!({"type": "session.updated", "session": "$session"})),
    ];
    Script::steps(set_up.into_iter().chain(steps))
}

pub fn emit(frame: Value) -> Step {
    Step::Emit(frame)
}

/// A reply begins.
pub fn begins(reply: &str) -> Step {
    emit(json!({"type": "response.created", "response": {"id": reply, "status": "in_progress"}}))
}

/// Some of its words.
pub fn words(reply: &str, text: &str) -> Step {
    part("response.output_audio_transcript.delta", reply, "delta", text)
}

/// All of its words.
pub fn all_words(reply: &str, text: &str) -> Step {
    part("response.output_audio_transcript.done", reply, "transcript", text)
}

/// Some of its voice.
pub fn voice(reply: &str, ms: usize) -> Step {
    let audio = base64_simd::STANDARD.encode_to_string(vec![7; ms * 48]);
    part("response.output_audio.delta", reply, "delta", &audio)
}

/// A call in it.
pub fn calls(reply: &str, id: &str, name: &str, arguments: &str) -> Step {
    let item = json!({"type": "function_call", "id": format!("item_{id}"), "call_id": id,
        "name": name, "arguments": arguments, "status": "completed"});
    emit(json!({"type": "response.output_item.done", "response_id": reply, "output_index": 0,
        "item": item}))
}

/// A reply is over.
pub fn done(reply: &str) -> Step {
    emit(json!({"type": "response.done", "response": {"id": reply, "status": "completed"}}))
}

/// Some of the user's words.
pub fn heard(item: &str, text: &str) -> Step {
    emit(json!({"type": "conversation.item.input_audio_transcription.delta", "item_id": item,
        "content_index": 0, "delta": text}))
}

/// All of the user's words.
pub fn all_heard(item: &str, text: &str) -> Step {
    emit(json!({"type": "conversation.item.input_audio_transcription.completed", "item_id": item,
        "content_index": 0, "transcript": text}))
}

fn part(kind: &str, reply: &str, key: &str, value: &str) -> Step {
    emit(json!({"type": kind, "response_id": reply, "item_id": format!("{reply}_item"),
        "output_index": 0, "content_index": 0, key: value}))
}

/// A reply is asked for, and begins.
pub fn asked_for(reply: &str) -> [Step; 2] {
    let response = json!({"id": reply, "metadata": {"request": "$request"}});
    [
        Step::Expect(json!({"type": "response.create", "event_id": "$request"})),
        emit(json!({"type": "response.created", "response": response})),
    ]
}
