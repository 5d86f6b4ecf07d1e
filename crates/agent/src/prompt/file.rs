//! `.prompt` files: YAML front matter, then a template.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use antiphon_types::{JsonObject, Status};
use serde::Deserialize;
use serde_json::Value;

use super::{OwnMessages, Prompt, PromptBuilder, picoschema};
use crate::{RuntimeError, ToolChoice, text::shorten};

/// The largest file that is read.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// How deep directories of prompts may be nested.
const MAX_DEPTH: usize = 8;

/// What the front matter may say; further members are passed over.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FrontMatter {
    description: Option<Arc<str>>,
    model: Option<Arc<str>>,
    config: JsonObject,
    input: Input,
    output: Output,
    tools: Option<Vec<Arc<str>>>,
    max_turns: Option<u32>,
    tool_choice: ToolChoice,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Input {
    schema: Option<Value>,
    default: JsonObject,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Output {
    schema: Option<Value>,
}

impl PromptBuilder {
    /// Reads a `.prompt` file's text: front matter between lines of `---`, where there is one, and
    /// a template. It may have roles and place the conversation; where it does not do the latter the
    /// conversation stands before what the user says last. Schemas may be in the short form.
    pub fn source(mut self, source: &str) -> Result<Self, RuntimeError> {
        let (front, body) = split(source);
        let invalid = |what: String| {
            let what = shorten(&what, 1024);
            RuntimeError::InvalidArgument(format!("front matter of {:?}: {what}", self.name))
        };
        let front: FrontMatter = match front.map(str::trim) {
            None | Some("") => FrontMatter::default(),
            Some(front) => serde_saphyr::from_str(front).map_err(|e| invalid(e.to_string()))?,
        };
        let expand =
            |schema: Option<Value>| schema.map(picoschema::expand).transpose().map_err(invalid);
        let (input, output) = (expand(front.input.schema)?, expand(front.output.schema)?);
        self.input_schema = input.map(Arc::new);
        self.output_schema = output.map(Arc::new);
        self.default_input = Value::Object(front.input.default);
        self.description = front.description;
        self.model = front.model.map(super::PromptModel::Named);
        self.max_output_tokens = front
            .config
            .get("maxOutputTokens")
            .and_then(Value::as_u64)
            .and_then(|tokens| tokens.try_into().ok());
        self.config = Arc::new(front.config);
        self.tools = Some(front.tools.unwrap_or_default());
        self.max_turns = front.max_turns;
        self.tool_choice = front.tool_choice;
        self.messages = OwnMessages::Body(body.trim().to_owned());
        Ok(self)
    }
}

impl Prompt {
    /// Reads a `.prompt` file's text: see [`PromptBuilder::source`].
    pub fn parse(name: impl Into<Arc<str>>, source: &str) -> Result<Self, RuntimeError> {
        Self::builder(name).source(source)?.build()
    }

    /// Reads all `.prompt` files under a directory. `people/greet.prompt` is the prompt
    /// `people/greet`; `_sign.prompt` is a template that others include with `{{>sign}}`. Blocks.
    pub fn load_dir(directory: &Path) -> Result<Vec<Self>, RuntimeError> {
        let mut files = Vec::new();
        list(directory, "", MAX_DEPTH, &mut files)?;
        files.sort();
        let mut partials = BTreeMap::new();
        let mut sources = Vec::new();
        for (name, path) in files {
            let source = read(&path)?;
            match name.rsplit('/').next().and_then(|name| name.strip_prefix('_')) {
                Some(partial) => {
                    drop(partials.insert(partial.to_owned(), split(&source).1.to_owned()))
                }
                None => sources.push((name, source)),
            }
        }
        let prompts = sources.into_iter().map(|(name, source)| {
            let mut prompt = Self::builder(name);
            prompt.partials = partials.clone();
            prompt.source(&source)?.build()
        });
        prompts.collect()
    }
}

fn list(
    directory: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<(String, PathBuf)>,
) -> Result<(), RuntimeError> {
    let entries = fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
    for entry in entries {
        let entry = entry.map_err(|error| unreadable(directory, &error))?;
        let (path, name) = (entry.path(), entry.file_name());
        let Some(name) = name.to_str() else { continue };
        if path.is_dir() {
            if depth > 0 {
                list(&path, &format!("{prefix}{name}/"), depth - 1, files)?;
            }
        } else if let Some(name) = name.strip_suffix(".prompt").filter(|name| !name.is_empty()) {
            files.push((format!("{prefix}{name}"), path));
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, RuntimeError> {
    let size = fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
    if size > MAX_FILE_BYTES {
        let text =
            format!("{} has {size} bytes, at most {MAX_FILE_BYTES} are read", path.display());
        return Err(RuntimeError::InvalidArgument(text));
    }
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &std::io::Error) -> RuntimeError {
    let status = match error.kind() {
        std::io::ErrorKind::NotFound => Status::NotFound,
        std::io::ErrorKind::InvalidData => Status::InvalidArgument,
        _ => Status::Unavailable,
    };
    RuntimeError::new(status, format!("{} cannot be read: {error}", path.display()))
}

/// Front matter and body.
fn split(source: &str) -> (Option<&str>, &str) {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source).trim_start();
    let Some(rest) = source.strip_prefix("---") else { return (None, source) };
    let Some(rest) = rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\r\n")) else {
        return (None, source);
    };
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return (Some(&rest[..at]), &rest[at + line.len()..]);
        }
        at += line.len();
    }
    (None, source)
}
