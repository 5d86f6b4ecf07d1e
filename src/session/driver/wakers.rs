//! Who woke the session's task: a wake-up asks only those that have something to say.
//!
//! Fifty times a second the user's audio wakes a session, and then everything else has nothing to
//! say. To ask all the same costs more than the audio does, since what is asked lies in as many
//! corners of the memory.

use std::{
    ops::{BitOr, BitOrAssign},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Wake, Waker},
};

use futures_util::task::AtomicWaker;

/// A set of what can wake a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sources(u8);

impl Sources {
    pub(super) const NONE: Self = Self(0);
    /// The host's commands.
    pub(super) const INBOX: Self = Self(1);
    /// The connection, or the making or closing of one.
    pub(super) const WIRE: Self = Self(1 << 1);
    /// The sink.
    pub(super) const SINK: Self = Self(1 << 2);
    /// The tasks of tool calls.
    pub(super) const TASKS: Self = Self(1 << 3);
    /// What the hooks answer.
    pub(super) const HOOKS: Self = Self(1 << 4);
    /// Deadlines.
    pub(super) const TIMER: Self = Self(1 << 5);
    pub(super) const ALL: Self = Self((1 << COUNT) - 1);

    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) fn remove(&mut self, other: Self) {
        self.0 &= !other.0;
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

const COUNT: usize = 6;

impl BitOr for Sources {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Sources {
    fn bitor_assign(&mut self, other: Self) {
        *self = *self | other;
    }
}

/// One waker for each source. They wake the task that last took what woke it.
pub(super) struct Wakers {
    woken: Arc<Woken>,
    wakers: [Waker; COUNT],
}

#[derive(Default)]
struct Woken {
    sources: AtomicU8,
    task: AtomicWaker,
}

struct SourceWaker {
    source: Sources,
    woken: Arc<Woken>,
}

impl Wakers {
    pub(super) fn new() -> Self {
        let woken = Arc::new(Woken::default());
        let wakers = std::array::from_fn(|index| {
            let source = Sources(1 << index);
            Waker::from(Arc::new(SourceWaker { source, woken: woken.clone() }))
        });
        Self { woken, wakers }
    }

    /// Takes what has woken the task since this was last called, and has it woken from here on.
    pub(super) fn take(&self, cx: &Context<'_>) -> Sources {
        // Registered first: who comes between the two wakes the task again.
        self.woken.task.register(cx.waker());
        Sources(self.woken.sources.swap(0, Ordering::AcqRel))
    }

    /// With this a source is polled.
    pub(super) fn context(&self, source: Sources) -> Context<'_> {
        Context::from_waker(&self.wakers[source.0.trailing_zeros() as usize])
    }
}

impl Wake for SourceWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before = self.woken.sources.fetch_or(self.source.0, Ordering::AcqRel);
        // Who was first has woken the task, which has not looked since.
        if before == 0 {
            self.woken.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Wake for Counting {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_task_is_woken_once_and_learns_of_all_that_woke_it() {
        let task = Arc::new(Counting::default());
        let waker = Waker::from(task.clone());
        let cx = Context::from_waker(&waker);
        let wakers = Wakers::new();
        assert_eq!(wakers.take(&cx), Sources::NONE);
        for source in [Sources::TIMER, Sources::WIRE, Sources::WIRE] {
            wakers.context(source).waker().wake_by_ref();
        }
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
        assert_eq!(wakers.take(&cx), Sources::WIRE | Sources::TIMER);
        assert_eq!(wakers.take(&cx), Sources::NONE);
        wakers.context(Sources::INBOX).waker().wake_by_ref();
        assert_eq!(task.0.load(Ordering::Relaxed), 2);
        assert!(wakers.take(&cx).has(Sources::INBOX));
    }
}
