//! Calls that the provider runs itself, and asks about.
//!
//! They are judged, confirmed, and parked for a person like any other. What "runs" here is that the
//! provider may: its output is the answer.

use std::sync::Arc;

use antiphon_agent::Outcome;
use antiphon_live::{LiveCommand, ReplyId};
use antiphon_types::{ToolCallRequest, ToolResponse};
use serde_json::Value;

use super::{
    Engine, Phase,
    io::{Origin, Ticket},
    sequencer::{Wanted, Why},
};

/// Calls of the provider's that may wait for a person; more are refused.
const MAX_WAITING: usize = 64;

/// A call that a person decides over, while the provider waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The record of the call.
    key: Arc<str>,
    epoch: u32,
    /// The call.
    id: Arc<str>,
}

impl Engine {
    /// The provider asks whether it may run a tool of its own.
    pub(super) fn on_tool_permission(&mut self, reply: Option<ReplyId>, call: ToolCallRequest) {
        self.take_calls(reply, vec![call], true);
    }

    /// It was decided over a call that the provider runs, or it waits: `key` is its record then.
    pub(super) fn answer_permission(
        &mut self,
        ticket: Ticket,
        outcome: Outcome,
        response: ToolResponse,
        key: Option<Arc<str>>,
    ) {
        let id = response.id.clone();
        if let Some(key) = key
            && outcome == Outcome::Paused
            && self.permissions.len() < MAX_WAITING
        {
            self.permissions.push(Waiting { key, epoch: ticket.epoch, id });
            if self.connected {
                self.tell_in_words(&response);
            }
            return;
        }
        let refusal = reason_of(response.response.get("error"), outcome);
        if self.permit(ticket.epoch, id, outcome, refusal)
            && let Some(group) = self.calls.group_mut(ticket.epoch, ticket.reply)
        {
            group.speak = true;
            group.after_reply |= group.reply_done;
        }
    }

    /// A call that waited for a person has its outcome. Whether it was the provider's, who hears of it.
    pub(super) fn settle_permission(
        &mut self,
        key: &str,
        outcome: Outcome,
        output: &Value,
    ) -> bool {
        let Some(at) = self.permissions.iter().position(|waiting| *waiting.key == *key) else {
            return false;
        };
        let Waiting { epoch, id, .. } = self.permissions.remove(at);
        let refusal = reason_of(output.get("error"), outcome);
        let told = self.permit(epoch, id, outcome, refusal);
        if told && !self.can(|can| can.replies_after_tools) && self.can(|can| can.create_reply) {
            self.want_reply(Wanted::Reply, Why::Tools);
        }
        true
    }

    /// Tells the provider, where it is still there.
    fn permit(&mut self, epoch: u32, id: Arc<str>, outcome: Outcome, refusal: String) -> bool {
        if epoch != self.epoch || !self.connected || matches!(self.phase, Phase::Closing(_)) {
            self.stats.late_tool_results += 1;
            let message = format!("the connection is over whose provider asked for call {id:?}");
            self.emit_error("tool", message);
            return false;
        }
        let permitted = outcome == Outcome::Success;
        let reason = (!permitted).then_some(refusal);
        self.send(LiveCommand::PermitTool { id, permitted, reason }, Origin::None)
    }
}

/// Why a call may not run, for the model.
fn reason_of(error: Option<&Value>, outcome: Outcome) -> String {
    error.and_then(Value::as_str).unwrap_or(outcome.fixed_text()).to_owned()
}
