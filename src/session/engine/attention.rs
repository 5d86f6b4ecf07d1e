//! Whether the user is there: idle reminder, goodbye, and the host's veto over both.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    Engine, Phase,
    idle::{IdleAction, IdleClock},
    io::{Origin, Output},
    prompts::{self, Delivery, Pending},
    sequencer::{Wanted, Why},
    timers::Timer,
};
use crate::session::{
    EndReason, EventKind, HostPrompt, HostPromptKind, HostPromptStage, IdleConfig, SessionState,
};

/// The user has this long to speak up after the goodbye was asked for, or refused.
const GOODBYE_GRACE: Duration = Duration::from_secs(5);
/// A goodbye that takes longer than this is cut off.
const GOODBYE_LIMIT: Duration = Duration::from_secs(30);

/// What is known of the user's presence.
#[derive(Debug)]
pub(super) struct Attention {
    clock: IdleClock,
    /// Counts what the user did.
    activities: u64,
    speaking: bool,
    /// When the present or last speech began.
    pub(super) speech_began: Option<Instant>,
    goodbye: Option<Goodbye>,
}

#[derive(Debug)]
struct Goodbye {
    since: Instant,
    /// The grace is over: the session ends as soon as nobody speaks.
    grace_over: bool,
}

impl Attention {
    pub(super) fn new(config: IdleConfig) -> Self {
        Self {
            clock: IdleClock::new(config),
            activities: 0,
            speaking: false,
            speech_began: None,
            goodbye: None,
        }
    }

    pub(super) fn set_busy(&mut self, busy: bool, now: Instant) {
        self.clock.set_busy(busy, now);
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.clock.deadline()
    }

    pub(super) fn configure(&mut self, config: IdleConfig) {
        self.clock.configure(config);
    }

    /// The user speaks right now, as far as the provider tells.
    pub(super) fn user_speaks(&self) -> bool {
        self.speaking
    }

    pub(super) fn speech_begins(&mut self, now: Instant) {
        self.speaking = true;
        self.speech_began = Some(now);
    }

    /// Whether the user began to speak again after what began at this time.
    pub(super) fn spoke_after(&self, began_at: Instant) -> bool {
        self.speech_began.is_some_and(|newest| newest > began_at)
    }

    pub(super) fn speech_is_over(&mut self) {
        self.speaking = false;
    }
}

impl Engine {
    /// The user did something: idle time starts again, and a goodbye is called off.
    pub(super) fn user_is_active(&mut self) {
        self.attention.activities += 1;
        self.attention.clock.activity(self.now);
        self.silence_is_over();
        if self.attention.goodbye.take().is_some() {
            self.timers.stop(Timer::Goodbye);
        }
    }

    /// Whether the session works or speaks, or the user does: idle time stands still.
    pub(super) fn is_busy(&self) -> bool {
        !self.connected
            || self.is_talking()
            || self.state == SessionState::Processing
            || !self.calls.is_empty()
            || self.prompts.is_pending()
    }

    /// Whether anybody speaks, or is about to.
    fn is_talking(&self) -> bool {
        self.replies.active.is_some()
            || self.replies.asked.is_some()
            || self.replies.is_waiting()
            || self.replies.is_audible()
            || self.attention.speaking
            || self.timers.is_set(Timer::TranscriptWait)
    }

    pub(super) fn on_idle(&mut self) {
        let Some(action) = self.attention.clock.take_due(self.now) else { return };
        let speaks = self.can(|can| can.say);
        match action {
            IdleAction::Remind => {
                let after = self.attention.clock.reminder_after().unwrap_or_default();
                let delivery = prompts::reminder(self.language, after, speaks);
                self.ask_prompt(HostPromptKind::IdleReminder, delivery, None);
            }
            IdleAction::Deactivate => {
                self.attention.goodbye = Some(Goodbye { since: self.now, grace_over: false });
                self.timers.set(Timer::Goodbye, self.now + GOODBYE_GRACE);
                let delivery = prompts::goodbye(self.language, speaks);
                self.ask_prompt(HostPromptKind::IdleDeactivate, delivery, None);
            }
        }
    }

    pub(super) fn on_goodbye_over(&mut self) {
        let Some(goodbye) = &mut self.attention.goodbye else { return };
        if goodbye.grace_over {
            return self.begin_close(EndReason::Idle, None);
        }
        goodbye.grace_over = true;
        self.timers.set(Timer::Goodbye, goodbye.since + GOODBYE_LIMIT);
    }

    /// Ends once the goodbye was said.
    pub(super) fn end_after_goodbye(&mut self) {
        let over = self.attention.goodbye.as_ref().is_some_and(|goodbye| goodbye.grace_over);
        if over && !self.is_busy() && self.phase == Phase::Running {
            self.begin_close(EndReason::Idle, None);
        }
    }

    /// The goodbye was said and heard: no need to wait for more.
    pub(super) fn goodbye_was_heard(&mut self) {
        if let Some(goodbye) = &mut self.attention.goodbye {
            goodbye.grace_over = true;
        }
    }

    /// Whether this reply is the goodbye.
    pub(super) fn is_goodbye(&self, why: Why) -> bool {
        self.attention.goodbye.is_some() && matches!(why, Why::Prompt { .. })
    }

    /// No words came after the user's speech: it was noise.
    pub(super) fn on_transcript_wait_over(&mut self) {
        if mem::take(&mut self.attention.speaking) {
            // No noise is as long as that.
            self.speech_is_taken();
        }
        self.utterances.speech_was_noise();
        self.forget_speech();
        self.no_words_come();
    }

    pub(super) fn ask_prompt(
        &mut self,
        kind: HostPromptKind,
        delivery: Delivery,
        token: Option<u64>,
    ) -> Option<u64> {
        let until = self.now + self.limits.hook;
        let activities = self.attention.activities;
        let Some(prompt) = self.prompts.start(kind, delivery, token, until, activities) else {
            self.answer_prompt(token, false);
            return None;
        };
        let id = prompt.id;
        let event = self.event_in(self.turn.number, EventKind::HostPrompt(prompt.clone()));
        self.ordered_outputs.push_back(Output::AskPrompt { event, prompt });
        Some(id)
    }

    pub(super) fn on_prompt_verdict(&mut self, id: u64, allowed: bool) {
        let Some(pending) = self.prompts.take(id) else { return };
        // The user did something meanwhile, or somebody speaks: the moment has passed.
        // Leave is taken whatever the user does, after whatever is said.
        let void = pending.kind != HostPromptKind::WrapUp
            && (pending.activity != self.attention.activities || self.is_talking());
        if !allowed || void || self.phase != Phase::Running {
            return self.end_prompt(pending, HostPromptStage::Rejected);
        }
        let why = Why::Prompt { id };
        let wanted = match pending.delivery.clone() {
            Delivery::Say(text) => Wanted::Say(text),
            Delivery::Ask(text) => Wanted::Text { text, reply: true },
        };
        if !self.want_reply(wanted, why) {
            return self.end_prompt(pending, HostPromptStage::SendFailed);
        }
        self.prompts.in_flight.push(pending);
    }

    pub(super) fn on_prompt_sent(&mut self, id: u64) {
        if let Some(pending) = self.prompts.take_in_flight(id) {
            self.end_prompt(pending, HostPromptStage::Sent);
        }
    }

    pub(super) fn on_prompt_refused(&mut self, id: u64) {
        if let Some(pending) = self.prompts.take_in_flight(id) {
            self.end_prompt(pending, HostPromptStage::SendFailed);
        }
    }

    pub(super) fn on_prompt_verdict_late(&mut self) {
        while let Some(pending) = self.prompts.take_late(self.now) {
            self.end_prompt(pending, HostPromptStage::Rejected);
        }
    }

    pub(super) fn fail_all_prompts(&mut self) {
        while let Some(pending) = self.prompts.take_any() {
            self.supersede(|why| why == Why::Prompt { id: pending.id });
            self.end_prompt(pending, HostPromptStage::SendFailed);
        }
    }

    pub(super) fn answer_prompt(&mut self, token: Option<u64>, sent: bool) {
        if let Some(token) = token {
            self.prompt_outputs.push_back(Output::PromptAnswer { token, sent });
        }
    }

    fn end_prompt(&mut self, pending: Pending, stage: HostPromptStage) {
        let prompt = HostPrompt { id: pending.id, prompt: pending.kind, stage };
        self.emit(EventKind::HostPrompt(prompt));
        self.answer_prompt(pending.token, stage == HostPromptStage::Sent);
    }

    /// What a command on behalf of `why` is sent for.
    pub(super) fn origin_of(why: Why) -> Origin {
        match why {
            Why::Prompt { id } => Origin::Prompt(id),
            _ => Origin::Asked,
        }
    }
}
