//! Tools that the provider runs itself, and asks about.

use std::sync::Arc;

use antiphon_types::JsonObject;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::{Tool, ToolContext, ToolError, registry::Registered};

/// Stands for a tool that the provider runs: all that happens here is that it may.
struct Elsewhere(Arc<str>);

#[async_trait]
impl Tool for Elsewhere {
    fn name(&self) -> &str {
        &self.0
    }

    fn description(&self) -> &str {
        "A tool that the provider runs."
    }

    async fn invoke(&self, _: ToolContext, _: JsonObject) -> Result<Value, ToolError> {
        Ok(json!({ "permitted": true }))
    }
}

/// What is admitted for a call of the provider's own; `None`: it has no name.
pub(super) fn registered(name: &Arc<str>) -> Option<Arc<Registered>> {
    let registered = Registered::new(Arc::new(Elsewhere(name.clone()))).ok()?;
    Some(Arc::new(Registered { by_provider: true, ..registered }))
}
