//! Why turns and invocations end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a turn or an invocation of an agent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum AgentFinishReason {
    /// The model said all.
    Stop,
    /// It ran into the bound on tokens.
    Length,
    /// A filter stopped it.
    Blocked,
    /// A tool paused and waits for somebody; a resume goes on.
    Interrupted,
    /// For a reason of the model's own.
    Other,
    /// The caller stopped it.
    Aborted,
    /// The work goes on in the background.
    Detached,
    /// It failed.
    Failed,
    /// The reason was not told, or is not known here.
    #[serde(other)]
    Unknown,
}

impl AgentFinishReason {
    /// The name on the wire, such as `stop`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Blocked => "blocked",
            Self::Interrupted => "interrupted",
            Self::Other => "other",
            Self::Unknown => "unknown",
            Self::Aborted => "aborted",
            Self::Detached => "detached",
            Self::Failed => "failed",
        }
    }

    /// Whether a turn that ended so produced an answer that its caller can use. A turn that names no
    /// reason does.
    pub const fn carries_result(self) -> bool {
        matches!(self, Self::Stop | Self::Other | Self::Unknown)
    }
}

impl fmt::Display for AgentFinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
