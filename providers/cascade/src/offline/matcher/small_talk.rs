//! What is said in every conversation: yes, no, help, thanks.

use super::words::{self, Kind, Word};

/// What is understood whatever the tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BuiltIn {
    Yes,
    No,
    Cancel,
    Repeat,
    Help,
    Thanks,
    Hello,
    Goodbye,
}

/// What `words` mean whatever the tools, if they mean that and nothing else.
pub(super) fn built_in(words: &[Word]) -> Option<BuiltIn> {
    const MOST_WORDS: usize = 8;
    if words.len() > MOST_WORDS {
        return None;
    }
    let joined = |words: &mut dyn Iterator<Item = &Word>| {
        words.map(|word| word.norm.as_str()).collect::<Vec<_>>().join(" ")
    };
    let all = joined(&mut words.iter());
    let meant = joined(&mut words.iter().filter(|word| words::kind_of(&word.norm) != Kind::Filler));
    known(&meant).or_else(|| known(&all))
}

fn known(text: &str) -> Option<BuiltIn> {
    Some(match text {
        "yes" | "yeah" | "yep" | "yup" | "sure" | "of course" | "yes do it" | "do it"
        | "correct" | "that is right" | "right" | "ok" | "okay" | "alright" | "all right"
        | "go ahead" | "yes go ahead" | "absolutely" => BuiltIn::Yes,
        "no" | "nope" | "nah" | "no way" | "do not" | "no do not" | "not now" => BuiltIn::No,
        "cancel" | "cancel that" | "cancel it" | "stop" | "stop it" | "stop that"
        | "never mind" | "nevermind" | "forget it" | "forget that" | "forget about it"
        | "leave it" | "no cancel" | "no stop" | "no never mind" | "no forget it" | "abort"
        | "quiet" | "be quiet" => BuiltIn::Cancel,
        "repeat"
        | "repeat that"
        | "repeat it"
        | "say that again"
        | "say it again"
        | "say again"
        | "again"
        | "pardon"
        | "pardon me"
        | "what"
        | "what did you say"
        | "what was that"
        | "can you repeat that"
        | "could you repeat that"
        | "could you say that again"
        | "can you say that again"
        | "come again"
        | "once more"
        | "sorry" => BuiltIn::Repeat,
        "help"
        | "help me"
        | "what can you do"
        | "what can i do"
        | "what can i say"
        | "what can i ask"
        | "what can i ask you"
        | "what do you do"
        | "what are you able to do"
        | "what can you do for me"
        | "what can you help me with"
        | "how can you help me"
        | "what else can you do"
        | "i need help" => BuiltIn::Help,
        "thanks"
        | "thank you"
        | "thanks a lot"
        | "thank you very much"
        | "many thanks"
        | "thank you so much"
        | "great thanks"
        | "great thank you"
        | "cheers"
        | "no thanks"
        | "no thank you"
        | "that is all"
        | "that is all thanks"
        | "that is all thank you" => BuiltIn::Thanks,
        "hello" | "hi" | "hey" | "hi there" | "hello there" | "hey there" | "good morning"
        | "good afternoon" | "good evening" => BuiltIn::Hello,
        "goodbye" | "good bye" | "bye" | "bye bye" | "see you" | "see you later" | "good night" => {
            BuiltIn::Goodbye
        }
        _ => return None,
    })
}
