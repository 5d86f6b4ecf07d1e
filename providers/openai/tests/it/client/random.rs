//! Random conversations: whatever the session and the server do, the contract holds.

use std::{collections::HashSet, time::Duration};

use antiphon_live::{
    Frame, LiveCommand, LiveConfig, LiveEvent, ReplyId, VoiceActivity, WireProtocol,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::talk::Talk;

#[derive(Clone, Debug)]
enum Step {
    Command(u8, u8),
    Server(u8, u8, u8),
    Pass(u16),
    Garbage(String),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..12, 0_u8..4).prop_map(|(kind, n)| Step::Command(kind, n)),
        8 => (0_u8..22, 0_u8..4, 0_u8..4).prop_map(|(kind, a, b)| Step::Server(kind, a, b)),
        2 => (0_u16..8_000).prop_map(Step::Pass),
        1 => ".{0,20}".prop_map(Step::Garbage),
    ]
}

fn command(kind: u8, n: u8) -> LiveCommand {
    let reply = Some(ReplyId::from(format!("r{n}").as_str()));
    match kind {
        0 => LiveCommand::EndAudio,
        1 => LiveCommand::ClearAudio,
        2 => LiveCommand::ActivityStart,
        3 => LiveCommand::ActivityEnd,
        4 => LiveCommand::Text { text: "Hi.".into(), reply: n.is_multiple_of(2) },
        5 => LiveCommand::CreateReply { request: n.into() },
        6 => LiveCommand::Say { request: n.into(), text: "So.".into() },
        7 => LiveCommand::CancelReply { reply },
        8 => LiveCommand::CancelReply { reply: None },
        9 => LiveCommand::Truncate {
            item: format!("i{n}").into(),
            content_index: 0,
            audio_end_ms: u32::from(n) * 15,
            heard_text: None,
        },
        10 => LiveCommand::ToolResponse(antiphon_types::ToolResponse::error(
            format!("c{n}"),
            "clock",
            "none",
        )),
        _ => LiveCommand::AppendAudio(antiphon_types::AudioFrame::from_pcm16(24_000, &[7; 2_400])),
    }
}

fn server(kind: u8, a: u8, b: u8) -> Value {
    let (reply, item) = (format!("r{a}"), format!("i{b}"));
    let delta = |kind: &str| {
        json!({"type": kind, "response_id": reply, "item_id": item, "content_index": b % 2,
            "delta": "AAAA", "text": "whole", "transcript": "whole"})
    };
    let call = json!({"type": "function_call", "id": item, "call_id": format!("c{b}"),
        "name": "clock", "arguments": "{}"});
    let status = ["completed", "cancelled", "failed", "incomplete"][usize::from(b)];
    match kind {
        0 | 1 => json!({"type": "response.created", "response": {"id": reply,
            "metadata": {"request": format!("reply-{b}")}}}),
        2 => json!({"type": "response.created", "response": {"id": reply}}),
        3 | 4 => json!({"type": "response.done", "response": {"id": reply, "output": [call],
            "status": status}}),
        5 => json!({"type": "response.done", "response": {"id": reply, "status": "cancelled",
            "status_details": {"reason": "turn_detected"}}}),
        6 | 7 => delta("response.output_audio.delta"),
        8 => delta("response.output_audio_transcript.delta"),
        9 => delta("response.output_audio_transcript.done"),
        10 => delta("response.output_text.delta"),
        11 => delta("response.output_text.done"),
        12 => delta("response.output_audio.done"),
        13 => json!({"type": "response.output_item.done", "response_id": reply, "item": call}),
        14 => json!({"type": "input_audio_buffer.speech_started", "item_id": item}),
        15 => json!({"type": "input_audio_buffer.speech_stopped", "item_id": item}),
        16 => json!({"type": "input_audio_buffer.committed", "item_id": item}),
        17 => json!({"type": "conversation.item.input_audio_transcription.delta",
            "item_id": item, "delta": "x"}),
        18 => json!({"type": "conversation.item.input_audio_transcription.completed",
            "item_id": item, "transcript": "x"}),
        19 => json!({"type": "error", "error": {
            "code": "conversation_already_has_active_response",
            "event_id": if b < 2 { json!(format!("reply-{a}")) } else { Value::Null }}}),
        20 => json!({"type": "error", "error": {"code": "odd", "event_id": format!("reply-{a}")}}),
        _ => json!({"type": "response.cancelled", "response_id": reply}),
    }
}

#[derive(Default)]
struct Promises {
    active: Option<ReplyId>,
    over: HashSet<ReplyId>,
    speaking: bool,
    calls: HashSet<(Option<ReplyId>, String)>,
    creating: bool,
}

impl Promises {
    fn check(&mut self, talk: &mut Talk) {
        for event in talk.out.events.drain(..) {
            match event {
                LiveEvent::ReplyStarted { reply, .. } => {
                    assert_eq!(self.active, None, "two at once");
                    assert!(!self.over.contains(&reply), "{reply} begins twice");
                    self.active = Some(reply);
                    self.creating = false;
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
                        assert!(self.calls.insert((reply.clone(), call.id.to_string())));
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
        let active = self.active.is_some();
        for frame in talk.sent() {
            if frame["type"] == "response.create" {
                assert!(!active, "a request beside a reply");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn any_conversation_keeps_its_promises(
        mode in prop::sample::select(vec![VoiceActivity::Auto, VoiceActivity::Manual, VoiceActivity::Off]),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut talk = Talk::ready(&LiveConfig::new().voice_activity(mode));
        let mut promises = Promises::default();
        for step in steps {
            match step {
                Step::Command(kind, n) => {
                    let command = command(kind, n);
                    if talk.client.capabilities().check(&command).is_ok() {
                        let _ = talk.try_command(command);
                    }
                }
                Step::Server(kind, a, b) => talk.server(server(kind, a, b)),
                Step::Pass(ms) => talk.pass(Duration::from_millis(ms.into())),
                Step::Garbage(text) => {
                    let _ = talk.try_frame(Frame::Text(text.into()));
                }
            }
            promises.check(&mut talk);
        }
        // However it went: what was stopped ends, what was asked for fails, and it comes to rest.
        for _ in 0..70 {
            talk.pass(Duration::from_secs(20));
            promises.check(&mut talk);
            if let Some(active) = promises.active.clone() {
                talk.done(&active.0, "completed");
                promises.check(&mut talk);
            }
        }
        prop_assert_eq!(promises.active, None);
        prop_assert_eq!(talk.client.deadline(), None);
        talk.command(LiveCommand::CreateReply { request: 99 });
        prop_assert_eq!(talk.sent_kinds(), ["response.create"], "nothing waits for ever");
    }
}
