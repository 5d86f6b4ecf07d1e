//! A piece of what a turn streams.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

use super::AgentInterrupt;
use crate::{
    message::{Media, ModelResponseChunk, Part, PartKind, Role},
    protocol::AgentStreamChunk,
    state::Artifact,
};

/// A piece of what a turn streams.
#[derive(Clone, Debug)]
pub struct AgentChunk<S = Value> {
    pub(super) raw: AgentStreamChunk,
    pub(super) custom: Option<S>,
    pub(super) accumulated: Accumulated,
}

impl<S> AgentChunk<S> {
    /// The text in it, joined.
    pub fn text(&self) -> String {
        self.parts().iter().filter_map(Part::as_text).collect()
    }

    /// The thoughts in it, joined.
    pub fn reasoning(&self) -> String {
        reasoning(self.parts())
    }

    /// All text of the turn up to and with this chunk.
    pub fn accumulated_text(&self) -> String {
        self.accumulated.text()
    }

    /// The tool requests in it.
    pub fn tool_requests(&self) -> impl Iterator<Item = &Part> {
        tool_requests(self.parts())
    }

    /// The tool requests in it that wait for somebody.
    pub fn interrupts(&self) -> Vec<AgentInterrupt> {
        AgentInterrupt::all(self.parts())
    }

    /// The first piece of structured data in it.
    pub fn data(&self) -> Option<&Value> {
        data(self.parts())
    }

    /// The first picture, sound or film in it.
    pub fn media(&self) -> Option<&Media> {
        media(self.parts())
    }

    /// The artifact that is new or takes another's place.
    pub fn artifact(&self) -> Option<&Artifact> {
        self.raw.artifact.as_ref()
    }

    /// The whole custom state after this chunk, where it changed: what
    /// [`AgentChat::state`](super::AgentChat::state) is until the next chunk is taken. None too where
    /// it is not of the type that the chat has for it.
    pub fn custom(&self) -> Option<&S> {
        self.custom.as_ref()
    }

    /// As it came.
    pub fn raw(&self) -> &AgentStreamChunk {
        &self.raw
    }

    fn parts(&self) -> &[Part] {
        self.raw.model_chunk.as_ref().map_or(&[], |chunk| &chunk.content)
    }
}

pub(super) fn reasoning(parts: &[Part]) -> String {
    let thoughts = parts.iter().filter_map(|part| match &part.kind {
        PartKind::Reasoning(thought) => Some(thought.as_str()),
        _ => None,
    });
    thoughts.collect()
}

pub(super) fn tool_requests(parts: &[Part]) -> impl Iterator<Item = &Part> {
    parts.iter().filter(|part| part.as_tool_request().is_some())
}

pub(super) fn data(parts: &[Part]) -> Option<&Value> {
    parts.iter().find_map(|part| match &part.kind {
        PartKind::Data(data) => Some(data),
        _ => None,
    })
}

pub(super) fn media(parts: &[Part]) -> Option<&Media> {
    parts.iter().find_map(|part| match &part.kind {
        PartKind::Media(media) => Some(media),
        _ => None,
    })
}

/// All text up to some chunk. The chunks of a turn share one text and know how far theirs goes.
#[derive(Clone, Default)]
pub(super) struct Accumulated {
    text: Arc<Mutex<String>>,
    len: usize,
    /// Where the message begins that is being streamed, and its number.
    message: (usize, Option<u32>),
}

impl Accumulated {
    /// Adds what `chunk` says. Only the last of the clones may do that.
    pub(super) fn push(&mut self, chunk: &ModelResponseChunk) {
        if chunk.role.is_some_and(|role| role != Role::Model) {
            return;
        }
        if chunk.index != self.message.1 {
            self.message = (self.len, chunk.index);
        }
        let mut text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if chunk.aggregated == Some(true) {
            // It repeats the message; what earlier chunks see stays as it was.
            let kept = text[..self.message.0].to_owned();
            drop(text);
            self.text = Arc::new(Mutex::new(kept));
            text = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        }
        chunk.content.iter().filter_map(Part::as_text).for_each(|part| text.push_str(part));
        self.len = text.len();
    }

    fn text(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)[..self.len].to_owned()
    }
}

impl fmt::Debug for Accumulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accumulated").field("len", &self.len).finish_non_exhaustive()
    }
}
