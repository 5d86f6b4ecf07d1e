//! The life of connections: none lasts as long as a conversation.
//!
//! A connection that is about to end, because the provider says so or is known to end it after a
//! while, is replaced at a quiet moment by one that was made beside it, and by force when little time is
//! left. One that is lost is replaced with growing waits; what cannot be mended is not tried again. The
//! user's audio is kept meanwhile, and the host is told what the next connection knows.

mod attempts;
mod handle;
mod silence;
mod successor;

use std::{sync::Arc, time::Duration};

use antiphon_live::{
    Capabilities, ConnectRequest, HistoryItem, HistoryRole, LiveCommand, LiveConfig, LiveError,
    Resumption, VoiceActivity,
};
use serde::{Deserialize, Serialize};

use super::{
    Engine, Phase,
    io::{HostCommand, Origin, Output},
    reconnect::{Gap, LOOK_HOME_FIRST},
    sequencer::{Wanted, Why},
    timers::{Timer, at},
    tools::Unsent,
};
use crate::session::{Continuity, EventKind, SessionState, digest::Digest};

pub(crate) use self::{
    attempts::{Attempts, Chance, Next},
    handle::Handle,
    silence::{Silence, is_voice},
    successor::Successor,
};

/// How long a connection that is about to go away is used on when the provider does not say how
/// much time is left.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// Of the time that is left, a quarter and at most this much is kept for connecting.
const LONGEST_RESERVE: Duration = Duration::from_secs(10);
/// A connection that cannot be replaced now is looked at again after this.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A better provider is looked for at least so often, where the present connection has no end.
const LOOK_HOME_LAST: Duration = Duration::from_secs(30 * 60);
/// So many replies that fail without a word, and the provider is no good.
const FAILED_REPLIES: u32 = 3;
/// Of a connection's life, the last tenth and at most this much is spent looking for a quiet moment.
const LONGEST_SEARCH: Duration = Duration::from_secs(5 * 60);

/// What the lives of connections depend on, beside the policy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LifetimeConfig {
    /// Any number: chance is an input.
    pub(crate) random: u64,
    /// The session's own provider takes no history: it is told the conversation in its instructions.
    pub(crate) takes_no_history: bool,
    /// Whom the session falls back on, in this order.
    pub(crate) fallbacks: Vec<Named>,
}

/// A provider that the session falls back on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Named {
    pub(crate) provider: Arc<str>,
    pub(crate) model: Arc<str>,
    /// As [`LifetimeConfig::takes_no_history`].
    #[serde(default)]
    pub(crate) takes_no_history: bool,
}

/// What a connection is told of the conversation.
#[derive(Debug)]
pub(crate) struct Told {
    anything: bool,
    /// Among its instructions.
    digest: Option<Digest>,
    /// The configuration that it was asked for with, as it was then.
    live: Arc<LiveConfig>,
}

impl Engine {
    pub(super) fn connect_again(&mut self) {
        let provider = self.reconnect.attempts.provider();
        let (request, told) = self.introduction(provider);
        self.epoch = request.epoch;
        self.reconnect.resuming = request.resume.is_some();
        self.introduced(told);
        self.prompt_outputs.push_back(Output::Connect { request, provider });
    }

    /// What a connection with this candidate is asked for now, and what it is told by that.
    fn introduction(&mut self, provider: usize) -> (ConnectRequest, Told) {
        let mut history = self.reconnect.history();
        history.extend(self.not_heard_yet());
        let resume = self.handle_for(provider);
        let mut live = self.live.clone();
        let in_short = resume.is_none() && self.candidate(provider).takes_no_history;
        let digest = Digest::of(&history).filter(|_| in_short);
        if let Some(digest) = &digest {
            let told = digest.after(live.instructions.as_deref());
            Arc::make_mut(&mut live).instructions = Some(told);
        }
        let told = Told { anything: !history.is_empty(), digest, live: self.live.clone() };
        let epoch = self.reconnect.next_epoch();
        (ConnectRequest::resuming(live, resume, history, epoch), told)
    }

    /// The handle that a connection with this candidate goes on by, if there is one that is good.
    fn handle_for(&mut self, provider: usize) -> Option<Resumption> {
        if !self.not_heard_yet().is_empty() {
            self.reconnect.handle.words_are_written();
        }
        // One that lacks what was said last is only for who can be told nothing.
        let less = self.reconnect.handle.knows_less() && self.can(|can| can.history);
        self.reconnect.handle.usable(provider, self.now).filter(|_| !less)
    }

    /// Whether what failed says that the handle is of no use.
    pub(super) fn is_handle_refused(&mut self, error: &LiveError) -> bool {
        let last = self.reconnect.attempts.is_last();
        matches!(error, LiveError::NoResumableSession)
            || self.can(|can| can.history) && self.reconnect.handle.is_refused(error, last)
    }

    /// The connection that is made next, or was made, is told this.
    fn introduced(&mut self, told: Told) {
        for unsent in &mut self.unsent_responses {
            unsent.in_history = !self.reconnect.resuming;
        }
        self.reconnect.told = told.anything;
        self.reconnect.digest = told.digest;
        self.reconnect.asked_with = Some(told.live);
    }

    /// A connection stands: what the host has changed since that was asked for reaches it, too.
    pub(super) fn bring_up_to_date(&mut self) {
        let Some(asked) = self.reconnect.asked_with.take() else { return };
        if Arc::ptr_eq(&asked, &self.live) {
            return;
        }
        let instructions = self.live.instructions.clone();
        let mut told = true;
        if instructions != asked.instructions {
            told &= self.send_instructions(instructions.unwrap_or_default());
        }
        if self.live.tools != asked.tools {
            let tools = self.live.tools.clone().into();
            told &= self.send(LiveCommand::UpdateTools(tools), Origin::None);
        }
        if !told && !self.replace_because("its configuration has changed", true) {
            self.emit_error("provider", "the provider takes no changes in a session");
        }
    }

    /// Instructions that take the place of the present connection's, with what it has to be told.
    pub(super) fn instructions_in_place(&self, instructions: String) -> String {
        match &self.reconnect.digest {
            Some(digest) => digest.after(Some(&instructions)),
            None => instructions,
        }
    }

    /// Replies that came by an earlier connection and are still being heard; the next one is told as if
    /// the user had heard them.
    fn not_heard_yet(&self) -> Vec<HistoryItem> {
        let whole = |text: String| {
            let text = text.trim().to_owned();
            (!text.is_empty()).then_some(HistoryItem::Message { role: HistoryRole::Agent, text })
        };
        let playing = self.replies.playing.iter().filter(|reply| reply.id.is_some());
        playing.filter_map(|reply| whole(reply.words())).collect()
    }

    /// A connection stands that is not the first: says what it knows.
    pub(super) fn tell_restored(&mut self) {
        let Some(gap) = self.reconnect.gap.take() else { return };
        let Gap { since, dropped, .. } = gap;
        let Named { provider, model, .. } = self.connected_with();
        if gap.provider != self.reconnect.attempts.provider() || gap.model != model {
            self.emit(EventKind::ProviderChanged { provider, model });
            self.reconnect.failed_replies = 0;
        }
        let restored = self.continuity();
        let ms = |time: Duration| time.as_millis() as u64;
        let gap_ms = ms(self.now.saturating_duration_since(since));
        let audio_lost_ms = ms(self.uplink.dropped().saturating_sub(dropped));
        self.emit(EventKind::StateRestored { restored, gap_ms, audio_lost_ms });
    }

    /// What the present connection knows of the conversation.
    fn continuity(&self) -> Continuity {
        let (resumed, told) = (self.reconnect.resumed, self.reconnect.told);
        if resumed && !self.reconnect.handle.is_outdated() {
            return Continuity::Full;
        }
        if resumed || told && self.can(|can| can.history) {
            return Continuity::History;
        }
        if self.reconnect.digest.is_some() {
            return Continuity::Digest;
        }
        // Where nobody writes down what is said there may have been a talk all the same.
        let talked = told || self.turn.number > 0 || self.stats.replies > 0;
        if talked { Continuity::None } else { Continuity::Full }
    }

    /// Whether a handle that comes now holds all of the conversation. A provider that gives one while a
    /// reply is active has made all of that: what is not over is telling it.
    pub(super) fn is_told_whole(&self) -> bool {
        let owes = self.turn.open && !self.turn.replied && self.replies.active.is_none();
        !owes && self.replies.asked.is_none() && self.calls.is_empty()
    }

    /// The provider of the present connection, or of the one that is being made, and the model that
    /// serves.
    pub(super) fn connected_with(&self) -> Named {
        let named = self.candidate(self.reconnect.attempts.provider());
        let serves = self.capabilities.as_ref().filter(|_| self.connected);
        let model = serves.and_then(|can| can.model.clone()).unwrap_or(named.model);
        Named { model, ..named }
    }

    /// A provider that the session may be connected with.
    pub(super) fn candidate(&self, candidate: usize) -> Named {
        match candidate.checked_sub(1).and_then(|at| self.fallbacks.get(at)) {
            Some(fallback) => fallback.clone(),
            None => Named {
                provider: self.provider_name.clone(),
                model: self.model.clone(),
                takes_no_history: self.takes_no_history,
            },
        }
    }

    /// Sets when the new connection is to be replaced, where that is known.
    pub(super) fn plan_life(&mut self, capabilities: &Capabilities) {
        let life = self.life(capabilities).filter(|_| self.reconnect.is_on());
        let look_from = life.map(|life| at(self.now, life - search_time(life)));
        self.timers.set_to(Timer::Expiry, look_from);
    }

    pub(super) fn on_expiry(&mut self) {
        let life = self.capabilities.as_ref().and_then(|can| self.life(can));
        self.on_going_away(life.map(search_time));
    }

    /// How long a connection lasts, as far as that is known.
    fn life(&self, capabilities: &Capabilities) -> Option<Duration> {
        [capabilities.connection_limit, self.limits.connection].into_iter().flatten().min()
    }

    /// The provider closes soon: leave as soon as nothing is under way.
    pub(super) fn on_going_away(&mut self, time_left: Option<Duration>) {
        if !self.reconnect.is_on() || !self.connected {
            return;
        }
        self.going_away = true;
        self.listen_for_a_pause();
        let within = time_left.map_or(LEAVE_WITHIN, |left| left - (left / 4).min(LONGEST_RESERVE));
        let first = self.reconnect.attempts.wait_before_leaving(self.now);
        self.reconnect.leave_from = Some(at(self.now, first));
        self.timers.bring_forward(Timer::GoingAway, at(self.now, within.max(first)));
    }

    /// Where nobody says when the user speaks, a pause in their audio is waited for.
    fn listen_for_a_pause(&mut self) {
        // Whoever presses a key to speak says so.
        let heard = match self.live.voice_activity {
            VoiceActivity::Manual => true,
            VoiceActivity::Auto => self.can(|can| can.tells_speech),
            _ => false,
        };
        let speaks = !self.uplink_sent.is_zero() || !self.uplink.is_empty();
        if !heard && speaks {
            self.reconnect.silence.listen(self.now);
        }
    }

    /// A session that fell back looks for its own provider now and then, also where its connection
    /// lasts for ever.
    pub(super) fn plan_way_home(&mut self) {
        let away = self.reconnect.is_on() && self.reconnect.attempts.provider() > 0;
        let from = away.then(|| self.now + self.reconnect.home_after);
        self.timers.set_to(Timer::Home, from);
    }

    /// A better provider may be back: at the next quiet moment that is found out.
    pub(super) fn look_home(&mut self) {
        let wait = self.reconnect.home_after;
        self.reconnect.home_after = (2 * wait).min(LOOK_HOME_LAST);
        self.reconnect.attempts.look_again();
        self.reconnect.homesick = true;
        self.listen_for_a_pause();
    }

    /// A reply of the provider's is over. One that fails every one is no better than one that is gone.
    pub(super) fn judge_provider(&mut self, good: bool) {
        if good {
            self.reconnect.failed_replies = 0;
            if self.reconnect.attempts.provider() == 0 {
                self.reconnect.home_after = LOOK_HOME_FIRST;
            }
            return self.reconnect.attempts.worked();
        }
        self.reconnect.failed_replies += 1;
        let enough = self.reconnect.failed_replies >= FAILED_REPLIES;
        if enough && self.reconnect.is_on() && self.reconnect.attempts.doubt(self.now) {
            self.reconnect.failed_replies = 0;
            // The next one is asked for the answer.
            self.turn.replied = false;
            self.replace_because("the provider's replies fail", true);
        }
    }

    pub(super) fn leave_if_idle(&mut self) {
        let leaves = self.going_away || self.reconnect.homesick;
        if !leaves || !self.connected || self.reconnect.successor.is_some() {
            return;
        }
        let used = self.reconnect.attempts.provider();
        let better = self.reconnect.attempts.better(self.now);
        if better.is_none() && !self.going_away {
            self.reconnect.homesick = false;
            self.reconnect.silence.stop();
            return self.plan_way_home();
        }
        let next = better.unwrap_or(used);
        if !self.is_quiet(next != used) {
            return;
        }
        let from = self.reconnect.leave_from.max(self.reconnect.silence.until());
        let from = from.max(self.reconnect.attempts.not_before(next));
        if let Some(from) = from.filter(|from| *from > self.now) {
            return self.timers.set(Timer::Quiet, from);
        }
        if next != used {
            return self.connect_beside(next);
        }
        let closes_first = self.can(|can| can.close_before_resume);
        if closes_first && self.handle_for(used).is_some() {
            self.replace_connection();
            self.reconnect.left_in_quiet = !self.connected;
        } else if self.reconnect.attempts.may_plan(self.now) {
            self.connect_beside(used);
        } else {
            self.leave_later();
        }
    }

    /// Whether nothing would be lost with the connection: nobody speaks, nothing is answered or is
    /// going to be, and what was said has left. `moves`: to another provider, for which no handle is.
    fn is_quiet(&self, moves: bool) -> bool {
        let user = self.attention.user_speaks()
            || self.timers.is_set(Timer::TranscriptWait)
            || self.utterances.any_open()
            || self.uplink.has_marks();
        // By voice that is awaited only for so long; by hand it is said.
        let by_hand = self.live.voice_activity != VoiceActivity::Auto && self.turn.pending;
        let owed = by_hand
            || self.unanswered.is_awaited()
            || self.turn.open && !self.turn.replied
            || self.state == SessionState::Processing;
        let agent = self.replies.active.is_some() || self.replies.asked.is_some();
        let works = !self.calls.is_empty() || !self.unsent_responses.is_empty();
        if user || owed || agent || works {
            return false;
        }
        if !moves && self.can(|can| can.resumption) && self.reconnect.handle.has_one() {
            // What the handle holds the next connection knows, unheard or not.
            return !self.reconnect.handle.is_outdated();
        }
        !self.replies.is_audible()
    }

    /// Replaces the connection now, unless that was done too often or it is known that there is no other:
    /// one that is well is used until it ends.
    pub(super) fn replace_connection(&mut self) {
        if self.reconnect.attempts.all_refused()
            || !self.replace_because("the provider goes away", false)
        {
            self.leave_later();
        }
    }

    /// Too many connections followed each other: this one is used until it ends, or until it has lived
    /// long enough to be believed in.
    fn leave_later(&mut self) {
        self.reconnect.leave_from = Some(self.now + LOOK_AGAIN);
        self.timers.set(Timer::Quiet, self.now + LOOK_AGAIN);
    }

    /// Replaces the connection; `wished`: the host says so. `false`: it stays.
    pub(super) fn replace_because(&mut self, cause: &str, wished: bool) -> bool {
        if !self.connected || self.phase != Phase::Running {
            return false;
        }
        let (epoch, before) = (self.epoch, self.reconnect.attempts.provider());
        let Some(attempt) = self.reconnect.attempts.planned(wished, self.now) else { return false };
        self.lose_connection(before);
        self.prompt_outputs.push_back(Output::Close { epoch });
        self.set_state(SessionState::Recovering);
        self.emit(EventKind::Reconnecting { attempt, cause: cause.into() });
        self.connect_again();
        true
    }

    /// The host finds that the provider does no good: a new connection that is told the conversation.
    pub(super) fn on_host_reconnect(&mut self) {
        self.reconnect.handle.forget();
        let replaced = self.replace_because("the host asks for it", true);
        let on_its_way = !self.connected && !self.timers.is_set(Timer::Backoff);
        if !replaced && on_its_way && self.reconnect.resuming && self.phase == Phase::Running {
            // The one that is being made would go on with what does no good.
            self.prompt_outputs.push_back(Output::Close { epoch: self.epoch });
            self.connect_again();
        }
    }

    /// What was handed to a connection and did not reach its peer; of the audio before it so much is
    /// lost. `unheld` is said again only to a connection that continues by the handle.
    pub(super) fn on_returned(
        &mut self,
        commands: Vec<HostCommand>,
        lost: Duration,
        unheld: Vec<HostCommand>,
    ) {
        self.uplink.lose(lost);
        let audio = |command: &&HostCommand| matches!(command, HostCommand::Audio(_));
        self.unanswered.returned(commands.iter().filter(audio).count());
        self.reconnect.unheld = unheld.into_iter().filter_map(said_by_user).collect();
        let mut uplink = Vec::with_capacity(commands.len());
        for command in commands {
            match &command {
                HostCommand::Audio(frame) => {
                    self.uplink_sent = self.uplink_sent.saturating_sub(frame.duration());
                }
                HostCommand::ActivityEnd => self.turn.pending = true,
                _ => {}
            }
            match command {
                HostCommand::ToolResponse(response) => {
                    // Its call was over when the next connection was told of all that was.
                    let in_history = !self.connected && !self.reconnect.resuming;
                    self.unsent_responses.push(Unsent { response, ran: true, in_history });
                }
                other => uplink.extend(said_by_user(other)),
            }
        }
        if !matches!(self.phase, Phase::Closing(_)) {
            self.uplink.give_back(uplink);
        }
    }

    /// The user still waits for an answer that the last connection owed: the new one is asked.
    pub(super) fn ask_for_what_is_owed(&mut self) {
        self.finish_groups();
        let asked =
            self.replies.is_waiting_for(Why::User) || self.replies.is_waiting_for(Why::Tools);
        let owed = self.turn.open && !self.turn.replied && !asked && !self.calls.any_at_work();
        if owed && let Some(wanted) = self.request_for_an_answer() {
            let why = if matches!(wanted, Wanted::Reply) { Why::User } else { Why::Tools };
            self.want_reply(wanted, why);
        }
    }
}

/// The user's part of what a connection was handed.
fn said_by_user(command: HostCommand) -> Option<LiveCommand> {
    Some(match command {
        HostCommand::Audio(frame) => LiveCommand::AppendAudio(frame),
        HostCommand::EndAudio => LiveCommand::EndAudio,
        HostCommand::ActivityStart => LiveCommand::ActivityStart,
        HostCommand::ActivityEnd => LiveCommand::ActivityEnd,
        HostCommand::Image { media_type, data } => LiveCommand::Image { media_type, data },
        _ => return None,
    })
}

fn search_time(life: Duration) -> Duration {
    (life / 10).min(LONGEST_SEARCH)
}
