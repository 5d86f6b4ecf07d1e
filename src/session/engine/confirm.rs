//! Yes or no, in English and German, from what a recogniser made of it.

/// The user's answer to a read-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// Something else. Counts as no: what is to be done must be asked for again.
    Neither,
}

const YES: &[&str] = &[
    "yes",
    "yeah",
    "yep",
    "yup",
    "yea",
    "ya",
    "aye",
    "sure",
    "ok",
    "okay",
    "correct",
    "right",
    "confirm",
    "confirmed",
    "absolutely",
    "certainly",
    "definitely",
    "affirmative",
    "exactly",
    "agreed",
    "ahead",
    "course",
    "ja",
    "jawohl",
    "jep",
    "jo",
    "genau",
    "richtig",
    "klar",
    "gerne",
    "gern",
    "stimmt",
    "korrekt",
    "einverstanden",
    "passt",
    "bestätigt",
    "bestätige",
    "natürlich",
    "sicher",
];

const NO: &[&str] = &[
    "no",
    "nope",
    "nah",
    "not",
    "don't",
    "dont",
    "never",
    "stop",
    "cancel",
    "wrong",
    "incorrect",
    "negative",
    "wait",
    "abort",
    "nein",
    "nee",
    "nö",
    "nicht",
    "niemals",
    "stopp",
    "halt",
    "abbrechen",
    "abbruch",
    "falsch",
    "warte",
    "lass",
    "kein",
    "keine",
];

/// Words that change nothing beside a yes.
const FILLERS: &[&str] = &[
    "please", "thanks", "thank", "you", "do", "it", "that", "that's", "thats", "is", "the", "go",
    "of", "um", "uh", "ah", "oh", "well", "i", "just", "so", "fine", "good", "all", "bitte",
    "danke", "das", "mach", "mache", "tu", "es", "ich", "äh", "ähm", "na", "doch", "gut", "alles",
    "send", "sende",
];

/// Judges an answer. A yes must be nothing but a yes: whoever adds an amount or a name means
/// something else than what was read back.
pub(crate) fn parse(text: &str) -> Answer {
    let lower = text.to_lowercase().replace('’', "'");
    let words: Vec<&str> = lower
        .split(|c: char| !c.is_alphanumeric() && c != '\'')
        .map(|word| word.trim_matches('\''))
        .filter(|word| !word.is_empty())
        .collect();
    if words.iter().any(|word| NO.contains(word)) {
        return Answer::No;
    }
    let agrees = words.iter().any(|word| YES.contains(word))
        || matches!(words[..], ["do", "it"] | ["please", "do"] | ["do", "it", "please"])
        || matches!(words[..], ["mach", "das"] | ["mach", "es"]);
    let nothing_else = words.iter().all(|word| YES.contains(word) || FILLERS.contains(word));
    if agrees && nothing_else { Answer::Yes } else { Answer::Neither }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_yes_in_either_language() {
        for text in [
            "Yes.",
            "yes please",
            "Yeah, go ahead!",
            "OK",
            "That's right",
            "That’s correct.",
            "Do it.",
            "Sure, do it",
            "Ja",
            "Ja, bitte.",
            "Genau so",
            "Mach das.",
            "of course",
        ] {
            assert_eq!(parse(text), Answer::Yes, "{text}");
        }
    }

    #[test]
    fn a_no_wins_over_a_yes() {
        for text in [
            "No.",
            "no thanks",
            "Yes, no, wait",
            "don't do it",
            "that's not right",
            "Nein danke",
            "Bitte nicht",
            "cancel that",
            "Stop!",
        ] {
            assert_eq!(parse(text), Answer::No, "{text}");
        }
    }

    #[test]
    fn anything_else_is_neither() {
        for text in ["", "...", "what time is it", "yes but make it ten euros", "send it to Bob"] {
            assert_eq!(parse(text), Answer::Neither, "{text}");
        }
    }
}
