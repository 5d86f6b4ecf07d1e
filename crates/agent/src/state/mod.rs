//! What a conversation is between its turns, and its snapshots.
//!
//! The JSON is that of Genkit's agents. Members of a state that are not known here are kept.

mod artifact;
mod finish;
mod snapshot;

use std::sync::Arc;

use antiphon_types::JsonObject;
use serde_json::Value;

pub use self::{
    artifact::{Artifact, add_artifact},
    finish::AgentFinishReason,
    snapshot::{AgentErrorDetails, SessionSnapshot, SnapshotStatus},
};
use crate::{message::Messages, wire_object::wire_object};

/// All that is needed to go on with a conversation. `C` is the custom state: any type of the host's,
/// or raw JSON where it is not known.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionState<C = Value> {
    /// The session that it is a state of.
    pub session_id: Option<Arc<str>>,
    /// The conversation, without the messages of prompts, which are rendered anew for each turn.
    pub messages: Messages,
    /// The host's own state; `None` where it was never set.
    pub custom: Option<C>,
    /// What the conversation produced.
    pub artifacts: Vec<Arc<Artifact>>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(SessionState<C> {
    custom: optional "custom",
    artifacts: list "artifacts",
    messages: list "messages",
    session_id: optional "sessionId",
});

impl<C> Default for SessionState<C> {
    fn default() -> Self {
        Self {
            session_id: None,
            messages: Messages::new(),
            custom: None,
            artifacts: Vec::new(),
            extra: JsonObject::new(),
        }
    }
}

impl<C> SessionState<C> {
    /// The same with another custom state.
    pub fn with_custom<D>(self, custom: Option<D>) -> SessionState<D> {
        let Self { session_id, messages, artifacts, extra, custom: _ } = self;
        SessionState { session_id, messages, custom, artifacts, extra }
    }
}
