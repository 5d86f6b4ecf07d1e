//! Replies from the request to the last sample heard.

use std::time::Duration;

use antiphon_agent::Outcome;
use antiphon_audio::{Generation, Played};
use antiphon_live::{HistoryItem, HistoryRole, LiveCommand, ReplyId, ReplyOutcome};

use super::{
    Engine,
    io::{Origin, Output},
    sequencer::{Asked, Reply, Wanted, Why},
    timers::Timer,
};
use crate::session::{EventKind, SessionState};

impl Engine {
    /// Asks for whatever is next, if its turn has come.
    pub(super) fn pump(&mut self) {
        while self.connected {
            let Some(wanted) = self.replies.take_next() else { return };
            match wanted {
                Wanted::Play(frame) => {
                    let turn = self.turn.number;
                    let generation = self.replies.start_host_audio(frame.duration(), turn);
                    self.prompt_outputs.push_back(Output::Play { generation, frame });
                    self.prompt_outputs.push_back(Output::FinishPlayback { generation });
                    self.emit(EventKind::PlaybackStarted);
                }
                Wanted::Text { text, reply, why } => {
                    if why == Why::User {
                        self.begin_text_turn(&text);
                    }
                    let command = LiveCommand::Text { text, reply };
                    let asked = reply.then_some(Asked { request: None, why });
                    self.ask(command, asked, why);
                }
                Wanted::Say { text, why } => {
                    let request = self.replies.new_request();
                    let asked = Some(Asked { request: Some(request), why });
                    self.ask(LiveCommand::Say { request, text }, asked, why);
                }
                Wanted::Reply { why } => {
                    let request = self.replies.new_request();
                    let asked = Some(Asked { request: Some(request), why });
                    self.ask(LiveCommand::CreateReply { request }, asked, why);
                }
            }
        }
    }

    fn ask(&mut self, command: LiveCommand, asked: Option<Asked>, why: Why) {
        let name = command.name();
        if !self.send(command, Self::origin_of(why)) {
            self.emit_error("provider", format!("{name} is not offered by the provider"));
            self.give_up_request(why);
            return;
        }
        if let Some(asked) = asked {
            self.expect(asked);
        }
    }

    /// A reply is going to come.
    pub(super) fn expect(&mut self, asked: Asked) {
        self.replies.asked = Some(asked);
        self.timers.set(Timer::Request, self.now + self.limits.stall);
        let answers_user = matches!(asked.why, Why::User | Why::Tools);
        if answers_user && self.state == SessionState::Listening {
            self.set_state(SessionState::Processing);
        }
    }

    fn begin_text_turn(&mut self, text: &str) {
        let turn = self.begin_turn();
        self.latency.user_ended(self.now);
        self.emit_in(turn, EventKind::UserMessage { text: text.trim().to_owned() });
        self.remember_user(turn, text.trim());
        self.count_workflow_turn();
    }

    /// The provider has not begun a reply in its time.
    pub(super) fn on_request_late(&mut self) {
        let Some(asked) = self.replies.asked else { return };
        let ms = self.limits.stall.as_millis() as u64;
        match asked.why {
            // These may still be thought about; the stall of the turn is told by its own timer.
            Why::User | Why::Tools => {
                if self.state == SessionState::Processing {
                    self.timers.set(Timer::Request, self.now + self.limits.stall);
                    return;
                }
                self.emit(EventKind::Stalled { what: "provider".into(), ms });
            }
            _ => self.emit_error("provider", format!("a reply was not begun within {ms} ms")),
        }
        self.give_up_request(asked.why);
    }

    /// No reply is going to come for this request.
    pub(super) fn give_up_request(&mut self, why: Why) {
        if self.replies.asked.is_some_and(|asked| asked.why == why) {
            self.replies.asked = None;
            self.timers.stop(Timer::Request);
        }
        match why {
            Why::ReadBack { call } => self.refuse_parked(call, "it could not be read back"),
            Why::User | Why::Tools if self.state == SessionState::Processing => {
                self.set_state(SessionState::Listening);
            }
            _ => {}
        }
    }

    /// The provider is done with the active reply.
    pub(super) fn end_reply(&mut self, id: &ReplyId, outcome: ReplyOutcome) {
        if self.replies.active_mut(id).is_none() {
            return;
        }
        let stopped = matches!(outcome, ReplyOutcome::Cancelled | ReplyOutcome::Interrupted);
        // A provider that stops a reply without a word of interruption means one.
        let cut = self.replies.active.as_ref().is_some_and(|reply| reply.cut || reply.over_limit);
        if stopped && !cut {
            self.interrupt(false);
        }
        self.timers.stop(Timer::Settle);
        self.timers.stop(Timer::LostEnd);
        self.timers.stop(Timer::CancelAck);
        let Some(mut reply) = self.replies.active.take() else { return };
        self.replies.remember_done(id.clone());
        reply.done = Some(outcome);
        if outcome == ReplyOutcome::Failed && self.connected {
            self.emit_error("provider", "the reply failed");
        }
        if !reply.cut {
            self.turn.replied = true;
        }
        let (number, why) = (reply.number, reply.why);
        self.reply_of_calls_is_done(number, outcome);
        if reply.cut {
            // What was heard of it has been told when it was cut.
        } else if reply.queued.is_zero() {
            let interrupted = reply.over_limit || outcome == ReplyOutcome::Failed;
            self.tell_message(&reply, reply.ledger.whole_text(), interrupted);
            self.reply_is_over(why);
        } else {
            let generation = reply.generation;
            self.replies.playing.push_back(reply);
            self.prompt_outputs.push_back(Output::FinishPlayback { generation });
        }
        if matches!(self.state, SessionState::Speaking | SessionState::Processing) {
            let works = self.calls.any_at_work();
            self.set_state(if works { SessionState::Processing } else { SessionState::Listening });
        }
    }

    /// Stops the agent: what it says, and what it was about to say. `cancel`: the provider must be
    /// told. `false`: there was nothing to stop.
    pub(super) fn interrupt(&mut self, cancel: bool) -> bool {
        let active = self.replies.active.as_ref().is_some_and(|reply| !reply.cut);
        if !active && !self.replies.is_audible() {
            return false;
        }
        self.emit(EventKind::Interrupted);
        self.stats.interruptions += 1;
        if active && cancel {
            let id = self.replies.active.as_ref().and_then(|reply| reply.id.clone());
            self.cancel_at_provider(id);
        }
        if let Some(number) =
            self.replies.active.as_ref().filter(|reply| !reply.cut).map(|reply| reply.number)
        {
            self.cut_calls(number);
        }
        self.silence();
        self.turn.open = false;
        self.timers.stop(Timer::Settle);
        self.timers.stop(Timer::LostEnd);
        if matches!(self.state, SessionState::Speaking | SessionState::Processing) {
            self.set_state(SessionState::Listening);
        }
        true
    }

    /// Asks the provider to stop the active reply, and waits for its end only so long.
    pub(super) fn cancel_at_provider(&mut self, reply: Option<ReplyId>) {
        if self.send(LiveCommand::CancelReply { reply }, Origin::None) {
            self.timers.set(Timer::CancelAck, self.now + self.limits.stall);
        }
    }

    /// The provider never ended a reply that it was asked to stop.
    pub(super) fn on_cancel_unacknowledged(&mut self) {
        let id = self.replies.active.as_ref().and_then(|reply| reply.id.clone());
        if let Some(id) = id {
            self.emit_error("provider", "a cancelled reply was never ended");
            self.end_reply(&id, ReplyOutcome::Cancelled);
        }
    }

    /// Cuts everything that is heard or about to be.
    pub(super) fn silence(&mut self) {
        let audible = self.replies.is_audible();
        if let Some(active) = &mut self.replies.active {
            active.cut_now = !active.cut;
            active.cut = true;
        }
        if audible {
            self.clearing = true;
            let next = self.replies.next_generation();
            self.prompt_outputs.push_back(Output::ClearPlayback { next });
        } else {
            self.tell_cut(None);
        }
    }

    pub(super) fn on_cleared(&mut self, next: Generation, played: Option<Played>) {
        self.clearing = false;
        let played = played.filter(|played| played.generation < next);
        self.tell_cut(played);
        self.emit(EventKind::PlaybackFinished);
    }

    /// Tells what was heard of everything that was cut, here and to the provider.
    fn tell_cut(&mut self, played: Option<Played>) {
        let playing: Vec<Reply> = self.replies.playing.drain(..).collect();
        for reply in playing {
            self.tell_cut_reply(&reply, played);
        }
        let Some(mut active) = self.replies.active.take() else { return };
        if std::mem::take(&mut active.cut_now) {
            self.tell_cut_reply(&active, played);
        }
        self.replies.active = Some(active);
    }

    fn tell_cut_reply(&mut self, reply: &Reply, played: Option<Played>) {
        let heard = self.heard_of(reply, played);
        let done = reply.done.is_some();
        let text = reply.ledger.heard_text(heard, done);
        let complete = done && heard >= reply.ledger.received();
        if reply.id.is_none() {
            return;
        }
        if !complete {
            for cut in reply.ledger.cuts(heard, !done) {
                let command = LiveCommand::Truncate {
                    item: cut.item,
                    content_index: cut.content_index,
                    audio_end_ms: cut.heard_ms,
                    heard_text: Some(text.clone()),
                };
                self.send(command, Origin::None);
            }
        }
        self.tell_message(reply, text, !complete);
    }

    /// How much of a cleared reply was heard. Only one generation plays at a time: what is older
    /// was heard to its end, what is newer not at all.
    fn heard_of(&self, reply: &Reply, played: Option<Played>) -> Duration {
        let received = reply.ledger.received();
        let Some(played) = played else { return Duration::ZERO };
        match reply.generation.cmp(&played.generation) {
            std::cmp::Ordering::Less => received,
            std::cmp::Ordering::Equal => self.duration_of(played.samples).min(received),
            std::cmp::Ordering::Greater => Duration::ZERO,
        }
    }

    pub(super) fn on_played(&mut self, played: Played) {
        let heard = self.duration_of(played.samples);
        if let Some(reply) = self.replies.by_generation(played.generation) {
            reply.heard = reply.heard.max(heard.min(reply.queued));
        }
        if !played.complete {
            return;
        }
        let mut any = false;
        while self
            .replies
            .playing
            .front()
            .is_some_and(|reply| reply.generation <= played.generation)
        {
            let Some(reply) = self.replies.playing.pop_front() else { break };
            any = true;
            let failed = reply.done == Some(ReplyOutcome::Failed);
            let interrupted = reply.over_limit || failed;
            self.tell_message(&reply, reply.ledger.whole_text(), interrupted);
            self.reply_is_over(reply.why);
        }
        if any && !self.replies.is_audible() {
            self.emit(EventKind::PlaybackFinished);
        }
    }

    fn reply_is_over(&mut self, why: Why) {
        if self.is_goodbye(why) {
            self.goodbye_was_heard();
        }
    }

    fn tell_message(&mut self, reply: &Reply, text: String, interrupted: bool) {
        let text = text.trim().to_owned();
        if reply.id.is_none() || text.is_empty() {
            return;
        }
        let item = HistoryItem::Message { role: HistoryRole::Agent, text: text.clone() };
        self.reconnect.remember(reply.turn, item);
        let whole = reply.ledger.whole_text();
        let generated = Some(whole.trim().to_owned()).filter(|whole| whole.len() > text.len());
        self.emit_in(reply.turn, EventKind::AgentMessage { text, interrupted, generated });
    }

    pub(super) fn remember_user(&mut self, turn: u64, text: &str) {
        let text = text.to_owned();
        self.reconnect.remember(turn, HistoryItem::Message { role: HistoryRole::User, text });
    }

    /// Tells that the turn is over, once it is: nothing runs, nothing is asked for, all was heard.
    pub(super) fn finish_turn(&mut self) {
        let over = self.turn.open
            && self.turn.replied
            && self.replies.active.is_none()
            && self.replies.asked.is_none()
            && !self.replies.is_waiting()
            && self.replies.playing.is_empty()
            && !self.calls.any_at_work()
            && !self.clearing;
        if !over {
            return;
        }
        self.turn.open = false;
        let latency_ms = self.latency.take_ms();
        self.emit(EventKind::TurnFinished { latency_ms });
        if self.state == SessionState::Processing {
            self.set_state(SessionState::Listening);
        }
    }

    fn reply_of_calls_is_done(&mut self, number: u64, outcome: ReplyOutcome) {
        let epoch = self.epoch;
        match outcome {
            ReplyOutcome::Cancelled | ReplyOutcome::Interrupted => self.cut_calls(number),
            ReplyOutcome::Failed => self.void_calls_of(number, Outcome::Cancelled),
            _ => {}
        }
        if let Some(group) = self.calls.group_mut(epoch, number) {
            group.reply_done = true;
        }
    }

    fn duration_of(&self, samples: u64) -> Duration {
        let format = self
            .sink_format
            .or_else(|| self.capabilities.as_ref().map(|capabilities| capabilities.output));
        format.map(|format| format.duration_of(samples)).unwrap_or_default()
    }
}
