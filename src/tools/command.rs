//! A tool whose body is a program of the user's.

use std::{
    io::{self, Read, Write},
    mem,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use antiphon_agent::{Effects, Tool, ToolContext, ToolError, ToolLimits};
use antiphon_types::{JsonObject, Status, ToolSpeech};
use async_trait::async_trait;
use serde_json::Value;

/// How long the executor waits beyond the command's own time, so that the command is killed and
/// its end told by the tool rather than by the executor.
const GRACE: Duration = Duration::from_secs(2);
/// How long the pipes may stay open after the command's end: a child that left its process group
/// holds them, but what was written until then counts.
const PIPES_CLOSE: Duration = Duration::from_millis(500);
/// How often a running command is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How much of the command's standard error is kept for the host.
const STDERR_TAIL: usize = 4 * 1024;

/// A tool that runs a program: the arguments go to its standard input as JSON, what it writes to
/// its standard output is the result and must be one JSON object. An exit status other than 0 is
/// an error; the end of its standard error is logged for the host.
///
/// The program runs in a process group of its own, which is killed when the time is over, when the
/// call is cancelled, and when the program leaves children behind. In its environment are
/// `ANTIPHON_SESSION_ID`, `ANTIPHON_CALL_ID` and `ANTIPHON_IDEMPOTENCY_KEY`
/// ([`ToolContext::idempotency_key`]).
///
/// A host that is itself killed (`SIGKILL`) can end nothing: a program that runs then goes on, its
/// pipes closed. Where that matters, run the host under a supervisor that kills what it leaves, such
/// as a systemd unit with its default `KillMode=control-group`, or begin `command` with
/// `setpriv --pdeathsig KILL`.
#[derive(Clone, Debug)]
pub struct CommandTool {
    spec: Arc<CommandSpec>,
    schema: Option<Arc<Value>>,
    speech: Option<Arc<ToolSpeech>>,
}

/// What a [`CommandTool`] is made of.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CommandSpec {
    /// The tool's name.
    pub name: String,
    /// When to use it, for the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Option<Value>,
    /// How it is asked for and answered.
    pub speech: Option<ToolSpeech>,
    /// The question by which a call is read back before it runs.
    pub read_back: Option<String>,
    /// The program and its arguments; no shell is involved.
    pub command: Vec<String>,
    /// How long it may run. `None`: 30 seconds.
    pub timeout: Option<Duration>,
    /// What a call changes.
    pub effects: Effects,
}

impl CommandSpec {
    /// A tool without parameters; fill in the rest.
    pub fn new(name: impl Into<String>, command: Vec<String>) -> Self {
        Self { name: name.into(), command, ..Self::default() }
    }
}

impl CommandTool {
    /// A tool of this specification.
    pub fn new(mut spec: CommandSpec) -> Self {
        let schema = spec.parameters.take().map(Arc::new);
        let speech = spec.speech.take().map(Arc::new);
        Self { spec: Arc::new(spec), schema, speech }
    }
}

#[async_trait]
impl Tool for CommandTool {
    fn name(&self) -> &str {
        &self.spec.name
    }

    fn description(&self) -> &str {
        &self.spec.description
    }

    fn input_schema(&self) -> Option<Arc<Value>> {
        self.schema.clone()
    }

    fn speech(&self) -> Option<Arc<ToolSpeech>> {
        self.speech.clone()
    }

    fn read_back(&self) -> Option<&str> {
        self.spec.read_back.as_deref()
    }

    fn effects(&self) -> Effects {
        self.spec.effects
    }

    fn limits(&self) -> ToolLimits {
        let mut limits = ToolLimits::default();
        limits.timeout = self.spec.timeout.unwrap_or(limits.timeout) + GRACE;
        limits
    }

    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError> {
        let spec = self.spec.clone();
        let limits = self.limits();
        // A blocking task and not tokio's own process driver: a paused clock stands still while it
        // runs, and whoever drops this future still has the program killed, by the token.
        let inner = cx.clone();
        let output = cx.spawn_blocking(move || {
            Run { spec: &spec, cx: &inner, max_output: limits.max_output_bytes }.run(&args)
        });
        output.await?.map(Value::Object)
    }
}

/// One run of the program.
struct Run<'a> {
    spec: &'a CommandSpec,
    cx: &'a ToolContext,
    max_output: usize,
}

impl Run<'_> {
    fn run(&self, args: &JsonObject) -> Result<JsonObject, ToolError> {
        let input = serde_json::to_vec(args)
            .map_err(|error| ToolError::private(format!("arguments: {error}")))?;
        let program = self.spec.command.first().map_or("", String::as_str);
        let mut child = Group { leader: self.spawn(program)?, is_over: false };
        // Each pipe has a thread: a program may write much before it reads anything.
        let stdin = child.leader.stdin.take();
        thread::spawn(move || {
            // A program that does not read its input is in its right.
            if let Some(mut stdin) = stdin {
                let _ = stdin.write_all(&input);
            }
        });
        let stdout = collect(child.leader.stdout.take(), Keep::Head(self.max_output + 1));
        let stderr = collect(child.leader.stderr.take(), Keep::Tail(STDERR_TAIL));

        let ended = self.wait(&mut child.leader);
        // Whatever the program started and left goes with it; this also closes the pipes.
        let status = child.end();
        let closed = Instant::now() + PIPES_CLOSE;
        let stdout = stdout.until(closed);
        let stderr = stderr.until(closed);
        let stderr = String::from_utf8_lossy(&stderr);
        if !stderr.trim().is_empty() {
            tracing::debug!(tool = %self.spec.name, stderr = stderr.trim(), "command wrote errors");
        }

        ended?;
        let status = status.map_err(|error| ToolError::private(format!("waiting: {error}")))?;
        // First: a program that floods dies of its closed pipe, which is not what went wrong.
        if stdout.len() > self.max_output {
            return Err(ToolError::output_too_large(format!(
                "the command wrote more than {} bytes",
                self.max_output
            )));
        }
        if !status.success() {
            tracing::warn!(tool = %self.spec.name, %status, stderr = stderr.trim(), "command failed");
            return Err(ToolError::new(format!("the command failed: {status}")));
        }
        parse_output(&stdout)
    }

    fn spawn(&self, program: &str) -> Result<Child, ToolError> {
        let mut command = Command::new(program);
        command
            .args(self.spec.command.iter().skip(1))
            .env("ANTIPHON_SESSION_ID", &*self.cx.session_id)
            .env("ANTIPHON_CALL_ID", &*self.cx.call_id)
            .env("ANTIPHON_IDEMPOTENCY_KEY", &*self.cx.idempotency_key)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(|error| {
            tracing::warn!(tool = %self.spec.name, program, %error, "command cannot start");
            let status = match error.kind() {
                io::ErrorKind::NotFound => Status::NotFound,
                io::ErrorKind::PermissionDenied => Status::PermissionDenied,
                _ => Status::Unavailable,
            };
            ToolError::new("the command cannot be started").with_status(status).not_done()
        })
    }

    /// Waits for the end, the time-out or the cancellation, whichever is first.
    fn wait(&self, child: &mut Child) -> Result<(), ToolError> {
        let timeout = self.spec.timeout.unwrap_or(ToolLimits::default().timeout);
        let deadline = Instant::now() + timeout;
        loop {
            match has_ended(child) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err(ToolError::private(format!("waiting: {error}"))),
            }
            if self.cx.cancelled.is_cancelled() {
                return Err(ToolError::new("the call was cancelled").with_status(Status::Cancelled));
            }
            if Instant::now() >= deadline {
                return Err(ToolError::new(format!(
                    "the command did not finish within {} ms",
                    timeout.as_millis()
                ))
                .with_status(Status::DeadlineExceeded));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

/// Whether the child has ended. Its number stays taken: until [`Group::end`] nobody else can get it.
fn has_ended(child: &mut Child) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match Pid::from_raw(child.id() as i32) {
            Some(pid) => Ok(waitid(WaitId::Pid(pid), options)?.is_some()),
            None => Ok(true),
        }
    }
    #[cfg(not(unix))]
    Ok(child.try_wait()?.is_some())
}

/// A child that leads a process group, killed with it when dropped.
struct Group {
    leader: Child,
    /// The leader was waited for: its number may be another's by now.
    is_over: bool,
}

impl Group {
    /// Kills what is left of the group and frees the leader's number. Its exit status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if !self.is_over {
            #[cfg(unix)]
            if let Some(group) = rustix::process::Pid::from_raw(self.leader.id() as i32) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.leader.kill();
        }
        self.is_over = true;
        // It has ended or was killed, so this does not wait for long.
        self.leader.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.end();
        }
    }
}

enum Keep {
    Head(usize),
    Tail(usize),
}

/// What a thread has read from a pipe so far.
struct Collected {
    kept: Arc<Mutex<Vec<u8>>>,
    /// Closed at the end of the pipe.
    done: mpsc::Receiver<()>,
}

impl Collected {
    /// All that was read until the end of the pipe, or until `deadline` if that comes first.
    fn until(self, deadline: Instant) -> Vec<u8> {
        let _ = self.done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads a pipe to its end on a thread of its own, keeping a bounded part. What comes after the
/// head is not read, so that a program that floods blocks and is killed.
fn collect(pipe: Option<impl Read + Send + 'static>, keep: Keep) -> Collected {
    let (open, done) = mpsc::channel();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let shared = kept.clone();
    thread::spawn(move || {
        let _open: mpsc::Sender<()> = open;
        let Some(mut pipe) = pipe else { return };
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = pipe.read(&mut buffer) {
            let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend_from_slice(&buffer[..read]);
            match keep {
                Keep::Head(max) if kept.len() >= max => return,
                Keep::Head(_) => {}
                Keep::Tail(max) => {
                    let surplus = kept.len().saturating_sub(max);
                    kept.drain(..surplus);
                }
            }
        }
    });
    Collected { kept, done }
}

fn parse_output(stdout: &[u8]) -> Result<JsonObject, ToolError> {
    match serde_json::from_slice::<Value>(stdout) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(ToolError::new("the command's output is no JSON object")),
        Err(_) if stdout.iter().all(u8::is_ascii_whitespace) => {
            Err(ToolError::new("the command wrote no result"))
        }
        Err(error) => Err(ToolError::new(format!("the command's output is no JSON: {error}"))),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use antiphon_agent::{Admission, CallContext, Outcome, RunContext, ToolExecutor, ToolRegistry};
    use antiphon_agent::{Executed, memory::InMemory};
    use antiphon_types::{ToolArguments, ToolCallRequest};
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn shell(script: &str) -> CommandSpec {
        CommandSpec::new("t", vec!["sh".into(), "-c".into(), script.into()])
    }

    async fn call(spec: CommandSpec, cancelled: CancellationToken) -> Executed {
        let registry = Arc::new(ToolRegistry::new());
        registry.must_register(CommandTool::new(spec));
        let executor = ToolExecutor::new(registry, None);
        let memory = Arc::new(InMemory::default());
        let request = ToolCallRequest {
            id: "call-7".into(),
            name: "t".into(),
            arguments: ToolArguments::Json(r#"{"x": 1}"#.into()),
        };
        let cx = CallContext::new("session-3", 1, memory.clone());
        let Admission::Run(admitted) = executor.admit(&cx, request) else { panic!("not admitted") };
        let cx = RunContext::new("session-3", 1, memory, cancelled);
        executor.run(admitted, cx).await
    }

    async fn run(script: &str) -> Executed {
        call(shell(script), CancellationToken::new()).await
    }

    #[tokio::test]
    async fn arguments_go_in_and_the_object_comes_out() {
        let done = run(r#"printf '{"got": %s, "s": "%s", "c": "%s"}' "$(cat)" "$ANTIPHON_SESSION_ID" "$ANTIPHON_CALL_ID""#).await;
        assert_eq!(done.outcome, Outcome::Success, "{done:?}");
        assert_eq!(
            Value::Object(done.response.response),
            json!({"got": {"x": 1}, "s": "session-3", "c": "call-7"})
        );
    }

    #[tokio::test]
    async fn what_is_no_object_is_an_error() {
        for (script, reason) in [
            ("echo hello", "no JSON"),
            ("echo '[1]'", "no JSON object"),
            ("true", "wrote no result"),
            ("echo '{}'; exit 3", "exit status: 3"),
            ("head -c 200000 /dev/zero | tr '\\0' x", "more than 65536 bytes"),
        ] {
            let done = run(script).await;
            assert_ne!(done.outcome, Outcome::Success, "{script}");
            let error = done.response.response["error"].as_str().unwrap();
            assert!(error.contains(reason), "{script}: {error}");
        }
    }

    #[tokio::test]
    async fn a_program_that_floods_is_told_apart() {
        let done = run("yes").await;
        assert_eq!(done.outcome, Outcome::OutputTooLarge, "{done:?}");
    }

    /// The number of a program that has ended and was waited for may be another program's.
    #[test]
    fn a_group_that_is_over_is_not_signalled_again() {
        let child = Command::new("true").spawn().unwrap();
        let mut group = Group { leader: child, is_over: false };
        while !has_ended(&mut group.leader).unwrap() {
            thread::yield_now();
        }
        assert!(group.end().unwrap().success());
        assert!(group.is_over);
        assert!(group.end().unwrap().success(), "the status is remembered");
    }

    /// A service that a command starts leaves the process group, and keeps the pipes open.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn the_result_counts_though_a_service_that_was_started_holds_the_pipe() {
        let done = run("setsid sleep 5 & echo '{\"started\": true}'").await;
        assert_eq!(done.outcome, Outcome::Success, "{done:?}");
        assert_eq!(done.response.response["started"], true);
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_an_error() {
        let spec = CommandSpec::new("t", vec!["/nonexistent/program".into()]);
        let done = call(spec, CancellationToken::new()).await;
        assert_eq!(done.outcome, Outcome::Error);
        assert_eq!(done.response.response["error"], "the command cannot be started");
    }

    #[tokio::test]
    async fn a_late_program_is_killed_with_its_children() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let script =
            format!("sleep 60 & echo $! > {0}; echo $$ >> {0}; wait", file.path().display());
        let mut spec = shell(&script);
        spec.timeout = Some(Duration::from_millis(300));
        let done = call(spec, CancellationToken::new()).await;
        assert_eq!(done.outcome, Outcome::TimedOut);
        let error = done.response.response["error"].as_str().unwrap();
        assert!(error.contains("did not finish within 300 ms"), "{error}");
        let pids = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(pids.lines().count(), 2);
        for pid in pids.lines() {
            let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
            // The orphan may be a zombie until whoever inherited it looks; it does not run.
            let runs = || {
                let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
                let state = state.unwrap_or_default();
                state.rsplit(')').next().is_some_and(|rest| {
                    !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty()
                })
            };
            // It has the signal, and dies when it gets to run.
            let dies = async {
                while runs() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let dead = tokio::time::timeout(Duration::from_secs(10), dies).await;
            assert!(dead.is_ok(), "{pid:?} still runs");
        }
    }

    #[tokio::test]
    async fn a_cancelled_call_kills_the_program() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let cancelled = CancellationToken::new();
        let spec = shell(&format!("echo $$ > {}; exec sleep 60", file.path().display()));
        let running = tokio::spawn(call(spec, cancelled.clone()));
        let read = || std::fs::read_to_string(file.path()).unwrap();
        while !read().ends_with('\n') {
            tokio::task::yield_now().await;
        }
        cancelled.cancel();
        assert_eq!(running.await.unwrap().outcome, Outcome::Cancelled);
        let stat = format!("/proc/{}/stat", read().trim());
        // The kill comes from the program's own watcher, shortly after.
        while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z")) {
            tokio::task::yield_now().await;
        }
    }
}
