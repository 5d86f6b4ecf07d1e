//! Nothing waits for ever.

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::time::{Instant as Clock, advance, sleep, timeout};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_host_that_does_not_answer_the_handshake_is_given_up_in_time() {
    let (connector, mut far_ends) = pipe();
    let before = Clock::now();
    let (result, _silent) = tokio::join!(connect(&connector), far_ends.recv());
    let error = result.err().unwrap();
    assert!(matches!(error, LiveError::Timeout { .. }), "{error}");
    assert_eq!(before.elapsed(), Duration::from_secs(15));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_accepts_the_session_is_given_up_in_the_time_configured() {
    let (connector, mut far_ends) = pipe();
    let mut config = LiveConfig::new();
    config.connect_timeout = Some(Duration::from_secs(4));
    let before = Clock::now();
    let connecting = connect_with(Plain::default(), &connector, config);
    let (result, _silent) = tokio::join!(connecting, server(&mut far_ends));
    assert!(matches!(result.err().unwrap(), LiveError::Timeout { .. }));
    assert_eq!(before.elapsed(), Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_pinged_and_given_up_after_a_minute() {
    let (mut connection, socket) = open().await;
    let before = Clock::now();
    // It does not even read, so nobody answers the pings.
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Timeout { .. }), "{error}");
    assert_eq!(before.elapsed(), Duration::from_secs(60));
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_pings_late_is_kept() {
    let (mut connection, mut socket) = open().await;
    let server = async {
        let mut pings = 0;
        while pings < 10 {
            sleep(Duration::from_secs(30)).await;
            while let Some(frame) = socket.recv().now_or_never() {
                pings += u32::from(matches!(frame, Some(Ok(Frame::Ping(_)))));
            }
        }
    };
    tokio::select! {
        event = connection.next() => panic!("{event:?}"),
        () = server => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_talks_but_does_not_read_is_given_up() {
    let (mut connection, mut socket) = open().await;
    let talks = tokio::spawn(async move {
        while socket.send(text("talk")).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    connection.feed(say(&"x".repeat(1_000_000))).await.unwrap();
    let before = Clock::now();
    let error = end(&mut connection).await;
    assert!(matches!(&error, LiveError::Timeout { what, .. } if what.contains("wire")), "{error}");
    let waited = before.elapsed();
    assert!((30..=31).contains(&waited.as_secs()), "{waited:?}");
    drop(connection);
    talks.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn closing_waits_a_little_for_the_answer_and_not_longer() {
    let (mut connection, socket) = open().await;
    let before = Clock::now();
    connection.close().await.unwrap();
    assert_eq!(before.elapsed(), Duration::from_secs(2));
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn the_protocol_is_told_when_its_deadline_comes() {
    let plain = Plain { every: Some(Duration::from_secs(3)), ..Plain::default() };
    let (mut connection, _socket) = open_with(plain).await;
    for _ in 0..5 {
        let before = Clock::now();
        assert_eq!(next_kind(&mut connection).await, "tick");
        assert_eq!(before.elapsed(), Duration::from_secs(3));
    }
}

#[tokio::test(start_paused = true)]
async fn time_passes_while_the_server_talks_without_a_pause() {
    let plain = Plain { every: Some(Duration::from_secs(3)), ..Plain::default() };
    let (mut connection, mut socket) = open_with(plain).await;
    for _ in 0..200 {
        socket.feed(text("chatter")).await.unwrap();
    }
    socket.flush().await.unwrap();
    advance(Duration::from_secs(3)).await;
    let mut before_tick = 0;
    while next_kind(&mut connection).await != "tick" {
        before_tick += 1;
    }
    assert!(before_tick < 10, "{before_tick}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_stays_in_the_past_does_not_spin() {
    let plain = Plain { every: Some(Duration::ZERO), ..Plain::default() };
    let (mut connection, _socket) = open_with(plain).await;
    let mut ticks = 0;
    let count = async {
        loop {
            assert_eq!(next_kind(&mut connection).await, "tick");
            ticks += 1;
        }
    };
    assert!(timeout(Duration::from_millis(100), count).await.is_err());
    assert!((90..=110).contains(&ticks), "{ticks}");
}

#[tokio::test(start_paused = true)]
async fn what_the_server_has_read_is_known_by_its_pongs() {
    let (mut connection, mut socket) = open().await;
    connection.send(say("one")).await.unwrap();
    let sent = connection.sent_bytes();
    assert!(connection.acknowledged_bytes() < sent, "nobody has read it");
    // A ping goes with it within half a second, and is answered once the server reads.
    let reads = async {
        loop {
            if socket.recv().await.is_none() {
                break;
            }
        }
    };
    tokio::select! {
        event = connection.next() => panic!("{event:?}"),
        () = reads => panic!("it went"),
        () = sleep(Duration::from_millis(600)) => {}
    }
    assert!(connection.acknowledged_bytes() >= sent);
    // The server is gone, and what is sent to it is taken by the pipe all the same.
    connection.send(say("two")).await.unwrap();
    let (read, all) = (connection.acknowledged_bytes(), connection.sent_bytes());
    assert!(read < all);
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Timeout { .. }), "{error}");
    assert_eq!(connection.reached_bytes(), read, "nobody says that it came");
    drop(socket);
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_to_a_server_that_ends_reached_it() {
    let (mut connection, socket) = open().await;
    connection.send(say("one")).await.unwrap();
    drop(socket);
    end(&mut connection).await;
    assert_eq!(connection.reached_bytes(), connection.sent_bytes());
}

#[tokio::test(start_paused = true)]
async fn what_a_network_took_that_was_gone_before_the_end_reached_nobody() {
    let (mut connection, socket) = open().await;
    connection.send(say("one")).await.unwrap();
    // Nobody reads, and nobody answers the pings.
    assert!(timeout(Duration::from_secs(4), connection.next()).await.is_err());
    drop(socket);
    end(&mut connection).await;
    assert_eq!(connection.reached_bytes(), connection.acknowledged_bytes());
    assert!(connection.reached_bytes() < connection.sent_bytes());
}
