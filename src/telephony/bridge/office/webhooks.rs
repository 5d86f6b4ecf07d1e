//! What carriers ask and tell by HTTP, beside their streams. Whoever asks shows first that he may.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use antiphon_audio::AudioFormat;
use antiphon_live::acceptor::{Answer as HttpAnswer, Request};
use secrecy::ExposeSecret;
use serde::Deserialize;

use super::{Draining, Office, lock, shown, unix};
use crate::telephony::{
    answer,
    bridge::{
        AnsweredBy, CallEnd, CallRecord, ControlError,
        news::{Line, News},
    },
    config::{CarrierConfig, Verify},
    dialect::Carrier,
    outbound::{Made, STATE},
    rest::StreamOrder,
    signature::{Signed, same_secret},
    token::{Claims, Tokens},
};

/// What the other leg of a call that is handed on carries in its `client_state`, before the call's name.
const HANDED: &str = "handed:";

/// Telnyx is asked to answer a call after each of these, until it has.
const ANSWERING: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(2)];

impl Office {
    /// Requests beside streams and answers.
    pub(super) fn ask(
        self: &Arc<Self>,
        carrier: Carrier,
        config: &CarrierConfig,
        request: &Request,
        method: &str,
        rest: &str,
    ) -> HttpAnswer {
        match (carrier, rest, method) {
            (Carrier::Asterisk | Carrier::AudioSocket, "next", "GET") => {
                self.next(carrier, config, request)
            }
            (Carrier::Twilio | Carrier::SignalWire, "dialled", "POST") => {
                self.dialled(carrier, config, request)
            }
            (Carrier::Twilio | Carrier::SignalWire, "machine", "POST") => {
                self.machine(carrier, config, request)
            }
            (Carrier::Twilio | Carrier::SignalWire, "status", "POST") => {
                self.status(carrier, config, request)
            }
            (Carrier::Telnyx, "events", "POST") => self.events(config, request),
            _ => HttpAnswer::http(404, "not here\n"),
        }
    }

    /// Whether a webhook comes from the carrier; else the answer to it.
    pub(super) fn signed(
        &self,
        carrier: Carrier,
        config: &CarrierConfig,
        request: &Request,
    ) -> Result<(), HttpAnswer> {
        let Some(https) = self.public(request, "http") else {
            return Err(HttpAnswer::http(503, "no public_url is configured\n"));
        };
        let checked = match carrier {
            Carrier::Telnyx => match &config.public_key {
                Some(key) => {
                    let signature = request.header("telnyx-signature-ed25519");
                    let at = request.header("telnyx-timestamp");
                    key.check(request.body(), signature, at, unix())
                        .map_err(|_| "a wrong signature")
                }
                None => Err("no public key is set"),
            },
            _ => {
                let kind = request.header("content-type");
                self.check_signature(config, request, Signed::post(&https, kind, request.body()))
            }
        };
        // Without a secret to check it by an answer would give tokens to anybody.
        if let Err(why) = checked
            && config.verify != Verify::None
        {
            return Err(self.forbidden(carrier, why));
        }
        self.counters.webhooks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn forbidden(&self, carrier: Carrier, why: &'static str) -> HttpAnswer {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%carrier, why, "a webhook was refused");
        HttpAnswer::http(403, "forbidden\n")
    }

    /// Whether no further call is taken.
    pub(super) fn is_full(&self) -> bool {
        *self.active.borrow() >= self.config.limits.calls || *self.draining.borrow() != Draining::No
    }

    /// An answer that connects a call with its stream, in TwiML; with a token, where tokens are used.
    pub(super) fn connect(
        &self,
        carrier: Carrier,
        call: Option<String>,
        parameters: &[(&str, &str)],
    ) -> Result<String, HttpAnswer> {
        let Some(wss) = self.public_stream(carrier) else {
            return Err(HttpAnswer::http(503, "no public_url is configured\n"));
        };
        let to = parameters.iter().find(|(name, _)| *name == "to").map(|(_, to)| *to);
        let token = self.token(call, to.unwrap_or_default())?;
        let token = token.as_deref().map(|token| ("token", token));
        let all: Vec<_> = token
            .into_iter()
            .chain(parameters.iter().copied())
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let config = self.config.carriers.get(&carrier);
        let secret = config.and_then(|config| config.secret.as_ref());
        let (codec, rate) = telnyx_output(config);
        let rate = rate.to_string();
        let attributes: Vec<(&str, &str)> = match (carrier, secret) {
            // Without the mode `rtp` nothing that is sent is heard, and without the codec it is noise
            // where the leg has another.
            (Carrier::Telnyx, _) => vec![
                ("bidirectionalMode", "rtp"),
                ("bidirectionalCodec", codec),
                ("bidirectionalSamplingRate", rate.as_str()),
            ],
            (Carrier::SignalWire, Some(secret)) => {
                vec![("authBearerToken", secret.expose_secret())]
            }
            _ => Vec::new(),
        };
        Ok(answer::connect_stream(&wss, &all, &attributes))
    }

    /// `to`: the number that is called, where it is known; its calls may be a tenant's, or an agent's.
    fn token(&self, call: Option<String>, to: &str) -> Result<Option<String>, HttpAnswer> {
        let Some(tokens) = &self.tokens else { return Ok(None) };
        let claims = Claims { call, ..self.config.claims_of(to) };
        match lock(tokens).mint(claims, unix(), Tokens::LIFETIME) {
            Ok(token) => Ok(Some(token)),
            Err(error) => {
                tracing::error!(%error, "no token");
                Err(HttpAnswer::http(500, "no token\n"))
            }
        }
    }

    /// How the carrier tells what became of a call that was handed on, if it does.
    pub(super) fn asks_how(&self, carrier: Carrier) -> Option<&'static str> {
        let config = self.config.carriers.get(&carrier)?;
        match carrier {
            Carrier::Twilio | Carrier::SignalWire => Some("dialled"),
            Carrier::Telnyx if config.public_key.is_some() => Some("events"),
            _ => None,
        }
    }

    /// An address of a carrier's at this bridge.
    pub(super) fn public_path(&self, carrier: Carrier, rest: Option<&str>) -> Option<String> {
        let origin = self.config.public_url.as_deref()?;
        Some(format!("{origin}{}{carrier}/{}", super::ROOT, rest?))
    }

    /// Twilio tells how a `<Dial>` ended, and asks how the call goes on: with the agent, where nobody was
    /// reached.
    fn dialled(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(refused) = self.signed(carrier, config, request) {
            return refused;
        }
        let xml = |body: String| HttpAnswer::http(200, body).header("content-type", "text/xml");
        let Some(call) = field(request, "CallSid") else {
            return HttpAnswer::http(400, "no CallSid\n");
        };
        let status = field(request, "DialCallStatus").unwrap_or_default();
        let key = (carrier, call);
        if matches!(&*status, "completed" | "answered") {
            self.tell(&key, News::Dialled(Ok(())));
            return xml(answer::hang_up().into());
        }
        let status: String =
            status.chars().filter(|c| c.is_ascii_lowercase() || *c == '-').collect();
        self.tell(&key, News::Dialled(Err(status.clone())));
        // Where the call is not held any more, another agent has to be told.
        match self.connect(carrier, Some(key.1), &[("transfer", &status)]) {
            Ok(body) => xml(body),
            Err(refused) => refused,
        }
    }

    /// Twilio tells who has answered a call that was made.
    fn machine(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(refused) = self.signed(carrier, config, request) {
            return refused;
        }
        let field = |name: &str| field(request, name).unwrap_or_default();
        let by = field("AnsweredBy");
        let who = match &*by {
            "human" => AnsweredBy::Person,
            "fax" => AnsweredBy::Fax,
            by if by.starts_with("machine") => AnsweredBy::Machine,
            _ => AnsweredBy::Unknown,
        };
        let waits = by.starts_with("machine_end");
        self.tell_answered_by(&(carrier, field("CallSid")), who, waits);
        HttpAnswer::http(204, "")
    }

    /// Twilio tells how a call that was made has ended: one that nobody answered leaves a record too.
    fn status(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(refused) = self.signed(carrier, config, request) {
            return refused;
        }
        let made = request.parameter(STATE).and_then(|state| Made::read(&state));
        let field = |name: &str| field(request, name).unwrap_or_default();
        let why = field("CallStatus");
        if let Some(made) = made
            && matches!(&*why, "completed" | "busy" | "no-answer" | "failed" | "canceled")
            && lock(&self.announced).is_new(&format!("status {}", field("CallSid")), unix())
        {
            // Nothing was talked where no length is told.
            self.settle(made, field("To"), field("CallDuration").parse().unwrap_or(0));
        }
        if matches!(&*why, "busy" | "no-answer" | "failed" | "canceled") {
            self.not_reached(carrier, &field("CallSid"), &field("From"), &field("To"), why);
        }
        HttpAnswer::http(204, "")
    }

    /// Sets what was taken for a call that was made to what it has cost.
    fn settle(&self, made: Made, to: String, seconds: u64) {
        let (Some(ledger), Some(config)) = (self.ledger.clone(), self.config.outbound.clone())
        else {
            return;
        };
        tokio::task::spawn_blocking(move || {
            if let Err(error) = made.settle(&*ledger, &config, &to, seconds) {
                tracing::error!(%error, "the ledger of calls");
            }
        });
    }

    fn not_reached(&self, carrier: Carrier, call: &str, from: &str, to: &str, why: String) {
        let mut record = CallRecord::new(carrier);
        record.named(call, Some(from), Some(to));
        record.ended(CallEnd::NotReached { why }, Duration::ZERO);
        self.record(record);
    }

    /// Asterisk's dialplan asks what to do with a caller whose socket was closed: the answer is the
    /// number to dial, or nothing. With `status` it tells how that ended.
    fn next(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        match &config.secret {
            Some(secret) => {
                let same = shown(request).is_some_and(|s| same_secret(secret.expose_secret(), &s));
                if !same {
                    return self.forbidden(carrier, "a wrong secret");
                }
            }
            None if !self.config.is_open() => {}
            None => return self.forbidden(carrier, "`next` needs `secret_env`"),
        }
        let parameter = |name: &str| request.parameter(name).map(|value| value.into_owned());
        let Some(mut call) = parameter("call") else { return HttpAnswer::http(400, "no call\n") };
        if carrier == Carrier::AudioSocket {
            call.make_ascii_lowercase();
        }
        self.counters.webhooks.fetch_add(1, Ordering::Relaxed);
        let key = (carrier, call);
        let text = |text: &str| HttpAnswer::http(200, text.to_owned());
        if let Some(status) = parameter("status") {
            let reached = status.eq_ignore_ascii_case("ANSWER");
            let status: String = status.chars().filter(char::is_ascii_alphanumeric).collect();
            let outcome = if reached { Ok(()) } else { Err(status.to_ascii_lowercase()) };
            let told = self.tell(&key, News::Dialled(outcome));
            return text(if told && !reached { "back" } else { "" });
        }
        let number = {
            let mut calls = lock(&self.calls);
            let held = calls.active.get_mut(&key);
            held.and_then(|held| match std::mem::replace(&mut held.line, Line::HandedOn) {
                Line::Offered { to } => Some(to),
                other => {
                    held.line = other;
                    None
                }
            })
        };
        let Some(number) = number else { return text("") };
        self.tell(&key, News::Ringing);
        text(&number)
    }

    /// Events of Telnyx's Call Control.
    fn events(self: &Arc<Self>, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(refused) = self.signed(Carrier::Telnyx, config, request) {
            return refused;
        }
        let Ok(Envelope { data }) = serde_json::from_slice(request.body()) else {
            return HttpAnswer::http(400, "no event\n");
        };
        if !lock(&self.announced).is_new(&data.id, unix()) {
            // Told twice, or by somebody who plays it again.
            return HttpAnswer::http(200, "");
        }
        let Payload {
            call_control_id: call,
            client_state,
            direction,
            hangup_cause,
            result,
            to,
            ..
        } = &data.payload;
        let key = (Carrier::Telnyx, call.clone());
        // The other leg of a call that is handed on names the call by its state.
        let state = client_state.as_deref().and_then(decoded).unwrap_or_default();
        let handed = state.strip_prefix(HANDED).map(|call| (Carrier::Telnyx, call.to_owned()));
        match &*data.event_type {
            "call.initiated" if direction.as_deref() == Some("incoming") => {
                self.answer_telnyx(config, key.1, to.as_deref().unwrap_or_default());
            }
            "call.bridged" => {
                self.tell(handed.as_ref().unwrap_or(&key), News::Dialled(Ok(())));
            }
            "call.hangup" => {
                let why = hangup_cause.as_deref().unwrap_or("not answered");
                let why: String = why.chars().take(64).collect();
                if let Some(call) = &handed {
                    self.tell(call, News::Dialled(Err(why)));
                } else if !self.tell(&key, News::Over)
                    && Made::read(&state).is_some()
                    && !lock(&self.announced).has_ended(&key, unix())
                {
                    let Payload { from, to, .. } = &data.payload;
                    let (from, to) = (from.as_deref(), to.as_deref());
                    let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
                    self.not_reached(Carrier::Telnyx, &key.1, from, to, why);
                }
            }
            "call.machine.detection.ended" => {
                let who = match result.as_deref() {
                    Some("human") => AnsweredBy::Person,
                    Some("machine") => AnsweredBy::Machine,
                    _ => AnsweredBy::Unknown,
                };
                self.tell_answered_by(&key, who, false);
            }
            "call.machine.greeting.ended" => {
                self.tell_answered_by(&key, AnsweredBy::Machine, true);
            }
            _ => {}
        }
        HttpAnswer::http(200, "")
    }

    /// Answers a call at Telnyx, with its stream. The carrier is asked beside the webhook's answer.
    fn answer_telnyx(self: &Arc<Self>, config: &CarrierConfig, call: String, to: &str) {
        let Some(carriers) = self.carriers.clone() else { return };
        let busy = self.is_full();
        let token = match config.verify {
            Verify::Secret => {
                config.secret.as_ref().map(|secret| secret.expose_secret().to_owned())
            }
            _ => match self.token(Some(call.clone()), to) {
                Ok(token) => token,
                Err(_) => return,
            },
        };
        let Some(url) = self.public_stream(Carrier::Telnyx) else { return };
        if busy {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
        }
        let order = StreamOrder::new(url, token, config.options.telnyx.output);
        tokio::spawn(async move {
            // It rings meanwhile.
            for pause in ANSWERING {
                tokio::time::sleep(pause).await;
                let result = match busy {
                    true => carriers.reject(Carrier::Telnyx, &call).await,
                    false => carriers.answer(Carrier::Telnyx, &call, &order).await,
                };
                let Err(error) = result else { return };
                tracing::warn!(%error, "a call at Telnyx was not answered");
                if !matches!(error, ControlError::TimedOut | ControlError::Unknown(_)) {
                    return;
                }
            }
        });
    }
}

/// The codec and rate of audio to callers at Telnyx, in its words.
fn telnyx_output(config: Option<&CarrierConfig>) -> (&'static str, u32) {
    match config.and_then(|config| config.options.telnyx.output) {
        None | Some(AudioFormat::Mulaw8k) => ("PCMU", 8_000),
        Some(AudioFormat::Alaw8k) => ("PCMA", 8_000),
        Some(format) => ("L16", format.sample_rate_hz()),
    }
}

/// A field of a form.
pub(super) fn field(request: &Request, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(request.body());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// A `client_state`.
fn decoded(state: &str) -> Option<String> {
    String::from_utf8(base64_simd::STANDARD.decode_to_vec(state).ok()?).ok()
}

#[derive(Deserialize)]
struct Envelope {
    data: Event,
}

#[derive(Deserialize)]
struct Event {
    id: String,
    event_type: String,
    payload: Payload,
}

#[derive(Deserialize)]
struct Payload {
    call_control_id: String,
    #[serde(default)]
    client_state: Option<String>,
    #[serde(default)]
    direction: Option<String>,
    #[serde(default)]
    hangup_cause: Option<String>,
    #[serde(default)]
    result: Option<String>,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    to: Option<String>,
}
