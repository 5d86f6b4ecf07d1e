//! What scripts of all servers are made of: rules and replies, faults, steps.

use std::time::Duration;

use antiphon_live::acceptor::Answer;
use serde::Deserialize;
use serde_json::Value;

/// An answer to the upgrade that refuses it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
    /// Seconds for `Retry-After`.
    pub retry_after: Option<u64>,
}

impl Refusal {
    pub(crate) fn answer(&self) -> Answer {
        let answer = Answer::http(self.status, self.body.clone());
        match self.retry_after {
            Some(seconds) => answer.header("retry-after", seconds.to_string()),
            None => answer,
        }
    }
}

/// When to give which reply.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Rule {
    /// What must be so; all of it. An empty one always fits.
    pub when: When,
    /// The reply.
    pub reply: Reply,
    /// Fits at most so often.
    pub times: Option<u32>,
}

impl Rule {
    /// When the user's last words hold `text`.
    pub fn on_text(text: impl Into<String>, reply: Reply) -> Self {
        Self { when: When { text: Some(text.into()), ..When::default() }, reply, times: None }
    }

    /// When the output of a call of `tool` came last; `*` is any tool.
    pub fn on_tool_output(tool: impl Into<String>, reply: Reply) -> Self {
        Self {
            when: When { tool_output: Some(tool.into()), ..When::default() },
            reply,
            times: None,
        }
    }

    /// Always.
    pub fn always(reply: Reply) -> Self {
        Self { reply, ..Self::default() }
    }

    /// At most so often.
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }
}

/// What must be so for a rule to fit.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct When {
    /// The user spoke or wrote last, and the words hold this; without regard to case.
    pub text: Option<String>,
    /// The output of a call of this tool came last; `*` is any tool.
    pub tool_output: Option<String>,
    /// The `response.create` has instructions of its own that hold this.
    pub instructions: Option<String>,
    /// It is this response of the connection, from 1.
    pub nth: Option<u32>,
}

/// A reply.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Reply {
    /// What is said or written. `{text}` is what the user said last, `{output}` what a tool gave
    /// last, `{instructions}` those of the `response.create`.
    pub text: Option<String>,
    /// More messages in the same response.
    pub more: Vec<String>,
    /// Milliseconds of audio for each message. Default: 300 for each word, at least 400.
    pub audio_ms: Option<u32>,
    /// The tone that stands for the voice, in Hz. Default: 440.
    pub tone_hz: Option<f32>,
    /// Tool calls after the messages.
    pub calls: Vec<Call>,
    /// Answers by text though audio is wanted.
    pub text_only: bool,
    /// Ends incomplete for this reason: `max_output_tokens` or `content_filter`.
    pub incomplete: Option<String>,
    /// Fails with this error.
    pub fail: Option<Failure>,
    /// How fast it comes, if not as the script says.
    pub pace: Option<Pace>,
}

impl Reply {
    /// A reply of these words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    /// A reply of these words, with so much audio.
    pub fn spoken(text: impl Into<String>, audio_ms: u32) -> Self {
        Self { text: Some(text.into()), audio_ms: Some(audio_ms), ..Self::default() }
    }

    /// A tool call and no words.
    pub fn call(name: impl Into<String>, arguments: Value) -> Self {
        Self::default().and_call(name, arguments)
    }

    /// Adds a tool call.
    pub fn and_call(mut self, name: impl Into<String>, arguments: Value) -> Self {
        self.calls.push(Call { name: name.into(), arguments, call_id: None });
        self
    }

    /// A response that fails.
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> Self {
        let fail = Failure { code: code.into(), message: message.into(), ..Failure::default() };
        Self { fail: Some(fail), ..Self::default() }
    }
}

/// A tool call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// The arguments; a string is sent as it is, well-formed or not.
    #[serde(default)]
    pub arguments: Value,
    /// The call's id. Default: one of the server's own.
    #[serde(default)]
    pub call_id: Option<String>,
}

/// How a response fails.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Failure {
    /// Such as `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Such as `rate_limit_exceeded`.
    pub code: String,
    /// In words.
    pub message: String,
}

/// What the user's audio says.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Transcript {
    /// These words.
    Words(String),
    /// Nothing: the transcription fails.
    #[serde(rename_all = "snake_case")]
    Fails {
        /// Why, in words.
        fail: String,
    },
}

/// How fast replies come.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Pace {
    /// From the request to the first item.
    pub think_ms: u64,
    /// Audio in one delta.
    pub delta_ms: u32,
    /// From one delta to the next.
    pub interval_ms: u64,
    /// From a committed audio turn to its transcript.
    pub transcript_ms: u64,
}

impl Default for Pace {
    /// Five times as fast as it is spoken: 100 ms of audio each 20 ms.
    fn default() -> Self {
        Self { think_ms: 20, delta_ms: 100, interval_ms: 20, transcript_ms: 30 }
    }
}

impl Pace {
    /// As fast as it is spoken.
    pub fn real_time() -> Self {
        Self { interval_ms: 100, ..Self::default() }
    }

    pub(crate) fn think(&self) -> Duration {
        Duration::from_millis(self.think_ms)
    }

    pub(crate) fn interval(&self) -> Duration {
        Duration::from_millis(self.interval_ms)
    }

    pub(crate) fn transcript(&self) -> Duration {
        Duration::from_millis(self.transcript_ms)
    }
}

/// Something that goes wrong at an event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The type of the server's event at which it happens.
    pub at: String,
    /// The first time it happens, counted from 1.
    #[serde(default = "one")]
    pub nth: u32,
    /// How often it happens.
    #[serde(default = "one")]
    pub times: u32,
    /// Whether the event itself is left out.
    #[serde(default)]
    pub instead: bool,
    /// What happens, after the event.
    #[serde(default, rename = "do")]
    pub steps: Vec<Step>,
}

impl Fault {
    /// After the first event of this type.
    pub fn after(at: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        Self { at: at.into(), nth: 1, times: 1, instead: false, steps }
    }

    /// Instead of the first event of this type.
    pub fn instead_of(at: impl Into<String>, steps: impl IntoIterator<Item = Step>) -> Self {
        Self { instead: true, ..Self::after(at, steps) }
    }

    /// At the nth such event, from 1.
    pub fn nth(mut self, nth: u32) -> Self {
        self.nth = nth;
        self
    }

    /// At so many such events.
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

fn one() -> u32 {
    1
}

/// One step of an exact script, or one thing that goes wrong.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Waits for the client's next event that is not audio; it must hold all of this. A string
    /// `"$name"` takes whatever stands there and keeps it.
    Expect(Value),
    /// Sends an event. A string `"$name"` stands for what was kept; `event_id` is added.
    Emit(Value),
    /// Sends an `error` event with these fields.
    Error(Value),
    /// Sends this text, JSON or not.
    Raw(String),
    /// Sends a binary frame of so many bytes.
    Binary(usize),
    /// Sends an event of an unknown type that is so many bytes long.
    Big(usize),
    /// Waits.
    DelayMs(u64),
    /// Waits until so many milliseconds have passed since the server was made.
    AtMs(u64),
    /// Neither reads nor writes for so long.
    StallMs(u64),
    /// Closes with code and reason.
    Close {
        /// The code.
        code: u16,
        /// The reason.
        #[serde(default)]
        reason: String,
    },
    /// Ends the byte stream without a close frame.
    Drop,
    /// Behaves until so many events of a type were sent, or for good.
    Auto {
        /// The event's type; absent is for good.
        #[serde(default)]
        until: Option<String>,
        /// How many of them.
        #[serde(default = "one")]
        times: u32,
    },
    /// In a fault: sends the event again.
    Duplicate,
    /// In a fault that stands in the event's place: sends it after the event that follows.
    Swap,
}

impl Step {
    /// Behaves for good.
    pub fn auto() -> Self {
        Self::Auto { until: None, times: 1 }
    }

    /// Behaves until an event of this type was sent.
    pub fn auto_until(kind: impl Into<String>) -> Self {
        Self::Auto { until: Some(kind.into()), times: 1 }
    }

    /// Closes.
    pub fn close(code: u16, reason: impl Into<String>) -> Self {
        Self::Close { code, reason: reason.into() }
    }
}
