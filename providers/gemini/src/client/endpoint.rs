//! Where to connect, and as whom.

use antiphon_live::{Handshake, LiveConfig, LiveError, Secrets};
use secrecy::{ExposeSecret, SecretString};

use super::{NAME, options::Options};

/// The Gemini API.
const GEMINI: &str = "wss://generativelanguage.googleapis.com";
/// Where Vertex AI is, in no certain place.
const VERTEX: &str = "aiplatform.googleapis.com";
/// What ephemeral tokens begin with.
const EPHEMERAL: &str = "auth_tokens/";

/// Who offers the models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Platform {
    /// The Gemini API, with a key or an ephemeral token.
    #[default]
    Gemini,
    /// Vertex AI, with an OAuth token, or with a key in its express mode.
    Vertex {
        /// The project that pays. Without one: express mode.
        project: Option<String>,
        /// Such as `us-central1`. Default: `global`.
        location: Option<String>,
    },
}

/// Where to connect, and what to say of oneself beside the key.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) platform: Platform,
    /// Scheme, host and the path before the service's own.
    base: String,
    /// A path that names the service already, with its query.
    whole: bool,
    /// The query.
    query: String,
    /// The version, where it was named.
    version: Option<String>,
    /// What is asked for is in `v1alpha` only.
    needs_alpha: bool,
    user_project: Option<String>,
}

impl Endpoint {
    /// From the configuration. `needs_alpha`: a feature is asked for that is in `v1alpha` only.
    pub(super) fn new(
        config: &LiveConfig,
        options: &Options<'_>,
        platform: Option<&Platform>,
        needs_alpha: bool,
    ) -> Result<Self, LiveError> {
        let given = config.endpoint.as_deref().map(str::trim).filter(|given| !given.is_empty());
        let platform = self::platform(given, options, platform)?;
        let default = default_base(&platform);
        let (base, query) = parse(given.unwrap_or(&default))?;
        let whole = base.contains("BidiGenerateContent");
        Ok(Self {
            platform,
            base,
            whole,
            query,
            version: options.take("api_version")?,
            needs_alpha,
            user_project: options.take("user_project")?,
        })
    }

    /// The model with its path.
    pub(super) fn model_path(&self, model: &str) -> String {
        if ["models/", "projects/", "tunedModels/"].iter().any(|start| model.starts_with(start)) {
            return model.to_owned();
        }
        match &self.platform {
            Platform::Gemini => format!("models/{model}"),
            Platform::Vertex { project, location } => {
                let model = model.strip_prefix("publishers/google/models/").unwrap_or(model);
                let location = location.as_deref().unwrap_or("global");
                let path = project.as_ref().map(|p| format!("projects/{p}/locations/{location}/"));
                format!("{}publishers/google/models/{model}", path.unwrap_or_default())
            }
        }
    }

    pub(super) fn handshake(&self, secrets: &Secrets) -> Result<Handshake, LiveError> {
        let secret = secrets.bearer.as_ref().map(|key| key.expose_secret().trim());
        let secret = secret
            .filter(|secret| !secret.is_empty())
            .ok_or_else(|| LiveError::MissingApiKey { provider: NAME.into() })?;
        let ephemeral = secret.starts_with(EPHEMERAL);
        let header = match &self.platform {
            Platform::Vertex { project: Some(_), .. } => {
                ("Authorization", SecretString::from(format!("Bearer {secret}")))
            }
            Platform::Gemini if ephemeral => {
                ("Authorization", SecretString::from(format!("Token {secret}")))
            }
            // In the address it would be seen by more.
            _ => ("x-goog-api-key", SecretString::from(secret)),
        };
        let mut headers = vec![header];
        if let Some(project) = &self.user_project {
            headers.push(("x-goog-user-project", SecretString::from(project.as_str())));
        }
        Ok(Handshake { url: self.url(ephemeral), headers, subprotocols: Vec::new() })
    }

    /// Whose conversations those of connections are; `None` where each connection has a key of its own.
    fn account(&self, config: &LiveConfig) -> Option<SecretString> {
        let Self { base, query, user_project, .. } = self;
        let payer = user_project.as_deref().unwrap_or_default();
        let who = match &self.platform {
            // Tokens come and go, the project stays.
            Platform::Vertex { project: Some(project), location } => {
                let location = location.as_deref().unwrap_or("global");
                format!("projects/{project}/locations/{location}")
            }
            _ if config.bearer.is_some() => return None,
            _ => {
                let key = config.api_key.as_ref()?.expose_secret().trim();
                (!key.is_empty() && !key.starts_with(EPHEMERAL)).then(|| key.to_owned())?
            }
        };
        Some(SecretString::from([base.as_str(), query, payer, &who].join("\n")))
    }

    fn url(&self, ephemeral: bool) -> String {
        let Self { base, query, .. } = self;
        if self.whole {
            return format!("{base}{query}");
        }
        let named = self.version.as_deref();
        match &self.platform {
            Platform::Gemini => {
                let alpha = ephemeral || self.needs_alpha;
                let version = named.unwrap_or(if alpha { "v1alpha" } else { "v1beta" });
                let constrained = if ephemeral { "Constrained" } else { "" };
                format!(
                    "{base}/ws/google.ai.generativelanguage.{version}.GenerativeService.\
                     BidiGenerateContent{constrained}{query}"
                )
            }
            Platform::Vertex { .. } => {
                let version = named.unwrap_or("v1beta1");
                format!(
                    "{base}/ws/google.cloud.aiplatform.{version}.LlmBidiService/\
                     BidiGenerateContent{query}"
                )
            }
        }
    }
}

/// Where, and as whom, connections with this configuration are made; see [`Endpoint::account`].
pub(crate) fn account(config: &LiveConfig, platform: Option<&Platform>) -> Option<SecretString> {
    let endpoint = Endpoint::new(config, &Options::new(config), platform, false).ok()?;
    endpoint.account(config)
}

fn platform(
    endpoint: Option<&str>,
    options: &Options<'_>,
    given: Option<&Platform>,
) -> Result<Platform, LiveError> {
    let named = options.word("platform", &["gemini", "vertex"])?;
    let by_address = endpoint.is_some_and(|endpoint| endpoint.contains(VERTEX));
    let project: Option<String> = options.take("project")?;
    let location: Option<String> = options.take("location")?;
    let plain = |name: &Option<String>| {
        name.as_deref()
            .unwrap_or("x")
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b))
    };
    if !plain(&project) || !plain(&location) {
        return Err(LiveError::InvalidConfig("a project or location with odd characters".into()));
    }
    Ok(match (named, given) {
        (Some("gemini"), _) | (None, Some(Platform::Gemini)) => Platform::Gemini,
        (_, Some(Platform::Vertex { project: p, location: l })) => Platform::Vertex {
            project: project.or_else(|| p.clone()),
            location: location.or_else(|| l.clone()),
        },
        (Some(_), _) => Platform::Vertex { project, location },
        (None, None) if by_address => Platform::Vertex { project, location },
        (None, None) => Platform::Gemini,
    })
}

fn default_base(platform: &Platform) -> String {
    match platform {
        Platform::Gemini => GEMINI.to_owned(),
        Platform::Vertex { location: Some(location), .. } if location != "global" => {
            format!("wss://{location}-{VERTEX}")
        }
        Platform::Vertex { .. } => format!("wss://{VERTEX}"),
    }
}

/// Scheme, host and path; and the query with its mark.
fn parse(endpoint: &str) -> Result<(String, String), LiveError> {
    let bad = |why: &str| {
        // A query may hold a key.
        let shown = endpoint.split('?').next().unwrap_or_default();
        Err(LiveError::InvalidConfig(format!("the endpoint {shown:?} {why}")))
    };
    let (scheme, rest) = match endpoint.split_once("://") {
        Some(("ws" | "http", rest)) => ("ws", rest),
        Some(("wss" | "https", rest)) => ("wss", rest),
        _ => return bad("is no address with ws, wss, http or https"),
    };
    let rest = rest.split('#').next().unwrap_or_default();
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let host = address.split('/').next().unwrap_or_default();
    if host.is_empty() || address.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return bad("names no host");
    }
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    Ok((format!("{scheme}://{}", address.trim_end_matches('/')), query))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const V1BETA: &str =
        "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent";

    fn endpoint(address: Option<&str>, options: &[(&str, &str)]) -> Endpoint {
        let mut config = LiveConfig::new();
        config.endpoint = address.map(str::to_owned);
        for (id, value) in options {
            config.options.insert((*id).to_owned(), json!(value));
        }
        Endpoint::new(&config, &Options::new(&config), None, false).unwrap()
    }

    fn shake(endpoint: &Endpoint, key: &str) -> (String, String) {
        let secrets = Secrets { bearer: Some(SecretString::from(key)) };
        let handshake = endpoint.handshake(&secrets).unwrap();
        let (name, value) = &handshake.headers[0];
        (handshake.url.clone(), format!("{name}: {}", value.expose_secret()))
    }

    #[test]
    fn the_gemini_api_takes_keys_and_ephemeral_tokens() {
        let gemini = endpoint(None, &[]);
        assert_eq!(
            shake(&gemini, " AIza1 "),
            (format!("{GEMINI}{V1BETA}"), "x-goog-api-key: AIza1".into())
        );
        let (url, header) = shake(&gemini, "auth_tokens/abc");
        assert!(
            url.ends_with(".v1alpha.GenerativeService.BidiGenerateContentConstrained"),
            "{url}"
        );
        assert_eq!(header, "Authorization: Token auth_tokens/abc");
        assert_eq!(gemini.model_path("gemini-3.8-live"), "models/gemini-3.8-live");
        assert_eq!(gemini.model_path("tunedModels/x"), "tunedModels/x");
        let missing = gemini.handshake(&Secrets::default()).unwrap_err();
        assert!(matches!(missing, LiveError::MissingApiKey { .. }));
    }

    #[test]
    fn vertex_takes_tokens_and_has_longer_names() {
        let vertex = endpoint(
            None,
            &[("platform", "vertex"), ("project", "p"), ("location", "us-central1")],
        );
        let (url, header) = shake(&vertex, "ya29.x");
        assert_eq!(
            url,
            "wss://us-central1-aiplatform.googleapis.com/ws/google.cloud.aiplatform.v1beta1.\
             LlmBidiService/BidiGenerateContent"
        );
        assert_eq!(header, "Authorization: Bearer ya29.x");
        assert_eq!(
            vertex.model_path("gemini-3.8-live"),
            "projects/p/locations/us-central1/publishers/google/models/gemini-3.8-live"
        );
        let express = endpoint(Some("https://aiplatform.googleapis.com"), &[]);
        let (url, header) = shake(&express, "AQ.x");
        assert!(url.starts_with("wss://aiplatform.googleapis.com/ws/google.cloud"), "{url}");
        assert_eq!(header, "x-goog-api-key: AQ.x");
        assert_eq!(express.model_path("m"), "publishers/google/models/m");
    }

    #[test]
    fn an_account_is_the_address_and_who_pays() {
        let account = |edit: &dyn Fn(LiveConfig) -> LiveConfig, platform: Option<&Platform>| {
            let account = account(&edit(LiveConfig::new()), platform);
            account.map(|account| account.expose_secret().to_owned())
        };
        let key = |key: &'static str| move |config: LiveConfig| config.api_key(key);
        let own = account(&key("AIza1"), None).unwrap();
        assert_eq!(account(&key(" AIza1 "), None), Some(own.clone()));
        assert_ne!(account(&key("AIza2"), None), Some(own.clone()));
        let elsewhere = |config: LiveConfig| {
            let mut config = config.api_key("AIza1");
            config.endpoint = Some("wss://proxy.example".into());
            config
        };
        assert_ne!(account(&elsewhere, None), Some(own));
        // No two runs have the same, or nobody knows whose they are.
        assert_eq!(account(&key("auth_tokens/abc"), None), None);
        assert_eq!(account(&|config| config, None), None);
        // A token of a project comes and goes.
        let project = |name: &str| Platform::Vertex { project: Some(name.into()), location: None };
        let (one, other) = (project("p"), project("q"));
        assert_eq!(account(&key("ya29.a"), Some(&one)), account(&key("ya29.b"), Some(&one)));
        assert_ne!(account(&key("ya29.a"), Some(&one)), account(&key("ya29.a"), Some(&other)));
    }

    #[test]
    fn every_form_of_an_address_becomes_one() {
        for (address, url) in [
            ("http://127.0.0.1:80", format!("ws://127.0.0.1:80{V1BETA}")),
            ("https://proxy/gemini/", format!("wss://proxy/gemini{V1BETA}")),
            ("ws://h?key=1#x", format!("ws://h{V1BETA}?key=1")),
            ("ws://h/x.BidiGenerateContent?k=v", "ws://h/x.BidiGenerateContent?k=v".into()),
        ] {
            assert_eq!(shake(&endpoint(Some(address), &[]), "k").0, url);
        }
        for bad in ["localhost", "ftp://a", "ws://", "wss:///v1", "ws://a b/?key=secret"] {
            let mut config = LiveConfig::new();
            config.endpoint = Some(bad.into());
            let error = Endpoint::new(&config, &Options::new(&config), None, false).unwrap_err();
            assert!(matches!(error, LiveError::InvalidConfig(_)), "{bad}");
            assert!(!error.to_string().contains("secret"));
        }
    }
}
