//! The provider over a WebSocket, against the scripted server.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use antiphon_gemini::Gemini;
use antiphon_live::{
    BearerSource, ConnectRequest, HistoryItem, HistoryRole, LiveCommand, LiveConfig,
    LiveConnection, LiveError, LiveEvent, LiveProvider, Resumption, TextUpdate,
};
use antiphon_testkit::gemini::{Fault, Script, Server, Step};
use antiphon_types::Status;
use futures_util::{SinkExt, StreamExt};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio::time::timeout;

fn config() -> LiveConfig {
    LiveConfig::new().api_key("AIza-1")
}

async fn connect(
    provider: &Gemini,
    request: ConnectRequest,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    timeout(Duration::from_secs(60), provider.connect(request)).await.unwrap()
}

async fn refusal(provider: &Gemini, config: LiveConfig) -> LiveError {
    match connect(provider, ConnectRequest::new(config.into())).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

/// Says something; gives the answer's words and the newest handle.
async fn ask(connection: &mut Box<dyn LiveConnection>, text: &str) -> (String, Option<Resumption>) {
    connection.send(LiveCommand::Text { text: text.into(), reply: true }).await.unwrap();
    let (mut words, mut handle, mut done) = (String::new(), None, false);
    while !(done && handle.is_some()) {
        match connection.next().await.unwrap().unwrap() {
            LiveEvent::OutputTranscript { text: TextUpdate::Delta(more), .. } => {
                words.push_str(&more);
            }
            LiveEvent::NotResumable => handle = None,
            LiveEvent::Resumable(newer) => handle = Some(newer),
            LiveEvent::ReplyDone { .. } => done = true,
            _ => {}
        }
    }
    (words, handle)
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_by_its_newest_handle_and_no_other() {
    let server = Server::new(Script::auto());
    let provider = Gemini::new().connector(server.connector());
    let config = Arc::new(config());
    let mut connection = connect(&provider, ConnectRequest::new(config.clone())).await.unwrap();
    assert!(connection.capabilities().resumption && connection.capabilities().close_before_resume);
    let (_, first) = ask(&mut connection, "one").await;
    let (words, newest) = ask(&mut connection, "two").await;
    assert_eq!(words, "You said: two");
    let resuming = |handle: &Option<Resumption>, epoch| {
        ConnectRequest::resuming(config.clone(), handle.clone(), Vec::new(), epoch)
    };
    // Quirk 61: the old socket is still open.
    let error = connect(&provider, resuming(&newest, 2)).await.err().unwrap();
    assert!(matches!(error, LiveError::Closed { code: 1011, .. }), "{error}");
    connection.close().await.unwrap();
    let error = connect(&provider, resuming(&first, 3)).await.err().unwrap();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");
    let mut connection = connect(&provider, resuming(&newest, 4)).await.unwrap();
    connection.send(LiveCommand::CreateReply { request: 1 }).await.unwrap();
    let mut words = String::new();
    loop {
        match connection.next().await.unwrap().unwrap() {
            LiveEvent::ReplyStarted { reply, .. } => assert_eq!(&*reply.0, "c4-reply-1"),
            LiveEvent::OutputTranscript { text: TextUpdate::Delta(more), .. } => {
                words.push_str(&more);
            }
            LiveEvent::ReplyDone { .. } => break,
            _ => {}
        }
    }
    assert_eq!(words, "You said: two", "the server remembers");
}

#[tokio::test(start_paused = true)]
async fn handles_expire_and_connections_end_with_a_warning() {
    let mut script = Script::auto().lifetime(600, 50);
    script.handle_valid_s = Some(60);
    let server = Server::new(script);
    let provider = Gemini::new().connector(server.connector());
    let config = Arc::new(config());
    let mut connection = connect(&provider, ConnectRequest::new(config.clone())).await.unwrap();
    let (_, handle) = ask(&mut connection, "one").await;
    let began = tokio::time::Instant::now();
    let mut left = None;
    let error = loop {
        match connection.next().await.unwrap() {
            Ok(LiveEvent::GoingAway { time_left }) => left = time_left,
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(left, Some(Duration::from_secs(50)));
    assert!(began.elapsed() < Duration::from_secs(600));
    assert!(matches!(&error, LiveError::Closed { code: 1011, .. }) && error.is_recoverable());
    tokio::time::sleep(Duration::from_secs(61)).await;
    let request = ConnectRequest::resuming(config, handle, Vec::new(), 2);
    let error = connect(&provider, request).await.err().unwrap();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_is_put_into_a_new_conversation() {
    let server = Server::new(Script::auto());
    let provider = Gemini::new().connector(server.connector());
    for model in
        ["gemini-2.5-flash-native-audio", "gemini-3.1-flash-live-preview", "gemini-3.8-live"]
    {
        let said = |role, text: &str| HistoryItem::Message { role, text: text.into() };
        let history =
            vec![said(HistoryRole::User, "I am Ada."), said(HistoryRole::Agent, "Hello, Ada.")];
        let config = Arc::new(config().model(model));
        let request = ConnectRequest::resuming(config, None, history, 2);
        let mut connection = connect(&provider, request).await.unwrap();
        let (words, _) = ask(&mut connection, "Who am I?").await;
        assert_eq!(words, "You said: Who am I?", "{model}");
    }
    assert_eq!(server.failures(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_token_source_is_asked_at_every_connect_and_wins_over_the_key() {
    let mut script = Script::auto();
    script.keys = Some(vec!["auth_tokens/1".into(), "auth_tokens/2".into()]);
    let server = Server::new(script);
    let provider = Gemini::new().connector(server.connector());
    let count = Arc::new(Mutex::new(0));
    let asked = count.clone();
    let mut config = config();
    assert!(matches!(refusal(&provider, config.clone()).await, LiveError::Unauthorized(_)));
    config.bearer = Some(BearerSource::new(move || {
        let mut count = asked.lock().unwrap();
        *count += 1;
        let token = SecretString::from(format!("auth_tokens/{count}"));
        async move { Ok(token) }
    }));
    let config = Arc::new(config);
    for _ in 0..2 {
        connect(&provider, ConnectRequest::new(config.clone())).await.unwrap();
    }
    assert_eq!(*count.lock().unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_refused_before_anything_is_dialled() {
    let server = Server::new(Script::auto());
    let provider = Gemini::new().connector(server.connector());
    let missing = refusal(&provider, LiveConfig::new()).await;
    assert!(matches!(missing, LiveError::MissingApiKey { .. }));
    let mut bad = config();
    bad.endpoint = Some("gopher://hole".into());
    assert!(matches!(refusal(&provider, bad.clone()).await, LiveError::InvalidConfig(_)));
    assert!(provider.capabilities(&bad).is_err());
    let mut off = config();
    off.provider_options.insert("session_resumption".into(), json!(false));
    let handle = Resumption { handle: SecretString::from("h") };
    let request = ConnectRequest::resuming(off.into(), Some(handle), Vec::new(), 2);
    let error = connect(&provider, request).await.err().unwrap();
    assert!(matches!(error, LiveError::Unsupported { .. }), "{error}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test(start_paused = true)]
async fn every_refusal_is_typed() {
    let refused = |status, body: &str| {
        let server = Server::new(Script::refuse(status, body));
        Gemini::new().connector(server.connector())
    };
    let error = refusal(&refused(403, ""), config()).await;
    assert!(matches!(error, LiveError::Unauthorized(_)), "{error}");
    assert!(matches!(refusal(&refused(429, ""), config()).await, LiveError::RateLimited { .. }));
    assert!(refusal(&refused(503, ""), config()).await.is_recoverable());
    assert_eq!(refusal(&refused(400, ""), config()).await.status(), Status::InvalidArgument);
    // Quirk 43: a close in place of `setupComplete` is not waited out.
    let closes = |code, reason: &str| {
        let server = Server::new(Script::steps([Step::close(code, reason)]));
        Gemini::new().connector(server.connector())
    };
    let began = tokio::time::Instant::now();
    let error = refusal(&closes(1007, "API key expired."), config()).await;
    assert!(matches!(error, LiveError::Unauthorized(_)), "{error}");
    let why = "Operation is not implemented, or supported, or enabled.";
    assert_eq!(refusal(&closes(1008, why), config()).await.status(), Status::Unimplemented);
    assert!(refusal(&closes(1011, "Internal error"), config()).await.is_recoverable());
    assert!(began.elapsed() < Duration::from_secs(5));
    let mute = Server::new(Script::steps([Step::DelayMs(600_000)]));
    let mute = Gemini::new().connector(mute.connector());
    assert!(matches!(refusal(&mute, config()).await, LiveError::Timeout { .. }));
}

#[tokio::test(start_paused = true)]
async fn the_fallback_model_is_tried_once() {
    let script = Script::connections([
        Script::steps([Step::close(1008, "models/one is not found for API version v1beta")]),
        Script::auto(),
    ]);
    let server = Server::new(script);
    let provider = Gemini::new().connector(server.connector());
    let mut config = config().model("one");
    config.fallback_model = Some("two".into());
    connect(&provider, ConnectRequest::new(config.into())).await.unwrap();
    let setups = server.client_messages();
    assert_eq!(setups.last().unwrap()["setup"]["model"], "models/two");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_never_answers_leaves_time_for_the_fallback_model() {
    let mute = Script::steps([Step::DelayMs(600_000)]);
    let server = Server::new(Script::connections([mute, Script::auto()]));
    let provider = Gemini::new().connector(server.connector());
    let mut config = config().model("one");
    config.fallback_model = Some("two".into());
    // A session waits this long for both.
    let connect = connect(&provider, ConnectRequest::new(config.into()));
    timeout(Duration::from_secs(15), connect).await.unwrap().unwrap();
    let setups = server.client_messages();
    assert_eq!(setups.last().unwrap()["setup"]["model"], "models/two");
}

#[tokio::test(start_paused = true)]
async fn the_handle_of_the_fallback_model_is_used_with_that_model() {
    let refuses = || Script::steps([Step::close(1008, "models/one is not found for v1beta")]);
    let resumes = Script::connections([refuses(), Script::auto(), Script::auto(), refuses()]);
    let server = Server::new(resumes);
    let provider = Gemini::new().connector(server.connector());
    let mut config = config().model("one");
    config.fallback_model = Some("two".into());
    let config = Arc::new(config);
    let mut connection = connect(&provider, ConnectRequest::new(config.clone())).await.unwrap();
    let (_, handle) = ask(&mut connection, "Hello.").await;
    connection.close().await.unwrap();
    let request = || ConnectRequest::resuming(config.clone(), handle.clone(), Vec::new(), 2);
    connect(&provider, request()).await.unwrap();
    let setup = server.client_messages().last().unwrap()["setup"].clone();
    assert_eq!(setup["model"], "models/two");
    let sent = setup["sessionResumption"]["handle"].as_str().unwrap();
    assert!(!sent.contains("two") && !sent.contains('\n'), "{sent:?}");
    // Where that model is gone too, there is nothing to resume.
    let error = connect(&provider, request()).await.err().unwrap();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");
}

#[tokio::test(start_paused = true)]
async fn closes_in_a_session_are_its_last_word() {
    for (code, reason, recoverable) in [
        (1000, "", false),
        (1001, "", true),
        (1007, "Request contains an invalid argument.", false),
        (1008, "Requested entity was not found.", true),
        (1011, "Deadline expired before operation could complete.", true),
    ] {
        let fault = Fault::instead_of("modelTurn", [Step::close(code, reason)]);
        let server = Server::new(Script::auto().fault(fault));
        let provider = Gemini::new().connector(server.connector());
        let request = ConnectRequest::new(config().into());
        let mut connection = connect(&provider, request).await.unwrap();
        let text = LiveCommand::Text { text: "Hello.".into(), reply: true };
        connection.send(text).await.unwrap();
        let error = loop {
            if let Err(error) = connection.next().await.unwrap() {
                break error;
            }
        };
        assert_eq!(error.is_recoverable(), recoverable, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(connection.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_is_shown_nowhere() {
    let provider = Gemini::new();
    let config = config();
    assert!(!format!("{provider:?} {config:?}").contains("AIza"));
    assert_eq!(config.api_key.unwrap().expose_secret(), "AIza-1");
}
