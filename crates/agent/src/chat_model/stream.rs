//! What a server answers, in the words of [`Model`](crate::Model).

use std::{collections::HashSet, sync::Arc};

use antiphon_types::{Status, ToolArguments, ToolCallRequest, Usage};
use futures_util::StreamExt;
use genai::chat::{ChatStream, ChatStreamEvent, StopReason, StreamEnd, ToolCall};
use serde_json::Value;
use uuid::Uuid;

use super::{error, request::Kept};
use crate::{ModelChunk, ModelError, ModelFinish, ModelStream};

/// The chunks of an answer.
pub(super) fn model_stream(model: Arc<str>, events: ChatStream) -> ModelStream {
    let state = Some((model, events, false));
    let chunks = futures_util::stream::unfold(state, move |state| async move {
        let (model, mut events, said) = state?;
        let failed = |error: ModelError| Some((vec![Err(error)], None));
        match next(&mut events).await {
            Some(Ok(Next::Chunk(chunk))) => {
                let said = said || matches!(chunk, ModelChunk::Text(_));
                Some((vec![Ok(chunk)], Some((model, events, said))))
            }
            Some(Ok(Next::End(end))) => {
                let chunks = last_chunks(end, said).into_iter().map(Ok).collect();
                Some((chunks, None))
            }
            Some(Err(cause)) => failed(error::model_error(&model, &cause)),
            None => failed(ModelError::new(model, Status::Unavailable, "the answer was cut off")),
        }
    });
    Box::pin(chunks.flat_map(futures_util::stream::iter))
}

enum Next {
    Chunk(ModelChunk),
    End(StreamEnd),
}

/// The next event that says something.
async fn next(events: &mut ChatStream) -> Option<genai::Result<Next>> {
    loop {
        let event = match events.next().await? {
            Ok(event) => event,
            Err(error) => return Some(Err(error)),
        };
        let chunk = match event {
            ChatStreamEvent::Chunk(chunk) if chunk.content.is_empty() => continue,
            ChatStreamEvent::Chunk(chunk) => ModelChunk::Text(chunk.content),
            ChatStreamEvent::ReasoningChunk(chunk) if chunk.content.is_empty() => continue,
            ChatStreamEvent::ReasoningChunk(chunk) => ModelChunk::Reasoning(chunk.content),
            ChatStreamEvent::End(end) => return Some(Ok(Next::End(end))),
            // Calls are whole only at the end.
            _ => continue,
        };
        return Some(Ok(Next::Chunk(chunk)));
    }
}

/// What is known only at the end: text that no chunk held, calls, and why it is the end.
fn last_chunks(end: StreamEnd, said: bool) -> Vec<ModelChunk> {
    let mut chunks = Vec::new();
    let content = end.captured_content.unwrap_or_default();
    let kept = Kept::of(&content);
    if !said && let Some(text) = content.joined_texts().filter(|text| !text.is_empty()) {
        chunks.push(ModelChunk::Text(text));
    }
    let mut ids = HashSet::new();
    for call in content.tool_calls() {
        chunks.push(ModelChunk::ToolCall(tool_call(call, &mut ids)));
    }
    let reason = match end.captured_stop_reason {
        Some(StopReason::MaxTokens(_)) => ModelFinish::Length,
        Some(StopReason::ContentFilter(_)) => ModelFinish::Blocked,
        Some(StopReason::Other(_)) => ModelFinish::Other,
        Some(_) => ModelFinish::Stop,
        None => ModelFinish::Unknown,
    };
    chunks.push(ModelChunk::Done {
        reason,
        usage: end.captured_usage.map(|counted| usage(&counted)),
        metadata: kept.into_metadata(),
    });
    chunks
}

/// The call; where the server gave an id twice, with one of ours.
fn tool_call(call: &ToolCall, ids: &mut HashSet<String>) -> ToolCallRequest {
    let mut id = call.call_id.clone();
    if !id.is_empty() && !ids.insert(id.clone()) {
        id = format!("call_{}", Uuid::new_v4().simple());
    }
    let arguments = match &call.fn_arguments {
        Value::Object(object) => ToolArguments::Object(object.clone()),
        Value::Null => ToolArguments::Object(Default::default()),
        Value::String(text) if text.trim().is_empty() => ToolArguments::Object(Default::default()),
        Value::String(text) => ToolArguments::Json(text.clone()),
        other => ToolArguments::Json(other.to_string()),
    };
    ToolCallRequest { id: id.into(), name: call.fn_name.as_str().into(), arguments }
}

fn usage(counted: &genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| tokens.try_into().ok()).unwrap_or(0);
    let mut usage = Usage::default();
    usage.input_text_tokens = count(counted.prompt_tokens);
    usage.output_text_tokens = count(counted.completion_tokens);
    let details = counted.prompt_tokens_details.as_ref();
    usage.cached_tokens = count(details.and_then(|details| details.cached_tokens));
    usage
}
