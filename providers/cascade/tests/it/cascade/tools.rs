//! Tool calls and their outputs.

use antiphon_agent::{ModelRequest, Role};
use antiphon_live::{LiveCommand, LiveConfig, LiveEvent};
use antiphon_types::{
    JsonObject, ToolBehavior, ToolCallRequest, ToolDefinition, ToolResponse, ToolResponseScheduling,
};

use super::parts::*;

/// Calls two tools when asked to work, else echoes.
fn worker() -> House {
    House::new(Brain::new(|request: &ModelRequest| {
        let role = request.messages.last().map(|message| message.role);
        match (role, last(request).as_str()) {
            (Some(Role::Tool), _) => vec![Step::Text("Done.")],
            (_, "work") => {
                vec![Step::Text("One moment."), Step::Call("a", "clock"), Step::Call("a", "clock")]
            }
            _ => vec![Step::Echo],
        }
    }))
}

fn calls(events: &[LiveEvent]) -> Vec<ToolCallRequest> {
    let calls = events.iter().filter_map(|event| match event {
        LiveEvent::ToolCalls { calls, .. } => Some(calls.clone()),
        _ => None,
    });
    calls.flatten().collect()
}

fn output(call: &ToolCallRequest) -> LiveCommand {
    LiveCommand::ToolResponse(ToolResponse::new(
        call.id.clone(),
        call.name.clone(),
        JsonObject::new(),
    ))
}

#[tokio::test(start_paused = true)]
async fn calls_come_after_the_words_and_all_outputs_make_one_reply() {
    let house = worker();
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("work").await;
    let events = talk.until_done().await;
    let order = names(&events);
    assert_eq!(order[order.len() - 3..], ["output_transcript", "tool_calls", "reply_done"]);
    let calls = calls(&events);
    assert_eq!(calls.len(), 2);
    assert_ne!(calls[0].id, calls[1].id, "ids are unique even where the model's are not");
    talk.send(output(&calls[1])).await;
    talk.rest(5_000).await;
    assert_eq!(names(talk.events.make_contiguous()), ["tool_result_accepted"]);
    talk.events.clear();
    talk.send(output(&calls[0])).await;
    assert_eq!(talk.answer().await, "Done.");
    assert_eq!(house.brain.count(), 2);
    let request = house.brain.request(1);
    let roles: Vec<Role> = request.messages.iter().map(|message| message.role).collect();
    assert_eq!(roles, [Role::User, Role::Model, Role::Tool]);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_nobody_waits_for_is_an_error() {
    let house = worker();
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.send(LiveCommand::ToolResponse(ToolResponse::error("x", "clock", "late"))).await;
    assert_eq!(error_codes(&[talk.next().await]), ["unknown_call"]);
    talk.text("work").await;
    let calls = calls(&talk.until_done().await);
    for call in &calls {
        talk.send(output(call)).await;
    }
    talk.send(output(&calls[0])).await;
    let events = talk.until_done().await;
    assert_eq!(error_codes(&events), ["unknown_call"], "one output per call");
    assert_eq!(said(&events), "Done.");
}

#[tokio::test(start_paused = true)]
async fn a_parked_call_is_read_back_and_confirmed_by_voice() {
    let house = worker();
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("work").await;
    let calls = calls(&talk.until_done().await);
    talk.send(LiveCommand::Say { request: 1, text: "Shall I?".into() }).await;
    assert_eq!(talk.answer().await, "Shall I?");
    talk.speak(YES).await;
    talk.rest(3_000).await;
    assert!(!names(talk.events.make_contiguous()).contains(&"reply_started"));
    talk.events.clear();
    for call in &calls {
        talk.send(output(call)).await;
    }
    assert_eq!(talk.answer().await, "Done.");
    assert_eq!(
        house.brain.latest(),
        ["work", "Shall I?", "yes", "One moment.", ""],
        "the call and its output stand together"
    );
}

#[tokio::test(start_paused = true)]
async fn trial_d05_a_reply_that_was_stopped_calls_nothing() {
    let house = worker();
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("work").await;
    talk.until_audio().await;
    talk.send(LiveCommand::CancelReply { reply: None }).await;
    let events = talk.until_done().await;
    assert!(calls(&events).is_empty());
    talk.text("b").await;
    assert_eq!(talk.answer().await, "You said b.", "no output is waited for");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_only_calls_tools_is_stopped() {
    let house = House::new(Brain::new(|_| vec![Step::Call("", "clock")]));
    let mut talk = house.talk(LiveConfig::new()).await;
    talk.text("go").await;
    let mut rounds = 0;
    loop {
        match talk.next().await {
            LiveEvent::ToolCalls { calls, .. } => {
                rounds += 1;
                talk.send(output(&calls[0])).await;
            }
            LiveEvent::Error(error) => break assert_eq!(&*error.code, "model"),
            _ => {}
        }
    }
    assert_eq!(rounds, 32);
}

/// A conversation in which nobody waits for the clock.
async fn beside(house: &House) -> Talk {
    let mut clock = ToolDefinition::new("clock", "Tells the time.");
    clock.behavior = ToolBehavior::NonBlocking;
    let mut config = LiveConfig::new();
    config.tools = vec![clock];
    house.talk(config).await
}

#[tokio::test(start_paused = true)]
async fn the_conversation_goes_on_beside_a_tool_that_does_not_block() {
    let house = worker();
    let mut talk = beside(&house).await;
    talk.text("work").await;
    let calls = calls(&talk.until_done().await);
    talk.text("two").await;
    assert_eq!(talk.answer().await, "You said two.");
    let roles = |request: usize| -> Vec<Role> {
        let request = house.brain.request(request);
        request.messages.iter().map(|message| message.role).collect()
    };
    assert_eq!(roles(1), [Role::User, Role::Model, Role::Tool, Role::User]);
    talk.send(output(&calls[1])).await;
    assert_eq!(talk.answer().await, "Done.", "its output is spoken of once it is there");
    let expected = [
        Role::User,
        Role::Model,
        Role::Tool,
        Role::User,
        Role::Model,
        // The call, and its output, stand where the model goes on from.
        Role::Model,
        Role::Tool,
    ];
    assert_eq!(roles(2), expected);
    let latest = house.brain.request(2);
    let ids = |message: usize| -> Vec<_> {
        let parts = latest.messages[message].content.iter();
        parts.filter_map(|part| part.as_tool_response()?.id.clone()).collect()
    };
    assert_eq!((ids(2), ids(6)), (vec![calls[0].id.clone()], vec![calls[1].id.clone()]));
    talk.send(output(&calls[1])).await;
    assert_eq!(error_codes(&[talk.next().await]), ["unknown_call"], "one output per call");
}

#[tokio::test(start_paused = true)]
async fn an_output_that_nobody_waited_for_is_spoken_of_as_it_wishes() {
    let house = worker();
    let mut talk = beside(&house).await;
    talk.text("work").await;
    let calls = calls(&talk.until_done().await);
    let scheduled = |call: &ToolCallRequest, scheduling| {
        let mut response = ToolResponse::new(call.id.clone(), call.name.clone(), JsonObject::new());
        response.scheduling = scheduling;
        LiveCommand::ToolResponse(response)
    };
    talk.send(scheduled(&calls[0], ToolResponseScheduling::Silent)).await;
    talk.rest(5_000).await;
    assert_eq!(names(talk.events.make_contiguous()), ["tool_result_accepted"]);
    talk.events.clear();
    talk.text("two").await;
    talk.until_audio().await;
    talk.send(scheduled(&calls[1], ToolResponseScheduling::Interrupt)).await;
    let cut = talk.until_done().await;
    assert!(names(&cut).contains(&"interrupted"), "{:?}", names(&cut));
    assert_eq!(talk.answer().await, "Done.");
}
