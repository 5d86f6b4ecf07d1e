//! Ids that the runtime makes up.

use std::sync::Arc;

/// A new id for a session or a snapshot: a random UUID.
pub(crate) fn new_id() -> Arc<str> {
    let mut buffer = uuid::Uuid::encode_buffer();
    Arc::from(&*uuid::Uuid::new_v4().hyphenated().encode_lower(&mut buffer))
}
