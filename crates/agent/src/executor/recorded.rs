//! What the executor leaves in the account of an agent's calls.

use std::{pin::Pin, sync::Arc, time::Duration};

use antiphon_types::{ToolCall, ToolResponse};
use serde_json::Value;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use super::{Executed, Outcome, Parking, RunContext, ToolExecutor, run::End};
use crate::{
    ledger::{AskedBy, Begin, CallRecord, Entry, Waits},
    registry::Registered,
};

/// What a model is told beside of a call that was cut off.
const MAY_HAVE_HAPPENED: &str = "; it had begun, and may have taken effect";

/// What came of an attempt to begin a call.
#[allow(clippy::large_enum_variant)] // one a call, and moved twice
pub(super) enum Begun {
    /// It may run; recorded, where there is an account.
    Run(Option<Entry>),
    /// A person is to decide.
    Ask(Value),
}

impl ToolExecutor {
    /// Records that a call is about to run. One that cannot be recorded does not run. `approved`: a
    /// person has decided that it may.
    pub(super) async fn begin(
        &self,
        call: &ToolCall,
        registered: &Registered,
        cx: &RunContext,
        approved: bool,
        cancelled: &CancellationToken,
        timeout: Pin<&mut Sleep>,
    ) -> Result<Begun, End> {
        let Some(account) = cx.invocation.account() else { return Ok(Begun::Run(None)) };
        let begin = account.begin(call, registered.effects, cx.turn, &cx.invocation, approved);
        tokio::select! {
            biased;
            begun = begin => match begun {
                Ok(Begin::Run(entry)) => Ok(Begun::Run(Some(entry))),
                Ok(Begin::Ask(question)) => Ok(Begun::Ask(question)),
                Err(error) => {
                    let text = format!("the call could not be recorded, so it did not run: {error}");
                    Err(End::of(Outcome::Error, text))
                }
            },
            () = cancelled.cancelled() => {
                Err(End::of(Outcome::Cancelled, "cancelled before it started"))
            }
            () = timeout => Err(End::of(Outcome::TimedOut, "not recorded in its time")),
        }
    }

    /// A call that does not run before a person approved it.
    pub(super) async fn ask(
        &self,
        call: ToolCall,
        registered: &Arc<Registered>,
        cx: RunContext,
        asked_by: AskedBy,
        question: Value,
        confirmed: bool,
    ) -> Executed {
        let executed = |end: End| end.into_executed(&call, registered, false);
        let (Some(account), Some(parking)) = (cx.invocation.account(), &cx.parking) else {
            let asks = serde_json::json!({ "ask": question["reason"] });
            return executed(End::paused(asks));
        };
        let mut waits = waits(parking, asked_by, question.clone(), confirmed);
        waits.by_provider = registered.by_provider;
        let parked = account.park(&call, registered.effects, cx.turn, &cx.invocation, waits).await;
        match parked {
            Ok(record) => parked_output(executed(End::paused(question)), parking, record),
            Err(error) => executed(unrecorded(&error)),
        }
    }
}

/// Records how a call ended, or that it waits. `cut`: its tool did not end by itself.
pub(super) async fn recorded(
    mut executed: Executed,
    entry: Option<Entry>,
    parking: Option<Parking>,
    confirmed: bool,
    cut: bool,
) -> Executed {
    let Some(entry) = entry else { return executed };
    let (Some(question), Some(parking)) = (&executed.interrupt, parking) else {
        if entry.is_open(&executed)
            && let Some(Value::String(error)) = executed.response.response.get_mut("error")
        {
            error.push_str(MAY_HAVE_HAPPENED);
            executed.output = Value::Object(executed.response.response.clone());
        }
        entry.end(&executed, cut).await;
        return executed;
    };
    match entry.park(waits(&parking, AskedBy::Tool, question.clone(), confirmed)).await {
        Ok(record) => parked_output(executed, &parking, record),
        Err(error) => {
            let Executed { response, detached, .. } = executed;
            let text = Outcome::Error.fixed_text();
            let response = ToolResponse::error(response.id, response.name, text);
            let detail = Some(format!("the call could not be parked: {error}"));
            Executed { detached, detail, ..Executed::new(response, Outcome::Error) }
        }
    }
}

fn waits(parking: &Parking, asked_by: AskedBy, question: Value, confirmed: bool) -> Waits {
    let Parking { expires_after, attended, speaker, memory_of, .. } = parking;
    let (expires_after, attended): (Option<Duration>, _) = (*expires_after, *attended);
    let (speaker, memory_of) = (speaker.clone(), memory_of.clone());
    let by_provider = false;
    Waits {
        asked_by,
        question,
        expires_after,
        attended,
        confirmed,
        speaker,
        memory_of,
        by_provider,
    }
}

fn parked_output(mut executed: Executed, parking: &Parking, record: CallRecord) -> Executed {
    executed.response.response = parking.waiting.clone();
    executed.output = Value::Object(parking.waiting.clone());
    executed.approval = Some(Box::new(record));
    executed
}

fn unrecorded(error: &crate::RuntimeError) -> End {
    End::of(Outcome::Error, format!("the call could not be parked: {error}"))
}
