//! Faults that sessions of this kind have had, and this one has not: F1 to F18. (F14, the stateful
//! resampler, is tested where it lives.)

mod connections;
mod hooks;
mod messages;
mod tools;

pub use hooks::{SlowStart, StopsInside};
