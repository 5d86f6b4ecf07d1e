//! One generation of audio on its way to the caller.

use antiphon_audio::Generation;
use bytes::BytesMut;

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) generation: Generation,
    /// Not sent yet.
    pub(super) waiting: BytesMut,
    /// Sent and not known to be heard; only where the carrier clears.
    pub(super) sent_audio: BytesMut,
    /// The sample at which `sent_audio` begins.
    pub(super) kept_from: u64,
    pub(super) written: u64,
    /// Samples of `written` that were sent.
    pub(super) sent: u64,
    /// Of these, silence that only filled the last quantum.
    pub(super) padding: u64,
    /// Samples that a mark proved to be heard.
    pub(super) proven: u64,
    /// The last mark never came: the clock stands for it.
    pub(super) assumed: bool,
    /// A mark that still counts is behind so many samples.
    pub(super) marked: u64,
    pub(super) finished: bool,
    pub(super) starved: bool,
    /// Its audio runs: nothing more is gathered before some is sent.
    pub(super) rolling: bool,
}

impl Segment {
    pub(super) fn new(generation: Generation) -> Self {
        Self {
            generation,
            waiting: BytesMut::new(),
            sent_audio: BytesMut::new(),
            kept_from: 0,
            written: 0,
            sent: 0,
            padding: 0,
            proven: 0,
            assumed: false,
            marked: 0,
            finished: false,
            starved: false,
            rolling: false,
        }
    }

    /// Samples sent, with the padding.
    pub(super) fn total(&self) -> u64 {
        self.sent + self.padding
    }

    /// What was heard of it, when so many of the samples that were sent are not heard yet, the padding
    /// among them.
    pub(super) fn heard(&self, unheard: u64) -> u64 {
        let unheard = unheard.saturating_sub(self.padding);
        self.sent.saturating_sub(unheard).max(self.proven).min(self.written)
    }

    /// The last `samples` that were sent are to be sent again.
    pub(super) fn take_back(&mut self, samples: u64, width: usize) {
        let bytes = (samples as usize * width).min(self.sent_audio.len());
        let mut back = self.sent_audio.split_off(self.sent_audio.len() - bytes);
        back.extend_from_slice(&self.waiting);
        self.waiting = back;
        self.sent -= (bytes / width) as u64;
        self.padding = 0;
        self.marked = self.marked.min(self.sent);
    }
}
