//! Generation by hand.

mod interrupts;
mod stream;
mod turns;

use std::sync::Arc;

use antiphon_agent::{
    Generate, InvocationContext, Part, ToolExecutor, ToolRegistry, TypedTool, tool::interrupt,
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

pub fn cx() -> InvocationContext {
    InvocationContext::new()
}

pub fn script(turns: impl IntoIterator<Item = ModelTurn>) -> (ScriptedModel, Generate) {
    let model = ScriptedModel::new(turns);
    let request = Generate::new(model.shared());
    (model, request)
}

#[derive(Deserialize, JsonSchema)]
pub struct Place {
    pub city: String,
}

#[derive(Deserialize, JsonSchema)]
pub struct Transfer {
    pub to: String,
    pub amount: f64,
}

/// `weather`, `transfer` (asks beyond 100), `broken`, `zero` (whose output is 0).
pub fn registry() -> ToolRegistry {
    let registry = ToolRegistry::new();
    registry.must_register(TypedTool::new("weather", "Weather.", |_cx, at: Place| async move {
        Ok(format!("sunny in {}", at.city))
    }));
    registry.must_register(TypedTool::new("transfer", "Money.", |cx, it: Transfer| async move {
        match cx.resumed() {
            None if it.amount > 100.0 => Err(interrupt(json!({"amount": it.amount}))),
            resumed => {
                let original: Option<Value> = cx.original_input();
                Ok(json!({"sent": it.amount, "to": it.to, "resumed": resumed, "original": original}))
            }
        }
    }));
    registry.must_register(TypedTool::new("broken", "Fails.", |_cx, (): ()| async {
        Err::<(), _>(antiphon_agent::ToolError::new("out of order"))
    }));
    registry.must_register(TypedTool::new("zero", "Zero.", |cx, (): ()| async move {
        cx.attach_parts([Part::text("nothing")]);
        Ok(0)
    }));
    registry
}

pub fn tools() -> ToolExecutor {
    ToolExecutor::new(Arc::new(registry()), None)
}

pub fn json_of(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}
