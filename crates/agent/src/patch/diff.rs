//! Finding a patch.

use serde_json::{Map, Value};

use super::{JsonPatch, JsonPatchOperation, pointer};

/// The patch that makes `from` into `to`. It only adds, removes and replaces, and is the same for
/// the same documents.
///
/// Objects are compared by key, in order of the keys, and arrays by index: what is longer gets the
/// rest appended (`/-`), what is shorter loses it from its end. A value whose kind changed is
/// replaced as a whole.
pub fn diff(from: &Value, to: &Value) -> JsonPatch {
    let mut diff = Diff { path: String::new(), patch: JsonPatch::default() };
    diff.values(from, to);
    diff.patch
}

struct Diff {
    /// The pointer to the values that are being compared.
    path: String,
    patch: JsonPatch,
}

impl Diff {
    fn values(&mut self, from: &Value, to: &Value) {
        match (from, to) {
            (Value::Object(from), Value::Object(to)) => self.objects(from, to),
            (Value::Array(from), Value::Array(to)) => self.arrays(from, to),
            (from, to) if from == to => {}
            (_, to) => self.push(JsonPatchOperation::replace(self.path.clone(), to.clone())),
        }
    }

    fn objects(&mut self, from: &Map<String, Value>, to: &Map<String, Value>) {
        // Maps are sorted or not, as features of `serde_json` anywhere in the build say.
        let mut keys: Vec<_> = from.keys().chain(to.keys()).collect();
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            self.within(key, |diff| match (from.get(key), to.get(key)) {
                (Some(from), Some(to)) => diff.values(from, to),
                (None, Some(to)) => {
                    diff.push(JsonPatchOperation::add(diff.path.clone(), to.clone()));
                }
                (_, None) => diff.push(JsonPatchOperation::remove(diff.path.clone())),
            });
        }
    }

    fn arrays(&mut self, from: &[Value], to: &[Value]) {
        for (index, (from, to)) in from.iter().zip(to).enumerate() {
            self.within(&index.to_string(), |diff| diff.values(from, to));
        }
        for appended in to.iter().skip(from.len()) {
            self.push(JsonPatchOperation::add(format!("{}/-", self.path), appended.clone()));
        }
        for removed in (to.len()..from.len()).rev() {
            self.push(JsonPatchOperation::remove(format!("{}/{removed}", self.path)));
        }
    }

    fn within(&mut self, token: &str, compare: impl FnOnce(&mut Self)) {
        let outer = self.path.len();
        pointer::push(&mut self.path, token);
        compare(self);
        self.path.truncate(outer);
    }

    fn push(&mut self, operation: JsonPatchOperation) {
        self.patch.0.push(operation);
    }
}
