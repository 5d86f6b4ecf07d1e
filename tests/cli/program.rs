//! The program under test.

use std::{
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

/// A run of the program in a folder of its own.
pub struct Program {
    pub folder: TempDir,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A run that goes on.
pub struct Running {
    pub folder: TempDir,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    stdout: String,
}

/// What a developer's machine may hold, and no run may see.
const SECRETS: [&str; 11] = [
    "AZURE_OPENAI_API_KEY",
    "AZURE_OPENAI_DEPLOYMENT",
    "AZURE_OPENAI_ENDPOINT",
    "AZURE_VOICELIVE_API_KEY",
    "AZURE_VOICELIVE_ENDPOINT",
    "AZURE_VOICELIVE_MODEL",
    "DASHSCOPE_API_KEY",
    "GEMINI_API_KEY",
    "INWORLD_API_KEY",
    "OPENAI_API_KEY",
    "XAI_API_KEY",
];

/// What came of it.
pub struct Run {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
    pub events: Vec<Value>,
    /// Kept until the test has looked at its files.
    pub folder: TempDir,
}

impl Program {
    /// `antiphon talk --fast --events json`.
    pub fn talk() -> Self {
        Self::new(["talk", "--fast", "--events", "json"])
    }

    pub fn new<S: AsRef<str>>(arguments: impl IntoIterator<Item = S>) -> Self {
        let arguments = arguments.into_iter().map(|text| text.as_ref().to_owned()).collect();
        Self { folder: tempfile::tempdir().unwrap(), arguments, environment: Vec::new() }
    }

    /// Works in the folder of an earlier run.
    pub fn in_folder_of(self, run: Run) -> Self {
        self.in_folder(run.folder)
    }

    pub fn in_folder(mut self, folder: TempDir) -> Self {
        self.folder = folder;
        self
    }

    /// Runs so many times at once.
    pub fn run_at_once(self, times: usize) -> (Vec<Output>, TempDir) {
        let children: Vec<_> = (0..times)
            .map(|_| self.command().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
            .collect();
        let ends = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        (ends, self.folder)
    }

    pub fn args<S: AsRef<str>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|text| text.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Gives a bundled question.
    pub fn question(self, name: &str) -> Self {
        let path = bundled(name);
        self.args(["--input", path.to_str().unwrap()])
    }

    pub fn text(self, text: &str) -> Self {
        self.args(["--text", text])
    }

    /// Writes a file into the folder.
    pub fn file(self, name: &str, content: &str) -> Self {
        std::fs::write(self.folder.path().join(name), content).unwrap();
        self
    }

    /// Writes a WAV file of 16 bits into the folder.
    pub fn wav(self, name: &str, sample_rate_hz: u32, samples: &[i16]) -> Self {
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: sample_rate_hz,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut writer = hound::WavWriter::create(self.folder.path().join(name), spec).unwrap();
        samples.iter().for_each(|sample| writer.write_sample(*sample).unwrap());
        writer.finalize().unwrap();
        self
    }

    pub fn run(self) -> Run {
        let output = self.output();
        Run::new(output, self.folder)
    }

    /// Runs with its standard output in a file; it is not in what comes back.
    pub fn run_into(self, stdout: impl Into<Stdio>) -> Run {
        let output = self.command().stdout(stdout).output().unwrap();
        Run::new(output, self.folder)
    }

    /// Begins a run. Its standard error goes where that of the test goes.
    pub fn spawn(self) -> Running {
        let mut child = self.command().stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { folder: self.folder, child, lines, stdout: String::new() }
    }

    fn output(&self) -> Output {
        self.command().output().unwrap()
    }

    /// The command, for who starts it on their own.
    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_antiphon"));
        command
            .args(&self.arguments)
            .current_dir(self.folder.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null());
        for name in SECRETS {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().cloned());
        command
    }
}

impl Running {
    /// The next event of a type.
    #[track_caller]
    pub fn event(&mut self, kind: &str) -> Value {
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            self.stdout.push_str(&line);
            self.stdout.push('\n');
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            if event["type"] == kind {
                return event;
            }
        }
        panic!("no {kind} in:\n{}", self.stdout)
    }

    /// Ctrl-C.
    pub fn interrupt(&self) {
        self.signal("-INT");
    }

    /// The terminal is closed.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// SIGKILL, where there is such a thing. The program's folder.
    pub fn kill(mut self) -> TempDir {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.folder
    }

    /// What another run in the same folder says.
    #[track_caller]
    pub fn beside<'a>(&self, arguments: impl AsRef<[&'a str]>) -> String {
        let output = self.try_beside(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Another run in the same folder, however it ends.
    pub fn try_beside<'a>(&self, arguments: impl AsRef<[&'a str]>) -> Output {
        let mut other = Command::new(env!("CARGO_BIN_EXE_antiphon"));
        other.args(arguments.as_ref()).current_dir(self.folder.path()).output().unwrap()
    }

    /// Waits for its end.
    pub fn wait(mut self) -> Run {
        for line in &mut self.lines {
            self.stdout.push_str(&line.unwrap());
            self.stdout.push('\n');
        }
        let status = self.child.wait().unwrap();
        let output = Output { status, stdout: self.stdout.into_bytes(), stderr: Vec::new() };
        Run::new(output, self.folder)
    }
}

impl Run {
    fn new(output: Output, folder: TempDir) -> Self {
        let stdout = String::from_utf8(output.stdout).unwrap();
        let events = stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Self {
            // A signal is no status: tests never expect one.
            status: output.status.code().unwrap_or(-1),
            stdout,
            stderr: String::from_utf8(output.stderr).unwrap(),
            events,
            folder,
        }
    }

    /// Fails the test unless the run ended well.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 0, "{}\n{}", self.stderr, self.stdout);
        self
    }

    /// Events of a type.
    pub fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["type"] == kind).collect()
    }

    /// The one event of a type.
    #[track_caller]
    pub fn one(&self, kind: &str) -> &Value {
        let events = self.of(kind);
        assert_eq!(events.len(), 1, "events {kind}:\n{}", self.stdout);
        events[0]
    }

    /// What the agent said, message by message.
    pub fn said(&self) -> Vec<&str> {
        self.of("agent_message").into_iter().filter_map(|event| event["text"].as_str()).collect()
    }

    /// The types of these events, in order.
    pub fn order(&self, kinds: &[&str]) -> Vec<&str> {
        let types = self.events.iter().filter_map(|event| event["type"].as_str());
        types.filter(|kind| kinds.contains(kind)).collect()
    }

    /// The samples of a WAV file in the folder, and their rate.
    #[track_caller]
    pub fn samples(&self, name: &str) -> (Vec<i16>, u32) {
        let mut reader = hound::WavReader::open(self.folder.path().join(name)).unwrap();
        let rate = reader.spec().sample_rate;
        (reader.samples::<i16>().map(Result::unwrap).collect(), rate)
    }
}

/// A bundled question.
pub fn bundled(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/audio").join(name)
}

/// The samples of a bundled question.
pub fn bundled_samples(name: &str) -> Vec<i16> {
    let mut reader = hound::WavReader::open(bundled(name)).unwrap();
    assert_eq!(reader.spec().sample_rate, 16_000);
    reader.samples::<i16>().map(Result::unwrap).collect()
}
