//! What Cedar sees of a tool's arguments.

use std::collections::BTreeMap;

use antiphon_types::JsonObject;
use cedar_policy::RestrictedExpression;
use serde_json::{Value, json};

/// How deep a schema is looked into.
const MAX_DEPTH: usize = 16;

/// A type of Cedar that values of a JSON Schema have.
///
/// What a schema leaves open (any type, one of several) is none: policies do not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Boolean,
    Long,
    /// A JSON number, or a text of the format `decimal`: never a float.
    Decimal,
    Text,
    Set(Box<Shape>),
    Record(BTreeMap<String, Member>),
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    shape: Shape,
    required: bool,
}

impl Shape {
    /// Of the arguments of a tool.
    pub(super) fn of_arguments(schema: &Value) -> Self {
        match read(schema, schema, 0) {
            Some((record @ Self::Record(_), _)) => record,
            _ => Self::Record(BTreeMap::new()),
        }
    }

    /// As a JSON schema of Cedar has it.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Boolean => json!({ "type": "Boolean" }),
            Self::Long => json!({ "type": "Long" }),
            Self::Decimal => json!({ "type": "Extension", "name": "decimal" }),
            Self::Text => json!({ "type": "String" }),
            Self::Set(of) => json!({ "type": "Set", "element": of.to_json() }),
            Self::Record(members) => {
                let members = members.iter().map(|(name, member)| {
                    let mut of = member.shape.to_json();
                    of["required"] = member.required.into();
                    (name.clone(), of)
                });
                let members: JsonObject = members.collect();
                json!({ "type": "Record", "attributes": members })
            }
        }
    }

    /// A value of this type. Errs with where it is none.
    pub(super) fn value(&self, value: &Value, at: &str) -> Result<RestrictedExpression, String> {
        let wrong = |what: &str| format!("{} is no {what}", if at.is_empty() { "/" } else { at });
        match (self, value) {
            (Self::Boolean, Value::Bool(value)) => Ok(RestrictedExpression::new_bool(*value)),
            (Self::Boolean, _) => Err(wrong("boolean")),
            (Self::Long, value) => match value.as_i64() {
                Some(value) => Ok(RestrictedExpression::new_long(value)),
                None => Err(wrong("whole number")),
            },
            (Self::Decimal, value) => {
                let text = match value {
                    Value::String(text) => text.clone(),
                    Value::Number(number) => number.to_string(),
                    _ => return Err(wrong("decimal")),
                };
                let text = decimal(&text).ok_or_else(|| wrong("decimal of up to four places"))?;
                Ok(RestrictedExpression::new_decimal(text))
            }
            (Self::Text, Value::String(text)) => Ok(RestrictedExpression::new_string(text.clone())),
            (Self::Text, _) => Err(wrong("text")),
            (Self::Set(of), Value::Array(items)) => {
                let items = items.iter().enumerate();
                let items = items.map(|(index, item)| of.value(item, &format!("{at}/{index}")));
                Ok(RestrictedExpression::new_set(items.collect::<Result<Vec<_>, _>>()?))
            }
            (Self::Set(_), _) => Err(wrong("list")),
            (Self::Record(members), Value::Object(object)) => record(members, object, at),
            (Self::Record(_), _) => Err(wrong("object")),
        }
    }

    /// The arguments of a call.
    pub(super) fn arguments(&self, args: &JsonObject) -> Result<RestrictedExpression, String> {
        match self {
            Self::Record(members) => record(members, args, ""),
            _ => Err("/ is no object".to_owned()),
        }
    }
}

fn record(
    members: &BTreeMap<String, Member>,
    object: &JsonObject,
    at: &str,
) -> Result<RestrictedExpression, String> {
    let mut fields = Vec::with_capacity(members.len());
    for (name, member) in members {
        match object.get(name) {
            None if member.required => return Err(format!("{at}/{name} is missing")),
            None => {}
            Some(Value::Null) if !member.required => {}
            Some(value) => {
                fields.push((name.clone(), member.shape.value(value, &format!("{at}/{name}"))?));
            }
        }
    }
    RestrictedExpression::new_record(fields).map_err(|error| error.to_string())
}

/// A decimal as Cedar writes it, exactly; `None` where there is none.
fn decimal(text: &str) -> Option<String> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let all = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // More digits than a JSON number holds exactly.
    let fits = all(whole) && all(part) && part.len() <= 4 && whole.len() + part.len() <= 15;
    let sign = if text.starts_with('-') { "-" } else { "" };
    fits.then(|| format!("{sign}{whole}.{part}"))
}

/// The type of a schema within `root`, and whether null is one of its values.
fn read(root: &Value, schema: &Value, depth: usize) -> Option<(Shape, bool)> {
    if depth > MAX_DEPTH {
        return None;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = root.pointer(reference.strip_prefix('#')?)?;
        return read(root, target, depth + 1);
    }
    for several in ["anyOf", "oneOf", "allOf"] {
        let Some(each) = schema.get(several).and_then(Value::as_array) else { continue };
        let is_null = |schema: &&Value| schema["type"] == "null";
        let nullable = each.iter().any(|schema| is_null(&schema));
        let rest: Vec<_> = each.iter().filter(|schema| !is_null(schema)).collect();
        let [one] = rest[..] else { return None };
        let (shape, inner) = read(root, one, depth + 1)?;
        return Some((shape, inner || nullable));
    }
    let mut kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let nullable = kinds.contains(&"null");
    kinds.retain(|kind| *kind != "null");
    let texts = |values: &Vec<Value>| values.iter().all(Value::is_string);
    let shape = match kinds[..] {
        ["boolean"] => Shape::Boolean,
        ["integer"] => Shape::Long,
        ["number"] => Shape::Decimal,
        ["string"] if schema["format"] == "decimal" => Shape::Decimal,
        ["string"] => Shape::Text,
        ["array"] => Shape::Set(Box::new(read(root, schema.get("items")?, depth + 1)?.0)),
        ["object"] => Shape::Record(members(root, schema, depth)),
        [] if schema.get("enum").and_then(Value::as_array).is_some_and(texts) => Shape::Text,
        [] if schema.get("const").is_some_and(Value::is_string) => Shape::Text,
        [] if schema.get("properties").is_some() => Shape::Record(members(root, schema, depth)),
        _ => return None,
    };
    Some((shape, nullable))
}

fn members(root: &Value, schema: &Value, depth: usize) -> BTreeMap<String, Member> {
    let required: Vec<&str> = match &schema["required"] {
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return BTreeMap::new();
    };
    let members = properties.iter().filter_map(|(name, property)| {
        let (shape, nullable) = read(root, property, depth + 1)?;
        let required = required.contains(&name.as_str()) && !nullable;
        Some((name.clone(), Member { shape, required }))
    });
    members.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_a_record_and_what_it_leaves_open_is_not_seen() {
        let schema = json!({
            "type": "object",
            "required": ["to", "cents", "maybe"],
            "properties": {
                "to": { "$ref": "#/$defs/Who" },
                "cents": { "type": "integer" },
                "amount": { "type": "number" },
                "maybe": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "tags": { "type": "array", "items": { "enum": ["a", "b"] } },
                "any": {},
                "either": { "type": ["string", "integer"] },
            },
            "$defs": { "Who": { "type": "object", "required": ["iban"],
                                "properties": { "iban": { "type": "string" } } } },
        });
        let shape = Shape::of_arguments(&schema).to_json();
        let expected = json!({ "type": "Record", "attributes": {
            "to": { "type": "Record", "required": true, "attributes": {
                "iban": { "type": "String", "required": true } } },
            "cents": { "type": "Long", "required": true },
            "amount": { "type": "Extension", "name": "decimal", "required": false },
            "maybe": { "type": "String", "required": false },
            "tags": { "type": "Set", "element": { "type": "String" }, "required": false },
        } });
        assert_eq!(shape, expected);
        // One that is in itself ends somewhere.
        let endless = json!({ "$ref": "#" });
        assert_eq!(Shape::of_arguments(&endless), Shape::Record(BTreeMap::new()));
    }

    #[test]
    fn what_is_no_exact_decimal_is_refused() {
        for (text, expected) in [
            ("5", Some("5.0")),
            ("-12.5", Some("-12.5")),
            ("0.0001", Some("0.0001")),
            ("1e21", None),
            ("0.00001", None),
            ("", None),
            (".5", None),
            ("5.", None),
            ("5 000", None),
            ("+5", None),
            ("٣", None),
            ("12345678901234567", None),
        ] {
            assert_eq!(decimal(text).as_deref(), expected, "{text}");
        }
    }
}
