//! From rendered templates to messages.

use std::sync::Arc;

use super::template::{Mark, Piece};
use crate::{
    RuntimeError,
    message::{Message, Messages, Part, Role},
};

/// Messages, and whether the template placed the conversation among them.
pub(super) enum Placed {
    With(Vec<Arc<Message>>),
    Without(Vec<Arc<Message>>),
}

/// The messages of a template. What stands before the first role is the user's.
pub(super) fn placed(pieces: Vec<Piece>, history: &Messages) -> Result<Placed, RuntimeError> {
    let mut messages = Vec::new();
    let (mut role, mut content, mut with_history) = (Role::User, Vec::new(), false);
    let end = |role, content: &mut Vec<Part>, messages: &mut Vec<Arc<Message>>| {
        trim(content);
        if !content.is_empty() {
            messages.push(Arc::new(Message::new(role, std::mem::take(content))));
        }
    };
    for piece in pieces {
        match piece {
            Piece::Mark(Mark::Role(next)) => {
                end(role, &mut content, &mut messages);
                role = next;
            }
            Piece::Mark(Mark::History) => {
                end(role, &mut content, &mut messages);
                if std::mem::replace(&mut with_history, true) {
                    return Err(misplaced("the conversation is placed twice"));
                }
                messages.extend(history.iter().cloned());
                role = Role::User;
            }
            Piece::Mark(Mark::Media { url, content_type }) => {
                content.push(Part::media(url, content_type));
            }
            Piece::Text(text) => content.push(Part::text(text)),
        }
    }
    end(role, &mut content, &mut messages);
    Ok(if with_history { Placed::With(messages) } else { Placed::Without(messages) })
}

/// The parts of a template of one message.
pub(super) fn parts(pieces: Vec<Piece>) -> Result<Vec<Part>, RuntimeError> {
    let mut parts = Vec::new();
    for piece in pieces {
        parts.push(match piece {
            Piece::Text(text) => Part::text(text),
            Piece::Mark(Mark::Media { url, content_type }) => Part::media(url, content_type),
            Piece::Mark(Mark::Role(_) | Mark::History) => {
                return Err(misplaced("roles and history belong into a template of messages"));
            }
        });
    }
    trim(&mut parts);
    Ok(parts)
}

/// Removes the white space around marks and at both ends, which only shapes the template.
fn trim(content: &mut Vec<Part>) {
    let mut trimmed = Vec::with_capacity(content.len());
    for part in content.drain(..) {
        match part.as_text().map(str::trim) {
            Some("") => {}
            Some(text) => trimmed.push(Part::text(text)),
            None => trimmed.push(part),
        }
    }
    *content = trimmed;
}

fn misplaced(text: &str) -> RuntimeError {
    RuntimeError::InvalidArgument(text.into())
}
