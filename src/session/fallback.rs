//! Providers that a session falls back on.

use std::{fmt, sync::Arc};

use antiphon_live::{ConnectRequest, LiveConfig, LiveConnection, LiveError, LiveProvider};

/// Makes of the session's configuration that of another provider.
type Adapt = dyn Fn(LiveConfig) -> LiveConfig + Send + Sync;

/// Options that mean something to one provider only, whatever else is neutral.
const OF_ONE_PROVIDER: [&str; 9] = [
    "api_version",
    "dialect",
    "location",
    "platform",
    "project",
    "session",
    "tools",
    "transcription_model",
    "user_project",
];

/// A provider that a session may connect with.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) provider: Arc<dyn LiveProvider>,
    /// `None`: the configuration is made for it.
    adapt: Option<Arc<Adapt>>,
}

impl Candidate {
    /// The session's own.
    pub(crate) fn own(provider: Arc<dyn LiveProvider>) -> Self {
        Self { provider, adapt: None }
    }

    /// One that the session falls back on.
    pub(crate) fn fallback(
        provider: Arc<dyn LiveProvider>,
        adapt: impl Fn(LiveConfig) -> LiveConfig + Send + Sync + 'static,
    ) -> Self {
        Self { provider, adapt: Some(Arc::new(adapt)) }
    }

    /// The session's configuration as this provider is given it: without what names or opens another.
    pub(crate) fn config(&self, config: &LiveConfig) -> LiveConfig {
        let mut config = config.clone();
        let Some(adapt) = &self.adapt else { return config };
        config.provider = None;
        config.profile_id = None;
        config.model = None;
        config.fallback_model = None;
        config.api_key = None;
        config.bearer = None;
        config.endpoint = None;
        config.voice = None;
        config.provider_options.clear();
        config.options.retain(|name, _| !OF_ONE_PROVIDER.contains(&name.as_str()));
        adapt(config)
    }

    /// Connects.
    pub(crate) fn connect(
        &self,
        mut request: ConnectRequest,
    ) -> impl Future<Output = Result<Box<dyn LiveConnection>, LiveError>> + Send + use<> {
        if self.adapt.is_some() {
            request.config = Arc::new(self.config(&request.config));
        }
        let provider = self.provider.clone();
        async move { provider.connect(request).await }
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("provider", &self.provider.name()).finish()
    }
}
