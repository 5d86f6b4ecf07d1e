//! Connecting, and all the ways in which it fails.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use antiphon_live::{
    LiveConfig, LiveError, LiveEvent,
    acceptor::{Acceptor, Answer, Request},
};
use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use super::*;

/// Connects to a server that answers the handshake so.
async fn refused(answer: Answer) -> LiveError {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let stream = Box::new(far_ends.recv().await.unwrap());
        let gate = move |_: &Request| answer.clone();
        // A client that has read enough may leave before the end.
        assert!(matches!(Acceptor::default().accept(stream, &gate).await, Ok(None) | Err(_)));
    };
    let (result, ()) = tokio::join!(connect(&connector), server);
    result.err().unwrap()
}

/// Connects to a server that writes this to whatever it is asked.
async fn answered(bytes: &[u8]) -> LiveError {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut stream = far_ends.recv().await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(bytes).await.unwrap();
    };
    let (result, ()) = tokio::join!(connect(&connector), server);
    result.err().unwrap()
}

#[tokio::test(start_paused = true)]
async fn every_refusal_has_its_error() {
    let refuse = |status| refused(Answer::http(status, "{\"error\":\"words\"}"));
    for status in [401, 403] {
        let error = refuse(status).await;
        assert!(matches!(&error, LiveError::Unauthorized(why) if why.contains("words")), "{error}");
    }
    for status in [500, 502, 503, 504, 408] {
        let error = refuse(status).await;
        assert!(matches!(error, LiveError::Transport(_)), "{status}: {error}");
        assert!(error.is_recoverable(), "{status}");
    }
    for status in [200, 302, 400, 404, 426] {
        let error = refuse(status).await;
        assert!(matches!(error, LiveError::InvalidConfig(_)), "{status}: {error}");
        assert!(error.to_string().contains(&status.to_string()), "{status}: {error}");
    }
    let error = refused(Answer::http(429, "slow down").header("Retry-After", "7")).await;
    let LiveError::RateLimited { message, retry_after } = error else { panic!("{error}") };
    assert!(message.contains("slow down"), "{message}");
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_keeps_its_words_to_itself_is_still_a_refusal() {
    let head = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 1000\r\n\r\nhalf";
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut stream = far_ends.recv().await.unwrap();
        stream.write_all(head).await.unwrap();
        stream
    };
    let (result, _open) = tokio::join!(connect(&connector), server);
    let error = result.err().unwrap();
    assert!(matches!(error, LiveError::Unauthorized(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_huge_refusal_is_cut() {
    let error = refused(Answer::http(403, "x".repeat(1_000_000))).await;
    assert!(error.to_string().len() < 1_000, "{}", error.to_string().len());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_something_else_is_found_out() {
    for nonsense in [
        &b"SSH-2.0-OpenSSH_9.2\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        // Another handshake's key.
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
        b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    ] {
        let error = answered(nonsense).await;
        assert!(matches!(error, LiveError::Protocol(_)), "{error}");
    }
    let error = answered(b"").await;
    assert!(matches!(error, LiveError::Closed { code: 1006, .. }), "{error}");
    let error = answered(b"HTTP/1.1 101 Swi").await;
    assert!(matches!(error, LiveError::Closed { code: 1006, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_subprotocol_or_extension_that_was_not_offered_is_refused() {
    for (name, value) in
        [("Sec-WebSocket-Protocol", "realtime"), ("Sec-WebSocket-Extensions", "permessage-deflate")]
    {
        let (connector, mut far_ends) = pipe();
        let server = async {
            let stream = Box::new(far_ends.recv().await.unwrap());
            let gate = move |_: &Request| Answer::upgrade().header(name, value);
            Acceptor::default().accept(stream, &gate).await.unwrap()
        };
        let (result, _socket) = tokio::join!(connect(&connector), server);
        let error = result.err().unwrap();
        assert!(matches!(error, LiveError::Protocol(_)), "{name}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn frames_that_come_with_the_answer_are_not_lost() {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut stream = far_ends.recv().await.unwrap();
        let mut bytes = upgrade_by_hand(&mut stream).await.into_bytes();
        // One text in two fragments, and the beginning of the next, in one segment.
        bytes.extend(b"\x01\x02re\x80\x03ady\x81\x02h");
        stream.write_all(&bytes).await.unwrap();
        stream.write_all(b"i").await.unwrap();
        stream
    };
    let (connection, _stream) = tokio::join!(connect(&connector), server);
    let mut connection = connection.unwrap();
    assert!(matches!(connection.next().await, Some(Ok(LiveEvent::Ready { .. }))));
    assert_eq!(next_kind(&mut connection).await, "hi");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_none_is_named_without_its_query() {
    let (connector, _far_ends) = pipe();
    for url in ["", "api.openai.com", "https://api.openai.com/v1", "wss://", "wss://h:99999/"] {
        let mut config = LiveConfig::new();
        config.endpoint = Some(format!("{url}?key=secret"));
        let error = connect_with(Plain::default(), &connector, config).await.err().unwrap();
        assert!(matches!(error, LiveError::InvalidConfig(_)), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_cannot_stand_in_a_header_is_refused_without_showing_it() {
    let (connector, _far_ends) = pipe();
    let request = ConnectRequest::new(Arc::new(LiveConfig::new()));
    let secrets = Secrets { bearer: Some(SecretString::from("key\nsecret")) };
    let options = WebSocketOptions::default();
    let error = websocket::connect(Plain::default(), &request, secrets, &connector, &options).await;
    let error = error.err().unwrap();
    assert!(matches!(error, LiveError::InvalidConfig(_)), "{error}");
    assert!(!error.to_string().contains("secret"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_close_or_an_error_before_the_session_is_ready_is_why_connecting_failed() {
    type Act = fn(ServerSocket) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
    let acts: [Act; 4] = [
        |socket| {
            Box::pin(async { socket.close(3000, "invalid_request_error.invalid_api_key").await })
        },
        |socket| Box::pin(async { socket.abort() }),
        |mut socket| Box::pin(async move { socket.send(text("refuse")).await.unwrap() }),
        |socket| Box::pin(async { socket.close(1013, "busy").await }),
    ];
    let mut errors = Vec::new();
    for act in acts {
        let (connector, mut far_ends) = pipe();
        let server = async { act(server(&mut far_ends).await).await };
        let (result, ()) = tokio::join!(connect(&connector), server);
        errors.push(result.err().unwrap());
    }
    let [key, lost, refused, busy] = errors.try_into().unwrap();
    assert!(
        matches!(&key, LiveError::Closed { code: 3000, reason } if reason.ends_with("invalid_api_key")),
        "{key}"
    );
    assert!(matches!(lost, LiveError::Closed { code: 1006, .. }), "{lost}");
    assert!(matches!(refused, LiveError::Unauthorized(_)), "{refused}");
    assert!(matches!(busy, LiveError::RateLimited { .. }), "{busy}");
}

#[tokio::test(start_paused = true)]
async fn what_comes_before_ready_is_told_after_it() {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut socket = server(&mut far_ends).await;
        socket.send(text("early")).await.unwrap();
        socket.send(text("ready")).await.unwrap();
        socket
    };
    let (connection, _socket) = tokio::join!(connect(&connector), server);
    let mut connection = connection.unwrap();
    assert!(matches!(connection.next().await, Some(Ok(LiveEvent::Ready { .. }))));
    assert_eq!(next_kind(&mut connection).await, "early");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_talks_without_end_before_it_is_ready_is_given_up() {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut socket = server(&mut far_ends).await;
        while socket.send(text("chatter")).await.is_ok() {}
    };
    let (result, ()) = tokio::join!(connect(&connector), server);
    let error = result.err().unwrap();
    assert!(matches!(error, LiveError::Protocol(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_future_closes_what_was_opened() {
    let (connector, mut far_ends) = pipe();
    let mut connecting = Box::pin(connect(&connector));
    let mut socket = tokio::select! {
        _ = &mut connecting => panic!("the server said nothing"),
        socket = server(&mut far_ends) => socket,
    };
    drop(connecting);
    while socket.recv().await.unwrap().is_ok() {}
}

/// Every point at which connecting can be given up, from the dial to the session that is ready.
#[tokio::test(start_paused = true)]
async fn connecting_may_be_given_up_anywhere_and_leaves_nothing_open() {
    for polls in 0.. {
        let (dials, mut far_ends) = mpsc::unbounded_channel();
        // So narrow that there are many points.
        let connector = Pipe { dials, capacity: 7 };
        let serving = tokio::spawn(async move {
            let stream = far_ends.recv().await?;
            let gate = |_: &Request| Answer::upgrade();
            let accepted = Acceptor::default().accept(Box::new(stream), &gate).await.ok()??;
            let mut socket = accepted.socket;
            let _ = socket.send(text("ready")).await;
            while let Some(Ok(_)) = socket.recv().await {}
            Some(())
        });
        let mut connecting = Box::pin(connect(&connector));
        let mut done = false;
        for _ in 0..polls {
            let once = |cx: &mut Context<'_>| Poll::Ready(connecting.as_mut().poll(cx).is_ready());
            done = std::future::poll_fn(once).await;
            if done {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(connecting);
        drop(connector);
        // The server's task ends: it holds no stream that is still open.
        serving.await.unwrap();
        if done {
            assert!(polls > 20, "{polls}");
            return;
        }
    }
}
