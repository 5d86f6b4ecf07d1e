//! Guards that are written as a file.

use std::{path::Path, sync::Arc, time::Duration};

use serde::Deserialize;

use super::{PersonalData, PersonalKind, Phrases};
use crate::{
    json_file::{FileError, JsonFile, UniqueKeys},
    session::{Guard, InputGuard, OutputGuard, SessionBuilder, WithoutTranscript},
};

/// Guards over the agent's and the user's words, from a JSON file:
///
/// ```
/// use antiphon::policy::guards::GuardFile;
///
/// let file = GuardFile::parse("guards", r#"{
///   "output": {
///     "phrases": ["the launch code"],
///     "personal_data": ["card", "iban"],
///     "hold_back_ms": 300,
///     "instead": "I can't say that."
///   },
///   "input": { "phrases": ["ignore all rules"], "wait_ms": 2000 }
/// }"#)?;
/// assert!(file.output.is_some() && file.input.is_some());
/// # Ok::<(), antiphon::policy::FileError>(())
/// ```
///
/// Either part may be missing, and within it all but what it denies. `output` also takes
/// `without_transcript` (`release`, `hold`, `deny`) and `allow`, a list of personal data that may be
/// said; `input` takes `allow`, `notice` and `run_without_transcript`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GuardFile {
    /// Over what the agent says.
    pub output: Option<OutputGuard>,
    /// Over what the user says.
    pub input: Option<InputGuard>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    output: Option<Output>,
    #[serde(default)]
    input: Option<Input>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Output {
    #[serde(default)]
    phrases: Vec<String>,
    #[serde(default)]
    personal_data: Vec<PersonalKind>,
    #[serde(default)]
    allow: Vec<String>,
    hold_back_ms: Option<u64>,
    without_transcript: Option<WithoutTranscript>,
    instead: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    #[serde(default)]
    phrases: Vec<String>,
    #[serde(default)]
    personal_data: Vec<PersonalKind>,
    #[serde(default)]
    allow: Vec<String>,
    wait_ms: Option<u64>,
    notice: Option<String>,
    #[serde(default)]
    run_without_transcript: bool,
}

impl GuardFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the file, with its line.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::read(path.as_ref())?)
    }

    /// Reads a text; `name` stands for the path in errors.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the text, with its line.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::new(name, text))
    }

    /// The session with these guards.
    pub fn apply(&self, mut session: SessionBuilder) -> SessionBuilder {
        if let Some(guard) = &self.output {
            session = session.output_guard(guard.clone());
        }
        if let Some(guard) = &self.input {
            session = session.input_guard(guard.clone());
        }
        session
    }

    fn from_json(file: &JsonFile) -> Result<Self, FileError> {
        file.parse::<UniqueKeys>()?;
        let Document { output, input } = file.parse()?;
        let nothing = |part: &str| -> Result<Self, FileError> {
            let piece = file.parse::<&serde_json::value::RawValue>()?;
            Err(file.error_at(piece, format!("{part} denies nothing: phrases or personal_data")))
        };
        let output = match output {
            Some(Output { phrases, personal_data, .. }) if empty(&phrases, &personal_data) => {
                return nothing("output");
            }
            other => other.map(Output::guard),
        };
        let input = match input {
            Some(Input { phrases, personal_data, .. }) if empty(&phrases, &personal_data) => {
                return nothing("input");
            }
            other => other.map(Input::guard),
        };
        Ok(Self { output, input })
    }
}

impl Output {
    fn guard(self) -> OutputGuard {
        let mut guard = OutputGuard::new(all(self.phrases, self.personal_data, &self.allow));
        if let Some(ms) = self.hold_back_ms {
            guard = guard.hold_back(Duration::from_millis(ms));
        }
        if let Some(setting) = self.without_transcript {
            guard = guard.without_transcript(setting);
        }
        match self.instead {
            Some(sentence) => guard.instead(sentence),
            None => guard,
        }
    }
}

impl Input {
    fn guard(self) -> InputGuard {
        let mut guard = InputGuard::new(all(self.phrases, self.personal_data, &self.allow));
        if let Some(ms) = self.wait_ms {
            guard = guard.wait(Duration::from_millis(ms));
        }
        if self.run_without_transcript {
            guard = guard.run_without_transcript();
        }
        match self.notice {
            Some(text) => guard.notice(text),
            None => guard,
        }
    }
}

fn empty(phrases: &[String], kinds: &[PersonalKind]) -> bool {
    phrases.iter().all(|phrase| !phrase.chars().any(char::is_alphanumeric)) && kinds.is_empty()
}

fn all(phrases: Vec<String>, kinds: Vec<PersonalKind>, allow: &[String]) -> Vec<Arc<dyn Guard>> {
    let personal = allow.iter().fold(PersonalData::new(kinds), |data, text| data.allow(text));
    vec![Arc::new(Phrases::new(phrases)), Arc::new(personal)]
}

#[cfg(test)]
mod tests {
    use crate::session::{GuardVerdict, Words};

    use super::*;

    #[test]
    fn a_file_says_what_is_denied_and_what_is_said_instead() {
        let text = r#"{"output": {"phrases": ["red fox"], "personal_data": ["email"],
            "allow": ["help@bank.example"], "instead": "No.", "without_transcript": "deny"}}"#;
        let file = GuardFile::parse("f", text).unwrap();
        let output = file.output.unwrap();
        let judge = |text| output.guard.judge(&Words::whole(text));
        assert!(matches!(judge("A red fox."), GuardVerdict::Deny(_)));
        assert!(matches!(judge("anna@example.com"), GuardVerdict::Deny(_)));
        assert_eq!(judge("A fox. help@bank.example"), GuardVerdict::Pass);
        assert_eq!(output.rules.instead.as_deref(), Some("No."));
        assert_eq!(output.rules.without_transcript, WithoutTranscript::Deny);
        assert!(file.input.is_none());
    }

    #[test]
    fn a_file_that_denies_nothing_or_says_something_unknown_is_refused_with_its_line() {
        for (text, what) in [
            (r#"{"output": {}}"#, "denies nothing"),
            (r#"{"input": {"phrases": ["..."]}}"#, "denies nothing"),
            (r#"{"output": {"phrase": ["a"]}}"#, "phrase"),
            (r#"{"output": {"personal_data": ["shoe size"]}}"#, "shoe size"),
            (r#"{"input": {"phrases": ["a"]}, "input": {"phrases": ["b"]}}"#, "input"),
        ] {
            let error = GuardFile::parse("guards.json", text).unwrap_err().to_string();
            assert!(error.starts_with("guards.json:1:") && error.contains(what), "{error}");
        }
    }
}
