//! Frames as the carriers' own pages print them, and everything else that may come.

use base64_simd::STANDARD;
use proptest::prelude::*;

use super::*;

const PCMU: AudioFormat = AudioFormat::Mulaw8k;

fn text(text: &str) -> Frame {
    Frame::Text(text.to_owned().into())
}

fn parse(dialect: &mut dyn Dialect, frame: &Frame) -> Result<Vec<CarrierEvent>, DialectError> {
    let mut heard = Heard::default();
    dialect.parse(frame, &mut heard)?;
    assert!(heard.frames.is_empty());
    Ok(heard.events)
}

fn one(dialect: &mut dyn Dialect, frame: &str) -> CarrierEvent {
    let mut events = parse(dialect, &text(frame)).unwrap();
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

fn started(event: CarrierEvent) -> CallStart {
    match event {
        CarrierEvent::Started(start) => *start,
        other => panic!("{other:?}"),
    }
}

/// What a dialect writes, as text.
fn written(
    dialect: &mut dyn Dialect,
    write: impl FnOnce(&mut dyn Dialect, &mut Vec<Frame>) -> Result<(), DialectError>,
) -> Vec<String> {
    let mut frames = Vec::new();
    write(dialect, &mut frames).unwrap();
    let texts = frames.into_iter().map(|frame| match frame {
        Frame::Text(text) => text.as_str().to_owned(),
        other => panic!("{other:?}"),
    });
    texts.collect()
}

const TWILIO_START: &str = r#"{"event":"start","sequenceNumber":"1","start":{"accountSid":"AC1",
    "streamSid":"MZ1","callSid":"CA1","tracks":["inbound"],"mediaFormat":{"encoding":"audio/x-mulaw",
    "sampleRate":8000,"channels":1},"customParameters":{"token":"t","RemoteParty":"Bob"}},
    "streamSid":"MZ1"}"#;

#[test]
fn twilio_frames_as_its_pages_print_them() {
    let twilio = &mut Twilio::new();
    let connected = r#"{"event":"connected","protocol":"Call","version":"1.0.0"}"#;
    assert_eq!(one(twilio, connected), CarrierEvent::Connected { token: None });
    let start = started(one(twilio, TWILIO_START));
    assert_eq!((&*start.call_id, &*start.stream_id), ("CA1", "MZ1"));
    assert_eq!((start.account_id.as_deref(), start.from.as_deref()), (Some("AC1"), None));
    assert_eq!(start.parameters["RemoteParty"], "Bob");
    assert_eq!((start.input, start.output), (PCMU, PCMU));

    let media = r#"{"event":"media","sequenceNumber":"3","media":{"track":"inbound","chunk":"1",
        "timestamp":"5","payload":"no+JhoaJjpz/"},"streamSid":"MZ1"}"#;
    let CarrierEvent::Media(media) = one(twilio, media) else { panic!() };
    assert_eq!((media.sequence, media.timestamp), (Some(1), Some(Duration::from_millis(5))));
    assert_eq!(media.audio, AudioFrame::new(PCMU, STANDARD.decode_to_vec("no+JhoaJjpz/").unwrap()));

    let dtmf = r#"{"event":"dtmf","streamSid":"MZ1","sequenceNumber":"5",
        "dtmf":{"track":"inbound_track","digit":"1"}}"#;
    assert_eq!(one(twilio, dtmf), CarrierEvent::Digit { digit: '1', held: None });
    let mark = r#"{"event":"mark","sequenceNumber":"4","streamSid":"MZ1","mark":{"name":"0-1"}}"#;
    assert_eq!(one(twilio, mark), CarrierEvent::Mark { name: "0-1".into() });
    let outbound =
        r#"{"event":"media","streamSid":"MZ1","media":{"track":"outbound","payload":""}}"#;
    assert!(matches!(one(twilio, outbound), CarrierEvent::Ignored { .. }), "our own voice");
    assert!(matches!(one(twilio, r#"{"event":"new"}"#), CarrierEvent::Ignored { .. }));

    let audio = AudioFrame::new(PCMU, vec![0xff; 3]);
    assert_eq!(
        written(twilio, |it, out| it.audio(&audio, out)),
        [r#"{"event":"media","streamSid":"MZ1","media":{"payload":"////"}}"#]
    );
    assert_eq!(
        written(twilio, |it, out| it.mark("0-1", out)),
        [r#"{"event":"mark","streamSid":"MZ1","mark":{"name":"0-1"}}"#]
    );
    assert_eq!(
        written(twilio, |it, out| it.clear(out)),
        [r#"{"event":"clear","streamSid":"MZ1"}"#]
    );

    let stop = r#"{"event":"stop","sequenceNumber":"5","streamSid":"MZ1",
        "stop":{"accountSid":"AC1","callSid":"CA1"}}"#;
    assert_eq!(one(twilio, stop), CarrierEvent::Stopped { reason: None });
    assert!(matches!(one(twilio, stop), CarrierEvent::Ignored { .. }), "it is over");
}

#[test]
fn twilio_messages_that_may_not_come() {
    let twilio = &mut Twilio::new();
    let media = r#"{"event":"media","media":{"payload":"////"}}"#;
    let out_of_order = |result| matches!(result, Err(DialectError::OutOfOrder(_)));
    assert!(out_of_order(parse(twilio, &text(media))));
    assert!(out_of_order(twilio.clear(&mut Vec::new()).map(|()| Vec::new())));
    let binary = parse(twilio, &Frame::Binary(vec![0; 160].into())).unwrap_err();
    assert_eq!(binary.close_code(), 1002);
    let large = format!(r#"{{"event":"{}"}}"#, "x".repeat(70_000));
    assert_eq!(parse(twilio, &text(&large)).unwrap_err().close_code(), 1009);
    let other = TWILIO_START.replace("audio/x-mulaw", "audio/x-opus");
    assert_eq!(parse(twilio, &text(&other)).unwrap_err().close_code(), 1003);
    let rate = TWILIO_START.replace("8000", "16000");
    assert!(matches!(parse(twilio, &text(&rate)), Err(DialectError::Format(_))));
    started(one(twilio, TWILIO_START));
    assert!(out_of_order(parse(twilio, &text(TWILIO_START))));
    let bad = r#"{"event":"media","media":{"payload":"!"}}"#;
    let error = parse(twilio, &text(bad)).unwrap_err().to_string();
    assert!(!error.contains('!'), "what came is in no log: {error}");
    // What no caller can help ends no call.
    for odd in [
        r#"{"event":"dtmf","dtmf":{"digit":"!"}}"#,
        r#"{"event":"dtmf","dtmf":{"digit":"12"}}"#,
        r#"{"event":"dtmf","dtmf":{"digit":""}}"#,
    ] {
        assert!(matches!(one(twilio, odd), CarrierEvent::Ignored { .. }), "{odd}");
    }
    for stamp in [r#""""#, "-4", r#""2.5""#, "null"] {
        let media = format!(
            r#"{{"event":"media","media":{{"chunk":{stamp},"timestamp":{stamp},"payload":"////"}}}}"#
        );
        let CarrierEvent::Media(media) = one(twilio, &media) else { panic!("{stamp}") };
        assert_eq!((media.sequence, media.timestamp, media.audio.samples()), (None, None, 3));
    }
    let pcm = AudioFrame::from_pcm16(8_000, &[0; 160]);
    assert!(matches!(twilio.audio(&pcm, &mut Vec::new()), Err(DialectError::WrongFormat { .. })));
}

#[test]
fn signalwire_has_wide_band_and_says_how_long_a_key_was_held() {
    let signalwire = &mut Twilio::signalwire();
    let start = TWILIO_START.replace("audio/x-mulaw", "audio/x-l16").replace("8000", "24000");
    let start = started(one(signalwire, &start));
    assert_eq!(start.input, AudioFormat::pcm16(24_000));
    let dtmf = r##"{"event":"dtmf","dtmf":{"digit":"#","duration":120}}"##;
    let held = Some(Duration::from_millis(120));
    assert_eq!(one(signalwire, dtmf), CarrierEvent::Digit { digit: '#', held });
    let media = r#"{"event":"media","media":{"payload":"AQACAA=="}}"#;
    let CarrierEvent::Media(media) = one(signalwire, media) else { panic!() };
    assert_eq!(media.audio, AudioFrame::from_pcm16(24_000, &[1, 2]));
    let odd = r#"{"event":"media","media":{"payload":"AQAC"}}"#;
    assert!(parse(signalwire, &text(odd)).is_err(), "half a sample");
}

const TELNYX_START: &str = r#"{"event":"start","sequence_number":"1","stream_id":"S1","start":{
    "user_id":"U1","call_control_id":"v3:C1","call_session_id":"X","from":"+15550001","to":"+15550002",
    "tags":[],"client_state":"aGV5","custom_parameters":{"token":"t"},
    "media_format":{"encoding":"PCMA","sample_rate":8000,"channels":1}}}"#;

#[test]
fn telnyx_frames_as_its_pages_print_them() {
    let telnyx = &mut Telnyx::default();
    let connected =
        r#"{"event":"connected","version":"1.0.0","x-telnyx-streaming-auth-token":"secret"}"#;
    let token = Some("secret".to_owned());
    assert_eq!(one(telnyx, connected), CarrierEvent::Connected { token });
    let start = started(one(telnyx, TELNYX_START));
    assert_eq!((&*start.call_id, &*start.stream_id), ("v3:C1", "S1"));
    assert_eq!(
        (start.from.as_deref(), start.to.as_deref()),
        (Some("+15550001"), Some("+15550002"))
    );
    // The leg is A-law; what goes back is what Telnyx takes where nothing was said.
    assert_eq!((start.input, start.output), (AudioFormat::Alaw8k, AudioFormat::Mulaw8k));
    assert_eq!(start.parameters["client_state"], "aGV5");
    let media = r#"{"event":"media","sequence_number":"4","stream_id":"S1","media":{"track":"inbound",
        "chunk":"2","timestamp":"20","payload":"1dXV"}}"#;
    let CarrierEvent::Media(media) = one(telnyx, media) else { panic!() };
    assert_eq!((media.sequence, media.audio.samples()), (Some(2), 3));
    let dtmf = r#"{"event":"dtmf","stream_id":"S1","occurred_at":"2026-01-01T00:00:00Z",
        "sequence_number":"5","dtmf":{"digit":"*"}}"#;
    assert_eq!(one(telnyx, dtmf), CarrierEvent::Digit { digit: '*', held: None });
    let error = r#"{"event":"error","stream_id":"S1","payload":{"code":100002,"title":"unknown",
        "detail":"bad frame"}}"#;
    let (code, message) = (Some("100002".to_owned()), "bad frame".to_owned());
    assert_eq!(one(telnyx, error), CarrierEvent::Error { code, message });
    let audio = AudioFrame::new(AudioFormat::Mulaw8k, vec![0xd5; 3]);
    assert_eq!(
        written(telnyx, |it, out| it.audio(&audio, out)),
        [r#"{"event":"media","media":{"payload":"1dXV"}}"#]
    );
    assert_eq!(
        written(telnyx, |it, out| it.mark("0-1", out)),
        [r#"{"event":"mark","mark":{"name":"0-1"}}"#]
    );
    assert_eq!(written(telnyx, |it, out| it.clear(out)), [r#"{"event":"clear"}"#]);
    let stop = r#"{"event":"stop","sequence_number":"9","stream_id":"S1","stop":{"user_id":"U1",
        "call_control_id":"v3:C1"}}"#;
    assert_eq!(one(telnyx, stop), CarrierEvent::Stopped { reason: None });
}

#[test]
fn telnyx_directions_may_have_different_formats_and_wide_band_is_in_network_order() {
    let output = Some(AudioFormat::pcm16(16_000));
    let telnyx = &mut Telnyx::new(TelnyxOptions { output, ..TelnyxOptions::default() });
    let start = started(one(telnyx, TELNYX_START));
    assert_eq!((start.input, start.output), (AudioFormat::Alaw8k, AudioFormat::pcm16(16_000)));
    let audio = AudioFrame::from_pcm16(16_000, &[0x0102]);
    assert_eq!(
        written(telnyx, |it, out| it.audio(&audio, out)),
        [r#"{"event":"media","media":{"payload":"AQI="}}"#]
    );
    let wide = TELNYX_START.replace("PCMA", "L16").replace("8000", "16000");
    for (order, expected) in [(ByteOrder::BigEndian, 0x0102), (ByteOrder::LittleEndian, 0x0201)] {
        let telnyx = &mut Telnyx::new(TelnyxOptions { byte_order: order, output: None });
        started(one(telnyx, &wide));
        let media = r#"{"event":"media","media":{"payload":"AQI="}}"#;
        let CarrierEvent::Media(media) = one(telnyx, media) else { panic!() };
        assert_eq!(media.audio, AudioFrame::from_pcm16(16_000, &[expected]));
    }
    let opus = TELNYX_START.replace("PCMA", "OPUS");
    let refused = parse(&mut Telnyx::default(), &text(&opus));
    assert!(matches!(refused, Err(DialectError::Format(_))));
}

fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind, (body.len() >> 8) as u8, body.len() as u8];
    bytes.extend_from_slice(body);
    bytes
}

/// A whole call over AudioSocket: UUID, audio, a key, audio, hang-up.
fn audiosocket_call() -> Vec<u8> {
    let uuid = [
        0x40, 0x32, 0x5e, 0xc2, 0x5e, 0xfd, 0x4b, 0xd3, 0x80, 0x5f, 0x53, 0x57, 0x6e, 0x58, 0x1d,
        0x13,
    ];
    [
        packet(0x01, &uuid),
        packet(0x10, &[1, 0].repeat(160)),
        packet(0x03, b"#"),
        packet(0x10, &[2, 0].repeat(240)),
        packet(0x00, &[]),
    ]
    .concat()
}

fn audiosocket_events(pieces: &[&[u8]]) -> Result<Vec<CarrierEvent>, DialectError> {
    let socket = &mut AudioSocket::new();
    let mut events = Vec::new();
    for piece in pieces {
        events.extend(parse(socket, &Frame::Binary(piece.to_vec().into()))?);
    }
    Ok(events)
}

#[test]
fn audiosocket_packets_as_asterisk_sends_them() {
    let call = audiosocket_call();
    let events = audiosocket_events(&[&call]).unwrap();
    let start = started(events[0].clone());
    assert_eq!(start.call_id, "40325ec2-5efd-4bd3-805f-53576e581d13");
    assert_eq!(start.input, AudioFormat::pcm16(8_000));
    assert!(matches!(&events[1], CarrierEvent::Media(media) if media.audio.samples() == 160));
    assert_eq!(events[2], CarrierEvent::Digit { digit: '#', held: None });
    assert!(matches!(&events[3], CarrierEvent::Media(media) if media.audio.samples() == 240));
    assert_eq!(events[4], CarrierEvent::Stopped { reason: None });

    let socket = &mut AudioSocket::new();
    parse(socket, &Frame::Binary(call[..400].to_vec().into())).unwrap();
    let mut frames = Vec::new();
    socket.audio(&AudioFrame::from_pcm16(8_000, &[0x0102, 3]), &mut frames).unwrap();
    socket.hang_up(&mut frames).unwrap();
    let expected = [&[0x10, 0, 4, 2, 1, 3, 0][..], &[0, 0, 0][..]];
    assert_eq!(frames, expected.map(|bytes| Frame::Binary(bytes.to_vec().into())));
    assert!(matches!(socket.clear(&mut frames), Err(DialectError::Unsupported(_))));
}

#[test]
fn audiosocket_wide_band_answers_in_kind() {
    let socket = &mut AudioSocket::new();
    let bytes = [packet(0x01, &[0; 16]), packet(0x12, &[0; 640])].concat();
    let events = parse(socket, &Frame::Binary(bytes.into())).unwrap();
    assert_eq!(started(events[0].clone()).output, AudioFormat::pcm16(16_000));
    let mut frames = Vec::new();
    socket.audio(&AudioFrame::from_pcm16(16_000, &[0; 320]), &mut frames).unwrap();
    assert!(matches!(&frames[0], Frame::Binary(bytes) if bytes[..3] == [0x12, 2, 128]));
    let other = parse(socket, &Frame::Binary(packet(0x10, &[0; 320]).into()));
    assert!(matches!(other, Err(DialectError::Format(_))), "another rate in the middle");
}

#[test]
fn audiosocket_starts_for_a_caller_who_is_silent_and_keeps_the_keys_of_before() {
    let mut socket = AudioSocket::new().silent_rate(Some(16_000));
    let mut heard = Heard::default();
    socket.quiet(&mut heard);
    assert!(heard.events.is_empty(), "nobody has said what call it is");
    let bytes = [packet(0x01, &[0; 16]), packet(0x03, b"7"), packet(0x03, b"?")].concat();
    assert!(parse(&mut socket, &Frame::Binary(bytes.into())).unwrap().is_empty());
    socket.quiet(&mut heard);
    assert_eq!(started(heard.events[0].clone()).input, AudioFormat::pcm16(16_000));
    assert_eq!(heard.events[1], CarrierEvent::Digit { digit: '7', held: None });
    assert!(matches!(heard.events[2], CarrierEvent::Ignored { .. }));
    socket.quiet(&mut heard);
    assert_eq!(heard.events.len(), 3, "once");
}

#[test]
fn audiosocket_hears_a_caller_with_another_rate_who_was_silent_at_the_start() {
    let (mut socket, mut heard) = (AudioSocket::new(), Heard::default());
    let name = Frame::Binary(packet(0x01, &[7; 16]).into());
    socket.parse(&name, &mut heard).unwrap();
    socket.quiet(&mut heard);
    let start = started(heard.events.remove(0));
    assert_eq!(start.output, AudioFormat::pcm16(8_000));
    let wide = Frame::Binary(packet(0x12, &[1; 640]).into());
    socket.parse(&wide, &mut heard).unwrap();
    let input = AudioFormat::pcm16(16_000);
    assert_eq!(heard.events[0], CarrierEvent::Format { input });
    assert!(matches!(&heard.events[1], CarrierEvent::Media(media) if media.audio.format == input));
    // What is said is answered as before, and no third rate comes.
    let mut frames = Vec::new();
    socket.audio(&AudioFrame::new(start.output, vec![0; 320]), &mut frames).unwrap();
    let other = Frame::Binary(packet(0x10, &[1; 320]).into());
    assert!(socket.parse(&other, &mut heard).is_err());
}

#[test]
fn audiosocket_packets_that_may_not_come() {
    let errors = |pieces: &[&[u8]]| audiosocket_events(pieces).unwrap_err();
    assert!(matches!(errors(&[&packet(0x10, &[0; 320])]), DialectError::OutOfOrder(_)));
    assert!(matches!(errors(&[&packet(0x77, &[])]), DialectError::Malformed(_)));
    assert!(matches!(errors(&[&packet(0x01, &[0; 15])]), DialectError::Malformed(_)));
    let id = packet(0x01, &[0; 16]);
    assert!(matches!(errors(&[&id, &id]), DialectError::OutOfOrder(_)));
    assert!(matches!(errors(&[&id, &packet(0x10, &[0; 3])]), DialectError::Malformed(_)));
    let too_fast = packet(0x18, &[0; 2]);
    assert!(matches!(errors(&[&id, &too_fast]), DialectError::Format(_)), "192 kHz");
}

const ASTERISK_START: &str = r#"{"event":"MEDIA_START","connection_id":"c1","channel":"WebSocket/agent/1",
    "channel_id":"1700000000.1","format":"ulaw","optimal_frame_size":160,"ptime":20,
    "channel_variables":{"token":"t","from":"+1555"}}"#;

#[test]
fn asterisk_frames_in_json() {
    let asterisk = &mut AsteriskWebSocket::default();
    let start = started(one(asterisk, ASTERISK_START));
    assert_eq!((&*start.call_id, &*start.stream_id), ("1700000000.1", "c1"));
    assert_eq!((start.from.as_deref(), &*start.parameters["token"]), (Some("+1555"), "t"));
    assert_eq!(start.input, PCMU);
    let events = parse(asterisk, &Frame::Binary(vec![0xff; 240].into())).unwrap();
    assert!(matches!(&events[..], [CarrierEvent::Media(m)] if m.audio.samples() == 240), "30 ms");
    let dtmf = r#"{"event":"DTMF_END","channel_id":"1","digit":"9"}"#;
    assert_eq!(one(asterisk, dtmf), CarrierEvent::Digit { digit: '9', held: None });
    let mark = r#"{"event":"MEDIA_MARK_PROCESSED","channel_id":"1","correlation_id":"0-3"}"#;
    assert_eq!(one(asterisk, mark), CarrierEvent::Mark { name: "0-3".into() });
    assert_eq!(one(asterisk, r#"{"event":"MEDIA_XOFF"}"#), CarrierEvent::Flow { open: false });
    assert_eq!(one(asterisk, r#"{"event":"MEDIA_XON"}"#), CarrierEvent::Flow { open: true });
    let commands = written(asterisk, |it, out| {
        it.mark("0-3", out)?;
        it.clear(out)?;
        it.hang_up(out)
    });
    assert_eq!(
        commands,
        [
            r#"{"command":"MARK_MEDIA","correlation_id":"0-3"}"#,
            r#"{"command":"FLUSH_MEDIA"}"#,
            r#"{"command":"HANGUP"}"#,
        ]
    );
    let mut frames = Vec::new();
    asterisk.audio(&AudioFrame::new(PCMU, vec![1; 160]), &mut frames).unwrap();
    assert_eq!(frames, [Frame::Binary(vec![1; 160].into())]);
    let name = "f".repeat(32);
    let mark = written(asterisk, |it, out| it.mark(&name, out));
    assert!(mark[0].len() <= 128, "Asterisk drops longer commands");
}

#[test]
fn asterisk_frames_in_plain_text() {
    let asterisk = &mut AsteriskWebSocket::default();
    let plain = "MEDIA_START connection_id:c1 channel:WebSocket/agent/1 channel_id:1.1 format:slin16 \
        optimal_frame_size:640 ptime:20";
    let start = started(one(asterisk, plain));
    assert_eq!((&*start.call_id, start.input), ("1.1", AudioFormat::pcm16(16_000)));
    let commands = written(asterisk, |it, out| {
        it.mark("0-3", out)?;
        it.clear(out)
    });
    assert_eq!(commands, ["MARK_MEDIA 0-3", "FLUSH_MEDIA"]);
    assert_eq!(
        one(asterisk, "MEDIA_MARK_PROCESSED correlation_id:0-3"),
        CarrierEvent::Mark { name: "0-3".into() }
    );
    let digit = CarrierEvent::Digit { digit: '1', held: None };
    assert_eq!(one(asterisk, "DTMF_END digit:1"), digit);
    assert!(matches!(one(asterisk, "STATUS queue_length:3"), CarrierEvent::Ignored { .. }));
    assert!(parse(asterisk, &text("not an event")).is_err());
}

#[test]
fn asterisk_media_before_the_start_is_kept_and_not_without_end() {
    let asterisk = &mut AsteriskWebSocket::default();
    assert_eq!(parse(asterisk, &Frame::Binary(vec![7; 320].into())).unwrap(), []);
    let events = parse(asterisk, &text(ASTERISK_START)).unwrap();
    assert!(matches!(&events[1], CarrierEvent::Media(media) if media.audio.samples() == 320));
    let endless = &mut AsteriskWebSocket::default();
    let piece = Frame::Binary(vec![7; 32_000].into());
    let mut results = (0..10).map(|_| parse(endless, &piece));
    assert!(results.any(|result| matches!(result, Err(DialectError::OutOfOrder(_)))));
}

#[test]
fn names_find_their_dialects() {
    for carrier in Carrier::ALL {
        assert_eq!(carrier.name().parse(), Ok(carrier));
        let dialect = dialect(carrier, &DialectOptions::default());
        assert_eq!(dialect.carrier(), carrier);
        let able = dialect.capabilities();
        assert_eq!(able.clears, able.marks != MarkMeaning::None, "{carrier}");
        assert!(able.pacing.lead() < able.buffer, "{carrier} would lose audio");
    }
    assert!("plivo".parse::<Carrier>().is_err());
}

/// Texts that look like messages, and some that do not.
fn messages() -> impl Strategy<Value = Frame> {
    let names = prop::sample::select(vec![
        "connected",
        "start",
        "media",
        "mark",
        "dtmf",
        "stop",
        "error",
        "MEDIA_START",
        "DTMF_END",
        "x",
    ]);
    let values = prop_oneof![
        Just("null".to_owned()),
        Just("{}".to_owned()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        Just(r#""""#.to_owned()),
        Just(r#"{"payload":"AAAA","chunk":"x","timestamp":-5}"#.to_owned()),
        Just(r#"{"payload":"A"}"#.to_owned()),
        Just(r#"{"digit":"7"}"#.to_owned()),
        Just(r#"{"name":"\u0000"}"#.to_owned()),
        "[ -~]{0,20}",
    ];
    let json = (names.clone(), names.clone(), values)
        .prop_map(|(event, key, value)| text(&format!(r#"{{"event":"{event}","{key}":{value}}}"#)));
    prop_oneof![
        json,
        Just(text(TWILIO_START)),
        Just(text(TELNYX_START)),
        Just(text(ASTERISK_START)),
        "\\PC{0,64}".prop_map(|any| text(&any)),
        prop::collection::vec(any::<u8>(), 0..600).prop_map(|bytes| Frame::Binary(bytes.into())),
        Just(Frame::Close(None)),
        Just(Frame::Ping(Bytes::new())),
    ]
}

/// How a call of a carrier begins.
fn beginning(carrier: Carrier) -> Frame {
    match carrier {
        Carrier::Twilio | Carrier::SignalWire => text(TWILIO_START),
        Carrier::Telnyx => text(TELNYX_START),
        Carrier::Asterisk => text(ASTERISK_START),
        Carrier::AudioSocket => {
            Frame::Binary([packet(0x01, &[7; 16]), packet(0x10, &[0; 320])].concat().into())
        }
    }
}

/// Messages of a call that has begun: those that there are, with fields that are missing, of another
/// kind or too large; and packets of all kinds and lengths, cut anywhere.
fn messages_of_a_call() -> impl Strategy<Value = Frame> {
    let value = || {
        prop_oneof![
            Just("null".to_owned()),
            Just("[]".to_owned()),
            Just("{}".to_owned()),
            Just(r#""MZ""#.to_owned()),
            any::<i64>().prop_map(|number| number.to_string()),
            any::<f64>().prop_map(|number| format!("{:?}", number.abs().min(1e308))),
            "[A-Za-z0-9+/]{0,8}={0,2}".prop_map(|text| format!("\"{text}\"")),
            (0_usize..70_000).prop_map(|length| format!("\"{}\"", "A".repeat(length))),
        ]
    };
    let media = prop::collection::vec(
        (prop::sample::select(vec!["payload", "chunk", "timestamp", "track"]), value()),
        0..5,
    );
    let fields = |all: Vec<(&str, String)>| {
        let all: Vec<_> = all.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        all.join(",")
    };
    let event = prop::sample::select(vec![
        ("media", "media"),
        ("mark", "mark"),
        ("dtmf", "dtmf"),
        ("stop", "stop"),
        ("error", "payload"),
        ("DTMF_END", "digit"),
        ("MEDIA_MARK_PROCESSED", "correlation_id"),
        ("MEDIA_XOFF", "channel_id"),
        ("STATUS", "queue_length"),
    ]);
    let json = (event.clone(), media, value()).prop_map(move |((event, name), media, sequence)| {
        let inner = fields(media);
        text(&format!(r#"{{"event":"{event}","sequenceNumber":{sequence},"{name}":{{{inner}}}}}"#))
    });
    let flat = (event, value()).prop_map(|((event, name), value)| {
        text(&format!(r#"{{"event":"{event}","{name}":{value}}}"#))
    });
    let kinds = prop_oneof![0_u8..=3, 0x0f_u8..=0x1a, any::<u8>()];
    let packets = (kinds, prop::collection::vec(any::<u8>(), 0..700), 0_usize..704).prop_map(
        |(kind, body, keep)| {
            let mut packet = packet(kind, &body);
            packet.truncate(keep.max(1));
            Frame::Binary(packet.into())
        },
    );
    prop_oneof![json, flat, packets]
}

proptest! {
    #[test]
    fn no_message_makes_a_parser_panic(
        any in prop::collection::vec(messages(), 0..6),
        of_a_call in prop::collection::vec(messages_of_a_call(), 0..8),
        carrier in prop::sample::select(Carrier::ALL.to_vec()),
        begun in any::<bool>(),
    ) {
        let mut dialect = dialect(carrier, &DialectOptions::default());
        let mut starts = 0;
        let mut frames = if begun { vec![beginning(carrier)] } else { Vec::new() };
        frames.extend(of_a_call);
        frames.extend(any);
        for frame in &frames {
            let mut heard = Heard::default();
            let result = dialect.parse(frame, &mut heard);
            for event in heard.events {
                match event {
                    CarrierEvent::Started(_) => starts += 1,
                    CarrierEvent::Media(media) => {
                        let width = media.audio.format.bytes_per_sample();
                        prop_assert!(media.audio.data.len().is_multiple_of(width));
                        prop_assert_eq!(starts, 1, "media belongs to a call");
                    }
                    _ => {}
                }
            }
            if let Err(error) = result {
                prop_assert!((1002..=1009).contains(&error.close_code()));
                break;
            }
        }
        prop_assert!(starts <= 1);
    }

    #[test]
    fn audiosocket_may_be_cut_anywhere(cuts in prop::collection::vec(0_usize..900, 0..20)) {
        let call = audiosocket_call();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(call.len())).collect();
        cuts.push(call.len());
        cuts.sort_unstable();
        let mut from = 0;
        let mut pieces = Vec::new();
        for cut in cuts {
            pieces.push(&call[from..cut]);
            from = cut;
        }
        prop_assert_eq!(audiosocket_events(&pieces).unwrap(), audiosocket_events(&[&call]).unwrap());
    }

    #[test]
    fn audio_survives_the_way_out_and_back(
        samples in prop::collection::vec(any::<i16>(), 1..400),
        big in any::<bool>(),
    ) {
        let order = if big { ByteOrder::BigEndian } else { ByteOrder::LittleEndian };
        let telnyx = &mut Telnyx::new(TelnyxOptions { byte_order: order, output: Some(AudioFormat::pcm16(16_000)) });
        started(one(telnyx, &TELNYX_START.replace("PCMA", "L16").replace("8000", "16000")));
        let audio = AudioFrame::from_pcm16(16_000, &samples);
        let sent = written(telnyx, |it, out| it.audio(&audio, out)).remove(0);
        let CarrierEvent::Media(media) = one(telnyx, &sent) else { panic!() };
        prop_assert_eq!(media.audio, audio);
    }
}
