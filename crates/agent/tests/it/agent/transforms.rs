use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::SeqCst},
};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentResult, AgentStreamChunk, Artifact,
    InMemorySessionStore, InvocationContext, Part, RuntimeError, SessionState, TurnEnd, TurnResult,
    patch::apply_patch, types::Status,
};
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Log, cx, fresh, kind, scripted};

fn redact(
    _: &InvocationContext,
    mut state: SessionState<Log>,
) -> Result<Option<SessionState<Log>>, RuntimeError> {
    state.session_id = Some("not for the transform to say".into());
    if let Some(log) = &mut state.custom {
        log.heard.iter_mut().for_each(|text| *text = "***".to_owned());
    }
    Ok(Some(state))
}

fn denied<T>() -> Result<Option<T>, RuntimeError> {
    Err(RuntimeError::new(Status::PermissionDenied, "not for you"))
}

#[tokio::test(start_paused = true)]
async fn the_state_transform_shapes_what_goes_out_and_nothing_else() {
    let client = scripted().state_transform(redact).build();
    let mut connection = client.connect(&cx(), AgentInit::default()).await.unwrap();
    connection.send_text("secret").await.unwrap();
    let output = connection.output().await.unwrap();
    let state = output.state.unwrap();
    assert_eq!(state.custom.unwrap().heard, ["***"]);
    assert_eq!(state.session_id, output.session_id);
    assert_eq!(connection.custom().unwrap().heard, ["***"], "patches are made after it");

    let server = scripted().state_transform(redact).store(InMemorySessionStore::new()).build();
    let output = server.run_text(&cx(), "secret", fresh()).await.unwrap();
    let id = output.snapshot_id.unwrap();
    let seen = server.get_snapshot(&cx(), id.clone()).await.unwrap().state.unwrap();
    assert_eq!(seen.custom.unwrap().heard, ["***"]);
    assert_eq!(seen.session_id, output.session_id);
    let raw = server.store().unwrap().get_snapshot(&cx(), &id).await.unwrap().unwrap();
    assert_eq!(raw.state.unwrap().custom.unwrap(), json!({"heard": ["secret"]}));
    let action = server.get_snapshot_action().unwrap();
    let json = action.run_json(&cx(), json!({"snapshotId": id})).await.unwrap();
    assert_eq!(json["state"]["custom"]["heard"], json!(["***"]));
}

#[tokio::test(start_paused = true)]
async fn a_state_transform_may_leave_the_state_out() {
    let client = scripted().state_transform(|_, _| Ok(None)).build();
    let output = client.run_text(&cx(), "secret", fresh()).await.unwrap();
    assert_eq!((output.state, output.error), (None, None));
}

#[tokio::test(start_paused = true)]
async fn custom_patch_state_transform_error_fails_invocation_closed() {
    let errs = |_: &InvocationContext, _: SessionState<Log>| denied();
    let panics = |_: &InvocationContext, _: SessionState<Log>| panic!("told to");
    for (agent, status) in [
        (scripted().state_transform(errs), Status::PermissionDenied),
        (scripted().state_transform(panics), Status::Internal),
    ] {
        let agent = agent.build();
        let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
        connection.send_text("secret").await.unwrap();
        connection.close();
        let chunks: Vec<_> = connection.receive().collect().await;
        assert!(chunks.is_empty(), "{chunks:?}");
        let output = connection.output().await.unwrap();
        assert_eq!(output.finish_reason, Some(AgentFinishReason::Failed));
        assert_eq!(output.error.unwrap().status, status);
        assert_eq!((output.state, output.message), (None, None));
    }
}

#[tokio::test(start_paused = true)]
async fn state_transform_error_fails_snapshot_read_closed() {
    let open = Arc::new(AtomicBool::new(true));
    let transform = {
        let open = open.clone();
        move |_: &InvocationContext, state: SessionState<Log>| match open.load(SeqCst) {
            true => Ok(Some(state)),
            false => denied(),
        }
    };
    let agent = scripted().state_transform(transform).store(InMemorySessionStore::new()).build();
    let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let id = output.snapshot_id.unwrap();
    open.store(false, SeqCst);
    let error = agent.get_snapshot(&cx(), id.clone()).await.unwrap_err();
    assert_eq!(error.status(), Status::PermissionDenied);
    let error = agent.handle().get_snapshot(&cx(), id.clone()).await.unwrap_err();
    assert_eq!(error.status(), Status::PermissionDenied);
    // Where there is no state there is nothing to shape.
    let request = antiphon_agent::protocol::GetSnapshotRequest::snapshot(id).metadata_only();
    assert!(agent.read_snapshot(&cx(), &request).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_stream_transform_redacts_drops_and_reshapes_on_the_wire_only() {
    let transform = |_: &InvocationContext, mut chunk: AgentStreamChunk| {
        if let Some(model) = &mut chunk.model_chunk {
            model.content = vec![Part::text("***")];
        }
        if let Some(end) = &mut chunk.turn_end {
            *end = TurnEnd::default();
        }
        Ok(chunk.artifact.is_none().then_some(chunk))
    };
    let agent = scripted().stream_transform(transform).build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("artifact").await.unwrap();
    connection.close();
    let chunks: Vec<_> = connection.receive().map(|chunk| kind(&chunk)).collect().await;
    assert_eq!(chunks, ["patch replace", "model \"***\"", "end"]);
    let output = connection.output().await.unwrap();
    assert_eq!(output.artifacts.len(), 1);
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Stop));
}

#[tokio::test(start_paused = true)]
async fn a_stream_transform_that_errs_or_panics_fails_closed() {
    let errs = |_: &InvocationContext, chunk: AgentStreamChunk| match chunk.model_chunk {
        Some(_) => denied(),
        None => Ok(Some(chunk)),
    };
    let panics = |_: &InvocationContext, chunk: AgentStreamChunk| match chunk.model_chunk {
        Some(_) => panic!("told to"),
        None => Ok(Some(chunk)),
    };
    for (agent, status) in [
        (scripted().stream_transform(errs), Status::PermissionDenied),
        (scripted().stream_transform(panics), Status::Internal),
    ] {
        let agent = agent.build();
        // A function that would go on for long is stopped.
        for text in ["one", "slow"] {
            let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
            connection.send_text(text).await.unwrap();
            connection.close();
            let chunks: Vec<_> = connection.receive().map(|chunk| kind(&chunk)).collect().await;
            assert_eq!(chunks, ["patch replace"], "nothing after the one that failed");
            let output = connection.output().await.unwrap();
            assert_eq!(output.finish_reason, Some(AgentFinishReason::Failed));
            assert_eq!(output.error.unwrap().status, status);
            assert_eq!(output.message, None);
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Board {
    status: String,
    items: Vec<u32>,
}

fn board() -> Agent<Board> {
    Agent::custom("board", |_cx, _, runner| async move {
        runner
            .run(|_, input| {
                let quiet = input.message.is_some_and(|m| m.joined_text() == "quiet");
                let runner = &runner;
                async move {
                    if quiet {
                        return Ok(TurnResult::default());
                    }
                    let status = |status: &str| {
                        runner.update_custom(|board| Board { status: status.into(), ..board });
                    };
                    status("working");
                    runner.update_custom(|mut board| {
                        board.items.push(board.items.len() as u32);
                        board
                    });
                    // Nothing changes: nothing is sent.
                    status("working");
                    status("done");
                    Ok(TurnResult::default())
                }
            })
            .await?;
        Ok(AgentResult::default())
    })
    .build()
}

#[tokio::test(start_paused = true)]
async fn custom_patch_per_turn_rebase_and_incremental() {
    let agent = board();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    for text in ["a", "b", "quiet"] {
        connection.send_text(text).await.unwrap();
    }
    connection.close();
    let mut turns = vec![Vec::new()];
    let mut copy = Value::Null;
    while let Some(chunk) = connection.next_chunk().await {
        if let Some(patch) = chunk.custom_patch {
            copy = apply_patch(&copy, &patch).unwrap();
            assert_eq!(serde_json::to_value(connection.custom().unwrap()).unwrap(), copy);
            turns.last_mut().unwrap().push(serde_json::to_value(patch).unwrap());
        }
        if chunk.turn_end.is_some() {
            turns.push(Vec::new());
        }
    }
    assert_eq!(
        turns[0],
        [
            json!([{"op": "replace", "path": "", "value": {"status": "working", "items": []}}]),
            json!([{"op": "add", "path": "/items/-", "value": 0}]),
            json!([{"op": "replace", "path": "/status", "value": "done"}]),
        ]
    );
    assert_eq!(
        turns[1],
        [
            json!([{"op": "replace", "path": "", "value": {"status": "working", "items": [0]}}]),
            json!([{"op": "add", "path": "/items/-", "value": 1}]),
            json!([{"op": "replace", "path": "/status", "value": "done"}]),
        ]
    );
    assert!(turns[2].is_empty(), "no change, no patch");
    let state = connection.output().await.unwrap().state.unwrap();
    assert_eq!(serde_json::to_value(state.custom).unwrap(), copy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn custom_patch_concurrent_mutations() {
    let agent = Agent::<Vec<u32>>::custom("crowd", |_cx, _, runner| async move {
        runner
            .run(|_, _| async {
                let tasks: Vec<_> = (0..16)
                    .map(|n| {
                        let session = runner.session().clone();
                        tokio::spawn(async move {
                            session.update_custom(|mut all| {
                                all.push(n);
                                all
                            });
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.map_err(|e| RuntimeError::internal(e.to_string()))?;
                }
                Ok(TurnResult::default())
            })
            .await?;
        Ok(AgentResult::default())
    })
    .build();
    for _ in 0..50 {
        let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
        connection.send_text("go").await.unwrap();
        let output = connection.output().await.unwrap();
        let custom = output.state.unwrap().custom.unwrap();
        assert_eq!(custom.len(), 16);
        assert_eq!(connection.custom().unwrap(), custom);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_behind_slows_the_agent_and_loses_nothing_that_counts() {
    let limits = {
        let mut limits = antiphon_agent::RuntimeLimits::default();
        limits.stream = 4;
        limits
    };
    let agent = Agent::<u32>::custom("flood", |_cx, responder, runner| async move {
        runner
            .run(|_, _| async {
                for n in 0..1_000 {
                    runner.update_custom(|count| count + 1);
                    responder.send_artifact(Artifact::new("doc", vec![Part::text(n.to_string())]));
                }
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .limits(limits)
    .build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("go").await.unwrap();
    connection.close();
    let chunks: Vec<_> = connection.receive().collect().await;
    assert!(chunks.iter().any(|chunk| chunk.turn_end.is_some()));
    assert_eq!(connection.custom().unwrap(), 1_000);
    let last = chunks.iter().rev().find_map(|chunk| chunk.artifact.as_ref()).unwrap();
    assert_eq!(last.parts, [Part::text("999")]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_fails_its_invocation_in_the_end() {
    let limits = {
        let mut limits = antiphon_agent::RuntimeLimits::default();
        limits.stream = 2;
        limits
    };
    let agent = Agent::<u32>::custom("talker", |cx, responder, runner| async move {
        runner
            .run(|_, _| async {
                for _ in 0..100 {
                    let chunk = antiphon_agent::ModelResponseChunk::new(
                        antiphon_agent::Role::Model,
                        0,
                        vec![Part::text("word ")],
                    );
                    responder.send_model_chunk(chunk).await;
                    if cx.has_ended().is_some() {
                        return Err(RuntimeError::Cancelled("told to stop".into()).into());
                    }
                }
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .limits(limits)
    .build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("go").await.unwrap();
    connection.done().await;
    let output = connection.output().await.unwrap();
    assert_eq!(output.error.unwrap().status, Status::ResourceExhausted);
}
