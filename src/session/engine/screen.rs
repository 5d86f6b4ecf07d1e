//! Calls that wait until what the user said has passed a guard.
//!
//! The words of a turn may come after the model has answered them, or never: a call waits for them for
//! a while, before the policy is asked over it.

use std::{collections::VecDeque, time::Instant};

use antiphon_agent::Outcome;
use antiphon_types::ToolCallRequest;

use super::{
    Engine,
    calls::Stage,
    io::{Barred, Output, Ticket},
};
use crate::session::{EventKind, GuardDenial, GuardVerdict};

/// Turns of which it is known what the guard said; the oldest is forgotten, and no call of it waits.
const MAX_TURNS: usize = 64;
/// What the model is told, unless the host says otherwise.
const NOTICE: &str = "The host does not act on what the user said. Do not call tools for it; tell the \
                      user that you cannot help with that.";
/// Why a call is refused whose user was not understood.
const UNHEARD: &str = "the user's words did not come in time to be judged";

/// What is known of the words of recent turns, and the calls that wait for them.
#[derive(Debug, Default)]
pub(super) struct Screening {
    turns: VecDeque<Screened>,
    held: VecDeque<HeldCall>,
}

#[derive(Debug)]
struct Screened {
    turn: u64,
    /// Words of it are to come.
    awaited: bool,
    /// So many verdicts are to come.
    open: u32,
    denied: Option<Barred>,
}

#[derive(Debug)]
struct HeldCall {
    ticket: Ticket,
    request: ToolCallRequest,
    confirmed: bool,
    turn: u64,
    /// The turn in which the user said yes to it.
    said_in: Option<u64>,
    until: Instant,
}

/// What the user's words let a call do.
enum Leave {
    Given,
    Refused(Barred),
    /// `judged`: only the guard is waited for, which answers in any case.
    Awaited {
        judged: bool,
    },
}

impl Screening {
    fn turn(&mut self, turn: u64) -> &mut Screened {
        let known = self.turns.iter().position(|screened| screened.turn == turn);
        let at = known.unwrap_or_else(|| {
            if self.turns.len() == MAX_TURNS {
                self.turns.pop_front();
            }
            self.turns.push_back(Screened { turn, awaited: false, open: 0, denied: None });
            self.turns.len() - 1
        });
        &mut self.turns[at]
    }

    /// What the words of the turn that asked let it do, and those of the yes.
    fn leave_of(&self, turn: u64, said_in: Option<u64>) -> Leave {
        match (self.leave(turn), said_in.map(|turn| self.leave(turn))) {
            (Leave::Refused(barred), _) | (_, Some(Leave::Refused(barred))) => {
                Leave::Refused(barred)
            }
            (Leave::Given, None | Some(Leave::Given)) => Leave::Given,
            (Leave::Awaited { judged: false }, _) | (_, Some(Leave::Awaited { judged: false })) => {
                Leave::Awaited { judged: false }
            }
            _ => Leave::Awaited { judged: true },
        }
    }

    fn leave(&self, turn: u64) -> Leave {
        let Some(screened) = self.turns.iter().find(|screened| screened.turn == turn) else {
            // Nobody said anything in it.
            return Leave::Given;
        };
        match &screened.denied {
            Some(barred) => Leave::Refused(barred.clone()),
            None if screened.open > 0 => Leave::Awaited { judged: true },
            None if screened.awaited => Leave::Awaited { judged: false },
            None => Leave::Given,
        }
    }
}

impl Engine {
    /// The user said something in this turn whose words are to come.
    pub(super) fn words_are_awaited(&mut self, turn: u64) {
        if self.input_rules.is_some() {
            self.screening.turn(turn).awaited = true;
        }
    }

    /// Words of the user are complete.
    pub(super) fn screen_words(&mut self, turn: u64, text: &str) {
        if self.input_rules.is_none() {
            return;
        }
        let more = self.utterances.any_open_in(turn);
        let screened = self.screening.turn(turn);
        screened.awaited = more;
        screened.open += 1;
        self.prompt_outputs.push_back(Output::Screen { turn, text: text.to_owned() });
    }

    /// The guard has judged what the user said in a turn.
    pub(super) fn on_screened(&mut self, turn: u64, verdict: GuardVerdict) {
        let notice = self.input_rules.as_ref().and_then(|rules| rules.notice.clone());
        let screened = self.screening.turn(turn);
        screened.open = screened.open.saturating_sub(1);
        let GuardVerdict::Deny(GuardDenial { reason, instead }) = verdict else { return };
        let notice = instead.or(notice).unwrap_or_else(|| NOTICE.to_owned());
        screened.denied = Some(Barred { reason: reason.clone(), notice });
        self.emit_in(turn, EventKind::WordsDenied { reason });
        // Where calls run without words, these come too late for those that run.
        let begun: Vec<_> = self
            .calls
            .iter()
            .filter(|call| call.turn == turn && matches!(call.stage, Stage::Approved { .. }))
            .map(|call| call.ticket)
            .collect();
        for ticket in begun {
            self.void_call(ticket, Outcome::Denied);
        }
    }

    /// Has a call judged by the policy, once the user's words let it.
    pub(super) fn admit(&mut self, ticket: Ticket, request: ToolCallRequest, turn: u64) {
        self.admit_once_heard(ticket, request, turn, None);
    }

    /// Has a call judged that the user said yes to in this turn, once the words of both turns let it.
    pub(super) fn admit_confirmed(
        &mut self,
        ticket: Ticket,
        request: ToolCallRequest,
        turn: u64,
        said_in: u64,
    ) {
        self.admit_once_heard(ticket, request, turn, Some(said_in));
    }

    fn admit_once_heard(
        &mut self,
        ticket: Ticket,
        request: ToolCallRequest,
        turn: u64,
        said_in: Option<u64>,
    ) {
        let confirmed = said_in.is_some();
        let Some(rules) = &self.input_rules else {
            return self.ask_policy(ticket, request, confirmed, turn, None);
        };
        let transcribed = self.can(|can| can.input_transcripts);
        let until = if transcribed { self.now + rules.wait } else { self.now };
        let held = HeldCall { ticket, request, confirmed, turn, said_in, until };
        self.screening.held.push_back(held);
        self.admit_held();
    }

    /// Has those that wait judged whose users' words have come, or did not in time.
    pub(super) fn admit_held(&mut self) {
        let Some(runs_unheard) = self.input_rules.as_ref().map(|rules| rules.runs_unheard) else {
            return;
        };
        for held in std::mem::take(&mut self.screening.held) {
            let HeldCall { ticket, confirmed, turn, said_in, until, .. } = held;
            if self.calls.find(ticket).is_none() {
                continue;
            }
            let barred = match self.screening.leave_of(turn, said_in) {
                Leave::Given => None,
                Leave::Refused(barred) => Some(barred),
                Leave::Awaited { judged: false } if until <= self.now => {
                    (!runs_unheard).then(|| {
                        let notice =
                            self.input_rules.as_ref().and_then(|rules| rules.notice.clone());
                        let notice = notice.unwrap_or_else(|| NOTICE.to_owned());
                        Barred { reason: UNHEARD.to_owned(), notice }
                    })
                }
                Leave::Awaited { .. } => {
                    self.screening.held.push_back(held);
                    continue;
                }
            };
            self.ask_policy(ticket, held.request, confirmed, turn, barred);
        }
    }

    /// When a call has waited long enough for words.
    pub(super) fn words_due(&self) -> Option<Instant> {
        let waits = self.screening.held.iter().map(|held| held.until);
        waits.filter(|until| *until > self.now).min()
    }

    fn ask_policy(
        &mut self,
        ticket: Ticket,
        request: ToolCallRequest,
        confirmed: bool,
        turn: u64,
        barred: Option<Barred>,
    ) {
        let by_provider = self.calls.find(ticket).is_some_and(|call| call.by_provider);
        self.ordered_outputs.push_back(Output::Admit {
            ticket,
            request,
            confirmed,
            turn,
            barred,
            by_provider,
        });
    }
}
