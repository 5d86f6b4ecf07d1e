//! Conversations that the server keeps, and goes on with on another connection.
//!
//! xAI keeps one where the session asks for that, names it by `conversation.created`, and goes on with
//! it where the address of a later connection has that name: what was said and called so far is told
//! to the model again, and to the client as items. The name is good for as long as
//! [`Facts::resumes_for`](crate::wire::Facts::resumes_for) says.

use antiphon_live::{LiveError, LiveEvent, Outbox, Resumption};
use secrecy::{ExposeSecret, SecretString};

use super::Client;

/// The conversation of a connection.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The one that is to be gone on with, until the server says that it is.
    wanted: Option<SecretString>,
    /// The server's name for the one that it keeps.
    name: Option<SecretString>,
    /// It holds what was said before this connection.
    is_old: bool,
}

impl Conversation {
    /// Whether this may be an output of a call that an earlier connection answered.
    pub(super) fn is_old(&self) -> bool {
        self.is_old
    }
}

impl Client {
    /// Goes on with an earlier conversation.
    pub fn resuming(mut self, resumption: &Resumption) -> Self {
        self.conversation.wanted = Some(resumption.handle.clone());
        self
    }

    /// The server says which conversation this is.
    ///
    /// # Errors
    ///
    /// [`LiveError::NoResumableSession`]: another one than was asked for.
    pub(super) fn conversation_begins(&mut self, name: Option<&str>) -> Result<(), LiveError> {
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
        if !self.settings.capabilities.resumption {
            return Ok(());
        }
        if let Some(wanted) = self.conversation.wanted.take() {
            if wanted.expose_secret() != name {
                return Err(LiveError::NoResumableSession);
            }
            self.conversation.is_old = true;
        }
        self.conversation.name = Some(name.into());
        Ok(())
    }

    /// The session begins.
    ///
    /// # Errors
    ///
    /// [`LiveError::NoResumableSession`]: the server did not say that it goes on.
    pub(super) fn refuse_another_conversation(&self) -> Result<(), LiveError> {
        match self.conversation.wanted {
            Some(_) => Err(LiveError::NoResumableSession),
            None => Ok(()),
        }
    }

    /// All that was said so far can be gone on with.
    pub(super) fn tell_resumable(&self, out: &mut Outbox) {
        if let Some(handle) = self.conversation.name.clone() {
            out.events.push_back(LiveEvent::Resumable(Resumption { handle }));
        }
    }

    /// Something is under way that nobody could go on with.
    pub(super) fn tell_not_resumable(&self, out: &mut Outbox) {
        if self.conversation.name.is_some() {
            out.events.push_back(LiveEvent::NotResumable);
        }
    }
}
