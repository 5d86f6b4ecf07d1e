//! Loading all parts of the offline preset.

use std::{fmt, path::PathBuf, sync::Arc, thread};

use antiphon_agent::Model;
use antiphon_audio::{EarshotDetector, SpeechDetector};

use super::{Hibari, ModelDirectory, Moonshine, OfflineError, PhraseMatcher, Silero};
use crate::CascadeProvider;

/// The whole offline preset: ears, mouth, and the phrase matcher between them, as a live provider
/// called `offline`.
///
/// # Errors
///
/// A model file is missing, unreadable, corrupt or unusable.
pub async fn provider(options: OfflineOptions) -> Result<CascadeProvider, OfflineError> {
    Ok(OfflineSpeech::load(options).await?.provider(Arc::new(PhraseMatcher::new())))
}

/// How the offline preset is loaded. The default suits one conversation on an ordinary machine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OfflineOptions {
    /// The directory of the model files; `None` looks in the usual places, see
    /// [`ModelDirectory::locate`].
    pub models: Option<PathBuf>,
    /// What tells speech from noise.
    pub detector: Detector,
    /// How many processors one recognition or one sentence may use; 0 chooses: 1 where there are
    /// fewer than four, else 2, so that audio always finds one.
    pub threads: usize,
}

/// What tells speech from noise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Detector {
    /// [`Silero`]: 32 ms frames, a fifth of a millisecond each; not fooled by tones.
    #[default]
    Silero,
    /// [`EarshotDetector`]: 16 ms frames, a few microseconds each; takes a steady tone for speech.
    Earshot,
}

/// Ears, mouth and speech detection, loaded. Cheap to clone; all clones and all sessions share the
/// models.
#[derive(Clone)]
pub struct OfflineSpeech {
    /// The ears.
    pub recognizer: Arc<Moonshine>,
    /// The mouth.
    pub synthesizer: Arc<Hibari>,
    silero: Option<Arc<Silero>>,
}

impl OfflineSpeech {
    /// Loads the models side by side on tokio's blocking threads: some tenths of a second. The
    /// recogniser, the largest, is read and checked, but unpacked afterwards, in the background:
    /// it is ready before anybody has said a sentence, and the first recognition waits for it.
    ///
    /// # Errors
    ///
    /// A model file is missing, unreadable, corrupt or unusable.
    pub async fn load(options: OfflineOptions) -> Result<Self, OfflineError> {
        let models = ModelDirectory::locate(options.models.as_deref())?;
        let threads = match options.threads {
            0 => thread::available_parallelism().map_or(1, |n| if n.get() < 4 { 1 } else { 2 }),
            threads => threads,
        };
        let wants_silero = options.detector == Detector::Silero;

        let synthesizer = in_background({
            let models = models.clone();
            move || Hibari::load(&models, threads)
        });
        let recognizer = in_background({
            let models = models.clone();
            move || Moonshine::read(&models, threads)
        });
        let silero = in_background(move || wants_silero.then(|| Silero::load(&models)).transpose());
        let (recognizer, synthesizer, silero) = tokio::try_join!(recognizer, synthesizer, silero)?;
        let recognizer = Arc::new(recognizer);
        tokio::task::spawn_blocking({
            let recognizer = Arc::clone(&recognizer);
            move || {
                if let Err(error) = recognizer.prepare() {
                    tracing::error!(%error, "the recogniser cannot be used");
                }
            }
        });
        Ok(Self { recognizer, synthesizer: Arc::new(synthesizer), silero: silero.map(Arc::new) })
    }

    /// These ears and this mouth with `model` between them, as a live provider called `offline`.
    pub fn provider(self, model: Arc<dyn Model>) -> CascadeProvider {
        let recognizer = Arc::clone(&self.recognizer);
        let synthesizer = Arc::clone(&self.synthesizer);
        CascadeProvider::builder(recognizer, model, synthesizer)
            .name("offline")
            .detector(move || self.detector())
            .build()
    }

    /// A speech detector for one more stream of audio.
    pub fn detector(&self) -> Box<dyn SpeechDetector> {
        match &self.silero {
            Some(silero) => Box::new(silero.detector()),
            None => Box::new(EarshotDetector::new()),
        }
    }
}

impl fmt::Debug for OfflineSpeech {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OfflineSpeech").finish_non_exhaustive()
    }
}

/// The result of blocking work that starts now, whether or not it is awaited.
fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, OfflineError> + Send + 'static,
) -> impl Future<Output = Result<T, OfflineError>> {
    let work = tokio::task::spawn_blocking(work);
    async move {
        work.await
            .unwrap_or_else(|error| Err(OfflineError::LoadFailed { reason: error.to_string() }))
    }
}
