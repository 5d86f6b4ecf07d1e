//! What a configuration says of calls that are made.

use std::{collections::BTreeMap, ops::Range, path::PathBuf, time::Duration};

use serde::Deserialize;
use toml::Spanned;

use crate::{
    policy::{AmountField, Draw},
    telephony::{
        config::{ConfigError, Reader},
        dialect::Carrier,
        numbers::is_number,
    },
};

/// Within this time the limits of a day count.
const DAY: Duration = Duration::from_secs(86_400);
/// Decimals of prices.
const DECIMALS: u8 = 4;

/// How calls are made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboundConfig {
    /// By which carrier: Twilio or Telnyx.
    pub carrier: Carrier,
    /// The number that calls are made from.
    pub from: String,
    /// Calls are made only to numbers that begin so.
    pub allow: Vec<String>,
    /// Telnyx's Call Control application.
    pub connection_id: Option<String>,
    /// How long it rings. Default: 30 s.
    pub rings: Duration,
    /// How long a call may last; the carrier ends it then. Default: 10 minutes.
    pub max_length: Duration,
    /// Whether it is found out who answers.
    pub detect: Detect,
    /// What is done when a machine answers.
    pub on_machine: OnMachine,
    /// Calls within 24 hours, at most.
    pub calls_per_day: Option<u64>,
    /// Money within 24 hours, at most, in ten-thousandths of the currency of `prices`.
    pub spend_per_day: Option<u64>,
    /// The price of a minute by the beginning of the number, in ten-thousandths.
    pub prices: BTreeMap<String, u64>,
    /// The file that remembers what was used.
    pub ledger: Option<PathBuf>,
}

/// Whether it is found out who answers a call that was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Detect {
    /// No: whoever answers is spoken to.
    #[default]
    Off,
    /// The bridge listens: a person greets shortly and waits, a machine speaks on and then beeps.
    Listen,
    /// The carrier's own detection tells.
    Carrier,
}

/// What is done when a machine answers: voicemail, or a menu.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMachine {
    /// The call ends, and nothing is said.
    #[default]
    HangUp,
    /// This is said once the machine's greeting is over, and then the call ends.
    Message(String),
    /// The agent speaks with it once its greeting is over; it is told that it is a machine.
    Tell,
}

impl OutboundConfig {
    /// The price of a minute to a number: by the longest beginning that fits.
    pub fn price(&self, to: &str) -> Option<u64> {
        let fitting = self.prices.iter().filter(|(prefix, _)| to.starts_with(prefix.as_str()));
        fitting.max_by_key(|(prefix, _)| prefix.len()).map(|(_, price)| *price)
    }

    /// What a call takes from the limits of a day: itself, and so much money.
    pub(super) fn draw(&self, amount: u64) -> Draw {
        Draw {
            limit: "outbound".into(),
            key: "outbound calls".into(),
            window: DAY,
            amount,
            max_calls: self.calls_per_day,
            max_amount: self.spend_per_day,
        }
    }

    /// Whether the carrier tells how long a call was: only by money that matters.
    pub(super) fn tells_length(&self) -> bool {
        self.carrier == Carrier::Twilio && self.spend_per_day.is_some()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::telephony) struct RawOutbound {
    carrier: Spanned<String>,
    from: Spanned<String>,
    allow: Vec<Spanned<String>>,
    connection_id: Option<String>,
    ring_seconds: Option<Spanned<u64>>,
    max_length_seconds: Option<Spanned<u64>>,
    detect: Option<Spanned<Detect>>,
    on_machine: Option<Spanned<String>>,
    message: Option<String>,
    calls_per_day: Option<u64>,
    spend_per_day: Option<Spanned<String>>,
    #[serde(default)]
    prices: BTreeMap<Spanned<String>, Spanned<String>>,
    ledger: Option<PathBuf>,
}

impl RawOutbound {
    /// Where it says that Telnyx is to find out who answers, if it does.
    pub(in crate::telephony) fn detects_by_telnyx(&self) -> Option<Range<usize>> {
        let detect = self.detect.as_ref().filter(|detect| *detect.get_ref() == Detect::Carrier);
        let telnyx = self.carrier.get_ref().parse() == Ok(Carrier::Telnyx);
        detect.filter(|_| telnyx).map(Spanned::span)
    }

    pub(in crate::telephony) fn read(
        self,
        reader: &Reader<'_>,
    ) -> Result<OutboundConfig, ConfigError> {
        let wrong = |what: &str, place: &Spanned<String>| reader.wrong(place, what.to_owned());
        let carrier = match self.carrier.get_ref().parse() {
            Ok(carrier @ (Carrier::Twilio | Carrier::Telnyx)) => carrier,
            _ => return Err(wrong("calls are made by twilio or telnyx", &self.carrier)),
        };
        if !is_number(self.from.get_ref()) {
            return Err(wrong("no number such as +15550100", &self.from));
        }
        if carrier == Carrier::Telnyx && self.connection_id.is_none() {
            return Err(wrong("Telnyx needs `connection_id`", &self.carrier));
        }
        let mut allow = Vec::new();
        for prefix in self.allow {
            if !is_prefix(prefix.get_ref()) {
                return Err(wrong("no beginning of a number, such as +1555", &prefix));
            }
            allow.push(prefix.into_inner());
        }
        let money = |text: &Spanned<String>| {
            let parsed = AmountField::major("price", DECIMALS).parse(text.get_ref());
            parsed.map_err(|_| wrong("no amount such as \"0.0140\"", text))
        };
        let mut prices = BTreeMap::new();
        for (prefix, price) in self.prices {
            if !is_prefix(prefix.get_ref()) {
                return Err(wrong("no beginning of a number, such as +1555", &prefix));
            }
            prices.insert(prefix.into_inner(), money(&price)?);
        }
        let spend_per_day = self.spend_per_day.as_ref().map(money).transpose()?;
        if let (Some(spend), true) = (&self.spend_per_day, prices.is_empty()) {
            return Err(wrong("a limit on money needs `prices`", spend));
        }
        let limited = spend_per_day.is_some() || self.calls_per_day.is_some();
        if limited && self.ledger.is_none() {
            let what = "limits for a day need a file that remembers what was used: `ledger`";
            return Err(wrong(what, &self.carrier));
        }
        let on_machine = match (&self.on_machine, self.message) {
            (None, None) => OnMachine::HangUp,
            (None, Some(message)) => OnMachine::Message(message),
            (Some(what), message) => match (what.get_ref().as_str(), message) {
                ("hang_up", None) => OnMachine::HangUp,
                ("tell", None) => OnMachine::Tell,
                ("message", Some(message)) => OnMachine::Message(message),
                ("message", None) => return Err(wrong("a message needs `message`", what)),
                _ => return Err(wrong("hang_up, tell, or message with `message`", what)),
            },
        };
        let seconds = |value: &Option<Spanned<u64>>, default: u64, most: u64| match value {
            Some(value) if !(5..=most).contains(value.get_ref()) => {
                Err(reader.wrong(value, format!("5 to {most} seconds")))
            }
            Some(value) => Ok(Duration::from_secs(*value.get_ref())),
            None => Ok(Duration::from_secs(default)),
        };
        Ok(OutboundConfig {
            carrier,
            from: self.from.into_inner(),
            allow,
            connection_id: self.connection_id,
            rings: seconds(&self.ring_seconds, 30, 600)?,
            max_length: seconds(&self.max_length_seconds, 600, 14_400)?,
            detect: self.detect.map(Spanned::into_inner).unwrap_or_default(),
            on_machine,
            calls_per_day: self.calls_per_day,
            spend_per_day,
            prices,
            ledger: self.ledger,
        })
    }
}

fn is_prefix(prefix: &str) -> bool {
    let digits = prefix.strip_prefix('+').unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
