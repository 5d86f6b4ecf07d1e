//! An admitted call cannot be copied, nor changed, and there is none by default.

use antiphon_agent::AdmittedCall;

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
