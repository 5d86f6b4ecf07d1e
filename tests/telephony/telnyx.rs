//! Telnyx's Call Control: its events are signed, and tell what becomes of calls.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome},
    telephony::CallEnd,
    types::{ToolArguments, ToolCallRequest},
};
use antiphon_testkit::FarEnd;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use crate::{
    api::{Api, ask},
    rig::*,
};

const TOP: &str = "public_url = \"https://example.com\"\ntoken_secret_env = \"SECRET\"\n\
                   transfer_allow = [\"+1555\"]";
const CALL: &str = "v3:abc_D-e";
/// Of events.
static NUMBER: AtomicU64 = AtomicU64::new(0);

fn key() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
}

async fn rig(api: &Api) -> Rig {
    let public = base64_simd::STANDARD.encode_to_string(key().public_key().as_ref());
    let carriers = format!(
        "[carriers.telnyx]\nverify = \"token\"\napi_key_env = \"SECRET\"\n\
         public_key = \"{public}\"\napi_url = \"http://{}\"",
        api.address
    );
    Rig::new(TOP, &carriers).await
}

/// An event, signed as Telnyx signs it (ed25519 over time and body).
async fn tells(rig: &Rig, event: &str, payload: Value) -> u16 {
    // Each event has a name of its own: one that is told twice does nothing the second time.
    let id = format!("e{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let body = json!({"data": {"event_type": event, "id": id, "payload": payload}}).to_string();
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let signature = key().sign(format!("{at}|{body}").as_bytes());
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("telnyx-timestamp", at.to_string()),
        ("telnyx-signature-ed25519", base64_simd::STANDARD.encode_to_string(signature.as_ref())),
    ];
    ask(rig.address, "POST", "/telephony/telnyx/events", &headers, &body).await.0
}

/// A call that was answered through an event, with its stream.
async fn answered(rig: &Rig, api: &mut Api) -> (Caller, FarEnd) {
    let payload = json!({"call_control_id": CALL, "direction": "incoming", "state": "parked"});
    assert_eq!(tells(rig, "call.initiated", payload).await, 200);
    let asked = api.next().await;
    assert_eq!(asked.path, format!("/v2/calls/{CALL}/actions/answer"));
    let body = asked.json();
    assert_eq!(body["stream_url"], "wss://example.com/telephony/telnyx");
    assert_eq!(body["stream_bidirectional_mode"], "rtp");
    assert_eq!(body["stream_bidirectional_codec"], "PCMU");
    let token = body["stream_auth_token"].as_str().unwrap();
    let headers = [("x-telnyx-streaming-auth-token", token)];
    let mut caller = Caller::connect(rig.address, "telnyx", &headers).await.unwrap();
    let start = json!({
        "event": "start", "sequence_number": "1", "stream_id": "S1",
        "start": {
            "call_control_id": CALL, "user_id": "U1", "from": "+15550111", "to": "+15550122",
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        },
    });
    caller.send(start).await;
    let far = soon("a connection", rig.provider.far_end()).await;
    (caller, far)
}

/// The call is handed on: the carrier was asked, and the number rings.
async fn handed_on(far: &FarEnd, api: &mut Api) -> String {
    let call = ToolCallRequest {
        id: "c1".into(),
        name: "transfer_call".into(),
        arguments: ToolArguments::Json(r#"{"to": "+15550001"}"#.into()),
    };
    far.emit(LiveEvent::ReplyStarted { reply: "t1".into(), request: None })
        .emit(LiveEvent::ToolCalls { reply: Some("t1".into()), calls: vec![call] });
    done(far, "t1", ReplyOutcome::Completed);
    let asked = api.next().await;
    assert_eq!(asked.path, format!("/v2/calls/{CALL}/actions/transfer"));
    let body = asked.json();
    assert_eq!((&body["to"], &body["timeout_secs"]), (&json!("+15550001"), &json!(25)));
    assert_eq!(body["webhook_url"], "https://example.com/telephony/telnyx/events");
    body["target_leg_client_state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_event_without_telnyxs_signature_does_nothing() {
    let mut api = Api::start().await;
    let rig = rig(&api).await;
    let body = json!({"data": {"event_type": "call.initiated", "payload": {
        "call_control_id": CALL, "direction": "incoming"}}});
    let path = "/telephony/telnyx/events";
    assert_eq!(ask(rig.address, "POST", path, &[], &body.to_string()).await.0, 403);
    assert_eq!(rig.handle.stats().refused, 1);
    assert!(api.is_quiet());
}

#[tokio::test]
async fn a_number_that_is_busy_leaves_the_call_with_its_agent() {
    let mut api = Api::start().await;
    let mut rig = rig(&api).await;
    let (mut caller, mut far) = answered(&rig, &mut api).await;
    let state = handed_on(&far, &mut api).await;
    let payload = json!({"call_control_id": "v3:other", "client_state": state,
        "hangup_cause": "user_busy"});
    assert_eq!(tells(&rig, "call.hangup", payload).await, 200);
    let output = command(&mut far, |command| matches!(command, LiveCommand::ToolResponse(_))).await;
    let LiveCommand::ToolResponse(response) = output else { panic!("{output:?}") };
    let output = serde_json::to_string(&response.response).unwrap();
    assert!(output.contains("user_busy"), "{output}");
    says(&far, "r2", "They are busy.", 100);
    caller.until("media").await;
    caller.send(json!({"event": "stop", "stream_id": "S1", "stop": {}})).await;
    assert_eq!(rig.record().await.end, CallEnd::CallerHungUp);
    assert!(api.is_quiet());
}

#[tokio::test]
async fn a_call_that_is_bridged_has_been_handed_on() {
    let mut api = Api::start().await;
    let mut rig = rig(&api).await;
    let (mut caller, far) = answered(&rig, &mut api).await;
    let _state = handed_on(&far, &mut api).await;
    assert_eq!(tells(&rig, "call.bridged", json!({"call_control_id": CALL})).await, 200);
    assert_eq!(caller.closed().await, 1000);
    assert_eq!(rig.record().await.end, CallEnd::Transferred);
    assert!(api.is_quiet(), "nobody hangs up on them");
}

#[tokio::test]
async fn a_call_that_is_over_ends_without_being_hung_up() {
    let mut api = Api::start().await;
    let mut rig = rig(&api).await;
    let (_caller, _far) = answered(&rig, &mut api).await;
    let payload = json!({"call_control_id": CALL, "hangup_cause": "normal_clearing"});
    assert_eq!(tells(&rig, "call.hangup", payload).await, 200);
    assert_eq!(rig.record().await.end, CallEnd::CallerHungUp);
    assert!(api.is_quiet());
}
