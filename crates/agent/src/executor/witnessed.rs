//! What the executor has the policy's witness remember.

use std::sync::Arc;

use antiphon_types::{ToolArguments, ToolCall, ToolCallRequest};

use super::{
    Admission, Executed, ToolExecutor,
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
    ) -> Admission {
        let Some(witness) = &self.witness else { return admission };
        let Some(decision) = self.decision(cx, &admission, policies) else { return admission };
        applied(admission, told(&**witness, cx, &decision))
    }

    /// Has a decision remembered on the blocking pool. One that allows a call and cannot be remembered
    /// in time denies it.
    pub(super) async fn witness(
        &self,
        cx: &CallContext,
        admission: Admission,
        policies: Vec<Arc<str>>,
    ) -> Admission {
        let Some(witness) = self.witness.clone() else { return admission };
        let Some(decision) = self.decision(cx, &admission, policies) else { return admission };
        let cx = cx.clone();
        let told = self.recording(move || told(&*witness, &cx, &decision)).await;
        applied(admission, told.unwrap_or_else(|reason| Err(denial(reason))))
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
        let Some(kept) = kept else { return executed };
        let end = CallEnd::of(&executed, kept.has_run());
        match self.recording(move || kept.end(&end)).await {
            Ok(receipt) => executed.receipt = receipt.map(Box::new),
            Err(reason) => {
                let call = &*executed.response.id;
                tracing::error!(call, reason, "the end of a tool call could not be written down");
            }
        }
        executed
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
    ) -> Option<Decision> {
        let mut original = None;
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
                let args = refused.args.clone().unwrap_or_default();
                let (outcome, reason) = (refused.outcome, refused.reason.clone());
                let ruling = Ruling::Refuse { outcome, reason, until: refused.until };
                (ToolCall { id, name, args }, ruling)
            }
            Admission::Duplicate => return None,
        };
        Some(Decision { call, original, ruling, policies, point: cx.point() })
    }
}

/// Tells the witness. What it keeps is given back where that is dropped because it came late.
fn told(
    witness: &dyn Witness,
    cx: &CallContext,
    decision: &Decision,
) -> Result<Option<Kept>, Refusal> {
    let commitment = caught(|| witness.decided(cx, decision))?;
    Ok(commitment.filter(|_| decision.ruling == Ruling::Run).map(Kept::new))
}

/// The admission after the witness was told.
fn applied(admission: Admission, told: Result<Option<Kept>, Refusal>) -> Admission {
    let refusal = match (admission, told) {
        (Admission::Run(mut admitted), Ok(kept)) => {
            admitted.kept = kept;
            return Admission::Run(admitted);
        }
        (Admission::Run(admitted), Err(refusal)) => (admitted.call, refusal),
        (Admission::Host(call), Err(refusal)) => (call, refusal),
        (other, _) => return other,
    };
    let (call, refusal) = refusal;
    let ToolCall { id, name, args } = call;
    let request = ToolCallRequest { id, name, arguments: ToolArguments::Object(args.clone()) };
    match refusal {
        Refusal::Denied(denial) => denied(&request, denial, args),
        Refusal::RateLimited(limit) => rate_limited(&request, limit, args),
    }
}

fn denial(reason: String) -> Refusal {
    Refusal::Denied(Denial::private(reason))
}
