//! Language models that say what they are told to.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use antiphon_agent::{
    Model, ModelChunk, ModelError, ModelFinish, ModelRequest, ModelStream, Part, Role,
    types::{JsonObject, Status, ToolArguments, ToolCallRequest, Usage},
};
use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Semaphore;

/// A model that says what the user said last, word by word.
#[derive(Clone, Copy, Debug, Default)]
pub struct EchoModel;

#[async_trait]
impl Model for EchoModel {
    fn name(&self) -> &str {
        "echo"
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let said = request.messages.iter().rev().find(|message| message.role == Role::User);
        let said = said.map(|message| message.joined_text()).unwrap_or_default();
        let mut turn = ModelTurn::default();
        for word in said.split_inclusive(' ') {
            turn = turn.text(word);
        }
        Ok(turn.stream(Open::default()))
    }
}

/// A model that generates one [`ModelTurn`] after the other, or what a closure makes of the request.
/// Clones share everything, so that a test keeps one.
#[derive(Clone)]
pub struct ScriptedModel {
    inner: Arc<Inner>,
}

struct Inner {
    script: Script,
    requests: Mutex<Vec<ModelRequest>>,
    open: Open,
}

enum Script {
    Turns(Mutex<VecDeque<ModelTurn>>),
    Answers(Box<dyn Fn(&ModelRequest) -> ModelTurn + Send + Sync>),
}

impl ScriptedModel {
    /// A model that generates these turns. Asked once more, it fails with `OUT_OF_RANGE`.
    pub fn new(turns: impl IntoIterator<Item = ModelTurn>) -> Self {
        Self::of(Script::Turns(Mutex::new(turns.into_iter().collect())))
    }

    /// A model that generates what `answer` makes of each request.
    pub fn answering(answer: impl Fn(&ModelRequest) -> ModelTurn + Send + Sync + 'static) -> Self {
        Self::of(Script::Answers(Box::new(answer)))
    }

    fn of(script: Script) -> Self {
        let inner = Inner { script, requests: Mutex::default(), open: Open::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Adds a turn at the end of the script.
    pub fn push(&self, turn: ModelTurn) {
        if let Script::Turns(turns) = &self.inner.script {
            lock(turns).push_back(turn);
        }
    }

    /// Everything that it was asked so far.
    pub fn requests(&self) -> Vec<ModelRequest> {
        lock(&self.inner.requests).clone()
    }

    /// Generations that neither ended nor were dropped.
    pub fn open(&self) -> usize {
        self.inner.open.0.load(Ordering::SeqCst)
    }

    /// The model as generations and agents take it.
    pub fn shared(&self) -> Arc<dyn Model> {
        Arc::new(self.clone())
    }

    fn next(&self, request: &ModelRequest) -> Option<ModelTurn> {
        match &self.inner.script {
            Script::Turns(turns) => lock(turns).pop_front(),
            Script::Answers(answer) => Some(answer(request)),
        }
    }
}

#[async_trait]
impl Model for ScriptedModel {
    fn name(&self) -> &str {
        "scripted"
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let turn = self.next(&request);
        lock(&self.inner.requests).push(request);
        let Some(mut turn) = turn else {
            return Err(ModelError::new("scripted", Status::OutOfRange, "the script is over"));
        };
        if let Some(error) = turn.refusal.take() {
            return Err(error);
        }
        Ok(turn.stream(self.inner.open.clone()))
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedModel").field("open", &self.open()).finish_non_exhaustive()
    }
}

/// What a [`ScriptedModel`] generates once. Unless told otherwise it ends with
/// [`ModelFinish::Stop`].
#[derive(Clone, Debug)]
pub struct ModelTurn {
    steps: VecDeque<Step>,
    refusal: Option<ModelError>,
    reason: ModelFinish,
    usage: Option<Usage>,
    metadata: Option<JsonObject>,
}

#[derive(Clone, Debug)]
enum Step {
    Chunk(ModelChunk),
    Fail(ModelError),
    Wait(ModelLatch),
    Delay(Duration),
    /// The stream ends as one does whose connection is lost.
    CutOff,
}

impl Default for ModelTurn {
    fn default() -> Self {
        let (steps, refusal, usage, metadata) = (VecDeque::new(), None, None, None);
        Self { steps, refusal, reason: ModelFinish::Stop, usage, metadata }
    }
}

impl ModelTurn {
    /// A turn of one text.
    pub fn says(text: impl Into<String>) -> Self {
        Self::default().text(text)
    }

    /// A turn of one call.
    pub fn calls(id: &str, name: &str, input: Value) -> Self {
        Self::default().call(id, name, input)
    }

    /// A turn that fails before it begins.
    pub fn refuses(status: Status, message: &str) -> Self {
        let refusal = Some(ModelError::new("scripted", status, message));
        Self { refusal, ..Self::default() }
    }

    /// Says more words.
    pub fn text(self, text: impl Into<String>) -> Self {
        self.chunk(ModelChunk::Text(text.into()))
    }

    /// Thinks aloud.
    pub fn reasoning(self, text: impl Into<String>) -> Self {
        self.chunk(ModelChunk::Reasoning(text.into()))
    }

    /// Calls a tool. An empty id is none. An input that is no object is malformed, as models' are
    /// at times.
    pub fn call(self, id: &str, name: &str, input: Value) -> Self {
        let arguments = match input {
            Value::Object(object) => ToolArguments::Object(object),
            other => ToolArguments::Json(other.to_string()),
        };
        let (id, name) = (id.into(), name.into());
        self.chunk(ModelChunk::ToolCall(ToolCallRequest { id, name, arguments }))
    }

    /// Gives parts that are not streamed.
    pub fn whole(self, parts: Vec<Part>) -> Self {
        self.chunk(ModelChunk::Whole(parts))
    }

    /// Gives any chunk.
    pub fn chunk(mut self, chunk: ModelChunk) -> Self {
        self.steps.push_back(Step::Chunk(chunk));
        self
    }

    /// Fails.
    pub fn fail(mut self, status: Status, message: &str) -> Self {
        self.steps.push_back(Step::Fail(ModelError::new("scripted", status, message)));
        self
    }

    /// Waits until the latch is released.
    pub fn wait(mut self, latch: &ModelLatch) -> Self {
        self.steps.push_back(Step::Wait(latch.clone()));
        self
    }

    /// Waits for so long, on tokio's clock.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.steps.push_back(Step::Delay(delay));
        self
    }

    /// Ends without a finish.
    pub fn cut_off(mut self) -> Self {
        self.steps.push_back(Step::CutOff);
        self
    }

    /// Sets why it ends.
    pub fn finish(mut self, reason: ModelFinish) -> Self {
        self.reason = reason;
        self
    }

    /// Sets what it costs.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Sets what is kept with the message.
    pub fn metadata(mut self, metadata: JsonObject) -> Self {
        self.metadata = Some(metadata);
        self
    }

    fn stream(self, open: Open) -> ModelStream {
        let done =
            ModelChunk::Done { reason: self.reason, usage: self.usage, metadata: self.metadata };
        let state = (self.steps, Some(done), OpenOne::new(open));
        Box::pin(futures_util::stream::unfold(state, |(mut steps, done, open)| async move {
            loop {
                match steps.pop_front() {
                    Some(Step::Chunk(chunk)) => return Some((Ok(chunk), (steps, done, open))),
                    Some(Step::Wait(latch)) => latch.pass().await,
                    Some(Step::Delay(delay)) => tokio::time::sleep(delay).await,
                    Some(Step::Fail(error)) => {
                        return Some((Err(error), (VecDeque::new(), None, open)));
                    }
                    Some(Step::CutOff) => return None,
                    None => return Some((Ok(done?), (steps, None, open))),
                }
            }
        }))
    }
}

/// Holds generations until the test lets them go on.
#[derive(Clone, Debug)]
pub struct ModelLatch {
    reached: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

impl Default for ModelLatch {
    fn default() -> Self {
        Self { reached: Arc::new(Semaphore::new(0)), release: Arc::new(Semaphore::new(0)) }
    }
}

impl ModelLatch {
    /// Waits until one more generation has come to the latch.
    pub async fn reached(&self) {
        self.reached.acquire().await.expect("the semaphore is never closed").forget();
    }

    /// Lets so many generations pass.
    pub fn release(&self, generations: usize) {
        self.release.add_permits(generations);
    }

    async fn pass(&self) {
        self.reached.add_permits(1);
        self.release.acquire().await.expect("the semaphore is never closed").forget();
    }
}

/// Counts generations at work.
#[derive(Clone, Default)]
struct Open(Arc<AtomicUsize>);

struct OpenOne(Open);

impl OpenOne {
    fn new(open: Open) -> Self {
        open.0.fetch_add(1, Ordering::SeqCst);
        Self(open)
    }
}

impl Drop for OpenOne {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
