//! Calls that are read back to the user, whose next words decide over them.

use antiphon_agent::Outcome;

use super::{
    Engine,
    calls::Stage,
    confirm::Answer,
    io::Ticket,
    prompts,
    sequencer::{Wanted, Why},
};
use crate::session::EventKind;

impl Engine {
    /// A call waits for the user's yes.
    pub(super) fn park(&mut self, ticket: Ticket, read_back: String) {
        let until = self.now + self.limits.confirm;
        let Some(call) = self.calls.find(ticket) else { return };
        call.stage = Stage::Parked { asked: false, until };
        call.read_back = Some(read_back.clone());
        let (turn, id, name) = (call.turn, call.request.id.clone(), call.request.name.clone());
        self.emit_in(turn, EventKind::ToolConfirm { id, name, read_back });
    }

    /// Has the next parked call read back, one at a time.
    pub(super) fn ask_next_read_back(&mut self) {
        if self.asking.is_some() {
            return;
        }
        let Some(call) = self.calls.first_parked() else { return };
        let number = call.ticket.call;
        let Some(words) = call.read_back.clone() else { return };
        self.asking = Some((number, None));
        let why = Why::ReadBack { call: number };
        let wanted = if self.can(|can| can.say) {
            Wanted::Say(words)
        } else {
            let text = prompts::read_back(self.language, &words);
            Wanted::Text { text, reply: true }
        };
        if !self.want_reply(wanted, why) {
            self.refuse_parked(number, "it could not be read back");
        }
    }

    /// The read-back is being spoken: the user's next words decide.
    pub(super) fn read_back_begins(&mut self, number: u64) {
        let until = self.now + self.limits.confirm;
        if let Some(call) = self.calls.find_by_number(number) {
            call.stage = Stage::Parked { asked: true, until };
            self.asking = Some((number, Some(self.now)));
        }
    }

    /// Whether the user's next words decide over a call.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.is_some_and(|(_, asked)| asked.is_some())
    }

    pub(super) fn decide_read_back(&mut self, answer: Answer) {
        let Some((number, _)) = self.asking.take() else { return };
        let Some(call) = self.calls.find_by_number(number) else { return };
        let ticket = call.ticket;
        if answer != Answer::Yes {
            return self.refuse_unconfirmed(ticket);
        }
        call.stage = Stage::Judging;
        call.confirmed = true;
        let (request, turn) = (call.request.clone(), call.turn);
        // The words of the yes are judged, too.
        let said_in = self.turn.number;
        self.admit_confirmed(ticket, request, turn, said_in);
        // The user's yes is a turn of its own, and the tool's result is the answer to it.
        self.turn.replied = false;
    }

    pub(super) fn on_confirm_late(&mut self) {
        let now = self.now;
        let late: Vec<_> = self
            .calls
            .iter()
            .filter(|call| matches!(call.stage, Stage::Parked { until, .. } if until <= now))
            .map(|call| call.ticket.call)
            .collect();
        for number in late {
            self.refuse_parked(number, "the user did not answer");
        }
    }

    pub(super) fn refuse_parked(&mut self, number: u64, reason: &str) {
        tracing::debug!(call = number, reason, "a call was not confirmed");
        if let Some(call) = self.calls.find_by_number(number) {
            let ticket = call.ticket;
            self.refuse_unconfirmed(ticket);
        }
    }

    pub(super) fn refuse_unconfirmed(&mut self, ticket: Ticket) {
        self.void_unapproved(ticket, Outcome::NotConfirmed);
    }

    pub(super) fn stop_asking(&mut self, number: u64) {
        self.supersede(|why| why == Why::ReadBack { call: number });
        if self.asking.is_some_and(|(asking, _)| asking == number) {
            self.asking = None;
        }
    }
}
