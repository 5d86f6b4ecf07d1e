//! What to say or do next, from the conversation so far.

use antiphon_agent::{Message, Role, types::JsonObject};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    super::phonemes::Phonemes,
    align::{self, Match, Matching},
    answer,
    catalog::Catalog,
    hearing::{self, Hearing},
    slots::{self, Read, Slot},
    small_talk::{BuiltIn, built_in},
    words::{self, Kind, Word},
};

/// Where the state is kept in the metadata of the model's messages.
const STATE: &str = "phraseMatcher";

/// A slot is asked for at most this often.
const MAX_QUESTIONS: u32 = 3;

/// Parts of an utterance that ask for more than one thing.
const MAX_INTENTS: usize = 3;

/// Half-sentences must match this well to count as requests of their own.
const ACCEPT_PART: f32 = 0.2;

/// What [`Understood::doubt`] is where nothing was understood.
const NOT_UNDERSTOOD: f32 = 1.0;

/// What a question adds to the doubt: a reading that answers itself is likelier meant.
const INCOMPLETE: f32 = 0.15;

/// How much one unit of doubt counts beside the logarithm of a reading's probability.
const DOUBT_WEIGHT: f32 = 10.0;

/// Where another number is nearly as likely (its share of the first's probability, as a logarithm),
/// it is asked for rather than guessed.
const UNDECIDED: f32 = -0.3;

/// What the matcher remembers from one of its turns to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<Pending>,
    /// How many turns in a row were not understood.
    #[serde(skip_serializing_if = "is_zero")]
    rejected: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A call that lacks an argument.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Pending {
    tool: String,
    args: JsonObject,
    slot: String,
    asked: u32,
    /// The values that the question offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    choices: Vec<Value>,
}

/// The matcher's turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    pub(super) text: String,
    /// Names and arguments.
    pub(super) calls: Vec<(String, JsonObject)>,
    pub(super) metadata: JsonObject,
}

/// Continues `messages`.
pub(super) fn reply(
    catalog: &Catalog,
    messages: &[impl AsRef<Message>],
    phonemes: &Phonemes,
) -> Reply {
    let messages: Vec<&Message> = messages.iter().map(AsRef::as_ref).collect();
    let new = messages.iter().rposition(|m| m.role == Role::Model).map_or(0, |at| at + 1);
    let turn = Turn { catalog, phonemes, history: &messages[..new] };
    let (mut results, mut said) = (Vec::new(), Vec::new());
    for message in &messages[new..] {
        match message.role {
            Role::Tool => results.extend(turn.answers(message)),
            Role::User => said.push(*message),
            Role::Model | Role::System => {}
        }
    }
    let hearings = hearing::hearings(&said);
    let Understood { outcome, state, .. } = if results.is_empty() {
        turn.make_sense(&hearings, |hearing| turn.hear(hearing))
    } else {
        // A user who said `yes` or `no` to a read-back has been heard already; a new request has not.
        turn.make_sense(&hearings, |hearing| match built_in(&hearing.words) {
            None => turn
                .requests(&hearing.words)
                .map_or_else(Understood::nothing, |requests| turn.act(requests)),
            Some(_) => Understood::default(),
        })
    };
    let Outcome { text, calls } = outcome;
    results.extend((!text.is_empty()).then_some(text));
    let mut metadata = JsonObject::new();
    metadata.insert(STATE.into(), serde_json::to_value(state).unwrap_or_default());
    Reply { text: results.join(" "), calls, metadata }
}

/// What the matcher makes of one reading of what was said.
#[derive(Clone, Debug, Default)]
struct Understood {
    outcome: Outcome,
    state: State,
    /// How far the words are from what could be understood: 0 is word for word, 1 not at all.
    doubt: f32,
}

impl Understood {
    fn nothing() -> Self {
        Self { doubt: NOT_UNDERSTOOD, ..Self::default() }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Outcome {
    text: String,
    calls: Vec<(String, JsonObject)>,
}

impl Outcome {
    fn say(text: impl Into<String>) -> Self {
        Self { text: text.into(), calls: Vec::new() }
    }
}

struct Turn<'a> {
    catalog: &'a Catalog,
    phonemes: &'a Phonemes,
    /// All before what is new.
    history: &'a [&'a Message],
}

impl Turn<'_> {
    /// The sentences for a message of tool outputs.
    fn answers(&self, message: &Message) -> Vec<String> {
        let mut answers = Vec::new();
        let none = JsonObject::new();
        for (_, response) in message.tool_responses() {
            let (name, id) = (&*response.name, response.id.as_deref());
            let request = self
                .history
                .iter()
                .rev()
                .flat_map(|message| message.tool_requests())
                .find(|(_, request)| request.is_call(name, id))
                .and_then(|(_, request)| request.input.as_ref()?.as_object());
            let output = response.output.as_ref().and_then(|output| output.as_object());
            let tools = &self.catalog.tools;
            let entry = (0..tools.len()).find(|&t| *self.catalog.definition(t).name == *name);
            let tool = entry.map(|t| (self.catalog.definition(t), &tools[t].slots[..]));
            answers.push(answer::answer(tool, request.unwrap_or(&none), output.unwrap_or(&none)));
        }
        answers
    }

    /// The state that the last turn left, if nothing was said since that it does not know of.
    fn state(&self) -> State {
        for message in self.history.iter().rev() {
            match message.role {
                Role::User => break,
                _ => {
                    let state = message.metadata.as_ref().and_then(|metadata| metadata.get(STATE));
                    if let Some(state) = state {
                        return serde_json::from_value(state.clone()).unwrap_or_default();
                    }
                }
            }
        }
        State::default()
    }

    /// What the readings come to: the one that is likely and makes sense.
    fn make_sense(
        &self,
        hearings: &[Hearing],
        understand: impl Fn(&Hearing) -> Understood,
    ) -> Understood {
        // Readings that come to the same speak for each other.
        let mut ranked: Vec<(f32, Understood)> = Vec::new();
        for hearing in hearings {
            let understood = understand(hearing);
            let score = hearing.log_ratio - DOUBT_WEIGHT * understood.doubt;
            match ranked.iter_mut().find(|(_, known)| known.outcome == understood.outcome) {
                Some((known, same)) => {
                    *known = hearing::add_probabilities(*known, score);
                    same.doubt = same.doubt.min(understood.doubt);
                }
                None => ranked.push((score, understood)),
            }
        }
        // The first of equals: it was heard so.
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let undecided = match &ranked[..] {
            [(best, first), (next, second), ..] if next - best > UNDECIDED => {
                self.which(&first.outcome, &second.outcome)
            }
            _ => None,
        };
        let best = ranked.into_iter().next().map(|(_, understood)| understood);
        undecided.or(best).unwrap_or_default()
    }

    /// The question which of two calls was meant, where they differ in one number only and the user
    /// was not asked already.
    fn which(&self, first: &Outcome, second: &Outcome) -> Option<Understood> {
        let ([(name, args)], [(other_name, other_args)]) = (&first.calls[..], &second.calls[..])
        else {
            return None;
        };
        let apart: Vec<&String> =
            args.keys().filter(|key| args.get(*key) != other_args.get(*key)).collect();
        let [key] = apart[..] else { return None };
        let (value, other) = (args.get(key)?, other_args.get(key)?);
        let numbers = value.is_number() && other.is_number();
        if name != other_name || args.len() != other_args.len() || !numbers {
            return None;
        }
        if self.state().pending.is_some() {
            return None;
        }
        let tools = &self.catalog.tools;
        let tool = (0..tools.len()).find(|&t| *self.catalog.definition(t).name == **name)?;
        let slot = slot_named(&tools[tool].slots, key)?;
        let mut args = args.clone();
        args.remove(key);
        let pending = Pending {
            tool: name.clone(),
            args,
            slot: key.clone(),
            asked: 1,
            choices: vec![value.clone(), other.clone()],
        };
        let question = format!("Did you say {}, or {}?", slot.spoken(value), slot.spoken(other));
        Some(Understood {
            outcome: Outcome::say(question),
            state: State { pending: Some(pending), rejected: 0 },
            doubt: 0.0,
        })
    }

    /// What the user wants.
    fn hear(&self, hearing: &Hearing) -> Understood {
        let Hearing { words, cut, wordless, .. } = hearing;
        let mut state = self.state();
        if words.is_empty() && !wordless {
            return Understood { state, ..Understood::nothing() };
        }
        let built_in = built_in(words);
        if let Some(pending) = state.pending.take()
            && let Some(done) = self.continued(pending, words, built_in)
        {
            return done;
        }
        if let Some(built_in) = built_in {
            // A tool may have taken the word for itself, but only that very word.
            return match align::find(self.catalog, words, self.phonemes) {
                Matching::Match(found) if found.cost < 0.05 => self.act(vec![found]),
                _ => Understood {
                    outcome: Outcome::say(self.small_talk(built_in)),
                    ..Understood::default()
                },
            };
        }
        match self.requests(words).filter(|_| !*cut) {
            Some(requests) => self.act(requests),
            None => self.reject(words, state.rejected),
        }
    }

    /// The requests in `words`, at least one.
    fn requests(&self, words: &[Word]) -> Option<Vec<Match>> {
        let whole = match align::find(self.catalog, words, self.phonemes) {
            Matching::Match(found) => Some(found),
            Matching::Nothing { .. } => None,
        };
        if whole.as_ref().is_some_and(|whole| whole.cost < 0.1) {
            return whole.map(|whole| vec![whole]);
        }
        let worst = whole.as_ref().map_or(ACCEPT_PART, |whole| whole.cost.min(ACCEPT_PART));
        self.split(words, worst, MAX_INTENTS).or_else(|| whole.map(|whole| vec![whole]))
    }

    /// Several requests in one utterance, each complete and better than `worst`.
    fn split(&self, words: &[Word], worst: f32, parts: usize) -> Option<Vec<Match>> {
        let good = |words: &[Word]| match align::find(self.catalog, words, self.phonemes) {
            Matching::Match(found) if found.cost < worst && self.is_complete(&found) => Some(found),
            _ => None,
        };
        let joints = (1..words.len()).filter(|&at| {
            words[at].boundary || matches!(words[at].norm.as_str(), "and" | "then" | "also")
        });
        for joint in joints.take(8) {
            let Some(first) = good(&words[..joint]) else { continue };
            let mut rest: Vec<Word> = words[joint..].to_vec();
            let glue = |word: &Word| matches!(word.norm.as_str(), "and" | "then" | "also");
            rest.drain(..rest.iter().take_while(|word| glue(word)).count());
            words::mark_frames(&mut rest);
            let more = match good(&rest) {
                Some(second) => Some(vec![second]),
                None if parts > 2 => self.split(&rest, worst, parts - 1),
                None => None,
            };
            if let Some(mut more) = more {
                more.insert(0, first);
                return Some(more);
            }
        }
        None
    }

    fn is_complete(&self, found: &Match) -> bool {
        let slots = &self.catalog.tools[found.tool].slots;
        let mut args = found.args.clone();
        slots::first_missing(slots, &mut args).is_none()
            && args.iter().all(|(name, value)| {
                slot_named(slots, name).is_none_or(|slot| slot.violation(value).is_none())
            })
    }

    /// Calls the tools, or asks for what is missing.
    fn act(&self, requests: Vec<Match>) -> Understood {
        let mut done = Understood::default();
        for found in requests {
            let Understood { outcome, state, doubt } = self.call(found.tool, found.args, 0);
            done.outcome.calls.extend(outcome.calls);
            done.outcome.text = outcome.text;
            done.state = state;
            done.doubt = done.doubt.max(found.cost + doubt);
        }
        done
    }

    fn call(&self, tool: usize, mut args: JsonObject, asked: u32) -> Understood {
        let definition = self.catalog.definition(tool);
        let slots = &self.catalog.tools[tool].slots;
        let mut complaint = String::new();
        for slot in slots {
            if let Some(text) = args.get(&slot.property).and_then(|value| slot.violation(value)) {
                args.remove(&slot.property);
                if complaint.is_empty() {
                    complaint = text;
                }
                if !slot.required {
                    // Asked for all the same: the user wanted it otherwise.
                    return self.ask(tool, slot, args, asked, &complaint);
                }
            }
        }
        match slots::first_missing(slots, &mut args) {
            Some(slot) => self.ask(tool, slot, args, asked, &complaint),
            None => {
                let call = (definition.name.to_string(), args);
                let outcome = Outcome { text: String::new(), calls: vec![call] };
                Understood { outcome, ..Understood::default() }
            }
        }
    }

    fn ask(
        &self,
        tool: usize,
        slot: &Slot,
        args: JsonObject,
        asked: u32,
        complaint: &str,
    ) -> Understood {
        if asked >= MAX_QUESTIONS {
            let outcome = Outcome::say(join(complaint, "Let us leave it then."));
            return Understood { outcome, state: State::default(), doubt: INCOMPLETE };
        }
        let definition = self.catalog.definition(tool);
        let own =
            definition.speech.as_ref().and_then(|speech| speech.questions.get(&slot.property));
        let question = own.cloned().unwrap_or_else(|| slot.question());
        let pending = Pending {
            tool: definition.name.to_string(),
            args,
            slot: slot.property.clone(),
            asked: asked + 1,
            choices: Vec::new(),
        };
        let state = State { pending: Some(pending), rejected: 0 };
        Understood { outcome: Outcome::say(join(complaint, &question)), state, doubt: INCOMPLETE }
    }

    /// The answer to a question; `None` when it is something else.
    fn continued(
        &self,
        pending: Pending,
        words: &[Word],
        built_in: Option<BuiltIn>,
    ) -> Option<Understood> {
        let tools = &self.catalog.tools;
        let tool = (0..tools.len()).find(|&t| *self.catalog.definition(t).name == *pending.tool)?;
        let slot = slot_named(&tools[tool].slots, &pending.slot)?;
        let Pending { args, asked, choices, .. } = pending;
        let boolean = matches!(slot.kind, slots::SlotKind::Boolean);
        let given_up =
            || Some(Understood { outcome: Outcome::say("All right."), ..Understood::default() });
        match built_in {
            Some(BuiltIn::Cancel) => return given_up(),
            Some(BuiltIn::No) if !boolean => return given_up(),
            Some(BuiltIn::Repeat) => return Some(self.ask(tool, slot, args, asked - 1, "")),
            Some(BuiltIn::Yes) if !boolean => return Some(self.ask(tool, slot, args, asked, "")),
            Some(BuiltIn::Help | BuiltIn::Goodbye) => return None,
            _ => {}
        }
        let filled = |value: Value, cost: f32| {
            let mut args = args.clone();
            args.insert(slot.property.clone(), value);
            let mut done = self.call(tool, args, asked);
            done.doubt += cost;
            Some(done)
        };
        if let Some(value) = chosen(slot, &choices, words) {
            return filled(value, 0.0);
        }
        let whole = self.value(slot, words, true);
        if let Some((value, cost)) = &whole
            && !slot.is_open()
        {
            return filled(value.clone(), *cost);
        }
        // A new request drops the question, unless it is about the same thing.
        if let Some(requests) = self.requests(words) {
            let most = if slot.is_open() { 0.1 } else { align::ACCEPT };
            if let [one] = &requests[..]
                && one.tool == tool
                && one.cost <= most
            {
                let mut args = args.clone();
                args.extend(one.args.clone());
                let mut done = self.call(tool, args, asked);
                done.doubt += one.cost;
                return Some(done);
            }
            if requests.iter().all(|request| request.cost <= most) {
                return Some(self.act(requests));
            }
        }
        if let Some((value, cost)) = whole.or_else(|| self.value(slot, words, false)) {
            return filled(value, cost);
        }
        let mut again = self.ask(tool, slot, args, asked, "Sorry, I did not get that.");
        again.doubt = NOT_UNDERSTOOD;
        Some(again)
    }

    /// The value of `slot` in an answer: all of it, or somewhere in it. And how doubtful it is.
    fn value(&self, slot: &Slot, words: &[Word], whole: bool) -> Option<(Value, f32)> {
        let lead = |word: &Word| {
            word.kind == Kind::Filler
                || matches!(
                    word.norm.as_str(),
                    "for"
                        | "at"
                        | "to"
                        | "in"
                        | "it"
                        | "is"
                        | "make"
                        | "about"
                        | "the"
                        | "say"
                        | "that"
                        | "would"
                        | "be"
                        | "maybe"
                        | "let"
                        | "us"
                        | "with"
                        | "i"
                        | "think"
                        | "from"
                )
        };
        let leading = words.iter().take_while(|word| lead(word)).count();
        if slot.is_open() {
            if !whole {
                return None;
            }
            // `to buy milk`: only true filler goes.
            let text = matches!(slot.kind, slots::SlotKind::Name);
            let start = if text { leading } else { 0 };
            return slot.spelled_out(&words[start..]).map(|value| (value, 0.0));
        }
        let starts = if whole { leading.saturating_sub(1)..leading + 1 } else { 0..words.len() };
        let mut found: Option<(usize, f32, Value)> = None;
        for at in starts.rev() {
            let Some(rest) = words.get(at..).filter(|rest| !rest.is_empty()) else { continue };
            for reading in slot.readings(rest, self.phonemes) {
                let Read::Value(value) = reading.value else { continue };
                let left = &rest[reading.words..];
                let over =
                    left.iter().any(|word| !matches!(word.kind, Kind::Filler | Kind::Function));
                let numbers = left.iter().any(|word| word.kind == Kind::Number);
                if (whole && over) || numbers {
                    continue;
                }
                let better = found.as_ref().is_none_or(|(length, cost, _)| {
                    reading.cost < *cost - 1e-4
                        || (reading.cost <= *cost && reading.words > *length)
                });
                if better {
                    found = Some((reading.words, reading.cost, value));
                }
            }
            if whole && found.is_some() {
                break;
            }
        }
        found.map(|(_, cost, value)| (value, cost))
    }

    fn reject(&self, words: &[Word], rejected: u32) -> Understood {
        let near = match align::find(self.catalog, words, self.phonemes) {
            Matching::Nothing { nearest } => nearest,
            Matching::Match(found) => Some(found.tool),
        };
        let example = |tool: usize| self.catalog.tools[tool].example.as_deref();
        let examples: Vec<&str> = (0..self.catalog.tools.len()).filter_map(example).collect();
        let turn = rejected as usize;
        let suggested = match near.filter(|_| turn == 0).and_then(example) {
            Some(example) => Some(example),
            None => examples.get(turn % examples.len().max(1)).copied(),
        };
        let text = match (suggested, rejected) {
            (None, _) => "Sorry, I did not understand that.".to_owned(),
            (Some(example), 0) => {
                format!("Sorry, I did not understand that. You can say, for example: {example}.")
            }
            (Some(example), 1) => {
                format!("I still did not get that. Try saying: {example}. Or ask me what I can do.")
            }
            (Some(example), _) => {
                format!("I am afraid I cannot help with that. I understand things like: {example}.")
            }
        };
        let state = State { pending: None, rejected: rejected.saturating_add(1) };
        Understood { outcome: Outcome::say(text), state, doubt: NOT_UNDERSTOOD }
    }

    fn small_talk(&self, built_in: BuiltIn) -> String {
        match built_in {
            BuiltIn::Yes | BuiltIn::No | BuiltIn::Cancel => "All right.".into(),
            BuiltIn::Thanks => "You are welcome.".into(),
            BuiltIn::Hello => "Hello. How can I help?".into(),
            BuiltIn::Goodbye => "Goodbye.".into(),
            BuiltIn::Repeat => self.last_answer(),
            BuiltIn::Help => self.help(),
        }
    }

    fn last_answer(&self) -> String {
        let spoken = self.history.iter().rev().filter(|message| message.role == Role::Model);
        let said = spoken.map(|message| message.joined_text()).find(|text| !text.trim().is_empty());
        said.unwrap_or_else(|| "I have not said anything yet.".into())
    }

    fn help(&self) -> String {
        const SHOWN: usize = 5;
        let tools = &self.catalog.tools;
        let line = |tool: usize| match &tools[tool].example {
            Some(example) => example.clone(),
            None => self.catalog.definition(tool).name.replace('_', " "),
        };
        match tools.len() {
            0 => "I can only listen at the moment.".into(),
            count => {
                let shown: Vec<String> = (0..count.min(SHOWN)).map(line).collect();
                let more = if count > SHOWN { " And there is more." } else { "" };
                format!("You can say, for example: {}.{more}", shown.join("; or: "))
            }
        }
    }
}

/// Which of the values that a question offered was taken: `thirty minutes`, `thirty`, `the first`.
fn chosen(slot: &Slot, choices: &[Value], words: &[Word]) -> Option<Value> {
    if choices.is_empty() {
        return None;
    }
    let meant: Vec<&str> = words
        .iter()
        .filter(|word| !matches!(word.kind, Kind::Filler | Kind::Function))
        .map(|word| word.norm.as_str())
        .collect();
    match *meant {
        ["first" | "former"] | ["first", "one"] => return choices.first().cloned(),
        ["second" | "last" | "latter"] | ["second" | "last", "one"] => {
            return choices.last().cloned();
        }
        [] => return None,
        _ => {}
    }
    let mut fitting = choices.iter().filter(|choice| {
        let (said, _) = words::words(&slot.spoken(choice));
        said.iter().map(|word| word.norm.as_str()).take(meant.len()).eq(meant.iter().copied())
    });
    let choice = fitting.next()?;
    fitting.next().is_none().then(|| choice.clone())
}

fn slot_named<'a>(slots: &'a [Slot], name: &str) -> Option<&'a Slot> {
    slots.iter().find(|slot| slot.property == name)
}

fn join(first: &str, second: &str) -> String {
    if first.is_empty() { second.to_owned() } else { format!("{first} {second}") }
}
