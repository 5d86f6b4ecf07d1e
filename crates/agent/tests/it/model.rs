use antiphon_agent::{
    Message, ModelChunk, ModelError, ModelStream, Part, Role,
    model::{ModelFinish, collect},
    types::{JsonObject, Status, ToolArguments, Usage},
};
use serde_json::json;

use crate::support::{object, request};

fn stream(chunks: Vec<Result<ModelChunk, ModelError>>) -> ModelStream {
    Box::pin(futures_util::stream::iter(chunks))
}

fn done() -> ModelChunk {
    ModelChunk::Done { reason: ModelFinish::Stop, usage: None, metadata: None }
}

#[tokio::test]
async fn a_generation_is_collected_into_one_reply() {
    let mut usage = Usage::default();
    usage.output_text_tokens = 7;
    let metadata = object(json!({"signature": "abc"}));
    let call = request("1", "pay", r#"{"amount":5}"#);
    let reply = collect(stream(vec![
        Ok(ModelChunk::Text("Hel".into())),
        Ok(ModelChunk::Text("lo".into())),
        Ok(ModelChunk::ToolCall(call.clone())),
        Ok(ModelChunk::Done {
            reason: ModelFinish::Stop,
            usage: Some(usage),
            metadata: Some(metadata.clone()),
        }),
        // Nothing counts after the end.
        Ok(ModelChunk::Text("!".into())),
    ]))
    .await
    .unwrap();
    assert_eq!(reply.text(), "Hello");
    assert_eq!(reply.tool_calls, [call]);
    assert_eq!(reply.finish, ModelFinish::Stop);
    assert_eq!(reply.usage, Some(usage));
    assert_eq!(
        reply.into_message(),
        Message::new(
            Role::Model,
            vec![
                Part::text("Hello"),
                Part::tool_request("pay", Some("1".into()), json!({"amount": 5})),
            ],
        )
        .with_metadata(Some(metadata))
    );
}

#[tokio::test]
async fn a_generation_that_fails_or_stops_short_is_an_error() {
    let text = || Ok(ModelChunk::Text("Hel".into()));
    let failed = ModelError::new("scripted", Status::Unavailable, "overloaded");
    let error = collect(stream(vec![text(), Err(failed), Ok(done())])).await.unwrap_err();
    assert_eq!((error.status(), error.message.as_str()), (Status::Unavailable, "overloaded"));

    let error = collect(stream(vec![text()])).await.unwrap_err();
    assert_eq!(error.status(), Status::Unavailable);
    assert!(error.message.contains("ended"), "{error}");
}

#[tokio::test]
async fn arguments_that_are_no_object_leave_an_empty_input_in_the_message() {
    let mut call = request("1", "pay", "{\"amount\":");
    let reply = collect(stream(vec![Ok(ModelChunk::ToolCall(call.clone())), Ok(done())])).await;
    let message = reply.unwrap().into_message();
    let empty = Part::tool_request("pay", Some("1".into()), JsonObject::new());
    assert_eq!(message.content, std::slice::from_ref(&empty));

    call.arguments = ToolArguments::Object(JsonObject::new());
    let reply = collect(stream(vec![Ok(ModelChunk::ToolCall(call)), Ok(done())])).await;
    assert_eq!(reply.unwrap().into_message().content, [empty]);
}

#[tokio::test]
async fn thoughts_media_and_signed_calls_keep_their_place() {
    let picture = Part::media("data:image/png;base64,AAAA", Some("image/png".into()));
    let signed = Part::tool_request("pay", None, json!({"amount": 5}))
        .with_metadata_entry("signature", "abc");
    let reply = collect(stream(vec![
        Ok(ModelChunk::Reasoning("Let me ".into())),
        Ok(ModelChunk::Reasoning("think.".into())),
        Ok(ModelChunk::Text("Here: ".into())),
        Ok(ModelChunk::Part(Box::new(picture.clone()))),
        Ok(ModelChunk::Whole(vec![Part::text("and"), signed.clone()])),
        Ok(done()),
    ]))
    .await
    .unwrap();
    let expected = [
        Part::reasoning("Let me think."),
        Part::text("Here: "),
        picture,
        Part::text("and"),
        signed,
    ];
    assert_eq!(reply.content, expected);
    assert_eq!(reply.text(), "Here: and");
    assert_eq!(reply.tool_calls.len(), 1);
    assert_eq!(&*reply.tool_calls[0].id, "");
}

#[tokio::test]
async fn a_reply_without_end_is_cut() {
    let endless = futures_util::stream::repeat_with(|| Ok(ModelChunk::Text("x".repeat(1 << 20))));
    let error = collect(Box::pin(endless)).await.unwrap_err();
    assert_eq!(error.status(), Status::ResourceExhausted);
}
