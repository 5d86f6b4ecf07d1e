//! Playing by the clock: what was heard follows from the time.

mod clock;
mod clocked;
mod timeline;

use std::{
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use antiphon_types::{AudioFormat, AudioFrame};

pub use clock::{PlayoutClock, PlayoutStats, Span};
pub use clocked::ClockedSink;
pub use timeline::TimelineSink;

use crate::{Played, SinkError};

/// Wakes the session's task when a call made news that it is not waiting for the time of.
#[derive(Debug, Default)]
struct NewsWaker(Option<Waker>);

impl NewsWaker {
    pub fn poll(
        &mut self,
        clock: &mut PlayoutClock,
        cx: &mut Context<'_>,
        now: Instant,
    ) -> Poll<Played> {
        match clock.news(now) {
            Some(played) => Poll::Ready(played),
            None => {
                match &mut self.0 {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    pub fn wake_if_news(&mut self, clock: &PlayoutClock) {
        if clock.has_news()
            && let Some(waker) = self.0.take()
        {
            waker.wake();
        }
    }
}

fn check_format(expected: AudioFormat, frame: &AudioFrame) -> Result<(), SinkError> {
    if frame.format == expected {
        return Ok(());
    }
    Err(SinkError::FormatMismatch { expected, got: frame.format })
}

/// How much audio the sinks here take before it is played.
const BOUND: Duration = Duration::from_secs(1);
