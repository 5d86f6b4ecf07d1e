use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentResult, InMemorySessionStore, Message,
    ModelResponseChunk, Part, Role, RuntimeError, RuntimeLimits, SessionStore, SnapshotStatus,
    TurnResult, types::Status,
};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{cx, fresh, kind, scripted, stored, texts};

#[tokio::test(start_paused = true)]
async fn failed_turn_server_managed_returns_last_turn_snapshot() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let again = || AgentInit::session(first.session_id.clone().unwrap());
    let failed = agent.run_text(&cx(), "fail now", again()).await.unwrap();
    assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(failed.session_id, first.session_id);
    assert_eq!(failed.snapshot_id, first.snapshot_id, "the turn left nothing");
    let error = failed.error.unwrap();
    assert_eq!((error.status, &*error.message), (Status::Unavailable, "the model is down"));
    assert!(failed.message.is_none() && failed.artifacts.is_empty());
    let next = agent.run_text(&cx(), "two", again()).await.unwrap();
    let state = agent.get_snapshot(&cx(), next.snapshot_id.unwrap()).await.unwrap().state.unwrap();
    assert_eq!(texts(&state), ["one", "heard one", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn failed_turn_client_managed_returns_last_good_state() {
    let agent = scripted().build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    connection.send_text("fail").await.unwrap();
    connection.send_text("never").await.unwrap();
    let failed = connection.output().await.unwrap();
    assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
    let state = failed.state.unwrap();
    assert_eq!(texts(&state), ["one", "heard one"]);
    assert_eq!(state.custom.as_ref().unwrap().heard, ["one"]);
    // And it is one to go on from.
    let next = agent.run_text(&cx(), "two", AgentInit::state(state)).await.unwrap();
    assert_eq!(next.session_id, failed.session_id);
    assert_eq!(texts(&next.state.unwrap()), ["one", "heard one", "two", "heard two"]);
}

#[tokio::test(start_paused = true)]
async fn failed_turn_emits_failed_turn_end() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("fail").await.unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = connection.next_chunk().await {
        chunks.push(kind(&chunk));
        if let Some(end) = chunk.turn_end {
            assert!(end.snapshot_id.is_none());
        }
    }
    assert_eq!(chunks, ["patch replace", "model \"on fail\"", "end failed"]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_turn_that_commits_can_be_resumed_and_tried_again() {
    let agent = stored();
    let failed = agent.run_text(&cx(), "halfway", fresh()).await.unwrap();
    assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
    let id = failed.snapshot_id.unwrap();
    let row = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Failed);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(row.error.unwrap().status, Status::Unavailable);
    assert_eq!(texts(&row.state.unwrap()), ["halfway", "half an answer"]);
    // An empty input runs the turn on what it left.
    let next = agent
        .run(&cx(), antiphon_agent::AgentInput::default(), AgentInit::snapshot(id.clone()))
        .await
        .unwrap();
    let row = agent.get_snapshot(&cx(), next.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.parent_id, Some(id));
    assert_eq!(texts(&row.state.unwrap()), ["halfway", "half an answer", "heard "]);
}

#[tokio::test(start_paused = true)]
async fn failed_first_turn_after_resume_returns_parent_snapshot_id() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let by_snapshot = AgentInit::snapshot(first.snapshot_id.clone().unwrap());
    let failed = agent.run_text(&cx(), "fail", by_snapshot).await.unwrap();
    assert_eq!(failed.snapshot_id, first.snapshot_id);
    let fresh_failed = agent.run_text(&cx(), "fail", fresh()).await.unwrap();
    assert_eq!(fresh_failed.snapshot_id, None);
    assert!(fresh_failed.session_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn custom_agent_continues_after_failed_turn() {
    let agent = Agent::<Vec<String>>::custom("sturdy", |_cx, _, runner| async move {
        let turn = |_cx, input: antiphon_agent::AgentInput| {
            let text = input.message.unwrap().joined_text();
            let runner = &runner;
            async move {
                runner.update_custom(|mut all| {
                    all.push(text.clone());
                    all
                });
                match text.starts_with("fail") {
                    true => Err(RuntimeError::internal("told to").into()),
                    false => Ok(TurnResult::default()),
                }
            }
        };
        while runner.run(turn).await.is_err() {}
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    for text in ["one", "fail", "two"] {
        connection.send_text(text).await.unwrap();
    }
    connection.close();
    let mut parents = Vec::new();
    while let Some(chunk) = connection.next_chunk().await {
        parents.extend(chunk.turn_end.and_then(|end| end.snapshot_id));
    }
    assert_eq!(connection.custom().unwrap(), ["one", "two"], "the client sees the roll-back");
    let output = connection.output().await.unwrap();
    assert_eq!(output.error, None);
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.parent_id.as_ref(), parents.first());
    let state = row.state.unwrap();
    assert_eq!(texts(&state), ["one", "two"], "nothing of the failed turn is left");
    assert_eq!(state.custom.unwrap(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn the_client_hears_of_a_roll_back_even_where_the_next_turn_changes_nothing() {
    let agent = Agent::<u32>::custom("rebase", |_cx, _, runner| async move {
        let turn = |_cx, input: antiphon_agent::AgentInput| {
            let fail = input.message.unwrap().joined_text() == "fail";
            let runner = &runner;
            async move {
                if fail {
                    runner.update_custom(|_| 9);
                    return Err(RuntimeError::internal("told to").into());
                }
                Ok(TurnResult::default())
            }
        };
        while runner.run(turn).await.is_err() {}
        Ok(runner.result())
    })
    .build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("fail").await.unwrap();
    connection.send_text("calm").await.unwrap();
    let output = connection.output().await.unwrap();
    assert_eq!(connection.custom().unwrap(), 0);
    assert_eq!(output.state.unwrap().custom.unwrap_or_default(), 0);
}

#[tokio::test(start_paused = true)]
async fn fn_panic_resolves_as_failed_output() {
    let agent = stored();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let again = AgentInit::session(first.session_id.unwrap());
    let failed = agent.run_text(&cx(), "panic", again).await.unwrap();
    assert_eq!(failed.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(failed.error.unwrap().status, Status::Internal);
    assert_eq!(failed.snapshot_id, first.snapshot_id);
}

#[tokio::test(start_paused = true)]
async fn client_cancel_mid_stream() {
    let agent = stored();
    let stop = CancellationToken::new();
    let mut connection =
        agent.connect(&cx().with_cancellation(stop.clone()), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    connection.send_text("slow").await.unwrap();
    let mut last = None;
    while let Some(chunk) = connection.next_chunk().await {
        last = chunk.turn_end.and_then(|end| end.snapshot_id).or(last);
        if chunk.model_chunk.is_some_and(|chunk| chunk.text() == "on slow") {
            stop.cancel();
        }
    }
    let stopped = connection.output().await.unwrap_err();
    assert_eq!(stopped.error.status(), Status::Cancelled);
    let output = stopped.output.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Aborted));
    assert_eq!(output.error.unwrap().status, Status::Cancelled);
    assert!(last.is_some());
    assert_eq!(output.snapshot_id, last);
    assert!(matches!(connection.send_text("more").await, Err(RuntimeError::Completed)));
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_stopped_before_a_full_stream_still_commits() {
    let mut limits = RuntimeLimits::default();
    limits.stream = 2;
    let agent = Agent::<u32>::custom("talker", |_cx, responder, runner| async move {
        runner
            .run(|cx, _| {
                let (responder, runner) = (&responder, &runner);
                async move {
                    runner.add_messages([Message::model("so far")]);
                    while cx.has_ended().is_none() {
                        let words = vec![Part::text("word ")];
                        let chunk = ModelResponseChunk::new(Role::Model, 0, words);
                        responder.send_model_chunk(chunk).await;
                    }
                    let error = RuntimeError::Cancelled("told to stop".into());
                    Err(antiphon_agent::TurnFailure::commit(error))
                }
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .limits(limits)
    .build();
    let stop = CancellationToken::new();
    let caller = cx().with_cancellation(stop.clone());
    let mut connection = agent.connect(&caller, fresh()).await.unwrap();
    connection.send_text("go").await.unwrap();
    // The client takes nothing, so that the agent waits for room.
    sleep(Duration::from_secs(1)).await;
    stop.cancel();
    let output = connection.output().await.unwrap_err().output.unwrap();
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(texts(&row.state.unwrap()), ["go", "so far"]);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_stops_like_its_caller() {
    let agent = scripted().build();
    let begun = Instant::now();
    let cx = cx().with_deadline(begun + Duration::from_secs(10));
    let stopped = agent.run_text(&cx, "slow", fresh()).await.unwrap_err();
    assert_eq!(stopped.error.status(), Status::DeadlineExceeded);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    let output = stopped.output.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Aborted));
    assert!(output.state.unwrap().messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn output_unblocks_on_cancel() {
    let agent = stored();
    let begun = Instant::now();
    let cx = cx().with_deadline(begun + Duration::from_secs(1));
    let stopped = agent.run_text(&cx, "stubborn", fresh()).await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::from_secs(3), "after the grace it is ended by force");
    assert_eq!(stopped.output.unwrap().finish_reason, Some(AgentFinishReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn an_invocation_that_waits_for_input_ends_with_its_caller() {
    let agent = stored();
    let stop = CancellationToken::new();
    let mut connection =
        agent.connect(&cx().with_cancellation(stop.clone()), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    while connection.next_chunk().await.unwrap().turn_end.is_none() {}
    stop.cancel();
    connection.done().await;
    let stopped = connection.output().await.unwrap_err();
    assert!(stopped.output.unwrap().snapshot_id.is_some());
}

/// Tells when a value of it is dropped.
struct Dropped(Arc<CancellationToken>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[tokio::test(start_paused = true)]
async fn cancel_during_stream_releases_task() {
    let dropped = Arc::new(CancellationToken::new());
    let agent = Agent::<u32>::custom("left", {
        let dropped = dropped.clone();
        move |_cx, _, runner| {
            let guard = Dropped(dropped.clone());
            async move {
                let _guard = guard;
                runner
                    .run(|_, _| async {
                        std::future::pending::<()>().await;
                        Ok(TurnResult::default())
                    })
                    .await?;
                Ok(AgentResult::default())
            }
        }
    })
    .store(InMemorySessionStore::new())
    .build();
    let connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    drop(connection);
    timeout(Duration::from_secs(10), dropped.cancelled()).await.unwrap();
    sleep(Duration::from_secs(10)).await;
    let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(alive, 0);
}

#[tokio::test(start_paused = true)]
async fn no_task_is_left_after_the_end() {
    let agent = stored();
    for text in ["one", "fail", "panic"] {
        agent.run_text(&cx(), text, fresh()).await.unwrap();
    }
    let task = agent.run_detached(&cx(), "nap", fresh()).await.unwrap();
    task.wait().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_at_the_end_of_a_turn_does_not_fail_it() {
    let store = Arc::new(super::FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    let mut ids = Vec::new();
    for (text, fails) in [("one", false), ("two", true), ("three", false)] {
        store.fail_writes(fails);
        connection.send_text(text).await.unwrap();
        loop {
            let chunk = connection.next_chunk().await.unwrap();
            if let Some(end) = chunk.turn_end {
                ids.push(end.snapshot_id);
                break;
            }
        }
    }
    let output = connection.output().await.unwrap();
    assert_eq!(output.error, None);
    assert!(ids[1].is_none());
    let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.parent_id, ids[0], "it follows the last one that was written");
    let state = row.state.unwrap();
    assert_eq!(state.custom.as_ref().unwrap().heard, ["one", "two", "three"]);
    assert_eq!(state.messages.last().unwrap().joined_text(), "heard three");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_or_panics_does_not_hold_a_turn_up() {
    let store = Arc::new(super::FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    store.hang_writes(true);
    let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    assert_eq!((output.snapshot_id, output.error), (None, None));
    store.hang_writes(false);
    store.panic_writes(true);
    let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    assert_eq!((output.snapshot_id, output.error), (None, None));
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_set_as_a_bound_is_no_failure() {
    let build = |error: fn() -> RuntimeError| {
        Agent::<u32>::custom("bounds", move |_cx, _, runner| async move {
            runner
                .run(|_, _| async {
                    runner.add_messages([Message::model("so far")]);
                    Err(antiphon_agent::TurnFailure::commit(error()))
                })
                .await?;
            Ok(AgentResult::default())
        })
        .store(InMemorySessionStore::new())
        .build()
    };
    let status = |error: fn() -> RuntimeError| async move {
        let agent = build(error);
        let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
        let row = agent.get_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
        assert_eq!(row.finish_reason, output.finish_reason);
        assert!(row.error.is_some());
        row.status()
    };
    let bound = || RuntimeError::LimitReached("5 rounds of tools".into());
    assert_eq!(status(bound).await, SnapshotStatus::Aborted);
    // The same code from a provider is one.
    let provider = || RuntimeError::new(Status::Aborted, "the provider gave up");
    assert_eq!(status(provider).await, SnapshotStatus::Failed);
    let late = || RuntimeError::new(Status::DeadlineExceeded, "the provider was late");
    assert_eq!(status(late).await, SnapshotStatus::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_does_not_hold_up_a_caller_that_left() {
    let store = Arc::new(super::FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    store.hang_writes(true);
    let begun = Instant::now();
    let cx = cx().with_deadline(begun + Duration::from_secs(1));
    let stopped = agent.run_text(&cx, "one", fresh()).await.unwrap_err();
    assert_eq!(stopped.error.status(), Status::DeadlineExceeded);
    assert_eq!(begun.elapsed(), Duration::from_secs(5), "twice the grace: for work and for writes");
}

#[tokio::test(start_paused = true)]
async fn a_state_that_would_not_read_back_is_no_snapshot_to_go_on_from() {
    let agent = Agent::<f64>::custom("ratio", |_cx, _, runner| async move {
        runner
            .run(|_cx, input| {
                let text = input.message.map(|message| message.joined_text()).unwrap_or_default();
                runner.update_custom(|_| text.parse().unwrap_or(f64::NAN));
                async { Ok(TurnResult::default()) }
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let session = || AgentInit::session("s");
    let good = agent.run_text(&cx(), "0.5", session()).await.unwrap();
    let bad = agent.run_text(&cx(), "none", session()).await.unwrap();
    assert_eq!(bad.error.unwrap().status, Status::Internal);
    assert_eq!(bad.snapshot_id, good.snapshot_id);
    let again = agent.run_text(&cx(), "0.25", session()).await.unwrap();
    let row = agent.get_snapshot(&cx(), again.snapshot_id.unwrap()).await.unwrap();
    assert_eq!((row.parent_id, row.state.unwrap().custom), (good.snapshot_id, Some(0.25)));
}
