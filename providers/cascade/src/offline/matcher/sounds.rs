//! How alike two words sound.

use super::super::phonemes::Phonemes;

/// The phonemes of a word or of several in a row.
pub(super) type Sound = Box<[char]>;

/// The phonemes of `word`, from the lexicon or else by the rules of spelling.
pub(super) fn sound(phonemes: &Phonemes, word: &str) -> Sound {
    let found = phonemes.word(word).unwrap_or_else(|| spelled(word));
    found.chars().take(32).collect()
}

/// How far apart two sounds are: 0 is the same, 1 nothing in common.
pub(super) fn distance(a: &[char], b: &[char]) -> f32 {
    let longest = a.len().max(b.len());
    if longest == 0 {
        return 0.0;
    }
    if a == b {
        return 0.0;
    }
    // Lengths alone can rule it out.
    if a.len().min(b.len()) * 2 < longest {
        return 1.0;
    }
    let mut row = [0f32; 65];
    let width = b.len().min(64);
    for (j, &phoneme) in b.iter().take(width).enumerate() {
        row[j + 1] = row[j] + missing(phoneme);
    }
    for &x in a {
        let mut diagonal = row[0];
        row[0] += missing(x);
        for (j, &y) in b.iter().take(width).enumerate() {
            let best =
                (diagonal + replaced(x, y)).min(row[j + 1] + missing(x)).min(row[j] + missing(y));
            diagonal = row[j + 1];
            row[j + 1] = best;
        }
    }
    (row[width] / longest as f32).min(1.0)
}

/// What it costs that a phoneme is there in one word only.
fn missing(phoneme: char) -> f32 {
    match phoneme {
        'ə' | 'ᵊ' | 'ɐ' | 'h' => 0.5,
        'ɹ' | 'ɪ' | 't' | 'd' | 'T' => 0.8,
        _ => 1.0,
    }
}

fn replaced(a: char, b: char) -> f32 {
    if a == b {
        return 0.0;
    }
    let pair = |x, y| (a == x && b == y) || (a == y && b == x);
    let both = |set: &str| set.contains(a) && set.contains(b);
    if both("tdT") || both("əɐᵊʌ") || both("ɔɑɒ") || both("ɪiᵻə") {
        return 0.2;
    }
    let voicing =
        [('p', 'b'), ('k', 'ɡ'), ('s', 'z'), ('f', 'v'), ('θ', 'ð'), ('ʃ', 'ʒ'), ('ʧ', 'ʤ')];
    if voicing.iter().any(|&(x, y)| pair(x, y)) {
        return 0.3;
    }
    if both("mnŋ") || both("ɪɛæA") || both("ɔOʊ") || both("ʊu") || both("ʌɑæ") || both("ɜəɔ")
    {
        return 0.4;
    }
    let fricatives =
        [('f', 'θ'), ('v', 'ð'), ('s', 'θ'), ('z', 'ð'), ('s', 'ʃ'), ('l', 'ɹ'), ('w', 'ɹ')];
    if fricatives.iter().any(|&(x, y)| pair(x, y)) {
        return 0.5;
    }
    if both("AIOQWYaeiouæɑɐɒɔəɛɜɪʊʌᵊᵻ") { 0.7 } else { 1.0 }
}

/// The sound of a word that is in no lexicon, as its letters suggest.
fn spelled(word: &str) -> String {
    const GROUPS: [(&str, &str); 24] = [
        ("tion", "ʃən"),
        ("sch", "ʃ"),
        ("tch", "ʧ"),
        ("igh", "I"),
        ("sh", "ʃ"),
        ("ch", "ʧ"),
        ("th", "θ"),
        ("ph", "f"),
        ("ck", "k"),
        ("qu", "kw"),
        ("ng", "ŋ"),
        ("wh", "w"),
        ("ee", "i"),
        ("ea", "i"),
        ("ie", "i"),
        ("oo", "u"),
        ("ou", "W"),
        ("ow", "O"),
        ("ai", "A"),
        ("ay", "A"),
        ("oi", "Y"),
        ("oy", "Y"),
        ("au", "ɔ"),
        ("er", "əɹ"),
    ];
    let mut sound = String::new();
    let mut rest = word;
    let mut last = ' ';
    while let Some(letter) = rest.chars().next() {
        if let Some((letters, phonemes)) = GROUPS.iter().find(|(g, _)| rest.starts_with(g)) {
            sound.push_str(phonemes);
            rest = &rest[letters.len()..];
            last = ' ';
            continue;
        }
        rest = &rest[letter.len_utf8()..];
        if letter == last && letter.is_alphabetic() {
            continue; // double letters sound once
        }
        match letter {
            'a' => sound.push('æ'),
            'c' if rest.starts_with(['e', 'i', 'y']) => sound.push('s'),
            'c' | 'q' => sound.push('k'),
            'e' if rest.is_empty() && sound.chars().count() > 1 => {}
            'e' => sound.push('ɛ'),
            'g' => sound.push('ɡ'),
            'i' => sound.push('ɪ'),
            'j' => sound.push('ʤ'),
            'o' => sound.push('ɑ'),
            'r' => sound.push('ɹ'),
            'u' => sound.push('ʌ'),
            'x' => sound.push_str("ks"),
            'y' if sound.is_empty() => sound.push('j'),
            'y' => sound.push('i'),
            '\'' => {}
            other => sound.push(other),
        }
        last = letter;
    }
    sound
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(a: &str, b: &str) -> f32 {
        let phonemes = Phonemes::shared();
        distance(&sound(&phonemes, a), &sound(&phonemes, b))
    }

    #[test]
    fn words_that_are_misheard_are_near() {
        for (a, b) in
            [("set", "said"), ("light", "lied"), ("timer", "timers"), ("weather", "whether")]
        {
            assert!(between(a, b) < 0.3, "{a} {b}: {}", between(a, b));
        }
        for (a, b) in
            [("timer", "reminder"), ("on", "off"), ("weather", "window"), ("note", "play")]
        {
            assert!(between(a, b) > 0.4, "{a} {b}: {}", between(a, b));
        }
    }

    #[test]
    fn two_words_may_sound_as_one() {
        let phonemes = Phonemes::shared();
        let joined: Vec<char> = [sound(&phonemes, "time"), sound(&phonemes, "or")].concat();
        assert!(distance(&joined, &sound(&phonemes, "timer")) < 0.3);
    }

    #[test]
    fn unknown_words_sound_as_they_are_spelled() {
        assert_eq!(between("xqzzt", "xqzt"), 0.0);
        assert!(!sound(&Phonemes::shared(), "ωμέγα").is_empty());
    }
}
