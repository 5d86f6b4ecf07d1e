//! Where to connect, and as whom.

use antiphon_live::{Handshake, LiveConfig, LiveError, Secrets};
use secrecy::{ExposeSecret, SecretString};

use super::options::Options;
use crate::wire::Dialect;

/// OpenAI's own address.
const OPENAI: &str = "wss://api.openai.com/v1/realtime";
/// xAI's.
const XAI: &str = "wss://api.x.ai/v1/realtime";
/// The last dated version of Azure's preview.
const AZURE_PREVIEW_VERSION: &str = "2025-04-01-preview";

/// Where to connect, and what to say of oneself beside the key.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) url: String,
    dialect: Dialect,
    organization: Option<String>,
    project: Option<String>,
    safety_identifier: Option<String>,
}

impl Endpoint {
    /// From the configuration; `model` is the one to connect with.
    pub(super) fn new(
        config: &LiveConfig,
        options: &Options<'_>,
        dialect: Dialect,
        model: &str,
    ) -> Result<Self, LiveError> {
        let version: Option<String> = options.take("api_version")?;
        let url = url(config.endpoint.as_deref(), dialect, model, version.as_deref())?;
        Ok(Self {
            url,
            dialect,
            organization: options.take("organization")?,
            project: options.take("project")?,
            safety_identifier: options.take("safety_identifier")?,
        })
    }

    pub(super) fn handshake(&self, secrets: &Secrets) -> Result<Handshake, LiveError> {
        let key = secrets.bearer.as_ref().filter(|key| !key.expose_secret().trim().is_empty());
        let key = key.ok_or_else(|| LiveError::MissingApiKey { provider: super::NAME.into() })?;
        let key = key.expose_secret().trim();
        // A token of Entra is a JWT; a key has no dots.
        let azure_key =
            matches!(self.dialect, Dialect::Azure | Dialect::AzurePreview) && !key.contains('.');
        let mut headers = vec![if azure_key {
            ("api-key", SecretString::from(key))
        } else {
            ("Authorization", SecretString::from(format!("Bearer {key}")))
        }];
        for (name, value) in [
            ("OpenAI-Organization", &self.organization),
            ("OpenAI-Project", &self.project),
            ("OpenAI-Safety-Identifier", &self.safety_identifier),
        ] {
            if let Some(value) = value {
                headers.push((name, SecretString::from(value.as_str())));
            }
        }
        if self.dialect == Dialect::Beta {
            headers.push(("OpenAI-Beta", SecretString::from("realtime=v1")));
        }
        Ok(Handshake { url: self.url.clone(), headers, subprotocols: Vec::new() })
    }
}

/// The dialect that an address gives away, where it does.
pub(super) fn dialect_of(endpoint: &str) -> Option<Dialect> {
    let (_, rest) = endpoint.split_once("://")?;
    let host_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(host_end);
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let azure =
        host.ends_with(".openai.azure.com") || host.ends_with(".cognitiveservices.azure.com");
    if path.starts_with("/openai/realtime") || azure && path.contains("api-version=") {
        return Some(Dialect::AzurePreview);
    }
    if azure || path.starts_with("/openai/v1/realtime") {
        return Some(Dialect::Azure);
    }
    (host == "api.x.ai").then_some(Dialect::Xai)
}

fn url(
    endpoint: Option<&str>,
    dialect: Dialect,
    model: &str,
    version: Option<&str>,
) -> Result<String, LiveError> {
    let endpoint = endpoint.map(str::trim).filter(|endpoint| !endpoint.is_empty());
    let azure = matches!(dialect, Dialect::Azure | Dialect::AzurePreview);
    let endpoint = match endpoint {
        Some(endpoint) => endpoint,
        None if azure => {
            return Err(LiveError::MissingEndpoint { provider: super::NAME.into() });
        }
        None if dialect == Dialect::Xai => XAI,
        None => OPENAI,
    };
    let (scheme, rest) = match endpoint.split_once("://") {
        Some(("ws" | "http", rest)) => ("ws", rest),
        Some(("wss" | "https", rest)) => ("wss", rest),
        _ => {
            return Err(LiveError::InvalidConfig(format!(
                "the endpoint {endpoint:?} is no address with ws, wss, http or https"
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
        return Err(LiveError::InvalidConfig(format!("the endpoint {endpoint:?} names no host")));
    }
    let path = match (path.trim_end_matches('/'), dialect) {
        ("", Dialect::Azure) => "/openai/v1/realtime".to_owned(),
        ("", Dialect::AzurePreview) => "/openai/realtime".to_owned(),
        ("", _) => "/v1/realtime".to_owned(),
        (base, _) if base.ends_with("/v1") => format!("{base}/realtime"),
        (path, _) => path.to_owned(),
    };
    let mut query: Vec<String> =
        query.split('&').filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
    let has =
        |query: &[String], key: &str| query.iter().any(|pair| pair.split('=').next() == Some(key));
    let wanted: &[(&str, &str)] = match dialect {
        Dialect::AzurePreview => {
            &[("api-version", version.unwrap_or(AZURE_PREVIEW_VERSION)), ("deployment", model)]
        }
        _ => &[("model", model)],
    };
    for (key, value) in wanted {
        // A call that is only listened to has its model already.
        if !has(&query, key) && !has(&query, "call_id") && !value.is_empty() {
            query.push(format!("{key}={}", percent_encoded(value)));
        }
    }
    let mark = if query.is_empty() { "" } else { "?" };
    Ok(format!("{scheme}://{host}{path}{mark}{}", query.join("&")))
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

    fn at(endpoint: Option<&str>, dialect: Dialect) -> String {
        url(endpoint, dialect, "gpt realtime", None).unwrap()
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
        assert_eq!(at(None, Dialect::Xai), "wss://api.x.ai/v1/realtime?model=gpt%20realtime");
        assert_eq!(
            at(Some("https://r.openai.azure.com"), Dialect::Azure),
            "wss://r.openai.azure.com/openai/v1/realtime?model=gpt%20realtime"
        );
        assert_eq!(
            at(Some("https://r.openai.azure.com/"), Dialect::AzurePreview),
            "wss://r.openai.azure.com/openai/realtime?api-version=2025-04-01-preview\
             &deployment=gpt%20realtime"
        );
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for endpoint in ["localhost", "ftp://a", "ws://", "wss:///v1", "ws://a b/"] {
            let error = url(Some(endpoint), Dialect::Ga, "m", None).unwrap_err();
            assert!(matches!(error, LiveError::InvalidConfig(_)), "{endpoint}");
        }
        let error = url(None, Dialect::Azure, "m", None).unwrap_err();
        assert!(matches!(error, LiveError::MissingEndpoint { .. }));
    }

    #[test]
    fn quirk_28_the_address_tells_the_dialect() {
        for (endpoint, dialect) in [
            ("wss://r.openai.azure.com/openai/v1/realtime", Some(Dialect::Azure)),
            ("https://r.openai.azure.com", Some(Dialect::Azure)),
            (
                "wss://r.openai.azure.com/openai/realtime?api-version=2025-04-01-preview",
                Some(Dialect::AzurePreview),
            ),
            ("wss://api.x.ai:443/v1/realtime", Some(Dialect::Xai)),
            ("ws://127.0.0.1:4010/v1/realtime", None),
        ] {
            assert_eq!(dialect_of(endpoint), dialect, "{endpoint}");
        }
    }
}
