//! What the record of a turn has beyond what hosts are told: for the agent that is linked.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_live::{ReplyId, ReplyOutcome};
use antiphon_types::Usage;

use super::{Engine, io::Output, sequencer::Reply, transcripts::Utterance};
use crate::session::{
    Heard,
    journal::{Note, ReplyNote, UtteranceNote},
};

/// Speeches that are remembered until their words come.
const MAX_SPEECHES: usize = 32;

/// When the user spoke.
#[derive(Debug, Default)]
pub(super) struct Speeches {
    recent: VecDeque<Speech>,
}

#[derive(Debug)]
struct Speech {
    /// When it was noticed, by which its words know it.
    noticed: Instant,
    began: Instant,
    ended: Option<Instant>,
}

impl Speeches {
    pub(super) fn begins(&mut self, noticed: Instant, began: Instant) {
        self.ends(began);
        if self.recent.len() == MAX_SPEECHES {
            self.recent.pop_front();
        }
        self.recent.push_back(Speech { noticed, began, ended: None });
    }

    pub(super) fn ends(&mut self, at: Instant) {
        if let Some(last) = self.recent.back_mut() {
            last.ended.get_or_insert(at);
        }
    }

    /// How long the last one was, once it is over.
    pub(super) fn length_of_last(&self) -> Duration {
        let length = |speech: &Speech| speech.ended.map(|ended| ended.duration_since(speech.began));
        self.recent.back().and_then(length).unwrap_or_default()
    }

    /// The speech that was noticed at this time.
    fn find(&self, noticed: Instant) -> Option<&Speech> {
        self.recent.iter().rev().find(|speech| speech.noticed == noticed)
    }
}

impl Engine {
    pub(super) fn note_utterance(&mut self, turn: u64, utterance: &Utterance) {
        let speech = self.speeches.find(utterance.began_at);
        let note = UtteranceNote {
            item: utterance.item.clone(),
            language: utterance.language.clone(),
            start_ms: speech.map(|speech| self.session_ms(speech.began)),
            end_ms: speech.and_then(|speech| speech.ended).map(|ended| self.session_ms(ended)),
        };
        self.note(turn, Note::Utterance(note));
    }

    /// What the agent message that is told next is of.
    pub(super) fn note_reply(&mut self, reply: &Reply) {
        let items = reply.ledger.items();
        self.note(reply.turn, Note::Reply(ReplyNote { items }));
    }

    /// Nothing was heard of a reply, though there was something.
    pub(super) fn note_unheard(&mut self, reply: &Reply, heard: Option<Heard>) {
        let generated = reply.words().trim().to_owned();
        if generated.is_empty() {
            return;
        }
        let noted = ReplyNote { items: reply.ledger.items() };
        let t_ms = self.session_ms(self.now);
        let note = Note::Unheard { reply: noted, generated, heard, t_ms };
        self.note(reply.turn, note);
    }

    /// The provider is done with a reply, before that has its consequences.
    pub(super) fn note_reply_done(
        &mut self,
        id: &ReplyId,
        outcome: ReplyOutcome,
        usage: Option<Usage>,
    ) {
        let active = self.replies.active_mut(id).map(|reply| (reply.turn, reply.cut));
        let turn = active.map_or(self.turn.number, |(turn, _)| turn);
        let outcome = active.filter(|(_, cut)| !cut).map(|_| outcome);
        if active.is_some() || usage.is_some() {
            self.note(turn, Note::ReplyDone { outcome, usage });
        }
    }

    fn note(&mut self, turn: u64, note: Note) {
        if self.linked.is_some() {
            self.ordered_outputs.push_back(Output::Note { turn, note: note.into() });
        }
    }

    fn session_ms(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.started_at).as_millis() as u64
    }
}
