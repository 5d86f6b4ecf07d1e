//! Templates of the handlebars family, and what they stand for once rendered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::{Arc, LazyLock},
};

use handlebars::{
    Context, Handlebars, Helper, HelperDef, Output, RenderContext, RenderError, RenderErrorReason,
    template::{Parameter, Template, TemplateElement},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{RuntimeError, id::new_id, message::Role, text::shorten};

/// The name under which templates find the custom state: a root member, since the engine's own
/// `@` variables have no members and end with the next block.
const STATE: &str = "::state";
/// The longest text of an error about a template, in bytes.
const MAX_ERROR_BYTES: usize = 1024;
/// The longest text that a template may become.
const MAX_RENDERED_BYTES: usize = 16 * 1024 * 1024;
/// How deep blocks, and what is in parentheses and brackets, may be nested: the engine reads and
/// renders them by recursion.
const MAX_DEPTH: usize = 64;

/// The compiled templates of a prompt.
pub(super) struct Templates {
    engine: Handlebars<'static>,
    /// Whether any of them looks at the custom state.
    pub(super) use_state: bool,
}

impl Templates {
    pub(super) fn new(partials: &BTreeMap<String, String>) -> Result<Self, RuntimeError> {
        let mut engine = Handlebars::new();
        // What is rendered is for models, not for browsers.
        engine.register_escape_fn(handlebars::no_escape);
        engine.register_helper("json", Box::new(Json));
        engine.register_helper("role", Box::new(RoleMark));
        engine.register_helper("history", Box::new(HistoryMark));
        engine.register_helper("media", Box::new(MediaMark));
        engine.register_helper("ifEquals", Box::new(Equals { wanted: true }));
        engine.register_helper("unlessEquals", Box::new(Equals { wanted: false }));
        let mut templates = Self { engine, use_state: false };
        for (name, source) in partials {
            templates.add(name, source)?;
        }
        Ok(templates)
    }

    /// Refuses templates that include each other without end, which the engine would follow.
    pub(super) fn refuse_cycles(&self) -> Result<(), RuntimeError> {
        refuse_cycles(self.engine.get_templates())
    }

    /// Compiles a template, which includes those that are there already.
    pub(super) fn add(&mut self, name: &str, source: &str) -> Result<(), RuntimeError> {
        let unreadable = |error: &str| {
            let error = shorten(error, MAX_ERROR_BYTES);
            RuntimeError::InvalidArgument(format!("template {name:?} cannot be read: {error}"))
        };
        let source = reach_state(source).map_err(unreadable)?;
        self.use_state |= source.contains(STATE);
        let added = self.engine.register_template_string(name, source);
        added.map_err(|error| unreadable(&error.to_string()))
    }

    /// Renders a template with `input`, an object, and the custom state.
    pub(super) fn render(
        &self,
        name: &str,
        input: &Value,
        state: &Value,
    ) -> Result<Vec<Piece>, RuntimeError> {
        let mut data = input.as_object().cloned().unwrap_or_default();
        data.insert(STATE.to_owned(), state.clone());
        let mut text = Bounded(Vec::new());
        self.engine.render_to_write(name, &data, &mut text).map_err(|error| {
            let error = shorten(&error.to_string(), MAX_ERROR_BYTES);
            RuntimeError::InvalidArgument(format!("template {name:?} cannot be rendered: {error}"))
        })?;
        Ok(pieces(&String::from_utf8_lossy(&text.0)))
    }
}

/// A rendered text, which templates that loop and include each other cannot make endless.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED_BYTES {
            return Err(io::Error::other(format!("more than {MAX_RENDERED_BYTES} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A piece of a rendered template.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    Text(String),
    Mark(Mark),
}

/// What a template says beside words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mark {
    /// What follows is said by this role.
    Role(Role),
    /// Here stands the conversation.
    History,
    /// A picture, a sound, a film.
    Media { url: String, content_type: Option<String> },
}

/// Begins each mark in a rendered text. Nobody can guess it, so that no input can speak as another
/// role or pretend to be a picture.
static SECRET: LazyLock<Arc<str>> = LazyLock::new(|| format!("\u{2}{}:", new_id()).into());
const END: char = '\u{3}';

impl Mark {
    fn write(&self, out: &mut dyn Output) -> Result<(), RenderError> {
        // JSON escapes the character that ends it.
        let json = serde_json::to_string(self).map_err(RenderErrorReason::from)?;
        Ok(out.write(&format!("{}{json}{END}", *SECRET))?)
    }
}

fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (index, part) in text.split(&**SECRET).enumerate() {
        let (mark, text) = match index {
            0 => (None, part),
            _ => part.split_once(END).map_or((Some(part), ""), |(mark, text)| (Some(mark), text)),
        };
        // Only this module writes marks, so each can be read.
        pieces.extend(mark.and_then(|mark| serde_json::from_str(mark).ok()).map(Piece::Mark));
        if !text.is_empty() {
            pieces.push(Piece::Text(text.to_owned()));
        }
    }
    pieces
}

/// Lets `@state` in tags be what it is named: a value with members, the same at every depth. Refuses
/// what is nested too deep.
fn reach_state(source: &str) -> Result<String, &'static str> {
    const TOO_DEEP: &str = "it is nested too deep";
    let mut out = String::with_capacity(source.len());
    let (mut rest, mut depth) = (source, 0_usize);
    while let Some(start) = rest.find("{{") {
        let (text, tag) = rest.split_at(start);
        out.push_str(text);
        let (close, opened) = match tag {
            // What is escaped is text up to its own braces only.
            _ if text.ends_with('\\') => ("", 2),
            _ if tag.starts_with("{{!--") => ("--}}", 5),
            _ if tag.starts_with("{{!") => ("}}", 3),
            _ => ("}}", 2),
        };
        let end = tag[opened..].find(close).map_or(tag.len(), |end| opened + end + close.len());
        let (tag, after) = tag.split_at(end);
        let inner = tag[opened..].trim_start_matches(['~', ' ', '{']);
        if close != "}}" || opened != 2 {
            out.push_str(tag);
        } else {
            match inner.chars().next() {
                Some('#' | '^') => depth += 1,
                Some('/') => depth = depth.saturating_sub(1),
                _ => {}
            }
            let (tag, nested) = reach_state_in_tag(tag);
            if depth + nested > MAX_DEPTH {
                return Err(TOO_DEEP);
            }
            out.push_str(&tag);
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// The tag, and how deep it is nested.
fn reach_state_in_tag(tag: &str) -> (String, usize) {
    const NAME: &str = "@state";
    let mut out = String::with_capacity(tag.len());
    let (mut quote, mut depth, mut deepest) = (None, 0_usize, 0);
    let mut chars = tag.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        let after = tag[at..].strip_prefix(NAME).filter(|_| quote.is_none());
        if after.is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        {
            // It is the same one further out.
            while out.ends_with("../") {
                out.truncate(out.len() - "../".len());
            }
            out.push_str("@root.");
            out.push_str(STATE);
            // The first of them is taken already.
            chars.by_ref().take(NAME.len() - 1).for_each(drop);
            continue;
        }
        out.push(c);
    }
    (out, deepest)
}

fn refuse_cycles(templates: &HashMap<String, Template>) -> Result<(), RuntimeError> {
    let mut includes: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, template) in templates {
        included(name, template, &mut includes)?;
    }
    // What includes nothing that is left cannot be part of a cycle.
    let mut left = includes;
    loop {
        let ends: BTreeSet<_> = left
            .iter()
            .filter(|(_, names)| !names.iter().any(|name| left.contains_key(name)))
            .map(|(name, _)| name.clone())
            .collect();
        if ends.is_empty() {
            break;
        }
        left.retain(|name, _| !ends.contains(name));
    }
    match left.keys().next() {
        None => Ok(()),
        Some(name) => Err(RuntimeError::InvalidArgument(format!(
            "template {name:?} and others include each other without end"
        ))),
    }
}

/// Notes what `template` includes by name, and what the templates within it do.
fn included(
    name: &str,
    template: &Template,
    includes: &mut BTreeMap<String, BTreeSet<String>>,
) -> Result<(), RuntimeError> {
    for element in &template.elements {
        match element {
            TemplateElement::PartialExpression(partial)
            | TemplateElement::PartialBlock(partial) => {
                let Some(partial_name) = partial.name.as_name() else {
                    return Err(RuntimeError::InvalidArgument(format!(
                        "template {name:?} includes another by a computed name"
                    )));
                };
                let names = includes.entry(name.to_owned()).or_default();
                names.insert(partial_name.to_owned());
                if let Some(inner) = &partial.template {
                    included(name, inner, includes)?;
                }
            }
            TemplateElement::DecoratorBlock(inline) => {
                let Some(inner) = &inline.template else { continue };
                included(name, inner, includes)?;
                if let Some(Parameter::Literal(Value::String(inline))) = inline.params.first() {
                    included(inline, inner, includes)?;
                }
            }
            TemplateElement::HelperBlock(block) => {
                for inner in [&block.template, &block.inverse].into_iter().flatten() {
                    included(name, inner, includes)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// `{{json value}}`, indented with `{{json value indent=2}}`.
struct Json;

impl HelperDef for Json {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc Context,
        _: &mut RenderContext<'reg, 'rc>,
        out: &mut dyn Output,
    ) -> Result<(), RenderError> {
        let value = helper.param(0).map_or(&Value::Null, |param| param.value());
        let indented = helper.hash_get("indent").is_some_and(|it| it.value() != &Value::from(0));
        let json = match indented {
            true => serde_json::to_string_pretty(value),
            false => serde_json::to_string(value),
        };
        Ok(out.write(&json.map_err(RenderErrorReason::from)?)?)
    }
}

/// `{{role "system"}}`.
struct RoleMark;

impl HelperDef for RoleMark {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc Context,
        _: &mut RenderContext<'reg, 'rc>,
        out: &mut dyn Output,
    ) -> Result<(), RenderError> {
        let role = helper.param(0).and_then(|param| param.value().as_str());
        let role = match role {
            Some("system") => Role::System,
            Some("user") => Role::User,
            Some("model") => Role::Model,
            other => {
                return Err(failed(format!(
                    "a role is \"system\", \"user\" or \"model\", not {other:?}"
                )));
            }
        };
        Mark::Role(role).write(out)
    }
}

/// `{{history}}`.
struct HistoryMark;

impl HelperDef for HistoryMark {
    fn call<'reg: 'rc, 'rc>(
        &self,
        _: &Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc Context,
        _: &mut RenderContext<'reg, 'rc>,
        out: &mut dyn Output,
    ) -> Result<(), RenderError> {
        Mark::History.write(out)
    }
}

/// `{{media url=photo contentType="image/png"}}`.
struct MediaMark;

impl HelperDef for MediaMark {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        _: &'reg Handlebars<'reg>,
        _: &'rc Context,
        _: &mut RenderContext<'reg, 'rc>,
        out: &mut dyn Output,
    ) -> Result<(), RenderError> {
        let text = |key| helper.hash_get(key).and_then(|it| it.value().as_str()).map(str::to_owned);
        let Some(url) = text("url").filter(|url| !url.is_empty()) else {
            return Err(failed("media needs a url".into()));
        };
        Mark::Media { url, content_type: text("contentType") }.write(out)
    }
}

/// `{{#ifEquals a b}}` and its opposite.
struct Equals {
    wanted: bool,
}

impl HelperDef for Equals {
    fn call<'reg: 'rc, 'rc>(
        &self,
        helper: &Helper<'rc>,
        engine: &'reg Handlebars<'reg>,
        context: &'rc Context,
        render: &mut RenderContext<'reg, 'rc>,
        out: &mut dyn Output,
    ) -> Result<(), RenderError> {
        let param = |index| helper.param(index).map(|param| param.value());
        let branch = match (param(0) == param(1)) == self.wanted {
            true => helper.template(),
            false => helper.inverse(),
        };
        match branch {
            Some(template) => {
                handlebars::Renderable::render(template, engine, context, render, out)
            }
            None => Ok(()),
        }
    }
}

fn failed(text: String) -> RenderError {
    RenderErrorReason::Other(text).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_reached_in_tags_only() {
        for (source, reached) in [
            ("{{@state}}", "{{@root.::state}}"),
            (
                "{{#each @state.items}}{{../@state.x}}{{/each}}",
                "{{#each @root.::state.items}}{{@root.::state.x}}{{/each}}",
            ),
            ("mail@state.com {{x}}", "mail@state.com {{x}}"),
            ("{{json \"@state\"}}", "{{json \"@state\"}}"),
            ("{{@stateful}}", "{{@stateful}}"),
            ("{{!-- @state }} --}}{{! @state }}", "{{!-- @state }} --}}{{! @state }}"),
            ("\\{{@state}}", "\\{{@state}}"),
            ("{{@state", "{{@root.::state"),
        ] {
            assert_eq!(reach_state(source).unwrap(), reached);
        }
    }
}
