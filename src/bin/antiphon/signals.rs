//! Signals that end the program.

/// Somebody wants the program to end: Ctrl-C, a terminal that is closed, or a request of the system's.
pub async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let sent = async |kind| match signal(kind) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(_) => std::future::pending().await,
        };
        let closed = async {
            match outlives_its_terminal() {
                true => std::future::pending().await,
                false => sent(SignalKind::hangup()).await,
            }
        };
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = sent(SignalKind::terminate()) => {}
            () = closed => {}
        }
    }
    #[cfg(not(unix))]
    let _ = tokio::signal::ctrl_c().await;
}

/// Whether whoever started the program wants it to go on when the terminal is closed, as `nohup` does:
/// then that is not listened for. Only Linux tells.
#[cfg(unix)]
fn outlives_its_terminal() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1 is the lowest bit.
    ignored.is_some_and(|mask| mask & 1 == 1)
}
