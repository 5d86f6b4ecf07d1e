//! Sessions that are recorded, run again, and explained.

use std::{fs, path::PathBuf};

use antiphon::{
    agent::{Denial, Verdict},
    audio::{AudioFormat, AudioFrame, ClockedSink},
    live::{ErrorInfo, LiveEvent, ReplyOutcome, Resumption},
    session::{
        recording::{Explanation, Fault, Recording, RecordingError, Replayed, explain, replay},
        *,
    },
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use tempfile::TempDir;

use crate::rig::*;

const KEY: &str = "sk-very-secret-4711";
const HANDLE: &str = "handle-very-secret";

struct Recorded {
    rig: Rig,
    dir: TempDir,
}

impl Recorded {
    async fn start(setup: Setup, edit: impl FnOnce(Recording) -> Recording) -> Self {
        let dir = TempDir::new().unwrap();
        // It plays at the pace of the virtual clock.
        let sink = ClockedSink::new(AudioFormat::pcm16(24_000));
        let setup = setup.build(|builder| builder.sink(sink));
        let (session, provider, config, idle, speaker) = setup.ready();
        session.record(edit(Recording::new(dir.path().join("calls"))));
        let events = session.events();
        session.start(config.api_key(KEY), idle).await.unwrap();
        let far = provider.far_end().await;
        Self { rig: Rig { provider, session, far, speaker, events }, dir }
    }

    /// Ends the session. What was recorded, by lines.
    async fn end(self) -> Vec<String> {
        self.rig.session.shutdown(SECOND).await.unwrap();
        let path = self.rig.session.recording_file().unwrap();
        assert!(path.starts_with(self.dir.path()));
        text(&path).lines().map(|line| format!("{line}\n")).collect()
    }
}

fn text(path: &PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

fn again(lines: &[String]) -> Result<Replayed, RecordingError> {
    replay(lines.concat().as_bytes())
}

fn explained(lines: &[String]) -> Explanation {
    explain(lines.concat().as_bytes()).unwrap()
}

fn turn(explanation: &Explanation, number: u64) -> (Vec<Fault>, String) {
    let turn = explanation.turns.iter().find(|turn| turn.number == number);
    let turn = turn.unwrap_or_else(|| panic!("no turn {number} in\n{explanation}"));
    (turn.faults.clone(), turn.to_string())
}

#[track_caller]
fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// A conversation with most of what can go on in one.
async fn conversation(error: &str, edit: impl FnOnce(Recording) -> Recording) -> Vec<String> {
    let (slow, latch) = LatchedTool::new("weather", ToolPlan::Succeed);
    let (never, _) = LatchedTool::open("pay", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| {
        let policy = policy(|call| match &*call.name {
            "pay" => Verdict::Deny(Denial::private("too much")),
            _ => Verdict::Allow,
        });
        builder.tool(slow).tool(never).authorize(policy)
    });
    let mut recorded = Recorded::start(setup, edit).await;
    let rig = &mut recorded.rig;
    rig.emit(LiveEvent::Resumable(Resumption { handle: HANDLE.to_owned().into() }));
    for _ in 0..25 {
        rig.session.send_audio(AudioFrame::from_pcm16(16_000, &[5; 320])).unwrap();
        tokio::time::sleep(20 * MS).await;
    }
    // 1: answered at once.
    rig.user_says("u1", "Hello there");
    tokio::time::sleep(300 * MS).await;
    rig.says("r1", "Hello, what can I do for you?", 2_000);
    rig.until(is_turn_finished).await;
    // 2: a slow tool, then the user speaks over the answer.
    rig.user_says("u2", "What is the weather?");
    tokio::time::sleep(100 * MS).await;
    rig.calls_tool("r2", "c1", "weather", r#"{"degrees":0.1}"#);
    latch.started().await;
    tokio::time::sleep(3 * SECOND).await;
    latch.release(1);
    tokio::time::sleep(200 * MS).await;
    rig.reply_to("r3", 1).words("r3", "The weather is fine and will stay so.").audio("r3", 4_000);
    tokio::time::sleep(SECOND).await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.emit(LiveEvent::Interrupted { reply: Some("r3".into()) });
    rig.done_as("r3", ReplyOutcome::Interrupted);
    tokio::time::sleep(500 * MS).await;
    rig.emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    // 3: refused by policy, and an error of the provider; nothing is ever said.
    rig.emit(heard("u3", antiphon::live::TextUpdate::Final(Some("Pay a million".into()))));
    rig.calls_tool("r4", "c2", "pay", "{}");
    rig.settle().await;
    rig.emit(LiveEvent::Error(ErrorInfo::new("server_error", error).for_request(2)));
    tokio::time::sleep(4 * SECOND).await;
    // 4: as text.
    rig.session.send_text("Goodbye").unwrap();
    rig.settle().await;
    rig.says("r5", "Bye.", 500);
    tokio::time::sleep(SECOND).await;
    recorded.end().await
}

#[tokio::test(start_paused = true)]
async fn a_recorded_session_runs_again_bit_for_bit() {
    let lines = conversation("no reply", |recording| recording).await;
    let replayed = again(&lines).unwrap();
    assert!(replayed.is_same(), "{replayed}");
    assert_eq!((replayed.dropped, replayed.ended), (0, Some(EndReason::Stopped)));
    assert!(replayed.inputs > 60, "{}", replayed.inputs);
}

#[tokio::test(start_paused = true)]
async fn a_session_with_samples_and_tools_runs_again_bit_for_bit() {
    let (tool, latch) = LatchedTool::open("sum", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| builder.tool(tool)).idle(Some(20), Some(60));
    let mut recorded = Recorded::start(setup, |recording| recording.audio(true)).await;
    let rig = &mut recorded.rig;
    rig.user_says("u1", "Add it up").calls_tool("r1", "c1", "sum", r#"{"x":0.1,"y":1e-7}"#);
    latch.started().await;
    rig.settle().await;
    rig.says("r2", "It is little.", 700);
    rig.until(is_turn_finished).await;
    rig.far.close(1006, "gone");
    let far = rig.provider.far_end().await;
    rig.far = far;
    let (_, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Idle);
    rig.session.ended().await;
    let path = rig.session.recording_file().unwrap();
    let lines: Vec<_> = text(&path).lines().map(|line| format!("{line}\n")).collect();
    let replayed = again(&lines).unwrap();
    assert!(replayed.is_same(), "{replayed}");
    assert_eq!(replayed.ended, Some(EndReason::Idle));
    assert!(replayed.length >= 60 * SECOND && replayed.outputs > 20, "{replayed}");
}

#[tokio::test(start_paused = true)]
async fn secrets_are_in_no_recording_and_samples_only_where_asked_for() {
    let error = format!("no reply for {KEY}");
    let with = conversation(&error, |recording| recording.audio(true)).await.concat();
    let lines = conversation(&error, |recording| recording).await;
    let without = lines.concat();
    for text in [&with, &without] {
        assert!(!text.contains(KEY) && !text.contains(HANDLE));
        assert_says(text, &["What is the weather?", r#""degrees""#]);
    }
    assert!(with.contains("base64") && !without.contains("base64"));
    assert_says(&without, &[r#""zeros":640"#, r#""zeros":96000"#]);
    // What the provider repeated of the key is missing, so that this one event differs.
    let difference = again(&lines).unwrap().difference.unwrap();
    assert_says(&difference.to_string(), &["server_error", "Emit.Error", "[secret]"]);
}

#[tokio::test(start_paused = true)]
async fn an_explanation_says_why_the_agent_was_late_cut_off_or_silent() {
    let lines = conversation("no reply", |recording| recording).await;
    let explanation = explained(&lines);
    assert_eq!(explanation.note, None, "{explanation}");
    let (faults, text) = turn(&explanation, 1);
    assert!(faults.is_empty(), "{text}");
    assert_says(&text, &["Hello there", "0.300 s after the user had finished", "what can I do"]);
    let (faults, text) = turn(&explanation, 2);
    assert_eq!(faults, [Fault::Late, Fault::CutOff], "{text}");
    assert_says(&text, &["3.000 s for the tool weather", "0.30", "cut off: the user spoke"]);
    assert_says(&text, &["it said “The” of “The weather is fine and will stay so.”"]);
    let (faults, text) = turn(&explanation, 3);
    assert_eq!(faults, [Fault::Silent], "{text}");
    assert_says(&text, &["the policy refused pay: too much", "server_error", "nothing was heard"]);
    let (faults, text) = turn(&explanation, 4);
    assert!(faults.is_empty(), "{text}");
    assert_says(&explanation.to_string(), &["LATE, CUT OFF", "The session ended: stopped"]);
}

#[tokio::test(start_paused = true)]
async fn a_difference_is_named_with_its_line() {
    let mut recorded = Recorded::start(Setup::new(), |recording| recording).await;
    recorded.rig.user_says("u1", "Hello there").says("r1", "Hello.", 300);
    recorded.rig.until(is_turn_finished).await;
    let lines = recorded.end().await;
    assert!(again(&lines).unwrap().is_same());
    let at = lines.iter().position(|line| line.contains("Hello there")).unwrap();

    // The words are others than those that the engine was given then.
    let mut changed = lines.clone();
    changed[at] = changed[at].replace("Hello there", "Good evening");
    let difference = again(&changed).unwrap().difference.unwrap();
    assert_eq!(difference.line, at as u64 + 1);
    let text = difference.to_string();
    assert_says(&text, &["Emit.UserTranscript", "Good evening", "input_transcript"]);

    // An input is missing: what came of it does not come any more.
    let mut changed = lines.clone();
    changed.remove(at);
    let difference = again(&changed).unwrap().difference.unwrap();
    assert!(difference.line > at as u64, "{difference}");

    // The engine was given something that nothing came of then.
    let mut changed = lines;
    let quiet = changed[at].split(r#","out":"#).next().unwrap().to_owned() + "}\n";
    changed[at] = quiet;
    let difference = again(&changed).unwrap().difference.unwrap();
    assert_eq!((difference.line, difference.recorded), (at as u64 + 1, None));
}

#[tokio::test(start_paused = true)]
async fn a_torn_or_foreign_file_is_told_with_its_line() {
    let mut recorded = Recorded::start(Setup::new(), |recording| recording).await;
    recorded.rig.user_says("u1", "Hello there").says("r1", "Hello.", 300);
    recorded.rig.until(is_turn_finished).await;
    let lines = recorded.end().await;
    let count = lines.len();

    let whole = lines.concat();
    let torn = &whole[..whole.len() - lines[count - 1].len() - 4];
    assert_eq!(replay(torn.as_bytes()), Err(RecordingError::Torn { line: count as u64 - 1 }));
    let explanation = explain(torn.as_bytes()).unwrap();
    assert_says(&explanation.to_string(), &["Hello there", "is torn"]);

    let replayed = again(&lines[..count - 1]).unwrap();
    assert!(!replayed.complete && replayed.difference.is_none());
    assert_says(&replayed.to_string(), &["ends before the session does"]);

    for text in ["", "hello\n", "{\"a\":1}\n", "[]\n"] {
        let foreign = replay(text.as_bytes()).unwrap_err();
        assert!(matches!(foreign, RecordingError::Foreign { .. }), "{text}: {foreign}");
    }
    let newer = lines[0].replacen(r#""antiphon_recording":1"#, r#""antiphon_recording":9"#, 1);
    assert_eq!(again(&[newer]), Err(RecordingError::Version { found: 9 }));
    let mut wrong = lines.clone();
    wrong[3] = "{\"t\":1,\"in\":{\"provider\":{\"epoch\":1}}}\n".into();
    let error = again(&wrong).unwrap_err();
    assert_says(&error.to_string(), &["line 4", "event"]);
    let mut wrong = lines;
    wrong[3] = "{\"t\":18446744073709551615}\n".into();
    assert!(matches!(again(&wrong), Err(RecordingError::Line { line: 4, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_recorded_does_not_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (session, _, config, idle, _) = Setup::new().ready();
    session.record(file.path());
    let error = session.start(config.clone(), idle).await.unwrap_err();
    assert!(matches!(error, StartError::Recording(_)), "{error}");
    session.record_nothing();
    session.start(config, idle).await.unwrap();
    assert_eq!(session.recording_file(), None);
    session.shutdown(SECOND).await.unwrap();
}

#[cfg(unix)]
#[tokio::test(start_paused = true)]
async fn a_recording_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt;

    let recorded = Recorded::start(Setup::new(), |recording| recording).await;
    let path = recorded.rig.session.recording_file().unwrap();
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    recorded.end().await;
}
