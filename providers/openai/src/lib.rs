//! OpenAI Realtime and its dialects.
//!
//! [`wire`] holds the protocol: every event of both directions as a type, used by the client half
//! here and by servers.

pub mod wire;
