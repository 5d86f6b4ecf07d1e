//! What carriers ask over HTTP.

use std::{net::SocketAddr, time::SystemTime};

use base64_simd::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;

use crate::{
    api::{Api, ask},
    rig::*,
};

const TOP: &str = "public_url = \"http://localhost:1\"\ntoken_secret_env = \"SECRET\"\n\
    [[numbers]]\nto = \"+15550002222\"\ntenant = \"acme\"";

/// Posts a form; the status and the body.
async fn post(address: SocketAddr, path: &str, body: &str) -> (u16, String) {
    let kind = [("content-type", "application/x-www-form-urlencoded".to_owned())];
    ask(address, "POST", &format!("/telephony/{path}"), &kind, body).await
}

fn token(twiml: &str) -> String {
    let (_, rest) = twiml.split_once("name=\"token\" value=\"").unwrap();
    rest.split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_webhook_opens_one_stream_for_its_call_and_its_number_says_whose_it_is() {
    let mut rig = Rig::new(TOP, "[carriers.twilio]\nverify = \"none\"").await;
    let form = "CallSid=CA1&From=%2B15550001111&To=%2B15550002222";
    let (status, twiml) = post(rig.address, "twilio/answer", form).await;
    assert_eq!(status, 200);
    assert!(
        twiml.contains("<Connect><Stream url=\"ws://localhost:1/telephony/twilio\">"),
        "{twiml}"
    );
    // A carrier that did not hear the answer asks again, and is answered alike.
    assert_eq!(post(rig.address, "twilio/answer", form).await, (200, twiml.clone()));
    assert_eq!(post(rig.address, "twilio/answer", "From=x").await.0, 400);
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    let parameters = json!({"token": token(&twiml), "from": "+15550001111", "to": "+15550002222"});
    caller.start("CA1", parameters).await;
    let _far = soon("a connection", rig.provider.far_end()).await;
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!(record.tenant.as_deref(), Some("acme"));
    assert_eq!((record.from.as_deref(), record.to.as_deref()), (Some("1111"), Some("2222")));
}

#[tokio::test]
async fn telnyx_is_told_the_codec_of_what_it_hears() {
    let carriers = "[carriers.telnyx]\nverify = \"none\"\noutput = \"L16@16000\"";
    let rig = Rig::new("public_url = \"http://localhost:1\"", carriers).await;
    let (status, texml) = post(rig.address, "telnyx/answer", "CallSid=v3:1").await;
    assert_eq!(status, 200);
    for attribute in [
        "bidirectionalMode=\"rtp\"",
        "bidirectionalCodec=\"L16\"",
        "bidirectionalSamplingRate=\"16000\"",
    ] {
        assert!(texml.contains(attribute), "{texml}");
    }
}

#[tokio::test]
async fn a_page_in_a_browser_is_no_carrier() {
    let rig = Rig::open().await;
    let origin = [("origin", "https://evil.example")];
    let refused = Caller::connect(rig.address, "twilio", &origin).await.err();
    assert_eq!(refused, Some(403));
    assert!(rig.provider.requests().is_empty());
}

#[tokio::test]
async fn telnyx_events_are_signed_and_an_incoming_call_is_answered_once() {
    let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public = STANDARD.encode_to_string(pair.public_key());
    let mut api = Api::start().await;
    let top = TOP.replace("http://localhost:1", "https://example.com");
    let carriers = format!(
        "[carriers.telnyx]\nverify = \"token\"\napi_key_env = \"SECRET\"\npublic_key = \"{public}\"\n\
         api_url = \"http://{}\"",
        api.address
    );
    let mut rig = Rig::new(&top, &carriers).await;
    let event = json!({"data": {
        "id": "e1", "event_type": "call.initiated",
        "payload": {
            "call_control_id": "v3:in1", "direction": "incoming",
            "from": "+15550001111", "to": "+15550002222",
        },
    }})
    .to_string();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let signed = |at: u64, body: &str| {
        let signature = pair.sign(format!("{at}|{body}").as_bytes());
        [
            ("telnyx-timestamp", at.to_string()),
            ("telnyx-signature-ed25519", STANDARD.encode_to_string(signature.as_ref())),
        ]
    };
    let path = "/telephony/telnyx/events";
    for headers in [&[][..], &signed(now, "{}")[..], &signed(now - 600, &event)[..]] {
        assert_eq!(ask(rig.address, "POST", path, headers, &event).await.0, 403);
    }
    assert!(api.is_quiet(), "nothing is done for a stranger");
    for _ in 0..2 {
        let told = ask(rig.address, "POST", path, &signed(now, &event), &event).await;
        assert_eq!(told.0, 200, "events are told twice now and then");
    }
    let asked = api.next().await;
    assert_eq!((&*asked.method, &*asked.path), ("POST", "/v2/calls/v3:in1/actions/answer"));
    let order = asked.json();
    assert_eq!(order["stream_url"], "wss://example.com/telephony/telnyx");
    assert_eq!(order["stream_bidirectional_mode"], "rtp");
    assert_eq!(order["stream_bidirectional_codec"], "PCMU");
    let token = order["stream_auth_token"].as_str().unwrap();
    let headers = [("x-telnyx-streaming-auth-token", token)];
    let mut caller = Caller::connect(rig.address, "telnyx", &headers).await.unwrap();
    caller
        .send(json!({
            "event": "start", "stream_id": "S1",
            "start": {
                "call_control_id": "v3:in1", "from": "+15550001111", "to": "+15550002222",
                "media_format": {"encoding": "PCMA", "sample_rate": 8000, "channels": 1},
            },
        }))
        .await;
    let _far = soon("a connection", rig.provider.far_end()).await;
    caller.send(json!({"event": "stop", "stream_id": "S1", "stop": {}})).await;
    assert_eq!(rig.record().await.tenant.as_deref(), Some("acme"));
    assert!(api.is_quiet(), "it was answered once, and the caller hung up");
}
