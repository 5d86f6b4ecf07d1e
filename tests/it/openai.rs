//! Whole conversations with the scripted OpenAI server: engine, driver, client, wire and server.

use std::sync::Arc;

use antiphon::{
    agent::{FuncTool, ToolRegistry},
    audio::AudioFormat,
    live::{LiveConfig, VoiceActivity},
    providers::openai::OpenAi,
    session::*,
};
use antiphon_testkit::{
    Speaker, SpeakerControl,
    openai::{Reply, Rule, Script, Server},
    voice_like,
};
use serde_json::{Value, json};

use crate::rig::*;

struct Call {
    server: Server,
    session: AgentSession,
    events: EventStream,
    speaker: SpeakerControl,
}

async fn call(script: Script, config: LiveConfig, registry: ToolRegistry) -> Call {
    let server = Server::new(script);
    let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
    let provider = Arc::new(OpenAi::new().connector(server.connector()));
    let session =
        AgentSession::builder(provider).sink(sink).registry(Arc::new(registry)).build().unwrap();
    let events = session.events();
    session.start(config, IdleConfig::OFF).await.unwrap();
    Call { server, session, events, speaker }
}

fn config() -> LiveConfig {
    LiveConfig::new().api_key("sk-test")
}

impl Call {
    /// The user speaks for so long, then is silent for a while.
    async fn speak(&self, ms: u32, silence_ms: u32) {
        let voice = voice_like(24_000, ms);
        let silence =
            antiphon::audio::AudioFrame::from_pcm16(24_000, &vec![0; silence_ms as usize * PER_MS]);
        for sound in [voice, silence] {
            for at in (0..sound.samples()).step_by(20 * PER_MS) {
                self.session.send_audio(sound.slice(at, at + 20 * PER_MS)).unwrap();
                tokio::time::sleep(20 * MS).await;
            }
        }
    }

    async fn until(&mut self, is: impl Fn(&EventKind) -> bool) -> Vec<EventKind> {
        until(&mut self.events, is).await
    }

    /// What the agent says next, heard to its end.
    async fn answer(&mut self) -> Vec<EventKind> {
        let mut events = self.until(|kind| matches!(kind, EventKind::PlaybackStarted)).await;
        tokio::time::sleep(SECOND).await;
        self.speaker.play_all();
        events.extend(self.until(is_turn_finished).await);
        events
    }

    fn sent(&self, kind: &str) -> Vec<Value> {
        let events = self.server.client_events();
        events.into_iter().filter(|event| event["type"] == kind).collect()
    }
}

fn is_agent_message(kind: &EventKind) -> bool {
    matches!(kind, EventKind::AgentMessage { .. })
}

#[tokio::test(start_paused = true)]
async fn a_spoken_turn_is_heard_and_answered() {
    let script = Script::auto()
        .transcript("What time is it?")
        .reply(Rule::on_text("time", Reply::spoken("It is noon.", 1_000)));
    let mut call = call(script, config(), ToolRegistry::new()).await;
    call.speak(800, 1_500).await;
    call.speaker.play_all();
    let events = call.until(is_turn_finished).await;
    assert_eq!(user_messages(&events), ["What time is it?"]);
    assert_eq!(agent_messages(&events), [("It is noon.".to_owned(), false)]);
    assert_eq!(call.server.failures(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn speech_interrupts_and_the_server_learns_what_was_heard() {
    let script = Script::auto()
        .transcript("Wait.")
        .reply(Rule::on_text(
            "story",
            Reply::spoken("Once upon a time there was a very long story.", 6_000),
        ))
        .reply(Rule::on_text("wait", Reply::spoken("Yes?", 400)));
    let mut call = call(script, config(), ToolRegistry::new()).await;
    call.session.send_text("Tell me a story.").unwrap();
    call.until(|kind| matches!(kind, EventKind::PlaybackStarted)).await;
    tokio::time::sleep(SECOND).await;
    call.speaker.play(1_300 * PER_MS);
    call.speak(800, 1_500).await;
    let events = call.until(is_agent_message).await;
    assert!(events.contains(&EventKind::Interrupted), "{events:#?}");
    let (text, interrupted) = agent_messages(&events).remove(0);
    assert!(interrupted && text.starts_with("Once") && !text.ends_with("story."), "{text}");
    let cuts = call.sent("conversation.item.truncate");
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    assert_eq!(cuts[0]["audio_end_ms"], 1_300);
    call.speaker.play_all();
    let events = call.until(is_turn_finished).await;
    assert_eq!(agent_messages(&events), [("Yes?".to_owned(), false)]);
    assert_eq!(call.server.failures(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn f08_two_tools_of_one_reply_are_followed_by_one_request() {
    let calls = Reply::call("clock", json!({})).and_call("clock", json!({"zone": "UTC"}));
    let script = Script::auto()
        .reply(Rule::on_text("time", calls))
        .reply(Rule::on_tool_output("clock", Reply::spoken("It is noon.", 500)));
    let registry = ToolRegistry::new();
    let clock = FuncTool::new("clock", "The time.", json!({"type": "object"}), |_, _| async {
        Ok(serde_json::Map::from_iter([("time".to_owned(), json!("noon"))]))
    });
    registry.register(clock).unwrap();
    let mut call = call(script, config(), registry).await;
    call.session.send_text("What time is it?").unwrap();
    let events = call.answer().await;
    assert_eq!(outcomes(&events).len(), 2);
    assert_eq!(call.sent("response.create").len(), 2);
    let outputs: Vec<Value> = call.sent("conversation.item.create");
    assert_eq!(outputs.len(), 3);
    assert_eq!(outputs[1]["item"]["output"], r#"{"time":"noon"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_turn_by_hand_is_answered_once() {
    let script = Script::auto().transcript("Hello.");
    let config = config().voice_activity(VoiceActivity::Manual);
    let mut call = call(script, config, ToolRegistry::new()).await;
    call.session.activity_start().unwrap();
    call.speak(400, 0).await;
    call.session.activity_end().unwrap();
    let events = call.answer().await;
    assert_eq!(agent_messages(&events), [("You said: Hello.".to_owned(), false)]);
    assert_eq!(call.sent("response.create").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn quirk_29_a_session_that_expires_goes_on_in_another_with_its_history() {
    let mut call = call(Script::auto(), config(), ToolRegistry::new()).await;
    call.session.send_text("Remember the number seven.").unwrap();
    call.answer().await;
    tokio::time::sleep(3_600 * SECOND).await;
    assert_eq!(call.server.connections(), 2);
    assert_eq!(call.session.state(), SessionState::Listening);
    let history: Vec<Value> = call
        .sent("conversation.item.create")
        .into_iter()
        .skip(1)
        .map(|event| event["item"]["content"][0]["text"].clone())
        .collect();
    assert_eq!(history, ["Remember the number seven.", "You said: Remember the number seven."]);
    call.session.send_text("Which number?").unwrap();
    let events = call.answer().await;
    assert_eq!(agent_messages(&events), [("You said: Which number?".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_only_tapped_leaves_the_session_listening() {
    let config = config().voice_activity(VoiceActivity::Manual);
    let mut call = call(Script::auto().transcript("Hello."), config, ToolRegistry::new()).await;
    call.session.activity_start().unwrap();
    call.speak(40, 0).await;
    call.session.activity_end().unwrap();
    let events = call.until(|kind| matches!(kind, EventKind::Error { .. })).await;
    assert_eq!(states(&events).last(), Some(&SessionState::Processing));
    tokio::time::sleep(MS).await;
    assert_eq!(call.session.state(), SessionState::Listening);
    // The next one counts.
    call.session.activity_start().unwrap();
    call.speak(400, 0).await;
    call.session.activity_end().unwrap();
    let events = call.answer().await;
    assert_eq!(agent_messages(&events), [("You said: Hello.".to_owned(), false)]);
}
