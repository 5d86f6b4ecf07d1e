//! What a client of the agent is streamed while a voice turn goes on.

use antiphon_agent::{ModelResponseChunk, Part, Role};
use serde_json::Value;

use crate::session::{EventKind, SessionEvent};

/// Makes chunks of what a session tells.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    turn: u64,
    /// The message of the turn that is streamed now, from 0.
    index: u32,
    /// What of it was streamed.
    said: String,
    /// It is complete, or was cut off.
    over: bool,
}

impl Streamed {
    /// What an event adds to the stream: words of the agent as they are generated, and outputs of tools.
    pub(super) fn chunk(&mut self, event: &SessionEvent) -> Option<ModelResponseChunk> {
        if event.turn > self.turn {
            *self = Self { turn: event.turn, ..Self::default() };
        }
        match &event.kind {
            EventKind::AgentTranscript { text, done } | EventKind::AgentText { text, done } => {
                self.words(text, *done)
            }
            EventKind::Interrupted => {
                self.over = true;
                None
            }
            EventKind::ToolResult { id, name, response, .. } => {
                let output = Value::Object(response.clone());
                let output = Part::tool_response(name.clone(), Some(id.clone()), output);
                self.begin();
                let chunk = ModelResponseChunk::new(Role::Tool, self.index, vec![output]);
                self.index += 1;
                Some(chunk)
            }
            _ => None,
        }
    }

    fn words(&mut self, text: &str, done: bool) -> Option<ModelResponseChunk> {
        let more = text.strip_prefix(&*self.said).map(str::to_owned);
        let (new, corrected) = match more {
            Some(more) => (more, false),
            None if self.over => {
                self.begin();
                (text.to_owned(), false)
            }
            None => (text.to_owned(), true),
        };
        self.over = done;
        text.clone_into(&mut self.said);
        if new.is_empty() {
            return None;
        }
        let mut chunk = ModelResponseChunk::new(Role::Model, self.index, vec![Part::text(new)]);
        chunk.aggregated = corrected.then_some(true);
        Some(chunk)
    }

    /// The next message begins.
    fn begin(&mut self) {
        self.index += u32::from(!self.said.is_empty());
        self.said.clear();
        self.over = false;
    }
}

#[cfg(test)]
mod tests {
    use antiphon_agent::Outcome;

    use super::*;

    #[test]
    fn words_are_streamed_as_they_come_message_by_message() {
        let mut streamed = Streamed::default();
        let mut tell = |turn, kind| {
            let event = SessionEvent { t_ms: 0, epoch: 1, turn, kind };
            let chunk = streamed.chunk(&event)?;
            Some((chunk.index.unwrap(), chunk.text(), chunk.aggregated.is_some()))
        };
        let said = |text: &str, done| EventKind::AgentTranscript { text: text.into(), done };
        assert_eq!(tell(1, said("Let me", false)), Some((0, "Let me".into(), false)));
        assert_eq!(tell(1, said("Let me see.", false)), Some((0, " see.".into(), false)));
        // The same words again, as a whole.
        assert_eq!(tell(1, said("Let me see.", true)), None);
        let result = EventKind::ToolResult {
            id: "c1".into(),
            name: "clock".into(),
            response: Default::default(),
            outcome: Outcome::Success,
            whole_bytes: None,
        };
        assert_eq!(tell(1, result), Some((1, String::new(), false)));
        assert_eq!(tell(1, said("Five", false)), Some((2, "Five".into(), false)));
        // Corrected.
        assert_eq!(tell(1, said("5 pm.", false)), Some((2, "5 pm.".into(), true)));
        assert_eq!(tell(1, EventKind::Interrupted), None);
        assert_eq!(tell(1, said("All right.", true)), Some((3, "All right.".into(), false)));
        assert_eq!(tell(2, said("And", false)), Some((0, "And".into(), false)));
    }
}
