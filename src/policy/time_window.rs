//! When a tool may be called.

use antiphon_agent::{Denial, Verdict};
use antiphon_types::ToolCall;
use jiff::{
    civil::{Time, Weekday},
    tz::TimeZone,
};

use super::{Policy, PolicyContext, PolicyError, pattern::ToolPattern};

/// Denies calls of some tools outside of some hours of some days, by the wall clock of a place.
#[derive(Clone, Debug)]
pub struct TimeWindow {
    id: String,
    tools: ToolPattern,
    zone: TimeZone,
    days: Vec<Weekday>,
    from: Time,
    to: Time,
}

impl TimeWindow {
    /// Calls of these tools from `from` on and before `to`. Where `to` is not after `from` the window
    /// goes on past midnight, and belongs to the day on which it begins.
    pub fn new(
        id: &str,
        tools: &str,
        zone: TimeZone,
        from: Time,
        to: Time,
    ) -> Result<Self, PolicyError> {
        let tools = super::pattern_of(id, tools)?;
        Ok(Self { id: id.to_owned(), tools, zone, days: Vec::new(), from, to })
    }

    /// Only on these days. Default: each day.
    pub fn on(mut self, days: impl IntoIterator<Item = Weekday>) -> Self {
        self.days = days.into_iter().collect();
        self
    }

    fn is_open(&self, cx: &PolicyContext) -> bool {
        let there = cx.now.to_zoned_datetime(self.zone.clone());
        let (time, today) = (there.time(), there.weekday());
        let on = |day: Weekday| self.days.is_empty() || self.days.contains(&day);
        if self.from < self.to {
            return on(today) && self.from <= time && time < self.to;
        }
        (on(today) && self.from <= time) || (on(today.previous()) && time < self.to)
    }
}

impl Policy for TimeWindow {
    fn id(&self) -> &str {
        &self.id
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict {
        match !self.tools.fits(&call.name) || self.is_open(cx) {
            true => Verdict::Allow,
            false => Verdict::Deny(Denial::told("this is not done at this time of day")),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::time;

    use super::*;

    fn open(window: &TimeWindow, now: &str) -> bool {
        window.is_open(&PolicyContext::new("s", now.parse().unwrap()))
    }

    #[test]
    fn the_wall_clock_of_the_place_counts_in_summer_and_in_winter() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let hours = TimeWindow::new("w", "*", zone, time(8, 0, 0, 0), time(18, 0, 0, 0)).unwrap();
        let hours = hours.on([Weekday::Monday, Weekday::Tuesday]);
        // A Monday in winter, one hour ahead of UTC; one in summer, two hours.
        for (now, expected) in [
            ("2026-01-12T06:59:59Z", false),
            ("2026-01-12T07:00:00Z", true),
            ("2026-01-12T16:59:59Z", true),
            ("2026-01-12T17:00:00Z", false),
            ("2026-07-13T06:00:00Z", true),
            ("2026-07-13T05:59:59Z", false),
            ("2026-07-15T10:00:00Z", false),
        ] {
            assert_eq!(open(&hours, now), expected, "{now}");
        }
    }

    #[test]
    fn a_window_past_midnight_belongs_to_the_day_on_which_it_begins() {
        let night = TimeWindow::new("w", "*", TimeZone::UTC, time(22, 0, 0, 0), time(6, 0, 0, 0));
        let night = night.unwrap().on([Weekday::Friday]);
        for (now, expected) in [
            ("2026-01-09T22:00:00Z", true), // Friday evening
            ("2026-01-10T05:59:00Z", true), // Saturday morning
            ("2026-01-10T06:00:00Z", false),
            ("2026-01-10T22:30:00Z", false), // Saturday evening
            ("2026-01-09T05:00:00Z", false), // Friday morning
        ] {
            assert_eq!(open(&night, now), expected, "{now}");
        }
    }
}
