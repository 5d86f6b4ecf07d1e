//! Random conversations: whatever the session and the server do, the contract holds.

use std::{collections::HashSet, time::Duration};

use antiphon_live::{
    Frame, LiveCommand, LiveConfig, LiveEvent, ReplyId, VoiceActivity, WireProtocol,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::talk::{MIDDLE, NEW, OLD, Talk, part};

#[derive(Clone, Debug)]
enum Step {
    Command(u8, u8),
    Server(Vec<u8>),
    Pass(u16),
    Garbage(String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..11, 0_u8..4).prop_map(|(kind, n)| Step::Command(kind, n)),
        8 => prop::collection::vec(0_u8..20, 1..3).prop_map(Step::Server),
        2 => (0_u16..8_000).prop_map(Step::Pass),
        1 => ".{0,20}".prop_map(Step::Garbage),
    ]
}

fn command(kind: u8, n: u8) -> LiveCommand {
    let reply = Some(ReplyId::from(format!("reply-{n}").as_str()));
    match kind {
        0 => LiveCommand::EndAudio,
        1 => LiveCommand::ActivityStart,
        2 => LiveCommand::ActivityEnd,
        3 => LiveCommand::Text { text: "Hi.".into(), reply: n.is_multiple_of(2) },
        4 => LiveCommand::CreateReply { request: n.into() },
        5 => LiveCommand::Say { request: n.into(), text: "So.".into() },
        6 => LiveCommand::CancelReply { reply },
        7 => LiveCommand::CancelReply { reply: None },
        8 => LiveCommand::UpdateTools([].into()),
        9 => LiveCommand::ToolResponse(antiphon_types::ToolResponse::error(
            format!("c{n}"),
            "clock",
            "none",
        )),
        _ => LiveCommand::AppendAudio(antiphon_types::AudioFrame::from_pcm16(16_000, &[7; 320])),
    }
}

/// A message with all of these in it.
fn server(kinds: &[u8]) -> Value {
    let mut message = json!({});
    for kind in kinds {
        let (path, value) = match kind {
            0..=2 => ("/serverContent/modelTurn", json!({"parts": [part(20)]})),
            3 => ("/serverContent/modelTurn", json!({"parts": [{"text": "so"}, part(10)]})),
            4 | 5 => ("/serverContent/outputTranscription", json!({"text": "words "})),
            6 => ("/serverContent/outputTranscription", json!({"finished": true})),
            7 => ("/serverContent/inputTranscription", json!({"text": "user "})),
            8 => ("/serverContent/inputTranscription", json!({"text": "x", "finished": true})),
            9 => ("/serverContent/interimInputTranscription", json!({"text": "maybe"})),
            10 => ("/serverContent/generationComplete", json!(true)),
            11 => ("/serverContent/interrupted", json!(true)),
            12 | 13 => ("/serverContent/turnComplete", json!(true)),
            14 => ("/toolCall", json!({"functionCalls": [{"id": "c1", "name": "clock"}]})),
            15 => (
                "/toolCall",
                json!({"functionCalls": [{"name": "clock", "args": {}},
                {"id": "c2", "name": "slow"}]}),
            ),
            16 => ("/toolCallCancellation", json!({"ids": ["c1", "c2"]})),
            17 => ("/voiceActivity", json!({"voiceActivityType": "ACTIVITY_START"})),
            18 => ("/voiceActivity", json!({"voiceActivityType": "ACTIVITY_END"})),
            _ => ("/usageMetadata", json!({"promptTokenCount": 3})),
        };
        let mut place = &mut message;
        for key in path.split('/').skip(1) {
            place = &mut place[key];
        }
        *place = value;
    }
    message
}

#[derive(Default)]
struct Promises {
    active: Option<ReplyId>,
    over: HashSet<ReplyId>,
    speaking: bool,
    calls: HashSet<String>,
    told: usize,
}

impl Promises {
    fn check(&mut self, talk: &mut Talk) {
        for event in talk.out.events.drain(..) {
            self.told += 1;
            match event {
                LiveEvent::ReplyStarted { reply, .. } => {
                    assert_eq!(self.active, None, "two at once");
                    assert!(!self.over.contains(&reply), "{reply} begins twice");
                    self.active = Some(reply);
                }
                LiveEvent::ReplyDone { reply, .. } => {
                    assert_eq!(self.active.take(), Some(reply.clone()));
                    self.over.insert(reply);
                }
                LiveEvent::Audio { reply, frame, .. } => {
                    assert_eq!(self.active, Some(reply));
                    assert!(!frame.is_empty() && frame.data.len() % 2 == 0);
                }
                LiveEvent::OutputTranscript { reply, .. } | LiveEvent::OutputText { reply, .. } => {
                    assert_eq!(self.active, Some(reply));
                }
                LiveEvent::ToolCalls { reply, calls } => {
                    assert_eq!(self.active, reply);
                    for call in calls {
                        assert!(self.calls.insert(call.id.to_string()), "{} twice", call.id);
                    }
                }
                LiveEvent::SpeechStarted { .. } => {
                    assert!(!std::mem::replace(&mut self.speaking, true))
                }
                LiveEvent::SpeechStopped { .. } => {
                    assert!(std::mem::replace(&mut self.speaking, false))
                }
                _ => {}
            }
        }
        talk.sent();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn any_conversation_keeps_its_promises(
        mode in prop::sample::select(vec![VoiceActivity::Auto, VoiceActivity::Manual, VoiceActivity::Off]),
        model in prop::sample::select(vec![OLD, MIDDLE, NEW]),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut talk = Talk::ready(&LiveConfig::new().model(model).voice_activity(mode));
        let mut promises = Promises::default();
        for step in steps {
            match step {
                Step::Command(kind, n) => {
                    let command = command(kind, n);
                    if talk.client.capabilities().check(&command).is_ok() {
                        let _ = talk.try_command(command);
                    }
                }
                Step::Server(kinds) => talk.server(server(&kinds)),
                Step::Pass(ms) => talk.pass(Duration::from_millis(ms.into())),
                Step::Garbage(text) => {
                    let _ = talk.try_frame(Frame::Text(text.into()));
                }
            }
            promises.check(&mut talk);
        }
        // However it went: what was asked for fails, and it comes to rest.
        for _ in 0..4 {
            talk.pass(Duration::from_secs(20));
            talk.server(json!({"serverContent": {"turnComplete": true}}));
            promises.check(&mut talk);
        }
        prop_assert_eq!(&promises.active, &None);
        prop_assert_eq!(talk.client.deadline(), None);
        // No event out of nothing.
        let told = promises.told;
        talk.pass(Duration::from_secs(3_600));
        promises.check(&mut talk);
        prop_assert_eq!(promises.told, told);
    }
}
