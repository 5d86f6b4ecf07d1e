//! Generation by hand: a model, its tools, and what comes of both, without an agent.
//!
//! ```
//! use std::sync::Arc;
//!
//! use antiphon_agent::{
//!     InvocationContext, Model, ToolExecutor, ToolRegistry, TypedTool,
//!     generate::{Generate, generate},
//! };
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Place {
//!     city: String,
//! }
//!
//! async fn ask(model: Arc<dyn Model>) -> Result<String, Box<dyn std::error::Error>> {
//!     let registry = ToolRegistry::new();
//!     registry.register(TypedTool::new("weather", "Tells the weather.", |_cx, at: Place| async move {
//!         Ok(format!("sunny in {}", at.city))
//!     }))?;
//!     let request = Generate::new(model)
//!         .system("Answer in one sentence.")
//!         .prompt("How is the weather in Paris?")
//!         .tools(ToolExecutor::new(Arc::new(registry), None));
//!     let response = generate(&InvocationContext::new(), request).await?;
//!     Ok(response.text())
//! }
//! ```

mod calls;
mod response;
mod resume;
mod run;
mod unanswered;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use antiphon_types::JsonObject;
use futures_core::Stream;
use serde_json::Value;
use tokio::sync::mpsc;

pub use self::response::{GenerateError, GenerateResponse};
use self::run::Run;
use crate::{
    InMemory, InvocationContext, Memory, Message, Model, ModelResponseChunk, Parking, Part, Role,
    ToolChoice, ToolExecutor, protocol::ToolResume,
};

/// Tool rounds in one generation unless it says otherwise.
pub const DEFAULT_MAX_TURNS: u32 = 5;
/// How long a model may be silent unless it is said otherwise.
pub const DEFAULT_MODEL_TIMEOUT: Duration = Duration::from_secs(300);
/// Chunks that wait for a slow reader of a [`GenerateStream`]; the generation waits beyond.
const STREAM_BUFFER: usize = 64;

/// What is to be generated.
///
/// The conversation is: the system text, the messages, the prompt.
#[derive(Clone)]
pub struct Generate {
    pub(crate) model: Arc<dyn Model>,
    system: Vec<Part>,
    messages: Vec<Arc<Message>>,
    prompt: Vec<Part>,
    tools: Option<ToolExecutor>,
    resume: ToolResume,
    resume_metadata: Option<JsonObject>,
    max_turns: u32,
    tool_errors: ToolErrors,
    tool_choice: ToolChoice,
    config: Arc<JsonObject>,
    output_schema: Option<Arc<Value>>,
    max_output_tokens: Option<u32>,
    locale: Option<Arc<str>>,
    memory: Arc<dyn Memory>,
    model_timeout: Duration,
    parking: Parking,
}

/// What becomes of a tool that fails: errs, panics, is late, unknown or not allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ToolErrors {
    /// The model gets the error as the output and goes on.
    #[default]
    TellModel,
    /// The generation fails; tools that still run are cancelled.
    Fail,
}

impl Generate {
    /// A generation by `model` without messages.
    pub fn new(model: Arc<dyn Model>) -> Self {
        Self {
            model,
            system: Vec::new(),
            messages: Vec::new(),
            prompt: Vec::new(),
            tools: None,
            resume: ToolResume::default(),
            resume_metadata: None,
            max_turns: DEFAULT_MAX_TURNS,
            tool_errors: ToolErrors::default(),
            tool_choice: ToolChoice::default(),
            config: Arc::default(),
            output_schema: None,
            max_output_tokens: None,
            locale: None,
            memory: Arc::new(InMemory::new()),
            model_timeout: DEFAULT_MODEL_TIMEOUT,
            parking: Parking::default(),
        }
    }

    /// Sets the host's instructions, which stand before all messages.
    pub fn system(self, text: impl Into<String>) -> Self {
        self.system_parts(vec![Part::text(text)])
    }

    /// Sets the host's instructions as parts.
    pub fn system_parts(mut self, parts: Vec<Part>) -> Self {
        self.system = parts;
        self
    }

    /// Sets what the user says, which stands after all messages.
    pub fn prompt(self, text: impl Into<String>) -> Self {
        self.prompt_parts(vec![Part::text(text)])
    }

    /// Sets what the user says as parts.
    pub fn prompt_parts(mut self, parts: Vec<Part>) -> Self {
        self.prompt = parts;
        self
    }

    /// Adds messages.
    pub fn messages<M: Into<Arc<Message>>>(
        mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Self {
        self.messages.extend(messages.into_iter().map(Into::into));
        self
    }

    /// Sets the tools that the model may call, and with them the policy over their calls. A call
    /// that the policy wants confirmed interrupts the generation: its `interrupt` is
    /// `{"confirm": question}`, and restarting it with `true` or `{"confirmed": true}` is the user's
    /// yes.
    pub fn tools(mut self, tools: ToolExecutor) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Adds interrupted calls that are run again: see [`resume`](crate::tool::resume).
    pub fn tool_restarts(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.resume.restart.extend(parts);
        self
    }

    /// Adds outputs of interrupted calls: see [`respond`](crate::tool::respond).
    pub fn tool_responses(mut self, parts: impl IntoIterator<Item = Part>) -> Self {
        self.resume.respond.extend(parts);
        self
    }

    /// Adds both. All interrupted calls of the last message have to be resolved at once.
    pub fn resume(mut self, resume: ToolResume) -> Self {
        self.resume.respond.extend(resume.respond);
        self.resume.restart.extend(resume.restart);
        self
    }

    /// Sets what the tool message of a resume has as its metadata's `resumed`; else it is `true`.
    pub fn resume_metadata(mut self, metadata: JsonObject) -> Self {
        self.resume_metadata = Some(metadata);
        self
    }

    /// Sets how many rounds of tools there may be. A model that asks for tools once more ends the
    /// generation with [`RuntimeError::LimitReached`](crate::RuntimeError::LimitReached). Default:
    /// [`DEFAULT_MAX_TURNS`].
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.max_turns = turns;
        self
    }

    /// Sets what becomes of a tool that fails.
    pub fn tool_errors(mut self, tool_errors: ToolErrors) -> Self {
        self.tool_errors = tool_errors;
        self
    }

    /// Sets whether the model may, must or must not call tools. Once it has called one it no longer
    /// must.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Sets the model's settings: see [`ModelRequest::config`](crate::ModelRequest).
    pub fn config(mut self, config: impl Into<Arc<JsonObject>>) -> Self {
        self.config = config.into();
        self
    }

    /// Sets the JSON Schema that the answer has to fit.
    pub fn output_schema(mut self, schema: impl Into<Arc<Value>>) -> Self {
        self.output_schema = Some(schema.into());
        self
    }

    /// Sets at most how many tokens each message of the model may have.
    pub fn max_output_tokens(mut self, tokens: u32) -> Self {
        self.max_output_tokens = Some(tokens);
        self
    }

    /// Sets the language, as a BCP 47 tag.
    pub fn locale(mut self, locale: impl Into<Arc<str>>) -> Self {
        self.locale = Some(locale.into());
        self
    }

    /// Sets the memory that tools and policy see. Default: one of its own, which is gone afterwards.
    pub fn memory(mut self, memory: Arc<dyn Memory>) -> Self {
        self.memory = memory;
        self
    }

    /// Sets how calls wait over which a person is to decide ([`Verdict::Ask`](crate::Verdict)), in an
    /// agent whose store keeps account of them. Default: [`Parking::default`].
    pub fn parking(mut self, parking: Parking) -> Self {
        self.parking = parking;
        self
    }

    /// Sets how long the model may be silent. Default: [`DEFAULT_MODEL_TIMEOUT`].
    pub fn model_timeout(mut self, timeout: Duration) -> Self {
        self.model_timeout = timeout;
        self
    }

    /// The whole conversation that the generation begins with.
    fn conversation(&mut self) -> Vec<Arc<Message>> {
        let message = |role, parts: Vec<Part>| {
            (!parts.is_empty()).then(|| Arc::new(Message::new(role, parts)))
        };
        let mut messages = std::mem::take(&mut self.messages);
        let system = message(Role::System, std::mem::take(&mut self.system));
        // A conversation that goes on has it already.
        if let Some(system) = system.filter(|system| messages.first() != Some(system)) {
            messages.insert(0, system);
        }
        messages.extend(message(Role::User, std::mem::take(&mut self.prompt)));
        messages
    }
}

impl fmt::Debug for Generate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generate")
            .field("model", &self.model.name())
            .field("messages", &self.messages.len())
            .field("tools", &self.tools)
            .field("max_turns", &self.max_turns)
            .finish_non_exhaustive()
    }
}

/// Generates: asks the model, runs the tools that it calls, asks again, until it is done, a tool
/// interrupts, `cx` ends or something fails. Dropping the future cancels model and tools.
pub async fn generate(
    cx: &InvocationContext,
    request: Generate,
) -> Result<GenerateResponse, GenerateError> {
    Run::new(cx.clone(), request, None).run().await
}

/// [`generate`], streaming. Nothing happens unless the stream is polled, and dropping it cancels
/// model and tools.
pub fn generate_stream(cx: &InvocationContext, request: Generate) -> GenerateStream {
    let (sender, chunks) = mpsc::channel(STREAM_BUFFER);
    let work = Box::pin(Run::new(cx.clone(), request, Some(sender)).run());
    GenerateStream { work: Work::Going(work), chunks }
}

/// The chunks of a generation: what the model says as it comes; the outputs of a round of tools as
/// one chunk of role `tool`; progress of tools in between; and, where tools interrupted, a last chunk
/// of role `tool` with their requests. [`GenerateStream::response`] is how it ended.
pub struct GenerateStream {
    work: Work,
    chunks: mpsc::Receiver<ModelResponseChunk>,
}

type Generated = Result<GenerateResponse, GenerateError>;

enum Work {
    Going(Pin<Box<dyn Future<Output = Generated> + Send>>),
    Done(Generated),
}

impl GenerateStream {
    /// Waits for the end; chunks that nobody read are gone.
    pub async fn response(mut self) -> Result<GenerateResponse, GenerateError> {
        while std::future::poll_fn(|cx| Pin::new(&mut self).poll_next(cx)).await.is_some() {}
        match self.work {
            Work::Done(generated) => generated,
            Work::Going(work) => work.await,
        }
    }
}

impl Stream for GenerateStream {
    type Item = ModelResponseChunk;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Poll::Ready(Some(chunk)) = self.chunks.poll_recv(cx) {
                return Poll::Ready(Some(chunk));
            }
            let Work::Going(work) = &mut self.work else { return Poll::Ready(None) };
            match work.as_mut().poll(cx) {
                Poll::Ready(generated) => self.work = Work::Done(generated),
                Poll::Pending => match self.chunks.try_recv() {
                    Ok(chunk) => return Poll::Ready(Some(chunk)),
                    Err(_) => return Poll::Pending,
                },
            }
        }
    }
}

impl fmt::Debug for GenerateStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GenerateStream")
            .field("done", &matches!(self.work, Work::Done(_)))
            .finish_non_exhaustive()
    }
}
