//! A microphone that speaks a recording in real time of the test's clock.

use std::time::Duration;

use antiphon_types::{AudioFormat, AudioFrame};
use tokio::time::{Instant, sleep_until};

/// Yields a recording in frames of equal length, one per frame time, then silence for ever.
pub struct ScriptedMicrophone {
    format: AudioFormat,
    recording: AudioFrame,
    position: usize,
    frame: Duration,
    next: Option<Instant>,
}

impl ScriptedMicrophone {
    /// A microphone that speaks `recording` in frames of `frame`.
    pub fn new(recording: AudioFrame, frame: Duration) -> Self {
        Self { format: recording.format, recording, position: 0, frame, next: None }
    }

    /// Whether the recording is over and silence follows.
    pub fn is_silent(&self) -> bool {
        self.position >= self.recording.samples()
    }

    /// The next frame, at its time.
    pub async fn frame(&mut self) -> AudioFrame {
        let at = *self.next.get_or_insert_with(Instant::now);
        sleep_until(at).await;
        self.next = Some(at + self.frame);
        let samples = self.format.samples_in(self.frame) as usize;
        let from = self.position;
        self.position += samples;
        let spoken = self.recording.slice(from, from + samples);
        let missing = samples - spoken.samples();
        if missing == 0 {
            return spoken;
        }
        let mut data = spoken.data.to_vec();
        // Zero is silence in PCM; mu-law and A-law have codes of their own for it.
        let silence = match self.format {
            AudioFormat::Mulaw8k => 0xff,
            AudioFormat::Alaw8k => 0xd5,
            _ => 0,
        };
        data.resize(data.len() + missing * self.format.bytes_per_sample(), silence);
        AudioFrame::new(self.format, data)
    }
}
