//! Policies in the language Cedar.

mod sets;
mod shape;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, fs,
    path::Path,
    str::FromStr,
    sync::Arc,
};

use antiphon_agent::{Denial, Judgement, Verdict};
use antiphon_types::{ToolCall, ToolDefinition};
use cedar_policy::{
    ActionConstraint, AuthorizationError, Authorizer, Context, Decision, Effect, Entities, Entity,
    EntityId, EntityTypeName, EntityUid, PolicyId, PolicySet, Request, RestrictedExpression,
    Schema, ValidationMode, Validator,
};
use miette::Diagnostic;
use serde_json::{Value, json};

use self::{sets::Sets, shape::Shape};
use super::{FileError, Limit, Policy, PolicyContext, Spent};

/// Files above this are refused, as those of the other policies are.
const MAX_BYTES: usize = 1024 * 1024;

/// Policies in [Cedar](https://docs.cedarpolicy.com), read and not yet checked against the tools that
/// they are about: see [`CedarPolicies::for_tools`].
///
/// ```text
/// @id("customers pay")
/// permit (principal, action == Action::"send_money", resource)
/// when { principal.verified >= 2 && context.arguments.cents <= 100000 };
///
/// @id("large amounts")
/// @ask("somebody has to look at large amounts")
/// forbid (principal, action == Action::"send_money", resource)
/// when { context.arguments.cents > 10000 };
/// ```
///
/// * `principal` is a `Caller`: its id is the caller's (empty where nobody knows it), `in
///   Tenant::"bank"` where the host says so, with `known` (a boolean), `verified` (a number, see
///   [`VerifiedLevel`](super::VerifiedLevel)) and `roles` (texts: the claim `roles`).
/// * `action` is the tool: `Action::"send_money"`.
/// * `resource` is the `Session`.
/// * `context` has `arguments` as the tool's schema has them, `now` (a `datetime`), `turn`, `confirmed`,
///   `approved`, `point` (`"proposed"` or `"start"`), and `spent`: of each limit that the tool takes from,
///   by its name, `calls` and `amount` in minor units, this call not counted.
///
/// A JSON integer is a `Long`, a number a `decimal` of up to four places, and so is a text whose schema
/// has `"format": "decimal"`; nothing is a float. A call with arguments of another type is denied. What a
/// schema leaves open is not seen by any policy.
///
/// A call is allowed where a policy permits it and none forbids it; a policy that errs denies. A `forbid`
/// with the annotation `@ask("reason")` has a person decide instead, one with `@confirm("question")` the
/// caller. `@reason("…")` is what records say of a denial, and `@tell("…")` what the model is told.
/// Policies are known by their `@id`, or by file and line, after the name that these all have together:
/// `bank/large amounts`.
#[derive(Clone)]
pub struct CedarPolicies {
    id: Arc<str>,
    policies: Vec<Source>,
}

/// One policy, and where it is.
#[derive(Clone)]
struct Source {
    policy: cedar_policy::Policy,
    place: Place,
    /// Where its text begins in that of the file.
    offset: usize,
    file: Arc<File>,
}

struct File {
    name: String,
    text: String,
}

#[derive(Clone)]
struct Place {
    line: usize,
    column: usize,
}

impl CedarPolicies {
    /// None yet, that are to have this name together.
    pub fn new(id: &str) -> Self {
        Self { id: id.into(), policies: Vec::new() }
    }

    /// Their name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether one of them has a person decide.
    pub(crate) fn asks(&self) -> bool {
        self.policies.iter().any(|source| source.policy.annotation("ask").is_some())
    }

    /// Adds those of a file.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with it, with its line.
    pub fn file(self, path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let fail =
            |reason: String| FileError { path: name.clone(), line: None, column: None, reason };
        let text = fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        if text.len() > MAX_BYTES {
            return Err(fail(format!("larger than {MAX_BYTES} bytes")));
        }
        self.text(&name, &text)
    }

    /// Adds those of a text; `name` stands for the path in errors and names.
    ///
    /// # Errors
    ///
    /// Whatever is wrong with it, with its line.
    pub fn text(mut self, name: &str, text: &str) -> Result<Self, FileError> {
        let file = Arc::new(File { name: name.to_owned(), text: text.to_owned() });
        let set = PolicySet::from_str(text).map_err(|errors| {
            let first = errors.iter().next();
            let at = first.and_then(offset_of);
            let reason = first.map_or_else(|| errors.to_string(), ToString::to_string);
            file.error_at(at.unwrap_or(0), reason)
        })?;
        if let Some(template) = set.templates().next() {
            let at = text.find(template.to_string().trim()).unwrap_or(0);
            return Err(file.error_at(at, "a template is no policy: nothing fills its slots"));
        }
        // Numbered as they come.
        let mut from = 0;
        for index in 0..set.num_of_policies() {
            let Some(policy) = set.policy(&PolicyId::new(format!("policy{index}"))) else {
                return Err(file.error_at(0, "a policy has no number of its own"));
            };
            let own = policy.to_string();
            let offset = text[from..].find(own.trim()).map_or(from, |at| from + at);
            from = offset + own.trim().len().min(text.len() - offset);
            let place = file.place(offset);
            let id = match policy.annotation("id").map(str::trim) {
                Some("") => return Err(file.error_at(offset, "an empty `@id`")),
                Some(id) => id.to_owned(),
                None => format!("{}:{}", file.base_name(), place.line),
            };
            let policy = policy.new_id(PolicyId::new(format!("{}/{id}", self.id)));
            let asks = ["ask", "confirm"].iter().any(|name| policy.annotation(name).is_some());
            if asks && policy.effect() == Effect::Permit {
                let reason = "`@ask` and `@confirm` stand before a `forbid`: it is what they lift";
                return Err(file.error_at(offset, reason));
            }
            if self.policies.iter().any(|known| known.policy.id() == policy.id()) {
                return Err(file.error_at(offset, format!("two policies are called {id:?}")));
            }
            self.policies.push(Source { policy, place, offset, file: file.clone() });
        }
        Ok(self)
    }

    /// The policies, checked against these tools and limits.
    ///
    /// # Errors
    ///
    /// A policy that does not fit them, with its line: a tool that there is not, an argument that it has
    /// not, types that cannot be compared.
    pub fn for_tools(
        &self,
        tools: &[ToolDefinition],
        limits: &[Limit],
    ) -> Result<Cedar, FileError> {
        let shapes: BTreeMap<Arc<str>, Known> =
            tools.iter().map(|tool| (tool.name.clone(), Known::of(tool, limits))).collect();
        let whole = |reason: String| FileError {
            path: self.policies.first().map_or_else(String::new, |first| first.file.name.clone()),
            line: None,
            column: None,
            reason,
        };
        let schema = Schema::from_json_value(schema(&shapes))
            .map_err(|error| whole(format!("the schema of the tools: {error}")))?;
        let mut all = PolicySet::new();
        for source in &self.policies {
            all.add(source.policy.clone()).map_err(|error| whole(error.to_string()))?;
        }
        let validator = Validator::new(schema);
        let found = validator.validate(&all, ValidationMode::Strict);
        if let Some(error) = found.validation_errors().next() {
            return Err(self.located(error.policy_id(), error, error.to_string()));
        }
        let kinds = Kinds::new().map_err(&whole)?;
        let mut by_tool = HashMap::new();
        for (name, known) in shapes {
            let action = uid("Action", &name).map_err(&whole)?;
            let (mut decide, mut ask) = (Sets::default(), Sets::default());
            let mut reads_now = false;
            for Source { policy, .. } in &self.policies {
                let concerned = match policy.action_constraint() {
                    ActionConstraint::Any => true,
                    ActionConstraint::Eq(of) => of == action,
                    ActionConstraint::In(of) => of.contains(&action),
                };
                let asks = policy.annotation("ask").or(policy.annotation("confirm")).is_some();
                let set = if asks { &mut ask } else { &mut decide };
                if concerned {
                    set.add(policy, &kinds.caller).map_err(&whole)?;
                    reads_now |= policy.to_string().contains("now");
                }
            }
            let (decide, ask) = (decide.ready(), ask.ready());
            by_tool.insert(name, Tool { action, known, decide, ask, reads_now });
        }
        let schema = validator.schema().clone();
        let reads_spent =
            self.policies.iter().any(|source| source.policy.to_string().contains("spent"));
        let (id, authorizer) = (self.id.clone(), Authorizer::new());
        Ok(Cedar { id, tools: by_tool, kinds, authorizer, schema, reads_spent })
    }

    fn located(&self, policy: &PolicyId, error: &dyn Diagnostic, reason: String) -> FileError {
        let source = self.policies.iter().find(|source| source.policy.id() == policy);
        let Some(source) = source else {
            return FileError { path: self.id.to_string(), line: None, column: None, reason };
        };
        match offset_of(error) {
            Some(offset) if offset >= source.offset => source.file.error_at(offset, reason),
            _ => FileError {
                path: source.file.name.clone(),
                line: Some(source.place.line),
                column: Some(source.place.column),
                reason,
            },
        }
    }
}

impl fmt::Debug for CedarPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.policies.iter().map(|source| source.policy.id().to_string());
        f.debug_list().entries(ids).finish()
    }
}

impl File {
    fn place(&self, offset: usize) -> Place {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        Place { line, column }
    }

    fn error_at(&self, offset: usize, reason: impl Into<String>) -> FileError {
        let Place { line, column } = self.place(offset);
        let (path, reason) = (self.name.clone(), reason.into());
        FileError { path, line: Some(line), column: Some(column), reason }
    }

    fn base_name(&self) -> &str {
        Path::new(&self.name).file_name().and_then(|name| name.to_str()).unwrap_or(&self.name)
    }
}

fn offset_of<D: Diagnostic + ?Sized>(error: &D) -> Option<usize> {
    error.labels()?.next().map(|label| label.offset())
}

/// Policies in Cedar that fit their tools. See [`CedarPolicies`].
pub struct Cedar {
    id: Arc<str>,
    tools: HashMap<Arc<str>, Tool>,
    kinds: Kinds,
    authorizer: Authorizer,
    schema: Schema,
    /// Any policy looks at what was spent.
    reads_spent: bool,
}

/// A tool, and the policies that are about it.
struct Tool {
    action: EntityUid,
    known: Known,
    decide: Sets,
    /// Those that have somebody asked.
    ask: Sets,
    /// Any of them looks at the time of day, which takes time to be put into Cedar's form.
    reads_now: bool,
}

/// The kinds of what a request is about: reading their names takes longer than judging a policy.
struct Kinds {
    caller: EntityTypeName,
    tenant: EntityTypeName,
    session: EntityTypeName,
}

impl Kinds {
    fn new() -> Result<Self, String> {
        Ok(Self { caller: kind("Caller")?, tenant: kind("Tenant")?, session: kind("Session")? })
    }
}

/// What was asked.
struct Asked {
    request: Request,
    entities: Entities,
    /// The principal, and what it is in.
    whose: Vec<EntityUid>,
}

/// The policies that a request satisfies.
#[derive(Default)]
struct Said {
    permits: Vec<PolicyId>,
    forbids: Vec<PolicyId>,
}

/// What policies know of a call.
struct Known {
    arguments: Shape,
    /// The limits that it takes from.
    limits: Vec<Arc<str>>,
}

impl Known {
    fn of(tool: &ToolDefinition, limits: &[Limit]) -> Self {
        let limits = limits.iter().filter(|limit| limit.fits(&tool.name));
        Self {
            arguments: Shape::of_arguments(tool.input_schema.as_deref().unwrap_or(&Value::Null)),
            limits: limits.map(|limit| limit.id().clone()).collect(),
        }
    }
}

/// Of the session, the tools and their limits.
fn schema(tools: &BTreeMap<Arc<str>, Known>) -> Value {
    let required = |kind: &str| json!({ "type": kind, "required": true });
    let record = |attributes: Value| json!({ "type": "Record", "attributes": attributes });
    let actions = tools.iter().map(|(name, known)| {
        let used = record(json!({ "calls": required("Long"), "amount": required("Long") }));
        let spent = known.limits.iter().map(|limit| (limit.to_string(), used.clone()));
        let spent: serde_json::Map<_, _> = spent.collect();
        let context = record(json!({
            "arguments": known.arguments.to_json(),
            "now": { "type": "Extension", "name": "datetime" },
            "turn": required("Long"),
            "confirmed": required("Boolean"),
            "approved": required("Boolean"),
            "point": required("String"),
            "spent": record(spent.into()),
        }));
        let applies = json!({
            "principalTypes": ["Caller"], "resourceTypes": ["Session"], "context": context,
        });
        (name.to_string(), json!({ "appliesTo": applies }))
    });
    let actions: serde_json::Map<_, _> = actions.collect();
    let caller = record(json!({
        "known": required("Boolean"),
        "verified": required("Long"),
        "roles": { "type": "Set", "element": { "type": "String" }, "required": true },
    }));
    json!({ "": {
        "entityTypes": {
            "Tenant": {},
            "Session": {},
            "Caller": { "memberOfTypes": ["Tenant"], "shape": caller },
        },
        "actions": actions,
    } })
}

impl Cedar {
    /// The schema that the policies were checked against, in the form that editors of Cedar read.
    pub fn schema_text(tools: &[ToolDefinition], limits: &[Limit]) -> Result<String, String> {
        let known = tools.iter().map(|tool| (tool.name.clone(), Known::of(tool, limits))).collect();
        let fragment = cedar_policy::SchemaFragment::from_json_value(schema(&known));
        let fragment = fragment.map_err(|error| error.to_string())?;
        fragment.to_cedarschema().map_err(|error| error.to_string())
    }

    /// What was asked, with all that is known of it.
    fn request(&self, cx: &PolicyContext, call: &ToolCall, tool: &Tool) -> Result<Asked, String> {
        let caller = cx.caller.as_ref();
        let principal = entity(&self.kinds.caller, caller.map_or("", |caller| &caller.id));
        let resource = entity(&self.kinds.session, &cx.session_id);
        let roles = match caller.and_then(|caller| caller.claims.get("roles")) {
            Some(Value::Array(roles)) => roles.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let known = caller.is_some_and(|caller| !caller.id.is_empty());
        let text = |text: &str| RestrictedExpression::new_string(text.to_owned());
        let attributes = HashMap::from([
            ("known".to_owned(), RestrictedExpression::new_bool(known)),
            ("verified".to_owned(), RestrictedExpression::new_long(cx.verified.0.into())),
            ("roles".to_owned(), RestrictedExpression::new_set(roles.into_iter().map(text))),
        ]);
        let tenant = caller.and_then(|caller| caller.scope.as_ref());
        let tenant = tenant.map(|tenant| entity(&self.kinds.tenant, tenant));
        let whose = [principal.clone()].into_iter().chain(tenant.clone()).collect();
        let parents: HashSet<_> = tenant.clone().into_iter().collect();
        let entity = Entity::new(principal.clone(), attributes, parents);
        let mut entities = vec![entity.map_err(|error| error.to_string())?];
        entities.extend(tenant.map(Entity::with_uid));
        entities.push(Entity::with_uid(resource.clone()));
        let entities = Entities::from_entities(entities, None).map_err(|e| e.to_string())?;

        let whole = |number: u64| i64::try_from(number).map(RestrictedExpression::new_long);
        let whole = |number| whole(number).map_err(|_| format!("{number} is too large"));
        let mut spent = Vec::with_capacity(tool.known.limits.len());
        for limit in &tool.known.limits {
            let of = cx.spent.iter().find(|spent| spent.limit == *limit).cloned();
            // Nobody looks at it.
            let of = of.or_else(|| (!self.reads_spent).then(|| Spent::new(limit.clone(), 0, 0)));
            let of = of.ok_or_else(|| format!("nobody says what is used of limit {limit:?}"))?;
            let used = [("calls", whole(of.calls)?), ("amount", whole(of.amount)?)];
            spent.push((limit.to_string(), in_record(used)?));
        }
        let spent = RestrictedExpression::new_record(spent).map_err(|error| error.to_string())?;
        let context = [
            ("arguments", tool.known.arguments.arguments(&call.args)?),
            ("turn", whole(cx.turn)?),
            ("confirmed", RestrictedExpression::new_bool(cx.confirmed)),
            ("approved", RestrictedExpression::new_bool(cx.approved)),
            ("point", text(point(cx))),
            ("spent", spent),
        ];
        let now = || RestrictedExpression::new_datetime(format!("{:.3}", cx.now));
        let now = tool.reads_now.then(|| ("now", now()));
        let context = context.into_iter().chain(now).map(|(name, value)| (name.to_owned(), value));
        let context = Context::from_pairs(context).map_err(|error| error.to_string())?;
        let request = Request::new(principal, tool.action.clone(), resource, context, None);
        Ok(Asked { request: request.map_err(|error| error.to_string())?, entities, whose })
    }

    /// What the policies say. One that errs denies.
    fn said(&self, sets: &Sets, asked: &Asked) -> Result<Said, Judgement> {
        let mut said = Said::default();
        for group in sets.about(&asked.whose) {
            if let Some(permits) = group.permits(&asked.request, &asked.entities) {
                said.permits.extend(permits);
                continue;
            }
            let (request, entities) = (&asked.request, &asked.entities);
            let answer = self.authorizer.is_authorized(request, &group.policies, entities);
            if let Some(error) = answer.diagnostics().errors().next() {
                return Err(self.denied(vec![failed(error)], Denial::private(error.to_string())));
            }
            let satisfied = answer.diagnostics().reason().cloned();
            match answer.decision() {
                Decision::Allow => said.permits.extend(satisfied),
                Decision::Deny => said.forbids.extend(satisfied),
            }
        }
        said.permits.sort();
        said.forbids.sort();
        Ok(said)
    }

    fn denied(&self, policies: Vec<Arc<str>>, denial: Denial) -> Judgement {
        let policies = if policies.is_empty() { vec![self.id.clone()] } else { policies };
        Judgement::new(Verdict::Deny(denial), policies)
    }
}

impl Policy for Cedar {
    fn id(&self) -> &str {
        &self.id
    }

    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict {
        self.judge(cx, call).verdict
    }

    fn reads_spent(&self) -> bool {
        self.reads_spent
    }

    fn judge(&self, cx: &PolicyContext, call: &ToolCall) -> Judgement {
        let private = |reason: String| Denial::private(reason);
        let Some(tool) = self.tools.get(&call.name) else {
            let reason = "the policies were not checked against this tool".to_owned();
            return self.denied(Vec::new(), private(reason));
        };
        let asked = match self.request(cx, call, tool) {
            Ok(asked) => asked,
            Err(reason) => return self.denied(Vec::new(), private(reason)),
        };
        let said = match self.said(&tool.decide, &asked) {
            Ok(said) => said,
            Err(denied) => return denied,
        };
        if let Some(first) = said.forbids.first() {
            let of = |note: &str| tool.decide.annotation(first, note).map(str::to_owned);
            let reason = of("reason").unwrap_or_else(|| format!("{first} forbids it"));
            let names = said.forbids.iter().map(name).collect();
            return self.denied(names, Denial { to_model: of("tell"), reason });
        }
        if said.permits.is_empty() {
            return self.denied(Vec::new(), private("no policy permits it".to_owned()));
        }
        let mut names: Vec<Arc<str>> = said.permits.iter().map(name).collect();
        if tool.ask.is_empty() {
            return Judgement::new(Verdict::Allow, names);
        }
        let asking = match self.said(&tool.ask, &asked) {
            Ok(said) => said.forbids,
            Err(denied) => return denied,
        };
        for (note, asked) in [("ask", true), ("confirm", false)] {
            let words = asking.iter().filter_map(|id| {
                let words = tool.ask.annotation(id, note)?;
                Some((name(id), words.to_owned()))
            });
            let (ids, words): (Vec<_>, Vec<_>) = words.unzip();
            if !ids.is_empty() {
                let verdict = match asked {
                    true => Verdict::Ask { reason: words.join("; ") },
                    false => Verdict::Confirm { read_back: words.join(" ") },
                };
                return Judgement::new(verdict, ids);
            }
        }
        names.dedup();
        Judgement::new(Verdict::Allow, names)
    }
}

impl fmt::Debug for Cedar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let actions = self.schema.actions().count();
        f.debug_struct("Cedar").field("id", &self.id).field("tools", &actions).finish()
    }
}

fn in_record<const N: usize>(
    fields: [(&str, RestrictedExpression); N],
) -> Result<RestrictedExpression, String> {
    let fields = fields.map(|(name, value)| (name.to_owned(), value));
    RestrictedExpression::new_record(fields).map_err(|error| error.to_string())
}

fn point(cx: &PolicyContext) -> &'static str {
    match cx.point {
        antiphon_agent::DecisionPoint::Start => "start",
        _ => "proposed",
    }
}

/// The policy that erred.
fn failed(error: &AuthorizationError) -> Arc<str> {
    let AuthorizationError::PolicyEvaluationError(error) = error;
    name(error.policy_id())
}

fn name(policy: &PolicyId) -> Arc<str> {
    let id: &str = policy.as_ref();
    id.into()
}

fn uid(of: &str, id: &str) -> Result<EntityUid, String> {
    Ok(entity(&kind(of)?, id))
}

fn kind(name: &str) -> Result<EntityTypeName, String> {
    EntityTypeName::from_str(name).map_err(|error| error.to_string())
}

fn entity(kind: &EntityTypeName, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.clone(), EntityId::new(id))
}
