//! Guards over words: what the agent may not say aloud, and what the user says that no tool acts on.

mod file;
mod letters;
mod personal;
mod phrases;

pub use self::{
    file::GuardFile,
    personal::{PersonalData, PersonalKind},
    phrases::Phrases,
};
