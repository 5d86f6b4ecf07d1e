//! Data by which persons are found or robbed: numbers of cards and accounts, addresses, telephones.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::session::{Guard, GuardDenial, GuardVerdict, Words};

use super::letters::Letters;

/// Digits of a card's number (ISO/IEC 7812), and of a telephone's (E.164).
const CARD_DIGITS: std::ops::RangeInclusive<usize> = 13..=19;
const PHONE_DIGITS: std::ops::RangeInclusive<usize> = 9..=15;
/// Fewer digits at the end of a sentence are taken for all of a number.
const OPEN_DIGITS: usize = 4;

/// A kind of personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PersonalKind {
    /// 13 to 19 digits whose check digit (Luhn) is right and that begin as cards do.
    Card,
    /// An account number by ISO 13616 whose check digits are right.
    Iban,
    /// An address with an `@`, or as it is spoken in English: "anna at example dot com".
    Email,
    /// 9 to 15 digits after a `+` or a 0.
    Phone,
}

/// Denies words that contain personal data. Digits may be grouped as one likes, and written as words
/// ("four one one one", "vier eins"). What may be the beginning of such data is held until it is clear
/// how it goes on, which may take a word longer than without this guard.
#[derive(Clone, Debug)]
pub struct PersonalData {
    kinds: BTreeSet<PersonalKind>,
    allowed: Vec<String>,
    instead: Option<String>,
}

impl Default for PersonalData {
    /// All kinds.
    fn default() -> Self {
        use PersonalKind::{Card, Email, Iban, Phone};
        Self::new([Card, Iban, Email, Phone])
    }
}

impl PersonalData {
    /// These kinds.
    pub fn new(kinds: impl IntoIterator<Item = PersonalKind>) -> Self {
        Self { kinds: kinds.into_iter().collect(), allowed: Vec::new(), instead: None }
    }

    /// This may be said all the same, such as the host's own telephone number or address.
    pub fn allow(mut self, text: &str) -> Self {
        self.allowed.push(plain(text));
        self
    }

    /// Sets what is said instead.
    pub fn instead(mut self, text: impl Into<String>) -> Self {
        self.instead = Some(text.into());
        self
    }

    fn has(&self, kind: PersonalKind) -> bool {
        self.kinds.contains(&kind)
    }

    fn denies(&self, found: &str) -> bool {
        let found = plain(found);
        !found.is_empty() && !self.allowed.contains(&found)
    }

    fn find(&self, words: &Words<'_>) -> (Option<PersonalKind>, Option<usize>) {
        let mut hold: Option<usize> = None;
        let mut held = |at: Option<usize>| {
            if let Some(at) = at.filter(|_| !words.complete) {
                hold = Some(hold.map_or(at, |known| known.min(at)));
            }
        };
        if self.has(PersonalKind::Iban) {
            let (found, open) = ibans(words.text);
            if found.iter().any(|found| self.denies(found)) {
                return (Some(PersonalKind::Iban), None);
            }
            held(open);
        }
        let runs = digit_runs(words.text);
        for kind in [PersonalKind::Card, PersonalKind::Phone] {
            if !self.has(kind) {
                continue;
            }
            for run in &runs {
                let found = match kind {
                    PersonalKind::Card => run.cards(),
                    _ => run.phones(),
                };
                if found.iter().any(|digits| self.denies(digits)) {
                    return (Some(kind), None);
                }
                held(run.open(words.text));
            }
        }
        if self.has(PersonalKind::Email) {
            let (found, open) = emails(words.text);
            if found.iter().any(|found| self.denies(found)) {
                return (Some(PersonalKind::Email), None);
            }
            held(open);
        }
        (None, hold)
    }
}

impl Guard for PersonalData {
    fn judge(&self, words: &Words<'_>) -> GuardVerdict {
        let (found, hold) = self.find(words);
        if let Some(kind) = found {
            let what = match kind {
                PersonalKind::Card => "a card's number",
                PersonalKind::Iban => "an account's number",
                PersonalKind::Email => "an e-mail address",
                PersonalKind::Phone => "a telephone number",
            };
            let denial = GuardDenial::new(what);
            return GuardVerdict::Deny(GuardDenial { instead: self.instead.clone(), ..denial });
        }
        hold.map_or(GuardVerdict::Pass, |from| GuardVerdict::Hold { from })
    }
}

fn plain(text: &str) -> String {
    Letters::of(text).plain().collect()
}

/// Digits that follow one another, whatever stands between them but letters.
#[derive(Debug)]
struct Run {
    /// The byte where it begins, with a `+` where it has one.
    at: usize,
    end: usize,
    plus: bool,
    /// Groups as they were written.
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    at: usize,
    digits: String,
    /// A comma or the like, and a space, part it from the group before.
    parted: bool,
}

impl Run {
    /// Whole groups that are a card's number, wherever they begin.
    fn cards(&self) -> Vec<String> {
        let mut found = Vec::new();
        for from in 0..self.groups.len() {
            for digits in self.from(from, CARD_DIGITS) {
                let begins = matches!(digits.as_bytes().first(), Some(b'2'..=b'6'));
                if begins && luhn(&digits) {
                    found.push(digits);
                }
            }
        }
        found
    }

    /// Whole groups that are a telephone number: from the beginning or a comma to the end or a comma, or
    /// up to where another number begins.
    fn phones(&self) -> Vec<String> {
        let mut found = Vec::new();
        let begins = |at: usize| self.groups[at].digits.starts_with('0');
        for (from, group) in self.groups.iter().enumerate() {
            if from > 0 && !group.parted || !(from == 0 && self.plus || begins(from)) {
                continue;
            }
            let mut digits = String::new();
            for (at, group) in self.groups.iter().enumerate().skip(from) {
                digits.push_str(&group.digits);
                let next = at + 1;
                let ends = next == self.groups.len() || self.groups[next].parted || begins(next);
                if ends && PHONE_DIGITS.contains(&digits.len()) {
                    found.push(digits.clone());
                }
                if digits.len() > *PHONE_DIGITS.end() {
                    break;
                }
            }
        }
        found
    }

    /// The digits of whole groups from this one on, as many as there may be.
    fn from(
        &self,
        from: usize,
        lengths: std::ops::RangeInclusive<usize>,
    ) -> impl Iterator<Item = String> + '_ {
        let mut digits = String::new();
        let groups = self.groups[from..].iter();
        let most = *lengths.end();
        let all = groups.map(move |group| {
            digits.push_str(&group.digits);
            digits.clone()
        });
        all.take_while(move |digits| digits.len() <= most)
            .filter(move |digits| lengths.contains(&digits.len()))
    }

    /// Where a number begins of which more digits may come.
    fn open(&self, text: &str) -> Option<usize> {
        let digits: usize = self.groups.iter().map(|group| group.digits.len()).sum();
        let short = digits < OPEN_DIGITS && !self.plus;
        match text[self.end..].trim_end() {
            "" => {}
            "." | "," | ":" | ";" | "-" if !short => {}
            _ => return None,
        }
        if digits <= *CARD_DIGITS.end() {
            return Some(self.at);
        }
        // One number, and the beginning of another one.
        let mut left = digits;
        let last = self.groups.iter().find(|group| {
            let fits = left <= *CARD_DIGITS.end();
            left -= group.digits.len();
            fits
        });
        last.map(|group| group.at)
    }
}

/// The runs of digits of a text; words for digits count.
fn digit_runs(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut goes_on = false;
    let mut plus: Option<usize> = None;
    // Where a comma or the like ended.
    let mut comma: Option<usize> = None;
    for (at, token) in tokens(text) {
        let end = at + token.len();
        let digits = match token.chars().all(|c| c.is_ascii_digit()) {
            true => Some(token.to_owned()),
            false => digit_word(token).map(str::to_owned),
        };
        match digits {
            Some(digits) => {
                let parted = comma.take().is_some_and(|comma| comma < at);
                let group = Group { at, digits, parted };
                if goes_on && let Some(run) = runs.last_mut() {
                    run.groups.push(group);
                    run.end = end;
                } else {
                    let from = plus.unwrap_or(at);
                    runs.push(Run { at: from, end, plus: plus.is_some(), groups: vec![group] });
                }
                (goes_on, plus) = (true, None);
            }
            None if token == "+" => (goes_on, plus) = (false, Some(at)),
            None if token.eq_ignore_ascii_case("plus") => (goes_on, plus) = (false, Some(at)),
            // "one, four" and "12/34" are one run, and so is "(0) 30".
            None if is_between(token) => comma = (!matches!(token, "(" | ")")).then_some(end),
            None => (goes_on, plus) = (false, None),
        }
    }
    runs
}

/// Words, and what stands between them character by character, without spaces.
fn tokens(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (at, first) = rest.find(|(_, c)| !c.is_whitespace())?;
        let mut end = at + first.len_utf8();
        if first.is_alphanumeric() {
            let digit = first.is_ascii_digit();
            while let Some((next, c)) =
                rest.next_if(|(_, c)| c.is_alphanumeric() && c.is_ascii_digit() == digit)
            {
                end = next + c.len_utf8();
            }
        }
        Some((at, &text[at..end]))
    })
}

fn is_between(token: &str) -> bool {
    matches!(token, "-" | "," | "." | "/" | "(" | ")" | "–" | "—" | "\u{2011}")
}

fn digit_word(word: &str) -> Option<&'static str> {
    let word = word.to_lowercase();
    Some(match word.as_str() {
        "zero" | "oh" | "null" => "0",
        "one" | "eins" => "1",
        "two" | "zwei" | "zwo" => "2",
        "three" | "drei" => "3",
        "four" | "vier" => "4",
        "five" | "fünf" => "5",
        "six" | "sechs" => "6",
        "seven" | "sieben" => "7",
        "eight" | "acht" => "8",
        "nine" | "neun" => "9",
        _ => return None,
    })
}

/// The check digit of ISO/IEC 7812.
fn luhn(digits: &str) -> bool {
    let sum: u32 = digits
        .bytes()
        .rev()
        .enumerate()
        .map(|(nth, digit)| {
            let digit = u32::from(digit - b'0');
            match nth % 2 {
                0 => digit,
                _ => digit * 2 / 10 + digit * 2 % 10,
            }
        })
        .sum();
    sum.is_multiple_of(10)
}

/// The account numbers, and where one may begin of which the end is missing.
fn ibans(text: &str) -> (Vec<String>, Option<usize>) {
    let letters = Letters::of(text);
    let (mut found, mut open) = (Vec::new(), None);
    for at in letters.beginnings() {
        let rest = &letters.chars[at..];
        let (mut number, mut whole) = (String::new(), false);
        for (nth, letter) in rest.iter().enumerate() {
            let fits = match nth {
                0 | 1 => letter.char.is_ascii_lowercase(),
                2 | 3 => letter.char.is_ascii_digit(),
                // A bank by letters, such as ABNA; further on letters are rare and stand alone.
                4..=7 => letter.char.is_ascii_alphanumeric(),
                _ => {
                    letter.char.is_ascii_digit()
                        || letter.char.is_ascii_lowercase() && !in_a_word(rest, nth)
                }
            };
            if !fits {
                break;
            }
            number.push(letter.char.to_ascii_uppercase());
            let length = length_of(&number);
            if length.is_some_and(|length| number.len() == length) {
                whole = true;
                break;
            }
        }
        if whole && mod_97(&number) {
            found.push(number);
            continue;
        }
        let known = number.len() >= 4 && length_of(&number).is_some();
        if known && !whole && number.len() == rest.len() {
            open = open.or(Some(rest[0].at));
        }
    }
    (found, open)
}

/// A letter with another one beside it.
fn in_a_word(letters: &[super::letters::Letter], at: usize) -> bool {
    let alphabetic = |at: usize| letters.get(at).is_some_and(|letter| letter.char.is_alphabetic());
    at > 0 && alphabetic(at - 1) && !letters[at].begins || alphabetic(at + 1) && !letters[at].ends
}

/// How long account numbers of a country are (the registry of ISO 13616).
fn length_of(number: &str) -> Option<usize> {
    #[rustfmt::skip]
    const LENGTHS: [(&str, usize); 46] = [
        ("AD", 24), ("AE", 23), ("AL", 28), ("AT", 20), ("BA", 20), ("BE", 16), ("BG", 22),
        ("CH", 21), ("CY", 28), ("CZ", 24), ("DE", 22), ("DK", 18), ("EE", 20), ("ES", 24),
        ("FI", 18), ("FO", 18), ("FR", 27), ("GB", 22), ("GE", 22), ("GI", 23), ("GL", 18),
        ("GR", 27), ("HR", 21), ("HU", 28), ("IE", 22), ("IL", 23), ("IS", 26), ("IT", 27),
        ("LI", 21), ("LT", 20), ("LU", 20), ("LV", 21), ("MC", 27), ("ME", 22), ("MK", 19),
        ("MT", 31), ("NL", 18), ("NO", 15), ("PL", 28), ("PT", 25), ("RO", 24), ("RS", 22),
        ("SE", 24), ("SI", 19), ("SK", 24), ("TR", 26),
    ];
    let country = number.get(..2)?;
    LENGTHS.iter().find(|(known, _)| *known == country).map(|(_, length)| *length)
}

/// The check digits of ISO 13616.
fn mod_97(number: &str) -> bool {
    let turned = number[4..].bytes().chain(number[..4].bytes());
    let rest = turned.fold(0u32, |rest, byte| match byte {
        b'0'..=b'9' => (rest * 10 + u32::from(byte - b'0')) % 97,
        _ => (rest * 100 + u32::from(byte - b'A') + 10) % 97,
    });
    rest == 1
}

/// The e-mail addresses, and where one may begin of which the end is missing.
fn emails(text: &str) -> (Vec<String>, Option<usize>) {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('@') {
        let local = text[..at].rsplit(|c: char| !is_local(c)).next().unwrap_or_default();
        let domain = text[at + 1..].split(|c: char| !is_domain(c)).next().unwrap_or_default();
        let domain = domain.trim_end_matches(['.', '-']);
        if !local.is_empty() && domain.contains('.') {
            found.push(format!("{local}@{domain}"));
        }
    }
    let words: Vec<(usize, &str)> = spoken_words(text).collect();
    for spoken in words.windows(5) {
        let [(_, local), (_, at), (_, name), (_, dot), (_, end)] = spoken else { continue };
        let is_address = at.eq_ignore_ascii_case("at") && dot.eq_ignore_ascii_case("dot");
        if is_address && name.chars().all(is_domain) && !name.ends_with('.') {
            let end = end.trim_end_matches(|c: char| !c.is_alphanumeric());
            found.push(format!("{local}@{name}.{end}"));
        }
    }
    (found, open_email(text, &words))
}

fn open_email(text: &str, words: &[(usize, &str)]) -> Option<usize> {
    // What no space or end of a sentence follows may still grow.
    let last = text.rsplit(char::is_whitespace).next().unwrap_or_default();
    let grows = last.contains('@') || last.ends_with(is_local) && !last.ends_with(['.', '-']);
    let grows = (grows && !last.is_empty()).then(|| text.len() - last.len());
    let is = |back: usize, word: &str| {
        let at = words.len().checked_sub(back);
        at.and_then(|at| words.get(at)).is_some_and(|(_, found)| found.eq_ignore_ascii_case(word))
    };
    // "anna at", "anna at example", "anna at example dot"
    let spoken = match () {
        () if is(1, "at") => words.len().checked_sub(2),
        () if is(2, "at") => words.len().checked_sub(3),
        () if is(3, "at") && is(1, "dot") => words.len().checked_sub(4),
        () => None,
    };
    let ended = text.trim_end().ends_with(['.', '!', '?']);
    let spoken = spoken.filter(|_| !ended).and_then(|at| words.get(at)).map(|(at, _)| *at);
    grows.into_iter().chain(spoken).min()
}

fn spoken_words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split_whitespace().map(|word| {
        let at = word.as_ptr() as usize - text.as_ptr() as usize;
        (at, word)
    })
}

fn is_local(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+' | '%')
}

fn is_domain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '.' | '-')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(text: &str) -> Option<PersonalKind> {
        PersonalData::default().find(&Words::whole(text)).0
    }

    fn held(text: &str) -> Option<usize> {
        PersonalData::default().find(&Words::so_far(text)).1
    }

    #[test]
    fn numbers_and_addresses_are_found_however_they_are_written() {
        use PersonalKind::*;
        for (text, kind) in [
            ("Your card is 4111111111111111.", Card),
            ("It is 4111 1111 1111 1111, thanks", Card),
            ("4111-1111-1111-1111", Card),
            ("four one one one, one one one one, one one one one, one one one one", Card),
            ("vier eins eins eins eins eins eins eins 1111 1111", Card),
            ("Reference 12 5500 0000 0000 0004 it is", Card),
            ("DE89 3704 0044 0532 0130 00 is the account", Iban),
            ("it is de89370400440532013000", Iban),
            ("NL91 ABNA 0417 1643 00", Iban),
            ("GB82 WEST 1234 5698 7654 32!", Iban),
            ("Write to anna.smith@example.com.", Email),
            ("Write to anna at example dot com", Email),
            ("Call +49 30 1234567", Phone),
            ("Call 0171 2345678 today", Phone),
            ("Her numbers: 0171 2345678, 030 1234567", Phone),
            ("0171 2345678 030 1234567", Phone),
            ("0171 2345678. 12345 is the code", Phone),
            ("plus four nine three zero one two three four five six seven", Phone),
        ] {
            assert_eq!(found(text), Some(kind), "{text}");
        }
    }

    #[test]
    fn other_numbers_and_words_are_none() {
        for text in [
            "It is 12:30 on 24 December 2026.",
            "The total is 1,234.50 euros",
            "4111 1111 1111 1112 has a wrong check digit",
            "DE88 3704 0044 0532 0130 00 too",
            "We meet at noon. Dot your i's",
            "Is 12 enough? Yes",
            "@ home",
            "one of four, two of five",
            "",
        ] {
            assert_eq!(found(text), None, "{text}");
        }
    }

    #[test]
    fn only_what_may_become_such_data_is_held() {
        // "IS41 111..." may be an account in Iceland.
        assert_eq!(held("Your card is 4111 1"), Some(10));
        assert_eq!(held("Your card was 4111 1"), Some(14));
        assert_eq!(held("Your card is four one "), Some(13));
        assert_eq!(held("It is DE89 3704"), Some(6));
        assert_eq!(held("Write to anna"), Some(9));
        assert_eq!(held("Write to anna at "), Some(9));
        assert_eq!(held("Write to anna at example dot "), Some(9));
        assert_eq!(held("That is all for today. "), None);
        assert_eq!(held("It is 12 o'clock. "), None);
    }

    #[test]
    fn what_the_host_allows_may_be_said() {
        let guard = PersonalData::default().allow("+49 30 1234567").allow("help@bank.example");
        let judge = |text| guard.judge(&Words::whole(text));
        assert_eq!(
            judge("Call +49 (30) 123-4567 or write to help@bank.example."),
            GuardVerdict::Pass
        );
        assert!(matches!(judge("Call +49 30 1234568"), GuardVerdict::Deny(_)));
        // What is allowed lets nothing else pass, before it or after it.
        let other = guard.allow("DE89 3704 0044 0532 0130 00").allow("4111 1111 1111 1111");
        for text in [
            "Write to help@bank.example, or to Anna herself, anna@example.com.",
            "Write to help@bank.example, or to anna at example dot com",
            "Anna at example dot com, or help@bank.example",
            "Ours is DE89 3704 0044 0532 0130 00 and yours GB82 WEST 1234 5698 7654 32.",
            "4111 1111 1111 1111, 5500 0000 0000 0004",
            "+49 30 1234567, 0171 2345678",
        ] {
            assert!(matches!(other.judge(&Words::whole(text)), GuardVerdict::Deny(_)), "{text}");
        }
        for (text, from) in [
            ("Ours is DE89 3704 0044 0532 0130 00 and yours GB82 WEST 12", "GB82"),
            ("Write to help@bank.example, or to anna at example dot ", "anna"),
            ("4111 1111 1111 1111, 5500 0000 00", "1111 1111, 5500"),
        ] {
            let from = text.find(from).unwrap();
            assert_eq!(other.judge(&Words::so_far(text)), GuardVerdict::Hold { from }, "{text}");
        }
        let cards = PersonalData::new([PersonalKind::Card]);
        assert_eq!(cards.judge(&Words::whole("anna@example.com")), GuardVerdict::Pass);
    }

    proptest! {
        #[test]
        fn no_text_is_too_much_for_it(text in "\\PC{0,60}", cut in 0usize..60) {
            let cut = text.floor_char_boundary(cut);
            for words in [Words::whole(&text), Words::so_far(&text[..cut])] {
                if let GuardVerdict::Hold { from } = PersonalData::default().judge(&words) {
                    prop_assert!(words.text.is_char_boundary(from));
                }
            }
        }

        /// However a card's number comes in pieces, none of its digits passes before it is denied.
        #[test]
        fn no_digit_of_a_card_passes_before_the_number_is_known(at in 0usize..50) {
            let text = "Your card is 4111 1111 1111 1111 and so on";
            let at = at.min(text.len());
            let judged = PersonalData::default().judge(&Words::so_far(&text[..at]));
            match judged {
                GuardVerdict::Pass => prop_assert!(at <= 13),
                GuardVerdict::Hold { from } => prop_assert!(from <= 13, "{from} {:?}", &text[..at]),
                GuardVerdict::Deny(_) => prop_assert!(at >= 32),
            }
        }
    }
}
