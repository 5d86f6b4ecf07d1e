//! The bounds of a session: how long it lasts, how long the user may be silent, what it may cost.
//! The agent takes leave before the end.

use std::time::Instant;

use super::{Engine, Phase, prompts, sequencer::Why, timers::Timer};
use crate::session::{EndReason, HostPromptKind};

/// The session ends soon, because a bound is reached.
#[derive(Debug)]
pub(super) struct Ending {
    limit: &'static str,
    /// The prompt by which the agent takes leave.
    prompt: Option<u64>,
    /// It was heard: no need to wait for more.
    said: bool,
}

const LENGTH: &str = "session_length";
const SILENCE: &str = "silence";
const COST: &str = "cost";

impl Engine {
    /// When the agent is to take leave, as far as time decides.
    pub(super) fn wrap_up_deadline(&self) -> Option<Instant> {
        if self.ending.is_some() {
            return None;
        }
        self.hard_end().map(|(_, at)| at.checked_sub(self.limits.wrap_up).unwrap_or(self.now))
    }

    /// The bound that time reaches first, and when.
    fn hard_end(&self) -> Option<(&'static str, Instant)> {
        let length = self.limits.max_length.map(|length| (LENGTH, self.started_at + length));
        let silence =
            self.limits.max_silence.map(|silence| (SILENCE, self.last_activity + silence));
        [length, silence].into_iter().flatten().min_by_key(|(_, at)| *at)
    }

    pub(super) fn on_wrap_up(&mut self) {
        if let Some((limit, at)) = self.hard_end() {
            self.begin_ending(limit, at);
        }
    }

    pub(super) fn on_hard_end(&mut self) {
        if let Some(Ending { limit, .. }) = self.ending.take() {
            self.begin_close(EndReason::Limit { limit: limit.into() }, None);
        }
    }

    /// What the session cost so far has grown.
    pub(super) fn check_cost(&mut self) {
        let Some(prices) = &self.limits.prices else { return };
        let cost = prices.cost(&self.stats.usage);
        self.stats.cost = Some(cost);
        if self.limits.max_cost.is_some_and(|max| cost >= max) && self.ending.is_none() {
            self.begin_ending(COST, self.now + self.limits.wrap_up);
        }
    }

    /// The user did something: silence is no reason to end any more.
    pub(super) fn silence_is_over(&mut self) {
        self.last_activity = self.now;
        let Some(ending) = self.ending.take_if(|ending| ending.limit == SILENCE) else { return };
        self.timers.stop(Timer::HardEnd);
        if let Some(id) = ending.prompt {
            self.supersede(|why| why == Why::Prompt { id });
            self.on_prompt_refused(id);
        }
    }

    /// A reply was heard to its end; perhaps the one by which the agent takes leave.
    pub(super) fn leave_was_taken(&mut self, why: Why) {
        let Why::Prompt { id } = why else { return };
        if let Some(ending) = self.ending.as_mut().filter(|ending| ending.prompt == Some(id)) {
            ending.said = true;
        }
    }

    /// Ends once the agent took leave.
    pub(super) fn end_after_leave(&mut self) {
        let said = self.ending.as_ref().is_some_and(|ending| ending.said);
        if said && self.phase == Phase::Running {
            self.on_hard_end();
        }
    }

    fn begin_ending(&mut self, limit: &'static str, at: Instant) {
        if self.phase != Phase::Running {
            return;
        }
        self.ending = Some(Ending { limit, prompt: None, said: false });
        self.timers.set(Timer::HardEnd, at);
        let speaks = self.can(|can| can.say);
        let delivery = prompts::wrap_up(self.language, speaks);
        let prompt = self.ask_prompt(HostPromptKind::WrapUp, delivery, None);
        if let Some(ending) = &mut self.ending {
            ending.prompt = prompt;
        }
    }
}
