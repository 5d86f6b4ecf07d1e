//! Microphone and loudspeaker, where the program was built with them.

use antiphon::{audio::AudioError, session::SessionBuilder, types::AudioFrame};

use crate::failure::Failure;

/// Lets the session speak through the loudspeaker.
#[cfg(feature = "devices")]
pub fn speaker(builder: SessionBuilder) -> Result<SessionBuilder, Failure> {
    use antiphon::audio::device::{Loudspeaker, LoudspeakerOptions};
    let options = LoudspeakerOptions::default();
    Ok(builder.sink(Loudspeaker::open(options).map_err(Failure::failed)?))
}

/// Says that there is none.
#[cfg(not(feature = "devices"))]
pub fn speaker(_: SessionBuilder) -> Result<SessionBuilder, Failure> {
    Err(Failure::failed("no loudspeaker: this program was built without the feature `devices`"))
}

/// The microphone, or none, which never yields anything.
pub struct Microphone {
    #[cfg(feature = "devices")]
    device: Option<antiphon::audio::device::Microphone>,
}

#[cfg(feature = "devices")]
impl Microphone {
    /// No microphone.
    pub fn none() -> Self {
        Self { device: None }
    }

    /// The default microphone, if one is wanted.
    pub fn open(wanted: bool) -> Result<Self, Failure> {
        use antiphon::audio::device::MicrophoneOptions;
        if !wanted {
            return Ok(Self::none());
        }
        let options = MicrophoneOptions::default().sample_rate_hz(super::script::INPUT_RATE_HZ);
        let device = antiphon::audio::device::Microphone::open(options).map_err(Failure::failed)?;
        Ok(Self { device: Some(device) })
    }

    /// The next frame; waits for ever where there is no microphone.
    pub async fn next(&mut self) -> Option<Result<AudioFrame, AudioError>> {
        match &mut self.device {
            Some(device) => device.next().await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(not(feature = "devices"))]
impl Microphone {
    /// No microphone.
    pub fn none() -> Self {
        Self {}
    }

    /// The default microphone, if one is wanted.
    pub fn open(wanted: bool) -> Result<Self, Failure> {
        if wanted {
            return Err(Failure::failed(
                "no microphone: this program was built without the feature `devices`",
            ));
        }
        Ok(Self::none())
    }

    /// The next frame; waits for ever where there is no microphone.
    pub async fn next(&mut self) -> Option<Result<AudioFrame, AudioError>> {
        std::future::pending().await
    }
}
