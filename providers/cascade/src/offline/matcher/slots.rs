//! Slots: which values a property takes, and finding them in what was said.

use antiphon_agent::types::{JsonObject, ToolDefinition};
use serde_json::{Number, Value};

use super::{
    super::{numbers, phonemes::Phonemes},
    sounds::{self, Sound},
    values,
    words::{self, Kind, Word},
};

/// One property of a tool that can be said.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) property: String,
    pub(super) kind: SlotKind,
    pub(super) required: bool,
    /// Taken when the property is not said.
    pub(super) default: Option<Value>,
    bounds: Bounds,
    /// The schema's own example of a value, as it is said.
    sample: Option<String>,
    /// The unit of an amount, for the ear.
    pub(super) currency: Option<String>,
    integer: bool,
}

#[derive(Debug)]
pub(super) enum SlotKind {
    Number,
    /// Seconds, or ISO 8601 text.
    Duration {
        iso: bool,
    },
    Time,
    Amount,
    Boolean,
    Choice(Vec<Choice>),
    Name,
    Text,
    /// Text, split at commas and `and`.
    List,
    /// An object or something else that nobody says.
    Unspoken,
}

/// One value of an enumeration.
#[derive(Debug)]
pub(super) struct Choice {
    value: Value,
    words: Vec<String>,
    sound: Sound,
}

#[derive(Debug, Default)]
struct Bounds {
    minimum: Option<f64>,
    above: Option<f64>,
    maximum: Option<f64>,
    below: Option<f64>,
    shortest: Option<u64>,
    longest: Option<u64>,
}

/// A way to read a slot at some word.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    /// How many words it takes.
    pub(super) words: usize,
    /// How doubtful it is.
    pub(super) cost: f32,
    pub(super) value: Read,
}

#[derive(Clone, Debug)]
pub(super) enum Read {
    Value(Value),
    /// The words themselves; see [`Slot::spelled_out`].
    Span,
    /// Something was said here, but not a value of this slot.
    Garbled,
}

impl Slot {
    /// The slots of a tool, in the order of its required properties, then the others.
    pub(super) fn all(tool: &ToolDefinition, phonemes: &Phonemes) -> Vec<Self> {
        let Some(schema) = tool.input_schema.as_deref() else { return Vec::new() };
        let required: Vec<&str> = schema
            .get("required")
            .and_then(Value::as_array)
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return Vec::new();
        };
        let mut slots: Vec<Self> = properties
            .iter()
            .map(|(name, schema)| Self::new(name, schema, required.contains(&&**name), phonemes))
            .collect();
        let rank = |slot: &Self| required.iter().position(|name| *name == slot.property);
        slots.sort_by_key(|slot| rank(slot).unwrap_or(usize::MAX));
        slots
    }

    fn new(property: &str, schema: &Value, required: bool, phonemes: &Phonemes) -> Self {
        let number = |key: &str| schema.get(key).and_then(Value::as_f64);
        let count = |key: &str| schema.get(key).and_then(Value::as_u64);
        Self {
            property: property.to_owned(),
            kind: SlotKind::of(schema, phonemes),
            required,
            default: schema.get("default").or_else(|| schema.get("const")).cloned(),
            bounds: Bounds {
                minimum: number("minimum"),
                above: number("exclusiveMinimum"),
                maximum: number("maximum"),
                below: number("exclusiveMaximum"),
                shortest: count("minLength"),
                longest: count("maxLength"),
            },
            sample: schema.pointer("/examples/0").map(super::answer::plain),
            currency: schema.get("x-currency").and_then(Value::as_str).map(str::to_owned),
            integer: type_of(schema) == Some("integer"),
        }
    }

    /// Takes any words at all.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.kind, SlotKind::Text | SlotKind::Name | SlotKind::List)
    }

    /// Each way to read this slot at the beginning of `words`; empty when there is none.
    pub(super) fn readings(&self, words: &[Word], phonemes: &Phonemes) -> Vec<Reading> {
        let norms: Vec<&str> = words.iter().map(|word| word.norm.as_str()).collect();
        let norms = norms.as_slice();
        let mut readings = Vec::new();
        let one = |words: usize, cost: f32, value: Value| Reading {
            words,
            cost,
            value: Read::Value(value),
        };
        match &self.kind {
            SlotKind::Number => {
                let cardinal = numbers::number(norms);
                let found = cardinal.or_else(|| numbers::ordinal(norms));
                if let Some(found) = found {
                    let value = self.number(found.value);
                    readings.push(one(found.words, 0.0, value.clone()));
                    if matches!(norms.get(found.words), Some(&("percent" | "degrees" | "degree"))) {
                        readings.push(one(found.words + 1, 0.0, value));
                    }
                } else if let Some(value) = homophone(norms) {
                    readings.push(one(1, 0.15, self.number(value)));
                }
            }
            SlotKind::Duration { iso } => {
                let value = |seconds: f64| match iso {
                    true => Value::String(values::iso_duration(seconds)),
                    false => self.number(seconds),
                };
                if let Some(found) = values::duration(norms) {
                    readings.push(one(found.words, 0.0, value(found.value)));
                } else if let Some(count) = homophone(norms)
                    && let Some(found) = values::duration(&[&["one"], &norms[1..]].concat())
                    && found.words == 2
                {
                    // `for minutes` may be `four minutes`.
                    readings.push(one(2, 0.15, value(found.value * count)));
                }
            }
            SlotKind::Time => {
                if let Some((hour, minute, used)) = values::time_of_day(norms) {
                    readings.push(one(used, 0.0, format!("{hour:02}:{minute:02}").into()));
                }
            }
            SlotKind::Amount => {
                if let Some(found) = values::amount(norms) {
                    readings.push(one(found.words, 0.0, self.number(found.value)));
                }
            }
            SlotKind::Boolean => {
                let value = match norms.first() {
                    Some(&("yes" | "on" | "true" | "enabled" | "yeah" | "yep")) => {
                        Some((true, 0.0))
                    }
                    Some(&("no" | "off" | "false" | "disabled" | "nope")) => Some((false, 0.0)),
                    // Recognisers write one for the other.
                    Some(&"of") => Some((false, 0.15)),
                    _ => None,
                };
                readings.extend(value.map(|(value, cost)| one(1, cost, Value::Bool(value))));
            }
            SlotKind::Choice(choices) => {
                readings.extend(choices.iter().flat_map(|choice| choice.readings(words, phonemes)));
            }
            SlotKind::Name => {
                let nameable = |index: usize, word: &Word| {
                    word.kind == Kind::Content || (index == 0 && word.norm == "my")
                };
                let longest =
                    words.iter().enumerate().take_while(|(i, w)| nameable(*i, w)).count().min(3);
                let shortest = if norms.first() == Some(&"my") { 2 } else { 1 };
                readings.extend((shortest..=longest).map(span));
            }
            SlotKind::Text | SlotKind::List => readings.extend((1..=words.len()).map(span)),
            SlotKind::Unspoken => {}
        }
        readings
    }

    /// The value of a [`Read::Span`].
    pub(super) fn spelled_out(&self, words: &[Word]) -> Option<Value> {
        let meant = |word: &&Word| word.kind != Kind::Filler;
        let first = words.iter().position(|word| meant(&word))?;
        let last = words.iter().rposition(|word| meant(&word))?;
        let words = &words[first..=last];
        let original: Vec<&str> = words
            .iter()
            .map(|word| word.original.as_str())
            .filter(|text| !text.is_empty())
            .collect();
        let text = original.join(" ");
        Some(match self.kind {
            SlotKind::Name => Value::String(capitalised(&text)),
            SlotKind::List => {
                let parts = text.split([',', ';']).flat_map(|part| part.split(" and "));
                parts.map(str::trim).filter(|part| !part.is_empty()).map(Value::from).collect()
            }
            _ => Value::String(text),
        })
    }

    /// Why `value` is not allowed here, in words.
    pub(super) fn violation(&self, value: &Value) -> Option<String> {
        let name = spoken_name(&self.property);
        if let Some(text) = value.as_str()
            && !matches!(self.kind, SlotKind::Duration { .. } | SlotKind::Choice(_))
        {
            let length = text.chars().count() as u64;
            if self.bounds.longest.is_some_and(|longest| length > longest) {
                return Some(format!("That is too long for the {name}."));
            }
            if self.bounds.shortest.is_some_and(|shortest| length < shortest) {
                return Some(format!("That is too short for the {name}."));
            }
        }
        let number = value.as_f64()?;
        let bounds = &self.bounds;
        let say = |bound: f64| self.spoken(&Value::from(bound));
        if self.integer && number.fract() != 0.0 {
            return Some(format!("The {name} must be a whole number."));
        }
        if let Some(least) = bounds.minimum.filter(|least| number < *least) {
            return Some(format!("The {name} must be at least {}.", say(least)));
        }
        if let Some(least) = bounds.above.filter(|least| number <= *least) {
            return Some(format!("The {name} must be more than {}.", say(least)));
        }
        if let Some(most) = bounds.maximum.filter(|most| number > *most) {
            return Some(format!("The {name} must be at most {}.", say(most)));
        }
        if let Some(most) = bounds.below.filter(|most| number >= *most) {
            return Some(format!("The {name} must be less than {}.", say(most)));
        }
        None
    }

    /// `value` for the ear.
    pub(super) fn spoken(&self, value: &Value) -> String {
        match (&self.kind, value.as_f64()) {
            (SlotKind::Duration { iso: false }, Some(seconds)) => values::spoken_duration(seconds),
            (SlotKind::Amount, Some(amount)) => {
                super::answer::money(amount, self.currency.as_deref())
            }
            _ => super::answer::plain(value),
        }
    }

    /// The question when the tool has none of its own.
    pub(super) fn question(&self) -> String {
        let name = spoken_name(&self.property);
        match &self.kind {
            SlotKind::Duration { .. } => "For how long?".into(),
            SlotKind::Time => "At what time?".into(),
            SlotKind::Amount => "How much?".into(),
            SlotKind::Choice(choices) => {
                let names: Vec<String> =
                    choices.iter().take(5).map(|choice| choice.words.join(" ")).collect();
                format!("Which {name}: {}?", super::answer::listed(&names, "or"))
            }
            SlotKind::Boolean => format!("Should the {name} be on or off?"),
            _ => format!("What is the {name}?"),
        }
    }

    /// Whether an example can be shown that reads like one.
    pub(super) fn has_example(&self) -> bool {
        self.sample.is_some() || !matches!(self.kind, SlotKind::Text | SlotKind::List)
    }

    /// A value to show what could be said.
    pub(super) fn example(&self) -> String {
        if let Some(sample) = &self.sample
            && self.is_open()
        {
            return sample.clone();
        }
        let bound = |wanted: f64| {
            let low = self.bounds.minimum.unwrap_or(wanted).max(wanted);
            self.bounds.maximum.unwrap_or(low).min(low)
        };
        match &self.kind {
            SlotKind::Number => numbers::written(bound(5.0)),
            SlotKind::Duration { .. } => values::spoken_duration(bound(300.0)),
            SlotKind::Time => "seven thirty".into(),
            SlotKind::Amount => super::answer::money(bound(20.0), self.currency.as_deref()),
            SlotKind::Boolean => "on".into(),
            SlotKind::Choice(choices) => {
                choices.first().map(|choice| choice.words.join(" ")).unwrap_or_default()
            }
            SlotKind::Name => "Charlie".into(),
            _ => "something".into(),
        }
    }

    fn number(&self, value: f64) -> Value {
        json_number(value)
    }
}

impl SlotKind {
    fn of(schema: &Value, phonemes: &Phonemes) -> Self {
        let text = |key: &str| schema.get(key).and_then(Value::as_str);
        let kind = type_of(schema);
        if let Some(values) = schema.get("enum").and_then(Value::as_array) {
            let synonyms = schema.get("x-synonyms");
            let choices = values.iter().filter(|v| v.is_string() || v.is_number());
            return Self::Choice(
                choices.flat_map(|value| Choice::all(value, synonyms, phonemes)).collect(),
            );
        }
        match text("x-slot") {
            Some("duration") => return Self::Duration { iso: kind == Some("string") },
            Some("amount") => return Self::Amount,
            Some("name") => return Self::Name,
            Some("time") => return Self::Time,
            Some("text") => return Self::Text,
            _ => {}
        }
        match (text("format"), kind) {
            (Some("duration"), Some("number" | "integer")) => Self::Duration { iso: false },
            (Some("duration"), _) => Self::Duration { iso: true },
            (Some("time"), _) => Self::Time,
            (_, Some("number" | "integer")) => Self::Number,
            (_, Some("boolean")) => Self::Boolean,
            (_, Some("string")) | (_, None) => Self::Text,
            (_, Some("array")) => match schema.pointer("/items/type").and_then(Value::as_str) {
                Some("string") | None => Self::List,
                _ => Self::Unspoken,
            },
            _ => Self::Unspoken,
        }
    }
}

impl Choice {
    /// A value under its own name and under its synonyms.
    fn all(value: &Value, synonyms: Option<&Value>, phonemes: &Phonemes) -> Vec<Self> {
        let name = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let others = synonyms.and_then(|all| all.get(&name)).and_then(Value::as_array);
        let others = others.into_iter().flatten().filter_map(Value::as_str);
        std::iter::once(&*spoken_name(&name))
            .chain(others)
            .map(|name| {
                let words: Vec<String> =
                    words::words(name).0.into_iter().map(|word| word.norm).collect();
                let sound = joined_sound(words.iter().map(String::as_str), phonemes);
                Self { value: value.clone(), words, sound }
            })
            .filter(|choice| !choice.words.is_empty())
            .collect()
    }

    fn readings(&self, words: &[Word], phonemes: &Phonemes) -> Vec<Reading> {
        let wanted = self.words.len();
        let reading = |words, cost| Reading { words, cost, value: Read::Value(self.value.clone()) };
        let same = |(said, meant): (&Word, &String)| {
            said.norm == *meant || singular(&said.norm) == singular(meant)
        };
        if words.len() >= wanted && words.iter().zip(&self.words).all(same) {
            return vec![reading(wanted, 0.0)];
        }
        let mut near = Vec::new();
        for length in wanted.saturating_sub(1).max(1)..=(wanted + 1).min(words.len()) {
            if words[..length].iter().all(|w| matches!(w.kind, Kind::Function | Kind::Filler)) {
                continue;
            }
            let said = joined_sound(words[..length].iter().map(|w| w.norm.as_str()), phonemes);
            let apart = sounds::distance(&said, &self.sound);
            if apart <= 0.28 && self.sound.len() > 2 {
                near.push(reading(length, 0.1 + apart));
            }
        }
        near
    }
}

/// Fills in defaults; the first required property that is still missing.
pub(super) fn first_missing<'a>(slots: &'a [Slot], args: &mut JsonObject) -> Option<&'a Slot> {
    for slot in slots.iter().filter(|slot| slot.required) {
        if let Some(default) = &slot.default {
            args.entry(slot.property.clone()).or_insert_with(|| default.clone());
        }
    }
    slots.iter().find(|slot| slot.required && !args.contains_key(&slot.property))
}

/// `target_unit` and `targetUnit` as they are said.
pub(super) fn spoken_name(name: &str) -> String {
    let mut spoken = String::with_capacity(name.len() + 4);
    let mut lower = false;
    for c in name.chars() {
        if c.is_uppercase() && lower {
            spoken.push(' ');
        }
        lower = c.is_lowercase();
        match c {
            '_' | '-' | '.' | '/' => spoken.push(' '),
            _ => spoken.extend(c.to_lowercase()),
        }
    }
    spoken
}

/// A whole number as an integer, so that schemas of type `integer` take it.
pub(super) fn json_number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Value::from(value as i64);
    }
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The singular of a regular plural.
pub(super) fn singular(word: &str) -> &str {
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with('s') => stem,
        _ => word,
    }
}

fn span(words: usize) -> Reading {
    Reading { words, cost: 0.02 * words as f32, value: Read::Span }
}

fn type_of(schema: &Value) -> Option<&str> {
    match schema.get("type")? {
        Value::String(name) => Some(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

fn joined_sound<'a>(words: impl Iterator<Item = &'a str>, phonemes: &Phonemes) -> Sound {
    words.flat_map(|word| sounds::sound(phonemes, word).into_vec()).collect()
}

/// Words that recognisers write for numbers.
fn homophone(words: &[&str]) -> Option<f64> {
    Some(match *words.first()? {
        "won" => 1.0,
        "to" | "too" => 2.0,
        "free" | "tree" => 3.0,
        "for" | "fore" => 4.0,
        "fife" => 5.0,
        "ate" => 8.0,
        "tin" => 10.0,
        _ => return None,
    })
}

fn capitalised(text: &str) -> String {
    let capital = |word: &str| {
        let mut chars = word.chars();
        match chars.next() {
            Some(first) if word != "my" => first.to_uppercase().chain(chars).collect::<String>(),
            _ => word.to_owned(),
        }
    };
    text.split(' ').map(capital).collect::<Vec<_>>().join(" ")
}
