//! Who hears, thinks and speaks.

use std::{env, sync::Arc};

use antiphon::{
    live::{LiveConfig, LiveProvider, VoiceActivity},
    providers::{cascade::offline::OfflineSpeech, gemini::Gemini, openai::OpenAi},
};

use super::plan::{Plan, Voices};
use crate::{args::ModelArguments, failure::Failure, offline};

/// Holds the key for OpenAI.
const OPENAI_KEY: &str = "OPENAI_API_KEY";
/// Holds the key for Gemini.
const GEMINI_KEY: &str = "GEMINI_API_KEY";

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
    match &plan.provider {
        Voices::Offline { models } => {
            let speech = speech(models, plan).await?;
            Ok((Arc::new(offline::provider(speech)), config))
        }
        Voices::Cascade { models, chat } => {
            let speech = speech(models, plan).await?;
            Ok((Arc::new(speech.provider(chat.clone())), config.instructions(INSTRUCTIONS)))
        }
        Voices::OpenAi { url, model } => {
            let config = hosted(config, OPENAI_KEY, url, model)?;
            Ok((Arc::new(OpenAi::new()), config))
        }
        Voices::Gemini { url, model } => {
            let config = hosted(config, GEMINI_KEY, url, model)?;
            Ok((Arc::new(Gemini::new()), config))
        }
    }
}

async fn speech(models: &ModelArguments, plan: &Plan) -> Result<OfflineSpeech, Failure> {
    let speech = offline::load(models).await?;
    if let Some(voice) = &plan.voice {
        offline::check_voice(&*speech.synthesizer, voice)?;
    }
    Ok(speech)
}

/// The configuration for a provider elsewhere.
fn hosted(
    config: LiveConfig,
    key_variable: &str,
    url: &Option<String>,
    model: &Option<String>,
) -> Result<LiveConfig, Failure> {
    let mut config = config.api_key(key(key_variable)?).instructions(INSTRUCTIONS);
    if let Some(model) = model {
        config = config.model(model.as_str());
    }
    config.endpoint = url.clone();
    Ok(config)
}

fn key(variable: &str) -> Result<String, Failure> {
    match env::var(variable) {
        Ok(key) if !key.trim().is_empty() => Ok(key),
        _ => Err(Failure::failed(format!(
            "no API key: put one into the environment variable {variable}, \
             or talk to the offline agent with --provider offline"
        ))),
    }
}
