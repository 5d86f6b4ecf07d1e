//! What the executor has the policy's witness remember.

use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, PoisonError},
};

use antiphon_types::{ToolArguments, ToolCall, ToolCallRequest};

use super::{
    Admission, Executed, Outcome, Refused, ToolExecutor,
    admit::{denied, rate_limited},
    run::End,
};
use crate::{
    CallContext, Denial,
    witness::{CallEnd, Decision, Kept, Refusal, Ruling, Witness, caught},
};

/// Decisions and outcomes that may be written down at the same time.
pub(super) const MAX_RECORDS: usize = 32;

impl ToolExecutor {
    /// Has a decision remembered on the caller's thread.
    pub(super) fn witness_blocking(
        &self,
        cx: &CallContext,
        admission: Admission,
        policies: Vec<Arc<str>>,
        request: &ToolCallRequest,
    ) -> Admission {
        let Some(witness) = &self.witness else { return admission };
        let Some(decision) = self.decision(cx, &admission, policies, request) else {
            return admission;
        };
        self.applied(admission, told(&**witness, cx, &decision))
    }

    /// Has a decision remembered on the blocking pool. One that allows a call and cannot be remembered
    /// in time denies it.
    pub(super) async fn witness(
        &self,
        cx: &CallContext,
        admission: Admission,
        policies: Vec<Arc<str>>,
        request: &ToolCallRequest,
    ) -> Admission {
        let Some(witness) = self.witness.clone() else { return admission };
        let Some(decision) = self.decision(cx, &admission, policies, request) else {
            return admission;
        };
        let cx = cx.clone();
        let told = self.recording(move || told(&*witness, &cx, &decision)).await;
        self.applied(admission, told.unwrap_or_else(|reason| Err(denial(reason))))
    }

    /// Has it remembered that a call is refused for a reason outside of the policy. Nobody waits for it.
    pub(super) fn witness_refusal(
        &self,
        cx: &CallContext,
        request: &ToolCallRequest,
        refused: &Refused,
    ) {
        let Some(witness) = self.witness.clone() else { return };
        let admission = Admission::Refused(refused.clone());
        let Some(decision) = self.decision(cx, &admission, Vec::new(), request) else { return };
        let cx = cx.clone();
        let tell = move || drop(caught(|| witness.decided(&cx, &decision)));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(tell)),
            Err(_) => tell(),
        }
    }

    /// Has the second decision over a call that waited remembered.
    pub(super) async fn witness_again(
        &self,
        kept: &mut Option<Kept>,
        cx: CallContext,
        decision: Decision,
    ) -> Result<(), End> {
        let Some(mut held) = kept.take() else { return Ok(()) };
        let told = self
            .recording(move || {
                let told = held.decided_again(&cx, &decision);
                (held, told)
            })
            .await;
        let (held, told) = told.map_err(|reason| End::refused(denial(reason)))?;
        *kept = Some(held);
        told.map_err(End::refused)
    }

    /// Has the end of a call remembered.
    pub(super) async fn witnessed_end(
        &self,
        kept: Option<Kept>,
        mut executed: Executed,
    ) -> Executed {
        let Some(mut kept) = kept else { return executed };
        let ran = kept.has_run();
        kept.ends(CallEnd { by_host: kept.is_by_host(), ..CallEnd::of(&executed, ran) });
        match self.recording(move || kept.end()).await {
            Ok(receipt) => executed.receipt = receipt.map(Box::new),
            Err(reason) => {
                let call = &*executed.response.id;
                tracing::error!(call, reason, "the end of a tool call could not be written down");
            }
        }
        executed
    }

    /// The admission after the witness was told.
    fn applied(&self, admission: Admission, told: Result<Option<Kept>, Refusal>) -> Admission {
        let (call, refusal) = match (admission, told) {
            (Admission::Run(mut admitted), Ok(kept)) => {
                admitted.kept = kept;
                return Admission::Run(admitted);
            }
            (Admission::Host(call), Ok(kept)) => {
                if let Some(kept) = kept {
                    let mut handed = self.handed();
                    if handed.len() < self.limits.max_remembered_calls {
                        handed.insert(call.id.clone(), kept);
                    }
                }
                return Admission::Host(call);
            }
            (Admission::Run(admitted), Err(refusal)) => (admitted.call, refusal),
            (Admission::Host(call), Err(refusal)) => (call, refusal),
            (other, _) => return other,
        };
        let ToolCall { id, name, args } = call;
        let request = ToolCallRequest { id, name, arguments: ToolArguments::Object(args.clone()) };
        match refusal {
            Refusal::Denied(denial) => denied(&request, denial, args),
            Refusal::RateLimited(limit) => rate_limited(&request, limit, args),
        }
    }

    /// The host has answered a call that it was [handed](Admission::Host), or did not in time. The
    /// policy's [witness](crate::witness) is told, and `executed` comes back with the receipt.
    pub async fn answered_by_host(&self, executed: Executed) -> Executed {
        let kept = self.handed().remove(&executed.response.id);
        let Some(mut kept) = kept else { return executed };
        if executed.outcome == Outcome::Success {
            // Who answers it was handed it.
            kept.runs();
        }
        self.witnessed_end(Some(kept), executed).await
    }

    /// The host was handed this call: from here on it may do something.
    pub fn handed_over(&self, id: &str) {
        if let Some(kept) = self.handed().get_mut(id) {
            kept.runs();
        }
    }

    /// The host is not going to be handed this call, which it was to [answer](Admission::Host).
    pub fn not_handed_over(&self, id: &str) {
        if let Some(kept) = self.handed().remove(id) {
            let why = "given up before the host was handed it";
            kept.end_behind(CallEnd::not_run(Outcome::Cancelled, why));
        }
    }

    /// Whoever asked for a round of tools answers this call, and nobody here sees it.
    pub(crate) fn answered_elsewhere(&self, id: &str) {
        if let Some(mut kept) = self.handed().remove(id) {
            kept.runs();
            let why = "whoever asked for the reply answers it";
            kept.end_behind(CallEnd::not_run(Outcome::Paused, why));
        }
    }

    /// Nothing foreign runs under this lock, so a poisoned one still guards whole data.
    fn handed(&self) -> MutexGuard<'_, HashMap<Arc<str>, Kept>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `record` on the blocking pool, at most [`MAX_RECORDS`] at a time, within the time for it.
    async fn recording<T: Send + 'static>(
        &self,
        record: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let lanes = self.records.clone();
        let recorded = async move {
            // The semaphore is never closed.
            let lane = lanes.acquire_owned().await.ok();
            let recorded = tokio::task::spawn_blocking(move || {
                let _lane = lane;
                record()
            });
            recorded.await.map_err(|error| format!("the witness of the policy failed: {error}"))
        };
        let limit = self.limits.record_deadline;
        let late = |_| format!("not written down within {} ms", limit.as_millis());
        tokio::time::timeout(limit, recorded).await.map_err(late)?
    }

    /// What is to be remembered of an admission; `None` where another one of the same call is.
    fn decision(
        &self,
        cx: &CallContext,
        admission: &Admission,
        policies: Vec<Arc<str>>,
        request: &ToolCallRequest,
    ) -> Option<Decision> {
        let (mut original, mut unparsed) = (None, None);
        let (call, ruling) = match admission {
            Admission::Run(admitted) => {
                original = admitted.original.clone();
                let ruling = match &admitted.asks {
                    Some(reason) => Ruling::Ask { reason: reason.clone() },
                    None => Ruling::Run,
                };
                (admitted.call.clone(), ruling)
            }
            Admission::Host(call) => (call.clone(), Ruling::HandOver),
            Admission::Confirm { read_back, request } => {
                let args = self.parse(request).unwrap_or_default();
                let call = ToolCall { id: request.id.clone(), name: request.name.clone(), args };
                (call, Ruling::Confirm { read_back: read_back.clone() })
            }
            Admission::Refused(refused) => {
                let (id, name) = (refused.response.id.clone(), refused.response.name.clone());
                // One that was refused before anybody looked at its arguments has some all the same.
                let args = refused.args.clone().or_else(|| self.parse(request).ok());
                if args.is_none() {
                    unparsed = Some(as_text(&request.arguments));
                }
                let args = args.unwrap_or_default();
                let (outcome, reason) = (refused.outcome, refused.reason.clone());
                let ruling = Ruling::Refuse { outcome, reason, until: refused.until };
                (ToolCall { id, name, args }, ruling)
            }
            Admission::Duplicate => return None,
        };
        let point = cx.point();
        Some(Decision { call, original, ruling, policies, point, by: None, unparsed })
    }
}

/// Tells the witness. What it keeps is given back where that is dropped because it came late.
fn told(
    witness: &dyn Witness,
    cx: &CallContext,
    decision: &Decision,
) -> Result<Option<Kept>, Refusal> {
    let commitment = caught(|| witness.decided(cx, decision))?;
    Ok(match decision.ruling {
        Ruling::Run => commitment.map(Kept::new),
        Ruling::HandOver => commitment.map(|commitment| Kept::new(commitment).by_host()),
        _ => None,
    })
}

fn as_text(arguments: &ToolArguments) -> Arc<str> {
    match arguments {
        ToolArguments::Json(text) => text.as_str().into(),
        ToolArguments::Object(object) => serde_json::to_string(object).unwrap_or_default().into(),
    }
}

fn denial(reason: String) -> Refusal {
    Refusal::Denied(Denial::private(reason))
}
