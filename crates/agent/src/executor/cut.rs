//! Outputs that are too large for the model.

use antiphon_types::JsonObject;
use serde_json::{Value, json};

use crate::json::serialized_len;

/// The beginning of an output that has more than `max_bytes` bytes as JSON text, cut between
/// characters and marked by `truncated` and `total_bytes`, so that all of it has at most as many; a
/// few dozen bytes are taken by the marks. `None`: it has not more.
pub fn cut_output(output: &JsonObject, max_bytes: usize) -> Option<JsonObject> {
    let bytes = serialized_len(output);
    if bytes <= max_bytes {
        return None;
    }
    match cut(Value::Object(output.clone()), bytes, max_bytes) {
        Value::Object(cut) => Some(cut),
        other => Some(JsonObject::from_iter([("output".to_owned(), other)])),
    }
}

/// The beginning of an output of `bytes` bytes as JSON text, cut between characters and marked, so
/// that all of it has at most `max_bytes`. An output of one text is cut within that.
pub(super) fn cut(output: Value, bytes: usize, max_bytes: usize) -> Value {
    let (name, text) = match output {
        Value::String(text) => ("output".to_owned(), text),
        Value::Object(object) if object.len() == 1 && object.values().all(Value::is_string) => {
            let (name, value) = object.into_iter().next().unwrap_or_default();
            (name, value.as_str().unwrap_or_default().to_owned())
        }
        other => ("output".to_owned(), other.to_string()),
    };
    let mut keep = text.len().min(max_bytes);
    loop {
        let kept = &text[..text.floor_char_boundary(keep)];
        let marked = json!({ name.as_str(): kept, "truncated": true, "total_bytes": bytes });
        let excess = serialized_len(&marked).saturating_sub(max_bytes);
        if excess == 0 || keep == 0 {
            return marked;
        }
        // Escapes take more than one byte each, so this may need several steps. Each is a step down,
        // since something is in excess.
        let fitting = keep as u128 * max_bytes as u128 / (max_bytes + excess) as u128;
        keep = usize::try_from(fitting).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_fits_and_ends_between_characters() {
        for text in ["x".repeat(5_000), "ä\"\n😀".repeat(900), "\u{1}".repeat(3_000)] {
            let whole = json!({ "text": text });
            let bytes = serialized_len(&whole);
            let marked = cut(whole, bytes, 1_000);
            assert!((700..=1_000).contains(&serialized_len(&marked)), "{marked}");
            assert!(text.starts_with(marked["text"].as_str().unwrap()));
            assert_eq!(
                (&marked["truncated"], &marked["total_bytes"]),
                (&json!(true), &json!(bytes))
            );
        }
        let list = json!((0..9_999).collect::<Vec<_>>());
        let marked = cut(list, 50_000, 300);
        assert!(marked["output"].as_str().unwrap().starts_with("[0,1,2,"), "{marked}");
        assert!(cut(json!("text"), 6, 0)["output"].as_str().unwrap().is_empty());
    }
}
