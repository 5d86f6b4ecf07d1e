//! Replies from the request to the last sample heard.

use std::time::{Duration, Instant};

use antiphon_agent::Outcome;
use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{HistoryItem, HistoryRole, LiveCommand, ReplyId, ReplyOutcome};

use super::{
    Engine,
    io::{Origin, Output},
    sequencer::{Asked, Reply, Request, Wanted, Why},
    timers::Timer,
};
use crate::session::{Confidence, EventKind, Heard, RequestEnd, RequestOrigin, SessionState};

impl Engine {
    /// Asks for whatever is next, if its turn has come.
    pub(super) fn pump(&mut self) {
        // The provider learns what was heard before it is asked to go on from there.
        while self.connected && !self.clearing {
            let Some((request, wanted)) = self.replies.take_next() else { return };
            match wanted {
                Wanted::Play(frame) => {
                    let turn = self.turn.number;
                    let silence = !self.replies.is_audible();
                    let length = frame.duration();
                    let generation = self.replies.start_host_audio(length, turn, request.protected);
                    self.prompt_outputs.push_back(Output::Play { generation, frame });
                    self.prompt_outputs.push_back(Output::FinishPlayback { generation });
                    self.emit(EventKind::PlaybackStarted);
                    self.agent_is_audible(silence);
                }
                Wanted::Text { text, reply } => {
                    if request.why == Why::User {
                        self.begin_text_turn(&text);
                    }
                    let command = LiveCommand::Text { text, reply };
                    let number = reply.then_some(None);
                    self.ask(command, number, request);
                }
                Wanted::Say(text) => {
                    let number = self.replies.new_request();
                    let command = LiveCommand::Say { request: number, text };
                    self.ask(command, Some(Some(number)), request);
                }
                Wanted::Reply => {
                    let number = self.replies.new_request();
                    let command = LiveCommand::CreateReply { request: number };
                    self.ask(command, Some(Some(number)), request);
                }
            }
        }
    }

    /// Queues something for its turn. `false`: too much waits.
    pub(super) fn want_reply(&mut self, wanted: Wanted, why: Why) -> bool {
        let request = self.request(why);
        self.replies.want(request, wanted)
    }

    /// A request with nothing special.
    pub(super) fn request(&self, why: Why) -> Request {
        Request { why, host_id: None, by: None, within: self.limits.reply_start, protected: None }
    }

    /// `number`: a reply comes, and names this number, if any.
    fn ask(&mut self, command: LiveCommand, number: Option<Option<u64>>, request: Request) {
        let name = command.name();
        if !self.send(command, Self::origin_of(request.why)) {
            self.emit_error("provider", format!("{name} is not offered by the provider"));
            self.no_reply_comes(request, RequestEnd::Refused);
            return;
        }
        if let Some(number) = number {
            self.expect(number, request);
        }
    }

    /// A reply is going to come.
    pub(super) fn expect(&mut self, number: Option<u64>, request: Request) {
        let until = request.by.unwrap_or(self.now + request.within);
        self.replies.asked = Some(Asked { number, request, until });
        let answers_user = matches!(request.why, Why::User | Why::Tools);
        if answers_user && self.state == SessionState::Listening {
            self.set_state(SessionState::Processing);
        }
    }

    fn begin_text_turn(&mut self, text: &str) {
        let turn = self.begin_turn();
        self.latency.user_ended(self.now);
        self.emit_in(turn, EventKind::UserMessage { text: text.trim().to_owned() });
        self.screen_words(turn, text.trim());
        self.remember_user(turn, text.trim());
        self.count_workflow_turn();
    }

    /// A reply has not begun in its time.
    pub(super) fn on_request_late(&mut self) {
        while let Some(request) = self.replies.take_late(self.now) {
            self.no_reply_comes(request, RequestEnd::TimedOut);
        }
        let now = self.now;
        let Some(asked) = self.replies.asked.as_mut().filter(|asked| asked.until <= now) else {
            return;
        };
        let within = asked.request.within;
        let ms = within.as_millis() as u64;
        match asked.request.why {
            // These may still be thought about; the stall of the turn is told by its own timer.
            Why::User | Why::Tools => {
                if self.state == SessionState::Processing {
                    asked.until = now + within;
                    return;
                }
                self.emit(EventKind::Stalled { what: "provider".into(), ms, reaction: None });
            }
            _ => self.emit_error("provider", format!("a reply was not begun within {ms} ms")),
        }
        self.give_up_asked(RequestEnd::TimedOut);
    }

    /// No reply is going to come for what was asked for last.
    pub(super) fn give_up_asked(&mut self, end: RequestEnd) {
        let Some(asked) = self.replies.asked.take() else { return };
        self.no_reply_comes(asked.request, end);
    }

    /// A request ends without a reply.
    pub(super) fn no_reply_comes(&mut self, request: Request, end: RequestEnd) {
        self.tell_request_end(request, end);
        match request.why {
            Why::ReadBack { call } => self.refuse_parked(call, "it could not be read back"),
            Why::Guard => self.turn.replied = true,
            Why::User | Why::Tools if self.state == SessionState::Processing => {
                self.set_state(SessionState::Listening);
            }
            _ => {}
        }
    }

    /// Takes back what waits on behalf of whom `whose` accepts: something else came in its place.
    pub(super) fn supersede(&mut self, whose: impl Fn(Why) -> bool) {
        while let Some(request) = self.replies.take_back(&whose) {
            self.tell_request_end(request, RequestEnd::Superseded);
        }
    }

    pub(super) fn tell_request_end(&mut self, request: Request, outcome: RequestEnd) {
        // Who asked for nothing special sees the reply itself.
        if outcome == RequestEnd::Started && request.host_id.is_none() {
            return;
        }
        let origin = match request.why {
            Why::User => RequestOrigin::User,
            Why::Host => RequestOrigin::Host,
            Why::Tools => RequestOrigin::Tools,
            Why::ReadBack { .. } => RequestOrigin::ReadBack,
            Why::Prompt { .. } => RequestOrigin::Prompt,
            Why::Progress { .. } => RequestOrigin::Progress,
            Why::Guard => RequestOrigin::Guard,
        };
        self.emit(EventKind::ReplyRequest { request: request.host_id, origin, outcome });
    }

    /// The provider is done with the active reply.
    pub(super) fn end_reply(&mut self, id: &ReplyId, outcome: ReplyOutcome) {
        if self.replies.active_mut(id).is_none() {
            return;
        }
        let stopped = matches!(outcome, ReplyOutcome::Cancelled | ReplyOutcome::Interrupted);
        let protected = self.replies.active.as_ref().is_some_and(|reply| reply.protected.is_some());
        // A provider that stops a reply without a word of interruption means one.
        let cut = self.replies.active.as_ref().is_some_and(|reply| reply.cut || reply.over_limit);
        if stopped && !cut && !protected {
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
        let (number, why) = (reply.number, reply.why);
        if !reply.cut {
            // If its connection is lost now, the next one is asked for the answer.
            let asks_again = outcome == ReplyOutcome::Failed
                && reply.is_silent()
                && matches!(why, Why::User | Why::Tools)
                && self.calls.group_mut(self.epoch, number).is_none();
            self.turn.failed = asks_again && self.connected && self.turn.open;
            self.turn.replied = !self.turn.failed;
        }
        if self.turn.failed {
            self.timers.set(Timer::Settle, self.now + self.limits.settle);
        }
        self.reply_of_calls_is_done(number, outcome);
        if reply.cut {
            // What was heard of it has been told when it was cut.
        } else if self.has_hung_up() && !self.clearing {
            self.tell_unheard(&reply);
        } else if self.has_hung_up() {
            // It is told once it is known how much was heard.
            self.replies.playing.push_back(reply);
        } else if self.guarded_is_done(&mut reply) {
            // It is told, and its audio ends, once its words have passed.
            self.replies.playing.push_back(reply);
        } else if reply.queued.is_zero() {
            let interrupted = reply.over_limit || outcome == ReplyOutcome::Failed;
            self.tell_message(&reply, reply.words(), interrupted, Duration::ZERO);
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

    /// The user or the host stops the agent. `cancel`: the provider must be told. `false`: there was
    /// nothing to stop.
    pub(super) fn interrupt(&mut self, cancel: bool) -> bool {
        let interrupted = self.stop_agent(cancel);
        if interrupted {
            self.cancel_calls_on_interruption();
        }
        interrupted
    }

    /// Something that has to be said at once stops the agent, unless that is protected.
    pub(super) fn cut_in(&mut self) {
        if self.replies.protected().is_none() {
            self.stop_agent(true);
        }
    }

    /// Stops what the agent says, and what it was about to say.
    fn stop_agent(&mut self, cancel: bool) -> bool {
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
        self.end_pause(audible);
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
        if let Some(time) = self.times.barge_in.silenced(self.now) {
            self.times.silences.add(time);
        }
        let played = played.filter(|played| played.generation < next);
        if let Some(played) = &played {
            self.position_source = Some(played.source);
        }
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
        if self.has_hung_up() && played.is_some() {
            // It goes on, and nothing more of it is heard.
            active.heard = self.heard_of(&active, played);
            active.queued = Duration::ZERO;
        }
        if std::mem::take(&mut active.cut_now) {
            self.tell_cut_reply(&active, played);
        }
        self.replies.active = Some(active);
    }

    fn tell_cut_reply(&mut self, reply: &Reply, played: Option<Played>) {
        let heard = self.heard_of(reply, played);
        let done = reply.done.is_some();
        let text = reply.clip(reply.ledger.heard_text(heard, done));
        let complete = done && heard >= reply.ledger.received();
        if reply.id.is_none() {
            return;
        }
        // A new connection that does not continue the old one knows nothing of its items.
        let known = !reply.orphaned || self.reconnect.resumed;
        if !complete && known {
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
        self.tell_message(reply, text, !complete, heard);
    }

    /// How much of a cleared reply was heard. Only one generation plays at a time: what is older
    /// was heard to its end, what is newer not at all.
    fn heard_of(&self, reply: &Reply, played: Option<Played>) -> Duration {
        let received = reply.ledger.received();
        let Some(played) = played else {
            return if self.has_hung_up() { reply.heard.min(received) } else { Duration::ZERO };
        };
        match reply.generation.cmp(&played.generation) {
            std::cmp::Ordering::Less => received,
            std::cmp::Ordering::Equal => self.duration_of(played.samples).min(received),
            std::cmp::Ordering::Greater => Duration::ZERO,
        }
    }

    pub(super) fn on_played(&mut self, played: Played) {
        let heard = self.duration_of(played.samples);
        self.timers.stop(Timer::Marks);
        self.position_source = Some(played.source);
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
            let heard = reply.ledger.received();
            self.tell_message(&reply, reply.words(), interrupted, heard);
            self.reply_is_over(reply.why);
        }
        if any && !self.replies.is_audible() {
            self.emit(EventKind::PlaybackFinished);
        }
    }

    pub(super) fn reply_is_over(&mut self, why: Why) {
        if self.is_goodbye(why) {
            self.goodbye_was_heard();
        }
        self.leave_was_taken(why);
    }

    pub(super) fn tell_message(
        &mut self,
        reply: &Reply,
        text: String,
        interrupted: bool,
        heard: Duration,
    ) {
        let text = reply.clip(text).trim().to_owned();
        let heard =
            reply.began_at.map(|began_at| self.heard(began_at, heard, reply.ledger.received()));
        if reply.id.is_none() || text.is_empty() {
            return self.note_unheard(reply, heard);
        }
        self.note_reply(reply);
        let item = HistoryItem::Message { role: HistoryRole::Agent, text: text.clone() };
        self.reconnect.remember(reply.turn, reply.began_at.unwrap_or(self.now), item);
        let whole = reply.words();
        let generated = Some(whole.trim().to_owned()).filter(|whole| whole.len() > text.len());
        self.emit_in(reply.turn, EventKind::AgentMessage { text, interrupted, generated, heard });
    }

    fn heard(&self, began_at: Instant, heard: Duration, received: Duration) -> Heard {
        let (confidence, error) = match self.position_source {
            Some(PositionSource::DeviceClock) => (Confidence::DeviceClock, Duration::ZERO),
            Some(PositionSource::CarrierMark) => (Confidence::CarrierMark, Duration::ZERO),
            Some(PositionSource::Estimate { error }) => (Confidence::Estimate, error),
            // What was never told is reckoned.
            _ => (Confidence::Estimate, Duration::ZERO),
        };
        let ms = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        Heard {
            began_ms: began_at.saturating_duration_since(self.started_at).as_millis() as u64,
            heard_ms: ms(heard),
            generated_ms: ms(received),
            confidence,
            error_ms: ms(error),
        }
    }

    pub(super) fn remember_user(&mut self, turn: u64, text: &str) {
        let text = text.to_owned();
        let item = HistoryItem::Message { role: HistoryRole::User, text };
        self.reconnect.remember(turn, self.now, item);
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
