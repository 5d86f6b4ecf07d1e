//! Ends and faults of a connection that was ready.

use bytes::Bytes;
use futures_util::SinkExt;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_close_keeps_code_and_reason_and_comes_after_what_was_said() {
    let (mut connection, mut socket) = open().await;
    socket.send(text("last words")).await.unwrap();
    let close = tokio::spawn(socket.close(1001, "your session hit the maximum duration"));
    assert_eq!(next_kind(&mut connection).await, "last words");
    let error = end(&mut connection).await;
    assert!(
        matches!(&error, LiveError::Closed { code: 1001, reason } if reason.contains("maximum")),
        "{error}"
    );
    // The close frame was answered: the server did not have to wait.
    let before = tokio::time::Instant::now();
    close.await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_protocol_may_say_what_a_close_means() {
    let (mut connection, socket) = open().await;
    tokio::spawn(socket.close(1013, "busy"));
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::RateLimited { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_end_without_a_close_frame_is_1006_after_what_was_said() {
    let (mut connection, mut socket) = open().await;
    socket.send(text("a")).await.unwrap();
    socket.send(text("b")).await.unwrap();
    socket.abort();
    assert_eq!(next_kind(&mut connection).await, "a");
    assert_eq!(next_kind(&mut connection).await, "b");
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Closed { code: 1006, .. }), "{error}");
    assert!(error.is_recoverable());
}

#[tokio::test(start_paused = true)]
async fn a_close_without_a_code_is_1005() {
    let (mut connection, mut socket) = open().await;
    socket.send(Frame::Close(None)).await.unwrap();
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Closed { code: 1005, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn why_the_server_closed_is_told_though_a_write_fails_first() {
    let (mut connection, socket) = open().await;
    let (closing, ()) = tokio::join!(tokio::spawn(socket.close(3000, "key revoked")), async {
        // The server has closed, and is gone, before anything is read.
        tokio::time::sleep(Duration::from_secs(5)).await;
    });
    closing.unwrap();
    let flushed = futures_util::FutureExt::now_or_never(connection.send(say("are you there")));
    assert!(flushed.is_none(), "{flushed:?}");
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Closed { code: 3000, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_sink_alone_learns_of_a_broken_pipe() {
    let (mut connection, socket) = open().await;
    socket.abort();
    let error = connection.send(say("anyone")).await.unwrap_err();
    assert!(error.is_recoverable(), "{error}");
    let error = end(&mut connection).await;
    assert!(error.is_recoverable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_message_of_20_mb_is_refused_and_the_server_told_why() {
    let (mut connection, mut socket) = open().await;
    // The server's own limit is that of the client; a bare pipe has none.
    let big = Frame::Binary(Bytes::from(vec![0; 15 * 1024 * 1024]));
    let (sent, kind) = tokio::join!(socket.send(big), next_kind(&mut connection));
    sent.unwrap();
    assert_eq!(kind, "15728640 bytes");
    let (mut connection, mut raw) = raw().await;
    let size: u64 = 20 * 1024 * 1024;
    raw.write_all(&[0x82, 127]).await.unwrap();
    raw.write_all(&size.to_be_bytes()).await.unwrap();
    let error = end(&mut connection).await;
    assert!(matches!(&error, LiveError::Protocol(why) if why.contains("20971520")), "{error}");
    assert_eq!(close_code(&mut raw).await, 1009);
}

#[tokio::test(start_paused = true)]
async fn broken_frames_are_typed_errors_and_the_server_is_told() {
    let cases: [(&[u8], u16); 6] = [
        (&[0x81, 0x02, 0xff, 0xfe], 1007), // not UTF-8
        (&[0xf1, 0x00], 1002),             // reserved bits
        (&[0x83, 0x00], 1002),             // unknown opcode
        (&[0x81, 0x80, 1, 2, 3, 4], 1002), // masked by a server
        (&[0x80, 0x01, b'x'], 1002),       // a continuation of nothing
        (&[0x09, 0x00], 1002),             // a ping in fragments
    ];
    for (bytes, code) in cases {
        let (mut connection, mut raw) = raw().await;
        raw.write_all(bytes).await.unwrap();
        let error = end(&mut connection).await;
        assert!(matches!(error, LiveError::Protocol(_)), "{bytes:?}: {error}");
        assert!(!error.is_recoverable());
        assert_eq!(close_code(&mut raw).await, code, "{bytes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_protocol_ends_the_connection_once() {
    let (mut connection, mut socket) = open().await;
    socket.send(text("refuse")).await.unwrap();
    socket.send(text("more")).await.unwrap();
    let error = end(&mut connection).await;
    assert!(matches!(error, LiveError::Unauthorized(_)), "{error}");
    let error = connection.send(say("late")).await.unwrap_err();
    assert!(matches!(error, LiveError::NotConnected), "{error}");
    let close = socket.recv().await.unwrap().unwrap();
    assert!(matches!(close, Frame::Close(Some((1000, _)))), "{close:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever bytes a server sends, the connection ends by itself, with one error, and never
    /// panics.
    #[test]
    fn any_bytes_end_in_one_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut connection, mut raw) = raw().await;
            raw.write_all(&bytes).await.unwrap();
            drop(raw);
            end(&mut connection).await;
        });
    }
}

/// A ready connection, and the bare pipe at its far end.
async fn raw() -> (Box<dyn LiveConnection>, DuplexStream) {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut stream = far_ends.recv().await.unwrap();
        let mut answer = upgrade_by_hand(&mut stream).await.into_bytes();
        answer.extend(b"\x81\x05ready");
        stream.write_all(&answer).await.unwrap();
        let mut hello = [0; 11];
        stream.read_exact(&mut hello).await.unwrap();
        stream
    };
    let (connection, stream) = tokio::join!(connect(&connector), server);
    (connection.unwrap(), stream)
}

/// The code of the close frame that the client sent last.
async fn close_code(raw: &mut DuplexStream) -> u16 {
    let mut bytes = [0; 8];
    raw.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes[..2], [0x88, 0x82], "a close frame with a code alone, masked");
    u16::from_be_bytes([bytes[6] ^ bytes[2], bytes[7] ^ bytes[3]])
}
