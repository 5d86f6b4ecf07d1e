//! The user's audio: what was written, and where speech begins and ends in it.

use antiphon_audio::g711::Law;

use super::codec::Codec;

/// Loudness is judged over windows of so many milliseconds.
const WINDOW_MS: u64 = 10;
/// Speech begins after so many loud windows in a row: clicks are shorter.
const ONSET_WINDOWS: u64 = 3;
/// The root mean square that a threshold of 1 stands for; 0.5 is a quiet voice.
pub(crate) const FULL_THRESHOLD_RMS: f64 = 1_000.0;
/// Audio that is kept where the client commits by itself, as the vendor bounds one append.
const MAX_BUFFER_MS: u64 = 10 * 60 * 1_000;

/// How turns are heard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnParameters {
    pub(crate) rms: f64,
    pub(crate) prefix_ms: u64,
    pub(crate) silence_ms: u64,
}

/// What was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Speech began here.
    Started { at_ms: u64 },
    /// It ended here, silence included.
    Stopped { at_ms: u64 },
}

/// The buffer of the user's audio.
pub(crate) struct Listening {
    codec: Codec,
    /// What was not committed yet.
    buffer: Vec<u8>,
    /// Bytes written in all.
    written: usize,
    /// Bytes judged by loudness.
    judged: usize,
    speaking: bool,
    loud: u64,
    quiet_ms: u64,
}

impl Listening {
    pub(crate) fn new(codec: Codec) -> Self {
        Self {
            codec,
            buffer: Vec::new(),
            written: 0,
            judged: 0,
            speaking: false,
            loud: 0,
            quiet_ms: 0,
        }
    }

    /// Another format: what is in the buffer cannot be read any more.
    pub(crate) fn set_codec(&mut self, codec: Codec) {
        if self.codec != codec {
            *self = Self::new(codec);
        }
    }

    /// Milliseconds of audio in the buffer.
    pub(crate) fn buffered_ms(&self) -> f64 {
        self.codec.ms(self.buffer.len())
    }

    /// Milliseconds of audio written since the session began.
    pub(crate) fn written_ms(&self) -> u64 {
        self.codec.ms(self.written) as u64
    }

    pub(crate) fn is_speaking(&self) -> bool {
        self.speaking
    }

    /// Takes audio; tells what was heard in it, in order. Whoever is told of an end takes the turn.
    pub(crate) fn append(&mut self, audio: &[u8], turns: Option<TurnParameters>) -> Vec<Heard> {
        self.buffer.extend_from_slice(audio);
        self.written += audio.len();
        let mut heard = Vec::new();
        let Some(turns) = turns else {
            self.judged = self.written;
            self.trim(MAX_BUFFER_MS);
            return heard;
        };
        let window = self.codec.bytes(WINDOW_MS);
        while self.written - self.judged >= window {
            let start = self.buffer.len().saturating_sub(self.written - self.judged);
            let Some(bytes) = self.buffer.get(start..start + window) else { break };
            let loud = rms(self.codec, bytes) > turns.rms;
            self.judged += window;
            if let Some(news) = self.judge(loud, turns) {
                heard.push(news);
            }
        }
        if !self.speaking && heard.is_empty() {
            self.trim(turns.prefix_ms + ONSET_WINDOWS * WINDOW_MS);
        }
        heard
    }

    /// Takes what was written as a turn.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.forget_speech();
        std::mem::take(&mut self.buffer)
    }

    /// Forgets what was written.
    pub(crate) fn clear(&mut self) {
        self.forget_speech();
        self.buffer.clear();
    }

    fn judge(&mut self, loud: bool, turns: TurnParameters) -> Option<Heard> {
        let at_ms = self.codec.ms(self.judged) as u64;
        if loud {
            self.loud += 1;
            self.quiet_ms = 0;
        } else {
            self.loud = 0;
            self.quiet_ms += WINDOW_MS;
        }
        if !self.speaking && self.loud >= ONSET_WINDOWS {
            self.speaking = true;
            let onset = at_ms.saturating_sub(ONSET_WINDOWS * WINDOW_MS);
            return Some(Heard::Started { at_ms: onset.saturating_sub(turns.prefix_ms) });
        }
        if self.speaking && self.quiet_ms >= turns.silence_ms {
            self.speaking = false;
            return Some(Heard::Stopped { at_ms });
        }
        None
    }

    fn forget_speech(&mut self) {
        self.speaking = false;
        self.loud = 0;
        self.quiet_ms = 0;
    }

    fn trim(&mut self, keep_ms: u64) {
        let keep = self.codec.bytes(keep_ms);
        let unjudged = self.written - self.judged;
        let excess = self.buffer.len().saturating_sub(keep.max(unjudged));
        self.buffer.drain(..excess);
    }
}

fn rms(codec: Codec, bytes: &[u8]) -> f64 {
    let sum: f64 = match codec {
        Codec::Pcm(_) => bytes
            .chunks_exact(2)
            .map(|pair| f64::from(i16::from_le_bytes([pair[0], pair[1]])).powi(2))
            .sum(),
        Codec::Ulaw => bytes.iter().map(|byte| f64::from(Law::Mu.decode(*byte)).powi(2)).sum(),
        Codec::Alaw => bytes.iter().map(|byte| f64::from(Law::A.decode(*byte)).powi(2)).sum(),
    };
    (sum / codec.samples(WINDOW_MS) as f64).sqrt()
}
