//! The tool calls of a session that have no output yet, and the replies that hold them.

use std::{sync::Arc, time::Instant};

use antiphon_agent::Outcome;
use antiphon_types::{ToolCall, ToolCallRequest};

use super::io::{Manner, Ticket};

/// One call, from its arrival to its output.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) ticket: Ticket,
    pub(crate) turn: u64,
    /// As the model asked for it; kept for a second admission.
    pub(crate) request: ToolCallRequest,
    /// As the policy approved it.
    pub(crate) approved: Option<ToolCall>,
    pub(crate) stage: Stage,
    pub(crate) manner: Manner,
    /// The provider runs it itself, once it is permitted.
    pub(crate) by_provider: bool,
    /// It was judged before the caller hung up: it is judged again before it runs.
    pub(crate) outlived_caller: bool,
    /// The user confirmed it.
    pub(crate) confirmed: bool,
    /// The words by which it is read back.
    pub(crate) read_back: Option<String>,
    /// The provider took it back: no output goes to the wire.
    pub(crate) withdrawn: bool,
    /// It must not start any more; its output says why.
    pub(crate) void: Option<Outcome>,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The policy judges it.
    Judging,
    /// It waits for its read-back to be spoken, or for the user's answer to it.
    Parked {
        /// The read-back has begun, so that the user's next words decide.
        asked: bool,
        /// When the wait ends.
        until: Instant,
    },
    /// It waits for the end of the reply that holds it.
    Approved {
        /// The host answers it.
        host: bool,
    },
    /// The host is to answer it.
    WithHost {
        /// When the wait ends.
        until: Instant,
    },
    /// Its tool runs.
    Running {
        /// Since then.
        since: Instant,
    },
    /// It has its output; the observers are told before that is sent.
    Settling,
}

/// All open calls, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    open: Vec<Call>,
    groups: Vec<Group>,
    next: u64,
}

/// The calls of one reply.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) epoch: u32,
    pub(crate) reply: u64,
    /// The reply is over at the provider.
    pub(crate) reply_done: bool,
    /// The reply was cut off: nobody waits for an answer to these outputs.
    pub(crate) cut: bool,
    /// An output came after the reply was over: the model goes on in a reply of its own, and not
    /// within the one that holds the calls.
    pub(crate) after_reply: bool,
    /// At least one output wants to be spoken about.
    pub(crate) speak: bool,
}

impl Call {
    /// Its tool runs, and the conversation goes on meanwhile.
    fn runs_aside(&self) -> bool {
        self.manner.non_blocking && matches!(self.stage, Stage::Running { .. })
    }
}

impl Calls {
    /// A call came.
    pub(crate) fn add(
        &mut self,
        epoch: u32,
        reply: u64,
        reply_done: bool,
        turn: u64,
        request: ToolCallRequest,
    ) -> Ticket {
        self.next += 1;
        let ticket = Ticket { epoch, reply, call: self.next };
        self.open.push(Call {
            ticket,
            turn,
            request,
            approved: None,
            stage: Stage::Judging,
            manner: Manner::default(),
            by_provider: false,
            outlived_caller: false,
            confirmed: false,
            read_back: None,
            withdrawn: false,
            void: None,
        });
        if self.group_mut(epoch, reply).is_none() {
            self.groups.push(Group {
                epoch,
                reply,
                reply_done,
                cut: false,
                after_reply: false,
                speak: false,
            });
        }
        ticket
    }

    /// The caller hung up: calls that have not started yet go on without.
    pub(crate) fn outlive_caller(&mut self) {
        for call in &mut self.open {
            call.outlived_caller |= matches!(call.stage, Stage::Judging | Stage::Approved { .. });
        }
    }

    pub(crate) fn find(&mut self, ticket: Ticket) -> Option<&mut Call> {
        self.open.iter_mut().find(|call| call.ticket == ticket)
    }

    /// The newest open call of this id.
    pub(crate) fn find_by_id(&mut self, id: &str) -> Option<&mut Call> {
        self.open.iter_mut().rev().find(|call| &*call.request.id == id)
    }

    /// The call of this number.
    pub(crate) fn find_by_number(&mut self, number: u64) -> Option<&mut Call> {
        self.open.iter_mut().find(|call| call.ticket.call == number)
    }

    /// Forgets a call; it has its output, or never gets one.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Call> {
        let at = self.open.iter().position(|call| call.ticket == ticket)?;
        Some(self.open.remove(at))
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Call> {
        self.open.iter()
    }

    /// Replies whose calls are not all done.
    #[cfg(test)]
    pub(crate) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(crate) fn group_mut(&mut self, epoch: u32, reply: u64) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.epoch == epoch && group.reply == reply)
    }

    /// A call for which nobody waited has its output: its group counts again, if it was taken.
    pub(crate) fn reopen_group(&mut self, epoch: u32, reply: u64) {
        if self.group_mut(epoch, reply).is_some() {
            return;
        }
        self.groups.push(Group {
            epoch,
            reply,
            reply_done: true,
            cut: false,
            after_reply: true,
            speak: false,
        });
    }

    /// Takes the groups whose reply is over and whose calls all have their outputs; those that the
    /// model does not wait for do not count.
    pub(crate) fn take_finished_group(&mut self) -> Option<Group> {
        let at = self.groups.iter().position(|group| {
            group.reply_done
                && !self.open.iter().any(|call| {
                    call.ticket.epoch == group.epoch
                        && call.ticket.reply == group.reply
                        && !call.runs_aside()
                })
        })?;
        Some(self.groups.remove(at))
    }

    /// The call whose read-back is being spoken or answered, or is next to be.
    pub(crate) fn first_parked(&self) -> Option<&Call> {
        self.open.iter().find(|call| matches!(call.stage, Stage::Parked { .. }))
    }

    /// Whether a call is open that the session itself works on: neither the user nor anybody else
    /// is waited for.
    pub(crate) fn any_at_work(&self) -> bool {
        self.open
            .iter()
            .any(|call| !matches!(call.stage, Stage::Parked { .. }) && !call.runs_aside())
    }

    /// When the earliest parked call is given up.
    pub(crate) fn confirm_deadline(&self) -> Option<Instant> {
        self.open
            .iter()
            .filter_map(|call| match call.stage {
                Stage::Parked { until, .. } => Some(until),
                _ => None,
            })
            .min()
    }

    /// When the earliest call that the host holds is given up.
    pub(crate) fn host_deadline(&self) -> Option<Instant> {
        self.open
            .iter()
            .filter_map(|call| match call.stage {
                Stage::WithHost { until } => Some(until),
                _ => None,
            })
            .min()
    }

    /// The tool that has been running for longest, and since when.
    pub(crate) fn longest_running(&self) -> Option<(Arc<str>, Instant)> {
        self.open
            .iter()
            .filter_map(|call| match call.stage {
                Stage::Running { since } => Some((call.request.name.clone(), since)),
                _ => None,
            })
            .min_by_key(|(_, since)| *since)
    }
}
