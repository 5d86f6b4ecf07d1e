//! OpenAI Realtime and its dialects.
//!
//! [`OpenAi`] is the live provider: give it to a session with a [`LiveConfig`] that holds a key.
//! It also speaks to Azure OpenAI, xAI and servers that follow either; see [`wire::Dialect`].
//!
//! [`Client`] is its client half as a pure state machine. [`wire`] holds the protocol, for servers
//! and tools too: every event of both directions as a type.
//!
//! [`LiveConfig`]: antiphon_live::LiveConfig

mod client;
mod provider;
mod secret;
pub mod wire;

pub use client::Client;
pub use provider::OpenAi;
pub use secret::{ClientSecret, ClientSecretRequest, ExpiresAfter};
