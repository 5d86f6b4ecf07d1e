//! The agent's policy over its own tools, and the session's over all.

use std::{collections::HashSet, sync::Arc};

use antiphon_agent::{Authorizer, CallContext, Denial, Verdict, types::ToolCall};

/// Both policies: a call of the agent's tools must pass the agent's, and every call the session's,
/// which sees what the first one left.
pub(super) struct Both {
    pub(super) agents: Arc<dyn Authorizer>,
    /// The tools that the agent brought.
    pub(super) tools: HashSet<Arc<str>>,
    pub(super) sessions: Option<Arc<dyn Authorizer>>,
}

impl Authorizer for Both {
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        let first = match self.tools.contains(&call.name) {
            true => self.agents.authorize_tool_call(cx, call),
            false => Verdict::Allow,
        };
        let Some(sessions) = &self.sessions else { return first };
        match first {
            Verdict::Deny(_) => first,
            Verdict::Allow => sessions.authorize_tool_call(cx, call),
            Verdict::AllowWith(args) => {
                let narrowed = ToolCall { args: args.clone(), ..call.clone() };
                match sessions.authorize_tool_call(cx, &narrowed) {
                    Verdict::Allow => Verdict::AllowWith(args),
                    // The executor would compare what was confirmed with what the model gave.
                    Verdict::Confirm { .. } if cx.confirmed && narrowed != *call => {
                        Verdict::Deny(Denial::private(
                            "a confirmed call cannot have its arguments narrowed by another policy",
                        ))
                    }
                    other => other,
                }
            }
            Verdict::Confirm { read_back } => match sessions.authorize_tool_call(cx, call) {
                Verdict::Deny(denial) => Verdict::Deny(denial),
                Verdict::Confirm { read_back: second } if second != read_back => {
                    Verdict::Confirm { read_back: format!("{read_back} {second}") }
                }
                Verdict::AllowWith(args) if cx.confirmed && args != call.args => {
                    Verdict::Deny(Denial::private(
                        "a confirmed call cannot have its arguments narrowed by another policy",
                    ))
                }
                _ => Verdict::Confirm { read_back },
            },
            Verdict::Ask { reason } => match sessions.authorize_tool_call(cx, call) {
                Verdict::Deny(denial) => Verdict::Deny(denial),
                Verdict::AllowWith(args) if args != call.args => Verdict::Deny(Denial::private(
                    "a call that a person decides over cannot be narrowed by another policy",
                )),
                _ => Verdict::Ask { reason },
            },
            // A kind of verdict that is not known here is none that allows.
            other => other,
        }
    }
}
