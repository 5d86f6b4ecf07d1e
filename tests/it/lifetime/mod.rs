//! Connections end and conversations do not: planned changes, losses, silence, other providers.

mod beside;
#[cfg(feature = "openai")]
mod dialects;
mod failover;
#[cfg(feature = "gemini")]
mod gemini;
#[cfg(all(feature = "gemini", feature = "openai"))]
mod gone;
mod hand_off;
mod home;
mod rotation;
#[cfg(any(feature = "gemini", feature = "openai"))]
mod silent;
mod stalls;
mod unanswered;
#[cfg(feature = "openai")]
mod wire;

use antiphon::{
    live::{LiveCommand, LiveEvent, Resumption},
    session::*,
};

use super::rig::*;

/// A newer handle.
fn resumable(handle: &str) -> LiveEvent {
    LiveEvent::Resumable(Resumption { handle: handle.to_owned().into() })
}

/// What was told to be restored, with the audio that was lost.
fn restored(events: &[EventKind]) -> Vec<(Continuity, u64)> {
    events
        .iter()
        .filter_map(|kind| match kind {
            EventKind::StateRestored { restored, audio_lost_ms, .. } => {
                Some((*restored, *audio_lost_ms))
            }
            _ => None,
        })
        .collect()
}

fn is_restored(kind: &EventKind) -> bool {
    matches!(kind, EventKind::StateRestored { .. })
}

/// Sound that no detector takes for a voice, and of which no two pieces are the same.
#[cfg(any(feature = "gemini", feature = "openai"))]
fn murmur(samples: usize) -> Vec<i16> {
    let mut state = 7u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as i16 - 128
    };
    (0..samples).map(next).collect()
}

fn names(commands: &[LiveCommand]) -> Vec<&'static str> {
    commands.iter().map(LiveCommand::name).collect()
}

impl Rig {
    /// A whole turn, heard.
    async fn whole_turn(&mut self, user: &str, reply: &str) {
        self.user_says(user, user).says(reply, reply, 10);
        self.settle().await;
        self.speaker.play_all();
        self.until(is_turn_finished).await;
    }

    /// The next connection is the one that is talked to.
    async fn next_connection(&mut self) {
        self.far = self.provider.far_end().await;
    }
}
