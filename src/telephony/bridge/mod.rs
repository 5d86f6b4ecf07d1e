//! The bridge: it listens, and makes an agent's session of each call.
//!
//! Carriers connect to `/telephony/{carrier}`, and ask at `/telephony/{carrier}/answer` what to do with
//! a call. What a request must show is checked before the upgrade, and the rest with the first message,
//! before an agent is asked or a provider opened. Each call is one task: it moves frames between socket
//! and session, keeps their time, and leaves a [`CallRecord`].

mod call;
mod control;
mod link;
mod news;
mod office;
mod record;
mod transfer;
mod voice;

use std::{future::Future, io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use antiphon_live::{
    LiveConfig, Transport,
    acceptor::{Accepted, Acceptor, AcceptorOptions, Listener, Request},
};
use async_trait::async_trait;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet, time::timeout};

use self::{
    call::Call,
    link::Link,
    office::{Office, OnRecord},
};
use super::{
    config::{AgentConfig, BridgeConfig, Keys, Verify},
    dialect::{CallStart, Carrier, DialectError, DialectOptions, dialect},
    outbound::OnMachine,
    rest::StreamOrder,
    token::TokenError,
};
use crate::session::{IdleConfig, SessionBuilder, SessionLimits, UserAudio};

pub use self::{
    control::{CallControl, ControlError, call_tools},
    news::AnsweredBy,
    office::BridgeStats,
    record::{CallEnd, CallRecord},
};

/// Calls whose sockets are open, beside those that are answered.
const MAX_SOCKETS: usize = 4_096;
/// After its time a call has so long to end.
const LAST: Duration = Duration::from_secs(10);

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
    /// Keys stop its speech.
    pub keys_interrupt: bool,
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
    on_record: Option<OnRecord>,
}

impl Bridge {
    /// A bridge whose calls `agent` answers.
    pub fn new(config: BridgeConfig, agent: impl CallAgent) -> Self {
        Self { config, agent: Arc::new(agent), carriers: None, on_record: None }
    }

    /// Hangs up, hands on and presses keys by these, where a carrier wants it so.
    pub fn carriers(mut self, carriers: impl Carriers) -> Self {
        self.carriers = Some(Arc::new(carriers));
        self
    }

    /// Has `on_record` called with the record of each call; it must not wait.
    pub fn on_record(mut self, on_record: impl Fn(&CallRecord) + Send + Sync + 'static) -> Self {
        self.on_record = Some(Box::new(on_record));
        self
    }

    /// Takes the addresses.
    pub async fn bind(self) -> Result<BoundBridge, BridgeError> {
        let bind = |address: SocketAddr| {
            move |error: io::Error| BridgeError::Bind { address, message: error.to_string() }
        };
        let mut options = AcceptorOptions::default();
        options.max_message = 128 * 1024;
        options.max_connections = MAX_SOCKETS;
        options.write_timeout = Duration::from_secs(5);
        let listen = self.config.listen;
        let web = Listener::bind(listen, Acceptor::new(options)).await.map_err(bind(listen))?;
        let tcp = match self.config.audiosocket {
            Some(address) => Some(TcpListener::bind(address).await.map_err(bind(address))?),
            None => None,
        };
        let office = Office::new(self.config, self.agent, self.carriers, self.on_record)?;
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
        if let Some(tcp) = tcp {
            listeners.spawn(listen_tcp(office.clone(), tcp, opened));
        }
        let mut stop = pin!(stop);
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(call) = calls_to_hold.recv() => {
                    calls.spawn(call.run());
                }
                Some(_) = calls.join_next() => {}
                Some(ended) = listeners.join_next() => {
                    let why = ended.unwrap_or_else(|error| error.to_string());
                    return Err(BridgeError::Listen(why));
                }
            }
        }
        office.close();
        let drain = office.limits().drain;
        let all = async { while calls.join_next().await.is_some() {} };
        if timeout(drain, all).await.is_err() {
            office.end();
            let rest = async { while calls.join_next().await.is_some() {} };
            let _ = timeout(LAST, rest).await;
        }
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

async fn listen_web(office: Arc<Office>, web: Listener, opened: mpsc::Sender<Call>) -> String {
    let gate = {
        let office = office.clone();
        move |request: &Request| office.gate(request)
    };
    let handle = move |accepted: Accepted| {
        let (office, opened) = (office.clone(), opened.clone());
        async move {
            if let Some(call) = call_of(office, accepted) {
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
fn call_of(office: Arc<Office>, accepted: Accepted) -> Option<Call> {
    let name = accepted.request.path().rsplit('/').next()?;
    let carrier: Carrier = name.parse().ok()?;
    let config = office.config().carriers.get(&carrier)?;
    let verify = config.verify;
    let dialect = dialect(carrier, &config.options);
    let token = if verify.token() { office::shown(&accepted.request) } else { None };
    office.opened();
    let link = Link::WebSocket(Box::new(accepted.socket));
    Some(Call { office, link, dialect, verify, token, line: None })
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
        let allowed = allow.contains(&peer.ip()) || (allow.is_empty() && peer.ip().is_loopback());
        if !allowed {
            tracing::warn!(%peer, "an AudioSocket connection was refused");
            continue;
        }
        // A socket without it still works.
        let _ = stream.set_nodelay(true);
        let call = stream_call(office.clone(), Box::new(stream));
        if opened.send(call).await.is_err() {
            return "the bridge ended".into();
        }
    }
}

fn stream_call(office: Arc<Office>, stream: Box<dyn Transport>) -> Call {
    office.opened();
    let dialect = dialect(Carrier::AudioSocket, &DialectOptions::default());
    Call {
        office,
        link: Link::stream(stream),
        dialect,
        verify: Verify::None,
        token: None,
        line: None,
    }
}
