//! Ogg Opus files, as RFC 7845 describes them.

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::{BuildHasher, Hasher},
    io::{BufWriter, Write},
    path::Path,
};

use bytes::Bytes;
use ogg::{PacketWriteEndInfo, PacketWriter};

use super::codec::{OpusEncoder, OpusOptions};
use crate::{AudioError, AudioFormat, AudioFrame};

/// Positions in an Ogg Opus file count at this rate, whatever was encoded.
const GRANULE_RATE_HZ: u64 = 48_000;

/// What a packet of 20 ms adds to the position.
const GRANULES_PER_PACKET: u64 = 960;

/// A page is closed after this many packets, one second: what a reader must have before it can play.
const PACKETS_PER_PAGE: u64 = 50;

/// Writes an Ogg Opus file as audio comes.
///
/// Call [`OggOpusWriter::finish`] at the end: it cuts the padding of the last packet and reports
/// errors. A writer that is dropped finishes as well as it can.
pub struct OggOpusWriter<W: Write> {
    /// None once finished.
    packets: Option<PacketWriter<'static, W>>,
    encoder: OpusEncoder,
    serial: u32,
    /// Samples that do not fill a frame yet.
    pending: Vec<i16>,
    /// The newest packet waits for the next: the last one is marked.
    newest: Option<Bytes>,
    packets_encoded: u64,
    samples_written: u64,
    pre_skip: u64,
}

impl OggOpusWriter<BufWriter<File>> {
    /// Creates the file at `path`, for audio of `sample_rate_hz`.
    ///
    /// # Errors
    /// As [`OggOpusWriter::new`], and [`AudioError::File`] if it cannot be created.
    pub fn create(
        path: impl AsRef<Path>,
        sample_rate_hz: u32,
        options: OpusOptions,
    ) -> Result<Self, AudioError> {
        let path = path.as_ref();
        let file = File::create(path).map_err(|error| AudioError::File {
            path: path.display().to_string(),
            reason: error.to_string(),
        })?;
        Self::new(BufWriter::new(file), sample_rate_hz, options)
    }
}

impl<W: Write> OggOpusWriter<W> {
    /// Writes the two headers to `writer`; audio of `sample_rate_hz` may follow.
    ///
    /// # Errors
    /// [`AudioError::Unsupported`] for a rate that is not 8, 12, 16, 24 or 48 kHz or options out
    /// of range, [`AudioError::File`] if writing fails.
    pub fn new(writer: W, sample_rate_hz: u32, options: OpusOptions) -> Result<Self, AudioError> {
        let encoder = OpusEncoder::new(sample_rate_hz, options)?;
        let pre_skip = granules(u64::from(encoder.delay_samples()), sample_rate_hz);
        let serial = RandomState::new().build_hasher().finish() as u32;
        let mut packets = PacketWriter::new(writer);
        for header in [head(pre_skip as u16, sample_rate_hz), tags()] {
            packets
                .write_packet(header, serial, PacketWriteEndInfo::EndPage, 0)
                .map_err(write_error)?;
        }
        Ok(Self {
            packets: Some(packets),
            encoder,
            serial,
            pending: Vec::new(),
            newest: None,
            packets_encoded: 0,
            samples_written: 0,
            pre_skip,
        })
    }

    /// The format that [`OggOpusWriter::write`] takes.
    pub fn format(&self) -> AudioFormat {
        self.encoder.format()
    }

    /// Appends audio of any length.
    ///
    /// # Errors
    /// [`AudioError::FormatMismatch`] for another format, [`AudioError::File`] if writing fails.
    pub fn write(&mut self, frame: &AudioFrame) -> Result<(), AudioError> {
        if frame.format != self.format() {
            return Err(AudioError::FormatMismatch { expected: self.format(), got: frame.format });
        }
        self.samples_written += frame.samples() as u64;
        let samples = frame.data.chunks_exact(2);
        self.pending.extend(samples.map(|bytes| i16::from_le_bytes([bytes[0], bytes[1]])));
        let mut pending = std::mem::take(&mut self.pending);
        let mut frames = pending.chunks_exact(self.encoder.frame_samples());
        let written = frames.by_ref().try_for_each(|samples| self.encode(samples));
        let rest = frames.remainder().len();
        pending.drain(..pending.len() - rest);
        self.pending = pending;
        written
    }

    /// Writes what is left, marks the end and hands the writer back.
    ///
    /// # Errors
    /// [`AudioError::File`] if writing fails.
    pub fn finish(mut self) -> Result<W, AudioError> {
        self.end()?;
        // Taken only here and in `drop`.
        let packets = self.packets.take().ok_or_else(|| write_error("finished twice"))?;
        Ok(packets.into_inner())
    }

    fn end(&mut self) -> Result<(), AudioError> {
        let total = self.pre_skip + granules(self.samples_written, self.format().sample_rate_hz());
        // What the encoder still holds back comes out with silence behind it.
        while self.packets_encoded * GRANULES_PER_PACKET < total {
            let mut samples = std::mem::take(&mut self.pending);
            samples.resize(self.encoder.frame_samples(), 0);
            self.encode(&samples)?;
        }
        // At least the pre-skip was encoded, so there is a newest packet.
        if let Some(newest) = self.newest.take() {
            self.packet(newest, PacketWriteEndInfo::EndStream, total)?;
        }
        if let Some(packets) = &mut self.packets {
            packets.inner_mut().flush().map_err(write_error)?;
        }
        Ok(())
    }

    fn encode(&mut self, samples: &[i16]) -> Result<(), AudioError> {
        let frame = AudioFrame::from_pcm16(self.format().sample_rate_hz(), samples);
        let packet = self.encoder.encode(&frame)?;
        if let Some(before) = self.newest.replace(packet) {
            let number = self.packets_encoded;
            let page = match number % PACKETS_PER_PAGE {
                0 => PacketWriteEndInfo::EndPage,
                _ => PacketWriteEndInfo::NormalPacket,
            };
            self.packet(before, page, number * GRANULES_PER_PACKET)?;
        }
        self.packets_encoded += 1;
        Ok(())
    }

    fn packet(
        &mut self,
        packet: Bytes,
        end: PacketWriteEndInfo,
        granule: u64,
    ) -> Result<(), AudioError> {
        let Some(packets) = &mut self.packets else { return Ok(()) };
        packets.write_packet(Vec::from(packet), self.serial, end, granule).map_err(write_error)
    }
}

impl<W: Write> Drop for OggOpusWriter<W> {
    fn drop(&mut self) {
        if self.packets.is_some()
            && let Err(error) = self.end()
        {
            tracing::warn!(%error, "an Opus file was not finished");
        }
    }
}

impl<W: Write> std::fmt::Debug for OggOpusWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OggOpusWriter")
            .field("format", &self.format())
            .field("samples_written", &self.samples_written)
            .finish_non_exhaustive()
    }
}

/// The identification header (RFC 7845, section 5.1).
fn head(pre_skip: u16, sample_rate_hz: u32) -> Vec<u8> {
    let mut head = Vec::with_capacity(19);
    head.extend_from_slice(b"OpusHead");
    head.push(1); // version
    head.push(1); // channels
    head.extend_from_slice(&pre_skip.to_le_bytes());
    head.extend_from_slice(&sample_rate_hz.to_le_bytes());
    head.extend_from_slice(&0i16.to_le_bytes()); // gain
    head.push(0); // mapping family: mono or stereo
    head
}

/// The comment header (RFC 7845, section 5.2).
fn tags() -> Vec<u8> {
    let vendor = opus::version();
    let comments = [format!("ENCODER=antiphon-audio {}", env!("CARGO_PKG_VERSION"))];
    let mut tags = Vec::new();
    tags.extend_from_slice(b"OpusTags");
    string(&mut tags, vendor);
    tags.extend_from_slice(&(comments.len() as u32).to_le_bytes());
    for comment in &comments {
        string(&mut tags, comment);
    }
    tags
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn granules(samples: u64, sample_rate_hz: u32) -> u64 {
    samples * GRANULE_RATE_HZ / u64::from(sample_rate_hz)
}

fn write_error(error: impl ToString) -> AudioError {
    AudioError::File { path: "Ogg Opus".into(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use ogg::PacketReader;

    use super::*;
    use crate::opus::OpusDecoder;

    fn file(rate: u32, samples: &[i16], piece: usize) -> Vec<u8> {
        let mut writer = OggOpusWriter::new(Vec::new(), rate, OpusOptions::default()).unwrap();
        for piece in samples.chunks(piece) {
            writer.write(&AudioFrame::from_pcm16(rate, piece)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn a_file_read_back_has_the_length_that_was_written() {
        for (rate, length) in [(8_000, 1), (16_000, 16_000), (24_000, 70_001), (48_000, 960)] {
            let bytes = file(rate, &vec![100; length], 777);
            let mut reader = PacketReader::new(Cursor::new(bytes));
            let head = reader.read_packet_expected().unwrap().data;
            assert_eq!(&head[..8], b"OpusHead");
            let pre_skip = u64::from(u16::from_le_bytes([head[10], head[11]]));
            assert_eq!(&reader.read_packet_expected().unwrap().data[..8], b"OpusTags");
            let mut decoder = OpusDecoder::new(48_000).unwrap();
            let (mut decoded, mut end) = (0, 0);
            while let Some(packet) = reader.read_packet().unwrap() {
                decoded += decoder.decode(&packet.data).unwrap().samples() as u64;
                end = packet.absgp_page();
                if packet.last_in_stream() {
                    break;
                }
            }
            assert_eq!(end - pre_skip, granules(length as u64, rate), "{rate} Hz, {length}");
            assert!((end..end + GRANULES_PER_PACKET).contains(&decoded));
        }
    }

    #[test]
    fn a_dropped_writer_leaves_a_whole_file() {
        let mut bytes = Vec::new();
        let mut writer = OggOpusWriter::new(&mut bytes, 16_000, OpusOptions::default()).unwrap();
        writer.write(&AudioFrame::from_pcm16(16_000, &[5; 4_000])).unwrap();
        drop(writer);
        let mut reader = PacketReader::new(Cursor::new(bytes));
        let mut last = false;
        while let Some(packet) = reader.read_packet().unwrap() {
            last = packet.last_in_stream();
        }
        assert!(last);
    }

    #[test]
    fn another_format_is_refused() {
        let mut writer = OggOpusWriter::new(Vec::new(), 16_000, OpusOptions::default()).unwrap();
        let frame = AudioFrame::from_pcm16(8_000, &[0; 160]);
        assert!(matches!(writer.write(&frame), Err(AudioError::FormatMismatch { .. })));
    }

    #[test]
    fn a_file_that_cannot_be_created_is_named() {
        let error = OggOpusWriter::create("/nowhere/x.opus", 16_000, OpusOptions::default());
        let Err(AudioError::File { path, .. }) = error else { panic!("{error:?}") };
        assert_eq!(path, "/nowhere/x.opus");
    }
}
