//! Whether the user is silent, by the user's own audio.
//!
//! Not every provider says when the user speaks. While such a connection is about to be left, what
//! goes up is listened to: a sentence is not to be cut in two.

use std::time::{Duration, Instant};

use antiphon_audio::{g711::Law, pcm};
use antiphon_types::{AudioFormat, AudioFrame};

/// Nothing but silence for so long is a pause between sentences, in which no answer is awaited any more.
const PAUSE: Duration = Duration::from_secs(2);
/// What is louder may be a voice. Speech into a telephone has about -30 dBFS, its line about -60.
const VOICE_DBFS: f32 = -45.0;

/// Listens for a pause of the user's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    /// When something was heard last; `None`: nobody listens.
    heard: Option<Instant>,
}

impl Silence {
    /// Begins to listen. The user may be in the middle of a sentence.
    pub(crate) fn listen(&mut self, now: Instant) {
        self.heard.get_or_insert(now);
    }

    /// Listens no more.
    pub(crate) fn stop(&mut self) {
        self.heard = None;
    }

    /// The user's audio goes up.
    pub(crate) fn audio(&mut self, frame: &AudioFrame, now: Instant) {
        if self.heard.is_some() && is_voice(frame) {
            self.heard = Some(now);
        }
    }

    /// When there will have been a pause, if nothing more is heard. `None`: nobody listens.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.heard.map(|heard| heard + PAUSE)
    }
}

/// Whether this may be a voice.
pub(crate) fn is_voice(frame: &AudioFrame) -> bool {
    dbfs(frame) > VOICE_DBFS
}

fn dbfs(frame: &AudioFrame) -> f32 {
    let law = |law: Law| frame.data.iter().map(|code| energy(law.decode(*code))).sum::<u64>();
    let sum: u64 = match frame.format {
        AudioFormat::Pcm16 { .. } => {
            let samples = frame.data.chunks_exact(2);
            samples.map(|pair| energy(i16::from_le_bytes([pair[0], pair[1]]))).sum()
        }
        AudioFormat::Mulaw8k => law(Law::Mu),
        AudioFormat::Alaw8k => law(Law::A),
        _ => return 0.0,
    };
    let mean = sum as f64 / frame.samples().max(1) as f64;
    pcm::dbfs((mean.sqrt() / f64::from(i16::MAX)) as f32)
}

fn energy(sample: i16) -> u64 {
    u64::from(sample.unsigned_abs()).pow(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_some_time_without_a_voice() {
        let (now, ms) = (Instant::now(), Duration::from_millis);
        let (voice, hum) = ([4_000; 320], [40; 320]);
        let mut silence = Silence::default();
        silence.audio(&AudioFrame::from_pcm16(16_000, &voice), now);
        assert_eq!(silence.until(), None);
        silence.listen(now);
        assert_eq!(silence.until(), Some(now + PAUSE));
        silence.audio(&AudioFrame::from_pcm16(16_000, &voice), now + ms(500));
        silence.audio(&AudioFrame::from_pcm16(16_000, &hum), now + ms(900));
        assert_eq!(silence.until(), Some(now + ms(500) + PAUSE));
        for format in [AudioFormat::Mulaw8k, AudioFormat::Alaw8k] {
            let quiet = AudioFrame::new(format, vec![0; 160]).silenced();
            silence.audio(&quiet, now + ms(920));
            assert_eq!(silence.until(), Some(now + ms(500) + PAUSE), "{format:?}");
        }
        silence.audio(&AudioFrame::new(AudioFormat::Mulaw8k, vec![0x10; 160]), now + ms(950));
        assert_eq!(silence.until(), Some(now + ms(950) + PAUSE));
        silence.stop();
        assert_eq!(silence.until(), None);
    }
}
