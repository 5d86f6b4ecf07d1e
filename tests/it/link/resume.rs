//! Going on from what was said before.

use antiphon::{
    agent::{
        AgentInit, Invoke, Prompt, PromptAgent,
        ledger::{CallChange, CallRecord},
    },
    live::{HistoryItem, HistoryRole},
    session::*,
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{ScriptedModel, ScriptedProvider};
use serde_json::json;

use super::*;
use crate::rig::*;

fn user(text: &str) -> HistoryItem {
    HistoryItem::Message { role: HistoryRole::User, text: text.into() }
}

fn said(text: &str) -> HistoryItem {
    HistoryItem::Message { role: HistoryRole::Agent, text: text.into() }
}

/// How the session was told to go on.
fn resumed(events: &[EventKind]) -> Option<&ResumedFrom> {
    events.iter().find_map(|kind| match kind {
        EventKind::SessionResumed(resumed) => Some(resumed),
        _ => None,
    })
}

#[tokio::test(start_paused = true)]
async fn a_resumed_session_tells_the_provider_what_was_heard_before() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(resumed(&rig.now().await), None, "there is nothing to go on from");
    rig.user_says("u1", "Tell me a story.").reply("r1");
    for word in ["Once ", "upon ", "a ", "time."] {
        rig.words("r1", word).audio("r1", 500);
    }
    rig.settle().await;
    rig.speaker.play(1_000 * PER_MS);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.done_as("r1", antiphon::live::ReplyOutcome::Cancelled);
    rig.committed(&agent).await;
    let last = rig.turn(&agent, "Another.", "Once more.").await;
    rig.session.stop();
    rig.end().await;

    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = rig.provider.requests()[0].history.clone();
    let before =
        [user("Tell me a story."), said("Once upon"), user("Another."), said("Once more.")];
    assert_eq!(history, before);
    let events = rig.now().await;
    assert!(matches!(events[0], EventKind::SessionStarted { .. }));
    let told = resumed(&events[1..2]).unwrap();
    assert_eq!(told.snapshot_id, Some(last.snapshot_id.clone()));
    assert_eq!((told.restored, told.items, told.left_out), (Restored::Full, 4, 0));
    let next = rig.turn(&agent, "Go on.", "The end.").await;
    assert_eq!(next.parent_id, Some(last.snapshot_id));
    assert_eq!(next.state.unwrap().messages.len(), 6);
    // A connection that is lost later is told all of it, too.
    rig.far.close(1011, "gone");
    rig.until(|kind| matches!(kind, EventKind::Reconnecting { .. })).await;
    rig.provider.far_end().await;
    let history = rig.provider.requests()[1].history.clone();
    assert_eq!(history[..4], before);
    assert_eq!(history[4..], [user("Go on."), said("The end.")]);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_started_again_goes_on() {
    let agent = plain();
    let (session, provider, config, idle, speaker) =
        Setup::new().build(|builder| builder.agent(&agent)).ready();
    let events = session.events();
    session.start(config.clone(), idle).await.unwrap();
    let far = provider.far_end().await;
    let mut rig = Rig { provider, session, far, speaker, events };
    let first = rig.turn(&agent, "Hello.", "Good day.").await;
    rig.session.shutdown(SECOND).await.unwrap();
    rig.events = rig.session.events();
    rig.session.start(config, idle).await.unwrap();
    rig.far = rig.provider.far_end().await;
    assert_eq!(rig.provider.requests()[1].history.len(), 2);
    let second = rig.turn(&agent, "And now?", "Still good.").await;
    assert_eq!(second.parent_id, Some(first.snapshot_id));
}

#[tokio::test(start_paused = true)]
async fn resuming_an_earlier_snapshot_is_a_branch_and_both_live() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let root = rig.turn(&agent, "Hello.", "Good day.").await;
    let left = rig.turn(&agent, "Left.", "To the left.").await;
    let from = root.snapshot_id.clone();
    let mut branch = linked(&agent, |builder| builder.resume_snapshot(from)).await;
    assert_eq!(&*branch.session.session_id(), "s");
    assert_eq!(branch.provider.requests()[0].history.len(), 2);
    let right = branch.turn(&agent, "Right.", "To the right.").await;
    assert_eq!((&right.parent_id, &left.parent_id), (&left.parent_id, &Some(root.snapshot_id)));
    assert_eq!(lines(&right)[2..], ["user: Right.", "model: To the right."]);
    let more = rig.turn(&agent, "On.", "Further left.").await;
    assert_eq!(more.parent_id, Some(left.snapshot_id));
    // Started again, a branch goes on from its own end.
    branch.session.shutdown(SECOND).await.unwrap();
    branch.events = branch.session.events();
    branch.session.start(antiphon::live::LiveConfig::new(), IdleConfig::OFF).await.unwrap();
    branch.far = branch.provider.far_end().await;
    let on = branch.turn(&agent, "On.", "Further right.").await;
    assert_eq!(on.parent_id, Some(right.snapshot_id));
}

#[tokio::test(start_paused = true)]
async fn a_conversation_goes_from_voice_to_text_and_back() {
    let model = ScriptedModel::new([antiphon_testkit::ModelTurn::says("In writing.")]);
    let prompt = Prompt::builder("clerk").system("You are a clerk.").build().unwrap();
    let agent: Agent = PromptAgent::inline(prompt)
        .model(model.shared())
        .agent("clerk")
        .unwrap()
        .store(InMemorySessionStore::new())
        .build();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(rig.config().instructions.as_deref(), Some("You are a clerk."));
    rig.turn(&agent, "Hello.", "Good day.").await;
    rig.session.shutdown(SECOND).await.unwrap();

    let written = agent.run_text(&cx(), "And in text?", AgentInit::session("s")).await.unwrap();
    assert_eq!(written.message.unwrap().joined_text(), "In writing.");
    let asked: Vec<_> =
        model.requests()[0].messages.iter().map(|message| message.joined_text()).collect();
    assert_eq!(asked[asked.len() - 3..], ["Hello.", "Good day.", "And in text?"]);

    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let told = [user("Hello."), said("Good day."), user("And in text?"), said("In writing.")];
    assert_eq!(rig.provider.requests()[0].history, told);
    let last = rig.turn(&agent, "Back again.", "Welcome.").await;
    assert_eq!(last.parent_id, written.snapshot_id);
    assert_eq!(last.state.unwrap().messages.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_long_conversation_is_cut_at_words_of_the_user() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    for n in 0..4 {
        rig.turn(&agent, &format!("Question {n}"), &format!("Answer {n}")).await;
    }
    rig.session.shutdown(SECOND).await.unwrap();
    let limits = HistoryLimits::new(5, 1_000);
    let mut rig = linked(&agent, |builder| builder.resume("s").history(limits)).await;
    let history = rig.provider.requests()[0].history.clone();
    let told = [user("Question 2"), said("Answer 2"), user("Question 3"), said("Answer 3")];
    assert_eq!(history, told);
    let events = rig.now().await;
    let told = resumed(&events).unwrap();
    assert_eq!((told.restored, told.items, told.left_out), (Restored::Cut, 4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_provider_without_history_is_told_in_its_instructions() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.turn(&agent, "Hello.", "Good day.").await;
    rig.session.shutdown(SECOND).await.unwrap();
    let setup = Setup::able(|able| able.history = false);
    let mut rig = setup.build(|builder| builder.agent(&agent).resume("s")).start().await;
    assert!(rig.provider.requests()[0].history.is_empty());
    let instructions = rig.config().instructions.unwrap();
    assert!(instructions.starts_with("You are a clerk."), "{instructions}");
    assert!(instructions.ends_with("User: Hello.\nYou: Good day."), "{instructions}");
    let events = rig.now().await;
    let told = resumed(&events).unwrap();
    assert_eq!((told.restored, told.items, told.left_out), (Restored::Digest, 2, 0));
}

#[tokio::test(start_paused = true)]
async fn calls_that_nobody_answered_are_told_as_such() {
    // A text turn that waits for somebody leaves one.
    let agent = plain();
    let invocation = agent.open(&cx(), AgentInit::session("s")).await.unwrap();
    let turn = invocation.begin_turn().unwrap();
    turn.append(Message::user("Pay."));
    let call =
        antiphon::agent::Part::tool_request("pay", Some("c1".into()), json!({ "amount": 5 }));
    turn.append(Message::new(Role::Model, vec![call]));
    let result = antiphon::agent::TurnResult::default();
    turn.seal(Ok(result)).write().await;
    let rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = rig.provider.requests()[0].history.clone();
    let [_, HistoryItem::Tool { call, response }] = &history[..] else { panic!("{history:?}") };
    assert_eq!((&*call.name, &call.args["amount"]), ("pay", &json!(5)));
    assert!(response["error"].as_str().unwrap().contains("not known"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_resumed_is_refused_before_anything_connects() {
    let agent = plain();
    let provider = ScriptedProvider::default();
    let (session, _, config, idle, _) = Setup::over(provider.clone())
        .build(|builder| builder.agent(&agent).resume_snapshot("nowhere"))
        .ready();
    let error = session.start(config, idle).await.unwrap_err();
    assert!(matches!(&error, StartError::Agent(RuntimeError::SnapshotNotFound(_))), "{error:?}");
    assert_eq!(error.status(), Status::NotFound);
    assert_eq!(provider.requests().len(), 0);
    assert_eq!(session.state(), SessionState::Inactive);
}

/// Says how much there was, or what it is told to do instead.
enum Sums {
    Up,
    Late,
    Fails,
    Panics,
    Nothing,
}

#[async_trait]
impl Summarizer for Sums {
    async fn summarize(&self, left_out: &[HistoryItem]) -> Result<String, RuntimeError> {
        match self {
            Self::Up => Ok(format!("{} things were said.", left_out.len())),
            Self::Late => {
                tokio::time::sleep(60 * SECOND).await;
                Ok("Too late.".to_owned())
            }
            Self::Fails => Err(RuntimeError::internal("no model")),
            Self::Panics => panic!("no model"),
            Self::Nothing => Ok("  ".to_owned()),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_out_is_told_in_short_where_the_host_can_say_it() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    for n in 0..4 {
        rig.turn(&agent, &format!("Question {n}"), &format!("Answer {n}")).await;
    }
    rig.session.shutdown(SECOND).await.unwrap();
    let last_turn = HistoryLimits::default().turns(1);
    for (sums, restored, note) in [
        (Sums::Up, Restored::Summary, None),
        (Sums::Late, Restored::Cut, Some(ResumeNote::SummaryTimedOut)),
        (Sums::Fails, Restored::Cut, Some(ResumeNote::SummaryFailed)),
        (Sums::Panics, Restored::Cut, Some(ResumeNote::SummaryFailed)),
        (Sums::Nothing, Restored::Cut, Some(ResumeNote::SummaryEmpty)),
    ] {
        let began = tokio::time::Instant::now();
        let mut rig = linked(&agent, |builder| {
            builder.resume("s").history(last_turn).summarizer(sums).summarize_within(2 * SECOND)
        })
        .await;
        assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
        let events = rig.now().await;
        let told = resumed(&events).unwrap();
        assert_eq!((told.restored, told.note), (restored, note));
        assert_eq!((told.items, told.left_out), (2, 6));
        let history = rig.provider.requests()[0].history.clone();
        assert_eq!(history, [user("Question 3"), said("Answer 3")]);
        let instructions = rig.config().instructions.unwrap();
        let summed_up = instructions.ends_with("in short:\n6 things were said.");
        assert_eq!(summed_up, note.is_none(), "{instructions}");
    }
    // Nothing is asked of it where nothing is left out.
    let mut rig = linked(&agent, |builder| builder.resume("s").summarizer(Sums::Panics)).await;
    let events = rig.now().await;
    assert_eq!(resumed(&events).unwrap().restored, Restored::Full);
}

#[tokio::test(start_paused = true)]
async fn who_goes_on_from_a_first_turn_that_was_killed_is_told_of_its_call() {
    let store = Arc::new(InMemorySessionStore::new());
    let agent = speaking(store.clone(), Arc::default());
    let call = ToolCall { id: "c1".into(), name: "pay".into(), args: JsonObject::new() };
    let record = CallRecord::new("k1", "s", &call, jiff::Timestamp::now());
    let write = |_: Option<&CallRecord>| Ok(CallChange::Write(Box::new(record.clone())));
    store.call_ledger().unwrap().save_call(&cx(), "k1", &write).await.unwrap();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let history = rig.provider.requests()[0].history.clone();
    let [HistoryItem::Tool { response, .. }] = &history[..] else { panic!("{history:?}") };
    assert!(response["error"].as_str().unwrap().contains("not known"), "{response:?}");
    let events = rig.until(|kind| matches!(kind, EventKind::SessionResumed(_))).await;
    let Some(EventKind::SessionResumed(resumed)) = events.last() else { panic!() };
    assert_eq!((&resumed.snapshot_id, &resumed.unknown_calls[..]), (&None, &["c1".into()][..]));
    let row = rig.turn(&agent, "Is it paid?", "I cannot say.").await;
    assert!(lines(&row)[1].contains("not known"), "{:?}", lines(&row));
}

#[tokio::test(start_paused = true)]
async fn what_a_provider_without_history_was_told_outlives_other_instructions() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.turn(&agent, "Hello.", "Good day.").await;
    rig.session.shutdown(SECOND).await.unwrap();
    let setup = Setup::able(|able| able.history = false);
    let mut rig = setup.build(|builder| builder.agent(&agent).resume("s")).start().await;
    rig.commands().await;
    rig.session.update_instructions("Be brief.").unwrap();
    let told = rig.commands().await.into_iter().find_map(|command| match command {
        antiphon::live::LiveCommand::UpdateInstructions(told) => Some(told),
        _ => None,
    });
    let told = told.unwrap();
    assert!(told.starts_with("Be brief."), "{told}");
    assert!(told.ends_with("User: Hello.\nYou: Good day."), "{told}");
    rig.far.close(1011, "gone");
    rig.until(|kind| matches!(kind, EventKind::StateRestored { .. })).await;
    let again = rig.provider.requests()[1].config.instructions.clone().unwrap();
    assert_eq!(again, told);
}

#[tokio::test(start_paused = true)]
async fn a_summary_outlives_other_instructions() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.turn(&agent, "Hello.", "Good day.").await;
    rig.turn(&agent, "How are you?", "Well.").await;
    rig.session.shutdown(SECOND).await.unwrap();
    let limits = HistoryLimits::default().turns(1);
    let mut rig =
        linked(&agent, |builder| builder.resume("s").history(limits).summarizer(Sums::Up)).await;
    rig.commands().await;
    rig.session.update_instructions("Be brief.").unwrap();
    let told = rig.commands().await.into_iter().find_map(|command| match command {
        antiphon::live::LiveCommand::UpdateInstructions(told) => Some(told),
        _ => None,
    });
    let expected = "Be brief.\n\nWhat was said before, in short:\n2 things were said.";
    assert_eq!(told.as_deref(), Some(expected));
}

#[tokio::test(start_paused = true)]
async fn what_was_restored_is_what_the_provider_was_told_that_was_connected_with() {
    let agent = plain();
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    for n in 0..3 {
        rig.turn(&agent, &format!("Question {n}: {}", "word ".repeat(500)), "Good day.").await;
    }
    rig.session.shutdown(SECOND).await.unwrap();
    for (first, second, expected) in
        [(true, false, (Restored::Digest, 3, 3)), (false, true, (Restored::Full, 6, 0))]
    {
        let able = |history| {
            let mut able = antiphon_testkit::full_capabilities();
            able.history = history;
            ScriptedProvider::new(able)
        };
        let (own, other) = (able(first), able(second));
        own.plan(antiphon_testkit::ConnectPlan::Refuse(antiphon::live::LiveError::Transport(
            "down".into(),
        )));
        let setup = Setup::over(own).build(|builder| {
            builder.agent(&agent).resume("s").fallback(Arc::new(other.clone()), |config| config)
        });
        let (session, _, config, idle, _) = setup.ready();
        let mut events = session.events();
        session.start(config, idle).await.unwrap();
        let events = now(&mut events).await;
        let told = resumed(&events).unwrap();
        assert_eq!((told.restored, told.items, told.left_out), expected);
        assert_eq!(other.requests()[0].history.len(), if second { 6 } else { 0 });
    }
}
