//! D20, D21 and D22 over every line: calls over which a person decides, and one whose process was
//! killed. They need an agent with a store, so that they are a table of their own.

use std::sync::{Arc, Mutex};

use antiphon::{
    agent::{
        Agent, AgentInit, AgentResult, InMemorySessionStore, InvocationContext, Invoke, Message,
        Outcome, SessionStore, TurnResult, Verdict, Voice,
        approval::{Answer, Approvals},
        ledger::{CallChange, CallRecord},
    },
    session::*,
    types::{JsonObject, ToolCall},
};
use serde_json::json;

use super::{
    run,
    script::{Do::*, Sent, Setup, Trial},
};
use crate::rig::{outcomes, policy};

/// What a trial has to do with people who are not in the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum People {
    /// Nothing; no agent is linked.
    Nobody,
    /// They decide over every call.
    Asked,
    /// The process of the conversation so far was killed while a tool ran.
    Killed,
}

/// The agent of a trial, and those who decide over its calls.
pub struct Desk {
    store: Arc<InMemorySessionStore>,
    decided: Mutex<Vec<String>>,
}

impl Desk {
    /// Links the session to an agent, where the trial needs one.
    pub async fn open(people: People, builder: SessionBuilder) -> (Self, SessionBuilder) {
        let store = Arc::new(InMemorySessionStore::new());
        let desk = Self { store: store.clone(), decided: Mutex::default() };
        let agent: Agent =
            Agent::custom("clerk", |_cx, _responder, runner| async move { Ok(runner.result()) })
                .voice(Voice::new("You are a clerk."))
                .shared_store(store)
                .build();
        let builder = match people {
            People::Nobody => builder,
            People::Asked => {
                builder.agent(&agent).authorize(policy(|_| Verdict::Ask { reason: "money".into() }))
            }
            People::Killed => {
                desk.was_killed(&agent).await;
                builder.agent(&agent).resume("s")
            }
        };
        (desk, builder)
    }

    /// What a process leaves that was killed while its tool ran.
    async fn was_killed(&self, agent: &Agent) {
        let cx = InvocationContext::new();
        let invocation = agent.open(&cx, AgentInit::session("s")).await.unwrap();
        let turn = invocation.begin_turn().unwrap();
        turn.append(Message::user("Pay five."));
        turn.seal(Ok(TurnResult::default())).write().await;
        let tip = invocation.flush().await;
        invocation.finish(Ok(AgentResult::default())).await;
        let args = JsonObject::from_iter([("amount".to_owned(), json!(5))]);
        let call = ToolCall { id: "c1".into(), name: "quick".into(), args };
        let mut record = CallRecord::new("k1", "s", &call, jiff::Timestamp::now());
        (record.agent, record.parent_id) = ("clerk".into(), tip);
        let write = |_: Option<&CallRecord>| Ok(CallChange::Write(Box::new(record.clone())));
        self.store.call_ledger().unwrap().save_call(&cx, "k1", &write).await.unwrap();
    }

    /// Somebody approves the call that waits, as it is or with arguments that were not shown.
    pub async fn approve(&self, session: &AgentSession, changed: bool) {
        let approvals = Approvals::new(self.store.clone()).unwrap();
        let waiting = approvals.waiting(&InvocationContext::new(), None).await.unwrap();
        let mut shown = waiting[0].arguments.clone();
        if changed {
            shown.insert("amount".into(), 500.into());
        }
        let answer = Answer::new().by("ann").shown(&shown);
        let decided = match session.approve(&waiting[0].key, answer).await {
            Ok(_) => "approved".to_owned(),
            Err(error) => error.to_string(),
        };
        self.decided.lock().unwrap().push(decided);
    }

    pub fn decided(&self) -> Vec<String> {
        self.decided.lock().unwrap().clone()
    }
}

const NO_TEXT: (&str, &str) = ("qwen", "it takes no text");
const ASKED: Setup = Setup { people: People::Asked, ..Setup::PLAIN };

static KILLED: Trial = Trial {
    name: "d20_a_call_of_a_killed_process_has_an_output_for_whoever_goes_on",
    script: &[
        (100, Starts),
        (600, Stops),
        (1_400, Heard("Is it paid")),
        (1_500, Begins),
        (1_550, Words("I cannot say. ")),
        (1_560, Voice(300)),
        (1_600, Done),
        (2_500, PlayAll),
    ],
    setup: Setup { people: People::Killed, ..Setup::PLAIN },
    holds: |seen| {
        let unknown = seen.events.iter().find_map(|kind| match kind {
            EventKind::SessionResumed(resumed) => Some(resumed.unknown_calls.clone()),
            _ => None,
        });
        assert_eq!(unknown, Some(vec!["c1".into()]));
        // A cascade is told in its own process.
        assert!(seen.outputs().is_empty() || seen.outputs() == [("c1", false)]);
        assert_eq!(seen.messages(), [("I cannot say.".to_owned(), false)]);
        assert!(seen.ran.is_empty());
    },
    not: &[],
};

static MARKED: Trial = Trial {
    name: "d21_spoken_and_written_calls_wait_with_the_same_events",
    script: &[
        (100, Starts),
        (600, Stops),
        (1_400, Heard("Pay five")),
        (1_500, Begins),
        (1_550, Call("c1", "quick", r#"{"amount": 5}"#)),
        (1_600, Done),
        (2_000, Begins),
        (2_050, Words("It waits. ")),
        (2_060, Voice(300)),
        (2_100, Done),
        (3_000, PlayAll),
        (4_000, Text("Pay five")),
        (4_500, Begins),
        (4_550, Call("c2", "quick", r#"{"amount": 5}"#)),
        (4_600, Done),
        (5_000, Begins),
        (5_050, Words("It waits, too. ")),
        (5_060, Voice(300)),
        (5_100, Done),
        (6_000, PlayAll),
    ],
    setup: ASKED,
    holds: |seen| {
        let told: Vec<_> = seen.events.iter().filter_map(marks).collect();
        let [requested, waits, again, waits_again] = &told[..] else { panic!("{told:?}") };
        assert_eq!((requested, waits), (again, waits_again));
        assert!(waits.contains("waiting_for_approval"), "{waits}");
        let paused = Outcome::Paused;
        assert_eq!(outcomes(&seen.events), [("c1".into(), paused), ("c2".into(), paused)]);
        assert_eq!(seen.outputs(), [("c1", true), ("c2", true)]);
        assert!(seen.ran.is_empty());
    },
    not: &[NO_TEXT],
};

/// What marks a call that waits, without what names this one.
fn marks(kind: &EventKind) -> Option<String> {
    match kind {
        EventKind::ApprovalRequested { name, args, question, expires_at, .. } => {
            Some(format!("{name} {} {question} {}", json!(args), expires_at.is_some()))
        }
        EventKind::ToolResult { name, response, outcome, .. } => {
            Some(format!("{name} {} {outcome:?}", json!(response)))
        }
        _ => None,
    }
}

static BOUND: Trial = Trial {
    name: "d22_a_call_waits_two_minutes_for_who_was_shown_its_arguments",
    script: &[
        (100, Starts),
        (600, Stops),
        (1_400, Heard("Pay five")),
        (1_500, Begins),
        (1_550, Call("c1", "quick", r#"{"amount": 5}"#)),
        (1_600, Done),
        (2_000, Begins),
        (2_050, Words("It waits. ")),
        (2_060, Voice(300)),
        (2_100, Done),
        (3_000, PlayAll),
        (121_000, Approve { changed: true }),
        (122_000, Approve { changed: false }),
        (124_000, Begins),
        (124_050, Words("It is paid. ")),
        (124_060, Voice(300)),
        (124_100, Done),
        (125_000, PlayAll),
    ],
    setup: ASKED,
    holds: |seen| {
        let [refused, approved] = &seen.decided[..] else { panic!("{:?}", seen.decided) };
        assert!(refused.contains("not those that were shown"), "{refused}");
        assert_eq!((&**approved, &seen.ran[..]), ("approved", &["c1".to_owned()][..]));
        // The model was told that it waits, and the outcome once it was there.
        assert_eq!(seen.outputs(), [("c1", true)]);
        let settled = seen.events.iter().filter_map(|kind| match kind {
            EventKind::ApprovalSettled { outcome, by, .. } => Some((*outcome, by.as_deref())),
            _ => None,
        });
        assert_eq!(settled.collect::<Vec<_>>(), [(Outcome::Success, Some("ann"))]);
        let told = |sent: &Sent| matches!(sent, Sent::Create | Sent::Text(_));
        assert!(seen.sent.iter().rposition(told) > seen.sent.iter().position(is_output));
        assert_eq!(seen.messages().len(), 2, "the outcome is spoken");
    },
    not: &[NO_TEXT],
};

fn is_output(sent: &Sent) -> bool {
    matches!(sent, Sent::Output(..))
}

#[tokio::test(start_paused = true)]
async fn trial_d20_a_call_of_a_killed_process_has_an_output_for_whoever_goes_on() {
    over_all_lines(&KILLED).await;
}

#[tokio::test(start_paused = true)]
async fn trial_d21_spoken_and_written_calls_wait_with_the_same_events() {
    over_all_lines(&MARKED).await;
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_call_waits_two_minutes_for_who_was_shown_its_arguments() {
    over_all_lines(&BOUND).await;
}

async fn over_all_lines(trial: &'static Trial) {
    let (shown, others) = run(trial).await;
    println!("{} over {shown} lines, not over {others:?}", trial.name);
    assert!(shown > 0);
}
