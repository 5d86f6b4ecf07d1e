//! What a speech model is told of the conversation so far.

use std::{collections::HashMap, sync::Arc};

use antiphon_agent::{
    Message, Messages, Part, Role, cut_output,
    ledger::{parked_output, unanswered},
    message::{ToolRequest, ToolResponse},
    types::{JsonObject, ToolCall},
};
use serde_json::{Value, json};

use super::turns::is_note;
use crate::{
    live::{HistoryItem, HistoryRole},
    session::{HistoryLimits, Restored},
};

/// Bytes of text that are taken for one token.
const BYTES_PER_TOKEN: usize = 4;
/// One output of a tool takes at most this part of all bytes, so that it does not stand in the place of
/// the words around it.
const ONE_OUTPUT: usize = 4;

/// The end of a conversation.
#[derive(Debug, PartialEq)]
pub(super) struct Told {
    pub(super) items: Vec<HistoryItem>,
    /// The items before these.
    pub(super) left_out: Vec<HistoryItem>,
}

impl Told {
    /// How much of the conversation this is.
    pub(super) fn restored(&self) -> Restored {
        match (self.items.is_empty(), self.left_out.is_empty()) {
            (_, true) => Restored::Full,
            (false, false) => Restored::Cut,
            (true, false) => Restored::None,
        }
    }
}

/// What a model is told of `messages`: words as they were heard, calls with their outputs. Pictures
/// and sounds, thoughts and what only the host understands are left out; of long outputs the beginning
/// is told.
pub(super) fn told(messages: &Messages, limits: HistoryLimits) -> Told {
    let mut rounds = rounds(messages);
    let most = limits.tokens.saturating_mul(BYTES_PER_TOKEN) / ONE_OUTPUT;
    for item in rounds.iter_mut().flat_map(|round| &mut round.items) {
        if let HistoryItem::Tool { response, .. } = item
            && let Some(cut) = cut_output(response, most)
        {
            *response = cut;
        }
    }
    let (mut items, mut bytes, mut turns, mut from) = (0, 0, 0, rounds.len());
    for (at, round) in rounds.iter().enumerate().rev() {
        items += round.items.len();
        bytes += round.items.iter().map(size).sum::<usize>();
        let too_much = items > limits.items || bytes.div_ceil(BYTES_PER_TOKEN) > limits.tokens;
        if too_much || turns >= limits.turns {
            break;
        }
        from = at;
        let follows_users = at > 0 && rounds[at - 1].is_users;
        turns += usize::from(round.is_users && !follows_users);
    }
    if from > 0 {
        // An answer without its question would only puzzle.
        let question = rounds[from..].iter().position(|round| round.is_users);
        from = question.map_or(rounds.len(), |at| from + at);
    }
    if from == rounds.len() && limits.turns > 0 {
        return words_of_newest(rounds, limits);
    }
    let items = items_of(rounds.split_off(from));
    Told { items, left_out: items_of(rounds) }
}

/// Where not even the newest turn is within the limits: what the user said in it, then as many as there is
/// room for of the agent's words and then of its rounds of tools, the newest first.
fn words_of_newest(mut rounds: Vec<Round>, limits: HistoryLimits) -> Told {
    let Some(last) = rounds.iter().rposition(|round| round.is_users) else {
        return Told { items: Vec::new(), left_out: items_of(rounds) };
    };
    let before = rounds[..last].iter().rposition(|round| !round.is_users);
    let turn: Vec<_> = rounds
        .split_off(before.map_or(0, |at| at + 1))
        .into_iter()
        .flat_map(|round| {
            let (words, calls) = round.items.into_iter().partition(is_words);
            let is_users = round.is_users;
            [(words, true), (calls, false)].map(|(items, words)| (Round { items, is_users }, words))
        })
        .collect();
    let mut kept = vec![false; turn.len()];
    let (mut items, mut bytes) = (0, 0);
    let mut keep = |at: usize| {
        let round = &turn[at].0.items;
        let (more, most) = (round.iter().map(size).sum::<usize>(), limits.tokens);
        let fits =
            items + round.len() <= limits.items && (bytes + more).div_ceil(BYTES_PER_TOKEN) <= most;
        if fits {
            (items, bytes, kept[at]) = (items + round.len(), bytes + more, true);
        }
        fits
    };
    let newest_first = || (0..turn.len()).rev();
    let all_said = newest_first().filter(|at| turn[*at].0.is_users).all(&mut keep);
    if all_said {
        for words in [true, false] {
            for at in newest_first() {
                if !turn[at].0.is_users && turn[at].1 == words {
                    keep(at);
                }
            }
        }
    } else {
        // An answer without its question would only puzzle, and so does half a question.
        kept.fill(false);
    }
    let mut told = Told { items: Vec::new(), left_out: items_of(rounds) };
    for ((round, _), kept) in turn.into_iter().zip(kept) {
        if kept { &mut told.items } else { &mut told.left_out }.extend(round.items);
    }
    told
}

fn items_of(rounds: Vec<Round>) -> Vec<HistoryItem> {
    rounds.into_iter().flat_map(|round| round.items).collect()
}

fn is_words(item: &HistoryItem) -> bool {
    matches!(item, HistoryItem::Message { .. })
}

/// What is told as a whole or not at all.
struct Round {
    items: Vec<HistoryItem>,
    is_users: bool,
}

fn rounds(messages: &Messages) -> Vec<Round> {
    let mut outputs = Outputs::of(messages);
    let mut rounds = Vec::new();
    for message in messages.iter() {
        let role = match message.role {
            Role::User => HistoryRole::User,
            Role::Model => HistoryRole::Agent,
            // The host's own words are in the instructions; outputs stand with their calls.
            Role::System | Role::Tool => continue,
        };
        let mut items = Vec::new();
        let text = said(message);
        if !text.is_empty() {
            items.push(HistoryItem::Message { role, text });
        }
        for (part, request) in message.tool_requests() {
            let response = outputs.take(part, request);
            items.push(HistoryItem::Tool { call: call(request), response });
        }
        if !items.is_empty() {
            rounds.push(Round { items, is_users: role == HistoryRole::User });
        }
    }
    rounds
}

/// The words of a message that somebody said.
fn said(message: &Message) -> String {
    let said = message.content.iter().filter(|part| !is_note(part));
    let text: String = said.filter_map(|part| part.as_text()).collect();
    text.trim().to_owned()
}

/// The outputs of a conversation by call. An id may come again in later turns: each request takes the
/// first output that is left.
struct Outputs<'a>(HashMap<(&'a str, &'a str), Vec<&'a ToolResponse>>);

impl<'a> Outputs<'a> {
    fn of(messages: &'a Messages) -> Self {
        let mut outputs: HashMap<_, Vec<_>> = HashMap::new();
        let newest_first: Vec<_> = messages.iter().collect();
        for message in newest_first.into_iter().rev() {
            for (part, response) in message.tool_responses() {
                if !part.is_partial() {
                    let key = (&*response.name, response.id.as_deref().unwrap_or_default());
                    outputs.entry(key).or_default().push(response);
                }
            }
        }
        Self(outputs)
    }

    fn take(&mut self, part: &'a Part, request: &'a ToolRequest) -> JsonObject {
        let key = (&*request.name, request.id.as_deref().unwrap_or_default());
        let response = self.0.get_mut(&key).and_then(Vec::pop);
        let output = response.map(|response| response.output.clone().unwrap_or_default());
        // One at the end of the conversation may have it itself.
        match output.or_else(|| parked_output(part).cloned()) {
            Some(Value::Object(output)) => output,
            Some(output) => JsonObject::from_iter([("output".to_owned(), output)]),
            None => JsonObject::from_iter([("error".to_owned(), unanswered(part).into())]),
        }
    }
}

fn call(request: &ToolRequest) -> ToolCall {
    let args = match &request.input {
        Some(Value::Object(args)) => args.clone(),
        None | Some(Value::Null) => JsonObject::new(),
        Some(other) => JsonObject::from_iter([("input".to_owned(), other.clone())]),
    };
    let id: Arc<str> = request.id.clone().unwrap_or_default();
    ToolCall { id, name: request.name.clone(), args }
}

/// About how many bytes of text an item is.
fn size(item: &HistoryItem) -> usize {
    match item {
        HistoryItem::Message { text, .. } => text.len(),
        HistoryItem::Tool { call, response } => {
            call.name.len() + json!(call.args).to_string().len() + json!(response).to_string().len()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(id: &str) -> Part {
        Part::tool_request("clock", Some(id.into()), json!({ "zone": id }))
    }

    fn output(id: &str) -> Part {
        Part::tool_response("clock", Some(id.into()), json!("noon"))
    }

    fn told_of(messages: Vec<Message>) -> Vec<HistoryItem> {
        let messages = messages.into_iter().map(Arc::new).collect();
        told(&messages, HistoryLimits::default()).items
    }

    #[test]
    fn each_call_is_told_with_its_own_output() {
        // The same id in two turns, and an output that came after other words.
        let items = told_of(vec![
            Message::new(Role::Model, vec![Part::text("Let me see."), request("a")]),
            Message::new(Role::Tool, vec![output("a")]),
            Message::new(Role::Model, vec![request("a"), request("b")]),
            Message::model("One moment."),
            Message::new(Role::Tool, vec![output("b")]),
        ]);
        let outputs: Vec<_> = items
            .iter()
            .filter_map(|item| match item {
                HistoryItem::Tool { call, response } => {
                    Some((call.id.to_string(), response.contains_key("output")))
                }
                _ => None,
            })
            .collect();
        assert_eq!(outputs, [("a".into(), true), ("a".into(), false), ("b".into(), true)]);
        assert_eq!(items.len(), 5);
    }

    #[test]
    fn what_cannot_be_said_is_left_out() {
        let items = told_of(vec![
            Message::system("Be kind."),
            Message::new(Role::User, vec![Part::media("data:image/png;base64,", None)]),
            Message::new(Role::User, vec![Part::text("Look. "), Part::data(json!({ "x": 1 }))]),
            Message::new(Role::Model, vec![Part::reasoning("hm"), Part::text("I see.")]),
        ]);
        let message = |role, text: &str| HistoryItem::Message { role, text: text.into() };
        let expected = [message(HistoryRole::User, "Look."), message(HistoryRole::Agent, "I see.")];
        assert_eq!(items, expected);
    }

    #[test]
    fn what_is_done_beside_a_call_that_waits_is_told_as_done() {
        let done = request("a").with_metadata_entry("pendingOutput", json!("noon"));
        let asks = request("b").with_metadata_entry("interrupt", json!(true));
        let items = told_of(vec![Message::new(Role::Model, vec![done, asks])]);
        let outputs: Vec<_> = items
            .iter()
            .filter_map(|item| match item {
                HistoryItem::Tool { response, .. } => Some(json!(response).to_string()),
                _ => None,
            })
            .collect();
        assert!(outputs[0].contains("noon") && outputs[1].contains("was not done"), "{outputs:?}");
    }

    #[test]
    fn so_many_turns_are_told() {
        let messages = vec![
            Message::user("One."),
            Message::model("First."),
            // Two messages before the answer are one turn.
            Message::user("Two."),
            Message::user("I mean, two."),
            Message::new(Role::Model, vec![request("a")]),
            Message::new(Role::Tool, vec![output("a")]),
            Message::model("Second."),
            Message::user("Three."),
        ];
        let messages: Messages = messages.into_iter().map(Arc::new).collect();
        let told = |turns| told(&messages, HistoryLimits::default().turns(turns));
        let counts = [0, 1, 2, 3, 9].map(|turns| told(turns).items.len());
        assert_eq!(counts, [0, 1, 5, 7, 7]);
        assert_eq!(told(2).left_out.len(), 2);
    }

    /// A conversation whose newest turn has these outputs.
    fn long(outputs: &[usize]) -> Messages {
        let calls = (0..outputs.len()).map(|n| request(&n.to_string())).collect();
        let responses = outputs.iter().enumerate().map(|(n, bytes)| {
            Part::tool_response("clock", Some(n.to_string().into()), json!("x".repeat(*bytes)))
        });
        let messages = vec![
            Message::user("Hello."),
            Message::model("Good day."),
            Message::user("List my invoices."),
            Message::new(Role::Model, calls),
            Message::new(Role::Tool, responses.collect()),
            Message::model("You have 200."),
        ];
        messages.into_iter().map(Arc::new).collect()
    }

    #[test]
    fn one_long_output_does_not_stand_in_the_place_of_all_that_was_said() {
        let told = told(&long(&[40_000]), HistoryLimits::default());
        assert_eq!((told.items.len(), told.left_out.len()), (5, 0));
        let HistoryItem::Tool { response, .. } = &told.items[3] else { panic!() };
        assert_eq!(response["truncated"], true, "the model is told that there is more");
        let bytes: usize = told.items.iter().map(size).sum();
        assert!((8_000..9_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn of_a_turn_that_is_too_long_the_words_are_told() {
        let told = told(&long(&[8_000; 9]), HistoryLimits::default());
        let message = |role, text: &str| HistoryItem::Message { role, text: text.into() };
        let question = message(HistoryRole::User, "List my invoices.");
        let expected = [question, message(HistoryRole::Agent, "You have 200.")];
        assert_eq!((&told.items[..], told.restored()), (&expected[..], Restored::Cut));
        assert_eq!(told.left_out.len(), 2 + 9);
    }

    fn message() -> impl Strategy<Value = Message> {
        let text = prop_oneof![Just(""), Just("a"), Just("some words that are longer")];
        (0..3, text, 0..3usize).prop_map(|(role, text, calls)| match role {
            0 => Message::user(text),
            1 => Message::model(text),
            _ => Message::new(Role::Model, (0..calls).map(|n| request(&n.to_string())).collect()),
        })
    }

    proptest! {
        #[test]
        fn what_is_told_is_an_end_within_bounds_that_begins_with_the_user(
            messages in prop::collection::vec(message(), 0..40),
            items in 0..30usize,
            tokens in 0..200usize,
        ) {
            let messages: Messages = messages.into_iter().map(Arc::new).collect();
            let all = told(&messages, HistoryLimits::new(usize::MAX, usize::MAX));
            prop_assert!(all.left_out.is_empty());
            let cut = told(&messages, HistoryLimits::new(items, tokens));
            prop_assert!(cut.items.len() <= items);
            let bytes: usize = cut.items.iter().map(size).sum();
            prop_assert!(bytes <= tokens * BYTES_PER_TOKEN);
            let words = |items: &[HistoryItem]| -> Vec<HistoryItem> {
                items.iter().filter(|item| is_words(item)).cloned().collect()
            };
            let (end, all_words) = (words(&cut.items), words(&all.items));
            let whole = cut.left_out.len() + cut.items.len();
            prop_assert_eq!(whole, all.items.len());
            let users = |item: &HistoryItem| {
                matches!(item, HistoryItem::Message { role: HistoryRole::User, .. })
            };
            // The end of what was said, or, without answers that are too long, the newest turn.
            let one_turn = !end.iter().skip_while(|item| users(item)).any(users);
            prop_assert!(all_words.ends_with(&end) || one_turn);
            let newest = all.items.iter().rposition(users);
            let said = newest.map(|at| size(&all.items[at])).unwrap_or(usize::MAX);
            let one_message = newest.is_some_and(|at| at == 0 || !users(&all.items[at - 1]));
            if one_message && items > 0 && said.div_ceil(BYTES_PER_TOKEN) <= tokens {
                prop_assert!(!cut.items.is_empty(), "what was said last fits");
            }
            if !cut.left_out.is_empty() && let Some(first) = cut.items.first() {
                let users = matches!(first, HistoryItem::Message { role: HistoryRole::User, .. });
                prop_assert!(users);
            }
        }
    }
}
