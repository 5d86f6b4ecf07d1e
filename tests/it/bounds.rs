//! How long a session lasts, how long the user may be silent, and what it may cost.

use std::time::Duration;

use antiphon::{
    live::{LiveCommand, LiveEvent, ReplyOutcome},
    session::*,
    types::Usage,
};

use crate::rig::*;

fn limited(edit: impl FnOnce(&mut SessionLimits)) -> Setup {
    let mut limits = SessionLimits::default();
    limits.wrap_up = 10 * SECOND;
    edit(&mut limits);
    Setup::new().build(|builder| builder.limits(limits))
}

fn limit_of(reason: &EndReason) -> &str {
    match reason {
        EndReason::Limit { limit } => limit,
        other => panic!("{other:?}"),
    }
}

/// The number of the request by which the agent takes leave.
fn leave(commands: &[LiveCommand]) -> u64 {
    match commands {
        [LiveCommand::Say { request, text }] if text.contains("Goodbye") => *request,
        other => panic!("{other:?}"),
    }
}

fn cost_of(tokens: u64) -> Usage {
    let mut usage = Usage::default();
    usage.output_audio_tokens = tokens;
    usage
}

fn paid(rig: &Rig, reply: &str, tokens: u64) {
    rig.reply(reply).audio(reply, 100).emit(LiveEvent::ReplyDone {
        reply: reply.into(),
        outcome: ReplyOutcome::Completed,
        usage: Some(cost_of(tokens)),
    });
}

#[tokio::test(start_paused = true)]
async fn a_session_takes_leave_before_its_length_is_over() {
    let mut rig = limited(|limits| limits.max_length = Some(60 * SECOND)).start().await;
    tokio::time::sleep(49 * SECOND).await;
    assert!(rig.commands().await.is_empty());
    tokio::time::sleep(2 * SECOND).await;
    let request = leave(&rig.commands().await);
    rig.reply_to("bye", request).audio("bye", 2_000).done("bye");
    rig.settle().await;
    assert_ne!(rig.session.state(), SessionState::Inactive, "it is heard first");
    rig.speaker.play_all();
    let (_, reason) = rig.end().await;
    assert_eq!(limit_of(&reason), "session_length");
}

#[tokio::test(start_paused = true)]
async fn leave_waits_for_what_is_being_said_and_the_end_waits_for_nobody() {
    let mut rig = limited(|limits| limits.max_length = Some(60 * SECOND)).start().await;
    let began = tokio::time::Instant::now();
    tokio::time::sleep(45 * SECOND).await;
    rig.reply("r1").audio("r1", 20_000);
    tokio::time::sleep(8 * SECOND).await;
    assert!(rig.commands().await.is_empty(), "nobody is interrupted for it");
    let (events, reason) = rig.end().await;
    assert_eq!(limit_of(&reason), "session_length");
    assert!(began.elapsed() < 61 * SECOND, "{:?}", began.elapsed());
    let prompts = events.iter().filter(|kind| matches!(kind, EventKind::HostPrompt(_))).count();
    assert!(prompts >= 2, "started, and that it was not sent: {events:#?}");
}

#[tokio::test(start_paused = true)]
async fn silence_ends_a_session_however_much_the_agent_talks_and_words_call_it_off() {
    let mut rig = limited(|limits| limits.max_silence = Some(30 * SECOND)).start().await;
    tokio::time::sleep(21 * SECOND).await;
    leave(&rig.commands().await);
    rig.user_says("u1", "I am here").says("r1", "Good.", 100);
    rig.settle().await;
    rig.speaker.play_all();
    tokio::time::sleep(12 * SECOND).await;
    assert_eq!(rig.session.state(), SessionState::Listening, "it was called off");
    for reply in 0..4 {
        let reply = format!("talk{reply}");
        rig.says(&reply, "And on.", 100);
        tokio::time::sleep(3 * SECOND).await;
        rig.speaker.play_all();
    }
    let (_, reason) = rig.end().await;
    assert_eq!(limit_of(&reason), "silence");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_once_it_cost_as_much_as_it_may() {
    let mut prices = PriceTable::default();
    prices.output_audio = Cost::new(64.0);
    let setup = limited(|limits| {
        limits.prices = Some(prices);
        limits.max_cost = Some(Cost::new(0.10));
    });
    let mut rig = setup.start().await;
    paid(&rig, "r1", 1_000);
    rig.settle().await;
    rig.speaker.play_all();
    rig.settle().await;
    assert_eq!(rig.session.stats().cost, Some(Cost::new(0.064)));
    assert!(rig.commands().await.is_empty());
    paid(&rig, "r2", 1_000);
    rig.settle().await;
    rig.speaker.play_all();
    let request = leave(&rig.commands().await);
    rig.reply_to("bye", request).audio("bye", 500).done("bye");
    rig.settle().await;
    rig.speaker.play_all();
    let (_, reason) = rig.end().await;
    assert_eq!(limit_of(&reason), "cost");
    assert_eq!(rig.session.stats().cost, Some(Cost::new(0.128)));
}

struct Vetoes;

impl Callbacks for Vetoes {
    fn on_host_prompt(&self, _: &HostPrompt) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_leave_that_the_host_vetoes_does_not_put_the_end_off() {
    let setup = limited(|limits| limits.max_length = Some(Duration::from_secs(20)));
    let mut rig = setup.build(|builder| builder.callbacks(Vetoes)).start().await;
    let began = tokio::time::Instant::now();
    let (_, reason) = rig.end().await;
    assert_eq!(limit_of(&reason), "session_length");
    assert!((19..=21).contains(&began.elapsed().as_secs()));
    assert!(rig.commands().await.is_empty());
}
