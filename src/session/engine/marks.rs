//! Sinks that never say that what they were given was heard: a carrier may lose a mark.

use antiphon_audio::{Played, PositionSource};

use super::{Engine, timers::Timer};

impl Engine {
    /// Where an agent is linked its turn is not to wait for ever for the sink.
    pub(super) fn await_marks(&mut self) {
        let waits = self.linked.is_some()
            && self.replies.active.is_none()
            && !self.replies.playing.is_empty()
            && !self.agent_is_paused()
            && !self.clearing;
        if !waits {
            self.timers.stop(Timer::Marks);
        } else if !self.timers.is_set(Timer::Marks) {
            let expected_end = self.now + self.replies.unheard();
            self.timers.set(Timer::Marks, expected_end + self.limits.turn_settle);
        }
    }

    /// What was to be heard by now is taken as heard.
    pub(super) fn on_marks_late(&mut self) {
        let Some(newest) = self.replies.playing.back() else { return };
        let generation = newest.generation;
        self.emit_error("sink", "the end of what was played was never told");
        let source = PositionSource::Estimate { error: self.limits.turn_settle };
        let at = self.now;
        self.on_played(Played { generation, samples: 0, complete: true, at, source });
    }
}
