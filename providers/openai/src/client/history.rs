//! What was said before this connection, as items.

use std::sync::Arc;

use antiphon_live::{HistoryItem, HistoryRole};
use serde_json::Value;

use crate::wire::{Content, ContentType, FunctionCall, FunctionCallOutput, Item, Message, Role};

/// The vendor refuses longer ids (quirk 74).
const MAX_ID_CHARS: usize = 32;

/// Ids of calls where the wire's are not the session's.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    /// The session's id, and ours.
    pairs: Vec<(Arc<str>, String)>,
}

impl CallIds {
    /// The id of a call on the wire. Ids that the server made stay as they are, however long.
    pub(super) fn on_wire<'a>(&'a self, id: &'a str) -> &'a str {
        self.pairs.iter().find(|(own, _)| **own == *id).map_or(id, |(_, wire)| wire)
    }

    /// The session's id of a call.
    pub(super) fn of_session(&self, id: &str) -> Arc<str> {
        self.pairs
            .iter()
            .find(|(_, wire)| wire == id)
            .map_or_else(|| id.into(), |(own, _)| own.clone())
    }

    /// The id of an earlier connection's call on this wire.
    fn adopt(&mut self, id: &Arc<str>) -> String {
        if !id.is_empty() && id.chars().count() <= MAX_ID_CHARS {
            return id.to_string();
        }
        if let Some((_, wire)) = self.pairs.iter().find(|(own, _)| own == id) {
            return wire.clone();
        }
        let wire = format!("call_earlier_{}", self.pairs.len() + 1);
        self.pairs.push((id.clone(), wire.clone()));
        wire
    }
}

/// A name that the server takes: tools that it ran itself have others.
fn on_wire(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    name.chars().map(|letter| if plain(letter) { letter } else { '_' }).collect()
}

/// The items of a conversation so far.
pub(super) fn items(history: Vec<HistoryItem>, ids: &mut CallIds) -> Vec<Item> {
    let mut items = Vec::with_capacity(history.len());
    for item in history {
        match item {
            HistoryItem::Message { text, .. } if text.trim().is_empty() => {}
            HistoryItem::Message { role, text } => {
                // The agent's voice cannot be put back, its words can.
                let (role, kind) = match role {
                    HistoryRole::User => (Role::User, ContentType::InputText),
                    HistoryRole::Agent => (Role::Assistant, ContentType::OutputText),
                };
                items.push(Item::Message(Message::new(role, vec![Content::text(kind, text)])));
            }
            HistoryItem::Tool { call, response } => {
                let call_id = ids.adopt(&call.id);
                items.push(Item::FunctionCall(FunctionCall {
                    call_id: Some(call_id.clone()),
                    name: on_wire(&call.name),
                    arguments: Value::Object(call.args).to_string(),
                    ..FunctionCall::default()
                }));
                items.push(Item::FunctionCallOutput(FunctionCallOutput {
                    call_id,
                    output: Value::Object(response).to_string(),
                    ..FunctionCallOutput::default()
                }));
            }
            _ => {}
        }
    }
    items
}
