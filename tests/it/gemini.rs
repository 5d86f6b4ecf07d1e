//! A session over Gemini Live, through sockets in memory.

use std::sync::Arc;

use antiphon::{
    live::LiveConfig,
    providers::gemini::Gemini,
    session::{AgentSession, EventKind, IdleConfig},
};
use antiphon_testkit::gemini::{Script, Server};

use crate::rig::{MS, agent_messages, now};

#[tokio::test(start_paused = true)]
async fn trial_e03_a_connection_that_goes_away_is_resumed_by_the_newest_handle() {
    let server = Server::new(Script::auto().lifetime(30, 20).ends_at_once());
    let provider = Gemini::new().connector(server.connector());
    let session = AgentSession::builder(Arc::new(provider)).build().unwrap();
    let mut events = session.events();
    let config = LiveConfig::new().api_key("test");
    session.start(config, IdleConfig::default()).await.unwrap();
    session.send_text("one").unwrap();
    tokio::time::sleep(5_000 * MS).await;
    // The server warns after ten seconds, and ends after thirty.
    tokio::time::sleep(30_000 * MS).await;
    session.send_text("two").unwrap();
    tokio::time::sleep(5_000 * MS).await;
    let events = now(&mut events).await;
    let said = agent_messages(&events);
    assert_eq!(said, [("You said: one".into(), false), ("You said: two".into(), false)]);
    let setups: Vec<_> = server
        .client_messages()
        .into_iter()
        .filter(|message| message.get("setup").is_some())
        .collect();
    assert!(setups.len() >= 2, "{setups:?}");
    for setup in &setups[1..] {
        let handle = &setup["setup"]["sessionResumption"]["handle"];
        assert!(handle.is_string(), "{setup}");
    }
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::Error { .. })), "{events:?}");
    assert!(!events.iter().any(|kind| matches!(kind, EventKind::SessionEnded { .. })));
    session.stop();
}
