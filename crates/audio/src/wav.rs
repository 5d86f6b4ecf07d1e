//! WAV files: read whole, written as it comes.

use std::{
    fs::File,
    io::{BufReader, BufWriter, Read, Seek, Write},
    path::Path,
};

use hound::{SampleFormat, WavSpec};

use crate::{AudioError, AudioFrame, pcm::from_f32};

/// Larger files are refused: they are read into memory. Three hours of 48 kHz, 16 bits.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// By so many bytes a WAV file is known.
const MAGIC_BYTES: u64 = 12;

/// The audio of a WAV file, as one channel of 16 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WavAudio {
    /// Samples per second: 8,000 to 48,000.
    pub sample_rate_hz: u32,
    /// The samples; at least one.
    pub samples: Vec<i16>,
}

impl WavAudio {
    /// Reads a file: PCM of 16, 24 or 32 bits or 32-bit float, one or two channels (mixed to one),
    /// 8 to 48 kHz. Everything else is [`AudioError::File`] with a reason that says what it is.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, AudioError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| file_error(&name, &error.to_string()))?;
        Self::read(BufReader::new(file), &name)
    }

    /// Like [`WavAudio::open`], from anything that can be read; errors call it `name`.
    pub fn read(reader: impl Read, name: &str) -> Result<Self, AudioError> {
        let bytes = read_whole(reader).map_err(|reason| file_error(name, &reason))?;
        decode(&bytes).map_err(|reason| file_error(name, &reason))
    }

    /// The whole as one frame.
    pub fn frame(&self) -> AudioFrame {
        AudioFrame::from_pcm16(self.sample_rate_hz, &self.samples)
    }

    /// Writes a WAV file of one channel and 16 bits.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AudioError> {
        let mut writer = WavWriter::create(path, self.sample_rate_hz)?;
        writer.write(&self.samples)?;
        writer.finish()
    }
}

/// Writes a WAV file of one channel and 16 bits as the samples come. A writer that is dropped
/// leaves a correct file too; [`WavWriter::finish`] also tells of errors.
pub struct WavWriter<W: Write + Seek = BufWriter<File>> {
    inner: hound::WavWriter<W>,
    name: String,
    sample_rate_hz: u32,
}

impl WavWriter {
    /// Creates the file, or empties it.
    pub fn create(path: impl AsRef<Path>, sample_rate_hz: u32) -> Result<Self, AudioError> {
        let name = path.as_ref().display().to_string();
        let file = File::create(path).map_err(|error| file_error(&name, &error.to_string()))?;
        Self::new(BufWriter::new(file), sample_rate_hz, name)
    }
}

impl<W: Write + Seek> WavWriter<W> {
    /// The most samples that a file can hold: its lengths are 32-bit numbers.
    const MAX_SAMPLES: u32 = (u32::MAX - 1_024) / 2;

    /// Writes to anything that can seek; errors call it `name`.
    pub fn new(
        writer: W,
        sample_rate_hz: u32,
        name: impl Into<String>,
    ) -> Result<Self, AudioError> {
        let name = name.into();
        let spec = WavSpec {
            channels: 1,
            sample_rate: sample_rate_hz,
            bits_per_sample: 16,
            sample_format: SampleFormat::Int,
        };
        match hound::WavWriter::new(writer, spec) {
            Ok(inner) => Ok(Self { inner, name, sample_rate_hz }),
            Err(error) => Err(file_error(&name, &error.to_string())),
        }
    }

    /// Samples per second.
    pub fn sample_rate_hz(&self) -> u32 {
        self.sample_rate_hz
    }

    /// Samples written so far.
    pub fn samples(&self) -> u64 {
        u64::from(self.inner.len())
    }

    /// Appends samples. A file ends at 4 GiB: what goes beyond is an error, and nothing of it is
    /// written.
    pub fn write(&mut self, samples: &[i16]) -> Result<(), AudioError> {
        let count = self.reserve(samples.len() as u64)?;
        let mut block = self.inner.get_i16_writer(count);
        samples.iter().for_each(|&sample| block.write_sample(sample));
        block.flush().map_err(|error| file_error(&self.name, &error.to_string()))
    }

    /// Appends `samples` samples of silence.
    pub fn write_silence(&mut self, samples: u64) -> Result<(), AudioError> {
        self.reserve(samples)?;
        let mut left = samples;
        while left > 0 {
            let count = left.min(SILENCE.len() as u64);
            self.write(&SILENCE[..count as usize])?;
            left -= count;
        }
        Ok(())
    }

    /// Brings the file up to date, header included, so that a crash later leaves a correct file.
    pub fn flush(&mut self) -> Result<(), AudioError> {
        self.inner.flush().map_err(|error| file_error(&self.name, &error.to_string()))
    }

    /// Completes the file.
    pub fn finish(self) -> Result<(), AudioError> {
        self.inner.finalize().map_err(|error| file_error(&self.name, &error.to_string()))
    }

    fn reserve(&self, samples: u64) -> Result<u32, AudioError> {
        match u32::try_from(samples) {
            Ok(count) if count <= Self::MAX_SAMPLES - self.inner.len() => Ok(count),
            _ => Err(file_error(&self.name, "a WAV file holds no more than 4 GiB")),
        }
    }
}

impl<W: Write + Seek> std::fmt::Debug for WavWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WavWriter")
            .field("name", &self.name)
            .field("samples", &self.samples())
            .finish_non_exhaustive()
    }
}

static SILENCE: [i16; 4_096] = [0; 4_096];

fn file_error(path: &str, reason: &str) -> AudioError {
    AudioError::File { path: path.to_owned(), reason: reason.to_owned() }
}

/// The bytes of a WAV file. What is none may be endless, so the beginning is looked at first.
fn read_whole(reader: impl Read) -> Result<Vec<u8>, String> {
    let mut reader = reader.take(MAGIC_BYTES);
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    check_magic(&bytes)?;
    reader.set_limit(MAX_FILE_BYTES + 1 - MAGIC_BYTES);
    reader.read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// The samples in the bytes of a file, or what is wrong with it.
fn decode(bytes: &[u8]) -> Result<WavAudio, String> {
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("the file is larger than 1 GiB".to_owned());
    }
    check_magic(bytes)?;
    let layout = Layout::of(bytes)?;
    let samples = layout.samples(layout.audio(bytes)?);
    if samples.is_empty() {
        return Err("there is no audio in the file".to_owned());
    }
    Ok(WavAudio { sample_rate_hz: layout.sample_rate_hz, samples })
}

/// Tells apart what people take for WAV files.
fn check_magic(bytes: &[u8]) -> Result<(), String> {
    let what = match bytes {
        [] => "the file is empty",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => return Ok(()),
        [b'R', b'I', b'F', b'F', _, _, _, _, ..] if bytes.len() >= 12 => {
            "a RIFF file, but not a WAV file"
        }
        [b'R', b'I', b'F', b'F', ..] => "the file is cut off",
        [b'I', b'D', b'3', ..] => "not a WAV file but MP3",
        [0xff, second, ..] if second & 0xe0 == 0xe0 => "not a WAV file but MP3 or AAC",
        [b'O', b'g', b'g', b'S', ..] => "not a WAV file but Ogg",
        [b'f', b'L', b'a', b'C', ..] => "not a WAV file but FLAC",
        [b'F', b'O', b'R', b'M', ..] => "not a WAV file but AIFF",
        [b'R', b'I', b'F', b'X', ..] => "a big-endian WAV file",
        [b'R', b'F', b'6', b'4', ..] => "a 64-bit WAV file (RF64)",
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => "not a WAV file but MP4",
        _ => "not a WAV file",
    };
    Err(what.to_owned())
}

/// What the headers say.
struct Layout {
    encoding: Encoding,
    channels: usize,
    sample_rate_hz: u32,
    /// Where the audio begins, and how long the header says it is, in bytes.
    offset: usize,
    length: u32,
}

#[derive(Clone, Copy)]
enum Encoding {
    /// Signed, little-endian.
    Int16,
    Int24,
    Int32,
    Float32,
}

impl Layout {
    /// Programs that write to a pipe cannot know the length and put a huge one.
    const UNKNOWN_LENGTH: u32 = 0x7fff_0000;

    /// Walks the chunks up to the audio. (`hound` reads WAV files too, but stumbles over chunks of
    /// an odd length and over unknown lengths.)
    fn of(bytes: &[u8]) -> Result<Self, String> {
        let cut_off = || "the file is cut off within its header".to_owned();
        let mut format = None;
        let mut offset = 12;
        loop {
            let header = bytes.get(offset..offset + 8).ok_or_else(cut_off)?;
            let length = u32_at(header, 4);
            offset += 8;
            match &header[..4] {
                b"fmt " if length < 16 => return Err("the header is malformed".to_owned()),
                b"fmt " => {
                    // 16 bytes always, 40 if the format is of the extensible kind.
                    let end = offset + (length as usize).min(40);
                    format = Some(bytes.get(offset..end).ok_or_else(cut_off)?);
                }
                b"data" => {
                    let format = format.ok_or("the header does not say what the audio is")?;
                    return Self::parse(format, offset, length);
                }
                _ => {}
            }
            // Chunks are padded to an even length.
            offset = (length as usize)
                .checked_next_multiple_of(2)
                .and_then(|length| offset.checked_add(length))
                .filter(|&offset| offset <= bytes.len())
                .ok_or_else(cut_off)?;
        }
    }

    fn parse(format: &[u8], offset: usize, length: u32) -> Result<Self, String> {
        /// The tag that says: the real tag is further on.
        const EXTENSIBLE: u16 = 0xfffe;
        let tag = match u16_at(format, 0) {
            EXTENSIBLE if format.len() >= 40 => u16_at(format, 24),
            EXTENSIBLE => return Err("the header is malformed".to_owned()),
            tag => tag,
        };
        let encoding = Encoding::of(tag, u16_at(format, 14))?;
        let (channels, sample_rate_hz) = (u16_at(format, 2), u32_at(format, 4));
        if channels == 0 {
            return Err("the header says zero channels".to_owned());
        }
        if channels > 2 {
            return Err(format!("{channels} channels; it must be one or two"));
        }
        if !(8_000..=48_000).contains(&sample_rate_hz) {
            return Err(format!(
                "a sample rate of {sample_rate_hz} Hz; it must be from 8000 to 48000 Hz"
            ));
        }
        Ok(Self { encoding, channels: channels.into(), sample_rate_hz, offset, length })
    }

    /// The bytes of the audio.
    fn audio<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], String> {
        let rest = &bytes[self.offset..];
        match rest.get(..self.length as usize) {
            Some(audio) => Ok(audio),
            None if self.length >= Self::UNKNOWN_LENGTH => Ok(rest),
            None => Err(format!(
                "the file is cut off: {} bytes of audio where the header says {}",
                rest.len(),
                self.length
            )),
        }
    }

    /// One channel of 16 bits from the bytes of the audio; an incomplete last sample is left out.
    fn samples(&self, audio: &[u8]) -> Vec<i16> {
        let width = self.encoding.width();
        audio
            .chunks_exact(width * self.channels)
            .map(|bytes| {
                let sum: i32 =
                    bytes.chunks_exact(width).map(|one| i32::from(self.encoding.sample(one))).sum();
                (sum / self.channels as i32) as i16
            })
            .collect()
    }
}

impl Encoding {
    fn of(tag: u16, bits: u16) -> Result<Self, String> {
        let compressed = match (tag, bits) {
            (1, 16) => return Ok(Self::Int16),
            (1, 24) => return Ok(Self::Int24),
            (1, 32) => return Ok(Self::Int32),
            (3, 32) => return Ok(Self::Float32),
            (1 | 3, _) => {
                return Err(format!(
                    "{bits} bits a sample; it must be 16, 24 or 32, or 32-bit floating point"
                ));
            }
            (2 | 0x11, _) => "ADPCM",
            (6, _) => "A-law",
            (7, _) => "mu-law",
            (0x31, _) => "GSM",
            (0x50 | 0x55, _) => "MP3",
            _ => "compressed",
        };
        Err(format!("{compressed} audio (format {tag:#x}); it must be PCM"))
    }

    /// Bytes in a sample.
    fn width(self) -> usize {
        match self {
            Self::Int16 => 2,
            Self::Int24 => 3,
            Self::Int32 | Self::Float32 => 4,
        }
    }

    fn sample(self, bytes: &[u8]) -> i16 {
        match (self, bytes) {
            (Self::Int16, &[a, b]) => i16::from_le_bytes([a, b]),
            (Self::Int24, &[a, b, c]) => round_to_upper(i32::from_le_bytes([0, a, b, c])),
            (Self::Int32, &[a, b, c, d]) => round_to_upper(i32::from_le_bytes([a, b, c, d])),
            (Self::Float32, &[a, b, c, d]) => from_f32(f32::from_le_bytes([a, b, c, d])),
            // The caller cuts samples of the right width.
            _ => 0,
        }
    }
}

/// The upper 16 bits, rounded.
fn round_to_upper(sample: i32) -> i16 {
    (sample.saturating_add(0x8000) >> 16) as i16
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from(u16_at(bytes, offset)) | u32::from(u16_at(bytes, offset + 2)) << 16
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn ramp() -> Vec<i16> {
        (0..1_000).map(|i| (i * 65 - 32_500) as i16).collect()
    }

    fn file(spec: WavSpec, write: impl Fn(&mut hound::WavWriter<&mut Cursor<Vec<u8>>>)) -> Vec<u8> {
        let mut cursor = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut cursor, spec).unwrap();
        write(&mut writer);
        writer.finalize().unwrap();
        cursor.into_inner()
    }

    fn spec(channels: u16, bits: u16, sample_format: SampleFormat) -> WavSpec {
        WavSpec { channels, sample_rate: 16_000, bits_per_sample: bits, sample_format }
    }

    fn pcm16() -> Vec<u8> {
        file(spec(1, 16, SampleFormat::Int), |writer| {
            ramp().into_iter().for_each(|sample| writer.write_sample(sample).unwrap());
        })
    }

    fn reason(bytes: &[u8]) -> String {
        match WavAudio::read(bytes, "x.wav") {
            Err(AudioError::File { path, reason }) => {
                assert_eq!(path, "x.wav");
                reason
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_accepted_encoding_gives_the_same_samples() {
        let expected = WavAudio { sample_rate_hz: 16_000, samples: ramp() };
        for (bits, format) in [(16, SampleFormat::Int), (24, SampleFormat::Int)] {
            for channels in [1, 2] {
                let bytes = file(spec(channels, bits, format), |writer| {
                    for sample in ramp() {
                        for _ in 0..channels {
                            writer.write_sample(i32::from(sample) << (bits - 16)).unwrap();
                        }
                    }
                });
                assert_eq!(WavAudio::read(&bytes[..], "").unwrap(), expected);
            }
        }
        let int32 = file(spec(1, 32, SampleFormat::Int), |writer| {
            ramp().into_iter().for_each(|s| writer.write_sample(i32::from(s) << 16).unwrap());
        });
        assert_eq!(WavAudio::read(&int32[..], "").unwrap(), expected);
        let float = file(spec(2, 32, SampleFormat::Float), |writer| {
            for sample in ramp().into_iter().flat_map(|sample| [sample; 2]) {
                writer.write_sample(crate::pcm::to_f32(sample)).unwrap();
            }
        });
        assert_eq!(WavAudio::read(&float[..], "").unwrap(), expected);
    }

    #[test]
    fn two_channels_are_mixed_without_overflow() {
        let bytes = file(spec(2, 16, SampleFormat::Int), |writer| {
            for sample in [i16::MAX, i16::MAX, i16::MIN, i16::MIN, 100, -50] {
                writer.write_sample(sample).unwrap();
            }
        });
        assert_eq!(WavAudio::read(&bytes[..], "").unwrap().samples, [i16::MAX, i16::MIN, 25]);
    }

    #[test]
    fn chunks_before_and_after_the_audio_are_skipped() {
        let plain = pcm16();
        let mut bytes = plain[..36].to_vec();
        bytes.extend(*b"LIST\x03\0\0\0abc\0");
        bytes.extend(&plain[36..]);
        bytes.extend(*b"cue \x04\0\0\0abcd");
        assert_eq!(WavAudio::read(&bytes[..], "").unwrap().samples, ramp());
    }

    #[test]
    fn a_length_that_the_writer_did_not_know_means_up_to_the_end() {
        let mut bytes = pcm16();
        bytes[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(WavAudio::read(&bytes[..], "").unwrap().samples, ramp());
    }

    #[test]
    fn what_is_not_accepted_is_named() {
        let mut other = pcm16();
        assert!(reason(&other[..1_000]).contains("cut off: 956 bytes"));
        assert!(reason(&other[..30]).contains("within its header"));
        assert_eq!(reason(b""), "the file is empty");
        assert_eq!(reason(b"ID3\x04 and so on"), "not a WAV file but MP3");
        assert_eq!(reason(b"#!/bin/sh"), "not a WAV file");
        other[22..24].copy_from_slice(&[0, 0]);
        assert_eq!(reason(&other), "the header says zero channels");
        other[22..24].copy_from_slice(&[6, 0]);
        assert!(reason(&other).starts_with("6 channels"));
        other[20..22].copy_from_slice(&[0x55, 0]);
        assert!(reason(&other).starts_with("MP3 audio"));
        let fast = WavSpec { sample_rate: 96_000, ..spec(1, 16, SampleFormat::Int) };
        assert!(
            reason(&file(fast, |writer| writer.write_sample(1_i16).unwrap())).contains("96000")
        );
        let eight = spec(1, 8, SampleFormat::Int);
        assert!(
            reason(&file(eight, |writer| writer.write_sample(1_i8).unwrap())).contains("8 bits")
        );
        let empty = file(spec(1, 16, SampleFormat::Int), |_| ());
        assert_eq!(reason(&empty), "there is no audio in the file");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = WavAudio::open("/no/such/file.wav").unwrap_err().to_string();
        assert!(error.starts_with("/no/such/file.wav: No such file"), "{error}");
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let good = pcm16();
        for position in 0..64 {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = good.clone();
                bytes[position] = value;
                let _ = WavAudio::read(&bytes[..], "");
            }
            let _ = WavAudio::read(&good[..position], "");
        }
    }

    #[test]
    fn a_dropped_writer_leaves_a_correct_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.wav");
        let mut writer = WavWriter::create(&path, 24_000).unwrap();
        writer.write(&[1, 2, 3]).unwrap();
        writer.write_silence(10_000).unwrap();
        assert_eq!(writer.samples(), 10_003);
        drop(writer);
        let audio = WavAudio::open(&path).unwrap();
        assert_eq!((audio.sample_rate_hz, audio.samples.len()), (24_000, 10_003));
        assert_eq!(audio.samples[..4], [1, 2, 3, 0]);
        audio.save(&path).unwrap();
        assert_eq!(WavAudio::open(&path).unwrap(), audio);
    }

    #[test]
    fn what_never_ends_is_refused_by_its_beginning() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                self.0 += buffer.len() as u64;
                assert!(self.0 < 1 << 20, "read on");
                buffer.fill(0);
                Ok(buffer.len())
            }
        }
        let error = WavAudio::read(Endless(0), "zero").unwrap_err();
        assert!(error.to_string().contains("not a WAV file"), "{error}");
    }

    #[test]
    fn a_file_takes_no_more_than_its_header_can_say() {
        let mut writer = WavWriter::new(Cursor::new(Vec::new()), 8_000, "big").unwrap();
        assert!(writer.write_silence(1 << 31).is_err());
        assert_eq!(writer.samples(), 0);
    }
}
