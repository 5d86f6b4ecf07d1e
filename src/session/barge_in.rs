//! What the user's speech does to the agent's.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

/// What happens when the user speaks while the agent does.
///
/// Turns that are taken by hand ([`VoiceActivity::Manual`](antiphon_live::VoiceActivity::Manual))
/// are never judged: whoever presses the key means to interrupt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BargeIn {
    /// The first sound of speech stops the agent. A provider that stops its own replies does. The
    /// default.
    #[default]
    Immediate,
    /// The session decides whether it was meant as an interruption. It then also asks the provider
    /// for the answers to the user's turns, so that a noise or a "mhm" is not answered.
    Judged(SpeechJudge),
    /// The agent is never interrupted by speech; [`AgentSession::interrupt`] still stops it.
    ///
    /// [`AgentSession::interrupt`]: super::AgentSession::interrupt
    Never {
        /// What becomes of what the user says meanwhile.
        audio: UserAudio,
    },
}

/// What becomes of the user's audio while the agent must not be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserAudio {
    /// It is heard, and answered afterwards.
    Keep,
    /// Silence is sent in its place.
    Drop,
}

/// How speech over the agent's is judged. It interrupts once it has lasted for
/// [`min_speech`](Self::min_speech) and has [`min_words`](Self::min_words). With
/// [`pause`](Self::pause), speech that ended earlier is judged by its words alone.
///
/// What only consists of [`backchannels`](Self::backchannels), or has no words at all, is no turn of
/// the user and is not answered. Any other words that did not interrupt are answered after the
/// agent has spoken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpeechJudge {
    /// Speech interrupts when it has lasted this long. Zero: at once. Default: 800 ms.
    pub min_speech: Duration,
    /// Words that must have been understood before speech interrupts; needs transcripts of the
    /// user's speech. Default: 0.
    pub min_words: u32,
    /// The agent falls silent as soon as the user speaks, and goes on at the same sample when that
    /// was no interruption. Needs a sink of the host's. Default: on.
    pub pause: bool,
    /// Words by which people say that they listen, in lower case; several in a row count as one.
    /// Default: some in English and German ([`SpeechJudge::BACKCHANNELS`]).
    pub backchannels: Arc<[Arc<str>]>,
    /// How long the words of speech that ended are waited for before it is taken for a noise.
    /// Default: 1 second.
    pub patience: Duration,
    /// Speech that begins this soon after the agent's voice does is taken for its echo, as long as
    /// nobody reported [`AgentSession::set_echo_cancelled`]. Default: zero.
    ///
    /// [`AgentSession::set_echo_cancelled`]: super::AgentSession::set_echo_cancelled
    pub echo_guard: Duration,
}

impl SpeechJudge {
    /// The default of [`SpeechJudge::backchannels`].
    pub const BACKCHANNELS: [&'static str; 24] = [
        "mhm", "mm", "mmm", "mm-hmm", "hm", "hmm", "uh-huh", "uh huh", "aha", "ah", "oh", "yeah",
        "yes", "yep", "ok", "okay", "right", "i see", "ja", "genau", "ach so", "achso", "klar",
        "stimmt",
    ];
    /// The longest any time of it may be.
    pub(crate) const MAX_TIME: Duration = Duration::from_secs(10);

    /// Sets how long speech must last.
    pub fn min_speech(mut self, min_speech: Duration) -> Self {
        self.min_speech = min_speech;
        self
    }

    /// Sets how many words must have been understood.
    pub fn min_words(mut self, min_words: u32) -> Self {
        self.min_words = min_words;
        self
    }

    /// Sets whether the agent pauses while speech is judged.
    pub fn pause(mut self, pause: bool) -> Self {
        self.pause = pause;
        self
    }

    /// Sets the words by which people say that they listen.
    pub fn backchannels<S: AsRef<str>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.backchannels =
            words.into_iter().map(|words| words.as_ref().to_lowercase().into()).collect();
        self
    }

    /// Sets how long the words of speech that ended are waited for.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how long speech is taken for an echo.
    pub fn echo_guard(mut self, echo_guard: Duration) -> Self {
        self.echo_guard = echo_guard;
        self
    }

    /// Refuses times that cannot be meant.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (what, time) in [
            ("min_speech", self.min_speech),
            ("patience", self.patience),
            ("echo_guard", self.echo_guard),
        ] {
            if time > Self::MAX_TIME {
                return Err(format!("a {what} of {time:?} is more than {:?}", Self::MAX_TIME));
            }
        }
        Ok(())
    }

    /// Whether `text` says nothing but that the user listens.
    pub fn is_backchannel(&self, text: &str) -> bool {
        let said = words(text);
        let mut left = &said[..];
        while !left.is_empty() {
            let longest = self
                .backchannels
                .iter()
                .map(|phrase| words(phrase))
                .filter(|phrase| !phrase.is_empty() && left.starts_with(phrase))
                .map(|phrase| phrase.len())
                .max();
            match longest {
                Some(count) => left = &left[count..],
                None => return false,
            }
        }
        !said.is_empty()
    }
}

impl Default for SpeechJudge {
    fn default() -> Self {
        Self {
            min_speech: Duration::from_millis(800),
            min_words: 0,
            pause: true,
            backchannels: Self::BACKCHANNELS.map(Arc::from).into(),
            patience: Duration::from_secs(1),
            echo_guard: Duration::ZERO,
        }
    }
}

/// How many words there are in `text`.
pub(crate) fn count_words(text: &str) -> u32 {
    u32::try_from(words(text).len()).unwrap_or(u32::MAX)
}

/// Lower-cased words without punctuation.
fn words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backchannels_are_told_from_words_that_mean_something() {
        let judge = SpeechJudge::default();
        for text in ["Mhm.", "mm-hmm", "Uh-huh, uh huh!", "Yeah, okay.", "Ach so… ja", "I see."] {
            assert!(judge.is_backchannel(text), "{text}");
        }
        for text in ["", "...", "Yeah, but wait", "Stop.", "I", "uh", "okay then stop", "see"] {
            assert!(!judge.is_backchannel(text), "{text}");
        }
    }

    #[test]
    fn the_list_is_the_hosts_to_choose() {
        let judge = SpeechJudge::default().backchannels(["Claro", "por supuesto"]);
        assert!(judge.is_backchannel("claro, por supuesto"));
        assert!(!judge.is_backchannel("okay"));
    }

    #[test]
    fn words_are_counted_without_punctuation() {
        assert_eq!(count_words("Don't — stop, now!"), 3);
        assert_eq!(count_words(" … "), 0);
    }
}
