//! From one audio format to another.

use bytes::Bytes;

use crate::{AudioError, AudioFormat, AudioFrame, Resampler, g711::Law, pcm};

/// Converts one stream of frames from one format to another: sample rate, G.711, or both. It keeps
/// the state of the stream, so each direction of each call has its own. One allocation per frame,
/// none if the formats are equal (the frame is passed on).
///
/// ```
/// use antiphon_audio::{AudioFormat, AudioFrame, Converter};
///
/// let mut to_carrier = Converter::new(AudioFormat::pcm16(24_000), AudioFormat::Mulaw8k)?;
/// let frame = AudioFrame::from_pcm16(24_000, &[0; 480]);
/// let first = to_carrier.convert(&frame)?;
/// let last = to_carrier.flush().expect("the resampler holds a little back");
/// assert_eq!(first.samples() + last.samples(), 160);
/// # Ok::<(), antiphon_audio::AudioError>(())
/// ```
#[derive(Debug)]
pub struct Converter {
    from: AudioFormat,
    to: AudioFormat,
    resampler: Resampler,
    /// Samples of the current frame before and after resampling; kept for their memory.
    decoded: Vec<i16>,
    resampled: Vec<i16>,
}

impl Converter {
    /// A converter from `from` to `to`. [`AudioError::Unsupported`] for sample rates outside of
    /// 8,000 to 48,000 Hz and for formats this version does not know.
    pub fn new(from: AudioFormat, to: AudioFormat) -> Result<Self, AudioError> {
        for format in [from, to] {
            Coding::of(format)?;
        }
        Ok(Self {
            from,
            to,
            resampler: Resampler::new(from.sample_rate_hz(), to.sample_rate_hz())?,
            decoded: Vec::new(),
            resampled: Vec::new(),
        })
    }

    /// The format that [`Converter::convert`] takes.
    pub fn input(&self) -> AudioFormat {
        self.from
    }

    /// The format that it returns.
    pub fn output(&self) -> AudioFormat {
        self.to
    }

    /// Converts the next frame. What comes out may be shorter or longer than what went in, even
    /// empty: a resampler holds a little back. [`AudioError::FormatMismatch`] when the frame is not
    /// in the format of this converter, [`AudioError::HalfSample`] when it is no whole number of
    /// samples; the stream is then as it was.
    pub fn convert(&mut self, frame: &AudioFrame) -> Result<AudioFrame, AudioError> {
        if frame.format != self.from {
            return Err(AudioError::FormatMismatch { expected: self.from, got: frame.format });
        }
        if !frame.data.len().is_multiple_of(self.from.bytes_per_sample()) {
            return Err(AudioError::HalfSample { bytes: frame.data.len() });
        }
        if self.from == self.to {
            return Ok(frame.clone());
        }
        self.decoded.clear();
        Coding::of(self.from)?.decode(&frame.data, &mut self.decoded);
        self.resampled.clear();
        self.resampler.process(&self.decoded, &mut self.resampled);
        self.encoded()
    }

    /// Ends the stream: what was held back, if anything. The converter is then as new.
    pub fn flush(&mut self) -> Option<AudioFrame> {
        self.resampled.clear();
        self.resampler.flush(&mut self.resampled);
        self.encoded().ok().filter(|frame| !frame.is_empty())
    }

    /// Forgets the stream: what was held back is lost.
    pub fn reset(&mut self) {
        self.resampler.reset();
    }

    /// How many samples, in the rate of the output, are held back at most.
    pub fn delay_samples(&self) -> usize {
        self.resampler.delay_samples()
    }

    fn encoded(&self) -> Result<AudioFrame, AudioError> {
        let data = Coding::of(self.to)?.encode(&self.resampled, self.to.bytes_per_sample());
        Ok(AudioFrame::new(self.to, data))
    }
}

enum Coding {
    Pcm16,
    G711(Law),
}

impl Coding {
    fn of(format: AudioFormat) -> Result<Self, AudioError> {
        match format {
            AudioFormat::Pcm16 { .. } => Ok(Self::Pcm16),
            AudioFormat::Mulaw8k => Ok(Self::G711(Law::Mu)),
            AudioFormat::Alaw8k => Ok(Self::G711(Law::A)),
            other => Err(AudioError::Unsupported(format!("the format {other:?}"))),
        }
    }

    fn decode(&self, bytes: &[u8], samples: &mut Vec<i16>) {
        match self {
            Self::Pcm16 => pcm::bytes_to_samples(bytes, samples),
            Self::G711(law) => law.decode_into(bytes, samples),
        }
    }

    fn encode(&self, samples: &[i16], width: usize) -> Bytes {
        // A vector that is exactly full becomes `Bytes` without another allocation.
        let mut bytes = Vec::with_capacity(samples.len() * width);
        match self {
            Self::Pcm16 => pcm::samples_to_bytes(samples, &mut bytes),
            Self::G711(law) => law.encode_into(samples, &mut bytes),
        }
        bytes.into()
    }
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;

    use proptest::prelude::*;

    use super::*;

    const PCM_8K: AudioFormat = AudioFormat::pcm16(8_000);
    const PCM_24K: AudioFormat = AudioFormat::pcm16(24_000);

    fn tone(sample_rate_hz: u32, samples: usize) -> AudioFrame {
        let step = 440.0 * TAU / sample_rate_hz as f32;
        let samples: Vec<i16> =
            (0..samples).map(|i| ((i as f32 * step).sin() * 10_000.0) as i16).collect();
        AudioFrame::from_pcm16(sample_rate_hz, &samples)
    }

    fn all(converter: &mut Converter, frames: &[AudioFrame]) -> Vec<u8> {
        let mut data = Vec::new();
        for frame in frames {
            data.extend_from_slice(&converter.convert(frame).unwrap().data);
        }
        if let Some(frame) = converter.flush() {
            data.extend_from_slice(&frame.data);
        }
        data
    }

    #[test]
    fn trial_f05_a_frame_of_another_format_is_refused() {
        let mut converter = Converter::new(PCM_8K, PCM_24K).unwrap();
        let error = converter.convert(&tone(16_000, 160)).unwrap_err();
        assert!(matches!(error, AudioError::FormatMismatch { expected: PCM_8K, .. }), "{error}");
        let mulaw = AudioFrame::new(AudioFormat::Mulaw8k, vec![0; 160]);
        assert!(converter.convert(&mulaw).is_err(), "the same rate is not the same format");
        let bytes_for_hertz = Converter::new(AudioFormat::pcm16(384_000), PCM_8K);
        assert!(matches!(bytes_for_hertz, Err(AudioError::Unsupported(_))));
    }

    #[test]
    fn half_a_sample_is_refused_and_does_not_shift_the_stream() {
        let frame = tone(8_000, 160);
        let mut untouched = Converter::new(PCM_8K, PCM_24K).unwrap();
        let expected = all(&mut untouched, std::slice::from_ref(&frame));
        let mut converter = Converter::new(PCM_8K, PCM_24K).unwrap();
        let odd = AudioFrame::new(PCM_8K, vec![1; 5]);
        assert!(matches!(converter.convert(&odd), Err(AudioError::HalfSample { bytes: 5 })));
        assert_eq!(all(&mut converter, &[frame]), expected);
        let mut same = Converter::new(PCM_8K, PCM_8K).unwrap();
        assert!(same.convert(&odd).is_err());
    }

    #[test]
    fn the_same_format_shares_the_bytes() {
        let frame = tone(24_000, 480);
        let mut converter = Converter::new(PCM_24K, PCM_24K).unwrap();
        let out = converter.convert(&frame).unwrap();
        assert_eq!(out.data.as_ptr(), frame.data.as_ptr());
        assert!(converter.flush().is_none());
    }

    #[test]
    fn a_call_to_a_carrier_and_back_keeps_the_tone() {
        let frame = tone(24_000, 24_000);
        let mut down = Converter::new(PCM_24K, AudioFormat::Mulaw8k).unwrap();
        let mut up = Converter::new(AudioFormat::Mulaw8k, PCM_24K).unwrap();
        let codes = all(&mut down, std::slice::from_ref(&frame));
        assert_eq!(codes.len(), 8_000);
        let back = all(&mut up, &[AudioFrame::new(AudioFormat::Mulaw8k, codes)]);
        let (mut sent, mut heard) = (Vec::new(), Vec::new());
        pcm::bytes_to_samples(&frame.data, &mut sent);
        pcm::bytes_to_samples(&back, &mut heard);
        assert_eq!(sent.len(), heard.len());
        let error: Vec<i16> = sent.iter().zip(&heard).map(|(a, b)| a - b).collect();
        let snr = pcm::dbfs(pcm::rms(&sent)) - pcm::dbfs(pcm::rms(&error[1_000..23_000]));
        assert!(snr > 33.0, "G.711 gives about 38 dB, this is {snr}");
    }

    proptest! {
        #[test]
        fn every_pair_of_formats_keeps_the_length(
            from in format(), to in format(), cuts in prop::collection::vec(0_usize..900, 1..12),
        ) {
            let mut converter = Converter::new(from, to).unwrap();
            let frames: Vec<AudioFrame> = cuts
                .iter()
                .map(|&samples| AudioFrame::new(from, vec![3; samples * from.bytes_per_sample()]))
                .collect();
            let samples: u64 = cuts.iter().sum::<usize>() as u64;
            let data = all(&mut converter, &frames);
            let expected = (samples * u64::from(to.sample_rate_hz()))
                .div_ceil(u64::from(from.sample_rate_hz()));
            prop_assert_eq!(data.len() as u64, expected * to.bytes_per_sample() as u64);
        }
    }

    fn format() -> impl Strategy<Value = AudioFormat> {
        prop_oneof![
            Just(AudioFormat::Mulaw8k),
            Just(AudioFormat::Alaw8k),
            prop::sample::select(&[8_000, 11_025, 16_000, 24_000, 44_100, 48_000][..])
                .prop_map(AudioFormat::pcm16),
        ]
    }
}
