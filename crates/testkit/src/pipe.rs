//! Byte streams in memory.

use antiphon_live::{Connector, Transport};
use async_trait::async_trait;
use tokio::{io::DuplexStream, sync::mpsc};

/// A connector whose far ends are in the test's hands: works on paused time, where loopback TCP
/// does not.
pub struct PipeConnector {
    dials: mpsc::Sender<DuplexStream>,
}

impl PipeConnector {
    /// A connector, and the far end of each dial in order.
    pub fn new() -> (Self, mpsc::Receiver<DuplexStream>) {
        let (dials, far_ends) = mpsc::channel(8);
        (Self { dials }, far_ends)
    }
}

#[async_trait]
impl Connector for PipeConnector {
    async fn connect(&self, _: &str) -> std::io::Result<Box<dyn Transport>> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        self.dials.send(far).await.map_err(std::io::Error::other)?;
        Ok(Box::new(near))
    }
}
