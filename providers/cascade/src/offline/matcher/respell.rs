//! What else a recogniser may have written these words for.

use super::{
    super::{numbers, phonemes::Phonemes},
    catalog::{Catalog, Token},
    sounds::{self, Sound},
    words::{Kind, Word, kind_of, push},
};

/// Other words that a recogniser may have written these for, where numbers stand.
pub(super) fn numbers_respelled(words: &[Word]) -> Option<Vec<Word>> {
    let tens = with_tens(words);
    let apart = with_for_apart(tens.as_deref().unwrap_or(words));
    apart.or(tens)
}

/// The same words with `fifteen one`, which is no number, as `fifty one`.
fn with_tens(words: &[Word]) -> Option<Vec<Word>> {
    let value = |word: &Word| numbers::number(&[&word.norm]).map(|number| number.value);
    let mut mended = words.to_vec();
    for at in 1..words.len() {
        let (Some(teen), Some(unit)) = (value(&words[at - 1]), value(&words[at])) else { continue };
        if (13.0..20.0).contains(&teen) && (1.0..10.0).contains(&unit) && teen.fract() == 0.0 {
            mended[at - 1].norm = numbers::cardinal((teen as u64 - 10) * 10);
        }
    }
    let changed = mended.iter().zip(words).any(|(new, old)| new.norm != old.norm);
    changed.then_some(mended)
}

/// The same words with a `for` that melted into the number after it taken out again: recognisers
/// write `for twenty three` as `4.23`, `4:23`, `423` or `four twenty three`. `None` where nothing of
/// the kind stands, or a `for` was heard.
fn with_for_apart(words: &[Word]) -> Option<Vec<Word>> {
    if words.iter().any(|word| word.norm == "for") {
        return None;
    }
    let mut apart = Vec::with_capacity(words.len() + 1);
    let mut found = false;
    for (index, word) in words.iter().enumerate() {
        let before_number = words.get(index + 1).is_some_and(|next| next.kind == Kind::Number);
        let rest = match word.norm.as_str() {
            _ if found => None,
            "four" if before_number => Some(""),
            norm => norm.strip_prefix("4").map(|rest| rest.trim_start_matches(['.', ':'])),
        };
        let is_number = |rest: &str| {
            rest.len() == 2 && !rest.starts_with('0') && rest.bytes().all(|b| b.is_ascii_digit())
        };
        match rest {
            Some(rest) if rest.is_empty() && before_number || is_number(rest) => {
                let boundary = word.boundary;
                apart.push(Word {
                    norm: "for".into(),
                    original: String::new(),
                    kind: kind_of("for"),
                    boundary,
                });
                push(&mut apart, rest, &word.original);
                found = true;
            }
            _ => apart.push(word.clone()),
        }
    }
    found.then_some(apart)
}

/// The words with the beginning of a command taken apart again, where it melted into one or two
/// words that sound like it: `sabbatimer for` for `set a timer for`.
pub(super) fn beginning_apart(
    words: &[Word],
    catalog: &Catalog,
    phonemes: &Phonemes,
) -> Option<Vec<Word>> {
    let start = words.iter().position(|word| word.kind != Kind::Filler)?;
    let words = &words[start..];
    let mut best: Option<(f32, usize, Vec<&str>)> = None;
    let mut heard: Vec<Sound> = Vec::new();
    for word in words.iter().take(MOST_MELTED - 1) {
        let sound = sounds::sound(phonemes, &word.norm);
        let so_far = heard.last().map_or(&[][..], |sound| sound);
        heard.push([so_far, &sound].concat().into());
    }
    for phrase in &catalog.phrases {
        let literals = phrase.tokens.iter().map_while(|token| match token {
            Token::Literal(literal, _) => Some(&catalog.literals[*literal]),
            Token::Slot(_) => None,
        });
        let mut said: Vec<char> = Vec::new();
        let mut texts = Vec::new();
        for literal in literals.take(MOST_MELTED) {
            said.extend(&literal.sound);
            texts.push(literal.text.as_str());
            for (index, sound) in heard.iter().enumerate() {
                // Two words or more became fewer, and are long enough to be known again.
                if index + 1 >= texts.len() || said.len() < LEAST_MELTED {
                    continue;
                }
                let apart = sounds::distance(sound, &said);
                let better = best.as_ref().is_none_or(|(least, ..)| apart < *least);
                if apart <= MELTED && better {
                    best = Some((apart, index + 1, texts.clone()));
                }
            }
        }
    }
    let (_, melted, texts) = best?;
    let mut apart = Vec::with_capacity(words.len() + texts.len());
    for text in texts {
        push(&mut apart, text, text);
    }
    apart.extend_from_slice(&words[melted..]);
    Some(apart)
}

/// Words of a phrase that melt into one another, at most.
const MOST_MELTED: usize = 3;
/// Phonemes of those words, at least.
const LEAST_MELTED: usize = 6;
/// How far they may be from what was heard.
const MELTED: f32 = 0.3;

#[cfg(test)]
mod tests {
    use super::{super::words, *};

    #[test]
    fn a_for_that_melted_into_a_number_is_taken_out_again() {
        let apart = |text: &str| {
            let apart = with_for_apart(&words::words(text).0)?;
            Some(apart.iter().map(|word| word.norm.as_str()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(apart("timer 4.23 minutes").as_deref(), Some("timer for 23 minutes"));
        assert_eq!(apart("timer 4:37 minutes").as_deref(), Some("timer for 37 minutes"));
        assert_eq!(apart("timer 441 minutes").as_deref(), Some("timer for 41 minutes"));
        assert_eq!(apart("timer four twenty minutes").as_deref(), Some("timer for twenty minutes"));
        assert_eq!(apart("timer for 441 minutes"), None, "it was heard");
        assert_eq!(apart("timer 4 minutes"), None);
        assert_eq!(apart("timer 4.5 minutes"), None);
        assert_eq!(apart("timer 400 minutes"), None);
        assert_eq!(apart("timer 4123 minutes"), None);
    }

    #[test]
    fn a_teen_before_a_unit_is_ten_times_as_much() {
        let mended = |text: &str| {
            let mended = numbers_respelled(&words::words(text).0)?;
            Some(mended.iter().map(|word| word.norm.as_str()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(mended("15-1 minutes").as_deref(), Some("fifty one minutes"));
        assert_eq!(mended("nineteen nine").as_deref(), Some("ninety nine"));
        assert_eq!(mended("four fourteen two").as_deref(), Some("for forty two"));
        assert_eq!(mended("fifteen minutes"), None);
        assert_eq!(mended("twelve one"), None);
    }
}
