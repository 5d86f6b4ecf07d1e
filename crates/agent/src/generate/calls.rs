//! One round of tools: the calls of a message of the model, at the same time.

use std::{collections::HashMap, sync::Arc};

use antiphon_types::{ToolArguments, ToolCall, ToolCallRequest};
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{ToolErrors, run::Run};
use crate::{
    Admission, CallContext, Executed, InvocationContext, Memory, Message, ModelReply,
    ModelResponseChunk, Outcome, Parking, Part, Refused, RunContext, RuntimeError, ScopedMemory,
    ToolExecutor, ToolRegistry,
    approval::{ApprovalError, Approvals},
    executor::Claimed,
    ledger::{AskedBy, CallRecord, LEDGER, parked_request, waiting_key},
    message::ToolResponse,
};

/// Chunks of tools that wait for a slow reader; the tools wait beyond.
const PROGRESS_BUFFER: usize = 16;

/// A message of the model, with what is to be done about its tool requests.
pub(super) struct Round {
    pub(super) message: Message,
    pub(super) calls: Vec<Call>,
    /// Responses that are there already, by the index of the request's part.
    pub(super) settled: Vec<(usize, Part)>,
}

/// A call to be run.
pub(super) struct Call {
    /// The index of its part.
    pub(super) part: usize,
    pub(super) name: Arc<str>,
    pub(super) reference: Option<Arc<str>>,
    pub(super) arguments: ToolArguments,
    pub(super) restart: Option<Restart>,
}

impl Call {
    /// The record of a call that was parked, and runs again.
    pub(super) fn parked(&self) -> Option<&Arc<str>> {
        self.restart.as_ref()?.parked.as_ref()
    }
}

/// What is different about a call that runs again.
#[derive(Default)]
pub(super) struct Restart {
    pub(super) resumed: Option<Value>,
    pub(super) original_input: Option<Value>,
    /// What the user said to the question of policy or tool, where there was one.
    pub(super) confirmed: Option<bool>,
    /// A person approved it.
    pub(super) approved: bool,
    /// The record of a call that was parked.
    pub(super) parked: Option<Arc<str>>,
}

/// How a round ended.
pub(super) enum RoundEnd {
    /// All calls have an output.
    Finished { message: Message, responses: Vec<Part> },
    /// Some wait: `interrupts` are their requests.
    Interrupted { message: Message, interrupts: Vec<Part> },
}

enum CallEnd {
    Output { output: Value, parts: Vec<Part>, failure: Option<RuntimeError> },
    Paused { interrupt: Value, confirmed: bool, parked: Option<Parked> },
}

/// What there is to a call that waits for a person in a record of its own.
struct Parked {
    key: Arc<str>,
    /// The output meanwhile.
    waiting: Value,
}

impl Round {
    /// The calls of a new message.
    pub(super) fn of_reply(mut reply: ModelReply) -> Self {
        let calls = std::mem::take(&mut reply.tool_calls);
        let mut message = reply.into_message();
        let requests = message.content.iter_mut().enumerate();
        let mut requests = requests.filter(|(_, part)| part.as_tool_request().is_some());
        let calls = calls.into_iter().zip(&mut requests).map(|(call, (part, request))| {
            // These notes are the runtime's; a model cannot make them.
            NOTES.iter().for_each(|note| remove_note(request, note));
            let reference = (!call.id.is_empty()).then_some(call.id);
            let (name, arguments) = (call.name, call.arguments);
            Call { part, name, reference, arguments, restart: None }
        });
        let calls = calls.collect();
        Self { message, calls, settled: Vec::new() }
    }

    /// The round with the ends of its calls.
    fn end(self, ends: Vec<(usize, CallEnd)>) -> RoundEnd {
        let Self { mut message, mut settled, .. } = self;
        let mut paused = Vec::new();
        for (part, end) in ends {
            match end {
                CallEnd::Output { output, parts, .. } => {
                    if let Some(request) = message.content[part].as_tool_request() {
                        let (name, id) = (request.name.clone(), request.id.clone());
                        let mut response = ToolResponse::new(name, id, output);
                        response.content = (!parts.is_empty()).then_some(parts);
                        settled.push((part, Part::new(crate::PartKind::ToolResponse(response))));
                    }
                }
                CallEnd::Paused { interrupt, confirmed, parked } => {
                    paused.push(part);
                    let request = &mut message.content[part];
                    if let Some(Parked { key, waiting }) = parked {
                        *request = parked_request(request.clone(), &key, &interrupt, waiting);
                    }
                    let notes = request.metadata.get_or_insert_default();
                    notes.insert("interrupt".into(), interrupt);
                    if confirmed {
                        notes.insert("confirmed".into(), true.into());
                    }
                }
            }
        }
        settled.sort_by_key(|(part, _)| *part);
        for (part, _) in &settled {
            resolve(&mut message.content[*part]);
        }
        if paused.is_empty() {
            let responses = settled.into_iter().map(|(_, response)| response).collect();
            return RoundEnd::Finished { message, responses };
        }
        for (part, response) in settled {
            keep_output(&mut message.content[part], response);
        }
        paused.sort_unstable();
        let interrupts = paused.into_iter().map(|part| message.content[part].clone()).collect();
        RoundEnd::Interrupted { message, interrupts }
    }
}

impl Run {
    /// Runs the calls at the same time. The outputs are in the order of the requests.
    pub(super) async fn run_calls(&mut self, mut round: Round) -> Result<RoundEnd, RuntimeError> {
        let (progress, mut chunks) = mpsc::channel(PROGRESS_BUFFER);
        let progress = self.is_streaming().then_some(progress);
        let lane = Lane::new(self, progress);
        let fails = self.request.tool_errors == ToolErrors::Fail;

        let mut ids = CallIds::default();
        let running = std::mem::take(&mut round.calls).into_iter().map(|call| {
            let id = ids.of(&call);
            let (lane, part) = (lane.clone(), call.part);
            async move { (part, lane.run(call, id).await) }
        });
        let mut running: FuturesUnordered<_> = running.collect();
        drop(lane);
        let mut ends = Vec::with_capacity(running.len());
        while !running.is_empty() {
            tokio::select! {
                biased;
                Some(chunk) = chunks.recv() => self.send_chunk(chunk).await,
                Some(end) = running.next() => match end {
                    (_, CallEnd::Output { failure: Some(error), .. }) if fails => return Err(error),
                    end => ends.push(end),
                },
            }
        }
        drop(running);
        while let Ok(chunk) = chunks.try_recv() {
            self.send_chunk(chunk).await;
        }
        Ok(round.end(ends))
    }
}

/// What all calls of a round share.
#[derive(Clone)]
struct Lane {
    executor: ToolExecutor,
    context: CallContext,
    /// The memory of all sessions.
    memory: Arc<dyn Memory>,
    parking: Parking,
    progress: Option<mpsc::Sender<ModelResponseChunk>>,
}

impl Lane {
    fn new(run: &Run, progress: Option<mpsc::Sender<ModelResponseChunk>>) -> Self {
        let executor = match &run.request.tools {
            Some(tools) => tools.with_new_ids(),
            None => ToolExecutor::new(Arc::new(ToolRegistry::new()), None),
        };
        let session = run.cx.session_access().map(|session| session.session_id());
        let session = session.unwrap_or_default();
        let memory: Arc<dyn Memory> = match &*session {
            "" => run.request.memory.clone(),
            id => {
                let memory = run.request.memory.clone();
                Arc::new(ScopedMemory::of_tenant(memory, run.cx.scope(), id))
            }
        };
        let turn = run.cx.turn().map_or(1, |turn| turn.turn_index + 1);
        let mut context = CallContext::new(session, turn, memory);
        context.invocation = run.cx.clone();
        let (memory, parking) = (run.request.memory.clone(), run.request.parking.clone());
        Self { executor, context, memory, parking, progress }
    }

    /// Runs one call to its end.
    async fn run(self, call: Call, id: Arc<str>) -> CallEnd {
        let Self { executor, mut context, memory, parking, progress } = self;
        let Call { name, reference, arguments, restart, .. } = call;
        let restart = restart.unwrap_or_default();
        let request = ToolCallRequest { id, name: name.clone(), arguments };
        if restart.confirmed == Some(false) {
            let reason = "the user was asked and did not confirm it";
            let refusal = executor.refuse_in(&context, &request, Outcome::NotConfirmed, reason);
            return refused(&name, refusal);
        }
        context.confirmed = restart.confirmed == Some(true);
        (context.approved, context.waited) = (restart.approved, restart.approved);
        if restart.approved {
            let approver = context.invocation.caller().map(|caller| caller.id.clone());
            context.approved_by = approver.filter(|id| !id.is_empty());
        }
        let approver = context.invocation.clone();
        if let Some(key) = &restart.parked
            && let Some(record) = parked(&approver, key).await
        {
            let memory_of = record.approval.as_ref().and_then(|it| it.memory_of.as_ref());
            if let Some(whose) = memory_of {
                context.memory = Arc::new(ScopedMemory::of_tenant(memory, approver.scope(), whose));
            }
            // Judged, counted and run in the name of who asked for it.
            context.invocation = record.on_behalf(&approver);
        }
        let admitted = match executor.admit_text(&context, request).await {
            Admission::Run(admitted) => admitted,
            Admission::Refused(refusal) => {
                if let Some(key) = &restart.parked {
                    refuse_parked(&context.invocation, key, &refusal).await;
                }
                return refused(&name, refusal);
            }
            // Whoever called the generation answers it.
            Admission::Host(call) => {
                executor.answered_elsewhere(&call.id);
                return paused(json!(true), false);
            }
            Admission::Confirm { read_back, .. } => {
                return paused(json!({ "confirm": read_back }), false);
            }
            Admission::Duplicate => return duplicate(&name),
        };
        let cancelled = context.invocation.cancellation().child_token();
        let CallContext { session_id, turn, memory, invocation, confirmed, .. } = context;
        let mut cx = RunContext::new(session_id, turn, memory, cancelled)
            .with_invocation(invocation)
            .parking_asked(parking.clone());
        cx.resumed = restart.resumed;
        if let Some(key) = &restart.parked {
            match claim(&approver, key, admitted.call()).await {
                Ok(claimed) => {
                    // Where it waits once more, it does so in the same record.
                    cx = cx.parking(parking);
                    cx.claimed = claimed;
                }
                Err(error) => {
                    let call = admitted.withdraw(Outcome::NotApproved, error.to_string());
                    return refused(&name, call);
                }
            }
            // Only the tool itself knows what to make of an answer.
            let asked_by = cx.claimed.as_ref().and_then(|it| it.record.approval.as_ref());
            if asked_by.is_none_or(|approval| approval.asked_by != AskedBy::Tool) {
                cx.resumed = None;
            }
        }
        cx.original_input = restart.original_input;
        if let Some(progress) = progress {
            cx = cx.with_stream(progress, reference);
        }
        match executor.run(admitted, cx).await {
            Executed { interrupt: Some(interrupt), approval, output, .. } => {
                let parked = approval.map(|record| Parked { key: record.key, waiting: output });
                CallEnd::Paused { interrupt, confirmed, parked }
            }
            Executed { output, parts, outcome, detail, .. } => {
                CallEnd::Output { output, parts, failure: failure(&name, outcome, detail) }
            }
        }
    }
}

/// The executor's ids of a round's calls. The `ref` of a part is unique within its message at most,
/// and may be missing.
#[derive(Default)]
struct CallIds {
    taken: HashMap<Arc<str>, Arc<str>>,
}

impl CallIds {
    /// The same call twice has the same id: the executor refuses the second.
    fn of(&mut self, call: &Call) -> Arc<str> {
        if let Some(reference) = &call.reference {
            let tool = self.taken.entry(reference.clone()).or_insert_with(|| call.name.clone());
            if *tool == call.name {
                return reference.clone();
            }
        }
        crate::id::new_id()
    }
}

/// The record of a call that waits for a person.
async fn parked(cx: &InvocationContext, key: &str) -> Option<CallRecord> {
    let account = cx.account()?;
    Approvals::of_account(account).ok()?.call(account.context(), key).await.ok()
}

/// Takes the call of this record, which waits for a person, for the caller.
async fn claim(
    cx: &InvocationContext,
    key: &str,
    call: &ToolCall,
) -> Result<Option<Claimed>, ApprovalError> {
    let Some(account) = cx.account() else { return Ok(None) };
    let by = cx.caller().map(|caller| caller.id.clone());
    Approvals::of_account(account)?.claim(account.context(), key, call, by).await.map(Some)
}

/// The policy refuses a call that waited for a person: it does not wait any more.
async fn refuse_parked(cx: &InvocationContext, key: &str, refusal: &Refused) {
    let Some(account) = cx.account() else { return };
    let refused = async { Approvals::of_account(account)?.refuse(account, key, refusal).await };
    if let Err(error) = refused.await {
        tracing::warn!(call = key, %error, "the record of a refused call could not be changed");
    }
}

fn paused(interrupt: Value, confirmed: bool) -> CallEnd {
    CallEnd::Paused { interrupt, confirmed, parked: None }
}

fn refused(name: &str, refused: Refused) -> CallEnd {
    let Refused { response, outcome, reason, .. } = refused;
    let output = Value::Object(response.response);
    CallEnd::Output { output, parts: Vec::new(), failure: failure(name, outcome, Some(reason)) }
}

fn duplicate(name: &str) -> CallEnd {
    let text = "the message has another call of this tool with the same id; it was run once";
    let failure = failure(name, Outcome::InvalidArguments, Some(text.into()));
    CallEnd::Output { output: json!({ "error": text }), parts: Vec::new(), failure }
}

fn failure(name: &str, outcome: Outcome, detail: Option<String>) -> Option<RuntimeError> {
    let status = outcome.status()?;
    let detail = detail.unwrap_or_else(|| outcome.fixed_text().into());
    Some(RuntimeError::new(status, format!("tool {name:?}: {detail}")))
}

/// What the runtime notes on tool requests.
const NOTES: [&str; 8] = [
    LEDGER,
    "interrupt",
    "pendingOutput",
    "pendingContent",
    "resolvedInterrupt",
    "resumed",
    "replacedInput",
    "confirmed",
];

/// The request has its response: nothing waits any more.
fn resolve(request: &mut Part) {
    if waiting_key(request).is_some() {
        remove_note(request, LEDGER);
    }
    remove_note(request, "pendingOutput");
    remove_note(request, "pendingContent");
    if let Some(notes) = &mut request.metadata
        && let Some(interrupt) = notes.remove("interrupt")
    {
        notes.insert("resolvedInterrupt".into(), interrupt);
    }
}

/// The response has to wait for those of the calls beside it. It is kept with the request, and its
/// call will not run again.
fn keep_output(request: &mut Part, response: Part) {
    let crate::PartKind::ToolResponse(response) = response.kind else { return };
    let notes = request.metadata.get_or_insert_default();
    notes.insert("pendingOutput".into(), response.output.unwrap_or_default());
    if let Some(Ok(content)) = response.content.map(serde_json::to_value) {
        notes.insert("pendingContent".into(), content);
    }
}

fn remove_note(part: &mut Part, note: &str) {
    if let Some(notes) = &mut part.metadata {
        notes.remove(note);
        if notes.is_empty() {
            part.metadata = None;
        }
    }
}
