//! Conversations that a server keeps, to be gone on with on a later connection.

use std::{
    collections::HashMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use antiphon_openai::wire::{Facts, Item};

use crate::scripted::lock;

/// An item's id, the item, and what the user said in it.
pub(super) type Line = (String, Item, Option<String>);

/// The conversations of all connections, by their names.
#[derive(Default)]
pub(super) struct Kept {
    conversations: Mutex<HashMap<String, (Instant, Vec<Line>)>>,
}

impl Kept {
    pub(super) fn put(&self, name: &str, lines: Vec<Line>, now: Instant) {
        lock(&self.conversations).insert(name.to_owned(), (now, lines));
    }

    /// What was said in a conversation; `None` where it is not known, or not any more.
    pub(super) fn of(&self, name: &str, facts: &Facts, now: Instant) -> Option<Vec<Line>> {
        let within = facts.resumes_for?;
        let conversations = lock(&self.conversations);
        let (at, lines) = conversations.get(name)?;
        let idle: Duration = now.saturating_duration_since(*at);
        (idle < within).then(|| lines.clone())
    }
}
