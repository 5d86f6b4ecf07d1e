//! Who hears, thinks and speaks.

use std::sync::Arc;

use antiphon::{
    live::{LiveConfig, LiveProvider, VoiceActivity},
    providers::{cascade::offline::OfflineSpeech, gemini::Gemini, openai::OpenAi},
    session::SessionBuilder,
};

use super::{
    plan::{Plan, Voices},
    realtime::{GEMINI_KEY, TRANSCRIBER, key},
};
use crate::{args::ModelArguments, failure::Failure, offline};

/// What a model is told that knows nothing of the program. (The offline agent is led by its tools.)
const INSTRUCTIONS: &str = "You are a helpful voice assistant. Answer in one or two short \
    sentences, as one speaks. Use your tools where they help, and say in words what they gave.";

/// The provider, and the configuration of its session.
pub async fn open(plan: &Plan) -> Result<(Arc<dyn LiveProvider>, LiveConfig), Failure> {
    let mut config = LiveConfig::new().voice_activity(if plan.by_hand {
        VoiceActivity::Manual
    } else {
        VoiceActivity::Auto
    });
    if let Some(voice) = &plan.voice {
        config = config.voice(voice.as_str());
    }
    configured(&plan.provider, plan.voice.as_deref(), config).await
}

/// With the providers that the session falls back on.
pub async fn fall_back(
    plan: &Plan,
    mut builder: SessionBuilder,
) -> Result<SessionBuilder, Failure> {
    for voices in &plan.fallbacks {
        let (provider, own) = configured(voices, None, LiveConfig::new()).await?;
        builder = builder.fallback(provider, move |mut config| {
            config.model.clone_from(&own.model);
            config.api_key.clone_from(&own.api_key);
            config.endpoint.clone_from(&own.endpoint);
            if let Some(transcriber) = own.options.get(TRANSCRIBER) {
                config.options.insert(TRANSCRIBER.into(), transcriber.clone());
            }
            if config.instructions.is_none() {
                config.instructions.clone_from(&own.instructions);
            }
            config
        });
    }
    Ok(builder)
}

/// A provider, and `config` as it is to be for it.
async fn configured(
    voices: &Voices,
    voice: Option<&str>,
    config: LiveConfig,
) -> Result<(Arc<dyn LiveProvider>, LiveConfig), Failure> {
    match voices {
        Voices::Offline { models } => {
            let speech = speech(models, voice).await?;
            Ok((Arc::new(offline::provider(speech)), config))
        }
        Voices::Cascade { models, chat } => {
            let speech = speech(models, voice).await?;
            Ok((Arc::new(speech.provider(chat.clone())), config.instructions(INSTRUCTIONS)))
        }
        Voices::Realtime(server) => {
            let (dialect, config) = server.configure(config.instructions(INSTRUCTIONS))?;
            Ok((Arc::new(OpenAi::new().dialect(dialect)), config))
        }
        Voices::Gemini { url, model } => {
            let mut config = config.api_key(key(GEMINI_KEY)?).instructions(INSTRUCTIONS);
            config.endpoint.clone_from(url);
            config.model = model.as_deref().map(Into::into);
            Ok((Arc::new(Gemini::new()), config))
        }
    }
}

async fn speech(models: &ModelArguments, voice: Option<&str>) -> Result<OfflineSpeech, Failure> {
    let speech = offline::load(models).await?;
    if let Some(voice) = voice {
        offline::check_voice(&*speech.synthesizer, voice)?;
    }
    Ok(speech)
}
