//! What is heard and said: formats, voices, transcripts.

use antiphon_live::{LiveConfig, LiveError};
use antiphon_types::AudioFormat;
use serde_json::json;

use super::{Extra, Options, Wording};
use crate::wire::{
    self, AudioFormats, Facts, LanguageForm, Patch, Terms, Transcription, Voice, VoiceForm,
};

/// xAI takes so many terms, each so long.
const MAX_TERMS: usize = 100;
const MAX_TERM_CHARS: usize = 50;

/// The format of one direction.
pub(super) fn format(
    options: &Options<'_>,
    direction: &str,
    formats: AudioFormats,
) -> Result<AudioFormat, LiveError> {
    let words: &[&str] =
        if formats.g711 { &["pcm16", "g711_ulaw", "g711_alaw"] } else { &["pcm16"] };
    let rate: u32 =
        options.take(&format!("{direction}_audio_rate"))?.unwrap_or(formats.default_rate());
    if !formats.pcm.iter().any(|(known, _)| *known == rate) {
        let mut rates: Vec<u32> = formats.pcm.iter().map(|(rate, _)| *rate).collect();
        rates.sort_unstable();
        return Err(LiveError::InvalidConfig(format!(
            "option {direction}_audio_rate: {rate} is none of {rates:?}"
        )));
    }
    Ok(match options.word(&format!("{direction}_audio_format"), words)? {
        Some("g711_ulaw") => AudioFormat::Mulaw8k,
        Some("g711_alaw") => AudioFormat::Alaw8k,
        _ => AudioFormat::pcm16(rate),
    })
}

pub(super) fn on_wire(format: AudioFormat) -> wire::AudioFormat {
    match format {
        AudioFormat::Mulaw8k => wire::AudioFormat::Pcmu {},
        AudioFormat::Alaw8k => wire::AudioFormat::Pcma {},
        pcm => wire::AudioFormat::Pcm { rate: Some(pcm.sample_rate_hz()) },
    }
}

pub(super) fn voice(name: &str, form: VoiceForm) -> Voice {
    match form {
        VoiceForm::OpenAi if name.starts_with("voice_") => Voice::Custom { id: name.to_owned() },
        VoiceForm::Azure if name.ends_with("Neural") => {
            Voice::Other(json!({"type": "azure-standard", "name": name}))
        }
        _ => Voice::Name(name.to_owned()),
    }
}

/// Who writes down what the user says, and how.
pub(super) fn transcription(
    config: &LiveConfig,
    options: &Options<'_>,
    facts: &Facts,
    wording: &Wording,
    extra: &mut Extra,
) -> Result<Patch<Transcription>, LiveError> {
    if !config.policies.input_transcription {
        return Ok(Patch::Clear);
    }
    let transcriber = &facts.transcriber;
    let diarizing = transcriber.diarizing.filter(|_| config.speaker.diarization);
    let default = diarizing.or(transcriber.model);
    let named: Option<String> = options.take("transcription_model")?;
    let Some(model) = named.or_else(|| default.map(str::to_owned)) else {
        return Ok(Patch::Clear);
    };
    let mut prompt: Option<String> = options.take("transcription_prompt")?;
    let terms = &wording.vocabulary;
    match transcriber.terms {
        Terms::Prompt if !terms.is_empty() && !model.contains("diarize") => {
            prompt = prompt.or_else(|| Some(terms.join(", ")));
        }
        Terms::Phrases if !terms.is_empty() => {
            let phrases = json!({"input_audio_transcription": {"phrase_list": terms}});
            extra.merge(phrases);
        }
        Terms::KeyTerms if !terms.is_empty() => {
            let fits = |term: &&String| term.chars().count() <= MAX_TERM_CHARS;
            let terms: Vec<&String> = terms.iter().filter(fits).take(MAX_TERMS).collect();
            extra.merge(json!({"audio": {"input": {"transcription": {"keyterms": terms}}}}));
        }
        _ => {}
    }
    let delays = ["minimal", "low", "medium", "high", "xhigh"];
    let locale = wording.locale.as_deref();
    if let (Some(locale), LanguageForm::Hint) = (locale, transcriber.language) {
        extra.merge(json!({"audio": {"input": {"transcription": {"language_hint": locale}}}}));
    }
    let language = locale.filter(|_| transcriber.language == LanguageForm::Code);
    Ok(Patch::Set(Transcription {
        model: Some(model),
        language: language.and_then(code),
        prompt,
        delay: options.word("transcription_delay", &delays)?.map(str::to_owned),
        ..Transcription::default()
    }))
}

/// The ISO 639-1 code of a language tag.
fn code(locale: &str) -> Option<String> {
    let code = locale.split(['-', '_']).next()?.to_ascii_lowercase();
    (code.len() == 2 && code.bytes().all(|byte| byte.is_ascii_lowercase())).then_some(code)
}
