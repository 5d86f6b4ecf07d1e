//! What a host can hang into a session.

use std::sync::Arc;

use antiphon_agent::{Memory, Receipt, ToolRegistry};
use antiphon_types::{AudioFrame, JsonObject, ToolCall, ToolResponse};
use async_trait::async_trait;
use serde_json::Value;

use super::{AgentSession, EndReason, HostPrompt, SessionState};

/// What every lifecycle hook is given.
#[derive(Clone)]
#[non_exhaustive]
pub struct SessionContext {
    /// The session's id.
    pub session_id: Arc<str>,
    /// The session's memory; keys are prefixed with the session's id.
    pub memory: Arc<dyn Memory>,
    /// The tools.
    pub registry: Arc<ToolRegistry>,
    /// The session itself.
    pub session: AgentSession,
    /// In `on_tool_result`: where the policy's [witness](antiphon_agent::witness) wrote the outcome
    /// down.
    pub receipt: Option<Receipt>,
}

/// The reason of a denied call, for the host's records; the model is told a fixed text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DeniedCall(pub String);

/// Hooks over the life of a session.
///
/// `authorize_tool_call` is synchronous, runs before anyone else sees the call, beside the audio
/// path and under a deadline. `on_tool_call` and `on_tool_result` run on the call's task; the
/// others in event order on one task with a bounded queue. All may call the session.
#[async_trait]
#[allow(unused_variables)] // defaults ignore what they are told; the names are the documentation
pub trait LifecycleHooks: Send + Sync + 'static {
    /// The session runs; before any other event.
    async fn on_session_start(&self, cx: &SessionContext) {}
    /// The user's whole message.
    async fn on_user_message(&self, cx: &SessionContext, text: &str) {}
    /// Decides over a call. Returns exactly the arguments that the tool is to receive.
    fn authorize_tool_call(
        &self,
        cx: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        Ok(call.args.clone())
    }
    /// An authorised call is about to run.
    async fn on_tool_call(&self, cx: &SessionContext, call: &ToolCall) {}
    /// An authorised call has its output; before that is sent.
    async fn on_tool_result(&self, cx: &SessionContext, call: &ToolCall, response: &ToolResponse) {}
    /// A call waits for a person. `key` is what [`AgentSession::approve`] and
    /// [`AgentSession::deny`] take, now or later, from here or elsewhere; `question` is what the
    /// person is told. Other hooks wait until this one is done, so whoever asks somebody leaves that to a
    /// task.
    async fn on_approval_requested(
        &self,
        cx: &SessionContext,
        key: &str,
        call: &ToolCall,
        question: &Value,
    ) {
    }
    /// The agent's whole message.
    async fn on_agent_message(&self, cx: &SessionContext, text: &str, interrupted: bool) {}
    /// The session is over; after any other hook, exactly once.
    async fn on_session_end(&self, cx: &SessionContext, reason: &EndReason) {}
}

/// No hooks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;
impl LifecycleHooks for NoHooks {}

/// Realtime events as they happen. Synchronous; called in order on the session's hook task, never
/// under a lock. Three have their own place: `on_tool_call` is called on the call's task, and where
/// the session has no sink, `on_audio` and `on_interrupted` are called in order on a task of their
/// own. On a multi-threaded runtime one that blocks its thread holds up nothing else; on a
/// single-threaded one it holds up everything, audio included.
#[allow(unused_variables)] // as above
pub trait Callbacks: Send + Sync + 'static {
    /// The state changed.
    fn on_state_change(&self, state: SessionState) {}
    /// The agent's voice, where the session has no sink. Frames come as fast as the provider sends
    /// them, in its format; on [`Callbacks::on_interrupted`] forget what was not played.
    fn on_audio(&self, frame: &AudioFrame) {}
    /// The agent's written words: all of the reply so far.
    fn on_text(&self, text: &str) {}
    /// What the user said: all of the utterance so far. `done`: no more comes.
    fn on_input_transcript(&self, text: &str, done: bool) {}
    /// What the agent says: all of the reply so far. `done`: no more comes.
    fn on_output_transcript(&self, text: &str, done: bool) {}
    /// The model asks for a tool; after authorisation, before the tool runs: the tool waits until
    /// this returns.
    fn on_tool_call(&self, call: &ToolCall) {}
    /// The model takes calls back.
    fn on_tool_call_cancellation(&self, ids: &[Arc<str>]) {}
    /// A prompt of the session's own. `false` on [`super::HostPromptStage::Started`] vetoes it.
    fn on_host_prompt(&self, prompt: &HostPrompt) -> bool {
        true
    }
    /// The reply was stopped.
    fn on_interrupted(&self) {}
    /// Something went wrong.
    fn on_error(&self, kind: &str, message: &str) {}
    /// The session is over.
    fn on_session_end(&self, reason: &EndReason) {}
}

/// No callbacks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallbacks;
impl Callbacks for NoCallbacks {}
