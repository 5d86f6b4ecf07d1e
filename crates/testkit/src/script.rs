//! A provider's part of a conversation as data.

use std::time::Duration;

use antiphon_live::{LiveCommand, LiveError, LiveEvent};
use tokio::time::{sleep, timeout};

use crate::FarEnd;

type Predicate = Box<dyn Fn(&LiveCommand) -> bool + Send>;

/// One step of a [`Script`].
#[non_exhaustive]
pub enum Step {
    /// Waits for the next command that is not audio; it must satisfy the predicate.
    Expect(&'static str, Predicate),
    /// Emits an event.
    Emit(LiveEvent),
    /// Waits.
    Delay(Duration),
    /// Takes no command for so long.
    Stall(Duration),
    /// Closes the connection.
    Close(u16, &'static str),
    /// Fails the connection.
    Fail(LiveError),
}

/// Steps that a provider goes through, in order.
#[derive(Default)]
pub struct Script {
    steps: Vec<Step>,
}

impl Script {
    /// An empty script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Expects a command; `what` names it in the failure.
    pub fn expect(
        mut self,
        what: &'static str,
        predicate: impl Fn(&LiveCommand) -> bool + Send + 'static,
    ) -> Self {
        self.steps.push(Step::Expect(what, Box::new(predicate)));
        self
    }

    /// Emits an event.
    pub fn emit(mut self, event: LiveEvent) -> Self {
        self.steps.push(Step::Emit(event));
        self
    }

    /// Waits.
    pub fn delay(mut self, duration: Duration) -> Self {
        self.steps.push(Step::Delay(duration));
        self
    }

    /// Takes no command for so long.
    pub fn stall(mut self, duration: Duration) -> Self {
        self.steps.push(Step::Stall(duration));
        self
    }

    /// Closes the connection.
    pub fn close(mut self, code: u16, reason: &'static str) -> Self {
        self.steps.push(Step::Close(code, reason));
        self
    }

    /// Fails the connection.
    pub fn fail(mut self, error: LiveError) -> Self {
        self.steps.push(Step::Fail(error));
        self
    }

    /// Plays the script on a connection. Each expectation waits at most an hour of the test's
    /// clock. Returns the far end for what comes after.
    pub async fn run(self, mut far_end: FarEnd) -> Result<FarEnd, ScriptError> {
        for (index, step) in self.steps.into_iter().enumerate() {
            match step {
                Step::Expect(what, holds) => {
                    let command = timeout(Duration::from_secs(3_600), far_end.control()).await;
                    match command {
                        Ok(Some(command)) if holds(&command) => {}
                        Ok(Some(command)) => {
                            return Err(ScriptError::Unexpected { index, what, command });
                        }
                        Ok(None) => return Err(ScriptError::Dropped { index, what }),
                        Err(_) => return Err(ScriptError::Missing { index, what }),
                    }
                }
                Step::Emit(event) => {
                    far_end.emit(event);
                }
                Step::Delay(duration) => sleep(duration).await,
                Step::Stall(duration) => {
                    far_end.stall(true);
                    sleep(duration).await;
                    far_end.stall(false);
                }
                Step::Close(code, reason) => far_end.close(code, reason),
                Step::Fail(error) => far_end.fail(error),
            }
        }
        Ok(far_end)
    }
}

/// Where the session left the script.
#[derive(Debug)]
#[non_exhaustive]
pub enum ScriptError {
    /// Another command came.
    Unexpected {
        /// The step, from 0.
        index: usize,
        /// What was expected.
        what: &'static str,
        /// What came.
        command: LiveCommand,
    },
    /// No command came.
    Missing {
        /// The step, from 0.
        index: usize,
        /// What was expected.
        what: &'static str,
    },
    /// The session dropped the connection.
    Dropped {
        /// The step, from 0.
        index: usize,
        /// What was expected.
        what: &'static str,
    },
}
