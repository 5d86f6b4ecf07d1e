//! Calls, their outputs, and what became of them.

use antiphon_live::{LiveCommand, LiveConfig, LiveError, LiveEvent};
use antiphon_types::{ToolArguments, ToolBehavior, ToolResponse, ToolResponseScheduling};
use serde_json::{Value, json};

use super::talk::{MIDDLE, NEW, OLD, Talk, tool};

fn with_tool(model: &str, behavior: ToolBehavior) -> Talk {
    let mut clock = tool("clock");
    clock.behavior = behavior;
    Talk::ready(&LiveConfig::new().model(model).host_tool(clock))
}

fn response(talk: &mut Talk) -> Value {
    talk.sent_one()["toolResponse"]["functionResponses"][0].clone()
}

#[test]
fn quirk_66_a_call_ends_the_reply_whether_the_server_says_so_or_not() {
    // The end comes with the call.
    let mut talk = with_tool(OLD, ToolBehavior::ProviderDefault);
    talk.words("Let me see. ");
    talk.call("c1");
    talk.done();
    assert_eq!(
        talk.told(),
        ["start reply-1", "say +Let me see. ", "call c1 clock", "say .", "done reply-1 Completed"]
    );
    // Nothing comes until the output.
    let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
    talk.call("c1");
    talk.pass_ms(200);
    assert_eq!(talk.told(), ["start reply-1", "call c1 clock", "done reply-1 Completed"]);
    talk.output("c1");
    talk.voice(20);
    talk.done();
    assert_eq!(talk.told(), ["start reply-2", "voice 20", "done reply-2 Completed"]);
    // The end comes late, and is that of nothing.
    let mut talk = with_tool(OLD, ToolBehavior::ProviderDefault);
    talk.call("c1");
    talk.pass_ms(200);
    talk.done();
    talk.output("c1");
    talk.voice(20);
    let told = talk.told();
    assert!(told.contains(&"ignored the end of a turn that was over".into()), "{told:?}");
    assert_eq!(told.last().unwrap(), "voice 20");
}

#[test]
fn arguments_that_are_no_object_are_told_so_that_the_call_is_answered() {
    for args in [json!("{\"amount\":"), json!([1]), json!(5), json!(true)] {
        let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
        talk.server(json!({"toolCall": {"functionCalls":
            [{"id": "c1", "name": "clock", "args": args}]}}));
        let calls = talk.out.events.iter().find_map(|event| match event {
            LiveEvent::ToolCalls { calls, .. } => Some(calls.clone()),
            _ => None,
        });
        let ToolArguments::Json(told) = &calls.unwrap()[0].arguments else { panic!("{args}") };
        assert_eq!(*told, args.to_string());
    }
    for none in
        [json!({"id": "c1", "name": "clock"}), json!({"id": "c1", "name": "clock", "args": null})]
    {
        let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
        talk.server(json!({"toolCall": {"functionCalls": [none]}}));
        assert_eq!(talk.told(), ["start reply-1", "call c1 clock"]);
    }
}

#[test]
fn an_output_may_come_before_the_reply_is_over() {
    let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
    talk.call("c1");
    talk.output("c1");
    talk.voice(20);
    assert_eq!(
        talk.told(),
        ["start reply-1", "call c1 clock", "done reply-1 Completed", "start reply-2", "voice 20"]
    );
}

#[test]
fn a_model_that_has_nothing_to_say_of_an_output_releases_whoever_waits() {
    let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
    talk.call("c1");
    talk.output("c1");
    talk.told();
    talk.done();
    assert_eq!(talk.told(), ["start reply-2", "done reply-2 Completed"]);
}

#[test]
fn a_model_goes_on_beside_a_tool_that_it_does_not_wait_for() {
    let mut talk = with_tool(NEW, ToolBehavior::ProviderDefault);
    talk.call("c1");
    talk.pass_ms(500);
    talk.voice(20);
    talk.pass_ms(5_000);
    talk.voice(20);
    talk.content(json!({"turnComplete": true, "interactionStatus": "IN_PROGRESS"}));
    assert_eq!(
        talk.told(),
        ["start reply-1", "call c1 clock", "voice 20", "voice 20", "done reply-1 Completed"]
    );
    // Silence after the call is the end, too.
    talk.call("c2");
    talk.pass_ms(2_000);
    assert_eq!(talk.told().last().unwrap(), "done reply-2 Completed");
}

#[test]
fn outputs_say_when_to_speak_of_them_only_where_nobody_waits() {
    let output = |scheduling, will_continue| {
        let mut response = ToolResponse::new("c1", "clock", serde_json::Map::new());
        response.scheduling = scheduling;
        response.will_continue = will_continue;
        LiveCommand::ToolResponse(response)
    };
    let mut talk = with_tool(NEW, ToolBehavior::NonBlocking);
    talk.call("c1");
    talk.command(output(ToolResponseScheduling::Silent, Some(true)));
    let sent = response(&mut talk);
    assert_eq!((&sent["scheduling"], &sent["willContinue"]), (&json!("SILENT"), &json!(true)));
    talk.command(output(ToolResponseScheduling::Interrupt, Some(false)));
    let sent = response(&mut talk);
    assert_eq!((&sent["scheduling"], &sent["willContinue"]), (&json!("INTERRUPT"), &json!(false)));
    let mut talk = with_tool(NEW, ToolBehavior::Blocking);
    talk.call("c1");
    let error = talk.try_command(output(ToolResponseScheduling::Silent, Some(true))).unwrap_err();
    assert!(matches!(error, LiveError::Unsupported { .. }), "{error}");
    talk.command(output(ToolResponseScheduling::Interrupt, None));
    let sent = response(&mut talk);
    assert!(sent.get("scheduling").is_none() && sent.get("willContinue").is_none(), "{sent}");
    assert_eq!(sent["response"], json!({}), "an object, whatever it holds (quirk 44)");
}

#[test]
fn calls_that_were_taken_back_are_not_answered() {
    let mut talk = with_tool(NEW, ToolBehavior::Blocking);
    talk.call("c1");
    talk.interrupted();
    talk.server(json!({"toolCallCancellation": {"ids": ["c1", "unknown"]}}));
    talk.done();
    let told = talk.told();
    assert!(told.contains(&"cancel c1".into()), "{told:?}");
    talk.output("c1");
    assert!(talk.sent().is_empty());
    assert_eq!(talk.told(), ["ignored an output of a call that was taken back"]);
}

#[test]
fn quirk_64_an_output_of_an_earlier_connection_is_told_in_words() {
    let mut talk = with_tool(OLD, ToolBehavior::Blocking);
    talk.output("of-before");
    let sent = talk.sent_one();
    let text = sent["clientContent"]["turns"][0]["parts"][0]["text"].as_str().unwrap();
    assert!(text.contains("clock has finished"), "{text}");
    assert_eq!(sent["clientContent"]["turnComplete"], true);
    let mut talk = with_tool(MIDDLE, ToolBehavior::Blocking);
    talk.output("of-before");
    assert!(talk.sent_one()["realtimeInput"]["text"].is_string());
}

#[test]
fn calls_without_an_id_are_answered_without_one_and_doubles_are_one() {
    let mut talk = with_tool(OLD, ToolBehavior::Blocking);
    talk.server(json!({"toolCall": {"functionCalls": [{"name": "clock", "args": {}}]}}));
    assert_eq!(talk.told(), ["start reply-1", "call call-1 clock"]);
    talk.output("call-1");
    assert!(response(&mut talk).get("id").is_none());
    talk.call("c1");
    talk.call("c1");
    let told = talk.told();
    assert!(told.contains(&"ignored a call that was told before".into()), "{told:?}");
    talk.server(json!({"toolCall": {}}));
    assert_eq!(talk.told(), ["ignored a toolCall without calls"]);
}

#[test]
fn arguments_that_come_in_pieces_are_one_call() {
    let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
    let call = |call: Value| json!({"toolCall": {"functionCalls": [call]}});
    talk.server(call(json!({"id": "c1", "name": "clock", "willContinue": true})));
    let piece = |text: &str| json!({"jsonPath": "$.zone", "stringValue": text});
    for text in ["Europe", "/Paris"] {
        talk.server(call(json!({"partialArgs": [piece(text)], "willContinue": true})));
    }
    assert_eq!(talk.told(), ["start reply-1"], "it is not complete yet");
    talk.pass_ms(3_000);
    talk.server(call(json!({})));
    let Some(LiveEvent::ToolCalls { calls, .. }) = talk.out.events.pop_back() else { panic!() };
    assert_eq!((&*calls[0].id, &*calls[0].name), ("c1", "clock"));
    let ToolArguments::Object(args) = &calls[0].arguments else { panic!("{calls:?}") };
    assert_eq!(args["zone"], "Europe/Paris");
    talk.pass_ms(200);
    assert_eq!(talk.told(), ["done reply-1 Completed"]);
    talk.output("c1");
    assert_eq!(response(&mut talk)["id"], "c1");

    // The rest never comes, or is not wanted any more.
    let mut talk = with_tool(MIDDLE, ToolBehavior::ProviderDefault);
    talk.server(call(json!({"id": "c1", "name": "clock", "willContinue": true})));
    talk.pass_ms(10_000);
    let endless = "ignored a call whose arguments never ended";
    assert_eq!(talk.told(), ["start reply-1", endless, "done reply-1 Completed"]);
    talk.server(call(json!({"id": "c2", "name": "clock", "willContinue": true})));
    talk.server(json!({"toolCallCancellation": {"ids": ["c2"]}}));
    talk.server(call(json!({})));
    assert_eq!(
        talk.told(),
        [
            "start reply-2",
            "ignored a call that was taken back before it was told",
            "ignored a piece of no call"
        ]
    );
    talk.server(call(json!({"id": "c3", "name": "clock", "willContinue": true})));
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.told();
    talk.server(call(json!({})));
    assert_eq!(talk.told(), ["ignored a call that is not to be answered"]);
    assert!(talk.sent().is_empty(), "an answer without an id and a name would be refused");
}

#[test]
fn tools_may_change_where_the_generation_lets_them() {
    let mut talk = with_tool(NEW, ToolBehavior::Blocking);
    talk.command(LiveCommand::UpdateTools([tool("clock"), tool("lamp")].into()));
    let sent = talk.sent_one();
    let declared = &sent["contextUpdate"]["tools"]["tools"][0]["functionDeclarations"];
    assert_eq!(declared[1]["name"], "lamp");
    // The clock is not waited for any more.
    talk.call("c1");
    talk.pass_ms(500);
    assert_eq!(talk.told(), ["start reply-1", "call c1 clock"]);
    talk.command(LiveCommand::UpdateTools([].into()));
    assert_eq!(talk.sent_one()["contextUpdate"]["tools"], json!({"tools": []}));
    assert!(!Talk::with(MIDDLE).client.capabilities().update_tools);
}
