//! The short form of JSON Schemas in the front matter of `.prompt` files.
//!
//! `name: string, what it is` is a required member, `name?` an optional one; `tags(array): string`,
//! `place(object): {...}`, `mood(enum): [good, bad]` are compound, each with `, what it is` in its
//! parentheses; `(*): string` allows further members.

use antiphon_types::JsonObject;
use serde_json::{Value, json};

/// The JSON Schema that `schema` stands for: itself, where it is one already.
pub(super) fn expand(schema: Value) -> Result<Value, String> {
    if let Value::Object(keywords) = &schema {
        let is_type = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&kind));
        if keywords.get("type").is_some_and(is_type) {
            return Ok(schema);
        }
        if keywords.get("properties").is_some_and(Value::is_object) {
            let mut keywords = keywords.clone();
            keywords.insert("type".into(), "object".into());
            return Ok(Value::Object(keywords));
        }
    }
    of(schema)
}

const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];

fn of(schema: Value) -> Result<Value, String> {
    match schema {
        Value::String(text) => scalar(&text),
        Value::Object(members) => object(members),
        other => Err(format!("{other} is no schema: it has to be a type or an object of members")),
    }
}

/// `type` or `type, description`.
fn scalar(text: &str) -> Result<Value, String> {
    let (kind, description) = described(text);
    let mut schema = match kind {
        "any" => json!({}),
        "string" | "number" | "integer" | "boolean" | "null" => json!({ "type": kind }),
        other => return Err(format!("there is no type {other:?}")),
    };
    describe(&mut schema, description);
    Ok(schema)
}

fn object(members: JsonObject) -> Result<Value, String> {
    let (mut properties, mut required) = (JsonObject::new(), Vec::new());
    let mut further = Value::Bool(false);
    for (key, value) in members {
        let (name, compound) = match key.split_once('(') {
            Some((name, rest)) => {
                let inner = rest.strip_suffix(')').ok_or(format!("{key:?} lacks a parenthesis"))?;
                (name.trim(), Some(described(inner)))
            }
            None => (key.trim(), None),
        };
        if name.is_empty() && compound.is_some_and(|(kind, _)| kind == "*") {
            further = of(value)?;
            continue;
        }
        let (name, optional) = match name.strip_suffix('?') {
            Some(name) => (name, true),
            None => (name, false),
        };
        let mut schema = match compound {
            None => of(value)?,
            Some((kind, description)) => {
                let mut schema = match kind {
                    "array" => json!({ "type": "array", "items": of(value)? }),
                    "object" => of(value)?,
                    "enum" if value.is_array() => json!({ "enum": value }),
                    "enum" => return Err(format!("the enum {name:?} needs a list of values")),
                    other => return Err(format!("there is no compound type {other:?}")),
                };
                describe(&mut schema, description);
                schema
            }
        };
        if optional {
            allow_null(&mut schema);
        } else {
            required.push(Value::from(name));
        }
        properties.insert(name.to_owned(), schema);
    }
    let mut schema = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": further,
    });
    if !required.is_empty() {
        // The order of members depends on features of `serde_json` that others may turn on.
        required.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
        schema["required"] = Value::Array(required);
    }
    Ok(schema)
}

/// A member that may be absent may be `null` as well.
fn allow_null(schema: &mut Value) {
    if let Some(Value::Array(values)) = schema.get_mut("enum") {
        values.push(Value::Null);
    } else if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
}

fn described(text: &str) -> (&str, Option<&str>) {
    match text.split_once(',') {
        Some((kind, description)) => (kind.trim(), Some(description.trim())),
        None => (text.trim(), None),
    }
}

fn describe(schema: &mut Value, description: Option<&str>) {
    if let Some(description) = description {
        schema["description"] = description.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_schemas_become_json_schemas() {
        let short = json!({
            "name": "string, who it is",
            "age?": "integer",
            "tags(array, what for)": "string",
            "place?(object)": { "city": "string" },
            "mood(enum)": ["good", "bad"],
            "(*)": "any",
        });
        let long = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "description": "who it is" },
                "age": { "type": ["integer", "null"] },
                "tags": { "type": "array", "items": { "type": "string" }, "description": "what for" },
                "place": {
                    "type": ["object", "null"],
                    "properties": { "city": { "type": "string" } },
                    "required": ["city"],
                    "additionalProperties": false,
                },
                "mood": { "enum": ["good", "bad"] },
            },
            "required": ["mood", "name", "tags"],
            "additionalProperties": {},
        });
        assert_eq!(expand(short).unwrap(), long);
        assert_eq!(expand(long.clone()).unwrap(), long);
        assert_eq!(expand(json!("string, it")).unwrap()["description"], "it");
        for wrong in
            [json!(3), json!("text"), json!({"a(list)": "string"}), json!({"a(array": "x"})]
        {
            assert!(expand(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
