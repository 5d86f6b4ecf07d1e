//! The configuration of a bridge: `bridge.toml`.

mod read;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use secrecy::SecretString;
use serde::Deserialize;

pub(super) use self::read::Reader;
use super::{
    dialect::{Carrier, DialectOptions},
    outbound::OutboundConfig,
    rest::Account,
    signature::TelnyxSignature,
    token::Claims,
};

/// The configuration of a bridge. Secrets are not in the file: it names environment variables.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BridgeConfig {
    /// Where carriers connect by HTTP and WebSocket.
    pub listen: SocketAddr,
    /// Where AudioSocket connects, if it is to.
    pub audiosocket: Option<SocketAddr>,
    /// Who may connect there. Default: this machine.
    pub audiosocket_allow: Vec<IpAddr>,
    /// The address by which carriers know the bridge, such as `https://calls.example.com`, without a
    /// path. What they sign begins with it.
    pub public_url: Option<String>,
    /// Signs the tokens of streams.
    pub token_secret: Option<SecretString>,
    /// A file to which the record of each call is appended, as a line of JSON.
    pub records: Option<PathBuf>,
    /// Bounds.
    pub limits: CallLimits,
    /// The carriers that may connect.
    pub carriers: BTreeMap<Carrier, CarrierConfig>,
    /// Calls are handed on only to numbers that begin so: `+1555`. Default: to none.
    pub transfer_allow: Vec<String>,
    /// How calls are made, if they are.
    pub outbound: Option<OutboundConfig>,
    /// Whose calls those to a number are.
    pub numbers: Vec<NumberConfig>,
    /// Who answers.
    pub agent: AgentConfig,
    /// Who answers where a token or a number names another agent.
    pub agents: BTreeMap<String, AgentConfig>,
}

/// A number that is called, whose calls those are, and who answers them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumberConfig {
    /// The number, as E.164 writes it.
    pub to: String,
    /// The tenant.
    pub tenant: Option<String>,
    /// The agent: one of [`BridgeConfig::agents`].
    pub agent: Option<String>,
}

/// Bounds of a bridge and of its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallLimits {
    /// Calls at once. Default: 100.
    pub calls: usize,
    /// Calls of one tenant at once. Default: as many as there may be.
    pub calls_per_tenant: usize,
    /// How long a call may last; the agent takes leave before. Default: 1 hour.
    pub max_length: Duration,
    /// How long a caller may be silent. Default: 5 minutes.
    pub max_silence: Duration,
    /// How long a line that should carry audio may carry none. Default: 30 s.
    pub no_media: Duration,
    /// A stream must have told its call within this time. Default: 5 s.
    pub start: Duration,
    /// The agent must have answered within this time. Default: 15 s.
    pub answer: Duration,
    /// When the bridge is stopped, calls may go on for so long. Default: 30 s.
    pub drain: Duration,
    /// Streams that have not told their call yet, beside the calls. Default: 256.
    pub waiting: usize,
    /// Of these, from one address that is not this machine's (a proxy's, say). Default: 64.
    pub waiting_per_address: usize,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            calls: 100,
            calls_per_tenant: usize::MAX,
            max_length: Duration::from_secs(3_600),
            max_silence: Duration::from_secs(300),
            no_media: Duration::from_secs(30),
            start: Duration::from_secs(5),
            answer: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            waiting: 256,
            waiting_per_address: 64,
        }
    }
}

/// How one carrier connects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CarrierConfig {
    /// What it must show.
    pub verify: Verify,
    /// The auth token (Twilio) or signing key (SignalWire).
    pub auth_token: Option<SecretString>,
    /// The key of signatures by SHA-256.
    pub shared_key: Option<SecretString>,
    /// The public key of webhooks (Telnyx).
    pub public_key: Option<TelnyxSignature>,
    /// A secret that each stream shows: a bearer token, `x-telnyx-streaming-auth-token`, or the
    /// parameter `token` of the query.
    pub secret: Option<SecretString>,
    /// Settings of its dialect.
    pub options: DialectOptions,
    /// The account by which calls are ended and handed on, if there is one.
    pub account: Option<Account>,
    /// The account's name, which a stream's start must tell (Twilio, SignalWire).
    pub account_id: Option<String>,
}

/// What a stream must show before it costs anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verify {
    /// The carrier's signature of the upgrade.
    Signature,
    /// A token that is good once.
    Token,
    /// Both.
    SignatureAndToken,
    /// A secret that does not change.
    Secret,
    /// Nothing: only where nobody else can connect, on a loopback address.
    None,
}

impl Verify {
    /// Whether the upgrade must be signed.
    pub const fn signature(self) -> bool {
        matches!(self, Self::Signature | Self::SignatureAndToken)
    }

    /// Whether a token is needed.
    pub const fn token(self) -> bool {
        matches!(self, Self::Token | Self::SignatureAndToken)
    }
}

/// Who answers, for those who run the bridge by the command line.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct AgentConfig {
    /// `offline`, `openai` or `gemini`.
    pub provider: String,
    /// The model, if not the provider's own.
    pub model: Option<String>,
    /// The server, if not the provider's own.
    pub url: Option<String>,
    /// The voice.
    pub voice: Option<String>,
    /// What the agent is told.
    pub instructions: Option<String>,
    /// What it says first.
    pub greeting: Option<String>,
    /// The caller cannot interrupt that: meanwhile the provider hears silence.
    pub greeting_protected: bool,
    /// A JSON list of tools whose bodies are commands.
    pub tools: Option<PathBuf>,
    /// A JSON file of rules over tool calls, or of policies and limits.
    pub policy: Option<PathBuf>,
    /// A SQLite file that remembers what was used of the policy's limits, from call to call.
    pub limits: Option<PathBuf>,
    /// A log of receipts of the policy's decisions, and of what came of them.
    pub receipts: Option<PathBuf>,
    /// A JSON file of guards over what the agent says, and over what callers say before tools act on it.
    pub guards: Option<PathBuf>,
    /// The folder of the offline models.
    pub models: Option<PathBuf>,
    /// What becomes of keys that no tool waits for.
    pub keys: Keys,
    /// Keys stop the agent's speech, unless it is protected.
    pub keys_interrupt: bool,
    /// No key is told to the model, and each field that a tool waits for is secret.
    pub keys_secret: bool,
    /// The model is told of keys when no further one came for so long, in milliseconds.
    pub keys_between_ms: u64,
    /// The demonstration tools (`send_money`, which moves nothing, and so on), for other providers than
    /// the offline one, which has them where no `tools` are named.
    pub demo_tools: bool,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            provider: "offline".into(),
            model: None,
            url: None,
            voice: None,
            instructions: None,
            greeting: None,
            greeting_protected: false,
            tools: None,
            policy: None,
            limits: None,
            receipts: None,
            guards: None,
            models: None,
            keys: Keys::default(),
            keys_interrupt: true,
            keys_secret: false,
            keys_between_ms: 1_500,
            demo_tools: false,
        }
    }
}

/// What becomes of keys that no tool waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Keys {
    /// The model is told of them, as words of the caller.
    #[default]
    Tell,
    /// Nothing: they are counted.
    Ignore,
}

/// What is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// What is wrong there.
    pub message: String,
}

impl ConfigError {
    /// What is wrong with a setting of a configuration that was read, found out later: its place is
    /// told by the tables in which it stands, such as `["agent", "policy"]`.
    pub fn at_setting(text: &str, path: &[&str], message: impl Into<String>) -> Self {
        read::at_setting(text, path, message.into())
    }
}

impl BridgeConfig {
    /// Reads a configuration. `env` tells the value of an environment variable. What cannot work is
    /// refused, a secret that is missing among it: nothing is left unchecked for want of a secret.
    pub fn from_toml(
        text: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        read::read(text, &env)
    }

    /// Whether others than programs of this machine can connect: behind a proxy everybody comes from it.
    pub(super) fn is_open(&self) -> bool {
        read::is_open(self.listen, self.public_url.as_deref())
    }

    /// Whether a carrier shows a secret that stays the same.
    pub(super) fn has_secret(&self, carrier: Carrier) -> bool {
        self.carriers.get(&carrier).is_some_and(|carrier| carrier.secret.is_some())
    }

    /// Whose calls those to this number are, and who answers them, as a token would say it.
    pub(super) fn claims_of(&self, to: &str) -> Claims {
        let number = self.numbers.iter().find(|number| number.to == to);
        let tenant = number.and_then(|number| number.tenant.clone());
        Claims::new(None, tenant, number.and_then(|number| number.agent.clone()))
    }
}

#[cfg(test)]
mod tests;
