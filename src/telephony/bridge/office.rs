//! What the calls of a bridge share: who may call, how many there are, and what is left of them.

mod announced;
mod gate;
mod records;
mod waiting;
mod webhooks;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::Serialize;
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        watch,
    },
    time::timeout,
};

use self::{announced::Announced, records::Records, waiting::Crowd};
pub(super) use self::{gate::shown, waiting::Waiting};
use super::{
    AnsweredBy, BridgeError, CallAgent, CallEnd, CallRecord, Carriers, ControlError, HandedOn,
    control::Offers,
    news::{Back, Held, Line, News},
};
use crate::{
    policy::LimitStore,
    telephony::{
        config::{BridgeConfig, CallLimits},
        dialect::{CallStart, Capabilities, Carrier, ControlBy, DialectError},
        numbers::is_allowed,
        outbound::{Detect, OnMachine, is_outbound},
        token::{Claims, TokenError, Tokens},
    },
};

/// Where carriers find the bridge.
const ROOT: &str = "/telephony/";
/// A carrier that is asked to end a call has so long.
const HANG_UP: Duration = Duration::from_secs(8);
/// One that did not is asked again after each of these.
const INSIST: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20)];

/// Is told of each call that is over.
pub(super) type OnRecord = Box<dyn Fn(&CallRecord) + Send + Sync>;

pub(super) struct Office {
    config: BridgeConfig,
    agent: Arc<dyn CallAgent>,
    carriers: Option<Arc<dyn Carriers>>,
    ledger: Option<Arc<dyn LimitStore>>,
    tokens: Option<Mutex<Tokens>>,
    calls: Mutex<Calls>,
    records: Option<Records>,
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
    unrecorded: Arc<AtomicU64>,
    not_hung_up: AtomicU64,
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
    /// Calls that the carrier was asked to end, and has not: they may stand, and cost.
    pub not_hung_up: u64,
    /// Calls now.
    pub active: u64,
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
        ledger: Option<Arc<dyn LimitStore>>,
        on_record: Option<OnRecord>,
    ) -> Result<Self, BridgeError> {
        let tokens = config.token_secret.as_ref().map(Tokens::new).transpose()?;
        let counters = Counters::default();
        let records = match &config.records {
            Some(path) => {
                let records = Records::open(path, counters.unrecorded.clone());
                Some(records.map_err(|error| BridgeError::Records(error.to_string()))?)
            }
            None => None,
        };
        Ok(Self {
            config,
            agent,
            carriers,
            ledger,
            tokens: tokens.map(Mutex::new),
            calls: Mutex::default(),
            records,
            on_record,
            waiting: Mutex::default(),
            announced: Mutex::default(),
            counters,
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
            not_hung_up: read(&self.counters.not_hung_up),
            active: *self.active.borrow() as u64,
        }
    }

    /// The account whose calls a carrier's streams must be of.
    pub(super) fn account_of(&self, carrier: Carrier) -> Option<&str> {
        self.config.carriers.get(&carrier)?.account_id.as_deref()
    }

    /// What is known of a call that shows no token.
    pub(super) fn claims_of(&self, start: &CallStart) -> Claims {
        self.config.claims_of(start.to.as_deref().unwrap_or_default())
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

    /// What the carrier has told of a call before its stream began.
    pub(super) fn told_early(&self, key: &(Carrier, String)) -> Option<(AnsweredBy, bool)> {
        lock(&self.announced).answered_by(key, unix())
    }

    /// Tells a call who has answered it, now or once it is held.
    fn tell_answered_by(&self, key: &(Carrier, String), who: AnsweredBy, waits: bool) {
        if !self.tell(key, News::AnsweredBy { who, waits }) {
            lock(&self.announced).keep_answered_by(key, who, waits, unix());
        }
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
            ControlBy::Message => true,
            // The dialplan asks for the number, and must be known by something.
            ControlBy::Closing => !self.config.is_open() || self.config.has_secret(carrier),
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
        if let Some(records) = &self.records {
            records.write(&record);
        }
        if let Some(on_record) = &self.on_record {
            on_record(&record);
        }
    }

    /// Whether a carrier can be asked for things.
    pub(super) fn asks(&self, carrier: Carrier) -> bool {
        self.carriers.as_ref().is_some_and(|all| all.handles(carrier))
    }

    /// Has the carrier end a call; whether it is over, or nothing more can be done about it.
    pub(super) async fn hang_up(&self, carrier: Carrier, call_id: &str) -> bool {
        let result = match self.rest("hanging up") {
            Ok(carriers) => timeout(HANG_UP, carriers.hang_up(carrier, call_id)).await,
            Err(error) => Ok(Err(error)),
        };
        match result {
            Ok(Ok(())) => true,
            // The configuration names no account, which it may only where nobody else can connect.
            Ok(Err(ControlError::Unsupported(_))) => true,
            Ok(Err(error @ (ControlError::TimedOut | ControlError::Unknown(_)))) => {
                tracing::warn!(%carrier, %error, "not hung up");
                false
            }
            Ok(Err(error)) => {
                tracing::error!(%carrier, %error, "not hung up");
                self.counters.not_hung_up.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(_) => {
                tracing::warn!(%carrier, "not hung up in time");
                false
            }
        }
    }

    /// Asks a carrier again that did not end a call: it would stand, and cost.
    pub(super) async fn insist(&self, carrier: Carrier, call_id: &str) {
        for pause in INSIST {
            tokio::time::sleep(pause).await;
            if self.hang_up(carrier, call_id).await {
                return;
            }
        }
        tracing::error!(%carrier, "a call was not hung up");
        self.counters.not_hung_up.fetch_add(1, Ordering::Relaxed);
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

    /// Returns when what was recorded is in its file.
    pub(super) async fn flush(&self) {
        if let Some(records) = &self.records {
            records.flush().await;
        }
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
        lock(&self.office.announced).ended(&self.key, unix());
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

fn unix() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole values are left behind by a panic elsewhere.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
