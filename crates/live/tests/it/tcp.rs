//! Driver and acceptor over loopback TCP and TLS. Real sockets, so real time.

use std::sync::Arc;

use antiphon_live::{
    ConnectRequest, Connector, Frame, LiveCommand, LiveConfig, LiveConnection, LiveError,
    LiveEvent, Secrets,
    acceptor::{
        AcceptError, Accepted, Acceptor, AcceptorOptions, Answer, Listener, Request, TlsIdentity,
    },
    websocket::{self, TcpConnector, WebSocketOptions},
};
use futures_util::{SinkExt, StreamExt};
use secrecy::SecretString;
use tokio::task::JoinHandle;

use crate::websocket::Plain;

struct Server {
    port: u16,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Accepts the dialect of [`Plain`] and echoes.
async fn serve(identity: Option<TlsIdentity>, options: AcceptorOptions) -> Server {
    let mut listener = Listener::bind("127.0.0.1:0", Acceptor::new(options)).await.unwrap();
    if let Some(identity) = identity {
        listener = listener.with_tls(identity);
    }
    let port = listener.local_addr().unwrap().port();
    let gate = |request: &Request| match request.path() {
        "/" => Answer::upgrade(),
        _ => Answer::http(404, "not here"),
    };
    let serving = listener.serve(gate, |accepted: Accepted| async move {
        assert!(accepted.peer.is_some());
        let mut socket = accepted.socket;
        socket.send(Frame::Text("ready".into())).await.unwrap();
        while let Some(Ok(frame)) = socket.recv().await {
            if matches!(frame, Frame::Text(_)) && socket.send(frame).await.is_err() {
                break;
            }
        }
    });
    let task = tokio::spawn(async { serving.await.unwrap() });
    Server { port, task }
}

async fn connect(
    url: &str,
    connector: &dyn Connector,
) -> Result<Box<dyn LiveConnection>, LiveError> {
    let mut config = LiveConfig::new();
    config.endpoint = Some(url.into());
    let request = ConnectRequest::new(Arc::new(config));
    let secrets = Secrets { bearer: Some(SecretString::from("Bearer key")) };
    let options = WebSocketOptions::default();
    websocket::connect(Plain::default(), &request, secrets, connector, &options).await
}

async fn talks(mut connection: Box<dyn LiveConnection>) {
    assert!(matches!(connection.next().await, Some(Ok(LiveEvent::Ready { .. }))));
    let hello = connection.next().await;
    assert!(matches!(&hello, Some(Ok(LiveEvent::Ignored { kind })) if &**kind == "hello"));
    connection.send(LiveCommand::Text { text: "hi".into(), reply: false }).await.unwrap();
    let echo = connection.next().await;
    assert!(matches!(&echo, Some(Ok(LiveEvent::Ignored { kind })) if &**kind == "hi"), "{echo:?}");
    connection.close().await.unwrap();
}

fn identity() -> (TlsIdentity, String) {
    let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    let certificate = made.cert.pem();
    let key = made.signing_key.serialize_pem();
    (TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap(), certificate)
}

#[tokio::test]
async fn it_works_over_tcp_by_name_and_by_address() {
    let server = serve(None, AcceptorOptions::default()).await;
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("ws://{host}:{}/", server.port);
        talks(connect(&url, &TcpConnector::new()).await.unwrap()).await;
    }
    let url = format!("ws://127.0.0.1:{}/elsewhere", server.port);
    let error = connect(&url, &TcpConnector::new()).await.err().unwrap();
    assert!(matches!(&error, LiveError::InvalidConfig(why) if why.contains("404")), "{error}");
}

#[tokio::test]
async fn it_works_over_tls_with_a_certificate_that_is_trusted() {
    let (identity, certificate) = identity();
    let server = serve(Some(identity), AcceptorOptions::default()).await;
    let trusting = TcpConnector::new().with_root_certificate(certificate.as_bytes()).unwrap();
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("wss://{host}:{}/", server.port);
        talks(connect(&url, &trusting).await.unwrap()).await;
        let error = connect(&url, &TcpConnector::new()).await.err().unwrap();
        assert!(matches!(&error, LiveError::Failed { .. }), "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(!error.is_recoverable());
    }
}

#[tokio::test]
async fn tls_where_the_other_speaks_plainly_is_an_error() {
    let (identity, _) = identity();
    let secure = serve(Some(identity), AcceptorOptions::default()).await;
    let plain = serve(None, AcceptorOptions::default()).await;
    let url = format!("ws://127.0.0.1:{}/", secure.port);
    let error = connect(&url, &TcpConnector::new()).await.err().unwrap();
    assert!(matches!(error, LiveError::Closed { .. } | LiveError::Protocol(_)), "{error}");
    let url = format!("wss://127.0.0.1:{}/", plain.port);
    let error = connect(&url, &TcpConnector::new()).await.err().unwrap();
    assert!(matches!(error, LiveError::Failed { .. }), "{error}");
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_may_be_tried_again() {
    let port = serve(None, AcceptorOptions::default()).await.port;
    // The server is gone: its port refuses.
    let error = loop {
        match connect(&format!("ws://127.0.0.1:{port}/"), &TcpConnector::new()).await {
            Err(error) => break error,
            Ok(_) => tokio::task::yield_now().await,
        }
    };
    assert!(error.is_recoverable(), "{error}");
}

#[tokio::test]
async fn connections_over_the_limit_are_turned_away() {
    let mut options = AcceptorOptions::default();
    options.max_connections = 1;
    let server = serve(None, options).await;
    let url = format!("ws://127.0.0.1:{}/", server.port);
    let first = connect(&url, &TcpConnector::new()).await.unwrap();
    let error = connect(&url, &TcpConnector::new()).await.err().unwrap();
    assert!(matches!(&error, LiveError::Transport(why) if why.contains("503")), "{error}");
    talks(first).await;
}

#[tokio::test]
async fn dropping_a_listener_ends_its_connections() {
    let server = serve(None, AcceptorOptions::default()).await;
    let url = format!("ws://127.0.0.1:{}/", server.port);
    let mut connection = connect(&url, &TcpConnector::new()).await.unwrap();
    drop(server);
    let error = loop {
        match connection.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LiveError::Closed { code: 1006, .. }), "{error}");
}

#[test]
fn a_bad_certificate_or_key_is_named() {
    let (_, certificate) = identity();
    let made = rcgen::generate_simple_self_signed(vec!["other".into()]).unwrap();
    let other = made.signing_key.serialize_pem();
    for (certificate, key) in
        [("", "x"), ("x", &*other), (&*certificate, ""), (&*certificate, &*other)]
    {
        let error = TlsIdentity::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap_err();
        assert!(matches!(error, AcceptError::Identity(_)), "{error}");
    }
}
