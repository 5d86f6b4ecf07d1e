//! Words that the live contract, the audio crate and the agent runtime share: audio formats and
//! frames, tool types, token usage, status codes. No I/O, no runtime.

mod audio;
mod audio_json;
mod sensitivity;
mod status;
mod tool;
mod usage;

pub use audio::{AudioFormat, AudioFrame};
pub use sensitivity::Sensitivity;
pub use status::Status;
pub use tool::{
    JsonObject, ToolArguments, ToolBehavior, ToolCall, ToolCallRequest, ToolDefinition,
    ToolResponse, ToolResponseScheduling, ToolSpeech,
};
pub use usage::Usage;
