//! What running tools tell of their progress.

use antiphon_agent::{ModelResponseChunk, Part, cut_output};
use antiphon_live::LiveCommand;
use antiphon_types::{JsonObject, ToolResponse};
use serde_json::Value;

use super::{
    Engine,
    calls::Stage,
    io::{Origin, Ticket},
    sequencer::{Wanted, Why},
};
use crate::session::EventKind;

/// Bytes of progress that are spoken; more is cut.
const MAX_SPOKEN: usize = 1_000;

impl Engine {
    /// A tool says how far it is: told to the host, to the provider where it takes outputs in
    /// pieces, and to the user where nobody else speaks.
    pub(super) fn on_tool_progress(&mut self, ticket: Ticket, progress: &ModelResponseChunk) {
        let running =
            self.calls.find(ticket).filter(|call| matches!(call.stage, Stage::Running { .. }));
        let Some(call) = running else {
            self.stats.late_tool_results += 1;
            return;
        };
        let (turn, id, name) = (call.turn, call.request.id.clone(), call.request.name.clone());
        let mut text = progress.text();
        text.truncate(text.floor_char_boundary(MAX_SPOKEN));
        let text = Some(text.trim().to_owned()).filter(|text| !text.is_empty());
        let output = progress
            .tool_responses()
            .find_map(Part::as_tool_response)
            .and_then(|response| response.output.clone());
        if let Some(output) = &output
            && self.can(|can| can.non_blocking_tools)
            && ticket.epoch == self.epoch
        {
            let output = as_object(output);
            let most = self.capabilities.as_ref().map_or(usize::MAX, |can| can.tool_output_bytes);
            let output = cut_output(&output, most).unwrap_or(output);
            let mut response = ToolResponse::new(id.clone(), name.clone(), output);
            response.will_continue = Some(true);
            self.send(LiveCommand::ToolResponse(response), Origin::ToolOutput);
        }
        if let Some(text) = &text {
            self.speak_progress(ticket.call, text);
        }
        self.emit_in(turn, EventKind::ToolProgress { id, name, text, output });
    }

    /// The call is over: nobody wants to hear how far it is.
    pub(super) fn forget_progress(&mut self, call: u64) {
        self.supersede(|why| why == Why::Progress { call });
    }

    fn speak_progress(&mut self, call: u64, text: &str) {
        self.forget_progress(call);
        let others_speak = self.agent_has_floor() || self.attention.user_speaks();
        if self.can(|can| can.say) && !others_speak {
            self.want_reply(Wanted::Say(text.to_owned()), Why::Progress { call });
        }
    }
}

fn as_object(output: &Value) -> JsonObject {
    match output {
        Value::Object(object) => object.clone(),
        other => JsonObject::from_iter([("output".to_owned(), other.clone())]),
    }
}
