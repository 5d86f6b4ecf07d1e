//! The WebSocket driver against a server in the test's hands.

use std::{sync::Arc, time::Instant};

use antiphon_live::{
    Capabilities, ConnectRequest, Connector, Frame, Handshake, LiveCommand, LiveConfig,
    LiveConnection, LiveError, LiveEvent, Outbox, Resumption, Secrets, Transport, WireProtocol,
    websocket::{self, WebSocketOptions},
};
use antiphon_types::AudioFormat;
use async_trait::async_trait;
use futures_util::{SinkExt, StreamExt};
use secrecy::SecretString;
use tokio::{io::DuplexStream, sync::mpsc};
use tokio_tungstenite::{WebSocketStream, accept_async, tungstenite::Message};

/// Says `hello`, is ready at `ready`, and tells every other text as an ignored event.
struct Plain;

impl WireProtocol for Plain {
    fn provider(&self) -> &str {
        "plain"
    }

    fn handshake(
        &self,
        config: &LiveConfig,
        secrets: &Secrets,
        _: Option<&Resumption>,
    ) -> Result<Handshake, LiveError> {
        Ok(Handshake {
            url: config.endpoint.clone().unwrap_or_else(|| "ws://localhost/v1?model=m".into()),
            headers: secrets.bearer.iter().map(|key| ("Authorization", key.clone())).collect(),
            subprotocols: Vec::new(),
        })
    }

    fn opened(&mut self, _: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        out.frames.push_back(Frame::Text("hello".into()));
        Ok(())
    }

    fn command(
        &mut self,
        command: LiveCommand,
        _: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if let LiveCommand::Text { text, .. } = command {
            out.frames.push_back(Frame::Text(text.into()));
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame, _: Instant, out: &mut Outbox) -> Result<(), LiveError> {
        let event = match frame {
            Frame::Text(text) if text.as_str() == "ready" => {
                LiveEvent::Ready { capabilities: capabilities() }
            }
            Frame::Text(text) => LiveEvent::Ignored { kind: text.as_str().into() },
            _ => return Ok(()),
        };
        out.events.push_back(event);
        Ok(())
    }
}

fn capabilities() -> Arc<Capabilities> {
    let format = AudioFormat::pcm16(24_000);
    let mut capabilities = Capabilities::audio_only(format, format);
    capabilities.text_input = true;
    Arc::new(capabilities)
}

struct Pipe(mpsc::UnboundedSender<DuplexStream>);

#[async_trait]
impl Connector for Pipe {
    async fn connect(&self, _: &str) -> std::io::Result<Box<dyn Transport>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        self.0.send(far).map_err(std::io::Error::other)?;
        Ok(Box::new(near))
    }
}

fn pipe() -> (Pipe, mpsc::UnboundedReceiver<DuplexStream>) {
    let (dials, far_ends) = mpsc::unbounded_channel();
    (Pipe(dials), far_ends)
}

async fn connect(connector: &dyn Connector) -> Result<Box<dyn LiveConnection>, LiveError> {
    let request = ConnectRequest::new(Arc::new(LiveConfig::new()));
    let secrets = Secrets { bearer: Some(SecretString::from("Bearer key")) };
    websocket::connect(Plain, &request, secrets, connector, &WebSocketOptions::default()).await
}

async fn open() -> (Box<dyn LiveConnection>, WebSocketStream<DuplexStream>) {
    let (connector, mut far_ends) = pipe();
    let server = async {
        let mut socket = accept_async(far_ends.recv().await.unwrap()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
        socket.send(Message::text("early")).await.unwrap();
        socket.send(Message::text("ready")).await.unwrap();
        socket
    };
    let (connection, socket) = tokio::join!(connect(&connector), server);
    (connection.unwrap(), socket)
}

#[tokio::test(start_paused = true)]
async fn a_connection_is_ready_talks_and_closes_in_order() {
    let (mut connection, mut socket) = open().await;
    let first = connection.next().await.unwrap().unwrap();
    assert!(matches!(first, LiveEvent::Ready { .. }), "{first:?}");
    let second = connection.next().await.unwrap().unwrap();
    assert!(matches!(&second, LiveEvent::Ignored { kind } if &**kind == "early"), "{second:?}");
    let text = |text: &str| LiveCommand::Text { text: text.into(), reply: true };
    connection.send(text("hi")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hi"));
    let answer = async {
        let close = socket.next().await.unwrap().unwrap();
        assert!(matches!(close, Message::Close(Some(frame)) if u16::from(frame.code) == 1000));
        assert!(socket.next().await.is_none());
    };
    let (closed, ()) = tokio::join!(connection.close(), answer);
    closed.unwrap();
    assert!(connection.next().await.is_none());
}
