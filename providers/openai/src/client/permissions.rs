//! Tools of MCP servers, which the service runs itself: it asks before, and is told.

use std::{collections::VecDeque, sync::Arc};

use antiphon_live::{LiveError, LiveEvent, Outbox};
use antiphon_types::{ToolArguments, ToolCallRequest};

use super::{Client, ignored};
use crate::wire::{Item, McpApprovalRequest, McpApprovalResponse};

/// Requests that may wait for an answer; more are refused.
const MAX_OPEN: usize = 64;
/// Requests that are remembered, so that none is told twice.
const MAX_KNOWN: usize = 256;

/// What the service asked.
#[derive(Debug, Default)]
pub(super) struct Permissions {
    known: VecDeque<Arc<str>>,
    open: Vec<Arc<str>>,
}

impl Permissions {
    /// Whether this is a request that was not seen before.
    fn is_new(&mut self, id: &Arc<str>) -> bool {
        if self.known.contains(id) {
            return false;
        }
        if self.known.len() == MAX_KNOWN {
            self.known.pop_front();
        }
        self.known.push_back(id.clone());
        true
    }
}

impl Client {
    /// Tells that the service asks, once, by whatever event it does.
    pub(super) fn tell_permission(&mut self, request: McpApprovalRequest, out: &mut Outbox) {
        let McpApprovalRequest { id, server_label, name, arguments } = request;
        let id: Arc<str> = id.into();
        if id.is_empty() || !self.permissions.is_new(&id) {
            return;
        }
        let active = self.replies.active.as_ref();
        if active.is_some_and(|reply| reply.stopped.is_some())
            || self.permissions.open.len() >= MAX_OPEN
        {
            out.events.push_back(ignored("a request for approval that is refused at once"));
            return self.answer_permission(&id, false, Some("not asked for any more".into()), out);
        }
        let reply = active.map(|reply| reply.id.clone());
        self.permissions.open.push(id.clone());
        let arguments = if arguments.trim().is_empty() { "{}".to_owned() } else { arguments };
        let call = ToolCallRequest {
            id,
            name: format!("{server_label}/{name}").into(),
            arguments: ToolArguments::Json(arguments),
        };
        out.events.push_back(LiveEvent::ToolPermission { reply, call });
    }

    pub(super) fn permit(
        &mut self,
        id: &str,
        permitted: bool,
        reason: Option<String>,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        let Some(at) = self.permissions.open.iter().position(|open| **open == *id) else {
            let message = format!("nothing with the id {id:?} waits for a permission");
            return Err(LiveError::InvalidCommand(message));
        };
        self.permissions.open.remove(at);
        self.answer_permission(id, permitted, reason, out);
        Ok(())
    }

    fn answer_permission(
        &mut self,
        request: &str,
        approve: bool,
        reason: Option<String>,
        out: &mut Outbox,
    ) {
        let answer = McpApprovalResponse {
            id: format!("mcpr_{}", self.next_event()),
            approval_request_id: request.to_owned(),
            approve,
            reason,
        };
        self.create_item(Item::McpApprovalResponse(answer), out);
    }
}
