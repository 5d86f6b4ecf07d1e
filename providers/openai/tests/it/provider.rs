//! The provider over a WebSocket, against a server in the test's hands.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use antiphon_live::{
    BearerSource, ConnectRequest, Connector, Frame, LiveCommand, LiveConfig, LiveConnection,
    LiveError, LiveEvent, LiveProvider, Resumption, Transport,
    acceptor::{Acceptor, AcceptorOptions, Answer, Request, ServerSocket},
};
use antiphon_openai::OpenAi;
use antiphon_testkit::PipeConnector;
use antiphon_types::Status;
use async_trait::async_trait;
use futures_util::{SinkExt, StreamExt};
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::time::timeout;

/// What a server was asked for.
type Seen = Arc<Mutex<Vec<String>>>;

/// A provider whose every dial meets a server that answers as `gate` says and talks as `talk`
/// does.
fn provider<G, T, F>(gate: G, talk: T) -> (OpenAi, Seen)
where
    G: Fn(&Request) -> Answer + Send + Sync + Copy + 'static,
    T: Fn(ServerSocket) -> F + Send + Sync + Copy + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let (connector, mut dials) = PipeConnector::new();
    let seen = Seen::default();
    let noted = seen.clone();
    tokio::spawn(async move {
        while let Some(stream) = dials.recv().await {
            let noted = noted.clone();
            tokio::spawn(async move {
                let gate = move |request: &Request| {
                    let query = request.query().unwrap_or_default();
                    let auth = request.header("authorization").unwrap_or_default();
                    let what = format!("{}?{query} {auth}", request.path());
                    noted.lock().unwrap().push(what);
                    gate(request)
                };
                let mut options = AcceptorOptions::default();
                options.max_message = 64 * 1024 * 1024;
                let accepted = Acceptor::new(options).accept(Box::new(stream), &gate).await;
                if let Ok(Some(accepted)) = accepted {
                    talk(accepted.socket).await;
                }
            });
        }
    });
    (OpenAi::new().connector(connector), seen)
}

fn upgrade(_: &Request) -> Answer {
    Answer::upgrade()
}

async fn tell(socket: &mut ServerSocket, frame: Value) {
    socket.send(Frame::Text(frame.to_string().into())).await.unwrap();
}

async fn hear(socket: &mut ServerSocket) -> Option<Value> {
    match socket.recv().await? {
        Ok(Frame::Text(text)) => Some(serde_json::from_str(&text).unwrap()),
        _ => None,
    }
}

/// Sets up the session.
async fn set_up(socket: &mut ServerSocket) {
    tell(socket, json!({"type": "session.created", "session": {"type": "realtime"}})).await;
    let update = hear(socket).await.unwrap();
    assert_eq!(update["type"], "session.update");
    tell(socket, json!({"type": "session.updated", "session": update["session"]})).await;
}

/// Sets up the session, and answers every request for a reply with `Hello.`
async fn polite(mut socket: ServerSocket) {
    set_up(&mut socket).await;
    while let Some(event) = hear(&mut socket).await {
        if event["type"] == "response.create" {
            let metadata = event["response"]["metadata"].clone();
            let response = json!({"id": "r", "metadata": metadata});
            tell(&mut socket, json!({"type": "response.created", "response": response})).await;
            tell(
                &mut socket,
                json!({"type": "response.output_text.done", "response_id": "r", "item_id": "i",
                    "text": "Hello."}),
            )
            .await;
            let response = json!({"id": "r", "status": "completed"});
            tell(&mut socket, json!({"type": "response.done", "response": response})).await;
        }
    }
}

fn config() -> LiveConfig {
    LiveConfig::new().api_key("sk-1").model("one")
}

async fn connect(
    provider: &OpenAi,
    config: LiveConfig,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    let connect = provider.connect(ConnectRequest::new(config.into()));
    timeout(Duration::from_secs(60), connect).await.unwrap()
}

async fn refusal(provider: &OpenAi, config: LiveConfig) -> LiveError {
    match connect(provider, config).await {
        Ok(_) => panic!("connected"),
        Err(error) => error,
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_begins_and_holds_a_turn() {
    let (provider, seen) = provider(upgrade, polite);
    let mut connection = connect(&provider, config()).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["/v1/realtime?model=one Bearer sk-1"]);
    connection.send(LiveCommand::Text { text: "Hi.".into(), reply: true }).await.unwrap();
    let mut told = Vec::new();
    while let Some(event) = connection.next().await {
        let event = event.unwrap();
        told.push(event.name());
        if matches!(event, LiveEvent::ReplyDone { .. }) {
            break;
        }
    }
    assert_eq!(told, ["ready", "reply_started", "output_text", "reply_done"]);
    connection.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_token_source_is_asked_at_every_connect_and_wins_over_the_key() {
    let (provider, seen) = provider(upgrade, polite);
    let count = Arc::new(Mutex::new(0));
    let mut config = config();
    config.bearer = Some(BearerSource::new(move || {
        let mut count = count.lock().unwrap();
        *count += 1;
        let token = SecretString::from(format!("ek_{count}"));
        async move { Ok(token) }
    }));
    for _ in 0..2 {
        connect(&provider, config.clone()).await.unwrap();
    }
    let seen = seen.lock().unwrap().clone();
    assert!(seen[0].ends_with("Bearer ek_1") && seen[1].ends_with("Bearer ek_2"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_refused_before_anything_is_dialled() {
    let (provider, seen) = provider(upgrade, polite);
    let missing = refusal(&provider, LiveConfig::new()).await;
    assert!(matches!(missing, LiveError::MissingApiKey { .. }));
    let mut bad = config();
    bad.endpoint = Some("gopher://hole".into());
    assert!(matches!(refusal(&provider, bad.clone()).await, LiveError::InvalidConfig(_)));
    assert!(provider.capabilities(&bad).is_err());
    let handle = Resumption { handle: SecretString::from("h") };
    let request = ConnectRequest::resuming(config().into(), Some(handle), Vec::new(), 2);
    assert!(matches!(provider.connect(request).await, Err(LiveError::Unsupported { .. })));
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn quirk_32_every_refused_upgrade_is_typed() {
    let status = |status: &'static str| {
        let mut config = config();
        config.model = Some(status.into());
        config
    };
    let gate = |request: &Request| {
        let status = request.parameter("model").unwrap().parse().unwrap();
        let code = if status == 404 { "model_not_found" } else { "odd" };
        let body = json!({"error": {"message": "No.", "code": code}});
        Answer::json(status, &body).header("retry-after", "7")
    };
    let (provider, _) = provider(gate, polite);
    for unauthorized in ["401", "403"] {
        let error = refusal(&provider, status(unauthorized)).await;
        assert!(matches!(error, LiveError::Unauthorized(_)), "{error}");
    }
    let error = refusal(&provider, status("429")).await;
    let LiveError::RateLimited { retry_after, .. } = error else { panic!("{error}") };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
    for passing in ["500", "503"] {
        assert!(refusal(&provider, status(passing)).await.is_recoverable());
    }
    assert_eq!(refusal(&provider, status("404")).await.status(), Status::NotFound);
    assert_eq!(refusal(&provider, status("400")).await.status(), Status::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_model_is_tried_once() {
    let gate = |request: &Request| match request.parameter("model").as_deref() {
        Some("two") => Answer::upgrade(),
        _ => Answer::http(404, "no such model"),
    };
    let (provider, seen) = provider(gate, polite);
    let mut config = config();
    config.fallback_model = Some(" two ".into());
    connect(&provider, config.clone()).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
    for same in ["", "one", " one "] {
        config.fallback_model = Some(same.into());
        seen.lock().unwrap().clear();
        assert!(connect(&provider, config.clone()).await.is_err());
        assert_eq!(seen.lock().unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_never_answers_leaves_time_for_the_fallback_model() {
    let (connector, mut dials) = PipeConnector::new();
    tokio::spawn(async move {
        let never_answered = dials.recv().await;
        let stream = dials.recv().await.unwrap();
        let gate = |request: &Request| match request.parameter("model").as_deref() {
            Some("two") => Answer::upgrade(),
            _ => Answer::http(404, "no such model"),
        };
        let acceptor = Acceptor::new(AcceptorOptions::default());
        let accepted = acceptor.accept(Box::new(stream), &gate).await.unwrap().unwrap();
        polite(accepted.socket).await;
        drop(never_answered);
    });
    let provider = OpenAi::new().connector(connector);
    let mut config = config();
    config.fallback_model = Some("two".into());
    // A session waits this long for both.
    let connect = provider.connect(ConnectRequest::new(config.into()));
    timeout(Duration::from_secs(15), connect).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn closes_and_errors_before_the_session_begins_say_why() {
    async fn at_once(socket: ServerSocket) {
        socket.close(3000, "invalid_request_error.invalid_api_key").await;
    }
    async fn after_the_first_event(mut socket: ServerSocket) {
        tell(&mut socket, json!({"type": "session.created", "session": {}})).await;
        socket.close(1011, "server fault").await;
    }
    async fn with_an_error(mut socket: ServerSocket) {
        let error = json!({"type": "invalid_request_error", "code": "model_not_found"});
        tell(&mut socket, json!({"type": "error", "error": error})).await;
    }
    async fn without_a_word(socket: ServerSocket) {
        socket.abort();
    }
    async fn garbage(mut socket: ServerSocket) {
        for _ in 0..20 {
            let _ = socket.send(Frame::Text("{\"type\":".into())).await;
        }
        let _ = socket.recv().await;
    }
    let (meets, _) = provider(upgrade, at_once);
    assert!(matches!(refusal(&meets, config()).await, LiveError::Unauthorized(_)));
    let (meets, _) = provider(upgrade, after_the_first_event);
    let error = refusal(&meets, config()).await;
    assert!(matches!(error, LiveError::Closed { code: 1011, .. }), "{error}");
    let (meets, _) = provider(upgrade, with_an_error);
    assert_eq!(refusal(&meets, config()).await.status(), Status::NotFound);
    let (meets, _) = provider(upgrade, without_a_word);
    assert!(refusal(&meets, config()).await.is_recoverable());
    let (meets, _) = provider(upgrade, garbage);
    assert!(matches!(refusal(&meets, config()).await, LiveError::Protocol(_)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_ready_and_one_that_does_not_upgrade_is_late() {
    async fn mute(mut socket: ServerSocket) {
        while socket.recv().await.is_some() {}
    }
    let (meets, _) = provider(upgrade, mute);
    let connection = connect(&meets, config()).await.unwrap();
    assert!(connection.capabilities().text_input);

    struct Nowhere;
    #[async_trait]
    impl Connector for Nowhere {
        async fn connect(&self, _: &str) -> std::io::Result<Box<dyn Transport>> {
            std::future::pending().await
        }
    }
    let provider = OpenAi::new().connector(Nowhere);
    assert!(matches!(refusal(&provider, config()).await, LiveError::Timeout { .. }));
}

#[tokio::test(start_paused = true)]
async fn closes_in_a_session_are_its_last_word() {
    for (code, recoverable) in [(1000, false), (1001, true), (1011, true), (4000, false)] {
        // Each server is told by its own first text which code to close with.
        let (meets, _) = provider(upgrade, |mut socket| async move {
            set_up(&mut socket).await;
            let item = hear(&mut socket).await.unwrap();
            let code = item["item"]["content"][0]["text"].as_str().unwrap().parse().unwrap();
            socket.close(code, "bye").await;
        });
        let mut connection = connect(&meets, config()).await.unwrap();
        let text = LiveCommand::Text { text: code.to_string(), reply: false };
        connection.send(text).await.unwrap();
        let ready = connection.next().await;
        assert!(matches!(ready, Some(Ok(LiveEvent::Ready { .. }))));
        let error = connection.next().await.unwrap().unwrap_err();
        assert_eq!(error.is_recoverable(), recoverable, "{error}");
        assert!(connection.next().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn quirk_73_an_end_without_a_close_frame_is_a_loss() {
    let (meets, _) = provider(upgrade, |mut socket| async move {
        set_up(&mut socket).await;
        socket.abort();
    });
    let mut connection = connect(&meets, config()).await.unwrap();
    assert!(matches!(connection.next().await, Some(Ok(LiveEvent::Ready { .. }))));
    let error = connection.next().await.unwrap().unwrap_err();
    assert!(matches!(error, LiveError::Closed { code: 1006, .. }), "{error:?}");
    assert!(error.is_recoverable());
    assert!(connection.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn quirk_23_a_frame_beyond_the_bound_is_typed() {
    let (meets, _) = provider(upgrade, |mut socket| async move {
        set_up(&mut socket).await;
        let _ = socket.send(Frame::Text("x".repeat(20 * 1024 * 1024).into())).await;
        let _ = socket.recv().await;
    });
    let mut connection = connect(&meets, config()).await.unwrap();
    connection.next().await;
    let error = connection.next().await.unwrap().unwrap_err();
    assert!(matches!(error, LiveError::Protocol(_)), "{error:?}");
    assert!(connection.next().await.is_none());
}
