//! Calls that are made, and who answers them.

use std::{sync::Arc, time::Duration};

use antiphon::{
    live::{LiveCommand, LiveEvent},
    policy::{InMemoryLimits, LimitStore},
    telephony::{
        AnsweredBy, BridgeConfig, CallEnd, ControlError,
        outbound::{DialError, DialOrder, Outbound},
        rest::Accounts,
    },
};
use serde_json::json;

use crate::{
    api::{Api, twilio_asks},
    control::token,
    rig::*,
};

const TOP: &str = "public_url = \"https://example.com\"\ntoken_secret_env = \"SECRET\"";

fn twilio(api: &Api, outbound: &str) -> String {
    format!(
        "[carriers.twilio]\nverify = \"token\"\nauth_token_env = \"SECRET\"\naccount_sid = \"AC1\"\n\
         api_url = \"http://{}\"\n[outbound]\ncarrier = \"twilio\"\nfrom = \"+15550199\"\n\
         allow = [\"+1555\"]\n{outbound}",
        api.address
    )
}

fn telnyx(api: &Api) -> String {
    format!(
        "[carriers.telnyx]\nverify = \"token\"\napi_key_env = \"SECRET\"\n\
         public_key = \"11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\"\napi_url = \"http://{}\"\n\
         [outbound]\ncarrier = \"telnyx\"\nfrom = \"+15550199\"\nallow = [\"+1555\"]\n\
         connection_id = \"7267\"\ndetect = \"carrier\"\nring_seconds = 20",
        api.address
    )
}

fn outbound(text: &str, limits: Option<Arc<dyn LimitStore>>) -> Result<Outbound, DialError> {
    let text = format!("listen = \"127.0.0.1:0\"\n{TOP}\n{text}");
    let config = BridgeConfig::from_toml(&text, |_| Some(SECRET.to_owned())).unwrap();
    let accounts = config.carriers.iter();
    let accounts = accounts.filter_map(|(carrier, all)| Some((*carrier, all.account.clone()?)));
    let accounts = Accounts::new(accounts.collect::<Vec<_>>()).unwrap();
    Outbound::new(&config, accounts, limits)
}

#[tokio::test]
async fn twilio_is_asked_for_a_call_as_it_documents() {
    let mut api = Api::start().await;
    api.answer(201, "", r#"{"sid":"CA77","status":"queued"}"#);
    let outbound = outbound(&twilio(&api, "detect = \"carrier\""), None).unwrap();
    assert_eq!(outbound.dial(&DialOrder::new("+15550001")).await, Ok("CA77".to_owned()));
    let asked = api.next().await;
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/2010-04-01/Accounts/AC1/Calls.json"));
    let basic = base64_simd::STANDARD.encode_to_string(format!("AC1:{SECRET}"));
    assert_eq!(asked.authorization, format!("Basic {basic}"));
    assert_eq!(asked.content_type, "application/x-www-form-urlencoded");
    for (name, value) in [
        ("To", "+15550001"),
        ("From", "+15550199"),
        ("Timeout", "30"),
        ("TimeLimit", "600"),
        ("MachineDetection", "DetectMessageEnd"),
        ("AsyncAmd", "true"),
        ("AsyncAmdStatusCallback", "https://example.com/telephony/twilio/machine"),
        ("StatusCallback", "https://example.com/telephony/twilio/status?made=outbound"),
        ("StatusCallbackEvent", "completed"),
    ] {
        assert_eq!(asked.field(name).as_deref(), Some(value), "{name}");
    }
    let twiml = asked.field("Twiml").unwrap();
    assert!(twiml.contains("<Stream url=\"wss://example.com/telephony/twilio\">"), "{twiml}");
    assert!(twiml.contains("name=\"token\"") && twiml.contains("value=\"outbound\""), "{twiml}");
}

#[tokio::test]
async fn telnyx_is_asked_for_a_call_as_it_documents() {
    let mut api = Api::start().await;
    api.answer(429, "retry-after: 0\r\n", "{}");
    api.answer(200, "", r#"{"data":{"call_control_id":"v3:x","is_alive":false}}"#);
    let outbound = outbound(&telnyx(&api), None).unwrap();
    assert_eq!(outbound.dial(&DialOrder::new("+15550001")).await, Ok("v3:x".to_owned()));
    let _too_many = api.next().await;
    let asked = api.next().await;
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/v2/calls"));
    assert_eq!(asked.authorization, format!("Bearer {SECRET}"));
    let mut body = asked.json();
    let shown = body["stream_auth_token"].take();
    assert!(shown.as_str().is_some_and(|token| token.contains('.')), "{shown}");
    let command = body["command_id"].take();
    assert!(command.as_str().is_some_and(|name| name.len() >= 22), "{command}");
    assert_eq!(
        body,
        json!({
            "command_id": null, "connection_id": "7267", "to": "+15550001", "from": "+15550199",
            "timeout_secs": 20, "time_limit_secs": 600,
            "stream_url": "wss://example.com/telephony/telnyx", "stream_track": "inbound_track",
            "stream_bidirectional_mode": "rtp", "stream_bidirectional_codec": "PCMU",
            "stream_bidirectional_sampling_rate": 8000, "stream_auth_token": null,
            "client_state": "b3V0Ym91bmQ=",
            "webhook_url": "https://example.com/telephony/telnyx/events",
            "answering_machine_detection": "greeting_end",
        })
    );
}

#[tokio::test]
async fn no_call_is_made_beyond_the_list_and_the_limits() {
    let mut api = Api::start().await;
    // Ten minutes at 1.00: 10.00 for each call.
    let limits = "calls_per_day = 3\nspend_per_day = \"25.00\"\nledger = \"unused\"\n\
                  prices = { \"+1555\" = \"1.00\", \"+15559\" = \"0.0100\" }";
    let text = twilio(&api, limits);
    assert!(matches!(outbound(&text, None), Err(DialError::NotConfigured(_))));
    let store = Arc::new(InMemoryLimits::new());
    let outbound = outbound(&text, Some(store)).unwrap();
    let to = |number: &str| DialOrder::new(number);
    for bad in ["+19005550001", "+445550001", "911", "15550001"] {
        assert_eq!(outbound.dial(&to(bad)).await, Err(DialError::NotAllowed), "{bad}");
    }
    assert!(api.is_quiet());
    // What the carrier refuses takes nothing.
    for _ in 0..3 {
        api.answer(400, "", r#"{"code":21211,"message":"Invalid 'To' Phone Number"}"#);
        let refused = outbound.dial(&to("+15550001")).await;
        let why = ControlError::Refused("status 400, code 21211".into());
        assert_eq!(refused, Err(DialError::Carrier(why)));
    }
    for number in ["+15550001", "+15550002"] {
        api.answer(201, "", r#"{"sid":"CA1"}"#);
        assert_eq!(outbound.dial(&to(number)).await, Ok("CA1".into()));
    }
    let over = outbound.dial(&to("+15550003")).await;
    assert!(matches!(&over, Err(DialError::Limit { until: Some(_), .. })), "{over:?}");
    // A cheaper one has room, and is the third.
    api.answer(201, "", r#"{"sid":"CA2"}"#);
    assert_eq!(outbound.dial(&to("+15559001")).await, Ok("CA2".into()));
    assert!(matches!(outbound.dial(&to("+15559001")).await, Err(DialError::Limit { .. })));
    for _ in 0..6 {
        api.next().await;
    }
    assert!(api.is_quiet(), "nothing was asked of the carrier beyond the limits");
}

#[tokio::test]
async fn what_may_have_been_dialled_stays_taken() {
    for (status, body) in [(503, ""), (201, "{}")] {
        let mut api = Api::start().await;
        let limits = "calls_per_day = 1\nledger = \"unused\"";
        let outbound = outbound(&twilio(&api, limits), Some(Arc::new(InMemoryLimits::new())));
        let outbound = outbound.unwrap();
        api.answer(status, "", body);
        let order = DialOrder::new("+15550001");
        let unknown = outbound.dial(&order).await;
        let is_unknown = matches!(unknown, Err(DialError::Carrier(ControlError::Unknown(_))));
        assert!(is_unknown, "{unknown:?}");
        api.next().await;
        let again = outbound.dial(&order).await;
        assert!(matches!(again, Err(DialError::Limit { .. })), "{again:?}");
        assert!(api.is_quiet());
    }
}

#[tokio::test]
async fn a_call_takes_what_it_has_cost_once_it_is_over() {
    let mut api = Api::start().await;
    // Ten minutes at 1.00 are taken for each call: there is room for one.
    let limits =
        "spend_per_day = \"12.00\"\nledger = \"unused\"\nprices = { \"+1555\" = \"1.00\" }";
    let text = twilio(&api, limits);
    let store: Arc<dyn LimitStore> = Arc::new(InMemoryLimits::new());
    let outbound = outbound(&text, Some(store.clone())).unwrap();
    let rig = Rig::with_ledger(TOP, &text, Some(store)).await;
    let order = DialOrder::new("+15550001");
    // Two minutes are used of the first, and of the second nothing: there is room for ten after each.
    for (call, status, seconds) in [("CA1", "completed", "61"), ("CA2", "no-answer", "0")] {
        api.answer(201, "", &format!(r#"{{"sid":"{call}"}}"#));
        assert_eq!(dials_once_there_is_room(&outbound).await, Ok(call.to_owned()));
        assert!(matches!(outbound.dial(&order).await, Err(DialError::Limit { .. })));
        let callback = api.next().await.field("StatusCallback").unwrap();
        let path = callback.strip_prefix("https://example.com").unwrap();
        let fields = [
            ("CallSid", call),
            ("CallStatus", status),
            ("CallDuration", seconds),
            ("To", "+15550001"),
        ];
        // Told twice, it counts once.
        for _ in 0..2 {
            assert_eq!(twilio_asks(rig.address, path, &fields).await.0, 204);
        }
    }
    api.answer(201, "", r#"{"sid":"CA3"}"#);
    assert_eq!(dials_once_there_is_room(&outbound).await, Ok("CA3".into()), "2.00 were used");
}

/// What a call has cost is noted beside the answer to the carrier.
async fn dials_once_there_is_room(outbound: &Outbound) -> Result<String, DialError> {
    let dialled = async {
        loop {
            match outbound.dial(&DialOrder::new("+15550001")).await {
                Err(DialError::Limit { .. }) => {}
                other => return other,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("room in the limit", dialled).await
}

#[tokio::test]
async fn a_call_that_nobody_answers_leaves_a_record() {
    let api = Api::start().await;
    let mut rig = Rig::new(TOP, &twilio(&api, "")).await;
    let fields = [
        ("CallSid", "CA5"),
        ("CallStatus", "no-answer"),
        ("From", "+15550199"),
        ("To", "+15550001"),
    ];
    assert_eq!(twilio_asks(rig.address, "/telephony/twilio/status", &fields).await.0, 204);
    let record = rig.record().await;
    assert_eq!((&*record.call_id, record.to.as_deref()), ("CA5", Some("0001")));
    assert_eq!(record.end, CallEnd::NotReached { why: "no-answer".into() });
}

async fn answered(rig: &Rig) -> (Caller, antiphon_testkit::FarEnd) {
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    let parameters = json!({ "token": token("CA1"), "direction": "outbound" });
    caller.start("CA1", parameters).await;
    let far = soon("a connection", rig.provider.far_end()).await;
    (caller, far)
}

const GREETING: &str = "\n[agent]\ngreeting = \"Hello, this is the bakery.\"";

#[tokio::test]
async fn trial_g10_nothing_is_said_to_a_machine() {
    let api = Api::start().await;
    let carriers = twilio(&api, "detect = \"carrier\"") + GREETING;
    let mut rig = Rig::new(TOP, &carriers).await;
    let (mut caller, _far) = answered(&rig).await;
    caller.speak().await;
    let fields = [("CallSid", "CA1"), ("AnsweredBy", "machine_start")];
    assert_eq!(twilio_asks(rig.address, "/telephony/twilio/machine", &fields).await.0, 204);
    let mut messages = Vec::new();
    let code = loop {
        match caller.next().await {
            Ok(message) => messages.push(message),
            Err(code) => break code,
        }
    };
    assert_eq!((code, media_ms(&messages)), (1000, 0));
    let record = rig.record().await;
    assert_eq!((record.end, record.answered_by), (CallEnd::Machine, Some(AnsweredBy::Machine)));
}

#[tokio::test]
async fn a_person_who_answers_is_greeted() {
    let api = Api::start().await;
    let carriers = twilio(&api, "detect = \"carrier\"") + GREETING;
    let mut rig = Rig::new(TOP, &carriers).await;
    let (mut caller, mut far) = answered(&rig).await;
    let fields = [("CallSid", "CA1"), ("AnsweredBy", "human")];
    assert_eq!(twilio_asks(rig.address, "/telephony/twilio/machine", &fields).await.0, 204);
    let say = command(&mut far, |command| matches!(command, LiveCommand::Say { .. })).await;
    assert!(matches!(&say, LiveCommand::Say { text, .. } if text.contains("bakery")), "{say:?}");
    caller.stop().await;
    assert_eq!(rig.record().await.answered_by, Some(AnsweredBy::Person));
}

#[tokio::test]
async fn who_has_answered_may_be_told_before_the_stream_begins() {
    let api = Api::start().await;
    let carriers = twilio(&api, "detect = \"carrier\"") + GREETING;
    let mut rig = Rig::new(TOP, &carriers).await;
    let fields = [("CallSid", "CA1"), ("AnsweredBy", "human")];
    assert_eq!(twilio_asks(rig.address, "/telephony/twilio/machine", &fields).await.0, 204);
    let (mut caller, mut far) = answered(&rig).await;
    let greeted = command(&mut far, |command| matches!(command, LiveCommand::Say { .. }));
    // Long before the time within which a carrier has to tell.
    tokio::time::timeout(Duration::from_secs(10), greeted).await.unwrap();
    caller.stop().await;
    assert_eq!(rig.record().await.answered_by, Some(AnsweredBy::Person));
}

#[tokio::test]
async fn an_agent_without_a_greeting_is_told_that_somebody_answered() {
    let api = Api::start().await;
    let mut rig = Rig::new(TOP, &twilio(&api, "detect = \"carrier\"")).await;
    let (mut caller, mut far) = answered(&rig).await;
    let fields = [("CallSid", "CA1"), ("AnsweredBy", "human")];
    assert_eq!(twilio_asks(rig.address, "/telephony/twilio/machine", &fields).await.0, 204);
    let told = command(&mut far, |command| matches!(command, LiveCommand::Text { .. })).await;
    assert!(
        matches!(&told, LiveCommand::Text { text, .. } if text.contains("answered")),
        "{told:?}"
    );
    caller.stop().await;
    rig.record().await;
}

/// Something like speech, in pieces of 20 ms: a low buzz whose pitch moves.
async fn buzz(caller: &mut Caller, ms: usize, hz: impl Fn(f32) -> f32, level: f32) {
    let mut phase = 0.0_f32;
    for piece in 0..ms / 20 {
        let mut samples = Vec::new();
        for n in 0..160 {
            let t = (piece * 160 + n) as f32 / 8_000.0;
            phase += hz(t) / 8_000.0;
            samples.push(((phase * std::f32::consts::TAU).sin() * level) as i16);
        }
        caller.say(&samples).await;
    }
}

#[tokio::test]
async fn trial_g10_a_message_is_left_after_the_beep_and_nothing_before_it() {
    let api = Api::start().await;
    let listening = "detect = \"listen\"\nmessage = \"Please call the bakery.\"";
    let mut rig = Rig::new(TOP, &(twilio(&api, listening) + GREETING)).await;
    let (mut caller, mut far) = answered(&rig).await;
    buzz(&mut caller, 4_000, |t| 140.0 + 60.0 * (t * 40.0).sin(), 8_000.0).await;
    buzz(&mut caller, 400, |_| 0.0, 0.0).await;
    buzz(&mut caller, 600, |_| 1_000.0, 8_000.0).await;
    buzz(&mut caller, 200, |_| 0.0, 0.0).await;
    let say = command(&mut far, |command| matches!(command, LiveCommand::Say { .. })).await;
    let LiveCommand::Say { request, text } = say else { panic!("{say:?}") };
    assert_eq!(text, "Please call the bakery.", "and no greeting before it");
    far.emit(LiveEvent::ReplyStarted { reply: "r1".into(), request: Some(request) });
    voice(&far, "r1", "Please call the bakery.", 300);
    done(&far, "r1", antiphon::live::ReplyOutcome::Completed);
    let mut heard = 0;
    let code = loop {
        match caller.next().await {
            Ok(message) if message["event"] == "mark" => {
                let name = message["mark"]["name"].as_str().unwrap().to_owned();
                caller.mark(&name).await;
            }
            Ok(message) => heard += media_ms(&[message]),
            Err(code) => break code,
        }
    };
    assert_eq!((code, heard), (1000, 300), "all of it, and then the call ends");
    let record = rig.record().await;
    assert_eq!((record.end, record.answered_by), (CallEnd::AgentHungUp, Some(AnsweredBy::Machine)));
}
