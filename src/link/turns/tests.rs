use std::collections::HashSet;

use antiphon_agent::{Part, Role, ledger::LEDGER};
use proptest::prelude::*;

use super::*;

/// A session that is told line by line.
struct Told {
    turns: Turns,
    now: Instant,
    t_ms: u64,
}

impl Told {
    fn new() -> Self {
        let mut told =
            Self { turns: Turns::new(true, Duration::from_secs(5)), now: Instant::now(), t_ms: 0 };
        let (session_id, provider, model) = ("s".into(), "scripted".into(), "m-1".into());
        told.tell(0, EventKind::SessionStarted { session_id, provider, model });
        told
    }

    fn tell(&mut self, turn: u64, kind: EventKind) -> &mut Self {
        let event = SessionEvent { t_ms: self.t_ms, epoch: 1, turn, kind };
        self.turns.handle(&event, self.now);
        self
    }

    fn note(&mut self, turn: u64, note: Note) -> &mut Self {
        self.turns.note(turn, &note, self.now);
        self
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.t_ms += ms;
        self.now += Duration::from_millis(ms);
        self.turns.timeout(self.now);
        self
    }

    fn user(&mut self, turn: u64, text: &str) -> &mut Self {
        self.tell(turn, EventKind::UserMessage { text: text.into() })
    }

    fn agent(&mut self, turn: u64, text: &str) -> &mut Self {
        self.tell(turn, said(text, false, None))
    }

    fn calls(&mut self, turn: u64, id: &str, args: &str) -> &mut Self {
        self.turns.requested(
            turn,
            &ToolCallRequest {
                id: id.into(),
                name: "clock".into(),
                arguments: ToolArguments::Json(args.into()),
            },
        );
        let args = serde_json::from_str(args).unwrap();
        self.tell(turn, EventKind::ToolCall { id: id.into(), name: "clock".into(), args })
    }

    fn output(&mut self, turn: u64, id: &str, outcome: Outcome) -> &mut Self {
        let response = JsonObject::from_iter([("time".to_owned(), json!("5 pm"))]);
        self.tell(turn, result(id, response, outcome))
    }

    fn finished(&mut self, turn: u64) -> &mut Self {
        self.tell(turn, EventKind::TurnFinished { latency_ms: Some(250) })
    }

    fn end(&mut self, turn: u64, reason: EndReason) -> &mut Self {
        self.tell(turn, EventKind::SessionEnded { reason, stats: Box::default() })
    }

    /// The next commit, as lines.
    fn commit(&mut self) -> Option<Vec<String>> {
        Some(lines(&self.turns.poll()?.messages))
    }
}

fn said(text: &str, interrupted: bool, generated: Option<&str>) -> EventKind {
    let generated = generated.map(str::to_owned);
    EventKind::AgentMessage { text: text.into(), interrupted, generated, heard: None }
}

fn result(id: &str, response: JsonObject, outcome: Outcome) -> EventKind {
    let (id, name) = (id.into(), "clock".into());
    EventKind::ToolResult { id, name, response, outcome, whole_bytes: None }
}

fn lines(messages: &[Message]) -> Vec<String> {
    messages.iter().map(line).collect()
}

fn line(message: &Message) -> String {
    let role = serde_json::to_value(message.role).unwrap();
    let parts: Vec<_> = message.content.iter().map(part).collect();
    let late = voice(message)["late"] == true;
    let late = if late { " (late)" } else { "" };
    format!("{} {}{late}", role.as_str().unwrap(), parts.join(" | "))
}

fn part(part: &Part) -> String {
    match (part.as_text(), part.as_tool_request(), part.as_tool_response()) {
        (Some(_), ..) if is_note(part) => "unheard".into(),
        (Some(text), ..) => text.into(),
        (_, Some(request), _) => format!("? {}", request.id.as_deref().unwrap()),
        (.., Some(response)) => format!("! {}", response.id.as_deref().unwrap()),
        _ => panic!("{part:?}"),
    }
}

fn voice(message: &Message) -> &Value {
    &message.metadata.as_ref().unwrap()[VOICE]
}

#[test]
fn a_turn_is_committed_once_it_is_finished() {
    let mut told = Told::new();
    told.user(1, "What time is it?").calls(1, "c1", "{}");
    told.output(1, "c1", Outcome::Success).agent(1, "It is 5 pm.");
    assert_eq!(told.commit(), None);
    told.finished(1);
    let commit = told.turns.poll().unwrap();
    assert_eq!((commit.turn, commit.error.is_none()), (1, true));
    let expected = ["user What time is it?", "model ? c1", "tool ! c1", "model It is 5 pm."];
    assert_eq!(lines(&commit.messages), expected);
    let spoken = voice(&commit.messages[3]);
    assert_eq!(spoken["provider"], "scripted");
    assert_eq!(spoken["model"], "m-1");
    assert_eq!((&spoken["turn"], &spoken["latency_ms"]), (&json!(1), &json!(250)));
    let output = &commit.messages[2].content[0];
    assert_eq!(output.metadata_entry(VOICE).unwrap()["outcome"], "success");
    assert_eq!(told.turns.deadline(), None);
}

#[test]
fn words_are_waited_for_where_the_provider_that_serves_tells_them() {
    let mut told = Told::new();
    told.turns.transcribed(false);
    told.agent(1, "Good day.").finished(1);
    assert_eq!(told.commit().unwrap(), ["model Good day."]);
    told.turns.transcribed(true);
    told.agent(2, "Well, thank you.").finished(2);
    assert_eq!(told.commit(), None);
    told.user(2, "How are you?");
    assert_eq!(told.commit().unwrap(), ["user How are you?", "model Well, thank you."]);
}

#[test]
fn words_that_come_late_are_waited_for_and_stand_first() {
    let mut told = Told::new();
    told.tell(1, EventKind::PlaybackStarted).agent(1, "Hello.").finished(1);
    assert_eq!(told.commit(), None);
    told.wait(2_000).user(1, "Hi.");
    assert_eq!(told.commit().unwrap(), ["user Hi.", "model Hello."]);
}

#[test]
fn words_that_do_not_come_are_waited_for_only_so_long() {
    let mut told = Told::new();
    told.agent(1, "Hello.").finished(1).wait(4_999);
    assert_eq!(told.commit(), None);
    told.wait(1);
    assert_eq!(told.commit().unwrap(), ["model Hello."]);
    // They are not lost either.
    told.user(1, "Hi.").wait(5_000);
    assert_eq!(told.commit().unwrap(), ["user Hi. (late)"]);
}

#[test]
fn without_transcripts_nobody_waits_for_words() {
    let mut told = Told::new();
    told.turns.transcripts = false;
    told.agent(1, "Hello.").finished(1);
    assert_eq!(told.commit().unwrap(), ["model Hello."]);
}

#[test]
fn an_interrupted_reply_says_what_was_heard_and_that_the_rest_was_not() {
    let mut told = Told::new();
    told.user(1, "Tell me a story.").tell(1, EventKind::Interrupted);
    told.tell(1, said("Once upon", true, Some("Once upon a time.")));
    assert_eq!(told.commit(), None);
    told.user(2, "Stop.");
    let commit = told.turns.poll().unwrap();
    assert_eq!(lines(&commit.messages), ["user Tell me a story.", "model Once upon | unheard"]);
    assert!(commit.error.is_none(), "it finished: the user spoke");
    let spoken = voice(&commit.messages[1]);
    assert_eq!(
        (&spoken["interrupted"], &spoken["generated"]),
        (&json!(true), &json!("Once upon a time."))
    );
    assert!(commit.messages[1].joined_text().starts_with("Once upon [The reply was cut off"));
    told.agent(2, "All right.").finished(2);
    assert_eq!(told.commit().unwrap(), ["user Stop.", "model All right."]);
}

#[test]
fn an_interruption_after_which_nothing_comes_is_committed_all_the_same() {
    let mut told = Told::new();
    told.user(1, "Go on.").tell(1, EventKind::Interrupted).wait(1_000);
    told.tell(1, said("Well", true, None)).wait(4_999);
    assert_eq!(told.commit(), None);
    told.wait(1);
    assert_eq!(told.commit().unwrap(), ["user Go on.", "model Well | unheard"]);
}

#[test]
fn a_call_without_output_waits_for_the_commit_that_has_it() {
    let mut told = Told::new();
    told.user(1, "Send it.").calls(1, "c1", "{}").calls(1, "c2", "{}");
    told.output(1, "c2", Outcome::Success).tell(1, EventKind::Interrupted);
    told.user(2, "And now?");
    assert_eq!(told.commit().unwrap(), ["user Send it.", "model ? c2", "tool ! c2"]);
    told.output(1, "c1", Outcome::Cancelled).agent(2, "Sent.").finished(2);
    let expected = ["user And now?", "model ? c1 (late)", "tool ! c1 (late)", "model Sent."];
    assert_eq!(told.commit().unwrap(), expected);
}

#[test]
fn calls_of_one_round_stand_together_in_the_order_of_their_requests() {
    let mut told = Told::new();
    told.user(1, "Both.").calls(1, "a", "{}").calls(1, "b", "{}");
    told.output(1, "b", Outcome::Success).output(1, "a", Outcome::Error);
    told.calls(1, "c", "{}").output(1, "c", Outcome::Success).agent(1, "Done.").finished(1);
    let expected =
        ["user Both.", "model ? a | ? b", "tool ! a | ! b", "model ? c", "tool ! c", "model Done."];
    assert_eq!(told.commit().unwrap(), expected);
}

#[test]
fn the_history_has_the_models_own_arguments_and_those_that_were_approved() {
    let mut told = Told::new();
    told.turns.requested(
        1,
        &ToolCallRequest {
            id: "c1".into(),
            name: "pay".into(),
            arguments: ToolArguments::Json(r#"{"amount": 500}"#.into()),
        },
    );
    let args = JsonObject::from_iter([("amount".to_owned(), json!(100))]);
    told.user(1, "Pay.").tell(1, EventKind::ToolCall { id: "c1".into(), name: "pay".into(), args });
    told.tell(1, result("c1", JsonObject::new(), Outcome::Success)).agent(1, "Paid.").finished(1);
    let commit = told.turns.poll().unwrap();
    let request = &commit.messages[1].content[0];
    assert_eq!(request.as_tool_request().unwrap().input, Some(json!({ "amount": 500 })));
    let noted = json!({ "verdict": "allow_with", "args": { "amount": 100 } });
    assert_eq!(request.metadata_entry(VOICE).unwrap(), &noted);
}

#[test]
fn a_call_of_the_next_turn_ends_the_one_that_was_interrupted() {
    let mut told = Told::new();
    told.user(1, "Go on.").tell(1, EventKind::Interrupted).tell(1, said("Well", true, None));
    let (id, name) = ("c1".into(), "clock".into());
    let arguments = ToolArguments::Json("{}".into());
    told.turns.requested(2, &ToolCallRequest { id, name, arguments });
    assert_eq!(told.commit().unwrap(), ["user Go on.", "model Well | unheard"]);
}

#[test]
fn a_read_back_is_a_turn_and_its_call_belongs_to_the_answer() {
    let mut told = Told::new();
    let read_back = "Shall I pay?".to_owned();
    let confirm = EventKind::ToolConfirm { id: "c1".into(), name: "clock".into(), read_back };
    told.user(1, "Pay.").tell(1, confirm).agent(1, "Shall I pay?").finished(1);
    assert_eq!(told.commit().unwrap(), ["user Pay.", "model Shall I pay?"]);
    told.user(2, "Yes.").calls(1, "c1", "{}").output(1, "c1", Outcome::Success);
    told.agent(2, "Paid.").finished(2);
    let expected = ["user Yes.", "model ? c1 (late)", "tool ! c1 (late)", "model Paid."];
    assert_eq!(told.commit().unwrap(), expected);
}

#[test]
fn noise_is_nothing() {
    let mut told = Told::new();
    told.tell(0, EventKind::SpeechStarted).tell(0, EventKind::SpeechStopped).wait(60_000);
    told.end(0, EndReason::Stopped);
    assert_eq!(told.commit(), None);
}

#[test]
fn words_without_an_answer_are_part_of_the_next_turn_or_settle_once_nobody_works() {
    let mut told = Told::new();
    told.user(1, "Um.").user(2, "What time is it?").agent(2, "Five.").finished(2);
    let expected = ["user Um.", "user What time is it?", "model Five."];
    assert_eq!(told.commit().unwrap(), expected);
    let state = |state| EventKind::State { state };
    told.user(3, "Hello?").tell(3, state(SessionState::Processing)).wait(60_000);
    assert_eq!(told.commit(), None);
    told.tell(3, state(SessionState::Listening)).wait(5_000);
    assert_eq!(told.commit().unwrap(), ["user Hello?"]);
}

#[test]
fn what_the_agent_says_by_itself_is_committed_too() {
    let mut told = Told::new();
    told.agent(0, "Good morning.").wait(5_000);
    assert_eq!(told.commit().unwrap(), ["model Good morning."]);
}

#[test]
fn a_turn_that_the_end_cuts_off_says_so() {
    let reasons = [
        (EndReason::Stopped, Status::Cancelled),
        (EndReason::Limit { limit: "length".into() }, Status::Aborted),
        (EndReason::Failed { message: "lost".into() }, Status::Unavailable),
    ];
    for (reason, status) in reasons {
        let mut told = Told::new();
        told.user(1, "What time is it?").calls(1, "c1", "{}").end(1, reason);
        let commit = told.turns.poll().unwrap();
        assert_eq!(commit.error.unwrap().status(), status);
        let expected = ["user What time is it?", "model ? c1", "tool ! c1"];
        assert_eq!(lines(&commit.messages), expected);
    }
    let mut told = Told::new();
    told.user(1, "Hi.").tell(1, EventKind::Interrupted).end(1, EndReason::Stopped);
    assert!(told.turns.poll().unwrap().error.is_none(), "that turn was over");
}

#[test]
fn a_turn_to_which_the_provider_failed_to_answer_failed() {
    let error = || EventKind::Error { kind: "provider".into(), message: "the reply failed".into() };
    let mut told = Told::new();
    told.user(1, "Hi.").tell(1, error()).finished(1);
    assert_eq!(told.turns.poll().unwrap().error.unwrap().status(), Status::Unavailable);
    told.user(2, "Hi.").tell(2, error()).agent(2, "Hello.").finished(2);
    assert!(told.turns.poll().unwrap().error.is_none());
}

#[test]
fn a_turn_that_failed_says_so_whatever_comes_before_its_words() {
    let failed = || Note::ReplyDone { outcome: Some(ReplyOutcome::Failed), usage: None };
    // The user's words are missing, and the user speaks again.
    let mut told = Told::new();
    told.agent(1, "It is").note(1, failed()).finished(1).user(2, "Hello?");
    let commit = told.turns.poll().unwrap();
    assert_eq!(commit.reason, AgentFinishReason::Failed);
    assert_eq!(commit.error.unwrap().status(), Status::Unavailable);
    // Or the session ends.
    let mut told = Told::new();
    told.agent(1, "It is").note(1, failed()).finished(1).end(1, EndReason::Stopped);
    assert_eq!(told.turns.poll().unwrap().reason, AgentFinishReason::Failed);
}

#[test]
fn a_call_that_is_decided_over_within_its_turn_does_not_wait_at_its_end() {
    let (approval, name): (Arc<str>, Arc<str>) = ("key".into(), "clock".into());
    let requested = EventKind::ApprovalRequested {
        approval: approval.clone(),
        id: "c1".into(),
        name: name.clone(),
        args: JsonObject::new(),
        question: json!({ "reason": "money" }),
        expires_at: None,
    };
    let settled = EventKind::ApprovalSettled {
        approval,
        id: "c1".into(),
        name,
        args: JsonObject::new(),
        outcome: Outcome::Success,
        output: json!({ "time": "5 pm" }),
        by: None,
    };
    let mut told = Told::new();
    told.user(1, "What time is it?").tell(1, requested.clone());
    told.output(1, "c1", Outcome::Paused).tell(1, settled.clone());
    told.agent(1, "I asked for approval.").finished(1);
    let commit = told.turns.poll().unwrap();
    assert_eq!(commit.reason, AgentFinishReason::Stop);
    let expected = [
        "user What time is it?",
        "model ? c1",
        "tool ! c1",
        "model ? key",
        "tool ! key",
        "model I asked for approval.",
    ];
    assert_eq!(lines(&commit.messages), expected);
    let note = |at: usize| commit.messages[at].content[0].metadata_entry(LEDGER);
    assert_eq!(note(1), None, "nobody is to answer it");
    assert_eq!(note(2).unwrap(), &json!({ "key": "key", "outcome": "waiting" }));
    assert_eq!(note(4).unwrap()["outcome"], "success");
    // One that is decided over later ends its turn.
    let mut told = Told::new();
    told.user(1, "What time is it?").tell(1, requested).output(1, "c1", Outcome::Paused);
    told.agent(1, "I asked for approval.").finished(1);
    let commit = told.turns.poll().unwrap();
    assert_eq!(commit.reason, AgentFinishReason::Interrupted);
    assert_eq!(lines(&commit.messages).last().unwrap(), "model ? c1");
    told.tell(1, settled).user(2, "And?").agent(2, "It is 5 pm.").finished(2);
    assert_eq!(told.turns.poll().unwrap().reason, AgentFinishReason::Stop);
}

#[test]
fn what_was_used_up_stands_once_on_the_last_message_of_a_commit() {
    let used = |tokens| {
        let mut usage = Usage::default();
        usage.output_text_tokens = tokens;
        Note::ReplyDone { outcome: Some(ReplyOutcome::Completed), usage: Some(usage) }
    };
    let mut told = Told::new();
    told.user(1, "What time is it?").calls(1, "c1", "{}").note(1, used(3));
    told.output(1, "c1", Outcome::Success).agent(1, "It is 5 pm.").note(1, used(4)).finished(1);
    let messages = told.turns.poll().unwrap().messages;
    let used_up: Vec<_> = messages.iter().map(|message| &voice(message)["usage"]).collect();
    assert_eq!(used_up[..3], [&Value::Null; 3]);
    assert_eq!(used_up[3]["output_text_tokens"], 7);
    // What comes after the commit is in the next one.
    told.note(1, used(5)).user(2, "Thanks.").agent(2, "Welcome.").finished(2);
    let messages = told.turns.poll().unwrap().messages;
    assert_eq!(voice(&messages[1])["usage"]["output_text_tokens"], 5);
}

#[test]
fn why_a_turn_ended_is_how_its_last_reply_did() {
    let ended = |outcome| Note::ReplyDone { outcome: Some(outcome), usage: None };
    for (outcomes, reason) in [
        (&[ReplyOutcome::Completed][..], AgentFinishReason::Stop),
        (&[ReplyOutcome::Interrupted], AgentFinishReason::Stop),
        (&[ReplyOutcome::Incomplete], AgentFinishReason::Length),
        (&[ReplyOutcome::Blocked], AgentFinishReason::Blocked),
        (&[ReplyOutcome::Failed], AgentFinishReason::Failed),
        (&[ReplyOutcome::Failed, ReplyOutcome::Completed], AgentFinishReason::Stop),
        (&[ReplyOutcome::Completed, ReplyOutcome::Blocked], AgentFinishReason::Blocked),
    ] {
        let mut told = Told::new();
        told.user(1, "Tell me.").agent(1, "Once upon");
        for outcome in outcomes {
            told.note(1, ended(*outcome));
        }
        let commit = told.finished(1).turns.poll().unwrap();
        assert_eq!(commit.reason, reason, "{outcomes:?}");
        assert_eq!(commit.error.is_some(), reason == AgentFinishReason::Failed);
        // It says nothing of the next one.
        told.user(2, "And?").agent(2, "The end.").finished(2);
        assert_eq!(told.turns.poll().unwrap().reason, AgentFinishReason::Stop);
    }
}

#[test]
fn what_was_not_heard_at_all_stands_in_its_place() {
    let generated = "Once upon a time.".to_owned();
    let reply = ReplyNote { items: vec!["i1".into()] };
    let mut told = Told::new();
    told.user(1, "Tell me a story.").tell(1, EventKind::Interrupted);
    told.note(1, Note::Unheard { reply, generated, heard: None, t_ms: 30 }).user(2, "Stop.");
    let commit = told.turns.poll().unwrap();
    assert_eq!(lines(&commit.messages), ["user Tell me a story.", "model unheard"]);
    let noted = voice(&commit.messages[1]);
    assert_eq!(noted["items"], json!(["i1"]));
    assert_eq!(noted["generated"], "Once upon a time.");
}

/// Something that may be told at any moment.
#[derive(Clone, Debug)]
enum Step {
    User { late: bool },
    Agent { late: bool, interrupted: bool },
    Request,
    Start(usize),
    Output(usize),
    Playing(bool),
    State(bool),
    Interrupted,
    Finished,
    Next,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => any::<bool>().prop_map(|late| Step::User { late }),
        3 => any::<(bool, bool)>().prop_map(|(late, interrupted)| Step::Agent { late, interrupted }),
        2 => Just(Step::Request),
        2 => (0..4usize).prop_map(Step::Start),
        2 => (0..4usize).prop_map(Step::Output),
        1 => any::<bool>().prop_map(Step::Playing),
        1 => any::<bool>().prop_map(Step::State),
        1 => Just(Step::Interrupted),
        2 => Just(Step::Finished),
        2 => Just(Step::Next),
        1 => (0..8_000u64).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn everything_stands_in_exactly_one_commit(steps in prop::collection::vec(step(), 0..80)) {
        let mut told = Told::new();
        let mut expected = HashSet::new();
        let mut open: Vec<String> = Vec::new();
        let mut turn = 0;
        for (n, step) in steps.into_iter().enumerate() {
            let of = |late: bool| if late { u64::saturating_sub(turn, 1) } else { turn };
            match step {
                Step::User { late } => {
                    expected.insert(format!("user u{n}"));
                    told.user(of(late), &format!("u{n}"));
                }
                Step::Agent { late, interrupted } => {
                    expected.insert(format!("model a{n}"));
                    told.tell(of(late), said(&format!("a{n}"), interrupted, None));
                }
                Step::Request => open.push(format!("c{n}")),
                Step::Start(at) => if let Some(id) = open.get(at).cloned() {
                    told.calls(turn, &id, "{}");
                },
                Step::Output(at) => if at < open.len() {
                    let id = open.remove(at);
                    expected.insert(format!("model ? {id}"));
                    expected.insert(format!("tool ! {id}"));
                    told.output(turn, &id, Outcome::Success);
                },
                Step::Playing(true) => { told.tell(turn, EventKind::PlaybackStarted); }
                Step::Playing(false) => { told.tell(turn, EventKind::PlaybackFinished); }
                Step::State(listening) => {
                    let state = if listening { SessionState::Listening } else { SessionState::Speaking };
                    told.tell(turn, EventKind::State { state });
                }
                Step::Interrupted => { told.tell(turn, EventKind::Interrupted); }
                Step::Finished => { told.finished(turn); }
                Step::Next => turn += 1,
                Step::Wait(ms) => { told.wait(ms); }
            }
        }
        told.end(turn, EndReason::Stopped);
        let mut seen = HashSet::new();
        while let Some(commit) = told.turns.poll() {
            let mut asked = HashSet::new();
            for message in &commit.messages {
                for part in &message.content {
                    let role = if message.role == Role::User { "user" } else if message.role == Role::Tool { "tool" } else { "model" };
                    let words = super::tests::part(part);
                    if let Some(id) = words.strip_prefix("? ") {
                        asked.insert(id.to_owned());
                    }
                    if let Some(id) = words.strip_prefix("! ") {
                        prop_assert!(asked.contains(id), "{} has no request before it", id);
                    }
                    if !is_note(part) {
                        prop_assert!(seen.insert(format!("{role} {words}")), "{} stands twice", words);
                    }
                }
            }
        }
        // Calls that were started and never answered are settled by the end.
        let missing: Vec<_> = expected.difference(&seen).collect();
        prop_assert!(missing.is_empty(), "lost: {:?}", missing);
        prop_assert_eq!(told.turns.deadline(), None);
    }
}
