//! Twilio Media Streams, and SignalWire's cXML streams, which have its envelopes.
//!
//! Sources: Twilio, "Media Streams - WebSocket Messages" and "TwiML Voice: Stream"; SignalWire,
//! "cXML Voice: Stream". Numbers come as strings, except in `mediaFormat`.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use antiphon_audio::{AudioFormat, AudioFrame};
use antiphon_live::Frame;
use serde::Deserialize;

use super::{
    ByteOrder, CallStart, Capabilities, Carrier, CarrierEvent, Coding, ControlBy, Dialect,
    DialectError, Heard, MarkMeaning, Pacing, check_format, ignored,
    json_stream::{self, LARGEST, Number},
    key, payload,
};

/// Twilio's dialect, or SignalWire's.
#[derive(Debug)]
pub struct Twilio {
    carrier: Carrier,
    capabilities: Capabilities,
    call: Option<Call>,
    /// Whatever else comes after it is not part of the call.
    over: bool,
}

#[derive(Debug)]
struct Call {
    /// As a JSON string.
    stream: String,
    format: AudioFormat,
}

impl Twilio {
    /// Twilio: mu-law, 8,000 Hz.
    pub fn new() -> Self {
        Self {
            carrier: Carrier::Twilio,
            capabilities: Capabilities {
                codings: &[Coding::Pcmu],
                rates_hz: &[8_000],
                quantum: Duration::from_millis(20),
                exact_frames: false,
                least_message: 0,
                largest_message: 16 * 1024,
                buffer: Duration::from_secs(600),
                pacing: Pacing::Carrier { lead: Duration::from_secs(3) },
                delay: Duration::from_millis(100),
                clears: true,
                acknowledges_clear: false,
                marks: MarkMeaning::EchoedWhenCleared,
                ordered: true,
                sends_silence: true,
                digits_in: true,
                digits_out: ControlBy::Rest,
                hang_up: ControlBy::Closing,
                transfer: ControlBy::Rest,
                subprotocol: None,
                largest_incoming: LARGEST,
            },
            call: None,
            over: false,
        }
    }

    /// SignalWire: the same envelopes, with 16-bit PCM (little-endian) of 16,000 and 24,000 Hz beside
    /// mu-law; `mediaFormat` says which.
    pub fn signalwire() -> Self {
        let twilio = Self::new();
        Self {
            carrier: Carrier::SignalWire,
            capabilities: Capabilities {
                codings: &[Coding::Pcmu, Coding::L16],
                rates_hz: &[16_000, 24_000],
                // Nobody says how much it queues.
                buffer: Duration::from_secs(30),
                ..twilio.capabilities
            },
            ..twilio
        }
    }

    fn call(&self) -> Result<&Call, DialectError> {
        self.call.as_ref().ok_or(DialectError::OutOfOrder("the stream has not started"))
    }

    fn start(&mut self, start: Start<'_>) -> Result<CarrierEvent, DialectError> {
        if self.call.is_some() {
            return Err(DialectError::OutOfOrder("a second start"));
        }
        let coding = Coding::named(&start.media_format.encoding)?;
        if !self.capabilities.codings.contains(&coding) {
            return Err(DialectError::Format(
                start.media_format.encoding.chars().take(32).collect(),
            ));
        }
        if start.media_format.channels.is_some_and(|channels| channels.0 != 1) {
            return Err(DialectError::Format("more than one channel".into()));
        }
        let rate = u32::try_from(start.media_format.sample_rate.0).unwrap_or_default();
        let format = coding.at(rate)?;
        self.call = Some(Call { stream: json_stream::quoted(&start.stream_sid), format });
        let parameter = |name: &str| start.custom_parameters.get(name).cloned();
        Ok(CarrierEvent::Started(Box::new(CallStart {
            stream_id: start.stream_sid.into_owned(),
            account_id: start.account_sid.map(Cow::into_owned),
            // The stream does not tell them; whoever wrote the answer may have passed them along.
            from: parameter("from"),
            to: parameter("to"),
            parameters: start.custom_parameters.clone(),
            ..CallStart::new(start.call_sid, format, format)
        })))
    }
}

impl Default for Twilio {
    fn default() -> Self {
        Self::new()
    }
}

impl Dialect for Twilio {
    fn carrier(&self) -> Carrier {
        self.carrier
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn parse(&mut self, frame: &Frame, heard: &mut Heard) -> Result<(), DialectError> {
        let Some(text) = json_stream::text(frame, heard)? else { return Ok(()) };
        if self.over {
            heard.events.push(ignored("after the stop"));
            return Ok(());
        }
        let message: Message = json_stream::read(text)?;
        let missing = |what: &str| DialectError::Malformed(format!("no {what}"));
        let event = match &*message.event {
            "media" => {
                let media = message.media.ok_or_else(|| missing("media"))?;
                let format = self.call()?.format;
                if media.track.as_deref().is_some_and(|track| track != "inbound") {
                    // A fork of the call carries what the agent says too; that is no caller.
                    ignored("media of another track")
                } else {
                    let order = ByteOrder::LittleEndian;
                    json_stream::media(format, order, &media.payload, media.chunk, media.timestamp)?
                }
            }
            "mark" => {
                let mark = message.mark.ok_or_else(|| missing("mark"))?;
                CarrierEvent::Mark { name: mark.name.into_owned() }
            }
            "dtmf" => {
                let dtmf = message.dtmf.ok_or_else(|| missing("dtmf"))?;
                let held = dtmf.duration.map(|ms| Duration::from_millis(ms.0));
                key(&dtmf.digit, held)
            }
            "connected" => CarrierEvent::Connected { token: None },
            "start" => self.start(message.start.ok_or_else(|| missing("start"))?)?,
            "stop" => {
                self.over = true;
                CarrierEvent::Stopped { reason: None }
            }
            other => ignored(other),
        };
        heard.events.push(event);
        Ok(())
    }

    fn audio(&mut self, audio: &AudioFrame, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let call = self.call()?;
        check_format(call.format, audio)?;
        let mut text = String::with_capacity(96 + audio.data.len() * 4 / 3);
        text.push_str(r#"{"event":"media","streamSid":"#);
        text.push_str(&call.stream);
        text.push_str(r#","media":{"payload":""#);
        payload::encode_into(&audio.data, &mut text);
        text.push_str(r#""}}"#);
        frames.push(json_stream::frame(text));
        Ok(())
    }

    fn mark(&mut self, name: &str, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let (stream, name) = (&self.call()?.stream, json_stream::quoted(name));
        let text = format!(r#"{{"event":"mark","streamSid":{stream},"mark":{{"name":{name}}}}}"#);
        frames.push(json_stream::frame(text));
        Ok(())
    }

    fn clear(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let stream = &self.call()?.stream;
        frames.push(json_stream::frame(format!(r#"{{"event":"clear","streamSid":{stream}}}"#)));
        Ok(())
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow, default)]
    start: Option<Start<'a>>,
    #[serde(borrow, default)]
    media: Option<MediaBody<'a>>,
    #[serde(borrow, default)]
    mark: Option<Mark<'a>>,
    #[serde(borrow, default)]
    dtmf: Option<Dtmf<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Start<'a> {
    #[serde(borrow)]
    stream_sid: Cow<'a, str>,
    #[serde(borrow, default)]
    account_sid: Option<Cow<'a, str>>,
    call_sid: String,
    #[serde(default, deserialize_with = "json_stream::texts")]
    custom_parameters: BTreeMap<String, String>,
    media_format: MediaFormat,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MediaFormat {
    encoding: String,
    sample_rate: Number,
    #[serde(default)]
    channels: Option<Number>,
}

#[derive(Deserialize)]
struct MediaBody<'a> {
    #[serde(borrow, default)]
    track: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "json_stream::number")]
    chunk: Option<Number>,
    #[serde(default, deserialize_with = "json_stream::number")]
    timestamp: Option<Number>,
    #[serde(borrow)]
    payload: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Mark<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Dtmf<'a> {
    #[serde(borrow)]
    digit: Cow<'a, str>,
    #[serde(default, deserialize_with = "json_stream::number")]
    duration: Option<Number>,
}
