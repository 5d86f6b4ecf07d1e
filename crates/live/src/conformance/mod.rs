//! The contract suite: what every provider must do, as a test that anyone can run.
//!
//! ```no_run
//! # async fn example(provider: &dyn antiphon_live::LiveProvider) {
//! use antiphon_live::conformance::{self, Options};
//!
//! conformance::run(provider, Options::new().text("Hello.")).await.assert_passed();
//! # }
//! ```
//!
//! It talks to the provider as a session would and holds it to the promises at the head of the
//! crate. Waiting is bounded everywhere, on tokio's clock, which may be paused. What a provider's
//! capabilities exclude is skipped, and so is what the [`Options`] give no means for; the report
//! says so.

use std::{fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use antiphon_types::{AudioFrame, JsonObject, ToolDefinition};
use futures_util::FutureExt;

use crate::{LiveConfig, LiveProvider};

mod cases;
mod probe;

/// What the suite may use. Everything has a default; speech and a tool are better given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The configuration of every connection; the tool is added where it is called.
    pub config: LiveConfig,
    /// What is asked by text. Default: `Hello.`
    pub text: String,
    /// A question to say, in the provider's input format. Default: none, and no audio turn.
    pub speech: Option<AudioFrame>,
    /// A tool and how to have it called. Default: none, and no tool round.
    pub tool: Option<ToolProbe>,
    /// How long each wait may take. Default: 20 seconds.
    pub deadline: Duration,
}

/// A tool and how to have it called.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolProbe {
    /// The tool.
    pub definition: ToolDefinition,
    /// What the user writes to have it called.
    pub text: String,
    /// What it gives.
    pub output: JsonObject,
}

impl ToolProbe {
    /// A tool that is called when the user writes `text`, and gives `output`.
    pub fn new(definition: ToolDefinition, text: impl Into<String>, output: JsonObject) -> Self {
        Self { definition, text: text.into(), output }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: LiveConfig::default(),
            text: "Hello.".into(),
            speech: None,
            tool: None,
            deadline: Duration::from_secs(20),
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the configuration of every connection.
    pub fn config(mut self, config: LiveConfig) -> Self {
        self.config = config;
        self
    }

    /// Sets what is asked by text.
    pub fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// Sets the spoken question.
    pub fn speech(mut self, speech: AudioFrame) -> Self {
        self.speech = Some(speech);
        self
    }

    /// Sets the tool.
    pub fn tool(mut self, tool: ToolProbe) -> Self {
        self.tool = Some(tool);
        self
    }

    /// Sets how long each wait may take.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// What became of every case.
#[derive(Clone, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The provider's name.
    pub provider: String,
    /// The cases, in the order in which they ran.
    pub cases: Vec<Case>,
}

/// One case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Its name, such as `text_turn`.
    pub name: &'static str,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The provider did what it must.
    Passed,
    /// The case does not apply; why.
    Skipped(String),
    /// The provider broke a promise; which.
    Failed(String),
}

impl Report {
    /// The names of the cases that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = self.cases.iter().filter(|case| matches!(case.outcome, Outcome::Failed(_)));
        failed.map(|case| case.name).collect()
    }

    /// The names of the cases that passed.
    pub fn passed(&self) -> Vec<&'static str> {
        let passed = self.cases.iter().filter(|case| case.outcome == Outcome::Passed);
        passed.map(|case| case.name).collect()
    }

    /// Panics with the whole report if a case failed.
    #[track_caller]
    pub fn assert_passed(&self) {
        assert!(self.failed().is_empty(), "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "conformance of {:?}", self.provider)?;
        for Case { name, outcome } in &self.cases {
            match outcome {
                Outcome::Passed => writeln!(f, "  passed   {name}")?,
                Outcome::Skipped(why) => writeln!(f, "  skipped  {name}: {why}")?,
                Outcome::Failed(why) => writeln!(f, "  FAILED   {name}: {why}")?,
            }
        }
        Ok(())
    }
}

/// Puts `provider` through every case, one after the other.
pub async fn run(provider: &dyn LiveProvider, options: Options) -> Report {
    let suite = Suite { provider, options };
    let mut report = Report { provider: provider.name().to_owned(), cases: Vec::new() };
    report.case("name", suite.name()).await;
    report.case("ready_first", suite.ready_first()).await;
    report.case("text_turn", suite.text_turn()).await;
    report.case("text_without_reply", suite.text_without_reply()).await;
    report.case("audio_turn", suite.audio_turn()).await;
    report.case("tool_round", suite.tool_round()).await;
    report.case("say", suite.say()).await;
    report.case("create_reply", suite.create_reply()).await;
    report.case("cancel_reply", suite.cancel_reply()).await;
    report.case("excluded_commands", suite.excluded_commands()).await;
    report.case("wrong_format", suite.wrong_format()).await;
    report.case("blank_text", suite.blank_text()).await;
    report.case("cancelled_receive", suite.cancelled_receive()).await;
    report.case("cancelled_connect", suite.cancelled_connect()).await;
    report.case("two_connections", suite.two_connections()).await;
    report.case("close_twice", suite.close_twice()).await;
    report.case("drop_during_reply", suite.drop_during_reply()).await;
    report
}

/// What a case says: it passed, or does not apply. The error is the broken promise.
type Verdict = Result<Outcome, String>;

struct Suite<'a> {
    provider: &'a dyn LiveProvider,
    options: Options,
}

impl Suite<'_> {
    fn config(&self) -> Arc<LiveConfig> {
        Arc::new(self.options.config.clone())
    }
}

impl Report {
    async fn case(&mut self, name: &'static str, case: impl Future<Output = Verdict>) {
        let outcome = match AssertUnwindSafe(case).catch_unwind().await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(why)) => Outcome::Failed(why),
            Err(_) => Outcome::Failed("the provider panicked".into()),
        };
        self.cases.push(Case { name, outcome });
    }
}
