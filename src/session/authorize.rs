//! The policy and the hook `authorize_tool_call` as one authoriser.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use antiphon_agent::{Authorizer, CallContext, Denial, Judgement, Verdict, Witness};
use antiphon_types::ToolCall;

use super::{LifecycleHooks, SessionContext, inside};

/// Questions of the policy that are remembered; as many calls may be open in a session.
const MAX_QUESTIONS: usize = 128;

/// The policy first; then the hook, which sees what the policy left and may narrow it further.
pub(crate) struct PolicyThenHook {
    pub(crate) policy: Option<Arc<dyn Authorizer>>,
    pub(crate) hooks: Option<Arc<dyn LifecycleHooks>>,
    pub(crate) context: SessionContext,
    pub(crate) mark: usize,
    pub(crate) questions: Questions,
}

/// What the policy wanted the user to be asked, by call.
#[derive(Default)]
pub(crate) struct Questions(Mutex<VecDeque<(Arc<str>, String)>>);

impl Authorizer for PolicyThenHook {
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        self.judge(cx, call).verdict
    }

    fn judge(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        inside::run_sync(self.mark, || {
            let mut judged = match &self.policy {
                Some(policy) => policy.judge(cx, call),
                None => Verdict::Allow.into(),
            };
            let refused = matches!(judged.verdict, Verdict::Deny(_) | Verdict::RateLimited(_));
            let seen = match &judged.verdict {
                Verdict::AllowWith(args) => args.clone(),
                _ => call.args.clone(),
            };
            judged.verdict = self.with_hook(judged.verdict, cx, call);
            match &judged.verdict {
                // What the hook made of the call is another call: the policy has to be content.
                Verdict::AllowWith(args) if *args != seen => self.again(judged, cx, call),
                Verdict::Deny(_) if !refused => {
                    judged.policies = vec!["authorize_tool_call".into()];
                    judged
                }
                _ => judged,
            }
        })
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.policy.as_ref()?.witness()
    }
}

impl PolicyThenHook {
    /// Has the policy judge the arguments that the hook put in the place of those that it saw.
    fn again(&self, judged: Judgement, cx: &CallContext, call: &ToolCall) -> Judgement {
        let (Some(policy), Verdict::AllowWith(args)) = (&self.policy, &judged.verdict) else {
            return judged;
        };
        let changed = ToolCall { args: args.clone(), ..call.clone() };
        let second = policy.judge(cx, &changed);
        match &second.verdict {
            Verdict::Allow => judged,
            Verdict::AllowWith(same) if same == args => judged,
            // The words were compared with those that the user confirmed.
            Verdict::Confirm { read_back }
                if cx.confirmed && self.questions.was_asked(&call.id, read_back) =>
            {
                judged
            }
            Verdict::Deny(_) | Verdict::RateLimited(_) => second,
            _ => {
                let reason = "the policy wants something else of the arguments that the hook made";
                Judgement::new(Verdict::Deny(Denial::private(reason)), second.policies)
            }
        }
    }

    fn with_hook(&self, verdict: Verdict, cx: &CallContext, call: &ToolCall) -> Verdict {
        let Some(hooks) = &self.hooks else { return verdict };
        let narrowed;
        let seen = match &verdict {
            Verdict::Deny(_) | Verdict::RateLimited(_) => return verdict,
            Verdict::AllowWith(args) => {
                narrowed = ToolCall { args: args.clone(), ..call.clone() };
                &narrowed
            }
            _ => call,
        };
        let args = match hooks.authorize_tool_call(&self.context, seen) {
            Ok(args) => args,
            Err(denied) => return Verdict::Deny(Denial::private(denied.0)),
        };
        match &verdict {
            // The arguments that the hook returns count once the user has confirmed: the call is
            // judged again then.
            Verdict::Confirm { read_back } if !cx.confirmed => {
                self.questions.remember(&call.id, read_back);
                verdict
            }
            // Asked again: the executor compares the words with those that were confirmed.
            Verdict::Confirm { .. } if args == call.args => verdict,
            // The executor knows nothing of what the hook narrowed, so the words count here.
            Verdict::Confirm { read_back } if !self.questions.was_asked(&call.id, read_back) => {
                let reason = "the policy asks something else than was confirmed";
                Verdict::Deny(Denial::private(reason))
            }
            // A person decides over the call as it is shown to them.
            Verdict::Ask { .. } if args == call.args => verdict,
            Verdict::Ask { .. } => {
                let reason = "a call that a person decides over cannot be narrowed by the hook";
                Verdict::Deny(Denial::private(reason))
            }
            Verdict::Allow if args == call.args => verdict,
            _ => Verdict::AllowWith(args),
        }
    }
}

impl Questions {
    pub(crate) fn remember(&self, id: &Arc<str>, read_back: &str) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|(known, _)| known != id);
        if asked.len() == MAX_QUESTIONS {
            asked.pop_front();
        }
        asked.push_back((id.clone(), read_back.to_owned()));
    }

    pub(crate) fn was_asked(&self, id: &Arc<str>, read_back: &str) -> bool {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().any(|(known, words)| known == id && words == read_back)
    }
}
