//! Random interleavings of turns, forks, detached work, aborts and resumes, held to a small model
//! that knows nothing of the runtime but what it promises: what is committed stays, what is not
//! never shows, parents exist, a row settles once, and a session keeps its id.

use std::{collections::HashSet, sync::Arc, time::Duration};

use antiphon_agent::{
    Agent, AgentInit, AgentInput, InMemorySessionStore, InvocationContext, Message, Role,
    RuntimeError, SessionRunner, SessionState, SnapshotStatus, TurnFailure, TurnResult,
    types::Status,
};
use proptest::prelude::*;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Log, cx, paused_clock};

/// What a turn does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Ends well at once.
    Say,
    /// Ends well after so many seconds, or not at all where it is stopped before.
    Wait(u64),
    /// Fails and leaves nothing.
    Fail,
    /// Fails and keeps what it did.
    Halfway,
}

/// Where an invocation starts.
#[derive(Clone, Copy, Debug)]
enum From {
    Fresh,
    /// One of the rows there are.
    Row(usize),
    /// The latest of the session of one of the rows there are.
    SessionOf(usize),
}

#[derive(Clone, Debug)]
enum Act {
    Run {
        from: From,
        steps: Vec<Step>,
    },
    /// The caller stops after so many seconds.
    Stop {
        from: From,
        steps: Vec<Step>,
        after: u64,
    },
    /// The first steps while the caller is there, the others in the background.
    Detach {
        from: From,
        attached: Vec<Step>,
        detached: Vec<Step>,
    },
    Abort(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Say),
        3 => (1..40_u64).prop_map(Step::Wait),
        1 => Just(Step::Fail),
        1 => Just(Step::Halfway),
    ]
}

fn from() -> impl Strategy<Value = From> {
    prop_oneof![
        1 => Just(From::Fresh),
        3 => (0..100_usize).prop_map(From::Row),
        3 => (0..100_usize).prop_map(From::SessionOf),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let steps = |max| prop::collection::vec(step(), 0..max);
    prop_oneof![
        4 => (from(), steps(4)).prop_map(|(from, steps)| Act::Run { from, steps }),
        2 => (from(), steps(4), 1..50_u64)
            .prop_map(|(from, steps, after)| Act::Stop { from, steps, after }),
        4 => (from(), steps(3), steps(4))
            .prop_map(|(from, attached, detached)| Act::Detach { from, attached, detached }),
        3 => (0..100_usize).prop_map(Act::Abort),
        2 => (1..60_u64).prop_map(Act::Pass),
    ]
}

/// A row as the model has it.
#[derive(Clone, Debug)]
struct Row {
    id: Arc<str>,
    session: Arc<str>,
    parent: Option<Arc<str>>,
    /// What was committed before the row's own work.
    before: Vec<String>,
    work: Work,
}

#[derive(Clone, Debug)]
enum Work {
    Settled {
        said: Vec<String>,
        status: SnapshotStatus,
    },
    /// In the background, since `start`; all times in milliseconds.
    /// A sturdy agent goes on after a turn that failed.
    Background {
        start: u64,
        turns: Vec<(String, Step)>,
        aborted: Option<u64>,
        sturdy: bool,
    },
}

impl Row {
    /// Where the row stands at `now`, and what it holds once it is settled.
    fn at(&self, now: u64) -> (SnapshotStatus, Vec<String>) {
        let Work::Background { start, turns, aborted, sturdy } = &self.work else {
            let Work::Settled { said, status } = &self.work else { unreachable!() };
            return (*status, said.clone());
        };
        let (mut said, mut time) = (self.before.clone(), *start);
        for (text, step) in turns {
            match step {
                Step::Wait(seconds) => {
                    let end = time + seconds * 1000;
                    if let Some(aborted) = aborted.filter(|aborted| *aborted < end) {
                        return match aborted < now {
                            true => (SnapshotStatus::Aborted, said),
                            false => (SnapshotStatus::Aborting, Vec::new()),
                        };
                    }
                    if now <= end {
                        return (SnapshotStatus::Pending, Vec::new());
                    }
                    time = end;
                }
                Step::Fail if *sturdy => continue,
                Step::Fail => return (SnapshotStatus::Failed, said),
                Step::Halfway if !sturdy => {
                    said.push(text.clone());
                    return (SnapshotStatus::Failed, said);
                }
                Step::Say | Step::Halfway => {}
            }
            said.push(text.clone());
        }
        (SnapshotStatus::Completed, said)
    }
}

fn agent(sturdy: bool) -> Agent<Log> {
    Agent::custom("interleaved", move |_cx, _responder, runner: SessionRunner<Log>| async move {
        while let Err(error) = runner.run(|cx, input| turn(cx, &runner, input)).await {
            if !sturdy || error.is_callers_stop() {
                return Err(error);
            }
        }
        Ok(runner.result())
    })
    .store(InMemorySessionStore::new())
    .clock(paused_clock())
    .build()
}

async fn turn(
    cx: InvocationContext,
    runner: &SessionRunner<Log>,
    input: AgentInput,
) -> Result<TurnResult, TurnFailure> {
    let text = input.message.unwrap().joined_text();
    runner.update_custom(|mut log| {
        log.heard.push(text.clone());
        log
    });
    let error = || RuntimeError::new(Status::Unavailable, "told to");
    let mut words = text.split(' ').skip(1);
    match (words.next(), words.next()) {
        (Some("wait"), Some(seconds)) => tokio::select! {
            () = sleep(Duration::from_secs(seconds.parse().unwrap())) => {}
            _ = cx.ended() => return Err(RuntimeError::Cancelled("stopped".into()).into()),
        },
        (Some("fail"), _) => return Err(error().into()),
        (Some("halfway"), _) => return Err(TurnFailure::commit(error())),
        _ => {}
    }
    runner.add_messages([Message::model("yes")]);
    Ok(TurnResult::default())
}

/// The runtime and the model side by side.
struct World {
    agent: Agent<Log>,
    sturdy: bool,
    begun: Instant,
    rows: Vec<Row>,
    texts: u64,
}

impl World {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// A text that is its own, and says what the turn does.
    fn text(&mut self, step: Step) -> String {
        self.texts += 1;
        let n = self.texts;
        match step {
            Step::Say => format!("{n} say"),
            Step::Wait(seconds) => format!("{n} wait {seconds}"),
            Step::Fail => format!("{n} fail"),
            Step::Halfway => format!("{n} halfway"),
        }
    }

    /// The row that an invocation goes on from, as the model finds it.
    fn found(&self, from: From) -> (AgentInit<Log>, Option<Row>) {
        let pick = |n: usize| (!self.rows.is_empty()).then(|| &self.rows[n % self.rows.len()]);
        match from {
            From::Fresh => (AgentInit::default(), None),
            From::Row(n) => match pick(n) {
                Some(row) => (AgentInit::snapshot(row.id.clone()), Some(row.clone())),
                None => (AgentInit::default(), None),
            },
            From::SessionOf(n) => match pick(n) {
                Some(row) => {
                    let latest = self.rows.iter().rev().find(|other| other.session == row.session);
                    (AgentInit::session(row.session.clone()), latest.cloned())
                }
                None => (AgentInit::default(), None),
            },
        }
    }

    async fn act(&mut self, act: Act) {
        match act {
            Act::Pass(seconds) => sleep(Duration::from_secs(seconds)).await,
            Act::Abort(n) => self.abort(n).await,
            Act::Run { from, steps } => self.run(from, &steps, &[], None).await,
            Act::Stop { from, steps, after } => self.run(from, &steps, &[], Some(after)).await,
            Act::Detach { from, attached, detached } => {
                let detached = if detached.is_empty() { vec![Step::Say] } else { detached };
                self.run(from, &attached, &detached, None).await;
            }
        }
        // So that nothing else falls on the end of somebody's wait.
        sleep(Duration::from_millis(1)).await;
    }

    async fn abort(&mut self, n: usize) {
        if self.rows.is_empty() {
            return;
        }
        let (now, n) = (self.now(), n % self.rows.len());
        let row = &mut self.rows[n];
        let status = self.agent.abort(&cx(), &row.id).await.unwrap().unwrap();
        let (expected, _) = row.at(now);
        if expected == SnapshotStatus::Pending {
            assert_eq!(status, SnapshotStatus::Aborting);
            let Work::Background { aborted, .. } = &mut row.work else { unreachable!() };
            aborted.get_or_insert(now);
        } else {
            assert_eq!(status, expected);
        }
    }

    /// One invocation: some turns while the caller is there, and then some in the background.
    async fn run(&mut self, from: From, attached: &[Step], detached: &[Step], stop: Option<u64>) {
        let (init, found) = self.found(from);
        let token = CancellationToken::new();
        let caller = cx().with_cancellation(token.clone());
        let connected = self.agent.connect(&caller, init).await;
        let found_state = found.as_ref().map(|row| row.at(self.now()));
        if let Some((SnapshotStatus::Pending | SnapshotStatus::Aborting, _)) = found_state {
            assert_eq!(connected.unwrap_err().status(), Status::FailedPrecondition);
            return;
        }
        let mut connection = connected.unwrap();
        let start = self.now();
        let mut said = found_state.map_or_else(Vec::new, |(_, said)| said);
        let mut parent = found.as_ref().map(|row| row.id.clone());
        let mut rows = Vec::new();
        let (mut over, mut time) = (false, start);
        let stop_at = stop.map(|seconds| start + seconds * 1000 + 500);
        if let Some(seconds) = stop {
            let token = token.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(seconds * 1000 + 500)).await;
                token.cancel();
            });
        }
        for step in attached {
            let text = self.text(*step);
            // After a failure nothing is taken any more.
            if connection.send_text(text.clone()).await.is_err() {
                assert!(over);
                break;
            }
            let mut end = None;
            while let Some(chunk) = connection.next_chunk().await {
                if chunk.turn_end.is_some() {
                    end = chunk.turn_end;
                    break;
                }
            }
            // What the model makes of the step.
            let before = said.clone();
            let mut stopped = false;
            let status = match step {
                Step::Say => Some(SnapshotStatus::Completed),
                Step::Wait(seconds) => {
                    let waited = time + seconds * 1000;
                    stopped = stop_at.is_some_and(|stop| stop < waited);
                    time = if stopped { stop_at.unwrap() } else { waited };
                    (!stopped).then_some(SnapshotStatus::Completed)
                }
                Step::Fail => None,
                Step::Halfway => Some(SnapshotStatus::Failed),
            };
            over |= stopped || !(self.sturdy || status == Some(SnapshotStatus::Completed));
            let end = end.expect("a turn ends");
            match status {
                None => assert_eq!(end.snapshot_id, None, "what was rolled back has no row"),
                Some(status) => {
                    said.push(text);
                    let id = end.snapshot_id.expect("a row for each turn that committed");
                    let work = Work::Settled { said: said.clone(), status };
                    let parent = parent.replace(id.clone());
                    rows.push(Made { id, parent, before, work });
                }
            }
        }
        if !over && !detached.is_empty() {
            let mut turns = Vec::new();
            for step in detached {
                turns.push((self.text(*step), *step));
            }
            let start = self.now();
            for (n, (text, _)) in turns.iter().enumerate() {
                let mut input = AgentInput::text(text.clone());
                input.detach = n + 1 == turns.len();
                connection.send(input).await.unwrap();
            }
            let output = connection.output().await.unwrap();
            let work = Work::Background { start, turns, aborted: None, sturdy: self.sturdy };
            let id = output.snapshot_id.unwrap();
            rows.push(Made { id, parent, before: said, work });
            self.keep(rows, output.session_id.unwrap(), found);
            return;
        }
        let outcome = match stop {
            // One that is still there when its caller stops it.
            Some(_) if !over => {
                while connection.next_chunk().await.is_some() {}
                connection.output().await
            }
            _ => connection.output().await,
        };
        token.cancel();
        let stopped = outcome.is_err();
        let output = outcome.unwrap_or_else(|stopped| *stopped.output.expect("it had begun"));
        assert_eq!(output.snapshot_id, parent, "where to go on from");
        assert!(stop.is_some() || !stopped);
        self.keep(rows, output.session_id.unwrap(), found);
    }

    fn keep(&mut self, rows: Vec<Made>, session: Arc<str>, found: Option<Row>) {
        if let Some(found) = found {
            assert_eq!(found.session, session, "a session keeps its id");
        }
        for Made { id, parent, before, work } in rows {
            self.rows.push(Row { id, session: session.clone(), parent, before, work });
        }
    }

    /// Every row is as the model has it.
    async fn check(&self) {
        let now = self.now();
        let ids: HashSet<_> = self.rows.iter().map(|row| row.id.clone()).collect();
        assert_eq!(ids.len(), self.rows.len(), "ids are unique");
        for row in &self.rows {
            let stored = self.agent.get_snapshot(&cx(), row.id.clone()).await.unwrap();
            let (status, said) = row.at(now);
            assert_eq!(stored.status(), status, "{row:?}");
            assert_eq!(stored.session_id.as_ref(), Some(&row.session));
            assert_eq!(stored.parent_id, row.parent);
            assert!(stored.parent_id.is_none_or(|parent| ids.contains(&parent)));
            match stored.state {
                Some(state) => assert_eq!(heard(&state), (said.clone(), said), "{row:?}"),
                None => assert!(!status.is_terminal(), "{row:?}"),
            }
        }
        for row in &self.rows {
            let latest = self.agent.get_latest_snapshot(&cx(), row.session.clone()).await.unwrap();
            let last = self.rows.iter().rev().find(|other| other.session == row.session).unwrap();
            assert_eq!(latest.snapshot_id, last.id);
        }
    }
}

/// A row that one invocation made.
struct Made {
    id: Arc<str>,
    parent: Option<Arc<str>>,
    before: Vec<String>,
    work: Work,
}

/// What the users said, by the messages and by the custom state.
fn heard(state: &SessionState<Log>) -> (Vec<String>, Vec<String>) {
    let users = state.messages.iter().filter(|message| message.role == Role::User);
    let custom = state.custom.clone().unwrap_or_default();
    (users.map(|message| message.joined_text()).collect(), custom.heard)
}

async fn play(sturdy: bool, acts: Vec<Act>) {
    let mut world =
        World { agent: agent(sturdy), sturdy, begun: Instant::now(), rows: Vec::new(), texts: 0 };
    for act in acts {
        world.act(act).await;
        world.check().await;
    }
    // All work settles in the end, once, and stays so.
    for _ in 0..2 {
        sleep(Duration::from_secs(1_000)).await;
        world.check().await;
        let now = world.now();
        assert!(world.rows.iter().all(|row| row.at(now).0.is_terminal()));
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn nothing_committed_is_lost_and_nothing_uncommitted_appears(
        sturdy: bool,
        acts in prop::collection::vec(act(), 1..14),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(sturdy, acts));
    }
}
