//! The words by which a call is read back to the user.

use antiphon_types::JsonObject;
use serde_json::Value;

use crate::text::shorten;

/// The longest rendering of one argument, in bytes.
const MAX_VALUE_BYTES: usize = 400;

/// Fills `{slot}`s of `template` with the arguments of these names. `{{` and `}}` are braces.
pub(crate) fn fill(template: &str, args: &JsonObject) -> String {
    let mut words = String::with_capacity(template.len() + 32);
    let mut rest = template;
    while let Some(at) = rest.find(['{', '}']) {
        words.push_str(&rest[..at]);
        let tail = &rest[at..];
        if tail.starts_with("{{") || tail.starts_with("}}") {
            words.push_str(&tail[..1]);
            rest = &tail[2..];
            continue;
        }
        let Some(end) = tail.find('}').filter(|_| tail.starts_with('{')) else {
            words.push_str(&tail[..1]);
            rest = &tail[1..];
            continue;
        };
        words.push_str(&spoken(args.get(tail[1..end].trim())));
        rest = &tail[end + 1..];
    }
    words.push_str(rest);
    words
}

fn spoken(value: Option<&Value>) -> String {
    let words = match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::Number(number)) => match number.as_f64() {
            // `5.0` is said as `5`.
            Some(whole) if number.is_f64() && whole.fract() == 0.0 && whole.abs() < 1e15 => {
                format!("{whole:.0}")
            }
            _ => number.to_string(),
        },
        Some(Value::String(text)) => clean(text),
        Some(Value::Array(elements)) => list(elements),
        Some(object @ Value::Object(_)) => object.to_string(),
    };
    shorten(&words, MAX_VALUE_BYTES)
}

fn list(elements: &[Value]) -> String {
    let words: Vec<_> = elements.iter().map(|element| spoken(Some(element))).collect();
    match words.as_slice() {
        [] => "nothing".to_owned(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// One line without control characters, which could hide part of what is read.
fn clean(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(template: &str, args: Value) -> String {
        let Value::Object(args) = args else { panic!("not an object") };
        fill(template, &args)
    }

    #[test]
    fn fills_slots_readably() {
        let args =
            json!({"amount": 5.0, "name": " Ada\n Lovelace ", "ids": [1, 2, 3], "now": true});
        assert_eq!(
            filled("Send {amount} euros to {name}?", args.clone()),
            "Send 5 euros to Ada Lovelace?"
        );
        assert_eq!(filled("{ids}, {now}, {missing}", args), "1, 2 and 3, yes, nothing");
        assert_eq!(filled("{{amount}} {a", json!({"amount": 1})), "{amount} {a");
        assert_eq!(filled("{x} } {é}", json!({"x": 2.5, "é": -3})), "2.5 } -3");
    }
}
