//! Asterisk's AudioSocket: packets over TCP.
//!
//! Source: Asterisk, "AudioSocket" and `res_audiosocket.c`. A packet is one byte of kind, two bytes
//! of length (high byte first) and so many bytes. There is no clear, no mark and no flow control:
//! what is written is played at the channel's pace, so we pace ourselves, and to interrupt is to stop
//! writing. Asterisk drops the call for packets of other kinds and for audio of no length.

use std::time::Duration;

use antiphon_audio::{AudioFormat, AudioFrame};
use antiphon_live::Frame;
use bytes::{Buf, Bytes, BytesMut};

use super::{
    CallStart, Capabilities, Carrier, CarrierEvent, Coding, ControlBy, Dialect, DialectError,
    Heard, MarkMeaning, Media, Pacing, check_format, ignored, key, whole_samples,
};

const HANG_UP: u8 = 0x00;
const UUID: u8 = 0x01;
const DTMF: u8 = 0x03;
const ERROR: u8 = 0xff;
/// The kinds of 16-bit audio, by sample rate.
const RATES_HZ: [(u8, u32); 9] = [
    (0x10, 8_000),
    (0x11, 12_000),
    (0x12, 16_000),
    (0x13, 24_000),
    (0x14, 32_000),
    (0x15, 44_100),
    (0x16, 48_000),
    (0x17, 96_000),
    (0x18, 192_000),
];
const HEADER: usize = 3;

/// AudioSocket's dialect. Its frames are pieces of the byte stream, cut anywhere.
#[derive(Debug)]
pub struct AudioSocket {
    capabilities: Capabilities,
    /// A packet that is not whole yet; never more than the largest one.
    pending: BytesMut,
    /// The call's name, before its format is known.
    uuid: Option<String>,
    /// The format of audio to the caller, and the kind of packet for it.
    call: Option<(AudioFormat, u8)>,
    /// The format of the caller's audio, once any has come.
    input: Option<AudioFormat>,
    /// Keys that were pressed before the call has begun.
    early: Vec<CarrierEvent>,
    /// In Hz, where no audio tells it.
    silent_rate: u32,
    over: bool,
}

/// Keys that are kept before the call has begun, at most.
const MAX_EARLY: usize = 32;

impl AudioSocket {
    /// AudioSocket's dialect. The sample rate is that of the first audio; where none comes,
    /// 8,000 Hz.
    pub fn new() -> Self {
        Self {
            capabilities: Capabilities {
                codings: &[Coding::L16],
                rates_hz: &[8_000, 12_000, 16_000, 24_000, 32_000, 44_100, 48_000],
                quantum: Duration::from_millis(20),
                exact_frames: true,
                least_message: 0,
                largest_message: usize::from(u16::MAX),
                // It is the socket that queues.
                buffer: Duration::from_millis(200),
                pacing: Pacing::Us { lead: Duration::from_millis(40) },
                delay: Duration::from_millis(60),
                clears: false,
                acknowledges_clear: false,
                marks: MarkMeaning::None,
                ordered: true,
                // Comfort noise is swallowed: while the caller is silent nothing may come.
                sends_silence: false,
                digits_in: true,
                digits_out: ControlBy::Nothing,
                hang_up: ControlBy::Message,
                transfer: ControlBy::Closing,
                subprotocol: None,
                largest_incoming: HEADER + usize::from(u16::MAX),
            },
            pending: BytesMut::new(),
            uuid: None,
            call: None,
            input: None,
            early: Vec::new(),
            silent_rate: 8_000,
            over: false,
        }
    }

    /// The sample rate of a call whose caller is silent from the start, in Hz.
    pub fn silent_rate(mut self, rate: Option<u32>) -> Self {
        self.silent_rate = rate.unwrap_or(self.silent_rate);
        self
    }

    fn packet(&mut self, kind: u8, body: Bytes, heard: &mut Heard) -> Result<(), DialectError> {
        if self.over {
            heard.events.push(ignored("after the hang-up"));
            return Ok(());
        }
        match kind {
            HANG_UP => {
                self.over = true;
                heard.events.push(CarrierEvent::Stopped { reason: None });
            }
            UUID => self.named(&body)?,
            DTMF => {
                self.named_before()?;
                let event = key(std::str::from_utf8(&body).unwrap_or_default(), None);
                // It tells nothing of the format.
                match self.call {
                    Some(_) => heard.events.push(event),
                    None if self.early.len() < MAX_EARLY => self.early.push(event),
                    None => heard.events.push(ignored("a key before the call")),
                }
            }
            ERROR => {
                let code = body.first().map(|code| format!("{code:#04x}"));
                heard.events.push(CarrierEvent::Error { code, message: "of the socket".into() });
            }
            _ => self.audio_packet(kind, body, heard)?,
        }
        Ok(())
    }

    fn named(&mut self, body: &[u8]) -> Result<(), DialectError> {
        if self.uuid.is_some() {
            return Err(DialectError::OutOfOrder("a second UUID"));
        }
        let bytes: [u8; 16] = body
            .try_into()
            .map_err(|_| DialectError::Malformed("a UUID that is not 16 bytes long".into()))?;
        self.uuid = Some(uuid_text(bytes));
        Ok(())
    }

    fn named_before(&self) -> Result<(), DialectError> {
        match self.uuid {
            Some(_) => Ok(()),
            None => Err(DialectError::OutOfOrder("the UUID comes first")),
        }
    }

    fn audio_packet(
        &mut self,
        kind: u8,
        body: Bytes,
        heard: &mut Heard,
    ) -> Result<(), DialectError> {
        let Some(&(_, rate)) = RATES_HZ.iter().find(|(known, _)| *known == kind) else {
            return Err(DialectError::Malformed(format!("a packet of kind {kind:#04x}")));
        };
        self.named_before()?;
        let format = Coding::L16.at(rate)?;
        self.begin(format, heard);
        match self.input {
            Some(known) if known != format => {
                return Err(DialectError::Format(format!("{rate} Hz in the middle of the call")));
            }
            Some(_) => {}
            None => {
                self.input = Some(format);
                // A caller who was silent at the start has another rate than was taken for granted.
                if self.call.is_some_and(|(known, _)| known != format) {
                    heard.events.push(CarrierEvent::Format { input: format });
                }
            }
        }
        let audio = whole_samples(format, body)?;
        if !audio.is_empty() {
            heard.events.push(CarrierEvent::Media(Media {
                sequence: None,
                timestamp: None,
                audio,
            }));
        }
        Ok(())
    }

    /// The call begins with its first audio, which tells the format.
    fn begin(&mut self, format: AudioFormat, heard: &mut Heard) {
        if self.call.is_some() {
            return;
        }
        let kind = RATES_HZ.iter().find(|(_, rate)| *rate == format.sample_rate_hz());
        let Some(&(kind, _)) = kind else { return };
        self.call = Some((format, kind));
        let uuid = self.uuid.clone().unwrap_or_default();
        heard.events.push(CarrierEvent::Started(Box::new(CallStart::new(uuid, format, format))));
        heard.events.append(&mut self.early);
    }
}

impl Default for AudioSocket {
    fn default() -> Self {
        Self::new()
    }
}

impl Dialect for AudioSocket {
    fn carrier(&self) -> Carrier {
        Carrier::AudioSocket
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn parse(&mut self, frame: &Frame, heard: &mut Heard) -> Result<(), DialectError> {
        let bytes = match frame {
            Frame::Binary(bytes) => bytes,
            Frame::Close(_) => {
                heard.events.push(CarrierEvent::Stopped { reason: None });
                return Ok(());
            }
            Frame::Text(_) | Frame::Ping(_) | Frame::Pong(_) => {
                return Err(DialectError::Malformed("not a piece of a byte stream".into()));
            }
        };
        self.pending.extend_from_slice(bytes);
        while let [kind, high, low, ..] = self.pending[..] {
            let length = usize::from(u16::from_be_bytes([high, low]));
            if self.pending.len() < HEADER + length {
                break;
            }
            self.pending.advance(HEADER);
            let body = self.pending.split_to(length).freeze();
            self.packet(kind, body, heard)?;
        }
        Ok(())
    }

    fn quiet(&mut self, heard: &mut Heard) {
        if self.uuid.is_some() {
            self.begin(AudioFormat::pcm16(self.silent_rate), heard);
        }
    }

    fn audio(&mut self, audio: &AudioFrame, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let Some((format, kind)) = self.call else {
            return Err(DialectError::OutOfOrder("the call has not started"));
        };
        check_format(format, audio)?;
        if !audio.is_empty() {
            frames.push(packet(kind, &audio.data)?);
        }
        Ok(())
    }

    fn mark(&mut self, _: &str, _: &mut Vec<Frame>) -> Result<(), DialectError> {
        Err(DialectError::Unsupported("marks"))
    }

    fn clear(&mut self, _: &mut Vec<Frame>) -> Result<(), DialectError> {
        Err(DialectError::Unsupported("a clear"))
    }

    fn hang_up(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        frames.push(packet(HANG_UP, &[])?);
        Ok(())
    }
}

fn packet(kind: u8, body: &[u8]) -> Result<Frame, DialectError> {
    let limit = usize::from(u16::MAX);
    let length = u16::try_from(body.len())
        .map_err(|_| DialectError::TooLarge { size: body.len(), limit })?;
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    bytes.push(kind);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(body);
    Ok(Frame::Binary(bytes.into()))
}

/// A UUID as it is written.
fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}
