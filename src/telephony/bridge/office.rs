//! What the calls of a bridge share: who may call, how many there are, and what is left of them.

mod announced;
mod webhooks;

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::Write,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use antiphon_live::acceptor::{Answer as HttpAnswer, Request};
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio::sync::{
    mpsc::{self, error::TrySendError},
    watch,
};

use self::announced::{Announced, First};
use super::{
    BridgeError, CallAgent, CallEnd, CallRecord, Carriers, ControlError, HandedOn,
    control::Offers,
    news::{Back, Held, Line, News},
};
use crate::telephony::{
    answer,
    config::{BridgeConfig, CallLimits, CarrierConfig, Verify},
    dialect::{CallStart, Capabilities, Carrier, ControlBy, DialectError},
    numbers::is_allowed,
    outbound::{Detect, OnMachine, is_outbound},
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
    waiting: Mutex<Crowd>,
    announced: Mutex<Announced>,
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
    active: HashMap<(Carrier, String), Held>,
    tenants: HashMap<String, usize>,
}

#[derive(Debug, Default)]
struct Counters {
    refused: AtomicU64,
    busy: AtomicU64,
    streams: AtomicU64,
    answered: AtomicU64,
    ended: AtomicU64,
    unauthorized: AtomicU64,
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
    /// Calls that are over and have a record.
    pub ended: u64,
    /// Streams that never showed that they belong to a call. They have no record.
    pub unauthorized: u64,
    /// Webhooks that were answered.
    pub webhooks: u64,
    /// Records that could not be written.
    pub unrecorded: u64,
    /// Calls now.
    pub active: u64,
}

/// Streams that have not started.
#[derive(Default)]
struct Crowd {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place among the streams that have not started.
pub(super) struct Waiting {
    office: Arc<Office>,
    address: Option<IpAddr>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut crowd = lock(&self.office.waiting);
        crowd.all = crowd.all.saturating_sub(1);
        let Some(address) = self.address else { return };
        if let Some(here) = crowd.by_address.get_mut(&address) {
            *here = here.saturating_sub(1);
            if *here == 0 {
                crowd.by_address.remove(&address);
            }
        }
    }
}

/// Whether a stream's call may be held.
pub(super) enum Admitted {
    /// It may.
    Call(Admission),
    /// It is held already; this stream may go on with it.
    Held,
}

/// A call that may be held; ends with it.
pub(super) struct Admission {
    office: Arc<Office>,
    key: (Carrier, String),
    news: Option<mpsc::Receiver<News>>,
    pub(super) claims: Claims,
}

impl Admission {
    /// What is told to the call from elsewhere. Once.
    pub(super) fn news(&mut self) -> mpsc::Receiver<News> {
        self.news.take().unwrap_or_else(|| mpsc::channel(1).1)
    }
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
            waiting: Mutex::default(),
            announced: Mutex::default(),
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
            unauthorized: read(&self.counters.unauthorized),
            webhooks: read(&self.counters.webhooks),
            unrecorded: read(&self.counters.unrecorded),
            active: *self.active.borrow() as u64,
        }
    }

    /// What becomes of a request. Decided before anything costs anything.
    pub(super) fn gate(self: &Arc<Self>, request: &Request) -> HttpAnswer {
        let not_found = || HttpAnswer::http(404, "not here\n");
        let Some(path) = request.path().strip_prefix(ROOT) else { return not_found() };
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        // AudioSocket has a port of its own; its dialplan asks here all the same.
        let is_here = |carrier: &Carrier| *carrier != Carrier::AudioSocket || rest == "next";
        let carrier = name.parse().ok().filter(is_here);
        let Some((carrier, config)) =
            carrier.and_then(|carrier| Some((carrier, self.config.carriers.get(&carrier)?)))
        else {
            return not_found();
        };
        match (rest, request.method()) {
            ("", _) => self.stream(carrier, config, request),
            ("answer", "POST") => self.webhook(carrier, config, request),
            (rest, method) => self.ask(carrier, config, request, method, rest),
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
        if *self.active.borrow() >= self.config.limits.calls || self.is_crowded() {
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
            // A page in a browser of this machine is nobody's telephone.
            Verify::None if request.header("origin").is_some() => return Err("a browser"),
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
        if let Err(refused) = self.signed(carrier, config, request) {
            return refused;
        }
        let xml = |body: String| HttpAnswer::http(200, body).header("content-type", "text/xml");
        if self.is_full() {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return xml(answer::busy().into());
        }
        let field = |name: &str| webhooks::field(request, name);
        let (from, to) = (field("From").unwrap_or_default(), field("To").unwrap_or_default());
        let Some(call) = field("CallSid").filter(|call| !call.is_empty()) else {
            return HttpAnswer::http(400, "no CallSid\n");
        };
        let now = unix();
        let mut announced = lock(&self.announced);
        match announced.look(carrier, &call, now) {
            First::Yes => {}
            First::Again(answer) => return xml(answer),
            // Signatures have no time: somebody plays an old request again.
            First::No => return self.forbidden(carrier, "a call that was answered before"),
        }
        let parameters = [("from", &*from), ("to", &*to)];
        match self.connect(carrier, Some(call.clone()), &parameters) {
            Ok(body) if announced.answered(carrier, &call, &body, now) => xml(body),
            Ok(_) => xml(answer::busy().into()),
            Err(refused) => refused,
        }
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

    /// Whether no more streams can wait for their start.
    fn is_crowded(&self) -> bool {
        lock(&self.waiting).all >= self.config.limits.waiting
    }

    /// A place for a stream that has not started, if there is one.
    pub(super) fn wait(self: &Arc<Self>, address: Option<IpAddr>) -> Option<Waiting> {
        // A proxy's address, or this machine's, is everybody's.
        let address = address.filter(|address| !address.is_loopback());
        let mut crowd = lock(&self.waiting);
        let here = address.and_then(|address| crowd.by_address.get(&address)).copied();
        let limits = &self.config.limits;
        if crowd.all >= limits.waiting || here.unwrap_or(0) >= limits.waiting_per_address {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        crowd.all += 1;
        if let Some(address) = address {
            *crowd.by_address.entry(address).or_default() += 1;
        }
        Some(Waiting { office: self.clone(), address })
    }

    /// The account whose calls a carrier's streams must be of.
    pub(super) fn account_of(&self, carrier: Carrier) -> Option<&str> {
        self.config.carriers.get(&carrier)?.account_id.as_deref()
    }

    /// What is known of a call that shows no token.
    pub(super) fn claims_of(&self, start: &CallStart) -> Claims {
        let to = start.to.as_deref().unwrap_or_default();
        Claims { tenant: self.config.tenant_of(to), ..Claims::default() }
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
        start: &CallStart,
        claims: Claims,
    ) -> Result<Admitted, CallEnd> {
        let key = (carrier, start.call_id.clone());
        let mut calls = lock(&self.calls);
        if let Some(held) = calls.active.get(&key) {
            let takes = held.takes(start, claims.call.is_some());
            return if takes { Ok(Admitted::Held) } else { Err(CallEnd::SecondStream) };
        }
        if *self.draining.borrow() != Draining::No {
            return Err(CallEnd::Drained);
        }
        let limits = self.limits();
        let of_tenant = claims.tenant.as_ref().and_then(|tenant| calls.tenants.get(tenant));
        if calls.active.len() >= limits.calls
            || of_tenant.is_some_and(|count| *count >= limits.calls_per_tenant)
        {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return Err(CallEnd::Busy);
        }
        let (held, news) = Held::new(start);
        calls.active.insert(key.clone(), held);
        if let Some(tenant) = &claims.tenant {
            *calls.tenants.entry(tenant.clone()).or_default() += 1;
        }
        self.active.send_replace(calls.active.len());
        drop(calls);
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        Ok(Admitted::Call(Admission { office: self.clone(), key, news: Some(news), claims }))
    }

    /// Has a call that is held go on with another stream; where it does not take it, the stream ends.
    pub(super) async fn passed_on(
        &self,
        back: Back,
        named: bool,
        mut record: CallRecord,
        age: Duration,
    ) {
        let key = (back.dialect.carrier(), back.start.call_id.clone());
        let taker = {
            let calls = lock(&self.calls);
            let held = calls.active.get(&key).filter(|held| held.takes(&back.start, named));
            held.map(|held| held.news.clone())
        };
        let link = match taker {
            Some(news) => match news.try_send(News::Back(Box::new(back))) {
                Ok(()) => {
                    self.counters.ended.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                Err(
                    TrySendError::Full(News::Back(back)) | TrySendError::Closed(News::Back(back)),
                ) => Some(back.link),
                Err(_) => None,
            },
            None => Some(back.link),
        };
        // It ended, or came back otherwise, in this moment.
        let end = CallEnd::SecondStream;
        if let Some(link) = link {
            link.close(end.close_code(), end.words()).await;
        }
        record.ended(end, age);
        self.record(record);
    }

    /// Tells a call something. Whether it is held here, and can be told.
    pub(super) fn tell(&self, key: &(Carrier, String), news: News) -> bool {
        let to = lock(&self.calls).active.get(key).map(|held| held.news.clone());
        to.is_some_and(|to| to.try_send(news).is_ok())
    }

    /// Notes whether a call has a stream.
    pub(super) fn set_line(&self, key: &(Carrier, String), line: Line) {
        if let Some(held) = lock(&self.calls).active.get_mut(key) {
            held.line = line;
        }
    }

    /// Whether the dialplan has still to ask for the number that a call is handed on to.
    pub(super) fn is_offered(&self, key: &(Carrier, String)) -> bool {
        let calls = lock(&self.calls);
        calls.active.get(key).is_some_and(|held| matches!(held.line, Line::Offered { .. }))
    }

    /// What can be done to a call.
    pub(super) fn offers(&self, carrier: Carrier, able: &Capabilities) -> Offers {
        let handles = self.carriers.as_ref().is_some_and(|all| all.handles(carrier));
        let can = |by: ControlBy| match by {
            ControlBy::Message | ControlBy::Closing => true,
            ControlBy::Rest => handles,
            ControlBy::Nothing => false,
        };
        Offers {
            transfer: can(able.transfer) && !self.config.transfer_allow.is_empty(),
            // Elsewhere than at Telnyx they end the stream, which is told by TwiML how to come back.
            keys: can(able.digits_out)
                && (able.digits_out == ControlBy::Message
                    || carrier == Carrier::Telnyx
                    || self.public_stream(carrier).is_some()),
        }
    }

    /// Whether and how it is found out who has answered a call: only of those that were made.
    pub(super) fn detects(&self, start: &CallStart, carrier: Carrier) -> Option<Detect> {
        let detect = self.config.outbound.as_ref()?.detect;
        let made = is_outbound(carrier, |name| start.parameters.get(name).cloned());
        (made && detect != Detect::Off).then_some(detect)
    }

    /// What is done when a machine answers.
    pub(super) fn on_machine(&self) -> OnMachine {
        let outbound = self.config.outbound.as_ref();
        outbound.map(|outbound| outbound.on_machine.clone()).unwrap_or_default()
    }

    /// Whether a call may be handed on to a number.
    pub(super) fn may_hand_on(
        &self,
        carrier: Carrier,
        able: &Capabilities,
        to: &str,
    ) -> Result<(), ControlError> {
        if !is_allowed(to, &self.config.transfer_allow) {
            return Err(ControlError::NotAllowed);
        }
        if !self.offers(carrier, able).transfer {
            return Err(ControlError::Unsupported(DialectError::Unsupported("handing on")));
        }
        Ok(())
    }

    pub(super) fn record(&self, record: CallRecord) {
        if !record.authorised {
            // Strangers fill no disk.
            self.counters.unauthorized.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(carrier = record.carrier, why = record.end.words(), "no call");
            return;
        }
        self.counters.ended.fetch_add(1, Ordering::Relaxed);
        if let Some(file) = &self.records {
            let written = serde_json::to_string(&record)
                .map_err(std::io::Error::other)
                .and_then(|line| writeln!(lock(file), "{line}"));
            if let Err(error) = written {
                self.counters.unrecorded.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "a call was not recorded");
            }
        }
        if let Some(on_record) = &self.on_record {
            on_record(&record);
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
    ) -> Result<HandedOn, ControlError> {
        let action = self.public_path(carrier, self.asks_how(carrier));
        self.rest("handing on")?.transfer(carrier, &start.call_id, to, action.as_deref()).await
    }

    pub(super) async fn send_digits(
        &self,
        carrier: Carrier,
        start: &CallStart,
        digits: &str,
    ) -> Result<(), ControlError> {
        let call = Some(start.call_id.clone());
        let then = self.public_stream(carrier).and_then(|_| self.connect(carrier, call, &[]).ok());
        self.rest("keys")?.send_digits(carrier, &start.call_id, digits, then.as_deref()).await
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

fn unix() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are left behind by a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
