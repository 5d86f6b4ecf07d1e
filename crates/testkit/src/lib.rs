//! Scripted providers, models, speakers, microphones and tools, for tests on paused time.
//!
//! Everything here is driven by the test: nothing sleeps, nothing guesses. A
//! [`ScriptedProvider`] hands the test the far end of each connection; a [`Speaker`] plays exactly
//! as many samples as the test says; a [`LatchedTool`] starts and finishes when told.
//!
//! Use it from `tests/` directories only: a unit test inside a crate that the testkit depends on
//! would see two copies of that crate.

pub mod gemini;
mod microphone;
mod model;
pub mod openai;
mod pipe;
mod provider;
mod script;
mod scripted;
mod speaker;
mod speech;
mod tool;

pub use microphone::ScriptedMicrophone;
pub use model::{EchoModel, ModelLatch, ModelTurn, ScriptedModel};
pub use pipe::PipeConnector;
pub use provider::{ConnectPlan, FarEnd, ScriptedProvider, full_capabilities};
pub use script::{Script, ScriptError, Step};
pub use speaker::{Cleared, Speaker, SpeakerControl};
pub use speech::{tone, voice_like};
pub use tool::{LatchedTool, ToolLatch, ToolPlan};
