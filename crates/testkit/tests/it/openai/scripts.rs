//! Scripts: who is let in, exact steps, and what goes wrong.

use std::time::Duration;

use antiphon_live::acceptor::TlsIdentity;
use antiphon_testkit::openai::{Fault, Reply, Rule, Script, Side, Step};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn an_upgrade_is_refused_as_the_script_says() {
    let script = Script::connections([Script::refuse(429, "slow down"), Script::auto()]);
    let server = Server::new(script);
    let refused = Client::try_connect(&server, "/v1/realtime?model=m", &[]).await;
    let Err(Error::Http(answer)) = refused else { panic!("upgraded") };
    assert_eq!(answer.status(), 429);
    Client::greeted(&server).await;
    assert_eq!((server.connections(), server.open_connections()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn keys_are_checked_and_browsers_bring_theirs_as_a_subprotocol() {
    let script = Script::from_json(r#"{"keys":["sk-1"]}"#).unwrap();
    let server = Server::new(script);
    let path = "/v1/realtime?model=m";
    let wrong = Client::try_connect(&server, path, &[]).await;
    assert!(matches!(wrong, Err(Error::Http(answer)) if answer.status() == 401));
    Client::try_connect(&server, path, &[("authorization", "Bearer sk-1")]).await.unwrap();
    let offers = "realtime, openai-insecure-api-key.sk-1";
    let browser = [("authorization", ""), ("sec-websocket-protocol", offers)];
    Client::try_connect(&server, path, &browser).await.unwrap();
    let elsewhere = Client::try_connect(&server, "/v1/chat", &[]).await;
    assert!(matches!(elsewhere, Err(Error::Http(answer)) if answer.status() == 404));
}

#[tokio::test(start_paused = true)]
async fn an_ephemeral_key_opens_the_session_that_it_is_bound_to() {
    let server = Server::new(Script::from_json(r#"{"keys":["sk-test"]}"#).unwrap());
    let mut stream = server.connector().connect("").await.unwrap();
    let body = r#"{"session":{"type":"realtime","instructions":"bound"}}"#;
    let request = format!(
        "POST /v1/realtime/client_secrets HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sk-test\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let secret: Value = serde_json::from_str(body).unwrap();
    let key = secret["value"].as_str().unwrap();
    assert!(key.starts_with("ek_") && secret["expires_at"].is_u64());
    let header = format!("Bearer {key}");
    let headers = [("authorization", header.as_str())];
    let mut client = Client::try_connect(&server, "/v1/realtime?model=m", &headers).await.unwrap();
    assert_eq!(client.expect("session.created").await["session"]["instructions"], "bound");
}

#[tokio::test(start_paused = true)]
async fn exact_steps_take_what_they_wait_for_and_give_it_back() {
    let script = Script::from_json(
        r#"{"steps": [
            {"emit": {"type": "session.created", "session": {"type": "realtime"}}},
            {"expect": {"type": "response.create", "response": {"metadata": "$meta"}}},
            {"delay_ms": 250},
            {"emit": {"type": "response.created", "response": {"id": "r", "metadata": "$meta"}}},
            {"error": {"code": "server_error", "message": "oh"}},
            {"close": {"code": 1011, "reason": "fault"}}
        ]}"#,
    )
    .unwrap();
    let server = Server::new(script);
    let mut client = Client::connect(&server).await;
    client.expect("session.created").await;
    client.append(&[0; 480]).await;
    let before = Instant::now();
    let response = json!({"metadata": {"rid": "7"}});
    client.send(json!({"type": "response.create", "response": response})).await;
    let created = client.expect("response.created").await;
    assert_eq!(before.elapsed(), Duration::from_millis(250));
    assert_eq!(created["response"]["metadata"]["rid"], "7");
    assert_eq!(client.expect("error").await["error"]["code"], "server_error");
    let Some(Ok(Message::Close(Some(close)))) = client.message().await else { panic!() };
    assert_eq!((u16::from(close.code), close.reason.as_str()), (1011, "fault"));
    assert_eq!(server.failures(), [""; 0]);
    let records = server.records();
    assert_eq!(records.iter().filter(|record| record.from == Side::Client).count(), 2);
    assert_eq!(server.client_events().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_the_script_is_told_and_so_is_the_test() {
    let expect = || Step::Expect(json!({"type": "response.create"}));
    let server = Server::new(Script::steps([expect()]));
    let mut client = Client::connect(&server).await;
    client.send(json!({"type": "response.cancel"})).await;
    let Some(Ok(Message::Close(Some(close)))) = client.message().await else { panic!() };
    assert_eq!(u16::from(close.code), 4900);
    let server = Server::new(Script::steps([expect()]));
    drop(Client::connect(&server).await);
    while server.failures().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(server.failures()[0].contains("did not come"), "{:?}", server.failures());
}

#[tokio::test(start_paused = true)]
async fn steps_and_behaviour_take_turns() {
    let script = Script::steps([
        Step::auto_until("response.done"),
        Step::Emit(json!({"type": "extra"})),
        Step::auto(),
    ]);
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.say("Hello").await;
    client.send(json!({"type": "response.create"})).await;
    client.until("response.done").await;
    client.expect("extra").await;
    client.update(json!({})).await;
}

#[tokio::test(start_paused = true)]
async fn what_goes_wrong_goes_wrong_where_it_should() {
    let delta = "response.output_audio.delta";
    let reply = Reply::spoken("Hi.", 400);
    let script = Script::auto()
        .reply(Rule::always(reply))
        .fault(Fault::after(delta, [Step::Raw("{oops".into()), Step::Binary(3)]))
        .fault(Fault::after(delta, [Step::Duplicate]).nth(2))
        .fault(Fault::instead_of(delta, []).nth(3))
        .fault(Fault::instead_of("response.output_audio.done", [Step::Swap]))
        .fault(Fault::after("response.done", [Step::DelayMs(1_000), Step::Drop]));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.send(json!({"type": "response.create"})).await;
    let mut seen = Vec::new();
    let error = loop {
        match client.message().await.unwrap() {
            Ok(Message::Text(text)) => {
                let event: Value = serde_json::from_str(&text).unwrap_or_default();
                seen.push(event["type"].as_str().unwrap_or("malformed").to_owned());
            }
            Ok(Message::Binary(bytes)) => seen.push(format!("binary {}", bytes.len())),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::Protocol(_)), "no close frame: {error}");
    let from = seen.iter().position(|kind| kind == delta).unwrap();
    let to = seen.iter().position(|kind| kind == "response.content_part.done").unwrap();
    assert_eq!(
        seen[from..to],
        [
            delta,
            "malformed",
            "binary 3",
            delta,
            delta,
            delta,
            "response.output_audio_transcript.done",
            "response.output_audio.done",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_stalled_server_neither_reads_nor_writes() {
    let fault = Fault::after("session.created", [Step::StallMs(5_000)]);
    let server = Server::new(Script::auto().fault(fault));
    let (mut client, _) = Client::greeted(&server).await;
    let before = Instant::now();
    client.update(json!({})).await;
    assert_eq!(before.elapsed(), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn a_session_expires() {
    let server = Server::new(Script::from_json(r#"{"expires_in_s": 60}"#).unwrap());
    let (mut client, _) = Client::greeted(&server).await;
    let before = Instant::now();
    assert_eq!(client.expect("error").await["error"]["code"], "session_expired");
    assert_eq!(before.elapsed(), Duration::from_secs(60));
    let Some(Ok(Message::Close(Some(close)))) = client.message().await else { panic!() };
    assert_eq!(u16::from(close.code), 1001);
}

#[tokio::test(start_paused = true)]
async fn it_speaks_the_older_words_too() {
    let server = Server::new(Script::from_json(r#"{"dialect": "beta"}"#).unwrap());
    let beta = [("openai-beta", "realtime=v1")];
    let mut client = Client::try_connect(&server, "/openai/realtime", &beta).await.unwrap();
    let session = client.expect("session.created").await["session"].clone();
    assert_eq!(session["modalities"], json!(["text", "audio"]));
    let session = json!({"voice": "alloy", "turn_detection": null});
    client.send(json!({"type": "session.update", "session": session})).await;
    let session = client.expect("session.updated").await["session"].clone();
    assert_eq!((&session["voice"], &session["turn_detection"]), (&json!("alloy"), &Value::Null));
    client.send(json!({"type": "response.create"})).await;
    let events = client.until("response.done").await;
    assert!(kinds(&events).contains(&"response.audio.delta"), "{:?}", kinds(&events));
    assert!(kinds(&events).contains(&"conversation.item.created"));
}

#[test]
fn everything_that_the_documentation_names_is_read() {
    let script = Script::from_json(
        r#"{
            "keys": ["sk-test"], "dialect": "xai", "session": {"instructions": "x"},
            "plain_sessions": true, "expires_in_s": 60,
            "transcripts": ["words", {"fail": "why"}],
            "pace": {"think_ms": 20, "delta_ms": 100, "interval_ms": 20, "transcript_ms": 30},
            "replies": [{
                "when": {"text": "a", "tool_output": "*", "instructions": "b", "nth": 1},
                "reply": {
                    "text": "c", "more": ["d"], "audio_ms": 100, "tone_hz": 440,
                    "calls": [{"name": "f", "arguments": {}, "call_id": "call_1"}],
                    "text_only": true, "incomplete": "max_output_tokens",
                    "fail": {"type": "server_error", "code": "e", "message": "m"},
                    "pace": {"think_ms": 1}
                },
                "times": 1
            }],
            "faults": [{
                "at": "response.done", "nth": 1, "times": 1, "instead": true,
                "do": ["duplicate", "swap", {"delay_ms": 1}]
            }],
            "steps": [
                {"expect": {}}, {"emit": {}}, {"error": {"code": "x"}}, {"raw": "{"},
                {"binary": 1}, {"big": 1}, {"delay_ms": 1}, {"stall_ms": 1}, {"auto": {}},
                {"auto": {"until": "response.done", "times": 2}},
                {"close": {"code": 1011, "reason": "x"}}, {"close": {"code": 1000}}, "drop"
            ],
            "connections": [{"refuse": {"status": 429, "body": "x", "retry_after": 3}}, {}]
        }"#,
    )
    .unwrap();
    assert_eq!((script.steps.unwrap().len(), script.connections.len()), (13, 2));
}

#[test]
fn a_script_file_with_an_unknown_key_is_an_error() {
    for bad in
        [r#"{"replys":[]}"#, r#"{"steps":[{"expects":{}}]}"#, r#"{"replies":[{"text":"x"}]}"#]
    {
        assert!(Script::from_json(bad).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn it_listens_on_tcp_and_records_every_frame() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = Server::recording(Script::auto(), file.path()).unwrap();
    let serving = server.listen(None).await.unwrap();
    let address = serving.url().strip_prefix("ws://").unwrap().split('/').next().unwrap();
    let stream: Box<dyn Transport> =
        Box::new(tokio::net::TcpStream::connect(address).await.unwrap());
    let mut request = format!("{}?model=m", serving.url()).into_client_request().unwrap();
    request.headers_mut().insert("authorization", HeaderValue::from_static("Bearer k"));
    let mut client = Client { socket: client_async(request, stream).await.unwrap().0 };
    client.expect("session.created").await;
    client.update(json!({})).await;
    let lines = std::fs::read_to_string(file.path()).unwrap();
    let frames: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen: Vec<_> = frames
        .iter()
        .map(|line| (line["dir"].as_str().unwrap(), line["frame"]["type"].as_str().unwrap()))
        .collect();
    assert_eq!(
        seen,
        [
            ("server", "session.created"),
            ("client", "session.update"),
            ("server", "session.updated")
        ]
    );
    assert!(TlsIdentity::from_pem(b"", b"").is_err());
}
