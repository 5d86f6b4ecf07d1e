//! How long things took in a session, in bounded memory.

use std::time::{Duration, Instant};

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// How long something took, over a session: the median, the 95th percentile and the longest. The
/// percentiles are up to 3 % too long; the longest is exact. As JSON, times are in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeStats {
    /// How often it happened. While that is 0, so are the times.
    pub count: u64,
    /// Half of the times are not longer.
    pub p50: Duration,
    /// 95 of 100 are not longer.
    pub p95: Duration,
    /// The longest.
    pub max: Duration,
}

impl Serialize for TimeStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = |time: Duration| time.as_micros() as f64 / 1e3;
        let mut form = serializer.serialize_struct("TimeStats", 4)?;
        form.serialize_field("count", &self.count)?;
        form.serialize_field("p50_ms", &ms(self.p50))?;
        form.serialize_field("p95_ms", &ms(self.p95))?;
        form.serialize_field("max_ms", &ms(self.max))?;
        form.end()
    }
}

/// Counts times into classes that are 3 % wide; each class that is not empty takes eight bytes, and
/// there are at most 2,000.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    /// Classes with their counts, in order.
    classes: Vec<(u16, u32)>,
    stats: TimeStats,
}

impl Spread {
    /// One more.
    pub(crate) fn add(&mut self, time: Duration) {
        let class = class_of(time);
        match self.classes.binary_search_by_key(&class, |(class, _)| *class) {
            Ok(at) => self.classes[at].1 = self.classes[at].1.saturating_add(1),
            Err(at) => self.classes.insert(at, (class, 1)),
        }
        let count = self.stats.count + 1;
        let max = self.stats.max.max(time);
        let percentile = |share: u64| self.percentile(count, share).min(max);
        self.stats = TimeStats { count, p50: percentile(50), p95: percentile(95), max };
    }

    /// What they amount to; reckoned when the last was added.
    pub(crate) fn stats(&self) -> TimeStats {
        self.stats
    }

    /// The longest time of the class below or in which `share` of 100 are.
    fn percentile(&self, count: u64, share: u64) -> Duration {
        let rank = (count * share).div_ceil(100);
        let mut below = 0;
        for (class, count) in &self.classes {
            below += u64::from(*count);
            if below >= rank {
                return longest_of(*class);
            }
        }
        Duration::ZERO
    }
}

/// Each power of two of microseconds has so many classes.
const CLASSES_PER_OCTAVE: u64 = 32;

/// The class of a time.
fn class_of(time: Duration) -> u16 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    if micros < CLASSES_PER_OCTAVE {
        return micros as u16;
    }
    let octave = u64::from(micros.ilog2() - CLASSES_PER_OCTAVE.ilog2());
    (octave * CLASSES_PER_OCTAVE + (micros >> octave)) as u16
}

/// The longest time in a class.
fn longest_of(class: u16) -> Duration {
    let class = u64::from(class);
    let octave = (class / CLASSES_PER_OCTAVE).saturating_sub(1);
    let place = class - octave * CLASSES_PER_OCTAVE;
    Duration::from_micros(((u128::from(place) + 1) << octave).saturating_sub(1) as u64)
}

/// The times of a session.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// From the end of the user's speech to the first sound of the answer.
    pub(crate) answers: Spread,
    /// From the beginning of the user's speech to the silence of the agent.
    pub(crate) silences: Spread,
    /// From the start of a tool to its output.
    pub(crate) tools: Spread,
    pub(crate) barge_in: BargeInClock,
}

/// From the beginning of the user's speech to the agent's silence.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BargeInClock {
    began: Option<Instant>,
    paused: Option<Instant>,
}

impl BargeInClock {
    /// The user began to speak at `at`.
    pub(crate) fn user_began(&mut self, at: Instant) {
        *self = Self { began: Some(at), paused: None };
    }

    /// The agent's voice stopped, and may go on.
    pub(crate) fn paused(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }

    /// It went on, or somebody else than the user is going to stop it.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// The agent was silenced. How long the user had spoken until then, where it was the user.
    pub(crate) fn silenced(&mut self, now: Instant) -> Option<Duration> {
        let Self { began, paused } = std::mem::take(self);
        Some(paused.unwrap_or(now).saturating_duration_since(began?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn spread(times: impl IntoIterator<Item = Duration>) -> TimeStats {
        let mut spread = Spread::default();
        times.into_iter().for_each(|time| spread.add(time));
        spread.stats()
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list_or_a_little_longer() {
        let stats = spread((1..=1_000).rev().map(|ms| ms * MS));
        assert_eq!((stats.count, stats.max), (1_000, 1_000 * MS));
        let near = |time: Duration, ms: u32| time >= ms * MS && time <= ms * MS + ms * MS / 30;
        assert!(near(stats.p50, 500) && near(stats.p95, 950), "{stats:?}");
        assert_eq!(spread([7 * MS]).p95, 7 * MS, "never longer than the longest");
        assert_eq!(spread([]), TimeStats::default());
    }

    #[test]
    fn times_are_milliseconds_in_json() {
        let json = serde_json::to_value(spread([Duration::from_micros(1_500)])).unwrap();
        let expected = serde_json::json!({"count": 1, "p50_ms": 1.5, "p95_ms": 1.5, "max_ms": 1.5});
        assert_eq!(json, expected);
    }

    #[test]
    fn an_interruption_counts_from_the_users_first_sound_to_the_pause() {
        let now = Instant::now();
        let mut clock = BargeInClock::default();
        assert_eq!(clock.silenced(now), None);
        clock.user_began(now);
        clock.paused(now + 30 * MS);
        assert_eq!(clock.silenced(now + 900 * MS), Some(30 * MS));
        assert_eq!(clock.silenced(now + 950 * MS), None, "once");
    }

    proptest! {
        #[test]
        fn a_class_holds_its_times_and_is_narrow(micros: u64) {
            let time = Duration::from_micros(micros);
            let longest = longest_of(class_of(time));
            prop_assert!(longest >= time);
            prop_assert!(longest - time <= time / 30 + Duration::from_micros(1));
            prop_assert!(class_of(time) < 2_000);
        }
    }
}
