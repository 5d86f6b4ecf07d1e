//! What benches of sessions have in common: a server of their own, and the middle of a list.

use std::future::Future;

use antiphon::live::{
    Frame,
    acceptor::{Accepted, Acceptor, Answer, Listener, Request, ServerSocket},
};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Serves a free port until the process ends: each client is greeted, and its session accepted; then
/// `talk` has the connection. Returns the address.
pub async fn serve<T, F>(talk: T) -> Result<String, Error>
where
    T: Fn(ServerSocket) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<(), Error>> + Send,
{
    let listener = Listener::bind("127.0.0.1:0", Acceptor::default()).await?;
    let url = format!("ws://{}/v1/realtime", listener.local_addr()?);
    tokio::spawn(listener.serve(
        |_: &Request| Answer::upgrade(),
        move |accepted: Accepted| {
            let talk = talk.clone();
            async move {
                let mut socket = accepted.socket;
                // A client that is gone ends its connection.
                if greet(&mut socket).await.is_ok() {
                    let _ = talk(socket).await;
                }
            }
        },
    ));
    Ok(url)
}

async fn greet(socket: &mut ServerSocket) -> Result<(), Error> {
    let session = r#""session":{"type":"realtime"}}"#;
    let created = format!(r#"{{"type":"session.created","event_id":"e1",{session}"#);
    socket.send(Frame::Text(created.into())).await?;
    // Nothing comes before it.
    socket.recv().await.ok_or("the client is gone")??;
    let updated = format!(r#"{{"type":"session.updated","event_id":"e2",{session}"#);
    socket.send(Frame::Text(updated.into())).await?;
    Ok(())
}

/// The value below which this share of a sorted list is.
pub fn at<T: Copy + Default>(sorted: &[T], share: f64) -> T {
    let place = (sorted.len().saturating_sub(1) as f64 * share) as usize;
    sorted.get(place).copied().unwrap_or_default()
}
