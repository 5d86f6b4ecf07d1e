use std::sync::{Arc, Weak};

use antiphon_agent::{
    AgentFinishReason, AgentInit, AgentInput, AgentStreamChunk, Artifact, Message, Part, Session,
    SessionAccess, SessionSnapshot, SessionState, SnapshotStatus, TurnEnd,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Count {
    count: u32,
}

fn session() -> Session<Count> {
    Session::new("s1", SessionState::default())
}

#[test]
fn snapshots_have_the_json_of_genkit() {
    let json = json!({
        "snapshotId": "a",
        "sessionId": "s",
        "parentId": "p",
        "createdAt": "2026-11-29T21:16:39.714Z",
        "updatedAt": "2026-11-29T21:16:40Z",
        "heartbeatAt": "2026-11-29T21:16:41.5Z",
        "status": "aborting",
        "finishReason": "interrupted",
        "error": {"status": "FAILED_PRECONDITION", "message": "m", "details": [1]},
        "state": {
            "sessionId": "s",
            "messages": [{"role": "user", "content": [{"text": "a"}]}],
            "custom": {"count": 1},
            "artifacts": [{"name": "doc", "parts": [{"text": "v"}], "metadata": {"rev": 2}}],
            "theme": "dark",
        },
    });
    let snapshot: SessionSnapshot<Count> = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(snapshot.status(), SnapshotStatus::Aborting);
    assert_eq!(snapshot.state.as_ref().unwrap().custom, Some(Count { count: 1 }));
    assert_eq!(serde_json::to_value(&snapshot).unwrap(), json);
}

#[test]
fn statuses_that_settle_are_terminal() {
    use SnapshotStatus::*;
    let terminal = |status: SnapshotStatus| status.is_terminal();
    assert!([Completed, Aborted, Failed, Expired].into_iter().all(terminal));
    assert!(![Pending, Aborting].into_iter().any(terminal));
}

#[test]
fn reasons_that_carry_a_result_are_those_of_an_answer() {
    use AgentFinishReason::*;
    assert!([Stop, Other, Unknown].into_iter().all(AgentFinishReason::carries_result));
    let none = [Length, Blocked, Interrupted, Aborted, Detached, Failed];
    assert!(!none.into_iter().any(AgentFinishReason::carries_result));
    assert_eq!(serde_json::from_value::<AgentFinishReason>(json!("sleepy")).unwrap(), Unknown);
}

#[test]
fn init_refuses_members_that_it_does_not_know() {
    for bad in [json!({"snapshotID": "a"}), json!({"state": 1}), json!({"x": null})] {
        assert!(serde_json::from_value::<AgentInit>(bad.clone()).is_err(), "{bad}");
    }
    let init: AgentInit = serde_json::from_value(json!({"state": {"mood": 1}})).unwrap();
    assert_eq!(serde_json::to_value(init).unwrap(), json!({"state": {"mood": 1}}));
}

#[test]
fn chunks_and_inputs_write_only_what_is_set() {
    let end = TurnEnd::default();
    assert_eq!(serde_json::to_value(AgentStreamChunk::from(end)).unwrap(), json!({"turnEnd": {}}));
    assert_eq!(serde_json::to_value(AgentInput::default()).unwrap(), json!({}));
    assert_eq!(
        serde_json::to_value(AgentInput::text("a").detached()).unwrap(),
        json!({"detach": true, "message": {"role": "user", "content": [{"text": "a"}]}})
    );
}

#[test]
fn artifacts_of_one_name_take_each_others_place() {
    let session = session();
    session.add_artifacts([
        Artifact::new("doc", vec![Part::text("v1")]),
        Artifact { parts: vec![Part::text("unnamed")], ..Artifact::default() },
        Artifact { parts: vec![Part::text("unnamed too")], ..Artifact::default() },
        Artifact::new("", vec![Part::text("empty name")]),
        Artifact::new("", vec![Part::text("empty name too")]),
    ]);
    session.add_artifacts([Artifact::new("doc", vec![Part::text("v2")])]);
    let texts: Vec<_> = session.artifacts().iter().map(|a| a.parts[0].clone()).collect();
    let expected = ["v2", "unnamed", "unnamed too", "empty name", "empty name too"];
    assert_eq!(texts, expected.map(Part::text));
}

#[test]
fn a_callback_may_use_the_session_that_it_changes() {
    let session = session();
    session.update_custom(|custom| {
        // Another change comes between, once: the update is asked again.
        if custom.count == 0 {
            session.update_custom(|inner| Count { count: inner.count + 10 });
        }
        Count { count: custom.count + 1 }
    });
    assert_eq!(session.custom(), Count { count: 11 });

    session.update_messages(|mut messages| {
        if messages.is_empty() {
            session.add_messages([Message::user("first")]);
        }
        messages.push(Message::model("second"));
        messages
    });
    let texts: Vec<_> = session.messages().iter().map(|message| message.joined_text()).collect();
    assert_eq!(texts, ["first", "second"]);

    session.update_artifacts(|mut artifacts| {
        session.messages();
        artifacts.push(Artifact::new("a", vec![]).into());
        artifacts
    });
    assert_eq!(session.artifacts().len(), 1);
}

#[test]
fn concurrent_changes_are_all_there() {
    let session = session();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    session.update_custom(|custom| Count { count: custom.count + 1 });
                    session.add_messages([Message::user("a")]);
                }
            });
        }
    });
    assert_eq!(session.custom().count, 1_600);
    assert_eq!(session.messages().len(), 1_600);
}

#[test]
fn copies_of_a_state_are_apart() {
    let session = session();
    session.add_messages([Message::user("a")]);
    let copy = session.state();
    session.add_messages([Message::model("b")]);
    session.update_custom(|_| Count { count: 5 });
    session.add_artifacts([Artifact::new("a", vec![])]);
    assert_eq!((copy.messages.len(), copy.custom, copy.artifacts.len()), (1, None, 0));
    assert_eq!(copy.session_id.as_deref(), Some("s1"));
}

#[test]
fn the_erased_session_knows_its_type_and_refuses_another_custom_state() {
    let session: &dyn SessionAccess = &session();
    assert!(session.typed::<String>().is_none());
    assert!(session.typed::<Count>().is_some());
    assert_eq!(session.custom_json(), Value::Null);
    session.update_custom_json(&mut |custom| custom["count"] = json!(3)).unwrap();
    assert_eq!(session.custom_json(), json!({"count": 3}));
    let error = session.update_custom_json(&mut |custom| *custom = json!("x")).unwrap_err();
    assert_eq!(error.status(), antiphon_agent::types::Status::InvalidArgument);
    assert_eq!(session.custom_json(), json!({"count": 3}));
}

/// Looks at its session when it goes.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Leaving {
    #[serde(skip)]
    session: Weak<Session<Leaving>>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        if let Some(session) = self.session.upgrade() {
            assert!(session.messages().is_empty());
        }
    }
}

#[test]
fn a_custom_state_that_goes_may_use_the_session() {
    let session = Arc::new(Session::<Leaving>::new("s", SessionState::default()));
    for _ in 0..3 {
        session.update_custom(|_| Leaving { session: Arc::downgrade(&session) });
    }
}
