//! Calls on the paused clock, over lines in memory: what time does to them.

use std::time::Duration;

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome},
    telephony::{Bridge, BridgeConfig, BridgeHandle, CallEnd, CallRecord},
};
use antiphon_testkit::ScriptedProvider;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

use crate::{calls::calls_tool, rig::*};

struct Quiet {
    provider: ScriptedProvider,
    handle: BridgeHandle,
    records: mpsc::UnboundedReceiver<CallRecord>,
}

impl Quiet {
    fn new(agent: &str) -> Self {
        Self::with("no_media_seconds = 20", agent)
    }

    fn with(limits: &str, agent: &str) -> Self {
        let text = format!(
            "listen = \"127.0.0.1:1\"\naudiosocket = \"127.0.0.1:2\"\n[limits]\n{limits}\n\
             [carriers.twilio]\nverify = \"none\"\n[carriers.asterisk]\nverify = \"none\"\n{agent}"
        );
        let config = BridgeConfig::from_toml(&text, |_| None).unwrap();
        let provider = ScriptedProvider::default();
        let agent = scripted(&provider, &config);
        let (recorded, records) = mpsc::unbounded_channel();
        let bridge = Bridge::new(config, agent).on_record(move |record| {
            let _ = recorded.send(record.clone());
        });
        Self { provider, handle: bridge.open().unwrap(), records }
    }

    fn line(&self, audiosocket: bool) -> DuplexStream {
        self.line_of(audiosocket, 64 * 1024)
    }

    /// A line that takes so many bytes before somebody reads.
    fn line_of(&self, audiosocket: bool, bytes: usize) -> DuplexStream {
        let (near, far) = duplex(bytes);
        let handle = self.handle.clone();
        tokio::spawn(async move {
            match audiosocket {
                true => handle.serve_audiosocket(Box::new(far)).await,
                false => handle.serve(Box::new(far)).await,
            }
        });
        near
    }

    async fn twilio(&self) -> Phone {
        let url = "ws://localhost/telephony/twilio";
        Phone(client_async(url, self.line(false)).await.unwrap().0)
    }

    async fn record(&mut self) -> CallRecord {
        timeout(Duration::from_secs(600), self.records.recv()).await.unwrap().unwrap()
    }
}

struct Phone(WebSocketStream<DuplexStream>);

impl Phone {
    async fn send(&mut self, message: Value) {
        // The line may be over.
        let _ = self.0.send(Message::Text(message.to_string().into())).await;
    }

    async fn press(&mut self, key: char) {
        let dtmf = json!({"track": "inbound_track", "digit": key.to_string()});
        self.send(json!({"event": "dtmf", "streamSid": "MZ1", "dtmf": dtmf})).await;
    }

    async fn start(&mut self) {
        self.send(json!({
            "event": "start", "streamSid": "MZ1",
            "start": {
                "accountSid": "AC1", "streamSid": "MZ1", "callSid": "CA1", "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            },
        }))
        .await;
    }

    /// The next message within a time; `None`: none came, or the line is over.
    async fn next(&mut self, within: Duration) -> Option<Value> {
        let next = async {
            loop {
                match self.0.next().await? {
                    Ok(Message::Text(text)) => return serde_json::from_str(&text).ok(),
                    Ok(Message::Close(_)) | Err(_) => return None,
                    Ok(_) => {}
                }
            }
        };
        timeout(within, next).await.ok().flatten()
    }
}

#[tokio::test(start_paused = true)]
async fn trial_g05_two_seconds_after_a_line_was_cut_nothing_runs() {
    let mut quiet = Quiet::new("");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let far = quiet.provider.far_end().await;
    begins(&far, "r1", "A long story", 2_000);
    phone.next(Duration::from_secs(5)).await.unwrap();
    let cut = Instant::now();
    drop(phone);
    let record = quiet.record().await;
    assert!(matches!(record.end, CallEnd::Lost { .. }), "{:?}", record.end);
    assert!(cut.elapsed() < Duration::from_millis(2_200), "{:?}", cut.elapsed());
    assert!(record.heard_ms < 500, "what was sent to nobody was not heard: {}", record.heard_ms);
    timeout(Duration::from_secs(1), far.dropped()).await.unwrap();
    assert_eq!((quiet.provider.open_connections(), quiet.handle.stats().active), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_carrier_that_reads_nothing_is_heard_all_the_same() {
    let mut quiet = Quiet::new("");
    let url = "ws://localhost/telephony/twilio";
    let mut phone = Phone(client_async(url, quiet.line_of(false, 4 * 1024)).await.unwrap().0);
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    // Three seconds of it go out at once, and do not fit.
    says(&far, "r1", "A long story.", 6_000);
    sleep(Duration::from_millis(500)).await;
    let payload = base64_simd::STANDARD.encode_to_string([0x20; 160]);
    phone
        .send(json!({"event": "media", "streamSid": "MZ1", "media": {
        "track": "inbound", "chunk": "1", "timestamp": "0", "payload": payload}}))
        .await;
    let taken = command(&mut far, |command| matches!(command, LiveCommand::AppendAudio(_)));
    timeout(Duration::from_millis(200), taken).await.unwrap();
    // Nor does stale speech come before the clear, beyond what was on the wire.
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::Interrupted { reply: None });
    sleep(Duration::from_secs(2)).await;
    let mut before = Vec::new();
    loop {
        let message = phone.next(Duration::from_secs(2)).await.unwrap();
        if message["event"] == "clear" {
            break;
        }
        before.push(message);
    }
    assert!((1..1_000).contains(&media_ms(&before)), "{}", media_ms(&before));
    phone.send(json!({"event": "stop", "streamSid": "MZ1", "stop": {}})).await;
    assert_eq!(quiet.record().await.end, CallEnd::CallerHungUp);
}

#[tokio::test(start_paused = true)]
async fn a_goodbye_that_comes_late_and_in_pieces_is_heard_to_its_end() {
    let mut quiet = Quiet::new("");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    calls_tool(&far, "hang_up", "{}");
    command(&mut far, |command| matches!(command, LiveCommand::ToolResponse(_))).await;
    let reply = command(&mut far, |command| matches!(command, LiveCommand::CreateReply { .. }));
    let request = match timeout(Duration::from_secs(1), reply).await {
        Ok(LiveCommand::CreateReply { request }) => Some(request),
        _ => None,
    };
    // A slow machine thinks for eight seconds, and its mouth needs two for each piece.
    let speaks = async {
        sleep(Duration::from_secs(8)).await;
        far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request });
        for _ in 0..4 {
            voice(&far, "r1", "Good", 400);
            sleep(Duration::from_secs(2)).await;
        }
        done(&far, "r1", ReplyOutcome::Completed);
    };
    // And the line is slow too.
    let hears = async {
        let mut heard = Vec::new();
        while let Some(message) = phone.next(Duration::from_secs(60)).await {
            if let Some(name) = message["mark"]["name"].as_str() {
                sleep(Duration::from_millis(900)).await;
                let mark = json!({ "name": name });
                phone.send(json!({"event": "mark", "streamSid": "MZ1", "mark": mark})).await;
            } else {
                heard.push(message);
            }
        }
        media_ms(&heard)
    };
    let ((), heard) = tokio::join!(speaks, hears);
    let record = quiet.record().await;
    assert_eq!((heard, record.end), (1_600, CallEnd::AgentHungUp));
    assert_eq!((record.heard_ms, record.playout.marks_lost), (1_600, 0));
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_was_silent_at_the_start_is_heard_in_wide_band() {
    let mut quiet = Quiet::new("");
    let mut line = quiet.line(true);
    line.write_all(&[&[0x01, 0, 16][..], &[7; 16]].concat()).await.unwrap();
    let mut far = timeout(Duration::from_secs(5), quiet.provider.far_end()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    let mut ms = 0;
    for _ in 0..50 {
        line.write_all(&[&[0x12, 2, 128][..], &[1; 640]].concat()).await.unwrap();
        sleep(Duration::from_millis(20)).await;
        // The silence of before is in front of it.
        while let Ok(Some(told)) = timeout(Duration::from_millis(1), far.command()).await {
            if let LiveCommand::AppendAudio(frame) = told
                && frame != frame.silenced()
            {
                ms += frame.duration().as_millis();
            }
        }
    }
    assert!((900..=1_100).contains(&ms), "{ms} ms at the rate at which it was spoken");
    line.write_all(&[0x00, 0, 0]).await.unwrap();
    assert_eq!(quiet.record().await.end, CallEnd::CallerHungUp);
}

#[tokio::test(start_paused = true)]
async fn a_line_whose_peer_has_vanished_is_over_in_half_a_minute() {
    // Nothing is closed, and nothing answers: it is the bridge's own pings that find out.
    let mut quiet = Quiet::with("no_media_seconds = 600", "");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let _far = quiet.provider.far_end().await;
    let vanished = Instant::now();
    let record = quiet.record().await;
    assert!(matches!(record.end, CallEnd::Lost { .. }), "{:?}", record.end);
    assert!(vanished.elapsed() < Duration::from_secs(34), "{:?}", vanished.elapsed());
    drop(phone);
}

#[tokio::test(start_paused = true)]
async fn marks_that_never_come_hang_nothing() {
    let mut quiet = Quiet::new("");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    says(&far, "r1", "A story.", 1_000);
    let mut heard = Vec::new();
    while let Some(message) = phone.next(Duration::from_secs(2)).await {
        heard.push(message);
    }
    assert_eq!(media_ms(&heard), 1_000);
    assert!(heard.iter().any(|message| message["event"] == "mark"), "and none is answered");
    // The session knows all the same that the reply was heard: the next one is another turn.
    says(&far, "r2", "Another.", 200);
    while let Some(message) = phone.next(Duration::from_secs(3)).await {
        heard.push(message);
    }
    assert_eq!(media_ms(&heard), 1_200);
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    drop(phone);
    let _ = timeout(Duration::from_secs(5), far.command()).await;
    let record = quiet.record().await;
    assert!(record.playout.marks_lost >= 3, "{:?}", record.playout);
    assert_eq!(record.heard_ms, 1_200, "by the clock");
}

#[tokio::test(start_paused = true)]
async fn a_line_that_carries_nothing_is_given_up() {
    let mut quiet = Quiet::new("");
    let began = Instant::now();
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let _far = quiet.provider.far_end().await;
    // The socket itself lives: pings are answered.
    while phone.next(Duration::from_secs(60)).await.is_some() {}
    let record = quiet.record().await;
    assert_eq!(record.end, CallEnd::NoMedia);
    assert!((20..23).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(quiet.handle.stats().active, 0);
}

#[tokio::test(start_paused = true)]
async fn where_both_sides_hang_up_at_once_the_call_ends_once() {
    let mut quiet = Quiet::new("");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let far = quiet.provider.far_end().await;
    phone.send(json!({"event": "stop", "streamSid": "MZ1", "stop": {"callSid": "CA1"}})).await;
    quiet.handle.end();
    let record = quiet.record().await;
    assert!(matches!(record.end, CallEnd::CallerHungUp | CallEnd::Drained), "{:?}", record.end);
    timeout(Duration::from_secs(10), far.dropped()).await.unwrap();
    sleep(Duration::from_secs(30)).await;
    assert!(quiet.records.try_recv().is_err(), "one record");
    assert_eq!((quiet.handle.stats().active, quiet.handle.stats().ended), (0, 1));
}

/// Whole packets of an AudioSocket line, with the time at which each came.
async fn packets(line: &mut DuplexStream, count: usize) -> Vec<(Instant, u8, usize)> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut head = [0; 3];
        line.read_exact(&mut head).await.unwrap();
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        line.read_exact(&mut body).await.unwrap();
        all.push((Instant::now(), head[0], body.len()));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn audiosocket_is_paced_without_drift_and_a_silent_caller_is_answered() {
    let mut quiet = Quiet::new("");
    let mut line = quiet.line(true);
    // The UUID and nothing more: Asterisk swallows comfort noise.
    line.write_all(&[&[0x01, 0, 16][..], &[7; 16]].concat()).await.unwrap();
    let far = timeout(Duration::from_secs(5), quiet.provider.far_end()).await.expect("an answer");
    says(&far, "r1", "A long story.", 60_000);
    let came = packets(&mut line, 3_000).await;
    assert!(came.iter().all(|(_, kind, length)| (*kind, *length) == (0x10, 320)));
    let (first, last) = (came[0].0, came[2_999].0);
    let drift = (last - first).as_millis().abs_diff(2_999 * 20 - 40);
    assert!(drift <= 45, "{drift} ms off after a minute");
    for (number, (at, ..)) in came.iter().enumerate().skip(3) {
        let due = first + Duration::from_millis(number as u64 * 20 - 40);
        assert!(at.duration_since(due) <= Duration::from_millis(3), "packet {number} is late");
    }
    line.write_all(&[0x00, 0, 0]).await.unwrap();
    let record = quiet.record().await;
    assert_eq!((record.end, record.playout.skipped), (CallEnd::CallerHungUp, 0));
}

#[tokio::test(start_paused = true)]
async fn trial_c06_keys_do_not_cut_a_protected_greeting() {
    let agent = "[agent]\ngreeting = \"This call is recorded.\"\ngreeting_protected = true";
    let mut quiet = Quiet::new(agent);
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    let say = command(&mut far, |command| matches!(command, LiveCommand::Say { .. })).await;
    let LiveCommand::Say { request, .. } = say else { panic!("{say:?}") };
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: Some(request) });
    voice(&far, "r1", "This call is recorded.", 2_000);
    let mut heard = vec![phone.next(Duration::from_secs(5)).await.unwrap()];
    phone.press('1').await;
    done(&far, "r1", ReplyOutcome::Completed);
    while media_ms(&heard) < 2_000 {
        heard.push(phone.next(Duration::from_secs(5)).await.expect("all of the greeting"));
    }
    assert!(heard.iter().all(|message| message["event"] != "clear"), "it was cut off");
    // The key is told to the model, soon.
    let told = command(&mut far, |command| matches!(command, LiveCommand::Text { .. }));
    let told = timeout(Duration::from_secs(5), told).await.expect("the key is told");
    assert!(matches!(&told, LiveCommand::Text { text, .. } if text.contains("keys 1")), "{told:?}");
    drop(phone);
    quiet.record().await;
}

#[tokio::test(start_paused = true)]
async fn trial_b06_a_stalled_line_is_cleared_though_the_clock_says_all_was_heard() {
    let mut quiet = Quiet::new("");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    says(&far, "r1", "Two seconds.", 2_000);
    let mut heard = Vec::new();
    while media_ms(&heard) < 2_000 {
        heard.push(phone.next(Duration::from_secs(5)).await.unwrap());
    }
    // Nothing of it has been played, for the way to the telephone is blocked: no mark comes.
    sleep(Duration::from_millis(2_600)).await;
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::Interrupted { reply: None });
    let mut cleared = false;
    while let Some(message) = phone.next(Duration::from_secs(1)).await {
        cleared |= message["event"] == "clear";
    }
    assert!(cleared, "the telephone would talk on over the caller");
    drop(phone);
    let _ = timeout(Duration::from_secs(1), far.command()).await;
    assert!(quiet.record().await.heard_ms < 2_000, "not all of it was heard");
}

/// The output of the next tool, as text.
async fn output(far: &mut antiphon_testkit::FarEnd) -> String {
    let is_output = |command: &LiveCommand| matches!(command, LiveCommand::ToolResponse(_));
    match command(far, is_output).await {
        LiveCommand::ToolResponse(response) => serde_json::to_string(&response.response).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn trial_g08_a_field_ends_by_its_terminator_or_by_time_and_interrupts_only_where_it_may() {
    let quiet = Quiet::new("[agent]\nkeys_interrupt = false");
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let mut far = quiet.provider.far_end().await;
    calls_tool(&far, "collect_keys", r#"{"between_seconds": 2, "first_seconds": 30}"#);
    for _ in 0..10 {
        // Silence goes on meanwhile, or the line would be given up.
        sleep(Duration::from_secs(2)).await;
        phone.send(silence()).await;
    }
    for key in "12".chars() {
        phone.send(silence()).await;
        phone.press(key).await;
        sleep(Duration::from_millis(1_500)).await;
    }
    let ended = output(&mut far).await;
    assert!(ended.contains("\"12\"") && ended.contains("timed_out"), "{ended}");
    far.emit(LiveEvent::ReplyStarted { reply: "t2".into(), request: None });
    voice(&far, "t2", "You entered one two.", 3_000);
    phone.next(Duration::from_secs(5)).await.expect("a voice");
    phone.send(silence()).await;
    for key in "9*".chars() {
        phone.press(key).await;
    }
    done(&far, "t2", ReplyOutcome::Completed);
    let mut cleared = false;
    while let Some(message) = phone.next(Duration::from_secs(4)).await {
        cleared |= message["event"] == "clear";
        if let Some(name) = message["mark"]["name"].as_str() {
            phone.send(json!({"event": "mark", "mark": {"name": name}})).await;
        }
        phone.send(silence()).await;
    }
    assert!(!cleared, "keys_interrupt is off");
}

/// A piece of the caller's silence.
fn silence() -> Value {
    let payload = base64_simd::STANDARD.encode_to_string([0xff; 160]);
    json!({"event": "media", "media": {"payload": payload}})
}

#[tokio::test(start_paused = true)]
async fn trial_g07_a_call_has_a_longest_time_whatever_its_agent_does() {
    let mut quiet = Quiet::with("max_length_seconds = 30", "");
    let began = Instant::now();
    let mut phone = quiet.twilio().await;
    phone.start().await;
    let far = quiet.provider.far_end().await;
    // An agent that never comes to an end, and a caller who listens.
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: None });
    voice(&far, "r1", "and so on", 100_000);
    while quiet.records.is_empty() {
        phone.send(silence()).await;
        phone.next(Duration::from_secs(1)).await;
    }
    let record = quiet.record().await;
    assert!(
        matches!(record.end, CallEnd::TooLong | CallEnd::SessionEnded { .. }),
        "{:?}",
        record.end
    );
    assert!((30..75).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}
