use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentInput, AgentResult, Artifact, InMemorySessionStore,
    InvocationContext, Message, ModelResponseChunk, Part, Role, RuntimeError, RuntimeLimits,
    SessionStore, SnapshotReader, SnapshotStatus, TurnResult, types::Status,
};
use jiff::SignedDuration;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{FlakyStore, Log, cx, fresh, kind, paused_clock, scripted, stored, texts};

#[tokio::test(start_paused = true)]
async fn detach_suspends_turn_snapshots_and_processes_queue() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    while connection.next_chunk().await.unwrap().turn_end.is_none() {}
    for text in ["nap two", "three"] {
        connection.send_text(text).await.unwrap();
    }
    connection.send(AgentInput::text("four").detached()).await.unwrap();
    let begun = Instant::now();
    let output = connection.output().await.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Detached));
    assert!(begun.elapsed() < Duration::from_secs(1), "it does not wait for the work");
    let (session, id) = (output.session_id.unwrap(), output.snapshot_id.unwrap());

    let pending = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(pending.status(), SnapshotStatus::Pending);
    assert_eq!((pending.state, pending.finish_reason), (None, None));
    // Its making is stamped after that of the turns before, in the same moment of the clock.
    let ahead = pending.created_at.duration_since(pending.heartbeat_at.unwrap());
    assert!(ahead < SignedDuration::from_millis(1), "{ahead}");
    assert_eq!(pending.updated_at, Some(pending.created_at));
    drop(connection);

    let settled = agent.wait_for_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(settled.status(), SnapshotStatus::Completed);
    assert_eq!(settled.finish_reason, Some(AgentFinishReason::Stop));
    assert_eq!((settled.created_at, settled.heartbeat_at), (pending.created_at, None));
    assert!(settled.updated_at.unwrap() > settled.created_at);
    let heard = settled.state.unwrap().custom.unwrap().heard;
    assert_eq!(heard, ["one", "nap two", "three", "four"]);
    // One row before the detach, one for all that came after.
    let parent = settled.parent_id.unwrap();
    let parent = agent.get_snapshot(&cx(), parent).await.unwrap();
    assert_eq!(texts(&parent.state.unwrap()), ["one", "heard one"]);
    assert_eq!(agent.get_latest_snapshot(&cx(), session).await.unwrap().snapshot_id, id);
}

#[tokio::test(start_paused = true)]
async fn detach_pending_then_complete() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "nap", fresh()).await.unwrap();
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    let begun = Instant::now();
    let row = task.wait().await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(5), "told, not polled");
    assert_eq!(row.status(), SnapshotStatus::Completed);
    // The id is all there is to a task.
    let same = agent.task(&cx(), task.snapshot_id().clone());
    assert_eq!(same.poll().await.unwrap(), row);
    let handle = agent.handle();
    let raw = handle.task(&cx(), task.snapshot_id().clone()).wait().await.unwrap();
    assert_eq!(raw.state.unwrap().custom.unwrap()["heard"][0], "nap");
}

#[tokio::test(start_paused = true)]
async fn detach_after_prior_turns_chains_parent() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    let mut first = None;
    while first.is_none() {
        first = connection.next_chunk().await.unwrap().turn_end.and_then(|end| end.snapshot_id);
    }
    connection.send(AgentInput::text("two").detached()).await.unwrap();
    let id = connection.output().await.unwrap().snapshot_id.unwrap();
    assert_eq!(agent.get_snapshot(&cx(), id.clone()).await.unwrap().parent_id, first);
    assert_eq!(agent.wait_for_snapshot(&cx(), id).await.unwrap().parent_id, first, "kept");
}

#[tokio::test(start_paused = true)]
async fn detach_finalize_respects_concurrent_abort() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "nap", fresh()).await.unwrap();
    // The turn ends well in the very moment in which it is told to stop.
    sleep(Duration::from_secs(5) - Duration::from_millis(1)).await;
    task.abort().await.unwrap();
    let row = task.wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Aborted));
    assert_eq!(texts(&row.state.unwrap()), ["nap", "heard nap"], "what was committed is kept");
}

#[tokio::test(start_paused = true)]
async fn abort_pending_snapshot_atomic_and_idempotent() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    let aborts = futures_util::future::join_all((0..8).map(|_| task.abort())).await;
    let aborting = Some(SnapshotStatus::Aborting);
    assert!(aborts.into_iter().all(|status| status.unwrap() == aborting));
    let before = task.poll().await.unwrap();
    task.abort().await.unwrap();
    assert_eq!(task.poll().await.unwrap().updated_at, before.updated_at, "rewritten as it was");
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn abort_no_op_on_terminal() {
    let agent = stored();
    let output = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    let id = output.snapshot_id.unwrap();
    let before = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(agent.abort(&cx(), &id).await.unwrap(), Some(SnapshotStatus::Completed));
    assert_eq!(agent.get_snapshot(&cx(), id).await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn detach_requires_store() {
    let agent = scripted().build();
    let refused = agent.run_detached(&cx(), "one", fresh()).await.unwrap_err();
    assert_eq!(refused.status(), Status::FailedPrecondition);
    let output = agent.run(&cx(), AgentInput::text("one").detached(), fresh()).await.unwrap();
    assert_eq!(output.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(output.error.unwrap().status, Status::FailedPrecondition);
    assert!(output.state.unwrap().messages.is_empty());

    let agent = scripted().store(FlakyStore::mute()).build();
    let refused = agent.run_detached(&cx(), "one", fresh()).await.unwrap_err();
    assert_eq!(refused.status(), Status::FailedPrecondition);
    assert!(refused.to_string().contains("cannot tell of changes"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_pending_row_that_cannot_be_written_fails_the_detach() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    store.fail_writes(true);
    let refused = agent.run_detached(&cx(), "nap", fresh()).await.unwrap_err();
    assert_eq!(refused.status(), Status::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn detach_suppresses_chunks_from_the_detached_turn() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    while connection.next_chunk().await.unwrap().turn_end.is_none() {}
    connection.send(AgentInput::text("artifact").detached()).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = connection.next_chunk().await {
        chunks.push(kind(&chunk));
    }
    assert!(chunks.is_empty(), "{chunks:?}");
    let id = connection.output().await.unwrap().snapshot_id.unwrap();
    let row = agent.wait_for_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.state.unwrap().artifacts.len(), 1, "its effects are there");
}

#[tokio::test(start_paused = true)]
async fn detach_background_work_survives_action_return() {
    let agent = stored();
    let stop = CancellationToken::new();
    let caller =
        cx().with_cancellation(stop.clone()).with_deadline(Instant::now() + Duration::from_secs(1));
    let task = agent.run_detached(&caller, "nap", fresh()).await.unwrap();
    stop.cancel();
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn the_work_sees_its_callers_deadline_until_it_is_detached() {
    let (told, mut deadlines) = tokio::sync::mpsc::unbounded_channel();
    let agent = Agent::custom("watching", move |cx: InvocationContext, _, runner| {
        let told = told.clone();
        async move {
            let turns = runner.run(|turn, _| {
                let _ = told.send((cx.deadline(), turn.deadline(), turn.has_ended()));
                async { Ok(TurnResult::default()) }
            });
            turns.await?;
            let _ = timeout(Duration::from_secs(60), cx.ended()).await;
            let _ = told.send((cx.deadline(), None, cx.has_ended()));
            Ok(runner.result())
        }
    });
    let agent: Agent<Log> = agent.store(InMemorySessionStore::new()).build();
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut connection =
        agent.connect(&cx().with_deadline(deadline), AgentInit::session("s")).await.unwrap();
    connection.send_text("attached").await.unwrap();
    assert_eq!(deadlines.recv().await.unwrap(), (Some(deadline), Some(deadline), None));
    connection.send(AgentInput::text("on its own").detached()).await.unwrap();
    let id = connection.output().await.unwrap().snapshot_id.unwrap();
    assert_eq!(deadlines.recv().await.unwrap(), (None, None, None));
    assert_eq!(deadlines.recv().await.unwrap(), (None, None, None), "long after it");
    let row = agent.wait_for_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);

    let init = AgentInit::session("s");
    let stopped = agent
        .run_text(&cx().with_deadline(Instant::now() + Duration::from_secs(5)), "attached", init)
        .await;
    assert_eq!(stopped.unwrap_err().error.status(), Status::DeadlineExceeded);
    let ended = deadlines.recv().await.map(|_| ()).and(deadlines.recv().await);
    assert!(ended.unwrap().2.is_some(), "the work saw its time pass");
}

#[tokio::test(start_paused = true)]
async fn limits_that_cannot_be_kept_are_raised() {
    let mut limits = RuntimeLimits::default();
    (limits.heartbeat, limits.stale_after) = (Duration::from_secs(30), Duration::from_secs(1));
    (limits.poll, limits.reread) = (Duration::ZERO, Duration::ZERO);
    let agent = scripted().store(InMemorySessionStore::new()).limits(limits).build();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    sleep(Duration::from_secs(29)).await;
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending, "it is alive");
    task.abort().await.unwrap();
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn detach_client_disconnect_before_detach_cancels() {
    let agent = stored();
    let connection = agent.connect(&cx(), AgentInit::session("s")).await.unwrap();
    connection.send_text("slow").await.unwrap();
    sleep(Duration::from_secs(1)).await;
    drop(connection);
    sleep(Duration::from_secs(1)).await;
    let none = agent.get_latest_snapshot(&cx(), "s").await.unwrap_err();
    assert!(matches!(none, RuntimeError::SessionNotFound(_)), "nothing was committed: {none}");
}

#[tokio::test(start_paused = true)]
async fn detach_abort_stops_flow() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    connection.send(AgentInput::text("slow").detached()).await.unwrap();
    let output = connection.output().await.unwrap();
    let id = output.snapshot_id.unwrap();
    sleep(Duration::from_secs(2)).await;
    let pending = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(agent.abort(&cx(), &id).await.unwrap(), Some(SnapshotStatus::Aborting));
    let row = agent.wait_for_snapshot(&cx(), id.clone()).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Aborted));
    assert_eq!((row.error, row.heartbeat_at), (None, None));
    assert_eq!(row.created_at, pending.created_at);
    assert_eq!(texts(&row.state.unwrap()), ["one", "heard one"], "not the turn that was stopped");
    // Told again, it says where the row stands.
    assert_eq!(agent.abort(&cx(), &id).await.unwrap(), Some(SnapshotStatus::Aborted));
    // And one can go on from it.
    let next = agent.run_text(&cx(), "two", AgentInit::snapshot(id)).await.unwrap();
    assert_eq!(next.error, None);
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_wind_down_is_ended_by_force() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "stubborn", fresh()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    task.abort().await.unwrap();
    let begun = Instant::now();
    assert_eq!(task.abort().await.unwrap(), Some(SnapshotStatus::Aborting));
    sleep(Duration::from_secs(200)).await;
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Aborting, "it still beats");
    let row = task.wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
    let limits = RuntimeLimits::default();
    assert!(begun.elapsed() <= limits.wind_down + 2 * limits.settle_grace);
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_subscription_ends_is_asked_by_heartbeats() {
    let agent = scripted().store(FlakyStore::deaf()).build();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    task.abort().await.unwrap();
    let row = task.wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn detach_flow_errors_becomes_error() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    connection.send(AgentInput::text("fail").detached()).await.unwrap();
    let id = connection.output().await.unwrap().snapshot_id.unwrap();
    let row = agent.wait_for_snapshot(&cx(), id).await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Failed);
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Failed));
    assert_eq!(row.error.unwrap().status, Status::Unavailable);
    assert_eq!(texts(&row.state.unwrap()), ["one", "heard one"]);

    let task = agent.run_detached(&cx(), "panic", fresh()).await.unwrap();
    let row = task.wait().await.unwrap();
    assert_eq!(row.error.unwrap().status, Status::Internal);
    assert!(row.state.unwrap().messages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn heartbeat_beat_advances_heartbeat_not_updated_at() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    let first = task.poll().await.unwrap();
    sleep(Duration::from_secs(95)).await;
    let later = task.poll().await.unwrap();
    assert_eq!(later.status(), SnapshotStatus::Pending, "alive");
    let moved = later.heartbeat_at.unwrap().duration_since(first.heartbeat_at.unwrap());
    assert_eq!(moved, SignedDuration::from_secs(90));
    assert_eq!((later.updated_at, later.created_at), (first.updated_at, first.created_at));
}

#[tokio::test(start_paused = true)]
async fn detach_waits_for_in_flight_turn_snapshot() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("nap").await.unwrap();
    sleep(Duration::from_secs(5)).await;
    // The turn ends in this very moment.
    connection.detach().await.unwrap();
    let output = connection.output().await.unwrap();
    let row = agent.wait_for_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().custom.unwrap().heard, ["nap"]);
    if let Some(parent) = row.parent_id {
        assert!(agent.get_snapshot(&cx(), parent).await.is_ok(), "a parent exists");
    }
}

#[tokio::test(start_paused = true)]
async fn a_detach_alone_is_no_turn() {
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("nap").await.unwrap();
    connection.detach().await.unwrap();
    let output = connection.output().await.unwrap();
    let row = agent.wait_for_snapshot(&cx(), output.snapshot_id.unwrap()).await.unwrap();
    assert_eq!(row.state.unwrap().custom.unwrap().heard, ["nap"]);
}

#[tokio::test(start_paused = true)]
async fn detach_completed_honors_result_override() {
    let agent = Agent::<u32>::custom("reasons", |_cx, _, runner| async move {
        runner.run(|_, _| async { Ok(TurnResult::default()) }).await?;
        Ok(AgentResult { finish_reason: Some(AgentFinishReason::Length), ..Default::default() })
    })
    .store(InMemorySessionStore::new())
    .build();
    let row = agent.run_detached(&cx(), "one", fresh()).await.unwrap().wait().await.unwrap();
    assert_eq!(row.finish_reason, Some(AgentFinishReason::Length));
    assert!(row.session_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_function_that_never_looks_at_its_input_is_detached_all_the_same() {
    let agent = Agent::<u32>::custom("idle", |_cx, _, _runner| async move {
        sleep(Duration::from_secs(1)).await;
        Ok(AgentResult::default())
    })
    .store(InMemorySessionStore::new())
    .build();
    let row = agent.run_detached(&cx(), "one", fresh()).await.unwrap().wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_work_is_written_once_the_store_is_back() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let task = agent.run_detached(&cx(), "nap", fresh()).await.unwrap();
    store.fail_writes(true);
    sleep(Duration::from_secs(8)).await;
    assert_eq!(task.poll().await.unwrap().status(), SnapshotStatus::Pending);
    store.fail_writes(false);
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Completed);
}

#[tokio::test(start_paused = true)]
async fn get_snapshot_action_stale_is_expired() {
    let agent = stored();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    let raw =
        agent.store().unwrap().get_snapshot(&cx(), task.snapshot_id()).await.unwrap().unwrap();
    // The row of a worker that is gone: a copy that nobody beats.
    let update = |_: Option<&antiphon_agent::SessionSnapshot>| Ok(Some(raw.clone()));
    agent.store().unwrap().save_snapshot(&cx(), Some("orphan"), &update).await.unwrap();
    let orphan = agent.task(&cx(), "orphan");
    let begun = Instant::now();
    let row = orphan.wait().await.unwrap();
    assert_eq!(row.status(), SnapshotStatus::Expired);
    let seen = begun.elapsed();
    assert!(seen > Duration::from_secs(60) && seen <= Duration::from_secs(90), "{seen:?}");
    assert_eq!(orphan.abort().await.unwrap(), Some(SnapshotStatus::Aborting));
    assert_eq!(orphan.poll().await.unwrap().status(), SnapshotStatus::Expired);
}

#[tokio::test(start_paused = true)]
async fn detach_send_artifact_post_detach_lands_in_snapshot() {
    let agent = Agent::<Log>::custom("late", |_cx, responder, runner| async move {
        runner
            .run(|_, _| async {
                sleep(Duration::from_secs(3)).await;
                responder.send_artifact(Artifact::new("late", vec![Part::text("v")]));
                let chunk = ModelResponseChunk::new(Role::Model, 0, vec![Part::text("x")]);
                // Nobody listens: this does not wait.
                for _ in 0..1_000 {
                    responder.send_model_chunk(chunk.clone()).await;
                }
                runner.add_messages([Message::model("done")]);
                Ok(TurnResult::default())
            })
            .await?;
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .build();
    let task = agent.run_detached(&cx(), "one", fresh()).await.unwrap();
    let row = timeout(Duration::from_secs(60), task.wait()).await.unwrap().unwrap();
    assert_eq!(row.state.unwrap().artifacts[0].name.as_deref(), Some("late"));
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_subscription_panics_is_asked_by_heartbeats() {
    let store = Arc::new(FlakyStore::default());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    store.panic_subscriptions();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    task.abort().await.unwrap();
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn limits_without_an_end_are_limits() {
    let mut limits = RuntimeLimits::default();
    (limits.heartbeat, limits.wind_down) = (Duration::MAX, Duration::MAX);
    (limits.poll, limits.reread, limits.store) = (Duration::MAX, Duration::MAX, Duration::MAX);
    (limits.stale_after, limits.settle_grace) = (Duration::MAX, Duration::MAX);
    limits.stream_stall = Duration::MAX;
    let agent = scripted().store(InMemorySessionStore::new()).limits(limits).build();
    let task = agent.run_detached(&cx(), "slow", fresh()).await.unwrap();
    task.abort().await.unwrap();
    assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_dies_is_seen_even_where_the_clock_went_back() {
    let store = Arc::new(InMemorySessionStore::new());
    let back = Arc::new(AtomicBool::new(false));
    let (clock, went_back) = (paused_clock(), back.clone());
    let agent = scripted()
        .shared_store(store.clone() as Arc<dyn SessionStore>)
        .clock(move || {
            let hour = SignedDuration::from_hours(if went_back.load(SeqCst) { 0 } else { 1 });
            clock() + hour
        })
        .build();
    let first = agent.run_text(&cx(), "one", fresh()).await.unwrap();
    back.store(true, SeqCst);
    let init = AgentInit::snapshot(first.snapshot_id.unwrap());
    let task = agent.run_detached(&cx(), "slow", init).await.unwrap();
    let row = store.get_snapshot(&cx(), task.snapshot_id()).await.unwrap().unwrap();
    assert!(row.heartbeat_at.unwrap() < row.created_at, "as the worker's clock says");
}

#[tokio::test(start_paused = true)]
async fn work_does_not_bring_back_a_session_that_was_removed() {
    let store = Arc::new(InMemorySessionStore::new());
    let agent = scripted().shared_store(store.clone() as Arc<dyn SessionStore>).build();
    let task = agent.run_detached(&cx(), "nap", AgentInit::session("s")).await.unwrap();
    store.remove_session(&cx(), "s");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(task.poll().await.unwrap_err().status(), Status::NotFound);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}
