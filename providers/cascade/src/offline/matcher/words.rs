//! What was said, as words: lower case, contractions written out, punctuation gone.

use super::super::numbers;

/// More words than this in one utterance are not looked at.
pub(super) const MAX_WORDS: usize = 80;

/// What a word is worth to the understanding of a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Carries meaning: one that is left over is a sign of misunderstanding.
    Content,
    /// Asks: `what`, `how`.
    Question,
    /// Glue: articles, prepositions, pronouns, forms of `be`.
    Function,
    /// Means nothing: `please`, `um`, `could you`.
    Filler,
    /// Turns the meaning round: `not`, `never`.
    Negation,
    /// A number.
    Number,
}

/// One word.
#[derive(Clone, Debug)]
pub(super) struct Word {
    /// Lower case, without punctuation.
    pub(super) norm: String,
    /// As it stood in the text, for names and free text. Empty for the tail of a contraction.
    pub(super) original: String,
    pub(super) kind: Kind,
    /// A sentence ended before it.
    pub(super) boundary: bool,
}

/// The words of `text`, and whether some were left out because there were too many.
pub(super) fn words(text: &str) -> (Vec<Word>, bool) {
    let mut words: Vec<Word> = Vec::new();
    let mut boundary = false;
    for raw in text.split_whitespace() {
        if words.len() >= MAX_WORDS {
            return (words, true);
        }
        let before = words.len();
        split_token(raw, &mut words);
        if let Some(first) = words.get_mut(before) {
            first.boundary = boundary;
            boundary = false;
        }
        boundary |= raw.ends_with(['.', '?', '!', ';']);
    }
    words.truncate(MAX_WORDS);
    mark_frames(&mut words);
    (words, false)
}

/// Whether `word` is glue or filler wherever it stands.
pub(super) fn kind_of(word: &str) -> Kind {
    match word {
        "not" | "never" | "without" => Kind::Negation,
        "um" | "uh" | "uhm" | "erm" | "hmm" | "mm" | "please" | "hey" | "okay" | "ok" | "just"
        | "actually" | "kindly" | "hi" | "hello" | "well" | "alright" | "oh" | "ah" => Kind::Filler,
        "a" | "an" | "the" | "to" | "for" | "of" | "in" | "at" | "by" | "with" | "is" | "are"
        | "am" | "be" | "was" | "it" | "its" | "this" | "that" | "these" | "those" | "my"
        | "me" | "i" | "you" | "your" | "we" | "us" | "our" | "do" | "does" | "did" | "and"
        | "or" | "so" | "there" | "will" | "would" | "can" | "could" | "shall" | "should"
        | "have" | "has" | "some" | "any" | "now" | "then" | "from" | "as" | "right" | "here"
        | "also" | "want" | "need" | "like" => Kind::Function,
        "what" | "how" | "when" | "where" | "who" | "which" | "why" => Kind::Question,
        _ if numbers::is_number_word(word) => Kind::Number,
        _ => Kind::Content,
    }
}

/// Openings that only make a request polite.
const FRAMES: [&[&str]; 21] = [
    &["could", "you"],
    &["can", "you"],
    &["would", "you"],
    &["will", "you"],
    &["can", "i", "have"],
    &["could", "i", "have"],
    &["i", "want", "you", "to"],
    &["i", "want", "to"],
    &["i", "want"],
    &["i", "would", "like", "you", "to"],
    &["i", "would", "like", "to"],
    &["i", "would", "like"],
    &["i", "need", "you", "to"],
    &["i", "need", "to"],
    &["i", "need"],
    &["let", "us"],
    &["go", "ahead", "and"],
    &["do", "you", "know"],
    &["would", "you", "mind"],
    &["tell", "me"],
    &["thank", "you"],
];

pub(super) fn mark_frames(words: &mut [Word]) {
    let mut at = 0;
    while at < words.len() {
        if words[at].kind == Kind::Filler {
            at += 1;
            continue;
        }
        let rest = &words[at..];
        let fits = |frame: &&&[&str]| {
            rest.len() > frame.len() && frame.iter().zip(rest).all(|(f, w)| *f == w.norm)
        };
        let Some(frame) = FRAMES.iter().filter(fits).max_by_key(|frame| frame.len()) else { break };
        let end = at + frame.len();
        words[at..end].iter_mut().for_each(|word| word.kind = Kind::Filler);
        at = end;
    }
}

/// Adds a word as it is said, if there is one.
pub(super) fn push(words: &mut Vec<Word>, norm: &str, original: &str) {
    if norm.is_empty() {
        return;
    }
    let norm = match norm {
        // Small numbers read the same written and said.
        digits if digits.len() <= 2 && digits.bytes().all(|b| b.is_ascii_digit()) => {
            match digits.parse::<u64>() {
                Ok(n) if n <= 20 || n % 10 == 0 => numbers::cardinal(n),
                _ => digits.to_owned(),
            }
        }
        _ => norm.to_owned(),
    };
    let kind = kind_of(&norm);
    words.push(Word { norm, original: original.to_owned(), kind, boundary: false });
}

fn split_token(raw: &str, words: &mut Vec<Word>) {
    let token = raw.replace(['’', '‘'], "'");
    let mut token = token.trim_matches(|c: char| {
        !c.is_alphanumeric() && !matches!(c, '$' | '€' | '£' | '%' | '°' | '-' | '+')
    });
    // `$5`, `€2.50`, `5€`
    let mut tail = None;
    for (symbol, name) in [('$', "dollars"), ('€', "euros"), ('£', "pounds"), ('%', "percent")]
        .into_iter()
        .chain([('°', "degrees")])
    {
        if let Some(rest) = token.strip_prefix(symbol).or_else(|| token.strip_suffix(symbol)) {
            (token, tail) = (rest, Some(name));
        }
    }
    let lower = token.to_lowercase();
    let negative = lower.strip_prefix('-').filter(|t| t.starts_with(|c: char| c.is_ascii_digit()));
    if negative.is_some() {
        push(words, "minus", "minus");
    }
    let lower = negative.unwrap_or(&lower).trim_matches(|c: char| !c.is_alphanumeric());
    match lower {
        "a.m" => push(words, "am", token),
        "p.m" => push(words, "pm", token),
        _ if is_digits_with(lower, &[':', '.', ',']) => {
            let plain = if is_grouped(lower) { lower.replace(',', "") } else { lower.to_owned() };
            push(words, &plain, token);
        }
        _ => {
            let parts: Vec<&str> =
                lower.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '.').collect();
            let originals: Vec<&str> =
                token.split(|c: char| !c.is_alphanumeric() && c != '\'' && c != '.').collect();
            let same = parts.len() == originals.len();
            for (index, part) in parts.iter().enumerate() {
                split_word(part, if same { originals[index] } else { part }, words);
            }
        }
    }
    if let Some(name) = tail {
        push(words, name, name);
    }
}

/// `7pm`, `5min`, contractions; anything else is one word.
fn split_word(word: &str, original: &str, words: &mut Vec<Word>) {
    let digits = word.bytes().take_while(u8::is_ascii_digit).count();
    let suffix = &word[digits..];
    if digits > 0
        && !suffix.is_empty()
        && suffix.chars().all(char::is_alphabetic)
        && !matches!(suffix, "st" | "nd" | "rd" | "th")
    {
        push(words, &word[..digits], &word[..digits]);
        push(words, suffix, suffix);
        return;
    }
    let clean: String = word.chars().filter(|c| c.is_alphanumeric() || *c == '\'').collect();
    let word = clean.trim_matches('\'');
    match word {
        "can't" | "cannot" => return pair(words, "can", "not", original),
        "won't" => return pair(words, "will", "not", original),
        "let's" => return pair(words, "let", "us", original),
        "wanna" => return pair(words, "want", "to", original),
        "gonna" => return pair(words, "going", "to", original),
        "gimme" => return pair(words, "give", "me", original),
        "o'clock" => return push(words, word, original),
        _ => {}
    }
    let pronoun = |stem: &str| {
        matches!(
            stem,
            "what"
                | "that"
                | "it"
                | "how"
                | "where"
                | "when"
                | "who"
                | "there"
                | "here"
                | "he"
                | "she"
        )
    };
    for (ending, second) in
        [("n't", "not"), ("'m", "am"), ("'re", "are"), ("'ve", "have"), ("'ll", "will")]
            .into_iter()
            .chain([("'d", "would"), ("'s", "is")])
    {
        if let Some(stem) = word.strip_suffix(ending)
            && !stem.is_empty()
            && (ending != "'s" || pronoun(stem))
        {
            return pair(words, stem, second, original);
        }
    }
    push(words, word, original);
}

fn pair(words: &mut Vec<Word>, first: &str, second: &str, original: &str) {
    push(words, first, original);
    push(words, second, "");
}

fn is_digits_with(text: &str, extra: &[char]) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || extra.contains(&c))
}

/// `1,000` and `12,345,678`.
fn is_grouped(text: &str) -> bool {
    let whole = text.split('.').next().unwrap_or(text);
    whole.contains(',') && whole.split(',').skip(1).all(|group| group.len() == 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norms(text: &str) -> Vec<String> {
        words(text).0.into_iter().map(|word| word.norm).collect()
    }

    #[test]
    fn writing_is_levelled() {
        assert_eq!(norms("What’s the time?"), ["what", "is", "the", "time"]);
        assert_eq!(norms("A 5-minute timer."), ["a", "five", "minute", "timer"]);
        assert_eq!(norms("Wake me at 7:30 p.m."), ["wake", "me", "at", "7:30", "pm"]);
        assert_eq!(norms("at 7pm"), ["at", "seven", "pm"]);
        assert_eq!(norms("Pay $2.50, 50%!"), ["pay", "2.50", "dollars", "fifty", "percent"]);
        assert_eq!(norms("-5 and 1,000"), ["minus", "five", "and", "1000"]);
        assert_eq!(norms("Don't! … — "), ["do", "not"]);
        assert!(norms("?! ... ''").is_empty());
    }

    #[test]
    fn politeness_means_nothing() {
        let (words, _) = words("Hey, could you please set it?");
        let kinds: Vec<Kind> = words.iter().map(|word| word.kind).collect();
        assert_eq!(kinds[..4], [Kind::Filler; 4]);
        assert_eq!(kinds[4], Kind::Content);
    }

    #[test]
    fn sentences_leave_their_mark() {
        let (words, _) = words("Stop. What time is it?");
        assert!(words[1].boundary && !words[0].boundary && !words[2].boundary);
    }

    #[test]
    fn a_flood_is_cut() {
        let (words, cut) = words(&"word ".repeat(10_000));
        assert!(cut && words.len() == MAX_WORDS);
    }
}
