//! Guards over words: what of the agent's is heard, and which of the user's let tools run.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

/// The shortest and the longest time for which the agent's voice is held back.
const HOLD_BACK: (Duration, Duration) = (Duration::from_millis(200), Duration::from_millis(400));
/// How long a guard may take over words, unless the host says otherwise.
const WITHIN: Duration = Duration::from_millis(500);
/// How long a call waits for the user's words, unless the host says otherwise.
const WAIT: Duration = Duration::from_secs(2);

/// Judges words. Synchronous for its author: a session asks it beside the audio path, on the blocking
/// pool, with a deadline, after which the words are denied. One that panics denies.
pub trait Guard: Send + Sync + 'static {
    /// Judges the words so far of one reply, or what the user said. It is asked again, with all of
    /// them, whenever there are more.
    fn judge(&self, words: &Words<'_>) -> GuardVerdict;
}

/// Words to be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Words<'a> {
    /// All words so far.
    pub text: &'a str,
    /// No more come.
    pub complete: bool,
}

impl<'a> Words<'a> {
    /// Words of which more may come.
    pub const fn so_far(text: &'a str) -> Self {
        Self { text, complete: false }
    }

    /// Words of which no more come.
    pub const fn whole(text: &'a str) -> Self {
        Self { text, complete: true }
    }
}

/// What a guard says of words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GuardVerdict {
    /// There is nothing against them.
    Pass,
    /// From this byte on they may be the beginning of something that is denied: what speaks them is
    /// not heard before more is known. Of words of which no more come it is [`GuardVerdict::Pass`].
    Hold {
        /// The byte where those words begin.
        from: usize,
    },
    /// They are denied.
    Deny(GuardDenial),
}

/// Why words are denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuardDenial {
    /// For the host's records. Words that are denied do not belong here.
    pub reason: String,
    /// What is said instead; `None`: what [`OutputGuard::instead`] or [`InputGuard::notice`] says.
    pub instead: Option<String>,
}

impl GuardDenial {
    /// A denial with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), instead: None }
    }

    /// Sets what is said instead.
    pub fn instead(mut self, text: impl Into<String>) -> Self {
        self.instead = Some(text.into());
        self
    }
}

impl<F> Guard for F
where
    F: Fn(&Words<'_>) -> GuardVerdict + Send + Sync + 'static,
{
    fn judge(&self, words: &Words<'_>) -> GuardVerdict {
        self(words)
    }
}

/// All of them must let words pass. The first that denies counts; where several hold words, all of
/// those are held.
impl Guard for Vec<Arc<dyn Guard>> {
    fn judge(&self, words: &Words<'_>) -> GuardVerdict {
        let mut hold: Option<usize> = None;
        for guard in self {
            match guard.judge(words) {
                GuardVerdict::Pass => {}
                GuardVerdict::Hold { from } => hold = Some(hold.map_or(from, |at| at.min(from))),
                denied @ GuardVerdict::Deny(_) => return denied,
            }
        }
        hold.map_or(GuardVerdict::Pass, |from| GuardVerdict::Hold { from })
    }
}

/// What becomes of audio whose words have not come when it was held back long enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WithoutTranscript {
    /// It is heard. Where its words come later and are denied it is cut off then.
    Release,
    /// It waits for its words. A reply of which none come at all is denied when it is over.
    #[default]
    Hold,
    /// The reply is denied.
    Deny,
}

/// A guard over what the agent says, and how. See
/// [`SessionBuilder::output_guard`](super::SessionBuilder::output_guard).
#[derive(Clone)]
pub struct OutputGuard {
    pub(crate) guard: Arc<dyn Guard>,
    pub(crate) within: Duration,
    pub(crate) rules: OutputRules,
}

/// What the engine needs of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OutputRules {
    pub(crate) hold_back: Duration,
    pub(crate) without_transcript: WithoutTranscript,
    pub(crate) instead: Option<String>,
}

impl OutputGuard {
    /// With this guard, a line of 300 ms, and silence until words have come.
    pub fn new(guard: impl Guard) -> Self {
        Self {
            guard: Arc::new(guard),
            within: WITHIN,
            rules: OutputRules {
                hold_back: Duration::from_millis(300),
                without_transcript: WithoutTranscript::default(),
                instead: None,
            },
        }
    }

    /// Sets for how long audio is held back at least, unless all words of its reply have passed
    /// before: 200 to 400 ms; what is outside is taken as the nearest of these. Default: 300 ms.
    pub fn hold_back(mut self, time: Duration) -> Self {
        self.rules.hold_back = time.clamp(HOLD_BACK.0, HOLD_BACK.1);
        self
    }

    /// Sets what becomes of audio whose words have not come by then.
    /// Default: [`WithoutTranscript::Hold`].
    pub fn without_transcript(mut self, setting: WithoutTranscript) -> Self {
        self.rules.without_transcript = setting;
        self
    }

    /// Sets what is said in the place of what was denied. Default: "I'm sorry, I can't say that.", in
    /// the session's language.
    pub fn instead(mut self, sentence: impl Into<String>) -> Self {
        self.rules.instead = Some(sentence.into());
        self
    }

    /// Sets how long the guard may take over words; then they are denied. Default: 500 ms.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }
}

/// A guard over what the user says, and how. See
/// [`SessionBuilder::input_guard`](super::SessionBuilder::input_guard).
#[derive(Clone)]
pub struct InputGuard {
    pub(crate) guard: Arc<dyn Guard>,
    pub(crate) within: Duration,
    pub(crate) rules: InputRules,
}

/// What the engine needs of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InputRules {
    pub(crate) wait: Duration,
    pub(crate) runs_unheard: bool,
    pub(crate) notice: Option<String>,
}

impl InputGuard {
    /// With this guard; a call waits two seconds for the user's words, and is refused without them.
    pub fn new(guard: impl Guard) -> Self {
        Self {
            guard: Arc::new(guard),
            within: WITHIN,
            rules: InputRules { wait: WAIT, runs_unheard: false, notice: None },
        }
    }

    /// Sets for how long a call waits for the words of the user's turn, which may come after the
    /// model's answer to them. Default: 2 seconds.
    pub fn wait(mut self, time: Duration) -> Self {
        self.rules.wait = time;
        self
    }

    /// Calls run where the words have not come by then, or are not transcribed. Default: they are
    /// refused.
    pub fn run_without_transcript(mut self) -> Self {
        self.rules.runs_unheard = true;
        self
    }

    /// Sets what the model is told instead of a call's output. Default: that the host does not act on
    /// these words.
    pub fn notice(mut self, text: impl Into<String>) -> Self {
        self.rules.notice = Some(text.into());
        self
    }

    /// Sets how long the guard may take over words; then they are denied. Default: 500 ms.
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }
}

impl fmt::Debug for OutputGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutputGuard").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl fmt::Debug for InputGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputGuard").field("rules", &self.rules).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(verdict: GuardVerdict) -> Arc<dyn Guard> {
        Arc::new(move |_: &Words<'_>| verdict.clone())
    }

    #[test]
    fn of_several_guards_the_strictest_counts() {
        let (pass, hold) = (says(GuardVerdict::Pass), |from| says(GuardVerdict::Hold { from }));
        let words = Words::so_far("a b c");
        let none: Vec<Arc<dyn Guard>> = Vec::new();
        assert_eq!(none.judge(&words), GuardVerdict::Pass);
        let held = vec![hold(4), pass.clone(), hold(2)];
        assert_eq!(held.judge(&words), GuardVerdict::Hold { from: 2 });
        let denial = GuardVerdict::Deny(GuardDenial::new("no"));
        let denied = vec![pass, hold(0), says(denial.clone())];
        assert_eq!(denied.judge(&words), denial);
    }

    #[test]
    fn the_voice_is_held_back_for_200_to_400_ms() {
        let guard = OutputGuard::new(|_: &Words<'_>| GuardVerdict::Pass);
        for (asked, taken) in [(0, 200), (250, 250), (5_000, 400)] {
            let guard = guard.clone().hold_back(Duration::from_millis(asked));
            assert_eq!(guard.rules.hold_back, Duration::from_millis(taken));
        }
    }
}
