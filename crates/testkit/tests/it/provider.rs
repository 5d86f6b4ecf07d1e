use std::{sync::Arc, time::Duration};

use antiphon_live::{ConnectRequest, LiveCommand, LiveConfig, LiveError, LiveEvent, LiveProvider};
use antiphon_testkit::{ConnectPlan, Script, ScriptError, ScriptedProvider};
use futures_util::{SinkExt, StreamExt};

fn request() -> ConnectRequest {
    ConnectRequest::new(Arc::new(LiveConfig::new()))
}

fn text(text: &str) -> LiveCommand {
    LiveCommand::Text { text: text.into(), reply: true }
}

#[tokio::test(start_paused = true)]
async fn events_and_commands_pass_in_order_and_the_end_comes_once() {
    let provider = ScriptedProvider::default();
    let mut connection = provider.connect(request()).await.unwrap();
    let mut far_end = provider.far_end().await;
    connection.send(text("one")).await.unwrap();
    assert_eq!(far_end.control().await, Some(text("one")));
    far_end.close(1001, "going away");
    assert!(matches!(connection.next().await, Some(Ok(LiveEvent::Ready { .. }))));
    assert!(matches!(connection.next().await, Some(Err(LiveError::Closed { code: 1001, .. }))));
    assert!(connection.next().await.is_none());
    drop(connection);
    assert_eq!(provider.open_connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_far_end_takes_nothing() {
    let provider = ScriptedProvider::default();
    let mut connection = provider.connect(request()).await.unwrap();
    let far_end = provider.far_end().await;
    far_end.stall(true);
    let sending = tokio::time::timeout(Duration::from_secs(60), connection.send(text("late")));
    assert!(sending.await.is_err());
    far_end.stall(false);
    connection.send(text("now")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_script_says_where_the_session_left_it() {
    let provider = ScriptedProvider::default();
    let mut connection = provider.connect(request()).await.unwrap();
    let script = Script::new()
        .expect("an interruption", |command| matches!(command, LiveCommand::CancelReply { .. }));
    connection.send(text("hello")).await.unwrap();
    let error = script.run(provider.far_end().await).await.err();
    assert!(matches!(error, Some(ScriptError::Unexpected { index: 0, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_planned_refusal_is_what_connect_returns() {
    let provider = ScriptedProvider::default();
    provider.plan(ConnectPlan::Refuse(LiveError::Transport("no route".into())));
    assert!(matches!(provider.connect(request()).await, Err(LiveError::Transport(_))));
    assert!(provider.connect(request()).await.is_ok());
}
