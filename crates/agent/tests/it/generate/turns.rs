use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    AgentFinishReason, Generate, InvocationContext, Message, ModelChunk, ModelFinish, Part, Role,
    RuntimeError, ToolErrors, ToolExecutor, generate,
    types::{Status, Usage},
};
use antiphon_testkit::{LatchedTool, ModelLatch, ModelTurn, ToolPlan};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;

#[tokio::test]
async fn a_prompt_is_answered() {
    let mut usage = Usage::default();
    usage.input_text_tokens = 3;
    let (model, request) = script([ModelTurn::default()
        .reasoning("Hm.")
        .text("Hello, ")
        .text("Ann")
        .finish(ModelFinish::Length)
        .usage(usage)]);
    let request = request
        .system("Be brief.")
        .messages([Message::user("I am Ann."), Message::model("Hi.")])
        .prompt("Who am I?")
        .max_output_tokens(9);
    let response = generate(&cx(), request).await.unwrap();
    assert_eq!((response.text(), response.reasoning()), ("Hello, Ann".into(), "Hm.".into()));
    assert_eq!(response.finish_reason, AgentFinishReason::Length);
    assert_eq!(response.usage, Some(usage));
    let roles: Vec<_> = response.history().iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::System, Role::User, Role::Model, Role::User, Role::Model]);
    assert_eq!(response.new_messages().len(), 1);

    let asked = &model.requests()[0];
    assert_eq!(asked.instructions.as_deref(), Some("Be brief."));
    assert_eq!(asked.messages.len(), 3);
    assert_eq!(asked.max_output_tokens, Some(9));
    assert_eq!(model.open(), 0);

    // Going on from the history does not repeat the instructions.
    model.push(ModelTurn::says("Ann."));
    let again = Generate::new(model.shared()).system("Be brief.");
    let again = again.messages(response.history().iter().cloned()).prompt("Again?");
    let response = generate(&cx(), again).await.unwrap();
    assert_eq!(response.history().len(), 7);
}

#[tokio::test]
async fn tools_run_at_the_same_time_and_answer_in_order() {
    let (slow, latch) = LatchedTool::new("slow", ToolPlan::Succeed);
    let registry = registry();
    registry.must_register(slow);
    let (model, request) = script([
        ModelTurn::default()
            .text("Let me see.")
            .call("", "slow", json!({}))
            .call("", "weather", json!({"city": "Paris"}))
            .call("z", "zero", json!({})),
        ModelTurn::says("Sunny."),
    ]);
    let request = request.prompt("Weather?").tools(ToolExecutor::new(Arc::new(registry), None));
    let cx = cx();
    let (response, ()) = tokio::join!(generate(&cx, request), async {
        latch.started().await;
        latch.release(1);
    });
    let response = response.unwrap();
    assert_eq!(response.text(), "Sunny.");
    let added = json_of(response.new_messages());
    let expected = json!([
        {"role": "model", "content": [
            {"text": "Let me see."},
            {"toolRequest": {"name": "slow", "input": {}}},
            {"toolRequest": {"name": "weather", "input": {"city": "Paris"}}},
            {"toolRequest": {"name": "zero", "ref": "z", "input": {}}},
        ]},
        {"role": "tool", "content": [
            {"toolResponse": {"name": "slow", "output": {"ok": true}}},
            {"toolResponse": {"name": "weather", "output": "sunny in Paris"}},
            {"toolResponse": {"name": "zero", "ref": "z", "output": 0,
                "content": [{"text": "nothing"}]}},
        ]},
        {"role": "model", "content": [{"text": "Sunny."}]},
    ]);
    assert_eq!(added, expected);
    // A call without id has one all the same, and another each time.
    assert!(!latch.calls()[0].0.is_empty());
    let offered: Vec<_> = model.requests()[0].tools.iter().map(|it| it.name.clone()).collect();
    assert_eq!(offered, ["broken", "slow", "transfer", "weather", "zero"].map(Arc::from));
}

#[tokio::test]
async fn the_model_is_told_of_tools_that_fail() {
    let turn = ModelTurn::default()
        .call("1", "broken", json!({}))
        .call("2", "missing", json!({}))
        .call("3", "weather", json!({"town": "Paris"}))
        .call("4", "weather", json!(["Paris"]))
        .call("5", "weather", json!({"city": "Oslo"}))
        .call("5", "weather", json!({"city": "Oslo"}));
    let (_, request) = script([turn, ModelTurn::says("Sorry.")]);
    let response = generate(&cx(), request.prompt("?").tools(tools())).await.unwrap();
    let outputs: Vec<_> = response.new_messages()[1]
        .tool_responses()
        .map(|(_, response)| response.output.clone().unwrap())
        .collect();
    for (output, word) in outputs.iter().zip(["out of order", "unknown tool", "invalid", "invalid"])
    {
        assert!(output["error"].as_str().unwrap().contains(word), "{output} lacks {word}");
    }
    assert_eq!(outputs[4], "sunny in Oslo");
    assert!(outputs[5]["error"].as_str().unwrap().contains("same id"));
}

#[tokio::test]
async fn a_tool_that_fails_can_end_the_generation() {
    let (hangs, latch) = LatchedTool::open("hangs", ToolPlan::Hang);
    let registry = registry();
    registry.must_register(hangs);
    let (_, request) = script([
        ModelTurn::calls("1", "weather", json!({"city": "Rome"})),
        ModelTurn::calls("2", "hangs", json!({})).call("3", "broken", json!({})),
    ]);
    let request = request
        .prompt("?")
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .tool_errors(ToolErrors::Fail);
    let error = generate(&cx(), request).await.unwrap_err();
    assert_eq!(error.status(), Status::Internal);
    assert!(error.to_string().contains("out of order"), "{error}");
    // What stands is the round before.
    let response = error.response.unwrap();
    assert_eq!(response.finish_reason, AgentFinishReason::Failed);
    assert_eq!(response.history().last().unwrap().role, Role::Tool);
    assert_eq!(response.new_messages().len(), 2);
    while latch.running() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_model_that_never_stops_asking_is_stopped() {
    let endless = antiphon_testkit::ScriptedModel::answering(|_| {
        ModelTurn::calls("w", "weather", json!({"city": "Rome"}))
    });
    let request = Generate::new(endless.shared()).prompt("?").tools(tools());
    let error = generate(&cx(), request.clone()).await.unwrap_err();
    assert_eq!(error.status(), Status::Aborted);
    assert!(error.is_stop() && matches!(error.error, RuntimeError::LimitReached(_)));
    assert_eq!(endless.requests().len(), 6);
    let response = error.response.unwrap();
    assert_eq!(response.finish_reason, AgentFinishReason::Aborted);
    assert_eq!(response.new_messages().len(), 10);
    assert_eq!(response.history().last().unwrap().role, Role::Tool);

    let error = generate(&cx(), request.max_turns(0)).await.unwrap_err();
    assert!(error.response.unwrap().new_messages().is_empty());
}

#[tokio::test]
async fn a_model_that_fails_leaves_what_stands() {
    for turn in [
        ModelTurn::refuses(Status::Unavailable, "overloaded"),
        ModelTurn::says("Hel").fail(Status::Unavailable, "overloaded"),
        ModelTurn::says("Hel").cut_off(),
    ] {
        let weather = ModelTurn::calls("1", "weather", json!({"city": "Rome"}));
        let (_, request) = script([weather, turn]);
        let error = generate(&cx(), request.prompt("?").tools(tools())).await.unwrap_err();
        assert_eq!(error.status(), Status::Unavailable);
        assert!(!error.is_stop());
        let response = error.response.unwrap();
        assert_eq!(response.new_messages().len(), 2, "up to the round of tools");
    }
    // An aborted request of the provider is not the caller's doing.
    let (_, request) = script([ModelTurn::refuses(Status::Aborted, "conflict")]);
    let error = generate(&cx(), request.prompt("?")).await.unwrap_err();
    assert!(!error.is_stop());
    assert_eq!(error.response.unwrap().history().len(), 1);

    let (_, request) = script([]);
    let error = generate(&cx(), request).await.unwrap_err();
    assert_eq!((error.status(), error.response), (Status::InvalidArgument, None));
}

#[tokio::test(start_paused = true)]
async fn the_caller_can_stop_it() {
    let latch = ModelLatch::default();
    let (model, request) = script([
        ModelTurn::calls("1", "weather", json!({"city": "Rome"})),
        ModelTurn::says("Hel").wait(&latch),
    ]);
    let cancelled = CancellationToken::new();
    let cx = InvocationContext::new().with_cancellation(cancelled.clone());
    let (error, ()) = tokio::join!(generate(&cx, request.prompt("?").tools(tools())), async {
        latch.reached().await;
        cancelled.cancel();
    });
    let error = error.unwrap_err();
    assert_eq!((error.status(), error.is_stop()), (Status::Cancelled, true));
    let response = error.response.unwrap();
    assert_eq!(response.finish_reason, AgentFinishReason::Aborted);
    assert_eq!(response.new_messages().len(), 2);
    assert_eq!(model.open(), 0, "the model's stream is closed");

    let (hangs, tool) = LatchedTool::open("hangs", ToolPlan::Hang);
    let registry = registry();
    registry.must_register(hangs);
    let (_, request) = script([ModelTurn::calls("1", "hangs", json!({}))]);
    let request = request.prompt("?").tools(ToolExecutor::new(Arc::new(registry), None));
    let cx = InvocationContext::new().with_deadline(Instant::now() + Duration::from_secs(2));
    let begin = Instant::now();
    let error = generate(&cx, request).await.unwrap_err();
    assert_eq!((error.status(), error.is_stop()), (Status::DeadlineExceeded, true));
    assert_eq!(begin.elapsed().as_secs(), 2);
    while tool.running() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_model_is_given_up() {
    let latch = ModelLatch::default();
    let (model, request) = script([ModelTurn::says("Hel").wait(&latch)]);
    let error = generate(&cx(), request.prompt("?")).await.unwrap_err();
    assert_eq!((error.status(), error.is_stop()), (Status::DeadlineExceeded, false));
    assert_eq!(model.open(), 0);
}

#[tokio::test]
async fn calls_of_a_blocked_reply_do_not_run() {
    let turn = ModelTurn::says("Well").call("1", "transfer", json!({"to": "eve", "amount": 1}));
    let (_, request) = script([turn.finish(ModelFinish::Blocked)]);
    let response = generate(&cx(), request.prompt("?").tools(tools())).await.unwrap();
    assert_eq!(response.finish_reason, AgentFinishReason::Blocked);
    assert_eq!(response.message.unwrap().content, [Part::text("Well")]);
}

#[tokio::test]
async fn what_a_model_wants_to_see_again_is_kept_with_its_part() {
    let signed = Part::tool_request("weather", Some("1".into()), json!({"city": "Rome"}))
        .with_metadata_entry("thoughtSignature", "abc")
        // Not the model's to say.
        .with_metadata_entry("pendingOutput", "rain");
    let (model, request) = script([
        ModelTurn::default().chunk(ModelChunk::Part(Box::new(signed))),
        ModelTurn::says("Sunny."),
    ]);
    generate(&cx(), request.prompt("?").tools(tools())).await.unwrap();
    let again = &model.requests()[1].messages[1];
    assert_eq!(json_of(&again.content[0].metadata), json!({"thoughtSignature": "abc"}));
}

#[tokio::test]
async fn a_structured_answer_is_read() {
    let (model, request) =
        script([ModelTurn::says(r#"{"city": "Rome"}"#), ModelTurn::says("Rome")]);
    let request = request.prompt("Where?").output_schema(json!({"type": "object"}));
    let response = generate(&cx(), request.clone()).await.unwrap();
    assert_eq!(response.output::<Place>().unwrap().city, "Rome");
    assert!(model.requests()[0].output_schema.is_some());
    let response = generate(&cx(), request).await.unwrap();
    assert_eq!(
        response.output::<Place>().map(|_| ()).unwrap_err().status(),
        Status::InvalidArgument
    );
}
