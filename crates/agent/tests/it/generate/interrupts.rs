use std::sync::{Arc, Mutex};

use antiphon_agent::{
    AgentFinishReason, CallContext, Denial, Generate, GenerateResponse, Message, Part, Role,
    ToolExecutor, Verdict, generate,
    tool::{replace_input, respond, resume},
    types::{Status, ToolCall},
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use serde_json::json;

use super::*;
use crate::support::object;

/// A conversation whose last message waits: `weather` and `zero` are done, `transfer` asks.
async fn interrupted(tools: ToolExecutor) -> (ScriptedModel, GenerateResponse) {
    let turn = ModelTurn::says("Let me see. ")
        .call("w", "weather", json!({"city": "Oslo"}))
        .call("t", "transfer", json!({"to": "al", "amount": 300}))
        .call("z", "zero", json!({}));
    let (model, request) = script([turn]);
    let response = generate(&cx(), request.prompt("Pay!").tools(tools)).await.unwrap();
    assert_eq!(response.finish_reason, AgentFinishReason::Interrupted);
    (model, response)
}

fn go_on(model: &ScriptedModel, from: &GenerateResponse) -> Generate {
    model.push(ModelTurn::says("Done."));
    Generate::new(model.shared()).messages(from.history().iter().cloned()).tools(tools())
}

#[tokio::test]
async fn an_interrupt_keeps_the_outputs_of_its_siblings() {
    let (_, response) = interrupted(tools()).await;
    let expected = json!([
        {"text": "Let me see. "},
        {"toolRequest": {"name": "weather", "ref": "w", "input": {"city": "Oslo"}},
            "metadata": {"pendingOutput": "sunny in Oslo"}},
        {"toolRequest": {"name": "transfer", "ref": "t", "input": {"to": "al", "amount": 300}},
            "metadata": {"interrupt": {"amount": 300.0}}},
        {"toolRequest": {"name": "zero", "ref": "z", "input": {}},
            "metadata": {"pendingOutput": 0, "pendingContent": [{"text": "nothing"}]}},
    ]);
    assert_eq!(json_of(&response.message.as_ref().unwrap().content), expected);
    assert_eq!(response.interrupts().count(), 1);
    assert_eq!(response.tool_requests().count(), 3);
}

#[tokio::test]
async fn a_restart_runs_only_the_call_that_waited() {
    let (model, waiting) = interrupted(tools()).await;
    let restart = resume(waiting.interrupts().next().unwrap(), json!({"approved": true})).unwrap();
    let request = go_on(&model, &waiting).tool_restarts([restart]);
    let response = generate(&cx(), request).await.unwrap();
    assert_eq!(response.text(), "Done.");
    let messages = json_of(response.history());
    let expected = json!({"role": "model", "content": [
        {"text": "Let me see. "},
        {"toolRequest": {"name": "weather", "ref": "w", "input": {"city": "Oslo"}}},
        {"toolRequest": {"name": "transfer", "ref": "t", "input": {"to": "al", "amount": 300}},
            "metadata": {"resolvedInterrupt": {"amount": 300.0}}},
        {"toolRequest": {"name": "zero", "ref": "z", "input": {}}},
    ]});
    assert_eq!(messages[1], expected);
    let sent = json!({"sent": 300.0, "to": "al", "resumed": {"approved": true}, "original": null});
    let expected = json!({"role": "tool", "metadata": {"resumed": true}, "content": [
        {"toolResponse": {"name": "weather", "ref": "w", "output": "sunny in Oslo"},
            "metadata": {"source": "pending"}},
        {"toolResponse": {"name": "transfer", "ref": "t", "output": sent}},
        {"toolResponse": {"name": "zero", "ref": "z", "output": 0, "content": [{"text": "nothing"}]},
            "metadata": {"source": "pending"}},
    ]});
    assert_eq!(messages[2], expected);
    assert_eq!(response.new_messages().len(), 2);
    // The caller's history is as it was.
    assert_eq!(waiting.interrupts().count(), 1);
}

#[tokio::test]
async fn a_response_takes_the_place_of_the_tool() {
    let (model, waiting) = interrupted(tools()).await;
    let answer = respond(waiting.interrupts().next().unwrap(), false).unwrap();
    let note = object(json!({"by": "ann"}));
    let request = go_on(&model, &waiting).tool_responses([answer]).resume_metadata(note);
    let response = generate(&cx(), request).await.unwrap();
    let message = &response.history()[2];
    assert_eq!(json_of(&message.metadata), json!({"resumed": {"by": "ann"}}));
    let expected = json!({"toolResponse": {"name": "transfer", "ref": "t", "output": false},
        "metadata": {"interruptResponse": true}});
    assert_eq!(json_of(&message.content[1]), expected);
}

#[tokio::test]
async fn original_input() {
    let (model, waiting) = interrupted(tools()).await;
    let restart = resume(waiting.interrupts().next().unwrap(), ()).unwrap();
    let other = json!({"to": "al", "amount": 50});
    let noted = replace_input(restart.clone(), &other).unwrap();
    let mut silent = restart;
    if let antiphon_agent::PartKind::ToolRequest(request) = &mut silent.kind {
        request.input = Some(other);
    }
    for restart in [noted, silent] {
        let request = go_on(&model, &waiting).tool_restarts([restart]);
        let response = generate(&cx(), request).await.unwrap();
        let (_, sent) = response.history()[2].tool_responses().nth(1).unwrap();
        let sent = sent.output.as_ref().unwrap();
        assert_eq!(sent["sent"], 50.0);
        assert_eq!(sent["original"], json!({"to": "al", "amount": 300}));
    }
}

#[tokio::test]
async fn a_restart_that_is_no_answer_interrupts_again() {
    let (model, waiting) = interrupted(tools()).await;
    // As a client sends it that knows nothing of answers; and one that says no.
    let mut restart = resume(waiting.interrupts().next().unwrap(), ()).unwrap();
    for falsy in [None, Some(json!(false)), Some(json!(0)), Some(json!(""))] {
        restart.metadata = falsy.map(|falsy| object(json!({"resumed": falsy})));
        let request = go_on(&model, &waiting).tool_restarts([restart.clone()]);
        let response = generate(&cx(), request).await.unwrap();
        assert_eq!(response.finish_reason, AgentFinishReason::Interrupted);
        assert_eq!(json_of(response.history()), json_of(waiting.history()));
        assert_eq!(response.interrupts().count(), 1);
    }
}

#[tokio::test]
async fn what_was_resolved_beside_a_new_interrupt_is_kept() {
    let turn = ModelTurn::default().call("1", "transfer", json!({"to": "al", "amount": 300})).call(
        "2",
        "transfer",
        json!({"to": "bo", "amount": 400}),
    );
    let (model, request) = script([turn]);
    let waiting = generate(&cx(), request.prompt("Pay!").tools(tools())).await.unwrap();
    let parts: Vec<_> = waiting.interrupts().cloned().collect();
    let mut unanswered = resume(&parts[1], ()).unwrap();
    unanswered.metadata = None;
    let answer = respond(&parts[0], "no").unwrap();
    let request = go_on(&model, &waiting).tool_responses([answer]).tool_restarts([unanswered]);
    let again = generate(&cx(), request).await.unwrap();
    let parts: Vec<_> = again.interrupts().cloned().collect();
    assert_eq!(parts.len(), 1);
    let request = go_on(&model, &again).tool_restarts([resume(&parts[0], ()).unwrap()]);
    let response = generate(&cx(), request).await.unwrap();
    let outputs: Vec<_> = response.history()[2].tool_responses().collect();
    assert_eq!(outputs[0].1.output, Some(json!("no")));
    assert_eq!(outputs[1].1.output.as_ref().unwrap()["sent"], 400.0);
}

#[tokio::test]
async fn a_resume_that_does_not_fit_is_refused_before_anything_runs() {
    let (model, waiting) = interrupted(tools()).await;
    let part = waiting.interrupts().next().unwrap();
    let (restart, answer) = (resume(part, ()).unwrap(), respond(part, 1).unwrap());
    let unknown = Part::tool_response("transfer", Some("x".into()), json!(1));
    let settled = Part::tool_response("weather", Some("w".into()), json!("rain"));
    let go_on = || go_on(&model, &waiting);
    for request in [
        go_on().tool_responses([unknown.clone()]),
        go_on().tool_responses([answer.clone(), unknown]),
        go_on().tool_responses([answer.clone(), settled]),
        go_on().tool_responses([answer.clone()]).tool_restarts([restart.clone()]),
    ] {
        let error = generate(&cx(), request).await.unwrap_err();
        assert_eq!((error.status(), error.response), (Status::InvalidArgument, None));
    }
    for request in [
        go_on().tool_restarts([restart.clone()]).prompt("And now?"),
        Generate::new(model.shared()).prompt("?").tool_restarts([restart.clone()]),
        Generate::new(model.shared()).messages([Message::model("x")]).tool_restarts([restart]),
    ] {
        let error = generate(&cx(), request).await.unwrap_err();
        assert_eq!((error.status(), error.response), (Status::FailedPrecondition, None));
    }
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn a_model_is_never_shown_a_call_without_output() {
    let (model, waiting) = interrupted(tools()).await;
    let request = go_on(&model, &waiting).prompt("Never mind.");
    let response = generate(&cx(), request).await.unwrap();
    let shown = &model.requests()[1].messages;
    let roles: Vec<_> = shown.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Model, Role::Tool, Role::User]);
    let outputs: Vec<_> =
        shown[2].tool_responses().map(|(_, it)| it.output.clone().unwrap()).collect();
    assert_eq!(
        outputs,
        [json!("sunny in Oslo"), json!({"error": "nobody answered the call"}), json!(0)]
    );
    // The history is the caller's.
    assert_eq!(response.history().len(), 4);
}

#[tokio::test]
async fn a_policy_that_wants_a_confirmation_interrupts() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    let policy = move |cx: &CallContext, call: &ToolCall| {
        seen.lock().unwrap().push((call.id.clone(), cx.confirmed));
        match &*call.name {
            "broken" => Verdict::Deny(Denial::told("not today")),
            "transfer" if !cx.confirmed => Verdict::Confirm { read_back: "Send it?".into() },
            _ => Verdict::Allow,
        }
    };
    let guarded = ToolExecutor::new(Arc::new(registry()), Some(Arc::new(policy)));
    let turn = ModelTurn::calls("t", "transfer", json!({"to": "al", "amount": 300})).call(
        "b",
        "broken",
        json!({}),
    );
    let (model, request) = script([turn]);
    let waiting = generate(&cx(), request.prompt("Pay!").tools(guarded.clone())).await.unwrap();
    let part = waiting.interrupts().next().unwrap().clone();
    assert_eq!(part.metadata_entry("interrupt"), Some(&json!({"confirm": "Send it?"})));

    // Anything but a yes is a no.
    let no = resume(&part, json!({"confirmed": false})).unwrap();
    let request = go_on(&model, &waiting).tools(guarded.clone()).tool_restarts([no]);
    let response = generate(&cx(), request).await.unwrap();
    let (_, refused) = response.history()[2].tool_responses().next().unwrap();
    let refused = json_of(&refused.output);
    assert!(refused["error"].as_str().unwrap().contains("did not confirm"), "{refused}");

    // After the yes the tool itself wants an answer, and the policy does not ask again.
    let yes = resume(&part, ()).unwrap();
    let request = go_on(&model, &waiting).tools(guarded.clone()).tool_restarts([yes]);
    let again = generate(&cx(), request).await.unwrap();
    let part = again.interrupts().next().unwrap().clone();
    assert_eq!(part.metadata_entry("interrupt"), Some(&json!({"amount": 300.0})));
    let yes = resume(&part, json!({"approved": true})).unwrap();
    let request = go_on(&model, &again).tools(guarded).tool_restarts([yes]);
    let response = generate(&cx(), request).await.unwrap();
    let outputs: Vec<_> = response.history()[2].tool_responses().collect();
    assert_eq!(outputs[0].1.output.as_ref().unwrap()["resumed"], json!({"approved": true}));
    assert!(json_of(&outputs[1].1.output)["error"].as_str().unwrap().contains("not today"));
    let asked = asked.lock().unwrap();
    assert!(asked.contains(&("t".into(), false)) && asked.contains(&("t".into(), true)));
}
