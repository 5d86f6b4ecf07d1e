//! Who may call, and how many.

use antiphon::telephony::{
    CallEnd,
    token::{Claims, Tokens},
};
use serde_json::json;
use std::time::{Duration, SystemTime};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::rig::*;

const TOKEN: &str = "token_secret_env = \"SECRET\"";

fn token(call: Option<&str>) -> String {
    token_of(call, "acme")
}

fn token_of(call: Option<&str>, tenant: &str) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let claims = Claims::new(call.map(str::to_owned), Some(tenant.into()), None);
    Tokens::new(&SECRET.into()).unwrap().mint(claims, now, Duration::from_secs(60)).unwrap()
}

#[tokio::test]
async fn trial_g07_without_a_good_token_no_provider_is_opened() {
    let carriers = "[carriers.twilio]\nverify = \"token\"\n[carriers.asterisk]\nverify = \"token\"";
    let mut rig = Rig::new(TOKEN, carriers).await;
    // Where the token comes with the upgrade, it is refused there.
    for path in ["asterisk", "asterisk?token=", "asterisk?token=a.b", "twilio?token=a.b"] {
        let refused = Caller::connect(rig.address, path, &[]).await.err();
        assert_eq!(refused, Some(403), "{path}");
    }
    assert_eq!(rig.handle.stats().refused, 4);
    // Twilio shows it in the start.
    for parameters in [json!({}), json!({"token": "a.b"}), json!({"token": token(Some("CA9"))})] {
        let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
        caller.start("CA1", parameters).await;
        assert_eq!(caller.closed().await, 1008);
    }
    assert_eq!((rig.handle.stats().unauthorized, rig.handle.stats().ended), (3, 0));
    assert!(rig.provider.requests().is_empty(), "nothing was spent");

    let good = token(Some("CA1"));
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": good })).await;
    let _far = soon("a connection", rig.provider.far_end()).await;
    caller.stop().await;
    let record = rig.record().await;
    assert_eq!((record.end, record.tenant.as_deref()), (CallEnd::CallerHungUp, Some("acme")));
    // Once is enough.
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": good })).await;
    assert_eq!(caller.closed().await, 1008);
}

#[tokio::test]
async fn the_carriers_signature_opens_a_stream_and_any_other_does_not() {
    let carriers = "[carriers.twilio]\nverify = \"signature\"\nauth_token_env = \"SECRET\"";
    let rig = Rig::new("public_url = \"https://example.com\"", carriers).await;
    // HMAC-SHA1 of "wss://example.com/telephony/twilio" with the secret, by another implementation.
    let good = "b7ofS4l65POpVxGaUn0mRjznJyI=";
    let header = "x-twilio-signature";
    for (headers, expected) in [
        (&[][..], Some(403)),
        (&[(header, "")][..], Some(403)),
        (&[(header, "7PR3qMkpDyEJtMrVOY/LDyNq8J8=")][..], Some(403)),
        (&[(header, good)][..], None),
    ] {
        let answer = Caller::connect(rig.address, "twilio", headers).await.err();
        assert_eq!(answer, expected, "{headers:?}");
    }
    assert!(rig.provider.requests().is_empty());
}

#[tokio::test]
async fn there_are_no_more_calls_than_there_may_be() {
    let mut rig = Rig::new("[limits]\ncalls = 1", "[carriers.twilio]\nverify = \"none\"").await;
    let (mut first, _far) = rig.call("CA1").await;
    let second = Caller::connect(rig.address, "twilio", &[]).await.err();
    assert_eq!(second, Some(503));
    assert_eq!(rig.handle.stats().busy, 1);
    first.stop().await;
    rig.record().await;
    let (mut again, _far) = rig.call("CA2").await;
    again.stop().await;
    rig.record().await;
}

#[tokio::test]
async fn a_tenant_has_no_more_calls_than_it_may() {
    let top = format!("{TOKEN}\n[limits]\ncalls_per_tenant = 1");
    let mut rig = Rig::new(&top, "[carriers.twilio]\nverify = \"token\"").await;
    let open = async |call: &str, tenant: &str| {
        let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
        caller.start(call, json!({ "token": token_of(Some(call), tenant) })).await;
        caller
    };
    let mut first = open("CA1", "acme").await;
    let _far = soon("a connection", rig.provider.far_end()).await;
    let mut second = open("CA2", "acme").await;
    assert_eq!(second.closed().await, 1013);
    let mut other = open("CA3", "bakery").await;
    let _far = soon("a connection", rig.provider.far_end()).await;
    first.stop().await;
    other.stop().await;
    let ends = [rig.record().await.end, rig.record().await.end, rig.record().await.end];
    let busy = ends.iter().filter(|end| **end == CallEnd::Busy).count();
    assert_eq!((busy, rig.provider.requests().len()), (1, 2), "{ends:?}");
}

#[tokio::test]
async fn streams_of_another_account_are_refused() {
    let carriers = "[carriers.twilio]\nverify = \"token\"\nauth_token_env = \"SECRET\"\n\
                    account_sid = \"AC9\"";
    let rig = Rig::new(TOKEN, carriers).await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    caller.start("CA1", json!({ "token": token(Some("CA1")) })).await;
    assert_eq!(caller.closed().await, 1008);
    assert!(rig.provider.requests().is_empty());
}

#[tokio::test]
async fn audiosocket_is_for_those_who_are_named() {
    let rig = Rig::new("audiosocket_allow = [\"192.0.2.7\"]", "").await;
    let mut socket = TcpStream::connect(rig.audiosocket).await.unwrap();
    let mut answer = [0; 1];
    // The end of the stream, or a reset where the packet crossed it.
    let _ = socket.write_all(&[0x01, 0, 16]).await;
    let read = soon("the end", socket.read(&mut answer)).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert_eq!((rig.handle.stats().streams, rig.provider.requests().len()), (0, 0));
}

#[tokio::test]
async fn what_is_not_there_is_not_found() {
    let rig = Rig::open().await;
    for path in ["", "nowhere", "telnyx", "audiosocket", "twilio/", "twilio/answer/x"] {
        let answer = Caller::connect(rig.address, path, &[]).await.err();
        assert_eq!(answer, Some(404), "{path:?}");
    }
}

#[tokio::test]
async fn a_stream_that_does_not_start_is_closed() {
    let mut rig =
        Rig::new("[limits]\nstart_seconds = 1", "[carriers.twilio]\nverify = \"none\"").await;
    let mut caller = Caller::connect(rig.address, "twilio", &[]).await.unwrap();
    assert_eq!(caller.closed().await, 1008);
    assert_eq!(rig.record().await.end, CallEnd::NeverStarted);
    assert!(rig.provider.requests().is_empty());
}

#[test]
fn the_example_configurations_are_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("bridge-") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let config = antiphon::telephony::BridgeConfig::from_toml(&text, |_| Some(SECRET.into()));
        assert!(config.is_ok(), "{name}: {}", config.unwrap_err());
        read += 1;
    }
    assert!(read >= 5, "{read}");
}
