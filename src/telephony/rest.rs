//! What carriers do by their HTTP interfaces: answering, hanging up, handing on, pressing keys, dialling.
//!
//! Sources: Twilio, "Call resource"; Telnyx, Call Control commands. A call that is over already is as
//! good as hung up. A carrier that has too much to do (429) is asked once more.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use antiphon_audio::AudioFormat;
use antiphon_types::Status;
use async_trait::async_trait;
use base64_simd::STANDARD;
use reqwest::{Client, header};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::{
    answer,
    bridge::{Carriers, ControlError, HandedOn},
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
    /// It is answered, with a stream.
    Answer {
        /// The stream.
        stream: &'a StreamOrder,
    },
    /// It is turned away as busy.
    Reject,
    /// It is handed on to a number.
    Transfer {
        /// The number, as E.164 writes it.
        to: &'a str,
        /// An address that is to be told how that ended.
        action: Option<&'a str>,
    },
    /// Keys are pressed.
    Digits {
        /// The keys.
        digits: &'a str,
        /// What the call goes on with, in TwiML, where its stream ends by that.
        then: Option<&'a str>,
    },
}

/// A stream that Telnyx is to open: both ways, by RTP payloads, of the caller's audio only.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamOrder {
    /// Where: `wss://...`.
    pub url: String,
    /// What it shows there.
    pub token: Option<String>,
    /// The format of audio to the caller. Default: mu-law.
    pub output: Option<AudioFormat>,
}

impl StreamOrder {
    /// A stream to this address.
    pub fn new(url: String, token: Option<String>, output: Option<AudioFormat>) -> Self {
        Self { url, token, output }
    }

    /// The fields of a command.
    pub(super) fn fields(&self) -> Value {
        let (codec, rate) = match self.output {
            Some(AudioFormat::Alaw8k) => ("PCMA", 8_000),
            Some(AudioFormat::Pcm16 { sample_rate_hz }) => ("L16", sample_rate_hz),
            _ => ("PCMU", 8_000),
        };
        let mut fields = json!({
            "stream_url": self.url,
            "stream_track": "inbound_track",
            "stream_bidirectional_mode": "rtp",
            "stream_bidirectional_codec": codec,
            "stream_bidirectional_sampling_rate": rate,
        });
        if let Some(token) = &self.token {
            fields["stream_auth_token"] = json!(token);
        }
        fields
    }
}

impl fmt::Debug for StreamOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamOrder").field("url", &self.url).finish_non_exhaustive()
    }
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
    /// The request by which this is done to the call of this name. `command` is a name of its own for each
    /// command: where a request of the same name comes twice, Telnyx does it once.
    pub fn request(
        &self,
        call_id: &str,
        action: &Action<'_>,
        command: &str,
    ) -> Result<ApiRequest, ControlError> {
        // A name goes into a path: it must not be one.
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b':');
        if call_id.is_empty() || !call_id.bytes().all(is_name) {
            return Err(ControlError::Refused("the call has no usable name".into()));
        }
        match self {
            Self::Twilio { base, account, token } => {
                let (name, value) = match action {
                    Action::HangUp | Action::Reject => ("Status", "completed".to_owned()),
                    Action::Transfer { to, action } => ("Twiml", answer::dial(to, *action)),
                    Action::Digits { digits, then: Some(then) } => {
                        ("Twiml", answer::play_digits(digits, then))
                    }
                    // Playing them ends the stream.
                    Action::Digits { then: None, .. } => {
                        return Err(unsupported("keys in a stream that cannot come back"));
                    }
                    // It is answered by the answer to its webhook.
                    Action::Answer { .. } => return Err(unsupported("to be answered")),
                };
                let path = format!("{base}/2010-04-01/Accounts/{account}/Calls/{call_id}.json");
                Ok(form(path, account, token, &[(name, value.as_str())]))
            }
            Self::Telnyx { base, key } => {
                let (path, mut body) = match action {
                    Action::HangUp => ("hangup", json!({})),
                    Action::Answer { stream } => ("answer", stream.fields()),
                    Action::Reject => ("reject", json!({ "cause": "USER_BUSY" })),
                    Action::Transfer { to, action: None } => ("transfer", json!({ "to": to })),
                    Action::Transfer { to, action: Some(action) } => {
                        // The other leg's events name this one by it.
                        let state = STANDARD.encode_to_string(format!("handed:{call_id}"));
                        let body = json!({
                            "to": to,
                            "timeout_secs": 25,
                            "target_leg_client_state": state,
                            "webhook_url": action,
                        });
                        ("transfer", body)
                    }
                    Action::Digits { digits, .. } => ("send_dtmf", json!({ "digits": digits })),
                };
                body["command_id"] = json!(command);
                Ok(command_of(format!("{base}/v2/calls/{call_id}/actions/{path}"), key, &body))
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
        let code = self.code(body);
        let over = matches!((self, status, code), (Self::Twilio { .. }, 404, Some(20_404)))
            || matches!((self, status, code), (Self::Telnyx { .. }, 422, Some(90_018)));
        match (over, action) {
            (true, Action::HangUp | Action::Reject) => Ok(()),
            (true, _) => Err(ControlError::Over),
            (false, _) => Err(refused(status, code)),
        }
    }

    /// The carrier's own code of an error.
    pub(super) fn code(&self, body: &[u8]) -> Option<u64> {
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        match self {
            Self::Twilio { .. } => body["code"].as_u64(),
            Self::Telnyx { .. } => {
                let code = &body["errors"][0]["code"];
                code.as_u64().or_else(|| code.as_str()?.parse().ok())
            }
        }
    }
}

/// A request of Twilio's.
pub(super) fn form(
    url: String,
    account: &str,
    token: &SecretString,
    fields: &[(&str, &str)],
) -> ApiRequest {
    let secret = format!("{account}:{}", token.expose_secret());
    ApiRequest {
        url,
        authorization: format!("Basic {}", STANDARD.encode_to_string(secret)),
        content_type: "application/x-www-form-urlencoded",
        body: form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish(),
    }
}

/// A request of Telnyx's.
pub(super) fn command_of(url: String, key: &SecretString, body: &Value) -> ApiRequest {
    ApiRequest {
        url,
        authorization: format!("Bearer {}", key.expose_secret()),
        content_type: "application/json",
        body: body.to_string(),
    }
}

/// What an answer means that is no success: only an error of the asker's (400 to 499) says that nothing
/// was done.
pub(super) fn refused(status: u16, code: Option<u64>) -> ControlError {
    let code = code.map(|code| format!(", code {code}")).unwrap_or_default();
    let told = format!("status {status}{code}");
    match status {
        400..=499 => ControlError::Refused(told),
        _ => ControlError::Unknown(told),
    }
}

/// A name for a command, that no other has.
pub(super) fn command_name() -> Result<String, ControlError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|_| ControlError::Refused("the system gives no random numbers".into()))?;
    Ok(base64_simd::URL_SAFE_NO_PAD.encode_to_string(random))
}

/// The accounts by which calls are handled.
pub struct Accounts {
    client: Client,
    accounts: BTreeMap<Carrier, Account>,
}

impl Accounts {
    /// By these accounts. To which numbers calls are handed on the bridge looks after, and who dials.
    pub fn new(accounts: impl IntoIterator<Item = (Carrier, Account)>) -> Result<Self, HttpError> {
        let client = client().map_err(|error| HttpError(error.to_string()))?;
        Ok(Self { client, accounts: accounts.into_iter().collect() })
    }

    /// The account at a carrier.
    pub(super) fn account(&self, carrier: Carrier) -> Result<&Account, ControlError> {
        self.accounts.get(&carrier).ok_or_else(|| unsupported("requests"))
    }

    async fn act(
        &self,
        carrier: Carrier,
        call_id: &str,
        action: Action<'_>,
    ) -> Result<(), ControlError> {
        let account = self.account(carrier)?;
        let request = account.request(call_id, &action, &command_name()?)?;
        let (status, body) = self.ask(&request).await?;
        account.outcome(&action, status, &body)
    }

    /// The answer to a request. A carrier that has too much to do is asked once more.
    pub(super) async fn ask(&self, request: &ApiRequest) -> Result<(u16, Vec<u8>), ControlError> {
        let (status, pause, body) = self.post(request).await?;
        if status != 429 {
            return Ok((status, body));
        }
        tokio::time::sleep(pause.unwrap_or(PAUSE).min(LONGEST_PAUSE)).await;
        let (status, _, body) = self.post(request).await?;
        Ok((status, body))
    }

    async fn post(
        &self,
        request: &ApiRequest,
    ) -> Result<(u16, Option<Duration>, Vec<u8>), ControlError> {
        let failed = |error: reqwest::Error| {
            // Nothing was sent.
            let unsent = error.is_connect() || error.is_builder();
            match (unsent, error.is_timeout()) {
                (true, _) => ControlError::Refused(error.without_url().to_string()),
                (false, true) => ControlError::TimedOut,
                (false, false) => ControlError::Unknown(error.without_url().to_string()),
            }
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
    fn handles(&self, carrier: Carrier) -> bool {
        self.accounts.contains_key(&carrier)
    }

    async fn answer(
        &self,
        carrier: Carrier,
        call_id: &str,
        stream: &StreamOrder,
    ) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::Answer { stream }).await
    }

    async fn reject(&self, carrier: Carrier, call_id: &str) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::Reject).await
    }

    async fn hang_up(&self, carrier: Carrier, call_id: &str) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::HangUp).await
    }

    async fn transfer(
        &self,
        carrier: Carrier,
        call_id: &str,
        to: &str,
        action: Option<&str>,
    ) -> Result<HandedOn, ControlError> {
        self.act(carrier, call_id, Action::Transfer { to, action }).await?;
        Ok(if action.is_some() { HandedOn::Ringing } else { HandedOn::Gone })
    }

    async fn send_digits(
        &self,
        carrier: Carrier,
        call_id: &str,
        digits: &str,
        then: Option<&str>,
    ) -> Result<(), ControlError> {
        self.act(carrier, call_id, Action::Digits { digits, then }).await
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
        let request = twilio().request("CA1", &Action::HangUp, "c1").unwrap();
        assert_eq!(request.url, "https://api.twilio.com/2010-04-01/Accounts/AC1/Calls/CA1.json");
        assert_eq!(request.authorization, "Basic QUMxOnNlY3JldA==");
        assert_eq!(request.body, "Status=completed");
        let request =
            twilio().request("CA1", &Action::Transfer { to: "+1555", action: None }, "c1").unwrap();
        let fields: Vec<_> = form_urlencoded::parse(request.body.as_bytes()).collect();
        assert!(fields[0].0 == "Twiml" && fields[0].1.contains("<Dial>+1555</Dial>"));
        let request = telnyx().request("v3:a-b_C", &Action::HangUp, "c1").unwrap();
        assert_eq!(request.url, "https://api.telnyx.com/v2/calls/v3:a-b_C/actions/hangup");
        assert_eq!(
            (&*request.authorization, &*request.body),
            ("Bearer KEY", r#"{"command_id":"c1"}"#)
        );
        let digits = Action::Digits { digits: "12#", then: None };
        let request = telnyx().request("v3:a", &digits, "c1").unwrap();
        assert!(request.url.ends_with("/actions/send_dtmf"));
        let body: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(body, json!({ "digits": "12#", "command_id": "c1" }));
        assert!(twilio().request("CA1", &digits, "c1").is_err(), "the stream could not come back");
        assert!(telnyx().request("../../secrets", &Action::HangUp, "c1").is_err());
        assert!(!format!("{request:?} {:?}", telnyx()).contains("KEY"));
    }

    #[test]
    fn a_call_that_is_over_has_been_hung_up_and_cannot_be_handed_on() {
        let gone = br#"{"code":20404,"status":404}"#;
        assert_eq!(twilio().outcome(&Action::HangUp, 404, gone), Ok(()));
        let transfer = Action::Transfer { to: "+1555", action: None };
        assert_eq!(twilio().outcome(&transfer, 404, gone), Err(ControlError::Over));
        let gone = br#"{"errors":[{"code":"90018","title":"Call has already ended"}]}"#;
        assert_eq!(telnyx().outcome(&Action::HangUp, 422, gone), Ok(()));
        let refused = telnyx().outcome(&Action::HangUp, 401, b"not json");
        assert_eq!(refused, Err(ControlError::Refused("status 401".into())));
        let failed = telnyx().outcome(&Action::HangUp, 503, b"");
        assert_eq!(failed, Err(ControlError::Unknown("status 503".into())));
        assert_eq!(twilio().outcome(&Action::HangUp, 204, b""), Ok(()));
    }
}
