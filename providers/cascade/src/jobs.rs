//! Runs one job for the core: with a deadline for each step, and panics caught.

use std::{any::Any, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use antiphon_agent::{Model, ModelRequest};
use antiphon_audio::Resampler;
use antiphon_types::AudioFrame;
use futures_util::{FutureExt, StreamExt};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    Recognizer, SpeechRequest, Synthesizer, Utterance,
    core::{Job, JobId, JobOutput},
};

/// Results on their way to the core.
pub(crate) type Results = mpsc::Sender<(JobId, JobOutput)>;

/// What a cascade is made of.
pub(crate) struct Parts {
    pub(crate) recognizer: Arc<dyn Recognizer>,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) synthesizer: Arc<dyn Synthesizer>,
    /// How long each step of a job may take.
    pub(crate) deadline: Duration,
}

/// Runs `job` to its end. Always the last thing it sends says that the job is over.
pub(crate) async fn run(parts: Arc<Parts>, id: JobId, job: Job, results: Results) {
    let work = async {
        match job {
            Job::Recognize(utterance) => parts.recognize(utterance).await,
            Job::Generate(request) => parts.generate(id, request, &results).await,
            Job::Synthesize(request) => parts.synthesize(id, request, &results).await,
        }
    };
    let last = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(last)) => last,
        Ok(Err(message)) => JobOutput::Failed(message),
        Err(panic) => JobOutput::Failed(format!("panicked: {}", panic_message(panic.as_ref()))),
    };
    // Without a receiver the connection is gone.
    let _ = results.send((id, last)).await;
}

impl Parts {
    async fn recognize(&self, mut utterance: Utterance) -> Result<JobOutput, String> {
        utterance.audio = resample(utterance.audio, self.recognizer.sample_rate_hz())?;
        let transcript = self.in_time(self.recognizer.recognize(utterance)).await?;
        let transcript = transcript.map_err(|error| error.to_string())?;
        Ok(JobOutput::Transcript(transcript))
    }

    async fn generate(
        &self,
        id: JobId,
        request: ModelRequest,
        results: &Results,
    ) -> Result<JobOutput, String> {
        let stream = self.in_time(self.model.generate(request)).await?;
        let mut stream = stream.map_err(|error| error.to_string())?;
        while let Some(chunk) = self.in_time(stream.next()).await? {
            let chunk = chunk.map_err(|error| error.to_string())?;
            if results.send((id, JobOutput::Chunk(chunk))).await.is_err() {
                break;
            }
        }
        Ok(JobOutput::Finished)
    }

    async fn synthesize(
        &self,
        id: JobId,
        request: SpeechRequest,
        results: &Results,
    ) -> Result<JobOutput, String> {
        let stream = self.in_time(self.synthesizer.synthesize(request)).await?;
        let mut stream = stream.map_err(|error| error.to_string())?;
        while let Some(frame) = self.in_time(stream.next()).await? {
            let frame = frame.map_err(|error| error.to_string())?;
            if results.send((id, JobOutput::Frame(frame))).await.is_err() {
                break;
            }
        }
        Ok(JobOutput::Finished)
    }

    async fn in_time<F: Future>(&self, step: F) -> Result<F::Output, String> {
        let late = |_| format!("nothing came within {:?}", self.deadline);
        timeout(self.deadline, step).await.map_err(late)
    }
}

/// The audio in the rate that the recogniser wants.
fn resample(audio: AudioFrame, to_hz: u32) -> Result<AudioFrame, String> {
    let from_hz = audio.format.sample_rate_hz();
    if from_hz == to_hz {
        return Ok(audio);
    }
    let samples: Vec<i16> =
        audio.data.chunks_exact(2).map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]])).collect();
    let mut resampler = Resampler::new(from_hz, to_hz).map_err(|error| error.to_string())?;
    let mut converted = Vec::new();
    resampler.process(&samples, &mut converted);
    resampler.flush(&mut converted);
    Ok(AudioFrame::from_pcm16(to_hz, &converted))
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}
