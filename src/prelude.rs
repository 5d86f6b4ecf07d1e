//! What most programs need, by one `use`.
//!
//! ```
//! use antiphon::prelude::*;
//! ```
//!
//! For readers who know SpeechKit's `agentkit`, whose session this toolkit's follows:
//!
//! | there | here |
//! |---|---|
//! | `AgentSession`, `NewAgentSession` | [`AgentSession`], [`AgentSession::new`] or [`AgentSession::builder`] |
//! | `Start`, `Stop`, `State`, `SessionID` | [`AgentSession::start`], [`stop`](AgentSession::stop) (signals; [`shutdown`](AgentSession::shutdown) waits), [`state`](AgentSession::state), [`session_id`](AgentSession::session_id) |
//! | `SendAudio`, `SendText`, `EndAudioStream` | [`send_audio`](AgentSession::send_audio) (a frame with its rate), [`send_text`](AgentSession::send_text), [`end_audio`](AgentSession::end_audio) |
//! | `Registry`, `Memory` (accessors) | [`registry`](AgentSession::registry), [`memory`](AgentSession::memory) |
//! | `Callbacks`, `LifecycleHooks` | traits with default methods: [`Callbacks`], [`LifecycleHooks`] |
//! | `SessionContext`, `IdleConfig`, `LiveConfig`, `LiveProvider` | the same names |
//! | `FuncTool{ToolName, ToolDescription, ToolSchema, Fn}` | [`FuncTool::new`] |
//! | `Memory`, `NewInMemory` | [`Memory`], [`InMemory::new`] |
//! | `Schema` | a JSON Schema as [`serde_json::Value`] |
//! | `Tool`, `ToolBehavior`, `ToolCall`, `ToolDefinition`, `ToolResponse` | the same names |
//! | `ToolRegistry`: `NewRegistry`, `Register`, `MustRegister`, `Lookup`, `All`, `Definitions`, `Len` | [`ToolRegistry`]: `new`, `register`, `must_register`, `lookup`, `all`, `definitions`, `len` |

pub use crate::{
    agent::{
        Authorizer, CallContext, Denial, FuncTool, Memory, Tool, ToolContext, ToolError,
        ToolRegistry, Verdict, memory::InMemory,
    },
    audio::{AudioFormat, AudioFrame, AudioSink},
    live::{LiveConfig, LiveProvider, VoiceActivity},
    session::{
        AgentSession, Callbacks, DeniedCall, EndReason, EventKind, IdleConfig, LifecycleHooks,
        SessionContext, SessionEvent, SessionState,
    },
    types::{JsonObject, ToolBehavior, ToolCall, ToolDefinition, ToolResponse, ToolSpeech},
};
