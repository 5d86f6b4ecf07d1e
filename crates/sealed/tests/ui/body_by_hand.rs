//! The body of a tool wants a context that the executor alone makes.

#![allow(unreachable_code)]

use std::sync::Arc;

use antiphon_agent::{InMemory, InvocationContext, ToolContext, ToolRegistry, types::JsonObject};

async fn reached(tools: &ToolRegistry) {
    let Some(tool) = tools.lookup("pay") else { return };
    let cx = ToolContext {
        session_id: "s".into(),
        call_id: "c".into(),
        idempotency_key: "k".into(),
        turn: 1,
        memory: Arc::new(InMemory::new()),
        invocation: InvocationContext::new(),
        ..todo!()
    };
    let _ = tool.invoke(cx, JsonObject::new()).await;
}

fn by_default() -> ToolContext {
    ToolContext::default()
}

fn main() {}
