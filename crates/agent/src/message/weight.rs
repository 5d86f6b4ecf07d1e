//! About how large messages are, without writing them.

use antiphon_types::JsonObject;
use serde_json::Value;

use super::{Message, Part, PartKind};

/// For names, brackets and quotes of a message or part in JSON.
const FRAME: usize = 32;
/// For a number or a word of JSON.
const SCALAR: usize = 8;

impl Message {
    /// About how many bytes it is in JSON. Looks at lengths, not into texts.
    pub(crate) fn weight(&self) -> usize {
        FRAME + parts(&self.content) + noted(&self.metadata) + object(&self.extra)
    }
}

/// About how many bytes these parts are in JSON.
pub(crate) fn parts(parts: &[Part]) -> usize {
    parts.iter().map(part).sum()
}

/// About how many bytes metadata is in JSON.
pub(crate) fn noted(metadata: &Option<JsonObject>) -> usize {
    metadata.as_ref().map_or(0, object)
}

/// About how many bytes an object is in JSON.
pub(crate) fn object(object: &JsonObject) -> usize {
    object.iter().map(|(key, member)| key.len() + SCALAR + value(member)).sum()
}

fn part(part: &Part) -> usize {
    let content = match &part.kind {
        PartKind::Text(text) | PartKind::Reasoning(text) => text.len(),
        PartKind::Media(media) => {
            media.url.len()
                + media.content_type.as_ref().map_or(0, String::len)
                + object(&media.extra)
        }
        PartKind::ToolRequest(request) => {
            request.name.len() + optional(&request.input) + object(&request.extra)
        }
        PartKind::ToolResponse(response) => {
            response.name.len()
                + optional(&response.output)
                + response.content.as_deref().map_or(0, parts)
                + object(&response.extra)
        }
        PartKind::Data(data) => value(data),
        PartKind::Custom(custom) => object(custom),
        PartKind::Resource(resource) => resource.uri.len() + object(&resource.extra),
        PartKind::Unknown => 0,
    };
    FRAME + content + noted(&part.metadata) + object(&part.extra)
}

fn optional(json: &Option<Value>) -> usize {
    json.as_ref().map_or(0, value)
}

fn value(json: &Value) -> usize {
    match json {
        Value::Null | Value::Bool(_) | Value::Number(_) => SCALAR,
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + value(item)).sum(),
        Value::Object(members) => object(members),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::message::{Role, ToolResponse};

    #[test]
    fn it_is_about_what_the_json_is() {
        let nested =
            json!({ "list": ["x".repeat(300), 1.5, null], "more": { "y": "z".repeat(200) } });
        let mut response = ToolResponse::new("find", Some("c1".into()), nested.clone());
        response.content = Some(vec![Part::media("u".repeat(400), Some("image/png".into()))]);
        let messages = [
            Message::user("x".repeat(10_000)),
            Message::new(
                Role::Model,
                vec![
                    Part::reasoning("r".repeat(500)),
                    Part::tool_request("find", Some("c1".into()), nested.clone()),
                    Part::data(nested.clone()).with_metadata_entry("of", "m".repeat(600)),
                ],
            ),
            Message::new(Role::Tool, vec![Part::new(PartKind::ToolResponse(response))])
                .with_metadata(nested.as_object().cloned()),
        ];
        for message in messages {
            let (weight, written) =
                (message.weight() as f64, serde_json::to_string(&message).unwrap().len() as f64);
            assert!((0.8..1.2).contains(&(weight / written)), "{weight} for {written}");
        }
    }
}
