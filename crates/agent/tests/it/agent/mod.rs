//! Agents from outside: turns, snapshots, streams, work in the background.

mod background;
mod dropped;
mod failures;
mod flaky;
mod floor;
mod interleaved;
mod reads;
mod resume;
mod stall;
mod starts;
mod telemetry;
mod transforms;
mod turns;

use std::time::Duration;

use antiphon_agent::{
    Agent, AgentBuilder, AgentInit, AgentInput, AgentStreamChunk, Artifact, InMemorySessionStore,
    InvocationContext, Message, ModelResponseChunk, Part, Responder, Role, RuntimeError,
    SessionRunner, SessionState, TurnFailure, TurnResult, types::Status,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

pub use self::flaky::FlakyStore;

/// The custom state of the agents here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Log {
    /// What was heard.
    pub heard: Vec<String>,
}

/// An agent that notes and echoes what it hears, and does as it is told: see [`turn`].
pub fn scripted() -> AgentBuilder<Log> {
    let clock = paused_clock();
    Agent::custom("scripted", run_scripted).clock(clock)
}

/// A scripted agent with a store.
pub fn stored() -> Agent<Log> {
    scripted().store(InMemorySessionStore::new()).build()
}

async fn run_scripted(
    _cx: InvocationContext,
    responder: Responder,
    runner: SessionRunner<Log>,
) -> Result<antiphon_agent::AgentResult, RuntimeError> {
    runner.run(|cx, input| turn(cx, &responder, &runner, input)).await?;
    Ok(runner.result())
}

/// One turn: the first word of the text says what happens after it was noted.
pub async fn turn(
    cx: InvocationContext,
    responder: &Responder,
    runner: &SessionRunner<Log>,
    input: AgentInput,
) -> Result<TurnResult, TurnFailure> {
    let text = input.message.as_ref().map(Message::joined_text).unwrap_or_default();
    runner.update_custom(|mut log| {
        log.heard.push(text.clone());
        log
    });
    let chunk = ModelResponseChunk::new(Role::Model, 0, vec![Part::text(format!("on {text}"))]);
    responder.send_model_chunk(chunk).await;
    match text.split(' ').next().unwrap_or_default() {
        "fail" => return Err(RuntimeError::new(Status::Unavailable, "the model is down").into()),
        "halfway" => {
            runner.add_messages([Message::model("half an answer")]);
            let error = RuntimeError::new(Status::Unavailable, "the model broke off");
            return Err(TurnFailure::commit(error));
        }
        "panic" => panic!("told to"),
        "artifact" => responder.send_artifact(Artifact::new("doc", vec![Part::text(&*text)])),
        "slow" => tokio::select! {
            () = sleep(Duration::from_secs(600)) => {}
            status = cx.ended() => {
                return Err(RuntimeError::new(status, "the turn was stopped").into());
            }
        },
        "stubborn" => sleep(Duration::from_secs(3600)).await,
        "nap" => sleep(Duration::from_secs(5)).await,
        _ => {}
    }
    runner.add_messages([Message::model(format!("heard {text}"))]);
    Ok(TurnResult { finish_reason: Some(antiphon_agent::AgentFinishReason::Stop) })
}

/// The time of day that goes with tokio's clock.
pub fn paused_clock() -> impl Fn() -> Timestamp + Send + Sync + Clone + 'static {
    let (start, day) = (Instant::now(), "2026-11-30T00:00:00Z".parse::<Timestamp>().unwrap());
    move || day + SignedDuration::try_from(start.elapsed()).unwrap()
}

pub fn cx() -> InvocationContext {
    InvocationContext::new()
}

pub fn fresh<S>() -> AgentInit<S> {
    AgentInit::default()
}

/// All texts of a conversation.
pub fn texts<S>(state: &SessionState<S>) -> Vec<String> {
    state.messages.iter().map(|message| message.joined_text()).collect()
}

/// What a chunk is, in a word.
pub fn kind(chunk: &AgentStreamChunk) -> String {
    match chunk {
        AgentStreamChunk { model_chunk: Some(chunk), .. } => format!("model {:?}", chunk.text()),
        AgentStreamChunk { artifact: Some(artifact), .. } => {
            format!("artifact {}", artifact.name.as_deref().unwrap_or_default())
        }
        AgentStreamChunk { custom_patch: Some(patch), .. } => {
            let patch = serde_json::to_value(patch).unwrap();
            format!(
                "patch {}{}",
                patch[0]["op"].as_str().unwrap(),
                patch[0]["path"].as_str().unwrap()
            )
        }
        AgentStreamChunk { turn_end: Some(end), .. } => match end.finish_reason {
            Some(reason) => format!("end {reason}"),
            None => "end".to_owned(),
        },
        _ => "nothing".to_owned(),
    }
}
