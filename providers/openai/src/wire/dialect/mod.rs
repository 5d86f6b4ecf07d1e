//! What servers call the same things.

mod facts;
mod shape;
mod table;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use facts::{
    Acknowledgement, AudioFormats, Detection, Facts, Images, KeyForm, LanguageForm, Names,
    Parameter, Saying, SessionShape, Signs, Terms, ThinkingForm, ToolShape, Transcriber, Variables,
    VoiceForm,
};

use self::shape::{BETA_EVENTS, BETA_PARTS};
use super::{ClientEvent, DecodeError, ServerEvent, Session};

/// Whose words a server speaks. All that a dialect changes is data: see [`Dialect::facts`].
///
/// | | names | session | key | audio in, out | tools | items told by | cut to what was heard |
/// |---|---|---|---|---|---|---|---|
/// | [`Ga`](Self::Ga) | GA | nested | Bearer | 24 kHz, G.711 | flat | `added`, `done` | yes |
/// | [`Beta`](Self::Beta) | beta | flat | Bearer | 24 kHz, G.711 | flat | `created` | yes |
/// | [`Azure`](Self::Azure) | GA | nested | `api-key`, Bearer | 24 kHz, G.711 | flat | `added`, `done` | yes |
/// | [`AzurePreview`](Self::AzurePreview) | beta | flat | `api-key`, Bearer | 24 kHz, G.711 | flat | `created` | yes |
/// | [`VoiceLive`](Self::VoiceLive) | beta | flat | `api-key`, Bearer | 16, 24 kHz; 8, 16, 24 kHz; G.711 | flat | `created` | yes |
/// | [`Xai`](Self::Xai) | GA | nested, voice and turns at the top | Bearer | 8 to 48 kHz, G.711 | flat | `added` | yes |
/// | [`Qwen`](Self::Qwen) | beta | flat | Bearer | 16 kHz, 24 kHz | nested | `created` | no |
/// | [`Inworld`](Self::Inworld) | GA | nested | Basic, Bearer | 24 kHz, G.711 | flat | `added`, `done` | no |
///
/// Its name ([`Facts::name`]) is what [`FromStr`] takes and what it is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// OpenAI since 2025, and servers that follow it.
    #[default]
    Ga,
    /// OpenAI's preview of 2024, which many other servers still speak. OpenAI itself refuses it.
    Beta,
    /// Azure OpenAI at `/openai/v1/realtime`: GA words, `api-key` header, deployments for models.
    Azure,
    /// Azure OpenAI at `/openai/realtime?api-version=…`: the beta's words.
    AzurePreview,
    /// Azure Voice Live: the beta's words and more.
    VoiceLive,
    /// xAI's Grok: GA words; voice and turn detection stand at the top of the session.
    Xai,
    /// Qwen-Omni: a part of the beta.
    Qwen,
    /// Inworld: GA words over any recogniser, language model and voice.
    Inworld,
}

impl Dialect {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Ga,
        Self::Beta,
        Self::Azure,
        Self::AzurePreview,
        Self::VoiceLive,
        Self::Xai,
        Self::Qwen,
        Self::Inworld,
    ];

    /// What is known of it.
    pub const fn facts(self) -> &'static Facts {
        match self {
            Self::Ga => &table::GA,
            Self::Beta => &table::BETA,
            Self::Azure => &table::AZURE,
            Self::AzurePreview => &table::AZURE_PREVIEW,
            Self::VoiceLive => &table::VOICE_LIVE,
            Self::Xai => &table::XAI,
            Self::Qwen => &table::QWEN,
            Self::Inworld => &table::INWORLD,
        }
    }

    /// The dialect that an address gives away, where it does.
    pub fn of_address(address: &str) -> Option<Self> {
        let (_, rest) = address.split_once("://")?;
        let host_end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (host, rest) = rest.split_at(host_end);
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let by_path =
            |dialect: &Self| dialect.facts().signs.paths.iter().any(|sign| path.starts_with(sign));
        let by_host = |dialect: &Self| {
            let signs = &dialect.facts().signs;
            signs.query.is_none_or(|sign| query.contains(sign))
                && signs.hosts.iter().any(|sign| match sign.starts_with('.') {
                    true => host.ends_with(sign),
                    false => host == *sign,
                })
        };
        let named = Self::ALL.into_iter().find(by_path);
        // Who asks for more is asked first.
        let asks = |dialect: &Self| dialect.facts().signs.query.is_some();
        named
            .or_else(|| Self::ALL.into_iter().filter(asks).find(by_host))
            .or_else(|| Self::ALL.into_iter().find(by_host))
    }

    /// The text of a client's event, in the dialect's words.
    pub fn encode_client(self, event: &ClientEvent) -> String {
        let facts = self.facts();
        if facts.session == SessionShape::Nested && facts.tools == ToolShape::Flat {
            return encode(event);
        }
        let mut value = encode_value(event);
        if let Some(session) = value.get_mut("session") {
            shape::session(session, facts);
        }
        if facts.session == SessionShape::Flat {
            if let Some(response) = value.get_mut("response") {
                shape::flatten(response, facts);
            }
            if let Some(item) = value.get_mut("item") {
                shape::rename_parts(item, BETA_PARTS);
            }
        }
        if let Some(response) = value.get_mut("response") {
            shape::tools(response, facts.tools);
        }
        value.to_string()
    }

    /// Decodes a client's event in the dialect's words.
    pub fn decode_client(self, text: &str) -> Result<ClientEvent, DecodeError> {
        let facts = self.facts();
        if facts.session == SessionShape::Nested && facts.tools == ToolShape::Flat {
            return ClientEvent::decode(text);
        }
        let mut value: Value =
            serde_json::from_str(text).map_err(|error| DecodeError::Json(error.to_string()))?;
        if let Some(session) = value.get_mut("session") {
            shape::nest(session, facts);
        }
        if let Some(response) = value.get_mut("response") {
            shape::nest(response, facts);
            if let Some(response) = response.as_object_mut() {
                response.remove("type");
            }
        }
        ClientEvent::decode(&value.to_string())
    }

    /// The text of a server's event; `None` where the dialect has no such event.
    pub fn encode_server(self, event: &ServerEvent) -> Option<String> {
        let facts = self.facts();
        if facts.acknowledges == Acknowledgement::Added && matches!(event, ServerEvent::ItemDone(_))
        {
            return None;
        }
        if facts.session == SessionShape::Nested {
            return Some(encode(event));
        }
        let mut value = encode_value(event);
        if let Some(session) = value.get_mut("session") {
            shape::session(session, facts);
        }
        if facts.names == Names::Beta {
            if let Some((_, name)) = BETA_EVENTS.iter().find(|(name, _)| *name == event.kind()) {
                if name.is_empty() {
                    return None;
                }
                value["type"] = (*name).into();
            }
            if let Some(response) = value.get_mut("response") {
                shape::flatten(response, facts);
                let output = response.get_mut("output").and_then(Value::as_array_mut);
                for item in output.into_iter().flatten() {
                    shape::rename_parts(item, BETA_PARTS);
                }
            }
            if let Some(item) = value.get_mut("item") {
                shape::rename_parts(item, BETA_PARTS);
            }
        }
        Some(value.to_string())
    }

    /// A session in the dialect's shape.
    pub fn decode_session(self, mut session: Value) -> Session {
        shape::nest(&mut session, self.facts());
        serde_json::from_value(session.clone()).unwrap_or(Session::Other(session))
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.facts().name)
    }
}

/// A word that names no dialect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of {known}", known = names())]
pub struct UnknownDialect(pub String);

impl FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        let named = Self::ALL.into_iter().find(|dialect| dialect.facts().name == name);
        named.ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

impl Serialize for Dialect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Dialect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

fn names() -> String {
    Dialect::ALL.map(|dialect| dialect.facts().name).join(", ")
}

fn encode<T: Serialize>(event: &T) -> String {
    // The types hold only strings, numbers and maps with string keys, which always serialise.
    serde_json::to_string(event).unwrap_or_default()
}

fn encode_value<T: Serialize>(event: &T) -> Value {
    serde_json::to_value(event).unwrap_or_default()
}
