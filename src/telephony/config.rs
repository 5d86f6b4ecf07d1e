//! The configuration of a bridge: `bridge.toml`.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    ops::Range,
    path::PathBuf,
    time::Duration,
};

use antiphon_audio::AudioFormat;
use secrecy::SecretString;
use serde::Deserialize;
use toml::Spanned;

use super::{
    dialect::{ByteOrder, Carrier, Coding, ControlForm, DialectOptions},
    numbers::is_number,
    outbound::{OutboundConfig, RawOutbound},
    rest::Account,
    signature::TelnyxSignature,
    token::Tokens,
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
}

/// A number that is called, and whose calls those are.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NumberConfig {
    /// The number, as E.164 writes it.
    pub to: String,
    /// The tenant.
    pub tenant: String,
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

impl BridgeConfig {
    /// Reads a configuration. `env` tells the value of an environment variable. What cannot work is
    /// refused, a secret that is missing among it: nothing is left unchecked for want of a secret.
    pub fn from_toml(
        text: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let raw: Raw = toml::from_str(text).map_err(|error| {
            let span = error.span().unwrap_or_default();
            at(text, span, error.message().to_owned())
        })?;
        let reader = Reader { text, env: &env };
        reader.bridge(raw)
    }

    /// Whose calls those to this number are.
    pub(super) fn tenant_of(&self, to: &str) -> Option<String> {
        self.numbers.iter().find(|number| number.to == to).map(|number| number.tenant.clone())
    }
}

/// Reads parts of a configuration.
pub(super) struct Reader<'a> {
    text: &'a str,
    env: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    fn bridge(&self, raw: Raw) -> Result<BridgeConfig, ConfigError> {
        let listen: SocketAddr = self.address(&raw.listen)?;
        let audiosocket = raw.audiosocket.as_ref().map(|at| self.address(at)).transpose()?;
        let public_url = raw.public_url.map(|url| self.origin(url)).transpose()?;
        let token_secret = match &raw.token_secret_env {
            Some(name) => {
                let secret = self.secret(name)?;
                Tokens::new(&secret).map_err(|error| self.wrong(name, error.to_string()))?;
                Some(secret)
            }
            None => None,
        };
        let mut carriers = BTreeMap::new();
        for (name, raw) in raw.carriers {
            let carrier: Carrier = name
                .get_ref()
                .parse()
                .map_err(|_| self.wrong(&name, format!("no carrier {:?}", name.get_ref())))?;
            let config = self.carrier(carrier, &name, raw)?;
            let verify = config.verify;
            // Behind a proxy everybody comes from this machine.
            let is_open = !listen.ip().is_loopback()
                || public_url.as_deref().is_some_and(|url| !is_local(url));
            if verify == Verify::None && carrier != Carrier::AudioSocket && is_open {
                let what = "verify = \"none\" goes only with a loopback address in `listen` and without \
                    a `public_url`: anybody could open streams";
                return Err(self.wrong(&name, what.into()));
            }
            if carrier == Carrier::AudioSocket && audiosocket.is_none() {
                let what = "say by `audiosocket` at the top of the file where it connects";
                return Err(self.wrong(&name, what.into()));
            }
            if verify.token() && token_secret.is_none() {
                let what = "tokens need `token_secret_env` at the top of the file";
                return Err(self.wrong(&name, what.into()));
            }
            if verify.signature() && public_url.is_none() {
                let what = "signatures need `public_url` at the top of the file";
                return Err(self.wrong(&name, what.into()));
            }
            carriers.insert(carrier, config);
        }
        if audiosocket.is_some() {
            carriers.entry(Carrier::AudioSocket).or_insert_with(|| CarrierConfig {
                verify: Verify::None,
                auth_token: None,
                shared_key: None,
                public_key: None,
                secret: None,
                options: DialectOptions::default(),
                account: None,
                account_id: None,
            });
        }
        if carriers.is_empty() {
            let what = "no carrier may connect: add a table such as [carriers.twilio]";
            return Err(at(self.text, 0..0, what.into()));
        }
        let mut allow = Vec::new();
        for address in &raw.audiosocket_allow {
            let parsed = address.get_ref().parse();
            allow.push(parsed.map_err(|_| self.wrong(address, "no IP address".into()))?);
        }
        let mut transfer_allow = Vec::new();
        for prefix in raw.transfer_allow {
            let digits = prefix.get_ref().strip_prefix('+').unwrap_or_default();
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(self.wrong(&prefix, "no beginning of a number, such as +1555".into()));
            }
            transfer_allow.push(prefix.into_inner());
        }
        let mut numbers = Vec::new();
        for RawNumber { to, tenant } in raw.numbers {
            if !is_number(to.get_ref()) {
                return Err(self.wrong(&to, "no number such as +15550001111".into()));
            }
            numbers.push(NumberConfig { to: to.into_inner(), tenant });
        }
        Ok(BridgeConfig {
            outbound: raw.outbound.map(|outbound| outbound.read(self)).transpose()?,
            transfer_allow,
            numbers,
            listen,
            audiosocket,
            audiosocket_allow: allow,
            public_url,
            token_secret,
            records: raw.records,
            limits: self.limits(raw.limits)?,
            carriers,
            agent: raw.agent,
        })
    }

    fn carrier(
        &self,
        carrier: Carrier,
        name: &Spanned<String>,
        raw: RawCarrier,
    ) -> Result<CarrierConfig, ConfigError> {
        self.known_settings(carrier, &raw)?;
        let secret = |name: &Option<Spanned<String>>| {
            name.as_ref().map(|name| self.secret(name)).transpose()
        };
        let auth_token = secret(&raw.auth_token_env)?;
        let shared_key = secret(&raw.shared_key_env)?;
        let fixed = secret(&raw.secret_env)?;
        let public_key = match &raw.public_key {
            Some(key) => Some(
                TelnyxSignature::new(key.get_ref())
                    .map_err(|_| self.wrong(key, "no ed25519 key in base64".into()))?,
            ),
            None => None,
        };
        let by_default = if carrier == Carrier::AudioSocket { Some(Verify::None) } else { None };
        let verify = match (&raw.verify, by_default) {
            (Some(verify), _) => *verify.get_ref(),
            (None, Some(verify)) => verify,
            (None, None) => {
                let what = "say by `verify` what a stream must show: signature, token, \
                    signature_and_token, secret or none";
                return Err(self.wrong(name, what.into()));
            }
        };
        let span = raw.verify.as_ref().map_or_else(|| name.span(), Spanned::span);
        let refuse = |what: &str| Err(at(self.text, span.clone(), what.to_owned()));
        let signs = matches!(carrier, Carrier::Twilio | Carrier::SignalWire);
        if verify.signature() && !signs {
            return refuse("this carrier does not sign its streams: use token or secret");
        }
        if verify.signature() && auth_token.is_none() {
            return refuse("signatures need `auth_token_env`");
        }
        if verify == Verify::Secret && fixed.is_none() {
            return refuse("a secret needs `secret_env`");
        }
        if verify == Verify::Secret && carrier == Carrier::Twilio {
            return refuse("Twilio shows no secret that stays the same: use signature or token");
        }
        if carrier == Carrier::AudioSocket && verify != Verify::None {
            return refuse("AudioSocket shows nothing: say by `audiosocket_allow` who may connect");
        }
        let mut options = DialectOptions::default();
        if let Some(order) = &raw.byte_order {
            options.telnyx.byte_order = match order.get_ref() {
                Order::Big => ByteOrder::BigEndian,
                Order::Little => ByteOrder::LittleEndian,
            };
        }
        if let Some(output) = &raw.output {
            options.telnyx.output = Some(self.format(output)?);
        }
        if let Some(control) = &raw.control {
            options.asterisk = match control.get_ref() {
                Control::Json => ControlForm::Json,
                Control::PlainText => ControlForm::Plain,
            };
        }
        if let Some(rate) = &raw.rate {
            let known = [8_000, 12_000, 16_000, 24_000, 32_000, 44_100, 48_000];
            if !known.contains(rate.get_ref()) {
                return Err(self.wrong(rate, "no sample rate of AudioSocket".into()));
            }
            options.audiosocket_rate = Some(*rate.get_ref());
        }
        if carrier == Carrier::Telnyx && verify == Verify::Token && public_key.is_none() {
            return refuse("tokens are given to signed webhooks alone: name `public_key`");
        }
        let account = self.account(carrier, name, &raw, auth_token.as_ref(), verify)?;
        let account_id = raw.account_sid.as_ref().map(|account| account.get_ref().clone());
        Ok(CarrierConfig {
            account_id,
            verify,
            auth_token,
            shared_key,
            public_key,
            secret: fixed,
            options,
            account,
        })
    }

    /// The account, where one is named.
    fn account(
        &self,
        carrier: Carrier,
        name: &Spanned<String>,
        raw: &RawCarrier,
        token: Option<&SecretString>,
        verify: Verify,
    ) -> Result<Option<Account>, ConfigError> {
        let base = raw.api_url.as_ref().map(|url| self.api(url)).transpose()?;
        match carrier {
            Carrier::Twilio | Carrier::SignalWire => {
                let Some(account) = &raw.account_sid else { return Ok(None) };
                // SignalWire signs with one secret and asks for another.
                let token = match (&raw.api_token_env, carrier) {
                    (Some(name), _) => self.secret(name)?,
                    (None, Carrier::Twilio) => token.cloned().ok_or_else(|| {
                        self.wrong(account, "an account needs `auth_token_env`".into())
                    })?,
                    (None, _) => {
                        let what = "SignalWire's account needs `api_token_env`";
                        return Err(self.wrong(account, what.into()));
                    }
                };
                let base = match (base, carrier) {
                    (Some(base), _) => base,
                    (None, Carrier::Twilio) => "https://api.twilio.com".into(),
                    (None, _) => {
                        let what =
                            "SignalWire needs `api_url`: https://SPACE.signalwire.com/api/laml";
                        return Err(self.wrong(name, what.into()));
                    }
                };
                let account = account.get_ref().clone();
                Ok(Some(Account::Twilio { base, account, token }))
            }
            Carrier::Telnyx => {
                let Some(key) = &raw.api_key_env else {
                    // To close the stream does not end a call at Telnyx: it would stand, and cost.
                    return match verify {
                        Verify::None => Ok(None),
                        _ => Err(self.wrong(
                            name,
                            "Telnyx ends calls only by its API: name the key's variable by \
                             `api_key_env`"
                                .into(),
                        )),
                    };
                };
                let key = self.secret(key)?;
                let base = base.unwrap_or_else(|| "https://api.telnyx.com".into());
                Ok(Some(Account::Telnyx { base, key }))
            }
            Carrier::AudioSocket | Carrier::Asterisk => Ok(None),
        }
    }

    fn limits(&self, raw: RawLimits) -> Result<CallLimits, ConfigError> {
        let mut limits = CallLimits::default();
        let positive = |value: &Option<Spanned<u64>>| match value {
            Some(value) if *value.get_ref() == 0 => {
                Err(at(self.text, value.span(), "0 would allow nothing".into()))
            }
            Some(value) => Ok(Some(*value.get_ref())),
            None => Ok(None),
        };
        if let Some(calls) = positive(&raw.calls)? {
            limits.calls = calls as usize;
        }
        if let Some(calls) = positive(&raw.calls_per_tenant)? {
            limits.calls_per_tenant = calls as usize;
        }
        if let Some(waiting) = positive(&raw.waiting)? {
            limits.waiting = waiting as usize;
        }
        if let Some(waiting) = positive(&raw.waiting_per_address)? {
            limits.waiting_per_address = waiting as usize;
        }
        for (value, limit) in [
            (&raw.max_length_seconds, &mut limits.max_length),
            (&raw.max_silence_seconds, &mut limits.max_silence),
            (&raw.no_media_seconds, &mut limits.no_media),
            (&raw.start_seconds, &mut limits.start),
            (&raw.answer_seconds, &mut limits.answer),
            (&raw.drain_seconds, &mut limits.drain),
        ] {
            if let Some(seconds) = positive(value)? {
                // A year: nothing overflows, and nobody waits longer.
                *limit = Duration::from_secs(seconds.min(365 * 86_400));
            }
        }
        Ok(limits)
    }

    /// `PCMU`, `PCMA`, or `L16` with a rate: `L16@16000`.
    fn format(&self, name: &Spanned<String>) -> Result<AudioFormat, ConfigError> {
        let (coding, rate) = name.get_ref().split_once('@').unwrap_or((name.get_ref(), "8000"));
        let format = rate.parse().ok().and_then(|rate| Coding::named(coding).ok()?.at(rate).ok());
        format.ok_or_else(|| self.wrong(name, "no format: PCMU, PCMA or L16@16000".into()))
    }

    fn address(&self, address: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
        let what = "no address with a port, such as 127.0.0.1:8080";
        address.get_ref().parse().map_err(|_| self.wrong(address, what.into()))
    }

    /// Scheme, host and port, and nothing else.
    fn origin(&self, url: Spanned<String>) -> Result<String, ConfigError> {
        let bare = url.get_ref().strip_prefix("https://").or(url.get_ref().strip_prefix("http://"));
        match bare {
            Some(host) if !host.is_empty() && !host.contains(['/', '?', '#', ' ', '@']) => {
                if url.get_ref().starts_with("http://") && !is_local(url.get_ref()) {
                    let what = "carriers connect by TLS alone: https://";
                    return Err(self.wrong(&url, what.into()));
                }
                Ok(url.into_inner())
            }
            _ => {
                let what = "no origin such as https://calls.example.com, without a path";
                Err(self.wrong(&url, what.into()))
            }
        }
    }

    /// The address of a carrier's interface.
    fn api(&self, url: &Spanned<String>) -> Result<String, ConfigError> {
        let base = url.get_ref().trim_end_matches('/');
        let secure = base.starts_with("https://") && base.len() > "https://".len();
        if secure || (base.starts_with("http://") && is_local(base)) {
            return Ok(base.to_owned());
        }
        Err(self.wrong(url, "no https:// address".into()))
    }

    /// Refuses what another carrier has: nothing that is written has no effect.
    fn known_settings(&self, carrier: Carrier, raw: &RawCarrier) -> Result<(), ConfigError> {
        let signs = matches!(carrier, Carrier::Twilio | Carrier::SignalWire);
        let telnyx = carrier == Carrier::Telnyx;
        let settings = [
            ("auth_token_env", raw.auth_token_env.as_ref().map(Spanned::span), signs),
            ("shared_key_env", raw.shared_key_env.as_ref().map(Spanned::span), signs),
            ("account_sid", raw.account_sid.as_ref().map(Spanned::span), signs),
            ("api_token_env", raw.api_token_env.as_ref().map(Spanned::span), signs),
            ("public_key", raw.public_key.as_ref().map(Spanned::span), telnyx),
            ("api_key_env", raw.api_key_env.as_ref().map(Spanned::span), telnyx),
            ("output", raw.output.as_ref().map(Spanned::span), telnyx),
            ("byte_order", raw.byte_order.as_ref().map(Spanned::span), telnyx),
            ("api_url", raw.api_url.as_ref().map(Spanned::span), signs || telnyx),
            ("control", raw.control.as_ref().map(Spanned::span), carrier == Carrier::Asterisk),
            ("rate", raw.rate.as_ref().map(Spanned::span), carrier == Carrier::AudioSocket),
        ];
        for (name, span, known) in settings {
            if let Some(span) = span.filter(|_| !known) {
                return Err(at(self.text, span, format!("{carrier} has no `{name}`")));
            }
        }
        Ok(())
    }

    fn secret(&self, name: &Spanned<String>) -> Result<SecretString, ConfigError> {
        match (self.env)(name.get_ref()) {
            Some(value) if !value.trim().is_empty() => Ok(value.into()),
            _ => {
                let what = format!("the environment variable {} is not set", name.get_ref());
                Err(self.wrong(name, what))
            }
        }
    }

    /// What is wrong at a place.
    pub(super) fn wrong<T>(&self, place: &Spanned<T>, message: String) -> ConfigError {
        at(self.text, place.span(), message)
    }
}

/// Whether an address is of this machine.
fn is_local(url: &str) -> bool {
    let host = url.split_once("://").map_or(url, |(_, host)| host);
    let host = host.split('/').next().unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn at(text: &str, span: Range<usize>, message: String) -> ConfigError {
    let mut start = span.start.min(text.len());
    while !text.is_char_boundary(start) {
        start -= 1;
    }
    let before = &text[..start];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    ConfigError { line, column, message }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    listen: Spanned<String>,
    audiosocket: Option<Spanned<String>>,
    #[serde(default)]
    audiosocket_allow: Vec<Spanned<String>>,
    #[serde(default)]
    transfer_allow: Vec<Spanned<String>>,
    #[serde(default)]
    numbers: Vec<RawNumber>,
    public_url: Option<Spanned<String>>,
    token_secret_env: Option<Spanned<String>>,
    records: Option<PathBuf>,
    #[serde(default)]
    limits: RawLimits,
    #[serde(default)]
    carriers: BTreeMap<Spanned<String>, RawCarrier>,
    outbound: Option<RawOutbound>,
    #[serde(default)]
    agent: AgentConfig,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNumber {
    to: Spanned<String>,
    tenant: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawLimits {
    calls: Option<Spanned<u64>>,
    calls_per_tenant: Option<Spanned<u64>>,
    max_length_seconds: Option<Spanned<u64>>,
    max_silence_seconds: Option<Spanned<u64>>,
    no_media_seconds: Option<Spanned<u64>>,
    start_seconds: Option<Spanned<u64>>,
    answer_seconds: Option<Spanned<u64>>,
    drain_seconds: Option<Spanned<u64>>,
    waiting: Option<Spanned<u64>>,
    waiting_per_address: Option<Spanned<u64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCarrier {
    verify: Option<Spanned<Verify>>,
    auth_token_env: Option<Spanned<String>>,
    shared_key_env: Option<Spanned<String>>,
    secret_env: Option<Spanned<String>>,
    public_key: Option<Spanned<String>>,
    output: Option<Spanned<String>>,
    byte_order: Option<Spanned<Order>>,
    control: Option<Spanned<Control>>,
    rate: Option<Spanned<u32>>,
    account_sid: Option<Spanned<String>>,
    api_token_env: Option<Spanned<String>>,
    api_key_env: Option<Spanned<String>>,
    api_url: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Order {
    Big,
    Little,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Control {
    Json,
    PlainText,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<BridgeConfig, ConfigError> {
        BridgeConfig::from_toml(text, |name| match name {
            "TOKEN" => Some("a secret of some length".into()),
            "SHORT" => Some("short".into()),
            _ => None,
        })
    }

    const GOOD: &str = r#"
listen = "0.0.0.0:8080"
public_url = "https://calls.example.com"
token_secret_env = "TOKEN"

[limits]
calls = 5
max_length_seconds = 60

[carriers.twilio]
verify = "signature_and_token"
auth_token_env = "TOKEN"

[carriers.telnyx]
verify = "secret"
secret_env = "TOKEN"
api_key_env = "TOKEN"
output = "L16@16000"
byte_order = "little"

[agent]
provider = "offline"
greeting = "Hello."
"#;

    #[test]
    fn a_whole_configuration_is_read() {
        let config = read(GOOD).unwrap();
        assert_eq!(config.limits.calls, 5);
        assert_eq!(config.limits.max_length, Duration::from_secs(60));
        assert_eq!(config.carriers[&Carrier::Twilio].verify, Verify::SignatureAndToken);
        let telnyx = &config.carriers[&Carrier::Telnyx].options.telnyx;
        assert_eq!(telnyx.output, Some(AudioFormat::pcm16(16_000)));
        assert_eq!(config.agent.greeting.as_deref(), Some("Hello."));
        assert!(!format!("{config:?}").contains("a secret"));
    }

    #[test]
    fn each_mistake_is_told_with_its_line() {
        let line = |change: (&str, &str)| {
            let text = GOOD.replace(change.0, change.1);
            assert_ne!(text, GOOD);
            let error = read(&text).unwrap_err();
            (error.line, error.message)
        };
        assert_eq!(line(("0.0.0.0:8080", "nowhere")).0, 2);
        assert_eq!(line(("https://calls.example.com", "https://calls.example.com/x")).0, 3);
        assert_eq!(line(("token_secret_env = \"TOKEN\"", "token_secret_env = \"SHORT\"")).0, 4);
        assert_eq!(line(("calls = 5", "calls = 0")).0, 7);
        assert_eq!(line(("calls = 5", "cals = 5")).0, 7);
        assert_eq!(line(("carriers.twilio", "carriers.twillio")).0, 10);
        assert_eq!(line(("signature_and_token", "hope")).0, 11);
        let (at, message) = line(("auth_token_env = \"TOKEN\"", "auth_token_env = \"MISSING\""));
        assert_eq!((at, message.contains("MISSING")), (12, true));
        assert_eq!(line(("verify = \"secret\"", "verify = \"signature\"")).0, 15);
        assert_eq!(line(("verify = \"secret\"", "verify = \"none\"")).0, 14);
        assert_eq!(line(("api_key_env = \"TOKEN\"\n", "")).0, 14);
        assert_eq!(line(("L16@16000", "OPUS")).0, 18);
        assert_eq!(line(("[agent]", "[agent")).0, 21);
        assert_eq!(line(("https://calls", "http://calls")).0, 3);
        assert_eq!(line(("byte_order = \"little\"", "control = \"json\"")).0, 19);
        assert_eq!(line(("byte_order = \"little\"", "api_url = \"api.telnyx.com\"")).0, 19);
        assert_eq!(line(("byte_order = \"little\"", "api_url = \"http://a.com\"")).0, 19);
        assert_eq!(line(("[limits]", "[[numbers]]\nto = \"1\"\ntenant = \"a\"\n[limits]")).0, 7);
        assert_eq!(read("listen = \"127.0.0.1:1\"").unwrap_err().line, 1);
    }

    #[test]
    fn without_a_secret_nothing_goes_unchecked() {
        let open = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\nverify = \"none\"\n";
        assert!(read(open).is_ok());
        assert!(read(&open.replace("127.0.0.1", "0.0.0.0")).is_err());
        // Behind a proxy everybody is on this machine.
        let proxied = format!("public_url = \"https://calls.example.com\"\n{open}");
        assert_eq!(read(&proxied).unwrap_err().line, 3);
        assert!(read(&proxied.replace("calls.example.com", "localhost:8080")).is_ok());
        let unsaid = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\n";
        assert_eq!(read(unsaid).unwrap_err().line, 2);
        let token = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\nverify = \"token\"\n";
        assert!(read(token).unwrap_err().message.contains("token_secret_env"));
        let signature = token.replace("token", "signature");
        assert!(read(&signature).is_err());
    }
}
