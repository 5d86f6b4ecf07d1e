//! The account of one invocation: what its calls do is recorded in the store of its agent.

use std::{
    collections::HashSet,
    fmt,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use antiphon_types::{Status, ToolCall};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};

use super::{
    Approval, AskedBy, CallChange, CallLedger, CallRecord, CallState, CalledBy, LEDGER, Lease,
    Lost,
    lease::{Hold, LEASE},
    tail::WAITING,
    waiting_key,
};
use crate::{
    Executed, InvocationContext, Messages, Outcome, RuntimeError, agent::WallClock, id::new_id,
    store::SessionStore, tool::Effects,
};

/// Changes that may wait to be written behind. More are left out, and counted.
const MAX_BEHIND: usize = 1024;

/// The account of an invocation, over a store that has a ledger.
pub(crate) struct Account {
    store: Arc<dyn SessionStore>,
    /// Ends neither by time nor by cancellation: what was begun is recorded.
    cx: InvocationContext,
    agent: Arc<str>,
    session_id: Arc<str>,
    clock: WallClock,
    /// How long one operation of the store may take.
    limit: Duration,
    /// What the history that the invocation began with tells, and what waits besides.
    lost: Lost,
    /// Calls whose outcome is not known, those made first first. One in whose place another runs is not
    /// among them.
    unknown: Mutex<Vec<CallRecord>>,
    progress: Mutex<Progress>,
    behind: OnceLock<mpsc::Sender<Behind>>,
    left_out: AtomicU64,
}

#[derive(Default)]
struct Progress {
    /// Told of by the history that the invocation began with; no snapshot holds that yet.
    told: Vec<Arc<str>>,
    /// Calls that began to wait for a person; no turn that was sealed asks for them yet.
    parked: Vec<Arc<str>>,
    /// Calls that ended; no turn that was sealed holds them yet.
    ended: Vec<Ended>,
    /// The calls of turns that were sealed, in their order; they are not known to be written.
    sealed: Vec<(Arc<str>, Vec<Arc<str>>)>,
    /// The last snapshot that is on the disk.
    tip: Option<Arc<str>>,
}

struct Ended {
    tool: Arc<str>,
    /// As the history names it.
    reference: Arc<str>,
    key: Arc<str>,
}

/// Whose account it is, and how it is kept.
pub(crate) struct Keeper {
    pub(crate) agent: Arc<str>,
    pub(crate) session_id: Arc<str>,
    pub(crate) clock: WallClock,
    /// How long one operation of the store may take.
    pub(crate) limit: Duration,
}

/// What came of an attempt to begin a call.
#[allow(clippy::large_enum_variant)] // one a call, and moved twice
pub(crate) enum Begin {
    /// It may run, and is recorded.
    Run(Entry),
    /// A person is to decide: what they are told.
    Ask(Value),
}

impl Account {
    /// `None` where the store keeps no account. `cx` is in whose name, `tip` the snapshot that the
    /// invocation goes on from.
    pub(crate) fn new(
        store: &Arc<dyn SessionStore>,
        cx: &InvocationContext,
        keeper: Keeper,
        tip: Option<Arc<str>>,
        lost: Lost,
    ) -> Option<Arc<Self>> {
        store.call_ledger()?;
        let Keeper { agent, session_id, clock, limit } = keeper;
        let told = lost.calls.iter().map(|call| call.key.clone()).collect();
        let settled = lost.told.clone();
        let account = Arc::new(Self {
            store: store.clone(),
            cx: cx.uncancelled(),
            agent,
            session_id,
            clock,
            limit,
            unknown: Mutex::new(lost.unknown.clone()),
            lost,
            progress: Mutex::new(Progress { told, tip, ..Progress::default() }),
            behind: OnceLock::new(),
            left_out: AtomicU64::new(0),
        });
        for key in settled {
            account.write_behind(key, account.settle());
        }
        Some(account)
    }

    /// The store.
    pub(crate) fn store(&self) -> &Arc<dyn SessionStore> {
        &self.store
    }

    /// In whose name.
    pub(crate) fn context(&self) -> &InvocationContext {
        &self.cx
    }

    pub(crate) fn agent(&self) -> &Arc<str> {
        &self.agent
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// The session.
    pub(crate) fn session_id(&self) -> &Arc<str> {
        &self.session_id
    }

    /// Records that a call begins: on the disk when this returns, unless the tool only reads.
    /// `approved`: a person has decided that it may.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        call: &ToolCall,
        effects: Effects,
        turn: u64,
        cx: &InvocationContext,
        approved: bool,
    ) -> Result<Begin, RuntimeError> {
        let mut record = self.record(new_id(), call, effects, turn, cx);
        let now = self.now();
        record.state = CallState::Running { since: now, lease: Some(Lease::new(now)) };
        if effects == Effects::Ask && !approved {
            let unknown = lock(&self.unknown);
            if let Some(earlier) = unknown.iter().find(|earlier| earlier.is_like(call)) {
                let reason = "it may have happened before: the outcome of a call like this one \
                              is not known";
                return Ok(Begin::Ask(json!({ "reason": reason, "earlier": earlier.key })));
            }
        }
        let follows = self.take_unknown(call, effects);
        record.idempotency_key = idempotency_key(&follows, effects);
        let hold = Arc::new(Hold::new(record.key.clone()));
        let entry = Entry::new(self, record.clone(), follows, hold);
        let key = record.key.clone();
        let change = Change::Write(Box::new(record));
        match entry.waits {
            true => drop(self.save(&key, &change).await?),
            false => self.write_behind(key, change),
        }
        Ok(Begin::Run(entry))
    }

    /// The entry of a call that waited for a person and may run; its record says so already. `hold`
    /// says that this process works on it.
    pub(crate) fn resume(self: &Arc<Self>, record: &CallRecord, hold: Arc<Hold>) -> Entry {
        let follows = self.take_unknown(&record.call(), record.effects);
        let mut record = record.clone();
        if record.idempotency_key.is_none() {
            record.idempotency_key = idempotency_key(&follows, record.effects);
        }
        let mut entry = Entry::new(self, record, follows, hold);
        entry.waits = true;
        entry
    }

    /// Takes out the calls in whose place one like them runs. Their key is for one run at a time.
    fn take_unknown(&self, call: &ToolCall, effects: Effects) -> Vec<CallRecord> {
        let mut unknown = lock(&self.unknown);
        let first = unknown.iter().find(|earlier| earlier.is_like(call));
        let Some(first) = first.map(|first| first.idempotency_key().clone()) else {
            return Vec::new();
        };
        let follows = |earlier: &mut CallRecord| match effects {
            Effects::Idempotent => *earlier.idempotency_key() == first,
            // The person knew that there may be such calls.
            Effects::Ask => earlier.is_like(call),
            Effects::Once | Effects::ReadOnly => false,
        };
        unknown.extract_if(.., follows).collect()
    }

    /// Calls whose outcome is still not known.
    fn put_unknown(&self, records: Vec<CallRecord>) {
        let mut unknown = lock(&self.unknown);
        unknown.extend(records);
        super::in_order(&mut unknown);
    }

    /// Records that a call waits for a person without having run.
    pub(crate) async fn park(
        &self,
        call: &ToolCall,
        effects: Effects,
        turn: u64,
        cx: &InvocationContext,
        waits: Waits,
    ) -> Result<CallRecord, RuntimeError> {
        let mut record = self.record(new_id(), call, effects, turn, cx);
        record.state = CallState::Waiting;
        record.approval = Some(waits.approval(self.now()));
        let key = record.key.clone();
        lock(&self.progress).parked.push(key.clone());
        self.save(&key, &Change::Write(Box::new(record.clone()))).await?;
        Ok(record)
    }

    fn record(
        &self,
        key: Arc<str>,
        call: &ToolCall,
        effects: Effects,
        turn: u64,
        cx: &InvocationContext,
    ) -> CallRecord {
        let mut record = CallRecord::new(key, self.session_id.clone(), call, self.now());
        record.agent = self.agent.clone();
        record.effects = effects;
        record.turn = turn;
        record.caller = CalledBy::of(cx);
        if let Some(turn) = cx.turn() {
            record.snapshot_id = turn.snapshot_id.clone();
        }
        // Not the turn's own parent, which may never come to the disk.
        record.parent_id = lock(&self.progress).tip.clone();
        record
    }

    /// The calls of which the history that the invocation began with says for the first time that their
    /// outcome is not known.
    pub(crate) fn unknown_calls(&self) -> Vec<CallRecord> {
        self.lost.newly_unknown().cloned().collect()
    }

    /// Whether the history that the invocation began with tells of calls of which no snapshot of it does.
    pub(crate) fn adds_to_history(&self) -> bool {
        !self.lost.calls.is_empty()
    }

    /// Whether the history that the invocation began with tells of this call.
    pub(crate) fn tells_of(&self, key: &str) -> bool {
        let told = self.lost.calls.iter().map(|call| &call.key).chain(&self.lost.told);
        told.into_iter().any(|told| **told == *key)
    }

    /// Whether the history that the invocation began with tells of this call for the first time.
    pub(crate) fn begins_with(&self, key: &str) -> bool {
        self.lost.calls.iter().any(|call| *call.key == *key)
    }

    /// Whether this call waited for a person, or ran for one who approved it, in the conversation that
    /// the invocation began with.
    pub(crate) fn awaits(&self, key: &str) -> bool {
        self.lost.waiting.contains(key)
    }

    /// A call that waited for a person has ended; the history is going to tell of it.
    pub(crate) fn note_ended(&self, record: &CallRecord) {
        let (tool, reference) = (record.tool.clone(), record.call_id.clone());
        let key = record.key.clone();
        let mut progress = lock(&self.progress);
        if !progress.ended.iter().any(|ended| ended.key == key) {
            progress.ended.push(Ended { tool, reference, key });
        }
    }

    /// A turn has failed, and what it leaves is sealed: nobody asks any more for the calls that are not in
    /// there.
    pub(crate) fn failed(&self, before: &Messages, after: &Messages) {
        let parked = std::mem::take(&mut lock(&self.progress).parked);
        if parked.is_empty() {
            return;
        }
        let new = after.range(before.shared_prefix(after));
        let left: Vec<_> =
            new.flat_map(|message| message.content.iter()).filter_map(waiting_key).collect();
        self.withdraw(parked.into_iter().filter(|key| !left.contains(&&**key)));
    }

    /// A turn was sealed that goes from the one conversation to the other.
    pub(crate) fn sealed(&self, snapshot_id: &Arc<str>, before: &Messages, after: &Messages) {
        let mut progress = lock(&self.progress);
        progress.parked.clear();
        let mut keys = std::mem::take(&mut progress.told);
        if !progress.ended.is_empty() {
            let new = after.range(before.shared_prefix(after));
            for part in new.flat_map(|message| message.content.iter()) {
                let note = part.metadata_entry(LEDGER);
                if note.is_some_and(|note| note["outcome"] == WAITING) {
                    continue;
                }
                let answered = match (part.as_tool_response(), part.as_tool_request()) {
                    (Some(response), _) => Some((&response.name, response.id.as_deref())),
                    // Its output waits for those beside it.
                    (_, Some(request)) if part.metadata_entry("pendingOutput").is_some() => {
                        Some((&request.name, request.id.as_deref()))
                    }
                    _ => None,
                };
                let Some((name, id)) = answered else { continue };
                let same = |ended: &Ended| {
                    let named = |id: &str| *ended.reference == *id || *ended.key == *id;
                    ended.tool == *name && id.is_none_or(named)
                };
                if let Some(at) = progress.ended.iter().rposition(same) {
                    keys.push(progress.ended.remove(at).key);
                }
            }
        }
        if !keys.is_empty() {
            progress.sealed.push((snapshot_id.clone(), keys));
        }
    }

    /// The open turn was undone: nobody asks any more for what it wanted a person to decide over.
    pub(crate) fn rolled_back(&self) {
        let parked = std::mem::take(&mut lock(&self.progress).parked);
        self.withdraw(parked);
    }

    fn withdraw(&self, parked: impl IntoIterator<Item = Arc<str>>) {
        for key in parked {
            let ended = CallState::Ended {
                at: self.now(),
                outcome: Outcome::Cancelled,
                output: json!({ "error": Outcome::Cancelled.fixed_text() }),
                detail: Some("the turn that asked for it was undone".into()),
            };
            self.write_behind(key, Change::Withdraw(ended));
        }
    }

    /// The snapshot is on the disk, and with it all that was sealed up to it.
    pub(crate) fn written(&self, snapshot_id: &Arc<str>) {
        let settled: Vec<_> = {
            let mut progress = lock(&self.progress);
            progress.tip = Some(snapshot_id.clone());
            let up_to = progress.sealed.iter().rposition(|(id, _)| id == snapshot_id);
            progress
                .sealed
                .drain(..up_to.map_or(0, |at| at + 1))
                .flat_map(|(_, keys)| keys)
                .collect()
        };
        for key in settled {
            self.write_behind(key, self.settle());
        }
    }

    /// All that was sealed is on the disk, in one snapshot.
    pub(crate) fn all_written(&self) {
        let sealed = std::mem::take(&mut lock(&self.progress).sealed);
        for key in sealed.into_iter().flat_map(|(_, keys)| keys) {
            self.write_behind(key, self.settle());
        }
    }

    /// Waits until the changes so far are written, as long as the store may take for one.
    pub(crate) async fn flush(&self) {
        let Some(queue) = self.behind.get() else { return };
        let (done, flushed) = oneshot::channel();
        let all = async {
            let asked = queue.send(Behind::Flush(done)).await;
            // An error says that nobody writes any more.
            if asked.is_ok() {
                let _ = flushed.await;
            }
        };
        if timeout(self.limit, all).await.is_err() {
            tracing::warn!("the store is slow: what it keeps of tool calls is not up to date");
        }
    }

    fn settle(&self) -> Change {
        Change::Settle { at: self.now() }
    }

    async fn save(&self, key: &str, change: &Change) -> Result<Option<CallRecord>, RuntimeError> {
        let ledger = self.store.call_ledger().ok_or_else(no_ledger)?;
        save(ledger, &self.cx, self.limit, key, change).await
    }

    /// Leaves a change to the task that writes them in their order, as long as the account is there
    /// and after that until it is done.
    fn write_behind(&self, key: Arc<str>, change: Change) {
        let queue = self.behind.get_or_init(|| {
            let (sender, queue) = mpsc::channel(MAX_BEHIND);
            // Without a runtime nothing can be written, nor could anything have run.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(write(self.store.clone(), self.cx.clone(), self.limit, queue));
            }
            sender
        });
        if queue.try_send(Behind::Change { key, change }).is_err() {
            let left_out = self.left_out.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::warn!(left_out, "the store is too slow for the records of tool calls");
        }
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("session_id", &self.session_id).finish_non_exhaustive()
    }
}

/// That a call waits for a person.
pub(crate) struct Waits {
    pub(crate) asked_by: AskedBy,
    pub(crate) question: Value,
    pub(crate) expires_after: Option<Duration>,
    /// How long from now a session is sure to tell the outcome.
    pub(crate) attended: Option<Duration>,
    /// The caller confirmed it before.
    pub(crate) confirmed: bool,
    /// Who asked for it, of more agents than one.
    pub(crate) speaker: Option<Arc<str>>,
    /// The caller whose memory the tool sees.
    pub(crate) memory_of: Option<Arc<str>>,
    /// The provider runs it.
    pub(crate) by_provider: bool,
}

impl Waits {
    fn approval(self, now: Timestamp) -> Approval {
        Approval {
            asked_by: self.asked_by,
            question: self.question,
            requested_at: now,
            expires_at: self.expires_after.and_then(|after| later(now, after)),
            attended_until: self.attended.and_then(|after| later(now, after)),
            confirmed: self.confirmed,
            speaker: self.speaker,
            memory_of: self.memory_of,
            by_provider: self.by_provider,
            decision: None,
        }
    }
}

/// `after` past `now`; `None` where that is beyond all calendars.
pub(crate) fn later(now: Timestamp, after: Duration) -> Option<Timestamp> {
    now.checked_add(SignedDuration::try_from(after).ok()?).ok()
}

/// A call that is recorded as running. Dropped without an end nobody knows what came of it, unless its
/// tool was not called yet.
pub(crate) struct Entry {
    account: Arc<Account>,
    record: CallRecord,
    /// The calls in whose place it runs.
    follows: Vec<CallRecord>,
    /// What is recorded is waited for.
    waits: bool,
    phase: Phase,
    /// Where it is dropped, the call is nobody's any more.
    #[expect(dead_code, reason = "held, not read")]
    hold: Arc<Hold>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The tool has not been called yet.
    Recorded,
    Running,
    Over,
}

impl Entry {
    fn new(
        account: &Arc<Account>,
        record: CallRecord,
        follows: Vec<CallRecord>,
        hold: Arc<Hold>,
    ) -> Self {
        Self {
            account: account.clone(),
            waits: record.effects != Effects::ReadOnly,
            phase: Phase::Recorded,
            hold,
            record,
            follows,
        }
    }

    /// The key that the tool is given.
    pub(crate) fn key(&self) -> &Arc<str> {
        self.record.idempotency_key()
    }

    /// From here on the tool may do something.
    pub(crate) fn runs(&mut self) {
        self.phase = Phase::Running;
    }

    /// Says again and again that the call is worked on, while `work` goes on.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = sleep(LEASE / 3) => {
                    let lease = Lease::new(self.account.now());
                    self.account.write_behind(self.record.key.clone(), Change::Renew(lease));
                }
            }
        }
    }

    /// Whether it is not known what came of the call that ended so: its tool, which changes something, had
    /// begun and came to no end.
    pub(crate) fn is_open(&self, executed: &Executed) -> bool {
        let cut_off = matches!(executed.outcome, Outcome::TimedOut | Outcome::Cancelled);
        let changes = self.record.effects != Effects::ReadOnly;
        self.phase == Phase::Running && cut_off && changes && !executed.not_done
    }

    /// The call has its outcome. `cut`: its tool did not end by itself.
    pub(crate) async fn end(mut self, executed: &Executed, cut: bool) {
        if cut && executed.outcome == Outcome::Cancelled && self.record.approval.is_some() {
            // The conversation does not hold it: it is told as what it is, not known.
            return;
        }
        let open = self.is_open(executed);
        self.phase = Phase::Over;
        let (account, key) = (self.account.clone(), self.record.key.clone());
        self.settle_earlier(executed.outcome == Outcome::Success);
        if open {
            // The conversation goes on; what the tool came to do before is not known.
            account.put_unknown(vec![self.record.clone()]);
        }
        if open && self.record.approval.is_none() {
            // Nor is it for whoever goes on with the conversation later, who is told so.
            if let Err(error) = account.save(&key, &Change::Abandon).await {
                let call = &*key;
                tracing::warn!(call, %error, "that a tool call was cut off is recorded by its lease");
            }
            return;
        }
        if executed.interrupt.is_some() {
            // The conversation holds it, as a request that waits.
            return account.write_behind(key, Change::Remove);
        }
        let (outcome, output) = (executed.outcome, executed.output.clone());
        let detail = executed.detail.clone();
        let change = Change::End(CallState::Ended { at: account.now(), outcome, output, detail });
        let (tool, reference) = (self.record.tool.clone(), self.record.call_id.clone());
        lock(&account.progress).ended.push(Ended { tool, reference, key: key.clone() });
        if !self.waits {
            return account.write_behind(key, change);
        }
        if let Err(error) = account.save(&key, &change).await {
            let call = &*key;
            tracing::error!(call, %error, "the outcome of a tool call could not be recorded");
        }
    }

    /// The tool waits for a person. Its record says so when this returns.
    pub(crate) async fn park(mut self, waits: Waits) -> Result<CallRecord, RuntimeError> {
        self.phase = Phase::Over;
        self.settle_earlier(false);
        if self.record.approval.is_none() {
            lock(&self.account.progress).parked.push(self.record.key.clone());
        }
        let change = Change::Wait(Box::new(waits.approval(self.account.now())));
        let parked = self.account.save(&self.record.key, &change).await?;
        parked.ok_or_else(|| RuntimeError::internal("the record of the call is gone"))
    }

    /// What became of the calls in whose place this one ran: one that `succeeded` stands for them, and
    /// else they are as unknown as before.
    fn settle_earlier(&mut self, succeeded: bool) {
        let follows = std::mem::take(&mut self.follows);
        if !succeeded {
            return self.account.put_unknown(follows);
        }
        let asked = self.record.approval.as_ref().filter(|it| it.asked_by == AskedBy::Ledger);
        let asked = asked.and_then(|it| it.question["earlier"].as_str().map(Arc::from));
        let mut keys: HashSet<Arc<str>> = follows.into_iter().map(|earlier| earlier.key).collect();
        keys.extend(asked);
        for key in keys {
            self.account.write_behind(key, Change::Follow(self.record.key.clone()));
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.phase == Phase::Over {
            return;
        }
        self.settle_earlier(false);
        let change = match self.phase {
            Phase::Over => return,
            Phase::Recorded if self.record.approval.is_none() => Change::Remove,
            // Somebody may ask what became of it.
            Phase::Recorded => Change::End(CallState::Ended {
                at: self.account.now(),
                outcome: Outcome::Cancelled,
                output: json!({ "error": Outcome::Cancelled.fixed_text() }),
                detail: Some("cancelled before it started".into()),
            }),
            Phase::Running => {
                self.account.put_unknown(vec![self.record.clone()]);
                Change::Abandon
            }
        };
        self.account.write_behind(self.record.key.clone(), change);
    }
}

/// The key of the calls in whose place one runs that does the same thing once for each key.
fn idempotency_key(follows: &[CallRecord], effects: Effects) -> Option<Arc<str>> {
    let first = follows.first().filter(|_| effects == Effects::Idempotent)?;
    Some(first.idempotency_key().clone())
}

/// What is left to the task that writes.
enum Behind {
    /// A change of a record that nobody waits for.
    Change { key: Arc<str>, change: Change },
    /// All before it is written.
    Flush(oneshot::Sender<()>),
}

enum Change {
    Write(Box<CallRecord>),
    End(CallState),
    Wait(Box<Approval>),
    Remove,
    /// Where it waits for a person, it does not any more, and there is nothing to be told.
    Withdraw(CallState),
    /// A snapshot holds how it ended, or that this is not known.
    Settle {
        at: Timestamp,
    },
    /// It still runs.
    Renew(Lease),
    /// Nobody works on it any more.
    Abandon,
    /// The call of this key was made in its place.
    Follow(Arc<str>),
}

impl Change {
    fn apply(&self, record: Option<&CallRecord>) -> CallChange {
        let Some(record) = record else {
            return match self {
                Self::Write(new) => CallChange::Write(new.clone()),
                _ => CallChange::Keep,
            };
        };
        let mut record = record.clone();
        let runs = matches!(record.state, CallState::Running { .. });
        let unfollowed = record.followed_by.is_none();
        match self {
            Self::Write(new) => record = CallRecord::clone(new),
            Self::Remove => return CallChange::Remove,
            Self::Withdraw(_) if !record.is_waiting() => return CallChange::Keep,
            Self::Withdraw(state) => (record.state, record.settled) = (state.clone(), true),
            // Whoever runs it has yet to tell how it ends.
            Self::Settle { at } if record.is_running(*at) => return CallChange::Keep,
            // What waited for a person is kept, since somebody may ask what became of it, and so is
            // what nobody knows the end of.
            Self::Settle { .. } => match record.approval.is_none() && !(runs && unfollowed) {
                true => return CallChange::Remove,
                false => record.settled = true,
            },
            Self::End(state) => {
                record.state = state.clone();
                // It was told as unknown.
                record.settled = false;
            }
            Self::Wait(approval) => {
                record.state = CallState::Waiting;
                record.approval = Some(Approval::clone(approval));
            }
            Self::Renew(new) => match &mut record.state {
                CallState::Running { lease, .. } => *lease = Some(new.clone()),
                _ => return CallChange::Keep,
            },
            Self::Abandon => match &mut record.state {
                CallState::Running { lease, .. } => *lease = None,
                _ => return CallChange::Keep,
            },
            // Else the history has yet to tell of it.
            Self::Follow(_) if record.settled && record.approval.is_none() => {
                return CallChange::Remove;
            }
            Self::Follow(by) => record.followed_by = Some(by.clone()),
        }
        CallChange::Write(Box::new(record))
    }
}

async fn save(
    ledger: &dyn CallLedger,
    cx: &InvocationContext,
    limit: Duration,
    key: &str,
    change: &Change,
) -> Result<Option<CallRecord>, RuntimeError> {
    let saved = timeout(limit, ledger.save_call(cx, key, &|record| Ok(change.apply(record)))).await;
    saved.map_err(|_| {
        let text = format!("the store did not answer within {limit:?}");
        RuntimeError::new(Status::Unavailable, text)
    })?
}

async fn write(
    store: Arc<dyn SessionStore>,
    cx: InvocationContext,
    limit: Duration,
    mut queue: mpsc::Receiver<Behind>,
) {
    while let Some(behind) = queue.recv().await {
        let (key, change) = match behind {
            Behind::Change { key, change } => (key, change),
            Behind::Flush(done) => {
                let _ = done.send(());
                continue;
            }
        };
        let Some(ledger) = store.call_ledger() else { return };
        if let Err(error) = save(ledger, &cx, limit, &key, &change).await {
            tracing::warn!(call = &*key, %error, "a tool call could not be recorded");
        }
    }
}

fn no_ledger() -> RuntimeError {
    RuntimeError::FailedPrecondition("the store keeps no account of tool calls".into())
}

/// Held for moves of plain data only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
