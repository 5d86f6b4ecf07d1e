//! What a call needs to run.

use std::{sync::Arc, time::Duration};

use antiphon_types::JsonObject;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    InvocationContext, Memory, ModelResponseChunk,
    ledger::{CallRecord, Hold},
    tool::ToolStream,
};

/// What [`ToolExecutor::run`](crate::ToolExecutor::run) needs beside the call.
#[derive(Clone)]
#[non_exhaustive]
pub struct RunContext {
    /// The session.
    pub session_id: Arc<str>,
    /// The number of the user's turn, from 1.
    pub turn: u64,
    /// The session's memory; keys are prefixed with the session's id.
    pub memory: Arc<dyn Memory>,
    /// Cancels the call.
    pub cancelled: CancellationToken,
    /// Who calls, and what the host hands along. Its own deadline and cancellation do not end the
    /// call: `cancelled` does.
    pub invocation: InvocationContext,
    /// The call waited since it was admitted: the policy looks at it once more before it runs. Default: it did
    /// not, as far as the executor does not see that itself.
    pub waited: bool,
    /// The answer to the interrupt of an earlier run of this call: an object, or `true`.
    pub resumed: Option<Value>,
    /// The model's input, where the call is run again with another.
    pub original_input: Option<Value>,
    pub(crate) stream: Option<ToolStream>,
    pub(crate) cuts_outputs: bool,
    /// Beside what the tool may give.
    pub(crate) max_output_bytes: usize,
    pub(crate) parking: Option<Parking>,
    /// Also where the tool itself asks.
    pub(crate) parks_interrupts: bool,
    /// The record of a call that waited for a person and may run.
    pub(crate) claimed: Option<Claimed>,
}

/// A call that waited for a person and may run.
#[derive(Clone)]
pub(crate) struct Claimed {
    pub(crate) record: CallRecord,
    /// This process works on it.
    pub(crate) hold: Arc<Hold>,
}

impl Claimed {
    /// Whether the caller confirmed it before it waited.
    pub(crate) fn confirmed(&self) -> bool {
        self.record.approval.as_ref().is_some_and(|approval| approval.confirmed)
    }
}

/// How a call waits for a person while the conversation goes on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Parking {
    /// The output that the model is given meanwhile.
    pub waiting: JsonObject,
    /// A call that nobody decides over ends after so long; `None`: it does not. Default: 24 hours.
    pub expires_after: Option<Duration>,
    /// For how long from then on whoever has it parked is sure to tell the outcome. Default: not at
    /// all.
    pub attended: Option<Duration>,
    /// The agent that asks for it, where the conversation was handed over to another than the one whose
    /// session it is. Default: none was.
    pub speaker: Option<Arc<str>>,
    /// The caller whose memory the tool sees, where it is not that of the session. Default: it is.
    pub memory_of: Option<Arc<str>>,
}

impl Parking {
    /// With this text for the model meanwhile.
    pub fn new(text: impl Into<String>) -> Self {
        let text: String = text.into();
        let waiting = [("status", "waiting_for_approval".to_owned()), ("message", text)];
        Self {
            waiting: waiting
                .into_iter()
                .map(|(name, text)| (name.to_owned(), text.into()))
                .collect(),
            expires_after: Some(Duration::from_secs(24 * 60 * 60)),
            attended: None,
            speaker: None,
            memory_of: None,
        }
    }
}

impl Default for Parking {
    fn default() -> Self {
        Self::new(
            "This call has not been made. It waits for a person's approval. Tell the user so, and \
             go on; you will be told how it ended.",
        )
    }
}

impl RunContext {
    /// A context for a call that `cancelled` cancels.
    pub fn new(
        session_id: impl Into<Arc<str>>,
        turn: u64,
        memory: Arc<dyn Memory>,
        cancelled: CancellationToken,
    ) -> Self {
        Self {
            session_id: session_id.into(),
            turn,
            memory,
            cancelled,
            invocation: InvocationContext::default(),
            waited: false,
            resumed: None,
            original_input: None,
            stream: None,
            cuts_outputs: false,
            max_output_bytes: usize::MAX,
            parking: None,
            parks_interrupts: false,
            claimed: None,
        }
    }

    /// A call that has to wait for a person does so apart from the conversation, which goes on: its
    /// output says so, and [`Executed::approval`](crate::Executed::approval) is its record in the agent's store. Where that keeps
    /// no [account](crate::ledger) nothing is parked, and the output is that of
    /// [`Outcome::Paused`](crate::Outcome::Paused).
    pub fn parking(mut self, parking: Parking) -> Self {
        self.parking = Some(parking);
        self.parks_interrupts = true;
        self
    }

    /// As [`RunContext::parking`], but where the tool itself asks its call is interrupted, as it is
    /// in writing.
    pub(crate) fn parking_asked(mut self, parking: Parking) -> Self {
        self.parking = Some(parking);
        self
    }

    /// An output that is too large is cut, marked and given to the model instead of an error;
    /// [`Executed::whole`](crate::Executed::whole) is all of it.
    pub fn cut_outputs(mut self) -> Self {
        self.cuts_outputs = true;
        self
    }

    /// [`RunContext::cut_outputs`], where no output may have more than so many bytes of JSON text,
    /// whatever its tool may give.
    pub fn cut_outputs_at(mut self, max_bytes: usize) -> Self {
        self.max_output_bytes = max_bytes;
        self.cut_outputs()
    }

    /// Sets who calls, and what the host hands along.
    pub fn with_invocation(mut self, invocation: InvocationContext) -> Self {
        self.invocation = invocation;
        self
    }

    /// Sets where the tool's progress goes: as parts of the call `reference`, its `ref` in the
    /// model's message. The tool waits where the channel is full.
    pub fn with_stream(
        mut self,
        chunks: mpsc::Sender<ModelResponseChunk>,
        reference: Option<Arc<str>>,
    ) -> Self {
        self.stream = Some(ToolStream { chunks, reference });
        self
    }
}
