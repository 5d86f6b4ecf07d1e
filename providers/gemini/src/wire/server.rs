//! What a server sends.

use serde_json::Value;

use super::{
    Content, DecodeError, FunctionCall, Seconds, VoiceConsentSignature, Whole, decode, messages,
    open_enum::open_enums,
};

messages! {
    /// One message of a server. Holds one thing, and the usage beside it or alone.
    ServerMessage {
        /// The session begins. First.
        setup_complete: SetupComplete,
        /// What the model says, and what was heard.
        server_content: ServerContent,
        /// The model calls functions.
        tool_call: ToolCallMessage,
        /// The model takes calls back.
        tool_call_cancellation: ToolCallCancellation,
        /// What the turn costs so far.
        usage_metadata: UsageMetadata,
        /// The server closes soon.
        go_away: GoAway,
        /// How to resume.
        session_resumption_update: SessionResumptionUpdate,
        /// The user begins to speak, or stops.
        voice_activity: VoiceActivity,
        /// An older word for that.
        voice_activity_detection_signal: VoiceActivityDetectionSignal,
        /// Something went wrong. Mostly only the close frame says so.
        error: ApiError,
    }

    /// The session begins.
    SetupComplete {
        /// Names the session.
        session_id: String,
        /// Of a voice that was copied.
        voice_consent_signature: VoiceConsentSignature,
    }

    /// What the model says, and what was heard. All of it counts, in this order: content and
    /// transcripts, `generation_complete`, `interrupted`, `turn_complete`.
    ServerContent {
        /// A piece of what the model says.
        model_turn: Content,
        /// The user's words, a piece of them.
        input_transcription: Transcription,
        /// The user's words so far, which later ones replace.
        interim_input_transcription: Transcription,
        /// The model's words, a piece of them. Not in step with its voice.
        output_transcription: Transcription,
        /// The model has said all. Not sent for a turn that was interrupted.
        generation_complete: bool,
        /// The user spoke: what has not been heard is not to be.
        interrupted: bool,
        /// The turn is over. Waits until the voice would have been heard.
        turn_complete: bool,
        /// Why, where it is unusual.
        turn_complete_reason: TurnCompleteReason,
        /// The model waits for more.
        waiting_for_input: bool,
        /// Whether more comes in the background.
        interaction_status: InteractionStatus,
        /// What an answer rests on.
        grounding_metadata: Value,
        /// Pages that were read.
        url_context_metadata: Value,
    }

    /// Words of a voice.
    Transcription {
        /// A piece of them.
        text: String,
        /// It was the last piece. Often missing.
        finished: bool,
        /// A language tag.
        language_code: String,
        /// Who speaks.
        speaker_label: String,
        /// When which word was said.
        words: Vec<WordInfo>,
        /// Where in the audio it begins.
        start_offset: Seconds,
        /// Where it ends.
        end_offset: Seconds,
    }

    /// When a word was said.
    WordInfo {
        /// The word.
        word: String,
        /// Where in the audio it begins.
        start_offset: Seconds,
        /// Where it ends.
        end_offset: Seconds,
    }

    /// The model calls functions.
    ToolCallMessage {
        /// The calls.
        function_calls: Vec<FunctionCall>,
    }

    /// The user interrupted: these calls must not be answered.
    ToolCallCancellation {
        /// Their ids.
        ids: Vec<String>,
    }

    /// The server closes soon.
    GoAway {
        /// How soon.
        time_left: Seconds,
    }

    /// How to resume.
    SessionResumptionUpdate {
        /// The newest handle; empty while there is none.
        new_handle: String,
        /// Whether one can resume from here. Not while the model speaks or calls.
        resumable: bool,
        /// With a transparent resumption: the client's last message that counts.
        last_consumed_client_message_index: Whole,
    }

    /// The user begins to speak, or stops.
    VoiceActivity {
        /// Which.
        voice_activity_type: VoiceActivityType,
        /// Where in the audio.
        audio_offset: Seconds,
    }

    /// The user begins to speak, or stops.
    VoiceActivityDetectionSignal {
        /// Which.
        vad_signal_type: VadSignalType,
    }

    /// What the turn costs so far: the whole context, not what was added.
    UsageMetadata {
        /// Tokens in.
        prompt_token_count: Whole,
        /// Of them, those from a cache.
        cached_content_token_count: Whole,
        /// Tokens out.
        response_token_count: Whole,
        /// Tokens in of tools that the service runs.
        tool_use_prompt_token_count: Whole,
        /// Tokens of thoughts.
        thoughts_token_count: Whole,
        /// All.
        total_token_count: Whole,
        /// Tokens in, by kind.
        prompt_tokens_details: Vec<ModalityTokenCount>,
        /// Tokens from a cache, by kind.
        cache_tokens_details: Vec<ModalityTokenCount>,
        /// Tokens out, by kind.
        response_tokens_details: Vec<ModalityTokenCount>,
        /// Tokens of tools, by kind.
        tool_use_prompt_tokens_details: Vec<ModalityTokenCount>,
        /// How it was served.
        traffic_type: TrafficType,
        /// How it is billed.
        service_tier: ServiceTier,
    }

    /// Tokens of one kind.
    ModalityTokenCount {
        /// The kind.
        modality: MediaModality,
        /// How many.
        token_count: Whole,
    }

    /// Something went wrong.
    ApiError {
        /// An HTTP status.
        code: Whole,
        /// In words.
        message: String,
        /// A canonical status.
        status: String,
        /// More of it.
        details: Value,
    }
}

open_enums! {
    /// Why a turn is over, where it is unusual.
    TurnCompleteReason {
        /// Not said.
        Unspecified = "TURN_COMPLETE_REASON_UNSPECIFIED",
        /// The model's call was malformed.
        MalformedFunctionCall = "MALFORMED_FUNCTION_CALL",
        /// The answer was held back.
        ResponseRejected = "RESPONSE_REJECTED",
        /// The model waits for more.
        NeedMoreInput = "NEED_MORE_INPUT",
        /// The input is prohibited.
        ProhibitedInputContent = "PROHIBITED_INPUT_CONTENT",
        /// An input image is prohibited.
        ImageProhibitedInputContent = "IMAGE_PROHIBITED_INPUT_CONTENT",
        /// The input names a prominent person.
        InputTextContainProminentPersonProhibited =
            "INPUT_TEXT_CONTAIN_PROMINENT_PERSON_PROHIBITED",
        /// The input shows a celebrity.
        InputImageCelebrity = "INPUT_IMAGE_CELEBRITY",
        /// The input shows a child.
        InputImagePhotoRealisticChildProhibited = "INPUT_IMAGE_PHOTO_REALISTIC_CHILD_PROHIBITED",
        /// The input is intimate.
        InputTextNciiProhibited = "INPUT_TEXT_NCII_PROHIBITED",
        /// The input is refused for another reason.
        InputOther = "INPUT_OTHER",
        /// The input infringes.
        InputIpProhibited = "INPUT_IP_PROHIBITED",
        /// The input is on a list.
        Blocklist = "BLOCKLIST",
        /// The input asks for an unsafe image.
        UnsafePromptForImageGeneration = "UNSAFE_PROMPT_FOR_IMAGE_GENERATION",
        /// The image is unsafe.
        GeneratedImageSafety = "GENERATED_IMAGE_SAFETY",
        /// The answer is unsafe.
        GeneratedContentSafety = "GENERATED_CONTENT_SAFETY",
        /// The voice is unsafe.
        GeneratedAudioSafety = "GENERATED_AUDIO_SAFETY",
        /// The video is unsafe.
        GeneratedVideoSafety = "GENERATED_VIDEO_SAFETY",
        /// The answer is prohibited.
        GeneratedContentProhibited = "GENERATED_CONTENT_PROHIBITED",
        /// The answer is on a list.
        GeneratedContentBlocklist = "GENERATED_CONTENT_BLOCKLIST",
        /// The image is prohibited.
        GeneratedImageProhibited = "GENERATED_IMAGE_PROHIBITED",
        /// The image shows a celebrity.
        GeneratedImageCelebrity = "GENERATED_IMAGE_CELEBRITY",
        /// The image shows prominent people.
        GeneratedImageProminentPeopleDetectedByRewriter =
            "GENERATED_IMAGE_PROMINENT_PEOPLE_DETECTED_BY_REWRITER",
        /// The image shows people who can be identified.
        GeneratedImageIdentifiablePeople = "GENERATED_IMAGE_IDENTIFIABLE_PEOPLE",
        /// The image shows minors.
        GeneratedImageMinors = "GENERATED_IMAGE_MINORS",
        /// The image infringes.
        OutputImageIpProhibited = "OUTPUT_IMAGE_IP_PROHIBITED",
        /// The answer is refused for another reason.
        GeneratedOther = "GENERATED_OTHER",
        /// It was tried too often.
        MaxRegenerationReached = "MAX_REGENERATION_REACHED",
    }

    /// Whether more comes of a turn.
    InteractionStatus {
        /// Not said.
        Unspecified = "INTERACTION_STATUS_UNSPECIFIED",
        /// The model still works in the background.
        InProgress = "IN_PROGRESS",
        /// The client has to do something.
        RequiresAction = "REQUIRES_ACTION",
        /// Nothing more comes.
        Idle = "IDLE",
    }

    /// What the user's voice does.
    VoiceActivityType {
        /// Not said.
        Unspecified = "TYPE_UNSPECIFIED",
        /// It begins.
        Start = "ACTIVITY_START",
        /// It ends.
        End = "ACTIVITY_END",
    }

    /// What the user's voice does, in an older word.
    VadSignalType {
        /// Not said.
        Unspecified = "VAD_SIGNAL_TYPE_UNSPECIFIED",
        /// It begins.
        StartOfSpeech = "VAD_SIGNAL_TYPE_SOS",
        /// It ends.
        EndOfSpeech = "VAD_SIGNAL_TYPE_EOS",
    }

    /// A kind of tokens.
    MediaModality {
        /// Not said.
        Unspecified = "MODALITY_UNSPECIFIED",
        /// Words.
        Text = "TEXT",
        /// Pictures.
        Image = "IMAGE",
        /// Moving pictures.
        Video = "VIDEO",
        /// Voice.
        Audio = "AUDIO",
        /// Documents.
        Document = "DOCUMENT",
    }

    /// How a request is served.
    TrafficType {
        /// Not said.
        Unspecified = "TRAFFIC_TYPE_UNSPECIFIED",
        /// As it comes.
        OnDemand = "ON_DEMAND",
        /// Before others.
        OnDemandPriority = "ON_DEMAND_PRIORITY",
        /// After others.
        OnDemandFlex = "ON_DEMAND_FLEX",
        /// At quiet times.
        OnDemandOffpeak = "ON_DEMAND_OFFPEAK",
        /// From a share that was bought.
        ProvisionedThroughput = "PROVISIONED_THROUGHPUT",
    }

    /// How a request is billed.
    ServiceTier {
        /// Not said.
        Unspecified = "unspecified",
        /// Cheaper and later.
        Flex = "flex",
        /// As usual.
        Standard = "standard",
        /// Dearer and sooner.
        Priority = "priority",
    }
}

impl ServerMessage {
    /// Decodes a frame, text or binary.
    pub fn decode(frame: &[u8]) -> Result<Self, DecodeError> {
        decode(frame)
    }

    /// The text of a frame.
    pub fn encode(&self) -> String {
        // Only maps with keys that are no strings, and failing implementations, can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// A message of the server's content.
    pub fn content(content: ServerContent) -> Self {
        Self { server_content: Some(content), ..Self::default() }
    }

    /// The name of what it holds; `usageMetadata` where that is all, and nothing where it is empty.
    pub fn kind(&self) -> &'static str {
        let kinds = [
            ("setupComplete", self.setup_complete.is_some()),
            ("serverContent", self.server_content.is_some()),
            ("toolCall", self.tool_call.is_some()),
            ("toolCallCancellation", self.tool_call_cancellation.is_some()),
            ("goAway", self.go_away.is_some()),
            ("sessionResumptionUpdate", self.session_resumption_update.is_some()),
            ("voiceActivity", self.voice_activity.is_some()),
            ("voiceActivityDetectionSignal", self.voice_activity_detection_signal.is_some()),
            ("error", self.error.is_some()),
            ("usageMetadata", self.usage_metadata.is_some()),
        ];
        kinds.into_iter().find(|(_, is)| *is).map_or("", |(kind, _)| kind)
    }
}
