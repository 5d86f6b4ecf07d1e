//! Going on after an interrupt.

use std::sync::Arc;

use antiphon_types::{JsonObject, ToolArguments};
use serde::Deserialize;
use serde_json::Value;

use super::{
    calls::{Call, Restart, Round, RoundEnd},
    run::Run,
};
use crate::{
    AgentFinishReason, Message, Part, Role, RuntimeError,
    approval::{ApprovalError, Approvals},
    ledger::waiting_key,
    message::{ToolRequest, ToolResponse},
    protocol::ToolResume,
};

impl Run {
    /// Resolves the tool requests of the last message. Each has an output from its first run, is
    /// answered, or runs again; if one interrupts once more, that is why the generation ends.
    pub(super) async fn take_up(&mut self) -> Result<Option<AgentFinishReason>, RuntimeError> {
        let last = self.messages.last().filter(|last| last.role == Role::Model);
        let Some(last) = last.filter(|last| last.tool_requests().next().is_some()).cloned() else {
            return Err(RuntimeError::FailedPrecondition(
                "there is nothing to resume: the last message is not one of the model that asks \
                 for a tool"
                    .into(),
            ));
        };
        let resume = std::mem::take(&mut self.request.resume);
        let mut round = round(&last, &resume)?;
        self.check_parked(&last, &mut round).await?;
        let end = self.run_calls(round).await?;
        let (message, responses) = match end {
            RoundEnd::Finished { message, responses } => (message, responses),
            RoundEnd::Interrupted { message, interrupts } => {
                self.replace_last(message);
                self.send_interrupts(interrupts).await;
                return Ok(Some(AgentFinishReason::Interrupted));
            }
        };
        self.replace_last(message);
        self.send(Role::Tool, responses.clone()).await;
        let resumed = self.request.resume_metadata.take().map_or(Value::Bool(true), Value::Object);
        let metadata = JsonObject::from_iter([("resumed".to_owned(), resumed)]);
        let responses = Message::new(Role::Tool, responses).with_metadata(Some(metadata));
        self.messages.push(Arc::new(responses));
        Ok(None)
    }

    /// Calls that wait for a person may have been decided over elsewhere meanwhile.
    async fn check_parked(&self, last: &Message, round: &mut Round) -> Result<(), RuntimeError> {
        let Some(account) = self.cx.account() else { return Ok(()) };
        let mut approvals = Approvals::of_account(account)?;
        if let Some(tools) = &self.request.tools {
            approvals = approvals.witnessed_as(tools);
        }
        let gone = |name: &str| {
            RuntimeError::InvalidArgument(format!(
                "a call of tool {name:?} is no longer pending: use approvals"
            ))
        };
        for (part, request) in last.tool_requests() {
            let Some(key) = waiting_key(part) else { continue };
            match approvals.call(account.context(), key).await {
                Ok(record) if record.is_waiting() => {
                    let restart =
                        |call: &Call| call.parked().is_some_and(|parked| **parked == *key);
                    if round.calls.iter().any(restart) {
                        approvals.check_tools(&record)?;
                    }
                    let confirmed = record.approval.is_some_and(|approval| approval.confirmed);
                    // The caller was asked already, before the call waited for another person.
                    for restart in round.calls.iter_mut().filter_map(|it| it.restart.as_mut()) {
                        if confirmed && restart.parked.as_deref() == Some(key) {
                            restart.confirmed = Some(true);
                        }
                    }
                }
                Ok(_) | Err(ApprovalError::NotFound(_)) => return Err(gone(&request.name)),
                Err(error) => return Err(error.into()),
            }
        }
        for (index, response) in &round.settled {
            let Some(key) = waiting_key(&last.content[*index]) else { continue };
            let output = response.as_tool_response().and_then(|it| it.output.clone());
            let by = self.cx.caller().map(|caller| caller.id.clone());
            approvals.answer(account, key, output.unwrap_or_default(), by).await.map_err(
                |error| match error {
                    ApprovalError::NotWaiting(record) => gone(&record.tool),
                    error => error.into(),
                },
            )?;
        }
        Ok(())
    }

    fn replace_last(&mut self, message: Message) {
        self.messages.pop();
        self.messages.push(Arc::new(message));
    }
}

/// What is to be done about each request of `last`.
fn round(last: &Message, resume: &ToolResume) -> Result<Round, RuntimeError> {
    let (mut calls, mut settled) = (Vec::new(), Vec::new());
    let (mut responds, mut restarts) = (responses(resume), requests(resume));
    for (index, part) in last.content.iter().enumerate() {
        let Some(request) = part.as_tool_request() else { continue };
        let respond = take(&mut responds, |(_, it)| request.is_call(&it.name, it.id.as_deref()));
        let restart = take(&mut restarts, |(_, it)| request.is_call(&it.name, it.id.as_deref()));
        match (part.metadata_entry("pendingOutput"), respond, restart) {
            (Some(output), None, None) => settled.push((index, pending(part, request, output))),
            (None, Some((respond, _)), None) => settled.push((index, respond.clone())),
            (None, None, Some((restart, again))) => {
                calls.push(call(index, part, request, restart, again));
            }
            (None, None, None) => {
                return Err(invalid(request, "waits, and is neither answered nor restarted"));
            }
            (None, Some(_), Some(_)) => {
                return Err(invalid(request, "is both answered and restarted"));
            }
            (Some(_), ..) => return Err(invalid(request, "has its output already")),
        }
    }
    if let Some((_, response)) = responds.first() {
        return Err(unrequested(&response.name, response.id.as_deref()));
    }
    if let Some((_, request)) = restarts.first() {
        return Err(unrequested(&request.name, request.id.as_deref()));
    }
    Ok(Round { message: last.clone(), calls, settled })
}

/// The call that `restart` runs again.
fn call(
    index: usize,
    part: &Part,
    request: &ToolRequest,
    restart: &Part,
    again: &ToolRequest,
) -> Call {
    let replaced = restart.metadata_entry("replacedInput").cloned();
    let replaced = replaced.or_else(|| {
        // Replaced without a note of it.
        (again.input != request.input).then(|| request.input.clone().unwrap_or_default())
    });
    let resumed = restart.metadata_entry("resumed").filter(|resumed| is_truthy(resumed)).cloned();
    // What was asked is read from the history, not from what the client sends.
    let interrupt = part.metadata_entry("interrupt");
    let asked = interrupt.and_then(|it| it.get("confirm")).is_some();
    let parked = waiting_key(part).map(Arc::from);
    let restart = if parked.is_some() || interrupt.and_then(|it| it.get("ask")).is_some() {
        // Whoever may resume the conversation may approve.
        Restart { parked, approved: true, original_input: replaced, resumed, confirmed: None }
    } else if asked {
        let yes = resumed.is_some_and(|it| it == true || it["confirmed"] == true);
        let confirmed = Some(yes);
        Restart { confirmed, original_input: replaced, ..Restart::default() }
    } else {
        let confirmed = part.metadata_entry("confirmed").is_some_and(|it| *it == true);
        let confirmed = confirmed.then_some(true);
        Restart { confirmed, original_input: replaced, resumed, ..Restart::default() }
    };
    Call {
        part: index,
        name: request.name.clone(),
        reference: request.id.clone(),
        arguments: match &again.input {
            Some(Value::Object(input)) => ToolArguments::Object(input.clone()),
            None | Some(Value::Null) => ToolArguments::Object(JsonObject::new()),
            // No object: the executor says so.
            Some(other) => ToolArguments::Json(other.to_string()),
        },
        restart: Some(restart),
    }
}

/// The response of a call that finished beside one that interrupted.
fn pending(part: &Part, request: &ToolRequest, output: &Value) -> Part {
    let mut response = ToolResponse::new(request.name.clone(), request.id.clone(), output.clone());
    let content = part.metadata_entry("pendingContent");
    response.content = content.and_then(|content| Vec::deserialize(content).ok());
    Part::new(crate::PartKind::ToolResponse(response)).with_metadata_entry("source", "pending")
}

fn responses(resume: &ToolResume) -> Vec<(&Part, &ToolResponse)> {
    resume.respond.iter().filter_map(|part| Some((part, part.as_tool_response()?))).collect()
}

fn requests(resume: &ToolResume) -> Vec<(&Part, &ToolRequest)> {
    resume.restart.iter().filter_map(|part| Some((part, part.as_tool_request()?))).collect()
}

fn take<T>(items: &mut Vec<T>, matches: impl Fn(&T) -> bool) -> Option<T> {
    items.iter().position(matches).map(|index| items.remove(index))
}

/// As JavaScript sees it: clients of it send these.
fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(_) | Value::Object(_) => true,
    }
}

fn invalid(request: &ToolRequest, what: &str) -> RuntimeError {
    let (name, id) = (&request.name, request.id.as_deref().unwrap_or(""));
    RuntimeError::InvalidArgument(format!("the call {id:?} of tool {name:?} {what}"))
}

fn unrequested(name: &str, id: Option<&str>) -> RuntimeError {
    let id = id.unwrap_or("");
    RuntimeError::InvalidArgument(format!(
        "the last message has no call {id:?} of tool {name:?} that could be resumed"
    ))
}
