//! Saying what a tool gave.

use antiphon_agent::types::{JsonObject, ToolDefinition};
use serde_json::Value;

use super::{
    super::numbers,
    slots::{self, Slot, SlotKind},
    values,
};

/// The answer for one output of a tool: by its template, or in plain words.
pub(super) fn answer(
    tool: Option<(&ToolDefinition, &[Slot])>,
    args: &JsonObject,
    output: &JsonObject,
) -> String {
    if let Some(error) = output.get("error") {
        return failure(&plain(error));
    }
    // The template would say that it is done.
    if output.get("status").is_some_and(|status| status == "waiting_for_approval") {
        return "Somebody has to approve that first. I will tell you how it went.".into();
    }
    if let Some((definition, slots)) = tool
        && let Some(template) = definition.speech.as_ref().and_then(|s| s.answer.as_deref())
        && let Some(text) = fill(template, &Sources { definition, slots, args, output })
    {
        return text;
    }
    sentence(&rendered(output))
}

/// What is said when a call gave an error.
fn failure(error: &str) -> String {
    match error {
        "tool call denied by host policy" => "I am not allowed to do that.".into(),
        "the user did not confirm the tool call" => "All right, I will not do it.".into(),
        "the tool call was cancelled" | "the tool call was interrupted before it started" => {
            "That was cancelled.".into()
        }
        "the tool timed out" => "Sorry, that took too long.".into(),
        "" | "the tool failed" => "Sorry, that did not work.".into(),
        other => sentence(&format!("Sorry, that did not work: {}", shortened(other, 240))),
    }
}

/// Where a template's slots are looked up: the output first, then the arguments.
struct Sources<'a> {
    definition: &'a ToolDefinition,
    slots: &'a [Slot],
    args: &'a JsonObject,
    output: &'a JsonObject,
}

impl Sources<'_> {
    fn value(&self, name: &str) -> Option<String> {
        let pointer = format!("/{}", name.replace('.', "/"));
        let (head, tail) = name.split_once('.').unwrap_or((name, ""));
        let found = |object: &JsonObject| {
            let value = object.get(head)?;
            let value = match tail {
                "" => value,
                _ => value.pointer(&pointer[head.len() + 1..])?,
            };
            (!value.is_null()).then(|| value.clone())
        };
        if let Some(value) = found(self.output) {
            return Some(self.spoken_output(head, &value));
        }
        let value = found(self.args)?;
        let slot = self.slots.iter().find(|slot| slot.property == head);
        Some(slot.map_or_else(|| plain(&value), |slot| slot.spoken(&value)))
    }

    /// An output is said as the output schema has it, else as the argument of the same name.
    fn spoken_output(&self, name: &str, value: &Value) -> String {
        let schema = self.definition.output_schema.as_deref();
        let property = schema.and_then(|schema| schema.get("properties")?.get(name));
        let kind = property.and_then(|p| p.get("x-slot")?.as_str());
        match (kind, value.as_f64()) {
            (Some("duration"), Some(seconds)) => values::spoken_duration(seconds),
            (Some("amount"), Some(value)) => {
                money(value, property.and_then(|p| p.get("x-currency")?.as_str()))
            }
            (None, _) => match self.slots.iter().find(|slot| slot.property == name) {
                Some(slot) if !matches!(slot.kind, SlotKind::Text) => slot.spoken(value),
                _ => plain(value),
            },
            _ => plain(value),
        }
    }
}

/// A template with its slots filled; a part in square brackets goes when a slot in it is missing.
/// `None` when a slot outside of brackets is missing.
fn fill(template: &str, sources: &Sources<'_>) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('[') {
        text += &fill_part(&rest[..at], sources)?;
        let Some(end) = rest[at..].find(']') else { break };
        if let Some(part) = fill_part(&rest[at + 1..at + end], sources) {
            text += &part;
        }
        rest = &rest[at + end + 1..];
    }
    text += &fill_part(rest, sources)?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn fill_part(template: &str, sources: &Sources<'_>) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        text += before;
        text += &sources.value(name.trim())?;
        rest = after;
    }
    Some(text + rest)
}

/// An output without a template, in plain words.
fn rendered(output: &JsonObject) -> String {
    const TEXTS: [&str; 8] =
        ["speech", "answer", "text", "message", "result", "output", "summary", "value"];
    let said = TEXTS.iter().find_map(|key| output.get(*key).filter(|value| value.is_string()));
    if let Some(said) = said {
        return plain(said);
    }
    if output.is_empty() {
        return "Done".into();
    }
    if output.len() == 1
        && let Some((name, value)) = output.iter().next()
    {
        return match value {
            Value::Bool(true) => "Done".into(),
            Value::Bool(false) => format!("{}: no", slots::spoken_name(name)),
            Value::Object(inner) => rendered(inner),
            value if TEXTS.contains(&name.as_str()) => plain(value),
            value => format!("The {} is {}", slots::spoken_name(name), plain(value)),
        };
    }
    let part = |(name, value): (&String, &Value)| {
        format!("the {} is {}", slots::spoken_name(name), plain(value))
    };
    listed(&output.iter().take(8).map(part).collect::<Vec<_>>(), "and")
}

/// A value without any markup.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::Null => "nothing".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), numbers::written)
        }
        Value::String(text) => shortened(text.trim(), 2000),
        Value::Array(items) if items.is_empty() => "nothing".into(),
        Value::Array(items) => listed(&items.iter().take(50).map(plain).collect::<Vec<_>>(), "and"),
        Value::Object(fields) => {
            let part = |(name, value): (&String, &Value)| {
                format!("{} {}", slots::spoken_name(name), plain(value))
            };
            fields.iter().take(8).map(part).collect::<Vec<_>>().join(", ")
        }
    }
}

/// An amount of money; `currency` is a word or an ISO 4217 code.
pub(super) fn money(amount: f64, currency: Option<&str>) -> String {
    let name = match currency {
        None => return numbers::written(amount),
        Some("EUR") => "euro",
        Some("USD") => "dollar",
        Some("GBP") => "pound",
        Some("CHF") => "franc",
        Some(other) => other,
    };
    let name = name.strip_suffix('s').unwrap_or(name);
    let s = if amount == 1.0 { "" } else { "s" };
    let written = match amount.fract() == 0.0 {
        true => numbers::written(amount),
        false => format!("{amount:.2}"),
    };
    format!("{written} {name}{s}")
}

/// `a, b and c`.
pub(super) fn listed(parts: &[String], joint: &str) -> String {
    match parts {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} {joint} {last}", first.join(", ")),
    }
}

/// With a capital and a full stop.
pub(super) fn sentence(text: &str) -> String {
    let text = text.trim();
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    let stop = if text.ends_with(['.', '!', '?', '…']) { "" } else { "." };
    format!("{}{}{stop}", first.to_uppercase(), chars.as_str())
}

/// `text` cut after a sentence, or so.
fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text[..end].trim_end()),
    }
}

/// `text` in sentences; joined they are `text` again.
pub(super) fn sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    // A sentence ends at a mark before space; the point in `2.5` does not.
    let mut ended = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if ended && !c.is_whitespace() {
            sentences.push(String::new());
            ended = false;
        }
        if let Some(last) = sentences.last_mut() {
            last.push(c);
        }
        ended |= matches!(c, '.' | '!' | '?' | '…' | '\n')
            && chars.peek().is_none_or(|next| next.is_whitespace());
    }
    sentences.retain(|sentence| !sentence.trim().is_empty());
    sentences
}

#[cfg(test)]
mod tests {
    use antiphon_agent::types::ToolSpeech;
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> JsonObject {
        value.as_object().cloned().unwrap()
    }

    fn answered(template: &str, schema: Value, args: Value, output: Value) -> String {
        let mut tool = ToolDefinition::new("tool", "");
        tool.input_schema = Some(std::sync::Arc::new(schema));
        tool.speech = Some(std::sync::Arc::new(ToolSpeech::default().answer(template)));
        let slots = Slot::all(&tool, &super::super::super::phonemes::Phonemes::shared());
        answer(Some((&tool, &slots)), &object(args), &object(output))
    }

    #[test]
    fn templates_take_output_then_arguments() {
        let schema = json!({"properties": {
            "duration": {"type": "number", "x-slot": "duration"},
            "amount": {"type": "number", "x-slot": "amount", "x-currency": "EUR"}}});
        let say = |template: &str, args, output| answered(template, schema.clone(), args, output);
        assert_eq!(
            say("Set for {duration}.", json!({"duration": 300}), json!({})),
            "Set for 5 minutes."
        );
        assert_eq!(say("{amount} sent.", json!({"amount": 2.5}), json!({})), "2.50 euros sent.");
        assert_eq!(
            say("It is {at.here}.", json!({}), json!({"at": {"here": "noon"}})),
            "It is noon."
        );
        assert_eq!(say("Timer[ named {name}] set.", json!({}), json!({})), "Timer set.");
        assert_eq!(
            say("Timer[ named {name}] set.", json!({"name": "egg"}), json!({})),
            "Timer named egg set."
        );
        assert_eq!(say("{notes}.", json!({}), json!({"notes": ["a", "b", "c"]})), "a, b and c.");
    }

    #[test]
    fn outputs_without_a_template_are_said_plainly() {
        let say = |output| answer(None, &JsonObject::new(), &object(output));
        assert_eq!(say(json!({})), "Done.");
        assert_eq!(say(json!({"result": "all good"})), "All good.");
        assert_eq!(say(json!({"temperature": 21.50})), "The temperature is 21.5.");
        assert_eq!(say(json!({"a": 1, "b": true})), "The a is 1 and the b is yes.");
        assert_eq!(
            say(json!({"error": "tool call denied by host policy"})),
            "I am not allowed to do that."
        );
        assert_eq!(
            say(json!({"error": "no such city"})),
            "Sorry, that did not work: no such city."
        );
    }

    #[test]
    fn a_call_that_waits_for_a_person_is_not_said_to_be_done() {
        let waits = json!({"status": "waiting_for_approval", "message": "This call waits."});
        let said = answered("The door is open.", json!({}), json!({}), waits);
        assert!(said.contains("approve"), "{said}");
    }

    #[test]
    fn a_template_without_its_values_gives_way() {
        assert_eq!(
            answered("It is {time}.", json!({}), json!({}), json!({"now": "noon"})),
            "The now is noon."
        );
    }

    #[test]
    fn text_is_cut_at_sentences() {
        let text = "It is 2.5 degrees. Wear a coat! Done";
        assert_eq!(sentences(text), ["It is 2.5 degrees. ", "Wear a coat! ", "Done"]);
        assert!(sentences("  ").is_empty());
    }
}
