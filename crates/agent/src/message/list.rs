//! The messages of a conversation, shared between its snapshots.

use std::{fmt, sync::Arc};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{SeqAccess, Visitor},
};

use super::Message;

/// How many messages a chunk holds before the next is begun.
const CHUNK: usize = 64;

/// A list of messages of which clones cost nothing and share what they have in common.
///
/// It is a chain of chunks, each pointing at the one before, so that a conversation of ten thousand
/// turns grows by a turn at the price of a short one, and [`Messages::shared_prefix`] with an
/// earlier state of it looks at little more than its end. Messages in it do not change:
/// [`Messages::replace`] puts another in the place of one.
#[derive(Clone, Default)]
pub struct Messages {
    tail: Option<Arc<Chunk>>,
}

/// Some messages, and those before them.
#[derive(Clone)]
struct Chunk {
    before: Option<Arc<Chunk>>,
    /// How many messages all chunks before this one hold: a multiple of [`CHUNK`], since a chunk
    /// that has one after it is full.
    start: usize,
    /// 1 to [`CHUNK`] messages.
    items: Vec<Arc<Message>>,
}

impl Messages {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.tail.as_ref().map_or(0, |tail| tail.start + tail.items.len())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tail.is_none()
    }

    /// The newest message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.tail.as_ref()?.items.last()
    }

    /// The message at `index`, from 0.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        let mut chunk = self.tail.as_deref()?;
        while index < chunk.start {
            chunk = chunk.before.as_deref()?;
        }
        chunk.items.get(index - chunk.start)
    }

    /// All messages, oldest first.
    pub fn iter(&self) -> MessagesIter<'_> {
        self.range(0)
    }

    /// The messages from `start` on, oldest first.
    pub fn range(&self, start: usize) -> MessagesIter<'_> {
        let mut chunks = Vec::new();
        let mut next = self.tail.as_deref();
        let mut skip = 0;
        while let Some(chunk) = next {
            chunks.push(chunk.items.as_slice());
            if chunk.start <= start {
                skip = start - chunk.start;
                break;
            }
            next = chunk.before.as_deref();
        }
        let current = chunks.pop().unwrap_or_default();
        MessagesIter { chunks, current: current.get(skip..).unwrap_or_default().iter() }
    }

    /// All messages from the newest back.
    pub fn iter_back(&self) -> impl Iterator<Item = &Arc<Message>> {
        let mut next = self.tail.as_deref();
        std::iter::from_fn(move || {
            let chunk = next?;
            next = chunk.before.as_deref();
            Some(chunk.items.iter().rev())
        })
        .flatten()
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        let message = message.into();
        match &mut self.tail {
            Some(tail) if tail.items.len() < CHUNK => Arc::make_mut(tail).items.push(message),
            _ => {
                let (start, before) = (self.len(), self.tail.take());
                self.tail = Some(Arc::new(Chunk { before, start, items: vec![message] }));
            }
        }
    }

    /// Removes the newest message and returns it.
    pub fn pop(&mut self) -> Option<Arc<Message>> {
        let tail = Arc::make_mut(self.tail.as_mut()?);
        let message = tail.items.pop();
        if tail.items.is_empty() {
            self.tail = tail.before.take();
        }
        message
    }

    /// Keeps the first `len` messages.
    pub fn truncate(&mut self, len: usize) {
        while let Some(tail) = &mut self.tail {
            if tail.start < len {
                if tail.start + tail.items.len() > len {
                    let keep = len - tail.start;
                    Arc::make_mut(tail).items.truncate(keep);
                }
                return;
            }
            let before = tail.before.clone();
            self.tail = before;
        }
    }

    /// Puts `message` in the place of the one at `index`. What comes after it is not shared with
    /// earlier clones any more. False, and nothing changes, where there is no such index.
    pub fn replace(&mut self, index: usize, message: impl Into<Arc<Message>>) -> bool {
        if index >= self.len() {
            return false;
        }
        let after: Vec<_> = self.range(index + 1).cloned().collect();
        self.truncate(index);
        self.push(message);
        self.extend(after);
        true
    }

    /// How many messages at the beginning are the same ones, not only equal ones, as in `other`.
    /// What one list has been made from by appending is recognised at the price of a chunk.
    pub fn shared_prefix(&self, other: &Self) -> usize {
        // Chunks of both begin at the same multiples of their size, so they can be compared pairwise.
        let (mut left, mut right) = (self.tail.as_ref(), other.tail.as_ref());
        let mut pairs = Vec::new();
        let mut shared = 0;
        while let (Some(a), Some(b)) = (left, right) {
            if a.start > b.start {
                left = a.before.as_ref();
            } else if b.start > a.start {
                right = b.before.as_ref();
            } else if Arc::ptr_eq(a, b) {
                shared = a.start + a.items.len();
                break;
            } else {
                pairs.push((a, b));
                (left, right) = (a.before.as_ref(), b.before.as_ref());
            }
        }
        for (a, b) in pairs.into_iter().rev() {
            let same = a.items.iter().zip(&b.items).take_while(|(a, b)| Arc::ptr_eq(a, b)).count();
            shared = a.start + same;
            if same < CHUNK {
                break;
            }
        }
        shared
    }
}

impl Drop for Chunk {
    /// Not by recursion: a chain may be longer than a stack is deep.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(chunk) = next {
            next = Arc::into_inner(chunk).and_then(|mut chunk| chunk.before.take());
        }
    }
}

/// The messages of a [`Messages`], oldest first.
#[derive(Clone)]
pub struct MessagesIter<'a> {
    chunks: Vec<&'a [Arc<Message>]>,
    current: std::slice::Iter<'a, Arc<Message>>,
}

impl<'a> Iterator for MessagesIter<'a> {
    type Item = &'a Arc<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(message) = self.current.next() {
                return Some(message);
            }
            self.current = self.chunks.pop()?.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.current.len() + self.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
        (left, Some(left))
    }
}

impl ExactSizeIterator for MessagesIter<'_> {}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a Arc<Message>;
    type IntoIter = MessagesIter<'a>;

    fn into_iter(self) -> MessagesIter<'a> {
        self.iter()
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for Messages {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        messages.into_iter().for_each(|message| self.push(message));
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for Messages {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        let mut list = Self::new();
        list.extend(messages);
        list
    }
}

impl From<Vec<Message>> for Messages {
    fn from(messages: Vec<Message>) -> Self {
        messages.into_iter().collect()
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && {
            let shared = self.shared_prefix(other);
            self.range(shared).eq(other.range(shared))
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Serialize for Messages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}

impl<'de> Deserialize<'de> for Messages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Messages;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Messages, A::Error> {
                let mut messages = Messages::new();
                while let Some(message) = seq.next_element::<Message>()? {
                    messages.push(message);
                }
                Ok(messages)
            }
        }
        deserializer.deserialize_seq(List)
    }
}
