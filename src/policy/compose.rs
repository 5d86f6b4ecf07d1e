//! Several policies as one.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use antiphon_agent::{Denial, Judgement, RateLimit, Verdict};
use antiphon_types::{JsonObject, ToolCall};
use serde_json::Value;

use super::{Policy, PolicyContext, PolicyError};

/// Several policies, all of which must allow a call. The order in which they were added changes
/// nothing: they are asked in the order of their names, and
///
/// * the first that denies ends it;
/// * else, where any says that it is too much for now, the latest time of all counts;
/// * else, where any has a person decide, a person decides;
/// * else, where any has the call read back, it is read back with all questions;
/// * else it is allowed. Policies that want other arguments may each change another one of them; all
///   policies then judge the call again with the arguments that result, and have to be content.
///
/// One that panics denies. Without any policy nothing is allowed.
#[derive(Clone, Default)]
pub struct Policies {
    /// By name.
    each: Vec<Arc<dyn Policy>>,
}

impl Policies {
    /// All of these. Errs where two have the same name.
    pub fn new(policies: impl IntoIterator<Item = Arc<dyn Policy>>) -> Result<Self, PolicyError> {
        let mut each: Vec<_> = policies.into_iter().collect();
        each.sort_by(|one, other| one.id().cmp(other.id()));
        if let Some(twice) = each.windows(2).find(|pair| pair[0].id() == pair[1].id()) {
            return Err(PolicyError::of(twice[0].id(), "two policies have this name"));
        }
        Ok(Self { each })
    }

    /// The verdict, and the policies that came to it.
    pub fn judge(&self, cx: &PolicyContext, call: &ToolCall) -> Judgement {
        if self.each.is_empty() {
            return deny(Vec::new(), "there is no policy that allows it");
        }
        let mut said = match self.ask(cx, call) {
            Ok(said) => said,
            Err(denied) => return denied,
        };
        if said.changes.is_empty() {
            let all = std::mem::take(&mut said.allow);
            return said.into_judgement().unwrap_or_else(|| Judgement::new(Verdict::Allow, all));
        }
        let changers: Vec<Arc<str>> = said.changes.values().map(|(by, _)| by.clone()).collect();
        if said.conflict || said.asks_somebody() {
            let reason = match said.conflict {
                true => "policies want different arguments",
                false => "a call that somebody is asked about cannot have other arguments",
            };
            return deny(changers, reason);
        }
        let args = changed(&call.args, std::mem::take(&mut said.changes));
        let narrowed = ToolCall { args, ..call.clone() };
        let mut again = match self.ask(cx, &narrowed) {
            Ok(again) => again,
            Err(denied) => return denied,
        };
        if !again.changes.is_empty() || again.asks_somebody() {
            return deny(changers, "policies are not content with the arguments that they want");
        }
        let all = std::mem::take(&mut again.allow);
        let allowed = || Judgement::new(Verdict::AllowWith(narrowed.args), all);
        again.into_judgement().or_else(|| said.into_judgement()).unwrap_or_else(allowed)
    }

    /// Whether any looks at what was spent.
    pub(super) fn read_spent(&self) -> bool {
        self.each.iter().any(|policy| policy.reads_spent())
    }

    /// What each policy says by itself, in the order of their names.
    pub fn explain(&self, cx: &PolicyContext, call: &ToolCall) -> Vec<(Arc<str>, Verdict)> {
        self.each
            .iter()
            .map(|policy| (policy.id().into(), judge(&**policy, cx, call).verdict))
            .collect()
    }

    /// What they say together; a denial as an error.
    fn ask(&self, cx: &PolicyContext, call: &ToolCall) -> Result<Said, Judgement> {
        let mut said = Said::default();
        for policy in &self.each {
            let Judgement { verdict, policies: ids, .. } = judge(&**policy, cx, call);
            match verdict {
                Verdict::Allow => said.allow.extend(ids),
                Verdict::AllowWith(args) => {
                    said.want(&policy.id().into(), &call.args, args);
                    said.allow.extend(ids);
                }
                Verdict::Ask { reason } => said.asks.push((ids, reason)),
                Verdict::Confirm { read_back } => said.confirms.push((ids, read_back)),
                Verdict::RateLimited(limit) => said.limits.push((ids, limit)),
                Verdict::Deny(denial) => return Err(Judgement::new(Verdict::Deny(denial), ids)),
                _ => return Err(deny(ids, "an unknown kind of verdict")),
            }
        }
        Ok(said)
    }
}

fn judge(policy: &dyn Policy, cx: &PolicyContext, call: &ToolCall) -> Judgement {
    let judged = catch_unwind(AssertUnwindSafe(|| policy.judge(cx, call)));
    judged.unwrap_or_else(|_| deny(vec![policy.id().into()], "the policy panicked"))
}

fn deny(policies: Vec<Arc<str>>, reason: &str) -> Judgement {
    Judgement::new(Verdict::Deny(Denial::private(reason)), policies)
}

/// What policies said that did not deny.
#[derive(Default)]
struct Said {
    /// What becomes of an argument, and who wants it so; `None`: it is left out.
    changes: BTreeMap<String, (Arc<str>, Option<Value>)>,
    conflict: bool,
    /// Who allowed it.
    allow: Vec<Arc<str>>,
    asks: Vec<(Vec<Arc<str>>, String)>,
    confirms: Vec<(Vec<Arc<str>>, String)>,
    limits: Vec<(Vec<Arc<str>>, RateLimit)>,
}

impl Said {
    fn want(&mut self, id: &Arc<str>, given: &JsonObject, wanted: JsonObject) {
        let dropped = given.keys().filter(|name| !wanted.contains_key(*name));
        let mut changes: Vec<_> = dropped.map(|name| (name.clone(), None)).collect();
        let differing = wanted.into_iter().filter(|(name, value)| given.get(name) != Some(value));
        changes.extend(differing.map(|(name, value)| (name, Some(value))));
        for (name, value) in changes {
            match self.changes.get(&name) {
                Some((_, other)) if *other != value => self.conflict = true,
                Some(_) => {}
                None => drop(self.changes.insert(name, (id.clone(), value))),
            }
        }
    }

    fn asks_somebody(&self) -> bool {
        !self.asks.is_empty() || !self.confirms.is_empty()
    }

    /// `None`: all allow it.
    fn into_judgement(self) -> Option<Judgement> {
        let (verdict, policies) = if !self.limits.is_empty() {
            let until = self.limits.iter().map(|(_, limit)| limit.until).max()?;
            let (ids, limits): (Vec<_>, Vec<_>) = self.limits.into_iter().unzip();
            let reasons: Vec<_> = limits.into_iter().map(|limit| limit.reason).collect();
            (Verdict::RateLimited(RateLimit::new(until, reasons.join("; "))), ids)
        } else if !self.asks.is_empty() {
            let (ids, reasons): (Vec<_>, Vec<_>) = self.asks.into_iter().unzip();
            (Verdict::Ask { reason: reasons.join("; ") }, ids)
        } else if !self.confirms.is_empty() {
            let (ids, mut questions): (Vec<_>, Vec<String>) = self.confirms.into_iter().unzip();
            questions.dedup();
            (Verdict::Confirm { read_back: questions.join(" ") }, ids)
        } else {
            return None;
        };
        Some(Judgement::new(verdict, policies.concat()))
    }
}

fn changed(given: &JsonObject, changes: BTreeMap<String, (Arc<str>, Option<Value>)>) -> JsonObject {
    let mut args = given.clone();
    for (name, (_, value)) in changes {
        match value {
            Some(value) => drop(args.insert(name, value)),
            None => drop(args.remove(&name)),
        }
    }
    args
}

impl std::fmt::Debug for Policies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.each.iter().map(|policy| policy.id())).finish()
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Says the same whatever it is asked, but is content with what it wants.
    struct Fixed(String, Verdict);

    impl Policy for Fixed {
        fn id(&self) -> &str {
            &self.0
        }
        fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
            match &self.1 {
                Verdict::AllowWith(change) => {
                    let mut args = call.args.clone();
                    args.extend(change.clone());
                    Verdict::AllowWith(args)
                }
                other => other.clone(),
            }
        }
    }

    fn call() -> ToolCall {
        let args = JsonObject::from_iter([("a".to_owned(), json!(1)), ("b".to_owned(), json!(2))]);
        ToolCall { id: "1".into(), name: "pay".into(), args }
    }

    fn judged(said: &[(String, Verdict)]) -> Judgement {
        let each = said.iter().cloned().map(|(id, verdict)| Arc::new(Fixed(id, verdict)) as _);
        let cx = PolicyContext::new("s", Timestamp::UNIX_EPOCH);
        Policies::new(each).unwrap().judge(&cx, &call())
    }

    fn with(name: &str, value: i64) -> Verdict {
        Verdict::AllowWith(JsonObject::from_iter([(name.to_owned(), json!(value))]))
    }

    #[test]
    fn the_worst_that_any_says_counts() {
        let ask = Verdict::Ask { reason: "why".into() };
        let confirm = Verdict::Confirm { read_back: "Really?".into() };
        let later = |second| {
            let until = Timestamp::from_second(second).unwrap();
            Verdict::RateLimited(RateLimit::new(until, "much"))
        };
        let deny = Verdict::Deny(Denial::private("no"));
        let of = |said: &[Verdict]| {
            let names = ["p", "q", "r", "s"].map(str::to_owned);
            judged(&names.into_iter().zip(said.iter().cloned()).collect::<Vec<_>>()).verdict
        };
        assert_eq!(of(&[Verdict::Allow, Verdict::Allow]), Verdict::Allow);
        assert_eq!(of(&[Verdict::Allow, confirm.clone()]), confirm);
        assert_eq!(of(&[confirm.clone(), ask.clone(), Verdict::Allow]), ask);
        let limited = of(&[ask.clone(), later(5), later(9), confirm.clone()]);
        assert!(matches!(limited, Verdict::RateLimited(l) if l.until.as_second() == 9));
        assert_eq!(of(&[ask, later(5), deny.clone(), confirm]), deny);
        assert!(matches!(judged(&[]).verdict, Verdict::Deny(_)));
    }

    #[test]
    fn arguments_are_changed_together_or_not_at_all() {
        let two = judged(&[("p".into(), with("a", 5)), ("q".into(), with("c", 6))]);
        let expected = json!({ "a": 5, "b": 2, "c": 6 });
        assert_eq!(two.verdict, Verdict::AllowWith(expected.as_object().unwrap().clone()));
        let same = judged(&[("p".into(), with("a", 5)), ("q".into(), with("a", 5))]);
        assert!(matches!(same.verdict, Verdict::AllowWith(_)));
        let different = judged(&[("p".into(), with("a", 5)), ("q".into(), with("a", 6))]);
        assert!(matches!(different.verdict, Verdict::Deny(_)));
        let ask = Verdict::Ask { reason: "why".into() };
        let asked = judged(&[("p".into(), with("a", 5)), ("q".into(), ask)]);
        assert!(matches!(asked.verdict, Verdict::Deny(_)), "nobody was shown what would run");
    }

    #[test]
    fn arguments_that_a_policy_wants_have_to_pass_the_others() {
        struct Small;
        impl Policy for Small {
            fn id(&self) -> &str {
                "small"
            }
            fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
                match call.args["a"].as_i64() {
                    Some(..10) => Verdict::Allow,
                    _ => Verdict::Deny(Denial::private("too large")),
                }
            }
        }
        let raises = Arc::new(Fixed("raises".into(), with("a", 50)));
        let both = Policies::new([Arc::new(Small) as Arc<dyn Policy>, raises]).unwrap();
        let judged = both.judge(&PolicyContext::new("s", Timestamp::UNIX_EPOCH), &call());
        assert!(matches!(judged.verdict, Verdict::Deny(_)));
        assert_eq!(judged.policies, ["small".into()]);
    }

    #[test]
    fn one_that_panics_denies_and_two_of_one_name_are_refused() {
        struct Panics;
        impl Policy for Panics {
            fn id(&self) -> &str {
                "panics"
            }
            fn decide(&self, _: &PolicyContext, _: &ToolCall) -> Verdict {
                panic!("as tested")
            }
        }
        let policies = Policies::new([Arc::new(Panics) as Arc<dyn Policy>]).unwrap();
        let judged = policies.judge(&PolicyContext::new("s", Timestamp::UNIX_EPOCH), &call());
        assert!(matches!(judged.verdict, Verdict::Deny(_)));
        let twice = [Arc::new(Panics) as Arc<dyn Policy>, Arc::new(Panics)];
        assert!(Policies::new(twice).is_err());
    }

    fn any_verdict() -> impl Strategy<Value = Verdict> {
        prop_oneof![
            3 => Just(Verdict::Allow),
            2 => ("[abc]", 0_i64..3).prop_map(|(name, value)| with(&name, value)),
            1 => "[xy]".prop_map(|reason| Verdict::Ask { reason }),
            1 => "[xy]".prop_map(|read_back| Verdict::Confirm { read_back }),
            1 => "[xy]".prop_map(|reason| Verdict::Deny(Denial::private(reason))),
            1 => (0_i64..9).prop_map(|second| {
                let until = Timestamp::from_second(second).unwrap();
                Verdict::RateLimited(RateLimit::new(until, "much"))
            }),
        ]
    }

    proptest! {
        #[test]
        fn the_order_changes_nothing_and_all_must_allow(
            verdicts in prop::collection::vec(any_verdict(), 1..7),
            seed in any::<prop::sample::Index>(),
        ) {
            let said: Vec<_> =
                verdicts.into_iter().enumerate().map(|(n, v)| (format!("p{n}"), v)).collect();
            let mut shuffled = said.clone();
            shuffled.rotate_left(seed.index(said.len()));
            shuffled.reverse();
            let judgement = judged(&said);
            prop_assert_eq!(&judgement, &judged(&shuffled));
            let allows = matches!(judgement.verdict, Verdict::Allow | Verdict::AllowWith(_));
            let all = said.iter().all(|(_, v)| matches!(v, Verdict::Allow | Verdict::AllowWith(_)));
            // Policies that allow may still want different arguments.
            prop_assert!(!allows || all);
            if said.iter().any(|(_, verdict)| matches!(verdict, Verdict::Deny(_))) {
                prop_assert!(matches!(judgement.verdict, Verdict::Deny(_)));
            }
        }
    }
}
