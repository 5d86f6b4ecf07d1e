//! The agent's policy over its own tools, and the session's over all.

use std::{collections::HashSet, sync::Arc};

use antiphon_agent::{
    Authorizer, CallContext, Denial, Judgement, Verdict, Witness,
    types::ToolCall,
    witness::{Commitment, Decision, Refusal, together},
};

use crate::session::authorize::Questions;

/// Why a call is denied that both should have allowed in different words.
const NARROWED: &str = "a call that somebody decides over cannot be narrowed by another policy";
const ASKS_ELSE: &str = "a policy asks something else than was confirmed";

/// Both policies: a call of the agent's tools must pass the agent's, and every call the session's,
/// which sees what the first one left. Neither undoes what the other wants: the stricter verdict
/// stands, and where both are to be heard the caller confirms first and another person decides then.
pub(super) struct Both {
    agents: Arc<dyn Authorizer>,
    /// The tools that the agent brought.
    tools: HashSet<Arc<str>>,
    sessions: Option<Arc<dyn Authorizer>>,
    /// What the caller was asked before another person decides.
    questions: Questions,
}

impl Both {
    pub(super) fn new(
        agents: Arc<dyn Authorizer>,
        tools: HashSet<Arc<str>>,
        sessions: Option<Arc<dyn Authorizer>>,
    ) -> Self {
        Self { agents, tools, sessions, questions: Questions::default() }
    }

    fn combined(
        &self,
        cx: &CallContext,
        call: &ToolCall,
        first: Verdict,
        second: Verdict,
    ) -> Verdict {
        let deny = |reason| Verdict::Deny(Denial::private(reason));
        match (first, second) {
            (Verdict::Deny(denial), _) | (_, Verdict::Deny(denial)) => Verdict::Deny(denial),
            (Verdict::RateLimited(limit), _) | (_, Verdict::RateLimited(limit)) => {
                Verdict::RateLimited(limit)
            }
            (Verdict::Allow, other) | (other, Verdict::Allow) => other,
            // The second one saw what the first one left.
            (Verdict::AllowWith(_), Verdict::AllowWith(args)) => Verdict::AllowWith(args),
            // A person is shown the model's arguments, and those run.
            (Verdict::AllowWith(args), asks @ Verdict::Ask { .. })
            | (asks @ Verdict::Ask { .. }, Verdict::AllowWith(args)) => {
                if args == call.args {
                    asks
                } else {
                    deny(NARROWED)
                }
            }
            // Before the caller confirms it is the words that count; asked again, the executor
            // compares the arguments with those that the model gave.
            (Verdict::AllowWith(args), asks @ Verdict::Confirm { .. })
            | (asks @ Verdict::Confirm { .. }, Verdict::AllowWith(args)) => {
                if cx.confirmed && args != call.args { deny(NARROWED) } else { asks }
            }
            (Verdict::Confirm { read_back }, Verdict::Confirm { read_back: second }) => {
                Verdict::Confirm { read_back: joined(read_back, second) }
            }
            (Verdict::Ask { reason }, Verdict::Ask { reason: second }) => {
                Verdict::Ask { reason: joined(reason, second) }
            }
            (Verdict::Confirm { read_back }, Verdict::Ask { reason })
            | (Verdict::Ask { reason }, Verdict::Confirm { read_back }) => {
                if !cx.confirmed {
                    self.questions.remember(&call.id, &read_back);
                    return Verdict::Confirm { read_back };
                }
                // The executor does not compare the words of a call that another person decides
                // over. One who has decided saw the call after the caller confirmed it.
                match cx.approved || self.questions.was_asked(&call.id, &read_back) {
                    true => Verdict::Ask { reason },
                    false => deny(ASKS_ELSE),
                }
            }
            // A kind of verdict that is not known here is none that allows.
            _ => deny("a policy gave a verdict that is not known here"),
        }
    }
}

impl Authorizer for Both {
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        self.judge(cx, call).verdict
    }

    fn judge(&self, cx: &CallContext, call: &ToolCall) -> Judgement {
        let Judgement { verdict: first, mut policies, .. } = match self.tools.contains(&call.name) {
            true => self.agents.judge(cx, call),
            false => Verdict::Allow.into(),
        };
        let Some(sessions) = &self.sessions else { return Judgement::new(first, policies) };
        let second = match &first {
            Verdict::Deny(_) | Verdict::RateLimited(_) => return Judgement::new(first, policies),
            Verdict::AllowWith(args) => {
                let narrowed = ToolCall { args: args.clone(), ..call.clone() };
                sessions.judge(cx, &narrowed)
            }
            _ => sessions.judge(cx, call),
        };
        policies.extend(second.policies);
        let seen = match &first {
            Verdict::AllowWith(args) => args.clone(),
            _ => call.args.clone(),
        };
        let verdict = match self.combined(cx, call, first, second.verdict) {
            // What the session's policy made of it is another call: the agent's has to be content.
            Verdict::AllowWith(args) if args != seen && self.tools.contains(&call.name) => {
                let changed = ToolCall { args: args.clone(), ..call.clone() };
                match self.agents.judge(cx, &changed).verdict {
                    Verdict::Allow => Verdict::AllowWith(args),
                    Verdict::AllowWith(same) if same == args => Verdict::AllowWith(args),
                    refused @ (Verdict::Deny(_) | Verdict::RateLimited(_)) => refused,
                    _ => Verdict::Deny(Denial::private(NARROWED)),
                }
            }
            verdict => verdict,
        };
        Judgement::new(verdict, policies)
    }

    fn witness(&self) -> Option<Arc<dyn Witness>> {
        let agents = self.agents.witness();
        let sessions = self.sessions.as_ref().and_then(|sessions| sessions.witness());
        let Some(agents) = agents else { return sessions };
        let all = together([Some(agents), sessions.clone()].into_iter().flatten().collect())?;
        Some(Arc::new(BothWitnesses { all, tools: self.tools.clone(), sessions }))
    }
}

/// The agent's witness is told of the agent's tools, the session's of all.
struct BothWitnesses {
    all: Arc<dyn Witness>,
    tools: HashSet<Arc<str>>,
    sessions: Option<Arc<dyn Witness>>,
}

impl Witness for BothWitnesses {
    fn decided(
        &self,
        cx: &CallContext,
        decision: &Decision,
    ) -> Result<Option<Box<dyn Commitment>>, Refusal> {
        match (self.tools.contains(&decision.call.name), &self.sessions) {
            (true, _) => self.all.decided(cx, decision),
            (false, Some(sessions)) => sessions.decided(cx, decision),
            (false, None) => Ok(None),
        }
    }
}

fn joined(first: String, second: String) -> String {
    if first == second { first } else { format!("{first} {second}") }
}

#[cfg(test)]
mod tests {
    use antiphon_agent::{InMemory, types::JsonObject};
    use serde_json::json;

    use super::*;

    /// A policy that says the same whatever it is told.
    fn always(verdict: Verdict) -> Arc<dyn Authorizer> {
        Arc::new(move |_: &CallContext, _: &ToolCall| verdict.clone())
    }

    /// One that is content once somebody has decided.
    fn once(verdict: Verdict) -> Arc<dyn Authorizer> {
        Arc::new(move |cx: &CallContext, _: &ToolCall| match cx.confirmed || cx.approved {
            true => Verdict::Allow,
            false => verdict.clone(),
        })
    }

    fn both(agents: Arc<dyn Authorizer>, sessions: Arc<dyn Authorizer>) -> Both {
        Both::new(agents, HashSet::from(["pay".into()]), Some(sessions))
    }

    fn amount(amount: u64) -> JsonObject {
        JsonObject::from_iter([("amount".to_owned(), json!(amount))])
    }

    fn judged(both: &Both, confirmed: bool, approved: bool) -> Verdict {
        let mut cx = CallContext::new("s", 1, Arc::new(InMemory::new()));
        (cx.confirmed, cx.approved) = (confirmed, approved);
        let call = ToolCall { id: "c1".into(), name: "pay".into(), args: amount(5000) };
        both.authorize_tool_call(&cx, &call)
    }

    fn confirm() -> Verdict {
        Verdict::Confirm { read_back: "Shall I?".into() }
    }

    fn ask() -> Verdict {
        Verdict::Ask { reason: "money".into() }
    }

    #[test]
    fn what_one_narrows_the_other_has_nobody_decide_over() {
        let capped = Verdict::AllowWith(amount(100));
        for (first, second) in [(capped.clone(), ask()), (ask(), capped.clone())] {
            let both = both(always(first), always(second));
            assert!(matches!(judged(&both, false, false), Verdict::Deny(_)));
            assert!(matches!(judged(&both, false, true), Verdict::Deny(_)));
        }
        let same = both(always(Verdict::AllowWith(amount(5000))), always(ask()));
        assert_eq!(judged(&same, false, false), ask());
        // The caller is asked, and the cap holds for what runs.
        let capped = both(always(capped), once(confirm()));
        assert_eq!(judged(&capped, false, false), confirm());
        assert_eq!(judged(&capped, true, false), Verdict::AllowWith(amount(100)));
    }

    #[test]
    fn who_confirms_does_not_decide_for_another_person() {
        for (first, second) in [(confirm(), ask()), (ask(), confirm())] {
            // They ask again in the same words, or are content with the answer.
            for makes in [always, once] {
                let (agents, sessions) = match &first {
                    Verdict::Confirm { .. } => (makes(first.clone()), always(second.clone())),
                    _ => (always(first.clone()), makes(second.clone())),
                };
                let both = both(agents, sessions);
                assert_eq!(judged(&both, false, false), confirm());
                assert_eq!(judged(&both, true, false), ask(), "{first:?} {second:?}");
                assert_eq!(judged(&both, true, true), ask());
            }
        }
        let other = both(always(confirm()), always(ask()));
        assert!(matches!(judged(&other, true, false), Verdict::Deny(_)), "nobody was asked");
    }

    #[test]
    fn what_the_second_makes_of_a_call_the_first_has_to_allow() {
        let at_most = |most: u64| -> Arc<dyn Authorizer> {
            Arc::new(move |_: &CallContext, call: &ToolCall| match call.args["amount"].as_u64() {
                Some(amount) if amount <= most => Verdict::Allow,
                _ => Verdict::Deny(Denial::private("too much")),
            })
        };
        let more = || always(Verdict::AllowWith(amount(90_000)));
        assert!(matches!(judged(&both(at_most(5_000), more()), false, false), Verdict::Deny(_)));
        let content = both(at_most(90_000), more());
        assert_eq!(judged(&content, false, false), Verdict::AllowWith(amount(90_000)));
    }

    #[test]
    fn two_questions_are_one() {
        let second = Verdict::Confirm { read_back: "Really?".into() };
        let both_ask = both(always(confirm()), always(second));
        let words = Verdict::Confirm { read_back: "Shall I? Really?".into() };
        assert_eq!(judged(&both_ask, false, false), words);
        let asks = both(always(ask()), always(ask()));
        assert_eq!(judged(&asks, false, false), ask());
    }
}
