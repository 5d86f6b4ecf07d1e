//! The server side over pipes in memory, on paused time.

use std::time::Duration;

use antiphon_live::{
    Frame, SocketError,
    acceptor::{
        AcceptError, Accepted, Acceptor, AcceptorOptions, Answer, Gate, Request, ServerSocket,
    },
};
use futures_util::{SinkExt, StreamExt};
use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    time::Instant,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest, http::HeaderValue},
};

/// What the acceptor made of these bytes, and what it wrote.
async fn exchange(
    request: &[u8],
    gate: &dyn Gate,
) -> (Result<Option<Accepted>, AcceptError>, String) {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let client = async {
        // A server that has read enough may answer and leave before the end.
        let _ = far.write_all(request).await;
        let mut answer = Vec::new();
        let mut piece = [0; 4_096];
        // An upgraded stream stays open; then the head is all there is.
        while !answer.starts_with(b"HTTP/1.1 101") || !answer.ends_with(b"\r\n\r\n") {
            match far.read(&mut piece).await {
                Ok(0) | Err(_) => break,
                Ok(count) => answer.extend_from_slice(&piece[..count]),
            }
        }
        (String::from_utf8_lossy(&answer).into_owned(), far)
    };
    let acceptor = Acceptor::default();
    let (accepted, (answer, _far)) = tokio::join!(acceptor.accept(Box::new(near), gate), client);
    (accepted, answer)
}

fn upgrade_request(more: &str) -> Vec<u8> {
    format!(
        "GET /v1/realtime?model=gpt%2Drealtime&x=1 HTTP/1.1\r\nHost: localhost\r\n\
         Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
    )
    .into_bytes()
}

/// A client and a server's end.
async fn pair(options: AcceptorOptions) -> (WebSocketStream<DuplexStream>, ServerSocket) {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let gate = |_: &Request| Answer::upgrade();
    let acceptor = Acceptor::new(options);
    let (client, accepted) =
        tokio::join!(client_async("ws://localhost/", far), acceptor.accept(Box::new(near), &gate));
    (client.unwrap().0, accepted.unwrap().unwrap().socket)
}

#[tokio::test(start_paused = true)]
async fn a_request_is_shown_and_upgraded() {
    let seen = std::sync::Mutex::new(None);
    let gate = |request: &Request| {
        assert_eq!((request.method(), request.path()), ("GET", "/v1/realtime"));
        assert_eq!(request.parameter("model").as_deref(), Some("gpt-realtime"));
        assert_eq!(request.parameter("y"), None);
        assert_eq!(request.bearer(), Some("sk-1"));
        assert!(request.is_upgrade());
        *seen.lock().unwrap() = Some(format!("{request:?}"));
        Answer::upgrade().header("X-Session", "7").header("bad name", "x").header("X", "bad\nvalue")
    };
    let more = "Sec-WebSocket-Version: 13\r\nAuthorization: bearer sk-1\r\n\
                Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    let (accepted, answer) = exchange(&upgrade_request(more), &gate).await;
    assert_eq!(accepted.unwrap().unwrap().request.path(), "/v1/realtime");
    let answer = answer.to_ascii_lowercase();
    assert!(answer.contains("connection: upgrade\r\n"), "{answer}");
    // The accept key of the example in RFC 6455.
    assert!(answer.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    assert!(answer.contains("x-session: 7"), "{answer}");
    assert!(!answer.contains("extensions") && !answer.contains("protocol:"), "{answer}");
    let shown = seen.into_inner().unwrap().unwrap();
    assert!(!shown.contains("sk-1"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn one_offered_subprotocol_is_answered_or_none() {
    let offer = "Sec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.ek_1\r\n";
    let none = "Sec-WebSocket-Version: 13\r\n";
    for (more, choice, wanted) in
        [(offer, "realtime", true), (offer, "other", false), (none, "realtime", false)]
    {
        let gate = move |_: &Request| Answer::upgrade_as(choice);
        let (accepted, answer) = exchange(&upgrade_request(more), &gate).await;
        let offers: Vec<_> =
            accepted.as_ref().unwrap().as_ref().unwrap().request.subprotocols().collect();
        assert_eq!(offers.len(), if more == offer { 2 } else { 0 });
        let answered = answer.to_ascii_lowercase().contains("sec-websocket-protocol: realtime\r\n");
        assert_eq!(answered, wanted, "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn requests_that_cannot_be_upgraded_hear_why() {
    let gate = |_: &Request| Answer::upgrade();
    let plain = b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec();
    let no_key = b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\n\r\n"
        .to_vec();
    let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(100_000)).into_bytes();
    for (request, status) in [
        (plain, "426"),
        (upgrade_request("Sec-WebSocket-Version: 8\r\n"), "426"),
        (no_key, "400"),
        (long, "431"),
        (b"hello\r\n\r\n".to_vec(), "400"),
    ] {
        let (accepted, answer) = exchange(&request, &gate).await;
        assert!(!matches!(accepted, Ok(Some(_))));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{status}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn plain_requests_are_answered_with_their_bodies() {
    let gate = |request: &Request| match (request.method(), request.path()) {
        ("POST", "/v1/realtime/client_secrets") => {
            let body: serde_json::Value = serde_json::from_slice(request.body()).unwrap();
            Answer::json(200, &serde_json::json!({ "echo": body }))
        }
        _ => Answer::http(404, "nothing here"),
    };
    let post = b"POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r\n{\"a\":1}";
    let (accepted, answer) = exchange(post, &gate).await;
    assert!(accepted.unwrap().is_none());
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with(r#"{"echo":{"a":1}}"#),
        "{answer}"
    );
    assert!(answer.to_ascii_lowercase().contains("content-type: application/json"), "{answer}");
    let (_, answer) = exchange(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n", &gate).await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.ends_with("nothing here"), "{answer}");
    let large =
        format!("POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{}", "x".repeat(300_000));
    let (_, answer) = exchange(large.as_bytes(), &gate).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_finish_its_request_is_given_up_in_time() {
    let (near, mut far) = tokio::io::duplex(1_024);
    far.write_all(b"GET / HTTP/1.1\r\nHost: local").await.unwrap();
    let before = Instant::now();
    let gate = |_: &Request| Answer::upgrade();
    let error = Acceptor::default().accept(Box::new(near), &gate).await.unwrap_err();
    assert!(matches!(error, AcceptError::Timeout { .. }), "{error}");
    assert_eq!(before.elapsed(), Duration::from_secs(10));
    assert_eq!(far.read(&mut [0; 16]).await.unwrap(), 0, "the stream is closed");
}

#[tokio::test(start_paused = true)]
async fn it_closes_in_order_or_not_at_all() {
    let (mut client, server) = pair(AcceptorOptions::default()).await;
    let reason = "ü".repeat(100);
    let (message, ()) = tokio::join!(client.next(), server.close(1013, &reason));
    let Some(Ok(Message::Close(Some(close)))) = message else { panic!("{message:?}") };
    assert_eq!((u16::from(close.code), close.reason.as_str()), (1013, &reason[..122]));

    let (mut client, server) = pair(AcceptorOptions::default()).await;
    server.abort();
    assert!(client.next().await.unwrap().is_err());

    let (mut client, mut server) = pair(AcceptorOptions::default()).await;
    client.close(None).await.unwrap();
    assert_eq!(server.recv().await, Some(Ok(Frame::Close(None))));
    assert!(server.recv().await.is_none());
    assert!(matches!(server.send(Frame::Text("late".into())).await, Err(SocketError::Lost(_))));
    assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_close_that_is_not_answered_is_not_waited_for_long() {
    let (client, server) = pair(AcceptorOptions::default()).await;
    let before = Instant::now();
    server.close(1000, "").await;
    assert_eq!(before.elapsed(), Duration::from_secs(2));
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_too_large_is_refused_with_1009() {
    let mut options = AcceptorOptions::default();
    options.max_message = 1_000;
    let (mut client, mut server) = pair(options).await;
    client.send(Message::text("x".repeat(1_000))).await.unwrap();
    assert!(matches!(server.recv().await, Some(Ok(Frame::Text(text))) if text.len() == 1_000));
    client.send(Message::text("x".repeat(1_001))).await.unwrap();
    let error = server.recv().await.unwrap().unwrap_err();
    assert_eq!(error, SocketError::TooLarge { size: 1_001, limit: 1_000 });
    assert!(server.recv().await.is_none());
    let Some(Ok(Message::Close(Some(close)))) = client.next().await else { panic!() };
    assert_eq!(u16::from(close.code), 1009);
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_pinged_and_then_given_up() {
    let (mut client, mut server) = pair(AcceptorOptions::default()).await;
    let before = Instant::now();
    // It reads, and so answers, twice.
    let reads = async {
        for _ in 0..2 {
            assert!(matches!(client.next().await, Some(Ok(Message::Ping(_)))));
            client.flush().await.unwrap();
        }
    };
    let serves = async {
        loop {
            match server.recv().await {
                Some(Ok(frame)) => assert_eq!(frame, Frame::Pong(Default::default())),
                last => break last,
            }
        }
    };
    let (last, ()) = tokio::join!(serves, reads);
    assert_eq!(before.elapsed(), Duration::from_secs(100));
    assert!(matches!(last, Some(Err(SocketError::Timeout { .. }))), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_does_not_read_does_not_hold_a_writer_for_ever() {
    let (_client, mut server) = pair(AcceptorOptions::default()).await;
    let before = Instant::now();
    let frame = Frame::Binary(vec![0; 1_000_000].into());
    let error = server.send(frame).await.unwrap_err();
    assert!(matches!(error, SocketError::Timeout { .. }), "{error}");
    assert_eq!(before.elapsed(), Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_frame_may_be_given_up_without_losing_it() {
    let (mut client, mut server) = pair(AcceptorOptions::default()).await;
    for n in 0..100 {
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            frame = server.recv() => panic!("{frame:?}"),
        }
        client.send(Message::text(n.to_string())).await.unwrap();
        assert_eq!(server.recv().await, Some(Ok(Frame::Text(n.to_string().into()))));
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_may_take_its_time_but_not_for_ever() {
    struct Slow;
    #[async_trait::async_trait]
    impl Gate for Slow {
        async fn answer(&self, _: &Request) -> Answer {
            std::future::pending().await
        }
    }
    let (near, far) = tokio::io::duplex(4_096);
    let mut request = "ws://localhost/".into_client_request().unwrap();
    request.headers_mut().insert("x", HeaderValue::from_static("y"));
    let acceptor = Acceptor::default();
    let (client, accepted) =
        tokio::join!(client_async(request, far), acceptor.accept(Box::new(near), &Slow));
    assert!(client.is_err());
    assert!(matches!(accepted, Err(AcceptError::Timeout { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever bytes a client sends, the acceptor ends by itself and never panics.
    #[test]
    fn any_bytes_are_survived(
        head in "(GET|POST|X) /[a-z?=&%]{0,8} HTTP/1.1\r\n(Host: h\r\n)?(Connection: upgrade\r\n)?(Upgrade: websocket\r\n)?",
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        whole: bool,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(64 * 1024);
            let mut request = if whole { head.into_bytes() } else { Vec::new() };
            request.extend(&bytes);
            far.write_all(&request).await.unwrap();
            let gate = |_: &Request| Answer::upgrade();
            if let Ok(Some(accepted)) = Acceptor::default().accept(Box::new(near), &gate).await {
                let mut socket = accepted.socket;
                while socket.recv().await.is_some() {}
            }
        });
    }
}
