//! Telnyx media streaming over WebSockets.
//!
//! Sources: Telnyx, "Media Streaming over WebSockets" and the Call Control reference of
//! `streaming_start`. Names are in snake case, `stream_id` is at the top, the call's id in `start`.
//! Messages may come out of order. The caller's audio has the codec of its leg, which `start` tells;
//! audio to the caller has the codec that was asked for when streaming was started.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use antiphon_audio::{AudioFormat, AudioFrame};
use antiphon_live::Frame;
use serde::Deserialize;
use serde_json::Value;

use super::{
    ByteOrder, CallStart, Capabilities, Carrier, CarrierEvent, Coding, ControlBy, Dialect,
    DialectError, Heard, MarkMeaning, Pacing, check_format, ignored,
    json_stream::{self, LARGEST, Number},
    key, payload,
};

/// What was asked for when streaming was started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TelnyxOptions {
    /// `stream_bidirectional_codec` and its rate: the format of audio to the caller, whatever that of
    /// the caller's audio is. `None`: PCMU, which Telnyx takes where nothing was said.
    pub output: Option<AudioFormat>,
    /// The byte order of 16-bit samples. Telnyx does not say; as in RTP by default.
    pub byte_order: ByteOrder,
}

/// Telnyx's dialect, with `stream_bidirectional_mode` `rtp`.
#[derive(Debug)]
pub struct Telnyx {
    options: TelnyxOptions,
    capabilities: Capabilities,
    call: Option<Call>,
    over: bool,
}

#[derive(Debug)]
struct Call {
    input: AudioFormat,
    output: AudioFormat,
}

impl Telnyx {
    /// Telnyx's dialect.
    pub fn new(options: TelnyxOptions) -> Self {
        Self {
            options,
            capabilities: Capabilities {
                codings: &[Coding::Pcmu, Coding::Pcma, Coding::L16],
                rates_hz: &[8_000, 16_000, 22_050, 24_000, 48_000],
                quantum: Duration::from_millis(20),
                exact_frames: false,
                least_message: 0,
                largest_message: 16 * 1024,
                // Nobody says how much it queues; a message may hold half a minute.
                buffer: Duration::from_secs(30),
                pacing: Pacing::Carrier { lead: Duration::from_secs(3) },
                delay: Duration::from_millis(100),
                clears: true,
                acknowledges_clear: false,
                marks: MarkMeaning::EchoedWhenCleared,
                ordered: false,
                sends_silence: true,
                digits_in: true,
                digits_out: ControlBy::Rest,
                hang_up: ControlBy::Rest,
                transfer: ControlBy::Rest,
                subprotocol: None,
                largest_incoming: LARGEST,
            },
            call: None,
            over: false,
        }
    }

    fn call(&self) -> Result<&Call, DialectError> {
        self.call.as_ref().ok_or(DialectError::OutOfOrder("the stream has not started"))
    }

    fn start(&mut self, stream: Cow<'_, str>, start: Start) -> Result<CarrierEvent, DialectError> {
        if self.call.is_some() {
            return Err(DialectError::OutOfOrder("a second start"));
        }
        if start.media_format.channels.is_some_and(|channels| channels.0 != 1) {
            return Err(DialectError::Format("more than one channel".into()));
        }
        let rate = u32::try_from(start.media_format.sample_rate.0).unwrap_or_default();
        let input = Coding::named(&start.media_format.encoding)?.at(rate)?;
        let output = self.options.output.unwrap_or(AudioFormat::Mulaw8k);
        self.call = Some(Call { input, output });
        let mut parameters = start.custom_parameters;
        if let Some(state) = start.client_state {
            parameters.entry("client_state".into()).or_insert(state);
        }
        Ok(CarrierEvent::Started(Box::new(CallStart {
            stream_id: stream.into_owned(),
            account_id: start.user_id,
            from: start.from,
            to: start.to,
            parameters,
            ..CallStart::new(start.call_control_id, input, output)
        })))
    }
}

impl Default for Telnyx {
    fn default() -> Self {
        Self::new(TelnyxOptions::default())
    }
}

impl Dialect for Telnyx {
    fn carrier(&self) -> Carrier {
        Carrier::Telnyx
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
                let format = self.call()?.input;
                if media.track.as_deref().is_some_and(|track| !track.starts_with("inbound")) {
                    ignored("media of another track")
                } else {
                    let order = self.options.byte_order;
                    json_stream::media(format, order, &media.payload, media.chunk, media.timestamp)?
                }
            }
            "mark" => {
                let mark = message.mark.ok_or_else(|| missing("mark"))?;
                CarrierEvent::Mark { name: mark.name.into_owned() }
            }
            "dtmf" => {
                let dtmf = message.dtmf.ok_or_else(|| missing("dtmf"))?;
                key(&dtmf.digit, None)
            }
            "connected" => CarrierEvent::Connected { token: message.token },
            "start" => {
                let start = message.start.ok_or_else(|| missing("start"))?;
                let stream = message.stream_id.ok_or_else(|| missing("stream_id"))?;
                self.start(stream, start)?
            }
            "stop" => {
                self.over = true;
                CarrierEvent::Stopped { reason: None }
            }
            "error" => error(message.payload.as_ref()),
            other => ignored(other),
        };
        heard.events.push(event);
        Ok(())
    }

    fn audio(&mut self, audio: &AudioFrame, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        let format = self.call()?.output;
        check_format(format, audio)?;
        let bytes = payload::ordered(format, self.options.byte_order, &audio.data);
        let mut text = String::with_capacity(48 + bytes.len() * 4 / 3);
        text.push_str(r#"{"event":"media","media":{"payload":""#);
        payload::encode_into(&bytes, &mut text);
        text.push_str(r#""}}"#);
        frames.push(json_stream::frame(text));
        Ok(())
    }

    fn mark(&mut self, name: &str, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        self.call()?;
        let name = json_stream::quoted(name);
        let text = format!(r#"{{"event":"mark","mark":{{"name":{name}}}}}"#);
        frames.push(json_stream::frame(text));
        Ok(())
    }

    fn clear(&mut self, frames: &mut Vec<Frame>) -> Result<(), DialectError> {
        self.call()?;
        frames.push(json_stream::frame(r#"{"event":"clear"}"#.into()));
        Ok(())
    }
}

/// An error as Telnyx tells it. The names of its fields are not certain, so none is needed.
fn error(payload: Option<&Value>) -> CarrierEvent {
    let field = |name: &str| match payload.and_then(|payload| payload.get(name)) {
        Some(Value::String(text)) => Some(text.chars().take(200).collect::<String>()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let message = field("detail").or_else(|| field("title")).unwrap_or_default();
    CarrierEvent::Error { code: field("code"), message }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow, default)]
    stream_id: Option<Cow<'a, str>>,
    #[serde(default, rename = "x-telnyx-streaming-auth-token")]
    token: Option<String>,
    #[serde(default)]
    start: Option<Start>,
    #[serde(borrow, default)]
    media: Option<MediaBody<'a>>,
    #[serde(borrow, default)]
    mark: Option<Mark<'a>>,
    #[serde(borrow, default)]
    dtmf: Option<Dtmf<'a>>,
    #[serde(default)]
    payload: Option<Value>,
}

#[derive(Deserialize)]
struct Start {
    call_control_id: String,
    #[serde(default)]
    user_id: Option<String>,
    #[serde(default)]
    from: Option<String>,
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    client_state: Option<String>,
    #[serde(default, deserialize_with = "json_stream::texts")]
    custom_parameters: BTreeMap<String, String>,
    media_format: MediaFormat,
}

#[derive(Deserialize)]
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
}
