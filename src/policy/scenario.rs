//! What a policy file says of some calls: tables of scenarios.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use antiphon_agent::{CallContext, Caller, InMemory, InvocationContext, Verdict, types::ToolCall};
use antiphon_types::JsonObject;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Draw, Explanation, LimitError, LimitStore, PolicyError, PolicyFile, ReservationId, Reserved,
    Spent, VerifiedLevel,
};
use crate::json_file::{FileError, JsonFile, UniqueKeys};

/// A call that a policy is asked about, and what it is expected to say.
///
/// In a file they are a list:
///
/// ```json
/// [
///   {"name": "small amounts pass", "tool": "send_money", "args": {"cents": 500, "to": "Ann"},
///    "caller": "ann", "expect": "allow"},
///   {"name": "until the day's money is spent", "tool": "send_money",
///    "args": {"cents": 500, "to": "Ann"}, "caller": "ann", "tenant": "bank", "verified": 2,
///    "at": "2026-03-02T10:00:00Z", "spent": {"daily": {"calls": 3, "amount": 49900}},
///    "expect": "rate_limited", "by": ["daily"]}
/// ]
/// ```
///
/// `expect` is `allow`, `deny`, `ask`, `confirm` or `rate_limited`; `by`, where it is given, names all
/// policies or limits that came to it. `approved` and `confirmed` say what people have answered.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Scenario {
    /// What it is called.
    #[serde(default)]
    pub name: String,
    /// The tool.
    pub tool: Arc<str>,
    /// The model's arguments.
    #[serde(default)]
    pub args: JsonObject,
    /// Who calls.
    #[serde(default)]
    pub caller: Option<Arc<str>>,
    /// The tenant.
    #[serde(default)]
    pub tenant: Option<Arc<str>>,
    /// How surely the host knows who calls.
    #[serde(default)]
    pub verified: u8,
    /// The time of day. Default: now.
    #[serde(default)]
    pub at: Option<Timestamp>,
    /// A person approved the call.
    #[serde(default)]
    pub approved: bool,
    /// The user confirmed the call.
    #[serde(default)]
    pub confirmed: bool,
    /// What is used of limits, in minor units.
    #[serde(default)]
    pub spent: BTreeMap<Arc<str>, Used>,
    /// What the policy is expected to say.
    #[serde(default)]
    pub expect: Option<Expected>,
    /// Who is expected to have come to it.
    #[serde(default)]
    pub by: Option<Vec<Arc<str>>>,
}

/// What is used of a limit.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Used {
    /// Calls.
    #[serde(default)]
    pub calls: u64,
    /// Money in minor units.
    #[serde(default)]
    pub amount: u64,
}

/// What a policy is expected to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Expected {
    /// It runs, perhaps with other arguments.
    Allow,
    /// It does not.
    Deny,
    /// A person decides.
    Ask,
    /// The user decides.
    Confirm,
    /// Not now.
    RateLimited,
}

impl Scenario {
    /// The scenarios of a file.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the file, with its line.
    pub fn load_all(path: impl AsRef<Path>) -> Result<Vec<Self>, FileError> {
        Self::from_json(&JsonFile::read(path.as_ref())?)
    }

    /// The scenarios of a text; `name` stands for the path in errors.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the text, with its line.
    pub fn parse_all(name: &str, text: &str) -> Result<Vec<Self>, FileError> {
        Self::from_json(&JsonFile::new(name, text))
    }

    /// A call of this tool with these arguments.
    pub fn of(tool: impl Into<Arc<str>>, args: JsonObject) -> Self {
        Self {
            name: String::new(),
            tool: tool.into(),
            args,
            caller: None,
            tenant: None,
            verified: 0,
            at: None,
            approved: false,
            confirmed: false,
            spent: BTreeMap::new(),
            expect: None,
            by: None,
        }
    }

    fn from_json(file: &JsonFile) -> Result<Vec<Self>, FileError> {
        file.parse::<UniqueKeys>()?;
        let pieces: Vec<&RawValue> = file.parse()?;
        pieces.into_iter().map(|piece| file.parse_piece(piece)).collect()
    }

    /// What the policies and limits of the file say of it. Nothing is used up by asking.
    pub fn explain(&self, file: &PolicyFile) -> Result<Explanation, PolicyError> {
        let mut names = self.spent.keys();
        if let Some(name) = names.find(|name| !file.limit_ids().any(|id| *id == ***name)) {
            return Err(PolicyError::of(name, "the policy file has no limit of this name"));
        }
        let now = self.at.unwrap_or_else(Timestamp::now);
        let host = file.host().limit_store(Given(self.spent.clone())).clock(move || now).build()?;
        let mut cx = CallContext::new("scenario", 1, Arc::new(InMemory::new()));
        (cx.confirmed, cx.approved, cx.waited) = (self.confirmed, self.approved, self.approved);
        let level = VerifiedLevel(self.verified);
        let mut invocation = InvocationContext::new().with_value(level);
        if self.caller.is_some() || self.tenant.is_some() {
            let mut caller = Caller::new(self.caller.clone().unwrap_or_default());
            if let Some(tenant) = &self.tenant {
                caller = caller.scope(tenant.clone());
            }
            invocation = invocation.with_caller(caller);
        }
        cx.invocation = invocation;
        let call = ToolCall { id: "call".into(), name: self.tool.clone(), args: self.args.clone() };
        Ok(host.explain(&cx, &call))
    }

    /// Whether that is what was expected.
    pub fn is_met_by(&self, explanation: &Explanation) -> bool {
        let by = self.by.as_ref().is_none_or(|expected| {
            let (mut expected, mut found) = (expected.clone(), explanation.policies.clone());
            expected.sort();
            found.sort();
            expected == found
        });
        by && self
            .expect
            .is_none_or(|expected| Some(expected) == Expected::of(&explanation.verdict))
    }
}

impl Expected {
    /// The kind of a verdict.
    pub fn of(verdict: &Verdict) -> Option<Self> {
        Some(match verdict {
            Verdict::Allow | Verdict::AllowWith(_) => Self::Allow,
            Verdict::Deny(_) => Self::Deny,
            Verdict::Ask { .. } => Self::Ask,
            Verdict::Confirm { .. } => Self::Confirm,
            Verdict::RateLimited(_) => Self::RateLimited,
            _ => return None,
        })
    }

    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask",
            Self::Confirm => "confirm",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// A store that is told what is used.
struct Given(BTreeMap<Arc<str>, Used>);

impl LimitStore for Given {
    fn reserve(&self, now: Timestamp, draws: &[Draw]) -> Result<Reserved, LimitError> {
        for draw in draws {
            let used = self.0.get(&draw.limit).copied().unwrap_or_default();
            let fits = |calls: u64, amount: u64| {
                draw.max_calls.is_none_or(|max| calls < max)
                    && draw.max_amount.is_none_or(|max| {
                        amount.checked_add(draw.amount).is_some_and(|sum| sum <= max)
                    })
            };
            if fits(used.calls, used.amount) {
                continue;
            }
            // Nobody said when it was used, so at the latest then.
            let until = fits(0, 0).then(|| now.checked_add(draw.window).unwrap_or(Timestamp::MAX));
            return Ok(Reserved::No { limit: draw.limit.clone(), until });
        }
        Ok(Reserved::Yes(ReservationId(0)))
    }

    fn settle(&self, _: ReservationId) -> Result<(), LimitError> {
        Ok(())
    }

    fn give_back(&self, _: ReservationId) -> Result<(), LimitError> {
        Ok(())
    }

    fn spent(&self, _: Timestamp, draws: &[Draw]) -> Result<Vec<Spent>, LimitError> {
        let spent = draws.iter().map(|draw| {
            let Used { calls, amount } = self.0.get(&draw.limit).copied().unwrap_or_default();
            Spent::new(draw.limit.clone(), calls, amount)
        });
        Ok(spent.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"{
      "policies": [
        {"id": "tools", "kind": "allow_list", "tools": ["send_money"]},
        {"id": "large", "kind": "ask_above", "tools": "send_money",
         "amount": {"field": "cents", "unit": "minor"}, "above": "10000"}
      ],
      "limits": [
        {"id": "daily", "tools": "send_money", "per": ["caller"], "window": "1d",
         "amount": {"field": "cents", "unit": "minor"}, "max": "50000"}
      ]
    }"#;

    #[test]
    fn a_table_of_scenarios_says_who_decided() {
        let file = PolicyFile::parse("p", POLICY).unwrap();
        let table = r#"[
          {"name": "small", "tool": "send_money", "args": {"cents": 500}, "caller": "a",
           "expect": "allow", "by": ["tools", "large"]},
          {"tool": "send_money", "args": {"cents": 10001}, "caller": "a",
           "expect": "ask", "by": ["large"]},
          {"tool": "send_money", "args": {"cents": 10001}, "caller": "a", "approved": true,
           "expect": "allow"},
          {"tool": "fly", "expect": "deny", "by": ["tools"]},
          {"tool": "send_money", "args": {"cents": 500}, "expect": "deny", "by": ["daily"]},
          {"tool": "send_money", "args": {"cents": "5 000"}, "caller": "a", "expect": "deny",
           "by": ["large"]},
          {"tool": "send_money", "args": {"cents": 500}, "caller": "a",
           "spent": {"daily": {"amount": 49501}}, "expect": "rate_limited", "by": ["daily"]},
          {"tool": "send_money", "args": {"cents": 60000}, "caller": "a", "approved": true,
           "expect": "deny", "by": ["daily"]}
        ]"#;
        for scenario in Scenario::parse_all("t", table).unwrap() {
            let explanation = scenario.explain(&file).unwrap();
            assert!(scenario.is_met_by(&explanation), "{scenario:?}: {explanation:?}");
            let mut wrong = scenario.clone();
            wrong.by = Some(vec!["nobody".into()]);
            assert!(!wrong.is_met_by(&explanation));
        }
        let error = Scenario::parse_all("t", "[\n{\"tool\": \"x\", \"expects\": \"deny\"}]");
        assert_eq!(error.unwrap_err().line, Some(2));
    }
}
