use antiphon_agent::{AdmittedCall, Executed, RunContext, ToolExecutor};

async fn run(executor: ToolExecutor, call: AdmittedCall, cx: RunContext) -> Executed {
    executor.run(call, cx).await
}

fn main() {
    let _ = run;
}
