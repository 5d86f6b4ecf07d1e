//! With all that it consists of at hand, an admitted call cannot be made; nor copied, nor changed.

use antiphon_agent::{AdmittedCall, types::ToolCall};

fn made(call: ToolCall) -> AdmittedCall {
    AdmittedCall {
        call,
        original: None,
        registered: todo!(),
        confirmed: true,
        question: None,
        approved: true,
        approved_by: None,
        asks: None,
        kept: None,
    }
}

fn by_default() -> AdmittedCall {
    AdmittedCall::default()
}

fn copied(call: &AdmittedCall) -> AdmittedCall {
    call.clone()
}

fn changed(mut call: AdmittedCall) {
    call.call.args.clear();
}

fn main() {}
