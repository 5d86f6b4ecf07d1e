//! The table: one row for each dialect, written as what differs from OpenAI's.
//!
//! Sources: OpenAI's SDK types and OpenAPI description; "Azure OpenAI Realtime API reference"; "Voice
//! Live API reference" and the package `azure-ai-voicelive`; xAI's "Voice Agent API"; Model Studio's
//! "Qwen-Omni-Realtime" and the package `dashscope`; Inworld's "Realtime API". What a vendor's pages
//! do not name is taken as not there.

use std::time::Duration;

use super::facts::{
    Acknowledgement, AudioFormats, Detection, Facts, Images, KeyForm, LanguageForm, Names,
    Parameter, Saying, SessionShape, Signs, Terms, ThinkingForm, ToolShape, Transcriber, Variables,
    VoiceForm,
};

/// 24,000 Hz, which the beta calls `pcm16`, and G.711.
const OPENAI_FORMATS: AudioFormats = AudioFormats { pcm: &[(24_000, "pcm16")], g711: true };
/// By sound, or by what is said.
const OPENAI_DETECTIONS: &[(&str, Detection)] =
    &[("server_vad", Detection::Sound), ("semantic_vad", Detection::Eagerness)];
/// Who pays, and who it is for, is told to OpenAI alone.
const OPENAI_HEADERS: &[&str] = &["organization", "project", "safety_identifier"];
/// Parts of the address that others have not.
const OTHER_ADDRESSES: &[&str] = &["agent_id", "api_version", "project_id", "session_id"];
/// What came with GA.
const SINCE_GA: &[&str] =
    &["include", "mcp_servers", "parallel_tool_calls", "prompt", "reasoning_effort", "truncation"];
/// What only OpenAI and its resellers have.
const OPENAI_SESSION: &[&str] =
    &["include", "parallel_tool_calls", "prompt", "tracing", "transcription_delay", "truncation"];

/// OpenAI since 2025.
pub(super) const GA: Facts = Facts {
    name: "ga",
    vendor: "OpenAI",
    address: Some("wss://api.openai.com/v1/realtime"),
    path: "/v1/realtime",
    query: &[("model", Parameter::Model)],
    version: None,
    signs: Signs { paths: &[], hosts: &["api.openai.com"], query: None },
    model: Some("gpt-realtime-2"),
    model_in_session: false,
    key: KeyForm::Bearer,
    headers: &[],
    subprotocols: &[],
    session_limit: Some(Duration::from_secs(60 * 60)),
    resumes_for: None,
    variables: Variables { key: "OPENAI_API_KEY", address: None, model: None, transcriber: None },
    names: Names::Ga,
    session: SessionShape::Nested,
    tools: ToolShape::Flat,
    input: OPENAI_FORMATS,
    output: OPENAI_FORMATS,
    input_rate_key: None,
    acknowledges: Acknowledgement::AddedAndDone,
    cumulative_transcripts: false,
    begins_with_conversation: false,
    tells_usage: true,
    tells_rate_limits: true,
    tells_expiry: true,
    other_events: &[],
    lacks: &[],
    messages: true,
    images: Images::InMessages,
    says: Saying::Instructed,
    transcriber: Transcriber {
        model: Some("gpt-4o-mini-transcribe"),
        diarizing: Some("gpt-4o-transcribe-diarize"),
        terms: Terms::Prompt,
        language: LanguageForm::Code,
    },
    detections: OPENAI_DETECTIONS,
    detection_flags: true,
    // The vendor says 200 in one place and 500 in another.
    silence: Duration::from_millis(500),
    noise_reductions: &["near_field", "far_field"],
    thinking: ThinkingForm::Effort,
    voices: VoiceForm::OpenAi,
    response_tool_choice: true,
    response_metadata: true,
    own_calls: false,
    replies_after_tools: false,
    without: &[OTHER_ADDRESSES],
};

/// OpenAI's preview of 2024.
pub(super) const BETA: Facts = Facts {
    name: "beta",
    signs: Signs { paths: &[], hosts: &[], query: None },
    headers: &[("OpenAI-Beta", "realtime=v1")],
    session_limit: None,
    names: Names::Beta,
    session: SessionShape::Flat,
    acknowledges: Acknowledgement::Created,
    images: Images::None,
    thinking: ThinkingForm::None,
    without: &[OTHER_ADDRESSES, SINCE_GA],
    ..GA
};

/// Azure OpenAI at `/openai/v1/realtime`.
pub(super) const AZURE: Facts = Facts {
    name: "azure",
    vendor: "Azure OpenAI",
    address: None,
    path: "/openai/v1/realtime",
    signs: Signs { paths: &["/openai/v1/realtime"], hosts: AZURE_HOSTS, query: None },
    model: None,
    key: KeyForm::ApiKey,
    session_limit: None,
    variables: Variables {
        key: "AZURE_OPENAI_API_KEY",
        address: Some("AZURE_OPENAI_ENDPOINT"),
        model: Some("AZURE_OPENAI_DEPLOYMENT"),
        transcriber: Some("AZURE_OPENAI_TRANSCRIBER"),
    },
    transcriber: DEPLOYED,
    without: &[OTHER_ADDRESSES, OPENAI_HEADERS],
    ..GA
};

/// Where the resources of Azure OpenAI are.
const AZURE_HOSTS: &[&str] = &[".openai.azure.com", ".cognitiveservices.azure.com"];
/// Azure wants the name of a deployment, which only its owner knows.
const DEPLOYED: Transcriber = Transcriber { model: None, diarizing: None, ..GA.transcriber };

/// Azure OpenAI at `/openai/realtime?api-version=…`, until 2026-04-30.
pub(super) const AZURE_PREVIEW: Facts = Facts {
    name: "azure_preview",
    vendor: "Azure OpenAI",
    address: None,
    path: "/openai/realtime",
    query: &[("api-version", Parameter::Version), ("deployment", Parameter::Model)],
    version: Some("2025-04-01-preview"),
    signs: Signs { paths: &["/openai/realtime"], hosts: AZURE_HOSTS, query: Some("api-version=") },
    model: None,
    key: KeyForm::ApiKey,
    headers: &[],
    variables: AZURE.variables,
    transcriber: DEPLOYED,
    without: &[&["agent_id", "project_id", "session_id"], OPENAI_HEADERS, SINCE_GA],
    ..BETA
};

/// Azure Voice Live: the beta's words and much beside them.
pub(super) const VOICE_LIVE: Facts = Facts {
    name: "voice_live",
    vendor: "Azure Voice Live",
    address: None,
    path: "/voice-live/realtime",
    query: &[("api-version", Parameter::Version), ("model", Parameter::Model)],
    version: Some("2026-07-15"),
    signs: Signs { paths: &["/voice-live/"], hosts: &[".services.ai.azure.com"], query: None },
    model: Some("gpt-realtime"),
    key: KeyForm::ApiKey,
    headers: &[],
    variables: Variables {
        key: "AZURE_VOICELIVE_API_KEY",
        address: Some("AZURE_VOICELIVE_ENDPOINT"),
        model: Some("AZURE_VOICELIVE_MODEL"),
        transcriber: None,
    },
    input: AudioFormats { pcm: &[(24_000, "pcm16"), (16_000, "pcm16")], g711: true },
    output: AudioFormats {
        pcm: &[(24_000, "pcm16"), (16_000, "pcm16_16000hz"), (8_000, "pcm16_8000hz")],
        g711: true,
    },
    input_rate_key: Some("input_audio_sampling_rate"),
    tells_rate_limits: false,
    tells_expiry: false,
    other_events: &[
        "warning",
        "response.audio_timestamp.delta",
        "response.audio_timestamp.done",
        "response.animation_viseme.delta",
        "response.animation_blendshapes.delta",
        "response.video.delta",
        "response.invocation.delta",
        "session.avatar.connecting",
    ],
    transcriber: Transcriber {
        model: Some("azure-speech"),
        diarizing: None,
        terms: Terms::Phrases,
        language: LanguageForm::Code,
    },
    detections: &[
        ("server_vad", Detection::Sound),
        ("semantic_vad", Detection::Eagerness),
        ("azure_semantic_vad", Detection::Sound),
        ("azure_semantic_vad_en", Detection::Sound),
        ("azure_semantic_vad_multilingual", Detection::Sound),
    ],
    noise_reductions: &["azure_deep_noise_suppression", "near_field", "far_field"],
    thinking: ThinkingForm::TopLevel,
    voices: VoiceForm::Azure,
    without: &[
        &["session_id"],
        OPENAI_HEADERS,
        OPENAI_SESSION,
        &["idle_timeout_ms", "speed", "transcription_prompt"],
    ],
    ..BETA
};

/// xAI's Grok.
pub(super) const XAI: Facts = Facts {
    name: "xai",
    vendor: "xAI",
    address: Some("wss://api.x.ai/v1/realtime"),
    signs: Signs { paths: &[], hosts: &["api.x.ai"], query: None },
    model: Some("grok-voice-latest"),
    session_limit: None,
    // "History is dropped after 30 minutes of inactivity."
    resumes_for: Some(Duration::from_secs(30 * 60)),
    variables: Variables { key: "XAI_API_KEY", address: None, model: None, transcriber: None },
    session: SessionShape::NestedTopVoice,
    input: XAI_FORMATS,
    output: XAI_FORMATS,
    acknowledges: Acknowledgement::Added,
    cumulative_transcripts: true,
    begins_with_conversation: true,
    tells_usage: false,
    tells_rate_limits: false,
    tells_expiry: false,
    other_events: &["ping"],
    lacks: &["conversation.item.retrieve", "output_audio_buffer.clear"],
    images: Images::None,
    says: Saying::Forced,
    transcriber: Transcriber {
        model: Some("grok-transcribe"),
        diarizing: None,
        terms: Terms::KeyTerms,
        language: LanguageForm::Hint,
    },
    detections: &[("server_vad", Detection::Sound)],
    noise_reductions: &[],
    thinking: ThinkingForm::OnOff,
    voices: VoiceForm::Name,
    response_tool_choice: false,
    own_calls: true,
    without: &[
        OTHER_ADDRESSES,
        OPENAI_HEADERS,
        OPENAI_SESSION,
        &["eagerness", "noise_reduction", "speed", "transcription_prompt"],
    ],
    ..GA
};

/// Any of eight rates, and G.711.
const XAI_FORMATS: AudioFormats = AudioFormats {
    pcm: &[
        (24_000, ""),
        (8_000, ""),
        (11_025, ""),
        (16_000, ""),
        (22_050, ""),
        (32_000, ""),
        (44_100, ""),
        (48_000, ""),
    ],
    g711: true,
};

/// Qwen-Omni: a part of the beta.
pub(super) const QWEN: Facts = Facts {
    name: "qwen",
    vendor: "Qwen (Model Studio)",
    // Singapore; keys of Beijing are for `dashscope.aliyuncs.com`.
    address: Some("wss://dashscope-intl.aliyuncs.com/api-ws/v1/realtime"),
    path: "/api-ws/v1/realtime",
    signs: Signs {
        paths: &["/api-ws/v1/realtime"],
        hosts: &["dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", ".maas.aliyuncs.com"],
        query: None,
    },
    model: Some("qwen3-omni-flash-realtime"),
    headers: &[],
    // By model 30 to 120 minutes, and nobody says which: the shortest is left in time by all.
    session_limit: Some(Duration::from_secs(30 * 60)),
    variables: Variables {
        key: "DASHSCOPE_API_KEY",
        address: None,
        model: None,
        transcriber: None,
    },
    tools: ToolShape::Nested,
    input: AudioFormats { pcm: &[(16_000, "pcm16")], g711: false },
    output: AudioFormats { pcm: &[(24_000, "pcm24")], g711: false },
    tells_rate_limits: false,
    tells_expiry: false,
    other_events: &["session.finished"],
    lacks: &[
        "conversation.item.delete",
        "conversation.item.retrieve",
        "conversation.item.truncate",
        "output_audio_buffer.clear",
    ],
    messages: false,
    images: Images::Buffered,
    transcriber: Transcriber {
        model: Some("gummy-realtime-v1"),
        diarizing: None,
        terms: Terms::None,
        language: LanguageForm::None,
    },
    detections: &[("server_vad", Detection::Sound), ("semantic_vad", Detection::Sound)],
    detection_flags: false,
    silence: Duration::from_millis(800),
    noise_reductions: &[],
    voices: VoiceForm::Name,
    response_tool_choice: false,
    response_metadata: false,
    without: &[
        OTHER_ADDRESSES,
        OPENAI_HEADERS,
        OPENAI_SESSION,
        SINCE_GA,
        &["create_response", "eagerness", "idle_timeout_ms", "max_output_tokens"],
        &["noise_reduction", "speed", "tool_choice", "transcription_prompt"],
    ],
    ..BETA
};

/// Inworld: GA's words over any recogniser, model and voice.
pub(super) const INWORLD: Facts = Facts {
    name: "inworld",
    vendor: "Inworld",
    address: Some("wss://api.inworld.ai/api/v1/realtime/session"),
    path: "/api/v1/realtime/session",
    query: &[("key", Parameter::SessionId), ("protocol", Parameter::Fixed("realtime"))],
    signs: Signs { paths: &["/api/v1/realtime/session"], hosts: &["api.inworld.ai"], query: None },
    model: Some("openai/gpt-4o-mini"),
    model_in_session: true,
    key: KeyForm::Basic,
    session_limit: None,
    variables: Variables { key: "INWORLD_API_KEY", address: None, model: None, transcriber: None },
    tells_rate_limits: false,
    tells_expiry: false,
    lacks: &["conversation.item.truncate"],
    images: Images::None,
    transcriber: Transcriber {
        model: Some("inworld/inworld-stt-1"),
        diarizing: None,
        terms: Terms::Prompt,
        language: LanguageForm::Code,
    },
    noise_reductions: &[],
    thinking: ThinkingForm::None,
    voices: VoiceForm::Name,
    without: &[
        &["agent_id", "api_version", "project_id"],
        OPENAI_HEADERS,
        OPENAI_SESSION,
        &["noise_reduction", "reasoning_effort"],
    ],
    ..GA
};
