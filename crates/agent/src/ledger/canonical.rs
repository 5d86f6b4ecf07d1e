//! JSON in one form, so that equal values have equal hashes.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// JSON in its canonical form, by [RFC 8785](https://www.rfc-editor.org/rfc/rfc8785): members sorted
/// by name, no spaces, numbers as JavaScript writes them. `None` for what is no JSON, such as a number
/// that is none.
///
/// Numbers are doubles there: two integers beyond 2^53 may have one form.
pub fn canonical_json(value: &impl Serialize) -> Option<String> {
    serde_json_canonicalizer::to_string(value).ok()
}

/// The SHA-256 of the canonical form, as 64 hexadecimal digits.
pub fn canonical_hash(value: &impl Serialize) -> Option<String> {
    let text = canonical_json(value)?;
    let digest = Sha256::digest(text.as_bytes());
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn members_are_sorted_and_numbers_have_one_form() {
        let one: Value = serde_json::from_str(r#"{"b": 1.0, "a": [1e2, "ä\n"], "c": {}}"#).unwrap();
        assert_eq!(canonical_json(&one).unwrap(), r#"{"a":[100,"ä\n"],"b":1,"c":{}}"#);
        let other = json!({ "c": {}, "a": [100, "ä\n"], "b": 1 });
        assert_eq!(canonical_hash(&one), canonical_hash(&other));
        assert_ne!(canonical_hash(&one), canonical_hash(&json!({ "b": 1 })));
        // By other people's reckoning: `printf '{}' | sha256sum`.
        let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(canonical_hash(&json!({})).as_deref(), Some(empty));
    }
}
