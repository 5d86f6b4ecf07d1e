//! The conversation as the model is given it.

use std::{collections::VecDeque, sync::Arc};

use antiphon_agent::{Message, Part, Role};
use antiphon_live::{HistoryItem, HistoryRole};
use antiphon_types::{
    JsonObject, ToolArguments, ToolCallRequest, ToolResponse, ToolResponseScheduling,
};

use crate::{Alternative, Transcript};

/// Calls that may be at work with nobody waiting; of the oldest the output is not known any more.
const MAX_ASIDE: usize = 64;

/// The conversation, bounded, cut at turn boundaries.
///
/// A model's message with calls stays the last one until all their outputs are in. What is said
/// meanwhile (a read-back and its confirmation, say) goes before it, so that calls and outputs
/// stand together as chat models demand.
///
/// A call that nobody waits for has an output at once, which says that it is at work. Once the real
/// one is there, the call moves to the end, with it.
#[derive(Debug)]
pub(crate) struct History {
    entries: VecDeque<Entry>,
    limit: usize,
    open: Vec<OpenCall>,
    /// Calls at work that nobody waits for.
    aside: Vec<OpenCall>,
}

#[derive(Debug)]
struct Entry {
    message: Arc<Message>,
    /// The item of the reply, or of the user, that said it.
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

/// A call without its output.
#[derive(Debug)]
pub(crate) struct OpenCall {
    id: Arc<str>,
    name: Arc<str>,
    arguments: JsonObject,
    /// Nobody waits for it.
    aside: bool,
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
        let mut history = Self {
            entries: VecDeque::new(),
            limit: limit.max(2),
            open: Vec::new(),
            aside: Vec::new(),
        };
        for item in earlier {
            match item {
                HistoryItem::Message { role: HistoryRole::User, text } => {
                    history.user(Transcript::new(text), None);
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

    /// The user said something, or wrote it.
    pub(crate) fn user(&mut self, words: Transcript, item: Option<Arc<str>>) {
        let mut message = Message::text(Role::User, words.text);
        if !words.alternatives.is_empty() {
            let alternatives = serde_json::to_value(words.alternatives).unwrap_or_default();
            message.metadata =
                Some(JsonObject::from_iter([(Alternative::METADATA.to_owned(), alternatives)]));
        }
        self.insert(Entry { item, ..message.into() });
    }

    /// What the user said was nothing.
    pub(crate) fn forget(&mut self, item: &str) {
        let said =
            |entry: &Entry| entry.item.as_deref() == Some(item) && entry.message.role == Role::User;
        if let Some(at) = self.entries.iter().rposition(said) {
            self.entries.remove(at);
        }
    }

    /// A reply is over. What said nothing and called nothing leaves no trace. `aside`: nobody waits
    /// for calls of the tool of this name.
    pub(crate) fn model(&mut self, said: Said, aside: impl Fn(&str) -> bool) {
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
            aside: aside(&call.name),
            arguments: arguments(&call.arguments),
            id: call.id,
            name: call.name,
            output: None,
            silent: false,
        }));
        if self.is_waiting() && self.open.iter().all(|call| call.aside) {
            self.answer_open_calls();
        }
    }

    /// The host had something said, and the model has still to go on from the outputs of its calls: it
    /// stands before these, so that they are the last thing that the model sees.
    pub(crate) fn said_beside(&mut self, said: Said) {
        if said.text.trim().is_empty() {
            return;
        }
        let roles: Vec<_> = self.entries.iter().rev().take(2).map(|it| it.message.role).collect();
        let round = if roles == [Role::Tool, Role::Model] { 2 } else { 0 };
        let message = Message::text(Role::Model, said.text).with_metadata(said.metadata);
        let (message, item) = (Arc::new(message), Some(said.item));
        let entry = Entry { message, item, marks: said.marks };
        self.entries.insert(self.entries.len() - round, entry);
        self.trim();
    }

    /// The output of a call came. An interim one is acknowledged and waits for the last.
    pub(crate) fn tool_output(&mut self, response: ToolResponse) -> Accepted {
        let known = |call: &OpenCall| call.id == response.id && call.output.is_none();
        let interim = response.will_continue == Some(true);
        let silent = response.scheduling == ToolResponseScheduling::Silent;
        if interim && self.aside.iter().any(known) {
            return Accepted::Waiting;
        }
        let Some(call) = self.open.iter_mut().find(|call| known(call)) else {
            return Accepted::Unknown;
        };
        if interim {
            return Accepted::Waiting;
        }
        call.output = Some(response.response);
        call.silent = silent;
        if self.open.iter().any(|call| call.output.is_none() && !call.aside) {
            return Accepted::Waiting;
        }
        Accepted::All { silent: self.answer_open_calls() }
    }

    /// The calls of the last message have their outputs, or nobody waits for them. Whether none of
    /// these is to be spoken of.
    fn answer_open_calls(&mut self) -> bool {
        let calls = std::mem::take(&mut self.open);
        let mut outputs = Vec::new();
        let mut silent = true;
        for call in calls {
            silent &= call.silent || call.output.is_none();
            let output = call.output.clone().unwrap_or_else(at_work);
            outputs.push(Part::tool_response(call.name.clone(), Some(call.id.clone()), output));
            if call.output.is_none() {
                self.aside.push(call);
            }
        }
        if self.aside.len() > MAX_ASIDE {
            self.aside.drain(..self.aside.len() - MAX_ASIDE);
        }
        self.insert(Message::new(Role::Tool, outputs).into());
        silent
    }

    /// Takes the call that nobody waits for, for [`History::move_to_end`].
    pub(crate) fn take_aside(&mut self, id: &str) -> Option<OpenCall> {
        let at = self.aside.iter().position(|call| *call.id == *id)?;
        Some(self.aside.remove(at))
    }

    /// A call that nobody waited for has its output: both stand where the model goes on, which no
    /// reply may be doing.
    pub(crate) fn move_to_end(&mut self, call: OpenCall, output: JsonObject) {
        let id = Some(call.id.clone());
        self.entries.retain_mut(|entry| {
            let is_of_call = |part: &Part| {
                let request = part.as_tool_request().map(|request| &request.id);
                let response = part.as_tool_response().map(|response| &response.id);
                request.or(response) == Some(&id)
            };
            if !entry.message.content.iter().any(is_of_call) {
                return true;
            }
            let message = Arc::make_mut(&mut entry.message);
            message.content.retain(|part| !is_of_call(part));
            !message.content.is_empty()
        });
        let request = Part::tool_request(call.name.clone(), id.clone(), call.arguments);
        self.insert(Message::new(Role::Model, vec![request]).into());
        let output = Part::tool_response(call.name, id, output);
        self.insert(Message::new(Role::Tool, vec![output]).into());
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

/// The output of a call that is at work.
fn at_work() -> JsonObject {
    let note = "The tool is at work. Its output comes later; do not call it again meanwhile.";
    JsonObject::from_iter([
        ("status".to_owned(), "running".into()),
        ("note".to_owned(), note.into()),
    ])
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
        history.user(Transcript::new("send five"), None);
        history.model(said("1", "", vec![call("a"), call("b")]), |_| false);
        history.model(said("2", "Send five?", vec![]), |_| false);
        history.user(Transcript::new("yes"), None);
        assert_eq!(history.tool_output(output("b")), Accepted::Waiting);
        assert_eq!(history.tool_output(output("b")), Accepted::Unknown);
        assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
        assert_eq!(texts(&history), ["send five", "Send five?", "yes", "", ""]);
        assert_eq!(roles(&history)[3..], [Role::Model, Role::Tool]);
        assert!(!history.is_waiting());
    }

    #[test]
    fn the_model_goes_on_from_outputs_whatever_is_said_before_it_does() {
        let mut history = History::new(20, Vec::new());
        history.user(Transcript::new("what time is it"), None);
        history.model(said("1", "One moment.", vec![call("a")]), |_| false);
        assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
        history.said_beside(said("2", "Your request was approved.", vec![]));
        let expected = ["what time is it", "Your request was approved.", "One moment.", ""];
        assert_eq!(texts(&history), expected);
        assert_eq!(roles(&history).last(), Some(&Role::Tool));
        assert!(history.truncate("2", Some("Your request"), 0));
    }

    #[test]
    fn an_interrupted_reply_keeps_what_was_heard() {
        let mut history = History::new(20, Vec::new());
        history.model(said("1", "One two three.", vec![]), |_| false);
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
            history.user(Transcript::new(format!("question {turn}")), None);
            history.model(said("1", "", vec![call("a")]), |_| false);
            assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
            history.model(said("2", "answer", vec![]), |_| false);
            assert!(history.entries.len() <= 5);
            assert_eq!(roles(&history)[0], Role::User);
        }
    }

    #[test]
    fn one_endless_turn_is_bounded_and_never_begins_with_an_output() {
        let mut history = History::new(6, Vec::new());
        history.user(Transcript::new("go"), None);
        for _ in 0..40 {
            history.model(said("1", "", vec![call("a")]), |_| false);
            assert!(history.entries.len() <= 6);
            assert_eq!(history.tool_output(output("a")), Accepted::All { silent: false });
            assert!(history.entries.len() <= 6);
            assert_ne!(roles(&history)[0], Role::Tool);
        }
    }

    #[test]
    fn an_interim_output_does_not_answer_the_call() {
        let mut history = History::new(6, Vec::new());
        history.model(said("1", "", vec![call("a")]), |_| false);
        let mut interim = output("a");
        interim.will_continue = Some(true);
        assert_eq!(history.tool_output(interim), Accepted::Waiting);
        assert!(history.is_waiting());
        let mut last = output("a");
        last.scheduling = antiphon_types::ToolResponseScheduling::Silent;
        assert_eq!(history.tool_output(last), Accepted::All { silent: true });
    }
}
