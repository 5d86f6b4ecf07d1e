use antiphon_agent::{
    AgentInput, Message, Messages, Part, Role, ToolResume, types::Status, validate_input,
    validate_resume_against_history,
};
use serde_json::{Value, json};

fn request(name: &str, id: Option<&str>, input: Value) -> Part {
    Part::tool_request(name, id.map(Into::into), input)
}

fn response(name: &str, id: Option<&str>) -> Part {
    Part::tool_response(name, id.map(Into::into), json!({"ok": true}))
}

fn history() -> Messages {
    Messages::from(vec![
        Message::user("pay"),
        Message::new(Role::Model, vec![request("pay", Some("p0"), json!({"amount": 5}))]),
        Message::new(Role::Tool, vec![response("pay", Some("p0"))]),
        Message::model("paid"),
        Message::user("again"),
        Message::new(
            Role::Model,
            vec![
                Part::text("Let me ask."),
                request("pay", Some("p1"), json!({"amount": 7, "to": ["a", null]})),
                request("ask", None, json!({})),
            ],
        ),
        Message::new(Role::Tool, vec![]),
    ])
}

fn restart(part: Part) -> ToolResume {
    ToolResume { restart: vec![part], respond: vec![] }
}

fn respond(part: Part) -> ToolResume {
    ToolResume { respond: vec![part], restart: vec![] }
}

#[test]
fn validate_resume_against_history_takes_what_is_pending() {
    for resume in [
        restart(request("pay", Some("p1"), json!({"to": ["a", null], "amount": 7.0}))),
        restart(request("ask", Some(""), json!({}))),
        respond(response("pay", Some("p1"))),
        respond(response("ask", None)),
        // What is no tool part is passed over.
        restart(Part::text("x")),
        respond(request("nobody", None, json!({}))),
        ToolResume::default(),
    ] {
        validate_resume_against_history(&resume, &history()).unwrap();
    }
}

#[test]
fn validate_resume_against_history_refuses_what_was_not_asked_for() {
    for (resume, says) in [
        (restart(request("pay", Some("p1"), json!({"amount": 8, "to": ["a", null]}))), "input"),
        (restart(request("pay", Some("p0"), json!({"amount": 5}))), "no longer pending"),
        (respond(response("pay", Some("p0"))), "no longer pending"),
        (respond(response("pay", None)), "no request"),
        (respond(response("delete", Some("p1"))), "no request"),
        (restart(request("delete", Some("p1"), json!({}))), "no request"),
    ] {
        let error = validate_resume_against_history(&resume, &history()).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(error.to_string().contains(says), "{error}");
    }
    let resume = respond(response("pay", Some("p1")));
    assert!(validate_resume_against_history(&resume, &Messages::new()).is_err());
}

#[test]
fn recurring_refs_name_the_newest_request() {
    let message = |amounts: &[u32]| {
        let parts = amounts.iter().map(|n| request("pay", Some("p"), json!({"amount": n})));
        Message::new(Role::Model, parts.collect())
    };
    let history = Messages::from(vec![message(&[1]), message(&[2, 3])]);
    let of = |n: u32| restart(request("pay", Some("p"), json!({"amount": n})));
    assert!(validate_resume_against_history(&of(3), &history).is_ok());
    assert!(validate_resume_against_history(&of(2), &history).is_err());
    assert!(validate_resume_against_history(&of(1), &history).is_err());
}

#[test]
fn inputs_of_prompt_agents() {
    let empty = Messages::new();
    let some = Messages::from(vec![Message::user("a")]);
    assert!(validate_input(&AgentInput::text("a"), &empty).is_ok());
    assert!(validate_input(&AgentInput::default(), &some).is_ok(), "the turn is tried again");
    for bad in [
        AgentInput::default(),
        AgentInput::from(ToolResume::default()),
        AgentInput::from(Message::model("I am the model")),
        AgentInput::from(Message::new(Role::User, vec![response("pay", None)])),
        AgentInput::from(Message::new(Role::User, vec![request("pay", None, json!({}))])),
    ] {
        let error = validate_input(&bad, &empty).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument);
    }
}
