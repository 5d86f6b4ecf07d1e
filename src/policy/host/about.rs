//! What receipts say of a call.

use std::sync::Arc;

use antiphon_agent::{
    CallContext, DecisionPoint, Outcome,
    ledger::canonical_hash,
    witness::{CallEnd, Decision, Happened, Refusal, Ruling},
};
use antiphon_types::JsonObject;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::policy::receipts::{Argument, Hidden, Redaction, text_hash};

/// What all entries of a call have in common.
pub(super) struct About {
    session: Arc<str>,
    call: Arc<str>,
    pub(super) tool: Arc<str>,
    /// The provider runs it.
    by_provider: bool,
}

impl About {
    pub(super) fn of(cx: &CallContext, decision: &Decision) -> Self {
        Self {
            session: cx.session_id.clone(),
            call: decision.call.id.clone(),
            tool: decision.call.name.clone(),
            by_provider: cx.by_provider,
        }
    }

    pub(super) fn entry(&self, kind: &str, now: Timestamp) -> JsonObject {
        let entries = [
            ("kind", kind.into()),
            ("at", format!("{now:.3}").into()),
            ("session", self.session.as_ref().into()),
            ("call", self.call.as_ref().into()),
            ("tool", self.tool.as_ref().into()),
        ];
        let mut entry: JsonObject = entries
            .into_iter()
            .map(|(name, value): (&str, Value)| (name.to_owned(), value))
            .collect();
        if self.by_provider {
            entry.insert("runs_at".to_owned(), "provider".into());
        }
        entry
    }

    /// `None`: the arguments have no exact canonical form.
    pub(super) fn decision(
        &self,
        cx: &CallContext,
        decision: &Decision,
        now: Timestamp,
        redactions: &[Redaction],
    ) -> Option<JsonObject> {
        let mut entry = self.entry("decision", now);
        let mut add = |name: &str, value: Value| drop(entry.insert(name.to_owned(), value));
        add("turn", cx.turn.into());
        if let Some(turn) = cx.invocation.turn() {
            add("snapshot", turn.snapshot_id.as_deref().into());
        }
        if let Some(caller) = cx.invocation.caller() {
            if !caller.id.is_empty() {
                add("caller", caller.id.as_ref().into());
            }
            if let Some(tenant) = &caller.scope {
                add("tenant", tenant.as_ref().into());
            }
        }
        let point = match decision.point {
            DecisionPoint::Start => "start",
            _ => "proposed",
        };
        add("point", point.into());
        let policies: Vec<&str> = decision.policies.iter().map(|policy| &**policy).collect();
        add("policies", json!(policies));
        if cx.confirmed {
            add("confirmed", true.into());
        }
        if cx.approved {
            add("approved_by", cx.approved_by.as_deref().unwrap_or("somebody").into());
        }
        if let Some(by) = &decision.by {
            add("decided_by", by.as_ref().into());
        }
        let outcome = match &decision.ruling {
            Ruling::Refuse { outcome, .. } => Some(*outcome),
            _ => None,
        };
        let unknown = outcome == Some(Outcome::UnknownTool);
        // Where arguments are not what the tool takes, nobody can tell what in them is not to be shown.
        let broken = decision.unparsed.is_some() || outcome == Some(Outcome::InvalidArguments);
        let argument = Argument::of(&self.tool, &decision.call.args, redactions, broken)?;
        let hidden = match unknown {
            true => Hidden::of_unknown(redactions),
            false => argument.hidden.clone(),
        };
        let verdict = match &decision.ruling {
            Ruling::Run | Ruling::HandOver => {
                if decision.ruling == Ruling::HandOver {
                    add("answered_by", "host".into());
                }
                if decision.original.is_some() { "allow_with" } else { "allow" }
            }
            Ruling::Confirm { .. } => "confirm",
            Ruling::Ask { reason } => {
                add("reason", hidden.scrub(reason).into());
                "ask"
            }
            Ruling::Refuse { outcome, reason, until } => {
                let reason = match broken {
                    // It quotes them.
                    true => hidden.conceal(reason),
                    false => hidden.scrub(reason),
                };
                add("reason", reason.into());
                if let Some(until) = until {
                    add("until", format!("{until:.3}").into());
                }
                verdict_of(*outcome)
            }
            _ => "unknown",
        };
        add("verdict", verdict.into());
        if let Some(original) = &decision.original {
            add("proposed_sha256", canonical_hash(original)?.into());
        }
        match &decision.unparsed {
            // There are none, but what came instead can be proven all the same.
            Some(text) => add("request_sha256", text_hash(text).into()),
            // What the name of the tool was meant to be nobody knows, nor what of it is shown.
            None if unknown => add("arguments_sha256", argument.sha256.into()),
            None => argument.write(&mut entry),
        }
        Some(entry)
    }

    pub(super) fn outcome(
        &self,
        end: &CallEnd,
        hidden: &Hidden,
        decision: Option<u64>,
        now: Timestamp,
    ) -> JsonObject {
        let mut entry = self.entry("outcome", now);
        let mut add = |name: &str, value: Value| drop(entry.insert(name.to_owned(), value));
        add("decision", decision.into());
        add("outcome", json!(end.outcome));
        add("ran", end.ran.into());
        if end.by_host {
            add("answered_by", "host".into());
        }
        // That it may is all that is known.
        let happened = match end.happened() {
            Happened::Yes if self.by_provider => Happened::Unknown,
            happened => happened,
        };
        add("happened", json!(happened));
        if let Some(hash) = end.output.as_ref().and_then(canonical_hash) {
            add("output_sha256", hash.into());
        }
        if let Some(detail) = &end.detail {
            add("detail", hidden.conceal(detail).into());
        }
        entry
    }
}

/// A decision that a limit changed.
pub(super) fn refused(decision: &Decision, limit: Arc<str>, refusal: &Refusal) -> Decision {
    let ruling = match refusal {
        Refusal::RateLimited(limit) => Ruling::Refuse {
            outcome: Outcome::RateLimited,
            reason: limit.reason.clone(),
            until: Some(limit.until),
        },
        Refusal::Denied(denial) => {
            let reason = denial.reason.clone();
            Ruling::Refuse { outcome: Outcome::Denied, reason, until: None }
        }
        _ => Ruling::Refuse { outcome: Outcome::Denied, reason: String::new(), until: None },
    };
    let mut refused = decision.clone();
    (refused.ruling, refused.policies) = (ruling, vec![limit]);
    refused
}

/// What a receipt calls a refusal.
fn verdict_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Denied => "deny",
        Outcome::RateLimited => "rate_limited",
        Outcome::UnknownTool => "unknown_tool",
        Outcome::InvalidArguments => "invalid_arguments",
        Outcome::NotApproved => "not_approved",
        Outcome::NotConfirmed => "not_confirmed",
        Outcome::Expired => "expired",
        Outcome::Interrupted => "interrupted",
        Outcome::Cancelled => "cancelled",
        // A person gave the output in the place of the tool.
        Outcome::Success => "answered",
        _ => "refused",
    }
}
