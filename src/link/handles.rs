//! Handles by which a provider goes on with a conversation in a later run.
//!
//! A handle is the conversation as it was when the provider gave it. It is kept for the snapshot that is
//! the same conversation, in a memory beside the store: snapshots travel to clients, and a handle lets
//! whoever has it, with the account's key, into the conversation. `docs/voice-record.md` has the format.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use antiphon_agent::{Memory, MemoryError};
use antiphon_live::Resumption;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::session::{
    Continuity, EventKind, Restored,
    journal::{HandleNote, Knows, Place, SeedHandle},
};

/// How long the memory may take: starting waits for it, and so does the next turn to be told.
const WITHIN: Duration = Duration::from_secs(2);

/// The kept handle of a session.
pub(super) struct Handles {
    memory: Arc<dyn Memory>,
    key: String,
}

/// A handle that is worth keeping.
#[derive(Clone)]
pub(super) struct Kept {
    by: By,
    handle: SecretString,
    /// How long after the end of its connection it is good.
    valid: Option<Duration>,
    knows: Knows,
}

/// Who gave a handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct By {
    provider: Arc<str>,
    model: Arc<str>,
    /// A digest.
    account: String,
}

impl By {
    fn new(place: &Place) -> Option<Self> {
        let account = place.account.as_ref()?.expose_secret();
        let digest = Sha256::new_with_prefix("account\n").chain_update(account).finalize();
        let account = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Some(Self { provider: place.provider.clone(), model: place.model.clone(), account })
    }
}

/// What is written.
#[derive(Serialize, Deserialize)]
struct Record {
    snapshot_id: String,
    #[serde(flatten)]
    by: By,
    handle: String,
    kept_at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    good_until_ms: Option<u64>,
    #[serde(flatten)]
    knows: Knows,
}

impl Handles {
    /// That of this session, of this tenant.
    pub(super) fn new(memory: Arc<dyn Memory>, tenant: Option<&str>, session: &str) -> Self {
        // Without a slash it lies in nobody's part of a memory that tools see, too.
        let escaped = |id: &str| id.replace('%', "%25").replace('/', "%2F").replace(' ', "%20");
        let tenant = tenant.map(|tenant| format!("{} ", escaped(tenant))).unwrap_or_default();
        Self { memory, key: format!("voice handle {tenant}{}", escaped(session)) }
    }

    /// Keeps a handle, in the place of the one before: it is the conversation of this snapshot.
    pub(super) async fn keep(&self, snapshot_id: &str, kept: &Kept) {
        let kept_at_ms = unix_ms();
        let valid_ms = kept.valid.map(|valid| valid.as_millis() as u64);
        let record = Record {
            snapshot_id: snapshot_id.to_owned(),
            by: kept.by.clone(),
            handle: kept.handle.expose_secret().to_owned(),
            kept_at_ms,
            // Its connection ends no earlier.
            good_until_ms: valid_ms.map(|valid| kept_at_ms.saturating_add(valid)),
            knows: kept.knows,
        };
        let Ok(record) = serde_json::to_string(&record) else { return };
        within(self.memory.set(&self.key, &record)).await;
    }

    /// The handle that is the conversation of this snapshot, if one of `places` gave it. It is given
    /// once: what it stands for afterwards no snapshot says.
    pub(super) async fn take(&self, snapshot_id: &str, places: &[Place]) -> Option<SeedHandle> {
        let text = within(self.memory.get(&self.key)).await??;
        let Ok(record) = serde_json::from_str::<Record>(&text) else {
            tracing::warn!("what is kept as a handle of the conversation is none");
            return None;
        };
        let left = record.good_until_ms.map(|until| until.saturating_sub(unix_ms()));
        if left == Some(0) {
            within(self.memory.delete(&self.key)).await;
            return None;
        }
        if record.snapshot_id != snapshot_id {
            return None;
        }
        let gave = |place: &Place| By::new(place).is_some_and(|by| by == record.by);
        let candidate = places.iter().position(gave)?;
        within(self.memory.delete(&self.key)).await?;
        Some(SeedHandle {
            candidate,
            handle: Resumption { handle: record.handle.into() },
            good_for: left.map(Duration::from_millis),
            knows: record.knows,
        })
    }
}

/// Follows which handle is the conversation of which turn.
pub(super) struct Keeping {
    handles: Arc<Handles>,
    places: Vec<Option<By>>,
    /// The newest handle, and the turn that it holds all of; `None` where something is not in it.
    newest: Option<(u64, Kept)>,
    /// The newest turn that was committed.
    committed: Option<u64>,
    /// What the model knows of the conversation.
    knows: Knows,
}

impl Keeping {
    pub(super) fn new(handles: Arc<Handles>, places: &[Place]) -> Self {
        let places = places.iter().map(By::new).collect();
        Self { handles, places, newest: None, committed: None, knows: Knows::ALL }
    }

    pub(super) fn handles(&self) -> Arc<Handles> {
        self.handles.clone()
    }

    /// Something is told to hosts.
    pub(super) fn event(&mut self, event: &EventKind) {
        match event {
            EventKind::SessionResumed(from) => {
                self.knows = Knows { restored: from.restored, left_out: from.left_out };
            }
            EventKind::StateRestored { restored: Continuity::None, .. } => {
                self.knows.restored = Restored::None;
            }
            EventKind::StateRestored { restored: Continuity::Digest, .. } => {
                self.knows.restored = Restored::Digest;
            }
            _ => {}
        }
    }

    /// The provider gave a handle in this turn. `at_rest`: nothing of the turn waits to be committed;
    /// then what comes back is to be kept at once.
    pub(super) fn resumable(
        &mut self,
        turn: u64,
        note: &HandleNote,
        at_rest: bool,
    ) -> Option<Kept> {
        self.newest = None;
        // Before the first turn a provider may not have read yet what it was told.
        if turn == 0 || self.knows.restored == Restored::None {
            return None;
        }
        let by = self.places.get(note.candidate)?.clone()?;
        let handle = note.handle.handle.clone();
        let kept = Kept { by, handle, valid: note.valid, knows: self.knows };
        self.newest = Some((turn, kept.clone()));
        (at_rest && self.committed == Some(turn)).then_some(kept)
    }

    /// Something is not in the newest handle.
    pub(super) fn not_resumable(&mut self) {
        self.newest = None;
    }

    /// A turn is committed: the handle that is the conversation up to its end, if there is one by now.
    pub(super) fn committed(&mut self, turn: u64) -> Option<Kept> {
        self.committed = Some(turn);
        self.newest.as_ref().filter(|(of, _)| *of == turn).map(|(_, kept)| kept.clone())
    }
}

/// What the memory answers, if it does so in time. Nobody depends on it: without a handle a provider is
/// told the conversation.
async fn within<T>(answer: impl Future<Output = Result<T, MemoryError>>) -> Option<T> {
    match tokio::time::timeout(WITHIN, answer).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a handle of the conversation is not kept");
            None
        }
        Err(_) => {
            tracing::warn!("a handle of the conversation is not kept: the memory is slow");
            None
        }
    }
}

fn unix_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64
}
