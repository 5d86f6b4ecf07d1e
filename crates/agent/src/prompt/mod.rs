//! Prompts: what a model is told before and beside a conversation, as templates.
//!
//! A prompt has a system text, what the user says, or messages of its own, all templates of the
//! handlebars family. They see the input's members by name and the session's custom state as
//! `{{@state}}`, with its members, at any depth. Beside the engine's own helpers there are
//! `{{json value}}`, `{{media url=address contentType="image/png"}}`, `{{#ifEquals a b}}`,
//! `{{#unlessEquals a b}}`, and in messages `{{role "system"}}` and `{{history}}`.
//!
//! The conversation stands between the system text and what the user says; a prompt that sets its
//! own messages says by `{{history}}` where it stands, or has none.

mod agent;
mod file;
mod messages;
mod picoschema;
mod template;

use std::{collections::BTreeMap, fmt, sync::Arc};

use antiphon_types::JsonObject;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub use self::agent::PromptAgent;
use self::{
    messages::{Placed, parts, placed},
    template::Templates,
};
use crate::{
    Generate, InvocationContext, Message, Messages, Model, Role, RuntimeError, ToolChoice,
    ToolErrors, ToolExecutor, schema,
};

/// A prompt. Clones share it.
///
/// ```
/// use antiphon_agent::{InvocationContext, Messages, Prompt};
/// use serde_json::json;
///
/// let prompt = Prompt::builder("greet")
///     .system("You greet people in {{language}}.")
///     .prompt("Greet {{name}}.")
///     .input_schema(json!({
///         "type": "object",
///         "properties": { "name": { "type": "string" }, "language": { "type": "string" } },
///         "required": ["name", "language"],
///     }))
///     .default_input(json!({ "language": "Latin" }))
///     .build()?;
/// let cx = InvocationContext::new();
/// let rendered = prompt.render(&cx, &json!({ "name": "Ann" }), &Messages::new())?;
/// assert_eq!(rendered.messages[0].joined_text(), "You greet people in Latin.");
/// # Ok::<_, antiphon_agent::RuntimeError>(())
/// ```
#[derive(Clone)]
pub struct Prompt {
    definition: Arc<Definition>,
}

struct Definition {
    settings: PromptBuilder,
    templates: Templates,
    schema: Option<jsonschema::Validator>,
}

/// Builds a [`Prompt`].
#[derive(Clone)]
pub struct PromptBuilder {
    name: Arc<str>,
    description: Option<Arc<str>>,
    model: Option<PromptModel>,
    config: Arc<JsonObject>,
    system: Option<String>,
    user: Option<String>,
    messages: OwnMessages,
    partials: BTreeMap<String, String>,
    tools: Option<Vec<Arc<str>>>,
    input_schema: Option<Arc<Value>>,
    default_input: Value,
    output_schema: Option<Arc<Value>>,
    max_turns: Option<u32>,
    max_output_tokens: Option<u32>,
    tool_choice: ToolChoice,
    tool_errors: ToolErrors,
}

/// The model that a prompt is for.
#[derive(Clone)]
pub(crate) enum PromptModel {
    Named(Arc<str>),
    Given(Arc<dyn Model>),
}

/// What makes the messages of a prompt that sets them itself.
type MessagesFn = dyn Fn(&InvocationContext, &Value, &Messages) -> Result<Vec<Arc<Message>>, RuntimeError>
    + Send
    + Sync;

#[derive(Clone)]
enum OwnMessages {
    None,
    /// A template of messages, which places the conversation.
    Template(String),
    /// The body of a `.prompt` file: a template of messages or of what the user says.
    Body(String),
    Function(Arc<MessagesFn>),
}

impl Prompt {
    /// Begins a prompt.
    pub fn builder(name: impl Into<Arc<str>>) -> PromptBuilder {
        PromptBuilder {
            name: name.into(),
            description: None,
            model: None,
            config: Arc::default(),
            system: None,
            user: None,
            messages: OwnMessages::None,
            partials: BTreeMap::new(),
            tools: None,
            input_schema: None,
            default_input: Value::Object(JsonObject::new()),
            output_schema: None,
            max_turns: None,
            max_output_tokens: None,
            tool_choice: ToolChoice::default(),
            tool_errors: ToolErrors::default(),
        }
    }

    /// The prompt's name.
    pub fn name(&self) -> &Arc<str> {
        &self.settings().name
    }

    /// What it is for.
    pub fn description(&self) -> Option<&Arc<str>> {
        self.settings().description.as_ref()
    }

    /// The JSON Schema of its input.
    pub fn input_schema(&self) -> Option<&Arc<Value>> {
        self.settings().input_schema.as_ref()
    }

    /// Renders it with `input`, an object or `null`, over its default input, and `history`. The
    /// custom state is that of the session in `cx`. Errs with `INVALID_ARGUMENT` where the input
    /// breaks the schema, and where a template does not render.
    pub fn render(
        &self,
        cx: &InvocationContext,
        input: &Value,
        history: &Messages,
    ) -> Result<RenderedPrompt, RuntimeError> {
        let session = cx.session_access().filter(|_| self.uses_state());
        let state = session.map(|session| session.custom_json());
        self.render_with_state(cx, input, history, &state.unwrap_or_default())
    }

    /// Whether its templates look at the custom state.
    pub(crate) fn uses_state(&self) -> bool {
        self.definition.templates.use_state
    }

    pub(crate) fn render_with_state(
        &self,
        cx: &InvocationContext,
        input: &Value,
        history: &Messages,
        state: &Value,
    ) -> Result<RenderedPrompt, RuntimeError> {
        let input = self.input(input)?;
        let render = |name| self.definition.templates.render(name, &input, state);
        let settings = self.settings();
        let mut messages = Vec::new();
        if settings.system.is_some() {
            messages.extend(message(Role::System, parts(render(SYSTEM)?)?));
        }
        match &settings.messages {
            OwnMessages::None => messages.extend(history.iter().cloned()),
            OwnMessages::Template(_) => {
                messages.extend(match placed(render(MESSAGES)?, history)? {
                    Placed::With(messages) | Placed::Without(messages) => messages,
                })
            }
            OwnMessages::Body(_) => match placed(render(MESSAGES)?, history)? {
                Placed::With(own) => messages.extend(own),
                // Before what the user says, which is last.
                Placed::Without(mut own) => {
                    let ends_with_user = own.last().is_some_and(|last| last.role == Role::User);
                    let at = own.len() - usize::from(ends_with_user);
                    let after = own.split_off(at);
                    messages.extend(own.into_iter().chain(history.iter().cloned()).chain(after));
                }
            },
            OwnMessages::Function(function) => messages.extend(function(cx, &input, history)?),
        }
        if settings.user.is_some() {
            messages.extend(message(Role::User, parts(render(USER)?)?));
        }
        Ok(RenderedPrompt { messages, prompt: self.clone() })
    }

    /// The input over the default one, if it fits the schema.
    fn input(&self, input: &Value) -> Result<Value, RuntimeError> {
        let mut merged = self.settings().default_input.as_object().cloned().unwrap_or_default();
        match input {
            Value::Null => {}
            Value::Object(input) => merged.extend(input.clone()),
            other => {
                return Err(self.invalid_input(&format!("it is an object, not {other}")));
            }
        }
        let input = Value::Object(merged);
        match self.definition.schema.as_ref().map(|schema| schema.validate(&input)) {
            Some(Err(error)) => {
                let at = error.instance_path().to_string();
                let at = if at.is_empty() { at } else { format!("at {at}: ") };
                Err(self.invalid_input(&format!("{at}{error}")))
            }
            Some(Ok(())) | None => Ok(input),
        }
    }

    fn invalid_input(&self, what: &str) -> RuntimeError {
        let what = crate::text::shorten(what, 1024);
        let text = format!("the input does not fit prompt {:?}: {what}", self.name());
        RuntimeError::InvalidArgument(text)
    }

    /// Whether the conversation has a place in it, as far as can be told.
    pub(crate) fn places_history(&self, rendered: &RenderedPrompt, probe: &Arc<Message>) -> bool {
        matches!(self.settings().messages, OwnMessages::Function(_))
            || rendered.messages.iter().any(|message| Arc::ptr_eq(message, probe))
    }

    pub(crate) fn model(&self) -> Option<&PromptModel> {
        self.settings().model.as_ref()
    }

    pub(crate) fn tools(&self) -> Option<&[Arc<str>]> {
        self.settings().tools.as_deref()
    }

    fn settings(&self) -> &PromptBuilder {
        &self.definition.settings
    }
}

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prompt").field("name", self.name()).finish_non_exhaustive()
    }
}

// In parentheses, which the name of no included template has.
const SYSTEM: &str = "(system)";
const USER: &str = "(prompt)";
const MESSAGES: &str = "(messages)";

impl PromptBuilder {
    /// Sets what it is for.
    pub fn description(mut self, description: impl Into<Arc<str>>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// Sets the model.
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.model = Some(PromptModel::Given(model));
        self
    }

    /// Sets the model by the name under which it is registered.
    pub fn model_name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.model = Some(PromptModel::Named(name.into()));
        self
    }

    /// Sets the model's settings: see [`ModelRequest::config`](crate::ModelRequest).
    pub fn config(mut self, config: JsonObject) -> Self {
        self.config = Arc::new(config);
        self
    }

    /// Sets the template of the host's instructions.
    pub fn system(mut self, template: impl Into<String>) -> Self {
        self.system = Some(template.into());
        self
    }

    /// Sets the template of what the user says, which stands last.
    pub fn prompt(mut self, template: impl Into<String>) -> Self {
        self.user = Some(template.into());
        self
    }

    /// Sets the template of messages of its own, which begin with `{{role "user"}}` and the like. It
    /// places the conversation with `{{history}}`.
    pub fn messages(mut self, template: impl Into<String>) -> Self {
        self.messages = OwnMessages::Template(template.into());
        self
    }

    /// Sets the function that makes messages of its own from the input and the conversation, such
    /// as a shortened one. What it leaves out is left out for the model, and stays in the session.
    pub fn messages_fn<F>(mut self, function: F) -> Self
    where
        F: Fn(&InvocationContext, &Value, &Messages) -> Result<Vec<Arc<Message>>, RuntimeError>
            + Send
            + Sync
            + 'static,
    {
        self.messages = OwnMessages::Function(Arc::new(function));
        self
    }

    /// Adds a template that others include with `{{>name}}`.
    pub fn partial(mut self, name: impl Into<String>, template: impl Into<String>) -> Self {
        self.partials.insert(name.into(), template.into());
        self
    }

    /// Sets the tools by name. Default: all that there are where it is used.
    pub fn tools<N: Into<Arc<str>>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the JSON Schema of the input.
    pub fn input_schema(mut self, schema: Value) -> Self {
        self.input_schema = Some(Arc::new(schema));
        self
    }

    /// Sets the JSON Schema of the input to that of a type.
    pub fn input_type<In: JsonSchema>(self) -> Self {
        self.input_schema(schema::of_input::<In>())
    }

    /// Sets the members that the input has where it does not say otherwise: a JSON object.
    pub fn default_input(mut self, input: impl Serialize) -> Self {
        self.default_input = serde_json::to_value(input).unwrap_or_default();
        self
    }

    /// Sets the JSON Schema that the answer has to fit.
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(Arc::new(schema));
        self
    }

    /// Sets how many rounds of tools there may be.
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.max_turns = Some(turns);
        self
    }

    /// Sets at most how many tokens each message of the model may have.
    pub fn max_output_tokens(mut self, tokens: u32) -> Self {
        self.max_output_tokens = Some(tokens);
        self
    }

    /// Sets whether the model may, must or must not call tools.
    pub fn tool_choice(mut self, choice: ToolChoice) -> Self {
        self.tool_choice = choice;
        self
    }

    /// Sets what becomes of a tool that fails.
    pub fn tool_errors(mut self, tool_errors: ToolErrors) -> Self {
        self.tool_errors = tool_errors;
        self
    }

    /// The prompt. Errs with `INVALID_ARGUMENT` where a template or a schema cannot be read.
    pub fn build(self) -> Result<Prompt, RuntimeError> {
        if self.name.trim().is_empty() {
            return Err(RuntimeError::InvalidArgument("a prompt needs a name".into()));
        }
        let named = |error: RuntimeError| {
            RuntimeError::new(error.status(), format!("prompt {:?}: {error}", self.name))
        };
        if !self.default_input.is_object() {
            let text = "the default input is no JSON object";
            return Err(named(RuntimeError::InvalidArgument(text.into())));
        }
        let mut templates = Templates::new(&self.partials).map_err(named)?;
        let messages = match &self.messages {
            OwnMessages::Template(source) | OwnMessages::Body(source) => Some(source),
            OwnMessages::None | OwnMessages::Function(_) => None,
        };
        let sources =
            [(SYSTEM, self.system.as_ref()), (USER, self.user.as_ref()), (MESSAGES, messages)];
        for (name, source) in sources {
            if let Some(source) = source {
                templates.add(name, source).map_err(named)?;
            }
        }
        templates.refuse_cycles().map_err(named)?;
        let schema = self.input_schema.as_ref().map(|schema| jsonschema::validator_for(schema));
        let schema = schema.transpose().map_err(|error| {
            let error = crate::text::shorten(&error.to_string(), 1024);
            named(RuntimeError::InvalidArgument(format!("the input schema is none: {error}")))
        })?;
        Ok(Prompt { definition: Arc::new(Definition { settings: self, templates, schema }) })
    }
}

impl fmt::Debug for PromptBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A prompt with its input and a conversation.
#[derive(Clone, Debug)]
pub struct RenderedPrompt {
    /// All messages, those of the conversation among them.
    pub messages: Vec<Arc<Message>>,
    prompt: Prompt,
}

impl RenderedPrompt {
    /// The generation that it asks for, by `model` and with those of `tools` that the prompt names.
    /// Errs with `NOT_FOUND` where there is no tool of a name.
    pub fn generate(
        self,
        model: Arc<dyn Model>,
        tools: Option<&ToolExecutor>,
    ) -> Result<Generate, RuntimeError> {
        let settings = self.prompt.settings();
        let mut request = Generate::new(model)
            .messages(self.messages)
            .config(settings.config.clone())
            .tool_choice(settings.tool_choice)
            .tool_errors(settings.tool_errors);
        if let Some(tools) = self.prompt.offered(tools)? {
            request = request.tools(tools);
        }
        if let Some(schema) = &settings.output_schema {
            request = request.output_schema(schema.clone());
        }
        if let Some(turns) = settings.max_turns {
            request = request.max_turns(turns);
        }
        if let Some(tokens) = settings.max_output_tokens {
            request = request.max_output_tokens(tokens);
        }
        Ok(request)
    }
}

impl Prompt {
    /// Those of `tools` that the prompt names.
    pub(crate) fn offered(
        &self,
        tools: Option<&ToolExecutor>,
    ) -> Result<Option<ToolExecutor>, RuntimeError> {
        let Some(names) = self.tools() else { return Ok(tools.cloned()) };
        let Some(tools) = tools else {
            return match names.first() {
                None => Ok(None),
                Some(name) => Err(RuntimeError::new(
                    antiphon_types::Status::NotFound,
                    format!("prompt {:?} wants the tool {name:?}, and there are none", self.name()),
                )),
            };
        };
        let narrowed = tools.only(names.iter().map(|name| &**name));
        narrowed.map(Some).map_err(|error| {
            let text = format!("prompt {:?}: {error}", self.name());
            RuntimeError::new(error.status(), text)
        })
    }
}

fn message(role: Role, parts: Vec<crate::Part>) -> Option<Arc<Message>> {
    (!parts.is_empty()).then(|| Arc::new(Message::new(role, parts)))
}
