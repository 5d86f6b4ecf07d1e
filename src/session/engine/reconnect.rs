//! What outlives a connection.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_live::{HistoryItem, HistoryRole, LiveCommand, LiveConfig};

use super::lifetime::{Attempts, Handle, Silence, Successor};
use crate::session::{ResumedFrom, digest::Digest, journal::Seed};

/// What a later connection is told of the conversation, at most.
const MAX_HISTORY: usize = 200;
/// When a session that fell back first looks for a better provider, where its connection has no end.
pub(super) const LOOK_HOME_FIRST: Duration = Duration::from_secs(3 * 60);

/// What outlives a connection, and what the next one is told of it.
#[derive(Debug)]
pub(crate) struct Reconnect {
    pub(crate) attempts: Attempts,
    pub(crate) handle: Handle,
    pub(crate) silence: Silence,
    /// The connection that is being made beside the present one.
    pub(crate) successor: Option<Successor>,
    /// The number of the newest connection that was asked for.
    epoch: u32,
    /// How often something was written down.
    remembered: u64,
    /// A connection that the provider wants to be left is not left before.
    pub(crate) leave_from: Option<Instant>,
    /// The connection that is being made is asked to continue the last one.
    pub(crate) resuming: bool,
    /// The present connection continues an earlier one.
    pub(crate) resumed: bool,
    /// The connection that is being made is told of something that was said.
    pub(crate) told: bool,
    /// What the session goes on from, until it was told.
    pub(crate) resumed_from: Option<ResumedFrom>,
    /// What the present connection was told of the conversation among its instructions.
    pub(crate) digest: Option<Digest>,
    /// What the connection that is being made was asked for with.
    pub(crate) asked_with: Option<Arc<LiveConfig>>,
    /// A better provider is looked for though the present connection lasts.
    pub(crate) homesick: bool,
    /// How long until one is next.
    pub(crate) home_after: Duration,
    /// How many replies failed without a word, one after the other.
    pub(crate) failed_replies: u32,
    /// What the user said to the last connection that no handle holds.
    pub(crate) unheld: Vec<LiveCommand>,
    /// How often the next connection could not be made beside the present one.
    pub(crate) missed: u32,
    /// The last connection was left while nobody spoke.
    pub(crate) left_in_quiet: bool,
    /// The gap between two connections, while there is one.
    pub(crate) gap: Option<Gap>,
    history: VecDeque<Known>,
}

/// Something that was said or done.
#[derive(Debug)]
struct Known {
    /// The turn that it belongs to; 0 is before the session.
    turn: u64,
    /// When it was, where it was in the session: speech when it began, a call when it had its output.
    at: Option<Instant>,
    item: HistoryItem,
}

/// The time without a connection.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) since: Instant,
    /// The user's audio that had been dropped when it began.
    pub(crate) dropped: Duration,
    /// The candidate that was connected with.
    pub(crate) provider: usize,
    /// The model that served.
    pub(crate) model: Arc<str>,
}

impl Reconnect {
    /// `seed`: what was said before the session.
    pub(crate) fn new(attempts: Attempts, seed: Option<Seed>) -> Self {
        let (history, resumed_from) = match seed {
            Some(Seed { history, told }) => (history, Some(told)),
            None => (Vec::new(), None),
        };
        Self {
            attempts,
            handle: Handle::default(),
            silence: Silence::default(),
            successor: None,
            epoch: 0,
            remembered: 0,
            leave_from: None,
            resuming: false,
            resumed: false,
            told: false,
            resumed_from,
            digest: None,
            asked_with: None,
            homesick: false,
            home_after: LOOK_HOME_FIRST,
            failed_replies: 0,
            unheld: Vec::new(),
            missed: 0,
            left_in_quiet: false,
            gap: None,
            history: history.into_iter().map(|item| Known { turn: 0, at: None, item }).collect(),
        }
    }

    /// Whether connections are replaced at all.
    pub(crate) fn is_on(&self) -> bool {
        self.attempts.is_on()
    }

    /// Remembers what was said or done in a turn, by when it was. The user's words often come after
    /// the calls and the reply that they led to, the agent's once they were heard, when calls of the
    /// same reply have their outputs already; here they stand before those.
    pub(crate) fn remember(&mut self, turn: u64, at: Instant, item: HistoryItem) {
        if self.history.len() >= MAX_HISTORY {
            self.history.pop_front();
        }
        let place = match &item {
            HistoryItem::Message { role: HistoryRole::User, .. } => {
                let answers = |known: &Known| known.turn >= turn && !is_users(&known.item);
                self.history.iter().position(answers)
            }
            HistoryItem::Message { .. } => {
                let before = |known: &Known| {
                    let is_call = matches!(known.item, HistoryItem::Tool { .. });
                    !is_call || known.at.is_none_or(|output| output <= at)
                };
                self.history.iter().rposition(before).map(|last| last + 1).or(Some(0))
            }
            _ => None,
        };
        self.handle.words_are_written();
        self.remembered += 1;
        let known = Known { turn, at: Some(at), item };
        self.history.insert(place.unwrap_or(self.history.len()), known);
    }

    /// The number of the connection that is asked for now.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.epoch += 1;
        self.epoch
    }

    /// How often something was written down.
    pub(crate) fn remembered(&self) -> u64 {
        self.remembered
    }

    /// The conversation so far.
    pub(crate) fn history(&self) -> Vec<HistoryItem> {
        self.history.iter().map(|known| known.item.clone()).collect()
    }
}

fn is_users(item: &HistoryItem) -> bool {
    matches!(item, HistoryItem::Message { role: HistoryRole::User, .. })
}

#[cfg(test)]
mod tests {
    use antiphon_types::{JsonObject, ToolCall};

    use super::*;

    #[test]
    fn late_words_of_the_user_stand_before_what_they_led_to() {
        let attempts = Attempts::new(Default::default(), 0, 1);
        let mut reconnect = Reconnect::new(attempts, None);
        let message = |role, text: &str| HistoryItem::Message { role, text: text.into() };
        for (turn, role, text) in [
            (1, HistoryRole::User, "one"),
            (1, HistoryRole::Agent, "first"),
            (2, HistoryRole::Agent, "second"),
            (2, HistoryRole::User, "two"),
            (1, HistoryRole::Agent, "late"),
            (3, HistoryRole::User, "three"),
        ] {
            reconnect.remember(turn, Instant::now(), message(role, text));
        }
        let texts: Vec<_> = reconnect
            .history()
            .into_iter()
            .map(|item| match item {
                HistoryItem::Message { text, .. } => text,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(texts, ["one", "first", "two", "second", "late", "three"]);
    }

    #[test]
    fn what_the_agent_said_stands_before_the_calls_that_ended_after_it_began() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let call = |id: &str| HistoryItem::Tool {
            call: ToolCall { id: id.into(), name: "look".into(), args: JsonObject::new() },
            response: JsonObject::new(),
        };
        let says =
            |text: &str| HistoryItem::Message { role: HistoryRole::Agent, text: text.into() };
        let mut reconnect = Reconnect::new(Attempts::new(Default::default(), 0, 1), None);
        reconnect.remember(1, at(1), call("before"));
        reconnect.remember(1, at(4), call("while"));
        reconnect.remember(1, at(6), call("while, too"));
        // It was heard to its end only then.
        reconnect.remember(1, at(3), says("let me look"));
        reconnect.remember(1, at(8), says("here it is"));
        let known: Vec<_> = reconnect
            .history()
            .into_iter()
            .map(|item| match item {
                HistoryItem::Message { text, .. } => text,
                HistoryItem::Tool { call, .. } => call.id.to_string(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(known, ["before", "let me look", "while", "while, too", "here it is"]);
    }
}
