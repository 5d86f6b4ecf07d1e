//! Calls of a session that wait for a person, while it lives.
//!
//! A call that was parked is looked at every second, whoever decides over it; once it has its outcome
//! the session is told, which tells its hosts, its journal and the model.

use std::{
    collections::BTreeMap,
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
    task::JoinSet,
};

use super::{
    AgentSession,
    engine::{HostCommand, frame_untrusted},
    shared::Shared,
};

/// How often calls that wait are looked at: others may decide over them.
const LOOK: Duration = Duration::from_secs(1);
/// For how long the session says that it lives; said again after a third of it.
pub(crate) const ATTENDED: Duration = Duration::from_secs(30);

/// What a linked agent's session needs for its calls that wait.
pub(crate) struct Waiting {
    pub(crate) approvals: Approvals,
    /// Of the invocation.
    pub(crate) context: InvocationContext,
}

/// Attends to the calls of a run that wait for a person.
pub(crate) struct Desk {
    waiting: Waiting,
    executor: Mutex<ToolExecutor>,
    memory: Arc<dyn Memory>,
    shared: Weak<Shared>,
    session_id: Arc<str>,
    parked: Mutex<BTreeMap<Arc<str>, Parked>>,
    changed: Notify,
    tasks: Mutex<Option<JoinSet<()>>>,
}

#[derive(Clone, Copy, Default)]
struct Parked {
    looks: u32,
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
        waiting: Waiting,
        executor: ToolExecutor,
        shared: &Arc<Shared>,
    ) -> Arc<Self> {
        let desk = Arc::new(Self {
            waiting,
            executor: Mutex::new(executor),
            memory: shared.memory.clone(),
            session_id: shared.session_id(),
            shared: Arc::downgrade(shared),
            parked: Mutex::default(),
            changed: Notify::new(),
            tasks: Mutex::new(Some(JoinSet::new())),
        });
        let attending = desk.clone();
        desk.spawn(async move { attending.attend().await });
        desk
    }

    /// Another agent's tools run from now on.
    pub(crate) fn set_executor(&self, executor: ToolExecutor) {
        *lock(&self.executor) = executor;
    }

    /// A call of the session was parked.
    pub(crate) fn parked(&self, record: &CallRecord) {
        lock(&self.parked).insert(record.key.clone(), Parked::default());
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
        self.spawn(async move {
            let Waiting { approvals, context } = &desk.waiting;
            let result = match approves {
                true => {
                    let (memory, tools) = (desk.memory.clone(), lock(&desk.executor).clone());
                    approvals.approve(context, &key, answer, &tools, memory).await
                }
                false => approvals.deny(context, &key, answer).await,
            };
            desk.changed.notify_one();
            let _ = done.send(result);
        });
        let over = || RuntimeError::Cancelled("the session is over".into());
        decided.await.unwrap_or_else(|_| Err(over().into()))
    }

    /// Ends all that is at work, without waiting for it.
    pub(crate) fn abort(&self) {
        drop(lock(&self.tasks).take());
    }

    /// The run is over: nobody attends any more.
    pub(crate) async fn close(&self) {
        let tasks = lock(&self.tasks).take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
        let parked: Vec<_> = std::mem::take(&mut *lock(&self.parked)).into_keys().collect();
        for key in parked {
            let Waiting { approvals, context } = &self.waiting;
            if let Err(error) = approvals.attend(&context.uncancelled(), &key, None).await {
                tracing::debug!(call = &*key, %error, "a call that waits is not told that nobody attends");
            }
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(tasks) = &mut *lock(&self.tasks) {
            while tasks.try_join_next().is_some() {}
            tasks.spawn(work);
        }
    }

    async fn attend(&self) {
        let Waiting { approvals, context } = &self.waiting;
        match approvals.unsettled(context, Some(&self.session_id)).await {
            Ok(calls) => {
                for record in calls {
                    if approvals.is_told(context, &record.key) {
                        continue;
                    }
                    let _ = approvals.attend(context, &record.key, Some(ATTENDED)).await;
                    self.parked(&record);
                }
            }
            Err(error) => tracing::warn!(%error, "the calls that wait could not be read"),
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

    async fn look(&self, key: &Arc<str>) {
        let Waiting { approvals, context } = &self.waiting;
        match approvals.call(context, key).await {
            Ok(record) if matches!(record.state, CallState::Ended { .. }) => {
                lock(&self.parked).remove(key);
                approvals.note(context, &record);
                self.tell(record);
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

    fn tell(&self, record: CallRecord) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut nonce = [0u8; 8];
        // Without randomness the frame still stands; its end could be guessed.
        let _ = getrandom::fill(&mut nonce);
        let settled = Settled {
            framed: framed(&record, u64::from_le_bytes(nonce)),
            words: words(&record, &lock(&self.executor)),
            record: Box::new(record),
        };
        // An error says that the session is over: whoever goes on with it is told.
        let _ = shared.send(HostCommand::Settled(settled), |_| Ok(()));
    }
}

impl AgentSession {
    /// Approves a call that waits for a person: see [`EventKind::ApprovalRequested`]. Its tool runs, and
    /// the outcome is told by [`EventKind::ApprovalSettled`], and to the user at a free moment. Returns
    /// the call once it has its outcome; dropping the future changes nothing.
    ///
    /// Calls of the agent's other sessions, and of before a restart, are approved in the same way, or by
    /// [`Approvals`] without a session.
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

    fn desk(&self) -> Result<Arc<Desk>, ApprovalError> {
        self.shared.desk().ok_or(ApprovalError::Unsupported)
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
