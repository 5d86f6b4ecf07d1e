//! A policy from a file, asked about some calls. No session is needed for it.
//!
//! `cargo run --example policy`

use std::{error::Error, path::Path, sync::Arc};

use antiphon::{
    agent::{Authorizer, CallContext, memory::InMemory},
    policy::RulePolicy,
    types::ToolCall,
};
use serde_json::json;

fn main() -> Result<(), Box<dyn Error>> {
    let policy =
        RulePolicy::load(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.json"))?;
    let cx = CallContext::new("example", 1, Arc::new(InMemory::new()));
    for amount in [5, 900] {
        let args = json!({"name": "Alice", "amount": amount});
        let call = ToolCall {
            id: "call-1".into(),
            name: "send_money".into(),
            args: args.as_object().cloned().unwrap_or_default(),
        };
        println!("{amount}: {:?}", policy.authorize_tool_call(&cx, &call));
    }
    let confirmed = cx.confirmed();
    println!(
        "after a yes: {:?}",
        policy.authorize_tool_call(
            &confirmed,
            &ToolCall {
                id: "call-2".into(),
                name: "send_money".into(),
                args: json!({"name": "Alice", "amount": 5})
                    .as_object()
                    .cloned()
                    .unwrap_or_default(),
            }
        )
    );
    Ok(())
}
