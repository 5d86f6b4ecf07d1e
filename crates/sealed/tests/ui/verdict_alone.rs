//! What a policy says lets nothing run; only the executor makes of it what does.

use antiphon_agent::{Admission, RunContext, ToolExecutor, Verdict, types::ToolCall};

fn admitted(verdict: Verdict) -> Admission {
    Admission::Run(verdict)
}

async fn as_it_came(executor: ToolExecutor, call: ToolCall, cx: RunContext) {
    executor.run(call, cx).await;
}

fn as_if_approved(mut cx: RunContext) -> RunContext {
    cx.claimed = None;
    cx
}

fn main() {}
