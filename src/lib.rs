//! Antiphon: a realtime voice-agent toolkit.

pub use antiphon_agent as agent;
pub use antiphon_audio as audio;
pub use antiphon_live as live;
pub use antiphon_types as types;

mod json_file;
pub mod link;
pub mod policy;
pub mod prelude;
#[cfg(feature = "serve")]
pub mod serve;
pub mod session;
#[cfg(feature = "telephony")]
pub mod telephony;
#[cfg(feature = "tools")]
pub mod tools;

/// Providers, each behind the feature of its name.
pub mod providers {
    #[cfg(feature = "cascade")]
    pub use antiphon_cascade as cascade;
    #[cfg(feature = "gemini")]
    pub use antiphon_gemini as gemini;
    #[cfg(feature = "openai")]
    pub use antiphon_openai as openai;
}

/// The README's code, compiled.
#[cfg(all(doctest, feature = "offline", feature = "openai"))]
#[doc = include_str!("../README.md")]
mod readme {}
