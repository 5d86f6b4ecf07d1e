//! Ephemeral tokens, for clients that must not hold a key.
//!
//! A server that holds the key asks `POST /v1alpha/auth_tokens` with [`EphemeralTokenRequest`] as
//! JSON and gives the answer's name to a browser or a device, which uses it as its key.

use secrecy::SecretString;
use serde::Deserialize;

use crate::wire::{Setup, messages};

messages! {
    /// The body of a request for a token.
    EphemeralTokenRequest {
        /// How many sessions it opens; 0 is any number. Default: 1. Resuming one does not count.
        uses: u32,
        /// When sessions with it end, in RFC 3339. Default: in half an hour; at most 20 hours.
        expire_time: String,
        /// When it opens no more sessions, in RFC 3339. Default: in a minute.
        new_session_expire_time: String,
        /// What its sessions are to be.
        bidi_generate_content_setup: Setup,
        /// Which fields of that clients cannot change, such as `generationConfig.temperature`.
        field_mask: String,
    }
}

/// The answer to a request for a token. `Debug` does not show the token.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralToken {
    /// The token, `auth_tokens/…`.
    pub name: SecretString,
    /// When sessions with it end, where told.
    #[serde(default)]
    pub expire_time: Option<String>,
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_and_its_answer_are_as_the_service_has_them() {
        let setup = Setup { model: Some("models/gemini-3.8-live".into()), ..Setup::default() };
        let request = EphemeralTokenRequest {
            uses: Some(1),
            bidi_generate_content_setup: Some(setup),
            ..EphemeralTokenRequest::default()
        };
        assert_eq!(
            serde_json::to_value(&request).unwrap(),
            json!({"uses": 1, "bidiGenerateContentSetup": {"model": "models/gemini-3.8-live"}})
        );
        let token: EphemeralToken =
            serde_json::from_str(r#"{"name":"auth_tokens/abc","new":1}"#).unwrap();
        assert_eq!(token.name.expose_secret(), "auth_tokens/abc");
        assert!(!format!("{token:?}").contains("abc"));
    }
}
