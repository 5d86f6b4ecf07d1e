//! When turns are committed, and what stands in them.

use std::sync::{Arc, Mutex, atomic::Ordering::SeqCst};

use antiphon::{
    agent::{
        AgentFinishReason, Artifact, FuncTool, InMemorySessionStore, Part, SnapshotStatus,
        ToolRegistry, types::JsonObject,
    },
    live::{LiveEvent, TextUpdate},
    session::*,
};
use serde_json::json;

use super::*;
use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn each_turn_is_a_snapshot_on_the_one_before() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let first = rig.turn(&agent, "Hello.", "Good day.").await;
    assert_eq!((first.session_id.as_deref(), &first.parent_id), (Some("s"), &None));
    assert_eq!(lines(&first), ["user: Hello.", "model: Good day."]);
    assert_eq!(first.status(), SnapshotStatus::Completed);
    assert_eq!(first.finish_reason, Some(AgentFinishReason::Stop));
    assert_eq!(voice(&first, 1)["provider"], "scripted");
    assert_eq!(voice(&first, 1)["model"], "scripted-1");
    let second = rig.turn(&agent, "And now?", "Still good.").await;
    assert_eq!(second.parent_id, Some(first.snapshot_id));
    let expected = ["user: Hello.", "model: Good day.", "user: And now?", "model: Still good."];
    assert_eq!(lines(&second), expected);
    assert_eq!(voice(&second, 2)["turn"], 2);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_told_as_committed_only_once_it_is_written() {
    let store = SlowStore::new(0);
    let agent = speaking(store.clone(), Arc::default());
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "Hello.").says("r1", "Good day.", 500);
    rig.speaker_catches_up().await;
    let mut events = rig.until(is_turn_finished).await;
    events.extend(rig.now().await);
    assert!(!events.iter().any(is_committed), "nothing is on disk");
    // The conversation does not wait for the disk.
    rig.user_says("u2", "And now?").says("r2", "Still good.", 500);
    rig.speaker_catches_up().await;
    rig.until(is_turn_finished).await;
    store.writes.add_permits(1);
    let first = rig.committed(&agent).await;
    assert!(!rig.now().await.iter().any(is_committed), "the second is not on disk");
    store.writes.add_permits(1);
    assert_eq!(rig.committed(&agent).await.parent_id, Some(first.snapshot_id));
}

/// Notes the visit in the state, with the snapshot that will hold it, and leaves a note.
fn visit(seen: Arc<Mutex<Vec<Arc<str>>>>) -> FuncTool {
    FuncTool::new("visit", "Visits.", json!({ "type": "object" }), move |cx, _args| {
        let seen = seen.clone();
        async move {
            let session = cx.invocation.session_access().unwrap();
            assert_eq!(session.session_id(), cx.session_id);
            session.update_custom_json(&mut |state| state["visits"] = json!(1)).unwrap();
            let note = Artifact::new("note", vec![Part::text("was here")]);
            session.add_artifacts(vec![note]);
            let turn = cx.invocation.turn().unwrap();
            seen.lock().unwrap().push(turn.snapshot_id.clone().unwrap());
            let caller = cx.invocation.caller().map(|caller| caller.id.to_string());
            Ok(JsonObject::from_iter([("caller".to_owned(), json!(caller))]))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn tools_see_the_snapshot_of_their_turn_and_change_what_is_in_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let registry = ToolRegistry::new();
    registry.must_register(visit(seen.clone()));
    let agent = speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry));
    let caller = antiphon::agent::Caller::new("ann").scope("home");
    let mut rig = linked(&agent, |builder| builder.caller(caller)).await;
    rig.user_says("u1", "Visit.").calls_tool("r1", "c1", "visit", r#"{"why": "tea"}"#);
    rig.settle().await;
    rig.says("r2", "I was there.", 500);
    rig.speaker_catches_up().await;
    let row = {
        let events = rig.until(is_committed).await;
        let (id, _) = ids(events.last().unwrap());
        let cx = cx().with_caller(antiphon::agent::Caller::new("ann").scope("home"));
        agent.get_snapshot(&cx, id.unwrap()).await.unwrap()
    };
    assert_eq!(*seen.lock().unwrap(), std::slice::from_ref(&row.snapshot_id));
    let expected = [
        "user: Visit.",
        r#"model: ?visit {"why":"tea"}"#,
        r#"tool: !visit {"caller":"ann"}"#,
        "model: I was there.",
    ];
    assert_eq!(lines(&row), expected);
    let state = row.state.unwrap();
    assert_eq!(state.custom, Some(json!({ "visits": 1 })));
    assert_eq!(state.artifacts[0].name.as_deref(), Some("note"));
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_reply_leaves_only_what_was_heard() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "Tell me a story.").reply("r1");
    for word in ["Once ", "upon ", "a ", "time."] {
        rig.words("r1", word).audio("r1", 500);
    }
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.settle().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::Interrupted { reply: Some("r1".into()) })
        .done_as("r1", antiphon::live::ReplyOutcome::Interrupted);
    rig.settle().await;
    rig.emit(heard("u2", TextUpdate::Final(Some("Stop.".into()))));
    let row = rig.committed(&agent).await;
    let messages = &row.state.as_ref().unwrap().messages;
    let told = messages.get(1).unwrap();
    assert_eq!(told.content[0].as_text(), Some("Once upon"));
    assert!(told.joined_text().contains("did not hear the rest"));
    let noted = voice(&row, 1);
    assert_eq!(
        (&noted["interrupted"], &noted["generated"]),
        (&json!(true), &json!("Once upon a time."))
    );
    assert_eq!((&noted["heard_ms"], &noted["generated_ms"]), (&json!(1_000), &json!(2_000)));
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Stop));
    rig.says("r2", "All right.", 500);
    rig.speaker_catches_up().await;
    let next = rig.committed(&agent).await;
    assert_eq!(lines(&next)[2..], ["user: Stop.", "model: All right."]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_names_no_snapshot_and_the_next_one_has_the_turn() {
    let store = SlowStore::open();
    let agent = speaking(store.clone(), Arc::default());
    let mut rig = linked(&agent, |builder| builder).await;
    let first = rig.turn(&agent, "One.", "First.").await;
    store.fails.store(true, SeqCst);
    rig.user_says("u2", "Two.").says("r2", "Second.", 500);
    rig.speaker_catches_up().await;
    let events = rig.until(is_committed).await;
    assert_eq!(ids(events.last().unwrap()), (None, None));
    store.fails.store(false, SeqCst);
    let third = rig.turn(&agent, "Three.", "Third.").await;
    assert_eq!(third.parent_id, Some(first.snapshot_id));
    let expected = ["user: Two.", "model: Second.", "user: Three.", "model: Third."];
    assert_eq!(lines(&third)[2..], expected);
}

#[tokio::test(start_paused = true)]
async fn a_last_turn_whose_commit_failed_is_committed_by_the_end() {
    let store = SlowStore::open();
    let agent = speaking(store.clone(), Arc::default());
    let mut rig = linked(&agent, |builder| builder).await;
    let first = rig.turn(&agent, "One.", "First.").await;
    store.fails.store(true, SeqCst);
    rig.user_says("u2", "Two.").says("r2", "Second.", 500);
    rig.speaker_catches_up().await;
    let events = rig.until(is_committed).await;
    assert_eq!(ids(events.last().unwrap()), (None, None));
    // The store is well again, and nothing more is said.
    store.fails.store(false, SeqCst);
    rig.session.stop();
    let (events, _) = rig.end().await;
    let [.., committed, _] = &events[..] else { panic!("{events:?}") };
    let (id, parent) = ids(committed);
    assert_eq!(parent, Some(first.snapshot_id));
    let row = agent.get_snapshot(&cx(), id.expect("a snapshot")).await.unwrap();
    assert_eq!(lines(&row)[2..], ["user: Two.", "model: Second."]);
}

#[tokio::test(start_paused = true)]
async fn noise_commits_nothing() {
    let store = SlowStore::open();
    let agent = speaking(store.clone(), Arc::default());
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None })
        .emit(heard("u1", TextUpdate::Final(Some(" ".into()))));
    rig.settle().await;
    rig.session.stop();
    let (events, _) = rig.end().await;
    assert!(!events.iter().any(is_committed));
    assert!(agent.get_latest_snapshot(&cx(), "s").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_stopped_half_way_is_aborted_and_told_before_the_end() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder).await;
    rig.user_says("u1", "Hello.").reply("r1").words("r1", "Good day.").audio("r1", 2_000);
    rig.settle().await;
    rig.speaker.play(1_500 * PER_MS);
    rig.settle().await;
    rig.session.stop();
    let (events, reason) = rig.end().await;
    assert_eq!(reason, EndReason::Stopped);
    let [.., committed, _] = &events[..] else { panic!("{events:?}") };
    let row = agent.get_snapshot(&cx(), ids(committed).0.unwrap()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Aborted));
    assert_eq!(lines(&row)[0], "user: Hello.");
    assert_eq!(voice(&row, 1)["interrupted"], true);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_fails_the_turn() {
    let agent = plain();
    let mut reconnect = ReconnectPolicy::default();
    reconnect.max_attempts = 0;
    let mut rig = linked(&agent, |builder| builder.reconnect(reconnect)).await;
    rig.user_says("u1", "Hello.");
    rig.settle().await;
    rig.far.close(1011, "gone");
    let (events, _) = rig.end().await;
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    let row = agent.get_snapshot(&cx(), ids(committed).0.unwrap()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Failed);
    assert_eq!(lines(&row), ["user: Hello."]);
}
