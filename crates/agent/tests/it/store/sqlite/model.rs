//! Any history of writes reads as that of the store in memory.

use std::sync::Arc;

use antiphon_agent::{
    Artifact, InMemorySessionStore, InvocationContext, Message, Part, SessionSnapshot,
    SessionState, SessionStore, SnapshotStatus, SqliteOptions, store::sqlite::Durability,
};
use proptest::{prelude::*, sample::Index};
use serde_json::json;

use super::{place, turn};

/// A row made from another, which may be itself.
#[derive(Clone, Debug)]
struct Write {
    /// A rewrite of the row that it is made from; else a new one.
    rewrite: bool,
    from: Index,
    /// The parent is not the row that it is made from.
    parent: Option<Index>,
    session: u8,
    created: usize,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Say(u8),
    Forget(Index),
    Correct(Index, u8),
    /// All messages are other ones, though equal.
    Copy,
    Custom(Option<u8>),
    Artifact(u8, u8),
    DropArtifact(Index),
    Pending,
    Compact(u8),
}

fn write() -> impl Strategy<Value = Write> {
    let change = prop_oneof![
        6 => any::<u8>().prop_map(Change::Say),
        1 => any::<Index>().prop_map(Change::Forget),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, text)| Change::Correct(at, text)),
        1 => Just(Change::Copy),
        2 => prop::option::of(any::<u8>()).prop_map(Change::Custom),
        2 => (0..4_u8, 0..4_u8).prop_map(|(name, text)| Change::Artifact(name, text)),
        1 => any::<Index>().prop_map(Change::DropArtifact),
        1 => Just(Change::Pending),
        1 => any::<u8>().prop_map(Change::Compact),
    ];
    let parts = (any::<bool>(), any::<Index>(), prop::option::weighted(0.2, any::<Index>()));
    (parts, 0..3_u8, 0..6_usize, prop::collection::vec(change, 0..6)).prop_map(
        |((rewrite, from, parent), session, created, changes)| Write {
            rewrite,
            from,
            parent,
            session,
            created,
            changes,
        },
    )
}

impl Write {
    fn apply(&self, rows: &[SessionSnapshot]) -> (Option<Arc<str>>, SessionSnapshot) {
        let from = (!rows.is_empty()).then(|| self.from.get(rows));
        let mut row = turn(&format!("session {}", self.session), self.created);
        row.state = from.and_then(|from| from.state.clone());
        row.parent_id = match &self.parent {
            Some(parent) if !rows.is_empty() => Some(parent.get(rows).snapshot_id.clone()),
            _ => from.map(|from| from.snapshot_id.clone()),
        };
        for change in &self.changes {
            change.apply(&mut row);
        }
        let id = from.filter(|_| self.rewrite).map(|from| from.snapshot_id.clone());
        (id, row)
    }
}

impl Change {
    fn apply(&self, row: &mut SessionSnapshot) {
        if let Self::Pending = self {
            row.status = Some(SnapshotStatus::Pending);
            row.state = None;
            return;
        }
        let state = row.state.get_or_insert_with(SessionState::default);
        let len = state.messages.len();
        match self {
            Self::Say(text) => state.messages.push(Message::user(text.to_string())),
            Self::Forget(at) => state.messages.truncate(at.index(len + 1)),
            Self::Correct(at, text) if len > 0 => {
                state.messages.replace(at.index(len), Message::model(text.to_string()));
            }
            Self::Copy => {
                let json = serde_json::to_string(&state.messages).unwrap();
                state.messages = serde_json::from_str(&json).unwrap();
            }
            Self::Custom(custom) => {
                let of = |length: &u8| json!({ "text": "x".repeat(usize::from(*length) * 8) });
                state.custom = custom.as_ref().map(of);
            }
            Self::Artifact(name, text) => antiphon_agent::state::add_artifact(
                &mut state.artifacts,
                Arc::new(Artifact::new(name.to_string(), vec![Part::text(text.to_string())])),
            ),
            Self::DropArtifact(at) if !state.artifacts.is_empty() => {
                state.artifacts.remove(at.index(state.artifacts.len()));
            }
            Self::Compact(text) => {
                let kept: Vec<_> = state.messages.iter().skip(len / 2).cloned().collect();
                state.messages = Default::default();
                state.messages.push(Message::system(text.to_string()));
                state.messages.extend(kept);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_history_reads_as_that_of_the_store_in_memory(
        writes in prop::collection::vec(write(), 1..24),
        remembers in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let (_directory, path) = place();
            let open = async || {
                let options = SqliteOptions::new(&path).durability(Durability::Crash);
                let options = options.cache_bytes(if remembers { 1 << 20 } else { 0 });
                Arc::new(options.open().await.unwrap())
            };
            let cx = InvocationContext::new();
            let model: Arc<dyn SessionStore> = Arc::new(InMemorySessionStore::new());
            // Each is written by one process or the other.
            let stores = [open().await, open().await];
            let mut rows: Vec<SessionSnapshot> = Vec::new();
            for (number, write) in writes.iter().enumerate() {
                let (id, row) = write.apply(&rows);
                let id: Arc<str> = id.unwrap_or_else(|| format!("row {number}").into());
                let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
                let expected = model.save_snapshot(&cx, Some(&id), &update).await.unwrap();
                let store: &dyn SessionStore = &*stores[number % 2];
                let written = store.save_snapshot(&cx, Some(&id), &update).await.unwrap();
                prop_assert_eq!(&written, &expected);
                rows.retain(|row| row.snapshot_id != id);
                rows.extend(written);
            }
            let again: Arc<dyn SessionStore> = open().await;
            for store in [&*stores[0] as &dyn SessionStore, &*stores[1], &*again] {
                for row in &rows {
                    let read = store.get_snapshot(&cx, &row.snapshot_id).await.unwrap();
                    prop_assert_eq!(read.as_ref(), Some(row));
                }
                for session in 0..3 {
                    let session = format!("session {session}");
                    let latest = store.get_latest_snapshot(&cx, &session).await.unwrap();
                    let expected = model.get_latest_snapshot(&cx, &session).await.unwrap();
                    prop_assert_eq!(latest, expected);
                }
            }
            Ok(())
        })?;
    }
}
