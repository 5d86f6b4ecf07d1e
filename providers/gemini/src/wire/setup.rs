//! The session that a client asks for.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Content, Empty, Tool, Whole, messages, open_enum::open_enums};

messages! {
    /// The session. Cannot change after it began, but for [`super::ContextUpdate`].
    Setup {
        /// The model, with its path.
        model: String,
        /// How the model answers.
        generation_config: GenerationConfig,
        /// The system prompt. Only text.
        system_instruction: Content,
        /// Tools.
        tools: Vec<Tool>,
        /// How turns are heard.
        realtime_input_config: RealtimeInputConfig,
        /// Transcripts of the user; an empty one is on.
        input_audio_transcription: AudioTranscription,
        /// Transcripts of the model; an empty one is on.
        output_audio_transcription: AudioTranscription,
        /// Handles to resume by; an empty one asks for them.
        session_resumption: SessionResumption,
        /// Shortening of long conversations.
        context_window_compression: ContextWindowCompression,
        /// Speaking without having been asked.
        proactivity: Proactivity,
        /// How history is given.
        history_config: HistoryConfig,
        /// Vertex AI: tell of the user's voice.
        explicit_vad_signal: bool,
        /// What is held back.
        safety_settings: Vec<SafetySetting>,
        /// Labels for bills.
        labels: BTreeMap<String, String>,
        /// A face.
        avatar_config: Value,
    }

    /// How the model answers.
    GenerationConfig {
        /// Voice or text; exactly one.
        response_modalities: Vec<Modality>,
        /// The voice.
        speech_config: SpeechConfig,
        /// 0 to 2.
        temperature: f64,
        /// 0 to 1.
        top_p: f64,
        /// A whole number.
        top_k: f64,
        /// Tokens at most.
        max_output_tokens: Whole,
        /// Answers to choose from.
        candidate_count: Whole,
        /// Makes answers repeatable.
        seed: Whole,
        /// How finely media is looked at.
        media_resolution: MediaResolution,
        /// Thinking before speaking.
        thinking_config: ThinkingConfig,
        /// Answering to the mood of the voice.
        enable_affective_dialog: bool,
        /// Translating instead of answering.
        translation_config: Translation,
        /// How transcripts are made.
        audio_transcription_config: AudioTranscription,
        /// Against repetition.
        presence_penalty: f64,
        /// Against repetition.
        frequency_penalty: f64,
        /// Answers to civic questions.
        enable_enhanced_civic_answers: bool,
        /// Not taken by the Live API.
        response_mime_type: String,
        /// Not taken by the Live API.
        response_schema: Value,
        /// Not taken by the Live API.
        response_json_schema: Value,
        /// Not taken by the Live API.
        response_format: Vec<Value>,
        /// Not taken by the Live API.
        stop_sequences: Vec<String>,
        /// Not taken by the Live API.
        logprobs: Whole,
        /// Not taken by the Live API.
        response_logprobs: bool,
        /// Not taken by the Live API.
        audio_timestamp: bool,
        /// Not taken by the Live API.
        routing_config: Value,
        /// Not taken by the Live API.
        model_selection_config: Value,
    }

    /// How the model sounds.
    SpeechConfig {
        /// The voice.
        voice_config: Voice,
        /// A language tag, for models that do not find out by themselves.
        language_code: String,
        /// Several voices.
        multi_speaker_voice_config: MultiSpeakerVoice,
    }

    /// A voice.
    Voice {
        /// One of the vendor's.
        prebuilt_voice_config: PrebuiltVoice,
        /// A copied one.
        replicated_voice_config: ReplicatedVoice,
        /// One by its name alone.
        voice: String,
    }

    /// One of the vendor's voices.
    PrebuiltVoice {
        /// Such as `Puck`.
        voice_name: String,
    }

    /// A copied voice.
    ReplicatedVoice {
        /// Of the sample.
        mime_type: String,
        /// The sample, as base64.
        voice_sample_audio: String,
        /// The speaker's consent, as base64.
        consent_audio: String,
        /// That consent was checked.
        voice_consent_signature: VoiceConsentSignature,
    }

    /// That a speaker's consent was checked.
    VoiceConsentSignature {
        /// The signature.
        signature: String,
    }

    /// Several voices.
    MultiSpeakerVoice {
        /// The voices.
        speaker_voice_configs: Vec<SpeakerVoice>,
    }

    /// The voice of one speaker.
    SpeakerVoice {
        /// The speaker.
        speaker: String,
        /// The voice.
        voice_config: Voice,
    }

    /// Thinking before speaking.
    ThinkingConfig {
        /// Whether thoughts are sent along.
        include_thoughts: bool,
        /// Tokens: 0 is off, -1 as many as it takes.
        thinking_budget: Whole,
        /// How much.
        thinking_level: ThinkingLevel,
    }

    /// Translating instead of answering.
    Translation {
        /// Repeats what is said in the target language already.
        echo_target_language: bool,
        /// A language tag.
        target_language_code: String,
    }

    /// How turns are heard.
    RealtimeInputConfig {
        /// How speech is detected.
        automatic_activity_detection: AutomaticActivityDetection,
        /// What speech does to an answer.
        activity_handling: ActivityHandling,
        /// What belongs to the user's turn.
        turn_coverage: TurnCoverage,
        /// Times in interim transcripts.
        interim_transcript_timestamp_enabled: bool,
    }

    /// How speech is detected.
    AutomaticActivityDetection {
        /// It is not: the client says when the user speaks.
        disabled: bool,
        /// How readily speech begins.
        start_of_speech_sensitivity: StartSensitivity,
        /// How readily it ends.
        end_of_speech_sensitivity: EndSensitivity,
        /// Milliseconds of speech before it counts.
        prefix_padding_ms: Whole,
        /// Milliseconds of silence after which it is over.
        silence_duration_ms: Whole,
    }

    /// How transcripts are made.
    AudioTranscription {
        /// Language tags.
        language_codes: Vec<String>,
        /// The service finds out the language.
        language_auto: Empty,
        /// Languages to expect.
        language_hints: LanguageHints,
        /// Terms to listen for.
        custom_vocabulary: Vec<String>,
        /// Phrases to listen for.
        adaptation_phrases: Vec<String>,
        /// Tell when which word was said.
        word_timestamp: bool,
        /// Tell who speaks.
        diarization: bool,
        /// How closely it follows what was said.
        mode: TranscriptionMode,
        /// A text to follow.
        source_text: String,
    }

    /// Languages to expect.
    LanguageHints {
        /// Language tags.
        language_codes: Vec<String>,
    }

    /// Handles to resume by.
    SessionResumption {
        /// The one to resume by; absent begins anew.
        handle: String,
        /// Vertex AI: tell which messages of the client count.
        transparent: bool,
    }

    /// Shortening of long conversations.
    ContextWindowCompression {
        /// Begins at so many tokens.
        trigger_tokens: Whole,
        /// By leaving out what is oldest.
        sliding_window: SlidingWindow,
    }

    /// Leaving out what is oldest.
    SlidingWindow {
        /// Down to so many tokens. Default: half of where it begins.
        target_tokens: Whole,
    }

    /// Speaking without having been asked.
    Proactivity {
        /// Silence where nobody means the model.
        proactive_audio: bool,
        /// Speaking of what is seen.
        proactive_video: bool,
    }

    /// How history is given.
    HistoryConfig {
        /// The first contents are history, up to the one with `turnComplete`, and call for no answer.
        initial_history_in_client_content: bool,
    }

    /// What is held back.
    SafetySetting {
        /// Of what kind.
        category: HarmCategory,
        /// By what measure.
        method: HarmBlockMethod,
        /// From where on.
        threshold: HarmBlockThreshold,
    }
}

open_enums! {
    /// Voice or text.
    Modality {
        /// Not said.
        Unspecified = "MODALITY_UNSPECIFIED",
        /// Words.
        Text = "TEXT",
        /// Pictures.
        Image = "IMAGE",
        /// Voice.
        Audio = "AUDIO",
        /// Moving pictures.
        Video = "VIDEO",
    }

    /// How finely media is looked at.
    MediaResolution {
        /// Not said.
        Unspecified = "MEDIA_RESOLUTION_UNSPECIFIED",
        /// Coarsely.
        Low = "MEDIA_RESOLUTION_LOW",
        /// In between.
        Medium = "MEDIA_RESOLUTION_MEDIUM",
        /// Finely.
        High = "MEDIA_RESOLUTION_HIGH",
    }

    /// How much thinking.
    ThinkingLevel {
        /// Not said.
        Unspecified = "THINKING_LEVEL_UNSPECIFIED",
        /// The least.
        Minimal = "MINIMAL",
        /// Little.
        Low = "LOW",
        /// In between.
        Medium = "MEDIUM",
        /// Much.
        High = "HIGH",
        /// The most.
        ExtraHigh = "XHIGH",
    }

    /// How readily speech begins.
    StartSensitivity {
        /// Not said: high at the Gemini API, low at Vertex AI.
        Unspecified = "START_SENSITIVITY_UNSPECIFIED",
        /// Readily.
        High = "START_SENSITIVITY_HIGH",
        /// Late.
        Low = "START_SENSITIVITY_LOW",
    }

    /// How readily speech ends.
    EndSensitivity {
        /// Not said: high at the Gemini API, low at Vertex AI.
        Unspecified = "END_SENSITIVITY_UNSPECIFIED",
        /// Readily.
        High = "END_SENSITIVITY_HIGH",
        /// Late.
        Low = "END_SENSITIVITY_LOW",
    }

    /// What speech does to an answer.
    ActivityHandling {
        /// Not said: it interrupts.
        Unspecified = "ACTIVITY_HANDLING_UNSPECIFIED",
        /// It interrupts.
        StartOfActivityInterrupts = "START_OF_ACTIVITY_INTERRUPTS",
        /// Nothing.
        NoInterruption = "NO_INTERRUPTION",
    }

    /// What belongs to the user's turn.
    TurnCoverage {
        /// Not said.
        Unspecified = "TURN_COVERAGE_UNSPECIFIED",
        /// Speech.
        OnlyActivity = "TURN_INCLUDES_ONLY_ACTIVITY",
        /// Everything.
        AllInput = "TURN_INCLUDES_ALL_INPUT",
        /// Speech, and all that was seen.
        AudioActivityAndAllVideo = "TURN_INCLUDES_AUDIO_ACTIVITY_AND_ALL_VIDEO",
    }

    /// How closely a transcript follows what was said.
    TranscriptionMode {
        /// Not said.
        Unspecified = "MODE_UNSPECIFIED",
        /// Word for word.
        Verbatim = "VERBATIM",
        /// As it was meant.
        Smart = "SMART",
    }

    /// A kind of harm.
    HarmCategory {
        /// Not said.
        Unspecified = "HARM_CATEGORY_UNSPECIFIED",
        /// Harassment.
        Harassment = "HARM_CATEGORY_HARASSMENT",
        /// Hate speech.
        HateSpeech = "HARM_CATEGORY_HATE_SPEECH",
        /// Sexually explicit.
        SexuallyExplicit = "HARM_CATEGORY_SEXUALLY_EXPLICIT",
        /// Dangerous.
        DangerousContent = "HARM_CATEGORY_DANGEROUS_CONTENT",
        /// Against elections.
        CivicIntegrity = "HARM_CATEGORY_CIVIC_INTEGRITY",
        /// Getting round what is held back.
        Jailbreak = "HARM_CATEGORY_JAILBREAK",
        /// Hate in pictures.
        ImageHate = "HARM_CATEGORY_IMAGE_HATE",
        /// Danger in pictures.
        ImageDangerousContent = "HARM_CATEGORY_IMAGE_DANGEROUS_CONTENT",
        /// Harassment in pictures.
        ImageHarassment = "HARM_CATEGORY_IMAGE_HARASSMENT",
        /// Sexually explicit pictures.
        ImageSexuallyExplicit = "HARM_CATEGORY_IMAGE_SEXUALLY_EXPLICIT",
    }

    /// By what measure something is held back.
    HarmBlockMethod {
        /// Not said.
        Unspecified = "HARM_BLOCK_METHOD_UNSPECIFIED",
        /// How bad, and how likely.
        Severity = "SEVERITY",
        /// How likely.
        Probability = "PROBABILITY",
    }

    /// From where on something is held back.
    HarmBlockThreshold {
        /// Not said.
        Unspecified = "HARM_BLOCK_THRESHOLD_UNSPECIFIED",
        /// From low.
        LowAndAbove = "BLOCK_LOW_AND_ABOVE",
        /// From medium.
        MediumAndAbove = "BLOCK_MEDIUM_AND_ABOVE",
        /// High.
        OnlyHigh = "BLOCK_ONLY_HIGH",
        /// Nothing.
        None = "BLOCK_NONE",
        /// Not even looked at.
        Off = "OFF",
    }
}
