//! What a process remembers of a store, within bounds.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Values by key: those used last, up to a number of bytes of all but one, which may be larger.
pub(super) struct Recent<K, V> {
    entries: Mutex<Entries<K, V>>,
    max_bytes: usize,
}

struct Entries<K, V> {
    values: HashMap<Arc<K>, Entry<V>>,
    /// The keys by when they were used last.
    used: BTreeMap<u64, Arc<K>>,
    clock: u64,
    bytes: usize,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    pub(super) fn new(max_bytes: usize) -> Self {
        let entries = Entries { values: HashMap::new(), used: BTreeMap::new(), clock: 0, bytes: 0 };
        Self { entries: Mutex::new(entries), max_bytes }
    }

    pub(super) fn find(&self, key: &K) -> Option<V> {
        self.lock().find(key)
    }

    /// Remembers a value that takes about so many bytes.
    pub(super) fn insert(&self, key: K, value: V, bytes: usize) {
        self.insert_unless(key, value, bytes, |_, _| false);
    }

    /// The same, unless there is one of which `stays` says so, given the old and the new one.
    pub(super) fn insert_unless(
        &self,
        key: K,
        value: V,
        bytes: usize,
        stays: impl FnOnce(&V, &V) -> bool,
    ) {
        // What is pushed out is dropped after the lock: lists may be long.
        let mut out = Vec::new();
        let mut entries = self.lock();
        if entries.values.get(&key).is_some_and(|known| stays(&known.value, &value)) {
            return;
        }
        out.extend(entries.remove(&key));
        entries.add(Arc::new(key), value, bytes);
        while entries.bytes > self.max_bytes && entries.used.len() > 1 {
            let Some((_, oldest)) = entries.used.pop_first() else { break };
            out.extend(entries.remove(&oldest));
        }
        drop(entries);
    }

    fn lock(&self) -> MutexGuard<'_, Entries<K, V>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash, V: Clone> Entries<K, V> {
    fn find(&mut self, key: &K) -> Option<V> {
        let entry = self.values.get_mut(key)?;
        if let Some(key) = self.used.remove(&entry.used) {
            self.clock += 1;
            entry.used = self.clock;
            self.used.insert(self.clock, key);
        }
        Some(entry.value.clone())
    }

    fn add(&mut self, key: Arc<K>, value: V, bytes: usize) {
        self.clock += 1;
        self.bytes += bytes;
        self.used.insert(self.clock, key.clone());
        self.values.insert(key, Entry { value, bytes, used: self.clock });
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.values.remove(key)?;
        self.bytes -= entry.bytes;
        self.used.remove(&entry.used);
        Some(entry.value)
    }
}
