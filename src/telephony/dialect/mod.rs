//! How carriers speak: one pure codec for each, behind one trait.
//!
//! A [`Dialect`] lives as long as one call. It is told what came over the wire ([`Dialect::parse`])
//! and writes what is to be sent; it owns no socket, reads no clock and never waits. What carriers
//! differ in is data, so that the bridge has one path for all of them: [`Capabilities`].
//!
//! # Dialects to come
//!
//! The trait was checked on paper against the carriers that are not here yet:
//!
//! | carrier | what is special | where it goes |
//! |---|---|---|
//! | Plivo | `checkpoint` is not answered when cleared; `clearedAudio`; DTMF out on the socket; no `stop` | [`MarkMeaning::SilentWhenCleared`], [`CarrierEvent::Cleared`], [`Dialect::send_digits`]; the end of the socket is the end |
//! | Vonage | binary frames of exactly 20 ms, JSON beside them; `notify` is the mark | [`Capabilities::exact_frames`], [`Dialect::mark`] |
//! | Exotel | multiples of 320 bytes, at least 3,200, at most 100 kB | [`Capabilities::quantum`] of 20 ms, [`Capabilities::least_message`], [`Capabilities::largest_message`] |
//! | Genesys AudioHook | each message is numbered and some must be answered at once; stereo; position in samples | state of the codec; [`Heard::frames`] takes answers; the codec takes the caller's channel out |
//! | jambonz | a subprotocol; a mark tells whether it was played or cleared | [`Capabilities::subprotocol`], [`CarrierEvent::MarkCleared`] |
//! | RTP (Asterisk's externalMedia) | numbers and time stamps in each packet, paced by us | [`Media::sequence`], [`Media::timestamp`], [`Pacing::Us`] |
//! | FreeSWITCH, Infobip | no clear, no marks | [`Capabilities::clears`] is false, [`MarkMeaning::None`], a short lead |
//! | OpenAI and LiveKit SIP | media does not pass through us | no dialect: the provider is the carrier |

mod asterisk;
mod audiosocket;
mod json_stream;
mod payload;
mod telnyx;
mod twilio;

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use antiphon_audio::{AudioFormat, AudioFrame};
use antiphon_live::Frame;
use antiphon_types::Status;
use bytes::Bytes;

pub use self::{
    asterisk::{AsteriskWebSocket, ControlForm},
    audiosocket::AudioSocket,
    payload::{ByteOrder, Coding},
    telnyx::{Telnyx, TelnyxOptions},
    twilio::Twilio,
};

/// One carrier's way of speaking, for one call.
///
/// Frames go out in the order in which they are written to `frames`. What the carrier cannot do is
/// [`DialectError::Unsupported`], and nothing is written.
pub trait Dialect: Send {
    /// Which carrier.
    fn carrier(&self) -> Carrier;

    /// What it can do. May become more exact when the call has started.
    fn capabilities(&self) -> &Capabilities;

    /// Takes one frame of the carrier's. For a byte stream a frame is any piece of it. An error ends
    /// the call: what was heard before it stays in `heard`.
    fn parse(&mut self, frame: &Frame, heard: &mut Heard) -> Result<(), DialectError>;

    /// Nothing has come for a while and the call has not started: it starts, where the carrier sends
    /// nothing while its caller is silent.
    fn quiet(&mut self, heard: &mut Heard) {
        let _ = heard;
    }

    /// Writes audio, in the format that the call started with: whole quanta, at most
    /// [`Capabilities::largest_message`] bytes.
    fn audio(&mut self, audio: &AudioFrame, frames: &mut Vec<Frame>) -> Result<(), DialectError>;

    /// Writes a mark behind the audio so far. `name` has letters, digits, `-`, `_` and `:`, at most 32.
    fn mark(&mut self, name: &str, frames: &mut Vec<Frame>) -> Result<(), DialectError>;

    /// Has the carrier forget what it has not played yet.
    fn clear(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError>;

    /// Has the carrier press keys: `0` to `9`, `*`, `#`, `A` to `D`.
    fn send_digits(&mut self, digits: &str, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let _ = (digits, frames);
        Err(DialectError::Unsupported("keys"))
    }

    /// Ends the call by a message, where it ends so ([`Capabilities::hang_up`]).
    fn hang_up(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let _ = frames;
        Err(DialectError::Unsupported("hanging up by a message"))
    }
}

/// A carrier with a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Carrier {
    /// Twilio Media Streams.
    Twilio,
    /// SignalWire's cXML `<Stream>`.
    SignalWire,
    /// Telnyx media streaming.
    Telnyx,
    /// Asterisk's AudioSocket, over TCP.
    AudioSocket,
    /// Asterisk's `chan_websocket`.
    Asterisk,
}

impl Carrier {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Twilio, Self::SignalWire, Self::Telnyx, Self::AudioSocket, Self::Asterisk];

    /// The name in configuration and in `/telephony/{name}`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Twilio => "twilio",
            Self::SignalWire => "signalwire",
            Self::Telnyx => "telnyx",
            Self::AudioSocket => "audiosocket",
            Self::Asterisk => "asterisk",
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Carrier {
    type Err = DialectError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|carrier| carrier.name() == name);
        found.ok_or(DialectError::Unsupported("this carrier"))
    }
}

/// What a carrier can do, and how it wants to be treated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Formats that its media may have. A call has one for each direction: [`CallStart`].
    pub codings: &'static [Coding],
    /// Sample rates in Hz that its 16-bit PCM may have.
    pub rates_hz: &'static [u32],
    /// Audio is sent in multiples of this.
    pub quantum: Duration,
    /// Each message holds exactly one quantum.
    pub exact_frames: bool,
    /// A message should hold at least so many bytes of audio, unless the audio ends; 0: any.
    pub least_message: usize,
    /// A message may hold so many bytes of audio at most.
    pub largest_message: usize,
    /// How much audio the carrier queues, after which it loses some.
    pub buffer: Duration,
    /// Who sees to it that audio is played at its rate.
    pub pacing: Pacing,
    /// How long audio takes from being sent until it is heard, about.
    pub delay: Duration,
    /// Forgets queued audio when told.
    pub clears: bool,
    /// Says when it has done so.
    pub acknowledges_clear: bool,
    /// What an answer to a mark means.
    pub marks: MarkMeaning,
    /// Its messages come in the order in which they were recorded.
    pub ordered: bool,
    /// Sends audio all the time, silence included: when none comes, the line is stalled. Otherwise
    /// nothing is silence.
    pub sends_silence: bool,
    /// Tells which keys are pressed.
    pub digits_in: bool,
    /// How keys are pressed towards the other end.
    pub digits_out: ControlBy,
    /// How a call is ended.
    pub hang_up: ControlBy,
    /// How a call is handed on.
    pub transfer: ControlBy,
    /// The WebSocket subprotocol that it asks for.
    pub subprotocol: Option<&'static str>,
    /// How much it sends in one message at most, in bytes of the envelope.
    pub largest_incoming: usize,
}

/// Who sees to it that audio is played at its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pacing {
    /// The carrier: it queues what is sent, and is kept so far ahead of what is heard.
    Carrier {
        /// How far.
        lead: Duration,
    },
    /// The sender: each quantum goes out when it is due, so far ahead of what is heard.
    Us {
        /// How far.
        lead: Duration,
    },
}

impl Pacing {
    /// How far ahead of what is heard audio is sent.
    pub const fn lead(self) -> Duration {
        match self {
            Self::Carrier { lead } | Self::Us { lead } => lead,
        }
    }
}

/// What an answer to a mark means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MarkMeaning {
    /// All marks are answered: those behind cleared audio at once. An answer after a clear is no proof
    /// that anything was played.
    EchoedWhenCleared,
    /// Marks behind cleared audio are never answered.
    SilentWhenCleared,
    /// There are no marks.
    None,
}

/// How something is done to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlBy {
    /// By a message on the socket.
    Message,
    /// By closing the socket: the carrier goes on with what it was told to do next.
    Closing,
    /// By a request to the carrier's HTTP API.
    Rest,
    /// Not at all.
    Nothing,
}

/// What one frame of a carrier came to.
#[derive(Debug, Default)]
pub struct Heard {
    /// What happened, in order.
    pub events: Vec<CarrierEvent>,
    /// What must be answered at once, in order.
    pub frames: Vec<Frame>,
}

/// What a carrier tells.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CarrierEvent {
    /// The socket stands; nothing is known of the call yet.
    Connected {
        /// A token that the carrier was given to show, if it shows it here.
        token: Option<String>,
    },
    /// The call begins. Comes once; media before it is kept by the codec, at most one second.
    Started(Box<CallStart>),
    /// The caller's audio has this format, and not that of the start: nothing had told it then.
    Format {
        /// The format.
        input: AudioFormat,
    },
    /// The caller's audio.
    Media(Media),
    /// A key was pressed.
    Digit {
        /// `0` to `9`, `*`, `#`, `A` to `D`.
        digit: char,
        /// For how long, where that is told.
        held: Option<Duration>,
    },
    /// A mark is answered: see [`MarkMeaning`].
    Mark {
        /// Its name.
        name: String,
    },
    /// A mark whose audio was cleared before it was played.
    MarkCleared {
        /// Its name.
        name: String,
    },
    /// The carrier has cleared its queue.
    Cleared,
    /// The carrier takes audio, or for now it does not.
    Flow {
        /// Whether it does.
        open: bool,
    },
    /// The call is over.
    Stopped {
        /// Why, in the carrier's words, where it says.
        reason: Option<String>,
    },
    /// The carrier found fault with something.
    Error {
        /// Its code, where it has one.
        code: Option<String>,
        /// What it says.
        message: String,
    },
    /// Something without a meaning here; counted.
    Ignored {
        /// Its name, cut to 32 characters.
        what: String,
    },
}

/// What is known of a call when it begins. All of it is the carrier's word, and some of it the
/// caller's: nobody may be trusted by it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CallStart {
    /// The carrier's name of the call.
    pub call_id: String,
    /// The carrier's name of the stream of media.
    pub stream_id: String,
    /// The account, where that is told.
    pub account_id: Option<String>,
    /// Who calls, where that is told.
    pub from: Option<String>,
    /// Who is called, where that is told.
    pub to: Option<String>,
    /// What whoever set the call up passed along.
    pub parameters: BTreeMap<String, String>,
    /// The format of the caller's audio.
    pub input: AudioFormat,
    /// The format of audio to the caller.
    pub output: AudioFormat,
}

impl CallStart {
    /// A call with nothing known of it but this.
    pub fn new(call_id: impl Into<String>, input: AudioFormat, output: AudioFormat) -> Self {
        let call_id = call_id.into();
        Self {
            stream_id: call_id.clone(),
            call_id,
            account_id: None,
            from: None,
            to: None,
            parameters: BTreeMap::new(),
            input,
            output,
        }
    }
}

/// A piece of the caller's audio.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Media {
    /// Its number, counted up by the carrier, where it counts.
    pub sequence: Option<u64>,
    /// When it begins, since any moment, where that is told.
    pub timestamp: Option<Duration>,
    /// The audio, in the format of [`CallStart::input`]. Whole samples.
    pub audio: AudioFrame,
}

/// What is wrong with a carrier's message, or with a wish.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// The message is not in the dialect.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// The message is larger than the carrier's ever are.
    #[error("a message of {size} bytes where at most {limit} are taken")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// What is taken.
        limit: usize,
    },
    /// The message may not come now.
    #[error("out of order: {0}")]
    OutOfOrder(&'static str),
    /// The media has a format that cannot be taken.
    #[error("a format that cannot be taken: {0}")]
    Format(String),
    /// Audio in another format than the call's.
    #[error("audio is {got:?} where {expected:?} is expected")]
    WrongFormat {
        /// The call's.
        expected: AudioFormat,
        /// The audio's.
        got: AudioFormat,
    },
    /// The carrier has no such thing.
    #[error("the carrier cannot take {0}")]
    Unsupported(&'static str),
}

impl DialectError {
    /// The canonical status code.
    pub fn status(&self) -> Status {
        match self {
            Self::Malformed(_) | Self::Format(_) | Self::WrongFormat { .. } => {
                Status::InvalidArgument
            }
            Self::TooLarge { .. } => Status::ResourceExhausted,
            Self::OutOfOrder(_) => Status::FailedPrecondition,
            Self::Unsupported(_) => Status::Unimplemented,
        }
    }

    /// The code that a WebSocket is closed with because of it (RFC 6455, section 7.4.1).
    pub const fn close_code(&self) -> u16 {
        match self {
            Self::Malformed(_) | Self::OutOfOrder(_) => 1002,
            Self::TooLarge { .. } => 1009,
            Self::Format(_) | Self::WrongFormat { .. } | Self::Unsupported(_) => 1003,
        }
    }
}

/// Settings of dialects that have any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DialectOptions {
    /// Telnyx.
    pub telnyx: TelnyxOptions,
    /// How Asterisk's `chan_websocket` is controlled.
    pub asterisk: ControlForm,
    /// The sample rate of AudioSocket where the caller is silent from the start, in Hz. `None`: 8,000,
    /// as the dialplan's application has it.
    pub audiosocket_rate: Option<u32>,
}

/// The codec of one call.
pub fn dialect(carrier: Carrier, options: &DialectOptions) -> Box<dyn Dialect> {
    match carrier {
        Carrier::Twilio => Box::new(Twilio::new()),
        Carrier::SignalWire => Box::new(Twilio::signalwire()),
        Carrier::Telnyx => Box::new(Telnyx::new(options.telnyx.clone())),
        Carrier::AudioSocket => Box::new(AudioSocket::new().silent_rate(options.audiosocket_rate)),
        Carrier::Asterisk => Box::new(AsteriskWebSocket::new(options.asterisk)),
    }
}

/// The longest name that is kept of something that is not understood.
const NAME: usize = 32;

/// Something without a meaning.
fn ignored(what: &str) -> CarrierEvent {
    CarrierEvent::Ignored { what: what.chars().take(NAME).collect() }
}

/// Whether it is a key of a telephone.
pub(crate) fn is_digit(key: char) -> bool {
    key.is_ascii_digit() || matches!(key, '*' | '#' | 'A'..='D')
}

/// A key from the text in which carriers tell it. What no telephone has (a flash, a pause) is no fault
/// of the caller's, and no key.
fn key(text: &str, held: Option<Duration>) -> CarrierEvent {
    let mut keys = text.trim().chars();
    match (keys.next().map(|key| key.to_ascii_uppercase()), keys.next()) {
        (Some(digit), None) if is_digit(digit) => CarrierEvent::Digit { digit, held },
        _ => ignored("a key that telephones do not have"),
    }
}

/// The bytes of a whole number of samples, or an error.
fn whole_samples(format: AudioFormat, bytes: Bytes) -> Result<AudioFrame, DialectError> {
    if !bytes.len().is_multiple_of(format.bytes_per_sample()) {
        return Err(DialectError::Malformed("audio that ends within a sample".into()));
    }
    Ok(AudioFrame { format, data: bytes })
}

/// Refuses audio in another format.
fn check_format(expected: AudioFormat, audio: &AudioFrame) -> Result<(), DialectError> {
    if audio.format == expected {
        return Ok(());
    }
    Err(DialectError::WrongFormat { expected, got: audio.format })
}

#[cfg(test)]
mod tests;
