//! Whatever happens to its turns, a chat knows what the agent has, and that is what went well.

use antiphon_agent::{
    Agent, AgentChat, AgentFinishReason, AgentInit, SessionSnapshot, SnapshotStatus,
};
use proptest::{collection, prelude::*};

use crate::agent::{Log, cx, scripted, stored};

/// What a user does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Say,
    Fail,
    Panic,
    /// The turn fails, and keeps what it did.
    Halfway,
    /// The turn is aborted once it streams.
    Abort,
    /// The turn is dropped once it streams.
    Drop,
    /// The turn goes on in the background, to its end.
    Leave,
    /// The turn fails in the background.
    LeaveToFail,
    /// The turn goes on in the background and is told to stop.
    LeaveAndStop,
    /// Another client takes over from the snapshot.
    Load,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let any = prop::sample::select(vec![
        Act::Say,
        Act::Say,
        Act::Fail,
        Act::Panic,
        Act::Halfway,
        Act::Abort,
        Act::Drop,
        Act::Leave,
        Act::LeaveToFail,
        Act::LeaveAndStop,
        Act::Load,
    ]);
    collection::vec(any, 1..12)
}

/// What must have come of the acts so far.
#[derive(Default)]
struct Expected {
    messages: Vec<String>,
    heard: Vec<String>,
}

impl Expected {
    fn said(&mut self, text: &str, answer: &str) {
        self.messages.extend([text.to_owned(), answer.to_owned()]);
        self.heard.push(text.to_owned());
    }

    #[track_caller]
    fn assert_chat(&self, chat: &AgentChat<Log>) {
        let messages = chat.messages();
        let messages: Vec<_> = messages.iter().map(|message| message.joined_text()).collect();
        assert_eq!(messages, self.messages);
        assert_eq!(chat.state().unwrap_or_default().heard, self.heard);
    }

    #[track_caller]
    fn assert_row(&self, row: SessionSnapshot<Log>) {
        let state = row.state.unwrap();
        let messages: Vec<_> = state.messages.iter().map(|message| message.joined_text()).collect();
        assert_eq!(messages, self.messages);
        assert_eq!(state.custom.unwrap_or_default().heard, self.heard);
    }
}

async fn hold(agent: Agent<Log>, acts: Vec<Act>) {
    let has_store = agent.store().is_some();
    let api = agent.api();
    let mut chat = api.chat(AgentInit::default());
    let mut expected = Expected::default();
    let mut session = None;
    for (number, act) in acts.into_iter().enumerate() {
        let said = |word: &str| format!("{word} {number}");
        match act {
            Act::Say => {
                chat.send(said("say")).await.unwrap();
                expected.said(&said("say"), &format!("heard {}", said("say")));
            }
            Act::Fail => drop(chat.send(said("fail")).await.unwrap_err()),
            Act::Panic => drop(chat.send(said("panic")).await.unwrap_err()),
            Act::Abort | Act::Drop => {
                let mut turn = chat.send_stream(said("slow"));
                turn.next_chunk().await.unwrap();
                if let Act::Abort = act {
                    turn.abort();
                    let response = turn.response().await.unwrap();
                    assert_eq!(response.finish_reason(), AgentFinishReason::Aborted);
                }
            }
            // The others need a store.
            _ if !has_store => {}
            Act::Halfway => {
                chat.send(said("halfway")).await.unwrap_err();
                expected.said(&said("halfway"), "half an answer");
            }
            Act::Leave => {
                let task = chat.detach(said("nap")).await.unwrap();
                assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Completed);
                expected.said(&said("nap"), &format!("heard {}", said("nap")));
            }
            Act::LeaveToFail => {
                let task = chat.detach(said("fail")).await.unwrap();
                assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Failed);
            }
            Act::LeaveAndStop => {
                let task = chat.detach(said("slow")).await.unwrap();
                assert_eq!(task.abort().await.unwrap(), Some(SnapshotStatus::Aborting));
                assert_eq!(task.wait().await.unwrap().status(), SnapshotStatus::Aborted);
            }
            Act::Load => {
                if let Some(snapshot_id) = chat.snapshot_id() {
                    chat = api.load_chat(snapshot_id).await.unwrap();
                }
            }
        }
        if let Act::Leave | Act::LeaveToFail | Act::LeaveAndStop = act {
            chat.refresh().await.unwrap();
        }
        expected.assert_chat(&chat);
        if let Some(snapshot_id) = chat.snapshot_id() {
            expected.assert_row(agent.get_snapshot(&cx(), snapshot_id).await.unwrap());
        }
        // A session keeps its id.
        assert!(session.is_none() || chat.session_id() == session);
        session = chat.session_id();
    }
}

fn paused(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_chat_knows_what_an_agent_with_a_store_has(acts in acts()) {
        paused(async { hold(stored(), acts).await });
    }

    #[test]
    fn a_chat_knows_what_an_agent_without_a_store_has(acts in acts()) {
        paused(async { hold(scripted().build(), acts).await });
    }
}
