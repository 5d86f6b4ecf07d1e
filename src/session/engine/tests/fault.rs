//! What an engine might do wrong, so that it is seen that somebody watches.

use antiphon_audio::Generation;
use antiphon_live::LiveCommand;
use antiphon_types::AudioFrame;

use super::Invariants;
use crate::session::{
    EventKind,
    engine::{Engine, Output},
};

/// Something that an engine might do wrong: what it gives is watched together with this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Audio of a reply that was cut off still goes to the sink.
    PlaysOn,
    /// A call has a second output on the wire.
    AnswersTwice,
    /// The provider is told that more was heard than came.
    ClaimsToBeHeard,
    /// There is a second end event.
    EndsTwice,
}

impl Fault {
    /// Watches an output, and what the fault adds to it.
    pub(super) fn watch(self, output: &Output, engine: &Engine, watch: &mut Invariants) {
        watch.output(output, engine);
        let added = match (self, output) {
            (Self::PlaysOn, Output::ClearPlayback { next }) => Output::Play {
                generation: Generation(next.0.saturating_sub(1)),
                frame: AudioFrame::from_pcm16(24_000, &[0; 480]),
            },
            (
                Self::AnswersTwice,
                Output::Send { epoch, command: command @ LiveCommand::ToolResponse(_), origin },
            ) => Output::Send { epoch: *epoch, command: command.clone(), origin: *origin },
            (
                Self::ClaimsToBeHeard,
                Output::Send {
                    epoch,
                    command: LiveCommand::Truncate { item, content_index, audio_end_ms, heard_text },
                    origin,
                },
            ) => Output::Send {
                epoch: *epoch,
                command: LiveCommand::Truncate {
                    item: item.clone(),
                    content_index: *content_index,
                    audio_end_ms: audio_end_ms + 60_000,
                    heard_text: heard_text.clone(),
                },
                origin: *origin,
            },
            (Self::EndsTwice, Output::Emit(event))
                if matches!(event.kind, EventKind::SessionEnded { .. }) =>
            {
                Output::Emit(event.clone())
            }
            _ => return,
        };
        watch.output(&added, engine);
    }
}
