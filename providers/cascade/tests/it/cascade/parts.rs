//! Scripted ears, brain and mouth, and a session's end of the line.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use antiphon_agent::{
    Message, Model, ModelChunk, ModelError, ModelFinish, ModelRequest, ModelStream,
};
use antiphon_audio::SpeechDetector;
use antiphon_cascade::{
    Alternative, CascadeProvider, Recognizer, SpeechError, SpeechRequest, SpeechStream,
    Synthesizer, Transcript, Utterance,
};
use antiphon_live::{
    ConnectRequest, LiveCommand, LiveConfig, LiveConnection, LiveError, LiveEvent, LiveProvider,
    ReplyId, ReplyOutcome, TextUpdate,
};
use antiphon_types::{AudioFormat, AudioFrame, JsonObject, Status, ToolArguments, ToolCallRequest};
use async_trait::async_trait;
use futures_util::{FutureExt, SinkExt, StreamExt, stream};
use tokio::time::{Instant, sleep, timeout};

/// Words as loudness: the recogniser reads them off the samples.
pub const WORDS: [(i16, &str); 7] = [
    (2_000, "one"),
    (3_000, "two"),
    (4_000, "three"),
    (5_000, ""),
    (6_000, "yes"),
    (7_000, "four"),
    (8_000, "fifteen"),
];
pub const ONE: i16 = 2_000;
pub const TWO: i16 = 3_000;
pub const THREE: i16 = 4_000;
pub const NOISE: i16 = 5_000;
pub const YES: i16 = 6_000;
/// Heard as `fifteen`, or perhaps `fifty`.
pub const UNSURE: i16 = 8_000;
pub const FAILS: i16 = 9_000;
pub const PANICS: i16 = 9_200;
pub const HANGS: i16 = 9_400;
/// The detector itself panics.
pub const DETECTOR_PANICS: i16 = 12_000;

/// Hears the words of [`WORDS`].
#[derive(Default)]
pub struct Ears {
    pub delay: Duration,
    pub heard: Mutex<Vec<(bool, Duration)>>,
}

#[async_trait]
impl Recognizer for Ears {
    fn name(&self) -> &str {
        "ears"
    }

    fn sample_rate_hz(&self) -> u32 {
        16_000
    }

    async fn recognize(&self, utterance: Utterance) -> Result<Transcript, SpeechError> {
        self.heard.lock().unwrap().push((utterance.last, utterance.audio.duration()));
        sleep(self.delay).await;
        let mut levels: Vec<i16> = Vec::new();
        for bytes in utterance.audio.data.chunks_exact(2) {
            let level = i16::from_le_bytes([bytes[0], bytes[1]]);
            if level >= 1_000 && levels.last() != Some(&level) {
                levels.push(level);
            }
        }
        match levels.first() {
            Some(&FAILS) => return Err(SpeechError::new("ears", Status::Internal, "deaf")),
            Some(&PANICS) => panic!("ears"),
            Some(&HANGS) => std::future::pending().await,
            _ => {}
        }
        let word = |level: &i16| WORDS.iter().find(|(known, _)| known == level).map(|word| word.1);
        let words: Vec<&str> = levels.iter().filter_map(word).filter(|w| !w.is_empty()).collect();
        let mut transcript = Transcript::new(words.join(" "));
        if levels == [UNSURE] {
            transcript.alternatives.push(Alternative::new("fifty", -0.5));
        }
        Ok(transcript)
    }
}

/// One step of a generation.
#[derive(Clone, Debug)]
pub enum Step {
    Text(&'static str),
    Echo,
    Call(&'static str, &'static str),
    Wait(u64),
    Fail,
    Panic,
    Hang,
}

type Script = dyn Fn(&ModelRequest) -> Vec<Step> + Send + Sync;

/// Says what its script says to a request.
pub struct Brain {
    pub script: Box<Script>,
    pub requests: Mutex<Vec<ModelRequest>>,
}

impl Brain {
    pub fn new(script: impl Fn(&ModelRequest) -> Vec<Step> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Box::new(script), requests: Mutex::default() })
    }

    /// Answers each message with "You said ...", its own outputs with "Done."
    pub fn echo() -> Arc<Self> {
        Self::new(|request| match last(request).as_str() {
            "" => vec![Step::Text("Done.")],
            _ => vec![Step::Echo],
        })
    }

    pub fn request(&self, index: usize) -> ModelRequest {
        self.requests.lock().unwrap()[index].clone()
    }

    pub fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// The words of all messages of the latest request.
    pub fn latest(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        texts(&requests.last().unwrap().messages)
    }
}

pub fn texts(messages: &[Arc<Message>]) -> Vec<String> {
    messages.iter().map(|message| message.joined_text()).collect()
}

pub fn last(request: &ModelRequest) -> String {
    request.messages.last().map(|message| message.joined_text()).unwrap_or_default()
}

#[async_trait]
impl Model for Brain {
    fn name(&self) -> &str {
        "brain"
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let steps = (self.script)(&request);
        let echo = format!("You said {}.", last(&request));
        self.requests.lock().unwrap().push(request);
        let chunks = stream::iter(steps).filter_map(move |step| {
            let echo = echo.clone();
            async move {
                match step {
                    Step::Text(text) => Some(Ok(ModelChunk::Text(text.into()))),
                    Step::Echo => Some(Ok(ModelChunk::Text(echo))),
                    Step::Call(id, name) => Some(Ok(ModelChunk::ToolCall(ToolCallRequest {
                        id: id.into(),
                        name: name.into(),
                        arguments: ToolArguments::Object(JsonObject::new()),
                    }))),
                    Step::Wait(ms) => {
                        sleep(Duration::from_millis(ms)).await;
                        None
                    }
                    Step::Fail => Some(Err(ModelError::new("brain", Status::Internal, "lost"))),
                    Step::Panic => panic!("brain"),
                    Step::Hang => std::future::pending().await,
                }
            }
        });
        let done = ModelChunk::Done { reason: ModelFinish::Stop, usage: None, metadata: None };
        Ok(Box::pin(chunks.chain(stream::iter([Ok(done)]))))
    }
}

/// Speaks ten milliseconds for each character, in frames of 20 ms, of which each takes `pace`.
#[derive(Default)]
pub struct Mouth {
    pub pace: Duration,
    pub spoken: Mutex<Vec<String>>,
}

#[async_trait]
impl Synthesizer for Mouth {
    fn name(&self) -> &str {
        "mouth"
    }

    fn sample_rate_hz(&self) -> u32 {
        24_000
    }

    fn voices(&self) -> Vec<Arc<str>> {
        vec!["anna".into()]
    }

    async fn synthesize(&self, request: SpeechRequest) -> Result<SpeechStream, SpeechError> {
        let text = request.text;
        self.spoken.lock().unwrap().push(text.clone());
        if text.contains("MUTE") {
            return Err(SpeechError::new("mouth", Status::Internal, "hoarse"));
        }
        assert!(!text.contains("CHOKE"), "mouth");
        if text.contains("SILENT") {
            std::future::pending::<()>().await;
        }
        let rate = if text.contains("DEEP") { 16_000 } else { 24_000 };
        let pace = self.pace;
        let frames = text.chars().count().div_ceil(2);
        let frames = stream::iter(0..frames).then(move |_| async move {
            sleep(pace).await;
            Ok(AudioFrame::from_pcm16(rate, &[100; 480]))
        });
        Ok(Box::pin(frames))
    }
}

/// Takes for speech what is loud.
struct Loudness;

impl SpeechDetector for Loudness {
    fn sample_rate_hz(&self) -> u32 {
        16_000
    }

    fn frame_samples(&self) -> usize {
        320
    }

    fn score(&mut self, frame: &[i16]) -> f32 {
        let peak = frame.iter().copied().max().unwrap_or_default();
        assert!(peak < DETECTOR_PANICS, "detector");
        if peak >= 1_000 { 1.0 } else { 0.0 }
    }

    fn reset(&mut self) {}
}

/// A provider of scripted parts.
pub struct House {
    pub ears: Arc<Ears>,
    pub brain: Arc<Brain>,
    pub mouth: Arc<Mouth>,
}

impl House {
    pub fn new(brain: Arc<Brain>) -> Self {
        let ears = Ears { delay: Duration::from_millis(60), heard: Mutex::default() };
        let mouth = Mouth { pace: Duration::from_millis(10), spoken: Mutex::default() };
        Self { ears: Arc::new(ears), brain, mouth: Arc::new(mouth) }
    }

    pub fn provider(&self) -> CascadeProvider {
        CascadeProvider::builder(self.ears.clone(), self.brain.clone(), self.mouth.clone())
            .name("house")
            .detector(|| Box::new(Loudness))
            .build()
    }

    pub async fn talk(&self, config: LiveConfig) -> Talk {
        Talk::new(&self.provider(), config).await
    }
}

/// A session's end of the line.
pub struct Talk {
    pub connection: Box<dyn LiveConnection>,
    pub events: VecDeque<LiveEvent>,
}

impl Talk {
    pub async fn new(provider: &dyn LiveProvider, config: LiveConfig) -> Self {
        let request = ConnectRequest::new(Arc::new(config));
        let connection = provider.connect(request).await.unwrap();
        let mut talk = Self { connection, events: VecDeque::new() };
        assert!(matches!(talk.next().await, LiveEvent::Ready { .. }));
        talk
    }

    pub async fn send(&mut self, command: LiveCommand) {
        self.connection.send(command).await.unwrap();
    }

    pub async fn refused(&mut self, command: LiveCommand) -> LiveError {
        self.connection.send(command).await.unwrap_err()
    }

    pub async fn text(&mut self, text: &str) {
        self.send(LiveCommand::Text { text: text.into(), reply: true }).await;
    }

    /// Sends audio of this loudness at the pace of speech.
    pub async fn sound(&mut self, level: i16, ms: u64) {
        for _ in 0..ms / 20 {
            let frame = AudioFrame::from_pcm16(16_000, &[level; 320]);
            self.send(LiveCommand::AppendAudio(frame)).await;
            self.rest(20).await;
        }
    }

    /// Says a word and falls silent for good.
    pub async fn speak(&mut self, level: i16) {
        self.sound(level, 500).await;
        self.sound(0, 800).await;
    }

    /// Lets time pass, taking what comes.
    pub async fn rest(&mut self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        while let Ok(event) = tokio::time::timeout_at(until, self.connection.next()).await {
            self.events.push_back(event.unwrap().unwrap());
        }
    }

    pub async fn next(&mut self) -> LiveEvent {
        if let Some(event) = self.events.pop_front() {
            return event;
        }
        let next = timeout(Duration::from_secs(120), self.connection.next()).await;
        next.expect("no event within two minutes").expect("the stream ended").unwrap()
    }

    /// Whether something waits to be read now.
    pub fn take_now(&mut self) -> Option<LiveEvent> {
        self.events.pop_front().or_else(|| self.connection.next().now_or_never()?.unwrap().ok())
    }

    pub async fn until(&mut self, wanted: impl Fn(&LiveEvent) -> bool) -> Vec<LiveEvent> {
        let mut events = Vec::new();
        loop {
            events.push(self.next().await);
            if wanted(&events[events.len() - 1]) {
                return events;
            }
        }
    }

    pub async fn until_done(&mut self) -> Vec<LiveEvent> {
        self.until(|event| matches!(event, LiveEvent::ReplyDone { .. })).await
    }

    pub async fn until_started(&mut self) -> ReplyId {
        let events = self.until(|event| matches!(event, LiveEvent::ReplyStarted { .. })).await;
        match &events[events.len() - 1] {
            LiveEvent::ReplyStarted { reply, .. } => reply.clone(),
            _ => unreachable!(),
        }
    }

    /// The words of the next reply.
    pub async fn answer(&mut self) -> String {
        said(&self.until_done().await)
    }

    /// Waits for audio of the active reply and gives its item.
    pub async fn until_audio(&mut self) -> Arc<str> {
        let events = self.until(|event| matches!(event, LiveEvent::Audio { .. })).await;
        match &events[events.len() - 1] {
            LiveEvent::Audio { item, .. } => item.clone(),
            _ => unreachable!(),
        }
    }
}

pub fn said(events: &[LiveEvent]) -> String {
    let mut text = String::new();
    for event in events {
        if let LiveEvent::OutputTranscript { text: update, .. } = event {
            match update {
                TextUpdate::Delta(delta) => text.push_str(delta),
                TextUpdate::Snapshot(all) | TextUpdate::Final(Some(all)) => text.clone_from(all),
                TextUpdate::Final(None) => {}
            }
        }
    }
    text
}

pub fn names(events: &[LiveEvent]) -> Vec<&'static str> {
    let mut names: Vec<&str> = events.iter().map(LiveEvent::name).collect();
    names.dedup();
    names
}

pub fn heard(events: &[LiveEvent]) -> Vec<TextUpdate> {
    let texts = events.iter().filter_map(|event| match event {
        LiveEvent::InputTranscript { text, .. } => Some(text.clone()),
        _ => None,
    });
    texts.collect()
}

pub fn audio_ms(events: &[LiveEvent]) -> u64 {
    let frames = events.iter().filter_map(|event| match event {
        LiveEvent::Audio { frame, .. } => Some(frame.samples() as u64),
        _ => None,
    });
    AudioFormat::pcm16(24_000).duration_of(frames.sum()).as_millis() as u64
}

pub fn outcome(events: &[LiveEvent]) -> ReplyOutcome {
    match events.last() {
        Some(LiveEvent::ReplyDone { outcome, .. }) => *outcome,
        event => panic!("{event:?}"),
    }
}

pub fn error_codes(events: &[LiveEvent]) -> Vec<String> {
    let codes = events.iter().filter_map(|event| match event {
        LiveEvent::Error(error) => Some(error.code.to_string()),
        _ => None,
    });
    codes.collect()
}
