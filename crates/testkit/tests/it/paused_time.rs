//! The traps of paused time that the other tests rely on staying out of.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

#[tokio::test(start_paused = true)]
async fn a_plain_thread_lets_the_clock_run_away() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        sender.send(())
    });
    assert!(timeout(Duration::from_secs(30), receiver).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn spawn_blocking_holds_the_clock() {
    let work = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(20)));
    assert!(timeout(Duration::from_secs(30), work).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_pipe_in_memory_follows_the_clock() {
    let (mut near, mut far) = tokio::io::duplex(64);
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        near.write_all(b"x").await
    });
    let mut byte = [0; 1];
    assert!(timeout(Duration::from_secs(11), far.read_exact(&mut byte)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn std_instants_follow_the_virtual_clock() {
    let before = tokio::time::Instant::now().into_std();
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(tokio::time::Instant::now().into_std() - before, Duration::from_secs(5));
}
