//! The messages of a turn.

use std::sync::Arc;

use antiphon_agent::{
    Message, Outcome, Part, Role,
    ledger::{LEDGER, parked_request},
    types::{JsonObject, Usage},
};
use serde_json::{Value, json};

use super::{Call, Content, Done, Entry, Judged, Said};
use crate::session::journal::UtteranceNote;

/// The one key of the metadata that a voice session leaves, an object, on messages and parts. Its
/// members are listed in `docs/voice-record.md`. What is not known is left out. Times called `_ms` with
/// a start or an end, and `t_ms`, are milliseconds since the session started.
///
/// On every message:
///
/// | member | what |
/// |---|---|
/// | `turn` | the turn of the session, from 1; 0 before the first |
/// | `t_ms` | when it was complete |
/// | `late` | `true` where the turn was committed before this was told |
/// | `items` | the provider's ids of what was said |
/// | `usage` | on the last message of a commit: the [`Usage`] of all replies since the commit before |
///
/// On what the user said:
///
/// | member | what |
/// |---|---|
/// | `language` | a BCP 47 tag, where the provider tells |
/// | `audio_start_ms`, `audio_end_ms` | when the user began and stopped to speak |
///
/// On what the agent said, and on a message that asks for tools, `provider`, `model` and `agent` (the name
/// of whom the conversation was handed over to; of the agent that is linked there is none). On what the
/// agent said:
///
/// | member | what |
/// |---|---|
/// | `interrupted` | whether it was cut off |
/// | `generated` | all the words, where they are more than were heard |
/// | `began_ms` | when its first audio was handed over |
/// | `heard_ms`, `generated_ms` | how much audio was heard, and how much there was |
/// | `confidence`, `error_ms` | how that is known: see [`Heard`](crate::session::Heard) |
/// | `latency_ms` | on the first words of a turn: from the end of the user's speech to the first sound |
///
/// A call that waits for a person is asked for by the last message of its turn, without an output, unless
/// it was decided over before the turn ended; see [`LEDGER`]. On a part that asks for a tool: `verdict` (`allow`, `allow_with`, `deny`, `confirmed`,
/// `not_confirmed`, `ask`; missing where nobody was asked) and `args`, the arguments that were approved, where
/// they are others. On a part with a tool's output: `outcome`, how the call ended (see
/// [`Outcome`](antiphon_agent::Outcome)), and `took_ms`, how long it ran. On a text part that nobody
/// said: `note: "interrupted"`.
pub const VOICE: &str = "voice";

/// What the history says of a reply that was cut off before anything of it was heard.
const NOTHING_HEARD: &str = "[The reply was cut off before the user heard any of it.]";
/// What the history says of a reply that was cut off, to whoever reads on.
const UNHEARD: &str = " [The reply was cut off here: the user did not hear the rest.]";

/// Whose voice the agent's is.
#[derive(Clone, Debug, Default)]
pub(super) struct Speaker {
    provider: Arc<str>,
    model: Arc<str>,
    /// To whom the conversation was handed over; `None`: the agent that is linked.
    pub(super) agent: Option<Arc<str>>,
}

impl Speaker {
    pub(super) fn new(provider: Arc<str>, model: Arc<str>) -> Self {
        Self { provider, model, agent: None }
    }

    /// The same agent, by another provider.
    pub(super) fn speak_by(&mut self, provider: Arc<str>, model: Arc<str>) {
        (self.provider, self.model) = (provider, model);
    }
}

/// What a call waits for.
#[derive(Clone, Debug)]
pub(in crate::link) struct Parked {
    /// The key of its record.
    pub(in crate::link) key: Arc<str>,
    pub(in crate::link) question: Value,
    /// It was decided over within its turn, which tells the outcome, too.
    pub(in crate::link) is_over: bool,
}

/// How a call ended that had waited for a person.
#[derive(Clone, Debug)]
pub(in crate::link) struct Settled {
    pub(in crate::link) key: Arc<str>,
    pub(in crate::link) name: Arc<str>,
    pub(in crate::link) args: JsonObject,
    pub(in crate::link) outcome: Outcome,
    pub(in crate::link) output: Value,
}

/// Whether a part is a note on what was said, and was not said itself.
pub(in crate::link) fn is_note(part: &Part) -> bool {
    part.metadata_entry(VOICE).is_some_and(|voice| voice.get("note").is_some())
}

/// The messages of entries that are complete. `usage`: what was used up for them, as far as told.
pub(super) fn messages(entries: Vec<Entry>, usage: Option<Usage>) -> Vec<Message> {
    let mut messages = Vec::with_capacity(entries.len() + 1);
    let mut round: Vec<(JsonObject, Speaker, Call)> = Vec::new();
    // They end the turn, so that a client of the agent can resume it there.
    let (parked, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(Entry::waits);
    for entry in entries {
        let (place, speaker) = (place(&entry), entry.speaker);
        match entry.content {
            Content::Settled(settled) => {
                round_messages(&mut round, &mut messages);
                settled_messages(settled, place, &mut messages);
            }
            Content::Call(call) => {
                if round.last().is_some_and(|(_, _, last)| last.round != call.round) {
                    round_messages(&mut round, &mut messages);
                }
                round.push((place, speaker, *call));
            }
            Content::User { text, noted } => {
                round_messages(&mut round, &mut messages);
                messages.push(user_message(text, noted, place));
            }
            Content::Agent(said) => {
                round_messages(&mut round, &mut messages);
                messages.push(said_message(said, place, &speaker));
            }
        }
    }
    round_messages(&mut round, &mut messages);
    messages.extend(parked_message(parked));
    if let (Some(usage), Some(last)) = (usage, messages.last_mut()) {
        let noted = last.metadata.as_mut().and_then(|all| all.get_mut(VOICE));
        if let Some(noted) = noted.and_then(Value::as_object_mut) {
            noted.insert("usage".into(), json!(usage));
        }
    }
    messages
}

/// The one message that asks for calls which wait for a person. The model was told so; nobody else is.
fn parked_message(parked: Vec<Entry>) -> Option<Message> {
    let first = parked.first()?;
    let mut asked_at = place(first);
    spoken_by(&mut asked_at, &first.speaker);
    let requests = parked.into_iter().filter_map(|entry| {
        let Content::Call(call) = entry.content else { return None };
        let Call { id, name, input, approved, verdict, output, parked, .. } = *call;
        let (parked, waiting) = (parked?, output?.response);
        let mut noted = JsonObject::new();
        insert(&mut noted, "verdict", verdict.and_then(name_of));
        insert(&mut noted, "args", approved.map(Value::Object));
        let request = with_note(Part::tool_request(name, Some(id), input), noted);
        Some(parked_request(request, &parked.key, &parked.question, Value::Object(waiting)))
    });
    Some(Message::new(Role::Model, requests.collect()).with_metadata(voice(asked_at)))
}

/// How a call ended that had waited, as a round of its own.
fn settled_messages(settled: Settled, place: JsonObject, messages: &mut Vec<Message>) {
    let Settled { key, name, args, outcome, output } = settled;
    let note = json!({ "key": key, "outcome": outcome });
    let request = Part::tool_request(name.clone(), Some(key.clone()), Value::Object(args));
    let response = Part::tool_response(name, Some(key), output);
    for (role, part) in [(Role::Model, request), (Role::Tool, response)] {
        let part = part.with_metadata_entry(LEDGER, note.clone());
        messages.push(Message::new(role, vec![part]).with_metadata(voice(place.clone())));
    }
}

/// Where in the session something was said.
fn place(entry: &Entry) -> JsonObject {
    let mut place = JsonObject::new();
    place.insert("turn".into(), entry.turn.into());
    place.insert("t_ms".into(), entry.t_ms.into());
    if entry.late {
        place.insert("late".into(), true.into());
    }
    place
}

fn user_message(text: String, noted: Option<UtteranceNote>, mut place: JsonObject) -> Message {
    if let Some(UtteranceNote { item, language, start_ms, end_ms }) = noted {
        place.insert("items".into(), json!([item]));
        insert(&mut place, "language", language.as_deref());
        insert(&mut place, "audio_start_ms", start_ms);
        insert(&mut place, "audio_end_ms", end_ms);
    }
    Message::user(text).with_metadata(voice(place))
}

fn said_message(said: Said, mut place: JsonObject, speaker: &Speaker) -> Message {
    let note = |text| Part::text(text).with_metadata_entry(VOICE, json!({ "note": "interrupted" }));
    let parts = match (said.text.is_empty(), said.interrupted) {
        (true, _) => vec![note(NOTHING_HEARD)],
        (false, true) => vec![Part::text(said.text), note(UNHEARD)],
        (false, false) => vec![Part::text(said.text)],
    };
    if let Some(noted) = said.noted {
        place.insert("items".into(), json!(noted.items));
    }
    place.insert("interrupted".into(), said.interrupted.into());
    insert(&mut place, "generated", said.generated);
    if let Some(heard) = said.heard {
        let heard = serde_json::to_value(heard).unwrap_or_default();
        place.extend(heard.as_object().cloned().unwrap_or_default());
    }
    insert(&mut place, "latency_ms", said.latency_ms);
    spoken_by(&mut place, speaker);
    Message::new(Role::Model, parts).with_metadata(voice(place))
}

/// The request and the output of each call of a round, as two messages.
fn round_messages(round: &mut Vec<(JsonObject, Speaker, Call)>, messages: &mut Vec<Message>) {
    round.sort_by_key(|(_, _, call)| call.number);
    let Some((place, speaker, _)) = round.first() else { return };
    let answered_at = place.clone();
    let mut asked_at = place.clone();
    spoken_by(&mut asked_at, speaker);
    let (mut requests, mut outputs) = (Vec::new(), Vec::new());
    for (_, _, call) in round.drain(..) {
        let Call { id, name, input, approved, verdict, output, parked, .. } = call;
        let mut noted = JsonObject::new();
        insert(&mut noted, "verdict", verdict.and_then(name_of));
        insert(&mut noted, "args", approved.map(Value::Object));
        let request = Part::tool_request(name.clone(), Some(id.clone()), input);
        requests.push(with_note(request, noted));
        let Some(Done { response, outcome, took_ms }) = output else { continue };
        let mut noted = JsonObject::new();
        noted.insert("outcome".into(), json!(outcome));
        insert(&mut noted, "took_ms", took_ms);
        let output = Part::tool_response(name, Some(id), Value::Object(response));
        let output = match parked {
            Some(Parked { key, .. }) => {
                output.with_metadata_entry(LEDGER, json!({ "key": key, "outcome": "waiting" }))
            }
            None => output,
        };
        outputs.push(with_note(output, noted));
    }
    messages.push(Message::new(Role::Model, requests).with_metadata(voice(asked_at)));
    messages.push(Message::new(Role::Tool, outputs).with_metadata(voice(answered_at)));
}

/// A verdict as the record names it; `None` where there is none yet.
fn name_of(verdict: Judged) -> Option<&'static str> {
    match verdict {
        Judged::Allowed => Some("allow"),
        Judged::AllowedWith => Some("allow_with"),
        Judged::Denied => Some("deny"),
        Judged::Confirmed => Some("confirmed"),
        Judged::NotConfirmed => Some("not_confirmed"),
        Judged::Parked => Some("ask"),
        Judged::Asked => None,
    }
}

fn with_note(part: Part, noted: JsonObject) -> Part {
    if noted.is_empty() { part } else { part.with_metadata_entry(VOICE, Value::Object(noted)) }
}

fn insert(place: &mut JsonObject, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        place.insert(key.to_owned(), value.into());
    }
}

fn spoken_by(place: &mut JsonObject, speaker: &Speaker) {
    place.insert("provider".into(), (*speaker.provider).into());
    place.insert("model".into(), (*speaker.model).into());
    if let Some(agent) = &speaker.agent {
        place.insert("agent".into(), (**agent).into());
    }
}

fn voice(place: JsonObject) -> Option<JsonObject> {
    Some(JsonObject::from_iter([(VOICE.to_owned(), Value::Object(place))]))
}
