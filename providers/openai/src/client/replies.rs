//! The reply that is being made, and the audio of the last ones.

use std::{collections::VecDeque, sync::Arc, time::Instant};

use antiphon_live::ReplyId;

/// Replies that are known to be over; what still comes of them is dropped.
const REMEMBERED: usize = 32;
/// Items with audio that may still be cut.
const MAX_AUDIO: usize = 64;
/// Items of one reply that are told apart.
const MAX_ITEMS: usize = 256;
/// Calls of one reply that are told.
pub(super) const MAX_CALLS: usize = 256;

/// The replies of one connection.
#[derive(Debug, Default)]
pub(super) struct Replies {
    pub(super) active: Option<Reply>,
    over: VecDeque<Arc<str>>,
    audio: VecDeque<Audio>,
    named: u64,
}

/// The reply that is being made.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) id: ReplyId,
    /// The id is the server's.
    pub(super) named: bool,
    /// It was stopped: no more of its voice passes.
    pub(super) stopped: Option<Stop>,
    /// The server was asked to stop it.
    pub(super) cancel_sent: bool,
    /// When it is ended here if the server does not end it.
    pub(super) end_by: Option<Instant>,
    pub(super) items: Vec<Item>,
    /// Calls that were told.
    pub(super) calls: Vec<Arc<str>>,
}

/// Why a reply was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The session wanted it.
    Cancelled,
    /// The user spoke.
    Interrupted,
}

/// One item of a reply.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) id: Arc<str>,
    /// Of a function call: id and name.
    pub(super) call: Option<(Arc<str>, Arc<str>)>,
    pub(super) transcript: Words,
    pub(super) text: Words,
}

/// How much of an item's words was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// The part that the last words came from.
    part: Option<u32>,
    /// There are words from more than one part.
    pub(super) several: bool,
    /// What came is told as complete.
    complete: bool,
}

/// The audio of one part of an item, as far as it came.
#[derive(Debug)]
pub(super) struct Audio {
    pub(super) item: Arc<str>,
    pub(super) content_index: u32,
    /// Bytes that came, of whole samples.
    pub(super) bytes: u64,
    /// Half a sample that came at the end of a frame.
    pub(super) carry: Option<u8>,
    /// No more will come.
    pub(super) whole: bool,
}

impl Replies {
    /// Begins a reply. Without an id it gets one.
    pub(super) fn start(&mut self, id: &str) -> &mut Reply {
        let named = !id.is_empty();
        let id = if !named {
            self.named += 1;
            ReplyId(format!("unnamed-{}", self.named).into())
        } else {
            ReplyId::from(id)
        };
        self.active.insert(Reply {
            id,
            named,
            stopped: None,
            cancel_sent: false,
            end_by: None,
            items: Vec::new(),
            calls: Vec::new(),
        })
    }

    /// Ends the active reply.
    pub(super) fn end(&mut self) -> Option<Reply> {
        let reply = self.active.take()?;
        if self.over.len() == REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(reply.id.0.clone());
        for audio in &mut self.audio {
            audio.whole = true;
            audio.carry = None;
        }
        Some(reply)
    }

    pub(super) fn is_active(&self, id: &str) -> bool {
        self.active.as_ref().is_some_and(|reply| *reply.id.0 == *id)
    }

    pub(super) fn is_over(&self, id: &str) -> bool {
        self.over.iter().any(|over| **over == *id)
    }

    /// The account of a part's audio; begins one where there is none.
    pub(super) fn audio(&mut self, item: &Arc<str>, content_index: u32) -> &mut Audio {
        // The last one is nearly always the one.
        let at = self
            .audio
            .iter()
            .rposition(|audio| audio.content_index == content_index && audio.item == *item);
        let at = at.unwrap_or_else(|| {
            if self.audio.len() == MAX_AUDIO {
                self.audio.pop_front();
            }
            self.audio.push_back(Audio {
                item: item.clone(),
                content_index,
                bytes: 0,
                carry: None,
                whole: false,
            });
            self.audio.len() - 1
        });
        &mut self.audio[at]
    }

    /// The account of a part's audio, if any came.
    pub(super) fn audio_of(&mut self, item: &str, content_index: u32) -> Option<&mut Audio> {
        self.audio
            .iter_mut()
            .find(|audio| audio.content_index == content_index && *audio.item == *item)
    }
}

impl Reply {
    /// An item of the reply; makes it where the server did not announce it (quirk 18).
    pub(super) fn item(&mut self, id: &str) -> &mut Item {
        let at = self.items.iter().rposition(|item| *item.id == *id);
        let at = at.unwrap_or_else(|| {
            if self.items.len() == MAX_ITEMS {
                self.items.remove(0);
            }
            self.items.push(Item {
                id: id.into(),
                call: None,
                transcript: Words::default(),
                text: Words::default(),
            });
            self.items.len() - 1
        });
        &mut self.items[at]
    }
}

impl Words {
    /// Words of a part came. `false`: they were complete already.
    pub(super) fn came(&mut self, part: u32) -> bool {
        if self.part.is_some_and(|last| last != part) {
            self.several = true;
            self.complete = false;
        }
        self.part = Some(part);
        !self.complete
    }

    /// The words of the last part are complete.
    pub(super) fn end(&mut self) {
        self.complete = true;
    }

    /// No words ever came.
    pub(super) fn are_missing(self) -> bool {
        self.part.is_none()
    }

    /// There are words that were not told as complete.
    pub(super) fn are_open(self) -> bool {
        self.part.is_some() && !self.complete
    }
}
