//! Futures of others, which should not block their thread and sometimes do.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::runtime::{Handle, RuntimeFlavor};

/// Polls a future so that its blocking holds up no other task, where the runtime has the threads
/// for it: tasks that wait behind it on the same thread, such as one that keeps audio flowing, are
/// taken over by another.
pub(super) struct Apart<F> {
    future: F,
    threads: bool,
}

impl<F: Future + Unpin> Apart<F> {
    pub(super) fn new(future: F) -> Self {
        let flavor = Handle::try_current().map(|runtime| runtime.runtime_flavor());
        Self { future, threads: matches!(flavor, Ok(RuntimeFlavor::MultiThread)) }
    }
}

impl<F: Future + Unpin> Future for Apart<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let threads = self.threads;
        let future = Pin::new(&mut self.future);
        if threads { tokio::task::block_in_place(|| future.poll(cx)) } else { future.poll(cx) }
    }
}
