//! What carriers do by their HTTP interfaces: hanging up, handing on, pressing keys.
//!
//! Sources: Twilio, "Call resource"; Telnyx, Call Control commands. A call that is over already is as
//! good as hung up. A carrier that has too much to do (429) is asked once more.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use antiphon_types::Status;
use async_trait::async_trait;
use base64_simd::STANDARD;
use reqwest::{Client, header};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::{
    answer,
    bridge::{Carriers, ControlError},
    dialect::{Carrier, DialectError},
};

/// A request may take so long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// After a 429 the carrier is asked again after so long, or as long as it says, at most.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Of an answer so much is looked at, in bytes.
const ANSWER: usize = 64 * 1024;

/// An account at a carrier.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Account {
    /// Twilio, or SignalWire, whose interface is alike.
    Twilio {
        /// The interface: `https://api.twilio.com`, or `https://SPACE.signalwire.com/api/laml`.
        base: String,
        /// The account (Twilio) or project (SignalWire).
        account: String,
        /// Its auth token.
        token: SecretString,
    },
    /// Telnyx.
    Telnyx {
        /// The interface: `https://api.telnyx.com`.
        base: String,
        /// The API key.
        key: SecretString,
    },
}

/// What is done to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action<'a> {
    /// It ends.
    HangUp,
    /// It is handed on to a number.
    Transfer {
        /// The number, as E.164 writes it.
        to: &'a str,
    },
    /// Keys are pressed.
    Digits {
        /// The keys.
        digits: &'a str,
    },
}

/// A request as it goes out. `Debug` does not show who asks.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ApiRequest {
    /// The address.
    pub url: String,
    /// The value of `Authorization`.
    pub authorization: String,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// The body of the POST.
    pub body: String,
}

impl Account {
    /// The request by which this is done to the call of this name.
    pub fn request(&self, call_id: &str, action: &Action<'_>) -> Result<ApiRequest, ControlError> {
        // A name goes into a path: it must not be one.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':');
        if call_id.is_empty() || !call_id.bytes().all(is_name) {
            return Err(ControlError::Refused("the call has no usable name".into()));
        }
        match self {
            Self::Twilio { base, account, token } => {
                let (name, value) = match action {
                    Action::HangUp => ("Status", "completed".to_owned()),
                    Action::Transfer { to } => ("Twiml", answer::dial(to)),
                    // Playing them would end the stream.
                    Action::Digits { .. } => return Err(unsupported("keys in a stream")),
                };
                let body = form_urlencoded::Serializer::new(String::new())
                    .append_pair(name, &value)
                    .finish();
                let secret = format!("{account}:{}", token.expose_secret());
                Ok(ApiRequest {
                    url: format!("{base}/2010-04-01/Accounts/{account}/Calls/{call_id}.json"),
                    authorization: format!("Basic {}", STANDARD.encode_to_string(secret)),
                    content_type: "application/x-www-form-urlencoded",
                    body,
                })
            }
            Self::Telnyx { base, key } => {
                let (command, body) = match action {
                    Action::HangUp => ("hangup", json!({})),
                    Action::Transfer { to } => ("transfer", json!({ "to": to })),
                    Action::Digits { digits } => ("send_dtmf", json!({ "digits": digits })),
                };
                Ok(ApiRequest {
                    url: format!("{base}/v2/calls/{call_id}/actions/{command}"),
                    authorization: format!("Bearer {}", key.expose_secret()),
                    content_type: "application/json",
                    body: body.to_string(),
                })
            }
        }
    }

    /// What an answer means. A call that is over already has been hung up.
    pub fn outcome(
        &self,
        action: &Action<'_>,
        status: u16,
        body: &[u8],
    ) -> Result<(), ControlError> {
        if (200..300).contains(&status) {
            return Ok(());
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let code = match self {
            Self::Twilio { .. } => body["code"].as_u64(),
            Self::Telnyx { .. } => {
                let code = &body["errors"][0]["code"];
                code.as_u64().or_else(|| code.as_str()?.parse().ok())
            }
        };
        let over = matches!((self, status, code), (Self::Twilio { .. }, 404, Some(20_404)))
            || matches!((self, status, code), (Self::Telnyx { .. }, 422, Some(90_018)));
        match (over, action) {
            (true, Action::HangUp) => Ok(()),
            (true, _) => Err(ControlError::Over),
            (false, _) => {
                let code = code.map(|code| format!(", code {code}")).unwrap_or_default();
                Err(ControlError::Refused(format!("status {status}{code}")))
            }
        }
    }
}

/// The accounts by which calls are handled.
pub struct Accounts {
    client: Client,
    accounts: BTreeMap<Carrier, Account>,
    allow: Vec<String>,
}

impl Accounts {
    /// By these accounts. Calls are handed on only to numbers that begin with one of `allow`, as E.164
    /// writes them: `+1555`; to none where it is empty.
    pub fn new(
        accounts: impl IntoIterator<Item = (Carrier, Account)>,
        allow: impl IntoIterator<Item = String>,
    ) -> Result<Self, HttpError> {
        let client = client().map_err(|error| HttpError(error.to_string()))?;
        Ok(Self {
            client,
            accounts: accounts.into_iter().collect(),
            allow: allow.into_iter().collect(),
        })
    }

    async fn act(
        &self,
        carrier: Carrier,
        call_id: &str,
        action: Action<'_>,
    ) -> Result<(), ControlError> {
        let account = self.accounts.get(&carrier).ok_or_else(|| unsupported("requests"))?;
        let request = account.request(call_id, &action)?;
        let (status, pause, body) = self.post(&request).await?;
        if status != 429 {
            return account.outcome(&action, status, &body);
        }
        tokio::time::sleep(pause.unwrap_or(PAUSE).min(LONGEST_PAUSE)).await;
        let (status, _, body) = self.post(&request).await?;
        account.outcome(&action, status, &body)
    }

    async fn post(
        &self,
        request: &ApiRequest,
    ) -> Result<(u16, Option<Duration>, Vec<u8>), ControlError> {
        let failed = |error: reqwest::Error| {
            if error.is_timeout() {
                return ControlError::TimedOut;
            }
            ControlError::Refused(error.without_url().to_string())
        };
        let mut response = self
            .client
            .post(&request.url)
            .timeout(TIMEOUT)
            .header(header::AUTHORIZATION, &request.authorization)
            .header(header::CONTENT_TYPE, request.content_type)
            .body(request.body.clone())
            .send()
            .await
            .map_err(failed)?;
        let after = response.headers().get(header::RETRY_AFTER);
        let pause =
            after.and_then(|after| after.to_str().ok()?.parse().ok()).map(Duration::from_secs);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > ANSWER {
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok((response.status().as_u16(), pause, body))
    }
}

#[async_trait]
impl Carriers for Accounts {
    async fn hang_up(&self, carrier: Carrier, call_id: &str) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::HangUp).await
    }

    async fn transfer(
        &self,
        carrier: Carrier,
        call_id: &str,
        to: &str,
    ) -> Result<(), ControlError> {
        if !self.allow.iter().any(|prefix| to.starts_with(prefix.as_str())) {
            return Err(ControlError::NotAllowed);
        }
        self.act(carrier, call_id, Action::Transfer { to }).await
    }

    async fn send_digits(
        &self,
        carrier: Carrier,
        call_id: &str,
        digits: &str,
    ) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::Digits { digits }).await
    }
}

/// The HTTP client cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no HTTP client: {0}")]
pub struct HttpError(String);

impl HttpError {
    /// The canonical status code.
    pub fn status(&self) -> Status {
        Status::Internal
    }
}

impl fmt::Debug for ApiRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiRequest").field("url", &self.url).finish_non_exhaustive()
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("accounts", &self.accounts).finish_non_exhaustive()
    }
}

fn unsupported(what: &'static str) -> ControlError {
    ControlError::Unsupported(DialectError::Unsupported(what))
}

fn client() -> reqwest::Result<Client> {
    let roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|tls| tls.with_root_certificates(roots).with_no_client_auth());
    let builder = Client::builder().redirect(reqwest::redirect::Policy::none());
    match tls {
        Ok(tls) => builder.tls_backend_preconfigured(tls).build(),
        // `ring` has the default versions; were it not so, reqwest says it.
        Err(_) => builder.build(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn twilio() -> Account {
        let base = "https://api.twilio.com".to_owned();
        Account::Twilio { base, account: "AC1".into(), token: "secret".into() }
    }

    fn telnyx() -> Account {
        Account::Telnyx { base: "https://api.telnyx.com".into(), key: "KEY".into() }
    }

    #[test]
    fn requests_are_those_that_the_vendors_document() {
        let request = twilio().request("CA1", &Action::HangUp).unwrap();
        assert_eq!(request.url, "https://api.twilio.com/2010-04-01/Accounts/AC1/Calls/CA1.json");
        assert_eq!(request.authorization, "Basic QUMxOnNlY3JldA==");
        assert_eq!(request.body, "Status=completed");
        let request = twilio().request("CA1", &Action::Transfer { to: "+1555" }).unwrap();
        let fields: Vec<_> = form_urlencoded::parse(request.body.as_bytes()).collect();
        assert!(fields[0].0 == "Twiml" && fields[0].1.contains("<Dial>+1555</Dial>"));
        let request = telnyx().request("v3:a-b_C", &Action::HangUp).unwrap();
        assert_eq!(request.url, "https://api.telnyx.com/v2/calls/v3:a-b_C/actions/hangup");
        assert_eq!((&*request.authorization, &*request.body), ("Bearer KEY", "{}"));
        let request = telnyx().request("v3:a", &Action::Digits { digits: "12#" }).unwrap();
        assert!(request.url.ends_with("/actions/send_dtmf"));
        assert_eq!(request.body, r##"{"digits":"12#"}"##);
        assert!(twilio().request("CA1", &Action::Digits { digits: "1" }).is_err());
        assert!(telnyx().request("../../secrets", &Action::HangUp).is_err());
        assert!(!format!("{request:?} {:?}", telnyx()).contains("KEY"));
    }

    #[test]
    fn a_call_that_is_over_has_been_hung_up_and_cannot_be_handed_on() {
        let gone = br#"{"code":20404,"status":404}"#;
        assert_eq!(twilio().outcome(&Action::HangUp, 404, gone), Ok(()));
        let transfer = Action::Transfer { to: "+1555" };
        assert_eq!(twilio().outcome(&transfer, 404, gone), Err(ControlError::Over));
        let gone = br#"{"errors":[{"code":"90018","title":"Call has already ended"}]}"#;
        assert_eq!(telnyx().outcome(&Action::HangUp, 422, gone), Ok(()));
        let refused = telnyx().outcome(&Action::HangUp, 401, b"not json");
        assert_eq!(refused, Err(ControlError::Refused("status 401".into())));
        assert_eq!(twilio().outcome(&Action::HangUp, 204, b""), Ok(()));
    }
}
