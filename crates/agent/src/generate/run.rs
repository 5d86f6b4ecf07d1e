//! One generation from its beginning to its end.

use std::{future::Future, sync::Arc};

use antiphon_types::{Status, ToolDefinition, Usage};
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::{
    Generate, GenerateError, GenerateResponse,
    calls::{Round, RoundEnd},
    unanswered,
};
use crate::{
    AgentFinishReason, InvocationContext, Message, ModelChunk, ModelError, ModelFinish, ModelReply,
    ModelRequest, ModelResponseChunk, Part, Role, RuntimeError, ToolChoice,
    model::{ReplyBuilder, request_part},
};

/// A generation at work.
pub(super) struct Run {
    pub(super) cx: InvocationContext,
    pub(super) request: Generate,
    /// The conversation up to the last complete round of tools.
    pub(super) messages: Vec<Arc<Message>>,
    definitions: Arc<[ToolDefinition]>,
    chunks: Chunks,
    asked: usize,
    reached_model: bool,
    usage: Option<Usage>,
}

impl Run {
    pub(super) fn new(
        cx: InvocationContext,
        mut request: Generate,
        chunks: Option<mpsc::Sender<ModelResponseChunk>>,
    ) -> Self {
        let messages = request.conversation();
        let definitions = request.tools.as_ref().map(|tools| tools.definitions());
        Self {
            cx,
            asked: messages.len(),
            messages,
            definitions: definitions.unwrap_or_default().into(),
            request,
            chunks: Chunks { sender: chunks, last: None },
            reached_model: false,
            usage: None,
        }
    }

    pub(super) async fn run(mut self) -> Result<GenerateResponse, GenerateError> {
        let cx = self.cx.clone();
        // One place ends whatever is waited for; it is dropped, and with it model and tools.
        let ended = tokio::select! {
            biased;
            status = cx.ended() => {
                Err(RuntimeError::ended(status, "the caller stopped the generation"))
            }
            ended = self.turns() => ended,
        };
        match ended {
            Ok(finish) => Ok(self.into_response(finish)),
            Err(error) => Err(self.into_error(error)),
        }
    }

    /// Resumes where there is something to resume, then asks the model until it needs no tools.
    async fn turns(&mut self) -> Result<AgentFinishReason, RuntimeError> {
        if self.messages.is_empty() {
            return Err(RuntimeError::InvalidArgument(
                "there is nothing to generate from: give a prompt or messages".into(),
            ));
        }
        let resume = &self.request.resume;
        if !(resume.respond.is_empty() && resume.restart.is_empty())
            && let Some(interrupted) = self.take_up().await?
        {
            return Ok(interrupted);
        }
        let mut rounds = 0;
        loop {
            let reply = self.ask().await?;
            let finish = reply.finish;
            if reply.tool_calls.is_empty() || finish == ModelFinish::Blocked {
                self.messages.push(Arc::new(final_message(reply)));
                return Ok(finish.into());
            }
            if rounds >= self.request.max_turns {
                let turns = self.request.max_turns;
                return Err(RuntimeError::LimitReached(format!(
                    "the model asks for tools again after {turns} rounds, the most that are allowed"
                )));
            }
            rounds += 1;
            if let Some(interrupted) = self.answer(reply).await? {
                return Ok(interrupted);
            }
        }
    }

    /// Asks the model once.
    async fn ask(&mut self) -> Result<ModelReply, RuntimeError> {
        self.reached_model = true;
        let model = self.request.model.clone();
        let silence = self.request.model_timeout;
        let request = self.model_request();
        let mut stream = audible(&*model, silence, model.generate(request)).await??;
        let mut reply = ReplyBuilder::default();
        loop {
            let Some(chunk) = audible(&*model, silence, stream.next()).await? else {
                return Err(ModelError::cut_off(model.name()).into());
            };
            let chunk = chunk?;
            if let Some(part) = streamed(&chunk) {
                self.send(Role::Model, vec![part]).await;
            }
            let named = |error: ModelError| ModelError { model: model.name().into(), ..error };
            if let Some(reply) = reply.add(chunk).map_err(named)? {
                self.add_usage(reply.usage);
                return Ok(reply);
            }
        }
    }

    fn model_request(&self) -> ModelRequest {
        let system = self.messages.iter().take_while(|message| message.role == Role::System);
        let (system, rest) = self.messages.split_at(system.count());
        let instructions: Vec<_> = system.iter().map(|message| message.joined_text()).collect();
        let mut request = ModelRequest::new(unanswered::answered(rest));
        request.instructions = (!instructions.is_empty()).then(|| instructions.join("\n\n"));
        request.tools = self.definitions.clone();
        let called = self.messages.last().is_some_and(|last| last.role == Role::Tool);
        request.tool_choice = match self.request.tool_choice {
            // It has called one, and would never come to an end.
            ToolChoice::Required if called => ToolChoice::Auto,
            choice => choice,
        };
        request.config = self.request.config.clone();
        request.output_schema = self.request.output_schema.clone();
        request.max_output_tokens = self.request.max_output_tokens;
        request.locale = self.request.locale.clone();
        request
    }

    /// Runs the tools of a reply and adds both to the conversation; why it ended, where a tool
    /// interrupted.
    async fn answer(
        &mut self,
        reply: ModelReply,
    ) -> Result<Option<AgentFinishReason>, RuntimeError> {
        let round = Round::of_reply(reply);
        let (message, responses) = match self.run_calls(round).await? {
            RoundEnd::Finished { message, responses } => (message, responses),
            RoundEnd::Interrupted { message, interrupts } => {
                self.messages.push(Arc::new(message));
                self.send_interrupts(interrupts).await;
                return Ok(Some(AgentFinishReason::Interrupted));
            }
        };
        self.messages.push(Arc::new(message));
        self.send(Role::Tool, responses.clone()).await;
        self.messages.push(Arc::new(Message::new(Role::Tool, responses)));
        Ok(None)
    }

    /// Streams parts of the message that is being made.
    pub(super) async fn send(&mut self, role: Role, content: Vec<Part>) {
        let chunk = ModelResponseChunk { role: Some(role), content, ..Default::default() };
        self.chunks.send(chunk).await;
    }

    /// Streams what a tool sends of itself.
    pub(super) async fn send_chunk(&mut self, chunk: ModelResponseChunk) {
        self.chunks.send(chunk).await;
    }

    /// Streams the requests that wait; they are no message of their own and have no index.
    pub(super) async fn send_interrupts(&self, content: Vec<Part>) {
        let role = Some(Role::Tool);
        self.chunks.pass(ModelResponseChunk { role, content, ..Default::default() }).await;
    }

    /// Whether somebody streams.
    pub(super) fn is_streaming(&self) -> bool {
        self.chunks.sender.is_some()
    }

    fn add_usage(&mut self, usage: Option<Usage>) {
        if let Some(usage) = usage {
            self.usage.get_or_insert_default().add(&usage);
        }
    }

    fn into_response(self, finish_reason: AgentFinishReason) -> GenerateResponse {
        // An interrupted resume makes no message, it changes the last one.
        let from = match finish_reason {
            AgentFinishReason::Interrupted => self.messages.len().saturating_sub(1),
            _ => self.asked,
        };
        let made = self.messages.iter().skip(from);
        let message = made.rev().find(|message| message.role == Role::Model).cloned();
        let Self { messages, asked, usage, .. } = self;
        GenerateResponse { message, finish_reason, usage, messages, asked }
    }

    fn into_error(self, error: RuntimeError) -> GenerateError {
        let mut error = GenerateError::from(error);
        if self.reached_model {
            let finish_reason = match error.is_stop() {
                true => AgentFinishReason::Aborted,
                false => AgentFinishReason::Failed,
            };
            error.response = Some(Box::new(self.into_response(finish_reason)));
        }
        error
    }
}

/// Counts the messages of the turn by who speaks.
struct Chunks {
    sender: Option<mpsc::Sender<ModelResponseChunk>>,
    last: Option<(Role, u32)>,
}

impl Chunks {
    async fn send(&mut self, mut chunk: ModelResponseChunk) {
        let role = chunk.role.unwrap_or(Role::Model);
        let index = match self.last {
            None => 0,
            Some((last, index)) if last == role => index,
            Some((_, index)) => index + 1,
        };
        self.last = Some((role, index));
        chunk.index.get_or_insert(index);
        self.pass(chunk).await;
    }

    async fn pass(&self, chunk: ModelResponseChunk) {
        if let Some(sender) = &self.sender {
            // Whoever dropped the stream has dropped this as well.
            let _ = sender.send(chunk).await;
        }
    }
}

/// What of a model, unless it is silent for too long.
async fn audible<T>(
    model: &dyn crate::Model,
    silence: std::time::Duration,
    next: impl Future<Output = T>,
) -> Result<T, ModelError> {
    tokio::time::timeout(silence, next).await.map_err(|_| {
        let text = format!("it was silent for {} s", silence.as_secs());
        ModelError::new(model.name(), Status::DeadlineExceeded, text)
    })
}

/// What is told of a chunk of the model at once.
fn streamed(chunk: &ModelChunk) -> Option<Part> {
    match chunk {
        ModelChunk::Text(text) => Some(Part::text(text)),
        ModelChunk::Reasoning(text) => Some(Part::reasoning(text)),
        ModelChunk::ToolCall(call) => Some(request_part(call)),
        ModelChunk::Part(part) => Some(Part::clone(part)),
        ModelChunk::Whole(_) | ModelChunk::Done { .. } => None,
    }
}

/// The last message. Calls in it, of a reply that a filter stopped, do not run and would wait for
/// ever.
fn final_message(mut reply: ModelReply) -> Message {
    reply.content.retain(|part| part.as_tool_request().is_none());
    reply.into_message()
}
