//! Calls of a session that wait for a person, while it lives.
//!
//! A call that was parked is looked at every second, whoever decides over it; once it has its outcome
//! the session is told, which tells its hosts, its journal and the model.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use antiphon_agent::{
    InvocationContext, Memory, Outcome, RuntimeError, ToolExecutor,
    approval::{Answer, ApprovalError, Approvals},
    ledger::{CallRecord, CallState},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{Notify, oneshot},
    task::{AbortHandle, JoinSet},
};

use super::{
    AgentSession, SendError,
    engine::{HostCommand, frame_untrusted},
    shared::Shared,
};

/// How often calls that wait are looked at: others may decide over them.
const LOOK: Duration = Duration::from_secs(1);
/// For how long the session says that it lives; said again after a third of it.
pub(crate) const ATTENDED: Duration = Duration::from_secs(30);

/// Calls told of last, that are looked at when the session ends.
const MAX_TOLD: usize = 64;

/// What a linked agent's session needs for its calls that wait.
pub(crate) struct Waiting {
    pub(crate) approvals: Approvals,
    /// Of the invocation.
    pub(crate) context: InvocationContext,
}

/// Attends to the calls of a run that wait for a person.
pub(crate) struct Desk {
    waiting: Waiting,
    speaking: Mutex<Speaking>,
    /// As all sessions share it.
    memory: Arc<dyn Memory>,
    /// As the tools of this one see it.
    scoped: Arc<dyn Memory>,
    shared: Weak<Shared>,
    session_id: Arc<str>,
    parked: Mutex<BTreeMap<Arc<str>, Parked>>,
    changed: Notify,
    /// Decisions that are carried out.
    at_work: Mutex<u32>,
    tasks: Mutex<Option<JoinSet<()>>>,
    /// The calls that were told of last: where the session ends meanwhile, nobody hears of them.
    told: Mutex<VecDeque<Arc<str>>>,
    /// The task that looks at calls, among them.
    attends: Mutex<Option<AbortHandle>>,
}

/// Whose tools run.
#[derive(Clone)]
pub(crate) struct Speaking {
    /// The agent that has the conversation; `None`: the session's own.
    pub(crate) agent: Option<Arc<str>>,
    pub(crate) executor: Arc<ToolExecutor>,
}

#[derive(Clone, Default)]
struct Parked {
    looks: u32,
    /// With whose tools the call was made; `None`: before this run.
    executor: Option<Arc<ToolExecutor>>,
}

/// How a call ended that had waited for a person.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) record: Box<CallRecord>,
    /// The outcome for the model, framed as data.
    pub(crate) framed: String,
    /// The outcome in words that can be said as they are.
    pub(crate) words: String,
}

impl Desk {
    /// Begins to attend, also to the calls that wait from before.
    pub(crate) fn open(
        mut waiting: Waiting,
        speaking: Speaking,
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        // Who refuses a call, or that nobody decides over it, is written down by the session's policy.
        waiting.approvals = waiting.approvals.witnessed_as(&speaking.executor);
        let desk = Arc::new(Self {
            waiting,
            speaking: Mutex::new(speaking),
            memory: shared.memory.clone(),
            scoped: shared.scoped_memory(),
            session_id: shared.session_id(),
            shared: Arc::downgrade(shared),
            parked: Mutex::default(),
            changed: Notify::new(),
            at_work: Mutex::default(),
            tasks: Mutex::new(Some(JoinSet::new())),
            told: Mutex::default(),
            attends: Mutex::default(),
        });
        let attending = desk.clone();
        let attends = desk.spawn(async move { attending.attend().await });
        *lock(&desk.attends) = attends;
        desk
    }

    /// Another agent's tools run from now on.
    pub(crate) fn hand_over(&self, to: Speaking) {
        *lock(&self.speaking) = to;
    }

    /// A call of the session was parked, of this executor's.
    pub(crate) fn parked(&self, record: &CallRecord, executor: &Arc<ToolExecutor>) {
        self.attend_to(record, Some(executor.clone()));
    }

    fn attend_to(&self, record: &CallRecord, executor: Option<Arc<ToolExecutor>>) {
        lock(&self.parked).insert(record.key.clone(), Parked { looks: 0, executor });
        self.changed.notify_one();
    }

    /// Approves, or refuses, a call. The work goes on where the future is dropped, up to the end of the
    /// run.
    pub(crate) async fn decide(
        self: &Arc<Self>,
        key: &str,
        answer: Answer,
        approves: bool,
    ) -> Result<CallRecord, ApprovalError> {
        let (desk, key): (_, Arc<str>) = (self.clone(), key.into());
        let (done, decided) = oneshot::channel();
        // From here on: whoever hangs up now leaves it behind, where that may be.
        let at_work = AtWork::begin(&desk);
        self.spawn(async move {
            let Waiting { approvals, context } = &desk.waiting;
            let result = match approves {
                true => desk.approve(&key, answer).await,
                false => approvals.deny(context, &key, answer).await,
            };
            // The session knows of the outcome before it hears that the work is over.
            desk.look(&key).await;
            desk.changed.notify_one();
            drop(at_work);
            let _ = done.send(result);
        });
        let over = || RuntimeError::Cancelled("the session is over".into());
        decided.await.unwrap_or_else(|_| Err(over().into()))
    }

    async fn approve(&self, key: &Arc<str>, answer: Answer) -> Result<CallRecord, ApprovalError> {
        let Waiting { approvals, context } = &self.waiting;
        // The invocation may end before the time that the tool has to end by itself.
        let context = &context.uncancelled();
        let record = approvals.call(context, key).await?;
        let tools = self.tools_of(&record)?;
        let approvals = approvals.clone().with_tools_of(record.asker().clone());
        if record.session_id == self.session_id {
            let approvals = approvals.scoped_memory();
            return approvals.approve(context, key, answer, &tools, self.scoped.clone()).await;
        }
        approvals.approve(context, key, answer, &tools, self.memory.clone()).await
    }

    /// The tools of the agent that asked for the call: no other agent's by the same name run.
    fn tools_of(&self, record: &CallRecord) -> Result<Arc<ToolExecutor>, ApprovalError> {
        let parked = lock(&self.parked).get(&record.key).and_then(|it| it.executor.clone());
        if let Some(executor) = parked {
            return Ok(executor);
        }
        let speaker = record.approval.as_ref().and_then(|approval| approval.speaker.clone());
        let speaking = lock(&self.speaking).clone();
        if speaking.agent == speaker {
            return Ok(speaking.executor);
        }
        Err(ApprovalError::AnotherAgent { key: record.key.clone(), agent: record.asker().clone() })
    }

    /// Ends all that is at work, without waiting for it.
    pub(crate) fn abort(&self) {
        drop(lock(&self.tasks).take());
    }

    /// The run is over: nobody attends any more. Tools of calls that were approved have so long to end.
    pub(crate) async fn close(&self, within: Duration) {
        if let Some(attends) = lock(&self.attends).take() {
            attends.abort();
        }
        let tasks = lock(&self.tasks).take();
        if let Some(mut tasks) = tasks {
            let all_ended = async { while tasks.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(within, all_ended).await;
            tasks.shutdown().await;
        }
        let parked = std::mem::take(&mut *lock(&self.parked)).into_keys();
        let keys: Vec<_> = {
            let mut told = lock(&self.told);
            told.extend(parked);
            told.iter().cloned().collect()
        };
        for key in keys {
            let Waiting { approvals, context } = &self.waiting;
            if let Err(error) = approvals.attend(&context.uncancelled(), &key, None).await {
                tracing::debug!(call = &*key, %error, "a call that waits is not told that nobody attends");
            }
        }
    }

    /// The run is over and its turns are written. How calls ended that it did not come to tell stands in the
    /// history by snapshots of their own.
    pub(crate) async fn deliver(&self) {
        let keys = std::mem::take(&mut *lock(&self.told));
        let Waiting { approvals, context } = &self.waiting;
        for key in keys {
            if let Err(error) = approvals.tell(&context.uncancelled(), &key).await {
                tracing::debug!(call = &*key, %error, "the outcome is for whoever goes on");
            }
        }
    }

    /// Counts decisions, and tells the session so.
    fn count(&self, change: impl FnOnce(u32) -> u32) {
        // Held while it is told, so that the last word is the right one.
        let mut at_work = lock(&self.at_work);
        *at_work = change(*at_work);
        if let Some(shared) = self.shared.upgrade() {
            shared.tell_at_work(*at_work);
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> Option<AbortHandle> {
        let mut tasks = lock(&self.tasks);
        let tasks = tasks.as_mut()?;
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn(work))
    }

    async fn attend(&self) {
        let Waiting { approvals, context } = &self.waiting;
        loop {
            match approvals.unsettled(context, Some(&self.session_id)).await {
                Ok(calls) => {
                    // Those of other branches are for whoever goes on with these.
                    // What the provider of another connection asked for, nobody can do any more.
                    let ours = calls
                        .iter()
                        .filter(|it| it.approval.as_ref().is_none_or(|it| !it.by_provider))
                        .filter(|it| approvals.is_awaited(context, &it.key));
                    for record in ours {
                        let _ = approvals.attend(context, &record.key, Some(ATTENDED)).await;
                        self.attend_to(record, None);
                    }
                    break;
                }
                Err(error) => tracing::warn!(%error, "the calls that wait could not be read"),
            }
            tokio::time::sleep(LOOK).await;
        }
        loop {
            let idle = lock(&self.parked).is_empty();
            if idle {
                self.changed.notified().await;
            } else {
                let _ = tokio::time::timeout(LOOK, self.changed.notified()).await;
            }
            let keys: Vec<_> = lock(&self.parked).keys().cloned().collect();
            for key in keys {
                self.look(&key).await;
            }
        }
    }

    /// Looks at a call that the session attends to.
    async fn look(&self, key: &Arc<str>) {
        if !lock(&self.parked).contains_key(key) {
            return;
        }
        let Waiting { approvals, context } = &self.waiting;
        match approvals.call(context, key).await {
            Ok(record) if matches!(record.state, CallState::Ended { .. }) => {
                // Of two who look at the same time one tells.
                let Some(parked) = lock(&self.parked).remove(key) else { return };
                approvals.note(context, &record);
                self.remember_told(key);
                match self.tell(&record) {
                    Ok(()) => {}
                    // Too much is under way: at the next look.
                    Err(SendError::QueueFull) => {
                        lock(&self.parked).insert(key.clone(), parked);
                    }
                    // Nobody is there any more whom this session could tell.
                    Err(_) => drop(approvals.attend(context, key, None).await),
                }
            }
            Ok(_) => {
                let looks = lock(&self.parked).get_mut(key).map_or(0, |parked| {
                    parked.looks += 1;
                    parked.looks
                });
                if u64::from(looks).is_multiple_of(ATTENDED.as_secs() / 3) {
                    let _ = approvals.attend(context, key, Some(ATTENDED)).await;
                }
            }
            Err(ApprovalError::NotFound(_)) => drop(lock(&self.parked).remove(key)),
            Err(error) => tracing::debug!(call = &**key, %error, "a call that waits was not read"),
        }
    }

    fn remember_told(&self, key: &Arc<str>) {
        let mut told = lock(&self.told);
        if told.len() >= MAX_TOLD {
            told.pop_front();
        }
        told.push_back(key.clone());
    }

    fn tell(&self, record: &CallRecord) -> Result<(), SendError> {
        let shared = self.shared.upgrade().ok_or(SendError::NotActive)?;
        let mut nonce = [0u8; 8];
        // Without randomness the frame still stands; its end could be guessed.
        let _ = getrandom::fill(&mut nonce);
        let settled = Settled {
            framed: framed(record, u64::from_le_bytes(nonce)),
            words: words(record, &lock(&self.speaking).executor),
            record: Box::new(record.clone()),
        };
        shared.send_own(HostCommand::Settled(settled))
    }
}

/// A decision is carried out, and its outcome not told yet.
struct AtWork(Arc<Desk>);

impl AtWork {
    fn begin(desk: &Arc<Desk>) -> Self {
        desk.count(|calls| calls + 1);
        Self(desk.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.count(|calls| calls - 1);
    }
}

impl AgentSession {
    /// Approves a call that waits for a person: see [`EventKind::ApprovalRequested`]. Its tool runs, and
    /// the outcome is told by [`EventKind::ApprovalSettled`], and to the user at a free moment. Returns
    /// the call once it has its outcome; dropping the future changes nothing.
    ///
    /// Calls of the agent's other sessions, and of before a restart, are approved in the same way, or by
    /// [`Approvals`] without a session. A call of another session runs outside of this one, and its
    /// outcome stands in the history of its own. A call runs with the tools of the agent that asked for
    /// it: where the conversation was handed over and that one does not have it any more, one of before a
    /// restart is refused as [`ApprovalError::AnotherAgent`].
    ///
    /// [`EventKind::ApprovalRequested`]: super::EventKind::ApprovalRequested
    /// [`EventKind::ApprovalSettled`]: super::EventKind::ApprovalSettled
    pub async fn approve(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        self.desk()?.decide(key, answer, true).await
    }

    /// Refuses a call that waits for a person; otherwise as [`AgentSession::approve`].
    pub async fn deny(&self, key: &str, answer: Answer) -> Result<CallRecord, ApprovalError> {
        self.desk()?.decide(key, answer, false).await
    }

    /// The calls that wait for a person: of this session's id, or another's; or all of the agent's.
    pub async fn waiting_calls(
        &self,
        session_id: Option<&str>,
    ) -> Result<Vec<CallRecord>, ApprovalError> {
        let desk = self.desk()?;
        let Waiting { approvals, context } = &desk.waiting;
        approvals.waiting(context, session_id).await
    }

    /// A call of the agent that waits for a person, or did.
    pub async fn waiting_call(&self, key: &str) -> Result<CallRecord, ApprovalError> {
        let desk = self.desk()?;
        let Waiting { approvals, context } = &desk.waiting;
        approvals.call(context, key).await
    }

    fn desk(&self) -> Result<Arc<Desk>, ApprovalError> {
        match self.shared.desk() {
            Some(desk) => Ok(desk),
            None if self.shared.link.is_some() && !self.shared.is_running() => {
                let over = "the session does not run: decide over the calls of its store";
                Err(RuntimeError::FailedPrecondition(over.into()).into())
            }
            None => Err(ApprovalError::Unsupported),
        }
    }
}

/// What the model is told of the outcome.
fn framed(record: &CallRecord, nonce: u64) -> String {
    let (how, output) = match &record.state {
        CallState::Ended { outcome: Outcome::Success, output, .. } => {
            ("was approved and made", output)
        }
        CallState::Ended { outcome: Outcome::NotApproved, output, .. } => {
            ("was not approved", output)
        }
        CallState::Ended { outcome: Outcome::Expired, output, .. } => {
            ("was not decided over", output)
        }
        CallState::Ended { output, .. } => ("was approved and failed", output),
        _ => ("waits", &Value::Null),
    };
    let lead =
        format!("The call of {} that waited for a person {how}. Tell the user.", record.tool);
    frame_untrusted(nonce, &record.tool, &lead, &output.to_string())
}

/// The outcome in a sentence, for a voice that says it as it is.
fn words(record: &CallRecord, executor: &ToolExecutor) -> String {
    let name = record.tool.replace(['_', '-'], " ");
    let CallState::Ended { outcome, output, .. } = &record.state else { return String::new() };
    match outcome {
        Outcome::Success => {
            let tool = executor.registry().lookup(&record.tool);
            let answer = tool.and_then(|tool| tool.speech()?.answer.clone());
            match answer.and_then(|template| {
                fill(&template, &[output, &Value::Object(record.arguments.clone())])
            }) {
                Some(answer) => format!("Your request was approved. {answer}"),
                None => format!("Your request was approved: {name} is done."),
            }
        }
        Outcome::NotApproved => format!("Your request, {name}, was not approved."),
        Outcome::Expired => format!("Nobody decided over your request, {name}, in time."),
        _ => format!("Your request, {name}, was approved, but it failed."),
    }
}

/// The template with its slots filled from the first object that has them; `None` where one is left.
fn fill(template: &str, from: &[&Value]) -> Option<String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (slot, after) = after.split_once('}')?;
        filled.push_str(before);
        match from.iter().find_map(|object| object.get(slot))? {
            Value::String(text) => filled.push_str(text),
            value @ (Value::Number(_) | Value::Bool(_)) => filled.push_str(&value.to_string()),
            _ => return None,
        }
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Held for moves of plain data only.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_is_filled_or_left() {
        let output = json!({ "amount": 5, "list": [] });
        let args = json!({ "name": "Ann", "amount": 7 });
        let fill = |template| fill(template, &[&output, &args]);
        assert_eq!(fill("{amount} to {name}.").as_deref(), Some("5 to Ann."));
        assert_eq!(fill("Done.").as_deref(), Some("Done."));
        assert_eq!((fill("{list}"), fill("{who}"), fill("{open")), (None, None, None));
    }
}
