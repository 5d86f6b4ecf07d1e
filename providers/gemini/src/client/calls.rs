//! Calls of tools: which the model waits for, and which may still be answered.

use std::{collections::VecDeque, sync::Arc};

use antiphon_types::ToolDefinition;

use super::settings::Settings;

/// Calls that are remembered.
const MAX_CALLS: usize = 1_024;

/// The calls of one connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Oldest first.
    known: VecDeque<Call>,
    /// Tools for which the model does not wait as it would by default, or does.
    declared: Vec<(Arc<str>, bool)>,
    waits_by_default: bool,
    named: u64,
}

/// A call that was told.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) id: Arc<str>,
    /// The server gave it no id.
    pub(super) nameless: bool,
    /// The model waits for its output.
    pub(super) waits: bool,
    /// It was taken back: its output is not wanted.
    pub(super) cancelled: bool,
}

impl Calls {
    /// The session's tools.
    pub(super) fn declare(&mut self, tools: &[ToolDefinition], settings: &Settings) {
        self.waits_by_default = settings.waits_for(Default::default());
        let tools = tools.iter();
        self.declared =
            tools.map(|tool| (tool.name.clone(), settings.waits_for(tool.behavior))).collect();
    }

    /// A call came. `None`: it was told before.
    pub(super) fn add(&mut self, id: &str, name: &str, prefix: &str) -> Option<&Call> {
        if !id.is_empty() && self.find(id).is_some() {
            return None;
        }
        let nameless = id.is_empty();
        let id: Arc<str> = if nameless {
            self.named += 1;
            format!("{prefix}call-{}", self.named).into()
        } else {
            id.into()
        };
        let declared = self.declared.iter().find(|(known, _)| **known == *name);
        let waits = declared.map_or(self.waits_by_default, |(_, waits)| *waits);
        if self.known.len() == MAX_CALLS {
            self.known.pop_front();
        }
        self.known.push_back(Call { id, nameless, waits, cancelled: false });
        self.known.back()
    }

    pub(super) fn find(&mut self, id: &str) -> Option<&mut Call> {
        self.known.iter_mut().rev().find(|call| *call.id == *id)
    }
}
