//! Tools from a file.

use std::{collections::BTreeMap, collections::HashSet, path::Path, time::Duration};

use antiphon_agent::Effects;
use antiphon_types::ToolSpeech;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{CommandSpec, CommandTool};
use crate::json_file::{FileError, JsonFile, UniqueKeys};

/// The longest that a command may be allowed to run.
const MAX_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// The tools of a JSON file: a list of
/// `{name, description, parameters?, phrases?, answer?, questions?, confirm?, effects?, command,
/// timeout_ms?}`.
///
/// * `parameters`: JSON Schema of the arguments. Slots of `phrases` are its properties.
/// * `phrases`, `answer`, `questions`: see [`ToolSpeech`].
/// * `confirm`: `true`, or the question by which a call is read back before it runs, such as
///   `Open the {which} door?`.
/// * `effects`: what a call changes: `once` (the default), `read_only`, `idempotent` or `ask`; see
///   [`Effects`].
/// * `command`: the program and its arguments, without a shell; see [`CommandTool`].
/// * `timeout_ms`: how long it may run; 30,000 when it is not said.
#[derive(Clone, Debug)]
pub struct ToolFile {
    /// The tools, in the file's order.
    pub tools: Vec<CommandTool>,
    /// Where each of them stands, as an error that lacks its reason.
    places: Vec<FileError>,
}

/// Reads a file of tools.
///
/// # Errors
///
/// Whatever is wrong with the file, with its line: no JSON, an unknown or missing key, a name that
/// occurs twice, a schema that is none, a phrase with a slot that is no parameter.
pub fn load_tools(path: impl AsRef<Path>) -> Result<ToolFile, FileError> {
    ToolFile::from_json(&JsonFile::read(path.as_ref())?)
}

impl ToolFile {
    /// Tools from a text; `name` stands for the path in errors.
    ///
    /// # Errors
    ///
    /// As [`load_tools`].
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::new(name, text))
    }

    /// A complaint of the host about the tool at `index` of [`ToolFile::tools`], such as a name that
    /// is taken: with the tool's line.
    pub fn error_at(&self, index: usize, reason: impl Into<String>) -> FileError {
        let mut error = self.places.get(index).cloned().unwrap_or_else(|| FileError {
            path: String::new(),
            line: None,
            column: None,
            reason: String::new(),
        });
        error.reason = reason.into();
        error
    }

    fn from_json(file: &JsonFile) -> Result<Self, FileError> {
        file.parse::<UniqueKeys>()?;
        let entries: Vec<&RawValue> = file.parse()?;
        let mut names = HashSet::new();
        let (mut tools, mut places) = (Vec::new(), Vec::new());
        for piece in entries {
            let entry: Entry<'_> = file.parse_piece(piece)?;
            if !names.insert(entry.name.clone()) {
                return Err(file.error_at(piece, format!("a second tool named {:?}", entry.name)));
            }
            tools.push(CommandTool::new(entry.into_spec(file, piece)?));
            places.push(file.error_at(piece, ""));
        }
        Ok(Self { tools, places })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    name: String,
    description: String,
    #[serde(borrow, default)]
    parameters: Option<&'a RawValue>,
    #[serde(default)]
    phrases: Vec<String>,
    #[serde(default)]
    answer: Option<String>,
    #[serde(default)]
    questions: BTreeMap<String, String>,
    #[serde(default)]
    confirm: Option<Confirm>,
    #[serde(default)]
    effects: Effects,
    command: Vec<String>,
    #[serde(default)]
    timeout_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`confirm` must be true, false or a question")]
enum Confirm {
    Plain(bool),
    Question(String),
}

impl Entry<'_> {
    fn into_spec(self, file: &JsonFile, piece: &RawValue) -> Result<CommandSpec, FileError> {
        let fail = |reason: String| Err(file.error_at(piece, reason));
        if !is_name(&self.name) {
            return fail(format!(
                "{:?} is no name of a tool: 1 to 64 letters, digits, `_` or `-`",
                self.name
            ));
        }
        let tool = format!("tool {:?}", self.name);
        if self.command.first().is_none_or(|program| program.trim().is_empty()) {
            return fail(format!("{tool}: `command` is empty"));
        }
        if self.command.iter().any(|argument| argument.contains('\0')) {
            return fail(format!("{tool}: `command` holds a null character"));
        }
        let timeout = self.timeout_ms.map(Duration::from_millis);
        if timeout.is_some_and(|timeout| timeout.is_zero() || timeout > MAX_TIMEOUT) {
            return fail(format!("{tool}: `timeout_ms` must be 1 to {}", MAX_TIMEOUT.as_millis()));
        }
        let parameters = match self.parameters {
            Some(piece) => Some(schema(file, piece, &tool)?),
            None => None,
        };
        let slots = self.phrases.iter().flat_map(|phrase| slots(phrase));
        for slot in slots.chain(self.questions.keys().map(String::as_str)) {
            if !has_property(parameters.as_ref(), slot) {
                return fail(format!("{tool}: {slot:?} is no property of `parameters`"));
            }
        }
        let read_back = match self.confirm {
            None | Some(Confirm::Plain(false)) => None,
            Some(Confirm::Plain(true)) => Some(plain_question(&self.name, parameters.as_ref())),
            Some(Confirm::Question(text)) if text.trim().is_empty() => {
                return fail(format!("{tool}: the question of `confirm` is blank"));
            }
            Some(Confirm::Question(text)) => Some(text),
        };
        let speech = (!self.phrases.is_empty() || self.answer.is_some()).then(|| {
            let mut speech = ToolSpeech::phrases(self.phrases);
            speech.answer = self.answer;
            speech.questions = self.questions;
            speech
        });
        let mut spec = CommandSpec::new(self.name, self.command);
        spec.description = self.description;
        spec.parameters = parameters;
        spec.speech = speech;
        spec.read_back = read_back;
        spec.timeout = timeout;
        spec.effects = self.effects;
        Ok(spec)
    }
}

/// What every provider accepts as the name of a function.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn schema(file: &JsonFile, piece: &RawValue, tool: &str) -> Result<Value, FileError> {
    let schema: Value = file.parse_piece(piece)?;
    if !schema.is_object() {
        return Err(file.error_at(piece, format!("{tool}: `parameters` must be a JSON Schema")));
    }
    match jsonschema::validator_for(&schema) {
        Ok(_) => Ok(schema),
        Err(error) => {
            Err(file.error_at(piece, format!("{tool}: `parameters` is no JSON Schema: {error}")))
        }
    }
}

fn has_property(schema: Option<&Value>, name: &str) -> bool {
    schema.is_some_and(|schema| schema["properties"].get(name).is_some())
}

/// The names in braces.
fn slots(phrase: &str) -> impl Iterator<Item = &str> {
    phrase.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(slot, _)| slot)
}

/// `Shall I do this: open door, with which {which}?`
fn plain_question(name: &str, schema: Option<&Value>) -> String {
    let name = name.replace(['_', '-'], " ");
    let properties = schema.and_then(|schema| schema["properties"].as_object());
    let parts: Vec<String> = properties
        .into_iter()
        .flat_map(|properties| properties.keys())
        .map(|key| format!("{} {{{key}}}", key.replace(['_', '-'], " ")))
        .collect();
    if parts.is_empty() {
        format!("Shall I do this: {name}?")
    } else {
        format!("Shall I do this: {name}, with {}?", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use antiphon_agent::Tool;
    use proptest::prelude::*;

    use super::*;

    const DOOR: &str = r#"[
  {"name": "open_door", "description": "Opens a door.",
   "parameters": {"type": "object", "properties": {"which": {"enum": ["front", "back"]}},
                  "required": ["which"]},
   "phrases": ["open the {which} door"], "answer": "The {which} door is open.",
   "questions": {"which": "Which door?"}, "confirm": true,
   "command": ["/usr/bin/door", "open"], "timeout_ms": 5000}
]"#;

    #[test]
    fn a_tool_has_all_that_the_file_says() {
        let file = ToolFile::parse("t.json", DOOR).unwrap();
        let tool = &file.tools[0];
        assert_eq!(tool.name(), "open_door");
        assert_eq!(tool.read_back(), Some("Shall I do this: open door, with which {which}?"));
        let speech = tool.speech().unwrap();
        assert_eq!(speech.answer.as_deref(), Some("The {which} door is open."));
        assert_eq!(speech.questions["which"], "Which door?");
        assert!(tool.limits().timeout >= Duration::from_secs(5));
    }

    #[test]
    fn a_byte_order_mark_and_other_line_ends_do_no_harm() {
        let text = format!("\u{feff}{}", DOOR.replace('\n', "\r\n"));
        assert_eq!(ToolFile::parse("t.json", &text).unwrap().tools.len(), 1);
        let error = ToolFile::parse("t.json", "\u{feff}{}").unwrap_err();
        assert_eq!((error.line, error.column), (Some(1), Some(1)));
    }

    #[test]
    fn bad_files_say_line_and_reason() {
        let tool = |rest: &str| {
            format!("[\n{{\"name\":\"a\",\"description\":\"d\",\n\"command\":[\"x\"]{rest}}}\n]")
        };
        let cases: Vec<(String, usize, &str)> = vec![
            ("{}".into(), 1, "expected a sequence"),
            ("[\n{\"name\":\"a\"".into(), 2, "EOF"),
            ("[\n\n{\"name\":\"a\",\"description\":\"d\"}]".into(), 3, "command"),
            (tool(",\n\"comand\":1"), 4, "unknown field `comand`"),
            (tool(",\n\"name\":\"b\""), 4, "twice"),
            (tool(",\n\"parameters\":{\"type\":\"objekt\"}"), 4, "no JSON Schema"),
            (tool(",\n\"parameters\":[]"), 4, "must be a JSON Schema"),
            (tool(",\"phrases\":[\"do {what}\"]"), 2, "\"what\" is no property"),
            (tool(",\"confirm\":3"), 3, "confirm"),
            (tool(",\"confirm\":\" \""), 2, "blank"),
            (tool(",\"timeout_ms\":0"), 2, "timeout_ms"),
            (tool(",\"timeout_ms\":-5"), 3, "invalid value"),
            ("[{\"name\":\"a b\",\"description\":\"d\",\"command\":[\"x\"]}]".into(), 1, "no name"),
            ("[{\"name\":\"a\",\"description\":\"d\",\"command\":[]}]".into(), 1, "empty"),
            (
                "[{\"name\":\"a\",\"description\":\"d\",\"command\":[\"x\"]},\n{\"name\":\"a\",\"description\":\"d\",\"command\":[\"x\"]}]".into(),
                2,
                "second tool",
            ),
        ];
        for (text, line, reason) in cases {
            let error = ToolFile::parse("t.json", &text).unwrap_err();
            assert_eq!(error.line, Some(line), "{text}: {error}");
            assert!(error.to_string().contains(reason), "{text}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,200}") {
            let _ = ToolFile::parse("t", &text);
        }
    }
}
