//! The reply sequencer: at most one reply is active or asked for; everything else waits its turn.
//!
//! A reply lives in two places: as the *active* one while the provider produces it, and in the
//! *playing* queue until its audio was heard or cleared. The second may outlast the first, since
//! providers send faster than people listen.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_audio::Generation;
use antiphon_live::{ReplyId, ReplyOutcome};
use antiphon_types::AudioFrame;

use super::{guard::Guarded, ledger::Ledger};
use crate::session::barge_in::UserAudio;

/// Things that may wait for their turn.
const MAX_WAITING: usize = 256;
/// Host audio that may wait.
const MAX_WAITING_AUDIO: Duration = Duration::from_secs(60);

/// Replies that are known to be over.
const REMEMBERED: usize = 16;

/// Something that must not run beside a reply.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// The user's turn as text.
    Text { text: String, reply: bool },
    /// A text to be spoken as it is.
    Say(String),
    /// A reply to the conversation as it is.
    Reply,
    /// Host audio.
    Play(AudioFrame),
}

/// A request for a reply, or for the right to be heard. It ends exactly once: see
/// [`RequestEnd`](crate::session::RequestEnd).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) why: Why,
    /// How the host names it, where it wants to know how it ends.
    pub(crate) host_id: Option<u64>,
    /// A reply must have begun by then, also while the request waits; `None`: the provider has the
    /// time in `within` from when it is asked.
    pub(crate) by: Option<Instant>,
    /// How long that is in all.
    pub(crate) within: Duration,
    /// The user's speech does not interrupt it.
    pub(crate) protected: Option<UserAudio>,
}

/// On whose behalf a reply was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The user.
    User,
    /// The host.
    Host,
    /// The outputs of tools.
    Tools,
    /// A read-back of the call with this number.
    ReadBack { call: u64 },
    /// A prompt of the session's own.
    Prompt { id: u64 },
    /// The progress of the call with this number.
    Progress { call: u64 },
    /// The guard: something is said in the place of words that were denied.
    Guard,
}

/// A reply that was asked for and has not begun.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// The number by which the provider names it; `None` where it cannot.
    pub(crate) number: Option<u64>,
    pub(crate) request: Request,
    /// It must have begun by then.
    pub(crate) until: Instant,
}

/// One reply, or a piece of host audio.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The provider's id; `None` is host audio.
    pub(crate) id: Option<ReplyId>,
    /// Counts up within the session, from 1.
    pub(crate) number: u64,
    pub(crate) generation: Generation,
    pub(crate) why: Why,
    /// The turn it belongs to.
    pub(crate) turn: u64,
    pub(crate) ledger: Ledger,
    /// When its first audio was handed over.
    pub(crate) began_at: Option<Instant>,
    /// Audio handed to the sink's queue.
    pub(crate) queued: Duration,
    /// Audio heard, as far as the sink told.
    pub(crate) heard: Duration,
    /// It was cut off; nothing more of it is let through.
    pub(crate) cut: bool,
    /// It was cut, and what was heard of it has not been told.
    pub(crate) cut_now: bool,
    /// It ran into the bound on unplayed audio.
    pub(crate) over_limit: bool,
    /// The user's speech does not interrupt it.
    pub(crate) protected: Option<UserAudio>,
    /// How it ended at the provider.
    pub(crate) done: Option<ReplyOutcome>,
    /// The connection that it came by is gone.
    pub(crate) orphaned: bool,
    /// Its words are guarded.
    pub(crate) guard: Option<Box<Guarded>>,
}

/// The sequencer.
#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    /// Not done at the provider. It may be cut.
    pub(crate) active: Option<Reply>,
    /// Done at the provider, not heard to the end, oldest first.
    pub(crate) playing: VecDeque<Reply>,
    pub(crate) asked: Option<Asked>,
    /// Replies that are over; what still comes of them is stale.
    done: VecDeque<ReplyId>,
    waiting: VecDeque<(Request, Wanted)>,
    next_request: u64,
    next_number: u64,
    next_generation: u64,
}

impl Sequencer {
    /// `first_generation`: above every one that the sink has seen.
    pub(crate) fn new(first_generation: u64) -> Self {
        Self { next_generation: first_generation, ..Self::default() }
    }

    /// The connection is gone: the next one may use its names for other replies.
    pub(crate) fn forget_done(&mut self) {
        self.done.clear();
    }

    /// Queues something for its turn. `false`: too much waits.
    pub(crate) fn want(&mut self, request: Request, wanted: Wanted) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        if let Wanted::Play(frame) = &wanted {
            let queued: Duration =
                self.waiting.iter().map(|(_, wanted)| wanted.audio_duration()).sum();
            if queued + frame.duration() > MAX_WAITING_AUDIO {
                return false;
            }
        }
        self.waiting.push_back((request, wanted));
        true
    }

    /// Queues something before all that waits.
    pub(crate) fn want_first(&mut self, request: Request, wanted: Wanted) {
        self.waiting.push_front((request, wanted));
    }

    /// Takes what is next, if nothing is active or asked for.
    pub(crate) fn take_next(&mut self) -> Option<(Request, Wanted)> {
        if self.active.is_some() || self.asked.is_some() {
            return None;
        }
        // The sink takes replies in order: host audio comes after what is held back.
        let held = self.playing.iter().any(|reply| !reply.held().is_zero());
        self.waiting.pop_front_if(|(_, wanted)| !(held && matches!(wanted, Wanted::Play(_))))
    }

    /// Whether anything waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether a reply on behalf of `why` waits for its turn.
    pub(crate) fn is_waiting_for(&self, why: Why) -> bool {
        self.waiting.iter().any(|(request, _)| request.why == why)
    }

    /// Takes back the next that waits on behalf of whom `whose` accepts.
    pub(crate) fn take_back(&mut self, whose: impl Fn(Why) -> bool) -> Option<Request> {
        let at = self.waiting.iter().position(|(request, _)| whose(request.why))?;
        self.waiting.remove(at).map(|(request, _)| request)
    }

    /// When a request is late next, sent or not.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let waiting = self.waiting.iter().filter_map(|(request, _)| request.by);
        waiting.chain(self.asked.map(|asked| asked.until)).min()
    }

    /// Takes a request that waited for its turn until it was too late.
    pub(crate) fn take_late(&mut self, now: Instant) -> Option<Request> {
        let late = |(request, _): &(Request, Wanted)| request.by.is_some_and(|by| by <= now);
        let at = self.waiting.iter().position(late)?;
        self.waiting.remove(at).map(|(request, _)| request)
    }

    /// A fresh number for a request.
    pub(crate) fn new_request(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    /// The provider began a reply.
    pub(crate) fn start(
        &mut self,
        id: ReplyId,
        why: Why,
        turn: u64,
        protected: Option<UserAudio>,
    ) -> &Reply {
        let mut reply = self.fresh(Some(id), why, turn);
        reply.protected = protected;
        self.active.insert(reply)
    }

    /// Host audio begins, and ends: nothing is added to it.
    pub(crate) fn start_host_audio(
        &mut self,
        length: Duration,
        turn: u64,
        protected: Option<UserAudio>,
    ) -> Generation {
        let mut reply = self.fresh(None, Why::Host, turn);
        reply.protected = protected;
        reply.queued = length;
        reply.done = Some(ReplyOutcome::Completed);
        let generation = reply.generation;
        self.playing.push_back(reply);
        generation
    }

    /// The active reply, if it is `id`.
    pub(crate) fn active_mut(&mut self, id: &ReplyId) -> Option<&mut Reply> {
        self.active.as_mut().filter(|reply| reply.id.as_ref() == Some(id))
    }

    /// Whether a reply of this id is over.
    pub(crate) fn was_done(&self, id: &ReplyId) -> bool {
        self.done.contains(id)
    }

    /// A reply is over at the provider.
    pub(crate) fn remember_done(&mut self, id: ReplyId) {
        if self.done.len() == REMEMBERED {
            self.done.pop_front();
        }
        self.done.push_back(id);
    }

    /// The reply of `generation`, active or playing.
    pub(crate) fn by_generation(&mut self, generation: Generation) -> Option<&mut Reply> {
        self.playing
            .iter_mut()
            .chain(self.active.iter_mut())
            .find(|reply| reply.generation == generation)
    }

    /// The reply of this number, active or playing.
    pub(crate) fn by_number(&mut self, number: u64) -> Option<&mut Reply> {
        self.playing.iter_mut().chain(&mut self.active).find(|reply| reply.number == number)
    }

    /// The first generation that a later reply may have.
    pub(crate) fn next_generation(&self) -> Generation {
        Generation(self.next_generation)
    }

    /// Whether audio is queued that was not heard and not cleared.
    pub(crate) fn is_audible(&self) -> bool {
        self.playing.iter().any(Reply::is_audible)
            || self.active.as_ref().is_some_and(Reply::is_audible)
    }

    /// Whether the sink has audio that was not heard and not cleared.
    pub(crate) fn any_handed_over(&self) -> bool {
        let audible = |reply: &Reply| !reply.cut && !reply.queued.is_zero();
        self.playing.iter().any(audible) || self.active.as_ref().is_some_and(audible)
    }

    /// What becomes of the user's audio while something that must not be interrupted is heard, or is
    /// about to be; `None`: nothing is.
    pub(crate) fn protected(&self) -> Option<UserAudio> {
        let active = self.active.iter().filter(|reply| !reply.cut);
        let playing = self.playing.iter().filter(|reply| reply.is_audible());
        let asked = self.asked.iter().filter_map(|asked| asked.request.protected);
        active.chain(playing).filter_map(|reply| reply.protected).chain(asked).next()
    }

    /// How much queued audio was not heard yet, as far as the sink told.
    pub(crate) fn unheard(&self) -> Duration {
        self.playing
            .iter()
            .chain(&self.active)
            .map(|reply| reply.queued.saturating_sub(reply.heard) + reply.held())
            .sum()
    }

    fn fresh(&mut self, id: Option<ReplyId>, why: Why, turn: u64) -> Reply {
        self.next_number += 1;
        let generation = Generation(self.next_generation);
        self.next_generation += 1;
        Reply {
            id,
            number: self.next_number,
            generation,
            why,
            turn,
            ledger: Ledger::default(),
            began_at: None,
            queued: Duration::ZERO,
            heard: Duration::ZERO,
            cut: false,
            cut_now: false,
            over_limit: false,
            protected: None,
            done: None,
            orphaned: false,
            guard: None,
        }
    }
}

impl Reply {
    /// Whether there is nothing of it, neither words nor audio.
    pub(crate) fn is_silent(&self) -> bool {
        !self.ledger.has_audio() && self.ledger.whole_text().is_empty()
    }

    fn is_audible(&self) -> bool {
        !(self.cut || self.queued.is_zero() && self.held().is_zero())
    }

    /// Audio that waits for its words to pass.
    fn held(&self) -> Duration {
        self.guard.as_ref().map_or(Duration::ZERO, |guard| guard.held_time())
    }
}

impl Wanted {
    fn audio_duration(&self) -> Duration {
        match self {
            Self::Play(frame) => frame.duration(),
            _ => Duration::ZERO,
        }
    }
}

/// Latency of a turn: from the end of the user's speech to the first audio of the answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Latency {
    user_ended: Option<Instant>,
    measured: Option<Duration>,
}

impl Latency {
    /// The user's turn ended at `at`.
    pub(crate) fn user_ended(&mut self, at: Instant) {
        *self = Self { user_ended: Some(at), measured: None };
    }

    /// Audio of the answer came. The latency, where this is the first of it.
    pub(crate) fn audio(&mut self, now: Instant) -> Option<Duration> {
        let (None, Some(ended)) = (self.measured, self.user_ended) else { return None };
        self.measured = Some(now.saturating_duration_since(ended));
        self.measured
    }

    /// The latency of the turn that is over.
    pub(crate) fn take_ms(&mut self) -> Option<u64> {
        std::mem::take(self).measured.map(|measured| measured.as_millis() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn request(why: Why) -> Request {
        Request { why, host_id: None, by: None, within: SECOND, protected: None }
    }

    #[test]
    fn what_waits_is_bounded_in_number_and_host_audio_in_time() {
        let mut replies = Sequencer::new(1);
        let second = AudioFrame::from_pcm16(8_000, &[0; 8_000]);
        let play = || Wanted::Play(second.clone());
        let mut sounds = 0;
        while replies.want(request(Why::Host), play()) {
            sounds += 1;
        }
        assert_eq!(sounds, 60, "a minute");
        let mut words = 0;
        while replies.want(request(Why::User), Wanted::Reply) {
            words += 1;
        }
        assert_eq!(sounds + words, MAX_WAITING);
        // The first goes, and there is room for one more.
        assert!(matches!(replies.take_next(), Some((_, Wanted::Play(_)))));
        assert!(replies.want(request(Why::Host), play()));
        assert!(!replies.want(request(Why::Host), Wanted::Reply));
    }

    #[test]
    fn nothing_begins_beside_a_reply_that_is_active_or_asked_for() {
        let now = Instant::now();
        let mut replies = Sequencer::new(7);
        replies.want(request(Why::Host), Wanted::Reply);
        replies.start("a".into(), Why::User, 1, None);
        assert!(replies.take_next().is_none());
        replies.active = None;
        let (number, until) = (Some(1), now + SECOND);
        replies.asked = Some(Asked { number, request: request(Why::User), until });
        assert!(replies.take_next().is_none());
        assert_eq!(replies.deadline(), Some(until));
        replies.asked = None;
        assert!(replies.take_next().is_some());
        assert!(!replies.is_waiting());
        assert_eq!(replies.deadline(), None);
    }

    #[test]
    fn only_what_has_a_time_of_its_own_is_late_while_it_waits() {
        let now = Instant::now();
        let mut replies = Sequencer::new(1);
        replies.want(request(Why::Host), Wanted::Reply);
        for seconds in [5, 3] {
            let by = Some(now + seconds * SECOND);
            replies.want(Request { by, ..request(Why::Host) }, Wanted::Reply);
        }
        assert_eq!(replies.deadline(), Some(now + 3 * SECOND));
        assert!(replies.take_late(now + 2 * SECOND).is_none());
        assert_eq!(replies.take_late(now + 3 * SECOND).unwrap().by, Some(now + 3 * SECOND));
        assert!(replies.take_late(now + 3 * SECOND).is_none());
        assert!(replies.take_late(now + 9 * SECOND).is_some());
        assert!(replies.take_late(now + 99 * SECOND).is_none(), "the other is patient");
        assert!(replies.is_waiting());
    }

    #[test]
    fn each_reply_has_a_generation_above_all_before_it() {
        let mut replies = Sequencer::new(7);
        assert_eq!(replies.next_generation(), Generation(7));
        let first = replies.start("a".into(), Why::User, 1, None);
        assert_eq!((first.number, first.generation), (1, Generation(7)));
        let chime = replies.start_host_audio(SECOND, 1, None);
        assert_eq!((chime, replies.next_generation()), (Generation(8), Generation(9)));
        assert!(replies.is_audible());
        assert_eq!(replies.unheard(), SECOND);
        let chime = replies.by_generation(chime).unwrap();
        (chime.heard, chime.cut) = (SECOND / 4, true);
        assert_eq!(replies.unheard(), SECOND * 3 / 4);
        assert!(!replies.is_audible(), "it was cut off");
    }

    #[test]
    fn the_last_replies_are_known_to_be_over_and_no_more_of_them() {
        let mut replies = Sequencer::new(1);
        let id = |number: usize| ReplyId::from(format!("r{number}").as_str());
        for number in 0..REMEMBERED {
            replies.remember_done(id(number));
        }
        assert!((0..REMEMBERED).all(|number| replies.was_done(&id(number))));
        assert!(!replies.was_done(&id(REMEMBERED)));
        replies.remember_done(id(REMEMBERED));
        assert!(!replies.was_done(&id(0)), "the oldest is forgotten");
        assert!((1..=REMEMBERED).all(|number| replies.was_done(&id(number))));
    }

    #[test]
    fn what_waits_is_found_and_taken_back_by_whom_it_is_for() {
        let mut replies = Sequencer::new(1);
        let progress = Why::Progress { call: 3 };
        for why in [Why::Tools, progress, Why::Tools] {
            replies.want(request(why), Wanted::Reply);
        }
        assert!(replies.is_waiting_for(progress) && replies.is_waiting_for(Why::Tools));
        assert!(!replies.is_waiting_for(Why::Progress { call: 4 }));
        assert!(replies.take_back(|why| why == Why::User).is_none());
        assert_eq!(replies.take_back(|why| why == progress).unwrap().why, progress);
        assert!(!replies.is_waiting_for(progress) && replies.is_waiting_for(Why::Tools));
        assert_eq!((replies.new_request(), replies.new_request()), (1, 2));
    }

    #[test]
    fn what_is_protected_is_so_until_it_was_heard_or_cut() {
        let now = Instant::now();
        let mut replies = Sequencer::new(1);
        let (keep, drop) = (Some(UserAudio::Keep), Some(UserAudio::Drop));
        assert_eq!(replies.protected(), None);
        let asked = Request { protected: drop, ..request(Why::Host) };
        replies.asked = Some(Asked { number: None, request: asked, until: now });
        assert_eq!(replies.protected(), drop, "it is about to be heard");
        replies.asked = None;
        replies.start("a".into(), Why::Host, 1, keep);
        assert_eq!(replies.protected(), keep);
        let mut reply = replies.active.take().unwrap();
        reply.queued = SECOND;
        replies.playing.push_back(reply);
        assert_eq!(replies.protected(), keep, "it is still heard");
        replies.playing[0].cut = true;
        assert_eq!(replies.protected(), None);
        replies.start("b".into(), Why::Host, 1, keep);
        replies.active.as_mut().unwrap().cut = true;
        assert_eq!(replies.protected(), None);
    }

    #[test]
    fn a_reply_is_found_by_what_it_is_heard_as() {
        let mut replies = Sequencer::new(5);
        let chime = replies.start_host_audio(SECOND, 1, None);
        let active = replies.start("a".into(), Why::User, 2, None).generation;
        assert_eq!(replies.by_generation(chime).unwrap().turn, 1);
        assert_eq!(replies.by_generation(active).unwrap().turn, 2);
        assert!(replies.by_generation(Generation(4)).is_none());
        assert!(replies.active_mut(&"b".into()).is_none());
        assert_eq!(replies.active_mut(&"a".into()).unwrap().number, 2);
        // A reply that gave no audio yet is not heard.
        replies.playing.clear();
        assert!(!replies.is_audible());
    }

    #[test]
    fn the_latency_of_a_turn_is_that_of_the_first_audio_after_it() {
        let now = Instant::now();
        let mut latency = Latency::default();
        assert_eq!(latency.audio(now), None, "nobody spoke");
        latency.user_ended(now);
        assert_eq!(latency.audio(now + SECOND), Some(SECOND));
        assert_eq!(latency.audio(now + 2 * SECOND), None);
        assert_eq!(latency.take_ms(), Some(1_000));
        assert_eq!(latency.take_ms(), None);
    }
}
