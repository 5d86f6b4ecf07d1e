//! Tokens to text.

use std::ops::Range;

/// The vocabulary of a recogniser, read from Moonshine's binary tokeniser file: for each token its
/// length (one byte, or two where it is 128 or more: the low seven bits with the top bit set, then
/// the rest in units of 128) and its bytes. A length of zero is a token without text.
pub(super) struct Tokenizer {
    bytes: Vec<u8>,
    tokens: Vec<Range<u32>>,
}

/// Why a tokeniser file was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenizerError {
    #[error("the tokeniser has no tokens")]
    Empty,
    #[error("the tokeniser ends in the middle of token {token}")]
    Truncated { token: usize },
    #[error("the tokeniser is larger than {MOST_BYTES} bytes")]
    TooLarge,
}

const MOST_BYTES: usize = 16 << 20;
/// What stands for a space in a token's text.
const SPACE: char = '\u{2581}';

impl Tokenizer {
    pub(super) fn parse(file: &[u8]) -> Result<Self, TokenizerError> {
        if file.len() > MOST_BYTES {
            return Err(TokenizerError::TooLarge);
        }
        let mut bytes = Vec::with_capacity(file.len());
        let mut tokens = Vec::new();
        let mut rest = file;
        while let Some((&first, after)) = rest.split_first() {
            let truncated = TokenizerError::Truncated { token: tokens.len() };
            rest = after;
            let mut length = usize::from(first);
            if first >= 128 {
                let (&second, after) = rest.split_first().ok_or(truncated)?;
                length = usize::from(second) * 128 + usize::from(first - 128);
                rest = after;
            }
            let (text, after) = rest.split_at_checked(length).ok_or(truncated)?;
            let start = bytes.len() as u32;
            bytes.extend_from_slice(text);
            tokens.push(start..bytes.len() as u32);
            rest = after;
        }
        match tokens.is_empty() {
            true => Err(TokenizerError::Empty),
            false => Ok(Self { bytes, tokens }),
        }
    }

    /// The text of a sequence of tokens. Unknown numbers and control tokens, which are written in
    /// angle brackets, have none; `<0xE2>` is one byte.
    pub(super) fn text(&self, tokens: &[i32]) -> String {
        let mut bytes = Vec::new();
        for token in tokens {
            let Some(range) = usize::try_from(*token).ok().and_then(|t| self.tokens.get(t)) else {
                continue;
            };
            let text = &self.bytes[range.start as usize..range.end as usize];
            match raw_byte(text) {
                Some(byte) => bytes.push(byte),
                None if is_control(text) => {}
                None => bytes.extend_from_slice(text),
            }
        }
        String::from_utf8_lossy(&bytes).replace(SPACE, " ").trim().to_owned()
    }
}

fn is_control(text: &[u8]) -> bool {
    text.len() > 2 && text.starts_with(b"<") && text.ends_with(b">")
}

fn raw_byte(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(tokens: &[&[u8]]) -> Vec<u8> {
        let mut file = Vec::new();
        for token in tokens {
            if token.len() < 128 {
                file.push(token.len() as u8);
            } else {
                file.push((token.len() % 128 + 128) as u8);
                file.push((token.len() / 128) as u8);
            }
            file.extend_from_slice(token);
        }
        file
    }

    #[test]
    fn words_come_back_with_their_spaces() {
        let file = file(&[
            b"<unk>",
            b"<s>",
            b"</s>",
            b"",
            "▁set".as_bytes(),
            "▁a".as_bytes(),
            b"larm",
            b"<0xC3>",
            b"<0xA9>",
        ]);
        let tokenizer = Tokenizer::parse(&file).unwrap();
        assert_eq!(tokenizer.text(&[1, 4, 5, 6, 7, 8, 3, 2, -5, 99]), "set alarmé");
    }

    #[test]
    fn what_is_no_tokeniser_is_refused() {
        assert_eq!(Tokenizer::parse(&[]).err(), Some(TokenizerError::Empty));
        let half = Tokenizer::parse(&[1, b'a', 3, b'b']).err();
        assert_eq!(half, Some(TokenizerError::Truncated { token: 1 }));
        assert_eq!(Tokenizer::parse(&[200]).err(), Some(TokenizerError::Truncated { token: 0 }));
    }

    proptest! {
        #[test]
        fn every_vocabulary_survives(
            tokens in prop::collection::vec("[a-z▁]{0,150}", 1..20)
        ) {
            let bytes: Vec<&[u8]> = tokens.iter().map(|token| token.as_bytes()).collect();
            let tokenizer = Tokenizer::parse(&file(&bytes)).unwrap();
            for (number, token) in tokens.iter().enumerate() {
                let expected = token.replace(SPACE, " ");
                prop_assert_eq!(tokenizer.text(&[number as i32]), expected.trim());
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            tokens in prop::collection::vec(any::<i32>(), 0..10),
        ) {
            if let Ok(tokenizer) = Tokenizer::parse(&bytes) {
                tokenizer.text(&tokens);
                tokenizer.text(&[0, 1, 2, 3]);
            }
        }
    }
}
