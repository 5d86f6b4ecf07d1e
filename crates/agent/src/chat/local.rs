//! What a chat knows of its conversation.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    RuntimeError,
    message::{Message, Messages},
    patch::{JsonPatch, apply_patch},
    protocol::{AgentInit, AgentOutput, AgentStateManagement},
    session::State,
    state::{AgentFinishReason, Artifact, SessionSnapshot, SessionState, add_artifact},
};

/// What a chat knows of its conversation. Clones share all that is large.
#[derive(Clone, Default)]
pub(super) struct Local {
    /// What the caller wanted to start from, until a turn came of it.
    first: Option<Result<AgentInit, RuntimeError>>,
    pub(super) snapshot_id: Option<Arc<str>>,
    pub(super) session_id: Option<Arc<str>>,
    pub(super) messages: Messages,
    pub(super) artifacts: Vec<Arc<Artifact>>,
    pub(super) custom: Option<Arc<Value>>,
    /// The state that travels, where the agent keeps none.
    travelling: Option<SessionState>,
    /// What was said and produced may be less than what the snapshot holds.
    pub(super) stale: bool,
}

impl Local {
    /// At the beginning of a chat.
    pub(super) fn starting_from<S: State>(init: AgentInit<S>) -> Self {
        let init = encoded(init);
        let mut local = Self::default();
        if let Ok(init) = &init {
            if let Some(state) = init.state.clone() {
                local.hydrate(state);
            }
            local.snapshot_id = init.snapshot_id.clone();
            local.session_id = init.session_id.clone().or(local.session_id.take());
        }
        local.first = Some(init);
        local
    }

    /// With all that a snapshot holds.
    pub(super) fn loaded(snapshot: SessionSnapshot) -> Self {
        let mut local = Self::default();
        local.load(snapshot);
        local
    }

    /// Takes over what a snapshot holds. Without a state, as while work is pending, what was known
    /// before stays.
    pub(super) fn load(&mut self, snapshot: SessionSnapshot) {
        let settled = snapshot.status().is_terminal();
        self.snapshot_id = Some(snapshot.snapshot_id);
        self.stale = !(settled && snapshot.state.is_some());
        if let Some(state) = snapshot.state {
            self.hydrate(state);
            self.travelling = None;
        }
        self.session_id = snapshot.session_id.or(self.session_id.take());
    }

    /// Where the next turn starts from.
    pub(super) fn init(
        &self,
        management: Option<AgentStateManagement>,
    ) -> Result<AgentInit, RuntimeError> {
        if let Some(first) = &self.first {
            return first.clone();
        }
        let travels = match management {
            Some(AgentStateManagement::Client) => true,
            Some(AgentStateManagement::Server) => false,
            None => self.travelling.is_some(),
        };
        Ok(match (&self.snapshot_id, &self.session_id) {
            _ if travels => AgentInit { state: self.travelling.clone(), ..AgentInit::default() },
            (Some(snapshot_id), _) => {
                AgentInit { snapshot_id: Some(snapshot_id.clone()), ..AgentInit::default() }
            }
            (None, session_id) => {
                AgentInit { session_id: session_id.clone(), ..AgentInit::default() }
            }
        })
    }

    /// Applies what streamed of the custom state.
    pub(super) fn patch(&mut self, patch: &JsonPatch) {
        let custom = self.custom.as_deref().unwrap_or(&Value::Null);
        match apply_patch(custom, patch) {
            Ok(custom) => self.custom = Some(Arc::new(custom)),
            // The next turn begins with the whole state again.
            Err(error) => tracing::warn!(%error, "a patch of the custom state does not apply"),
        }
    }

    /// Takes over what a turn that went well ended with. `said` is the user's message, where it was
    /// not added yet.
    pub(super) fn complete(&mut self, output: &AgentOutput, said: Option<Arc<Message>>) {
        self.take_ids(output);
        if output.finish_reason == Some(AgentFinishReason::Detached) {
            self.stale = true;
            return;
        }
        if let Some(state) = &output.state {
            self.hydrate(state.clone());
            return;
        }
        self.messages.extend(said);
        self.messages.extend(output.message.clone());
        for artifact in &output.artifacts {
            // Those without a name have streamed before and would be there twice.
            if !self.artifacts.contains(artifact) {
                add_artifact(&mut self.artifacts, artifact.clone());
            }
        }
    }

    /// Takes over where to go on from after a turn that did not go well. Everything else must have
    /// been put back before. Says whether that is another snapshot than before, which may hold more
    /// than is known here.
    pub(super) fn resume_from(&mut self, output: &AgentOutput) -> bool {
        let before = self.snapshot_id.clone();
        self.take_ids(output);
        if let Some(state) = &output.state {
            self.hydrate(state.clone());
            return false;
        }
        self.stale |= self.snapshot_id != before;
        self.snapshot_id != before
    }

    fn take_ids(&mut self, output: &AgentOutput) {
        if output.session_id.is_some() || output.snapshot_id.is_some() || output.state.is_some() {
            self.first = None;
        }
        self.session_id = output.session_id.clone().or(self.session_id.take());
        self.snapshot_id = output.snapshot_id.clone().or(self.snapshot_id.take());
    }

    fn hydrate(&mut self, state: SessionState) {
        self.session_id = state.session_id.clone().or(self.session_id.take());
        self.messages = state.messages.clone();
        self.artifacts = state.artifacts.clone();
        self.custom = state.custom.clone().map(Arc::new);
        self.travelling = Some(state);
    }
}

/// The start with the custom state as JSON.
fn encoded<S: State>(init: AgentInit<S>) -> Result<AgentInit, RuntimeError> {
    let AgentInit { session_id, snapshot_id, state } = init;
    let encode = |mut state: SessionState<S>| {
        let custom = state.custom.take().map(serde_json::to_value).transpose();
        let custom = custom.map_err(|error| {
            RuntimeError::InvalidArgument(format!("the custom state is no JSON: {error}"))
        })?;
        Ok::<_, RuntimeError>(state.with_custom(custom))
    };
    Ok(AgentInit { session_id, snapshot_id, state: state.map(encode).transpose()? })
}
