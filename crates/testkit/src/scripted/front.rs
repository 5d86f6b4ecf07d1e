//! What stands before a scripted server: pipes in memory, ports, and who is let in.

use std::{future::Future, io, sync::Arc};

use antiphon_live::{
    Transport,
    acceptor::{Accepted, Answer, Listener, Request, TlsIdentity},
};
use serde_json::Value;

use super::connection::{Book, Serving, Side, acceptor};

/// A server behind its front.
pub(crate) trait Service: Send + Sync + 'static {
    /// Where it is at its address.
    const PATH: &'static str;

    /// What was said.
    fn book(&self) -> &Book;

    /// Whether a request is let in.
    fn answer(&self, request: &Request) -> Answer;

    /// One connection, from its first frame to its last.
    fn converse(self: Arc<Self>, accepted: Accepted) -> impl Future<Output = ()> + Send;

    /// Whether a client's frame is nothing but audio.
    fn is_audio(frame: &Value) -> bool;
}

/// Connects over a pipe in memory.
pub(crate) fn pipe<S: Service>(service: Arc<S>) -> Box<dyn Transport> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    tokio::spawn(async move {
        let gate = |request: &Request| service.answer(request);
        match acceptor().accept(Box::new(far), &gate).await {
            Ok(Some(accepted)) => service.clone().converse(accepted).await,
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "not upgraded"),
        }
    });
    Box::new(near)
}

/// Serves the connections of a port until the future is dropped.
pub(crate) async fn serve<S: Service>(service: Arc<S>, listener: Listener) -> io::Result<()> {
    let gate = service.clone();
    let gate = move |request: &Request| gate.answer(request);
    listener.serve(gate, move |accepted| service.clone().converse(accepted)).await
}

/// Serves a port of the loopback address; 0 takes a free one.
pub(crate) async fn listen<S: Service>(
    service: Arc<S>,
    port: u16,
    identity: Option<TlsIdentity>,
) -> io::Result<Serving> {
    let listener = Listener::bind(("127.0.0.1", port), acceptor()).await?;
    Serving::start(listener, identity, S::PATH, move |listener| serve(service, listener))
}

/// What clients said so far, audio left out.
pub(crate) fn of_clients<S: Service>(service: &S) -> Vec<Value> {
    let records = service.book().records().into_iter();
    let of_clients = records.filter(|record| record.from == Side::Client);
    of_clients.map(|record| record.frame).filter(|frame| !S::is_audio(frame)).collect()
}
