//! The messages of a turn.

use std::sync::Arc;

use antiphon_agent::{
    Message, Outcome, Part, Role,
    ledger::{LEDGER, parked_request},
    types::JsonObject,
};
use serde_json::{Value, json};

use super::{Call, Content, Entry, Said};

/// The key of the metadata that a voice session leaves, an object, on messages and parts.
///
/// On every message: `turn` (of the session, from 1; 0 before the first), `t_ms` (milliseconds since
/// the session started) and, where the turn was committed before this was told, `late: true`. On what
/// the agent said: `provider`, `model`, `agent` (the name of whom the conversation was handed over to; of
/// the agent that is linked there is none), `interrupted`, `generated` (all the words, where they are more
/// than were heard), of spoken words `began_ms`, `heard_ms` and `generated_ms` with `confidence` and
/// `error_ms` (see [`Heard`](crate::session::Heard)) and, on the first words of a turn, `latency_ms` (from the end of
/// the user's speech to the first sound). On a message that asks for tools: `provider`, `model` and `agent`.
///
/// A call that waits for a person is asked for by the last message of its turn, without an output; see
/// [`LEDGER`]. On a part that asks for a tool: `args`, the arguments that were approved, where the policy changed
/// them. On a part with a tool's output: `outcome`, how the call ended. On a text part that nobody
/// said: `note: "interrupted"`.
pub const VOICE: &str = "voice";

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

/// The messages of entries that are complete.
pub(super) fn messages(entries: Vec<Entry>) -> Vec<Message> {
    let mut messages = Vec::with_capacity(entries.len() + 1);
    let mut round: Vec<(JsonObject, Speaker, Call)> = Vec::new();
    // They end the turn, so that a client of the agent can resume it there.
    let waits =
        |entry: &Entry| matches!(&entry.content, Content::Call(call) if call.parked.is_some());
    let (parked, entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(waits);
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
                round.push((place, speaker, call));
            }
            Content::User { text } => {
                round_messages(&mut round, &mut messages);
                messages.push(Message::user(text).with_metadata(voice(place)));
            }
            Content::Agent(said) => {
                round_messages(&mut round, &mut messages);
                messages.push(said_message(said, place, &speaker));
            }
        }
    }
    round_messages(&mut round, &mut messages);
    messages.extend(parked_message(parked));
    messages
}

/// The one message that asks for calls which wait for a person. The model was told so; nobody else is.
fn parked_message(parked: Vec<Entry>) -> Option<Message> {
    let first = parked.first()?;
    let mut asked_at = place(first);
    spoken_by(&mut asked_at, &first.speaker);
    let requests = parked.into_iter().filter_map(|entry| {
        let Content::Call(call) = entry.content else { return None };
        let Call { id, name, input, approved, output, parked, .. } = call;
        let (parked, (waiting, _)) = (parked?, output?);
        let mut request = Part::tool_request(name, Some(id), input);
        if let Some(args) = approved {
            request = request.with_metadata_entry(VOICE, json!({ "args": args }));
        }
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

fn said_message(said: Said, mut place: JsonObject, speaker: &Speaker) -> Message {
    let mut parts = vec![Part::text(said.text)];
    if said.interrupted {
        let note = json!({ "note": "interrupted" });
        parts.push(Part::text(UNHEARD).with_metadata_entry(VOICE, note));
    }
    place.insert("interrupted".into(), said.interrupted.into());
    if let Some(generated) = said.generated {
        place.insert("generated".into(), generated.into());
    }
    if let Some(heard) = said.heard {
        let heard = serde_json::to_value(heard).unwrap_or_default();
        place.extend(heard.as_object().cloned().unwrap_or_default());
    }
    if let Some(latency) = said.latency_ms {
        place.insert("latency_ms".into(), latency.into());
    }
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
        let Call { id, name, input, approved, output, .. } = call;
        let mut request = Part::tool_request(name.clone(), Some(id.clone()), input);
        if let Some(args) = approved {
            request = request.with_metadata_entry(VOICE, json!({ "args": args }));
        }
        requests.push(request);
        let Some((response, outcome)) = output else { continue };
        let outcome = serde_json::to_value(outcome).unwrap_or_default();
        outputs.push(
            Part::tool_response(name, Some(id), Value::Object(response))
                .with_metadata_entry(VOICE, json!({ "outcome": outcome })),
        );
    }
    messages.push(Message::new(Role::Model, requests).with_metadata(voice(asked_at)));
    messages.push(Message::new(Role::Tool, outputs).with_metadata(voice(answered_at)));
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
