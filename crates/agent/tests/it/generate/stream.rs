use std::collections::HashMap;

use antiphon_agent::{FuncTool, Part, Role, ToolExecutor, generate_stream, types::JsonObject};
use antiphon_testkit::{EchoModel, ModelLatch, ModelTurn};
use futures_util::StreamExt;
use serde_json::json;

use super::*;

#[tokio::test]
async fn chunks_count_the_messages_of_the_turn() {
    let registry = registry();
    registry.must_register(FuncTool::new("work", "Works.", None, |cx, _| async move {
        cx.send_partial("half").await;
        Ok(JsonObject::new())
    }));
    let (_, request) = script([
        ModelTurn::says("Let ").text("me ").call("1", "work", json!({})),
        ModelTurn::says("Done."),
    ]);
    let request = request.prompt("?").tools(ToolExecutor::new(std::sync::Arc::new(registry), None));
    let mut stream = generate_stream(&cx(), request);
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(json_of(&chunk));
    }
    let partial = json!({"toolResponse": {"name": "work", "ref": "1", "output": "half"},
        "metadata": {"partial": true}});
    let expected = [
        json!({"role": "model", "index": 0, "content": [{"text": "Let "}]}),
        json!({"role": "model", "index": 0, "content": [{"text": "me "}]}),
        json!({"role": "model", "index": 0,
            "content": [{"toolRequest": {"name": "work", "ref": "1", "input": {}}}]}),
        json!({"role": "tool", "index": 1, "content": [partial]}),
        json!({"role": "tool", "index": 1,
            "content": [{"toolResponse": {"name": "work", "ref": "1", "output": {}}}]}),
        json!({"role": "model", "index": 2, "content": [{"text": "Done."}]}),
    ];
    assert_eq!(chunks, expected);
    let response = stream.response().await.unwrap();
    assert_eq!(response.text(), "Done.");
    // Progress is for the stream only.
    assert!(!json_of(response.history()).to_string().contains("half"));
}

#[tokio::test]
async fn concurrent_streaming_tools() {
    let registry = ToolRegistry::new();
    for name in ["a", "b", "c"] {
        registry.must_register(FuncTool::new(name, "Works.", None, |cx, _| async move {
            for step in 0..40 {
                cx.send_partial(step).await;
            }
            Ok(JsonObject::new())
        }));
    }
    let turn =
        ModelTurn::calls("", "a", json!({})).call("", "b", json!({})).call("", "c", json!({}));
    let (_, request) = script([turn, ModelTurn::says("Done.")]);
    let request = request.prompt("?").tools(ToolExecutor::new(Arc::new(registry), None));
    let mut stream = generate_stream(&cx(), request);
    let mut steps: HashMap<Arc<str>, Vec<u64>> = HashMap::new();
    while let Some(chunk) = stream.next().await {
        for part in chunk.tool_responses().filter(|part| part.is_partial()) {
            assert_eq!(chunk.index, Some(1));
            let response = part.as_tool_response().unwrap();
            let step = response.output.as_ref().unwrap().as_u64().unwrap();
            steps.entry(response.name.clone()).or_default().push(step);
        }
    }
    // Nothing is lost, and each tool's progress is in order.
    assert_eq!(steps.len(), 3);
    assert!(steps.values().all(|steps| steps.iter().copied().eq(0..40)), "{steps:?}");
    assert_eq!(stream.response().await.unwrap().text(), "Done.");
}

#[tokio::test]
async fn an_interrupted_turn_ends_with_the_requests_that_wait() {
    let asks = Part::tool_request("transfer", Some("t".into()), json!({"to": "al", "amount": 300}));
    let turn = ModelTurn::default().whole(vec![
        Part::text("Wait. "),
        Part::tool_request("weather", Some("w".into()), json!({"city": "Oslo"})),
        asks.clone(),
    ]);
    let (_, request) = script([turn]);
    let mut stream = generate_stream(&cx(), request.prompt("?").tools(tools()));
    let chunk = stream.next().await.unwrap();
    assert_eq!((chunk.role, chunk.index), (Some(Role::Tool), None));
    let asks = asks.with_metadata_entry("interrupt", json!({"amount": 300.0}));
    assert_eq!(chunk.content, [asks]);
    assert_eq!(stream.next().await, None);
}

#[tokio::test]
async fn many_chunks_reach_a_slow_reader() {
    let text = "word ".repeat(1_000);
    let request = Generate::new(std::sync::Arc::new(EchoModel)).prompt(&text);
    let mut stream = generate_stream(&cx(), request.clone());
    let mut heard = String::new();
    while let Some(chunk) = stream.next().await {
        tokio::task::yield_now().await;
        heard.push_str(&chunk.text());
    }
    assert_eq!(heard, text);
    // Or nobody at all.
    assert_eq!(generate_stream(&cx(), request).response().await.unwrap().text(), text);
}

#[tokio::test]
async fn dropping_the_stream_closes_that_of_the_model() {
    let latch = ModelLatch::default();
    let (model, request) = script([ModelTurn::says("Hel").wait(&latch)]);
    let mut stream = generate_stream(&cx(), request.prompt("?"));
    assert_eq!(stream.next().await.unwrap().text(), "Hel");
    assert_eq!(model.open(), 1);
    drop(stream);
    assert_eq!(model.open(), 0);
}
