//! What a client of the agent sees while a voice turn goes on.

use std::sync::Mutex;

use antiphon::{
    agent::{AgentStreamChunk, Artifact, FuncTool, InMemorySessionStore, Part, types::JsonObject},
    session::*,
};
use serde_json::json;

use super::*;
use crate::rig::*;

/// Counts the visits in the state, and leaves a note.
fn visit() -> Arc<ToolRegistry> {
    let tool = FuncTool::new("visit", "Visits.", json!({ "type": "object" }), |cx, _| async move {
        let session = cx.invocation.session_access().unwrap();
        session.update_custom_json(&mut |state| *state = json!({ "visits": 1 })).unwrap();
        session.add_artifacts(vec![Artifact::new("note", vec![Part::text("was here")])]);
        Ok(JsonObject::new())
    });
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    Arc::new(registry)
}

#[derive(Clone, Default)]
struct Client(Arc<Mutex<Vec<AgentStreamChunk>>>);

impl Client {
    fn of(&self, builder: SessionBuilder) -> SessionBuilder {
        let seen = self.0.clone();
        builder.agent_stream(move |chunk| seen.lock().unwrap().push(chunk))
    }

    fn seen(&self) -> Vec<String> {
        let mut seen = self.0.lock().unwrap();
        seen.drain(..)
            .map(|chunk| match chunk {
                AgentStreamChunk { model_chunk: Some(chunk), .. } => {
                    let outputs = chunk.tool_responses().count();
                    format!("{}: {}{}", chunk.index.unwrap(), chunk.text(), "!".repeat(outputs))
                }
                AgentStreamChunk { artifact: Some(artifact), .. } => {
                    format!("artifact {}", artifact.name.unwrap())
                }
                AgentStreamChunk { custom_patch: Some(patch), .. } => json!(patch).to_string(),
                AgentStreamChunk { turn_end: Some(end), .. } => {
                    format!("end {:?} {}", end.finish_reason.unwrap(), end.snapshot_id.is_some())
                }
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

async fn visits(rig: &mut Rig) {
    rig.user_says("u1", "Visit.").calls_tool("r1", "c1", "visit", "{}");
    rig.settle().await;
    rig.reply("r2").words("r2", "I was").words("r2", " there.").audio("r2", 500).done("r2");
    rig.speaker_catches_up().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_sees_words_outputs_artifacts_and_state_and_last_the_end_of_the_turn() {
    let agent = speaking(Arc::new(InMemorySessionStore::new()), visit());
    let client = Client::default();
    let mut rig = linked(&agent, |builder| client.of(builder)).await;
    visits(&mut rig).await;
    rig.until(is_committed).await;
    rig.settle().await;
    let patch = r#"[{"op":"replace","path":"","value":{"visits":1}}]"#;
    let seen = client.seen();
    assert_eq!(seen, [patch, "artifact note", "0: !", "1: I was", "1:  there.", "end Stop true"]);
    assert_eq!(rig.session.stats().agent_chunks_dropped, 0);
    rig.turn(&agent, "Thanks.", "Welcome.").await;
    rig.settle().await;
    assert_eq!(client.seen(), ["0: Welcome.", "end Stop true"]);
    // Started again, the session streams again.
    rig.session.shutdown(SECOND).await.unwrap();
    rig.events = rig.session.events();
    rig.session.start(antiphon::live::LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    rig.far = rig.provider.far_end().await;
    rig.turn(&agent, "Hello again.", "Hello.").await;
    rig.settle().await;
    assert_eq!(client.seen(), ["0: Hello.", "end Stop true"]);
}

#[tokio::test(start_paused = true)]
async fn transforms_see_to_what_goes_out_and_the_store_keeps_the_truth() {
    let agent: Agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(Voice::new("You visit.").tools(ToolExecutor::new(visit(), None)))
            .store(InMemorySessionStore::new())
            .stream_transform(|_cx, mut chunk| {
                if let Some(said) = &mut chunk.model_chunk {
                    said.content.retain(|part| part.as_tool_response().is_none());
                }
                let empty = chunk.model_chunk.as_ref().is_some_and(|said| said.content.is_empty());
                Ok((!empty).then_some(chunk))
            })
            .state_transform(|_cx, mut state| {
                state.custom = Some(json!({ "visits": "many" }));
                Ok(Some(state))
            })
            .build();
    let client = Client::default();
    let mut rig = linked(&agent, |builder| client.of(builder)).await;
    visits(&mut rig).await;
    let events = rig.until(is_committed).await;
    rig.settle().await;
    let patch = r#"[{"op":"replace","path":"","value":{"visits":"many"}}]"#;
    let seen = client.seen();
    assert_eq!(seen, [patch, "artifact note", "1: I was", "1:  there.", "end Stop true"]);
    let id = ids(events.last().unwrap()).0.unwrap();
    let shown = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(shown.state.unwrap().custom, Some(json!({ "visits": "many" })));
    let kept = agent.store().unwrap().get_snapshot(&cx(), &id).await.unwrap().unwrap();
    assert_eq!(kept.state.unwrap().custom, Some(json!({ "visits": 1 })));
}

#[tokio::test(start_paused = true)]
async fn a_transform_that_fails_ends_the_session_and_nothing_more_goes_out() {
    let agent: Agent =
        Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
            .voice(Voice::new("You say secrets."))
            .store(InMemorySessionStore::new())
            .stream_transform(|_cx, chunk| match &chunk.model_chunk {
                Some(said) if said.text().contains("secret") => {
                    Err(RuntimeError::internal("that must not go out"))
                }
                _ => Ok(Some(chunk)),
            })
            .build();
    let client = Client::default();
    let mut rig = linked(&agent, |builder| client.of(builder)).await;
    rig.user_says("u1", "Tell me.").reply("r1").words("r1", "The secret").words("r1", " is out.");
    let (events, reason) = rig.end().await;
    assert!(matches!(reason, EndReason::Failed { .. }), "{reason:?}");
    assert_eq!(client.seen(), [""; 0]);
    // What was said so far is kept.
    let committed = events.iter().find(|kind| is_committed(kind)).unwrap();
    let row = agent.get_snapshot(&cx(), ids(committed).0.unwrap()).await.unwrap();
    assert_eq!(lines(&row)[0], "user: Tell me.");
}

#[tokio::test(start_paused = true)]
async fn companions_read_and_abort_what_a_voice_session_made() {
    use antiphon::agent::AgentAction;
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let row = rig.turn(&agent, "Hello.", "Good day.").await;
    let handle = agent.handle();
    let read = handle.action(AgentAction::GetSnapshot).unwrap();
    let told = read.run_json(&cx(), json!({ "sessionId": "s" })).await.unwrap();
    assert_eq!(told["snapshotId"], *row.snapshot_id);
    assert_eq!(told["state"]["messages"].as_array().unwrap().len(), 2);
    assert_eq!(told["state"]["messages"][1]["metadata"]["voice"]["provider"], "scripted");
}
