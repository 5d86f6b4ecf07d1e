//! Calls that the provider runs itself and a person decides over, while the conversation goes on.

use antiphon::{
    agent::{
        InMemorySessionStore, Outcome, Verdict,
        approval::{Answer, Approvals},
        ledger::CallState,
    },
    live::{LiveCommand, LiveError},
    session::*,
};

use super::*;
use crate::rig::*;

/// A session over which a person decides, whose provider asks for `docs/erase` and is parked. The key.
async fn parks(agent: &Agent) -> (Rig, Arc<str>) {
    let asks = policy(|_| Verdict::Ask { reason: "it is gone for good".into() });
    let mut rig = linked(agent, |it| it.resume("s").authorize(asks)).await;
    rig.user_says("u1", "Erase it.").reply("r1").asks("r1", "q1", "docs/erase", r#"{"page": 5}"#);
    rig.done("r1");
    let is_over = |kind: &EventKind| matches!(kind, EventKind::ToolResult { .. });
    let events = rig.until(is_over).await;
    assert_eq!(outcomes(&events), [("q1".into(), Outcome::Paused)]);
    let key = events.iter().find_map(|kind| match kind {
        EventKind::ApprovalRequested { approval, name, .. } => {
            assert_eq!(&**name, "docs/erase");
            Some(approval.clone())
        }
        _ => None,
    });
    (rig, key.expect("a person is asked"))
}

/// Whether the provider was told that it may, and why not.
fn answers(commands: &[LiveCommand]) -> Vec<(&str, bool, Option<&str>)> {
    let answers = commands.iter().filter_map(|command| match command {
        LiveCommand::PermitTool { id, permitted, reason } => {
            Some((&**id, *permitted, reason.as_deref()))
        }
        _ => None,
    });
    answers.collect()
}

fn agent() -> (Agent, Arc<InMemorySessionStore>) {
    let store = Arc::new(InMemorySessionStore::new());
    (speaking(store.clone(), Arc::default()), store)
}

#[tokio::test(start_paused = true)]
async fn the_provider_is_answered_once_a_person_has_decided() {
    for approves in [true, false] {
        let (agent, _) = agent();
        let (mut rig, key) = parks(&agent).await;
        let commands = rig.commands().await;
        assert_eq!(answers(&commands), [], "it waits");
        let told = commands.iter().any(|command| {
            matches!(command, LiveCommand::Text { text, .. } if text.contains("waits for a person"))
        });
        assert!(told, "the user hears so: {commands:?}");
        rig.says("r2", "I asked for approval.", 100);
        rig.speaker_catches_up().await;
        let answer = Answer::new().by("ann").reason("keep it");
        let expected = match approves {
            true => {
                rig.session.approve(&key, answer).await.unwrap();
                ("q1", true, None)
            }
            false => {
                rig.session.deny(&key, answer).await.unwrap();
                ("q1", false, Some("the tool call was not approved: keep it"))
            }
        };
        let commands = rig.commands().await;
        assert_eq!(answers(&commands), [expected]);
        let asked =
            commands.iter().any(|command| matches!(command, LiveCommand::CreateReply { .. }));
        assert!(asked, "the model tells what comes of it: {commands:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_that_is_gone_asked_for_is_permitted_to_nobody() {
    // Another connection knows nothing of the request.
    let (first, _) = agent();
    let (mut rig, key) = parks(&first).await;
    rig.commands().await;
    rig.far.fail(LiveError::Transport("reset".into()));
    rig.far = rig.provider.far_end().await;
    rig.settle().await;
    rig.session.approve(&key, Answer::new()).await.unwrap();
    assert_eq!(answers(&rig.commands().await), []);
    let told = rig.now().await;
    let says = |kind: &EventKind| matches!(kind, EventKind::Error { message, .. } if message.contains("connection is over"));
    assert!(told.iter().any(says), "{told:#?}");

    // After the session nobody could do it: it is not approved in vain.
    let (second, store) = agent();
    let (mut rig, key) = parks(&second).await;
    rig.session.stop();
    rig.end().await;
    let tools = ToolExecutor::new(Arc::default(), Some(Arc::new(policy(|_| Verdict::Allow))));
    let memory = Arc::new(antiphon::agent::InMemory::new());
    let approvals = Approvals::new(store).unwrap();
    let record = approvals.approve(&cx(), &key, Answer::new(), &tools, memory).await.unwrap();
    let CallState::Ended { outcome, .. } = record.state else { panic!("{record:?}") };
    assert_eq!(outcome, Outcome::Cancelled);
}
