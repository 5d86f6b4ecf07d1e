//! Asterisk's `chan_websocket` (20.16, 21.11, 22.6, 23.0 and later).
//!
//! Source: Asterisk, "WebSocket Channel Driver" and `chan_websocket.c`. Media is binary, control is
//! text: JSON, or in the older plain form `COMMAND argument`, `EVENT key:value ...`. Without
//! `START_MEDIA_BUFFERING` a message must be a multiple of the frame size or its tail is lost. A text
//! of more than 128 bytes is dropped. `FLUSH_MEDIA` forgets marks, which are then never answered.

use std::{collections::BTreeMap, time::Duration};

use antiphon_audio::{AudioFormat, AudioFrame};
use antiphon_live::Frame;
use serde_json::{Map, Value};

use super::{
    CallStart, Capabilities, Carrier, CarrierEvent, Coding, ControlBy, Dialect, DialectError,
    Heard, MarkMeaning, Media, Pacing, check_format, ignored,
    json_stream::{self, LARGEST},
    key, whole_samples,
};

/// Media that comes before the call has begun is kept so long. (In one call of ten some does, under
/// load: asterisk#1712.)
const EARLY: usize = 48_000 * 2;

/// How control is written, which the dial string chooses: `f(json)` or `f(plain-text)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControlForm {
    /// As JSON. Needs 20.18, 22.8 or 23.2.
    Json,
    /// As the first message of Asterisk's is.
    #[default]
    AsTheirs,
    /// In the plain form.
    Plain,
}

/// The dialect of `chan_websocket`.
#[derive(Debug)]
pub struct AsteriskWebSocket {
    form: ControlForm,
    capabilities: Capabilities,
    format: Option<AudioFormat>,
    early: Vec<u8>,
}

impl AsteriskWebSocket {
    /// The dialect of `chan_websocket`.
    pub fn new(form: ControlForm) -> Self {
        Self {
            form,
            capabilities: Capabilities {
                codings: &[Coding::Pcmu, Coding::Pcma, Coding::L16],
                rates_hz: &[8_000, 12_000, 16_000, 24_000, 32_000, 44_100, 48_000],
                quantum: Duration::from_millis(20),
                exact_frames: false,
                least_message: 0,
                // Of 65,500 with some room.
                largest_message: 32_000,
                // About 1,000 frames.
                buffer: Duration::from_secs(20),
                pacing: Pacing::Carrier { lead: Duration::from_secs(3) },
                delay: Duration::from_millis(60),
                clears: true,
                acknowledges_clear: false,
                marks: MarkMeaning::SilentWhenCleared,
                ordered: true,
                sends_silence: false,
                digits_in: true,
                digits_out: ControlBy::Nothing,
                hang_up: ControlBy::Message,
                transfer: ControlBy::Closing,
                subprotocol: Some("media"),
                largest_incoming: LARGEST,
            },
            format: None,
            early: Vec::new(),
        }
    }

    fn started(&self) -> Result<AudioFormat, DialectError> {
        self.format.ok_or(DialectError::OutOfOrder("the call has not started"))
    }

    /// A command without the argument, or with one.
    fn command(&self, name: &str, id: Option<&str>) -> Frame {
        let text = match (self.form, id) {
            (ControlForm::Json, Some(id)) => {
                let id = json_stream::quoted(id);
                format!(r#"{{"command":"{name}","correlation_id":{id}}}"#)
            }
            (ControlForm::Json, None) => format!(r#"{{"command":"{name}"}}"#),
            (_, Some(id)) => format!("{name} {id}"),
            (_, None) => name.to_owned(),
        };
        json_stream::frame(text)
    }

    fn event(&mut self, event: Event, heard: &mut Heard) -> Result<(), DialectError> {
        let missing = |what: &str| DialectError::Malformed(format!("no {what}"));
        let told = match event.name.as_str() {
            "MEDIA_START" => return self.start(&event, heard),
            "MEDIA_MARK_PROCESSED" => {
                let name = event.text("correlation_id").ok_or_else(|| missing("correlation_id"))?;
                CarrierEvent::Mark { name }
            }
            "DTMF_END" => {
                let digit = event.text("digit").ok_or_else(|| missing("digit"))?;
                let held = event.text("duration_ms").and_then(|ms| ms.parse().ok());
                let held = held.map(Duration::from_millis);
                key(&digit, held)
            }
            "MEDIA_XOFF" => CarrierEvent::Flow { open: false },
            "MEDIA_XON" => CarrierEvent::Flow { open: true },
            "ERROR" => {
                let message = event.text("error_text").or(event.rest).unwrap_or_default();
                let message = message.chars().take(200).collect();
                CarrierEvent::Error { code: None, message }
            }
            other => ignored(other),
        };
        heard.events.push(told);
        Ok(())
    }

    fn start(&mut self, event: &Event, heard: &mut Heard) -> Result<(), DialectError> {
        if self.format.is_some() {
            return Err(DialectError::OutOfOrder("a second MEDIA_START"));
        }
        let name = event.text("format").unwrap_or_default();
        let format = format_named(&name)?;
        self.format = Some(format);
        let number = |name: &str| event.text(name).and_then(|number| number.parse::<u64>().ok());
        // The tail of a message that is no multiple of the frame is lost.
        let frame = number("optimal_frame_size")
            .map(|bytes| format.duration_of(bytes / format.bytes_per_sample() as u64));
        let frame = frame.or_else(|| number("ptime").map(Duration::from_millis));
        if let Some(frame) = frame.filter(|frame| (10..=60).contains(&frame.as_millis())) {
            self.capabilities.quantum = frame;
        }
        let connection = event.text("connection_id").unwrap_or_default();
        let call_id = event.text("channel_id").unwrap_or_else(|| connection.clone());
        let mut parameters = event.variables();
        let take = |parameters: &mut BTreeMap<String, String>, name: &str| parameters.remove(name);
        let from = take(&mut parameters, "from");
        let to = take(&mut parameters, "to");
        let start = CallStart {
            stream_id: connection,
            from,
            to,
            parameters,
            ..CallStart::new(call_id, format, format)
        };
        heard.events.push(CarrierEvent::Started(Box::new(start)));
        let early = std::mem::take(&mut self.early);
        if !early.is_empty() {
            self.media(early.into(), heard)?;
        }
        Ok(())
    }

    fn media(&mut self, bytes: bytes::Bytes, heard: &mut Heard) -> Result<(), DialectError> {
        let audio = whole_samples(self.started()?, bytes)?;
        if !audio.is_empty() {
            heard.events.push(CarrierEvent::Media(Media {
                sequence: None,
                timestamp: None,
                audio,
            }));
        }
        Ok(())
    }
}

impl Default for AsteriskWebSocket {
    fn default() -> Self {
        Self::new(ControlForm::default())
    }
}

impl Dialect for AsteriskWebSocket {
    fn carrier(&self) -> Carrier {
        Carrier::Asterisk
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn parse(&mut self, frame: &Frame, heard: &mut Heard) -> Result<(), DialectError> {
        match frame {
            Frame::Binary(bytes) if bytes.len() > LARGEST => {
                Err(DialectError::TooLarge { size: bytes.len(), limit: LARGEST })
            }
            Frame::Binary(bytes) if self.format.is_none() => {
                if self.early.len() + bytes.len() > EARLY {
                    return Err(DialectError::OutOfOrder("media before MEDIA_START"));
                }
                self.early.extend_from_slice(bytes);
                Ok(())
            }
            Frame::Binary(bytes) => self.media(bytes.clone(), heard),
            other => {
                let Some(text) = json_stream::text(other, heard)? else { return Ok(()) };
                let event = Event::read(text)?;
                if self.form == ControlForm::AsTheirs {
                    self.form = if event.is_json { ControlForm::Json } else { ControlForm::Plain };
                }
                self.event(event, heard)
            }
        }
    }

    fn audio(&mut self, audio: &AudioFrame, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        check_format(self.started()?, audio)?;
        if !audio.is_empty() {
            frames.push(Frame::Binary(audio.data.clone()));
        }
        Ok(())
    }

    fn mark(&mut self, name: &str, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        self.started()?;
        frames.push(self.command("MARK_MEDIA", Some(name)));
        Ok(())
    }

    fn clear(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        self.started()?;
        frames.push(self.command("FLUSH_MEDIA", None));
        Ok(())
    }

    fn hang_up(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        frames.push(self.command("HANGUP", None));
        Ok(())
    }
}

/// A text message of either form.
struct Event {
    name: String,
    fields: Map<String, Value>,
    /// What stands behind the name in the plain form.
    rest: Option<String>,
    is_json: bool,
}

impl Event {
    fn read(text: &str) -> Result<Self, DialectError> {
        if text.trim_start().starts_with('{') {
            let mut fields: Map<String, Value> = json_stream::read(text)?;
            let name = match fields.remove("event") {
                Some(Value::String(name)) => name,
                _ => return Err(DialectError::Malformed("no event".into())),
            };
            return Ok(Self { name, fields, rest: None, is_json: true });
        }
        let (name, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
            return Err(DialectError::Malformed("neither JSON nor an event".into()));
        }
        let pairs = rest.split_whitespace().filter_map(|pair| pair.split_once(':'));
        let fields = pairs.map(|(key, value)| (key.to_owned(), Value::from(value))).collect();
        Ok(Self { name: name.to_owned(), fields, rest: Some(rest.to_owned()), is_json: false })
    }

    /// A field that is a text or a number.
    fn text(&self, name: &str) -> Option<String> {
        match self.fields.get(name)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }
    }

    /// The channel's variables that the configuration has told, where they are told.
    fn variables(&self) -> BTreeMap<String, String> {
        let Some(Value::Object(all)) = self.fields.get("channel_variables") else {
            return BTreeMap::new();
        };
        let texts = all.iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((name.clone(), text.clone())),
            _ => None,
        });
        texts.collect()
    }
}

/// A format by Asterisk's name for it: `slin` is 8,000 Hz, `slin16` is 16,000 Hz.
fn format_named(name: &str) -> Result<AudioFormat, DialectError> {
    let rate = match name {
        "slin" => 8_000,
        "slin12" => 12_000,
        "slin16" => 16_000,
        "slin24" => 24_000,
        "slin32" => 32_000,
        "slin44" => 44_100,
        "slin48" => 48_000,
        _ => return Coding::named(name)?.at(8_000),
    };
    Coding::L16.at(rate)
}
