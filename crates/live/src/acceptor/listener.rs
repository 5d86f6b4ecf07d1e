//! A TCP port whose connections become WebSockets.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream, ToSocketAddrs},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{AcceptError, Accepted, Acceptor, Answer, Gate, Request, TlsIdentity};

/// Connections over the limit that are told so; more are closed at once.
const MAX_TURNED_AWAY: usize = 64;
/// A pause after the system gave no socket, as when it has no file descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// A TCP port.
#[derive(Debug)]
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsIdentity>,
    acceptor: Acceptor,
}

impl Listener {
    /// Binds `address`; port 0 takes a free one.
    pub async fn bind(address: impl ToSocketAddrs, acceptor: Acceptor) -> io::Result<Self> {
        Ok(Self { tcp: TcpListener::bind(address).await?, tls: None, acceptor })
    }

    /// Speaks TLS.
    pub fn with_tls(mut self, identity: TlsIdentity) -> Self {
        self.tls = Some(identity);
        self
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves connections, each on a task of its own, until the future is dropped, which ends them
    /// all. `handle` is given those that became WebSockets.
    pub async fn serve<H, F>(self, gate: impl Gate + 'static, handle: H) -> io::Result<()>
    where
        H: Fn(Accepted) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let max = self.acceptor.options.max_connections;
        let gate: Arc<dyn Gate> = Arc::new(gate);
        let full: Arc<dyn Gate> = Arc::new(|_: &Request| {
            Answer::http(503, "too many connections\n").header("retry-after", "1")
        });
        let mut tasks = JoinSet::new();
        loop {
            let (stream, peer) = tokio::select! {
                accepted = self.tcp.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "no connection accepted");
                        sleep(PAUSE).await;
                        continue;
                    }
                },
                Some(_) = tasks.join_next() => continue,
            };
            if tasks.len() >= max + MAX_TURNED_AWAY {
                tracing::debug!(%peer, "closed: too many connections");
                continue;
            }
            let gate = if tasks.len() < max { gate.clone() } else { full.clone() };
            let (acceptor, tls) = (self.acceptor.clone(), self.tls.clone());
            let handle = handle.clone();
            tasks.spawn(async move {
                match open(&acceptor, tls, stream, &*gate).await {
                    Ok(Some(mut accepted)) => {
                        accepted.peer = Some(peer);
                        handle(accepted).await;
                    }
                    Ok(None) => {}
                    Err(error) => tracing::debug!(%peer, %error, "not upgraded"),
                }
            });
        }
    }
}

async fn open(
    acceptor: &Acceptor,
    tls: Option<TlsIdentity>,
    stream: TcpStream,
    gate: &dyn Gate,
) -> Result<Option<Accepted>, AcceptError> {
    // A socket without it still works.
    let _ = stream.set_nodelay(true);
    let Some(identity) = tls else { return acceptor.accept(Box::new(stream), gate).await };
    let after = acceptor.options.handshake_timeout;
    let handshakes = async {
        let transport = identity.accept(Box::new(stream)).await?;
        acceptor.accept(transport, gate).await
    };
    timeout(after, handshakes).await.unwrap_or(Err(AcceptError::Timeout { after }))
}
