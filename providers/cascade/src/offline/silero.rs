//! A speech detector that noise and tones do not fool: Silero.

use std::sync::Arc;

use antiphon_audio::SpeechDetector;
use antiphon_types::Status;
use rten::{NodeId, ThreadPool, ValueOrView};
use rten_tensor::NdTensor;

use super::{
    OfflineError,
    inference::Network,
    models::{ModelDirectory, ModelFile},
};
use crate::SpeechError;

const SAMPLE_RATE_HZ: u32 = 16_000;
/// Samples that are judged at a time: 32 ms.
const FRAME: usize = 512;
/// Samples of the frame before that the network sees again.
const CONTEXT: usize = 64;
const STATE: [usize; 3] = [2, 1, 128];

/// The Silero network, loaded once; each stream of audio takes a [`Silero::detector`] of its own.
pub struct Silero {
    network: Network,
    ports: Ports,
    threads: Arc<ThreadPool>,
}

struct Ports {
    samples: NodeId,
    state: NodeId,
    sample_rate: NodeId,
    score: NodeId,
    next_state: NodeId,
}

impl Silero {
    /// Reads, checks and prepares the model. Blocks for some milliseconds.
    ///
    /// # Errors
    ///
    /// The model file is missing, unreadable, corrupt or unusable.
    pub fn load(models: &ModelDirectory) -> Result<Self, OfflineError> {
        let network = Network::load(ModelFile::Silero.name(), models.read(ModelFile::Silero)?)?;
        let ports = Ports {
            samples: network.node("input")?,
            state: network.node("state")?,
            sample_rate: network.node("sr")?,
            score: network.node("output")?,
            next_state: network.node("stateN")?,
        };
        // A thread of its own: a frame takes a fifth of a millisecond and is judged on the path
        // of the audio, so it must not queue behind the recogniser.
        Ok(Self { network, ports, threads: Arc::new(ThreadPool::with_num_threads(1)) })
    }

    /// A detector for one stream of audio.
    pub fn detector(self: &Arc<Self>) -> SileroDetector {
        SileroDetector {
            silero: Arc::clone(self),
            state: vec![0.0; STATE.iter().product()],
            context: [0.0; CONTEXT],
        }
    }
}

/// Judges one stream of audio, 16 kHz, in frames of 512 samples (32 ms); about a fifth of a
/// millisecond each.
pub struct SileroDetector {
    silero: Arc<Silero>,
    state: Vec<f32>,
    context: [f32; CONTEXT],
}

impl SileroDetector {
    fn judge(&mut self, frame: &[i16]) -> Result<f32, SpeechError> {
        let Silero { network, ports, threads } = &*self.silero;
        let mut samples = Vec::with_capacity(CONTEXT + FRAME);
        samples.extend_from_slice(&self.context);
        samples.extend(frame.iter().map(|sample| f32::from(*sample) / 32_768.0));
        self.context.copy_from_slice(&samples[FRAME..]);

        let state = NdTensor::from_data(STATE, std::mem::take(&mut self.state));
        let rate = NdTensor::<i32, 0>::from_data([], vec![SAMPLE_RATE_HZ as i32]);
        let inputs: Vec<(NodeId, ValueOrView)> = vec![
            (ports.samples, NdTensor::from_data([1, CONTEXT + FRAME], samples).into()),
            (ports.state, state.into()),
            (ports.sample_rate, rate.into()),
        ];
        let outputs = network.run(inputs, &[ports.score, ports.next_state], threads)?;
        let Ok([score, state]) = <[_; 2]>::try_from(outputs) else {
            return Err(network.surprise("it has no two outputs"));
        };
        self.state = network.floats(state)?;
        match network.floats(score)?.first() {
            Some(score) if score.is_finite() => Ok(score.clamp(0.0, 1.0)),
            _ => Err(SpeechError::new(ModelFile::Silero.name(), Status::Internal, "no score")),
        }
    }
}

impl SpeechDetector for SileroDetector {
    fn sample_rate_hz(&self) -> u32 {
        SAMPLE_RATE_HZ
    }

    fn frame_samples(&self) -> usize {
        FRAME
    }

    fn score(&mut self, frame: &[i16]) -> f32 {
        if frame.len() != FRAME {
            return 0.0;
        }
        self.judge(frame).unwrap_or_else(|error| {
            // The network and its shapes were checked when it was loaded; should a run fail all
            // the same, the stream starts afresh and hears nothing in this frame.
            tracing::warn!(%error, "speech detector failed");
            self.reset();
            0.0
        })
    }

    fn reset(&mut self) {
        self.state.clear();
        self.state.resize(STATE.iter().product(), 0.0);
        self.context = [0.0; CONTEXT];
    }
}
