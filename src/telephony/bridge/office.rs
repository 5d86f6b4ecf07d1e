//! What the calls of a bridge share: who may call, how many there are, and what is left of them.

use std::{
    collections::{HashMap, HashSet},
    fs::{File, OpenOptions},
    io::Write,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use antiphon_live::acceptor::{Answer as HttpAnswer, Request};
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio::sync::watch;

use super::{BridgeError, CallAgent, CallEnd, CallRecord, Carriers, ControlError};
use crate::telephony::{
    answer,
    config::{BridgeConfig, CallLimits, CarrierConfig, Verify},
    dialect::{CallStart, Carrier, DialectError},
    signature::{Signed, TwilioSignature, same_secret},
    token::{Claims, TokenError, Tokens},
};

/// Where carriers find the bridge.
const ROOT: &str = "/telephony/";

/// Is told of each call that is over.
pub(super) type OnRecord = Box<dyn Fn(&CallRecord) + Send + Sync>;

pub(super) struct Office {
    config: BridgeConfig,
    agent: Arc<dyn CallAgent>,
    carriers: Option<Arc<dyn Carriers>>,
    tokens: Option<Mutex<Tokens>>,
    calls: Mutex<Calls>,
    records: Option<Mutex<File>>,
    on_record: Option<OnRecord>,
    counters: Counters,
    active: watch::Sender<usize>,
    draining: watch::Sender<Draining>,
}

/// How far the end of the bridge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    /// No new calls.
    Closed,
    /// No calls at all.
    Over,
}

#[derive(Debug, Default)]
struct Calls {
    active: HashSet<(Carrier, String)>,
    tenants: HashMap<String, usize>,
}

#[derive(Debug, Default)]
struct Counters {
    refused: AtomicU64,
    busy: AtomicU64,
    streams: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    webhooks: AtomicU64,
    unrecorded: AtomicU64,
}

/// Counters of a bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BridgeStats {
    /// Requests that were refused for want of a signature, a token or a secret.
    pub refused: u64,
    /// Calls that were turned away because there were too many.
    pub busy: u64,
    /// Streams that were opened.
    pub streams: u64,
    /// Calls for which a session was opened.
    pub answered: u64,
    /// Streams that are over.
    pub ended: u64,
    /// Webhooks that were answered.
    pub webhooks: u64,
    /// Records that could not be written.
    pub unrecorded: u64,
    /// Calls now.
    pub active: u64,
}

/// A call that may be held; ends with it.
pub(super) struct Admission {
    office: Arc<Office>,
    key: (Carrier, String),
    pub(super) claims: Claims,
}

impl Office {
    pub(super) fn new(
        config: BridgeConfig,
        agent: Arc<dyn CallAgent>,
        carriers: Option<Arc<dyn Carriers>>,
        on_record: Option<OnRecord>,
    ) -> Result<Self, BridgeError> {
        let tokens = config.token_secret.as_ref().map(Tokens::new).transpose()?;
        let records = match &config.records {
            Some(path) => {
                let file = OpenOptions::new().append(true).create(true).open(path);
                Some(Mutex::new(file.map_err(|error| BridgeError::Records(error.to_string()))?))
            }
            None => None,
        };
        Ok(Self {
            config,
            agent,
            carriers,
            tokens: tokens.map(Mutex::new),
            calls: Mutex::default(),
            records,
            on_record,
            counters: Counters::default(),
            active: watch::Sender::new(0),
            draining: watch::Sender::new(Draining::No),
        })
    }

    pub(super) fn config(&self) -> &BridgeConfig {
        &self.config
    }

    pub(super) fn limits(&self) -> &CallLimits {
        &self.config.limits
    }

    pub(super) fn agent(&self) -> &dyn CallAgent {
        &*self.agent
    }

    pub(super) fn stats(&self) -> BridgeStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BridgeStats {
            refused: read(&self.counters.refused),
            busy: read(&self.counters.busy),
            streams: read(&self.counters.streams),
            answered: read(&self.counters.answered),
            ended: read(&self.counters.ended),
            webhooks: read(&self.counters.webhooks),
            unrecorded: read(&self.counters.unrecorded),
            active: *self.active.borrow() as u64,
        }
    }

    /// What becomes of a request. Decided before anything costs anything.
    pub(super) fn gate(&self, request: &Request) -> HttpAnswer {
        let not_found = || HttpAnswer::http(404, "not here\n");
        let Some(path) = request.path().strip_prefix(ROOT) else { return not_found() };
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let carrier = name.parse().ok().filter(|carrier| *carrier != Carrier::AudioSocket);
        let Some((carrier, config)) =
            carrier.and_then(|carrier| Some((carrier, self.config.carriers.get(&carrier)?)))
        else {
            return not_found();
        };
        match rest {
            "" => self.stream(carrier, config, request),
            "answer" if request.method() == "POST" => self.webhook(carrier, config, request),
            _ => not_found(),
        }
    }

    fn stream(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(why) = self.may_open(carrier, config, request) {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%carrier, why, "a stream was refused");
            return HttpAnswer::http(403, "forbidden\n");
        }
        if *self.draining.borrow() != Draining::No {
            return HttpAnswer::http(503, "stopping\n").header("retry-after", "10");
        }
        if *self.active.borrow() >= self.config.limits.calls {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return HttpAnswer::http(503, "too many calls\n").header("retry-after", "5");
        }
        match carrier {
            Carrier::Asterisk => HttpAnswer::upgrade_as("media"),
            _ => HttpAnswer::upgrade(),
        }
    }

    fn may_open(
        &self,
        carrier: Carrier,
        config: &CarrierConfig,
        request: &Request,
    ) -> Result<(), &'static str> {
        if config.verify.signature() {
            let url = self.public(request, "ws").ok_or("no public address")?;
            self.check_signature(config, request, Signed::get(&url))?;
        }
        match config.verify {
            Verify::Secret => {
                let secret = config.secret.as_ref().ok_or("no secret is set")?;
                let shown = shown(request).ok_or("no secret")?;
                if !same_secret(secret.expose_secret(), &shown) {
                    return Err("a wrong secret");
                }
            }
            Verify::Token | Verify::SignatureAndToken => match shown(request) {
                Some(token) => {
                    self.peek_token(&token).map_err(|_| "a token that is not good")?;
                }
                // It comes with the start; Asterisk has no other place for it.
                None if carrier == Carrier::Asterisk => return Err("no token"),
                None => {}
            },
            Verify::Signature | Verify::None => {}
        }
        Ok(())
    }

    fn check_signature(
        &self,
        config: &CarrierConfig,
        request: &Request,
        signed: Signed<'_>,
    ) -> Result<(), &'static str> {
        let token = config.auth_token.clone().ok_or("no auth token is set")?;
        let mut checker = TwilioSignature::new(token);
        if let Some(key) = &config.shared_key {
            checker = checker.shared_key(key.clone());
        }
        let signature = request
            .header("x-twilio-signature")
            .or_else(|| request.header("x-signalwire-signature"));
        let settings = request.header("x-twilio-webhooks-signature-settings");
        checker.check(signed, signature, settings).map_err(|_| "a wrong signature")
    }

    /// The answer to a carrier that asks what to do with a call.
    fn webhook(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        let (https, wss) = (self.public(request, "http"), self.public_stream(carrier));
        let (Some(https), Some(wss)) = (https, wss) else {
            return HttpAnswer::http(503, "no public_url is configured\n");
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
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%carrier, why, "a webhook was refused");
            return HttpAnswer::http(403, "forbidden\n");
        }
        self.counters.webhooks.fetch_add(1, Ordering::Relaxed);
        let xml = |body: String| HttpAnswer::http(200, body).header("content-type", "text/xml");
        if *self.active.borrow() >= self.config.limits.calls
            || *self.draining.borrow() != Draining::No
        {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return xml(answer::busy().into());
        }
        let field = |name: &str| {
            let pairs = form_urlencoded::parse(request.body());
            pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        let (from, to) = (field("From").unwrap_or_default(), field("To").unwrap_or_default());
        let token = match &self.tokens {
            Some(tokens) => {
                let claims = Claims { call: field("CallSid"), ..Claims::default() };
                match lock(tokens).mint(claims, unix(), Tokens::LIFETIME) {
                    Ok(token) => token,
                    Err(error) => {
                        tracing::error!(%error, "no token");
                        return HttpAnswer::http(500, "no token\n");
                    }
                }
            }
            None => String::new(),
        };
        let all = [("token", &*token), ("from", &*from), ("to", &*to)];
        let parameters: Vec<_> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
        let attributes: &[(&str, &str)] = match carrier {
            Carrier::Telnyx => &[("bidirectionalMode", "rtp")],
            _ => &[],
        };
        xml(answer::connect_stream(&wss, &parameters, attributes))
    }

    /// The public address of a request; `scheme` is `http` or `ws`.
    fn public(&self, request: &Request, scheme: &str) -> Option<String> {
        let (secure, host) = self.config.public_url.as_deref()?.split_once("://")?;
        let s = if secure == "https" { "s" } else { "" };
        let query = request.query().map(|query| format!("?{query}")).unwrap_or_default();
        Some(format!("{scheme}{s}://{host}{}{query}", request.path()))
    }

    fn public_stream(&self, carrier: Carrier) -> Option<String> {
        let (secure, host) = self.config.public_url.as_deref()?.split_once("://")?;
        let s = if secure == "https" { "s" } else { "" };
        Some(format!("ws{s}://{host}{ROOT}{carrier}"))
    }

    pub(super) fn peek_token(&self, token: &str) -> Result<Claims, TokenError> {
        let tokens = self.tokens.as_ref().ok_or(TokenError::Wrong)?;
        lock(tokens).peek(token, unix())
    }

    pub(super) fn take_token(&self, token: &str, call_id: &str) -> Result<Claims, TokenError> {
        let tokens = self.tokens.as_ref().ok_or(TokenError::Wrong)?;
        lock(tokens).take(token, call_id, unix())
    }

    pub(super) fn opened(&self) {
        self.counters.streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a call that has begun may go on.
    pub(super) fn admit(
        self: &Arc<Self>,
        carrier: Carrier,
        call_id: &str,
        claims: Claims,
    ) -> Result<Admission, CallEnd> {
        let key = (carrier, call_id.to_owned());
        let mut calls = lock(&self.calls);
        if calls.active.contains(&key) {
            return Err(CallEnd::SecondStream);
        }
        let limits = self.limits();
        let of_tenant = claims.tenant.as_ref().and_then(|tenant| calls.tenants.get(tenant));
        if calls.active.len() >= limits.calls
            || of_tenant.is_some_and(|count| *count >= limits.calls_per_tenant)
        {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return Err(CallEnd::Busy);
        }
        calls.active.insert(key.clone());
        if let Some(tenant) = &claims.tenant {
            *calls.tenants.entry(tenant.clone()).or_default() += 1;
        }
        self.active.send_replace(calls.active.len());
        drop(calls);
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        Ok(Admission { office: self.clone(), key, claims })
    }

    pub(super) fn record(&self, record: CallRecord) {
        self.counters.ended.fetch_add(1, Ordering::Relaxed);
        if let Some(on_record) = &self.on_record {
            on_record(&record);
        }
        let Some(file) = &self.records else { return };
        let written = serde_json::to_string(&record)
            .map_err(std::io::Error::other)
            .and_then(|line| writeln!(lock(file), "{line}"));
        if let Err(error) = written {
            self.counters.unrecorded.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "a call was not recorded");
        }
    }

    pub(super) async fn hang_up(
        &self,
        carrier: Carrier,
        call_id: &str,
    ) -> Result<(), ControlError> {
        self.rest("hanging up")?.hang_up(carrier, call_id).await
    }

    pub(super) async fn transfer(
        &self,
        carrier: Carrier,
        start: &CallStart,
        to: &str,
    ) -> Result<(), ControlError> {
        if !is_number(to) {
            return Err(ControlError::NotAllowed);
        }
        self.rest("handing on")?.transfer(carrier, &start.call_id, to).await
    }

    pub(super) async fn send_digits(
        &self,
        carrier: Carrier,
        start: &CallStart,
        digits: &str,
    ) -> Result<(), ControlError> {
        self.rest("keys")?.send_digits(carrier, &start.call_id, digits).await
    }

    fn rest(&self, what: &'static str) -> Result<&dyn Carriers, ControlError> {
        self.carriers.as_deref().ok_or(ControlError::Unsupported(DialectError::Unsupported(what)))
    }

    /// No new calls.
    pub(super) fn close(&self) {
        self.draining.send_replace(Draining::Closed);
    }

    /// No calls at all.
    pub(super) fn end(&self) {
        self.draining.send_replace(Draining::Over);
    }

    /// Returns when no call may go on.
    pub(super) async fn drained(&self) {
        let mut draining = self.draining.subscribe();
        if draining.wait_for(|now| *now == Draining::Over).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut calls = lock(&self.office.calls);
        calls.active.remove(&self.key);
        if let Some(tenant) = &self.claims.tenant
            && let Some(count) = calls.tenants.get_mut(tenant)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                calls.tenants.remove(tenant);
            }
        }
        self.office.active.send_replace(calls.active.len());
    }
}

/// What a request shows: a bearer token, Telnyx's header, or the parameter `token`.
pub(super) fn shown(request: &Request) -> Option<String> {
    let header = request.bearer().or_else(|| request.header("x-telnyx-streaming-auth-token"));
    let shown = header.map(str::to_owned);
    shown.or_else(|| request.parameter("token").map(|token| token.into_owned()))
}

/// Whether it is a number as E.164 writes it.
pub(super) fn is_number(to: &str) -> bool {
    let digits = to.strip_prefix('+').unwrap_or_default();
    (4..=15).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
}

fn unix() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are left behind by a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
