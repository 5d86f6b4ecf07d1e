//! Calls that are made: through Twilio's and Telnyx's HTTP interfaces, to numbers that a list allows,
//! within limits that outlive the process.
//!
//! What a call may cost at most (the price of a minute, for as long as the carrier lets it last) is taken
//! from the limits before the carrier is asked, and given back only where it refused; once the carrier tells
//! how long the call was, what it has cost stays ([`Bridge::ledger`](super::Bridge::ledger)). The call's
//! stream comes to the bridge as any other does, with a token that was made for it.
//!
//! Sources: Twilio, "Call resource" (create) and "Answering Machine Detection"; Telnyx, Call Control
//! command "Dial".

mod config;

use std::{fmt, sync::Arc, time::SystemTime};

use antiphon_types::Status;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    answer,
    bridge::ControlError,
    config::{BridgeConfig, Verify},
    dialect::Carrier,
    numbers::is_allowed,
    rest::{Account, Accounts, ApiRequest, StreamOrder, command_name, command_of, form, refused},
    token::{Claims, TokenError, Tokens},
};
use crate::policy::{Draw, LimitError, LimitStore, ReservationId, Reserved};

pub(in crate::telephony) use self::config::RawOutbound;
pub use self::config::{Detect, OnMachine, OutboundConfig};

/// What a call that was made passes along, so that the bridge knows it for one.
pub(super) const DIRECTION: &str = "direction";
/// Its value there.
const OUTBOUND: &str = "outbound";
/// A token is good while it rings, and so long beyond, in seconds.
const SLACK: u64 = 60;
/// The parameter of the carrier's report by which it carries what was taken for the call.
pub(super) const STATE: &str = "made";

/// Makes calls.
pub struct Outbound {
    config: OutboundConfig,
    accounts: Accounts,
    tokens: Option<Tokens>,
    /// Shown by streams where tokens are not used.
    secret: Option<String>,
    stream: StreamOrder,
    origin: String,
    limits: Option<Arc<dyn LimitStore>>,
}

/// A call that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DialOrder {
    /// The number, as E.164 writes it.
    pub to: String,
    /// Whose call it is.
    pub tenant: Option<String>,
    /// Which agent is to speak.
    pub agent: Option<String>,
}

impl DialOrder {
    /// A call to this number.
    pub fn new(to: impl Into<String>) -> Self {
        Self { to: to.into(), ..Self::default() }
    }
}

/// Why no call was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The configuration does not say how calls are made.
    #[error("{0}")]
    NotConfigured(&'static str),
    /// No number, or one that is not on the list.
    #[error("this number may not be called")]
    NotAllowed,
    /// There is a limit on money, and no price for this number.
    #[error("there is no price for this number")]
    NoPrice,
    /// A limit has no room.
    #[error("the limit {limit:?} has no room{}", .until.map(|at| format!(" until {at}")).unwrap_or_default())]
    Limit {
        /// The limit.
        limit: String,
        /// When it has.
        until: Option<Timestamp>,
    },
    /// The limits cannot be read: no call without them.
    #[error("{0}")]
    Ledger(String),
    /// No token can be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The carrier has not made it.
    #[error(transparent)]
    Carrier(#[from] ControlError),
}

impl DialError {
    /// The canonical status code.
    pub fn status(&self) -> Status {
        match self {
            Self::NotConfigured(_) | Self::NoPrice => Status::FailedPrecondition,
            Self::NotAllowed => Status::PermissionDenied,
            Self::Limit { .. } => Status::ResourceExhausted,
            Self::Ledger(_) | Self::Token(_) => Status::Internal,
            Self::Carrier(_) => Status::Unavailable,
        }
    }
}

impl Outbound {
    /// Makes calls as the configuration says; `limits` remember what was used.
    ///
    /// # Errors
    ///
    /// Something is missing: `[outbound]`, the account, `public_url`, or `limits` where the
    /// configuration has any.
    pub fn new(
        config: &BridgeConfig,
        accounts: Accounts,
        limits: Option<Arc<dyn LimitStore>>,
    ) -> Result<Self, DialError> {
        let not = DialError::NotConfigured;
        let outbound = config.outbound.clone().ok_or(not("there is no [outbound]"))?;
        let carrier = config.carriers.get(&outbound.carrier);
        let carrier = carrier.ok_or(not("the carrier of [outbound] has no table"))?;
        accounts.account(outbound.carrier).map_err(|_| not("the carrier has no account"))?;
        let origin = config.public_url.clone().ok_or(not("calls need `public_url`"))?;
        let limited = outbound.calls_per_day.is_some() || outbound.spend_per_day.is_some();
        if limited && limits.is_none() {
            return Err(not("the limits of a day need a ledger"));
        }
        let tokens = config.token_secret.as_ref().map(Tokens::new).transpose()?;
        let secret = match (carrier.verify, &carrier.secret) {
            (Verify::Secret, Some(secret)) => {
                Some(secrecy::ExposeSecret::expose_secret(secret).to_owned())
            }
            _ => None,
        };
        let url = format!("{}/telephony/{}", origin.replacen("http", "ws", 1), outbound.carrier);
        let stream = StreamOrder::new(url, None, carrier.options.telnyx.output);
        Ok(Self { config: outbound, accounts, tokens, secret, stream, origin, limits })
    }

    /// Makes a call, and returns the carrier's name of it once it is on its way. Whether anybody answers
    /// shows later: the stream comes to the bridge, or it never does.
    ///
    /// # Errors
    ///
    /// Why it was not made. After [`ControlError::TimedOut`] and [`ControlError::Unknown`] nobody knows
    /// whether it was: what it may cost stays taken.
    pub async fn dial(&self, order: &DialOrder) -> Result<String, DialError> {
        if !is_allowed(&order.to, &self.config.allow) {
            return Err(DialError::NotAllowed);
        }
        let draws = self.draws(order)?;
        let reservation = match &self.limits {
            Some(limits) if !draws.is_empty() => {
                let limits = limits.clone();
                let reserved = blocking(move || limits.reserve(Timestamp::now(), &draws)).await?;
                match reserved {
                    Reserved::Yes(reservation) => Some(reservation),
                    Reserved::No { limit, until } => {
                        return Err(DialError::Limit { limit: limit.to_string(), until });
                    }
                }
            }
            _ => None,
        };
        let dialled = self.ask(order, reservation).await;
        if let (Some(limits), Some(reservation)) = (&self.limits, reservation) {
            let limits = limits.clone();
            let unknown = |error: &DialError| {
                let DialError::Carrier(error) = error else { return false };
                matches!(error, ControlError::TimedOut | ControlError::Unknown(_))
            };
            let made = dialled.as_ref().err().is_none_or(unknown);
            let told = self.config.tells_length();
            let noted = blocking(move || match made {
                // It is settled at its end, by what it has cost.
                true if told => Ok(()),
                true => limits.settle(reservation),
                false => limits.give_back(reservation),
            });
            // What is not noted stays taken. The call stands, and its name is told all the same.
            if let Err(error) = noted.await {
                tracing::error!(%error, made, "the ledger of calls");
            }
        }
        dialled
    }

    /// What a call takes: itself, and the most that it may cost.
    fn draws(&self, order: &DialOrder) -> Result<Vec<Draw>, DialError> {
        let minutes = self.config.max_length.as_secs().div_ceil(60);
        let amount = match self.config.price(&order.to) {
            Some(price) => price.saturating_mul(minutes),
            None if self.config.spend_per_day.is_some() => return Err(DialError::NoPrice),
            None => 0,
        };
        if self.config.calls_per_day.is_none() && self.config.spend_per_day.is_none() {
            return Ok(Vec::new());
        }
        Ok(vec![self.config.draw(amount)])
    }

    async fn ask(
        &self,
        order: &DialOrder,
        reservation: Option<ReservationId>,
    ) -> Result<String, DialError> {
        let account = self.accounts.account(self.config.carrier)?;
        let token = match (&self.tokens, &self.secret) {
            (_, Some(secret)) => Some(secret.clone()),
            (Some(tokens), None) => {
                let claims = Claims::new(None, order.tenant.clone(), order.agent.clone());
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                let lifetime = self.config.rings + std::time::Duration::from_secs(SLACK);
                Some(tokens.mint(claims, now.unwrap_or_default(), lifetime)?)
            }
            (None, None) => None,
        };
        let state = Made(reservation).to_string();
        let request = self.request(account, &order.to, token, &state, &command_name()?);
        let (status, body) = self.accounts.ask(&request).await?;
        if !(200..300).contains(&status) {
            return Err(refused(status, account.code(&body)).into());
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let id = match account {
            Account::Twilio { .. } => &body["sid"],
            Account::Telnyx { .. } => &body["data"]["call_control_id"],
        };
        let id = id.as_str().map(str::to_owned);
        Ok(id.ok_or_else(|| ControlError::Unknown("an answer without the call's name".into()))?)
    }

    /// The request that makes the call.
    fn request(
        &self,
        account: &Account,
        to: &str,
        token: Option<String>,
        state: &str,
        command: &str,
    ) -> ApiRequest {
        let config = &self.config;
        let at = |rest: &str| format!("{}/telephony/{}/{rest}", self.origin, config.carrier);
        match account {
            Account::Twilio { base, account, token: key } => {
                let (rings, longest) =
                    (config.rings.as_secs().to_string(), config.max_length.as_secs().to_string());
                let all = [
                    ("token", token.as_deref().unwrap_or_default()),
                    (DIRECTION, OUTBOUND),
                    ("from", &*config.from),
                    ("to", to),
                ];
                let all: Vec<_> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
                let twiml = answer::connect_stream(&self.stream.url, &all, &[]);
                let (status, machine) = (at(&format!("status?{STATE}={state}")), at("machine"));
                let mut fields = vec![
                    ("To", to),
                    ("From", &*config.from),
                    ("Twiml", &*twiml),
                    ("Timeout", &*rings),
                    ("TimeLimit", &*longest),
                    ("StatusCallback", &*status),
                    ("StatusCallbackEvent", "completed"),
                ];
                if config.detect == Detect::Carrier {
                    fields.extend([
                        ("MachineDetection", "DetectMessageEnd"),
                        ("AsyncAmd", "true"),
                        ("AsyncAmdStatusCallback", &*machine),
                    ]);
                }
                form(
                    format!("{base}/2010-04-01/Accounts/{account}/Calls.json"),
                    account,
                    key,
                    &fields,
                )
            }
            Account::Telnyx { base, key } => {
                let stream = StreamOrder { token, ..self.stream.clone() };
                let mut body = stream.fields();
                body["command_id"] = json!(command);
                body["connection_id"] = json!(config.connection_id);
                body["to"] = json!(to);
                body["from"] = json!(config.from);
                body["timeout_secs"] = json!(config.rings.as_secs());
                body["time_limit_secs"] = json!(config.max_length.as_secs());
                body["client_state"] = json!(base64_simd::STANDARD.encode_to_string(state));
                body["webhook_url"] = json!(at("events"));
                if config.detect == Detect::Carrier {
                    body["answering_machine_detection"] = json!("greeting_end");
                }
                command_of(format!("{base}/v2/calls"), key, &body)
            }
        }
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Limits are in a file.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LimitError> + Send + 'static,
) -> Result<T, DialError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| DialError::Ledger(error.to_string()))?
        .map_err(|error| DialError::Ledger(error.to_string()))
}

/// What a call that was made carries with it, through the carrier: what was taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Made(pub(super) Option<ReservationId>);

impl Made {
    /// Reads it; `None`: the call was not made by us.
    pub(super) fn read(state: &str) -> Option<Self> {
        let rest = state.strip_prefix(OUTBOUND)?;
        match rest.strip_prefix('-') {
            Some(number) => Some(Self(Some(ReservationId(number.parse().ok()?)))),
            None => rest.is_empty().then_some(Self(None)),
        }
    }

    /// A call has ended after so many seconds: what it has cost is used, and the rest free again.
    pub(super) fn settle(
        self,
        limits: &dyn LimitStore,
        config: &OutboundConfig,
        to: &str,
        seconds: u64,
    ) -> Result<(), LimitError> {
        let (Some(reservation), Some(price)) = (self.0, config.price(to)) else { return Ok(()) };
        // First the one, then the other: at no time is less taken than was used.
        let mut used = config.draw(price.saturating_mul(seconds.div_ceil(60)));
        (used.max_calls, used.max_amount) = (None, None);
        if let Reserved::Yes(used) = limits.reserve(Timestamp::now(), &[used])? {
            limits.settle(used)?;
        }
        limits.give_back(reservation)
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(ReservationId(number)) => write!(f, "{OUTBOUND}-{number}"),
            None => f.write_str(OUTBOUND),
        }
    }
}

/// Whether a call is one that was made, by what its stream passes along.
pub(super) fn is_outbound(carrier: Carrier, parameter: impl Fn(&str) -> Option<String>) -> bool {
    match carrier {
        Carrier::Telnyx => parameter("client_state").is_some_and(|state| {
            let state = base64_simd::STANDARD.decode_to_vec(state).unwrap_or_default();
            String::from_utf8(state).is_ok_and(|state| Made::read(&state).is_some())
        }),
        _ => parameter(DIRECTION).is_some_and(|value| value == OUTBOUND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_call_carries_comes_back_as_it_was() {
        for made in [Made(None), Made(Some(ReservationId(7))), Made(Some(ReservationId(u64::MAX)))]
        {
            assert_eq!(Made::read(&made.to_string()), Some(made));
        }
        for other in ["", "handed:v3:x", "outbound-", "outbound-x", "outbounds", "outbound7"] {
            assert_eq!(Made::read(other), None, "{other}");
        }
    }
}
