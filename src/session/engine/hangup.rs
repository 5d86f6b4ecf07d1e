//! Hanging up while work is under way: with a linked agent that allows it, the running turn and its
//! tools go on in the background, with nobody to hear them.

use std::{sync::Arc, time::Instant};

use antiphon_agent::Outcome;
use antiphon_types::{AudioFrame, ToolResponse};

use super::{
    Engine, Phase,
    calls::Stage,
    io::{Output, Ticket, not_run},
    sequencer::{Reply, Why},
    timers::Timer,
};
use crate::session::{EndReason, EventKind, SessionState};

/// What the model is told of a call that the host was to answer.
const NO_HOST: &str = "the caller hung up, and with that nobody is there who answers this call";

impl Engine {
    /// The session is to end. A caller who hangs up may leave work behind.
    pub(super) fn on_stop(&mut self, reason: EndReason, within: Option<std::time::Duration>) {
        if self.has_hung_up() {
            // Nobody can hang up twice; the work is stopped by whoever aborts its snapshot.
            return;
        }
        let hangs_up = matches!(reason, EndReason::Stopped | EndReason::Cancelled);
        let detaches = self.linked.is_some_and(|linked| linked.detaches);
        if hangs_up && detaches && self.phase == Phase::Running && self.has_work() {
            self.hang_up(reason);
        } else {
            self.begin_close(reason, within);
        }
    }

    /// Whether the caller is gone, and the work goes on.
    pub(super) fn has_hung_up(&self) -> bool {
        self.hung_up.is_some()
    }

    /// The pending snapshot of the work is on disk.
    pub(super) fn on_detached(&mut self, snapshot_id: Arc<str>) {
        self.emit(EventKind::Detached { snapshot_id });
    }

    /// The work cannot go on without a caller: nothing would stand for it.
    pub(super) fn on_not_detached(&mut self, why: &str) {
        self.emit_error("store", format!("the work could not be left in the background: {why}"));
        self.end_hung_up();
    }

    /// Somebody aborted the work, or its time is up.
    pub(super) fn end_hung_up(&mut self) {
        if let Some(reason) = self.hung_up.clone() {
            self.begin_close(reason, None);
        }
    }

    /// The session ends before anybody was asked to keep the work.
    pub(super) fn forget_hang_up(&mut self) {
        self.ordered_outputs.retain(|output| !matches!(output, Output::HungUp { .. }));
    }

    /// Ends once nothing is left to do.
    pub(super) fn end_after_work(&mut self) {
        if self.has_hung_up() && !self.has_work() {
            self.end_hung_up();
        }
    }

    /// Audio that nobody hears. It counts as generated.
    pub(super) fn on_unheard_audio(
        &mut self,
        reply: &antiphon_live::ReplyId,
        item: &Arc<str>,
        content_index: u32,
        frame: &AudioFrame,
    ) {
        let now = self.now;
        if let Some(reply) = self.replies.active_mut(reply) {
            reply.began_at.get_or_insert(now);
            reply.ledger.audio(item, content_index, frame.duration());
        }
        self.timers.stop(Timer::LostEnd);
        self.timers.set(Timer::Settle, self.now + self.limits.settle);
    }

    /// A reply is over of which nobody heard more than what was played before the caller hung up.
    pub(super) fn tell_unheard(&mut self, reply: &Reply) {
        let (heard, received) = (reply.heard, reply.ledger.received());
        let text = reply.ledger.heard_text(heard, true);
        self.tell_message(reply, text, heard < received, heard);
    }

    fn hang_up(&mut self, reason: EndReason) {
        self.hung_up = Some(reason);
        let turn = self.turn.number;
        self.ordered_outputs.push_back(Output::HungUp { turn });
        self.timers.set(Timer::HungUp, self.now + self.limits.detached);
        for timer in [Timer::Idle, Timer::Goodbye, Timer::WrapUp, Timer::HardEnd] {
            self.timers.stop(timer);
        }
        self.ending = None;
        self.fail_all_prompts();
        self.supersede(|why| !is_work(why));
        self.uplink.clear();
        let asked: Vec<_> = self
            .calls
            .iter()
            .filter(|call| matches!(call.stage, Stage::Parked { .. }))
            .map(|call| call.ticket.call)
            .collect();
        for call in asked {
            self.refuse_parked(call, "the caller hung up");
        }
        self.calls.outlive_caller();
        let with_host =
            self.calls.iter().filter(|call| matches!(call.stage, Stage::WithHost { .. }));
        let with_host: Vec<_> = with_host.map(|call| call.ticket).collect();
        for ticket in with_host {
            self.refuse_for_host(ticket);
        }
        self.hush();
    }

    /// The host answers this call itself, and its handles are closed: no answer could come.
    pub(super) fn refuse_for_host(&mut self, ticket: Ticket) {
        let call = self.calls.find(ticket).and_then(|call| call.approved.clone());
        let Some(call) = call else { return };
        let response = ToolResponse::error(call.id.clone(), call.name.clone(), NO_HOST);
        self.observe(ticket, call, not_run(response, Outcome::Cancelled));
    }

    /// Silence at once, without stopping what the agent does.
    fn hush(&mut self) {
        let audible = self.replies.is_audible();
        self.end_pause(audible);
        if audible {
            self.clearing = true;
            let next = self.replies.next_generation();
            self.prompt_outputs.push_back(Output::ClearPlayback { next });
        }
    }

    /// Whether anything is under way that does not need the caller.
    fn has_work(&self) -> bool {
        let active = self.replies.active.as_ref().is_some_and(|reply| !reply.cut);
        let asked = self.replies.asked.is_some_and(|asked| is_work(asked.request.why));
        let waits = [Why::User, Why::Tools].iter().any(|why| self.replies.is_waiting_for(*why));
        let calls = self.calls.iter().any(|call| !matches!(call.stage, Stage::Parked { .. }));
        let unanswered = self.turn.open && !self.turn.replied;
        let awaited = unanswered && self.state == SessionState::Processing;
        let connects = unanswered && self.state == SessionState::Recovering;
        let approved = self.approved_at_work > 0;
        active || asked || waits || calls || approved || awaited || connects || self.clearing
    }

    /// When bounds that are there for a caller end the session; never without one.
    pub(super) fn unless_hung_up(&self, deadline: Option<Instant>) -> Option<Instant> {
        deadline.filter(|_| !self.has_hung_up())
    }
}

/// Whether a reply on this behalf is worth making with nobody to hear it.
fn is_work(why: Why) -> bool {
    matches!(why, Why::User | Why::Tools)
}
