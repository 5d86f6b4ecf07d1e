//! The outputs of tools that were too large for the model, kept whole for the host.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use serde_json::Value;

/// The newest whole outputs of a session, up to a bound of bytes.
pub(crate) struct WholeOutputs {
    kept: Mutex<VecDeque<Kept>>,
    max_bytes: usize,
}

struct Kept {
    call: Arc<str>,
    output: Arc<Value>,
    bytes: usize,
}

impl WholeOutputs {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { kept: Mutex::default(), max_bytes }
    }

    /// Keeps the output of `call`, and drops the oldest for it. `None`: it alone is too large; else
    /// how many bytes of JSON text it is.
    pub(crate) fn keep(&self, call: &Arc<str>, output: Value) -> Option<u64> {
        let bytes = output.to_string().len();
        if bytes > self.max_bytes {
            return None;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|known| known.call != *call);
        kept.push_back(Kept { call: call.clone(), output: Arc::new(output), bytes });
        while kept.iter().map(|known| known.bytes).sum::<usize>() > self.max_bytes {
            kept.pop_front();
        }
        Some(bytes as u64)
    }

    /// The output of `call`, if it is kept.
    pub(crate) fn of(&self, call: &str) -> Option<Arc<Value>> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|known| *known.call == *call).map(|known| known.output.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_up_to_the_bound() {
        let outputs = WholeOutputs::new(25);
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        assert_eq!(outputs.keep(&a, "0123456789".into()), Some(12));
        assert_eq!(outputs.keep(&b, "0123456789".into()), Some(12));
        assert!(outputs.of("a").is_some());
        assert_eq!(outputs.keep(&c, "012".into()), Some(5));
        assert!(outputs.of("a").is_none());
        assert_eq!(*outputs.of("c").unwrap(), Value::from("012"));
        assert_eq!(outputs.keep(&a, "0".repeat(99).into()), None);
        assert!(outputs.of("b").is_some(), "what is too large drops nothing");
    }
}
