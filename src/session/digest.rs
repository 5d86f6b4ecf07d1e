//! A conversation in short, for a model that takes no history: a part of its instructions.

use antiphon_live::{HistoryItem, HistoryRole};
use serde_json::json;

/// So many bytes of a conversation's end are told, at most.
const MAX_DIGEST: usize = 4_000;

/// The end of a conversation in words, as a model is told it among its instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    text: String,
    /// How many items it holds.
    pub(crate) items: usize,
}

impl Digest {
    /// Of the end of this conversation; `None` where there is nothing to tell.
    pub(crate) fn of(items: &[HistoryItem]) -> Option<Self> {
        let (text, items) = digest(items, MAX_DIGEST);
        (items > 0).then_some(Self { text, items })
    }

    /// Instructions with what was said so far.
    pub(crate) fn after(&self, instructions: Option<&str>) -> String {
        let text = &self.text;
        with(instructions, &format!("The conversation goes on. What was said before:\n{text}"))
    }
}

/// Instructions and something more.
pub(crate) fn with(instructions: Option<&str>, more: &str) -> String {
    match instructions {
        Some(instructions) if !instructions.is_empty() => format!("{instructions}\n\n{more}"),
        _ => more.to_owned(),
    }
}

/// So many bytes of a conversation's end, an item a line, and how many items these are. Of what was
/// said last at least the end is told.
fn digest(items: &[HistoryItem], max_bytes: usize) -> (String, usize) {
    let mut lines: Vec<String> = Vec::new();
    let mut bytes = 0;
    for item in items.iter().rev() {
        let Some(line) = line(item) else { continue };
        bytes += line.len() + 1;
        if bytes > max_bytes {
            if lines.is_empty() {
                let from = line.ceil_char_boundary(line.len().saturating_sub(max_bytes));
                lines.push(line[from..].to_owned());
            }
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    (lines.join("\n"), lines.len())
}

fn line(item: &HistoryItem) -> Option<String> {
    Some(match item {
        HistoryItem::Message { text, .. } if text.trim().is_empty() => return None,
        HistoryItem::Message { role: HistoryRole::User, text } => format!("User: {text}"),
        HistoryItem::Message { role: HistoryRole::Agent, text } => format!("You: {text}"),
        HistoryItem::Tool { call, response } => {
            let (args, output) = (json!(call.args), json!(response));
            format!("You called {} with {args}; it returned {output}", call.name)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use antiphon_types::{JsonObject, ToolCall};

    use super::*;

    fn message(role: HistoryRole, text: &str) -> HistoryItem {
        HistoryItem::Message { role, text: text.into() }
    }

    fn call() -> HistoryItem {
        let object = |key: &str, value: &str| {
            JsonObject::from_iter([(key.to_owned(), serde_json::Value::from(value))])
        };
        let call = ToolCall { id: "c1".into(), name: "clock".into(), args: object("zone", "a") };
        HistoryItem::Tool { call, response: object("output", "noon") }
    }

    #[test]
    fn it_is_the_end_of_the_conversation() {
        let items = [
            message(HistoryRole::User, "What time is it?"),
            call(),
            message(HistoryRole::Agent, "Noon."),
        ];
        let (text, count) = digest(&items, 90);
        let call = r#"You called clock with {"zone":"a"}; it returned {"output":"noon"}"#;
        assert_eq!((text, count), (format!("{call}\nYou: Noon."), 2));
        let all = Digest::of(&items).unwrap();
        assert_eq!(all.items, 3);
        let told = all.after(Some("Be kind."));
        assert!(told.starts_with("Be kind.\n\nThe conversation goes on."), "{told}");
        assert!(told.contains("User: What time is it?"), "{told}");
        assert!(all.after(None).starts_with("The conversation"));
    }

    #[test]
    fn of_one_long_word_the_end_is_told_and_nothing_is_nothing() {
        let items = [message(HistoryRole::User, &"ä".repeat(5_000))];
        let (text, count) = digest(&items, 101);
        assert_eq!((text.len(), count), (100, 1));
        assert_eq!(Digest::of(&[message(HistoryRole::User, " ")]), None);
        assert_eq!(Digest::of(&[]), None);
    }
}
