//! Beginning, replacing connections, ending.

use std::{sync::Arc, time::Duration};

use antiphon_agent::Outcome;
use antiphon_live::{Capabilities, LiveError, ReplyOutcome};
use antiphon_types::ToolResponse;

use super::{
    Engine, Gate, Phase,
    calls::Stage,
    io::{End, NeverBegan, Output, not_run},
    lifetime::{Named, Next},
    reconnect::Gap,
    sequencer::Why,
    timers::{Timer, at},
};
use crate::session::{EndReason, EventKind, RequestEnd, SessionState};

impl Engine {
    pub(super) fn begin_connecting(&mut self) {
        self.state = SessionState::Connecting;
        self.ordered_outputs.push_back(Output::StateOnly(SessionState::Connecting));
        self.connect_again();
    }

    pub(super) fn on_connected(&mut self, epoch: u32, capabilities: Arc<Capabilities>) {
        if self.successor_stands(epoch, &capabilities) {
            return;
        }
        if epoch != self.epoch || matches!(self.phase, Phase::Closing(_)) {
            self.prompt_outputs.push_back(Output::Close { epoch });
            return;
        }
        self.connected = true;
        self.uplink_sent = Duration::ZERO;
        self.reconnect.attempts.connected(self.now);
        self.reconnect.resumed = self.reconnect.resuming && capabilities.resumption;
        if !self.reconnect.resumed {
            // What is said from now on is in no handle of before, whoever gave it.
            self.reconnect.handle.forget();
        }
        self.plan_life(&capabilities);
        self.capabilities = Some(capabilities);
        self.plan_way_home();
        if self.phase == Phase::Connecting {
            self.phase = Phase::Starting;
            self.gate = Some(Gate::StartHook);
            self.prompt_outputs.push_back(Output::StartHook);
            self.bring_up_to_date();
            return;
        }
        self.stats.reconnects += 1;
        self.tell_restored();
        self.set_state(SessionState::Listening);
        self.bring_up_to_date();
        if !self.connected {
            return;
        }
        let said_again = self.say_unanswered_again(self.reconnect.resumed);
        if self.can(|can| can.manual_activity) && self.uplink.begin_again() {
            self.speech_goes_on();
        }
        self.send_held_responses();
        // Who hears the question answers it.
        if !said_again {
            self.ask_for_what_is_owed();
        }
    }

    pub(super) fn on_start_hook_done(&mut self) {
        if self.gate == Some(Gate::StartHook) {
            self.gate = None;
        }
        if self.phase != Phase::Starting {
            return;
        }
        self.phase = Phase::Running;
        if self.going_away && !self.timers.is_set(Timer::GoingAway) {
            // The time was up while the hook ran.
            self.timers.set(Timer::GoingAway, self.now);
        }
        let rest = std::mem::take(&mut self.ordered_outputs);
        self.emit_started();
        self.ordered_outputs.push_back(Output::Started);
        // What came while the hook ran may have set another state already.
        if self.state == SessionState::Connecting {
            self.set_state(SessionState::Listening);
        }
        self.ordered_outputs.extend(rest);
    }

    pub(super) fn on_connect_failed(&mut self, epoch: u32, error: LiveError) {
        if self.successor_failed(epoch, &error) {
            return;
        }
        if epoch != self.epoch {
            return;
        }
        let resumed = self.reconnect.resuming || matches!(error, LiveError::NoResumableSession);
        if resumed && self.is_handle_refused(&error) && self.reconnect.handle.forget() {
            // The provider has forgotten the conversation: a new one that is told of it.
            return self.connect_again();
        }
        if self.phase == Phase::Connecting {
            if self.reconnect.attempts.first_failed(&error, self.now) {
                tracing::warn!(%error, "connecting with the provider that the session falls back on");
                self.first_error.get_or_insert(error);
                return self.connect_again();
            }
            let error = self.first_error.take().unwrap_or(error);
            return self.end_before_begin(NeverBegan::Connect(error));
        }
        let next = self.reconnect.attempts.failed(&error, self.now);
        self.try_again_or_end(next, error);
    }

    pub(super) fn on_disconnected(&mut self, epoch: u32, error: Option<LiveError>) {
        if epoch != self.epoch || !self.connected {
            return;
        }
        if matches!(self.phase, Phase::Closing(_)) {
            self.connected = false;
            return;
        }
        let error = error.unwrap_or(LiveError::Closed { code: 1000, reason: String::new() });
        // While the start hook still runs, all that this tells waits for it like any event.
        let expected = self.going_away && matches!(error, LiveError::Closed { .. });
        self.lose_connection(self.reconnect.attempts.provider());
        let next = self.reconnect.attempts.lost(&error, expected, self.now);
        self.try_again_or_end(next, error);
    }

    /// Begins the end. Tools get until `within` from now, at most the limit for closing.
    pub(super) fn begin_close(&mut self, reason: EndReason, within: Option<Duration>) {
        match self.phase {
            Phase::Connecting => {
                let epoch = self.epoch;
                self.prompt_outputs.push_back(Output::Close { epoch });
                return self.end_before_begin(NeverBegan::Stopped);
            }
            Phase::Closing(_) => {
                if let Some(within) = within {
                    self.timers.bring_forward(Timer::Close, self.now + within);
                }
                return;
            }
            Phase::Ended => return,
            Phase::Starting => {
                // The hook has begun, so the session has: it is told of the end as well.
                self.gate = None;
                let rest = std::mem::take(&mut self.ordered_outputs);
                self.emit_started();
                self.ordered_outputs.extend(rest);
            }
            Phase::Running => {}
        }
        self.phase = Phase::Closing(reason);
        self.forget_hang_up();
        self.timers.stop_all();
        self.set_state(SessionState::Deactivating);
        self.timers.stop_all();
        let within = within.unwrap_or(self.limits.close).min(self.limits.close);
        self.timers.set(Timer::Close, self.now + within);
        self.supersede(|_| true);
        if let Some(asked) = self.replies.asked.take() {
            self.tell_request_end(asked.request, RequestEnd::Superseded);
        }
        self.flush_utterances();
        self.silence();
        self.fail_all_prompts();
        self.void_all_calls(Outcome::Cancelled);
        self.forget_successor();
        let epoch = self.epoch;
        self.prompt_outputs.push_back(Output::Close { epoch });
        self.connected = false;
        self.uplink.clear();
    }

    pub(super) fn try_finish(&mut self) {
        if self.calls.is_empty() && !self.clearing {
            self.finish();
        }
    }

    /// Ends, whatever still runs.
    pub(super) fn finish(&mut self) {
        let Phase::Closing(reason) = self.phase.clone() else { return };
        self.gate = None;
        self.drop_held_admissions();
        let open: Vec<_> = self.calls.iter().map(|call| call.ticket).collect();
        for ticket in open {
            let Some(call) = self.calls.find(ticket) else { continue };
            let (id, name) = (call.request.id.clone(), call.request.name.clone());
            if matches!(call.stage, Stage::Running { .. }) {
                self.detached.push(name.clone());
            }
            let response = ToolResponse::error(id, name, "the session is over");
            self.complete(ticket, not_run(response, Outcome::Cancelled));
        }
        self.phase = Phase::Ended;
        self.timers.stop_all();
        self.state = SessionState::Inactive;
        self.emit(EventKind::State { state: SessionState::Inactive });
        let stats = self.stats().into();
        self.emit(EventKind::SessionEnded { reason: reason.clone(), stats });
        let detached = std::mem::take(&mut self.detached);
        let end = End { never_began: None, reason, detached };
        self.ordered_outputs.push_back(Output::Ended { end });
    }

    fn end_before_begin(&mut self, never_began: NeverBegan) {
        let reason = match &never_began {
            NeverBegan::Connect(error) => EndReason::Failed { message: error.to_string() },
            NeverBegan::Stopped => EndReason::Stopped,
        };
        self.phase = Phase::Ended;
        self.timers.stop_all();
        self.state = SessionState::Inactive;
        self.ordered_outputs.push_back(Output::StateOnly(SessionState::Inactive));
        let end = End { never_began: Some(never_began), reason, detached: Vec::new() };
        self.ordered_outputs.push_back(Output::Ended { end });
    }

    fn emit_started(&mut self) {
        self.emit_begin();
        if let Some(resumed) = self.reconnect.resumed_from.take() {
            self.emit(EventKind::SessionResumed(resumed));
        }
    }

    fn emit_begin(&mut self) {
        let Named { provider, model, .. } = self.connected_with();
        let session_id = self.session_id.clone();
        self.emit(EventKind::SessionStarted { session_id, provider, model });
    }

    /// Everything that belongs to the connection ends with it. What was received plays on.
    /// `provider`: the candidate that it was one with.
    pub(super) fn lose_connection(&mut self, provider: usize) {
        let unanswered = self.turn.open && self.owes_an_answer();
        let served = self.capabilities.as_ref().and_then(|can| can.model.clone());
        let model = served.unwrap_or_else(|| self.candidate(provider).model);
        self.forget_successor();
        self.connected = false;
        self.going_away = false;
        self.reconnect.silence.stop();
        self.reconnect.leave_from = None;
        self.reconnect.homesick = false;
        self.reconnect.missed = 0;
        for timer in [Timer::GoingAway, Timer::Quiet, Timer::Expiry, Timer::Home, Timer::Answer] {
            self.timers.stop(timer);
        }
        let dropped = self.uplink.dropped_before();
        self.reconnect.gap = Some(Gap { since: self.now, dropped, provider, model });
        self.uplink.keep(self.limits.gap_audio);
        let valid = self.capabilities.as_ref().and_then(|can| can.resumption_valid);
        self.reconnect.handle.connection_ended(self.now, valid);
        self.attention.speech_is_over();
        self.timers.stop(Timer::TranscriptWait);
        // What was only heard by the connection is gone with it.
        self.turn.pending &= self.uplink.holds_a_turn();
        // What the user is owed is asked for again.
        let asked = self.replies.asked.take().map(|asked| asked.request);
        if let Some(request) = asked.filter(|of| !matches!(of.why, Why::User | Why::Tools)) {
            self.tell_request_end(request, RequestEnd::Refused);
        }
        self.refused_outputs.clear();
        self.forget_speech();
        self.fail_all_prompts();
        self.flush_utterances();
        self.utterances.forget_names();
        if let Some(reply) = self.replies.active.as_ref().and_then(|reply| reply.id.clone()) {
            self.note_reply_done(&reply, ReplyOutcome::Failed, None);
            self.end_reply(&reply, ReplyOutcome::Failed);
        }
        self.replies.forget_done();
        self.replies.playing.iter_mut().for_each(|reply| reply.orphaned = true);
        self.void_unstarted_calls(Outcome::Cancelled);
        if unanswered {
            self.turn.replied = false;
        }
        self.turn.failed = false;
    }

    /// Whether the user is owed an answer of which there is nothing yet, nor a tool at work for it.
    fn owes_an_answer(&self) -> bool {
        if !self.can(|can| can.create_reply) {
            return false;
        }
        let asked = self
            .replies
            .asked
            .is_some_and(|asked| matches!(asked.request.why, Why::User | Why::Tools));
        let silent = self.replies.active.as_ref().is_some_and(|reply| {
            matches!(reply.why, Why::User | Why::Tools) && !reply.cut && reply.is_silent()
        });
        let waits = |stage| matches!(stage, Stage::Judging | Stage::Approved { .. });
        let mut calls = self.calls.iter().map(|call| call.stage).peekable();
        asked || silent || calls.peek().is_some() && calls.all(waits)
    }

    fn try_again_or_end(&mut self, next: Option<Next>, error: LiveError) {
        match next {
            Some(Next { attempt, wait }) => {
                self.set_state(SessionState::Recovering);
                self.emit(EventKind::Reconnecting { attempt, cause: error.to_string() });
                if wait.is_zero() {
                    return self.connect_again();
                }
                self.timers.set(Timer::Backoff, at(self.now, wait));
            }
            None => {
                let reason = match &error {
                    LiveError::Closed { code, reason } => {
                        EndReason::ProviderClosed { code: *code, reason: reason.clone() }
                    }
                    other => EndReason::Failed { message: other.to_string() },
                };
                if !matches!(error, LiveError::Closed { code: 1000, .. }) {
                    self.emit_error("provider", error.to_string());
                }
                self.begin_close(reason, None);
            }
        }
    }
}
