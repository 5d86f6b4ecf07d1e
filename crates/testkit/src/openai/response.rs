//! One response: its plan, and how far it is.

use std::{collections::VecDeque, time::Duration, time::Instant};

use antiphon_openai::wire::{
    AudioFormat, Content, ContentType, FunctionCall, Item, ItemStatus, MaxTokens, Message,
    Modality, Response, ResponseAudio, ResponseAudioOutput, ResponseError, ResponseStatus, Role,
    StatusDetails, Usage, Voice,
};

use crate::scripted::{Call, Pace, Reply, codec::Codec};

/// Milliseconds of voice for a word, where the script does not say.
const MS_PER_WORD: u32 = 300;
/// The shortest voice, where the script does not say.
const SHORTEST_MS: u32 = 400;

/// One thing that a response does, after a wait.
#[derive(Debug)]
pub(super) struct Beat {
    pub(super) after: Duration,
    pub(super) act: Act,
}

/// One thing that a response does.
#[derive(Debug)]
pub(super) enum Act {
    /// A message begins.
    OpenMessage,
    /// A call begins.
    OpenCall(Call),
    /// More words of the open message.
    Words(String),
    /// More voice of the open message.
    Voice { from_ms: u64, to_ms: u64 },
    /// More arguments of the open call.
    Arguments(String),
    /// What is open is whole.
    Close,
    /// The response is over.
    Finish(ResponseStatus, Option<StatusDetails>),
}

/// What a response is like, session and request taken together.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    pub(super) speaks: bool,
    pub(super) format: Option<AudioFormat>,
    pub(super) voice: Option<Voice>,
    pub(super) max_output_tokens: Option<MaxTokens>,
    pub(super) metadata: Option<std::collections::BTreeMap<String, String>>,
    pub(super) hz: f32,
}

/// A response that is being made.
pub(super) struct Running {
    pub(super) id: String,
    /// Whether it writes to the conversation.
    pub(super) in_conversation: bool,
    pub(super) manner: Manner,
    pub(super) codec: Codec,
    pub(super) beats: VecDeque<Beat>,
    /// When the next beat is due.
    pub(super) due: Instant,
    pub(super) open: Option<Open>,
    /// Items that are whole.
    pub(super) output: Vec<Item>,
    /// Milliseconds of voice in all.
    pub(super) voice_ms: u64,
    pub(super) words: usize,
}

/// An item that is being made.
pub(super) struct Open {
    pub(super) id: String,
    pub(super) kind: OpenKind,
    /// Words of a message, arguments of a call.
    pub(super) text: String,
}

/// What is being made.
pub(super) enum OpenKind {
    Message,
    Call { name: String, call_id: String },
}

impl Running {
    /// The place of the open item in the response.
    pub(super) fn output_index(&self) -> u32 {
        u32::try_from(self.output.len()).unwrap_or(u32::MAX)
    }

    /// The open item as it is now.
    pub(super) fn item(&self, open: &Open, status: ItemStatus) -> Item {
        let begun = status == ItemStatus::InProgress;
        match &open.kind {
            OpenKind::Message => {
                let part = match self.manner.speaks {
                    true => Content::transcript(ContentType::OutputAudio, open.text.clone()),
                    false => Content::text(ContentType::OutputText, open.text.clone()),
                };
                let content = if begun { Vec::new() } else { vec![part] };
                Item::Message(Message {
                    id: Some(open.id.clone()),
                    object: Some("realtime.item".into()),
                    status: Some(status),
                    ..Message::new(Role::Assistant, content)
                })
            }
            OpenKind::Call { name, call_id } => Item::FunctionCall(FunctionCall {
                id: Some(open.id.clone()),
                object: Some("realtime.item".into()),
                status: Some(status),
                call_id: Some(call_id.clone()),
                name: name.clone(),
                arguments: if begun { String::new() } else { open.text.clone() },
            }),
        }
    }

    /// The open item as far as it is made, with its content.
    pub(super) fn item_so_far(&self) -> Option<Item> {
        let open = self.open.as_ref()?;
        let mut item = self.item(open, ItemStatus::Incomplete);
        if let Item::Message(message) = &mut item {
            message.status = Some(ItemStatus::InProgress);
        }
        Some(item)
    }

    /// The response as it is told of.
    pub(super) fn snapshot(
        &self,
        status: ResponseStatus,
        details: Option<StatusDetails>,
        usage: Option<Usage>,
        conversation: &str,
    ) -> Response {
        let manner = &self.manner;
        let modality = if manner.speaks { Modality::Audio } else { Modality::Text };
        Response {
            id: Some(self.id.clone()),
            object: Some("realtime.response".into()),
            status: Some(status),
            status_details: details,
            output: Some(self.output.clone()),
            conversation_id: self.in_conversation.then(|| conversation.into()),
            output_modalities: Some(vec![modality]),
            max_output_tokens: manner.max_output_tokens.clone(),
            audio: Some(ResponseAudio {
                output: Some(ResponseAudioOutput {
                    format: manner.format.clone(),
                    voice: manner.voice.clone(),
                }),
            }),
            usage,
            metadata: manner.metadata.clone(),
        }
    }
}

/// The beats of a reply.
pub(super) fn plan(reply: &Reply, texts: Vec<String>, pace: &Pace, speaks: bool) -> VecDeque<Beat> {
    let mut beats = VecDeque::new();
    let mut wait = pace.think();
    let mut beat = |after: &mut Duration, act| {
        beats.push_back(Beat { after: std::mem::take(after), act });
    };
    for text in texts {
        beat(&mut wait, Act::OpenMessage);
        let words: Vec<&str> = text.split_inclusive(' ').collect();
        let count = u32::try_from(words.len()).unwrap_or(u32::MAX);
        if speaks {
            let whole =
                reply.audio_ms.unwrap_or(count.saturating_mul(MS_PER_WORD).max(SHORTEST_MS));
            let piece = pace.delta_ms.max(1);
            let pieces = whole.div_ceil(piece).max(1) as usize;
            let mut told = 0;
            for n in 0..pieces {
                // Words run ahead of their voice, as the vendor's do.
                let until = (words.len() * (n + 1)).div_ceil(pieces);
                let more = words[told..until].concat();
                told = until;
                if !more.is_empty() {
                    beat(&mut wait, Act::Words(more));
                }
                let from_ms = u64::from(piece) * n as u64;
                let to_ms = (from_ms + u64::from(piece)).min(whole.into());
                beat(&mut wait, Act::Voice { from_ms, to_ms });
                wait = pace.interval();
            }
            wait = Duration::ZERO;
        } else {
            for word in words {
                beat(&mut wait, Act::Words(word.to_owned()));
                wait = pace.interval();
            }
            wait = Duration::ZERO;
        }
        beat(&mut wait, Act::Close);
    }
    for call in &reply.calls {
        let arguments = match &call.arguments {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Null => "{}".into(),
            other => other.to_string(),
        };
        beat(&mut wait, Act::OpenCall(call.clone()));
        let mut half = arguments.len() / 2;
        while !arguments.is_char_boundary(half) {
            half += 1;
        }
        for piece in [&arguments[..half], &arguments[half..]] {
            if !piece.is_empty() {
                beat(&mut wait, Act::Arguments(piece.to_owned()));
            }
        }
        beat(&mut wait, Act::Close);
    }
    let (status, details) = outcome(reply);
    beat(&mut wait, Act::Finish(status, details));
    beats
}

fn outcome(reply: &Reply) -> (ResponseStatus, Option<StatusDetails>) {
    if let Some(fail) = &reply.fail {
        let kind = if fail.kind.is_empty() { "server_error" } else { &fail.kind };
        let error = ResponseError {
            kind: Some(kind.into()),
            code: (!fail.code.is_empty()).then(|| fail.code.clone()),
            message: (!fail.message.is_empty()).then(|| fail.message.clone()),
        };
        let details =
            StatusDetails { kind: Some("failed".into()), reason: None, error: Some(error) };
        return (ResponseStatus::Failed, Some(details));
    }
    if let Some(reason) = &reply.incomplete {
        return (ResponseStatus::Incomplete, Some(details("incomplete", reason)));
    }
    (ResponseStatus::Completed, None)
}

pub(super) fn details(kind: &str, reason: &str) -> StatusDetails {
    StatusDetails { kind: Some(kind.into()), reason: Some(reason.into()), error: None }
}
