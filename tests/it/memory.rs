//! Whose memory tools see, and how it is forgotten.

use std::sync::Arc;

use antiphon::{
    agent::{Caller, FuncTool, InMemory, Memory, types::JsonObject},
    session::*,
};
use serde_json::json;

use crate::rig::*;

fn keep() -> FuncTool {
    FuncTool::new("keep", "Keeps.", json!({ "type": "object" }), |cx, args| async move {
        for (key, value) in &args {
            cx.memory.set(key, value.as_str().unwrap()).await.unwrap();
        }
        Ok(JsonObject::new())
    })
}

async fn keeps(setup: Setup, args: &str) -> Rig {
    let mut rig = setup.build(|builder| builder.tool(keep())).start().await;
    rig.user_says("u1", "Keep it.").calls_tool("r1", "c1", "keep", args);
    assert_eq!(rig.outputs().await.len(), 1);
    rig
}

#[tokio::test(start_paused = true)]
async fn keys_are_kept_verbatim_under_the_session_or_the_caller() {
    let memory = Arc::new(InMemory::new());
    for (scope, caller, session) in [
        (MemoryScope::Session, None, "s1"),
        (MemoryScope::Session, Some(Caller::new("ann")), "s2"),
        (MemoryScope::Session, Some(Caller::new("ann").scope("home")), "s3"),
        (MemoryScope::Caller, Some(Caller::new("ann")), "s4"),
        (MemoryScope::Caller, Some(Caller::new("a/b").scope("home")), "s5"),
    ] {
        let setup = Setup::new().build(|builder| {
            let builder = builder.memory(memory.clone()).memory_scope(scope).session_id(session);
            match caller {
                Some(caller) => builder.caller(caller),
                None => builder,
            }
        });
        keeps(setup, r#"{"Name / of %the dog": "Rex"}"#).await;
    }
    let mut keys = memory.list("").await.unwrap();
    keys.sort_unstable();
    let key = "Name / of %the dog";
    let expected = ["/home/a%2Fb/", "/home/s3/", "ann/", "s1/", "s2/"];
    assert_eq!(keys, expected.map(|prefix| format!("{prefix}{key}")));
}

#[tokio::test(start_paused = true)]
async fn a_callers_sessions_share_what_they_know() {
    let memory = Arc::new(InMemory::new());
    let of_ann = || {
        Setup::new().build(|builder| {
            builder
                .memory(memory.clone())
                .memory_scope(MemoryScope::Caller)
                .caller(Caller::new("ann"))
        })
    };
    keeps(of_ann(), r#"{"dog": "Rex"}"#).await;
    let rig = of_ann().start().await;
    let known = rig.session.scoped_memory();
    assert_eq!(known.get("dog").await.unwrap().as_deref(), Some("Rex"));
    assert_eq!(known.list("").await.unwrap(), ["dog"]);
}

#[tokio::test(start_paused = true)]
async fn forgetting_deletes_what_is_the_sessions_and_nothing_else() {
    let memory = Arc::new(InMemory::new());
    memory.set("s10/dog", "Fido").await.unwrap();
    let setup = Setup::new().build(|builder| builder.memory(memory.clone()).session_id("s1"));
    let rig = keeps(setup, r#"{"dog": "Rex", "cat": "Tom"}"#).await;
    assert_eq!(rig.session.forget().await.unwrap(), 2);
    assert_eq!(rig.session.scoped_memory().list("").await.unwrap(), [""; 0]);
    assert_eq!(memory.list("").await.unwrap(), ["s10/dog"]);
    assert_eq!(rig.session.forget().await.unwrap(), 0);
}

#[test]
fn the_memory_of_a_caller_who_is_not_named_is_refused() {
    let built = Setup::new().builder.memory_scope(MemoryScope::Caller).build();
    assert!(matches!(built, Err(StartError::InvalidConfig(_))));
}
