//! The rules by which single words, and words with their neighbours, are read.

mod quantity;
mod time;

use super::number::{Number, cardinal, digits, ordinal, year};

/// A word between spaces, with the punctuation around it taken off.
#[derive(Clone, Copy)]
pub(super) struct Word<'a> {
    pub(super) open: &'a str,
    pub(super) core: &'a str,
    pub(super) close: &'a str,
}

impl<'a> Word<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let inner = text.trim_start_matches(['"', '\'', '(', '[', '{']);
        let open = &text[..text.len() - inner.len()];
        let core =
            inner.trim_end_matches(['.', ',', ';', ':', '!', '?', '"', '\'', ')', ']', '}', '…']);
        Self { open, core, close: &inner[core.len()..] }
    }

    /// Nothing stands between this word and the next.
    fn runs_on(&self) -> bool {
        self.close.is_empty()
    }

    fn is_number(&self) -> bool {
        Number::parse(self.core).is_some()
    }
}

/// How the first words of a line are read.
pub(super) struct Reading<'a> {
    pub(super) spoken: String,
    /// How many words that covers, at least one.
    pub(super) taken: usize,
    /// The punctuation that follows.
    pub(super) close: &'a str,
}

impl<'a> Reading<'a> {
    fn of(spoken: impl Into<String>, words: &[Word<'a>]) -> Self {
        let close = words.last().map_or("", |word| word.close);
        Self { spoken: spoken.into(), taken: words.len().max(1), close }
    }

    /// The dot belonged to the abbreviation.
    fn without_dot(mut self) -> Self {
        self.close = self.close.strip_prefix('.').unwrap_or(self.close);
        self
    }
}

/// Reads the first of `words`, which is not empty, with as many of those that follow as belong to
/// it; `before` is the word before.
pub(super) fn read<'a>(before: Option<&Word<'a>>, words: &[Word<'a>]) -> Reading<'a> {
    abbreviation(words)
        .or_else(|| time::read(words))
        .or_else(|| quantity::read(words))
        .or_else(|| number(before, words))
        .or_else(|| symbol(before, words))
        .unwrap_or_else(|| Reading::of(mixture(words[0].core), &words[..1]))
}

fn abbreviation<'a>(words: &[Word<'a>]) -> Option<Reading<'a>> {
    let word = words.first()?;
    let dotted = word.close.starts_with('.');
    let spoken = match word.core {
        "Mr" => "Mister",
        "Mrs" => "Missus",
        "Dr" => "Doctor",
        "vs" => "versus",
        "Ms" if dotted => "Miz",
        "Prof" if dotted => "Professor",
        "Jr" if dotted => "Junior",
        "Sr" if dotted => "Senior",
        "approx" if dotted => "approximately",
        "e.g" | "E.g" if dotted => "for example",
        "i.e" | "I.e" if dotted => "that is",
        "etc" if dotted => "et cetera",
        "No" if dotted && words.get(1).is_some_and(Word::is_number) => "number",
        _ => return None,
    };
    let reading = Reading::of(spoken, &words[..1]);
    Some(if words.len() == 1 { reading } else { reading.without_dot() })
}

fn number<'a>(before: Option<&Word<'a>>, words: &[Word<'a>]) -> Option<Reading<'a>> {
    let core = words[0].core;
    let spoken = None
        .or_else(|| Number::parse(core).map(|number| plain_number(before, core, &number)))
        .or_else(|| counted(core))
        .or_else(|| fraction(core))
        .or_else(|| span(core))
        .or_else(|| version(core))?;
    Some(Reading::of(spoken, &words[..1]))
}

/// Words after which four digits are a year.
const BEFORE_YEARS: [&str; 9] =
    ["in", "since", "from", "until", "till", "by", "of", "year", "during"];

fn plain_number(before: Option<&Word>, core: &str, number: &Number) -> String {
    let after = before.is_some_and(|word| {
        let word = word.core.to_lowercase();
        BEFORE_YEARS.contains(&word.as_str()) || time::month_named(&word).is_some()
    });
    match number.integer() {
        Some(value @ 1100..2100) if after && core.len() == 4 => year(value),
        _ => number.words(),
    }
}

/// "21st", "1990s", "4x".
fn counted(core: &str) -> Option<String> {
    let end = core.find(|c: char| !c.is_ascii_digit() && c != ',')?;
    let (number, suffix) = core.split_at(end);
    let number = Number::parse(number)?.integer()?;
    match suffix {
        "st" | "nd" | "rd" | "th" => Some(ordinal(number)),
        "s" | "'s" => {
            let words =
                if (1100..2100).contains(&number) { year(number) } else { cardinal(number) };
            Some(match words.strip_suffix('y') {
                Some(stem) => format!("{stem}ies"),
                None => format!("{words}s"),
            })
        }
        "x" => Some(format!("{} times", cardinal(number))),
        _ => None,
    }
}

/// "1/2", "2½".
fn fraction(core: &str) -> Option<String> {
    let named = |over: u64, under: u64| {
        let part = match under {
            0 | 1 => return None,
            2 if over == 1 => "half".to_owned(),
            2 => "halves".to_owned(),
            4 => format!("quarter{}", if over == 1 { "" } else { "s" }),
            3..=20 => format!("{}{}", ordinal(under), if over == 1 { "" } else { "s" }),
            _ => return Some(format!("{} over {}", cardinal(over), cardinal(under))),
        };
        Some(format!("{} {part}", cardinal(over)))
    };
    if let Some((over, under)) = core.split_once('/') {
        return named(Number::parse(over)?.integer()?, Number::parse(under)?.integer()?);
    }
    let sign = core.chars().next_back()?;
    let (over, under) = match sign {
        '½' => (1, 2),
        '⅓' => (1, 3),
        '⅔' => (2, 3),
        '¼' => (1, 4),
        '¾' => (3, 4),
        '⅛' => (1, 8),
        _ => return None,
    };
    let part = named(over, under)?;
    match core.strip_suffix(sign)? {
        "" => Some(part),
        whole => {
            let whole = Number::parse(whole)?.words();
            Some(format!("{whole} and {}", part.replacen("one half", "a half", 1)))
        }
    }
}

/// "5-10", "555-0199".
fn span(core: &str) -> Option<String> {
    let groups: Vec<&str> = core.split(['-', '–']).collect();
    let all_digits = |group: &&str| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit());
    if groups.len() < 2 || !groups.iter().all(all_digits) {
        return None;
    }
    let total: usize = groups.iter().map(|group| group.len()).sum();
    match groups.as_slice() {
        [from, to] if total < 7 || from.len() == to.len() && from.len() < 5 => {
            Some(format!("{} to {}", Number::parse(from)?.words(), Number::parse(to)?.words()))
        }
        _ => Some(digits(core)),
    }
}

/// "1.2.3".
fn version(core: &str) -> Option<String> {
    let parts: Option<Vec<String>> =
        core.split('.').map(|part| Number::parse(part).map(|number| number.words())).collect();
    parts.filter(|parts| parts.len() > 2).map(|parts| parts.join(" point "))
}

fn symbol<'a>(before: Option<&Word<'a>>, words: &[Word<'a>]) -> Option<Reading<'a>> {
    let between_numbers = || {
        let left = Number::parse(before?.core)?;
        let right = Number::parse(words.get(1)?.core)?;
        Some(if left.integer() < right.integer() { "to" } else { "minus" })
    };
    let spoken = match words[0].core {
        "&" => "and",
        "+" => "plus",
        "=" => "equals",
        "@" => "at",
        "%" => "percent",
        "<" => "is less than",
        ">" => "is more than",
        "×" => "times",
        "÷" => "divided by",
        "-" | "–" => between_numbers().unwrap_or(""),
        _ => return None,
    };
    Some(Reading::of(spoken, &words[..1]))
}

/// What no rule knows: a word, or letters, digits and signs that were run together.
fn mixture(core: &str) -> String {
    let core = core.strip_prefix("https://").or(core.strip_prefix("http://")).unwrap_or(core);
    if core.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '-')) || is_initials(core) {
        return core.to_owned();
    }
    let is_address = core.contains('@') || core.contains('.');
    let mut out = String::new();
    let mut rest = core;
    while let Some(c) = rest.chars().next() {
        let alike = |other: char| match c {
            _ if c.is_ascii_digit() => other.is_ascii_digit(),
            _ if c.is_alphabetic() => other.is_alphabetic() || matches!(other, '\'' | '-'),
            _ => false,
        };
        let end = rest.find(|other| !alike(other)).unwrap_or(rest.len()).max(c.len_utf8());
        let (piece, after) = rest.split_at(end);
        let spoken = match c {
            _ if c.is_ascii_digit() => Number::parse(piece).map_or(String::new(), |n| n.words()),
            _ if c.is_alphabetic() => piece.trim_matches('-').to_owned(),
            '.' if !after.is_empty() && !out.is_empty() => "dot".to_owned(),
            '/' if is_address => "slash".to_owned(),
            '@' => "at".to_owned(),
            '&' => "and".to_owned(),
            '+' => "plus".to_owned(),
            '=' => "equals".to_owned(),
            '%' => "percent".to_owned(),
            '°' => "degrees".to_owned(),
            '#' if after.starts_with(|c: char| c.is_ascii_digit()) => "number".to_owned(),
            '$' => "dollars".to_owned(),
            '€' => "euros".to_owned(),
            '£' => "pounds".to_owned(),
            _ => String::new(),
        };
        if !out.is_empty() && !spoken.is_empty() {
            out.push(' ');
        }
        out.push_str(&spoken);
        rest = after;
    }
    out
}

/// "U.S", "p.m", "J".
fn is_initials(core: &str) -> bool {
    core.split('.').all(|part| part.len() == 1 && part.bytes().all(|b| b.is_ascii_alphabetic()))
}
