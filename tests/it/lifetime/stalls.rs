//! A provider that should be answering and is silent, though its connection stands.

use antiphon::session::*;

use super::*;

async fn stalled(on_stall: OnStall, edit: impl FnOnce(&mut antiphon::live::Capabilities)) -> Rig {
    let mut limits = SessionLimits::default();
    limits.on_stall = on_stall;
    let mut rig = Setup::able(edit).build(|builder| builder.limits(limits)).start().await;
    rig.user_says("u1", "Hello?");
    rig.now().await;
    rig
}

fn is_stall(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Stalled { .. })
}

fn reactions(events: &[EventKind]) -> Vec<Option<OnStall>> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::Stalled { reaction, .. } => Some(*reaction),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_silent_provider_is_asked_again_once() {
    let mut rig = stalled(OnStall::Nudge, |_| {}).await;
    let events = rig.until(is_stall).await;
    assert_eq!(reactions(&events), [Some(OnStall::Nudge)]);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
    let events = rig.until(is_stall).await;
    assert_eq!(reactions(&events), [None]);
    assert_eq!(names(&rig.commands().await), [] as [&str; 0]);
    rig.reply_to("r1", 1).words("r1", "Yes?").audio("r1", 10).done("r1");
    rig.settle().await;
    rig.speaker.play_all();
    rig.until(is_turn_finished).await;
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_asked_is_told_in_words() {
    let mut rig = stalled(OnStall::Nudge, |can| can.create_reply = false).await;
    rig.until(is_stall).await;
    assert_eq!(names(&rig.commands().await), ["text"]);
}

#[tokio::test(start_paused = true)]
async fn its_connection_is_replaced_once_and_the_next_one_answers() {
    let mut rig = stalled(OnStall::Resume, |_| {}).await;
    let events = rig.until(is_stall).await;
    assert_eq!(reactions(&events), [Some(OnStall::Resume)]);
    rig.next_connection().await;
    assert_eq!(rig.provider.requests()[1].history.len(), 1);
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
    let events = rig.until(is_stall).await;
    assert_eq!(reactions(&events), [None]);
    assert_eq!(rig.provider.requests().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_session_ends_where_that_is_wished() {
    let mut rig = stalled(OnStall::Fail, |_| {}).await;
    let (_, reason) = rig.end().await;
    assert!(matches!(&reason, EndReason::Failed { message } if message.contains("silent")));
}

#[tokio::test(start_paused = true)]
async fn one_that_went_silent_after_its_notice_is_left() {
    let mut rig = stalled(OnStall::Tell, |_| {}).await;
    rig.emit(antiphon::live::LiveEvent::GoingAway { time_left: Some(50 * SECOND) });
    let told = tokio::time::Instant::now();
    rig.next_connection().await;
    assert!(told.elapsed() <= 10 * SECOND, "{:?}", told.elapsed());
    assert_eq!(names(&rig.commands().await), ["create_reply"]);
}
