//! The provider: parts put together, and what they can do.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use antiphon_agent::Model;
use antiphon_audio::{EarshotDetector, SpeechDetector, TurnConfig, TurnDetector};
use antiphon_live::{
    ActivityHandling, Capabilities, ConnectRequest, LiveConfig, LiveConnection, LiveError,
    LivePolicies, LiveProvider, OutputWords, SpeakerOptions, VoiceActivity,
};
use antiphon_types::{AudioFormat, Status};
use async_trait::async_trait;

use crate::{
    Recognizer, Synthesizer,
    connection::Connection,
    core::{Core, Settings},
    jobs::{Parts, panic_message},
};

/// The format of the user's audio.
const INPUT: AudioFormat = AudioFormat::pcm16(16_000);

type DetectorFactory = dyn Fn() -> Box<dyn SpeechDetector> + Send + Sync;

/// A recogniser, a language model and a synthesiser as one [`LiveProvider`].
///
/// It takes turns by voice activity, shows partial transcripts, answers sentence by sentence,
/// stops when the user speaks, calls tools, and keeps the conversation.
///
/// ```
/// # use std::sync::Arc;
/// # use antiphon_agent::Model;
/// # use antiphon_cascade::{CascadeProvider, Recognizer, Synthesizer};
/// fn provider(
///     ears: Arc<dyn Recognizer>,
///     brain: Arc<dyn Model>,
///     mouth: Arc<dyn Synthesizer>,
/// ) -> CascadeProvider {
///     CascadeProvider::builder(ears, brain, mouth).name("house").build()
/// }
/// ```
#[derive(Clone)]
pub struct CascadeProvider {
    name: Arc<str>,
    parts: Arc<Parts>,
    detector: Arc<DetectorFactory>,
    history_limit: usize,
}

/// Puts a [`CascadeProvider`] together.
#[must_use]
pub struct CascadeProviderBuilder {
    name: Arc<str>,
    recognizer: Arc<dyn Recognizer>,
    model: Arc<dyn Model>,
    synthesizer: Arc<dyn Synthesizer>,
    detector: Arc<DetectorFactory>,
    deadline: Duration,
    history_limit: usize,
}

impl CascadeProvider {
    /// A provider of these parts.
    pub fn builder(
        recognizer: Arc<dyn Recognizer>,
        model: Arc<dyn Model>,
        synthesizer: Arc<dyn Synthesizer>,
    ) -> CascadeProviderBuilder {
        CascadeProviderBuilder {
            name: "cascade".into(),
            recognizer,
            model,
            synthesizer,
            detector: Arc::new(|| Box::new(EarshotDetector::new())),
            deadline: Duration::from_secs(30),
            history_limit: 200,
        }
    }

    /// What stays the same for a connection with this configuration, and how it listens.
    fn settings(&self, config: &LiveConfig) -> Result<(Settings, TurnConfig), LiveError> {
        let invalid = |message: String| Err(LiveError::InvalidConfig(message));
        let model = self.parts.model.name();
        if let Some(wanted) = config.model.as_deref().filter(|wanted| *wanted != model) {
            return invalid(format!("{} has no model {wanted:?}, only {model:?}", self.name));
        }
        let voices = self.parts.synthesizer.voices();
        if let Some(wanted) = config.voice.as_ref().filter(|wanted| !voices.contains(wanted)) {
            return invalid(format!("{} has no voice {wanted:?}, only {voices:?}", self.name));
        }
        let activity = &config.policies.activity;
        let mut turns = TurnConfig::new(activity.start_sensitivity, activity.end_sensitivity);
        turns.prefix_padding = activity.prefix_padding.unwrap_or(turns.prefix_padding);
        turns.silence = activity.silence.unwrap_or(turns.silence);
        for (what, duration) in [("prefix", turns.prefix_padding), ("silence", turns.silence)] {
            if duration > Duration::from_secs(10) {
                return invalid(format!("a {what} of {duration:?} is more than ten seconds"));
            }
        }
        let settings = Settings {
            input: INPUT,
            output: AudioFormat::pcm16(self.parts.synthesizer.sample_rate_hz()),
            voice_activity: config.voice_activity,
            handling: activity.handling,
            session_answers: activity.session_answers,
            prefix_padding: turns.prefix_padding,
            silence: turns.silence,
            input_transcripts: config.policies.input_transcription,
            output_transcripts: config.policies.output_transcription,
            voice: config.voice.clone(),
            locale: config.locale.clone(),
            vocabulary: vocabulary(config.vocabulary_hint.as_deref().unwrap_or_default()),
            refinement: config.refinement.clone(),
            history_limit: self.history_limit,
        };
        Ok((settings, turns))
    }

    fn turn_detector(&self, config: TurnConfig) -> Result<TurnDetector, LiveError> {
        let failed = |message: String| LiveError::Failed {
            provider: self.name.clone(),
            message,
            status: Status::Internal,
        };
        let detector = catch_unwind(AssertUnwindSafe(|| (self.detector)())).map_err(|panic| {
            failed(format!("the speech detector panicked: {}", panic_message(panic.as_ref())))
        })?;
        let rate = detector.sample_rate_hz();
        if rate != INPUT.sample_rate_hz() {
            return Err(failed(format!("the speech detector takes {rate} Hz")));
        }
        Ok(TurnDetector::new(detector, config))
    }
}

impl CascadeProviderBuilder {
    /// The provider's name. Default: `cascade`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Makes the detector of speech for each connection with [`VoiceActivity::Auto`]; it must take
    /// 16,000 samples a second. Default: [`EarshotDetector`].
    pub fn detector<F>(mut self, factory: F) -> Self
    where
        F: Fn() -> Box<dyn SpeechDetector> + Send + Sync + 'static,
    {
        self.detector = Arc::new(factory);
        self
    }

    /// How long a recognition, the next piece of a generation, or the next piece of a synthesis
    /// may take. After that the reply fails and the connection goes on. Default: 30 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many messages the model is given at most; older turns are forgotten. Default: 200.
    pub fn history_limit(mut self, messages: usize) -> Self {
        self.history_limit = messages;
        self
    }

    /// The provider.
    pub fn build(self) -> CascadeProvider {
        CascadeProvider {
            name: self.name,
            parts: Arc::new(Parts {
                recognizer: self.recognizer,
                model: self.model,
                synthesizer: self.synthesizer,
                deadline: self.deadline,
            }),
            detector: self.detector,
            history_limit: self.history_limit,
        }
    }
}

impl fmt::Debug for CascadeProviderBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CascadeProviderBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for CascadeProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CascadeProvider")
            .field("name", &self.name)
            .field("recognizer", &self.parts.recognizer.name())
            .field("model", &self.parts.model.name())
            .field("synthesizer", &self.parts.synthesizer.name())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl LiveProvider for CascadeProvider {
    fn name(&self) -> &str {
        &self.name
    }

    fn model(&self, _: &LiveConfig) -> Arc<str> {
        self.parts.model.name().into()
    }

    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError> {
        let (settings, _) = self.settings(config)?;
        let mut capabilities = Capabilities::conversation(settings.input, settings.output);
        capabilities.non_blocking_tools = true;
        capabilities.forget_input = true;
        capabilities.end_silence = settings.silence;
        capabilities.manual_activity = settings.voice_activity == VoiceActivity::Manual;
        capabilities.interrupts = settings.handling == ActivityHandling::Interrupts;
        capabilities.session_answers = settings.session_answers;
        capabilities.answers_words = true;
        capabilities.replies_after_tools = true;
        capabilities.input_transcripts = settings.input_transcripts;
        // A sentence is told before it is spoken.
        capabilities.output_words = match settings.output_transcripts {
            true => OutputWords::Before,
            false => OutputWords::None,
        };
        // The parts have no options by id.
        let options = config.options.keys().chain(config.provider_options.keys());
        capabilities.unsupported_options = options.map(|id| id.as_str().into()).collect();
        capabilities.unsupported_options.extend(without_meaning(config).map(Arc::from));
        Ok(capabilities)
    }

    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        if request.resume.is_some() {
            return Err(LiveError::unsupported(self.name.clone(), "resume by a handle"));
        }
        let config = &request.config;
        let capabilities = Arc::new(self.capabilities(config)?);
        let (settings, turns) = self.settings(config)?;
        let turns = match settings.voice_activity {
            VoiceActivity::Auto => Some(self.turn_detector(turns)?),
            VoiceActivity::Manual | VoiceActivity::Off => None,
        };
        let core = Core::new(
            Arc::new(settings),
            config.instructions.clone(),
            config.tools.clone().into(),
            turns,
            request.history,
        );
        let connection =
            Connection::open(self.name.clone(), capabilities, core, self.parts.clone());
        Ok(Box::new(connection))
    }
}

/// The fields of `config` that were set and that no cascade does anything with.
fn without_meaning(config: &LiveConfig) -> impl Iterator<Item = &'static str> + use<> {
    let plain = LivePolicies::default();
    let policies = &config.policies;
    let compression = policies.context_compression != plain.context_compression;
    [
        (config.fallback_model.is_some(), "fallback_model"),
        (config.speaker != SpeakerOptions::default(), "speaker"),
        (policies.affective_dialog != plain.affective_dialog, "affective_dialog"),
        (policies.thinking != plain.thinking, "thinking"),
        (compression, "context_compression"),
        (policies.activity.coverage != plain.activity.coverage, "activity.coverage"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
}

/// The terms of a hint, without doubles. What reads like prose names none.
fn vocabulary(hint: &str) -> Arc<[String]> {
    if hint.contains([':', '.', '!', '?']) {
        return Arc::new([]);
    }
    let mut terms: Vec<String> = Vec::new();
    for term in hint.split(['\n', ',', ';']).map(str::trim).filter(|term| !term.is_empty()) {
        if !terms.iter().any(|known| known.to_lowercase() == term.to_lowercase()) {
            terms.push(term.to_owned());
        }
    }
    terms.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_terms_unless_it_is_prose() {
        assert_eq!(*vocabulary("Anna, Bob;anna\n Zoë"), ["Anna", "Bob", "Zoë"]);
        assert!(vocabulary("Listen for these names: Anna.").is_empty());
        assert!(vocabulary(" ").is_empty());
    }
}
