//! A server that hangs up on clients of which it hears nothing.

use std::{io, sync::Arc, time::Duration};

use antiphon::{
    live::{
        Connector, Frame, LiveConfig, Transport,
        acceptor::{Acceptor, AcceptorOptions, Answer, Request},
    },
    providers::openai::OpenAi,
    session::*,
};
use async_trait::async_trait;
use serde_json::json;

use crate::rig::{SECOND, now};

/// Lets clients in, tells them of a session, and gives them up after ten seconds of silence.
struct Impatient;

#[async_trait]
impl Connector for Impatient {
    async fn connect(&self, _: &str) -> io::Result<Box<dyn Transport>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let mut options = AcceptorOptions::default();
            options.silence_limit = Duration::from_secs(10);
            // It waits for the client, and does not ask.
            options.ping_interval = Duration::from_secs(86_400);
            let gate = |_: &Request| Answer::upgrade();
            let accepted = Acceptor::new(options).accept(Box::new(far), &gate).await;
            let mut socket = accepted.unwrap().unwrap().socket;
            for kind in ["session.created", "session.updated"] {
                let event = json!({"type": kind, "session": {"type": "realtime"}});
                socket.send(Frame::Text(event.to_string().into())).await.unwrap();
                if kind == "session.created" {
                    socket.recv().await.unwrap().unwrap();
                }
            }
            while let Some(Ok(_)) = socket.recv().await {}
        });
        Ok(Box::new(near))
    }
}

#[tokio::test(start_paused = true)]
async fn trial_c12_a_client_that_only_listens_is_not_hung_up_on() {
    let provider = OpenAi::new().connector(Impatient);
    let session = AgentSession::builder(Arc::new(provider)).build().unwrap();
    let mut events = session.events();
    session.start(LiveConfig::new().api_key("sk-test"), IdleConfig::OFF).await.unwrap();
    tokio::time::sleep(120 * SECOND).await;
    let lost = now(&mut events).await;
    assert!(!lost.iter().any(|kind| matches!(kind, EventKind::Reconnecting { .. })), "{lost:#?}");
    assert_eq!(session.state(), SessionState::Listening);
}
