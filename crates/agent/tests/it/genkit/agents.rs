//! The four agents of the recordings.

use std::{collections::HashMap, time::Duration};

use antiphon_agent::{
    Agent, AgentBuilder, AgentFinishReason, AgentHandle, AgentInput, AgentResult, AgentStreamChunk,
    Artifact, InMemorySessionStore, InvocationContext, Message, ModelResponseChunk, Part,
    Responder, Role, RuntimeError, SessionRunner, SessionState, TurnFailure, TurnResult,
    types::Status,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;

use crate::agent::paused_clock;

/// All of them, by name.
pub fn all() -> HashMap<&'static str, AgentHandle> {
    let work = work("workAgent").store(InMemorySessionStore::new()).build();
    let client = work_client();
    HashMap::from([("workAgent", work.handle()), ("workClientAgent", client.handle())])
}

/// The custom state of the work agents.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Work {
    counter: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[serde(default)]
    items: Vec<String>,
}

fn work(name: &str) -> AgentBuilder<Work> {
    Agent::custom(name, |_cx, responder, runner| async move {
        runner.run(|cx, input| turn(cx, &responder, &runner, input)).await?;
        Ok::<AgentResult, _>(runner.result())
    })
    .clock(paused_clock())
}

fn work_client() -> Agent<Work> {
    work("workClientAgent")
        .state_transform(|_, mut state: SessionState<Work>| {
            if let Some(work) = &mut state.custom {
                work.status = Some("[redacted]".to_owned());
            }
            Ok(Some(state))
        })
        .stream_transform(|_, chunk: AgentStreamChunk| {
            Ok(chunk.model_chunk.is_none().then_some(chunk))
        })
        .build()
}

async fn turn(
    cx: InvocationContext,
    responder: &Responder,
    runner: &SessionRunner<Work>,
    input: AgentInput,
) -> Result<TurnResult, TurnFailure> {
    let text = input.message.as_ref().map(Message::joined_text).unwrap_or_default();
    let status = |status: &str| Some(status.to_owned());
    runner.update_custom(|work| Work {
        counter: work.counter + 1,
        status: status("working"),
        ..work
    });
    if text.starts_with("slow") {
        tokio::select! {
            () = sleep(Duration::from_secs(3)) => {}
            _ = cx.ended() => return Err(RuntimeError::Cancelled("stopped".to_owned()).into()),
        }
    }
    runner.update_custom(|mut work| {
        work.items.push(text.clone());
        work
    });
    if text.starts_with("artifact") {
        runner.add_artifacts([Artifact::new("doc1", vec![Part::text("v1")])]);
        let metadata = json!({ "rev": 2 }).as_object().cloned();
        let second = Artifact::new("doc1", vec![Part::text("v2")]);
        runner.add_artifacts([Artifact { metadata, ..second }]);
        runner.add_artifacts([Artifact {
            parts: vec![Part::text("unnamed")],
            ..Artifact::default()
        }]);
    }
    let words = vec![Part::text(format!("working on {text}"))];
    responder.send_model_chunk(ModelResponseChunk::new(Role::Model, 0, words)).await;
    if text.starts_with("fail") {
        let error = RuntimeError::new(Status::Aborted, "ABORTED: custom failure");
        return Err(error.with_details(json!({ "why": "test" })).into());
    }
    runner.update_custom(|work| Work { status: status("done"), ..work });
    let turn = cx.turn().map_or(0, |turn| turn.turn_index);
    runner.add_messages([Message::model(format!("done {text} turn={turn}"))]);
    Ok(TurnResult { finish_reason: Some(AgentFinishReason::Stop) })
}
