//! Strangers at the door, while calls go on.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use antiphon::{
    live::{LiveCommand, ReplyOutcome},
    telephony::CallEnd,
};
use antiphon_testkit::FarEnd;
use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{control::token, rig::*};

const CALLS: usize = 50;
const ATTEMPTS: usize = 2_000;
/// All of them come within half of the ten seconds.
const EACH: Duration = Duration::from_micros(2_500);
/// At once.
const CROWD: usize = 64;
const TICK: Duration = Duration::from_millis(20);
/// Of each call.
const TICKS: u32 = 250;
/// The agent's voice is so far ahead of what is heard, in ms: a stall beyond it is a hole.
const AHEAD: usize = 400;

/// The status of an upgrade that shows a bad token, or a wrong signature.
async fn knock(address: std::net::SocketAddr, number: usize) -> u16 {
    let mut stream = soon("a socket", TcpStream::connect(address)).await.unwrap();
    let (path, header) = match number % 4 {
        0 => ("asterisk?token=", ""),
        1 => ("asterisk?token=eyJub25jZSI6IngifQ.AAAA", ""),
        2 => ("signalwire", "X-SignalWire-Signature: 7PR3qMkpDyEJtMrVOY/LDyNq8J8=\r\n"),
        _ => ("signalwire", ""),
    };
    let request = format!(
        "GET /telephony/{path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n{header}\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    soon("room", stream.write_all(request.as_bytes())).await.unwrap();
    let mut head = [0; 12];
    soon("an answer", stream.read_exact(&mut head)).await.unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

/// Both speak, all the time; returns how many milliseconds of each were heard by the other.
async fn talk(caller: &mut Caller, far: &mut FarEnd) -> (usize, usize) {
    let began = Instant::now();
    begins(far, "r1", "A story.", AHEAD);
    let (mut ticks, mut heard, mut taken) = (0, 0, 0);
    let all = AHEAD + 20 * TICKS as usize;
    while ticks < TICKS || heard < all || taken < all - AHEAD - 200 {
        tokio::select! {
            () = sleep_until(began + TICK * ticks), if ticks < TICKS => {
                ticks += 1;
                voice(far, "r1", " More.", 20);
                caller.speak().await;
                if ticks == TICKS {
                    done(far, "r1", ReplyOutcome::Completed);
                }
            }
            message = caller.next() => heard += media_ms(&[message.unwrap()]),
            command = far.command() => {
                if let Some(LiveCommand::AppendAudio(frame)) = command {
                    taken += frame.duration().as_millis() as usize;
                }
            }
        }
    }
    (heard, taken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trial_g07_two_thousand_strangers_are_refused_and_running_calls_stay_clean() {
    let top = "public_url = \"https://example.com\"\ntoken_secret_env = \"SECRET\"\n\
               [limits]\ncalls = 100";
    let carriers = "[carriers.twilio]\nverify = \"token\"\n[carriers.asterisk]\nverify = \"token\"\n\
                    [carriers.signalwire]\nverify = \"signature\"\nauth_token_env = \"SECRET\"";
    let mut rig = Rig::new(top, carriers).await;
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let name = format!("CA{number}");
        let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
        caller.start(&name, json!({ "token": token(&name) })).await;
        let mut far = soon("a connection", rig.provider.far_end()).await;
        calls.spawn(async move {
            let heard = soon("all that is said", talk(&mut caller, &mut far)).await;
            (caller, far, heard)
        });
    }
    let refused = Arc::new(AtomicUsize::new(0));
    let (address, began) = (rig.address, Instant::now());
    stream::iter(0..ATTEMPTS)
        .for_each_concurrent(CROWD, |number| {
            let refused = refused.clone();
            async move {
                sleep_until(began + EACH * number as u32).await;
                if knock(address, number).await == 403 {
                    refused.fetch_add(1, Relaxed);
                }
            }
        })
        .await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(refused.load(Relaxed), ATTEMPTS, "all with 403");
    assert_eq!(rig.handle.stats().refused as usize, ATTEMPTS);
    assert_eq!(rig.provider.requests().len(), CALLS, "no provider was opened for a stranger");
    // Their providers stay until the callers have gone.
    let mut ends = Vec::new();
    while let Some(call) = calls.join_next().await {
        let (mut caller, far, (heard, _)) = call.unwrap();
        assert_eq!(heard, AHEAD + 20 * TICKS as usize);
        caller.stop().await;
        ends.push(far);
    }
    for _ in 0..CALLS {
        let record = rig.record().await;
        assert_eq!(record.end, CallEnd::CallerHungUp);
        assert_eq!(record.playout.underruns, 0, "{record:?}");
        assert_eq!(record.ignored + record.carrier_errors, 0);
    }
}

#[tokio::test]
async fn streams_that_never_start_have_a_bound_and_leave_no_record() {
    let top = "token_secret_env = \"SECRET\"\n[limits]\nwaiting = 3\nstart_seconds = 2";
    let mut rig = Rig::new(top, "[carriers.twilio]\nverify = \"token\"").await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(Caller::connect(rig.address, "twilio", &[]).await.unwrap());
    }
    // The third one may still be on its way to its place.
    let mut refused = Caller::connect(rig.address, "twilio", &[]).await;
    if let Ok(caller) = &mut refused {
        assert_eq!(caller.closed().await, 1013);
    } else {
        assert_eq!(refused.err(), Some(503));
    }
    for caller in &mut idle {
        assert_eq!(caller.closed().await, 1008, "it did not start in time");
    }
    soon("their end", async {
        while rig.handle.stats().unauthorized < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(rig.records.try_recv().is_err(), "strangers fill no disk");
    assert!(rig.provider.requests().is_empty());
    let mut caller = soon("room again", async {
        loop {
            match Caller::connect(rig.address, "twilio", &[]).await {
                Ok(caller) => break caller,
                // Their places are given back once their ends are told.
                Err(status) => assert_eq!(status, 503),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    caller.start("CA1", json!({})).await;
    assert_eq!(caller.closed().await, 1008, "without a token");
}

#[tokio::test]
async fn media_that_may_not_come_ends_its_call_with_a_code_and_a_record_and_no_other() {
    let mut rig = Rig::open().await;
    let (mut good, far) = rig.call("CA0").await;
    let media = |payload: &str| json!({"event": "media", "media": {"payload": payload}});
    let large = "A".repeat(200_000);
    for (number, message, code) in [
        (1, media("?"), 1002),
        (2, json!({"event": "media"}), 1002),
        (3, json!({"no": "event"}), 1002),
        (4, media(&large), 1009),
    ] {
        let (mut bad, its) = rig.call(&format!("CA{number}")).await;
        bad.send(message).await;
        assert_eq!(bad.closed().await, code, "{number}");
        let record = rig.record().await;
        assert!(
            matches!(record.end, CallEnd::Malformed { close_code, .. } if close_code == code),
            "{:?}",
            record.end
        );
        soon("the end of its session", its.dropped()).await;
    }
    // Before the start, in another format, a second start.
    let mut early = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    early.send(media("////")).await;
    assert_eq!(early.closed().await, 1002);
    rig.record().await;
    let mut wide = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    wide.send(json!({
        "event": "start", "streamSid": "MZ1",
        "start": {
            "accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA9", "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 16000, "channels": 1},
        },
    }))
    .await;
    assert_eq!(wide.closed().await, 1003, "a rate that mu-law has not");
    rig.record().await;
    let (mut twice, _far) = rig.call("CA8").await;
    twice.start("CA8", json!({})).await;
    assert_eq!(twice.closed().await, 1002);
    rig.record().await;
    says(&far, "r1", "Hello.", 200);
    good.until("media").await;
    good.stop().await;
    assert_eq!(rig.record().await.end, CallEnd::CallerHungUp);
}
