//! C1 to C18 and F1 to F18 over a WebSocket: the OpenAI provider against the scripted server, over
//! pipes in memory, with an eye on the frames that the server saw.
//!
//! What makes no sense over this wire: C4's withdrawn calls and F10's outputs in pieces and calls
//! that do not stop the model (the protocol has no word for them), and F13's bound of the command
//! queue (what it refuses never comes near a wire).

mod compatible;
mod fixed;
mod lifetime;
mod permissions;
mod quiet;
pub mod rig;
