//! Times of day and dates.

use super::{Reading, Word, cardinal, ordinal, year};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The month of this name or its usual abbreviation, in small letters; 0 is January.
pub(super) fn month_named(name: &str) -> Option<usize> {
    MONTHS.iter().position(|month| {
        let month = month.to_lowercase();
        // "may" is a verb more often than a month, but no number follows the verb.
        name == month
            || (name.len() == 3 && month.starts_with(name))
            || name == "sept" && month == "september"
    })
}

pub(super) fn read<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let core = words[0].core;
    moment(core)
        .or_else(|| date(core))
        .map(|spoken| Reading::of(spoken, &words[..1]))
        .or_else(|| clock(words))
        .or_else(|| named_day(words))
}

/// "2026-06-05T07:30:00Z"; the zone is not read.
fn moment(core: &str) -> Option<String> {
    let (day, time) = core.split_once('T')?;
    let day = date(day)?;
    let time = time.get(..5).filter(|_| time.len() == 5 || !time.as_bytes()[5].is_ascii_digit())?;
    let (hours, minutes, _) = clock_digits(time)?;
    Some(format!("{day}, {}", clock_words(hours, minutes, None, false)))
}

/// "2026-06-05", "6/5/2026".
fn date(core: &str) -> Option<String> {
    let (year_number, month, day) = match core.split(['-', '/']).collect::<Vec<_>>().as_slice() {
        [y, m, d] if y.len() == 4 && core.contains('-') => (y.parse().ok()?, *m, *d),
        [m, d, y] if y.len() == 4 && core.contains('/') => (y.parse().ok()?, *m, *d),
        _ => return None,
    };
    let month: usize = month.parse().ok()?;
    let day: u64 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = MONTHS.get(month.checked_sub(1)?)?;
    Some(format!("{month} {}, {}", ordinal(day), year(year_number)))
}

/// "June 5", "June 5, 2026".
fn named_day<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let [name, day, rest @ ..] = words else { return None };
    if !name.core.starts_with(|c: char| c.is_uppercase()) || !matches!(name.close, "" | ".") {
        return None;
    }
    let month = MONTHS[month_named(&name.core.to_lowercase())?];
    let digits = day.core.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let number: u64 = digits.parse().ok().filter(|day| (1..=31).contains(day))?;
    if !matches!(&day.core[digits.len()..], "" | "st" | "nd" | "rd" | "th") {
        return None;
    }
    let spoken = format!("{month} {}", ordinal(number));
    let year_number = rest
        .first()
        .filter(|_| matches!(day.close, "" | ","))
        .and_then(|word| word.core.parse().ok().filter(|_| word.core.len() == 4));
    Some(match year_number {
        Some(number) => Reading::of(format!("{spoken}, {}", year(number)), &words[..3]),
        None => Reading::of(spoken, &words[..2]),
    })
}

/// "7:30", "7:30:05", "7:30 a.m.", "9pm", "5 p.m."; "3:2" is a score.
fn clock<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let word = &words[0];
    let (time, attached) = match half_of_day(word.core, true) {
        Some((time, half)) => (time, Some(half)),
        None => (word.core, None),
    };
    let next = words
        .get(1)
        .filter(|_| attached.is_none() && word.runs_on())
        .and_then(|next| half_of_day(next.core, false));
    let half = attached.or(next.map(|(_, half)| half));
    let taken = if next.is_some() { &words[..2] } else { &words[..1] };

    let spoken = match (clock_digits(time), half) {
        (Some((hours, minutes, seconds)), half) => {
            let mut spoken = clock_words(hours, minutes, half, seconds.is_some());
            if let Some(seconds) = seconds {
                let plural = if seconds == 1 { "" } else { "s" };
                spoken.push_str(&format!(" and {} second{plural}", cardinal(seconds)));
            }
            spoken
        }
        (None, Some(half)) => {
            let hours: u64 = time.parse().ok().filter(|hours| (1..=12).contains(hours))?;
            clock_words(hours, 0, Some(half), false)
        }
        (None, None) => {
            let (left, right) = time.split_once(':')?;
            let number =
                |text: &str| -> Option<u64> { text.parse().ok().filter(|_| text.len() < 4) };
            format!("{} to {}", cardinal(number(left)?), cardinal(number(right)?))
        }
    };
    let reading = Reading::of(spoken, taken);
    Some(if half.is_some() { reading.without_dot() } else { reading })
}

fn clock_digits(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let mut parts = text.split(':');
    let hours = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
    let mut sixty = || match parts.next() {
        Some(part) if part.len() == 2 => part.parse().ok().filter(|n: &u64| *n < 60).map(Some),
        Some(_) => None,
        None => Some(None),
    };
    let (minutes, seconds) = (sixty()??, sixty()?);
    let hours = hours.parse().ok().filter(|hours| *hours <= 24)?;
    parts.next().is_none().then_some((hours, minutes, seconds))
}

fn clock_words(hours: u64, minutes: u64, half: Option<&str>, seconds: bool) -> String {
    let hour = cardinal(hours);
    let mut spoken = match minutes {
        0 if half.is_some() || seconds => hour,
        0 if (1..=12).contains(&hours) => format!("{hour} o'clock"),
        0 => format!("{hour} hundred"),
        1..10 => format!("{hour} oh {}", cardinal(minutes)),
        _ => format!("{hour} {}", cardinal(minutes)),
    };
    if let Some(half) = half {
        spoken.push(' ');
        spoken.push_str(half);
    }
    spoken
}

/// The part before "am" or "pm", and how that is written to be spelled.
fn half_of_day(core: &str, attached: bool) -> Option<(&str, &'static str)> {
    let digits = core.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(core.len());
    if (digits > 0) != attached {
        return None;
    }
    let (time, rest) = core.split_at(digits);
    match rest {
        "am" | "AM" | "a.m" | "A.M" => Some((time, "A.M.")),
        "pm" | "PM" | "p.m" | "P.M" => Some((time, "P.M.")),
        _ => None,
    }
}
