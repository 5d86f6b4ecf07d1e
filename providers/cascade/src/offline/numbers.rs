//! Numbers as English says them: cardinals, ordinals, decimals and fractions, both ways.

/// Zero to nineteen.
pub(crate) const UNITS: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];

const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

const SCALES: [(&str, u64); 5] = [
    ("quadrillion", 1_000_000_000_000_000),
    ("trillion", 1_000_000_000_000),
    ("billion", 1_000_000_000),
    ("million", 1_000_000),
    ("thousand", 1_000),
];

/// `n` in words: `one hundred twenty thousand three hundred five`, `twenty-one`.
pub(crate) fn cardinal(n: u64) -> String {
    let mut words = Vec::new();
    let mut rest = n;
    for (name, scale) in SCALES {
        if rest >= scale {
            words.push(format!("{} {name}", cardinal(rest / scale)));
            rest %= scale;
        }
    }
    if rest >= 100 {
        words.push(format!("{} hundred", UNITS[(rest / 100) as usize]));
        rest %= 100;
    }
    let (tens, units) = ((rest / 10) as usize, (rest % 10) as usize);
    match rest {
        0 if !words.is_empty() => {}
        0..20 => words.push(UNITS[rest as usize].to_owned()),
        _ if units == 0 => words.push(TENS[tens].to_owned()),
        _ => words.push(format!("{}-{}", TENS[tens], UNITS[units])),
    }
    words.join(" ")
}

/// A number at the beginning of some words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parsed {
    /// Its value.
    pub(crate) value: f64,
    /// How many words it takes.
    pub(crate) words: usize,
}

/// The longest number that `words` (lower case, without punctuation, digits allowed) begin with:
/// `a hundred and twenty`, `minus two point five`, `two and a half`, `three quarters`, `1,000`.
pub(crate) fn number(words: &[&str]) -> Option<Parsed> {
    if matches!(words.first(), Some(&("minus" | "negative"))) {
        let Parsed { value, words } = number(&words[1..])?;
        return (value >= 0.0).then_some(Parsed { value: -value, words: words + 1 });
    }
    if let Some(fraction) = fraction(words) {
        return Some(fraction);
    }
    if let Some(&first) = words.first()
        && let Some(value) = decimal_digits(first)
    {
        // `2.5 million`, `1.5 thousand`
        return Some(match words.get(1).and_then(|w| scale(w)) {
            Some(scale) => Parsed { value: value * scale as f64, words: 2 },
            None => Parsed { value, words: 1 },
        });
    }
    let (whole, mut used) = match whole(words) {
        Some(found) => found,
        None if words.first() == Some(&"point") => (0, 0),
        None => return None,
    };
    let mut value = whole as f64;
    if words.get(used) == Some(&"point") {
        let digits: String =
            words[used + 1..].iter().map_while(|w| decimal_place(w)).take(12).collect();
        if digits.is_empty() {
            return (used > 0).then_some(Parsed { value, words: used });
        }
        let places = words[used + 1..].iter().take_while(|w| decimal_place(w).is_some()).count();
        used += 1 + places.min(12);
        value = format!("{whole}.{digits}").parse().unwrap_or(value);
        if let Some(scale) = words.get(used).and_then(|w| scale(w)) {
            return Some(Parsed { value: value * scale as f64, words: used + 1 });
        }
    } else if words.get(used) == Some(&"and")
        && let Some(part) = fraction(&words[used + 1..])
        && part.value < 1.0
    {
        return Some(Parsed { value: value + part.value, words: used + 1 + part.words });
    }
    Some(Parsed { value, words: used })
}

/// The ordinal that `words` begin with: `first`, `twenty third`, `3rd`.
pub(crate) fn ordinal(words: &[&str]) -> Option<Parsed> {
    let &first = words.first()?;
    if let Some(digits) =
        ["st", "nd", "rd", "th"].iter().find_map(|suffix| first.strip_suffix(suffix))
        && !digits.is_empty()
        && digits.len() < 10
        && digits.bytes().all(|b| b.is_ascii_digit())
    {
        return Some(Parsed { value: digits.parse().ok()?, words: 1 });
    }
    if let Some(value) = ordinal_word(first) {
        return Some(Parsed { value: value as f64, words: 1 });
    }
    let tens = TENS.iter().position(|&t| !t.is_empty() && t == first)?;
    let unit = ordinal_word(words.get(1)?).filter(|unit| (1..10).contains(unit))?;
    Some(Parsed { value: (tens as u64 * 10 + unit) as f64, words: 2 })
}

/// Whether `word` is part of a number wherever it stands.
pub(crate) fn is_number_word(word: &str) -> bool {
    decimal_digits(word).is_some()
        || UNITS.contains(&word)
        || (!word.is_empty() && TENS.contains(&word))
        || word == "hundred"
        || scale(word).is_some()
}

/// A number as it is written: no more than three places, no trailing zeros, no negative zero.
pub(crate) fn written(value: f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The value of digits with optional thousands separators and decimals.
fn decimal_digits(word: &str) -> Option<f64> {
    let (whole, places) = word.split_once('.').unwrap_or((word, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let plain: String = whole.chars().filter(|&c| c != ',').collect();
    if plain.len() > 15 || places.len() > 15 || !digits(&plain) || !digits(places) {
        return None;
    }
    format!("{plain}.{places}").parse().ok()
}

fn decimal_place(word: &str) -> Option<char> {
    if word == "oh" {
        return Some('0');
    }
    let digit = UNITS[..10].iter().position(|&unit| unit == word);
    match digit {
        Some(digit) => char::from_digit(digit as u32, 10),
        None => {
            let mut chars = word.chars();
            chars.next().filter(|c| c.is_ascii_digit() && chars.next().is_none())
        }
    }
}

fn scale(word: &str) -> Option<u64> {
    SCALES.iter().find(|(name, _)| *name == word).map(|&(_, scale)| scale)
}

/// What may follow in a group of up to three digits.
#[derive(Clone, Copy, PartialEq)]
enum After {
    Nothing,
    Unit,
    Teen,
    Tens,
    Hundred,
    Full,
    Scale,
}

/// The longest whole number that `words` begin with, and the number of words.
fn whole(words: &[&str]) -> Option<(u64, usize)> {
    match *words {
        ["a", "dozen", ..] | ["one", "dozen", ..] => return Some((12, 2)),
        ["a", "couple", "of", ..] => return Some((2, 3)),
        ["a", "couple", ..] => return Some((2, 2)),
        _ => {}
    }
    let (mut total, mut group, mut least_scale) = (0u64, 0u64, u64::MAX);
    let mut after = After::Nothing;
    let mut found = None;
    let mut at = 0;
    while let Some(&word) = words.get(at) {
        let joins = matches!(after, After::Hundred | After::Scale);
        if word == "and" && joins && words.get(at + 1).is_some_and(|w| small(w).is_some()) {
            at += 1;
            continue;
        }
        if let Some(value) = small(word) {
            let fits = match after {
                After::Nothing => true,
                After::Scale | After::Hundred => {
                    value > 0 && (value < 100 || after == After::Scale)
                }
                After::Tens => (1..10).contains(&value),
                After::Unit | After::Teen | After::Full => false,
            };
            if !fits || (after == After::Scale && value >= 1000) {
                break;
            }
            group += value;
            after = match value {
                0 => After::Full,
                1..10 if matches!(after, After::Nothing | After::Scale) => After::Unit,
                10..20 if matches!(after, After::Nothing | After::Scale) => After::Teen,
                20..100 if value % 10 == 0 => After::Tens,
                _ => After::Full,
            };
        } else if matches!(word, "a" | "an") && at == 0 {
            let next = words.get(1)?;
            if *next != "hundred" && scale(next).is_none() {
                return None;
            }
            group = 1;
            after = After::Unit;
            at += 1;
            continue; // `a` alone is no number
        } else if word == "hundred" && matches!(after, After::Unit | After::Teen) {
            group *= 100;
            after = After::Hundred;
        } else if let Some(scale) = scale(word)
            && group > 0
            && scale < least_scale
        {
            total = total.checked_add(group.checked_mul(scale)?)?;
            (group, least_scale, after) = (0, scale, After::Scale);
        } else {
            break;
        }
        at += 1;
        found = Some((total.checked_add(group)?, at));
    }
    found
}

/// A number of one word below a hundred, or whole digits.
fn small(word: &str) -> Option<u64> {
    if let Some(unit) = UNITS.iter().position(|&unit| unit == word) {
        return Some(unit as u64);
    }
    if let Some(tens) = TENS.iter().position(|&t| !t.is_empty() && t == word) {
        return Some(tens as u64 * 10);
    }
    if word.contains('.') {
        return None;
    }
    decimal_digits(word).map(|value| value as u64)
}

/// A fraction: `half`, `a quarter`, `three quarters`, `two thirds`.
fn fraction(words: &[&str]) -> Option<Parsed> {
    let part = |word: &str| match word {
        "half" | "halves" => Some(0.5),
        "third" | "thirds" => Some(1.0 / 3.0),
        "quarter" | "quarters" => Some(0.25),
        _ => None,
    };
    match *words {
        ["half", ..] => Some(Parsed { value: 0.5, words: 1 }),
        ["quarter", ..] => Some(Parsed { value: 0.25, words: 1 }),
        ["a", word, ..] => part(word).map(|value| Parsed { value, words: 2 }),
        [count, word @ ("third" | "quarter" | "thirds" | "quarters"), ..] => {
            let count = small(count).filter(|count| (1..10).contains(count))?;
            Some(Parsed { value: count as f64 * part(word)?, words: 2 })
        }
        _ => None,
    }
}

fn ordinal_word(word: &str) -> Option<u64> {
    const IRREGULAR: [(&str, u64); 8] = [
        ("first", 1),
        ("second", 2),
        ("third", 3),
        ("fifth", 5),
        ("eighth", 8),
        ("ninth", 9),
        ("twelfth", 12),
        ("hundredth", 100),
    ];
    if let Some(&(_, value)) = IRREGULAR.iter().find(|(name, _)| *name == word) {
        return Some(value);
    }
    if let Some(stem) = word.strip_suffix("ieth") {
        let tens = TENS.iter().position(|t| t.strip_suffix('y') == Some(stem))?;
        return Some(tens as u64 * 10);
    }
    let stem = word.strip_suffix("th")?;
    let unit = UNITS.iter().position(|&unit| unit == stem)?;
    (unit > 0).then_some(unit as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Option<(f64, usize)> {
        let words: Vec<&str> = text.split_whitespace().collect();
        number(&words).map(|parsed| (parsed.value, parsed.words))
    }

    #[test]
    fn numbers_are_read_as_they_are_said() {
        for (text, value) in [
            ("zero", 0.0),
            ("a hundred and twenty", 120.0),
            ("nineteen hundred", 1900.0),
            ("two thousand and five", 2005.0),
            ("twenty five", 25.0),
            ("two point five", 2.5),
            ("zero point oh five", 0.05),
            ("point five", 0.5),
            ("two and a half", 2.5),
            ("three quarters", 0.75),
            ("half", 0.5),
            ("minus seven", -7.0),
            ("1,000", 1000.0),
            ("2.5", 2.5),
            ("1.5 million", 1_500_000.0),
            ("20 thousand", 20_000.0),
            ("a dozen", 12.0),
            ("a couple of", 2.0),
        ] {
            assert_eq!(parse(text), Some((value, text.split(' ').count())), "{text}");
        }
    }

    #[test]
    fn a_number_ends_where_the_next_begins() {
        assert_eq!(parse("five ten"), Some((5.0, 1)));
        assert_eq!(parse("five and ten"), Some((5.0, 1)));
        assert_eq!(parse("one hundred and eggs"), Some((100.0, 2)));
        assert_eq!(parse("two point"), Some((2.0, 1)));
        assert_eq!(parse("a timer"), None);
        assert_eq!(parse("eggs"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn ordinals_are_read() {
        for (text, value) in
            [("first", 1.0), ("third", 3.0), ("twelfth", 12.0), ("twentieth", 20.0), ("3rd", 3.0)]
        {
            assert_eq!(ordinal(&[text]).unwrap().value, value, "{text}");
        }
        assert_eq!(ordinal(&["twenty", "third"]), Some(Parsed { value: 23.0, words: 2 }));
        assert_eq!(ordinal(&["with"]), None);
    }

    #[test]
    fn written_numbers_are_short() {
        assert_eq!(written(2.50), "2.5");
        assert_eq!(written(100.0), "100");
        assert_eq!(written(-0.0), "0");
    }

    proptest! {
        #[test]
        fn what_is_said_is_read_again(n in 0u64..=1_000_000) {
            let text = cardinal(n).replace('-', " ");
            prop_assert_eq!(parse(&text), Some((n as f64, text.split(' ').count())));
        }

        #[test]
        fn any_words_are_survived(words in proptest::collection::vec("[a-z0-9.,]{0,8}|and|point|hundred|million|half|trillion", 0..12)) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Some(parsed) = number(&words) {
                prop_assert!(parsed.words <= words.len() && parsed.value.is_finite());
            }
            let _ = ordinal(&words);
        }
    }
}
