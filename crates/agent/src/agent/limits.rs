//! The bounds of the runtime.

use std::time::Duration;

use tokio::time::Instant;

/// How long the runtime waits and how much it holds. The defaults are those of Genkit's Go agents
/// where they have them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RuntimeLimits {
    /// How often work in the background says that it is alive; 1 ms at least. Default: 30 s.
    pub heartbeat: Duration,
    /// For how long without that it is taken to be alive. Less than two heartbeats would make
    /// expired what is alive, so it is two at least. Default: 60 s.
    pub stale_after: Duration,
    /// How long work that was told to stop may take until it is ended by force. Default: 5 min.
    pub wind_down: Duration,
    /// How long an agent function may take to end once its caller stopped it. Default: 2 s.
    pub settle_grace: Duration,
    /// How often a wait reads a snapshot where its store cannot tell of changes; 1 ms at least.
    /// Default: 2 s.
    pub poll: Duration,
    /// How often it does where the store can, for workers that died without a word; 1 ms at least.
    /// Default: 30 s.
    pub reread: Duration,
    /// How long one operation of the store may take. Default: 30 s.
    pub store: Duration,
    /// How many failed reads in a row a wait rides out, and how often the last write of work in the
    /// background is tried again. Default: 3.
    pub store_retries: u32,
    /// How many inputs may wait for their turn; then sending waits. Default: 64.
    pub intake: usize,
    /// How many chunks may wait for the client; then the agent function waits. Default: 256.
    pub stream: usize,
    /// How long a client may leave the stream full until its invocation fails. Default: 5 min.
    pub stream_stall: Duration,
    /// How many turns that ended may wait to be written; then none begins. Default: 64.
    pub unwritten_turns: usize,
    /// How many bytes of messages and artifacts the turns that wait may come to, about; then none
    /// begins. One turn alone may be larger. Default: 4 MiB.
    pub unwritten_bytes: usize,
    /// What becomes of a conversation whose store cannot write, or cannot keep up. Default: it goes
    /// on.
    pub on_store_stall: OnStoreStall,
}

/// What becomes of a conversation whose store cannot write its turns (it errs, or does not answer
/// within [`RuntimeLimits::store`]), or cannot keep up with them (as many wait as
/// [`RuntimeLimits::unwritten_turns`] and [`RuntimeLimits::unwritten_bytes`] allow).
///
/// Whichever it is, nobody is told of a snapshot that is not there, what was said stays in memory,
/// and once the store can write again it is written in order. What is not written when a
/// conversation by voice ends is tried once more; what cannot be written even then is lost, and it goes
/// on from the last snapshot another time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreStall {
    /// It goes on. The turn ends without a snapshot: the next one that is written holds it. By voice,
    /// turns that are more than may wait are told as not committed at once.
    #[default]
    GoOn,
    /// The write is tried again for up to so long, while turns queue up behind it; then it is as
    /// [`OnStoreStall::End`]. In writing the next turn begins after that; by voice the conversation
    /// goes on meanwhile.
    Wait(Duration),
    /// It ends with the store's error: an agent function's loop returns it, and a voice session ends
    /// with it as its reason. No turn begins that would be one too many.
    End,
}

impl OnStoreStall {
    /// For how long a write is tried again.
    pub(super) fn patience(self) -> Duration {
        match self {
            Self::Wait(patience) => patience,
            Self::GoOn | Self::End => Duration::ZERO,
        }
    }

    /// Whether a turn that could not be written, for all the patience there is, ends the conversation.
    pub fn ends(self) -> bool {
        !matches!(self, Self::GoOn)
    }
}

impl Default for RuntimeLimits {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(30),
            stale_after: Duration::from_secs(60),
            wind_down: Duration::from_secs(5 * 60),
            settle_grace: Duration::from_secs(2),
            poll: Duration::from_secs(2),
            reread: Duration::from_secs(30),
            store: Duration::from_secs(30),
            store_retries: 3,
            intake: 64,
            stream: 256,
            stream_stall: Duration::from_secs(5 * 60),
            unwritten_turns: 64,
            unwritten_bytes: 4 << 20,
            on_store_stall: OnStoreStall::default(),
        }
    }
}

impl RuntimeLimits {
    /// The limits as they can be kept.
    pub(super) fn kept(mut self) -> Self {
        let least = Duration::from_millis(1);
        for every in [&mut self.heartbeat, &mut self.poll, &mut self.reread] {
            *every = (*every).max(least);
        }
        self.stale_after = self.stale_after.max(self.heartbeat.saturating_mul(2));
        self
    }
}

/// The moment `after` another; one that never comes where that is too far off for the clock.
pub(super) fn later(moment: Instant, after: Duration) -> Instant {
    // Some thirty years, as tokio itself has it.
    let never = Duration::from_secs(86_400 * 365 * 30);
    moment.checked_add(after.min(never)).unwrap_or(moment)
}
