//! What an entry says of arguments.

use antiphon_agent::ledger::canonical_hash;
use antiphon_types::JsonObject;
use serde_json::{Value, json};

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
    /// The argument `field` of these tools: its name, or a JSON pointer (`/card/number`).
    pub fn new(tools: &str, field: &str) -> Result<Self, PolicyError> {
        let tools = super::super::pattern_of("redaction", tools)?;
        let pointer = match field.strip_prefix('/') {
            Some(rest) => rest.split('/').map(|name| name.replace("~1", "/").replace("~0", "~")),
            None => return Ok(Self { tools, pointer: vec![field.to_owned()] }),
        };
        Ok(Self { tools, pointer: pointer.collect() })
    }

    /// Whether there was something to hide.
    fn hide(&self, tool: &str, args: &mut JsonObject) -> bool {
        if !self.tools.fits(tool) {
            return false;
        }
        let Some((first, rest)) = self.pointer.split_first() else { return false };
        let Some(mut value) = args.get_mut(first) else { return false };
        for name in rest {
            let next = match value {
                Value::Object(object) => object.get_mut(name),
                Value::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get_mut(at)),
                _ => None,
            };
            let Some(next) = next else { return false };
            value = next;
        }
        *value = Value::String(HIDDEN.to_owned());
        true
    }

    fn pointer(&self) -> String {
        let escaped = self.pointer.iter().map(|name| name.replace('~', "~0").replace('/', "~1"));
        escaped.map(|name| format!("/{name}")).collect()
    }
}

const HIDDEN: &str = "[redacted]";

/// Arguments as an entry shows them.
pub(crate) struct Argument {
    pub(crate) sha256: String,
    pub(crate) shown: Option<JsonObject>,
    pub(crate) redacted: Vec<String>,
}

impl Argument {
    /// `None`: they have no exact canonical form.
    pub(crate) fn of(tool: &str, args: &JsonObject, redactions: &[Redaction]) -> Option<Self> {
        if !args.values().all(is_exact) {
            return None;
        }
        let sha256 = canonical_hash(args)?;
        let mut shown = args.clone();
        let hidden = redactions.iter().filter(|redaction| redaction.hide(tool, &mut shown));
        let redacted = hidden.map(Redaction::pointer).collect();
        let small = serde_json::to_vec(&shown).is_ok_and(|text| text.len() <= MAX_ARGUMENT_BYTES);
        Some(Self { sha256, shown: small.then_some(shown), redacted })
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

/// Whether `args` are the arguments of a decision: its entry has their hash.
pub fn proves(entry: &JsonObject, args: &JsonObject) -> bool {
    let hash = entry.get("arguments_sha256").and_then(Value::as_str);
    hash.is_some() && hash == canonical_hash(args).as_deref() && args.values().all(is_exact)
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
        let redactions = ["/card/number", "to", "/notes/1", "/none/at/all", "/to/deep"]
            .map(|field| Redaction::new("pay", field).unwrap());
        let shown = Argument::of("pay", &args, &redactions).unwrap();
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
        let open = Argument::of("look", &args, &redactions).unwrap();
        assert_eq!(open.shown.as_ref(), Some(&args));
        assert_eq!(entry["arguments_sha256"], open.sha256.as_str());
    }

    #[test]
    fn integers_that_are_not_exact_have_no_entry() {
        for number in [json!(9_007_199_254_740_993_u64), json!(i64::MIN), json!(u64::MAX)] {
            assert!(Argument::of("pay", &object(json!({ "a": [{ "b": number }] })), &[]).is_none());
        }
        let exact = object(json!({ "a": 9_007_199_254_740_991_i64, "b": -1, "c": 1.5 }));
        assert!(Argument::of("pay", &exact, &[]).is_some());
    }

    #[test]
    fn arguments_that_are_large_leave_their_hash() {
        let args = object(json!({ "text": "x".repeat(20_000) }));
        let argument = Argument::of("pay", &args, &[]).unwrap();
        assert!(argument.shown.is_none());
        assert_eq!(Some(argument.sha256), canonical_hash(&args));
    }
}
