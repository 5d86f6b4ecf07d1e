//! The event stream.

use std::{fmt, future::poll_fn, sync::Arc};

use super::{
    EventKind, SessionEvent,
    feed::{Found, Reader},
};

/// All events of a session from the moment it was asked for. Ends after the session's last event;
/// a session that is started again needs a new one.
pub struct EventStream {
    events: Reader<SessionEvent>,
    last: Option<(u64, u32, u64)>,
    over: bool,
}

impl EventStream {
    pub(crate) fn new(events: Reader<SessionEvent>) -> Self {
        Self { events, last: None, over: false }
    }

    /// The next event; `None` after the last. Who is too slow gets an [`EventKind::Error`] of the
    /// kind `lagged` in place of what was lost. Cancel safe.
    pub async fn next(&mut self) -> Option<SessionEvent> {
        if self.over {
            return None;
        }
        match poll_fn(|cx| self.events.poll_next(cx)).await {
            Found::Next(event) => {
                self.over = matches!(event.kind, EventKind::SessionEnded { .. });
                self.last = Some((event.t_ms, event.epoch, event.turn));
                Some(Arc::unwrap_or_clone(event))
            }
            Found::Lost(lost) => {
                let (t_ms, epoch, turn) = self.last.unwrap_or_default();
                let message = format!("{lost} events were lost: the consumer is too slow");
                let kind = EventKind::Error { kind: "lagged".into(), message };
                Some(SessionEvent { t_ms, epoch, turn, kind })
            }
            Found::End => {
                self.over = true;
                None
            }
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("over", &self.over).finish_non_exhaustive()
    }
}
