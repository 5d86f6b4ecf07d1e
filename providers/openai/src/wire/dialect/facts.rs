//! What is known of a dialect: the fields of the table.

use std::time::Duration;

/// Everything in which a server may differ from OpenAI's. [`super::Dialect::facts`] gives each
/// dialect's; nothing else in this crate asks which dialect is spoken.
#[derive(Debug)]
#[non_exhaustive]
pub struct Facts {
    /// The word for it in configurations.
    pub name: &'static str,
    /// Whose it is.
    pub vendor: &'static str,

    // Where, and as whom.
    /// The vendor's address; `None`: each customer has one of his own.
    pub address: Option<&'static str>,
    /// The path of an address that has none.
    pub path: &'static str,
    /// What the address must hold, beside what it holds already.
    pub query: &'static [(&'static str, Parameter)],
    /// The version of the interface where none is named.
    pub version: Option<&'static str>,
    /// What in an address gives the dialect away.
    pub signs: Signs,
    /// The model where none is named; `None`: only the customer knows the names of his own.
    pub model: Option<&'static str>,
    /// The session names the model, since the address does not.
    pub model_in_session: bool,
    /// How the key is shown.
    pub key: KeyForm,
    /// Headers beside the key's.
    pub headers: &'static [(&'static str, &'static str)],
    /// Subprotocols to offer. None of these servers wants one of a client that can send headers.
    pub subprotocols: &'static [&'static str],
    /// The session's longest life, where it is known beforehand.
    pub session_limit: Option<Duration>,
    /// So long after its connection ended a conversation can be gone on with, by its id, where the
    /// session asks for that; `None`: it cannot.
    pub resumes_for: Option<Duration>,
    /// Where people keep what is needed.
    pub variables: Variables,

    // Names and shapes.
    /// How events are called.
    pub names: Names,
    /// How a session is written.
    pub session: SessionShape,
    /// How a tool is written.
    pub tools: ToolShape,
    /// The formats of the user's audio.
    pub input: AudioFormats,
    /// The formats of the model's voice.
    pub output: AudioFormats,
    /// The key for the rate of the user's audio, where the word for the format does not say it.
    pub input_rate_key: Option<&'static str>,
    /// How the server says that an item is in the conversation.
    pub acknowledges: Acknowledgement,
    /// Transcripts of the user come as all words so far, each in place of the one before.
    pub cumulative_transcripts: bool,
    /// `conversation.created` comes before `session.created`, or in its place.
    pub begins_with_conversation: bool,
    /// Tells what a response took.
    pub tells_usage: bool,
    /// Tells what may still be asked for.
    pub tells_rate_limits: bool,
    /// Sessions say when they end.
    pub tells_expiry: bool,
    /// Kinds of events that OpenAI does not have; they are counted and dropped.
    pub other_events: &'static [&'static str],

    // What may be asked for.
    /// Client events that it does not take.
    pub lacks: &'static [&'static str],
    /// Takes messages, so text and history; else only outputs of tools become items.
    pub messages: bool,
    /// How images are given.
    pub images: Images,
    /// How a given text is spoken.
    pub says: Saying,
    /// Who writes down what the user said.
    pub transcriber: Transcriber,
    /// The kinds of turn detection, its own default first.
    pub detections: &'static [(&'static str, Detection)],
    /// Turn detection can be told neither to answer nor to interrupt.
    pub detection_flags: bool,
    /// The silence that ends a turn where nothing is asked for.
    pub silence: Duration,
    /// The kinds of noise reduction.
    pub noise_reductions: &'static [&'static str],
    /// How it is told to think.
    pub thinking: ThinkingForm,
    /// How a voice is written.
    pub voices: VoiceForm,
    /// A response may choose its tools otherwise than the session.
    pub response_tool_choice: bool,
    /// Responses keep the metadata of their request.
    pub response_metadata: bool,
    /// Calls of tools that the client did not declare are the server's own, which it runs itself.
    pub own_calls: bool,
    /// Goes on by itself once a tool's output came; else `response.create` is allowed, and needed.
    pub replies_after_tools: bool,
    /// Options that mean nothing here.
    pub without: &'static [&'static [&'static str]],
}

impl Facts {
    /// Whether client events of this kind are taken.
    pub fn takes(&self, kind: &str) -> bool {
        !self.lacks.contains(&kind)
    }

    /// Whether somebody has to name the model.
    pub fn wants_model(&self) -> bool {
        let in_address = self.query.iter().any(|(_, value)| *value == Parameter::Model);
        in_address && self.model.is_none()
    }

    /// Whether the model's voice can be cut to what was heard.
    pub fn truncates(&self) -> bool {
        self.takes("conversation.item.truncate")
    }
}

/// What a parameter of the address holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Parameter {
    /// The model, or at Azure the deployment.
    Model,
    /// The version of the interface.
    Version,
    /// An id that the client makes up for the session.
    SessionId,
    /// Always this.
    Fixed(&'static str),
}

/// What in an address gives a dialect away.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Signs {
    /// What its path begins with.
    pub paths: &'static [&'static str],
    /// Its host, or, from the first dot on, the end of it.
    pub hosts: &'static [&'static str],
    /// What its query must hold beside such a host.
    pub query: Option<&'static str>,
}

/// How a key is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyForm {
    /// `Authorization: Bearer`.
    Bearer,
    /// `api-key`; a token, which has dots, as [`KeyForm::Bearer`].
    ApiKey,
    /// `Authorization: Basic`, as the key is; a token, which has dots, as [`KeyForm::Bearer`].
    Basic,
}

/// The environment variables in which people keep what is needed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Variables {
    /// The key.
    pub key: &'static str,
    /// The address, where each customer has one.
    pub address: Option<&'static str>,
    /// The model, where each customer has names for his own.
    pub model: Option<&'static str>,
    /// Likewise the model that writes down what the user says.
    pub transcriber: Option<&'static str>,
}

/// How events are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// As OpenAI does since 2025.
    Ga,
    /// As OpenAI did in 2024.
    Beta,
}

/// How a session is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionShape {
    /// As in GA: `audio.input`, `audio.output`.
    Nested,
    /// As in the beta: all keys at the top.
    Flat,
    /// As in GA, with `voice` and `turn_detection` at the top.
    NestedTopVoice,
}

/// How a tool is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolShape {
    /// `{"type":"function","name":…}`
    Flat,
    /// `{"type":"function","function":{"name":…}}`, as chat completions do.
    Nested,
}

/// The formats of one direction.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AudioFormats {
    /// 16-bit PCM: samples a second, and the word for it in a flat session. The first is the
    /// default.
    pub pcm: &'static [(u32, &'static str)],
    /// G.711, mu-law and A-law.
    pub g711: bool,
}

/// How a server says that an item is in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acknowledgement {
    /// `conversation.item.added`, and `conversation.item.done` once it is whole.
    AddedAndDone,
    /// `conversation.item.added` alone.
    Added,
    /// `conversation.item.created`.
    Created,
}

/// How images are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Images {
    /// As a part of a message.
    InMessages,
    /// JPEGs, by `input_image_buffer.append`, after the user's first audio.
    Buffered,
    /// Not at all.
    None,
}

/// How a given text is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Saying {
    /// The model is told to speak it, and nearly always does.
    Instructed,
    /// By a `force_message` item: word for word, without the model.
    Forced,
}

/// Who writes down what the user said.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Transcriber {
    /// The model; `None`: only the customer knows its name.
    pub model: Option<&'static str>,
    /// The model that tells speakers apart.
    pub diarizing: Option<&'static str>,
    /// Where names and terms go.
    pub terms: Terms,
    /// How it is told the user's language.
    pub language: LanguageForm,
}

/// Where names and terms go that may come up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Terms {
    /// Into `prompt`.
    Prompt,
    /// Into the list `phrase_list`.
    Phrases,
    /// Into the list `keyterms`: at most a hundred, of at most fifty characters each.
    KeyTerms,
    /// Nowhere.
    None,
}

/// How a transcriber is told the user's language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LanguageForm {
    /// As `language`: two letters.
    Code,
    /// As `language_hint`: a tag, which may name a region.
    Hint,
    /// Not at all.
    None,
}

/// What a kind of turn detection is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detection {
    /// Threshold, padding and silence.
    Sound,
    /// Eagerness.
    Eagerness,
}

/// How a server is told to think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThinkingForm {
    /// `reasoning.effort`, for models that reason.
    Effort,
    /// `reasoning.effort`: `high` or `none`.
    OnOff,
    /// `reasoning_effort` at the top of the session.
    TopLevel,
    /// Not at all.
    None,
}

/// How a voice is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VoiceForm {
    /// By name; `voice_…` is a custom one's id.
    OpenAi,
    /// By name; `…Neural` is one of Azure's.
    Azure,
    /// By name.
    Name,
}
