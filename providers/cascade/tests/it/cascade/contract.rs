//! The contract suite, and random conversations.

use std::collections::HashSet;

use antiphon_agent::{ModelRequest, Role};
use antiphon_live::{
    LiveCommand, LiveConfig, LiveEvent, LiveProvider, ReplyId, TurnCoverage, VoiceActivity,
    conformance::{self, Options, Outcome, ToolProbe},
};
use antiphon_types::{AudioFrame, JsonObject, ToolCallRequest, ToolDefinition, ToolResponse};
use proptest::prelude::*;

use super::parts::*;

fn house() -> House {
    House::new(Brain::new(|request: &ModelRequest| {
        let role = request.messages.last().map(|message| message.role);
        match (role, last(request).as_str()) {
            (Some(Role::Tool), _) => vec![Step::Text("Done.")],
            (_, "work" | "three") => vec![Step::Call("a", "clock")],
            _ => vec![Step::Echo, Step::Wait(30), Step::Text(" And that is all of it.")],
        }
    }))
}

#[tokio::test(start_paused = true)]
async fn c18_the_cascade_keeps_the_contract() {
    for mode in [VoiceActivity::Auto, VoiceActivity::Manual, VoiceActivity::Off] {
        let tool = ToolDefinition::new("clock", "The time.");
        let options = Options::new()
            .config(LiveConfig::new().voice_activity(mode))
            .speech(AudioFrame::from_pcm16(16_000, &[ONE; 16_000]))
            .tool(ToolProbe::new(tool, "work", JsonObject::new()));
        let report = conformance::run(&house().provider(), options).await;
        report.assert_passed();
        assert!(report.cases.iter().all(|case| case.outcome == Outcome::Passed), "{report}");
    }
}

#[test]
fn options_that_mean_nothing_are_listed_and_no_error() {
    let mut config = LiveConfig::new();
    config.options.insert("temperature".into(), 0.5.into());
    config.provider_options.insert("noise_reduction".into(), true.into());
    let capabilities = house().provider().capabilities(&config).unwrap();
    let unsupported: Vec<&str> = capabilities.unsupported_options.iter().map(|id| &**id).collect();
    assert_eq!(unsupported, ["temperature", "noise_reduction"]);
}

#[test]
fn fields_that_mean_nothing_are_listed_and_no_error() {
    let mut config = LiveConfig::new();
    config.fallback_model = Some("another".into());
    config.policies.affective_dialog = true;
    config.policies.thinking.enabled = Some(true);
    config.policies.context_compression.enabled = false;
    config.policies.activity.coverage = TurnCoverage::AllInput;
    let capabilities = house().provider().capabilities(&config).unwrap();
    let unsupported: Vec<&str> = capabilities.unsupported_options.iter().map(|id| &**id).collect();
    assert_eq!(
        unsupported,
        [
            "fallback_model",
            "affective_dialog",
            "thinking",
            "context_compression",
            "activity.coverage"
        ]
    );
    let plain = house().provider().capabilities(&LiveConfig::new()).unwrap();
    assert!(plain.unsupported_options.is_empty());
}

/// What a session does at random.
#[derive(Clone, Debug)]
enum Action {
    Sound(i16, u64),
    Rest(u64),
    Text(bool),
    Work,
    Say,
    Create,
    CancelActive,
    CancelLast,
    Truncate,
    EndAudio,
    ClearAudio,
    Answer,
}

fn action() -> impl Strategy<Value = Action> {
    let level = prop::sample::select(vec![0, 0, ONE, TWO, THREE, NOISE, FAILS, PANICS]);
    prop_oneof![
        6 => (level, 20_u64..900).prop_map(|(level, ms)| Action::Sound(level, ms)),
        2 => (1_u64..600).prop_map(Action::Rest),
        2 => any::<bool>().prop_map(Action::Text),
        1 => Just(Action::Work),
        1 => Just(Action::Say),
        1 => Just(Action::Create),
        1 => Just(Action::CancelActive),
        1 => Just(Action::CancelLast),
        1 => Just(Action::Truncate),
        1 => Just(Action::EndAudio),
        1 => Just(Action::ClearAudio),
        3 => Just(Action::Answer),
    ]
}

/// What must hold of the events of any conversation.
#[derive(Default)]
struct Invariants {
    active: Option<ReplyId>,
    last: Option<ReplyId>,
    ended: HashSet<ReplyId>,
    speaking: bool,
    open_calls: Vec<ToolCallRequest>,
}

impl Invariants {
    fn check(&mut self, event: &LiveEvent) {
        match event {
            LiveEvent::ReplyStarted { reply, .. } => {
                assert_eq!(self.active, None, "two replies at once");
                assert!(!self.ended.contains(reply), "a reply started twice");
                self.active = Some(reply.clone());
                self.last = Some(reply.clone());
            }
            LiveEvent::ReplyDone { reply, .. } => {
                assert_eq!(self.active.take().as_ref(), Some(reply));
                self.ended.insert(reply.clone());
            }
            LiveEvent::Audio { reply, .. } | LiveEvent::OutputTranscript { reply, .. } => {
                assert_eq!(self.active.as_ref(), Some(reply), "{} out of its reply", event.name());
            }
            LiveEvent::ToolCalls { reply, calls } => {
                assert_eq!(self.active, *reply);
                assert!(self.open_calls.is_empty(), "calls while others wait");
                self.open_calls.extend(calls.iter().cloned());
            }
            LiveEvent::SpeechStarted { .. } => {
                assert!(!std::mem::replace(&mut self.speaking, true), "speech started twice");
            }
            LiveEvent::SpeechStopped { .. } => {
                assert!(std::mem::replace(&mut self.speaking, false), "speech stopped twice");
            }
            _ => {}
        }
    }

    fn take(&mut self, talk: &mut Talk) {
        while let Some(event) = talk.take_now() {
            self.check(&event);
        }
    }
}

async fn converse(mode: VoiceActivity, actions: Vec<Action>) {
    let house = house();
    let mut talk = house.talk(LiveConfig::new().voice_activity(mode)).await;
    let mut invariants = Invariants::default();
    for action in actions {
        invariants.take(&mut talk);
        match action {
            Action::Sound(level, ms) => talk.sound(level, ms).await,
            Action::Rest(ms) => talk.rest(ms).await,
            Action::Text(reply) => {
                talk.send(LiveCommand::Text { text: "a text".into(), reply }).await;
            }
            Action::Work => talk.text("work").await,
            Action::Say => {
                talk.send(LiveCommand::Say { request: 1, text: "So. Be it.".into() }).await;
            }
            Action::Create => talk.send(LiveCommand::CreateReply { request: 2 }).await,
            Action::CancelActive => talk.send(LiveCommand::CancelReply { reply: None }).await,
            Action::CancelLast => {
                talk.send(LiveCommand::CancelReply { reply: invariants.last.clone() }).await;
            }
            Action::Truncate => {
                let Some(reply) = &invariants.last else { continue };
                let truncate = LiveCommand::Truncate {
                    item: format!("{reply}_item").into(),
                    content_index: 0,
                    audio_end_ms: 50,
                    heard_text: None,
                };
                talk.send(truncate).await;
            }
            Action::EndAudio => talk.send(LiveCommand::EndAudio).await,
            Action::ClearAudio => talk.send(LiveCommand::ClearAudio).await,
            Action::Answer => answer_calls(&mut talk, &mut invariants).await,
        }
    }
    // However it went, it comes to rest, and then a question is answered.
    for _ in 0..100 {
        talk.rest(35_000).await;
        invariants.take(&mut talk);
        if invariants.active.is_none() && invariants.open_calls.is_empty() {
            break;
        }
        answer_calls(&mut talk, &mut invariants).await;
    }
    assert_eq!(invariants.active, None, "a reply never ended");
    talk.text("finally").await;
    talk.rest(35_000).await;
    invariants.take(&mut talk);
    assert_eq!(house.brain.latest().last().map(String::as_str), Some("finally"));
}

async fn answer_calls(talk: &mut Talk, invariants: &mut Invariants) {
    for call in std::mem::take(&mut invariants.open_calls) {
        let output = ToolResponse::new(call.id, call.name, JsonObject::new());
        talk.send(LiveCommand::ToolResponse(output)).await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn any_conversation_keeps_its_promises(
        mode in prop::sample::select(vec![VoiceActivity::Auto, VoiceActivity::Auto, VoiceActivity::Off]),
        actions in prop::collection::vec(action(), 1..30),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(converse(mode, actions));
    }
}
