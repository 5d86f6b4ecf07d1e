//! Asks the guards over words, beside the audio path.

use std::{
    collections::VecDeque,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{sync::Semaphore, task::JoinHandle};

use crate::session::{GuardDenial, GuardVerdict, InputGuard, OutputGuard, Words, engine::Input};

/// The guards of a session. One question at a time, in the order they came; of the words of one reply
/// only the newest wait.
pub(crate) struct Guards {
    output: Option<OutputGuard>,
    input: Option<InputGuard>,
    waiting: VecDeque<Question>,
    asked: Option<(Question, JoinHandle<GuardVerdict>)>,
    /// A guard that is late goes on, and no other is asked beside it.
    lane: Arc<Semaphore>,
}

/// Words to be judged.
pub(crate) enum Question {
    /// Of a reply, as they are at this check.
    Said { reply: u64, check: u64, text: Arc<str>, complete: bool },
    /// Of the user, in this turn.
    Heard { turn: u64, text: Arc<str> },
}

impl Guards {
    pub(crate) fn new(output: Option<OutputGuard>, input: Option<InputGuard>) -> Self {
        let lane = Arc::new(Semaphore::new(1));
        Self { output, input, waiting: VecDeque::new(), asked: None, lane }
    }

    /// Has words judged.
    pub(crate) fn ask(&mut self, question: Question) {
        if let Question::Said { reply, .. } = &question {
            let newer = *reply;
            self.waiting
                .retain(|waits| !matches!(waits, Question::Said { reply, .. } if *reply == newer));
        }
        self.waiting.push_back(question);
    }

    /// The next verdict, as an input of the engine.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Input> {
        loop {
            if let Some((_, task)) = &mut self.asked {
                let verdict = ready!(Pin::new(task).poll(cx));
                // Everything foreign is caught inside, so this is only an abort.
                let verdict = verdict.unwrap_or_else(|_| denied("the guard was given up"));
                let Some((question, _)) = self.asked.take() else { return Poll::Pending };
                return Poll::Ready(question.answered(verdict));
            }
            let Some(question) = self.waiting.pop_front() else { return Poll::Pending };
            let task = self.judge(&question);
            self.asked = Some((question, task));
        }
    }

    fn judge(&self, question: &Question) -> JoinHandle<GuardVerdict> {
        let (guard, text, complete) = match question {
            Question::Said { text, complete, .. } => {
                let guard =
                    self.output.as_ref().map(|output| (output.guard.clone(), output.within));
                (guard, text.clone(), *complete)
            }
            Question::Heard { text, .. } => {
                let guard = self.input.as_ref().map(|input| (input.guard.clone(), input.within));
                (guard, text.clone(), true)
            }
        };
        let lane = self.lane.clone();
        tokio::spawn(async move {
            let Some((guard, within)) = guard else { return GuardVerdict::Pass };
            let verdict = async move {
                let permit = lane.acquire_owned().await;
                let judged = tokio::task::spawn_blocking(move || {
                    let _permit = permit;
                    let words = Words { text: &text, complete };
                    catch_unwind(AssertUnwindSafe(|| guard.judge(&words)))
                        .unwrap_or_else(|_| denied("the guard panicked"))
                });
                judged.await.unwrap_or_else(|_| denied("the guard was given up"))
            };
            let late =
                || denied(&format!("the guard gave no verdict within {} ms", within.as_millis()));
            tokio::time::timeout(within, verdict).await.unwrap_or_else(|_| late())
        })
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        if let Some((_, task)) = &self.asked {
            task.abort();
        }
    }
}

impl Question {
    fn answered(self, verdict: GuardVerdict) -> Input {
        match self {
            Self::Said { reply, check, text, .. } => {
                Input::Guarded { reply, check, bytes: text.len(), verdict }
            }
            Self::Heard { turn, .. } => Input::Screened { turn, verdict },
        }
    }
}

fn denied(reason: &str) -> GuardVerdict {
    GuardVerdict::Deny(GuardDenial::new(reason))
}
