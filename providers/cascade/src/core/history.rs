//! The conversation as the model is given it.

use std::{collections::VecDeque, sync::Arc};

use antiphon_agent::{Message, Part, Role};
use antiphon_live::{HistoryItem, HistoryRole};
use antiphon_types::{JsonObject, ToolArguments, ToolCallRequest, ToolResponse};

use crate::{Alternative, Transcript};

/// The conversation, bounded, cut at turn boundaries.
///
/// A model's message with calls stays the last one until all their outputs are in. What is said
/// meanwhile (a read-back and its confirmation, say) goes before it, so that calls and outputs
/// stand together as chat models demand.
#[derive(Debug)]
pub(crate) struct History {
    entries: VecDeque<Entry>,
    limit: usize,
    open: Vec<OpenCall>,
}

#[derive(Debug)]
struct Entry {
    message: Arc<Message>,
    /// The item of the reply that said it.
    item: Option<Arc<str>>,
    marks: Vec<Mark>,
}

/// How far a reply's words are when its audio is so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Milliseconds of the reply's audio.
    pub(crate) end_ms: u64,
    /// Bytes of its text.
    pub(crate) text_end: usize,
}

#[derive(Debug)]
struct OpenCall {
    id: Arc<str>,
    name: Arc<str>,
    output: Option<JsonObject>,
    silent: bool,
}

/// What became of a tool's output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// Others are still out.
    Waiting,
    /// It was the last one; the model may go on, unless all outputs asked for silence.
    All {
        /// Every output is to be added without being spoken of.
        silent: bool,
    },
    /// No call with this id waits for an output.
    Unknown,
}

/// What a reply leaves in the conversation.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) item: Arc<str>,
    pub(crate) text: String,
    pub(crate) marks: Vec<Mark>,
    pub(crate) calls: Vec<ToolCallRequest>,
    pub(crate) metadata: Option<JsonObject>,
}

impl History {
    /// A conversation of at most `limit` messages, beginning with what was said before.
    pub(crate) fn new(limit: usize, earlier: Vec<HistoryItem>) -> Self {
        let mut history = Self { entries: VecDeque::new(), limit: limit.max(2), open: Vec::new() };
        for item in earlier {
            match item {
                HistoryItem::Message { role: HistoryRole::User, text } => {
                    history.user(Transcript::new(text));
                }
                HistoryItem::Message { role: HistoryRole::Agent, text } => {
                    history.insert(Message::text(Role::Model, text).into());
                }
                HistoryItem::Tool { call, response } => {
                    let request =
                        Part::tool_request(call.name.clone(), Some(call.id.clone()), call.args);
                    let output = Part::tool_response(call.name, Some(call.id), response);
                    history.insert(Message::new(Role::Model, vec![request]).into());
                    history.insert(Message::new(Role::Tool, vec![output]).into());
                }
                _ => {}
            }
        }
        history
    }

    /// All messages, oldest first.
    pub(crate) fn messages(&self) -> Vec<Arc<Message>> {
        self.entries.iter().map(|entry| entry.message.clone()).collect()
    }

    /// Whether calls wait for their outputs.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.open.is_empty()
    }

    /// The user said something.
    pub(crate) fn user(&mut self, words: Transcript) {
        let mut message = Message::text(Role::User, words.text);
        if !words.alternatives.is_empty() {
            let alternatives = serde_json::to_value(words.alternatives).unwrap_or_default();
            message.metadata =
                Some(JsonObject::from_iter([(Alternative::METADATA.to_owned(), alternatives)]));
        }
        self.insert(message.into());
    }

    /// A reply is over. What said nothing and called nothing leaves no trace.
    pub(crate) fn model(&mut self, said: Said) {
        let mut content = Vec::new();
        if !said.text.trim().is_empty() {
            content.push(Part::text(said.text));
        }
        for call in &said.calls {
            let (name, id) = (call.name.clone(), call.id.clone());
            content.push(Part::tool_request(name, Some(id), arguments(&call.arguments)));
        }
        if content.is_empty() {
            return;
        }
        self.insert(Entry {
            message: Arc::new(Message::new(Role::Model, content).with_metadata(said.metadata)),
            item: Some(said.item),
            marks: said.marks,
        });
        self.open.extend(said.calls.into_iter().map(|call| OpenCall {
            id: call.id,
            name: call.name,
            output: None,
            silent: false,
        }));
    }

    /// The output of a call came. An interim one is acknowledged and waits for the last.
    pub(crate) fn tool_output(&mut self, response: ToolResponse) -> Accepted {
        use antiphon_types::ToolResponseScheduling::Silent;
        let known = |call: &&mut OpenCall| call.id == response.id && call.output.is_none();
        let Some(call) = self.open.iter_mut().find(known) else { return Accepted::Unknown };
        if response.will_continue == Some(true) {
            return Accepted::Waiting;
        }
        call.output = Some(response.response);
        call.silent = response.scheduling == Silent;
        if self.open.iter().any(|call| call.output.is_none()) {
            return Accepted::Waiting;
        }
        let calls = std::mem::take(&mut self.open);
        let silent = calls.iter().all(|call| call.silent);
        let outputs = calls
            .into_iter()
            .map(|call| {
                Part::tool_response(call.name, Some(call.id), call.output.unwrap_or_default())
            })
            .collect();
        self.insert(Message::new(Role::Tool, outputs).into());
        Accepted::All { silent }
    }

    /// The user heard only part of what the reply's `item` said: `heard`, or the words up to
    /// `audio_end_ms`. False when there is no such item.
    pub(crate) fn truncate(&mut self, item: &str, heard: Option<&str>, audio_end_ms: u32) -> bool {
        let found = self.entries.iter().rposition(|entry| entry.item.as_deref() == Some(item));
        let Some(index) = found else { return false };
        let entry = &mut self.entries[index];
        let text = match heard {
            Some(heard) => heard.to_owned(),
            None => heard_text(&entry.message.joined_text(), &entry.marks, audio_end_ms.into()),
        };
        let mut cut = Message::clone(&entry.message);
        cut.content.retain(|part| part.as_text().is_none());
        if !text.trim().is_empty() {
            cut.content.insert(0, Part::text(text));
        }
        if cut.content.is_empty() {
            self.entries.remove(index);
        } else {
            entry.message = Arc::new(cut);
        }
        true
    }

    fn insert(&mut self, entry: Entry) {
        let at = self.entries.len() - usize::from(self.is_waiting());
        self.entries.insert(at, entry);
        self.trim();
    }

    /// Forgets whole turns at the beginning until the bound holds.
    fn trim(&mut self) {
        let Some(over) = self.entries.len().checked_sub(self.limit).filter(|over| *over > 0) else {
            return;
        };
        // A turn begins with the user. Where one turn alone is too long, anything but the outputs
        // of calls that would be forgotten may come first.
        let last = self.entries.len() - 1;
        let begins = |role: fn(Role) -> bool| {
            (over..last).find(|index| role(self.entries[*index].message.role))
        };
        let keep = begins(|role| role == Role::User)
            .or_else(|| begins(|role| role != Role::Tool))
            .unwrap_or(over);
        self.entries.drain(..keep);
    }
}

impl From<Message> for Entry {
    fn from(message: Message) -> Self {
        Self { message: Arc::new(message), item: None, marks: Vec::new() }
    }
}

/// The arguments as an object; what is none is refused by the executor, and empty here.
fn arguments(arguments: &ToolArguments) -> JsonObject {
    match arguments {
        ToolArguments::Object(object) => object.clone(),
        ToolArguments::Json(text) => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// The words whose audio is over at `end_ms`: whole sentences, and of the one that was cut as many
/// words as fit its share of time.
fn heard_text(text: &str, marks: &[Mark], end_ms: u64) -> String {
    let mut from = Mark { end_ms: 0, text_end: 0 };
    for mark in marks {
        if mark.end_ms > end_ms {
            let sentence = text.get(from.text_end..mark.text_end).unwrap_or_default();
            let length = mark.end_ms - from.end_ms;
            let share = (end_ms - from.end_ms) as usize * sentence.len() / length.max(1) as usize;
            let cut = sentence
                .match_indices(char::is_whitespace)
                .map(|(at, _)| at)
                .take_while(|at| *at <= share)
                .last()
                .unwrap_or(0);
            let heard = text.get(..from.text_end + cut).unwrap_or_default();
            return heard.trim_end().to_owned();
        }
        from = *mark;
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> ToolCallRequest {
        ToolCallRequest {
            id: id.into(),
            name: "clock".into(),
            arguments: ToolArguments::Object(JsonObject::new()),
        }
    }

    fn said(item: &str, text: &str, calls: Vec<ToolCallRequest>) -> Said {
        Said { item: item.into(), text: text.into(), calls, ..Said::default() }
    }

    fn output(id: &str) -> ToolResponse {
        ToolResponse::new(id, "clock", JsonObject::new())
    }

    fn roles(history: &History) -> Vec<Role> {
        history.entries.iter().map(|entry| entry.message.role).collect()
    }

    fn texts(history: &History) -> Vec<String> {
        history.entries.iter().map(|entry| entry.message.joined_text()).collect()
    }

    #[test]
    fn calls_and_outputs_stand_together_whatever_is_said_meanwhile() {
        let mut history = History::new(20, Vec::new());
        history.user(Transcript::new("send five"));
        history.model(said("1", "", vec![call("a"), call("b")]));
        history.model(said("2", "Send five?", vec![]));
        history.user(Transcript::new("yes"));
        assert_eq!(history.tool_output(output("b")), Accepted::Waiting);
        assert_eq!(history.tool_output(output("b")), Accepted::Unknown);
        assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
        assert_eq!(texts(&history), ["send five", "Send five?", "yes", "", ""]);
        assert_eq!(roles(&history)[3..], [Role::Model, Role::Tool]);
        assert!(!history.is_waiting());
    }

    #[test]
    fn an_interrupted_reply_keeps_what_was_heard() {
        let mut history = History::new(20, Vec::new());
        history.model(said("1", "One two three.", vec![]));
        assert!(history.truncate("1", Some("One"), 0));
        assert_eq!(texts(&history), ["One"]);
        assert!(history.truncate("1", Some(" "), 0));
        assert!(history.entries.is_empty());
        assert!(!history.truncate("1", Some("One"), 0));
    }

    #[test]
    fn without_words_the_marks_tell_what_was_heard() {
        let text = "One two. Three four five six.";
        let marks =
            [Mark { end_ms: 1_000, text_end: 8 }, Mark { end_ms: 3_000, text_end: text.len() }];
        assert_eq!(heard_text(text, &marks, 0), "");
        assert_eq!(heard_text(text, &marks, 1_000), "One two.");
        assert_eq!(heard_text(text, &marks, 2_200), "One two. Three four");
        assert_eq!(heard_text(text, &marks, 9_000), text);
    }

    #[test]
    fn long_conversations_are_cut_before_a_user_message() {
        let mut history = History::new(5, Vec::new());
        for turn in 0..40 {
            history.user(Transcript::new(format!("question {turn}")));
            history.model(said("1", "", vec![call("a")]));
            assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
            history.model(said("2", "answer", vec![]));
            assert!(history.entries.len() <= 5);
            assert_eq!(roles(&history)[0], Role::User);
        }
    }

    #[test]
    fn one_endless_turn_is_bounded_and_never_begins_with_an_output() {
        let mut history = History::new(6, Vec::new());
        history.user(Transcript::new("go"));
        for _ in 0..40 {
            history.model(said("1", "", vec![call("a")]));
            assert!(history.entries.len() <= 6);
            assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
            assert!(history.entries.len() <= 6);
            assert_ne!(roles(&history)[0], Role::Tool);
        }
    }

    #[test]
    fn an_interim_output_does_not_answer_the_call() {
        let mut history = History::new(6, Vec::new());
        history.model(said("1", "", vec![call("a")]));
        let mut interim = output("a");
        interim.will_continue = Some(true);
        assert_eq!(history.tool_output(interim), Accepted::Waiting);
        assert!(history.is_waiting());
        let mut last = output("a");
        last.scheduling = antiphon_types::ToolResponseScheduling::Silent;
        assert_eq!(history.tool_output(last), Accepted::All { silent: true });
    }
}
