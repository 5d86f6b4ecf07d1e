//! A conversation goes on at another provider, over the wire, and back.

use antiphon::{
    agent::{FuncTool, types::JsonObject},
    audio::AudioFormat,
    live::LiveConfig,
    providers::openai::OpenAi,
    session::*,
};
use antiphon_testkit::{
    Speaker,
    openai::{Reply, Rule, Script, Server},
};
use serde_json::json;

use super::*;
use crate::rig::*;

fn clock() -> FuncTool {
    FuncTool::new("clock", "The time.", json!({ "type": "object" }), |_cx, _args| async {
        Ok(JsonObject::from_iter([("time".to_owned(), json!("noon"))]))
    })
}

/// A prior message, as an item on the wire.
fn item(event: &Value) -> String {
    let item = &event["item"];
    let text = match item["type"].as_str().unwrap() {
        "message" => format!("{}: {}", item["role"], item["content"][0]["text"]),
        "function_call" => format!("? {} {}", item["name"], item["arguments"]),
        "function_call_output" => format!("! {}", item["output"]),
        other => panic!("{other}"),
    };
    text.replace(['"', '\\'], "")
}

#[tokio::test(start_paused = true)]
async fn each_prior_message_is_an_item_in_order_before_the_first_reply_is_asked_for() {
    let registry = ToolRegistry::new();
    registry.must_register(clock());
    let agent = speaking(Arc::new(InMemorySessionStore::new()), Arc::new(registry));
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    rig.user_says("u1", "What time is it?").calls_tool("r1", "c1", "clock", "{}");
    rig.settle().await;
    rig.reply("r2");
    for word in ["It ", "is ", "noon ", "sharp."] {
        rig.words("r2", word).audio("r2", 500);
    }
    rig.settle().await;
    rig.speaker.play(1_500 * PER_MS);
    rig.settle().await;
    rig.session.interrupt().unwrap();
    rig.done_as("r2", antiphon::live::ReplyOutcome::Cancelled);
    rig.committed(&agent).await;
    rig.session.shutdown(SECOND).await.unwrap();

    let answer = Rule::on_text("still", Reply::spoken("It still is.", 500));
    let server = Server::new(Script::auto().reply(answer));
    let provider = Arc::new(OpenAi::new().connector(server.connector()));
    let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
    let session =
        AgentSession::builder(provider).sink(sink).agent(&agent).resume("s").build().unwrap();
    let mut events = session.events();
    session.start(LiveConfig::new().api_key("sk-test"), IdleConfig::OFF).await.unwrap();
    session.send_text("And still?").unwrap();
    until(&mut events, |kind| matches!(kind, EventKind::PlaybackStarted)).await;
    tokio::time::sleep(SECOND).await;
    speaker.play_all();
    let told = until(&mut events, is_committed).await;
    assert_eq!(server.failures(), Vec::<String>::new());
    let sent = server.client_events();
    let asked = sent.iter().position(|event| event["type"] == "response.create").unwrap();
    let items: Vec<_> = sent[..asked]
        .iter()
        .filter(|event| event["type"] == "conversation.item.create")
        .map(item)
        .collect();
    let expected = [
        "user: What time is it?",
        "? clock {}",
        "! {time:noon}",
        "assistant: It is noon",
        "user: And still?",
    ];
    assert_eq!(items, expected);
    session.shutdown(SECOND).await.unwrap();
    let row = agent.get_snapshot(&cx(), ids(told.last().unwrap()).0.unwrap()).await.unwrap();
    assert_eq!(lines(&row)[4..], ["user: And still?", "model: It still is."]);
    assert_eq!(voice(&row, 5)["provider"], "openai");

    let rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(rig.provider.requests()[0].history.len(), 5);
}
