//! Tools as models see them: definitions, calls, responses.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A JSON object: the arguments and the output of a tool.
pub type JsonObject = Map<String, Value>;

/// What a model is told of a tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolDefinition {
    /// The unique name by which the model calls the tool.
    pub name: Arc<str>,
    /// When to use it, in natural language.
    pub description: Arc<str>,
    /// JSON Schema of the arguments; `None` is a tool without parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Arc<Value>>,
    /// JSON Schema of the output, for providers that take one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Arc<Value>>,
    /// Whether the model waits for the result.
    #[serde(default)]
    pub behavior: ToolBehavior,
    /// How the tool is asked for and answered in spoken words; read by the offline matcher,
    /// ignored by language models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speech: Option<Arc<ToolSpeech>>,
}

impl ToolDefinition {
    /// A definition without parameters; fill in the rest.
    pub fn new(name: impl Into<Arc<str>>, description: impl Into<Arc<str>>) -> Self {
        Self { name: name.into(), description: description.into(), ..Self::default() }
    }
}

/// How a tool is asked for and answered in spoken words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ToolSpeech {
    /// Sample phrases with slots in braces, such as `set a timer for {duration}`. A slot is a
    /// property of the input schema.
    pub phrases: Vec<String>,
    /// A template for the answer, such as `It is {time}.`, filled from the tool's output and, for
    /// names the output lacks, from the arguments.
    pub answer: Option<String>,
    /// The question for a missing slot: property name to question.
    pub questions: BTreeMap<String, String>,
}

impl ToolSpeech {
    /// Sample phrases only.
    pub fn phrases<S: Into<String>>(phrases: impl IntoIterator<Item = S>) -> Self {
        Self { phrases: phrases.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Sets the template of the answer.
    pub fn answer(mut self, template: impl Into<String>) -> Self {
        self.answer = Some(template.into());
        self
    }

    /// Sets the question that is asked when `property` is missing.
    pub fn question(mut self, property: impl Into<String>, question: impl Into<String>) -> Self {
        self.questions.insert(property.into(), question.into());
        self
    }
}

/// Whether the model waits for a tool's result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolBehavior {
    /// What the provider does when nothing is said.
    #[default]
    ProviderDefault,
    /// The model waits.
    Blocking,
    /// The model goes on talking.
    NonBlocking,
}

/// When the result of a non-blocking tool is to be spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ToolResponseScheduling {
    /// What the provider does when nothing is said.
    #[default]
    ProviderDefault,
    /// Add it to the conversation without speaking.
    Silent,
    /// After the current output.
    WhenIdle,
    /// At once.
    Interrupt,
}

/// The arguments of a call as they came from the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ToolArguments {
    /// JSON text, not parsed yet. May be malformed; the executor refuses what is not one object
    /// with unique keys.
    Json(String),
    /// An object, where the provider's wire delivers one.
    Object(JsonObject),
}

/// A call as the model asked for it, before anything was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCallRequest {
    /// The provider's id of the call; echoed in the response.
    pub id: Arc<str>,
    /// The name of the tool, which may not exist.
    pub name: Arc<str>,
    /// The arguments, which may be malformed.
    pub arguments: ToolArguments,
}

/// A call whose arguments are an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The provider's id of the call; echoed in the response.
    pub id: Arc<str>,
    /// The name of the tool.
    pub name: Arc<str>,
    /// The arguments.
    pub args: JsonObject,
}

/// The one output of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolResponse {
    /// The id of the call.
    pub id: Arc<str>,
    /// The name of the tool.
    pub name: Arc<str>,
    /// The payload for the model; `{"error": text}` for failures.
    pub response: JsonObject,
    /// When a non-blocking result is to be spoken.
    #[serde(default)]
    pub scheduling: ToolResponseScheduling,
    /// `Some(true)`: more responses to this call follow. `None`: not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub will_continue: Option<bool>,
}

impl ToolResponse {
    /// A response with the provider's default scheduling.
    pub fn new(id: impl Into<Arc<str>>, name: impl Into<Arc<str>>, response: JsonObject) -> Self {
        Self {
            id: id.into(),
            name: name.into(),
            response,
            scheduling: ToolResponseScheduling::default(),
            will_continue: None,
        }
    }

    /// The response `{"error": text}`.
    pub fn error(
        id: impl Into<Arc<str>>,
        name: impl Into<Arc<str>>,
        text: impl Into<String>,
    ) -> Self {
        let mut response = JsonObject::new();
        response.insert("error".into(), Value::String(text.into()));
        Self::new(id, name, response)
    }
}
