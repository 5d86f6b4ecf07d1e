//! Calls whose arguments come in pieces: each piece is a value and the place where it belongs.

use antiphon_types::{JsonObject, ToolArguments};
use serde_json::{Number, Value};

use crate::wire::{FunctionCall, PartialArg};

/// Calls that may be under way at once.
const MAX_OPEN: usize = 32;
/// The arguments of one call, in bytes of paths and texts.
const MAX_BYTES: usize = 1024 * 1024;
/// How deep a piece may belong.
const MAX_DEPTH: usize = 32;
/// The longest list.
const MAX_ITEMS: usize = 4_096;
/// Whole numbers up to here are told as such; JSON has no other kind on this wire.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// The calls that are not complete yet.
#[derive(Debug, Default)]
pub(super) struct Partials {
    open: Vec<Partial>,
}

/// A call that is complete.
#[derive(Debug, PartialEq)]
pub(super) struct Complete {
    /// Empty where the server gave none.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: ToolArguments,
}

#[derive(Debug)]
struct Partial {
    id: String,
    name: String,
    args: Value,
    bytes: usize,
    /// Its pieces do not fit together.
    broken: bool,
}

/// A step on the way to a value.
#[derive(Debug, PartialEq)]
enum Step {
    Key(String),
    Item(usize),
}

impl Partials {
    /// A call, or a piece of one. `None`: more of it is to come.
    pub(super) fn take(&mut self, call: FunctionCall) -> Option<Complete> {
        let goes_on = call.will_continue == Some(true);
        let (id, name) = (call.id.unwrap_or_default(), call.name.unwrap_or_default());
        let pieces = call.partial_args.unwrap_or_default();
        let Some(at) = self.position(&id, &name) else {
            if !goes_on && pieces.is_empty() {
                let arguments = whole(call.args);
                return Some(Complete { id, name, arguments });
            }
            if self.open.len() == MAX_OPEN {
                self.open.remove(0);
            }
            self.open.push(Partial::new(id, name));
            return self.add(self.open.len() - 1, call.args, pieces, goes_on);
        };
        if self.open[at].name.is_empty() {
            self.open[at].name = name;
        }
        self.add(at, call.args, pieces, goes_on)
    }

    /// Whether this is a piece of a call that is not under way, such as one that was given up.
    pub(super) fn is_stray(&self, call: &FunctionCall) -> bool {
        let empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        self.open.is_empty() && empty(&call.id) && empty(&call.name)
    }

    /// Whether any call is under way.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    /// Forgets what is under way; gives how many calls that were.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.open).len()
    }

    /// Forgets a call. `false`: it was not under way.
    pub(super) fn forget(&mut self, id: &str) -> bool {
        let before = self.open.len();
        self.open.retain(|call| call.id != id);
        self.open.len() < before
    }

    /// The call that something belongs to: the one it names, else the newest.
    fn position(&self, id: &str, name: &str) -> Option<usize> {
        match (id, name) {
            ("", "") => self.open.len().checked_sub(1),
            ("", _) => None,
            _ => self.open.iter().position(|call| call.id == id),
        }
    }

    fn add(
        &mut self,
        at: usize,
        whole: Option<Value>,
        pieces: Vec<PartialArg>,
        goes_on: bool,
    ) -> Option<Complete> {
        let call = &mut self.open[at];
        match (whole, &mut call.args) {
            (Some(Value::Object(whole)), Value::Object(args)) => args.extend(whole),
            (None | Some(Value::Null | Value::Object(_)), _) => {}
            (Some(_), _) => call.broken = true,
        }
        pieces.into_iter().for_each(|piece| call.add(piece));
        (!goes_on).then(|| self.open.remove(at).complete())
    }
}

impl Partial {
    fn new(id: String, name: String) -> Self {
        Self { id, name, args: Value::Object(JsonObject::new()), bytes: 0, broken: false }
    }

    fn add(&mut self, piece: PartialArg) {
        if self.broken {
            return;
        }
        let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.bytes += length(&piece.json_path) + length(&piece.string_value);
        if self.bytes > MAX_BYTES || self.put(piece).is_none() {
            // Nothing of it is of use any more.
            (self.broken, self.args) = (true, Value::Null);
        }
    }

    /// `None`: it belongs nowhere.
    fn put(&mut self, piece: PartialArg) -> Option<()> {
        let steps = steps(piece.json_path.as_deref()?)?;
        let place = place(&mut self.args, &steps)?;
        if let Some(text) = piece.string_value {
            match place {
                Value::Null => *place = text.into(),
                Value::String(before) => before.push_str(&text),
                _ => return None,
            }
        } else if let Some(number) = piece.number_value {
            *place = Value::Number(as_number(number)?);
        } else if let Some(truth) = piece.bool_value {
            *place = truth.into();
        } else if piece.null_value.is_some() {
            *place = Value::Null;
        }
        Some(())
    }

    fn complete(self) -> Complete {
        let arguments = match self.args {
            Value::Object(args) if !self.broken => ToolArguments::Object(args),
            // No JSON, so that nothing runs with half of its arguments.
            _ => ToolArguments::Json("pieces of arguments that do not fit together".into()),
        };
        Complete { id: self.id, name: self.name, arguments }
    }
}

/// Arguments that come at once. What is no object runs nothing, and is answered all the same.
fn whole(args: Option<Value>) -> ToolArguments {
    match args {
        None | Some(Value::Null) => ToolArguments::Object(JsonObject::new()),
        Some(Value::Object(args)) => ToolArguments::Object(args),
        Some(other) => ToolArguments::Json(other.to_string()),
    }
}

fn as_number(number: f64) -> Option<Number> {
    if number.fract() == 0.0 && number.abs() <= MAX_WHOLE {
        return Some((number as i64).into());
    }
    Number::from_f64(number)
}

/// The value at the end of these steps; what lies on the way is made.
fn place<'a>(mut at: &'a mut Value, steps: &[Step]) -> Option<&'a mut Value> {
    for step in steps {
        at = match step {
            Step::Key(key) => {
                if at.is_null() {
                    *at = Value::Object(JsonObject::new());
                }
                at.as_object_mut()?.entry(key.as_str()).or_insert(Value::Null)
            }
            Step::Item(item) => {
                if at.is_null() {
                    *at = Value::Array(Vec::new());
                }
                let items = at.as_array_mut()?;
                if *item == items.len() && *item < MAX_ITEMS {
                    items.push(Value::Null);
                }
                items.get_mut(*item)?
            }
        };
    }
    Some(at)
}

/// The steps of a path such as `$.guests[0]['full name']` (RFC 9535). `None`: it is none, or leads to
/// more than one value, or to all.
fn steps(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MAX_DEPTH {
            return None;
        }
        let (step, after) = match rest.strip_prefix('.') {
            Some(rest) => {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                (Step::Key(rest[..end].to_owned()), &rest[end..])
            }
            None => bracket(rest.strip_prefix('[')?)?,
        };
        if matches!(&step, Step::Key(key) if key.is_empty() || key == "*") {
            return None;
        }
        steps.push(step);
        rest = after;
    }
    Some(steps).filter(|steps| !steps.is_empty())
}

/// A step in brackets, and what follows it.
fn bracket(rest: &str) -> Option<(Step, &str)> {
    let quote = rest.chars().next()?;
    if !matches!(quote, '\'' | '"') {
        let (item, after) = rest.split_once(']')?;
        return Some((Step::Item(item.trim().parse().ok()?), after));
    }
    let (mut key, mut escaped) = (String::new(), false);
    for (at, char) in rest.char_indices().skip(1) {
        match char {
            _ if escaped => {
                key.push(char);
                escaped = false;
            }
            '\\' => escaped = true,
            _ if char == quote => {
                let after = rest[at + 1..].strip_prefix(']')?;
                return Some((Step::Key(key), after));
            }
            _ => key.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn piece(path: &str, value: Value) -> Value {
        let key = match value {
            Value::String(_) => "stringValue",
            Value::Number(_) => "numberValue",
            Value::Bool(_) => "boolValue",
            _ => return json!({"jsonPath": path, "nullValue": "NULL_VALUE"}),
        };
        json!({"jsonPath": path, key: value})
    }

    fn call(value: Value) -> FunctionCall {
        serde_json::from_value(value).unwrap()
    }

    fn assembled(pieces: &[(&str, Value)]) -> ToolArguments {
        let mut partials = Partials::default();
        let first = call(json!({"id": "c1", "name": "book", "willContinue": true}));
        assert_eq!(partials.take(first), None);
        for (path, value) in pieces {
            let piece = piece(path, value.clone());
            let next = call(json!({"partialArgs": [piece], "willContinue": true}));
            assert_eq!(partials.take(next), None);
        }
        let complete = partials.take(call(json!({}))).unwrap();
        assert_eq!((&*complete.id, &*complete.name), ("c1", "book"));
        assert!(!partials.any());
        complete.arguments
    }

    #[test]
    fn pieces_become_the_arguments_they_are_of() {
        let arguments = assembled(&[
            ("$.city", json!("San ")),
            ("$.city", json!("Francisco")),
            ("$.guests[0].name", json!("Ada")),
            ("$.guests[1]['full name']", json!("Bob B.")),
            ("$['it\\'s']", json!(true)),
            ("$.nights", json!(3.0)),
            ("$.price", json!(12.5)),
            ("$.note", json!(null)),
        ]);
        let expected = json!({"city": "San Francisco", "guests": [{"name": "Ada"},
            {"full name": "Bob B."}], "it's": true, "nights": 3, "price": 12.5, "note": null});
        assert_eq!(arguments, ToolArguments::Object(expected.as_object().unwrap().clone()));
    }

    #[test]
    fn pieces_that_fit_nowhere_spoil_the_call() {
        for pieces in [
            [("$.a", json!(1)), ("$.a.b", json!(2))],
            [("$.a[1]", json!(1)), ("$.a[0]", json!(1))],
            [("$.a", json!(true)), ("$.a", json!("x"))],
            [("$", json!(1)), ("$.a", json!(1))],
            [("a", json!(1)), ("$.a", json!(1))],
            [("$.*", json!(1)), ("$.a", json!(1))],
            [("$.a['b", json!(1)), ("$.a", json!(1))],
        ] {
            let arguments = assembled(&pieces);
            let ToolArguments::Json(text) = &arguments else { panic!("{pieces:?}: {arguments:?}") };
            assert!(serde_json::from_str::<Value>(text).is_err(), "nothing may run with it");
        }
        let long = "x".repeat(MAX_BYTES);
        let arguments = assembled(&[("$.a", json!(long)), ("$.b", json!(1))]);
        assert!(matches!(arguments, ToolArguments::Json(_)));
    }

    #[test]
    fn calls_in_pieces_may_be_mixed() {
        let mut partials = Partials::default();
        for (id, name) in [("a", "one"), ("b", "two")] {
            assert_eq!(
                partials.take(call(json!({"id": id, "name": name, "willContinue": true}))),
                None
            );
        }
        let whole = partials.take(call(json!({"id": "c", "name": "three", "args": {"x": 1}})));
        assert_eq!(whole.unwrap().name, "three");
        let pieces = [piece("$.x", json!("1"))];
        let first = partials.take(call(json!({"id": "a", "partialArgs": pieces}))).unwrap();
        assert_eq!(
            (&*first.name, &first.arguments),
            ("one", &ToolArguments::Object(json!({"x": "1"}).as_object().unwrap().clone()))
        );
        assert!(partials.forget("b") && !partials.forget("b"));
        for _ in 0..100 {
            partials.take(call(json!({"name": "endless", "willContinue": true})));
        }
        assert_eq!(partials.clear(), MAX_OPEN);
        assert!(partials.is_stray(&call(json!({}))));
        assert!(!partials.is_stray(&call(json!({"name": "f"}))));
    }

    proptest! {
        #[test]
        fn any_path_is_survived(path in "[$.\\[\\]'\"\\\\a*0-9é]{0,24}", text in ".{0,8}") {
            let mut partials = Partials::default();
            let piece = json!({"jsonPath": path, "stringValue": text});
            let done = partials.take(call(json!({"name": "f", "partialArgs": [piece]}))).unwrap();
            prop_assert!(!partials.any());
            if let ToolArguments::Object(args) = done.arguments {
                prop_assert!(args.len() <= 1);
            }
        }
    }
}
