//! Tools: calls told once, outputs in time.

use antiphon_live::{LiveCommand, LiveConfig, LiveError};
use antiphon_openai::Client;
use antiphon_types::{ToolDefinition, ToolResponse};
use serde_json::json;

use super::talk::Talk;

fn talk() -> Talk {
    Talk::ready(&LiveConfig::new())
}

#[test]
fn quirk_17_a_call_is_told_once_by_whatever_event() {
    let item = json!({"id": "i", "type": "function_call", "status": "completed", "call_id": "c",
        "name": "clock", "arguments": "{\"zone\":1}"});
    let added = json!({"type": "response.output_item.added", "response_id": "a", "item": {
        "id": "i", "type": "function_call", "call_id": "c", "name": "clock", "arguments": ""}});
    let arguments = json!({"type": "response.function_call_arguments.done", "response_id": "a",
        "item_id": "i", "call_id": "c", "name": "clock", "arguments": "{\"zone\":1}"});
    let nameless = json!({"type": "response.function_call_arguments.done", "response_id": "a",
        "item_id": "i", "call_id": "c", "arguments": "{\"zone\":1}"});
    let item_done =
        json!({"type": "response.output_item.done", "response_id": "a", "item": item.clone()});
    let done = json!({"type": "response.done",
        "response": {"id": "a", "status": "completed", "output": [item]}});
    let bare = json!({"type": "response.done",
        "response": {"id": "a", "status": "completed", "output": null}});
    for events in [
        vec![&added, &arguments, &item_done, &done],
        vec![&added, &nameless, &bare],
        vec![&nameless, &item_done, &bare],
        vec![&arguments, &bare],
        vec![&item_done, &bare],
        vec![&done],
    ] {
        let mut talk = talk();
        talk.created("a");
        for event in events {
            talk.server(event.clone());
        }
        assert_eq!(talk.told(), ["start a", "call c clock", "done a Completed"]);
    }
}

#[test]
fn quirk_12_outputs_wait_for_the_end_of_the_reply_and_one_request_follows() {
    let mut talk = talk();
    talk.created("a");
    talk.call("a", "c1");
    talk.call("a", "c2");
    talk.output("c2");
    talk.output("c1");
    talk.command(LiveCommand::CreateReply { request: 9 });
    assert!(talk.sent().is_empty());
    talk.done("a", "completed");
    let sent = talk.sent();
    assert_eq!(sent.len(), 3);
    assert_eq!(
        sent[0]["item"],
        json!({"type": "function_call_output", "call_id": "c2", "output": "{}"})
    );
    assert_eq!(sent[1]["item"]["call_id"], "c1");
    assert_eq!(sent[2]["type"], "response.create");
    talk.server(json!({"type": "conversation.item.added",
        "item": {"id": "o", "type": "function_call_output", "call_id": "c2", "output": "{}"}}));
    assert_eq!(
        talk.told(),
        ["start a", "call c1 clock", "call c2 clock", "done a Completed", "accepted c2"]
    );
}

#[test]
fn an_output_of_an_earlier_reply_goes_at_once() {
    let mut talk = talk();
    talk.created("a");
    talk.call("a", "c1");
    talk.done("a", "completed");
    talk.created("b");
    talk.output("c1");
    assert_eq!(talk.sent_kinds(), ["conversation.item.create"]);
}

#[test]
fn outputs_of_an_interrupted_reply_are_not_lost() {
    let mut talk = talk();
    talk.created("a");
    talk.call("a", "c1");
    talk.output("c1");
    talk.speech(true, "u");
    talk.call("a", "c2");
    talk.cancelled("a", "turn_detected");
    assert_eq!(talk.sent_kinds(), ["conversation.item.create"]);
    assert_eq!(
        talk.told(),
        [
            "start a",
            "call c1 clock",
            "speech Some(1000)",
            "interrupted a",
            "ignored a call that is not to be answered",
            "done a Interrupted"
        ]
    );
}

#[test]
fn a_call_that_was_cut_off_is_no_call() {
    let mut talk = talk();
    talk.created("a");
    let item = json!({"id": "i", "type": "function_call", "status": "incomplete", "call_id": "c",
        "name": "clock", "arguments": "{\"zo"});
    talk.server(
        json!({"type": "response.output_item.done", "response_id": "a", "item": item.clone()}),
    );
    talk.server(json!({"type": "response.done", "response": {"id": "a", "status": "cancelled",
        "status_details": {"reason": "client_cancelled"}, "output": [item]}}));
    assert_eq!(talk.told(), ["start a", "done a Cancelled"]);
}

#[test]
fn quirk_33_a_forced_tool_is_not_forced_on_the_reply_after_it() {
    let mut config = LiveConfig::new();
    config.provider_options.insert("tool_choice".into(), json!("required"));
    let mut talk = Talk::ready(&config);
    talk.created("a");
    talk.call("a", "c");
    talk.done("a", "completed");
    talk.output("c");
    talk.command(LiveCommand::CreateReply { request: 1 });
    let create = talk.sent().pop().unwrap();
    assert_eq!(create["response"]["tool_choice"], "auto");
    talk.created_for("b", &create);
    talk.done("b", "completed");
    talk.command(LiveCommand::CreateReply { request: 2 });
    assert!(talk.sent_one()["response"].get("tool_choice").is_none());
}

#[test]
fn outputs_in_pieces_are_refused() {
    let mut response = ToolResponse::new("c", "clock", serde_json::Map::new());
    response.will_continue = Some(true);
    let error = talk().try_command(LiveCommand::ToolResponse(response)).unwrap_err();
    assert!(matches!(error, LiveError::Unsupported { .. }));
}

#[test]
fn instructions_and_tools_change_alone() {
    let mut config = LiveConfig::new();
    config.refinement = Some("Be kind.".into());
    config.provider_options.insert("mcp_servers".into(), json!([{"server_label": "docs"}]));
    let mut talk = Talk::ready(&config);
    talk.command(LiveCommand::UpdateInstructions("Be brief.".into()));
    assert_eq!(
        talk.sent_one()["session"],
        json!({"type": "realtime", "instructions": "Be brief.\n\nBe kind."})
    );
    talk.command(LiveCommand::UpdateTools([ToolDefinition::new("bell", "Rings.")].into()));
    assert_eq!(
        talk.sent_one()["session"],
        json!({"type": "realtime", "tools": [
            {"type": "function", "name": "bell", "description": "Rings.",
             "parameters": {"type": "object", "properties": {}}},
            {"type": "mcp", "server_label": "docs"}]})
    );
}

#[test]
fn xai_answers_its_own_tools_itself() {
    let mut config = LiveConfig::new();
    config.provider_options.insert("dialect".into(), json!("xai"));
    config.tools = vec![ToolDefinition::new("clock", "The time.")];
    let mut talk = Talk::ready(&config);
    talk.created("a");
    talk.server(json!({"type": "response.function_call_arguments.done", "response_id": "a",
        "call_id": "s", "name": "web_search", "arguments": "{}"}));
    talk.call("a", "c");
    assert_eq!(
        talk.told(),
        ["start a", "ignored a call that is not to be answered", "call c clock"]
    );
}

#[test]
fn tools_of_the_service_are_passed_on_and_a_request_for_approval_is_asked_once() {
    let mut talk = talk();
    talk.server(json!({"type": "mcp_list_tools.completed", "item_id": "m"}));
    talk.created("a");
    talk.server(json!({"type": "response.mcp_call.in_progress", "item_id": "m",
        "output_index": 0}));
    talk.server(json!({"type": "response.output_item.done", "response_id": "a", "item": {
        "type": "mcp_call", "id": "m", "server_label": "docs", "name": "find", "arguments": "{}",
        "output": "found"}}));
    let request = json!({"type": "mcp_approval_request", "id": "q", "server_label": "docs",
        "name": "erase", "arguments": ""});
    talk.server(json!({"type": "conversation.item.done", "item": request.clone()}));
    talk.server(
        json!({"type": "response.output_item.done", "response_id": "a", "item": request.clone()}),
    );
    talk.server(json!({"type": "response.done",
        "response": {"id": "a", "status": "completed", "output": [request]}}));
    assert_eq!(
        talk.told(),
        [
            "native mcp_list_tools.completed",
            "start a",
            "native response.mcp_call.in_progress",
            "native mcp_call",
            "asks q docs/erase",
            "done a Completed"
        ]
    );
    assert!(talk.sent().is_empty(), "nobody has answered yet");
    talk.command(permit("q", true, None));
    let answer = talk.sent_one()["item"].take();
    assert_eq!(answer["type"], "mcp_approval_response");
    assert_eq!(
        (&answer["approval_request_id"], &answer["approve"], answer.get("reason")),
        (&json!("q"), &json!(true), None)
    );
    for (id, what) in [("q", "answered"), ("other", "never asked")] {
        assert!(talk.try_command(permit(id, true, None)).is_err(), "{what}");
    }
}

#[test]
fn a_request_for_approval_in_a_reply_that_was_stopped_is_refused_at_once() {
    let mut talk = talk();
    talk.created("a");
    talk.command(LiveCommand::CancelReply { reply: None });
    talk.sent();
    talk.server(json!({"type": "response.output_item.done", "response_id": "a", "item": {
        "type": "mcp_approval_request", "id": "q", "server_label": "docs", "name": "erase",
        "arguments": "{}"}}));
    let answer = talk.sent_one()["item"].take();
    assert_eq!((&answer["approval_request_id"], &answer["approve"]), (&json!("q"), &json!(false)));
}

#[test]
fn where_tools_are_to_ask_every_server_is_asked_for_that() {
    let config = |ask: bool, server: serde_json::Value| {
        let mut config = LiveConfig::new();
        config.tools_ask = ask;
        config.provider_options.insert("mcp_servers".into(), json!([server]));
        config
    };
    let client = Client::new(&config(true, json!({"server_label": "docs"})), None).unwrap();
    let mut talk = Talk::opened(client);
    talk.server(json!({"type": "session.created", "session": {"type": "realtime"}}));
    let asked = talk.sent_one();
    assert_eq!(asked["session"]["tools"][0]["require_approval"], "always");
    let never = json!({"server_label": "docs", "require_approval": "never"});
    let some = json!({"server_label": "docs", "require_approval": {"never": {"read_only": true}}});
    for server in [never.clone(), some] {
        let error = Client::new(&config(true, server), None).unwrap_err();
        assert!(matches!(error, LiveError::InvalidConfig(_)), "{error}");
    }
    assert!(Client::new(&config(false, never), None).is_ok());
    let slash = json!({"server_label": "docs/find"});
    assert!(Client::new(&config(false, slash), None).is_err(), "its tools could be another one's");
}

fn permit(id: &str, permitted: bool, reason: Option<String>) -> LiveCommand {
    LiveCommand::PermitTool { id: id.into(), permitted, reason }
}
