//! Applying a patch.

use std::{borrow::Cow, iter, mem};

use serde_json::{Map, Value};

use super::{JsonPatch, JsonPatchOp, JsonPatchOperation, PatchError, pointer};

/// How deeply a patch may nest values: as deeply as JSON text is read.
pub(super) const MAX_DEPTH: usize = 127;

/// How many values the `copy` operations of one patch may copy together. Without a bound a short
/// patch could double the document again and again.
pub(super) const MAX_COPIED: usize = 1 << 20;

/// The document after the patch; the one given stays as it is.
///
/// Lenient, so that a stream of patches goes on:
///
/// - `add` and `replace` make objects of the containers on their path that are missing, `null` or
///   no containers;
/// - `remove` and `replace` of a member that is missing in a container that is there do nothing, and
///   so do `add` beyond the end of an array, and `move` and `copy` of what is missing.
///
/// A `test` that does not find its value is an error, and so is a path that is no JSON Pointer.
pub fn apply_patch(document: &Value, patch: &JsonPatch) -> Result<Value, PatchError> {
    let mut document = Document { root: document.clone(), copied: 0 };
    patch.0.iter().try_for_each(|operation| document.apply(operation))?;
    Ok(document.root)
}

type Tokens<'a> = [Cow<'a, str>];

struct Document {
    root: Value,
    copied: usize,
}

impl Document {
    fn apply(&mut self, operation: &JsonPatchOperation) -> Result<(), PatchError> {
        let path = pointer::parse(&operation.path)?;
        let operand = || operation.value.clone().unwrap_or_default();
        let from = || pointer::parse(operation.from.as_deref().unwrap_or_default());
        match operation.op {
            JsonPatchOp::Add => self.set(&path, operand(), Set::Add),
            JsonPatchOp::Replace => self.set(&path, operand(), Set::Replace),
            JsonPatchOp::Remove => {
                self.take(&path);
                Ok(())
            }
            JsonPatchOp::Move => match self.take(&from()?) {
                Some(value) => self.set(&path, value, Set::Add),
                None => Ok(()),
            },
            JsonPatchOp::Copy => {
                let Some(value) = find(&mut self.root, &from()?) else { return Ok(()) };
                self.copied += count(value);
                if self.copied > MAX_COPIED {
                    return Err(PatchError::TooLarge);
                }
                let copy = value.clone();
                self.set(&path, copy, Set::Add)
            }
            JsonPatchOp::Test => {
                let expected = operation.value.as_ref().unwrap_or(&Value::Null);
                let found = find(&mut self.root, &path);
                if found.is_some_and(|found| equal(found, expected)) {
                    return Ok(());
                }
                Err(PatchError::TestFailed(operation.path.clone()))
            }
        }
    }

    fn set(&mut self, path: &Tokens<'_>, value: Value, how: Set) -> Result<(), PatchError> {
        let left = MAX_DEPTH.checked_sub(path.len()).ok_or(PatchError::TooDeep)?;
        if !fits(&value, left) {
            return Err(PatchError::TooDeep);
        }
        let Some((member, containers)) = path.split_last() else {
            self.root = value;
            return Ok(());
        };
        let mut made = made_container(&mut self.root);
        let mut container = &mut self.root;
        for token in containers {
            let Some(next) = descend(container, token) else { return Ok(()) };
            made = made_container(next);
            container = next;
        }
        match container {
            // Where the container had to be made there was no member to replace.
            Value::Object(members) => match (how, members.get_mut(&**member)) {
                (_, Some(place)) => *place = value,
                (Set::Replace, None) if !made => {}
                (_, None) => {
                    members.insert(member.clone().into_owned(), value);
                }
            },
            Value::Array(items) => match how {
                Set::Add if member == "-" => items.push(value),
                Set::Add => match pointer::index(member) {
                    Some(index) if index <= items.len() => items.insert(index, value),
                    _ => {}
                },
                Set::Replace => {
                    if let Some(place) = pointer::index(member).and_then(|at| items.get_mut(at)) {
                        *place = value;
                    }
                }
            },
            // It was made an object if it was neither.
            _ => {}
        }
        Ok(())
    }

    /// Takes out what is at `path`; the whole document leaves `null`.
    fn take(&mut self, path: &Tokens<'_>) -> Option<Value> {
        let Some((member, containers)) = path.split_last() else {
            return Some(mem::take(&mut self.root));
        };
        match find(&mut self.root, containers)? {
            // Not `remove`, which may change the order of the others.
            Value::Object(members) => {
                let value = mem::take(members.get_mut(&**member)?);
                members.retain(|key, _| key != member);
                Some(value)
            }
            Value::Array(items) => {
                let index = pointer::index(member).filter(|index| *index < items.len())?;
                Some(items.remove(index))
            }
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Set {
    Add,
    Replace,
}

/// Makes an object of what is no container; says whether it did.
fn made_container(value: &mut Value) -> bool {
    if matches!(value, Value::Object(_) | Value::Array(_)) {
        return false;
    }
    *value = Value::Object(Map::new());
    true
}

/// The member of a container, made where an object has none; `None` where an array has none.
fn descend<'a>(container: &'a mut Value, token: &str) -> Option<&'a mut Value> {
    match container {
        Value::Object(members) => Some(members.entry(token).or_insert(Value::Null)),
        Value::Array(items) => items.get_mut(pointer::index(token)?),
        _ => None,
    }
}

fn find<'a>(root: &'a mut Value, path: &Tokens<'_>) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, token| match value {
        Value::Object(members) => members.get_mut(&**token),
        Value::Array(items) => items.get_mut(pointer::index(token)?),
        _ => None,
    })
}

/// Whether `value` nests at most so many containers. It looks no deeper than that.
fn fits(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(items) => depth > 0 && items.iter().all(|item| fits(item, depth - 1)),
        Value::Object(members) => depth > 0 && members.values().all(|item| fits(item, depth - 1)),
        _ => true,
    }
}

/// How many values there are in `value`, itself among them.
fn count(value: &Value) -> usize {
    let mut total = 0;
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        total += 1;
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(members) => open.extend(members.values()),
            _ => {}
        }
    }
    total
}

/// Whether both are the same to JSON, which knows one kind of number: 1 is 1.0.
fn equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => {
            left == right || (left.is_f64() || right.is_f64()) && left.as_f64() == right.as_f64()
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && iter::zip(left, right).all(|(l, r)| equal(l, r))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, l)| right.get(key).is_some_and(|r| equal(l, r)))
        }
        _ => left == right,
    }
}
