//! The host's policy over tool calls.

use std::{fmt, sync::Arc};

use antiphon_types::{JsonObject, ToolCall};

use crate::{
    InvocationContext, Memory,
    witness::{DecisionPoint, RateLimit, Witness},
};

/// The host's policy. Synchronous for its author; a session calls it on a blocking lane beside the
/// audio path with a deadline, after which the call is denied. An authoriser that panics denies.
pub trait Authorizer: Send + Sync + 'static {
    /// Decides over one call with the model's arguments, before anyone else sees it.
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict;

    /// The verdict with the names of the policies that came to it, for records. Whoever asks another
    /// authoriser in turn hands on what that says.
    fn judge(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        self.authorize_tool_call(cx, call).into()
    }

    /// Who remembers the decisions over calls. Whoever asks another authoriser in turn hands on its
    /// witness; see [`together`](crate::witness::together).
    fn witness(&self) -> Option<Arc<dyn Witness>> {
        None
    }
}

/// A verdict, and who came to it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// The policies that came to it, by name. Empty: one that has none.
    pub policies: Vec<Arc<str>>,
}

impl Judgement {
    /// A verdict of these policies.
    pub fn new(verdict: Verdict, policies: Vec<Arc<str>>) -> Self {
        Self { verdict, policies }
    }
}

impl From<Verdict> for Judgement {
    fn from(verdict: Verdict) -> Self {
        Self { verdict, policies: Vec::new() }
    }
}

impl<F> Authorizer for F
where
    F: Fn(&CallContext, &ToolCall) -> Verdict + Send + Sync + 'static,
{
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        self(cx, call)
    }
}

/// The policy's answer to a tool call.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Run it with the model's arguments.
    Allow,
    /// Run it with exactly these arguments.
    AllowWith(JsonObject),
    /// Do not run it.
    Deny(Denial),
    /// Read the call back to the user in these words; the user's next turn decides. Once
    /// confirmed, the call is authorised again with [`CallContext::confirmed`] set; asking again in
    /// the same words then allows it with the model's arguments.
    Confirm {
        /// The words, as a question.
        read_back: String,
    },
    /// A person other than the caller decides: the call waits, and does not run before. Once it is
    /// approved it is authorised again with [`CallContext::approved`] set; asking again then allows it
    /// with the arguments that were approved. Both by voice and in writing the call has a record in the
    /// store of the agent, by which it is decided over from anywhere: see [`approval`](crate::approval).
    /// In writing it also ends the turn as an interrupt does, `{"reason": reason}`, and a turn that
    /// resumes it approves it; without such a store that is the only way, and the interrupt is
    /// `{"ask": reason}`.
    Ask {
        /// What the person is told.
        reason: String,
    },
    /// Do not run it now: too much was done lately.
    RateLimited(RateLimit),
}

/// Why a call is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Denial {
    /// What the model is told. `None`: a fixed text that discloses nothing.
    pub to_model: Option<String>,
    /// What the host's records say.
    pub reason: String,
}

impl Denial {
    /// A denial whose reason stays with the host.
    pub fn private(reason: impl Into<String>) -> Self {
        Self { to_model: None, reason: reason.into() }
    }

    /// A denial that the model is told in these words.
    pub fn told(reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self { to_model: Some(reason.clone()), reason }
    }
}

/// What a policy sees beside the call.
#[derive(Clone)]
#[non_exhaustive]
pub struct CallContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The session's memory; keys are prefixed with the session's id.
    pub memory: Arc<dyn Memory>,
    /// The user confirmed this very call after it was read back.
    pub confirmed: bool,
    /// A person approved this very call.
    pub approved: bool,
    /// Who did, where it is known.
    pub approved_by: Option<Arc<str>>,
    /// The call was authorised before and then waited, for a free slot or for a person; it is
    /// authorised again right before it starts.
    pub waited: bool,
    /// The provider runs it itself, such as a tool of an MCP server that it reaches, and asks whether it may:
    /// no other arguments can be put in the place of its own.
    pub by_provider: bool,
    /// Who calls, what the host hands along, and, within an agent, the session and the turn.
    pub invocation: InvocationContext,
}

impl CallContext {
    /// A context for a call that was not read back.
    pub fn new(session_id: impl Into<Arc<str>>, turn: u64, memory: Arc<dyn Memory>) -> Self {
        Self {
            session_id: session_id.into(),
            turn,
            memory,
            confirmed: false,
            approved: false,
            approved_by: None,
            waited: false,
            by_provider: false,
            invocation: InvocationContext::default(),
        }
    }

    /// When the call is judged.
    pub fn point(&self) -> DecisionPoint {
        if self.waited { DecisionPoint::Start } else { DecisionPoint::Proposed }
    }

    /// The same, after the user's confirmation.
    pub fn confirmed(mut self) -> Self {
        self.confirmed = true;
        self
    }
}

impl fmt::Debug for CallContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallContext")
            .field("session_id", &self.session_id)
            .field("turn", &self.turn)
            .field("confirmed", &self.confirmed)
            .field("approved", &self.approved)
            .field("waited", &self.waited)
            .finish_non_exhaustive()
    }
}
