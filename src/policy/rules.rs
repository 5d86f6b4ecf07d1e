//! A policy of ordered rules, from a JSON file.

use std::{fmt, path::Path};

use antiphon_agent::{Authorizer, CallContext, Denial, Verdict};
use antiphon_types::{JsonObject, ToolCall};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{Policy, PolicyContext, pattern::ToolPattern};
use crate::json_file::{FileError, JsonFile, UniqueKeys};

/// A policy of ordered rules. The first rule whose tool and condition fit decides; where none
/// fits, the default does.
///
/// ```json
/// {
///   "default": "deny",
///   "rules": [
///     {"tool": "send_money", "action": "deny", "reason": "above the limit",
///      "when": {"properties": {"amount": {"exclusiveMinimum": 100}}}},
///     {"tool": "send_money", "action": "confirm",
///      "read_back": "Send {amount} euros to {name}?"},
///     {"tool": "*_note*", "action": "allow"}
///   ]
/// }
/// ```
///
/// * `tool`: a name, or a pattern in which `*` stands for any characters; it is the only one that
///   stands for others, and a pattern with characters that no name of a tool has is refused.
/// * `action`: `allow`, `deny`, `confirm`: the call is read back to the user, whose next turn
///   decides; or `ask`: a person other than the caller decides, and the call waits (see
///   [`approval`](antiphon_agent::approval)).
/// * `when`: a JSON Schema over the arguments; without it the rule fits every call of the tool.
///   As in any JSON Schema, `properties` says nothing about arguments that are missing or of
///   another type: such a call *fits*. That is right for a rule that denies; a rule that allows
///   should name `required` and `type`.
/// * `reason`: for the host's records. `tell_model`: whether the model is told it too (default:
///   no).
/// * `read_back`: the question of `confirm`; `{argument}` is replaced. Without it the call is read
///   back plainly.
/// * `default`: `allow` or `deny`; required, so that nobody has to guess.
#[derive(Debug)]
pub struct RulePolicy {
    rules: Vec<Rule>,
    default_allow: bool,
}

impl RulePolicy {
    /// A policy from a file.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the file, with its line.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::read(path.as_ref())?)
    }

    /// A policy from a text; `name` stands for the path in errors.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the text, with its line.
    pub fn parse(name: &str, text: &str) -> Result<Self, FileError> {
        Self::from_json(&JsonFile::new(name, text))
    }

    /// Patterns of rules that fit none of these tools: most likely misspelt.
    pub fn unused_patterns<'a>(&self, tools: impl IntoIterator<Item = &'a str>) -> Vec<&str> {
        let tools: Vec<&str> = tools.into_iter().collect();
        self.rules
            .iter()
            .filter(|rule| !tools.iter().any(|tool| rule.tool.fits(tool)))
            .map(|rule| rule.tool.as_str())
            .collect()
    }

    /// The tools that its rules are about.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &ToolPattern> {
        self.rules.iter().map(|rule| &rule.tool)
    }

    /// Whether a rule of it has a person decide.
    pub(super) fn asks(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.action, Action::Ask { .. }))
    }

    pub(super) fn from_json(file: &JsonFile) -> Result<Self, FileError> {
        file.parse::<UniqueKeys>()?;
        Self::from_document(file, file.parse()?)
    }

    /// From a part of a file, which says besides what kind of policy it is.
    pub(super) fn from_piece(file: &JsonFile, piece: &RawValue) -> Result<Self, FileError> {
        let part: Part<'_> = file.parse_piece(piece)?;
        Self::from_document(
            file,
            Document { _schema: None, default: part.default, rules: part.rules },
        )
    }

    fn from_document(file: &JsonFile, document: Document<'_>) -> Result<Self, FileError> {
        let rules = document
            .rules
            .into_iter()
            .map(|piece| Rule::from_json(file, piece))
            .collect::<Result<_, _>>()?;
        Ok(Self { rules, default_allow: matches!(document.default, DefaultAction::Allow) })
    }
}

impl Authorizer for RulePolicy {
    fn authorize_tool_call(&self, cx: &CallContext, call: &ToolCall) -> Verdict {
        self.verdict(call, cx.confirmed, cx.approved)
    }
}

/// As one policy among several it is called `rules`.
impl Policy for RulePolicy {
    fn id(&self) -> &str {
        "rules"
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict {
        self.verdict(call, cx.confirmed, cx.approved)
    }
}

impl RulePolicy {
    fn verdict(&self, call: &ToolCall, confirmed: bool, approved: bool) -> Verdict {
        let args = Value::Object(call.args.clone());
        let rule = self.rules.iter().find(|rule| rule.fits(&call.name, &args));
        let Some(rule) = rule else {
            return if self.default_allow {
                Verdict::Allow
            } else {
                Verdict::Deny(Denial::private("no rule of the policy allows it"))
            };
        };
        match &rule.action {
            Action::Allow => Verdict::Allow,
            Action::Deny(denial) => Verdict::Deny(denial.clone()),
            Action::Ask { .. } if approved => Verdict::Allow,
            Action::Ask { reason } => Verdict::Ask { reason: reason.clone() },
            Action::Confirm { .. } if confirmed || approved => Verdict::Allow,
            Action::Confirm { read_back } => Verdict::Confirm {
                read_back: match read_back {
                    Some(template) => fill(template, &call.args),
                    None => plain_read_back(call),
                },
            },
        }
    }
}

struct Rule {
    tool: ToolPattern,
    when: Option<jsonschema::Validator>,
    action: Action,
}

#[derive(Debug)]
enum Action {
    Allow,
    Deny(Denial),
    Confirm { read_back: Option<String> },
    Ask { reason: String },
}

impl Rule {
    fn from_json(file: &JsonFile, piece: &RawValue) -> Result<Self, FileError> {
        let entry: RuleEntry<'_> = file.parse_piece(piece)?;
        let tool = ToolPattern::parse(&entry.tool);
        let tool = tool.map_err(|reason| file.error_at(piece, format!("a rule: {reason}")))?;
        if entry.read_back.is_some() && entry.action != ActionName::Confirm {
            return Err(file.error_at(piece, "`read_back` belongs to the action `confirm`"));
        }
        if entry.tell_model && entry.action != ActionName::Deny {
            return Err(file.error_at(piece, "`tell_model` belongs to the action `deny`"));
        }
        if entry.read_back.as_ref().is_some_and(|text| text.trim().is_empty()) {
            return Err(file.error_at(piece, "`read_back` is blank"));
        }
        let when = entry.when.map(|when| compile(file, when)).transpose()?;
        let action = match entry.action {
            ActionName::Allow => Action::Allow,
            ActionName::Confirm => Action::Confirm { read_back: entry.read_back },
            ActionName::Ask => Action::Ask {
                reason: entry
                    .reason
                    .unwrap_or_else(|| format!("a rule asks about {}", tool.as_str())),
            },
            ActionName::Deny => {
                let reason =
                    entry.reason.unwrap_or_else(|| format!("a rule denies {}", tool.as_str()));
                Action::Deny(if entry.tell_model {
                    Denial::told(reason)
                } else {
                    Denial::private(reason)
                })
            }
        };
        Ok(Self { tool, when, action })
    }

    fn fits(&self, tool: &str, args: &Value) -> bool {
        self.tool.fits(tool) && self.when.as_ref().is_none_or(|schema| schema.is_valid(args))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("tool", &self.tool)
            .field("conditional", &self.when.is_some())
            .field("action", &self.action)
            .finish()
    }
}

fn compile(file: &JsonFile, piece: &RawValue) -> Result<jsonschema::Validator, FileError> {
    let schema: Value = file.parse_piece(piece)?;
    if !schema.is_object() {
        return Err(file.error_at(piece, "`when` must be a JSON Schema object"));
    }
    jsonschema::validator_for(&schema)
        .map_err(|error| file.error_at(piece, format!("`when` is no JSON Schema: {error}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document<'a> {
    #[serde(rename = "$schema", default)]
    _schema: Option<String>,
    default: DefaultAction,
    #[serde(borrow)]
    rules: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Part<'a> {
    #[serde(rename = "id", default)]
    _id: Option<String>,
    #[serde(rename = "kind")]
    _kind: String,
    default: DefaultAction,
    #[serde(borrow)]
    rules: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum DefaultAction {
    Allow,
    Deny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry<'a> {
    tool: String,
    action: ActionName,
    #[serde(borrow, default)]
    when: Option<&'a RawValue>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    tell_model: bool,
    #[serde(default)]
    read_back: Option<String>,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum ActionName {
    Allow,
    Deny,
    Confirm,
    Ask,
}

/// Replaces each `{argument}` by its value; a missing one leaves nothing.
fn fill(template: &str, args: &JsonObject) -> String {
    let mut filled = String::with_capacity(template.len() + 16);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let Some(close) = rest[open..].find('}') else { break };
        filled.push_str(&rest[..open]);
        filled.push_str(&args.get(&rest[open + 1..open + close]).map(in_words).unwrap_or_default());
        rest = &rest[open + close + 1..];
    }
    filled.push_str(rest);
    filled
}

fn plain_read_back(call: &ToolCall) -> String {
    let name = call.name.replace(['_', '-'], " ");
    if call.args.is_empty() {
        return format!("Shall I do this: {name}?");
    }
    let args: Vec<String> = call
        .args
        .iter()
        .map(|(key, value)| format!("{} {}", key.replace(['_', '-'], " "), in_words(value)))
        .collect();
    format!("Shall I do this: {name}, with {}?", args.join(", "))
}

fn in_words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // 5.0 is read as 5.
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < 1e15 => format!("{float:.0}"),
            _ => number.to_string(),
        },
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "nothing".to_owned(),
        Value::Array(items) => items.iter().map(in_words).collect::<Vec<_>>().join(", "),
        Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use antiphon_agent::memory::InMemory;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const MONEY: &str = r#"{
  "default": "deny",
  "rules": [
    {"tool": "send_money", "action": "deny", "reason": "above the limit",
     "when": {"properties": {"amount": {"exclusiveMinimum": 100}}}},
    {"tool": "send_money", "action": "confirm", "read_back": "Send {amount} euros to {name}?"},
    {"tool": "*_note*", "action": "allow"}
  ]
}"#;

    fn context() -> CallContext {
        CallContext::new("s", 1, Arc::new(InMemory::default()))
    }

    fn call(name: &str, args: Value) -> ToolCall {
        let Value::Object(args) = args else { panic!("arguments are an object") };
        ToolCall { id: "c1".into(), name: name.into(), args }
    }

    fn judge(policy: &RulePolicy, name: &str, args: Value) -> Verdict {
        policy.authorize_tool_call(&context(), &call(name, args))
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = RulePolicy::parse("p", MONEY).unwrap();
        let Verdict::Deny(denial) = judge(&policy, "send_money", json!({"amount": 900})) else {
            panic!("not denied")
        };
        assert_eq!((denial.to_model, denial.reason.as_str()), (None, "above the limit"));
        assert_eq!(
            judge(&policy, "send_money", json!({"amount": 5.0, "name": "Alice"})),
            Verdict::Confirm { read_back: "Send 5 euros to Alice?".into() }
        );
        assert_eq!(judge(&policy, "add_note", json!({})), Verdict::Allow);
        assert!(matches!(judge(&policy, "clock", json!({})), Verdict::Deny(_)));
    }

    #[test]
    fn a_confirmed_call_is_allowed_but_a_denied_one_stays_denied() {
        let policy = RulePolicy::parse("p", MONEY).unwrap();
        let confirmed = context().confirmed();
        let small = call("send_money", json!({"amount": 5}));
        let large = call("send_money", json!({"amount": 101}));
        assert_eq!(policy.authorize_tool_call(&confirmed, &small), Verdict::Allow);
        assert!(matches!(policy.authorize_tool_call(&confirmed, &large), Verdict::Deny(_)));
    }

    #[test]
    fn a_rule_that_denies_also_fits_arguments_of_a_wrong_type() {
        let policy = RulePolicy::parse("p", MONEY).unwrap();
        for args in [json!({"amount": "900"}), json!({}), json!({"amount": null})] {
            assert!(matches!(judge(&policy, "send_money", args), Verdict::Deny(_)));
        }
    }

    #[test]
    fn a_plain_read_back_names_the_arguments() {
        let policy = RulePolicy::parse(
            "p",
            r#"{"default":"allow","rules":[{"tool":"open_door","action":"confirm"}]}"#,
        )
        .unwrap();
        assert_eq!(
            judge(&policy, "open_door", json!({"which_door": "front"})),
            Verdict::Confirm {
                read_back: "Shall I do this: open door, with which door front?".into()
            }
        );
    }

    #[test]
    fn bad_files_say_line_and_reason() {
        let cases = [
            ("{\n\"default\": \"allow\",\n\"rules\": [}", 3, "expected value"),
            ("{\"rules\": []}", 1, "default"),
            ("{\"default\": \"maybe\", \"rules\": []}", 1, "maybe"),
            ("{\"default\":\"allow\",\n\"rules\":[\n{\"tool\":\"a\"}]}", 3, "action"),
            (
                "{\"default\":\"allow\",\n\"rules\":[\n{\"tool\":\"a\",\"action\":\"run\"}]}",
                3,
                "run",
            ),
            (
                "{\"default\":\"allow\",\"rules\":[\n\n{\"tool\":\"a\",\"action\":\"allow\",\"x\":1}]}",
                3,
                "unknown field",
            ),
            (
                "{\"default\":\"allow\",\"rules\":[{\"tool\":\"a\",\"action\":\"allow\",\n\"when\":{\"type\":3}}]}",
                2,
                "JSON Schema",
            ),
            (
                "{\"default\":\"allow\",\"rules\":[{\"tool\":\"a\",\"action\":\"deny\",\n\"action\":\"allow\"}]}",
                2,
                "twice",
            ),
            (
                "{\"default\":\"allow\",\"rules\":[{\"tool\":\"\",\"action\":\"deny\"}]}",
                1,
                "needs the name",
            ),
            (
                "{\"default\":\"allow\",\"rules\":[\n{\"tool\":\"a\",\"action\":\"deny\",\"read_back\":\"?\"}]}",
                2,
                "read_back",
            ),
        ];
        for (text, line, reason) in cases {
            let error = RulePolicy::parse("p.json", text).unwrap_err();
            assert_eq!(error.line, Some(line), "{text}: {error}");
            assert!(error.to_string().contains(reason), "{text}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    #[test]
    fn rules_for_tools_that_do_not_exist_are_told() {
        let policy = RulePolicy::parse("p", MONEY).unwrap();
        assert_eq!(policy.unused_patterns(["send_money", "clock"]), ["*_note*"]);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in "\\PC{0,200}") {
            let _ = RulePolicy::parse("p", &text);
        }

        #[test]
        fn filling_never_panics(template in "[ {}a-cä]{0,20}") {
            let _ = fill(&template, &JsonObject::new());
        }
    }
}
