//! Every future may be dropped at any await.

use std::{future::poll_fn, pin::Pin, task::Poll, time::Duration};

use antiphon_agent::{Agent, AgentInit, AgentInput, SnapshotStatus};
use tokio::time::sleep;

use super::{Log, cx, stored};

type Call<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Everything that a caller can await.
fn calls(agent: &Agent<Log>) -> Vec<Call<'_>> {
    let id = || AgentInit::session("s");
    vec![
        Box::pin(async move {
            let _ = agent.run_text(&cx(), "nap", id()).await;
        }),
        Box::pin(async move {
            let input = serde_json::to_value(AgentInput::text("nap")).unwrap();
            let init = serde_json::json!({"sessionId": "s"});
            let _ = agent.run_bidi_json(&cx(), input, init, &mut |_| {}).await;
        }),
        Box::pin(async move {
            let _ = agent.run_detached(&cx(), "nap", id()).await;
        }),
        Box::pin(async move {
            let mut connection = agent.connect(&cx(), id()).await.unwrap();
            connection.send_text("one").await.unwrap();
            connection.next_chunk().await;
            connection.send_text("nap").await.unwrap();
            connection.done().await;
        }),
        Box::pin(async move {
            let _ = agent.wait_for_snapshot(&cx(), "pending").await;
        }),
        Box::pin(async move {
            let _ = agent.abort(&cx(), "nobody").await;
        }),
        Box::pin(async move {
            let _ = agent.get_latest_snapshot(&cx(), "s").await;
        }),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_call_may_be_dropped_at_any_await() {
    for call in 0..7 {
        for polls in 0..40 {
            let agent = stored();
            agent.run_text(&cx(), "first", AgentInit::session("s")).await.unwrap();
            {
                let mut future = calls(&agent).swap_remove(call);
                for _ in 0..polls {
                    let polled =
                        poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_ready())).await;
                    if polled {
                        break;
                    }
                    sleep(Duration::from_millis(500)).await;
                }
            }
            sleep(Duration::from_secs(30)).await;
            // No task is left, and the session goes on from what was committed.
            assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
            let latest = agent.get_latest_snapshot(&cx(), "s").await.unwrap();
            assert_eq!(latest.status(), SnapshotStatus::Completed);
            let state = latest.state.unwrap();
            assert_eq!(state.messages.len() % 2, 0);
            let users = state.messages.len() / 2;
            assert_eq!(state.custom.unwrap().heard.len(), users);
            agent.run_text(&cx(), "next", AgentInit::session("s")).await.unwrap();
        }
    }
}
