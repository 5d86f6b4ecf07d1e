//! One conversation by voice and in writing, without a network: a question is spoken and answered by
//! voice; in writing the conversation goes on from there, twice, so that it forks; and by voice it
//! goes on from what was written.
//!
//! `cargo run --example resume_by_text --features offline,sqlite,tools`, and then, for the tree,
//! `antiphon snapshots history --store resume_by_text.db`. Another file may be named.

use std::{env, error::Error, path::PathBuf, sync::Arc, time::Duration};

use antiphon::{
    agent::{
        Agent, AgentInit, FuncTool, InvocationContext, Prompt, PromptAgent, SqliteSessionStore,
        ToolExecutor, ToolRegistry,
    },
    audio::WavAudio,
    live::{LiveConfig, LiveProvider},
    providers::cascade::offline::{self, OfflineOptions, matcher::PhraseMatcher},
    session::{AgentSession, EventKind, IdleConfig},
    tools::{clock, convert_units},
    types::ToolSpeech,
};
use serde_json::json;
use tokio::time::interval;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = env::args_os().nth(1).map_or_else(|| "resume_by_text.db".into(), PathBuf::from);
    let agent = clerk(SqliteSessionStore::open(&store).await?)?;
    let provider: Arc<dyn LiveProvider> =
        Arc::new(offline::provider(OfflineOptions::default()).await?);
    let cx = InvocationContext::new();

    println!("by voice");
    let builder = AgentSession::builder(provider.clone()).agent(&agent);
    let spoken = talk(builder.build()?, Said::Aloud("examples/audio/time.wav")).await?;

    for text in ["open the garden door", "convert ten miles to kilometers"] {
        println!("in writing, from {spoken}");
        let output = agent.run_text(&cx, text, AgentInit::snapshot(spoken.clone())).await?;
        let answer = output.message.map(|message| message.joined_text()).unwrap_or_default();
        println!("  you: {text}\n   it: {answer}");
    }

    let latest = agent.get_latest_snapshot(&cx, session_of(&agent, &spoken).await?).await?;
    println!("by voice, from {}", latest.snapshot_id);
    let builder =
        AgentSession::builder(provider).agent(&agent).resume_snapshot(latest.snapshot_id.clone());
    talk(builder.build()?, Said::InWords("say that again")).await?;
    println!("antiphon snapshots history --store {}", store.display());
    Ok(())
}

/// An agent over a prompt, which can write as well as speak: the offline model understands the
/// phrases of its tools.
fn clerk(store: SqliteSessionStore) -> Result<Agent, Box<dyn Error>> {
    let schema = json!({
        "type": "object",
        "properties": {"which": {"enum": ["garden", "cellar"]}},
        "required": ["which"],
    });
    let door =
        FuncTool::new("open_door", "Opens a door.", schema, |_, args| async move { Ok(args) })
            .speech(
                ToolSpeech::phrases(["open the {which} door"]).answer("The {which} door is open."),
            );
    let registry = ToolRegistry::new();
    registry.register(door)?;
    registry.register(clock())?;
    registry.register(convert_units())?;
    let agent = PromptAgent::inline(Prompt::builder("clerk").build()?)
        .model(Arc::new(PhraseMatcher::new()))
        .tools(ToolExecutor::new(Arc::new(registry), None))
        .agent("clerk")?
        .store(store)
        .build();
    Ok(agent)
}

/// How a question is put to a voice session.
enum Said {
    /// A file is spoken.
    Aloud(&'static str),
    InWords(&'static str),
}

/// Has one question answered by voice. The snapshot of the turn.
async fn talk(session: AgentSession, question: Said) -> Result<Arc<str>, Box<dyn Error>> {
    let mut events = session.events();
    session.start(LiveConfig::new(), IdleConfig::OFF).await?;
    match question {
        Said::Aloud(path) => {
            let speech = WavAudio::open(path)?;
            let session = session.clone();
            tokio::spawn(async move { speak(&session, &speech).await });
        }
        Said::InWords(text) => session.send_text(text)?,
    }
    let mut committed = None;
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::UserMessage { text } => println!("  you: {text}"),
            EventKind::AgentMessage { text, .. } => println!("   it: {text}"),
            EventKind::TurnCommitted { snapshot_id, .. } => {
                committed = snapshot_id;
                session.stop();
            }
            _ => {}
        }
    }
    committed.ok_or_else(|| "the turn was not kept".into())
}

/// Sends a file as a microphone would, and then silence.
async fn speak(session: &AgentSession, speech: &WavAudio) {
    let (per_frame, mut at) = (speech.sample_rate_hz as usize / 50, 0);
    let mut heard = WavAudio { sample_rate_hz: speech.sample_rate_hz, samples: vec![0; per_frame] };
    let mut frames = interval(Duration::from_millis(20));
    loop {
        frames.tick().await;
        let said = speech.samples.get(at..).unwrap_or_default();
        heard.samples.fill(0);
        heard.samples.iter_mut().zip(said).for_each(|(sample, said)| *sample = *said);
        at += per_frame;
        // An error says that the session is over.
        if session.send_audio(heard.frame()).is_err() {
            return;
        }
    }
}

async fn session_of(agent: &Agent, snapshot: &Arc<str>) -> Result<Arc<str>, Box<dyn Error>> {
    let row = agent.get_snapshot(&InvocationContext::new(), snapshot.clone()).await?;
    row.session_id.ok_or_else(|| "a snapshot without a session".into())
}
