//! Tool calls: judged when they come, started when their reply is done, answered exactly once.

use std::sync::Arc;

use antiphon_agent::{Executed, Outcome, ledger::CallRecord};
use antiphon_live::{HistoryItem, LiveCommand, ReplyId};
use antiphon_types::{
    JsonObject, ToolArguments, ToolCall, ToolCallRequest, ToolResponse, ToolResponseScheduling,
};
use serde_json::Value;

use super::{
    Engine, Gate, Phase,
    calls::Stage,
    io::{Decision, Manner, Origin, Output, Ticket, not_run},
    prompts,
    sequencer::{Wanted, Why},
    timers::Timer,
};
use crate::session::{EventKind, SessionState};

/// Calls whose outputs the provider did not take; the oldest is forgotten.
const MAX_REFUSED_OUTPUTS: usize = 32;
/// Calls that may be open at a time; more are refused.
const MAX_OPEN_CALLS: usize = 128;

/// An output that waits for a connection.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) response: ToolResponse,
    /// The call ran, or was refused: the model should hear of it.
    pub(super) ran: bool,
    /// The connection that is being made is told of it by the history.
    pub(super) in_history: bool,
}

impl Engine {
    pub(super) fn on_tool_calls(&mut self, reply: Option<ReplyId>, calls: Vec<ToolCallRequest>) {
        self.take_calls(reply, calls, false);
    }

    /// `by_provider`: it runs them itself, and asks whether it may.
    pub(super) fn take_calls(
        &mut self,
        reply: Option<ReplyId>,
        calls: Vec<ToolCallRequest>,
        by_provider: bool,
    ) {
        let active = self.replies.active.as_ref();
        let holder = match &reply {
            Some(id) => active.filter(|active| active.id.as_ref() == Some(id)),
            None => active,
        };
        let number = holder.map_or(0, |holder| holder.number);
        let cut = holder.is_some_and(|holder| holder.cut);
        let reply_done = holder.is_none();
        let turn = self.turn.number;
        if self.state == SessionState::Listening && !cut {
            self.set_state(SessionState::Processing);
        }
        if !cut {
            self.agent_answers();
        }
        // Until they are answered, who resumes knows nothing of them.
        self.outdate_handle();
        for request in calls {
            let ticket = self.calls.add(self.epoch, number, reply_done, turn, request.clone());
            if let Some(call) = self.calls.find(ticket) {
                call.by_provider = by_provider;
                call.void = cut.then_some(Outcome::Interrupted);
            }
            if self.calls.iter().count() > MAX_OPEN_CALLS {
                let response =
                    ToolResponse::error(request.id, request.name, "too many calls are open");
                self.complete(ticket, not_run(response, Outcome::Error));
                continue;
            }
            self.admit(ticket, request, turn);
        }
    }

    pub(super) fn on_admission(&mut self, ticket: Ticket, decision: Decision) {
        if self.gate != Some(Gate::Admission(ticket)) {
            // A second verdict over a call that waits to start must not take away what it runs by.
            let call = self.calls.find(ticket);
            if call.is_none_or(|call| !matches!(call.stage, Stage::Approved { .. })) {
                self.prompt_outputs.push_back(Output::Discard { ticket });
            }
            return;
        }
        self.gate = None;
        // What the verdict tells comes before all that waited for it.
        let rest = std::mem::take(&mut self.ordered_outputs);
        self.judge(ticket, decision);
        self.ordered_outputs.extend(rest);
    }

    fn judge(&mut self, ticket: Ticket, decision: Decision) {
        let goes_on =
            self.can(|can| can.non_blocking_tools || can.create_reply && !can.replies_after_tools);
        let Some(call) = self.calls.find(ticket) else {
            self.prompt_outputs.push_back(Output::Discard { ticket });
            return;
        };
        let (id, name) = (call.request.id.clone(), call.request.name.clone());
        let (confirmed, turn) = (call.confirmed, call.turn);
        match decision {
            Decision::Run { call: approved, manner } => {
                let non_blocking = manner.non_blocking && goes_on;
                call.manner = Manner { non_blocking, ..manner };
                self.approve(ticket, approved, false);
            }
            Decision::Host { call: approved } => self.approve(ticket, approved, true),
            Decision::Confirm { read_back } if !confirmed => {
                let void = call.void;
                match void {
                    None if self.has_hung_up() => self.refuse_unconfirmed(ticket),
                    Some(outcome) => self.void_unapproved(ticket, outcome),
                    None => self.park(ticket, read_back),
                }
            }
            Decision::Confirm { .. } => self.refuse_unconfirmed(ticket),
            Decision::Refused(refused) => {
                if matches!(refused.outcome, Outcome::Denied | Outcome::RateLimited) {
                    let reason = refused.reason.clone();
                    self.emit_in(turn, EventKind::ToolDenied { id, name, reason });
                }
                self.complete(ticket, not_run(refused.response, refused.outcome));
            }
            Decision::NoVerdict { reason } => {
                let response =
                    ToolResponse::error(id.clone(), name.clone(), Outcome::Denied.fixed_text());
                let reason = reason.to_owned();
                self.emit_in(turn, EventKind::ToolDenied { id, name, reason });
                self.complete(ticket, not_run(response, Outcome::Denied));
            }
            Decision::Duplicate => {
                self.calls.remove(ticket);
                self.stats.ignored_events += 1;
            }
        }
    }

    fn approve(&mut self, ticket: Ticket, approved: ToolCall, host: bool) {
        let Some(call) = self.calls.find(ticket) else { return };
        call.approved = Some(approved);
        call.stage = Stage::Approved { host };
        match call.void {
            Some(outcome) => self.void_call(ticket, outcome),
            None => self.start_if_due(ticket),
        }
    }

    pub(super) fn start_approved_calls(&mut self) {
        let due: Vec<_> = self
            .calls
            .iter()
            .filter(|call| matches!(call.stage, Stage::Approved { .. }))
            .map(|call| call.ticket)
            .collect();
        for ticket in due {
            self.start_if_due(ticket);
        }
    }

    fn start_if_due(&mut self, ticket: Ticket) {
        let done =
            self.calls.group_mut(ticket.epoch, ticket.reply).is_none_or(|group| group.reply_done);
        let waits = !done && self.can(|can| can.tools_after_reply);
        let (now, until) = (self.now, self.now + self.limits.host_tool);
        let hung_up = self.has_hung_up();
        let Some(call) = self.calls.find(ticket) else { return };
        let (Stage::Approved { host }, Some(approved), false) =
            (call.stage, call.approved.clone(), waits)
        else {
            return;
        };
        let turn = call.turn;
        let (id, name, args) = (approved.id.clone(), approved.name.clone(), approved.args.clone());
        if host && hung_up {
            self.refuse_for_host(ticket);
        } else if host {
            call.stage = Stage::WithHost { until };
            self.emit_in(turn, EventKind::HostToolCall { id, name, args });
            self.ordered_outputs.push_back(Output::ObserveHostCall { call: approved });
        } else {
            call.stage = Stage::Running { since: now };
            let again = call.outlived_caller;
            self.emit_in(turn, EventKind::ToolCall { id, name, args });
            self.ordered_outputs.push_back(Output::Invoke { ticket, turn, again });
        }
    }

    pub(super) fn on_tool_done(
        &mut self,
        ticket: Ticket,
        executed: Executed,
        whole_bytes: Option<u64>,
    ) {
        if self.calls.find(ticket).is_none() {
            self.stats.late_tool_results += 1;
            return;
        }
        if executed.detached
            && let Some(call) = self.calls.find(ticket)
        {
            let name = call.request.name.clone();
            self.detached.push(name);
        }
        self.complete_cut(ticket, executed, whole_bytes);
    }

    /// What a tool keeps from the model is no secret to the host.
    fn tell_hidden_failure(
        &mut self,
        response: &ToolResponse,
        outcome: Outcome,
        detail: Option<String>,
    ) {
        let Some(detail) = detail.filter(|_| outcome == Outcome::Error) else { return };
        if response.response.get("error").and_then(Value::as_str) != Some(detail.as_str()) {
            self.emit_error("tool", format!("{}: {detail}", response.name));
        }
    }

    /// A call waits for a person, apart from the conversation.
    fn tell_parked(&mut self, turn: u64, parked: CallRecord) {
        let Some(approval) = parked.approval else { return };
        self.emit_in(
            turn,
            EventKind::ApprovalRequested {
                approval: parked.key,
                id: parked.call_id,
                name: parked.tool,
                args: parked.arguments,
                question: approval.question,
                expires_at: approval.expires_at.map(|at| at.to_string()),
            },
        );
    }

    /// A call has its one output.
    pub(super) fn complete(&mut self, ticket: Ticket, executed: Executed) {
        self.complete_cut(ticket, executed, None);
    }

    /// `whole_bytes`: the output was cut, and the host finds all of it.
    fn complete_cut(&mut self, ticket: Ticket, executed: Executed, whole_bytes: Option<u64>) {
        let Some(call) = self.calls.remove(ticket) else { return };
        self.forget_progress(ticket.call);
        let Executed { response, outcome, detail, approval, .. } = executed;
        let key = approval.as_ref().map(|parked| parked.key.clone());
        if let Some(parked) = approval {
            self.tell_parked(call.turn, *parked);
        }
        self.tell_hidden_failure(&response, outcome, detail);
        if let Stage::Running { since } = call.stage {
            self.times.tools.add(self.now.saturating_duration_since(since));
        }
        self.stats.tool_calls += 1;
        self.stats.tool_denials +=
            u64::from(matches!(outcome, Outcome::Denied | Outcome::RateLimited));
        self.emit_in(
            call.turn,
            EventKind::ToolResult {
                id: response.id.clone(),
                name: response.name.clone(),
                response: response.response.clone(),
                outcome,
                whole_bytes,
            },
        );
        if outcome == Outcome::Success
            && let Some(workflow) = &mut self.workflow
        {
            workflow.tool_ran(&call.request.name);
        }
        let known = call.approved.clone().unwrap_or_else(|| as_call(&call.request));
        let item = HistoryItem::Tool { call: known, response: response.response.clone() };
        self.reconnect.remember(call.turn, self.now, item);
        if call.withdrawn || matches!(self.phase, Phase::Closing(_)) {
            return;
        }
        if call.by_provider {
            return self.answer_permission(ticket, outcome, response, key);
        }
        let silent = response.scheduling == ToolResponseScheduling::Silent;
        let cuts_in = response.scheduling == ToolResponseScheduling::Interrupt;
        if call.manner.non_blocking {
            // The model went on meanwhile: this output has a reply of its own.
            self.calls.reopen_group(ticket.epoch, ticket.reply);
        }
        let known = ticket.epoch == self.epoch && self.connected || self.knows_earlier_calls();
        // A connection that knows nothing of the call need not hear that it did not run.
        let ran = !matches!(outcome, Outcome::Cancelled | Outcome::Interrupted);
        if let Some(group) = self.calls.group_mut(ticket.epoch, ticket.reply) {
            group.speak |= !silent && (known || ran);
            group.after_reply |= group.reply_done;
        }
        // A provider that knows of schedules keeps them itself.
        if cuts_in && !self.can(|can| can.non_blocking_tools) {
            self.cut_in();
        }
        if !self.connected {
            self.unsent_responses.push(Unsent { response, ran, in_history: false });
        } else if known {
            self.send(LiveCommand::ToolResponse(response), Origin::ToolOutput);
        } else if ran {
            self.tell_in_words(&response);
        } else {
            self.stats.late_tool_results += 1;
        }
    }

    /// Whether the present connection takes outputs of calls that came by an earlier one.
    fn knows_earlier_calls(&self) -> bool {
        self.connected && self.reconnect.resumed && self.can(|can| can.resumes_calls)
    }

    /// Whether the model goes on after outputs only where it is asked to.
    fn is_asked_after_tools(&self) -> bool {
        self.can(|can| can.create_reply && !can.replies_after_tools)
    }

    /// The model is told an output of whose call its connection knows nothing.
    pub(super) fn tell_in_words(&mut self, response: &ToolResponse) {
        if !self.can(|can| can.text_input) {
            self.stats.late_tool_results += 1;
            return;
        }
        let output = Value::Object(response.response.clone()).to_string();
        let nonce = self.chance.next();
        let text = prompts::frame_untrusted(nonce, &response.name, prompts::LATE_OUTPUT, &output);
        let silent = response.scheduling == ToolResponseScheduling::Silent;
        let reply = !silent && !self.is_asked_after_tools();
        self.want_reply(Wanted::Text { text, reply }, Why::Tools);
    }

    /// A new connection stands: outputs that waited go to it if it knows their calls, and are told it
    /// otherwise, where the history did not do so.
    pub(super) fn send_held_responses(&mut self) {
        let held = std::mem::take(&mut self.unsent_responses);
        let by_history = self.is_asked_after_tools() && self.can(|can| can.history);
        for Unsent { response, ran, in_history } in held {
            if self.knows_earlier_calls() {
                self.send(LiveCommand::ToolResponse(response), Origin::ToolOutput);
            } else if !ran {
                self.stats.late_tool_results += 1;
            } else if !(in_history && by_history) {
                self.tell_in_words(&response);
            }
        }
    }

    /// All outputs of a reply's calls are in and the reply is done: the model goes on.
    pub(super) fn finish_groups(&mut self) {
        // What comes of them is for the next connection to say.
        if !self.connected {
            return;
        }
        while let Some(group) = self.calls.take_finished_group() {
            let known = group.epoch == self.epoch || self.knows_earlier_calls();
            let speaks = group.speak && !group.cut && (known || self.is_asked_after_tools());
            let by_itself = self.can(|can| can.replies_after_tools);
            if speaks && !by_itself && self.can(|can| can.create_reply) {
                self.want_reply(Wanted::Reply, Why::Tools);
                continue;
            }
            let idle = self.replies.active.is_none() && self.replies.asked.is_none();
            let goes_on = group.after_reply || self.can(|can| can.tools_after_reply);
            if speaks && known && by_itself && goes_on && idle {
                let request = self.request(Why::Tools);
                self.expect(None, request);
                continue;
            }
            let quiet = idle && !self.calls.any_at_work() && !self.replies.is_waiting();
            if quiet && self.state == SessionState::Processing && self.turn.replied {
                self.set_state(SessionState::Listening);
            }
        }
    }

    pub(super) fn on_tool_calls_cancelled(&mut self, ids: Vec<Arc<str>>) {
        for id in &ids {
            if let Some(call) = self.calls.find_by_id(id) {
                call.withdrawn = true;
                let ticket = call.ticket;
                self.cancel_call(ticket);
            }
        }
        self.emit(EventKind::ToolCallsCancelled { ids });
    }

    /// Ends a call that has no output yet, wherever it is.
    pub(super) fn cancel_call(&mut self, ticket: Ticket) {
        let Some(call) = self.calls.find(ticket) else { return };
        match call.stage {
            Stage::Judging => call.void = Some(Outcome::Cancelled),
            Stage::Running { .. } => {
                self.prompt_outputs.push_back(Output::CancelTool { ticket });
            }
            Stage::Settling => {}
            Stage::Parked { .. } | Stage::Approved { .. } | Stage::WithHost { .. } => {
                self.void_call(ticket, Outcome::Cancelled);
            }
        }
    }

    /// The user interrupts, or goes on to something else: running tools that want to end then do.
    pub(super) fn cancel_calls_on_interruption(&mut self) {
        let ending: Vec<_> = self
            .calls
            .iter()
            .filter(|call| call.manner.ends_on_interruption)
            .filter(|call| matches!(call.stage, Stage::Running { .. }))
            .map(|call| call.ticket)
            .collect();
        for ticket in ending {
            self.cancel_call(ticket);
        }
    }

    /// A reply was cut off: of its calls, those that did not start never will.
    pub(super) fn cut_calls(&mut self, reply: u64) {
        if let Some(group) = self.calls.group_mut(self.epoch, reply) {
            group.cut = true;
        }
        self.void_calls_of(reply, Outcome::Interrupted);
    }

    pub(super) fn void_calls_of(&mut self, reply: u64, outcome: Outcome) {
        let epoch = self.epoch;
        self.void_where(outcome, |ticket| ticket.epoch == epoch && ticket.reply == reply);
    }

    /// No call that did not start will.
    pub(super) fn void_unstarted_calls(&mut self, outcome: Outcome) {
        self.void_where(outcome, |_| true);
        let parked: Vec<_> = self
            .calls
            .iter()
            .filter(|call| matches!(call.stage, Stage::Parked { .. }))
            .map(|call| call.ticket)
            .collect();
        for ticket in parked {
            self.void_call(ticket, outcome);
        }
    }

    /// Every call ends: the session does.
    pub(super) fn void_all_calls(&mut self, outcome: Outcome) {
        if matches!(self.gate, Some(Gate::Admission(_))) {
            self.gate = None;
        }
        self.drop_held_admissions();
        let open: Vec<_> = self.calls.iter().map(|call| (call.ticket, call.stage)).collect();
        for (ticket, stage) in open {
            match stage {
                Stage::Judging => self.void_unapproved(ticket, outcome),
                _ => self.cancel_call(ticket),
            }
        }
    }

    /// Nobody is going to be asked for the verdicts that still wait.
    pub(super) fn drop_held_admissions(&mut self) {
        self.ordered_outputs.retain(|output| !matches!(output, Output::Admit { .. }));
    }

    fn void_where(&mut self, outcome: Outcome, concerns: impl Fn(Ticket) -> bool) {
        let unstarted: Vec<_> = self
            .calls
            .iter()
            .filter(|call| concerns(call.ticket))
            .filter(|call| matches!(call.stage, Stage::Judging | Stage::Approved { .. }))
            .map(|call| call.ticket)
            .collect();
        for ticket in unstarted {
            let Some(call) = self.calls.find(ticket) else { continue };
            match call.stage {
                Stage::Judging => call.void = Some(outcome),
                _ => self.void_call(ticket, outcome),
            }
        }
    }

    /// A call that was not running gets the output of `outcome`; who saw it authorised is told.
    pub(super) fn void_call(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(call) = self.calls.find(ticket) else { return };
        let Some(approved) = call.approved.clone() else {
            return self.void_unapproved(ticket, outcome);
        };
        if call.stage == (Stage::Approved { host: false }) {
            self.prompt_outputs.push_back(Output::Discard { ticket });
        }
        let executed = void_output(&call.request, outcome);
        self.observe(ticket, approved, executed);
    }

    pub(super) fn void_unapproved(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(call) = self.calls.find(ticket) else { return };
        let executed = void_output(&call.request, outcome);
        let (number, request, turn) = (call.ticket.call, call.request.clone(), call.turn);
        self.prompt_outputs.push_back(Output::Unapproved { request, outcome, turn });
        self.stop_asking(number);
        self.complete(ticket, executed);
    }

    /// An authorised call did not run: its observers see the output before the provider does.
    pub(super) fn observe(&mut self, ticket: Ticket, call: ToolCall, executed: Executed) {
        if let Some(open) = self.calls.find(ticket) {
            open.stage = Stage::Settling;
        }
        self.ordered_outputs.push_back(Output::Observe { ticket, call, executed: executed.into() });
    }

    /// The provider did not take an output: the model waits for another, which the host may give.
    pub(super) fn on_output_refused(&mut self, call: Arc<str>, message: &str) {
        self.emit_error("tool", format!("the output of call {call} was not taken: {message}"));
        if self.refused_outputs.len() == MAX_REFUSED_OUTPUTS {
            self.refused_outputs.pop_front();
        }
        self.refused_outputs.push_back(call);
    }

    /// Another output in place of one that the provider did not take.
    fn give_again(&mut self, response: ToolResponse) {
        self.refused_outputs.retain(|refused| *refused != response.id);
        let silent = response.scheduling == ToolResponseScheduling::Silent;
        self.send(LiveCommand::ToolResponse(response), Origin::ToolOutput);
        if !silent && !self.can(|can| can.replies_after_tools) && self.can(|can| can.create_reply) {
            self.want_reply(Wanted::Reply, Why::Tools);
        }
    }

    pub(super) fn on_host_response(&mut self, response: ToolResponse) {
        if self.refused_outputs.contains(&response.id) {
            return self.give_again(response);
        }
        let call = self.calls.find_by_id(&response.id);
        let Some(call) = call.filter(|call| matches!(call.stage, Stage::WithHost { .. })) else {
            let message = format!("no call {:?} waits for the host", response.id);
            return self.emit_error("tool", message);
        };
        if response.will_continue == Some(true) {
            let sent = self.send(LiveCommand::ToolResponse(response), Origin::ToolOutput);
            self.stats.late_tool_results += u64::from(!sent);
            return;
        }
        let (ticket, approved) = (call.ticket, call.approved.clone());
        let executed = not_run(response, Outcome::Success);
        match approved {
            Some(approved) => self.observe(ticket, approved, executed),
            None => self.complete(ticket, executed),
        }
    }

    pub(super) fn on_host_tool_late(&mut self) {
        let now = self.now;
        let late: Vec<_> = self
            .calls
            .iter()
            .filter(|call| matches!(call.stage, Stage::WithHost { until } if until <= now))
            .map(|call| call.ticket)
            .collect();
        for ticket in late {
            self.void_call(ticket, Outcome::TimedOut);
        }
    }

    pub(super) fn on_tool_stall(&mut self) {
        let Some((name, since)) = self.calls.longest_running() else { return };
        let ms = self.now.saturating_duration_since(since).as_millis() as u64;
        tracing::debug!(tool = %name, ms, "a tool runs for long");
        self.emit(EventKind::Stalled { what: "tool".into(), ms, reaction: None });
        self.timers.set(Timer::ToolStall, self.now + self.limits.stall);
    }
}

fn void_output(request: &ToolCallRequest, outcome: Outcome) -> Executed {
    let text = outcome.fixed_text();
    let response = ToolResponse::error(request.id.clone(), request.name.clone(), text);
    not_run(response, outcome)
}

/// A call for the record, where nothing approved it: what it asked for, as far as it is an object.
fn as_call(request: &ToolCallRequest) -> ToolCall {
    let args = match &request.arguments {
        ToolArguments::Object(object) => object.clone(),
        ToolArguments::Json(text) => {
            serde_json::from_str(text).unwrap_or_else(|_| JsonObject::new())
        }
    };
    ToolCall { id: request.id.clone(), name: request.name.clone(), args }
}
