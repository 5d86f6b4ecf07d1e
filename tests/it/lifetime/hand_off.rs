//! A9, D15, D16: one agent hands the conversation over to another.

use antiphon::{
    agent::{FuncTool, Verdict},
    live::LiveCommand,
    session::*,
    types::JsonObject,
};
use antiphon_testkit::{LatchedTool, ToolPlan};

use super::*;

fn billing() -> SessionAgent {
    let invoices = FuncTool::new("invoices", "Lists invoices.", None, |_, _| async {
        Ok(JsonObject::from_iter([("open".to_owned(), 3.into())]))
    });
    SessionAgent::new("billing", "You are the accountant.").tool(invoices)
}

fn is_handed_off(kind: &EventKind) -> bool {
    matches!(kind, EventKind::HandedOff { .. })
}

fn instructions(commands: &[LiveCommand]) -> Vec<&str> {
    commands
        .iter()
        .filter_map(|command| match command {
            LiveCommand::UpdateInstructions(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn tools(commands: &[LiveCommand]) -> Vec<String> {
    let updates = commands.iter().filter_map(|command| match command {
        LiveCommand::UpdateTools(tools) => Some(tools),
        _ => None,
    });
    updates.flat_map(|tools| tools.iter().map(|tool| tool.name.to_string())).collect()
}

#[tokio::test(start_paused = true)]
async fn trial_a09_the_old_agents_reply_ends_first_and_the_next_is_the_new_agents() {
    let mut rig = start().await;
    rig.user_says("u1", "I have a question.")
        .reply("r1")
        .words("r1", "One moment")
        .audio("r1", 500);
    rig.settle().await;
    rig.session.hand_off(&billing()).unwrap();
    rig.audio("r1", 500).done("r1");
    assert!(rig.commands().await.is_empty(), "the reply is still being heard");
    rig.speaker.play_all();
    let events = rig.until(is_handed_off).await;
    assert_eq!(agent_messages(&events), [("One moment".into(), false)], "whole, and before");
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["update_instructions", "update_tools", "create_reply"]);
    assert_eq!(instructions(&commands), ["You are the accountant."]);
    assert_eq!(tools(&commands), ["invoices"]);
    rig.calls_tool("r2", "c1", "invoices", "{}");
    let events = rig.until(|kind| matches!(kind, EventKind::ToolResult { .. })).await;
    assert_eq!(outcomes(&events), [("c1".into(), antiphon::agent::Outcome::Success)]);
}

#[tokio::test(start_paused = true)]
async fn trial_a09_another_voice_needs_another_connection_and_old_audio_does_not_reach_it() {
    let mut rig = Setup::new().config(|config| config.voice("marin")).start().await;
    rig.whole_turn("Hello", "Hi.").await;
    rig.session.hand_off(&billing().voice("cedar")).unwrap();
    rig.settle().await;
    let old = std::mem::replace(&mut rig.far, rig.provider.far_end().await);
    let request = rig.provider.requests().pop().unwrap();
    assert_eq!(request.config.voice.as_deref(), Some("cedar"));
    assert_eq!(request.config.instructions.as_deref(), Some("You are the accountant."));
    assert_eq!((request.config.tools.len(), request.history.len()), (1, 2));
    assert!(old.is_dropped(), "nothing of the old agent can come any more");
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}

#[tokio::test(start_paused = true)]
async fn trial_d15_results_are_in_before_the_agents_change() {
    let (slow, latch) = LatchedTool::new("note", ToolPlan::Succeed);
    let mut rig = Setup::new()
        .config(|config| config.instructions("You are a clerk."))
        .build(|builder| builder.tool(slow).hand_off_to(billing().description("Knows invoices.")))
        .start()
        .await;
    let declared: Vec<_> = rig.config().tools.iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(declared, ["hand_off_to_billing", "note"]);
    rig.user_says("u1", "My invoice, please");
    rig.reply("r1").calls("r1", &[("c1", "hand_off_to_billing", "{}"), ("c2", "note", "{}")]);
    rig.done("r1");
    latch.started().await;
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["tool_response"], "a call of the old agent still runs");
    latch.release(1);
    rig.settle().await;
    let commands = rig.commands().await;
    let expected = ["tool_response", "update_instructions", "update_tools", "create_reply"];
    assert_eq!(names(&commands), expected);
    assert_eq!(tools(&commands), ["hand_back", "invoices"]);
    // The old agent's tools are not the new one's.
    rig.reply_to("r2", 1).calls("r2", &[("c3", "note", "{}")]).done("r2");
    let outputs = rig.outputs().await;
    assert_eq!(outputs[0].response["error"], "unknown tool: \"note\"");
    assert_eq!(latch.calls().len(), 1);
    rig.reply_to("r3", 2).calls("r3", &[("c4", "hand_back", "{}")]).done("r3");
    let commands = rig.commands().await;
    assert_eq!(tools(&commands), ["hand_off_to_billing", "note"]);
    let events = rig.now().await;
    let back = events.iter().filter(|kind| {
        matches!(kind, EventKind::HandedOff { from: Some(from), to: None } if &**from == "billing")
    });
    assert_eq!(back.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_is_a_call_like_any_other_to_the_policy() {
    let mut rig = Setup::new()
        .build(|builder| {
            builder.hand_off_to(billing()).authorize(policy(|_| {
                Verdict::Deny(antiphon::agent::Denial::private("not tonight"))
            }))
        })
        .start()
        .await;
    rig.user_says("u1", "My invoice, please");
    rig.calls_tool("r1", "c1", "hand_off_to_billing", "{}");
    let commands = rig.commands().await;
    assert_eq!(names(&commands), ["tool_response", "create_reply"]);
    let events = rig.now().await;
    assert!(events.iter().any(|kind| matches!(kind, EventKind::ToolDenied { .. })));
    assert!(!events.iter().any(is_handed_off));
}

#[tokio::test(start_paused = true)]
async fn who_can_change_nothing_and_is_told_nothing_hands_nothing_over() {
    let setup = Setup::able(|can| {
        can.update_instructions = false;
        can.history = false;
        can.resumption = false;
    });
    let rig = setup.start().await;
    let refused = rig.session.hand_off(&billing()).unwrap_err();
    assert_eq!(refused, SendError::Unsupported("change to another agent"));
}

#[cfg(feature = "openai")]
mod wire {
    use antiphon_testkit::openai::{Reply, Rule, Script, Side};
    use serde_json::{Value, json};

    use super::*;
    use crate::wire::rig::Setup;

    #[tokio::test(start_paused = true)]
    async fn trial_a09_over_the_wire_the_next_response_is_created_under_the_new_instructions() {
        let script = Script::auto().reply(Rule::always(Reply::spoken("One moment please.", 2_000)));
        let mut wire = Setup::new(script).start().await;
        wire.session.send_text("Hello.").unwrap();
        wire.until_speaking().await;
        wire.session.hand_off(&billing()).unwrap();
        wire.hear_until(is_handed_off).await;
        wire.hear().await;
        let (old, new) = (wire.place(Side::Server, "response.done", 1), "session.update");
        let changed = wire.place(Side::Client, new, 2);
        assert!(old < changed, "the old agent's reply was done");
        assert!(changed < wire.place(Side::Client, "response.create", 2));
        assert!(changed < wire.place(Side::Server, "response.created", 2));
        let updates = wire.sent("session.update");
        assert_eq!(updates[1]["session"]["instructions"], "You are the accountant.");
        wire.assert_clean();
    }

    #[tokio::test(start_paused = true)]
    async fn trial_d16_the_audio_format_stays() {
        let g711 = |mut config: antiphon::live::LiveConfig| {
            for key in ["input_audio_format", "output_audio_format"] {
                config.provider_options.insert(key.into(), json!("g711_ulaw"));
            }
            config.voice("marin")
        };
        for voice in [None, Some("cedar")] {
            let mut wire = Setup::new(Script::auto()).config(g711).start().await;
            wire.ask("Hello.").await;
            let mut next = billing();
            if let Some(voice) = voice {
                next = next.voice(voice);
            }
            wire.session.hand_off(&next).unwrap();
            wire.hear_until(is_handed_off).await;
            wire.hear_until(|kind| matches!(kind, EventKind::AgentMessage { .. })).await;
            assert_eq!(wire.server.connections(), if voice.is_some() { 2 } else { 1 });
            let formats: Vec<Value> = wire
                .sent("session.update")
                .iter()
                .flat_map(|frame| {
                    let audio = &frame["session"]["audio"];
                    [
                        audio["input"]["format"]["type"].clone(),
                        audio["output"]["format"]["type"].clone(),
                    ]
                })
                .filter(|format| !format.is_null())
                .collect();
            let expected = if voice.is_some() { 4 } else { 2 };
            assert_eq!(formats, vec![json!("audio/pcmu"); expected], "{voice:?}");
            wire.assert_clean();
        }
    }
}
