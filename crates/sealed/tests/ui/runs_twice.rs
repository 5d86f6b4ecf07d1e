//! An admitted call runs once.

use antiphon_agent::{AdmittedCall, RunContext, ToolExecutor};

async fn twice(executor: ToolExecutor, call: AdmittedCall, cx: RunContext) {
    executor.run(call, cx.clone()).await;
    executor.run(call, cx).await;
}

fn main() {}
