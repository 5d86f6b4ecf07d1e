//! Calls from their beginning to their record.

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome, TextUpdate},
    telephony::CallEnd,
    types::{ToolArguments, ToolCallRequest},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::rig::*;

#[tokio::test]
async fn a_call_is_a_session_and_leaves_a_record() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    for _ in 0..10 {
        caller.speak().await;
    }
    let heard = command(&mut far, |command| matches!(command, LiveCommand::AppendAudio(_))).await;
    assert!(matches!(heard, LiveCommand::AppendAudio(frame) if !frame.is_empty()));
    says(&far, "r1", "Hello.", 500);
    let messages = caller.until("mark").await;
    assert!(media_ms(&messages) > 0);
    assert!(messages.iter().all(|message| message["streamSid"] == "MZ1"));
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end.clone(), &*record.call_id), (CallEnd::CallerHungUp, "CA1"));
    assert_eq!(record.carrier, "twilio");
    assert!(record.session.is_some_and(|stats| stats.replies == 1));
    soon("the end of the session", far.dropped()).await;
    assert_eq!(rig.handle.stats().active, 0);
}

#[tokio::test]
async fn trial_g03_speech_over_buffered_audio_clears_the_carrier() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    // All of it is sent and the model is done, long before the caller has heard it.
    says(&far, "r1", "A long story.", 2_500);
    caller.until("mark").await;
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::Interrupted { reply: None });
    caller.until("clear").await;
    let truncate =
        command(&mut far, |command| matches!(command, LiveCommand::Truncate { .. })).await;
    assert!(
        matches!(&truncate, LiveCommand::Truncate { audio_end_ms, .. } if *audio_end_ms < 2_500),
        "{truncate:?}"
    );
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!(record.playout.clears, 1);
    assert!(record.heard_ms < 2_500, "{}", record.heard_ms);
}

#[tokio::test]
async fn trial_b06_marks_that_a_clear_brings_back_prove_nothing() {
    let mut rig = Rig::open().await;
    let (mut caller, far) = rig.call("CA1").await;
    says(&far, "r1", "A long story.", 2_500);
    let mut marks = Vec::new();
    while marks.len() < 2 {
        let mark = caller.until("mark").await.pop().unwrap();
        marks.push(mark["mark"]["name"].as_str().unwrap().to_owned());
    }
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::Interrupted { reply: None });
    caller.until("clear").await;
    for name in &marks {
        caller.mark(name).await;
    }
    // What follows is played as if nothing had been.
    says(&far, "r2", "Yes?", 300);
    let name =
        caller.until("mark").await.pop().unwrap()["mark"]["name"].as_str().unwrap().to_owned();
    assert!(!marks.contains(&name));
    caller.mark(&name).await;
    caller.stop().await;
    let record = rig.record().await;
    assert!(record.playout.marks_stale >= 2, "{:?}", record.playout);
}

#[tokio::test]
async fn trial_g01_a_second_stream_of_a_call_is_refused_and_the_first_goes_on() {
    let mut rig = Rig::open().await;
    let (mut first, far) = rig.call("CA1").await;
    let mut second = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    second.start("CA1", json!({})).await;
    assert_eq!(second.closed().await, 1008);
    assert_eq!(rig.record().await.end, CallEnd::SecondStream);
    says(&far, "r1", "Hello.", 200);
    first.until("media").await;
    assert_eq!(rig.provider.requests().len(), 1);
    first.stop().await;
    assert_eq!(rig.record().await.end, CallEnd::CallerHungUp);
    // The call may come back once its stream is gone.
    let (mut again, _far) = rig.call("CA1").await;
    again.stop().await;
    assert_eq!(rig.record().await.end, CallEnd::CallerHungUp);
}

#[tokio::test]
async fn trial_g05_a_line_that_is_cut_in_the_middle_of_a_reply_leaves_nothing_running() {
    let mut rig = Rig::open().await;
    let (mut caller, far) = rig.call("CA1").await;
    begins(&far, "r1", "A long story", 2_000);
    caller.until("media").await;
    caller.cut();
    let record = rig.record().await;
    assert!(matches!(record.end, CallEnd::Lost { .. } | CallEnd::CallerHungUp), "{:?}", record.end);
    soon("the end of the session", far.dropped()).await;
    assert_eq!(rig.provider.open_connections(), 0);
    assert_eq!(rig.handle.stats().active, 0);
}

#[tokio::test]
async fn trial_g08_keys_reach_the_model_and_interrupt() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    begins(&far, "r1", "Please listen to all of", 2_000);
    caller.until("media").await;
    for digit in "42#".chars() {
        caller.press(digit).await;
    }
    caller.until("clear").await;
    done(&far, "r1", ReplyOutcome::Cancelled);
    let told = command(&mut far, |command| matches!(command, LiveCommand::Text { .. })).await;
    assert!(matches!(&told, LiveCommand::Text { text, .. } if text.contains("4 2")), "{told:?}");
    caller.stop().await;
    assert_eq!(rig.record().await.keys, 3);
}

pub fn calls_tool(far: &antiphon_testkit::FarEnd, name: &str, args: &str) {
    let call = ToolCallRequest {
        id: "c1".into(),
        name: name.into(),
        arguments: ToolArguments::Json(args.into()),
    };
    far.emit(LiveEvent::ReplyStarted { reply: "t1".into(), request: None })
        .emit(LiveEvent::ToolCalls { reply: Some("t1".into()), calls: vec![call] });
    done(far, "t1", ReplyOutcome::Completed);
}

#[tokio::test]
async fn trial_g08_a_field_of_keys_goes_to_the_tool_that_waits_for_it() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    calls_tool(&far, "collect_keys", r#"{"most": 4, "secret": true}"#);
    // The tool waits, once its call's task has run; keys before that are told to the model. So many
    // are pressed that four of them come after.
    let output = loop {
        caller.press('7').await;
        let wait = std::time::Duration::from_millis(50);
        let next = command(&mut far, |command| matches!(command, LiveCommand::ToolResponse(_)));
        if let Ok(command) = tokio::time::timeout(wait, next).await {
            break command;
        }
    };
    let LiveCommand::ToolResponse(response) = output else { panic!("{output:?}") };
    let output = serde_json::to_string(&response.response).unwrap();
    assert!(output.contains("\"count\":4") && output.contains("keys/"), "{output}");
    assert!(!output.contains("7777"), "a secret is not told to the model");
    caller.stop().await;
    rig.record().await;
}

#[tokio::test]
async fn the_agent_hangs_up_after_its_goodbye_was_heard() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None })
        .emit(LiveEvent::InputTranscript {
            item: "u1".into(),
            text: TextUpdate::Final(Some("Bye.".into())),
            speaker: None,
        });
    calls_tool(&far, "hang_up", "{}");
    command(&mut far, |command| matches!(command, LiveCommand::ToolResponse(_))).await;
    says(&far, "r2", "Goodbye.", 400);
    let mut heard_ms = 0;
    let code = loop {
        match caller.next().await {
            Ok(message) if message["event"] == "mark" => {
                let name = message["mark"]["name"].as_str().unwrap().to_owned();
                caller.mark(&name).await;
            }
            Ok(message) => heard_ms += media_ms(&[message]),
            Err(code) => break code,
        }
    };
    assert_eq!((code, heard_ms), (1000, 400), "all of it was sent before the call ended");
    let record = rig.record().await;
    assert_eq!(record.end, CallEnd::AgentHungUp);
    assert_eq!((record.heard_ms, record.generated_ms), (400, 400));
}

#[tokio::test]
async fn audiosocket_is_answered_with_packets_and_hung_up_by_one() {
    let mut rig = Rig::open().await;
    let mut socket = TcpStream::connect(rig.audiosocket).await.unwrap();
    let packet = |kind: u8, body: &[u8]| {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind, length[0], length[1]][..], body].concat()
    };
    socket.write_all(&packet(0x01, &[7; 16])).await.unwrap();
    socket.write_all(&packet(0x10, &[0; 320])).await.unwrap();
    let far = soon("a connection", rig.provider.far_end()).await;
    says(&far, "r1", "Hello.", 200);
    let mut head = [0; 3];
    let mut body = [0; 320];
    for _ in 0..10 {
        soon("a packet", socket.read_exact(&mut head)).await.unwrap();
        assert_eq!(head, [0x10, 1, 64], "20 ms of 16-bit audio");
        soon("a packet", socket.read_exact(&mut body)).await.unwrap();
    }
    // The bridge is stopped: the call ends with it.
    socket.write_all(&packet(0x00, &[])).await.unwrap();
    let record = rig.record().await;
    assert_eq!(
        (record.end, &*record.call_id),
        (CallEnd::CallerHungUp, "07070707-0707-0707-0707-070707070707")
    );
}

#[tokio::test]
async fn a_malformed_message_ends_its_call_with_a_code_and_no_other() {
    let mut rig = Rig::open().await;
    let (mut good, far) = rig.call("CA1").await;
    let (mut bad, bad_far) = rig.call("CA2").await;
    bad.send(json!({"event": "media", "streamSid": "MZ1", "media": {"payload": "?"}})).await;
    assert_eq!(bad.closed().await, 1002);
    let record = rig.record().await;
    assert!(matches!(record.end, CallEnd::Malformed { close_code: 1002, .. }), "{:?}", record.end);
    soon("the end of its session", bad_far.dropped()).await;
    says(&far, "r1", "Hello.", 200);
    good.until("media").await;
    good.stop().await;
    rig.record().await;
}

#[tokio::test]
async fn a_bridge_that_is_stopped_takes_no_new_calls_and_ends_those_that_stay() {
    let mut rig =
        Rig::new("[limits]\ndrain_seconds = 1", "[carriers.twilio]\nverify = \"none\"").await;
    let (mut caller, _far) = rig.call("CA1").await;
    drop(rig.stop.take());
    assert_eq!(caller.closed().await, 1001);
    assert_eq!(rig.record().await.end, CallEnd::Drained);
    soon("the end of the bridge", &mut rig.bridge).await.unwrap();
}

#[tokio::test]
async fn trial_c06_speech_during_a_protected_greeting_clears_nothing_at_the_carrier() {
    let agent = "[agent]\ngreeting = \"This call is recorded.\"\ngreeting_protected = true";
    let carrier = "[carriers.twilio]\nverify = \"none\"";
    let mut rig = Rig::new("", &format!("{carrier}\n{agent}")).await;
    let (mut caller, mut far) = rig.call("CA1").await;
    let say = command(&mut far, |command| matches!(command, LiveCommand::Say { .. })).await;
    let LiveCommand::Say { request, text } = say else { panic!("{say:?}") };
    assert_eq!(text, "This call is recorded.");
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: Some(request) });
    voice(&far, "r1", "This call is recorded.", 2_000);
    let mut messages = caller.until("media").await;
    far.emit(LiveEvent::SpeechStarted { audio_start_ms: None })
        .emit(LiveEvent::SpeechStopped { audio_end_ms: None });
    done(&far, "r1", ReplyOutcome::Completed);
    while media_ms(&messages) < 2_000 {
        messages.push(caller.next().await.unwrap());
    }
    assert!(messages.iter().all(|message| message["event"] != "clear"), "it was cut off");
    caller.stop().await;
    rig.record().await;
}
