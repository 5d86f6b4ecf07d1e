//! Where to connect, and as whom.

use antiphon_live::{Handshake, LiveConfig, LiveError, Resumption, Secrets};
use secrecy::{ExposeSecret, SecretString};

use super::options::Options;
use crate::wire::{Facts, KeyForm, Parameter};

/// What stands in an address in place of the model.
const NO_MODEL_BESIDE: [&str; 2] = ["call_id", "agent_id"];

/// Where to connect, and what to say of oneself beside the key.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    url: String,
    /// The parameter of the address that holds an id for the session, which is not there yet.
    session_id: Option<&'static str>,
    facts: &'static Facts,
    subprotocol: Option<String>,
    /// Headers beside the key's.
    headers: Vec<(&'static str, String)>,
}

impl Endpoint {
    /// From the configuration; `model` is the one to connect with.
    pub(super) fn new(
        config: &LiveConfig,
        options: &Options<'_>,
        facts: &'static Facts,
        model: &str,
    ) -> Result<Self, LiveError> {
        let version: Option<String> = options.take("api_version")?;
        let mut given = Vec::new();
        for id in ["agent_id", "project_id"] {
            given.extend(options.take::<String>(id)?.map(|value| (id, value)));
        }
        let url = Url { facts, model, version: version.as_deref(), given: &given };
        let mut headers = Vec::new();
        for (id, name) in [
            ("organization", "OpenAI-Organization"),
            ("project", "OpenAI-Project"),
            ("safety_identifier", "OpenAI-Safety-Identifier"),
        ] {
            headers.extend(options.take::<String>(id)?.map(|value| (name, value)));
        }
        headers.extend(facts.headers.iter().map(|(name, value)| (*name, (*value).to_owned())));
        let mut endpoint = Self {
            url: url.at(config.endpoint.as_deref())?,
            session_id: None,
            facts,
            subprotocol: options.take("subprotocol")?,
            headers,
        };
        let wants = facts.query.iter().find(|(_, value)| *value == Parameter::SessionId);
        endpoint.session_id =
            wants.map(|(key, _)| *key).filter(|key| !has(query_of(&endpoint.url), key));
        if let Some(id) = options.take::<String>("session_id")? {
            endpoint.name_session(&id);
        }
        Ok(endpoint)
    }

    /// Gives the session an id, where the address wants one and has none.
    pub(super) fn name_session(&mut self, id: &str) {
        if let Some(key) = self.session_id.take() {
            push(&mut self.url, key, id);
        }
    }

    /// `resume`: with the name of the conversation that is to be gone on with.
    pub(super) fn handshake(
        &self,
        secrets: &Secrets,
        resume: Option<&Resumption>,
    ) -> Result<Handshake, LiveError> {
        let key = secrets.bearer.as_ref().filter(|key| !key.expose_secret().trim().is_empty());
        let key = key.ok_or_else(|| LiveError::MissingApiKey { provider: super::NAME.into() })?;
        if let Some(parameter) = self.session_id {
            let vendor = self.facts.vendor;
            return Err(LiveError::InvalidConfig(format!(
                "{vendor} wants an id of the session as {parameter} in the address; the option \
                 session_id names one"
            )));
        }
        let mut headers = vec![key_header(self.facts.key, key.expose_secret().trim())];
        for (name, value) in &self.headers {
            headers.push((name, SecretString::from(value.as_str())));
        }
        let offered = self.facts.subprotocols.iter().map(|name| (*name).to_owned());
        let subprotocols = offered.chain(self.subprotocol.clone()).collect();
        let mut url = self.url.clone();
        if let Some(Resumption { handle }) = resume {
            push(&mut url, "conversation_id", handle.expose_secret());
        }
        Ok(Handshake { url, headers, subprotocols })
    }
}

fn key_header(form: KeyForm, key: &str) -> (&'static str, SecretString) {
    // A token is a JWT; a key has no dots.
    match form {
        KeyForm::ApiKey if !key.contains('.') => ("api-key", SecretString::from(key)),
        KeyForm::Basic if !key.contains('.') => {
            ("Authorization", SecretString::from(format!("Basic {key}")))
        }
        _ => ("Authorization", SecretString::from(format!("Bearer {key}"))),
    }
}

/// What an address is made of.
struct Url<'a> {
    facts: &'static Facts,
    model: &'a str,
    version: Option<&'a str>,
    /// Parameters that the configuration gives.
    given: &'a [(&'static str, String)],
}

impl Url<'_> {
    fn at(&self, endpoint: Option<&str>) -> Result<String, LiveError> {
        let endpoint = endpoint.map(str::trim).filter(|endpoint| !endpoint.is_empty());
        let Some(endpoint) = endpoint.or(self.facts.address) else {
            return Err(LiveError::MissingEndpoint { provider: super::NAME.into() });
        };
        // The query may hold a key and is not quoted, nor is what stands before the host.
        let shown = endpoint.split(['?', '#']).next().unwrap_or_default();
        let shown = shown.rsplit('@').next().unwrap_or_default();
        let (scheme, rest) = match endpoint.split_once("://") {
            Some(("ws" | "http", rest)) => ("ws", rest),
            Some(("wss" | "https", rest)) => ("wss", rest),
            _ => {
                return Err(LiveError::InvalidConfig(format!(
                    "the endpoint {shown:?} is no address with ws, wss, http or https"
                )));
            }
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, path) = match address.find('/') {
            Some(slash) => address.split_at(slash),
            None => (address, ""),
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(LiveError::InvalidConfig(format!("the endpoint {shown:?} names no host")));
        }
        let path = match path.trim_end_matches('/') {
            "" => self.facts.path.to_owned(),
            base if base.ends_with("/v1") && self.facts.path.ends_with("/v1/realtime") => {
                format!("{base}/realtime")
            }
            path => path.to_owned(),
        };
        let mut url = format!("{scheme}://{host}{path}");
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            push_pair(&mut url, pair);
        }
        self.complete(&mut url)?;
        Ok(url)
    }

    /// Adds what the dialect wants and the address does not hold.
    fn complete(&self, url: &mut String) -> Result<(), LiveError> {
        let vendor = self.facts.vendor;
        for (key, value) in self.given {
            if !has(query_of(url), key) {
                push(url, key, value);
            }
        }
        for (key, parameter) in self.facts.query {
            if has(query_of(url), key) {
                continue;
            }
            let value = match parameter {
                // A call that is only listened to has its model already, and so has an agent.
                Parameter::Model if NO_MODEL_BESIDE.iter().any(|key| has(query_of(url), key)) => {
                    continue;
                }
                Parameter::Model if self.model.is_empty() => {
                    return Err(LiveError::InvalidConfig(format!(
                        "{vendor} wants the name of a deployment as the model, and none is named"
                    )));
                }
                Parameter::Model => self.model,
                Parameter::Version => self.version.or(self.facts.version).unwrap_or_default(),
                Parameter::Fixed(value) => value,
                // Somebody names it later.
                Parameter::SessionId => continue,
            };
            push(url, key, value);
        }
        Ok(())
    }
}

fn query_of(url: &str) -> &str {
    url.split_once('?').map_or("", |(_, query)| query)
}

fn has(query: &str, key: &str) -> bool {
    query.split('&').any(|pair| pair.split('=').next() == Some(key))
}

fn push(url: &mut String, key: &str, value: &str) {
    push_pair(url, &format!("{key}={}", percent_encoded(value)));
}

fn push_pair(url: &mut String, pair: &str) {
    url.push(if url.contains('?') { '&' } else { '?' });
    url.push_str(pair);
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Dialect;

    fn url(endpoint: Option<&str>, dialect: Dialect, model: &str) -> Result<String, LiveError> {
        Url { facts: dialect.facts(), model, version: None, given: &[] }.at(endpoint)
    }

    fn at(endpoint: Option<&str>, dialect: Dialect) -> String {
        url(endpoint, dialect, "gpt realtime").unwrap()
    }

    #[test]
    fn every_form_of_an_address_becomes_one() {
        let ga = Dialect::Ga;
        assert_eq!(at(None, ga), "wss://api.openai.com/v1/realtime?model=gpt%20realtime");
        assert_eq!(
            at(Some("ws://localhost:80"), ga),
            "ws://localhost:80/v1/realtime?model=gpt%20realtime"
        );
        assert_eq!(at(Some("http://a/v1/"), ga), "ws://a/v1/realtime?model=gpt%20realtime");
        assert_eq!(at(Some("https://a/x?model=m&k=v#f"), ga), "wss://a/x?model=m&k=v");
        assert_eq!(at(Some("wss://a?call_id=rtc_1"), ga), "wss://a/v1/realtime?call_id=rtc_1");
        assert_eq!(
            at(Some("https://r.openai.azure.com/openai/v1"), Dialect::Azure),
            "wss://r.openai.azure.com/openai/v1/realtime?model=gpt%20realtime"
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for endpoint in ["localhost", "ftp://a", "ws://", "wss:///v1", "ws://a b/"] {
            let error = url(Some(endpoint), Dialect::Ga, "m").unwrap_err();
            assert!(matches!(error, LiveError::InvalidConfig(_)), "{endpoint}");
        }
        for dialect in [Dialect::Azure, Dialect::AzurePreview, Dialect::VoiceLive] {
            let error = url(None, dialect, "m").unwrap_err();
            assert!(matches!(error, LiveError::MissingEndpoint { .. }));
        }
        for endpoint in ["r.azure.com/x?api-key=SECRET", "me:SECRET@r.azure.com", "ws://?SECRET"] {
            let error = url(Some(endpoint), Dialect::Ga, "m").unwrap_err();
            assert!(!error.to_string().contains("SECRET"), "{error}");
        }
        let error = url(Some("https://r.openai.azure.com"), Dialect::Azure, "").unwrap_err();
        assert!(error.to_string().contains("deployment"), "{error}");
    }

    #[test]
    fn quirk_28_the_address_tells_the_dialect() {
        for (endpoint, dialect) in [
            ("wss://api.openai.com/v1/realtime", Some(Dialect::Ga)),
            ("wss://r.openai.azure.com/openai/v1/realtime", Some(Dialect::Azure)),
            ("https://r.openai.azure.com", Some(Dialect::Azure)),
            ("https://r.services.ai.azure.com/openai/v1/realtime", Some(Dialect::Azure)),
            (
                "wss://r.openai.azure.com/openai/realtime?api-version=2025-04-01-preview",
                Some(Dialect::AzurePreview),
            ),
            ("wss://r.openai.azure.com?api-version=1", Some(Dialect::AzurePreview)),
            ("https://r.services.ai.azure.com", Some(Dialect::VoiceLive)),
            (
                "wss://r.cognitiveservices.azure.com/voice-live/realtime?api-version=1",
                Some(Dialect::VoiceLive),
            ),
            ("wss://api.x.ai:443/v1/realtime", Some(Dialect::Xai)),
            ("wss://dashscope.aliyuncs.com", Some(Dialect::Qwen)),
            ("wss://w.cn-beijing.maas.aliyuncs.com/api-ws/v1/realtime", Some(Dialect::Qwen)),
            ("wss://api.inworld.ai/api/v1/realtime/session", Some(Dialect::Inworld)),
            ("ws://127.0.0.1:4010/v1/realtime", None),
            ("wss://evil-api.x.ai.example.com/v1/realtime", None),
        ] {
            assert_eq!(Dialect::of_address(endpoint), dialect, "{endpoint}");
        }
    }
}
