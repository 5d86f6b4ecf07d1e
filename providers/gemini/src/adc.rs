//! Tokens from Google's application-default credentials.

use antiphon_live::{BearerSource, LiveError, TokenSource};
use antiphon_types::Status;
use async_trait::async_trait;
use gcp_auth::TokenProvider;
use secrecy::SecretString;
use std::{fmt, sync::Arc};

use crate::client::NAME;

/// What a token is for.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// Google's application-default credentials: the file that `GOOGLE_APPLICATION_CREDENTIALS` names,
/// what `gcloud auth application-default login` left, or the machine's own account on Google Cloud.
/// Tokens are kept until they expire.
///
/// ```no_run
/// # async fn example() -> Result<(), antiphon_live::LiveError> {
/// use antiphon_gemini::{ApplicationDefault, Gemini};
/// use antiphon_live::LiveConfig;
///
/// let provider = Gemini::vertex("my-project", "us-central1");
/// let mut config = LiveConfig::new().model("gemini-3.8-live");
/// config.bearer = Some(ApplicationDefault::find().await?.into());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ApplicationDefault(Arc<dyn TokenProvider>);

impl ApplicationDefault {
    /// Looks for credentials.
    ///
    /// # Errors
    ///
    /// [`LiveError::Failed`]: there are none.
    pub async fn find() -> Result<Self, LiveError> {
        gcp_auth::provider().await.map(Self).map_err(|error| LiveError::Failed {
            provider: NAME.into(),
            message: format!("no application-default credentials: {error}"),
            status: Status::Unauthenticated,
        })
    }
}

impl fmt::Debug for ApplicationDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApplicationDefault(..)")
    }
}

impl From<ApplicationDefault> for BearerSource {
    fn from(source: ApplicationDefault) -> Self {
        Self::of(source)
    }
}

#[async_trait]
impl TokenSource for ApplicationDefault {
    async fn token(&self) -> Result<SecretString, LiveError> {
        match self.0.token(&[SCOPE]).await {
            Ok(token) => Ok(SecretString::from(token.as_str())),
            Err(error) => Err(LiveError::Unauthorized(format!("no token: {error}"))),
        }
    }
}
