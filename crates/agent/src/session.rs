//! A running conversation.

use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    RuntimeError,
    message::{Message, Messages},
    state::{Artifact, SessionState, add_artifact},
};

/// The custom state of an agent's sessions: any type that travels as JSON. Where it was never set it
/// is its default.
pub trait State: Serialize + DeserializeOwned + Clone + Default + Send + Sync + 'static {}

impl<T: Serialize + DeserializeOwned + Clone + Default + Send + Sync + 'static> State for T {}

/// The artifacts of a session, whatever its custom state is.
pub trait ArtifactStore: Send + Sync {
    /// All artifacts at this moment.
    fn artifacts(&self) -> Vec<Arc<Artifact>>;

    /// Adds artifacts, each in the place of the one of its name.
    fn add_artifacts(&self, artifacts: Vec<Artifact>);
}

/// A running session, whatever its custom state is.
pub trait SessionAccess: ArtifactStore {
    /// The session's id; it does not change.
    fn session_id(&self) -> Arc<str>;

    /// The conversation at this moment.
    fn messages(&self) -> Messages;

    /// Appends messages.
    fn add_messages(&self, messages: Vec<Message>);

    /// The custom state as JSON; `null` where it was never set.
    fn custom_json(&self) -> Value;

    /// Changes the custom state as JSON. `update` may be called again where another change came
    /// between. Errs where what it leaves is no custom state of this session; nothing changes then.
    fn update_custom_json(&self, update: &mut dyn FnMut(&mut Value)) -> Result<(), RuntimeError>;

    /// For [`typed`](#method.typed).
    fn as_any(&self) -> &dyn Any;
}

impl dyn SessionAccess {
    /// The session with its type; `None` where its custom state is of another.
    pub fn typed<S: State>(&self) -> Option<&Session<S>> {
        self.as_any().downcast_ref()
    }
}

/// A running conversation: messages, custom state, artifacts. All changes are atomic, and no lock is
/// held while a callback runs: it may use the session.
pub struct Session<S: State> {
    id: Arc<str>,
    live: Mutex<Live<S>>,
    observer: Option<Box<dyn SessionObserver<S>>>,
}

/// Told of changes after they were made, outside of all locks. Changes made at the same time may be
/// told in another order: the state's versions say which came last.
pub(crate) trait SessionObserver<S: State>: Send + Sync {
    /// The custom state changed.
    fn custom_changed(&self, session: &Session<S>);

    /// This artifact was added or took another's place.
    fn artifact_added(&self, artifact: &Arc<Artifact>);
}

struct Live<S> {
    state: SessionState<S>,
    /// Counts the changes of each member.
    versions: Versions,
}

/// How often each member of a session was changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) messages: u64,
    pub(crate) custom: u64,
    pub(crate) artifacts: u64,
}

impl<S: State> Session<S> {
    /// A session of its own, outside of any agent.
    pub fn new(id: impl Into<Arc<str>>, state: SessionState<S>) -> Self {
        let id = id.into();
        let state = SessionState { session_id: Some(id.clone()), ..state };
        let live = Mutex::new(Live { state, versions: Versions::default() });
        Self { id, live, observer: None }
    }

    pub(crate) fn observed(mut self, observer: impl SessionObserver<S> + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// The session's id; it does not change.
    pub fn session_id(&self) -> &Arc<str> {
        &self.id
    }

    /// A copy of the whole state.
    pub fn state(&self) -> SessionState<S> {
        self.lock().state.clone()
    }

    /// The conversation at this moment.
    pub fn messages(&self) -> Messages {
        self.lock().state.messages.clone()
    }

    /// Appends messages.
    pub fn add_messages(&self, messages: impl IntoIterator<Item = Message>) {
        // The caller's iterator runs before the lock is taken.
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        let mut live = self.lock();
        live.state.messages.extend(messages);
        live.versions.messages += 1;
    }

    /// Replaces the conversation.
    pub fn set_messages(&self, messages: Messages) {
        let mut live = self.lock();
        live.state.messages = messages;
        live.versions.messages += 1;
    }

    /// Changes the conversation. `update` is called again where another change came between.
    pub fn update_messages(&self, mut update: impl FnMut(Messages) -> Messages) {
        loop {
            let (before, version) = {
                let live = self.lock();
                (live.state.messages.clone(), live.versions.messages)
            };
            let after = update(before);
            let mut live = self.lock();
            if live.versions.messages == version {
                live.state.messages = after;
                live.versions.messages += 1;
                return;
            }
        }
    }

    /// The custom state; its default where it was never set.
    pub fn custom(&self) -> S {
        self.lock().state.custom.clone().unwrap_or_default()
    }

    /// Changes the custom state. `update` is called again where another change came between, so it
    /// must not change the custom state by itself. Within an invocation the change is streamed to
    /// the client.
    pub fn update_custom(&self, mut update: impl FnMut(S) -> S) {
        // The infallible case of the other.
        let _ = self.try_update_custom(|custom| Ok::<_, std::convert::Infallible>(update(custom)));
    }

    /// Changes the custom state where `update` does not err.
    pub fn try_update_custom<E>(&self, mut update: impl FnMut(S) -> Result<S, E>) -> Result<(), E> {
        loop {
            let (before, version) = {
                let live = self.lock();
                (live.state.custom.clone(), live.versions.custom)
            };
            let after = update(before.unwrap_or_default())?;
            let mut live = self.lock();
            if live.versions.custom == version {
                let replaced = live.state.custom.replace(after);
                live.versions.custom += 1;
                drop(live);
                // It may run code of its own when it goes.
                drop(replaced);
                break;
            }
        }
        if let Some(observer) = &self.observer {
            observer.custom_changed(self);
        }
        Ok(())
    }

    /// All artifacts at this moment.
    pub fn artifacts(&self) -> Vec<Arc<Artifact>> {
        self.lock().state.artifacts.clone()
    }

    /// Adds artifacts, each in the place of the one of its name.
    pub fn add_artifacts(&self, artifacts: impl IntoIterator<Item = Artifact>) {
        let artifacts: Vec<_> = artifacts.into_iter().map(Arc::new).collect();
        {
            let mut live = self.lock();
            for artifact in &artifacts {
                add_artifact(&mut live.state.artifacts, artifact.clone());
            }
            live.versions.artifacts += 1;
        }
        if let Some(observer) = &self.observer {
            artifacts.iter().for_each(|artifact| observer.artifact_added(artifact));
        }
    }

    /// Changes the artifacts. `update` is called again where another change came between.
    pub fn update_artifacts(
        &self,
        mut update: impl FnMut(Vec<Arc<Artifact>>) -> Vec<Arc<Artifact>>,
    ) {
        loop {
            let (before, version) = {
                let live = self.lock();
                (live.state.artifacts.clone(), live.versions.artifacts)
            };
            let after = update(before);
            let mut live = self.lock();
            if live.versions.artifacts == version {
                live.state.artifacts = after;
                live.versions.artifacts += 1;
                return;
            }
        }
    }

    /// State and versions of the same moment.
    pub(crate) fn versioned(&self) -> (SessionState<S>, Versions) {
        let live = self.lock();
        (live.state.clone(), live.versions)
    }

    /// Puts back an earlier state; observers are not told. Returns the state with its new versions.
    pub(crate) fn restore(&self, state: SessionState<S>) -> (SessionState<S>, Versions) {
        let state = SessionState { session_id: Some(self.id.clone()), ..state };
        let mut live = self.lock();
        let replaced = std::mem::replace(&mut live.state, state);
        live.versions.messages += 1;
        live.versions.custom += 1;
        live.versions.artifacts += 1;
        let restored = (live.state.clone(), live.versions);
        drop(live);
        // A custom state may run code of its own when it goes.
        drop(replaced);
        restored
    }

    fn lock(&self) -> MutexGuard<'_, Live<S>> {
        // Nothing that can panic runs under the lock but the clone of a custom state, which changes
        // nothing.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: State> ArtifactStore for Session<S> {
    fn artifacts(&self) -> Vec<Arc<Artifact>> {
        Session::artifacts(self)
    }

    fn add_artifacts(&self, artifacts: Vec<Artifact>) {
        Session::add_artifacts(self, artifacts);
    }
}

impl<S: State> SessionAccess for Session<S> {
    fn session_id(&self) -> Arc<str> {
        self.id.clone()
    }

    fn messages(&self) -> Messages {
        Session::messages(self)
    }

    fn add_messages(&self, messages: Vec<Message>) {
        Session::add_messages(self, messages);
    }

    fn custom_json(&self) -> Value {
        let custom = self.lock().state.custom.clone();
        custom.and_then(|custom| serde_json::to_value(custom).ok()).unwrap_or(Value::Null)
    }

    fn update_custom_json(&self, update: &mut dyn FnMut(&mut Value)) -> Result<(), RuntimeError> {
        let invalid = |error: serde_json::Error| {
            RuntimeError::InvalidArgument(format!(
                "this is no custom state of the session: {error}"
            ))
        };
        self.try_update_custom(|custom| {
            let mut json = serde_json::to_value(custom).map_err(invalid)?;
            update(&mut json);
            serde_json::from_value(json).map_err(invalid)
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<S: State> fmt::Debug for Session<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lock();
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("messages", &live.state.messages.len())
            .field("artifacts", &live.state.artifacts.len())
            .finish_non_exhaustive()
    }
}
