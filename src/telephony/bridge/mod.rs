//! The bridge: it listens, and makes an agent's session of each call.
//!
//! Carriers connect to `/telephony/{carrier}`, and ask at `/telephony/{carrier}/answer` what to do with
//! a call. What a request must show is checked before the upgrade, and the rest with the first message,
//! before an agent is asked or a provider opened. Each call is one task: it moves frames between socket
//! and session, keeps their time, and leaves a [`CallRecord`].

mod call;
mod control;
mod keys;
mod link;
mod news;
mod office;
mod record;
mod transfer;
mod voice;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use antiphon_live::{
    LiveConfig, Transport,
    acceptor::{Accepted, Acceptor, AcceptorOptions, Listener, Request},
};
use async_trait::async_trait;
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use self::{
    call::Call,
    link::Link,
    office::{Office, OnRecord, Waiting},
};
use super::{
    config::{AgentConfig, BridgeConfig, Keys, Verify},
    dialect::{CallStart, Carrier, DialectError, dialect},
    outbound::OnMachine,
    rest::StreamOrder,
    token::TokenError,
};
use crate::{
    policy::LimitStore,
    session::{IdleConfig, SessionBuilder, SessionLimits, UserAudio},
};

pub use self::{
    control::{CallControl, ControlError, call_tools},
    news::AnsweredBy,
    office::BridgeStats,
    record::{CallEnd, CallRecord},
};

/// Connections whose handshake goes on, at most.
const MAX_HANDSHAKES: usize = 4_096;
/// After its time a call has so long to end: longer than hanging up, and its session, take.
const LAST: Duration = Duration::from_secs(20);
/// A peer that is gone is noticed after so long, also where nothing has to be sent.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_EVERY: Duration = Duration::from_secs(5);
const DEAD_AFTER: Duration = Duration::from_secs(20);
/// What an upgrade's address may say of a call: so many parameters, of so many bytes each.
const MAX_PARAMETERS: usize = 32;
const MAX_PARAMETER: usize = 512;

/// Who answers calls.
#[async_trait]
pub trait CallAgent: Send + Sync + 'static {
    /// Answers a call. What the session needs to be a call (where its voice goes, who calls, how long
    /// it may last) is added by the bridge. Tools of the call are made with
    /// [`call_tools`]: give each call a registry of its own.
    async fn answer(&self, call: &IncomingCall) -> Result<Answer, AnswerError>;

    /// It was found out who has answered a call that was made, where the configuration has that found
    /// out: [`Detect`](super::outbound::Detect). What is done when it is a machine; `None`: what the
    /// configuration says. It must not wait: the call does.
    fn answered_by(&self, call: &IncomingCall, who: AnsweredBy) -> Option<OnMachine> {
        let _ = (call, who);
        None
    }
}

/// A call that waits for an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IncomingCall {
    /// The carrier.
    pub carrier: Carrier,
    /// What is known of it: the word of the carrier, and of the caller.
    pub start: CallStart,
    /// Whose call it is, by its token.
    pub tenant: Option<String>,
    /// Who is to answer, by its token.
    pub agent: Option<String>,
    /// Handles the call.
    pub control: CallControl,
}

/// An agent that answers.
#[non_exhaustive]
pub struct Answer {
    /// The session.
    pub builder: SessionBuilder,
    /// The configuration of its provider.
    pub config: LiveConfig,
    /// Its idle timers.
    pub idle: IdleConfig,
    /// Its bounds; those of the bridge count too.
    pub limits: SessionLimits,
    /// What it says first.
    pub greeting: Option<String>,
    /// The caller does not interrupt that, and this becomes of what is said meanwhile.
    pub protect_greeting: Option<UserAudio>,
    /// What becomes of keys that no tool waits for.
    pub keys: Keys,
    /// Keys stop its speech, unless it is protected.
    pub keys_interrupt: bool,
    /// No key is told to the model, and each field that a tool waits for is secret.
    pub keys_secret: bool,
    /// The model is told of keys when no further one came for so long.
    pub keys_between: Duration,
}

impl Answer {
    /// An agent that waits for the caller to speak.
    pub fn new(builder: SessionBuilder, config: LiveConfig) -> Self {
        Self {
            builder,
            config,
            idle: IdleConfig::default(),
            limits: SessionLimits::default(),
            greeting: None,
            protect_greeting: None,
            keys: Keys::default(),
            keys_interrupt: true,
            keys_secret: false,
            keys_between: Duration::from_millis(1_500),
        }
    }

    /// Sets what it says first.
    pub fn greeting(mut self, greeting: impl Into<String>) -> Self {
        self.greeting = Some(greeting.into());
        self
    }

    /// Sets what a configuration says of the agent.
    pub fn configured(mut self, agent: &AgentConfig) -> Self {
        self.greeting.clone_from(&agent.greeting);
        self.protect_greeting = agent.greeting_protected.then_some(UserAudio::Drop);
        self.keys = agent.keys;
        self.keys_interrupt = agent.keys_interrupt;
        self.keys_secret = agent.keys_secret;
        self.keys_between = Duration::from_millis(agent.keys_between_ms.clamp(200, 30_000));
        self
    }
}

/// Why a call is not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AnswerError(pub String);

/// What carriers do by their HTTP interfaces.
#[async_trait]
pub trait Carriers: Send + Sync + 'static {
    /// Whether calls of this carrier can be handled so. By default all can.
    fn handles(&self, carrier: Carrier) -> bool {
        let _ = carrier;
        true
    }

    /// Answers a call with a stream, where the carrier waits to be told.
    async fn answer(
        &self,
        carrier: Carrier,
        call_id: &str,
        stream: &StreamOrder,
    ) -> Result<(), ControlError> {
        let _ = (carrier, call_id, stream);
        Err(ControlError::Unsupported(DialectError::Unsupported("to be answered")))
    }

    /// Turns a call away as busy, where the carrier waits to be told.
    async fn reject(&self, carrier: Carrier, call_id: &str) -> Result<(), ControlError> {
        self.hang_up(carrier, call_id).await
    }

    /// Ends a call. One that is over already is fine.
    async fn hang_up(&self, carrier: Carrier, call_id: &str) -> Result<(), ControlError>;

    /// Hands a call on to a number, which the configuration allows. `action` is an address that the
    /// carrier is to ask how that ended, where there is one.
    async fn transfer(
        &self,
        carrier: Carrier,
        call_id: &str,
        to: &str,
        action: Option<&str>,
    ) -> Result<HandedOn, ControlError>;

    /// Presses keys. Where that ends the stream, `then` is what the call goes on with, in TwiML.
    async fn send_digits(
        &self,
        carrier: Carrier,
        call_id: &str,
        digits: &str,
        then: Option<&str>,
    ) -> Result<(), ControlError>;
}

/// What became of a call that a carrier was told to hand on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HandedOn {
    /// Nothing more will be heard of it.
    Gone,
    /// The number rings, and the bridge is told how that ends.
    Ringing,
}

/// A bridge that is not listening yet.
pub struct Bridge {
    config: BridgeConfig,
    agent: Arc<dyn CallAgent>,
    carriers: Option<Arc<dyn Carriers>>,
    ledger: Option<Arc<dyn LimitStore>>,
    on_record: Option<OnRecord>,
}

impl Bridge {
    /// A bridge whose calls `agent` answers.
    pub fn new(config: BridgeConfig, agent: impl CallAgent) -> Self {
        Self { config, agent: Arc::new(agent), carriers: None, ledger: None, on_record: None }
    }

    /// Hangs up, hands on and presses keys by these, where a carrier wants it so.
    pub fn carriers(mut self, carriers: impl Carriers) -> Self {
        self.carriers = Some(Arc::new(carriers));
        self
    }

    /// What calls that are made have taken from the limits of a day: once Twilio tells how long one was, it
    /// is set to what the call has cost. The same limits as [`Outbound`](super::outbound::Outbound) has.
    pub fn ledger(mut self, ledger: Arc<dyn LimitStore>) -> Self {
        self.ledger = Some(ledger);
        self
    }

    /// Has `on_record` called with the record of each call; it must not wait.
    pub fn on_record(mut self, on_record: impl Fn(&CallRecord) + Send + Sync + 'static) -> Self {
        self.on_record = Some(Box::new(on_record));
        self
    }

    /// A bridge without ports of its own: a host that serves HTTP itself gives it the connections for
    /// `/telephony/`, and those of AudioSocket, by the handle.
    pub fn open(self) -> Result<BridgeHandle, BridgeError> {
        let office = self.office()?;
        Ok(BridgeHandle(Arc::new(office)))
    }

    fn office(self) -> Result<Office, BridgeError> {
        let Self { config, agent, carriers, ledger, on_record } = self;
        Office::new(config, agent, carriers, ledger, on_record)
    }

    /// Takes the addresses.
    pub async fn bind(self) -> Result<BoundBridge, BridgeError> {
        let bind = |address: SocketAddr| {
            move |error: io::Error| BridgeError::Bind { address, message: error.to_string() }
        };
        let listen = self.config.listen;
        let web = Listener::bind(listen, acceptor()).await.map_err(bind(listen))?;
        let tcp = match self.config.audiosocket {
            Some(address) => Some(TcpListener::bind(address).await.map_err(bind(address))?),
            None => None,
        };
        let office = self.office()?;
        Ok(BoundBridge { office: Arc::new(office), web, tcp })
    }
}

/// A bridge that listens.
pub struct BoundBridge {
    office: Arc<Office>,
    web: Listener,
    tcp: Option<TcpListener>,
}

/// Looks at a bridge while it runs.
#[derive(Clone)]
pub struct BridgeHandle(Arc<Office>);

impl BridgeHandle {
    /// Counters so far.
    pub fn stats(&self) -> BridgeStats {
        self.0.stats()
    }

    /// Serves a connection over which HTTP is spoken: answers its request, or holds the call of the
    /// WebSocket that it becomes. Returns when that is over.
    pub async fn serve(&self, stream: Box<dyn Transport>) {
        let office = self.0.clone();
        let gate = {
            let office = office.clone();
            move |request: &Request| office.gate(request)
        };
        match acceptor().accept(stream, &gate).await {
            Ok(Some(accepted)) => {
                if let Some(waiting) = office.wait(None)
                    && let Some(call) = call_of(office, accepted, waiting)
                {
                    call.run().await;
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "not upgraded"),
        }
    }

    /// Holds the call of a connection over which AudioSocket is spoken. Returns when it is over.
    pub async fn serve_audiosocket(&self, stream: Box<dyn Transport>) {
        if let Some(waiting) = self.0.wait(None) {
            stream_call(self.0.clone(), stream, waiting).run().await;
        }
    }

    /// Takes no new calls.
    pub fn close(&self) {
        self.0.close();
    }

    /// Ends all calls.
    pub fn end(&self) {
        self.0.end();
    }
}

impl BoundBridge {
    /// Where it listens for HTTP.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.web.local_addr()
    }

    /// Where it listens for AudioSocket.
    pub fn audiosocket_addr(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }

    /// A handle on its counters.
    pub fn handle(&self) -> BridgeHandle {
        BridgeHandle(self.office.clone())
    }

    /// Answers calls until `stop` is ready; then takes no new ones, lets those that stand go on for the
    /// time that the configuration gives them, ends the rest, and returns.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), BridgeError> {
        let Self { office, web, tcp } = self;
        let (opened, mut calls_to_hold) = mpsc::channel::<Call>(64);
        let mut listeners = JoinSet::new();
        listeners.spawn(listen_web(office.clone(), web, opened.clone()));
        match tcp {
            Some(tcp) => drop(listeners.spawn(listen_tcp(office.clone(), tcp, opened))),
            // Calls come as long as somebody can send them.
            None => drop(opened),
        }
        let mut stop = pin!(stop);
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(call) = calls_to_hold.recv() => {
                    calls.spawn(call.run());
                }
                Some(ended) = calls.join_next() => failed(ended),
                Some(ended) = listeners.join_next() => {
                    let why = ended.unwrap_or_else(|error| error.to_string());
                    return Err(BridgeError::Listen(why));
                }
            }
        }
        office.close();
        // The ports stay open as long as a call stands: its stream may come back, and carriers tell and ask
        // what becomes of it. Whoever comes with another one is told that there are none any more.
        let all = async {
            while !calls.is_empty() || !calls_to_hold.is_empty() {
                tokio::select! {
                    biased;
                    Some(call) = calls_to_hold.recv() => {
                        calls.spawn(call.run());
                    }
                    Some(ended) = calls.join_next() => failed(ended),
                    else => break,
                }
            }
        };
        let _ = timeout(office.limits().drain, all).await;
        office.end();
        listeners.shutdown().await;
        let rest = async {
            while let Some(call) = calls_to_hold.recv().await {
                calls.spawn(call.run());
            }
            while let Some(ended) = calls.join_next().await {
                failed(ended);
            }
        };
        let _ = timeout(LAST, rest).await;
        office.flush().await;
        Ok(())
    }
}

/// Why a bridge does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// An address cannot be listened at.
    #[error("cannot listen at {address}: {message}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        message: String,
    },
    /// Listening ended.
    #[error("no longer listening: {0}")]
    Listen(String),
    /// The file of records cannot be written.
    #[error("cannot write the records: {0}")]
    Records(String),
    /// The secret of tokens cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// What turns connections into WebSockets.
fn acceptor() -> Acceptor {
    let mut options = AcceptorOptions::default();
    options.max_message = 128 * 1024;
    options.max_connections = MAX_HANDSHAKES;
    options.write_timeout = Duration::from_secs(5);
    // A line that is gone is noticed as soon as one that carries nothing.
    options.ping_interval = Duration::from_secs(10);
    options.silence_limit = Duration::from_secs(30);
    Acceptor::new(options)
}

/// A call's task that panicked is told of; its record was written.
fn failed(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a call failed");
    }
}

async fn listen_web(office: Arc<Office>, web: Listener, opened: mpsc::Sender<Call>) -> String {
    let gate = {
        let office = office.clone();
        move |request: &Request| office.gate(request)
    };
    let handle = move |accepted: Accepted| {
        let (office, opened) = (office.clone(), opened.clone());
        async move {
            let Some(waiting) = office.wait(accepted.peer.map(|peer| peer.ip().to_canonical()))
            else {
                accepted.socket.close(1013, "too many streams").await;
                return;
            };
            if let Some(call) = call_of(office, accepted, waiting) {
                // The bridge is gone where it takes no call any more.
                let _ = opened.send(call).await;
            }
        }
    };
    match web.serve(gate, handle).await {
        Ok(()) => "the listener ended".into(),
        Err(error) => error.to_string(),
    }
}

/// The call of a WebSocket that the gate has let through.
fn call_of(office: Arc<Office>, accepted: Accepted, waiting: Waiting) -> Option<Call> {
    let name = accepted.request.path().rsplit('/').next()?;
    let carrier: Carrier = name.parse().ok()?;
    let config = office.config().carriers.get(&carrier)?;
    let verify = config.verify;
    let dialect = dialect(carrier, &config.options);
    let token = if verify.token() { office::shown(&accepted.request) } else { None };
    let query = accepted.request.query().unwrap_or_default();
    let parameters = form_urlencoded::parse(query.as_bytes())
        .filter(|(name, value)| name != "token" && name.len() + value.len() <= MAX_PARAMETER)
        .take(MAX_PARAMETERS)
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    office.opened();
    let link = Link::WebSocket(Box::new(accepted.socket));
    let waiting = Some(waiting);
    Some(Call {
        office,
        link,
        dialect,
        verify,
        token,
        line: None,
        parameters,
        waiting,
        stands: None,
    })
}

async fn listen_tcp(office: Arc<Office>, tcp: TcpListener, opened: mpsc::Sender<Call>) -> String {
    loop {
        let (stream, peer) = match tcp.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "no connection accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let allow = &office.config().audiosocket_allow;
        let address = peer.ip().to_canonical();
        let mut listed = allow.iter().map(IpAddr::to_canonical);
        let allowed =
            listed.any(|listed| listed == address) || (allow.is_empty() && address.is_loopback());
        if !allowed {
            tracing::warn!(%peer, "an AudioSocket connection was refused");
            continue;
        }
        let Some(waiting) = office.wait(None) else {
            tracing::warn!(%peer, "too many streams");
            continue;
        };
        // A socket without it still works.
        let _ = stream.set_nodelay(true);
        watch(&stream);
        let call = stream_call(office.clone(), Box::new(stream), waiting);
        if opened.send(call).await.is_err() {
            return "the bridge ended".into();
        }
    }
}

fn stream_call(office: Arc<Office>, stream: Box<dyn Transport>, waiting: Waiting) -> Call {
    office.opened();
    let config = office.config().carriers.get(&Carrier::AudioSocket);
    let options = config.map(|config| config.options.clone()).unwrap_or_default();
    let dialect = dialect(Carrier::AudioSocket, &options);
    Call {
        office,
        link: Link::stream(stream),
        dialect,
        verify: Verify::None,
        token: None,
        line: None,
        parameters: Vec::new(),
        waiting: Some(waiting),
        stands: None,
    }
}

/// Has the system find out that the peer is gone: over this socket there are no pings.
fn watch(stream: &TcpStream) {
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_EVERY);
    let mut watched = socket.set_tcp_keepalive(&keepalive);
    #[cfg(any(target_os = "android", target_os = "linux"))]
    {
        watched = watched.and_then(|()| socket.set_tcp_user_timeout(Some(DEAD_AFTER)));
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    let _ = DEAD_AFTER;
    if let Err(error) = watched {
        tracing::debug!(%error, "the system does not watch the connection");
    }
}
