//! A mouth: the hibari synthesiser for English.

mod pronunciation;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use antiphon_types::{AudioFrame, Status};
use async_trait::async_trait;
use futures_util::stream;
use rten::{NodeId, ThreadPool, ValueOrView};
use rten_tensor::NdTensor;

use super::{
    OfflineError,
    inference::{Lane, Network},
    models::{ModelDirectory, ModelFile},
    vocoder::{SAMPLE_RATE_HZ, Spectrum, Vocoder},
};
use crate::{SpeechError, SpeechRequest, SpeechStream, Synthesizer};
use pronunciation::Pronunciation;

pub(super) const NAME: &str = "hibari";
const VOICE: &str = "heart";
/// The longest text that is spoken at once, in bytes.
const LONGEST_TEXT: usize = 64 << 10;
/// Seed of the breath noise: the same text sounds the same, sample for sample.
const SEED: u64 = 0x5eed;
/// Samples up to this are silence; about -55 dBFS.
const QUIET: u16 = 60;
/// Silence that stays before the first sound.
const LEAD: Duration = Duration::from_millis(40);

/// The hibari model: one English voice, `heart`, at 24 kHz. Speaks sentence by sentence, and long
/// sentences clause by clause; each is handed out as soon as it is made, and dropping the stream
/// ends the work.
///
/// Numbers, times, dates, money, units, symbols and abbreviations are read as a person would read
/// them. The same text gives the same samples.
pub struct Hibari {
    voice: Arc<Voice>,
    lane: Arc<Lane>,
}

impl Hibari {
    /// Reads, checks and prepares the model and the pronunciation lexicon. Blocks for some tenths
    /// of a second.
    ///
    /// `threads` is how many processors one sentence may use; 1 is a good choice.
    ///
    /// # Errors
    ///
    /// A model file is missing, unreadable, corrupt or unusable.
    pub fn load(models: &ModelDirectory, threads: usize) -> Result<Self, OfflineError> {
        let (voice, pronunciation) = std::thread::scope(|scope| {
            let pronunciation = scope.spawn(|| Pronunciation::load(models));
            let voice =
                Network::load(ModelFile::HibariVoice.name(), models.read(ModelFile::HibariVoice)?)?;
            let pronunciation = pronunciation.join().unwrap_or_else(|_| {
                let reason = "the pronunciation lexicon could not be read".to_owned();
                Err(OfflineError::LoadFailed { reason })
            })?;
            Ok::<_, OfflineError>((voice, pronunciation))
        })?;
        let voice = Arc::new(Voice::new(voice, pronunciation)?);
        Ok(Self { voice, lane: Arc::new(Lane::new(NAME, 1, threads)) })
    }
}

#[async_trait]
impl Synthesizer for Hibari {
    fn name(&self) -> &str {
        NAME
    }

    fn sample_rate_hz(&self) -> u32 {
        SAMPLE_RATE_HZ
    }

    fn voices(&self) -> Vec<Arc<str>> {
        vec![VOICE.into()]
    }

    async fn synthesize(&self, request: SpeechRequest) -> Result<SpeechStream, SpeechError> {
        check(&request)?;
        let text = request.text;
        let voice = Arc::clone(&self.voice);
        let clauses =
            self.lane.run(move |threads, _| voice.pronunciation.clauses(&text, threads)).await?;

        let speech = Speech {
            voice: Arc::clone(&self.voice),
            lane: Arc::clone(&self.lane),
            clauses: clauses.into(),
            begun: false,
        };
        Ok(Box::pin(stream::try_unfold(speech, |mut speech| async move {
            let Some(ids) = speech.clauses.pop_front() else { return Ok(None) };
            let voice = Arc::clone(&speech.voice);
            let mut spoken = speech.lane.run(move |threads, _| voice.speak(ids, threads)).await?;
            if !speech.begun {
                spoken = with_short_lead(&spoken);
                speech.begun = true;
            }
            Ok(Some((spoken, speech)))
        })))
    }
}

fn check(request: &SpeechRequest) -> Result<(), SpeechError> {
    let refuse = |status, message| Err(SpeechError::new(NAME, status, message));
    if let Some(voice) = request.voice.as_deref().filter(|voice| *voice != VOICE) {
        return refuse(Status::NotFound, format!("no voice {voice:?}; there is {VOICE:?}"));
    }
    if let Some(locale) = request.locale.as_deref().filter(|locale| !is_english(locale)) {
        return refuse(Status::Unimplemented, format!("it speaks English, not {locale:?}"));
    }
    if request.text.len() > LONGEST_TEXT {
        let message = format!("the text is longer than {LONGEST_TEXT} bytes");
        return refuse(Status::InvalidArgument, message);
    }
    Ok(())
}

pub(super) fn is_english(locale: &str) -> bool {
    locale.split(['-', '_']).next().is_some_and(|language| language.eq_ignore_ascii_case("en"))
}

/// What is left to say.
struct Speech {
    voice: Arc<Voice>,
    lane: Arc<Lane>,
    clauses: VecDeque<Vec<i32>>,
    /// The first clause was spoken.
    begun: bool,
}

/// The voice begins each text with about 300 ms of silence, for which nobody should wait.
fn with_short_lead(spoken: &AudioFrame) -> AudioFrame {
    let samples = spoken.data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]]));
    let first = samples.into_iter().position(|sample| sample.unsigned_abs() > QUIET);
    let lead = spoken.format.samples_in(LEAD) as usize;
    spoken.slice(first.unwrap_or(0).saturating_sub(lead), spoken.samples())
}

struct Voice {
    network: Network,
    ids: NodeId,
    speed: NodeId,
    outputs: [NodeId; 6],
    pronunciation: Pronunciation,
    vocoder: Vocoder,
}

impl Voice {
    fn new(network: Network, pronunciation: Pronunciation) -> Result<Self, OfflineError> {
        Ok(Self {
            ids: network.node("ids")?,
            speed: network.node("speed")?,
            outputs: [
                network.node("lh")?,
                network.node("theta")?,
                network.node("ln")?,
                network.node("lr")?,
                network.node("phi")?,
                network.node("f0")?,
            ],
            network,
            pronunciation,
            vocoder: Vocoder::new(),
        })
    }

    fn speak(&self, ids: Vec<i32>, threads: &Arc<ThreadPool>) -> Result<AudioFrame, SpeechError> {
        let inputs: Vec<(NodeId, ValueOrView)> = vec![
            (self.ids, NdTensor::from_data([1, ids.len()], ids).into()),
            (self.speed, NdTensor::from_data([1], vec![1.0_f32]).into()),
        ];
        let outputs = self.network.run(inputs, &self.outputs, threads)?;
        let parts: Result<Vec<Vec<f32>>, _> =
            outputs.into_iter().map(|value| self.network.floats(value)).collect();
        let odd = || self.network.surprise("its outputs do not fit together");
        let [voice, voice_phase, noise, rest, rest_phase, pitch] =
            <[_; 6]>::try_from(parts?).map_err(|_| odd())?;
        let spectrum = Spectrum { voice, voice_phase, noise, rest, rest_phase, pitch };

        let wave = self.vocoder.waveform(&spectrum, SEED).ok_or_else(odd)?;
        let samples: Vec<i16> =
            wave.iter().map(|sample| (sample.clamp(-1.0, 1.0) * 32_767.0) as i16).collect();
        Ok(AudioFrame::from_pcm16(SAMPLE_RATE_HZ, &samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_begins_without_a_long_wait() {
        let mut samples = vec![20; 7_200];
        samples.extend([9_000; 2_400]);
        let spoken = with_short_lead(&AudioFrame::from_pcm16(SAMPLE_RATE_HZ, &samples));
        assert_eq!(spoken, AudioFrame::from_pcm16(SAMPLE_RATE_HZ, &samples[7_200 - 960..]));
        let silence = AudioFrame::from_pcm16(SAMPLE_RATE_HZ, &[0; 480]);
        assert_eq!(with_short_lead(&silence), silence);
    }
}
