//! What is done to a call: handed on, brought back, held, hung up. The carrier is a server that writes
//! down what it is asked.

use std::time::{Duration, SystemTime};

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome},
    telephony::{
        CallEnd,
        token::{Claims, Tokens},
    },
    types::{ToolArguments, ToolCallRequest},
};
use antiphon_testkit::FarEnd;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    api::{Api, ask, twilio_asks},
    rig::*,
};

const TOP: &str = "public_url = \"https://example.com\"\ntoken_secret_env = \"SECRET\"\n\
                   transfer_allow = [\"+1555\"]";

fn twilio(api: &Api) -> String {
    format!(
        "[carriers.twilio]\nverify = \"token\"\nauth_token_env = \"SECRET\"\naccount_sid = \"AC1\"\n\
         api_url = \"http://{}\"",
        api.address
    )
}

pub fn token(call: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let claims = Claims::new(Some(call.to_owned()), None, None);
    Tokens::new(&SECRET.into()).unwrap().mint(claims, now, Duration::from_secs(60)).unwrap()
}

/// A reply with words of so many milliseconds and a tool call.
fn says_and_calls(far: &FarEnd, reply: &str, ms: usize, name: &str, args: &str) {
    begins(far, reply, "One moment.", ms);
    let call = ToolCallRequest {
        id: format!("call-{reply}").as_str().into(),
        name: name.into(),
        arguments: ToolArguments::Json(args.into()),
    };
    far.emit(LiveEvent::ToolCalls { reply: Some(reply.into()), calls: vec![call] });
    done(far, reply, ReplyOutcome::Completed);
}

async fn tool_output(far: &mut FarEnd) -> String {
    let output = command(far, |command| matches!(command, LiveCommand::ToolResponse(_))).await;
    let LiveCommand::ToolResponse(response) = output else { panic!("{output:?}") };
    serde_json::to_string(&response.response).unwrap()
}

/// A call at Twilio that has been handed on to a number which rings; its stream is over.
async fn handed_on(api: &mut Api) -> (Rig, FarEnd) {
    let rig = Rig::new(TOP, &twilio(api)).await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token("CA1") })).await;
    let far = soon("a connection", rig.provider.far_end()).await;
    says_and_calls(&far, "r1", 600, "transfer_call", r#"{"to": "+15550001"}"#);
    caller.until("mark").await;
    assert!(api.is_quiet(), "what is said with it is heard first");
    hears_the_rest(&mut caller).await;
    let asked = api.next().await;
    assert_eq!(asked.method, "POST");
    assert_eq!(asked.path, "/2010-04-01/Accounts/AC1/Calls/CA1.json");
    assert_eq!(asked.content_type, "application/x-www-form-urlencoded");
    let basic = base64_simd::STANDARD.encode_to_string(format!("AC1:{SECRET}"));
    assert_eq!(asked.authorization, format!("Basic {basic}"));
    let twiml = asked.field("Twiml").unwrap();
    let action = r#"<Dial action="https://example.com/telephony/twilio/dialled""#;
    assert!(twiml.contains(action) && twiml.contains(">+15550001</Dial>"), "{twiml}");
    caller.stop().await;
    assert_eq!(caller.closed().await, 1006, "the carrier's stream is let go");
    (rig, far)
}

/// Nothing of the reply is left at the carrier: all marks come back.
async fn hears_the_rest(caller: &mut Caller) {
    let mut heard = 0;
    while let Ok(next) = tokio::time::timeout(Duration::from_millis(300), caller.next()).await {
        let message = next.unwrap();
        heard += media_ms(std::slice::from_ref(&message));
        if let Some(name) = message["mark"]["name"].as_str() {
            let name = name.to_owned();
            caller.mark(&name).await;
        }
        if heard >= 10_000 {
            break;
        }
    }
}

#[tokio::test]
async fn a_call_whose_number_is_busy_comes_back_to_the_same_agent() {
    let mut api = Api::start().await;
    let (mut rig, mut far) = handed_on(&mut api).await;
    let path = "/telephony/twilio/dialled";
    let fields = [("CallSid", "CA1"), ("DialCallStatus", "busy")];
    let unsigned = ask(rig.address, "POST", path, &[], "CallSid=CA1&DialCallStatus=busy").await;
    assert_eq!(unsigned.0, 403);
    let (status, twiml) = twilio_asks(rig.address, path, &fields).await;
    assert!(
        status == 200 && twiml.contains("<Connect><Stream url=\"wss://example.com/"),
        "{twiml}"
    );
    let output = tool_output(&mut far).await;
    assert!(output.contains("busy"), "{output}");
    // Words of meanwhile are heard by whoever comes back.
    says(&far, "r2", "Nobody answers there.", 400);
    let token = twiml.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token, "transfer": "busy" })).await;
    let messages = caller.until("mark").await;
    assert!(media_ms(&messages) > 0);
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
    assert_eq!(rig.provider.requests().len(), 1, "it was the same session");
}

#[tokio::test]
async fn a_call_that_is_answered_elsewhere_has_been_handed_on() {
    let mut api = Api::start().await;
    let (mut rig, far) = handed_on(&mut api).await;
    let fields = [("CallSid", "CA1"), ("DialCallStatus", "completed")];
    let (_, twiml) = twilio_asks(rig.address, "/telephony/twilio/dialled", &fields).await;
    assert!(twiml.contains("<Hangup/>"), "{twiml}");
    assert_eq!(rig.record().await.end, CallEnd::Transferred);
    soon("the end of the session", far.dropped()).await;
    assert!(api.is_quiet(), "nobody hangs up on them");
}

#[tokio::test]
async fn a_call_is_handed_on_only_to_numbers_that_are_allowed() {
    let mut api = Api::start().await;
    let mut rig = Rig::new(TOP, &twilio(&api)).await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token("CA1") })).await;
    let mut far = soon("a connection", rig.provider.far_end()).await;
    says_and_calls(&far, "r1", 40, "transfer_call", r#"{"to": "+19005550001"}"#);
    let output = tool_output(&mut far).await;
    assert!(output.contains("may not be called"), "{output}");
    assert!(api.is_quiet());
    caller.stop().await;
    rig.record().await;
}

#[tokio::test]
async fn trial_g01_a_stream_with_a_token_for_the_call_takes_a_running_call_over() {
    let api = Api::start().await;
    let mut rig = Rig::new(TOP, &twilio(&api)).await;
    let mut first = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    first.start("CA1", json!({ "token": token("CA1") })).await;
    let far = soon("a connection", rig.provider.far_end()).await;
    says(&far, "r1", "Hello.", 200);
    first.until("media").await;
    let mut second = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    second.start("CA1", json!({ "token": token("CA1") })).await;
    assert_eq!(first.closed().await, 1000);
    says(&far, "r2", "Are you there?", 200);
    second.until("media").await;
    second.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
    assert_eq!(rig.provider.requests().len(), 1);
}

#[tokio::test]
async fn telnyx_is_asked_to_hang_up_at_every_end_and_once() {
    for (status, answer) in [
        (200, r#"{"data":{"result":"ok"}}"#),
        (422, r#"{"errors":[{"code":"90018","title":"Call has already ended"}]}"#),
        (404, "{}"),
    ] {
        let mut api = Api::start().await;
        let carriers = format!(
            "[carriers.telnyx]\nverify = \"secret\"\nsecret_env = \"SECRET\"\n\
             api_key_env = \"SECRET\"\napi_url = \"http://{}\"",
            api.address
        );
        // Too much to do: it is asked once more.
        api.answer(429, "retry-after: 0\r\n", "{}").answer(status, "", answer);
        let mut rig = Rig::new("", &carriers).await;
        let bearer = format!("Bearer {SECRET}");
        let mut caller =
            Caller::connect(rig.address, "telnyx", &[("authorization", &bearer)]).await.unwrap();
        let start = json!({
            "event": "start", "sequence_number": "1", "stream_id": "S1",
            "start": {
                "call_control_id": "v3:abc_D-e", "user_id": "U1", "from": "+1", "to": "+2",
                "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
            },
        });
        caller.send(start.clone()).await;
        let far = soon("a connection", rig.provider.far_end()).await;
        // A second start may not come.
        caller.send(start).await;
        assert_eq!(caller.closed().await, 1002);
        let mut commands = Vec::new();
        for _ in 0..2 {
            let asked = api.next().await;
            assert_eq!(asked.method, "POST");
            commands.push(asked.json());
            assert_eq!(asked.path, "/v2/calls/v3:abc_D-e/actions/hangup");
            assert_eq!(asked.authorization, bearer);
            assert_eq!(asked.content_type, "application/json");
        }
        // It is one command, told twice.
        assert_eq!(commands[0], commands[1]);
        assert!(commands[0]["command_id"].as_str().is_some_and(|name| name.len() >= 22));
        assert!(matches!(rig.record().await.end, CallEnd::Malformed { .. }));
        assert!(api.is_quiet());
        assert_eq!(rig.handle.stats().not_hung_up, u64::from(status == 404));
        drop(far);
    }
}

#[tokio::test]
async fn a_dialplan_asks_for_the_number_and_brings_the_caller_back() {
    let mut rig = Rig::new("transfer_allow = [\"+1555\"]", "").await;
    let packet = |kind: u8, body: &[u8]| {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[kind, length[0], length[1]][..], body].concat()
    };
    let open = async || {
        let mut socket = TcpStream::connect(rig.audiosocket).await.unwrap();
        socket.write_all(&packet(0x01, &[7; 16])).await.unwrap();
        socket.write_all(&packet(0x10, &[0; 320])).await.unwrap();
        socket
    };
    let mut socket = open().await;
    let mut far = soon("a connection", rig.provider.far_end()).await;
    says_and_calls(&far, "r1", 100, "transfer_call", r#"{"to": "+15550001"}"#);
    // All of it is heard, and then the socket's hang-up hands the caller to the dialplan.
    let mut packets = 0;
    loop {
        let mut head = [0; 3];
        soon("a packet", socket.read_exact(&mut head)).await.unwrap();
        if head[0] == 0 {
            break;
        }
        let mut body = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        soon("a packet", socket.read_exact(&mut body)).await.unwrap();
        // Silence keeps the socket open where nothing else is sent.
        packets += usize::from(body.iter().any(|byte| *byte != 0));
    }
    assert_eq!(packets, 5, "100 ms of what was said with it");
    drop(socket);
    let next = "/telephony/audiosocket/next?call=07070707-0707-0707-0707-070707070707";
    assert_eq!(ask(rig.address, "GET", next, &[], "").await, (200, "+15550001".into()));
    assert_eq!(ask(rig.address, "GET", next, &[], "").await, (200, String::new()), "only once");
    let status = format!("{next}&status=NOANSWER");
    assert_eq!(ask(rig.address, "GET", &status, &[], "").await, (200, "back".into()));
    let output = tool_output(&mut far).await;
    assert!(output.contains("noanswer"), "{output}");
    let mut socket = open().await;
    says(&far, "r2", "Nobody answers.", 100);
    let mut head = [0; 3];
    soon("a packet", socket.read_exact(&mut head)).await.unwrap();
    assert_eq!(head[0], 0x10);
    socket.write_all(&packet(0x00, &[])).await.unwrap();
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
    assert_eq!(rig.provider.requests().len(), 1);
}

#[tokio::test]
async fn a_caller_on_hold_hears_nothing_and_then_all_of_it() {
    let mut rig = Rig::open().await;
    let (mut caller, mut far) = rig.call("CA1").await;
    says_and_calls(&far, "t1", 20, "hold_call", r#"{"seconds": 60}"#);
    tool_output(&mut far).await;
    hears_the_rest(&mut caller).await;
    says(&far, "r1", "While you wait.", 300);
    for _ in 0..5 {
        caller.speak().await;
    }
    let heard = command(&mut far, |command| matches!(command, LiveCommand::AppendAudio(_))).await;
    let LiveCommand::AppendAudio(frame) = heard else { panic!("{heard:?}") };
    assert_eq!(frame, frame.silenced(), "the caller is not heard");
    let quiet = tokio::time::timeout(Duration::from_millis(300), caller.until("media")).await;
    assert!(quiet.is_err(), "the caller hears nothing");
    says_and_calls(&far, "t2", 20, "hold_call", r#"{"seconds": 0}"#);
    let mut heard = 0;
    while heard < 320 {
        heard += media_ms(&caller.until("media").await);
    }
    caller.stop().await;
    rig.record().await;
}

#[tokio::test]
async fn what_a_carrier_cannot_do_is_not_offered_to_the_model() {
    let mut rig = Rig::open().await;
    let (mut caller, _far) = rig.call("CA1").await;
    let request = rig.provider.requests().pop().unwrap();
    let tools: Vec<_> = request.config.tools.iter().map(|tool| tool.name.to_string()).collect();
    assert!(tools.iter().any(|name| name == "hang_up"), "{tools:?}");
    assert!(!tools.iter().any(|name| name == "transfer_call" || name == "press_keys"), "{tools:?}");
    caller.stop().await;
    rig.record().await;
}

/// A call at Telnyx, by a secret.
async fn at_telnyx(api: &Api) -> (Rig, Caller, FarEnd) {
    let carriers = format!(
        "[carriers.telnyx]\nverify = \"secret\"\nsecret_env = \"SECRET\"\n\
         api_key_env = \"SECRET\"\napi_url = \"http://{}\"",
        api.address
    );
    let rig = Rig::new("", &carriers).await;
    let bearer = format!("Bearer {SECRET}");
    let mut caller = telnyx_stream(&rig, &bearer).await;
    let far = soon("a connection", rig.provider.far_end()).await;
    says(&far, "r1", "Hello.", 100);
    caller.until("media").await;
    (rig, caller, far)
}

async fn telnyx_stream(rig: &Rig, bearer: &str) -> Caller {
    let mut caller =
        Caller::connect(rig.address, "telnyx", &[("authorization", bearer)]).await.unwrap();
    let start = json!({
        "event": "start", "sequence_number": "1", "stream_id": "S1",
        "start": {
            "call_control_id": "v3:abc", "user_id": "U1", "from": "+1", "to": "+2",
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        },
    });
    caller.send(start).await;
    caller
}

#[tokio::test]
async fn a_carrier_that_fails_is_asked_again_to_hang_up() {
    let mut api = Api::start().await;
    let (mut rig, caller, _far) = at_telnyx(&api).await;
    api.answer(503, "", "").answer(500, "", "");
    // A stream that is closed without a word is no end of the call, which would stand and cost.
    caller.close().await;
    for _ in 0..3 {
        let asked = api.next().await;
        assert_eq!(asked.path, "/v2/calls/v3:abc/actions/hangup");
    }
    assert!(matches!(rig.record().await.end, CallEnd::Lost { .. }));
    assert_eq!(rig.handle.stats().not_hung_up, 0);
}

#[tokio::test]
async fn a_stream_that_telnyx_closes_without_a_word_may_come_back() {
    let mut api = Api::start().await;
    let (mut rig, caller, far) = at_telnyx(&api).await;
    caller.close().await;
    let mut caller = soon("the stream's return", async {
        loop {
            let mut caller = telnyx_stream(&rig, &format!("Bearer {SECRET}")).await;
            // Until its end is known here, it is a second stream.
            let back = tokio::time::timeout(Duration::from_millis(200), caller.next()).await;
            match back {
                Ok(Err(_)) => {}
                _ => break caller,
            }
        }
    })
    .await;
    says(&far, "r2", "Are you there?", 100);
    caller.until("media").await;
    assert!(api.is_quiet());
    caller.send(json!({"event": "stop", "stream_id": "S1", "stop": {}})).await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
}

#[tokio::test]
async fn a_stream_that_ends_before_the_carrier_has_answered_comes_back() {
    let mut api = Api::start().await;
    // And a bridge that is full takes it all the same.
    let mut rig = Rig::new(&format!("{TOP}\n[limits]\ncalls = 1"), &twilio(&api)).await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token("CA1") })).await;
    let mut far = soon("a connection", rig.provider.far_end()).await;
    let release = api.hold();
    says_and_calls(&far, "r1", 40, "press_keys", r##"{"keys": "12#"}"##);
    let twiml = api.next().await.field("Twiml").unwrap();
    caller.stop().await;
    assert_eq!(caller.closed().await, 1006, "the carrier's stream is let go");
    let token = twiml.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token })).await;
    says(&far, "r2", "Done.", 100);
    caller.until("media").await;
    // The answer is late: it ends nothing any more.
    drop(release);
    assert!(tool_output(&mut far).await.contains("pressed"));
    says(&far, "r3", "Anything else?", 100);
    caller.until("media").await;
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
    assert_eq!(rig.provider.requests().len(), 1, "it was the same session");
}

#[tokio::test]
async fn a_bridge_that_is_stopped_still_hears_what_becomes_of_its_calls() {
    let mut api = Api::start().await;
    let (mut rig, mut far) = handed_on(&mut api).await;
    drop(rig.stop.take());
    let path = "/telephony/twilio/dialled";
    let fields = [("CallSid", "CA1"), ("DialCallStatus", "busy")];
    let (status, twiml) = twilio_asks(rig.address, path, &fields).await;
    assert_eq!(status, 200);
    assert!(tool_output(&mut far).await.contains("busy"));
    let new = [("CallSid", "CA2"), ("From", "+1"), ("To", "+2")];
    let (_, busy) = twilio_asks(rig.address, "/telephony/twilio/answer", &new).await;
    assert!(busy.contains("<Reject"), "{busy}");
    says(&far, "r2", "Nobody answers there.", 400);
    let token = twiml.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token, "transfer": "busy" })).await;
    caller.until("media").await;
    assert_eq!(Caller::connect(rig.address, "twilio", &[]).await.err(), Some(503));
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
    soon("the end of the bridge", &mut rig.bridge).await.unwrap();
}

#[tokio::test]
async fn keys_are_pressed_at_twilio_and_the_stream_comes_back() {
    let mut api = Api::start().await;
    let mut rig = Rig::new(TOP, &twilio(&api)).await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token("CA1") })).await;
    let mut far = soon("a connection", rig.provider.far_end()).await;
    says_and_calls(&far, "r1", 40, "press_keys", r##"{"keys": "12#"}"##);
    let twiml = api.next().await.field("Twiml").unwrap();
    assert!(twiml.contains("<Response><Play digits=\"12#\"/><Connect><Stream"), "{twiml}");
    assert!(tool_output(&mut far).await.contains("pressed"));
    caller.stop().await;
    let token = twiml.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token })).await;
    says(&far, "r2", "Done.", 100);
    caller.until("media").await;
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.returns), (CallEnd::CallerHungUp, 1));
}
