//! Ephemeral secrets, for clients that must not hold a key.
//!
//! A server that holds the key asks `POST /v1/realtime/client_secrets` with
//! [`ClientSecretRequest`] as JSON and gives the answer's value to a browser or a device, which
//! uses it as its key.

use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::wire::Session;

/// The body of a request for a secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientSecretRequest {
    /// For how long the secret opens sessions. None: ten minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<ExpiresAfter>,
    /// The session that is bound to it.
    pub session: Session,
}

/// For how long a secret opens sessions. A session that began outlives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExpiresAfter {
    /// Always `created_at`.
    pub anchor: String,
    /// Seconds, 10 to 7,200.
    pub seconds: u64,
}

impl ClientSecretRequest {
    /// A secret for sessions like `session`.
    pub fn new(session: Session) -> Self {
        Self { expires_after: None, session }
    }

    /// Sets for how long it opens sessions; bounded to 10 seconds and two hours, as the service
    /// does.
    pub fn expires_after(mut self, time: Duration) -> Self {
        let seconds = time.as_secs().clamp(10, 7_200);
        self.expires_after = Some(ExpiresAfter { anchor: "created_at".into(), seconds });
        self
    }
}

/// The answer to a request for a secret. `Debug` does not show the secret.
#[derive(Clone, Debug, Deserialize)]
pub struct ClientSecret {
    /// The secret, `ek_…`.
    pub value: SecretString,
    /// When it opens no more sessions, in seconds since 1970.
    #[serde(default)]
    pub expires_at: u64,
    /// The session that is bound to it.
    #[serde(default)]
    pub session: Option<Session>,
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use serde_json::json;

    use super::*;
    use crate::wire::RealtimeSession;

    #[test]
    fn a_request_and_its_answer_are_as_the_service_has_them() {
        let session = Session::Realtime(Box::new(RealtimeSession {
            model: Some("gpt-realtime-2".into()),
            ..RealtimeSession::default()
        }));
        let request = ClientSecretRequest::new(session).expires_after(Duration::from_secs(3));
        assert_eq!(
            serde_json::to_value(&request).unwrap(),
            json!({
                "expires_after": {"anchor": "created_at", "seconds": 10},
                "session": {"type": "realtime", "model": "gpt-realtime-2"},
            })
        );
        let answer = r#"{"value":"ek_1","expires_at":7,"session":{"type":"realtime","id":"s"}}"#;
        let secret: ClientSecret = serde_json::from_str(answer).unwrap();
        assert_eq!(secret.value.expose_secret(), "ek_1");
        assert!(!format!("{secret:?}").contains("ek_1"));
    }
}
