//! Which kind of event a frame holds, without parsing it.

/// The value of the top-level key `type`, if the frame is an object and has one without escapes.
///
/// Reads only as far as that key. What it returns is a hint: the frame may still be malformed.
pub fn peek_kind(text: &str) -> Option<&str> {
    let mut scan = Scanner { text, at: 0 };
    scan.expect(b'{')?;
    loop {
        let key = scan.string()?;
        scan.expect(b':')?;
        if key == "type" {
            let kind = scan.string()?;
            return (!kind.contains('\\')).then_some(kind);
        }
        scan.skip_value()?;
        scan.expect(b',')?;
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scanner<'a> {
    fn next_token(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let spaces = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
        self.at += spaces.count();
        self.text.as_bytes().get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next_token()? == byte).then(|| self.at += 1)
    }

    /// The raw text between the quotes.
    fn string(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let from = self.at;
        loop {
            let rest = self.text.get(self.at..)?;
            self.at += memchr::memchr(b'"', rest.as_bytes())? + 1;
            let raw = self.text.get(from..self.at - 1)?;
            // A quote after an odd number of backslashes belongs to the string.
            let backslashes = raw.bytes().rev().take_while(|byte| *byte == b'\\').count();
            if backslashes % 2 == 0 {
                return Some(raw);
            }
        }
    }

    fn skip_value(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.next_token()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                b',' | b':' => return None,
                _ => {
                    let rest = &self.text.as_bytes()[self.at..];
                    let literal = rest.iter().take_while(|byte| {
                        !matches!(byte, b',' | b'}' | b']' | b':' | b'"' | b'{' | b'[')
                            && !byte.is_ascii_whitespace()
                    });
                    let length = literal.count();
                    if length == 0 {
                        return None;
                    }
                    self.at += length;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_kind_is_found_wherever_it_stands() {
        assert_eq!(peek_kind(r#"{"type":"a"}"#), Some("a"));
        assert_eq!(peek_kind(" {\n \"x\" : [1,{\"type\":\"no\"}], \"type\" : \"a\" }"), Some("a"));
        assert_eq!(peek_kind(r#"{"x":"\\\"type","n":-1.5e3,"t":true,"type":"a"}"#), Some("a"));
        assert_eq!(peek_kind(r#"{"x":{"type":"no"}}"#), None);
        assert_eq!(peek_kind(r#"["type"]"#), None);
        assert_eq!(peek_kind(r#"{"type":7}"#), None);
        assert_eq!(peek_kind(""), None);
        assert_eq!(peek_kind(r#"{"type":"a"#), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".*") {
            let _ = peek_kind(&text);
        }

        #[test]
        fn any_object_is_read(key in "[a-z\"\\\\é]{0,6}", value in ".{0,20}", kind in "[a-z._]{1,20}") {
            prop_assume!(key != "type");
            let text = format!(
                "{{{}:{},\"n\":[{{}},[],0.5],\"type\":{}}}",
                json!(key), json!(value), json!(kind)
            );
            prop_assert_eq!(peek_kind(&text), Some(&*kind));
        }
    }
}
