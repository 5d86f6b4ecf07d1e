use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentInput, AgentResult, AgentStateManagement, Artifact,
    InMemorySessionStore, Message, Part, Registry, Role, RuntimeError, SessionState,
    SnapshotStatus, TurnContext, TurnResult, types::Status,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

use super::{Log, cx, fresh, kind, scripted, stored, texts};

#[tokio::test(start_paused = true)]
async fn basic_multi_turn() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    let mut ends = Vec::new();
    for text in ["one", "two", "three"] {
        connection.send_text(text).await.unwrap();
        let mut kinds = Vec::new();
        // Leaving the stream at the end of a turn cancels nothing.
        while let Some(chunk) = connection.receive().next().await {
            kinds.push(kind(&chunk));
            if let Some(end) = chunk.turn_end {
                ends.push(end.snapshot_id.unwrap());
                break;
            }
        }
        let model = format!("model {:?}", format!("on {text}"));
        assert_eq!(kinds, ["patch replace", &model, "end stop"]);
    }
    let output = connection.output().await.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Stop));
    assert_eq!(output.message.unwrap().joined_text(), "heard three");
    assert_eq!(output.snapshot_id.as_ref(), ends.last());
    assert!(output.state.is_none(), "the state of a server-managed agent stays in its store");

    let mut parent = None;
    for (n, id) in ends.iter().enumerate() {
        let row = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
        assert_eq!(row.status(), SnapshotStatus::Completed);
        assert_eq!(row.parent_id, parent);
        assert_eq!(row.session_id, output.session_id);
        assert_eq!(row.updated_at, Some(row.created_at));
        assert_eq!(row.state.unwrap().messages.len(), 2 * (n + 1));
        parent = Some(id.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn resume_from_snapshot() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let by_snapshot = AgentInit::snapshot(first.snapshot_id.clone().unwrap());
    let second = agent.run_text(&cx(), "two", by_snapshot).await.unwrap();
    assert_eq!(first.session_id, second.session_id);
    let by_session = AgentInit::session(second.session_id.clone().unwrap());
    let third = agent.run_text(&cx(), "three", by_session).await.unwrap();
    let state = agent.get_snapshot(&cx(), third.snapshot_id.unwrap()).await.unwrap().state.unwrap();
    assert_eq!(texts(&state), ["one", "heard one", "two", "heard two", "three", "heard three"]);
    assert_eq!(state.custom.unwrap().heard, ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn client_managed_state() {
    let agent = scripted().build();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    assert!(first.snapshot_id.is_none());
    let again = AgentInit::state(first.state.unwrap());
    let second = agent.run_text(&cx(), "two", again).await.unwrap();
    assert_eq!(second.session_id, first.session_id);
    assert_eq!(texts(&second.state.unwrap()), ["one", "heard one", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn client_managed_caller_state_isolated() {
    let agent = scripted().build();
    let mine = agent.run_text(&cx(), "one", fresh()).await.unwrap().state.unwrap();
    let copy = mine.clone();
    agent.run_text(&cx(), "two", AgentInit::state(mine.clone())).await.unwrap();
    assert_eq!(mine, copy);
}

#[tokio::test(start_paused = true)]
async fn client_managed_mints_session_id() {
    let agent = scripted().build();
    for init in [fresh(), AgentInit::state(SessionState::default())] {
        let output = agent.run_text(&cx(), "one", init).await.unwrap();
        assert_eq!(output.session_id.as_ref().unwrap().len(), 36, "a UUID");
        assert_eq!(output.state.unwrap().session_id, output.session_id);
    }
}

#[tokio::test(start_paused = true)]
async fn client_managed_with_session_id_rejected() {
    let agent = scripted().build();
    let refused = agent.run_text(&cx(), "one", AgentInit::session("s")).await.unwrap_err();
    assert_eq!(refused.error.status(), Status::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn single_turn_snapshot() {
    let agent = stored();
    let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(
        (row.status(), row.finish_reason),
        (SnapshotStatus::Completed, Some(AgentFinishReason::Stop))
    );
    assert_eq!((row.parent_id, row.heartbeat_at, row.error), (None, None, None));
    let state = row.state.unwrap();
    assert_eq!(
        (texts(&state), state.session_id),
        (vec!["one".into(), "heard one".into()], output.session_id)
    );
}

#[tokio::test(start_paused = true)]
async fn set_messages() {
    let agent = Agent::<Value>::custom("trim", |_cx, _responder, runner| async move {
        runner
            .run(|_, _| async {
                runner.add_messages([Message::model("answer")]);
                // The history is the agent's: it may keep the last message only.
                let last = runner.messages().last().cloned();
                runner.set_messages(last.into_iter().collect());
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let output = agent.run_text(&cx(), "question", fresh()).await.unwrap();
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(texts(&row.state.unwrap()), ["answer"]);
}

#[tokio::test(start_paused = true)]
async fn result_and_output_isolated_from_session() {
    let agent = Agent::<Value>::custom("apart", |_cx, responder, runner| async move {
        runner
            .run(|_, _| async {
                responder.send_artifact(Artifact::new("doc", vec![Part::text("v1")]));
                runner.add_messages([Message::model("said")]);
                let mut result = runner.result();
                result.message.as_mut().unwrap().content.clear();
                result.artifacts.clear();
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let mut output = agent.run_text(&cx(), "a", fresh()).await.unwrap();
    assert_eq!(output.message.as_ref().unwrap().joined_text(), "said");
    output.artifacts.clear();
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().artifacts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn turn_context() {
    let seen = Arc::new(Mutex::new(Vec::<TurnContext>::new()));
    let agent = |store: bool| {
        let seen = seen.clone();
        let agent = Agent::<Value>::custom("contexts", move |_cx, _, runner| {
            let seen = seen.clone();
            async move {
                runner
                    .run(|cx, _| {
                        seen.lock().unwrap().push(cx.turn().unwrap().clone());
                        async { Ok(TurnResult::default()) }
                    })
                    .await?;
                assert!(runner.context().turn().is_none(), "outside of turns there is none");
                Ok(AgentResult::default())
            }
        });
        if store { agent.store(InMemorySessionStore::new()).build() } else { agent.build() }
    };
    let server = agent(true);
    let mut connection = server.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("a").await.unwrap();
    connection.send_text("b").await.unwrap();
    let output = connection.output().await.unwrap();
    let contexts = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(contexts[0].parent_snapshot_id, None);
    assert_eq!(contexts[1].parent_snapshot_id, contexts[0].snapshot_id);
    assert_eq!(contexts[1].snapshot_id, output.snapshot_id);
    assert_eq!((contexts[0].turn_index, contexts[1].turn_index), (0, 1));

    agent(false).run_text(&cx(), "a", fresh()).await.unwrap();
    assert_eq!(seen.lock().unwrap()[0], TurnContext::default());
}

#[tokio::test(start_paused = true)]
async fn send_artifact_synchronous_and_in_same_turn_snapshot() {
    let agent = Agent::<Value>::custom("artists", |_cx, responder, runner| async move {
        runner
            .run(|_, _| async {
                responder.send_artifact(Artifact::new("doc", vec![Part::text("v1")]));
                responder.send_artifact(Artifact::new("doc", vec![Part::text("v2")]));
                assert_eq!(runner.artifacts().len(), 1);
                assert_eq!(runner.result().artifacts[0].parts, [Part::text("v2")]);
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("a").await.unwrap();
    connection.close();
    let chunks: Vec<_> = connection.receive().map(|chunk| kind(&chunk)).collect().await;
    assert_eq!(chunks, ["artifact doc", "artifact doc", "end"], "one for each, replacements too");
    let output = connection.output().await.unwrap();
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().artifacts[0].parts, [Part::text("v2")]);
}

#[tokio::test(start_paused = true)]
async fn post_run_mutation_not_snapshotted() {
    let build = |store: bool| {
        let agent = Agent::<u32>::custom("late", |_cx, _, runner| async move {
            runner.run(|_, _| async { Ok(TurnResult::default()) }).await?;
            runner.update_custom(|_| 7);
            Ok(AgentResult::default())
        });
        if store { agent.store(InMemorySessionStore::new()).build() } else { agent.build() }
    };
    let server = build(true);
    let output = server.run_text(&cx(), "a", fresh()).await.unwrap();
    let row = server.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().custom, None);
    let output = build(false).run_text(&cx(), "a", fresh()).await.unwrap();
    assert_eq!(output.state.unwrap().custom, Some(7), "but the output has it");
}

#[tokio::test(start_paused = true)]
async fn result_finish_reason_overrides_the_turns() {
    let agent = Agent::<Value>::custom("reasons", |_cx, _, runner| async move {
        runner
            .run(|_, _| async { Ok(TurnResult { finish_reason: Some(AgentFinishReason::Length) }) })
            .await?;
        Ok(AgentResult { finish_reason: Some(AgentFinishReason::Other), ..runner.result() })
    })
    .build();
    let output = agent.run_text(&cx(), "a", fresh()).await.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Other));
}

#[tokio::test(start_paused = true)]
async fn custom_patch_client_tracks_live_custom() {
    let agent = scripted().build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    assert_eq!(connection.custom().unwrap(), Log::default());
    connection.send_text("one").await.unwrap();
    while let Some(chunk) = connection.next_chunk().await {
        if chunk.custom_patch.is_some() {
            assert_eq!(connection.custom().unwrap().heard, ["one"], "before it is received");
        }
        if chunk.turn_end.is_some() {
            break;
        }
    }
    let output = connection.output().await.unwrap();
    assert_eq!(output.state.unwrap().custom, Some(connection.custom().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn output_is_idempotent_and_sends_after_it_are_refused() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    let first = connection.output().await.unwrap();
    assert_eq!(connection.output().await.unwrap(), first);
    connection.done().await;
    let refused = connection.send_text("two").await.unwrap_err();
    assert!(matches!(refused, RuntimeError::Completed), "{refused}");
    assert!(matches!(connection.detach().await, Err(RuntimeError::Completed)));
}

#[tokio::test(start_paused = true)]
async fn the_json_of_a_run() {
    let agent = stored();
    let mut chunks = Vec::new();
    let input = json!({"message": {"role": "user", "content": [{"text": "one"}]}});
    let output =
        agent.run_json(&cx(), input.clone(), &mut |chunk| chunks.push(chunk)).await.unwrap();
    let id = output["snapshotId"].clone();
    assert_eq!(
        output,
        json!({
            "sessionId": output["sessionId"],
            "snapshotId": id,
            "finishReason": "stop",
            "message": {"role": "model", "content": [{"text": "heard one"}]},
        })
    );
    assert_eq!(
        chunks,
        [
            json!({"customPatch": [{"op": "replace", "path": "", "value": {"heard": ["one"]}}]}),
            json!({"modelChunk": {"role": "model", "index": 0, "content": [{"text": "on one"}]}}),
            json!({"turnEnd": {"snapshotId": id, "finishReason": "stop"}}),
        ]
    );
    let more =
        agent.run_bidi_json(&cx(), input, json!({"snapshotId": id}), &mut |_| {}).await.unwrap();
    assert_eq!(more["sessionId"], output["sessionId"]);
    // No input is no turn.
    let none = agent.run_json(&cx(), Value::Null, &mut |_| {}).await.unwrap();
    assert_eq!(none, json!({"sessionId": none["sessionId"]}));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_says_no_role_is_the_users() {
    let agent = stored();
    for message in [
        json!({"content": [{"text": "one"}]}),
        json!({"role": "", "content": [{"text": "one"}]}),
        json!({"role": null, "content": [{"text": "one"}]}),
    ] {
        let input = json!({ "message": message });
        let output = agent.run_json(&cx(), input, &mut |_| {}).await.unwrap();
        let id = output["snapshotId"].as_str().unwrap();
        let state = agent.get_snapshot(&cx(), id).await.unwrap().state.unwrap();
        assert_eq!(state.messages.get(0).unwrap().role, Role::User);
    }
}

#[tokio::test(start_paused = true)]
async fn detach_intake_skips_nil_inputs() {
    let agent = stored();
    let mut connection = agent.connect_json(&cx(), Value::Null).await.unwrap();
    connection.send_json(Value::Null).await.unwrap();
    connection
        .send_json(json!({"message": {"role": "user", "content": [{"text": "a"}]}}))
        .await
        .unwrap();
    let bad = connection.send_json(json!({"message": 3})).await.unwrap_err();
    assert_eq!(bad.status(), Status::InvalidArgument);
    let output = connection.output().await.unwrap();
    let state =
        agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap().state.unwrap();
    assert_eq!(texts(&state), ["a", "heard a"]);
}

#[tokio::test(start_paused = true)]
async fn agents_by_name() {
    let registry = Registry::new();
    let agent = scripted().store(InMemorySessionStore::new()).description("does as told").build();
    agent.register(&registry).unwrap();
    let twice = agent.register(&registry).unwrap_err();
    assert_eq!(twice.status(), Status::AlreadyExists);
    assert!(registry.lookup_agent("nobody").is_none());
    assert_eq!(registry.list_agents(), [agent.agent_ref()]);

    let handle = registry.lookup_agent("scripted").unwrap();
    let output = handle.run_text(&cx(), "one", fresh()).await.unwrap();
    let row = handle.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().custom, Some(json!({"heard": ["one"]})));
}

#[tokio::test(start_paused = true)]
async fn agent_metadata() {
    let client = scripted().state_schema().build();
    let metadata = serde_json::to_value(client.metadata()).unwrap();
    assert_eq!(metadata["stateManagement"], "client");
    assert_eq!(metadata["abortable"], false);
    assert_eq!(metadata["stateSchema"]["properties"]["heard"]["type"], "array");
    assert!(client.get_snapshot_action().is_none() && client.abort_action().is_none());
    assert!(client.store().is_none());

    let server = stored();
    assert_eq!(server.metadata().state_management, AgentStateManagement::Server);
    assert!(server.metadata().abortable && server.metadata().state_schema.is_none());
    assert!(server.wait_for_snapshot_action().is_some() && server.abort_action().is_some());
    assert!(server.store().is_some());
}

#[tokio::test(start_paused = true)]
async fn input_message_cloned() {
    let agent = stored();
    let message = Message::user("one");
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_message(message.clone()).await.unwrap();
    connection.send(AgentInput::from(message.clone())).await.unwrap();
    let output = connection.output().await.unwrap();
    let state: SessionState<Log> =
        agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap().state.unwrap();
    assert_eq!(*state.messages.iter().next().unwrap().as_ref(), message);
}
