//! What an entry says of arguments.

use antiphon_agent::ledger::canonical_object;
use antiphon_types::JsonObject;
use serde_json::{Value, json};

use super::text_hash;
use crate::policy::{PolicyError, pattern::ToolPattern};

/// Arguments whose canonical form has more bytes are left out of an entry; their hash is not.
const MAX_ARGUMENT_BYTES: usize = 16 * 1024;

/// Why a call with such arguments is refused where receipts are kept.
pub(crate) const UNSAFE_NUMBER: &str =
    "an integer beyond 2^53 in the arguments has no exact canonical form";

/// An argument that entries do not show. Their hash is that of all arguments all the same, so that
/// whoever knows them can show that they are the ones that were meant: see [`proves`].
///
/// Whoever has the log and can guess the argument can check a guess in the same way. What has few
/// possible values, such as a PIN, should not be an argument.
#[derive(Clone, Debug)]
pub struct Redaction {
    tools: ToolPattern,
    pointer: Vec<String>,
}

impl Redaction {
    /// The argument `field` of these tools: its name, or a JSON pointer (`/card/number`), in which `*`
    /// stands for each element of a list or each member of an object (`/cards/*/number`). Capital
    /// letters make no difference.
    ///
    /// Where the model gives something of another shape on the way, all of that is hidden: a card that
    /// is a text has no number in it, and may be one.
    pub fn new(tools: &str, field: &str) -> Result<Self, PolicyError> {
        let tools = super::super::pattern_of("redaction", tools)?;
        let pointer = match field.strip_prefix('/') {
            Some(rest) => rest.split('/').map(|name| name.replace("~1", "/").replace("~0", "~")),
            None => return Ok(Self { tools, pointer: vec![field.to_owned()] }),
        };
        Ok(Self { tools, pointer: pointer.collect() })
    }

    pub(crate) fn fits(&self, tool: &str) -> bool {
        self.tools.fits(tool)
    }

    /// Hides what there is to hide, and adds that to `hidden`.
    fn hide(&self, args: &mut JsonObject, hidden: &mut Vec<Value>) {
        if let Some((first, rest)) = self.pointer.split_first() {
            hide_members(args, first, rest, hidden);
        }
    }

    fn pointer(&self) -> String {
        let escaped = self.pointer.iter().map(|name| name.replace('~', "~0").replace('/', "~1"));
        escaped.map(|name| format!("/{name}")).collect()
    }
}

const HIDDEN: &str = "[redacted]";

fn hide_members(object: &mut JsonObject, name: &str, rest: &[String], hidden: &mut Vec<Value>) {
    for (member, value) in object {
        if name == "*" || member.eq_ignore_ascii_case(name) {
            hide_in(value, rest, hidden);
        }
    }
}

fn hide_in(value: &mut Value, path: &[String], hidden: &mut Vec<Value>) {
    match (path.split_first(), &mut *value) {
        (Some((name, rest)), Value::Object(object)) => hide_members(object, name, rest, hidden),
        (Some((name, rest)), Value::Array(items)) => match name.parse::<usize>() {
            Ok(at) => {
                if let Some(item) = items.get_mut(at) {
                    hide_in(item, rest, hidden);
                }
            }
            Err(_) if name == "*" => {
                items.iter_mut().for_each(|item| hide_in(item, rest, hidden));
            }
            // A list where one was to be: each of them.
            Err(_) => items.iter_mut().for_each(|item| hide_in(item, path, hidden)),
        },
        // Nothing is there, and nothing can be in it.
        (Some(_), Value::Null | Value::Bool(_)) => {}
        // What was to be hidden, or something else in its place.
        _ => hidden.push(std::mem::replace(value, Value::String(HIDDEN.to_owned()))),
    }
}

/// What entries of a call do not show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hidden {
    /// Something of this tool's arguments is not shown.
    applies: bool,
    values: Vec<String>,
}

impl Hidden {
    /// A text of the host or of a policy, which may quote arguments, without them.
    pub(crate) fn scrub(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, value| text.replace(value, HIDDEN))
    }

    /// A text of somebody who may quote arguments in any form.
    pub(crate) fn conceal(&self, text: &str) -> String {
        if self.applies { HIDDEN.to_owned() } else { text.to_owned() }
    }
}

/// Arguments as an entry shows them.
pub(crate) struct Argument {
    pub(crate) sha256: String,
    pub(crate) shown: Option<JsonObject>,
    pub(crate) redacted: Vec<String>,
    pub(crate) hidden: Hidden,
}

impl Argument {
    /// `None`: they have no exact canonical form. `broken`: they are not what the tool takes, so that
    /// nobody can tell where in them is what is not to be shown.
    pub(crate) fn of(
        tool: &str,
        args: &JsonObject,
        redactions: &[Redaction],
        broken: bool,
    ) -> Option<Self> {
        if !args.values().all(is_exact) {
            return None;
        }
        let sha256 = hash_of(args)?;
        let mut hidden = Hidden::of(tool, redactions);
        if broken && hidden.applies {
            return Some(Self { sha256, shown: None, redacted: vec![String::new()], hidden });
        }
        let (mut shown, mut redacted, mut values) = (args.clone(), Vec::new(), Vec::new());
        for redaction in redactions.iter().filter(|redaction| redaction.fits(tool)) {
            let before = values.len();
            redaction.hide(&mut shown, &mut values);
            if values.len() > before {
                redacted.push(redaction.pointer());
            }
        }
        values.iter().for_each(|value| texts(value, &mut hidden.values));
        let small = serde_json::to_vec(&shown).is_ok_and(|text| text.len() <= MAX_ARGUMENT_BYTES);
        Some(Self { sha256, shown: small.then_some(shown), redacted, hidden })
    }

    pub(crate) fn write(self, entry: &mut JsonObject) {
        entry.insert("arguments_sha256".into(), self.sha256.into());
        if let Some(shown) = self.shown {
            entry.insert("arguments".into(), Value::Object(shown));
        }
        if !self.redacted.is_empty() {
            entry.insert("redacted".into(), json!(self.redacted));
        }
    }
}

impl Hidden {
    /// Before anything of the arguments is known.
    pub(crate) fn of(tool: &str, redactions: &[Redaction]) -> Self {
        let applies = redactions.iter().any(|redaction| redaction.fits(tool));
        Self { applies, values: Vec::new() }
    }

    /// Something is hidden of some tool: one that nobody knows may be that one, misspelt.
    pub(crate) fn of_unknown(redactions: &[Redaction]) -> Self {
        Self { applies: !redactions.is_empty(), values: Vec::new() }
    }
}

/// The texts of a value, as they may be quoted.
fn texts(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) if text.len() >= 2 => found.push(text.clone()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(object) => object.values().for_each(|member| texts(member, found)),
        Value::String(_) | Value::Bool(_) | Value::Null => {}
    }
}

/// Whether `args` are the arguments of a decision: its entry has their hash.
pub fn proves(entry: &JsonObject, args: &JsonObject) -> bool {
    let hash = entry.get("arguments_sha256").and_then(Value::as_str);
    hash.is_some() && hash == hash_of(args).as_deref() && args.values().all(is_exact)
}

/// The hash of the canonical form.
fn hash_of(args: &JsonObject) -> Option<String> {
    canonical_object(args).map(|text| text_hash(&text))
}

fn is_exact(value: &Value) -> bool {
    const MAX: u64 = (1 << 53) - 1;
    match value {
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number <= MAX,
            (None, Some(number)) => number.unsigned_abs() <= MAX,
            (None, None) => true,
        },
        Value::Array(items) => items.iter().all(is_exact),
        Value::Object(object) => object.values().all(is_exact),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        match value {
            Value::Object(object) => object,
            other => panic!("no object: {other}"),
        }
    }

    #[test]
    fn what_is_hidden_is_proven_by_the_hash_of_all() {
        let args = object(json!({
            "to": "Ann",
            "card": { "number": "4111", "name": "Ann" },
            "notes": ["a", "b"],
        }));
        let redactions = ["/card/number", "to", "/notes/1", "/none/at/all"]
            .map(|field| Redaction::new("pay", field).unwrap());
        let shown = Argument::of("pay", &args, &redactions, false).unwrap();
        let mut entry = JsonObject::new();
        shown.write(&mut entry);
        let expected = json!({
            "to": "[redacted]",
            "card": { "number": "[redacted]", "name": "Ann" },
            "notes": ["a", "[redacted]"],
        });
        assert_eq!(entry["arguments"], expected);
        assert_eq!(entry["redacted"], json!(["/card/number", "/to", "/notes/1"]));
        assert!(proves(&entry, &args));
        assert!(!proves(&entry, &object(expected)));
        let open = Argument::of("look", &args, &redactions, true).unwrap();
        assert_eq!(open.shown.as_ref(), Some(&args));
        assert_eq!(entry["arguments_sha256"], open.sha256.as_str());
    }

    #[test]
    fn whatever_shape_the_model_gives_it_is_hidden() {
        let redactions = ["/card/number", "/cards/*/number", "iban"]
            .map(|field| Redaction::new("pay", field).unwrap());
        let shown = |args: Value| {
            let argument = Argument::of("pay", &object(args), &redactions, false).unwrap();
            serde_json::to_string(&argument.shown).unwrap()
        };
        for args in [
            json!({ "card": "4111 1111" }),
            json!({ "card": 41_111_111 }),
            json!({ "card": { "number": { "text": "4111 1111" } } }),
            json!({ "card": [{ "number": "4111 1111" }, { "name": "A" }] }),
            json!({ "card": ["4111 1111"] }),
            json!({ "Card": { "NUMBER": "4111 1111" } }),
            json!({ "cards": [{ "number": "4111 1111" }, "4111 1111"] }),
            json!({ "cards": { "first": { "number": "4111 1111" } } }),
            json!({ "cards": { "number": "4111 1111" } }),
            json!({ "IBAN": ["4111 1111"] }),
        ] {
            let text = shown(args.clone());
            assert!(!text.contains("4111") && text.contains(HIDDEN), "{args}: {text}");
        }
        let other = json!({ "card": { "name": "Ann" }, "cards": [], "amount": 4111 });
        assert_eq!(shown(other.clone()), other.to_string());
        let args = object(json!({ "card": { "number": "4111 1111", "pin": 1234 } }));
        let broken = Argument::of("pay", &args, &redactions, true).unwrap();
        assert_eq!((broken.shown, &*broken.redacted), (None, &[String::new()][..]));
        let hidden = Argument::of("pay", &args, &redactions, false).unwrap().hidden;
        assert_eq!(hidden.scrub("no card 4111 1111 here"), "no card [redacted] here");
        assert_eq!(hidden.conceal("4 1 1 1"), HIDDEN);
        assert_eq!(Hidden::of("look", &redactions).conceal("it is late"), "it is late");
    }

    #[test]
    fn integers_that_are_not_exact_have_no_entry() {
        for number in [json!(9_007_199_254_740_993_u64), json!(i64::MIN), json!(u64::MAX)] {
            assert!(
                Argument::of("pay", &object(json!({ "a": [{ "b": number }] })), &[], false)
                    .is_none()
            );
        }
        let exact = object(json!({ "a": 9_007_199_254_740_991_i64, "b": -1, "c": 1.5 }));
        assert!(Argument::of("pay", &exact, &[], false).is_some());
    }

    #[test]
    fn arguments_that_are_large_leave_their_hash() {
        let args = object(json!({ "text": "x".repeat(20_000) }));
        let argument = Argument::of("pay", &args, &[], false).unwrap();
        assert!(argument.shown.is_none());
        assert_eq!(Some(argument.sha256), antiphon_agent::ledger::canonical_hash(&args));
    }
}
