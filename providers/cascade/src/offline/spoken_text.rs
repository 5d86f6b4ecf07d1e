//! Written text as a person would read it aloud: numbers, times, dates, money, units, symbols and
//! abbreviations become words.

mod number;
mod reading;

use reading::{Word, read};

/// The text with everything that is not words written out. Line ends become sentence ends.
pub(super) fn written_out(text: &str) -> String {
    let lines = text.lines().map(written_line).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// The sentences of a text that was written out.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let mut sentences = Vec::new();
    for line in text.lines() {
        let mut sentence = String::new();
        let mut words = line.split_whitespace().peekable();
        while let Some(word) = words.next() {
            if !sentence.is_empty() {
                sentence.push(' ');
            }
            sentence.push_str(word);
            if words.peek().is_some_and(|next| ends_sentence(word, next)) {
                sentences.push(std::mem::take(&mut sentence));
            }
        }
        if !sentence.is_empty() {
            sentences.push(sentence);
        }
    }
    sentences
}

fn ends_sentence(word: &str, next: &str) -> bool {
    let bare = word.trim_end_matches(['"', '\'', ')', ']', '”', '’']);
    if !bare.ends_with(['.', '!', '?', '…']) {
        return false;
    }
    // "J. K. Rowling", "he asked? said": an initial or a small letter goes on.
    let initial = bare.len() == 2 && bare.starts_with(|c: char| c.is_ascii_uppercase());
    let dotted = bare.trim_end_matches('.').contains('.');
    let goes_on = next.starts_with(char::is_lowercase);
    !goes_on && !(bare.ends_with('.') && (initial || dotted))
}

fn written_line(line: &str) -> String {
    let line = plain(line);
    let words: Vec<Word> = line.split_whitespace().map(Word::new).collect();
    let mut out = String::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let before = at.checked_sub(1).map(|i| &words[i]);
        let reading = read(before, &words[at..]);
        at += reading.taken;
        if reading.spoken.is_empty() {
            // The stop after something unspeakable is kept if there is something to stop.
            if out.ends_with(|c: char| c.is_alphanumeric()) {
                out.push_str(reading.close);
            }
            continue;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word.open);
        out.push_str(&reading.spoken);
        out.push_str(reading.close);
    }
    out
}

/// Typography that says nothing aloud is made plain.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    for c in line.chars() {
        match c {
            '\u{2018}' | '\u{2019}' | '\u{02bc}' => out.push('\''),
            '\u{201c}' | '\u{201d}' | '\u{ab}' | '\u{bb}' => out.push('"'),
            '\u{2212}' => out.push('-'),
            '\u{2014}' | '\u{2015}' => out.push_str(", "),
            // Mark-up, and what cannot be seen.
            '*' | '`' | '|' | '~' if !out.ends_with(|c: char| c.is_ascii_digit()) => {}
            '\u{200b}'..='\u{200f}' | '\u{feff}' | '\u{fe0f}' => {}
            c if c.is_control() => out.push(' '),
            c if is_picture(c) => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn is_picture(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{21ff}' | '\u{2300}'..='\u{27bf}' | '\u{2b00}'..='\u{2bff}' | '\u{1f000}'..='\u{1faff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(cases: &[(&str, &str)]) {
        for (written, spoken) in cases {
            assert_eq!(&written_out(written), spoken, "{written}");
        }
    }

    #[test]
    fn plain_sentences_stay_as_they_are() {
        let text = "Don't worry, it's \"fine\" (really)! Shall we go?";
        assert_eq!(written_out(text), text);
    }

    #[test]
    fn times() {
        check(&[
            ("It is 7:30.", "It is seven thirty."),
            ("At 7:05 am, at 12:00.", "At seven oh five A.M., at twelve o'clock."),
            ("From 9:00pm on", "From nine P.M. on"),
            ("at 5 p.m. today", "at five P.M. today"),
            ("at 14:30:05", "at fourteen thirty and five seconds"),
            ("at 18:00", "at eighteen hundred"),
            ("at 00:15", "at zero fifteen"),
            ("score 99:99", "score ninety-nine to ninety-nine"),
        ]);
    }

    #[test]
    fn money() {
        check(&[
            ("$5", "five dollars"),
            ("$1.", "one dollar."),
            ("Pay $2.50 now", "Pay two dollars and fifty cents now"),
            ("£1,200", "one thousand two hundred pounds"),
            ("€0.99", "ninety-nine cents"),
            ("£0.01", "one penny"),
            ("-$5", "minus five dollars"),
            ("$2.5 million,", "two point five million dollars,"),
            ("$3M", "three million dollars"),
            ("5 USD", "five dollars"),
            ("12€", "twelve euros"),
            ("$900 for Bob", "nine hundred dollars for Bob"),
        ]);
    }

    #[test]
    fn numbers() {
        check(&[
            ("5 minutes", "five minutes"),
            ("1,234,567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
            ("3.14", "three point one four"),
            ("-7", "minus seven"),
            ("0", "zero"),
            ("the 21st, 3rd and 12th", "the twenty-first, third and twelfth"),
            ("20%", "twenty percent"),
            ("1/2 cup", "one half cup"),
            ("2½ cups", "two and a half cups"),
            ("3/4", "three quarters"),
            ("5-10 people", "five to ten people"),
            ("call 555-0199", "call five five five, zero one nine nine"),
            ("room 007", "room zero zero seven"),
            ("version 1.2.3", "version one point two point three"),
            ("#4", "number four"),
            ("No. 4", "number four"),
            ("the 1990s", "the nineteen nineties"),
            ("4x", "four times"),
            ("2 + 2 = 4", "two plus two equals four"),
            ("B2", "B two"),
            (
                "123456789012345678901",
                "one two three four five six seven eight nine zero one two three four five six seven eight nine zero one",
            ),
        ]);
    }

    #[test]
    fn years_and_dates() {
        check(&[
            ("in 1984", "in nineteen eighty-four"),
            ("since 2007", "since two thousand seven"),
            ("in 2026.", "in twenty twenty-six."),
            ("in 1900", "in nineteen hundred"),
            ("2026-06-05", "June fifth, twenty twenty-six"),
            ("12/25/2025", "December twenty-fifth, twenty twenty-five"),
            ("June 5, 2026", "June fifth, twenty twenty-six"),
            ("on 5 June", "on five June"),
            ("2026-06-05T07:30:00Z", "June fifth, twenty twenty-six, seven thirty"),
            ("1500 meters", "one thousand five hundred meters"),
        ]);
    }

    #[test]
    fn units() {
        check(&[
            ("20°C", "twenty degrees Celsius"),
            ("-3 °F", "minus three degrees Fahrenheit"),
            ("1°", "one degree"),
            ("5 km", "five kilometers"),
            ("1 km.", "one kilometer."),
            ("3.5kg", "three point five kilograms"),
            ("60 mph", "sixty miles per hour"),
            ("100 km/h", "one hundred kilometers per hour"),
            ("16 GB", "sixteen gigabytes"),
            ("30 min", "thirty minutes"),
        ]);
    }

    #[test]
    fn abbreviations_and_symbols() {
        check(&[
            ("Dr. Smith and Mrs. Jones", "Doctor Smith and Missus Jones"),
            ("e.g. tea & cake, etc.", "for example tea and cake, et cetera."),
            ("and/or", "and or"),
            ("bob@example.com", "bob at example dot com"),
            ("see https://example.com/a_b", "see example dot com slash a b"),
            ("set_timer", "set timer"),
            ("**bold** `code`", "bold code"),
            ("- one\n- two", "one\ntwo"),
            ("Done ✅", "Done"),
            ("rock 🎸 on.", "rock on."),
        ]);
    }

    #[test]
    fn sentences_end_where_they_should() {
        let text = written_out("It is 7:30 a.m. now. Dr. Who? \"Yes!\" he said. J. K. left\nbye");
        assert_eq!(
            sentences(&text),
            [
                "It is seven thirty A.M. now.",
                "Doctor Who?",
                "\"Yes!\" he said.",
                "J. K. left",
                "bye"
            ]
        );
        assert!(sentences("  \n ").is_empty());
    }

    proptest! {
        #[test]
        fn nothing_panics_and_no_digit_stays(text in "\\PC{0,60}") {
            let spoken = written_out(&text);
            prop_assert!(!spoken.bytes().any(|b| b.is_ascii_digit()), "{}", spoken);
            sentences(&spoken);
        }

        #[test]
        fn odd_mixtures_do_not_panic(
            text in "([0-9]{1,3}|[.,:/$%#°£€½-]|am|pm|km|st|th|M| |[a-c]){0,14}"
        ) {
            let spoken = written_out(&text);
            prop_assert!(!spoken.bytes().any(|b| b.is_ascii_digit()), "{}", spoken);
        }
    }
}
