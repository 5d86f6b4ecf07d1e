//! The watchdog over a provider that should be answering and is silent.

use super::{
    Engine, prompts,
    sequencer::{Wanted, Why},
    timers::Timer,
};
use crate::session::{EndReason, EventKind, OnStall, RequestEnd, SessionState};

/// After so many times the turn is given up.
const GIVE_UP_AFTER: u32 = 3;

impl Engine {
    /// Nothing came for long. Told each time; after the third the turn is given up.
    pub(super) fn on_stall(&mut self) {
        if self.state != SessionState::Processing {
            return;
        }
        self.timers.set(Timer::Stall, self.now + self.limits.stall);
        if self.calls.any_at_work() {
            return;
        }
        self.stalled.times += 1;
        let since = self.stalled.since.unwrap_or(self.now);
        let ms = self.now.saturating_duration_since(since).as_millis() as u64;
        let reaction = self.reaction_to_stall();
        let told = Some(reaction).filter(|reaction| *reaction != OnStall::Tell);
        self.emit(EventKind::Stalled { what: "provider".into(), ms, reaction: told });
        match reaction {
            OnStall::Tell => {}
            OnStall::Nudge => return self.nudge(),
            OnStall::Resume => {
                // What was asked for on behalf of the user is asked of the next connection.
                self.turn.replied = false;
                if self.replace_because("the provider is silent", false) {
                    return;
                }
            }
            OnStall::Fail => {
                let message = format!("the provider was silent for {ms} ms");
                return self.begin_close(EndReason::Failed { message }, None);
            }
        }
        if self.stalled.times == GIVE_UP_AFTER {
            self.speech_is_answered();
            self.give_up_asked(RequestEnd::TimedOut);
            self.set_state(SessionState::Listening);
        }
    }

    /// What is done about the stall that is told now.
    pub(super) fn reaction_to_stall(&mut self) -> OnStall {
        // Some say that they go away and nothing more: what they owe they will not give.
        if self.going_away && self.reconnect.is_on() {
            return OnStall::Resume;
        }
        let wanted = self.limits.on_stall;
        let once = matches!(wanted, OnStall::Nudge | OnStall::Resume);
        if !once {
            return wanted;
        }
        let able = match wanted {
            OnStall::Nudge => self.can(|can| can.create_reply || can.text_input),
            _ => self.reconnect.is_on(),
        };
        let first = self.reacted_in != Some(self.turn.number);
        if !first || !able {
            return OnStall::Tell;
        }
        self.reacted_in = Some(self.turn.number);
        wanted
    }

    /// Asks again for the answer that does not come.
    pub(super) fn nudge(&mut self) {
        if self.replies.active.as_ref().is_some_and(|reply| !reply.cut) {
            self.interrupt(true);
            (self.turn.open, self.turn.replied) = (true, false);
        }
        if let Some(asked) = self.replies.asked.take() {
            self.timers.stop(Timer::Request);
            self.tell_request_end(asked.request, RequestEnd::TimedOut);
        }
        if let Some(wanted) = self.request_for_an_answer() {
            self.want_reply(wanted, Why::Tools);
        }
    }

    /// What asks for an answer to what the user said last; `None`: the provider cannot be asked.
    pub(super) fn request_for_an_answer(&self) -> Option<Wanted> {
        if self.can(|can| can.create_reply) {
            return Some(Wanted::Reply);
        }
        let text = prompts::nudge(self.language).to_owned();
        self.can(|can| can.text_input).then_some(Wanted::Text { text, reply: true })
    }
}
