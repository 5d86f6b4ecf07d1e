//! Which keys of a client's message nobody knows.

use serde_json::Value;

use super::{ClientMessage, DecodeError, any_case::camel_case};

/// The paths of keys that mean nothing, such as `setup.voice`; a key that is `null` counts as
/// absent. For servers that refuse them, and for tests.
pub fn unknown_keys(frame: &[u8]) -> Result<Vec<String>, DecodeError> {
    let message = ClientMessage::decode(frame)?;
    // What was understood comes out again; what does not was not.
    let known = serde_json::to_value(&message).map_err(|error| DecodeError(error.to_string()))?;
    let sent: Value =
        serde_json::from_slice(frame).map_err(|error| DecodeError(error.to_string()))?;
    let mut unknown = Vec::new();
    compare(&sent, &known, "", &mut unknown);
    Ok(unknown)
}

fn compare(sent: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => {
            for (key, value) in sent.iter().filter(|(_, value)| !value.is_null()) {
                let camel = camel_case(key);
                let found = known.get(key).or_else(|| known.get(camel.as_deref()?));
                let name = camel.as_deref().unwrap_or(key);
                let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
                match found {
                    Some(known) => compare(value, known, &path, unknown),
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(known)) => {
            for (at, (sent, known)) in sent.iter().zip(known).enumerate() {
                compare(sent, known, &format!("{path}[{at}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_found_at_every_depth_and_in_any_case() {
        let unknown = |text: &str| unknown_keys(text.as_bytes()).unwrap();
        assert_eq!(unknown(r#"{"setup":{"model":"m","voice":"x"}}"#), ["setup.voice"]);
        assert_eq!(
            unknown(
                r#"{"setup":{"generation_config":{"speechConfig":{"pitch":1},"top_p":0.5,
                    "made_up":null},"tools":[{"function_declarations":[{"name":"f","strict":true,
                    "parameters_json_schema":{"any_key":1}}]}]}}"#
            ),
            [
                "setup.generationConfig.speechConfig.pitch",
                "setup.tools[0].functionDeclarations[0].strict"
            ]
        );
        assert_eq!(
            unknown(r#"{"tool_response":{"functionResponses":[{"response":{"a_b":{"c_d":1}}}]}}"#),
            Vec::<String>::new()
        );
        assert!(unknown_keys(b"{}").is_err());
    }
}
