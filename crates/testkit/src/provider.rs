//! A live provider whose far end is in the test's hands.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use antiphon_live::{
    ActivityHandling, Capabilities, ConnectRequest, LiveCommand, LiveConfig, LiveConnection,
    LiveError, LiveEvent, LiveProvider,
};
use antiphon_types::AudioFormat;
use async_trait::async_trait;
use futures_core::Stream;
use futures_sink::Sink;
use futures_util::task::AtomicWaker;
use tokio::sync::{Notify, mpsc};

/// Capabilities with everything on, 16 kHz in and 24 kHz out.
pub fn full_capabilities() -> Capabilities {
    let mut capabilities =
        Capabilities::conversation(AudioFormat::pcm16(16_000), AudioFormat::pcm16(24_000));
    capabilities.images = true;
    capabilities.forget_input = true;
    capabilities.manual_activity = true;
    capabilities.interrupts = true;
    capabilities.session_answers = true;
    capabilities.non_blocking_tools = true;
    capabilities.asks_before_tools = true;
    capabilities.input_transcripts = true;
    capabilities.resumption = true;
    capabilities.resumes_calls = true;
    capabilities
}

/// What the next `connect` does. Without a plan it succeeds.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectPlan {
    /// Succeeds and emits `Ready`.
    Accept,
    /// Succeeds; the test emits `Ready` itself.
    AcceptSilently,
    /// Fails.
    Refuse(LiveError),
    /// Does not resolve until the notification comes; then succeeds.
    Hang(Arc<Notify>),
}

/// A provider for tests. Clones share it.
#[derive(Clone)]
pub struct ScriptedProvider {
    shared: Arc<Shared>,
    ends: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<FarEnd>>>,
}

struct Shared {
    name: String,
    capabilities: Mutex<Capabilities>,
    plans: Mutex<VecDeque<ConnectPlan>>,
    requests: Mutex<Vec<ConnectRequest>>,
    far_ends: mpsc::UnboundedSender<FarEnd>,
    open: Arc<AtomicUsize>,
}

impl Default for ScriptedProvider {
    fn default() -> Self {
        Self::new(full_capabilities())
    }
}

impl ScriptedProvider {
    /// A provider with these capabilities.
    pub fn new(capabilities: Capabilities) -> Self {
        let (far_ends, ends) = mpsc::unbounded_channel();
        Self {
            shared: Arc::new(Shared {
                name: "scripted".into(),
                capabilities: Mutex::new(capabilities),
                plans: Mutex::default(),
                requests: Mutex::default(),
                far_ends,
                open: Arc::default(),
            }),
            ends: Arc::new(tokio::sync::Mutex::new(ends)),
        }
    }

    /// Queues what the next unplanned `connect` does.
    pub fn plan(&self, plan: ConnectPlan) -> &Self {
        lock(&self.shared.plans).push_back(plan);
        self
    }

    /// The far end of the next connection, in the order they were opened.
    pub async fn far_end(&self) -> FarEnd {
        let end = self.ends.lock().await.recv().await;
        end.expect("the provider holds a sender, so the channel stays open")
    }

    /// What `connect` was given, each time.
    pub fn requests(&self) -> Vec<ConnectRequest> {
        lock(&self.shared.requests).clone()
    }

    /// Connections that the session has not dropped.
    pub fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl LiveProvider for ScriptedProvider {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn model(&self, config: &LiveConfig) -> Arc<str> {
        config.model.clone().unwrap_or_else(|| "scripted-1".into())
    }

    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError> {
        let mut capabilities = lock(&self.shared.capabilities).clone();
        // A provider that is told not to stop its replies does not.
        capabilities.interrupts &=
            config.policies.activity.handling == ActivityHandling::Interrupts;
        Ok(capabilities)
    }

    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        let capabilities = Arc::new(self.capabilities(&request.config)?);
        lock(&self.shared.requests).push(request);
        let plan = lock(&self.shared.plans).pop_front().unwrap_or(ConnectPlan::Accept);
        let mut greets = true;
        match plan {
            ConnectPlan::Accept => {}
            ConnectPlan::AcceptSilently => greets = false,
            ConnectPlan::Refuse(error) => return Err(error),
            ConnectPlan::Hang(released) => released.notified().await,
        }
        let (connection, far_end) = connection(capabilities.clone(), self.shared.open.clone());
        if greets {
            far_end.emit(LiveEvent::Ready { capabilities });
        }
        // The test may have dropped the receiving half; then nobody scripts this connection.
        let _ = self.shared.far_ends.send(far_end);
        Ok(Box::new(connection))
    }
}

/// The provider's side of one connection.
pub struct FarEnd {
    events: mpsc::UnboundedSender<Result<LiveEvent, LiveError>>,
    commands: mpsc::UnboundedReceiver<LiveCommand>,
    valve: Arc<Valve>,
}

impl FarEnd {
    /// Sends an event to the session. Ignored when the session dropped the connection.
    pub fn emit(&self, event: LiveEvent) -> &Self {
        let _ = self.events.send(Ok(event));
        self
    }

    /// Ends the connection with an error.
    pub fn fail(&self, error: LiveError) {
        let _ = self.events.send(Err(error));
    }

    /// Ends the connection with a close code.
    pub fn close(&self, code: u16, reason: &str) {
        self.fail(LiveError::Closed { code, reason: reason.into() });
    }

    /// The next command of the session, audio included; `None` once it dropped the connection.
    pub async fn command(&mut self) -> Option<LiveCommand> {
        self.commands.recv().await
    }

    /// The next command that is not audio.
    pub async fn control(&mut self) -> Option<LiveCommand> {
        loop {
            match self.commands.recv().await? {
                LiveCommand::AppendAudio(_) => {}
                command => return Some(command),
            }
        }
    }

    /// All commands that have arrived by now.
    pub fn drain(&mut self) -> Vec<LiveCommand> {
        std::iter::from_fn(|| self.commands.try_recv().ok()).collect()
    }

    /// All commands that have arrived by now, without audio.
    pub fn drain_control(&mut self) -> Vec<LiveCommand> {
        let mut commands = self.drain();
        commands.retain(|command| !matches!(command, LiveCommand::AppendAudio(_)));
        commands
    }

    /// While stalled the connection takes no command, as a full socket would.
    pub fn stall(&self, stalled: bool) {
        self.valve.shut.store(stalled, Ordering::SeqCst);
        self.valve.waker.wake();
    }

    /// While jammed the connection takes commands that do not leave it, as where the network is dead and
    /// the buffers are not full yet.
    pub fn jam(&self, jammed: bool) {
        self.valve.jammed.store(jammed, Ordering::SeqCst);
        self.valve.waker.wake();
    }

    /// Whether the session dropped the connection.
    pub fn is_dropped(&self) -> bool {
        self.events.is_closed()
    }

    /// Waits until the session dropped the connection.
    pub async fn dropped(&self) {
        self.events.closed().await;
    }
}

#[derive(Default)]
struct Valve {
    shut: AtomicBool,
    jammed: AtomicBool,
    waker: AtomicWaker,
}

struct ScriptedConnection {
    events: mpsc::UnboundedReceiver<Result<LiveEvent, LiveError>>,
    commands: mpsc::UnboundedSender<LiveCommand>,
    capabilities: Arc<Capabilities>,
    valve: Arc<Valve>,
    /// What was taken and has not left; each is taken for one byte.
    held: VecDeque<LiveCommand>,
    sent: u64,
    ended: bool,
    open: Arc<AtomicUsize>,
}

fn connection(
    capabilities: Arc<Capabilities>,
    open: Arc<AtomicUsize>,
) -> (ScriptedConnection, FarEnd) {
    let (event_sender, events) = mpsc::unbounded_channel();
    let (commands, command_receiver) = mpsc::unbounded_channel();
    let valve = Arc::<Valve>::default();
    open.fetch_add(1, Ordering::SeqCst);
    let near = ScriptedConnection {
        events,
        commands,
        capabilities,
        valve: valve.clone(),
        held: VecDeque::new(),
        sent: 0,
        ended: false,
        open,
    };
    (near, FarEnd { events: event_sender, commands: command_receiver, valve })
}

impl ScriptedConnection {
    /// Sends what may leave. Whether that is all.
    fn let_out(&mut self, cx: &mut Context<'_>) -> bool {
        self.valve.waker.register(cx.waker());
        while !self.valve.jammed.load(Ordering::SeqCst) {
            let Some(command) = self.held.pop_front() else { return true };
            self.sent += 1;
            let _ = self.commands.send(command);
        }
        self.held.is_empty()
    }
}

impl Drop for ScriptedConnection {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Stream for ScriptedConnection {
    type Item = Result<LiveEvent, LiveError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let item = std::task::ready!(self.events.poll_recv(cx));
        self.ended = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

impl Sink<LiveCommand> for ScriptedConnection {
    type Error = LiveError;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.valve.waker.register(cx.waker());
        if self.valve.shut.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn start_send(mut self: Pin<&mut Self>, command: LiveCommand) -> Result<(), LiveError> {
        if let Err(what) = self.capabilities.check(&command) {
            return Err(LiveError::unsupported("scripted", what));
        }
        if let LiveCommand::AppendAudio(frame) = &command
            && frame.format != self.capabilities.input
        {
            return Err(LiveError::InvalidCommand(format!("audio is {:?}", frame.format)));
        }
        if !self.held.is_empty() || self.valve.jammed.load(Ordering::SeqCst) {
            self.held.push_back(command);
            return Ok(());
        }
        self.sent += 1;
        self.commands.send(command).map_err(|_| LiveError::NotConnected)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        if self.let_out(cx) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.valve.waker.register(cx.waker());
        // A peer that does not read does not close in order either.
        if !self.let_out(cx) {
            return Poll::Pending;
        }
        if self.valve.shut.load(Ordering::SeqCst) { Poll::Pending } else { Poll::Ready(Ok(())) }
    }
}

impl LiveConnection for ScriptedConnection {
    fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    fn unsent_bytes(&self) -> usize {
        self.held.len()
    }

    fn sent_bytes(&self) -> u64 {
        self.sent
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
