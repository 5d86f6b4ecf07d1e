//! Durations, times of day and amounts of money, from words and back.

use super::super::numbers::{self, Parsed};

/// A duration in seconds: `five minutes`, `an hour and a half`, `one hour thirty`.
pub(super) fn duration(words: &[&str]) -> Option<Parsed> {
    let (mut seconds, mut used, mut smallest) = (0.0, 0, f64::INFINITY);
    loop {
        let mut at = used;
        if used > 0 && words.get(at) == Some(&"and") {
            at += 1;
        }
        let Some((value, unit, length)) = segment(&words[at..], used > 0, smallest) else { break };
        if unit >= smallest {
            break;
        }
        seconds += value * unit;
        used = at + length;
        smallest = unit;
    }
    (used > 0).then_some(Parsed { value: seconds, words: used })
}

/// One `count unit`: its count, the unit in seconds, and the number of words.
fn segment(words: &[&str], inner: bool, larger: f64) -> Option<(f64, f64, usize)> {
    // `a minute`, `half an hour`, `a quarter of an hour`, `three quarters of an hour`
    let counted = match numbers::number(words) {
        Some(Parsed { value, words }) => Some((value, words)),
        None if matches!(words.first(), Some(&("a" | "an" | "another"))) => Some((1.0, 1)),
        None => None,
    }?;
    let (mut count, mut used) = counted;
    let fraction = count > 0.0 && count < 1.0;
    if fraction && words.get(used) == Some(&"of") {
        used += 1;
    }
    if fraction && matches!(words.get(used), Some(&("a" | "an"))) {
        used += 1;
    }
    let Some(unit) = words.get(used).and_then(|word| unit(word)) else {
        // `one hour thirty`: the next smaller unit goes without saying.
        let implied = if larger == 3600.0 { 60.0 } else { 1.0 };
        let plain = inner && (larger == 3600.0 || larger == 60.0) && (1.0..60.0).contains(&count);
        return plain.then_some((count, implied, used));
    };
    used += 1;
    // `an hour and a half`
    if words.get(used) == Some(&"and")
        && let Some(part) = numbers::number(&words[used + 1..])
        && part.value < 1.0
        && words
            .get(used + 1 + part.words)
            .is_none_or(|word| self::unit(word).is_none() && !matches!(*word, "of" | "a" | "an"))
    {
        count += part.value;
        used += 1 + part.words;
    }
    Some((count, unit, used))
}

fn unit(word: &str) -> Option<f64> {
    Some(match word {
        "second" | "seconds" | "sec" | "secs" | "s" => 1.0,
        "minute" | "minutes" | "min" | "mins" => 60.0,
        "hour" | "hours" | "hr" | "hrs" | "h" => 3600.0,
        "day" | "days" => 86_400.0,
        "week" | "weeks" => 604_800.0,
        _ => return None,
    })
}

/// A time of day: hour, minute and the number of words. Without `am`, `pm` or a part of the day
/// the hour is taken as said.
pub(super) fn time_of_day(words: &[&str]) -> Option<(u8, u8, usize)> {
    let (hour, minute, mut used) = clock(words)?;
    let (half, length) = day_half(&words[used..]);
    used += length;
    let hour = match half {
        Some(_) if hour > 12 => hour,
        Some(Half::Morning) => hour % 12,
        Some(Half::Afternoon) => hour % 12 + 12,
        // `twelve at night` is midnight, `nine at night` is not.
        Some(Half::Night) if hour == 12 => 0,
        Some(Half::Night) if hour < 5 => hour,
        Some(Half::Night) => hour + 12,
        None => hour,
    };
    Some((hour, minute, used))
}

#[derive(Clone, Copy)]
enum Half {
    Morning,
    Afternoon,
    Night,
}

fn day_half(words: &[&str]) -> (Option<Half>, usize) {
    match *words {
        ["am", ..] => (Some(Half::Morning), 1),
        ["pm", ..] => (Some(Half::Afternoon), 1),
        ["a", "m", ..] => (Some(Half::Morning), 2),
        ["p", "m", ..] => (Some(Half::Afternoon), 2),
        ["in", "the", "morning", ..] => (Some(Half::Morning), 3),
        ["this", "morning", ..] => (Some(Half::Morning), 2),
        ["in", "the", "afternoon" | "evening", ..] => (Some(Half::Afternoon), 3),
        ["this", "afternoon" | "evening", ..] => (Some(Half::Afternoon), 2),
        ["at", "night", ..] => (Some(Half::Night), 2),
        ["tonight", ..] => (Some(Half::Night), 1),
        _ => (None, 0),
    }
}

fn clock(words: &[&str]) -> Option<(u8, u8, usize)> {
    match *words {
        ["noon" | "midday", ..] => return Some((12, 0, 1)),
        ["midnight", ..] => return Some((0, 0, 1)),
        _ => {}
    }
    let &first = words.first()?;
    if let Some((hour, minute)) = first.split_once([':', '.'])
        && (1..=2).contains(&hour.len())
        && minute.len() == 2
    {
        let (hour, minute) = (hour.parse().ok()?, minute.parse().ok()?);
        return (hour < 24 && minute < 60).then_some((hour, minute, 1));
    }
    // `half past seven`, `ten minutes to eight`, `quarter past nine`
    if let Some(Parsed { value, words: mut used }) = numbers::number(words) {
        let minutes = match value {
            0.5 => 30,
            0.25 => 15,
            _ if value.fract() == 0.0 && (1.0..60.0).contains(&value) => value as u8,
            _ => 0,
        };
        if matches!(words.get(used), Some(&("minutes" | "minute"))) {
            used += 1;
        }
        let direction = words.get(used).copied();
        if minutes > 0
            && matches!(direction, Some("past" | "after" | "to" | "till" | "before"))
            && let Some((hour, length)) = hour(&words[used + 1..])
        {
            let used = used + 1 + length;
            return Some(match direction {
                Some("past" | "after") => (hour, minutes, used),
                // `quarter to one`: 12:45
                _ => ((hour + 23) % 24, 60 - minutes, used),
            })
            .map(|(h, m, used)| if h == 0 && hour == 1 { (12, m, used) } else { (h, m, used) });
        }
    }
    let (hour, mut used) = hour(words)?;
    let rest = &words[used..];
    if rest.first() == Some(&"o'clock") {
        return Some((hour, 0, used + 1));
    }
    let minute = match *rest {
        ["oh" | "o" | "zero", ..] => numbers::number(&rest[1..])
            .filter(|n| n.value.fract() == 0.0 && (1.0..10.0).contains(&n.value))
            .map(|n| (n.value as u8, n.words + 1)),
        ["hundred", "hours", ..] => Some((0, 2)),
        _ => numbers::number(rest)
            .filter(|n| n.value.fract() == 0.0 && (10.0..60.0).contains(&n.value))
            .map(|n| (n.value as u8, n.words)),
    };
    let minute = minute.map_or(0, |(minute, length)| {
        used += length;
        minute
    });
    Some((hour, minute, used))
}

/// The hour of a clock, which `twenty five` is not.
fn hour(words: &[&str]) -> Option<(u8, usize)> {
    match *words {
        ["noon" | "midday", ..] => return Some((12, 1)),
        ["midnight", ..] => return Some((0, 1)),
        _ => {}
    }
    let hour = |Parsed { value, words }: Parsed| {
        (value.fract() == 0.0 && (0.0..24.0).contains(&value)).then_some((value as u8, words))
    };
    if matches!(words.first(), Some(&"half" | &"quarter" | &"a" | &"minus")) {
        return None;
    }
    let longest = numbers::number(words)?;
    hour(longest).or_else(|| hour(numbers::number(&words[..1])?))
}

/// An amount of money in its main unit: `two dollars fifty`, `fifty cents`, `twenty`.
pub(super) fn amount(words: &[&str]) -> Option<Parsed> {
    let Parsed { value, words: mut used } = match words.first() {
        Some(&"a") if words.get(1).is_some_and(|w| is_currency(w)) => {
            Parsed { value: 1.0, words: 1 }
        }
        _ => numbers::number(words)?,
    };
    let Some(&unit) = words.get(used) else { return Some(Parsed { value, words: used }) };
    if is_cents(unit) {
        return Some(Parsed { value: value / 100.0, words: used + 1 });
    }
    if !is_currency(unit) {
        return Some(Parsed { value, words: used });
    }
    used += 1;
    let and = usize::from(words.get(used) == Some(&"and"));
    if let Some(cents) = numbers::number(&words[(used + and).min(words.len())..])
        && cents.value.fract() == 0.0
        && (1.0..100.0).contains(&cents.value)
    {
        let after = words.get(used + and + cents.words);
        let named = after.is_some_and(|word| is_cents(word));
        if named || (and == 0 && !after.is_some_and(|word| is_currency(word))) {
            let words = used + and + cents.words + usize::from(named);
            return Some(Parsed { value: value + cents.value / 100.0, words });
        }
    }
    Some(Parsed { value, words: used })
}

fn is_currency(word: &str) -> bool {
    matches!(
        word,
        "dollar"
            | "dollars"
            | "buck"
            | "bucks"
            | "euro"
            | "euros"
            | "pound"
            | "pounds"
            | "quid"
            | "franc"
            | "francs"
            | "yen"
            | "krona"
            | "kronor"
            | "rupee"
            | "rupees"
    )
}

fn is_cents(word: &str) -> bool {
    matches!(word, "cent" | "cents" | "penny" | "pence" | "pennies")
}

/// Seconds for the ear: `5 minutes`, `1 hour and 30 minutes`.
pub(super) fn spoken_duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds.abs() >= 1e9 {
        return format!("{} seconds", numbers::written(seconds));
    }
    let plural = |count: f64, unit: &str| {
        let s = if count == 1.0 { "" } else { "s" };
        format!("{} {unit}{s}", numbers::written(count))
    };
    if seconds < 60.0 {
        return plural(seconds, "second");
    }
    let mut rest = seconds.round() as u64;
    let mut parts = Vec::new();
    for (unit, size) in [("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)] {
        if rest >= size {
            parts.push(plural((rest / size) as f64, unit));
            rest %= size;
        }
    }
    super::answer::listed(&parts, "and")
}

/// Seconds as ISO 8601: `PT5M`.
pub(super) fn iso_duration(seconds: f64) -> String {
    let whole = seconds.clamp(0.0, 1e15) as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, seconds.max(0.0) % 60.0);
    let mut text = "PT".to_owned();
    if hours > 0 {
        text += &format!("{hours}H");
    }
    if minutes > 0 {
        text += &format!("{minutes}M");
    }
    if rest > 0.0 || whole == 0 {
        text += &format!("{}S", numbers::written(rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        text.split_whitespace().collect()
    }

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("five minutes", 300.0),
            ("a minute", 60.0),
            ("an hour and a half", 5400.0),
            ("one and a half hours", 5400.0),
            ("half an hour", 1800.0),
            ("a quarter of an hour", 900.0),
            ("three quarters of an hour", 2700.0),
            ("one hour thirty", 5400.0),
            ("two hours and ten minutes", 7800.0),
            ("a couple of minutes", 120.0),
            ("two point five hours", 9000.0),
            ("ninety seconds", 90.0),
            ("a minute and a half", 90.0),
        ] {
            let parsed = duration(&split(text)).unwrap();
            assert_eq!(parsed.value, seconds, "{text}");
        }
        assert_eq!(duration(&["five"]), None);
        assert_eq!(duration(&["a", "timer"]), None);
    }

    #[test]
    fn times() {
        for (text, time) in [
            ("seven thirty", (7, 30)),
            ("half past seven", (7, 30)),
            ("quarter past seven pm", (19, 15)),
            ("a quarter to eight", (7, 45)),
            ("ten minutes to one", (12, 50)),
            ("7:30 pm", (19, 30)),
            ("noon", (12, 0)),
            ("twelve am", (0, 0)),
            ("seven o'clock in the evening", (19, 0)),
            ("nine at night", (21, 0)),
            ("six oh five", (6, 5)),
            ("twenty one fifteen", (21, 15)),
        ] {
            let words = split(text);
            let (hour, minute, used) = time_of_day(&words).unwrap();
            assert_eq!(((hour, minute), used), (time, words.len()), "{text}");
        }
        assert_eq!(time_of_day(&["twenty", "five"]).map(|t| t.0), Some(20));
        assert_eq!(time_of_day(&["25:00"]), None);
        assert_eq!(time_of_day(&["banana"]), None);
    }

    #[test]
    fn money() {
        for (text, value) in [
            ("two dollars", 2.0),
            ("two dollars fifty", 2.5),
            ("two euros and fifty cents", 2.5),
            ("fifty cents", 0.5),
            ("a dollar", 1.0),
            ("2.50 dollars", 2.5),
            ("nine hundred euros", 900.0),
            ("twenty", 20.0),
        ] {
            let words = split(text);
            let parsed = amount(&words).unwrap();
            assert_eq!((parsed.value, parsed.words), (value, words.len()), "{text}");
        }
        assert_eq!(amount(&["five", "dollars", "and", "five", "eggs"]).unwrap().words, 2);
    }

    #[test]
    fn durations_are_said() {
        assert_eq!(spoken_duration(300.0), "5 minutes");
        assert_eq!(spoken_duration(1.0), "1 second");
        assert_eq!(spoken_duration(5400.0), "1 hour and 30 minutes");
        assert_eq!(spoken_duration(90_061.0), "1 day, 1 hour, 1 minute and 1 second");
        assert_eq!(iso_duration(5400.0), "PT1H30M");
        assert_eq!(iso_duration(0.0), "PT0S");
    }
}
