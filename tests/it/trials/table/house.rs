//! Trials over a cascade whose recogniser, model and synthesiser do what the script says.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
};

use antiphon::{
    agent::{Model, ModelChunk, ModelError, ModelFinish, ModelRequest, ModelStream},
    audio::{AudioFrame, SpeechDetector},
    live::{
        Capabilities, ConnectRequest, LiveCommand, LiveConfig, LiveConnection, LiveError,
        LiveEvent, LiveProvider,
    },
    providers::cascade::{
        CascadeProvider, Recognizer, SpeechError, SpeechRequest, SpeechStream, Synthesizer,
        Transcript, Utterance,
    },
    types::{ToolArguments, ToolCallRequest},
};
use async_trait::async_trait;
use futures_util::{Sink, Stream, StreamExt, stream};
use tokio::sync::{Mutex as AsyncMutex, mpsc};

use super::{
    Line, Stage,
    script::{Do, Seen, Sent, Trial},
};
use crate::rig::{MS, PER_MS};

pub struct House;

impl Line for House {
    fn name(&self) -> &'static str {
        "house"
    }

    fn run(&self, trial: &'static Trial) -> Pin<Box<dyn Future<Output = Seen> + '_>> {
        Box::pin(play(trial))
    }
}

async fn play(trial: &'static Trial) -> Seen {
    let (script, parts) = parts();
    let cascade = CascadeProvider::builder(parts.clone(), parts.clone(), parts)
        .name("house")
        .detector(|| Box::new(Loudness))
        .build();
    let sent = Arc::<Mutex<Vec<LiveCommand>>>::default();
    let provider = Spied { provider: cascade, sent: sent.clone() };
    let mut stage = Stage::start(trial, provider, LiveConfig::new()).await;
    let began = tokio::time::Instant::now();
    let mut script = script;
    let mut level = 0i16;
    for (at, step) in trial.script {
        // The microphone goes on all the time.
        let until = began + *at as u32 * MS;
        while tokio::time::Instant::now() + 20 * MS <= until {
            stage.session.send_audio(AudioFrame::from_pcm16(16_000, &[level; 320])).unwrap();
            tokio::time::sleep(20 * MS).await;
        }
        tokio::time::sleep_until(until).await;
        match step {
            Do::Starts => level = 4_000,
            Do::Stops => level = 0,
            other => script.step(other),
        }
        stage.host(step).await;
    }
    // What was fed last is spoken.
    tokio::time::sleep(50 * MS).await;
    let mut seen = stage.end().await;
    for command in sent.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // Its turns are answered without a word of the session, where speech is not judged.
        if !trial.setup.judged && matches!(command, LiveCommand::CreateReply { .. }) {
            continue;
        }
        if let LiveCommand::AppendAudio(frame) = command {
            seen.uplink_ms += frame.duration().as_millis() as usize;
        }
        seen.sent.extend(as_sent(command));
    }
    seen
}

fn as_sent(command: &LiveCommand) -> Option<Sent> {
    Some(match command {
        LiveCommand::CreateReply { .. } | LiveCommand::Say { .. } => Sent::Create,
        LiveCommand::CancelReply { .. } => Sent::Cancel,
        LiveCommand::Truncate { item, audio_end_ms, .. } => {
            Sent::Truncate(item.to_string(), u64::from(*audio_end_ms))
        }
        LiveCommand::ToolResponse(response) => {
            Sent::Output(response.id.to_string(), !response.response.contains_key("error"))
        }
        LiveCommand::Text { text, .. } => Sent::Text(text.clone()),
        _ => return None,
    })
}

/// What the parts are given, in the order in which they ask for it.
struct Script {
    words: mpsc::UnboundedSender<&'static str>,
    replies: mpsc::UnboundedSender<mpsc::UnboundedReceiver<ModelChunk>>,
    sentences: mpsc::UnboundedSender<mpsc::UnboundedReceiver<usize>>,
    reply: Option<mpsc::UnboundedSender<ModelChunk>>,
    sentence: Option<mpsc::UnboundedSender<usize>>,
    /// The host has something said, for which no model is asked.
    says: bool,
}

impl Script {
    fn step(&mut self, step: &Do) {
        // An error says that nobody asks any more: the reply was stopped.
        match step {
            Do::Heard(words) => {
                let _ = self.words.send(words);
            }
            Do::Say(_) => self.says = true,
            Do::Begins if std::mem::take(&mut self.says) => {
                (self.reply, self.sentence) = (None, None);
            }
            Do::Begins => {
                let (reply, chunks) = mpsc::unbounded_channel();
                let _ = self.replies.send(chunks);
                (self.reply, self.sentence) = (Some(reply), None);
            }
            Do::Words(words) => {
                let (sentence, voice) = mpsc::unbounded_channel();
                let _ = self.sentences.send(voice);
                self.sentence = Some(sentence);
                self.chunk(ModelChunk::Text((*words).to_owned()));
            }
            Do::Voice(ms) => {
                if let Some(sentence) = &self.sentence {
                    let _ = sentence.send(*ms);
                }
            }
            Do::Call(id, name, arguments) => self.chunk(ModelChunk::ToolCall(ToolCallRequest {
                id: (*id).into(),
                name: (*name).into(),
                arguments: ToolArguments::Json((*arguments).into()),
            })),
            Do::CallOf(id, name, bytes) => self.chunk(ModelChunk::ToolCall(ToolCallRequest {
                id: (*id).into(),
                name: (*name).into(),
                arguments: ToolArguments::Json(format!("{{\"text\":\"{}\"}}", "x".repeat(*bytes))),
            })),
            Do::Done | Do::Paid => {
                let (reason, usage, metadata) = (ModelFinish::Stop, None, None);
                self.chunk(ModelChunk::Done { reason, usage, metadata });
                (self.reply, self.sentence) = (None, None);
            }
            Do::Cancelled | Do::Interrupted => (self.reply, self.sentence) = (None, None),
            _ => {}
        }
    }

    fn chunk(&self, chunk: ModelChunk) {
        if let Some(reply) = &self.reply {
            let _ = reply.send(chunk);
        }
    }
}

/// The three parts.
struct Parts {
    words: AsyncMutex<mpsc::UnboundedReceiver<&'static str>>,
    replies: AsyncMutex<mpsc::UnboundedReceiver<mpsc::UnboundedReceiver<ModelChunk>>>,
    sentences: AsyncMutex<mpsc::UnboundedReceiver<mpsc::UnboundedReceiver<usize>>>,
}

fn parts() -> (Script, Arc<Parts>) {
    let (words, hears) = mpsc::unbounded_channel();
    let (replies, generates) = mpsc::unbounded_channel();
    let (sentences, speaks) = mpsc::unbounded_channel();
    let script = Script { words, replies, sentences, reply: None, sentence: None, says: false };
    let parts = Parts {
        words: AsyncMutex::new(hears),
        replies: AsyncMutex::new(generates),
        sentences: AsyncMutex::new(speaks),
    };
    (script, Arc::new(parts))
}

/// A cascade of this model, whose ears and mouth nobody gives anything to do.
pub fn cascade_of(model: Arc<dyn Model>) -> CascadeProvider {
    let (_, parts) = parts();
    CascadeProvider::builder(parts.clone(), model, parts).detector(|| Box::new(Loudness)).build()
}

/// The next thing that the script has for a part.
async fn next<T>(queue: &AsyncMutex<mpsc::UnboundedReceiver<T>>) -> Option<T> {
    queue.lock().await.recv().await
}

#[async_trait]
impl Recognizer for Parts {
    fn name(&self) -> &str {
        "script"
    }
    fn sample_rate_hz(&self) -> u32 {
        16_000
    }
    async fn recognize(&self, _: Utterance) -> Result<Transcript, SpeechError> {
        Ok(Transcript::new(next(&self.words).await.unwrap_or_default()))
    }
}

#[async_trait]
impl Model for Parts {
    fn name(&self) -> &str {
        "script"
    }
    async fn generate(&self, _: ModelRequest) -> Result<ModelStream, ModelError> {
        let Some(chunks) = next(&self.replies).await else { return Ok(stream::pending().boxed()) };
        let chunks =
            stream::unfold(
                chunks,
                |mut chunks| async move { Some((Ok(chunks.recv().await?), chunks)) },
            );
        Ok(chunks.boxed())
    }
}

#[async_trait]
impl Synthesizer for Parts {
    fn name(&self) -> &str {
        "script"
    }
    fn sample_rate_hz(&self) -> u32 {
        24_000
    }
    fn voices(&self) -> Vec<Arc<str>> {
        Vec::new()
    }
    async fn synthesize(&self, _: SpeechRequest) -> Result<SpeechStream, SpeechError> {
        let Some(voice) = next(&self.sentences).await else { return Ok(stream::empty().boxed()) };
        let voice = stream::unfold(voice, |mut voice| async move {
            let ms = voice.recv().await?;
            Some((Ok(AudioFrame::from_pcm16(24_000, &vec![7; ms * PER_MS])), voice))
        });
        Ok(voice.boxed())
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
        if frame.iter().any(|sample| *sample > 1_000) { 1.0 } else { 0.0 }
    }
    fn reset(&mut self) {}
}

/// A provider that keeps what it was sent.
struct Spied {
    provider: CascadeProvider,
    sent: Arc<Mutex<Vec<LiveCommand>>>,
}

#[async_trait]
impl LiveProvider for Spied {
    fn name(&self) -> &str {
        self.provider.name()
    }
    fn model(&self, config: &LiveConfig) -> Arc<str> {
        self.provider.model(config)
    }
    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError> {
        self.provider.capabilities(config)
    }
    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        let connection = self.provider.connect(request).await?;
        Ok(Box::new(SpiedConnection { connection, sent: self.sent.clone() }))
    }
}

struct SpiedConnection {
    connection: Box<dyn LiveConnection>,
    sent: Arc<Mutex<Vec<LiveCommand>>>,
}

impl Stream for SpiedConnection {
    type Item = Result<LiveEvent, LiveError>;
    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.connection).poll_next(cx)
    }
}

impl Sink<LiveCommand> for SpiedConnection {
    type Error = LiveError;
    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        Pin::new(&mut self.connection).poll_ready(cx)
    }
    fn start_send(mut self: Pin<&mut Self>, command: LiveCommand) -> Result<(), LiveError> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push(command.clone());
        Pin::new(&mut self.connection).start_send(command)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        Pin::new(&mut self.connection).poll_flush(cx)
    }
    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        Pin::new(&mut self.connection).poll_close(cx)
    }
}

impl LiveConnection for SpiedConnection {
    fn capabilities(&self) -> &Arc<Capabilities> {
        self.connection.capabilities()
    }
    fn unsent_bytes(&self) -> usize {
        self.connection.unsent_bytes()
    }
}
