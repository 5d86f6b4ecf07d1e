//! What a carrier is told to do with a call: answers to its webhooks.

/// A number that a call is handed on to rings for so many seconds.
const RINGS: u32 = 25;

/// An answer in TwiML (or cXML, or TeXML, which are alike) that connects the call with a stream, both
/// ways. The parameters come back in the stream's start; queries of the address would not.
pub fn connect_stream(
    url: &str,
    parameters: &[(&str, &str)],
    attributes: &[(&str, &str)],
) -> String {
    let mut text =
        String::from(r#"<?xml version="1.0" encoding="UTF-8"?><Response><Connect><Stream"#);
    for (name, value) in [("url", url)].iter().chain(attributes) {
        text.push_str(&format!(r#" {name}="{}""#, escaped(value)));
    }
    text.push('>');
    for (name, value) in parameters {
        let (name, value) = (escaped(name), escaped(value));
        text.push_str(&format!(r#"<Parameter name="{name}" value="{value}"/>"#));
    }
    text.push_str("</Stream></Connect></Response>");
    text
}

/// An answer that turns the call away as busy.
pub fn busy() -> &'static str {
    r#"<?xml version="1.0" encoding="UTF-8"?><Response><Reject reason="busy"/></Response>"#
}

/// An answer that ends the call.
pub fn hang_up() -> &'static str {
    r#"<?xml version="1.0" encoding="UTF-8"?><Response><Hangup/></Response>"#
}

/// An answer that hands the call on to a number. At `action` the carrier asks how the call goes on when
/// nobody is reached there within `RINGS`, or when that call is over.
pub fn dial(number: &str, action: Option<&str>) -> String {
    let number = escaped(number);
    let attributes = action.map_or_else(String::new, |action| {
        format!(r#" action="{}" method="POST" timeout="{RINGS}""#, escaped(action))
    });
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?><Response><Dial{attributes}>{number}</Dial></Response>"#
    )
}

/// An answer that presses keys, and then goes on with another answer: `then`.
pub fn play_digits(digits: &str, then: &str) -> String {
    let play = format!(r#"<Response><Play digits="{}"/>"#, escaped(digits));
    then.replacen("<Response>", &play, 1)
}

/// `text` as the value of an attribute or as a text of XML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            // XML 1.0 has no other control characters.
            control if control.is_control() && !matches!(control, '\t' | '\n' | '\r') => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_connects_a_stream_with_its_parameters() {
        let answer = connect_stream("wss://a.example/t", &[("token", "a.b")], &[]);
        assert_eq!(
            answer,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Response><Connect>\
             <Stream url=\"wss://a.example/t\"><Parameter name=\"token\" value=\"a.b\"/></Stream>\
             </Connect></Response>"
        );
    }

    #[test]
    fn nothing_that_a_caller_says_becomes_markup() {
        let answer = connect_stream("wss://a", &[("from", "\"/><Dial>900</Dial>\u{0}&'")], &[]);
        assert!(!answer.contains("<Dial>"), "{answer}");
        assert!(answer.contains("&quot;/&gt;&lt;Dial&gt;900&lt;/Dial&gt;&amp;&apos;"), "{answer}");
        assert!(dial("<x>", None).contains("<Dial>&lt;x&gt;</Dial>"));
        assert!(dial("+1", Some("https://a/b?c&d")).contains(r#" action="https://a/b?c&amp;d""#));
    }

    #[test]
    fn keys_are_pressed_before_the_stream_goes_on() {
        let then = connect_stream("wss://a", &[], &[]);
        let answer = play_digits("12#", &then);
        assert!(answer.contains(r#"<Response><Play digits="12#"/><Connect>"#), "{answer}");
    }
}
