//! Policies by whom they are about, in a form in which many are judged at once.

use std::{collections::HashMap, iter, str::FromStr};

use cedar_policy::{
    Effect, Entities, EntityTypeName, EntityUid, EvalResult, Expression, Policy, PolicyId,
    PolicySet, PrincipalConstraint, Request, eval_expression,
};
use serde_json::{Map, Value, json};

/// So few policies are judged one by one.
const FEW: usize = 4;

/// Policies about one tool.
///
/// Their scope is looked at here, once, and not by Cedar for each of them: a policy is kept without the
/// action, which is the tool's, and without a principal that names one entity.
#[derive(Default)]
pub(super) struct Sets {
    anybody: Group,
    /// About one caller, or the callers of one tenant.
    certain: HashMap<EntityUid, Group>,
}

/// Policies that are all looked at, or none.
#[derive(Default)]
pub(super) struct Group {
    pub(super) policies: PolicySet,
    together: Option<Together>,
}

/// The conditions of all policies as one expression. Cedar evaluates it in half the time that it takes to
/// judge the policies one by one.
struct Together {
    /// A record of the permits' conditions by number, and a set of those of the others.
    all: Expression,
    permits: Vec<PolicyId>,
}

impl Sets {
    /// Adds a policy that is about the tool.
    pub(super) fn add(&mut self, policy: &Policy, caller: &EntityTypeName) -> Result<(), String> {
        let whose = match policy.principal_constraint() {
            PrincipalConstraint::Any => None,
            PrincipalConstraint::In(whose) => Some(whose),
            PrincipalConstraint::Eq(whose) if whose.type_name() == caller => Some(whose),
            // Kept as it is: Cedar looks at that.
            _ => return self.anybody.add(policy.clone()),
        };
        let group = match whose {
            Some(whose) => self.certain.entry(whose).or_default(),
            None => &mut self.anybody,
        };
        group.add(without_scope(policy)?)
    }

    /// All policies are there.
    pub(super) fn ready(mut self) -> Self {
        for group in iter::once(&mut self.anybody).chain(self.certain.values_mut()) {
            // What cannot be put together is judged one by one.
            group.together = Together::of(&group.policies);
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.anybody.policies.is_empty() && self.certain.is_empty()
    }

    /// Those that are about somebody who is, or is in, these entities.
    pub(super) fn about<'a>(&'a self, whose: &'a [EntityUid]) -> impl Iterator<Item = &'a Group> {
        let certain = whose.iter().filter_map(|whose| self.certain.get(whose));
        iter::once(&self.anybody).chain(certain).filter(|group| !group.policies.is_empty())
    }

    /// What a policy says beside, such as `reason`.
    pub(super) fn annotation<'a>(&'a self, id: &PolicyId, note: &'a str) -> Option<&'a str> {
        let groups = iter::once(&self.anybody).chain(self.certain.values());
        groups.filter_map(|group| group.policies.policy(id)).find_map(|it| it.annotation(note))
    }

    /// Judged one by one.
    #[cfg(test)]
    pub(super) fn apart(&mut self) {
        for group in iter::once(&mut self.anybody).chain(self.certain.values_mut()) {
            group.together = None;
        }
    }
}

impl Group {
    #[cfg(test)]
    pub(super) fn is_together(&self) -> bool {
        self.together.is_some()
    }

    fn add(&mut self, policy: Policy) -> Result<(), String> {
        self.policies.add(policy).map_err(|error| error.to_string())
    }

    /// The policies that permit, where none forbids and none errs. `None`: nothing is known, and Cedar is to
    /// judge each.
    pub(super) fn permits(&self, request: &Request, entities: &Entities) -> Option<Vec<PolicyId>> {
        let together = self.together.as_ref()?;
        let EvalResult::Record(all) = eval_expression(request, entities, &together.all).ok()?
        else {
            return None;
        };
        let (EvalResult::Set(others), EvalResult::Record(permits)) =
            (all.get("others")?, all.get("permits")?)
        else {
            return None;
        };
        let no = EvalResult::Bool(false);
        if !others.iter().all(|condition| *condition == no)
            || permits.len() != together.permits.len()
        {
            return None;
        }
        let mut found = Vec::with_capacity(permits.len());
        for ((_, condition), id) in permits.iter().zip(&together.permits) {
            match condition {
                EvalResult::Bool(true) => found.push(id.clone()),
                EvalResult::Bool(false) => {}
                _ => return None,
            }
        }
        Some(found)
    }
}

impl Together {
    /// `None`: there are few, or one whose scope is still to be looked at.
    fn of(policies: &PolicySet) -> Option<Self> {
        if policies.num_of_policies() <= FEW {
            return None;
        }
        let (mut permits, mut ids, mut others) = (Map::new(), Vec::new(), Vec::new());
        for policy in policies.policies() {
            let form = policy.to_json().ok()?;
            if ["principal", "action", "resource"].iter().any(|part| form[part]["op"] != "All") {
                return None;
            }
            let condition = condition(&form)?;
            match policy.effect() {
                Effect::Permit => {
                    // So that they are in the order of their names.
                    permits.insert(format!("{:08}", ids.len()), condition);
                    ids.push(policy.id().clone());
                }
                Effect::Forbid => others.push(condition),
            }
        }
        let all = json!({ "Record": {
            "permits": { "Record": permits },
            "others": { "Set": others },
        } });
        Some(Self { all: expression(all)?, permits: ids })
    }
}

/// What holds where the policy is satisfied, in Cedar's JSON.
fn condition(policy: &Value) -> Option<Value> {
    let mut all: Option<Value> = None;
    for clause in policy["conditions"].as_array()? {
        let body = clause["body"].clone();
        let holds = match clause["kind"].as_str()? {
            "when" => body,
            "unless" => json!({ "!": { "arg": body } }),
            _ => return None,
        };
        all = Some(match all {
            Some(before) => json!({ "&&": { "left": before, "right": holds } }),
            None => holds,
        });
    }
    Some(all.unwrap_or_else(|| json!({ "Value": true })))
}

/// Cedar reads an expression from its text alone; it writes that of a policy with the expression in it.
fn expression(form: Value) -> Option<Expression> {
    let any = || json!({ "op": "All" });
    let policy = json!({
        "effect": "permit", "principal": any(), "action": any(), "resource": any(),
        "conditions": [{ "kind": "when", "body": form }],
    });
    let text = Policy::from_json(None, policy).ok()?.to_string();
    let (_, text) = text.split_once("when {")?;
    let (text, _) = text.rsplit_once('}')?;
    Expression::from_str(text).ok()
}

/// The policy for whatever principal and action.
fn without_scope(policy: &Policy) -> Result<Policy, String> {
    let mut form = policy.to_json().map_err(|error| error.to_string())?;
    for part in ["principal", "action"] {
        form[part] = json!({ "op": "All" });
    }
    Policy::from_json(Some(policy.id().clone()), form).map_err(|error| error.to_string())
}
