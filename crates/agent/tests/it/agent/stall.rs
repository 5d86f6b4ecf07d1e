//! Stores that cannot write, or do not keep up.

use std::{sync::Arc, time::Duration};

use antiphon_agent::{
    Agent, AgentFinishReason, AgentInit, AgentOutput, Invoke, Message, OnStoreStall, RuntimeLimits,
    SessionStore, StoreErrorKind, TurnResult, types::Status,
};
use tokio::time::{Instant, sleep};

use super::{FlakyStore, Log, cx, scripted, texts};

/// An agent over `store` that is to do so where it stalls.
fn over(store: &Arc<FlakyStore>, stall: OnStoreStall) -> Agent<Log> {
    let mut limits = RuntimeLimits::default();
    limits.on_store_stall = stall;
    scripted().shared_store(store.clone() as Arc<dyn SessionStore>).limits(limits).build()
}

/// Says these, each after the end of the turn before. The snapshots of the turns that ended, and
/// what it came to.
async fn say(agent: &Agent<Log>, words: &[&str]) -> (Vec<Option<Arc<str>>>, AgentOutput<Log>) {
    let mut connection = agent.connect(&cx(), AgentInit::session("s")).await.unwrap();
    let mut ends = Vec::new();
    for text in words {
        if connection.send_text(*text).await.is_err() {
            break;
        }
        while let Some(chunk) = connection.next_chunk().await {
            if let Some(end) = chunk.turn_end {
                ends.push(end.snapshot_id);
                break;
            }
        }
    }
    (ends, connection.output().await.unwrap())
}

async fn stored_texts(agent: &Agent<Log>) -> Vec<String> {
    texts(&agent.get_latest_snapshot(&cx(), "s").await.unwrap().state.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_on_and_the_next_snapshot_holds_all() {
    let store = Arc::new(FlakyStore::default());
    let agent = over(&store, OnStoreStall::GoOn);
    store.refuse_writes(StoreErrorKind::Full);
    let recovers = async {
        sleep(Duration::from_secs(8)).await;
        store.refuse_writes(None);
    };
    let (said, ()) = tokio::join!(say(&agent, &["nap one", "nap two"]), recovers);
    let (ends, output) = said;
    assert!(ends[0].is_none() && ends[1].is_some(), "{ends:?}");
    assert_eq!((output.error, output.snapshot_id), (None, ends[1].clone()));
    let expected = ["nap one", "heard nap one", "nap two", "heard nap two"];
    assert_eq!(stored_texts(&agent).await, expected);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_gives_no_answer_costs_each_turn_its_time_and_no_more() {
    let store = Arc::new(FlakyStore::default());
    let agent = over(&store, OnStoreStall::GoOn);
    store.hang_writes(true);
    let began = Instant::now();
    let (ends, output) = say(&agent, &["one", "two"]).await;
    assert_eq!((ends, output.error), (vec![None, None], None));
    assert_eq!(began.elapsed().as_secs(), 60, "30 s for each");
}

#[tokio::test(start_paused = true)]
async fn a_conversation_ends_with_the_stores_error() {
    for kind in [StoreErrorKind::Full, StoreErrorKind::ReadOnly] {
        let store = Arc::new(FlakyStore::default());
        let agent = over(&store, OnStoreStall::End);
        let (ends, _) = say(&agent, &["one"]).await;
        store.refuse_writes(kind);
        let (lost, output) = say(&agent, &["two", "three"]).await;
        assert_eq!(lost, [None], "the third turn does not begin");
        assert_eq!(output.finish_reason, Some(AgentFinishReason::Failed));
        assert_eq!(output.snapshot_id, ends[0], "where to go on from");
        let error = output.error.unwrap();
        let status = match kind {
            StoreErrorKind::Full => Status::ResourceExhausted,
            _ => Status::PermissionDenied,
        };
        assert_eq!(error.status, status);
        assert!(error.message.contains(&kind.to_string()), "{error:?}");
        assert!(!error.message.contains("secret"), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_is_tried_again_for_so_long() {
    let store = Arc::new(FlakyStore::default());
    let agent = over(&store, OnStoreStall::Wait(Duration::from_secs(10)));
    store.fail_writes(true);
    let recovers = async {
        sleep(Duration::from_secs(7)).await;
        store.fail_writes(false);
    };
    let (said, ()) = tokio::join!(say(&agent, &["one", "two"]), recovers);
    assert!(said.0.iter().all(Option::is_some), "{said:?}");
    assert_eq!(stored_texts(&agent).await, ["one", "heard one", "two", "heard two"]);

    for hangs in [false, true] {
        store.fail_writes(!hangs);
        store.hang_writes(hangs);
        let began = Instant::now();
        let (lost, output) = say(&agent, &["three", "four"]).await;
        assert_eq!((lost, output.error.unwrap().status), (vec![None], Status::Unavailable));
        let took = began.elapsed().as_secs();
        assert!((7..=10).contains(&took), "{took} s");
    }
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_written_is_not_waited_for() {
    let store = Arc::new(FlakyStore::default());
    let agent = over(&store, OnStoreStall::Wait(Duration::from_secs(10)));
    store.refuse_writes(StoreErrorKind::TooLarge);
    let began = Instant::now();
    let (_, output) = say(&agent, &["one"]).await;
    assert_eq!(output.error.unwrap().status, Status::InvalidArgument);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn large_turns_reach_the_bound_before_many_do() {
    let store = Arc::new(FlakyStore::default());
    let agent = over(&store, OnStoreStall::GoOn);
    let invocation = agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    store.hang_writes(true);
    let mut sealed = Vec::new();
    let refused = loop {
        let turn = match invocation.begin_turn() {
            Ok(turn) => turn,
            Err(error) => break error,
        };
        turn.append(Message::user(format!("{} {}", sealed.len(), "x".repeat(1 << 20))));
        sealed.push(turn.seal(Ok(TurnResult::default())));
    };
    assert_eq!((sealed.len(), refused.status()), (4, Status::ResourceExhausted));
    // The first write begins.
    sleep(Duration::from_secs(1)).await;
    store.hang_writes(false);
    // The one that hung is given up; the others are written, in order, with what it said.
    let mut written = Vec::new();
    for turn in sealed {
        written.push(turn.settle().await);
    }
    let error = written[0].error.as_ref().unwrap();
    assert!(error.to_string().contains("no answer within 30s"), "{error}");
    let mut parent = None;
    for (n, settled) in written.iter().enumerate().skip(1) {
        assert!(settled.error.is_none());
        let id = settled.end.snapshot_id.clone().unwrap();
        let row = agent.get_snapshot(&cx(), id.clone()).await.unwrap();
        assert_eq!((row.parent_id, row.state.unwrap().messages.len()), (parent, n + 1));
        parent = Some(id);
    }
    assert!(invocation.begin_turn().is_ok());
}
