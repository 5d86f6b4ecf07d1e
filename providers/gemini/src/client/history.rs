//! What was said before this connection, as contents.

use antiphon_live::{HistoryItem, HistoryRole};
use serde_json::Value;

use crate::wire::{ClientContent, ClientMessage, Content, Role};

/// Words in one message; more is sent in several.
const MAX_BYTES: usize = 256 * 1024;

/// Whether anything was said.
pub(super) fn has_words(history: &[HistoryItem]) -> bool {
    history.iter().any(|item| content(item).is_some())
}

/// The messages with which the conversation so far is given; the last says so, where `ends`.
pub(super) fn messages(history: &[HistoryItem], ends: bool) -> Vec<ClientMessage> {
    let mut messages = Vec::new();
    let (mut turns, mut bytes) = (Vec::new(), 0);
    for (content, length) in history.iter().filter_map(content) {
        if bytes + length > MAX_BYTES && !turns.is_empty() {
            messages.push(message(std::mem::take(&mut turns), false));
            bytes = 0;
        }
        bytes += length;
        turns.push(content);
    }
    if !turns.is_empty() {
        messages.push(message(turns, ends));
    }
    messages
}

fn message(turns: Vec<Content>, ends: bool) -> ClientMessage {
    ClientMessage::ClientContent(ClientContent { turns: Some(turns), turn_complete: Some(ends) })
}

/// An item as a content, and its length. Calls cannot be put back, their story can.
fn content(item: &HistoryItem) -> Option<(Content, usize)> {
    let (role, text) = match item {
        HistoryItem::Message { text, .. } if text.trim().is_empty() => return None,
        HistoryItem::Message { role: HistoryRole::User, text } => (Role::User, text.clone()),
        HistoryItem::Message { role: HistoryRole::Agent, text } => (Role::Model, text.clone()),
        HistoryItem::Tool { call, response } => {
            let (args, given) = (Value::Object(call.args.clone()), response.clone());
            let given = Value::Object(given);
            (Role::Model, format!("(I used the tool {} with {args}. It gave {given}.)", call.name))
        }
        _ => return None,
    };
    let length = text.len();
    Some((Content::text(Some(role), text), length))
}
