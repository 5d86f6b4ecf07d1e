//! Holding the agent's voice back until the words that it speaks have passed a guard.
//!
//! The guard itself is asked elsewhere: its verdicts are inputs. Audio is handed over once it was held
//! for the time of the line and speaks, as far as can be known, nothing but words that passed. What
//! was not handed over when words are denied is never heard.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_live::{LiveCommand, OutputWords, ReplyOutcome};
use antiphon_types::AudioFrame;

use super::{
    Engine,
    io::{Origin, Output},
    ledger::Ledger,
    prompts,
    sequencer::{Reply, Wanted, Why},
    timers::Timer,
};
use crate::session::{
    EventKind, GuardDenial, GuardVerdict, SessionState, WithoutTranscript, guard::OutputRules,
};

/// What is known of the words of one reply, and its audio that waits for them.
#[derive(Debug, Default)]
pub(crate) struct Guarded {
    held: VecDeque<Held>,
    /// How much that is.
    held_time: Duration,
    /// All words so far.
    text: String,
    /// They are spoken.
    spoken: bool,
    /// The provider says that they are complete.
    done: bool,
    /// The reply is over: no more words come.
    over: bool,
    /// So many bytes of them passed.
    passed: usize,
    /// So many were told.
    told: usize,
    told_done: bool,
    /// The number of the newest question to the guard, and of the newest that was answered.
    asked: u64,
    answered: u64,
    /// The question before which words were corrected: earlier verdicts are about other words.
    corrected: u64,
    /// Audio up to here speaks nothing but words that passed; `None`: all that came.
    cleared: Option<Duration>,
    /// All words passed, and no more come.
    settled: bool,
    /// Nothing of it is held any more.
    released: bool,
}

/// Audio that is not to be heard yet.
#[derive(Debug)]
struct Held {
    /// Where it ends within its reply.
    end: Duration,
    /// Until then it waits at least.
    due: Instant,
    frame: AudioFrame,
}

/// What becomes of what is held next.
enum Next {
    Play(AudioFrame),
    Deny,
    Wait,
    Nothing,
}

impl Guarded {
    /// How much audio waits.
    pub(crate) fn held_time(&self) -> Duration {
        self.held_time
    }

    /// The words that passed.
    pub(crate) fn passed(&self) -> &str {
        &self.text[..self.text.floor_char_boundary(self.passed)]
    }

    /// `text`, as far as it is words that passed.
    pub(crate) fn clip(&self, mut text: String) -> String {
        text.truncate(text.floor_char_boundary(self.passed().trim_end().len()));
        text
    }

    fn all_passed(&self) -> bool {
        self.answered == self.asked && self.passed >= self.text.len()
    }

    /// Reckons anew which audio speaks nothing but words that passed.
    fn clear(&mut self, ledger: &Ledger, words: OutputWords) {
        let in_step = words == OutputWords::Before;
        let known = in_step && self.all_passed() && !self.text.is_empty();
        self.cleared = match self.settled || known {
            true => None,
            false => Some(ledger.earliest(self.passed, in_step)),
        };
    }

    fn next(&mut self, now: Instant, without: WithoutTranscript) -> Next {
        let Some(front) = self.held.front() else { return Next::Nothing };
        if front.due > now && !self.settled {
            return Next::Wait;
        }
        let covered = self.cleared.is_none_or(|cleared| front.end <= cleared);
        if !covered {
            // Words that are being judged, or may become something else, are waited for in any case.
            match without {
                _ if !self.all_passed() => return Next::Wait,
                WithoutTranscript::Release => {}
                WithoutTranscript::Hold => return Next::Wait,
                WithoutTranscript::Deny => return Next::Deny,
            }
        }
        match self.held.pop_front() {
            Some(Held { frame, .. }) => {
                self.held_time = self.held_time.saturating_sub(frame.duration());
                Next::Play(frame)
            }
            None => Next::Nothing,
        }
    }
}

impl Reply {
    /// The words that may be known of it: with a guard, those that passed.
    pub(crate) fn words(&self) -> String {
        match &self.guard {
            Some(guard) => guard.passed().to_owned(),
            None => self.ledger.whole_text(),
        }
    }

    /// `text` without words that a guard has not let pass.
    pub(crate) fn clip(&self, text: String) -> String {
        match &self.guard {
            Some(guard) => guard.clip(text),
            None => text,
        }
    }
}

impl Engine {
    /// The guard is asked over the reply that has just begun.
    pub(super) fn guard_reply(&mut self) {
        if self.output_rules.is_some()
            && let Some(active) = &mut self.replies.active
        {
            active.guard =
                Some(Box::new(Guarded { cleared: Some(Duration::ZERO), ..Guarded::default() }));
        }
    }

    /// Audio of a guarded reply came, and is in its ledger.
    pub(super) fn hold_back(&mut self, number: u64, frame: AudioFrame) {
        let (now, hold_back) = (self.now, self.output_rules().hold_back);
        let Some(reply) = self.replies.by_number(number) else { return };
        let end = reply.ledger.received();
        let Some(guard) = &mut reply.guard else { return };
        guard.held_time += frame.duration();
        guard.held.push_back(Held { end, due: now + hold_back, frame });
    }

    /// Words of a guarded reply came. `done`: the provider says that these are all.
    pub(super) fn guard_words(&mut self, number: u64, text: String, done: bool, spoken: bool) {
        let words = self.output_words();
        let Some(reply) = self.replies.by_number(number) else { return };
        let Some(guard) = &mut reply.guard else { return };
        guard.done |= done;
        guard.spoken |= spoken;
        if text == guard.text {
            return self.tell_passed(number);
        }
        if !text.starts_with(&guard.text) {
            // What was said before is not what was judged.
            let same = text.bytes().zip(guard.text.bytes()).take_while(|(new, old)| new == old);
            let same = text.floor_char_boundary(same.count());
            guard.passed = guard.passed.min(same);
            guard.told = guard.told.min(same);
            guard.corrected = guard.asked + 1;
        }
        guard.text = text;
        guard.asked += 1;
        guard.clear(&reply.ledger, words);
        self.ask_guard(number);
    }

    fn ask_guard(&mut self, number: u64) {
        let Some(reply) = self.replies.by_number(number) else { return };
        let Some(guard) = &reply.guard else { return };
        let (check, text, complete) = (guard.asked, guard.text.clone(), guard.over);
        self.prompt_outputs.push_back(Output::Guard { reply: number, check, text, complete });
    }

    /// The provider is done with a guarded reply. `true`: it is kept until its words have passed.
    pub(super) fn guarded_is_done(&mut self, reply: &mut Reply) -> bool {
        let without = self.output_rules.as_ref().map(|rules| rules.without_transcript);
        let (Some(guard), Some(without)) = (&mut reply.guard, without) else { return false };
        guard.over = true;
        if guard.text.is_empty() {
            // Whatever was spoken, nobody will know what.
            guard.settled = !reply.ledger.has_audio() || without == WithoutTranscript::Release;
            guard.cleared = if guard.settled { None } else { Some(Duration::ZERO) };
            return reply.ledger.has_audio();
        }
        guard.asked += 1;
        let (check, text) = (guard.asked, guard.text.clone());
        let number = reply.number;
        self.prompt_outputs.push_back(Output::Guard { reply: number, check, text, complete: true });
        true
    }

    /// The guard has judged the first `bytes` of the words of a reply.
    pub(super) fn on_guarded(
        &mut self,
        number: u64,
        check: u64,
        bytes: usize,
        verdict: GuardVerdict,
    ) {
        let words = self.output_words();
        let Some(reply) = self.replies.by_number(number).filter(|reply| !reply.cut) else {
            self.stats.ignored_events += 1;
            return;
        };
        let Some(guard) = &mut reply.guard else { return };
        guard.answered = guard.answered.max(check);
        let passed = match verdict {
            GuardVerdict::Deny(denial) => return self.deny_reply(number, denial),
            _ if check < guard.corrected => return,
            GuardVerdict::Hold { from } if !(guard.over && check == guard.asked) => from.min(bytes),
            GuardVerdict::Hold { .. } | GuardVerdict::Pass => bytes,
        };
        guard.passed = guard.text.floor_char_boundary(passed.min(guard.text.len()));
        guard.settled = guard.over && check == guard.asked;
        guard.clear(&reply.ledger, words);
        self.tell_passed(number);
    }

    /// Tells of the words that passed.
    fn tell_passed(&mut self, number: u64) {
        let Some(reply) = self.replies.by_number(number) else { return };
        let turn = reply.turn;
        let Some(guard) = &mut reply.guard else { return };
        let done = guard.done && guard.all_passed();
        let text = guard.passed();
        let news = text.len() > guard.told || done && !guard.told_done;
        if !news || text.is_empty() {
            return;
        }
        let text = text.to_owned();
        (guard.told, guard.told_done) = (text.len(), done);
        let kind = match guard.spoken {
            true => EventKind::AgentTranscript { text, done },
            false => EventKind::AgentText { text, done },
        };
        self.emit_in(turn, kind);
    }

    /// Hands over what has waited long enough and may be heard.
    pub(super) fn release_held(&mut self) {
        while self.output_rules.is_some() && !self.clearing {
            let (now, without) = (self.now, self.output_rules().without_transcript);
            let hung_up = self.has_hung_up();
            let replies = self.replies.playing.iter_mut().chain(&mut self.replies.active);
            let mut waits = replies
                .filter(|reply| !reply.cut)
                .filter(|reply| reply.guard.as_ref().is_some_and(|guard| !guard.released));
            let Some(reply) = waits.next() else { return };
            let (number, done, audio) =
                (reply.number, reply.done.is_some(), reply.ledger.has_audio());
            let Some(guard) = &mut reply.guard else { return };
            if hung_up {
                guard.held.clear();
                guard.held_time = Duration::ZERO;
            }
            match guard.next(now, without) {
                Next::Play(frame) => self.hand_over(number, frame),
                Next::Deny => self.deny_unheard_of(number),
                Next::Nothing if done && guard.settled => {
                    guard.released = true;
                    self.guarded_is_over(number);
                }
                // A reply of which nobody knows what it says is over.
                Next::Wait if done && audio && guard.text.is_empty() => {
                    self.deny_unheard_of(number)
                }
                Next::Nothing | Next::Wait => return,
            }
        }
    }

    /// When the next of what is held has waited long enough.
    pub(super) fn release_due(&self) -> Option<Instant> {
        self.output_rules.as_ref()?;
        let mut replies = self.replies.playing.iter().chain(&self.replies.active);
        let held = replies.find_map(|reply| {
            let guard = reply.guard.as_ref().filter(|guard| !reply.cut && !guard.released)?;
            Some(guard.held.front().map(|held| held.due))
        })?;
        held.filter(|due| *due > self.now)
    }

    fn hand_over(&mut self, number: u64, frame: AudioFrame) {
        let now = self.now;
        let after_silence = !self.replies.any_handed_over();
        let Some(reply) = self.replies.by_number(number) else { return };
        let first = reply.queued.is_zero();
        reply.began_at = reply.began_at.or(Some(now));
        reply.queued += frame.duration();
        let (generation, turn) = (reply.generation, reply.turn);
        self.prompt_outputs.push_back(Output::Play { generation, frame });
        if first {
            self.playback_starts(turn, after_silence);
        }
    }

    /// All of a reply that is done has passed and was handed over.
    fn guarded_is_over(&mut self, number: u64) {
        let Some(at) = self.replies.playing.iter().position(|reply| reply.number == number) else {
            return;
        };
        let generation = self.replies.playing[at].generation;
        if !self.replies.playing[at].queued.is_zero() {
            self.prompt_outputs.push_back(Output::FinishPlayback { generation });
            return;
        }
        let Some(reply) = self.replies.playing.remove(at) else { return };
        let interrupted = reply.over_limit || reply.done == Some(ReplyOutcome::Failed);
        self.tell_message(&reply, reply.words(), interrupted, Duration::ZERO);
        self.reply_is_over(reply.why);
    }

    fn deny_unheard_of(&mut self, number: u64) {
        self.deny_reply(number, GuardDenial::new("no transcript of the audio came"));
    }

    /// Words are denied: nothing more of the agent's is heard, and something safe is said instead.
    fn deny_reply(&mut self, number: u64, denial: GuardDenial) {
        let Some(reply) = self.replies.by_number(number).filter(|reply| !reply.cut) else { return };
        let (turn, why, voiceless) = (reply.turn, reply.why, !reply.ledger.has_audio());
        let items = reply.ledger.items();
        let GuardDenial { reason, instead } = denial;
        let instead = instead
            .or_else(|| self.output_rules().instead)
            .unwrap_or_else(|| prompts::unsayable(self.language).to_owned());
        // What is said instead of something is not replaced once more.
        let wanted = match () {
            () if why == Why::Guard || self.has_hung_up() => None,
            () if self.can(|can| can.say) => Some(Wanted::Say(instead.clone())),
            () if self.can(|can| can.text_input) => {
                let text = prompts::say_only(self.language, &instead);
                Some(Wanted::Text { text, reply: true })
            }
            () => None,
        };
        self.stats.denied_replies += 1;
        let told = wanted.is_some().then_some(instead);
        self.emit_in(turn, EventKind::ReplyDenied { reason, instead: told });
        if let Some(active) = self.replies.active.as_ref().filter(|reply| !reply.cut) {
            let (id, active) = (active.id.clone(), active.number);
            self.cancel_at_provider(id);
            self.cut_calls(active);
        }
        // Where nothing was spoken yet no cut of the audio takes the words away.
        for item in items.into_iter().filter(|_| voiceless) {
            let heard_text = Some(String::new());
            let cut = LiveCommand::Truncate { item, content_index: 0, audio_end_ms: 0, heard_text };
            self.send(cut, Origin::None);
        }
        self.silence();
        if let Some(reply) = self.replies.by_number(number) {
            reply.cut = true;
        }
        self.timers.stop(Timer::Settle);
        self.timers.stop(Timer::LostEnd);
        if matches!(self.state, SessionState::Speaking | SessionState::Processing) {
            self.set_state(SessionState::Listening);
        }
        match wanted {
            Some(wanted) => {
                let request = self.request(Why::Guard);
                self.replies.want_first(request, wanted);
            }
            None => self.turn.replied = true,
        }
    }

    fn output_rules(&self) -> OutputRules {
        match &self.output_rules {
            Some(rules) => rules.clone(),
            // Nobody asks then.
            None => OutputRules {
                hold_back: Duration::ZERO,
                without_transcript: WithoutTranscript::Release,
                instead: None,
            },
        }
    }

    fn output_words(&self) -> OutputWords {
        self.capabilities.as_ref().map_or(OutputWords::Beside, |can| can.output_words)
    }
}
