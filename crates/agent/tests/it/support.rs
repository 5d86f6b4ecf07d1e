use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use antiphon_agent::{
    Admission, AdmittedCall, Authorizer, CallContext, FuncTool, InMemory, Refused, RunContext,
    ToolExecutor, ToolRegistry,
    types::{JsonObject, ToolArguments, ToolCallRequest},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

pub fn request(id: &str, name: &str, args: &str) -> ToolCallRequest {
    ToolCallRequest {
        id: id.into(),
        name: name.into(),
        arguments: ToolArguments::Json(args.to_owned()),
    }
}

pub fn call_context() -> CallContext {
    CallContext::new("session", 1, Arc::new(InMemory::new()))
}

pub fn run_context() -> RunContext {
    cancellable(CancellationToken::new())
}

pub fn cancellable(token: CancellationToken) -> RunContext {
    RunContext::new("session", 1, Arc::new(InMemory::new()), token)
}

/// Counts how often a tool's body began.
#[derive(Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    pub fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// A tool with the parameter `amount`, from 0 to 1,000, that returns what it was given.
pub fn pay(counter: &Counter) -> FuncTool {
    let counter = counter.clone();
    let schema = json!({
        "type": "object",
        "properties": { "amount": { "type": "number", "minimum": 0, "maximum": 1000 } },
        "required": ["amount"],
    });
    FuncTool::new("pay", "Pays.", schema, move |_cx, args| {
        counter.add();
        async move { Ok(object(json!({ "paid": args["amount"] }))) }
    })
}

pub fn executor(tool: FuncTool) -> ToolExecutor {
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    ToolExecutor::new(Arc::new(registry), None)
}

pub fn guarded(tool: FuncTool, policy: impl Authorizer) -> ToolExecutor {
    let registry = ToolRegistry::new();
    registry.must_register(tool);
    ToolExecutor::new(Arc::new(registry), Some(Arc::new(policy)))
}

pub fn admitted(admission: Admission) -> AdmittedCall {
    match admission {
        Admission::Run(call) => call,
        other => panic!("not admitted: {other:?}"),
    }
}

pub fn refused(admission: Admission) -> Refused {
    match admission {
        Admission::Refused(refused) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

pub fn error_text(response: &JsonObject) -> &str {
    response["error"].as_str().unwrap()
}
