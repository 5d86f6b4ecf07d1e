//! The policy and the hook `authorize_tool_call` as one authoriser.

use std::sync::Arc;

use antiphon_agent::{Authorizer, CallContext, Denial, Verdict};
use antiphon_types::ToolCall;

use super::{LifecycleHooks, SessionContext, inside};

/// The policy first; then the hook, which sees what the policy left and may narrow it further.
pub(crate) struct PolicyThenHook {
    pub(crate) policy: Option<Arc<dyn Authorizer>>,
    pub(crate) hooks: Option<Arc<dyn LifecycleHooks>>,
    pub(crate) context: SessionContext,
    pub(crate) mark: usize,
}

impl Authorizer for PolicyThenHook {
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        inside::run_sync(self.mark, || self.decide(cx, call))
    }
}

impl PolicyThenHook {
    fn decide(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        let verdict = match &self.policy {
            Some(policy) => policy.authorize_tool_call(cx, call),
            None => Verdict::Allow,
        };
        let Some(hooks) = &self.hooks else { return verdict };
        let narrowed;
        let seen = match &verdict {
            Verdict::Deny(_) => return verdict,
            Verdict::AllowWith(args) => {
                narrowed = ToolCall { args: args.clone(), ..call.clone() };
                &narrowed
            }
            _ => call,
        };
        match hooks.authorize_tool_call(&self.context, seen) {
            Err(denied) => Verdict::Deny(Denial::private(denied.0)),
            // The arguments that the hook returns count once the user has confirmed: the call is
            // judged again then.
            Ok(_) if matches!(verdict, Verdict::Confirm { .. }) && !cx.confirmed => verdict,
            Ok(args) => Verdict::AllowWith(args),
        }
    }
}
