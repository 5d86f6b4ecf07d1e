//! Which of the client's messages a handle holds.
//!
//! With a transparent resumption the service says the index of the last message of the client that is in
//! the state of a handle. The set-up is message 0 of a connection; the first one after it is 1.

use std::collections::VecDeque;

/// Commands whose messages are remembered; of older ones it is known only with a later one.
const MAX_COMMANDS: usize = 16 * 1024;

/// The messages of a connection, and the commands that they were for.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// The index of the last one.
    last: u64,
    /// The number of commands that were taken.
    commands: u64,
    /// Of commands that no handle holds: which they were, from 1, and the last message before each was
    /// done.
    unheld: VecDeque<(u64, u64)>,
    /// So many commands a handle holds.
    held: u64,
}

impl Messages {
    /// So many messages were sent after the set-up.
    pub(super) fn sent(&mut self, messages: usize) {
        self.last += messages as u64;
    }

    /// A command was taken; its messages were sent.
    pub(super) fn command(&mut self) {
        self.commands += 1;
        if self.unheld.len() >= MAX_COMMANDS {
            self.unheld.pop_front();
        }
        self.unheld.push_back((self.commands, self.last));
    }

    /// A handle holds the messages up to this one. Gives how many commands that are.
    pub(super) fn held(&mut self, last: u64) -> u64 {
        while let Some((command, _)) = self.unheld.pop_front_if(|(_, message)| *message <= last) {
            self.held = command;
        }
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_held_once_the_last_of_its_messages_is() {
        let mut messages = Messages::default();
        // What was said before the connection.
        messages.sent(2);
        assert_eq!(messages.held(2), 0);
        for sent in [1, 3, 0, 1] {
            messages.sent(sent);
            messages.command();
        }
        assert_eq!(messages.held(3), 1);
        assert_eq!(messages.held(5), 1, "a part is not the whole");
        assert_eq!(messages.held(1), 1, "no state is forgotten");
        assert_eq!(messages.held(6), 3, "the third one said nothing");
        assert_eq!(messages.held(u64::MAX), 4);
    }

    #[test]
    fn a_service_that_never_tells_costs_no_more_than_so_much() {
        let mut messages = Messages::default();
        for _ in 0..3 * MAX_COMMANDS {
            messages.sent(1);
            messages.command();
        }
        assert_eq!(messages.unheld.len(), MAX_COMMANDS);
        let last = 3 * MAX_COMMANDS as u64;
        assert_eq!((messages.held(1), messages.held(last)), (0, last));
    }
}
