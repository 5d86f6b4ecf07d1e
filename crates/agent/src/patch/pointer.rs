//! JSON Pointers (RFC 6901).

use std::borrow::Cow;

use super::PatchError;

/// The tokens of `pointer`, unescaped; none for the whole document.
pub(super) fn parse(pointer: &str) -> Result<Vec<Cow<'_, str>>, PatchError> {
    match pointer.strip_prefix('/') {
        Some(tokens) => Ok(tokens.split('/').map(unescape).collect()),
        None if pointer.is_empty() => Ok(Vec::new()),
        None => Err(PatchError::InvalidPointer(crate::text::shorten(pointer, 128))),
    }
}

/// Appends `token` to `pointer`.
pub(super) fn push(pointer: &mut String, token: &str) {
    pointer.push('/');
    for character in token.chars() {
        match character {
            '~' => pointer.push_str("~0"),
            '/' => pointer.push_str("~1"),
            other => pointer.push(other),
        }
    }
}

/// The index that `token` names: digits without a leading zero.
pub(super) fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (token.len() > 1 && token.starts_with('0')) {
        return None;
    }
    token.parse().ok()
}

fn unescape(token: &str) -> Cow<'_, str> {
    if !token.contains('~') {
        return token.into();
    }
    // In this order, so that `~01` is `~1`.
    token.replace("~1", "/").replace("~0", "~").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_pointer() {
        assert_eq!(parse("").unwrap(), Vec::<String>::new());
        assert_eq!(parse("/").unwrap(), [""]);
        assert_eq!(parse("/a/0/-").unwrap(), ["a", "0", "-"]);
        assert_eq!(parse("/a~1b/~0/~01").unwrap(), ["a/b", "~", "~1"]);
        assert_eq!(parse("a/b"), Err(PatchError::InvalidPointer("a/b".into())));
    }

    #[test]
    fn indices_are_plain_numbers() {
        assert_eq!(["0", "7", "10"].map(index), [Some(0), Some(7), Some(10)]);
        let none = ["", "-", "01", "+1", "-1", "1.0", "x", "99999999999999999999999"];
        assert!(none.into_iter().all(|token| index(token).is_none()));
    }
}
