//! Chat models against a server that says what it is told to, byte for byte.

use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    Message, Model, ModelChunk, ModelError, ModelFinish, ModelReply, ModelRequest, Part, PartKind,
    Role,
    chat_model::{ChatApi, ChatModel, ChatModelBuilder},
    model::collect,
    types::{Status, ToolArguments, ToolDefinition},
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::timeout,
};

/// What a server says to one request.
struct Answer {
    status: u16,
    body: String,
    /// Whether the body ends with what was said.
    whole: bool,
}

impl Answer {
    /// Server-sent events.
    fn events(events: &[Value]) -> Self {
        let body = events.iter().map(|event| match event {
            Value::String(text) => format!("data: {text}\n\n"),
            event => match event["type"].as_str() {
                Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
                None => format!("data: {event}\n\n"),
            },
        });
        Self { status: 200, body: body.collect(), whole: true }
    }

    fn failure(status: u16, body: &str) -> Self {
        Self { status, body: body.into(), whole: true }
    }

    fn unfinished(mut self) -> Self {
        self.whole = false;
        self
    }
}

/// What was asked.
#[derive(Debug)]
struct Asked {
    head: String,
    body: Value,
    /// Whether the client closed the connection of an unfinished answer.
    closed: bool,
}

/// Answers one request.
async fn server(answer: Answer) -> (String, JoinHandle<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/base", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (head, body) = read_request(&mut stream).await;
        let Answer { status, body: text, whole } = answer;
        let length =
            if whole { format!("Content-Length: {}\r\n", text.len()) } else { String::new() };
        let kind = if status == 200 { "text/event-stream" } else { "application/json" };
        let head_back = format!("HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\n{length}\r\n");
        stream.write_all(head_back.as_bytes()).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut rest = [0; 64];
        let closed = !whole
            && matches!(
                timeout(Duration::from_secs(10), stream.read(&mut rest)).await,
                Ok(Ok(0) | Err(_))
            );
        Asked { head, body, closed }
    });
    (url, task)
}

async fn read_request(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    loop {
        let mut more = [0; 4096];
        let count = stream.read(&mut more).await.unwrap();
        assert!(count > 0, "the request ended early");
        bytes.extend_from_slice(&more[..count]);
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length:"))
            .map_or(0, |length| length.trim().parse().unwrap());
        if body.len() >= length {
            return (head.clone(), serde_json::from_str(body).unwrap());
        }
    }
}

fn builder(api: ChatApi, url: &str) -> ChatModelBuilder {
    ChatModel::builder(api, "test-model").url(url).api_key("secret-key")
}

fn conversation() -> ModelRequest {
    let mut with_picture =
        Part::tool_response("weather", Some("c1".into()), json!({"degrees": 18}));
    if let PartKind::ToolResponse(response) = &mut with_picture.kind {
        response.content = Some(vec![Part::media("data:image/png;base64,BBBB", None)]);
    }
    let mut messages = vec![
        Message::user("Weather in Paris?"),
        Message::new(
            Role::Model,
            vec![
                Part::text("Let me look."),
                Part::tool_request("weather", Some("c1".into()), json!({"city": "Paris"})),
            ],
        ),
        Message::new(Role::Tool, vec![with_picture]),
        Message::new(
            Role::User,
            vec![
                Part::text("And here?"),
                Part::media("data:image/png;base64,AAAA", None),
                Part::reasoning("never sent"),
            ],
        ),
    ];
    let mut request = ModelRequest::new(messages.drain(..).map(Arc::new).collect());
    request.instructions = Some("Be brief.".into());
    let mut tool = ToolDefinition::new("weather", "Tells the weather.");
    tool.input_schema = Some(Arc::new(
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}),
    ));
    request.tools = Arc::new([tool, ToolDefinition::new("now", "Tells the time.")]);
    request.max_output_tokens = Some(77);
    request
}

async fn ask(api: ChatApi, answer: Answer) -> (Result<ModelReply, ModelError>, Asked) {
    let (url, asked) = server(answer).await;
    let model = builder(api, &url).build().unwrap();
    let reply = match model.generate(conversation()).await {
        Ok(stream) => collect(stream).await,
        Err(error) => Err(error),
    };
    (reply, asked.await.unwrap())
}

#[tokio::test]
async fn an_openai_server_is_asked_and_its_text_and_calls_are_heard() {
    let chunk = |delta: Value, finish: Value| json!({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let call = |index, id, name, arguments: &str| {
        let function = json!({"name": name, "arguments": arguments});
        json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
    };
    let more = |index, arguments: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]});
    let answer = Answer::events(&[
        chunk(json!({"role": "assistant", "content": "I "}), Value::Null),
        chunk(json!({"content": "look."}), Value::Null),
        chunk(call(0, "a", "weather", ""), Value::Null),
        chunk(more(0, r#"{"city": "#), Value::Null),
        chunk(more(0, r#""Oslo"}"#), Value::Null),
        chunk(call(1, "b", "now", ""), Value::Null),
        chunk(json!({}), json!("tool_calls")),
        json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}),
        json!("[DONE]"),
    ]);
    let (reply, asked) = ask(ChatApi::OpenAi, answer).await;
    let reply = reply.unwrap();
    assert_eq!(reply.text(), "I look.");
    assert_eq!(reply.tool_calls.len(), 2);
    assert_eq!((&*reply.tool_calls[0].id, &*reply.tool_calls[0].name), ("a", "weather"));
    let oslo = json!({"city": "Oslo"}).as_object().unwrap().clone();
    assert_eq!(reply.tool_calls[0].arguments, ToolArguments::Object(oslo));
    assert_eq!(reply.tool_calls[1].arguments, ToolArguments::Object(Default::default()));
    assert_eq!(reply.finish, ModelFinish::Stop);
    let usage = reply.usage.unwrap();
    assert_eq!((usage.input_text_tokens, usage.output_text_tokens), (10, 5));

    assert!(asked.head.starts_with("post /base/chat/completions "), "{}", asked.head);
    assert!(asked.head.contains("authorization: bearer secret-key"), "{}", asked.head);
    let body = asked.body;
    assert_eq!(body["model"], "test-model");
    assert_eq!(body["stream"], true);
    let roles: Vec<_> = body["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user", "user"]);
    assert_eq!(body["messages"][0]["content"], "Be brief.");
    let call = &body["messages"][2]["tool_calls"][0];
    assert_eq!(call["id"], "c1");
    assert_eq!(call["function"]["name"], "weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"city": "Paris"}));
    assert_eq!(body["messages"][3]["tool_call_id"], "c1");
    assert_eq!(body["messages"][3]["content"], r#"{"degrees":18}"#);
    for (message, data) in [(4, "BBBB"), (5, "AAAA")] {
        let image = &body["messages"][message]["content"][1]["image_url"]["url"];
        assert_eq!(image, &json!(format!("data:image/png;base64,{data}")));
    }
    assert_eq!(body["tools"][0]["function"]["name"], "weather");
    assert_eq!(body["tools"][0]["function"]["parameters"]["required"], json!(["city"]));
    assert!(!body.to_string().contains("never sent"));
}

#[tokio::test]
async fn an_anthropic_server_is_asked_and_its_text_and_calls_are_heard() {
    let answer = Answer::events(&[
        json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 10, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I look."}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "id": "a", "name": "weather", "input": {}}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"city\": \"Os"}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "lo\"}"}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}),
        json!({"type": "message_stop"}),
    ]);
    let (reply, asked) = ask(ChatApi::Anthropic, answer).await;
    let reply = reply.unwrap();
    assert_eq!(reply.text(), "I look.");
    assert_eq!((&*reply.tool_calls[0].id, &*reply.tool_calls[0].name), ("a", "weather"));
    let oslo = json!({"city": "Oslo"}).as_object().unwrap().clone();
    assert_eq!(reply.tool_calls[0].arguments, ToolArguments::Object(oslo));

    assert!(asked.head.starts_with("post /base/messages "), "{}", asked.head);
    assert!(asked.head.contains("x-api-key: secret-key"), "{}", asked.head);
    let body = asked.body;
    assert_eq!(body["max_tokens"], 77);
    assert!(body["system"].to_string().contains("Be brief."));
    let used = &body["messages"][1]["content"][1];
    assert_eq!((&used["type"], &used["id"]), (&json!("tool_use"), &json!("c1")));
    let result = &body["messages"][2]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("c1")));
    assert_eq!(body["tools"][0]["name"], "weather");
}

#[tokio::test]
async fn a_gemini_server_is_asked_and_gets_its_thoughts_back() {
    let answer = Answer::events(&[
        json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "I "}]}}]}),
        json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "look."}]}}]}),
        json!({
            "candidates": [{
                "content": {"role": "model", "parts": [
                    {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2ln"},
                    {"functionCall": {"name": "weather", "args": {"city": "Bonn"}}},
                ]},
                "finishReason": "STOP",
            }],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
        }),
    ]);
    let (reply, asked) = ask(ChatApi::Gemini, answer).await;
    let reply = reply.unwrap();
    assert_eq!(reply.text(), "I look.");
    let [first, second] = &reply.tool_calls[..] else { panic!("{reply:?}") };
    assert_ne!(first.id, second.id);
    let path = "post /base/models/test-model:streamgeneratecontent";
    assert!(asked.head.starts_with(path), "{}", asked.head);
    let turns = asked.body["contents"].as_array().unwrap();
    assert_eq!(turns[1]["parts"][1]["functionCall"]["name"], "weather");
    assert_eq!(turns[2]["parts"][0]["functionResponse"]["name"], "weather");

    // The next request holds the signature where the vendor expects it.
    let (url, asked) = server(Answer::events(&[json!({"candidates": []})])).await;
    let calls = reply.tool_calls.clone();
    let outputs = calls.iter().map(|call| {
        Part::tool_response(call.name.clone(), Some(call.id.clone()), json!({"degrees": 5}))
    });
    let outputs = Message::new(Role::Tool, outputs.collect());
    let messages = vec![Message::user("Oslo?"), reply.into_message(), outputs];
    let model = builder(ChatApi::Gemini, &url).build().unwrap();
    let request = ModelRequest::new(messages.into_iter().map(Arc::new).collect());
    let _ = collect(model.generate(request).await.unwrap()).await;
    let parts = asked.await.unwrap().body["contents"][1]["parts"].to_string();
    assert!(parts.contains("c2ln"), "{parts}");
}

#[tokio::test]
async fn what_a_server_refuses_has_a_canonical_code_and_its_words_but_not_the_key() {
    let cases = [
        (400, Status::InvalidArgument),
        (401, Status::Unauthenticated),
        (403, Status::PermissionDenied),
        (404, Status::NotFound),
        (429, Status::ResourceExhausted),
        (500, Status::Unavailable),
        (503, Status::Unavailable),
        (504, Status::DeadlineExceeded),
    ];
    for api in [ChatApi::OpenAi, ChatApi::Anthropic, ChatApi::Gemini] {
        for (code, status) in cases {
            let body = r#"{"error": {"message": "because I say so", "code": 1}}"#;
            let (reply, _) = ask(api, Answer::failure(code, body)).await;
            let error = reply.unwrap_err();
            assert_eq!(error.status(), status, "{api:?} {code}: {error}");
            assert!(error.to_string().contains("because I say so"), "{api:?} {code}: {error}");
            assert!(!error.to_string().contains("secret-key"), "{api:?} {code}: {error}");
        }
    }
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let model = builder(ChatApi::Gemini, &url).build().unwrap();
    let error = collect(model.generate(conversation()).await.unwrap()).await.unwrap_err();
    assert_eq!(error.status(), Status::Unavailable, "{error}");
    assert!(!error.to_string().contains("secret-key"), "{error}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_an_error_after_what_was_said() {
    let start = json!({"choices": [{"index": 0, "delta": {"content": "Hel"}}]});
    let mut answer = Answer::events(&[start]);
    answer.body.push_str("data: {\"choices\": [{\"ind");
    let (reply, _) = ask(ChatApi::OpenAi, answer).await;
    assert_eq!(reply.unwrap_err().status(), Status::Unavailable);
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let start = json!({"choices": [{"index": 0, "delta": {"content": "Hel"}}]});
    let (url, asked) = server(Answer::events(&[start]).unfinished()).await;
    let model = builder(ChatApi::OpenAi, &url).wait(Duration::from_millis(200)).build().unwrap();
    let mut stream = model.generate(conversation()).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap(), ModelChunk::Text("Hel".into()));
    let error = stream.next().await.unwrap().unwrap_err();
    assert_eq!(error.status(), Status::DeadlineExceeded, "{error}");
    assert!(stream.next().await.is_none());
    drop(stream);
    assert!(asked.await.unwrap().closed);
}

#[tokio::test]
async fn a_generation_that_is_dropped_closes_its_connection() {
    let starts = [
        (ChatApi::OpenAi, vec![json!({"choices": [{"index": 0, "delta": {"content": "Hel"}}]})]),
        (
            ChatApi::Anthropic,
            vec![
                json!({"type": "message_start", "message": {"id": "m", "usage": {}}}),
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}),
            ],
        ),
        (
            ChatApi::Gemini,
            vec![
                json!({"candidates": [{"content": {"role": "model", "parts": [{"text": "Hel"}]}}]}),
            ],
        ),
    ];
    for (api, start) in starts {
        let (url, asked) = server(Answer::events(&start).unfinished()).await;
        let model = builder(api, &url).build().unwrap();
        let mut stream = model.generate(conversation()).await.unwrap();
        assert_eq!(
            stream.next().await.unwrap().unwrap(),
            ModelChunk::Text("Hel".into()),
            "{api:?}"
        );
        drop(stream);
        let asked = timeout(Duration::from_secs(1), asked).await.expect("closed within a second");
        assert!(asked.unwrap().closed, "{api:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_before_it_is_sent() {
    let invalid = |builder: ChatModelBuilder| builder.build().unwrap_err().status();
    let api = ChatApi::OpenAi;
    assert_eq!(invalid(ChatModel::builder(api, " ")), Status::InvalidArgument);
    assert_eq!(invalid(ChatModel::builder(api, "m")), Status::Unauthenticated);
    assert_eq!(invalid(ChatModel::builder(api, "m").url("localhost")), Status::InvalidArgument);
    assert_eq!(invalid(ChatModel::builder(api, "m").url("ftp://a/")), Status::InvalidArgument);
    let hot = ChatModel::builder(api, "m").url("http://a").temperature(3.0);
    assert_eq!(invalid(hot), Status::InvalidArgument);

    let model = ChatModel::builder(api, "m").url("http://127.0.0.1:1").build().unwrap();
    for bad in [
        vec![],
        vec![Message::new(Role::User, vec![Part::media("https://a/b.png", None)])],
        vec![Message::new(Role::User, vec![Part::media("data:image/png,raw", None)])],
        vec![Message::new(Role::User, vec![Part::media("data:image/png;base64", None)])],
    ] {
        let request = ModelRequest::new(bad.into_iter().map(Arc::new).collect());
        let error = model.generate(request).await.err().expect("it is refused");
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
}
