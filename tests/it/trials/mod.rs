//! What users of other voice toolkits suffered from, as far as it concerns the core of a session.
//! Each test is named after the kind of fault it shows.

mod confirming;
mod connections;
mod replies;
#[cfg(feature = "openai")]
mod table;
mod timers;
mod tools;

#[cfg(all(feature = "openai", feature = "cascade"))]
pub use table::cascade_of;
