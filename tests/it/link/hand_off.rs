//! Snapshots say which agent spoke.

use antiphon::{
    agent::{Agent, InMemorySessionStore, Voice},
    session::*,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn trial_a09_each_message_says_which_agent_spoke() {
    let clerk = plain();
    let accountant: Agent = Agent::custom("accountant", |_cx, _responder, _runner| async move {
        panic!("a speech model is in its place")
    })
    .voice(Voice::new("You are the accountant."))
    .store(InMemorySessionStore::new())
    .build();
    let mut rig = linked(&clerk, |builder| builder).await;
    rig.turn(&clerk, "Hello", "Hi.").await;
    rig.session.hand_off(&SessionAgent::of(&accountant).unwrap()).unwrap();
    rig.until(|kind| matches!(kind, EventKind::HandedOff { .. })).await;
    let commands = rig.commands().await;
    assert_eq!(commands.len(), 3, "{commands:#?}");
    rig.reply_to("r2", 1).words("r2", "Accounts here.").audio("r2", 100).done("r2");
    rig.speaker_catches_up().await;
    rig.until(|kind| matches!(kind, EventKind::AgentMessage { .. })).await;
    let row = rig.turn(&clerk, "My invoice", "It is paid.").await;
    assert_eq!(
        lines(&row),
        [
            "user: Hello",
            "model: Hi.",
            "model: Accounts here.",
            "user: My invoice",
            "model: It is paid."
        ]
    );
    let spoke: Vec<_> = (0..5).map(|index| voice(&row, index)["agent"].clone()).collect();
    let accountant = Value::from("accountant");
    let nobody = Value::Null;
    assert_eq!(spoke, [&nobody, &nobody, &accountant, &nobody, &accountant].map(Clone::clone));
}
