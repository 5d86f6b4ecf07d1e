//! A whole session against a scripted provider, speaker and tools, on paused time.

mod compatible;
mod conversation;
mod fixed;
mod rig;
mod robust;
mod trials;
