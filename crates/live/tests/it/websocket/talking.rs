//! A connection in use.

use antiphon_live::LiveEvent;
use antiphon_types::AudioFrame;
use bytes::Bytes;
use futures_util::{FutureExt, SinkExt, StreamExt};
use proptest::prelude::*;

use super::*;

#[tokio::test(start_paused = true)]
async fn it_talks_both_ways_and_closes_in_order() {
    let (mut connection, mut socket) = open().await;
    connection.send(say("hi")).await.unwrap();
    assert_eq!(next_text(&mut socket).await, "hi");
    socket.send(text("there")).await.unwrap();
    assert_eq!(next_kind(&mut connection).await, "there");
    socket.send(Frame::Binary(Bytes::from_static(&[1, 2, 3]))).await.unwrap();
    assert_eq!(next_kind(&mut connection).await, "3 bytes");
    let answer = async {
        let close = socket.recv().await.unwrap().unwrap();
        assert_eq!(close, Frame::Close(Some((1000, String::new()))));
        assert!(socket.recv().await.is_none());
    };
    let (closed, ()) = tokio::join!(connection.close(), answer);
    closed.unwrap();
    assert!(connection.next().await.is_none());
    connection.close().await.unwrap();
    let error = connection.send(say("late")).await.unwrap_err();
    assert!(matches!(error, LiveError::NotConnected), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_is_refused_and_the_connection_goes_on() {
    let (mut connection, mut socket) = open().await;
    let error = connection.send(LiveCommand::CreateReply { request: 1 }).await.unwrap_err();
    assert!(matches!(error, LiveError::Unsupported { .. }), "{error}");
    assert!(error.to_string().starts_with("plain cannot"), "{error}");
    for bad in [
        say(" \n"),
        LiveCommand::AppendAudio(AudioFrame::from_pcm16(16_000, &[0; 320])),
        say(&"x".repeat(16 * 1024 * 1024 + 1)),
    ] {
        let error = connection.send(bad).await.unwrap_err();
        assert!(matches!(error, LiveError::InvalidCommand(_)), "{error}");
    }
    connection.send(say("good")).await.unwrap();
    assert_eq!(next_text(&mut socket).await, "good");
}

#[tokio::test(start_paused = true)]
async fn answers_of_the_protocol_go_out_without_a_flush_of_the_sessions() {
    let (mut connection, mut socket) = open().await;
    socket.send(text("ask")).await.unwrap();
    assert!(connection.next().now_or_never().is_none());
    assert_eq!(next_text(&mut socket).await, "answer");
}

#[tokio::test(start_paused = true)]
async fn pings_are_answered_and_not_told() {
    let (mut connection, mut socket) = open().await;
    socket.send(Frame::Ping(Bytes::from_static(b"p"))).await.unwrap();
    socket.send(text("next")).await.unwrap();
    assert_eq!(next_kind(&mut connection).await, "next");
    assert!(connection.next().now_or_never().is_none());
    assert_eq!(socket.recv().await.unwrap().unwrap(), Frame::Pong(Bytes::from_static(b"p")));
}

#[tokio::test(start_paused = true)]
async fn what_waits_is_counted_and_bounded_and_nothing_is_lost() {
    let (mut connection, mut socket) = open().await;
    let audio = AudioFrame::from_pcm16(24_000, &[7; 4_800]);
    let bytes = audio.data.len();
    let mut sent = 0;
    // The server reads nothing: the pipe fills, then the connection takes no more.
    let has_room = |connection: &mut Box<dyn LiveConnection>| {
        let ready = std::future::poll_fn(|cx| connection.poll_ready_unpin(cx));
        ready.now_or_never().is_some_and(|ready| ready.is_ok())
    };
    while has_room(&mut connection) {
        connection.start_send_unpin(LiveCommand::AppendAudio(audio.clone())).unwrap();
        let _ = connection.flush().now_or_never();
        sent += 1;
        assert!(sent < 1_000, "nothing holds it back");
    }
    let waiting = connection.unsent_bytes();
    assert!((64 * 1024..128 * 1024).contains(&waiting), "{waiting}");
    let read = async {
        for _ in 0..sent {
            let frame = socket.recv().await.unwrap().unwrap();
            assert!(matches!(frame, Frame::Binary(data) if data.len() == bytes));
        }
    };
    let (flushed, ()) = tokio::join!(connection.flush(), read);
    flushed.unwrap();
    assert_eq!(connection.unsent_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_pauses_lets_others_work_and_gets_its_answers() {
    let (mut connection, mut socket) = open().await;
    let server = tokio::spawn(async move {
        let mut answers = 0;
        for _ in 0..2_000 {
            socket.feed(text("ask")).await.unwrap();
        }
        socket.send(text("end")).await.unwrap();
        while answers < 2_000 {
            assert_eq!(next_text(&mut socket).await, "answer");
            answers += 1;
        }
        socket
    });
    let mut pauses = 0;
    let end = std::future::poll_fn(|cx| {
        let polled = connection.poll_next_unpin(cx);
        pauses += u32::from(polled.is_pending());
        polled
    });
    assert!(matches!(end.await, Some(Ok(LiveEvent::Ignored { kind })) if &*kind == "end"));
    assert!(pauses > 10, "{pauses}");
    let _ = connection.flush().await;
    server.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropping_it_ends_the_stream() {
    let (connection, mut socket) = open().await;
    drop(connection);
    let error = socket.recv().await.unwrap().unwrap_err();
    assert!(matches!(error, antiphon_live::SocketError::Lost(_)), "{error}");
    assert!(socket.recv().await.is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However little the transport takes at once, everything arrives whole and in order, both
    /// ways at the same time.
    #[test]
    fn a_narrow_transport_changes_nothing(
        capacity in 1_usize..300,
        down in proptest::collection::vec(0_usize..2_000, 1..12),
        up in proptest::collection::vec(1_usize..2_000, 1..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (dials, mut far_ends) = mpsc::unbounded_channel();
            let connector = Pipe { dials, capacity };
            let server = async {
                let mut socket = server(&mut far_ends).await;
                assert_eq!(next_text(&mut socket).await, "hello");
                socket.send(text("ready")).await.unwrap();
                for size in &down {
                    socket.send(Frame::Binary(vec![1; *size].into())).await.unwrap();
                }
                for size in &up {
                    assert_eq!(next_text(&mut socket).await.len(), *size);
                }
                socket.close(1000, "done").await;
            };
            let client = async {
                let connection = connect(&connector).await.unwrap();
                let (mut commands, mut events) = connection.split();
                let writes = async {
                    for size in &up {
                        commands.send(say(&"x".repeat(*size))).await.unwrap();
                    }
                };
                let reads = async {
                    let mut sizes = Vec::new();
                    loop {
                        match events.next().await.unwrap() {
                            Ok(LiveEvent::Ready { .. }) => {}
                            Ok(LiveEvent::Ignored { kind }) => sizes.push(kind.to_string()),
                            Ok(other) => panic!("{other:?}"),
                            Err(error) => {
                                assert!(matches!(error, LiveError::Closed { code: 1000, .. }));
                                return sizes;
                            }
                        }
                    }
                };
                tokio::join!(writes, reads).1
            };
            let ((), sizes) = tokio::join!(server, client);
            let wanted: Vec<_> = down.iter().map(|size| format!("{size} bytes")).collect();
            assert_eq!(sizes, wanted);
        });
    }
}
