//! A value under a lock that tasks can wait on.

use std::{
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// A value, and who waits for it to become something.
#[derive(Debug, Default)]
pub(super) struct Monitor<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Monitor<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Looks at the value.
    pub(super) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the value and wakes who waits.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_waiters();
        result
    }

    /// Waits until `take` takes something out, which wakes the others that wait. May be dropped at
    /// any time; then nothing was taken.
    pub(super) async fn take<R>(&self, mut take: impl FnMut(&mut T) -> Option<R>) -> R {
        let mut changed = pin!(self.changed.notified());
        loop {
            changed.as_mut().enable();
            if let Some(taken) = take(&mut self.lock()) {
                self.changed.notify_waiters();
                return taken;
            }
            changed.as_mut().await;
            changed.set(self.changed.notified());
        }
    }

    /// Waits until the value is as `is` wants it.
    pub(super) async fn until(&self, mut is: impl FnMut(&T) -> bool) {
        let mut changed = pin!(self.changed.notified());
        loop {
            changed.as_mut().enable();
            if is(&self.lock()) {
                return;
            }
            changed.as_mut().await;
            changed.set(self.changed.notified());
        }
    }

    /// Only short code of this module's users runs under the lock, none of which can panic.
    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
