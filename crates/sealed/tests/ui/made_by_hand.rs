//! With all that it consists of at hand, an admitted call cannot be made.

#![allow(unreachable_code)]

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

fn main() {}
