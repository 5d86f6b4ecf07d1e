//! Providers and their connections.

use std::{sync::Arc, time::Duration};

use antiphon_types::{AudioFormat, JsonObject, ToolCall};
use async_trait::async_trait;
use futures_core::Stream;
use futures_sink::Sink;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{LiveCommand, LiveConfig, LiveError, LiveEvent, protocol::CONNECT_TIMEOUT};

/// A speech-to-speech service, or a cascade that behaves like one.
#[async_trait]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a live provider",
    note = "implement `antiphon_live::LiveProvider`: `name`, `capabilities` and `connect`"
)]
pub trait LiveProvider: Send + Sync + 'static {
    /// A short constant name, such as `openai` or `offline`. Never empty.
    fn name(&self) -> &str;

    /// The model that a connection with this configuration would use.
    fn model(&self, config: &LiveConfig) -> Arc<str>;

    /// What a connection with this configuration could do, as far as it is known before
    /// connecting. Refuses a configuration that cannot work. The connection's own capabilities
    /// ([`LiveEvent::Ready`]) are the truth.
    fn capabilities(&self, config: &LiveConfig) -> Result<Capabilities, LiveError>;

    /// Where, and as whom, connections with this configuration are made: a handle of one is of use to
    /// those for which this is the same. A session keeps a digest of it beside a handle that it keeps
    /// between runs. `None`, the default: handles are of use to the run that they are given to, and to no
    /// other, since the account is not known beforehand, or since a handle names a conversation as it
    /// goes on and not as it was when the handle was given.
    fn account(&self, _config: &LiveConfig) -> Option<SecretString> {
        None
    }

    /// Opens a connection. Resolves once the provider accepted the session. Cancel safe: dropping
    /// the future closes what it had opened.
    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError>;
}

/// One connection: events out, commands in.
///
/// `poll_ready` of the sink tells whether the connection takes another command now;
/// `start_send` refuses a bad one with a recoverable error and stays usable.
pub trait LiveConnection:
    Stream<Item = Result<LiveEvent, LiveError>> + Sink<LiveCommand, Error = LiveError> + Send + Unpin
{
    /// What this connection can do.
    fn capabilities(&self) -> &Arc<Capabilities>;

    /// Encoded bytes not yet taken by the transport. The session stops feeding audio above its
    /// high-water mark.
    fn unsent_bytes(&self) -> usize;

    /// Encoded bytes that the transport took since the connection stands. What was sent when
    /// `sent_bytes` and `unsent_bytes` together were `n` is on its way once `sent_bytes` is `n`; a
    /// session says the rest again on the next connection when this one is lost. Default: 0, for
    /// connections that take everything at once.
    fn sent_bytes(&self) -> u64 {
        0
    }

    /// Of [`LiveConnection::sent_bytes`], those that the peer is known to have read. A session keeps
    /// what it sent until then. Default: all.
    fn acknowledged_bytes(&self) -> u64 {
        self.sent_bytes()
    }

    /// Of [`LiveConnection::sent_bytes`] of a connection that is over, those that are taken to have
    /// reached the peer: where nothing had come of the peer for long, what it is known to have read,
    /// since a network that is gone took the rest. Default: all.
    fn reached_bytes(&self) -> u64 {
        self.sent_bytes()
    }
}

/// What [`LiveProvider::connect`] is given.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ConnectRequest {
    /// The configuration.
    pub config: Arc<LiveConfig>,
    /// A handle to continue by, if there is one and the provider can.
    pub resume: Option<Resumption>,
    /// The conversation so far, for a provider that cannot resume by a handle.
    pub history: Vec<HistoryItem>,
    /// The number of this connection within its session, from 1.
    pub epoch: u32,
}

impl ConnectRequest {
    /// A first connection.
    pub fn new(config: Arc<LiveConfig>) -> Self {
        Self { config, resume: None, history: Vec::new(), epoch: 1 }
    }

    /// The same in half of the time, for a provider that tries something else after it.
    pub fn in_half_the_time(&self) -> Self {
        let mut config = LiveConfig::clone(&self.config);
        let within = config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
        config.connect_timeout = Some(within / 2);
        Self { config: Arc::new(config), ..self.clone() }
    }

    /// A later connection of the same session.
    pub fn resuming(
        config: Arc<LiveConfig>,
        resume: Option<Resumption>,
        history: Vec<HistoryItem>,
        epoch: u32,
    ) -> Self {
        Self { config, resume, history, epoch }
    }
}

/// One thing that was said or done before this connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HistoryItem {
    /// Words.
    Message {
        /// Whose.
        role: HistoryRole,
        /// The words; of an interrupted reply only those that were heard.
        text: String,
    },
    /// A tool ran.
    Tool {
        /// The call.
        call: ToolCall,
        /// Its output.
        response: JsonObject,
    },
}

/// Who said a [`HistoryItem::Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HistoryRole {
    /// The person.
    User,
    /// The agent.
    Agent,
}

/// A handle by which a provider continues an earlier connection.
#[derive(Clone, Debug)]
pub struct Resumption {
    /// The provider's handle.
    pub handle: SecretString,
}

/// A handle lets whoever has it into the conversation: it is written as `null`.
impl Serialize for Resumption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

/// A handle that nobody can resume by.
impl<'de> Deserialize<'de> for Resumption {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer)?;
        Ok(Self { handle: SecretString::default() })
    }
}

/// What a provider can do. What is `false` is refused before anything is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Capabilities {
    /// The format of the user's audio.
    pub input: AudioFormat,
    /// The format of the agent's voice.
    pub output: AudioFormat,
    /// Takes [`LiveCommand::Text`].
    pub text_input: bool,
    /// Takes [`LiveCommand::Image`].
    pub images: bool,
    /// Takes [`LiveCommand::Say`].
    pub say: bool,
    /// Takes [`LiveCommand::CreateReply`].
    pub create_reply: bool,
    /// Takes [`LiveCommand::CancelReply`].
    pub cancel_reply: bool,
    /// Takes [`LiveCommand::Truncate`].
    pub truncate: bool,
    /// Takes [`LiveCommand::ClearAudio`].
    pub clear_audio: bool,
    /// Takes [`LiveCommand::ForgetInput`].
    pub forget_input: bool,
    /// Takes tools at all.
    pub tools: bool,
    /// Bytes of JSON text that the output of a tool may have; one with more is cut before it is sent.
    /// Default: 1 MiB, which fits into a message of each provider that is known, escaped once more.
    pub tool_output_bytes: usize,
    /// Runs tools of its own, and asks before each: takes [`LiveCommand::PermitTool`].
    #[serde(default)]
    pub asks_before_tools: bool,
    /// Takes [`LiveCommand::UpdateTools`].
    pub update_tools: bool,
    /// Takes [`LiveCommand::UpdateInstructions`].
    pub update_instructions: bool,
    /// Detects the user's speech by itself ([`crate::VoiceActivity::Auto`]).
    pub voice_activity: bool,
    /// Says when the user begins to speak and stops ([`LiveEvent::SpeechStarted`]), and does so at
    /// once. Where it does not, a session that looks for a quiet moment listens itself.
    #[serde(default)]
    pub tells_speech: bool,
    /// The silence after which it takes the user's speech for over, where it detects that. So much
    /// earlier than it says so the user has stopped.
    pub end_silence: Duration,
    /// Takes [`LiveCommand::ActivityStart`] and [`LiveCommand::ActivityEnd`]
    /// ([`crate::VoiceActivity::Manual`]).
    pub manual_activity: bool,
    /// Stops its own reply when the user speaks, and says so by [`LiveEvent::Interrupted`].
    pub interrupts: bool,
    /// Leaves the answers to the user's turns to the session where the configuration says so
    /// ([`crate::ActivityDetection::session_answers`]).
    pub session_answers: bool,
    /// Understands the user by the words of the transcript alone: before these are complete there is
    /// nothing to answer.
    pub answers_words: bool,
    /// Takes tool outputs that do not stop the model from talking.
    pub non_blocking_tools: bool,
    /// Goes on by itself once all tool outputs of a reply are in; otherwise the session sends
    /// [`LiveCommand::CreateReply`] after the last one.
    pub replies_after_tools: bool,
    /// Runs tools only after the reply that holds the calls is done.
    pub tools_after_reply: bool,
    /// Gives transcripts of the user's speech.
    pub input_transcripts: bool,
    /// How the words of the agent's voice come ([`LiveEvent::OutputTranscript`]).
    #[serde(default)]
    pub output_words: OutputWords,
    /// Continues an earlier connection by its handle ([`ConnectRequest::resume`]). The configuration
    /// of the new one may be another, but for the model.
    pub resumption: bool,
    /// How long after its connection ended a handle is good. `None`: it is not known to expire.
    pub resumption_valid: Option<Duration>,
    /// Tells how many commands a handle holds
    /// ([`LiveEvent::HandleHolds`](crate::LiveEvent::HandleHolds)): the user's audio that it does not is
    /// kept, and said again to the connection that continues by it.
    #[serde(default)]
    pub handles_count_commands: bool,
    /// A connection that continues an earlier one by its handle takes the outputs of calls that came
    /// by that. Otherwise these are told to the model in words.
    pub resumes_calls: bool,
    /// The connection of a handle has to be closed before another one continues it; nobody may
    /// connect by the handle while the old socket is open.
    pub close_before_resume: bool,
    /// How long a connection lasts before the provider ends it, as far as that is known beforehand.
    /// The session replaces it in time. What is told of the end ([`LiveEvent::GoingAway`]) comes on
    /// top. `None`: it lasts.
    pub connection_limit: Option<Duration>,
    /// Takes [`ConnectRequest::history`].
    pub history: bool,
    /// Listens and talks at the same time and never says that a turn is over.
    pub continuous_duplex: bool,
    /// The model that serves, as far as it is known. It may be another than
    /// [`LiveProvider::model`] says: the configuration's fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Arc<str>>,
    /// Ids among [`LiveConfig::options`] and [`LiveConfig::provider_options`] that mean nothing
    /// here; they are ignored.
    pub unsupported_options: Vec<Arc<str>>,
}

/// How the words of the agent's voice come beside its audio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputWords {
    /// They do not.
    None,
    /// No later than the audio that speaks them.
    Before,
    /// Before the audio that speaks them or after it: from the order nothing can be told.
    #[default]
    Beside,
}

impl Capabilities {
    /// Nothing but audio in and out in these formats; switch on what there is.
    pub const fn audio_only(input: AudioFormat, output: AudioFormat) -> Self {
        Self {
            input,
            output,
            text_input: false,
            images: false,
            say: false,
            create_reply: false,
            cancel_reply: false,
            truncate: false,
            clear_audio: false,
            forget_input: false,
            tools: false,
            tool_output_bytes: 1024 * 1024,
            asks_before_tools: false,
            update_tools: false,
            update_instructions: false,
            voice_activity: false,
            tells_speech: false,
            end_silence: Duration::ZERO,
            manual_activity: false,
            interrupts: false,
            session_answers: false,
            answers_words: false,
            non_blocking_tools: false,
            replies_after_tools: false,
            tools_after_reply: false,
            input_transcripts: false,
            output_words: OutputWords::None,
            resumption: false,
            handles_count_commands: false,
            resumption_valid: None,
            resumes_calls: false,
            close_before_resume: false,
            connection_limit: None,
            history: false,
            continuous_duplex: false,
            model: None,
            unsupported_options: Vec::new(),
        }
    }

    /// What providers of a conversation by turns mostly can; switch off what this one cannot, and on
    /// what it can besides.
    pub const fn conversation(input: AudioFormat, output: AudioFormat) -> Self {
        let mut capabilities = Self::audio_only(input, output);
        capabilities.text_input = true;
        capabilities.say = true;
        capabilities.create_reply = true;
        capabilities.cancel_reply = true;
        capabilities.truncate = true;
        capabilities.clear_audio = true;
        capabilities.tools = true;
        capabilities.update_tools = true;
        capabilities.update_instructions = true;
        capabilities.voice_activity = true;
        capabilities.tells_speech = true;
        capabilities.tools_after_reply = true;
        capabilities.output_words = OutputWords::Beside;
        capabilities.history = true;
        capabilities
    }

    /// Whether `command` may be sent; the verb phrase of what cannot be done if not.
    pub fn check(&self, command: &LiveCommand) -> Result<(), &'static str> {
        let (able, what) = match command {
            LiveCommand::AppendAudio(_) | LiveCommand::EndAudio => (true, ""),
            LiveCommand::ClearAudio => (self.clear_audio, "clear the user's audio"),
            LiveCommand::ActivityStart | LiveCommand::ActivityEnd => {
                (self.manual_activity, "take turns by hand")
            }
            LiveCommand::Text { .. } => (self.text_input, "take text"),
            LiveCommand::Image { .. } => (self.images, "take images"),
            LiveCommand::CreateReply { .. } => (self.create_reply, "be asked for a reply"),
            LiveCommand::Say { .. } => (self.say, "speak a given text"),
            LiveCommand::CancelReply { .. } => (self.cancel_reply, "cancel a reply"),
            LiveCommand::Truncate { .. } => (self.truncate, "truncate a reply"),
            LiveCommand::ForgetInput { .. } => (self.forget_input, "forget what the user said"),
            LiveCommand::ToolResponse(_) => (self.tools, "take tool outputs"),
            LiveCommand::PermitTool { .. } => (self.asks_before_tools, "run tools of its own"),
            LiveCommand::UpdateInstructions(_) => {
                (self.update_instructions, "change instructions in a session")
            }
            LiveCommand::UpdateTools(_) => (self.update_tools, "change tools in a session"),
        };
        if able { Ok(()) } else { Err(what) }
    }
}
