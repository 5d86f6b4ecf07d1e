//! `antiphon speak`.

use antiphon::{
    audio::{Resampler, WavAudio},
    providers::cascade::{SpeechRequest, Synthesizer},
    types::AudioFrame,
};
use futures_util::StreamExt;

use crate::{args::SpeakArguments, failure::Failure, offline};

/// Speaks a text into a WAV file.
pub fn run(arguments: SpeakArguments) -> Result<(), Failure> {
    if arguments.text.trim().is_empty() {
        return Err(Failure::usage("the text is blank"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failure::failed)?.block_on(speak(arguments))
}

async fn speak(arguments: SpeakArguments) -> Result<(), Failure> {
    let voice = offline::load(&arguments.models).await?.synthesizer;
    if let Some(name) = &arguments.voice {
        offline::check_voice(&*voice, name)?;
    }
    let mut request = SpeechRequest::new(arguments.text);
    request.voice = arguments.voice.map(Into::into);
    let audio = synthesize(&*voice, request, arguments.rate).await?;
    audio.save(&arguments.output).map_err(Failure::usage)
}

/// All that is spoken, at the given rate.
pub async fn synthesize(
    voice: &dyn Synthesizer,
    request: SpeechRequest,
    sample_rate_hz: u32,
) -> Result<WavAudio, Failure> {
    let mut resampler =
        Resampler::new(voice.sample_rate_hz(), sample_rate_hz).map_err(Failure::failed)?;
    let mut samples = Vec::new();
    let mut frames = voice.synthesize(request).await.map_err(Failure::failed)?;
    while let Some(frame) = frames.next().await {
        resampler.process(&pcm(&frame.map_err(Failure::failed)?), &mut samples);
    }
    resampler.flush(&mut samples);
    if samples.is_empty() {
        return Err(Failure::failed("nothing of this can be spoken"));
    }
    Ok(WavAudio { sample_rate_hz, samples })
}

fn pcm(frame: &AudioFrame) -> Vec<i16> {
    frame.data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect()
}
