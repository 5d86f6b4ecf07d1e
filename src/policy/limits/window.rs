//! A window of time in steps. Pure: the time of day is an input.

use std::time::Duration;

use jiff::Timestamp;

use super::Draw;

/// Steps that a window has.
const STEPS: i64 = 60;

/// Where the use of one step counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    length_ms: i64,
    step_ms: i64,
}

/// What was used in one step. Steps of the same use may have several lengths: a limit whose window was
/// changed still counts what was used before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Used {
    /// When the step begins, in milliseconds since the epoch.
    pub(super) start: i64,
    /// How long it is, in milliseconds.
    pub(super) length: i64,
    pub(super) calls: u64,
    pub(super) amount: u64,
}

/// Whether a limit has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Yes,
    /// From then on.
    At(Timestamp),
    Never,
}

impl Window {
    pub(super) fn of(length: Duration) -> Self {
        let length_ms = i64::try_from(length.as_millis()).unwrap_or(i64::MAX / 4).max(1);
        let length_ms = length_ms.min(i64::MAX / 4);
        Self { length_ms, step_ms: div_ceil(length_ms, STEPS) }
    }

    /// The window that has steps of this length, in milliseconds, or a little longer.
    pub(super) fn of_step(step_ms: i64) -> Self {
        let step_ms = step_ms.clamp(1, i64::MAX / 4 / STEPS);
        Self { length_ms: step_ms * STEPS, step_ms }
    }

    /// Of a limit that two hosts give different windows, the longer one.
    pub(super) fn longer(self, other: Self) -> Self {
        if self.length_ms < other.length_ms { other } else { self }
    }

    /// When the step of this time begins, and how long it is: in milliseconds.
    pub(super) fn step_of(self, now: Timestamp) -> (i64, i64) {
        let begun = now.as_millisecond().div_euclid(self.step_ms);
        (begun.saturating_mul(self.step_ms), self.step_ms)
    }

    /// Steps that end at this time or before do not count. Those that lie ahead do: the clock was set
    /// back.
    pub(super) fn begins(self, now: Timestamp) -> i64 {
        now.as_millisecond().saturating_sub(self.length_ms)
    }

    /// Steps that end before this time can be forgotten. Kept longer than they count, since a clock
    /// that ran ahead may be set back; and one that jumps (`newest` is when the key was used last) is not
    /// believed at once.
    pub(super) fn forgettable(self, now: Timestamp, newest: Option<i64>) -> i64 {
        let now = now.as_millisecond();
        let now = newest.map_or(now, |newest| newest.min(now));
        now.saturating_sub(self.length_ms.saturating_mul(3))
    }

    /// When a step does not count any more.
    fn leaves(self, step: &Used) -> Timestamp {
        let end = step.start.saturating_add(step.length).saturating_add(self.length_ms);
        Timestamp::from_millisecond(end).unwrap_or(Timestamp::MAX)
    }

    /// Whether `draw` fits beside what was `used` in the steps that count, in the order in which they
    /// leave.
    pub(super) fn room(self, used: &[Used], draw: &Draw) -> Room {
        let fits = |calls: u64, amount: u64| {
            draw.max_calls.is_none_or(|max| calls < max)
                && draw
                    .max_amount
                    .is_none_or(|max| amount.checked_add(draw.amount).is_some_and(|sum| sum <= max))
        };
        if !fits(0, 0) {
            return Room::Never;
        }
        let (mut calls, mut amount) = total(used);
        if fits(calls, amount) {
            return Room::Yes;
        }
        for step in used {
            (calls, amount) =
                (calls.saturating_sub(step.calls), amount.saturating_sub(step.amount));
            if fits(calls, amount) {
                return Room::At(self.leaves(step));
            }
        }
        Room::Never
    }
}

/// Of numbers above zero.
fn div_ceil(number: i64, by: i64) -> i64 {
    (number - 1) / by + 1
}

pub(super) fn total(used: &[Used]) -> (u64, u64) {
    let sum = |of: fn(&Used) -> u64| used.iter().map(of).fold(0, u64::saturating_add);
    (sum(|used| used.calls), sum(|used| used.amount))
}
