//! Knowing when a caller is inside one of the session's own hooks or tools, where waiting for the
//! end would wait for itself.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::{Handle, RuntimeFlavor};

tokio::task_local! {
    static INSIDE: usize;
}

/// Runs `future` as inside the session that `mark` names. A future that blocks its thread stalls
/// nobody else on a multi-threaded runtime.
pub(crate) async fn run<F: Future>(mark: usize, future: F) -> F::Output {
    INSIDE.scope(mark, AwayFromOthers::new(future)).await
}

/// Runs `call` as inside the session that `mark` names.
pub(crate) fn run_sync<T>(mark: usize, call: impl FnOnce() -> T) -> T {
    INSIDE.sync_scope(mark, call)
}

/// Whether the caller is inside the session that `mark` names.
pub(crate) fn is_inside(mark: usize) -> bool {
    INSIDE.try_with(|inside| *inside == mark).unwrap_or(false)
}

/// Polls a future so that its blocking holds up no other task, where the runtime has the threads
/// for it.
struct AwayFromOthers<F> {
    future: Pin<Box<F>>,
    threads: bool,
}

impl<F> AwayFromOthers<F> {
    fn new(future: F) -> Self {
        let threads = Handle::try_current()
            .is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
        Self { future: Box::pin(future), threads }
    }
}

impl<F: Future> Future for AwayFromOthers<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let threads = self.threads;
        let future = self.future.as_mut();
        if threads { tokio::task::block_in_place(|| future.poll(cx)) } else { future.poll(cx) }
    }
}
