//! A bridge, and a Twilio caller.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use antiphon::{
    agent::ToolRegistry,
    audio::AudioFrame,
    live::{LiveCommand, LiveConfig, LiveEvent, ReplyOutcome},
    policy::LimitStore,
    session::{AgentSession, IdleConfig},
    telephony::{
        Answer, AnswerError, Bridge, BridgeConfig, BridgeHandle, CallAgent, CallRecord,
        IncomingCall, call_tools, config::AgentConfig, rest::Accounts,
    },
};
use antiphon_testkit::{FarEnd, ScriptedProvider};
use async_trait::async_trait;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Error, Message, client::IntoClientRequest},
};

/// What does not happen within this time does not happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits, and not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

pub struct Rig {
    pub provider: ScriptedProvider,
    pub address: SocketAddr,
    pub audiosocket: SocketAddr,
    pub handle: BridgeHandle,
    pub records: mpsc::UnboundedReceiver<CallRecord>,
    pub stop: Option<oneshot::Sender<()>>,
    pub bridge: JoinHandle<()>,
}

struct Scripted(ScriptedProvider, AgentConfig);

#[async_trait]
impl CallAgent for Scripted {
    async fn answer(&self, call: &IncomingCall) -> Result<Answer, AnswerError> {
        let registry = ToolRegistry::new();
        for tool in call_tools(&call.control) {
            registry.register_shared(tool).map_err(|error| AnswerError(error.to_string()))?;
        }
        let builder = AgentSession::builder(Arc::new(self.0.clone())).registry(Arc::new(registry));
        let mut answer = Answer::new(builder, LiveConfig::new()).configured(&self.1);
        answer.idle = IdleConfig::OFF;
        Ok(answer)
    }
}

/// The agent of a rig.
pub fn scripted(provider: &ScriptedProvider, config: &BridgeConfig) -> impl CallAgent + use<> {
    Scripted(provider.clone(), config.agent.clone())
}

/// A secret for tokens, in tests only.
pub const SECRET: &str = "a secret of some length";

impl Rig {
    /// A bridge with these lines at the top of its configuration, and these carriers.
    pub async fn new(top: &str, carriers: &str) -> Self {
        Self::with_ledger(top, carriers, None).await
    }

    /// One that sets what calls have taken to what they have cost.
    pub async fn with_ledger(
        top: &str,
        carriers: &str,
        ledger: Option<Arc<dyn LimitStore>>,
    ) -> Self {
        let text =
            format!("listen = \"127.0.0.1:0\"\naudiosocket = \"127.0.0.1:0\"\n{top}\n{carriers}\n");
        let config = BridgeConfig::from_toml(&text, |_| Some(SECRET.to_owned())).unwrap();
        let provider = ScriptedProvider::default();
        let (recorded, records) = mpsc::unbounded_channel();
        let agent = scripted(&provider, &config);
        let accounts: Vec<_> = config
            .carriers
            .iter()
            .filter_map(|(carrier, config)| Some((*carrier, config.account.clone()?)))
            .collect();
        let bridge = Bridge::new(config, agent).on_record(move |record| {
            let _ = recorded.send(record.clone());
        });
        let bridge = match accounts.is_empty() {
            true => bridge,
            false => bridge.carriers(Accounts::new(accounts).unwrap()),
        };
        let bridge = match ledger {
            Some(ledger) => bridge.ledger(ledger),
            None => bridge,
        };
        let bound = bridge.bind().await.unwrap();
        let address = bound.local_addr().unwrap();
        let audiosocket = bound.audiosocket_addr().unwrap();
        let handle = bound.handle();
        let (stop, stopped) = oneshot::channel();
        let bridge = tokio::spawn(async move {
            let stopped = async {
                let _ = stopped.await;
            };
            bound.run(stopped).await.unwrap();
        });
        Self { provider, address, audiosocket, handle, records, stop: Some(stop), bridge }
    }

    /// One that lets everybody in.
    pub async fn open() -> Self {
        let carriers =
            "[carriers.twilio]\nverify = \"none\"\n[carriers.asterisk]\nverify = \"none\"";
        Self::new("", carriers).await
    }

    /// A caller whose stream has started, and the provider's end of its session.
    pub async fn call(&self, call_id: &str) -> (Caller, FarEnd) {
        let mut caller = Caller::connect(self.address, "twilio", &[]).await.unwrap();
        caller.start(call_id, json!({})).await;
        let far = soon("a connection", self.provider.far_end()).await;
        (caller, far)
    }

    pub async fn record(&mut self) -> CallRecord {
        soon("a record", self.records.recv()).await.unwrap()
    }
}

/// A caller over Twilio's stream; each carrier's own frames are proved elsewhere.
pub struct Caller {
    socket: WebSocketStream<TcpStream>,
    chunk: u64,
}

impl Caller {
    /// `Err` is the status of a refused upgrade.
    pub async fn connect(
        address: SocketAddr,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Self, u16> {
        let stream = soon("a socket", TcpStream::connect(address)).await.unwrap();
        let url = format!("ws://{address}/telephony/{path}");
        let mut request = url.into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        match soon("an answer", client_async(request, stream)).await {
            Ok((socket, _)) => Ok(Self { socket, chunk: 0 }),
            Err(Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("{error}"),
        }
    }

    pub async fn send(&mut self, message: Value) {
        let text = Message::Text(message.to_string().into());
        soon("room on the wire", self.socket.send(text)).await.unwrap();
    }

    pub async fn start(&mut self, call_id: &str, parameters: Value) {
        self.send(json!({"event": "connected", "protocol": "Call", "version": "1.0.0"})).await;
        let start = json!({
            "event": "start", "sequenceNumber": "1", "streamSid": "MZ1",
            "start": {
                "accountSid": "AC1", "streamSid": "MZ1", "callSid": call_id, "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": parameters,
            },
        });
        self.send(start).await;
    }

    /// 20 ms of the caller's voice.
    pub async fn speak(&mut self) {
        self.chunk += 1;
        self.media(&[0x20; 160]).await;
    }

    /// 20 ms of these samples.
    pub async fn say(&mut self, samples: &[i16]) {
        let mut codes = Vec::new();
        antiphon::audio::g711::Law::Mu.encode_into(samples, &mut codes);
        self.chunk += 1;
        self.media(&codes).await;
    }

    async fn media(&mut self, codes: &[u8]) {
        let payload = base64_simd::STANDARD.encode_to_string(codes);
        let media = json!({
            "track": "inbound", "chunk": self.chunk.to_string(),
            "timestamp": ((self.chunk - 1) * 20).to_string(), "payload": payload,
        });
        self.send(json!({"event": "media", "streamSid": "MZ1", "media": media})).await;
    }

    pub async fn press(&mut self, digit: char) {
        let dtmf = json!({"track": "inbound_track", "digit": digit.to_string()});
        self.send(json!({"event": "dtmf", "streamSid": "MZ1", "dtmf": dtmf})).await;
    }

    pub async fn mark(&mut self, name: &str) {
        let mark = json!({ "name": name });
        self.send(json!({"event": "mark", "streamSid": "MZ1", "mark": mark})).await;
    }

    pub async fn stop(&mut self) {
        let stop = json!({"accountSid": "AC1", "callSid": "CA"});
        self.send(json!({"event": "stop", "streamSid": "MZ1", "stop": stop})).await;
    }

    /// The next message; `Err` is the close code.
    pub async fn next(&mut self) -> Result<Value, u16> {
        loop {
            match soon("a message", self.socket.next()).await {
                Some(Ok(Message::Text(text))) => return Ok(serde_json::from_str(&text).unwrap()),
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map_or(1005, |frame| u16::from(frame.code)));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Err(1006),
            }
        }
    }

    /// Messages up to the first of this event.
    pub async fn until(&mut self, event: &str) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            match self.next().await {
                Ok(message) => {
                    let found = message["event"] == event;
                    seen.push(message);
                    if found {
                        return seen;
                    }
                }
                Err(code) => panic!("closed with {code} before {event}: {seen:?}"),
            }
        }
    }

    /// The close code, after whatever else comes.
    pub async fn closed(&mut self) -> u16 {
        loop {
            if let Err(code) = self.next().await {
                return code;
            }
        }
    }

    /// The socket is closed in order, without a word that the call is over.
    pub async fn close(mut self) {
        soon("a close", self.socket.close(None)).await.unwrap();
    }

    /// The line is cut.
    pub fn cut(self) {
        drop(self);
    }
}

/// A whole spoken reply of so many milliseconds.
pub fn says(far: &FarEnd, reply: &str, words: &str, ms: usize) {
    begins(far, reply, words, ms);
    done(far, reply, ReplyOutcome::Completed);
}

pub fn begins(far: &FarEnd, reply: &str, words: &str, ms: usize) {
    far.emit(LiveEvent::ReplyStarted { reply: reply.into(), request: None });
    voice(far, reply, words, ms);
}

pub fn voice(far: &FarEnd, reply: &str, words: &str, ms: usize) {
    let item = format!("{reply}-item");
    far.emit(LiveEvent::OutputTranscript {
        reply: reply.into(),
        item: item.as_str().into(),
        text: antiphon::live::TextUpdate::Delta(words.into()),
    })
    .emit(LiveEvent::Audio {
        reply: reply.into(),
        item: item.as_str().into(),
        content_index: 0,
        frame: AudioFrame::from_pcm16(24_000, &vec![7; ms * 24]),
    });
}

pub fn done(far: &FarEnd, reply: &str, outcome: ReplyOutcome) {
    far.emit(LiveEvent::ReplyDone { reply: reply.into(), outcome, usage: None });
}

/// The next command that fits.
pub async fn command(far: &mut FarEnd, fits: impl Fn(&LiveCommand) -> bool) -> LiveCommand {
    loop {
        let command = soon("a command", far.command()).await.unwrap();
        if fits(&command) {
            return command;
        }
    }
}

/// Milliseconds of mu-law in messages.
pub fn media_ms(messages: &[Value]) -> usize {
    let payloads = messages.iter().filter_map(|message| message["media"]["payload"].as_str());
    payloads
        .map(|payload| base64_simd::STANDARD.decode_to_vec(payload).unwrap().len())
        .sum::<usize>()
        / 8
}
