//! Encoder and decoder.

use bytes::Bytes;
use opus::{Application, Bitrate, Channels};

use crate::{AudioError, AudioFormat, AudioFrame};

/// Largest packet that one frame of 20 ms can need (RFC 6716, section 3.4).
const MAX_PACKET_BYTES: usize = 1_275;

/// Longest packet that a sender may use: 120 ms, in frames of 20 ms.
const MAX_FRAMES_PER_PACKET: usize = 6;

/// Rates that Opus codes at.
const RATES_HZ: [u32; 5] = [8_000, 12_000, 16_000, 24_000, 48_000];

/// How to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpusOptions {
    /// Bits per second, 6,000 to 510,000. Default 24,000, which is transparent for speech at 16
    /// and 24 kHz.
    pub bitrate: u32,
    /// Effort, 0 to 10. Default 5: half the time of 10, and no difference for speech.
    pub complexity: u8,
    /// Packets that the network is expected to lose, 0 to 100 percent. Above zero, packets carry
    /// enough of the one before for [`OpusDecoder::recover`]. Default 0.
    pub expected_loss_percent: u8,
}

impl Default for OpusOptions {
    fn default() -> Self {
        Self { bitrate: 24_000, complexity: 5, expected_loss_percent: 0 }
    }
}

impl OpusOptions {
    /// At `bitrate` bits per second.
    pub fn bitrate(mut self, bitrate: u32) -> Self {
        self.bitrate = bitrate;
        self
    }

    /// With `complexity`, 0 to 10.
    pub fn complexity(mut self, complexity: u8) -> Self {
        self.complexity = complexity;
        self
    }

    /// Prepared for the loss of `percent` of the packets.
    pub fn expected_loss_percent(mut self, percent: u8) -> Self {
        self.expected_loss_percent = percent;
        self
    }

    fn check(self) -> Result<Self, AudioError> {
        let in_range = (6_000..=510_000).contains(&self.bitrate)
            && self.complexity <= 10
            && self.expected_loss_percent <= 100;
        in_range.then_some(self).ok_or_else(|| {
            AudioError::Unsupported(format!(
                "Opus at {} bit/s, complexity {}, {} % loss: 6,000 to 510,000 bit/s, 0 to 10 and \
                 0 to 100 % are possible",
                self.bitrate, self.complexity, self.expected_loss_percent
            ))
        })
    }
}

/// Encodes 16-bit PCM frames of 20 ms, each into one packet.
#[derive(Debug)]
pub struct OpusEncoder {
    encoder: opus::Encoder,
    format: AudioFormat,
    samples: Vec<i16>,
    packet: [u8; MAX_PACKET_BYTES],
    delay_samples: u32,
}

impl OpusEncoder {
    /// An encoder of `sample_rate_hz`, tuned for speech.
    ///
    /// # Errors
    /// [`AudioError::Unsupported`] for a rate that is not 8, 12, 16, 24 or 48 kHz, or options out
    /// of range.
    pub fn new(sample_rate_hz: u32, options: OpusOptions) -> Result<Self, AudioError> {
        check_rate(sample_rate_hz)?;
        let options = options.check()?;
        let mut encoder =
            opus::Encoder::new(sample_rate_hz, Channels::Mono, Application::Voip).map_err(codec)?;
        encoder.set_bitrate(Bitrate::Bits(options.bitrate as i32)).map_err(codec)?;
        encoder.set_complexity(i32::from(options.complexity)).map_err(codec)?;
        encoder.set_inband_fec(options.expected_loss_percent > 0).map_err(codec)?;
        encoder.set_packet_loss_perc(i32::from(options.expected_loss_percent)).map_err(codec)?;
        let delay_samples = encoder.get_lookahead().map_err(codec)?.unsigned_abs();
        let format = AudioFormat::pcm16(sample_rate_hz);
        let samples = Vec::with_capacity(frame_samples(format));
        Ok(Self { encoder, format, samples, packet: [0; MAX_PACKET_BYTES], delay_samples })
    }

    /// The format of the frames it takes.
    pub fn format(&self) -> AudioFormat {
        self.format
    }

    /// Samples in a frame.
    pub fn frame_samples(&self) -> usize {
        frame_samples(self.format)
    }

    /// How much later a sample comes out of a decoder than it went in here.
    pub fn delay_samples(&self) -> u32 {
        self.delay_samples
    }

    /// One frame as one packet.
    ///
    /// # Errors
    /// [`AudioError::FormatMismatch`] for another format, [`AudioError::Unsupported`] for a frame
    /// that is not exactly 20 ms long.
    pub fn encode(&mut self, frame: &AudioFrame) -> Result<Bytes, AudioError> {
        if frame.format != self.format {
            return Err(AudioError::FormatMismatch { expected: self.format, got: frame.format });
        }
        if frame.samples() != self.frame_samples() {
            return Err(AudioError::Unsupported(format!(
                "an Opus frame of {:?}: 20 ms are needed",
                frame.duration()
            )));
        }
        self.samples.clear();
        let samples = frame.data.chunks_exact(2);
        self.samples.extend(samples.map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]])));
        self.encode_samples()
    }

    fn encode_samples(&mut self) -> Result<Bytes, AudioError> {
        let length = self.encoder.encode(&self.samples, &mut self.packet).map_err(codec)?;
        Ok(Bytes::copy_from_slice(&self.packet[..length]))
    }

    /// Forgets the past: what comes next is a new signal.
    pub fn reset(&mut self) -> Result<(), AudioError> {
        self.encoder.reset_state().map_err(codec)
    }
}

/// Decodes packets of up to 120 ms into 16-bit PCM.
#[derive(Debug)]
pub struct OpusDecoder {
    decoder: opus::Decoder,
    format: AudioFormat,
    samples: Vec<i16>,
}

impl OpusDecoder {
    /// A decoder that puts out `sample_rate_hz`; it need not be the rate that was encoded.
    ///
    /// # Errors
    /// [`AudioError::Unsupported`] for a rate that is not 8, 12, 16, 24 or 48 kHz.
    pub fn new(sample_rate_hz: u32) -> Result<Self, AudioError> {
        check_rate(sample_rate_hz)?;
        let decoder = opus::Decoder::new(sample_rate_hz, Channels::Mono).map_err(codec)?;
        let format = AudioFormat::pcm16(sample_rate_hz);
        let samples = vec![0; frame_samples(format) * MAX_FRAMES_PER_PACKET];
        Ok(Self { decoder, format, samples })
    }

    /// The format of the frames it puts out.
    pub fn format(&self) -> AudioFormat {
        self.format
    }

    /// What a packet holds.
    ///
    /// # Errors
    /// [`AudioError::Codec`] for bytes that are no Opus packet; the decoder lives on.
    pub fn decode(&mut self, packet: &[u8]) -> Result<AudioFrame, AudioError> {
        if packet.is_empty() {
            // To the decoder an empty packet means a lost one.
            return Err(AudioError::Codec("an empty Opus packet".into()));
        }
        let samples = self.decoder.decode(packet, &mut self.samples, false).map_err(codec)?;
        Ok(self.frame(samples))
    }

    /// 20 ms that sound like what came before, fading out over repeated calls: in place of a packet
    /// that was lost.
    pub fn conceal(&mut self) -> Result<AudioFrame, AudioError> {
        self.lost(&[])
    }

    /// The 20 ms before `next`, which was lost, from what `next` carries of it (see
    /// [`OpusOptions::expected_loss_percent`]), concealed if it carries nothing. Decode `next`
    /// itself after this.
    pub fn recover(&mut self, next: &[u8]) -> Result<AudioFrame, AudioError> {
        self.lost(next)
    }

    /// Forgets the past: what comes next is a new signal.
    pub fn reset(&mut self) -> Result<(), AudioError> {
        self.decoder.reset_state().map_err(codec)
    }

    fn lost(&mut self, next: &[u8]) -> Result<AudioFrame, AudioError> {
        let missing = frame_samples(self.format);
        let samples = self
            .decoder
            .decode(next, &mut self.samples[..missing], !next.is_empty())
            .map_err(codec)?;
        Ok(self.frame(samples))
    }

    fn frame(&self, samples: usize) -> AudioFrame {
        AudioFrame::from_pcm16(self.format.sample_rate_hz(), &self.samples[..samples])
    }
}

fn frame_samples(format: AudioFormat) -> usize {
    format.sample_rate_hz() as usize / 50
}

fn check_rate(sample_rate_hz: u32) -> Result<(), AudioError> {
    if RATES_HZ.contains(&sample_rate_hz) {
        return Ok(());
    }
    Err(AudioError::Unsupported(format!(
        "Opus at {sample_rate_hz} Hz: 8,000, 12,000, 16,000, 24,000 and 48,000 are possible"
    )))
}

fn codec(error: opus::Error) -> AudioError {
    AudioError::Codec(format!("Opus: {}", error.description()))
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use super::*;

    /// A vowel of sorts: a pitch that glides and its harmonics.
    fn voice(rate: u32, samples: usize) -> Vec<i16> {
        let mut phase = 0.0f32;
        (0..samples)
            .map(|i| {
                let seconds = i as f32 / rate as f32;
                phase += TAU * (220.0 + 30.0 * (TAU * 0.7 * seconds).sin()) / rate as f32;
                let tone: f32 =
                    (1..=12u8).map(|n| (phase * f32::from(n)).sin() / f32::from(n)).sum();
                (tone * 6_000.0 * (0.6 + 0.4 * (TAU * 3.0 * seconds).sin())) as i16
            })
            .collect()
    }

    fn samples(frame: &AudioFrame) -> Vec<i16> {
        frame.data.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect()
    }

    /// Correlation of two signals, 1 for the same up to loudness.
    fn correlation(a: &[i16], b: &[i16]) -> f64 {
        let dot = |x: &[i16], y: &[i16]| -> f64 {
            x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
        };
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(1.0)
    }

    /// The lag of `b` behind `a`, up to 20 ms, at which they are most alike.
    fn best_correlation(a: &[i16], b: &[i16], rate: u32) -> (f64, usize) {
        (0..rate as usize / 50)
            .map(|lag| (correlation(&a[..a.len() - lag], &b[lag..]), lag))
            .max_by(|x, y| x.0.total_cmp(&y.0))
            .unwrap()
    }

    #[test]
    fn speech_survives_the_round_trip_at_every_rate() {
        for rate in RATES_HZ {
            let frame = rate as usize / 50;
            let input = voice(rate, frame * 100);
            let mut encoder = OpusEncoder::new(rate, OpusOptions::default()).unwrap();
            let mut decoder = OpusDecoder::new(rate).unwrap();
            let mut output = Vec::new();
            for piece in input.chunks(frame) {
                let packet = encoder.encode(&AudioFrame::from_pcm16(rate, piece)).unwrap();
                assert!(packet.len() < 200, "{rate} Hz: {} bytes", packet.len());
                output.extend(samples(&decoder.decode(&packet).unwrap()));
            }
            assert_eq!(output.len(), input.len());
            let delay = encoder.delay_samples() as usize;
            let (same, lag) = best_correlation(&input[frame * 5..], &output[frame * 5..], rate);
            println!("{rate} Hz: correlation {same:.3} at lag {lag}, {delay} announced");
            assert!(same > 0.9, "{rate} Hz: correlation {same}");
            assert!(lag.abs_diff(delay) <= rate as usize / 500, "{rate} Hz: lag {lag}, {delay}");
        }
    }

    #[test]
    fn another_rate_comes_out_than_went_in() {
        let mut encoder = OpusEncoder::new(16_000, OpusOptions::default()).unwrap();
        let mut decoder = OpusDecoder::new(48_000).unwrap();
        let packet = encoder.encode(&AudioFrame::from_pcm16(16_000, &voice(16_000, 320))).unwrap();
        let frame = decoder.decode(&packet).unwrap();
        assert_eq!(frame.format, AudioFormat::pcm16(48_000));
        assert_eq!(frame.samples(), 960);
    }

    #[test]
    fn a_lost_packet_is_concealed_by_something_like_it() {
        let input = voice(16_000, 320 * 50);
        let mut encoder = OpusEncoder::new(16_000, OpusOptions::default()).unwrap();
        let mut decoder = OpusDecoder::new(16_000).unwrap();
        let mut before = 0.0;
        for (number, piece) in input.chunks(320).enumerate() {
            let packet = encoder.encode(&AudioFrame::from_pcm16(16_000, piece)).unwrap();
            if number == 30 {
                let filled = samples(&decoder.conceal().unwrap());
                let power = power(&filled);
                assert_eq!(filled.len(), 320);
                assert!(power > before / 4.0 && power < before * 4.0, "{power} after {before}");
                return;
            }
            before = power(&samples(&decoder.decode(&packet).unwrap()));
        }
    }

    #[test]
    fn a_long_loss_fades_to_silence() {
        let mut encoder = OpusEncoder::new(16_000, OpusOptions::default()).unwrap();
        let mut decoder = OpusDecoder::new(16_000).unwrap();
        for piece in voice(16_000, 320 * 20).chunks(320) {
            let packet = encoder.encode(&AudioFrame::from_pcm16(16_000, piece)).unwrap();
            decoder.decode(&packet).unwrap();
        }
        let first = power(&samples(&decoder.conceal().unwrap()));
        let mut last = first;
        for _ in 0..50 {
            last = power(&samples(&decoder.conceal().unwrap()));
        }
        assert!(last < first / 1_000.0, "{first} to {last}");
    }

    #[test]
    fn the_next_packet_helps_to_recover_a_lost_one() {
        let options = OpusOptions::default().expected_loss_percent(30);
        let input = voice(16_000, 320 * 50);
        let mut encoder = OpusEncoder::new(16_000, options).unwrap();
        let packets: Vec<Bytes> = input
            .chunks(320)
            .map(|piece| encoder.encode(&AudioFrame::from_pcm16(16_000, piece)).unwrap())
            .collect();
        let mut whole = OpusDecoder::new(16_000).unwrap();
        let mut lossy = OpusDecoder::new(16_000).unwrap();
        for packet in &packets[..30] {
            whole.decode(packet).unwrap();
            lossy.decode(packet).unwrap();
        }
        let sent = samples(&whole.decode(&packets[30]).unwrap());
        let recovered = samples(&lossy.recover(&packets[31]).unwrap());
        let (same, _) = best_correlation(&sent, &recovered, 16_000);
        assert!(same > 0.7, "{same}");
    }

    #[test]
    fn rubbish_is_an_error_and_the_decoder_lives_on() {
        let mut decoder = OpusDecoder::new(16_000).unwrap();
        assert!(matches!(decoder.decode(&[]), Err(AudioError::Codec(_))));
        // Code 3 with a frame count of zero is not allowed (RFC 6716, section 3.2.5).
        assert!(matches!(decoder.decode(&[0xff, 0x00]), Err(AudioError::Codec(_))));
        let mut encoder = OpusEncoder::new(16_000, OpusOptions::default()).unwrap();
        let packet = encoder.encode(&AudioFrame::from_pcm16(16_000, &[0; 320])).unwrap();
        assert_eq!(decoder.decode(&packet).unwrap().samples(), 320);
    }

    #[test]
    fn what_cannot_be_encoded_is_refused() {
        let unsupported = |rate, options| {
            matches!(OpusEncoder::new(rate, options), Err(AudioError::Unsupported(_)))
        };
        assert!(unsupported(44_100, OpusOptions::default()));
        assert!(unsupported(16_000, OpusOptions::default().bitrate(100)));
        assert!(unsupported(16_000, OpusOptions::default().complexity(11)));
        let mut encoder = OpusEncoder::new(16_000, OpusOptions::default()).unwrap();
        let short = AudioFrame::from_pcm16(16_000, &[0; 100]);
        assert!(matches!(encoder.encode(&short), Err(AudioError::Unsupported(_))));
        let other = AudioFrame::from_pcm16(24_000, &[0; 480]);
        assert!(matches!(encoder.encode(&other), Err(AudioError::FormatMismatch { .. })));
    }

    fn power(samples: &[i16]) -> f64 {
        samples.iter().map(|&s| f64::from(s).powi(2)).sum::<f64>() / samples.len().max(1) as f64
    }
}
