//! Ears: the Moonshine recogniser for English.

mod cuts;
mod search;
mod tokenizer;

use std::{
    io::Read,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use antiphon_types::Status;
use async_trait::async_trait;
use rten::{NodeId, ThreadPool, Value, ValueOrView};
use rten_tensor::{Layout, NdTensor};

use super::{
    OfflineError,
    inference::{GivenUp, Lane, Network, unusable},
    models::{ModelDirectory, ModelFile},
};
use crate::{Alternative, Recognizer, SpeechError, Transcript, Utterance};
use cuts::pieces;
use search::{Bounds, Speller};
use tokenizer::Tokenizer;

const NAME: &str = "moonshine";
/// The only one that it knows.
const LANGUAGE: &str = "en";
const SAMPLE_RATE_HZ: u32 = 16_000;

/// The Moonshine "tiny" model for English: an encoder over raw 16 kHz audio and a decoder that
/// spells the words, token by token.
///
/// A finished utterance of one piece is given with the other readings that were nearly as likely
/// ([`Transcript::alternatives`]). Partial results and long speech take the likeliest token each time.
///
/// Utterances of more than 30 seconds are cut at their quietest places. Memory is shared by all
/// sessions that use one `Moonshine`.
pub struct Moonshine {
    networks: Arc<Unpacking>,
    lane: Lane,
}

impl Moonshine {
    /// Reads, checks and prepares the model. Blocks for some tenths of a second.
    ///
    /// `threads` is how many processors one recognition may use; 1 is a good choice.
    ///
    /// # Errors
    ///
    /// A model file is missing, unreadable, corrupt or unusable.
    pub fn load(models: &ModelDirectory, threads: usize) -> Result<Self, OfflineError> {
        let moonshine = Self::read(models, threads)?;
        moonshine.prepare()?;
        Ok(moonshine)
    }

    /// Reads and checks the model: blocks for some hundredths of a second. The first recognition
    /// prepares it, unless [`Moonshine::prepare`] does before.
    ///
    /// # Errors
    ///
    /// A model file is missing, unreadable or corrupt.
    pub fn read(models: &ModelDirectory, threads: usize) -> Result<Self, OfflineError> {
        let networks = Arc::new(Unpacking::new(Packed::read(models)?));
        Ok(Self { networks, lane: Lane::new(NAME, 1, threads) })
    }

    /// Prepares the model, once. Blocks for some tenths of a second, also while another thread is
    /// at it.
    ///
    /// # Errors
    ///
    /// The model is unusable; the same error each time.
    pub fn prepare(&self) -> Result<(), OfflineError> {
        self.networks.get().map(drop)
    }
}

#[async_trait]
impl Recognizer for Moonshine {
    fn name(&self) -> &str {
        NAME
    }

    fn sample_rate_hz(&self) -> u32 {
        SAMPLE_RATE_HZ
    }

    async fn recognize(&self, utterance: Utterance) -> Result<Transcript, SpeechError> {
        let samples = samples_of(&utterance)?;
        if !samples.iter().any(|sample| sample.abs() > SILENT) {
            return Ok(Transcript::default());
        }
        let networks = Arc::clone(&self.networks);
        self.lane
            .run(move |threads, given_up| {
                let networks = networks.get().map_err(|error| {
                    SpeechError::new(NAME, Status::FailedPrecondition, error.to_string())
                })?;
                let pieces = pieces(&samples);
                let wants_alternatives = utterance.last && pieces.len() == 1;
                let mut words = Vec::new();
                for piece in pieces {
                    let heard = networks.listen(&samples[piece], threads, given_up)?;
                    if wants_alternatives {
                        return networks.readings(heard);
                    }
                    let text = networks.likeliest(heard)?;
                    if !text.is_empty() {
                        words.push(text);
                    }
                }
                Ok(Transcript::new(words.join(" ")).language(LANGUAGE))
            })
            .await
    }
}

/// Peak amplitude up to which a buffer holds nothing to hear; the model would invent words.
const SILENT: f32 = 0.001;

fn samples_of(utterance: &Utterance) -> Result<Vec<f32>, SpeechError> {
    let format = utterance.audio.format;
    if format != antiphon_types::AudioFormat::pcm16(SAMPLE_RATE_HZ) {
        return Err(SpeechError::new(
            NAME,
            Status::InvalidArgument,
            format!("audio must be 16-bit PCM at {SAMPLE_RATE_HZ} Hz, not {format:?}"),
        ));
    }
    let (pairs, _) = utterance.audio.data.as_chunks::<2>();
    Ok(pairs.iter().map(|pair| f32::from(i16::from_le_bytes(*pair)) / 32_768.0).collect())
}

/// Silence put before a piece; the first word suffers without. Of 42 commands in four synthetic
/// voices, 30 came out word for word with half a second, 17 with 0.3 s ("savitimer for" in place of
/// "set a timer for").
const LEAD: usize = SAMPLE_RATE_HZ as usize / 2;
/// Silence put after a piece.
const TAIL: usize = SAMPLE_RATE_HZ as usize / 2;
const START_TOKEN: i32 = 1;
const END_TOKEN: i32 = 2;
const HEADS: usize = 8;
const HEAD_WIDTH: usize = 36;

/// The model's files, whole but compressed.
struct Packed {
    encoder: Vec<u8>,
    decoder: Vec<u8>,
    tokenizer: Tokenizer,
}

impl Packed {
    fn read(models: &ModelDirectory) -> Result<Self, OfflineError> {
        Ok(Self {
            encoder: models.read(ModelFile::MoonshineEncoder)?,
            decoder: models.read(ModelFile::MoonshineDecoder)?,
            tokenizer: Tokenizer::parse(&models.read(ModelFile::MoonshineTokenizer)?)
                .map_err(|error| unusable(ModelFile::MoonshineTokenizer.name(), error))?,
        })
    }
}

/// The networks, unpacked by whoever needs them first.
struct Unpacking {
    packed: Mutex<Option<Packed>>,
    networks: OnceLock<Result<Networks, OfflineError>>,
}

impl Unpacking {
    fn new(packed: Packed) -> Self {
        Self { packed: Mutex::new(Some(packed)), networks: OnceLock::new() }
    }

    fn get(&self) -> Result<&Networks, OfflineError> {
        let networks = self.networks.get_or_init(|| {
            let packed = self.packed.lock().unwrap_or_else(PoisonError::into_inner).take();
            match packed {
                Some(packed) => Networks::unpack(packed),
                // Only where an earlier attempt panicked.
                None => Err(OfflineError::LoadFailed { reason: "unpacking panicked".to_owned() }),
            }
        });
        networks.as_ref().map_err(Clone::clone)
    }
}

struct Networks {
    encoder: Network,
    encoder_ports: EncoderPorts,
    decoder: Network,
    decoder_ports: DecoderPorts,
    tokenizer: Tokenizer,
}

impl Networks {
    fn unpack(packed: Packed) -> Result<Self, OfflineError> {
        let (encoder, decoder) = std::thread::scope(|scope| {
            let encoder = scope.spawn(|| network(ModelFile::MoonshineEncoder, packed.encoder));
            let decoder = network(ModelFile::MoonshineDecoder, packed.decoder);
            let encoder = encoder.join().unwrap_or_else(|_| {
                Err(unusable(ModelFile::MoonshineEncoder.name(), "its loader panicked"))
            });
            (encoder, decoder)
        });
        let (encoder, decoder) = (encoder?, decoder?);
        let encoder_ports = EncoderPorts::of(&encoder)?;
        let decoder_ports = DecoderPorts::of(&decoder)?;
        let tokenizer = packed.tokenizer;
        Ok(Self { encoder, encoder_ports, decoder, decoder_ports, tokenizer })
    }

    /// One piece of at most 30 seconds, ready to be spelled.
    fn listen<'a>(
        &'a self,
        samples: &[f32],
        threads: &'a Arc<ThreadPool>,
        given_up: &'a GivenUp,
    ) -> Result<Hearing<'a>, SpeechError> {
        given_up.check(NAME)?;
        let mut padded = vec![0.0; LEAD + samples.len() + TAIL];
        padded[LEAD..LEAD + samples.len()].copy_from_slice(samples);
        let length = padded.len();
        let mask = NdTensor::full([1, length], 1_i32);
        let encoded = self.encode(NdTensor::from_data([1, length], padded), &mask, threads)?;
        Ok(Hearing { networks: self, threads, given_up, encoded, mask, of_audio: Vec::new() })
    }

    /// The words, by the likeliest token each time.
    fn likeliest(&self, mut heard: Hearing) -> Result<String, SpeechError> {
        let bounds = heard.bounds();
        let tokens = search::likeliest(&mut heard, bounds)?;
        Ok(self.tokenizer.text(&tokens))
    }

    /// The words, and what else may have been said.
    fn readings(&self, mut heard: Hearing) -> Result<Transcript, SpeechError> {
        let bounds = heard.bounds();
        let mut readings = search::readings(&mut heard, bounds)?
            .into_iter()
            .map(|reading| (self.tokenizer.text(&reading.tokens), reading.log_probability));
        let Some((text, best)) = readings.next() else { return Ok(Transcript::default()) };
        let mut transcript = Transcript::new(text).language(LANGUAGE);
        for (text, log_probability) in readings {
            // Other tokens may spell the same words.
            let known = text == transcript.text
                || transcript.alternatives.iter().any(|other| other.text == text);
            if !known && !text.is_empty() {
                transcript.alternatives.push(Alternative::new(text, log_probability - best));
            }
        }
        Ok(transcript)
    }

    fn encode(
        &self,
        samples: NdTensor<f32, 2>,
        mask: &NdTensor<i32, 2>,
        threads: &Arc<ThreadPool>,
    ) -> Result<Value, SpeechError> {
        let ports = &self.encoder_ports;
        let mut inputs: Vec<(NodeId, ValueOrView)> = vec![(ports.samples, samples.into())];
        if let Some(port) = ports.mask {
            inputs.push((port, mask.into()));
        }
        let mut outputs = self.encoder.run(inputs, &[ports.encoded], threads)?;
        outputs.pop().ok_or_else(|| self.encoder.surprise("it has no output"))
    }
}

/// A piece of audio that the decoder spells.
struct Hearing<'a> {
    networks: &'a Networks,
    threads: &'a Arc<ThreadPool>,
    given_up: &'a GivenUp,
    encoded: Value,
    mask: NdTensor<i32, 2>,
    /// What the decoder knows of the audio, made in the first step and kept.
    of_audio: Vec<Value>,
}

impl Hearing<'_> {
    fn bounds(&self) -> Bounds {
        let samples = self.mask.shape()[1];
        Bounds { start_token: START_TOKEN, end_token: END_TOKEN, most_tokens: most_tokens(samples) }
    }
}

impl Speller for Hearing<'_> {
    /// What the decoder knows of its own words, grown in each step.
    type State = Vec<Value>;
    type Error = SpeechError;

    fn next(
        &mut self,
        last: i32,
        state: Option<Self::State>,
    ) -> Result<(Vec<f32>, Self::State), SpeechError> {
        self.given_up.check(NAME)?;
        let (decoder, ports) = (&self.networks.decoder, &self.networks.decoder_ports);
        let nothing = NdTensor::<f32, 4>::zeros([1, HEADS, 0, HEAD_WIDTH]);
        let first = state.is_none();
        let mut inputs: Vec<(NodeId, ValueOrView)> = vec![
            (ports.token, NdTensor::from_data([1, 1], vec![last]).into()),
            (ports.encoded, (&self.encoded).into()),
            (ports.mask, (&self.mask).into()),
            (ports.use_cache, NdTensor::from_data([1], vec![i32::from(!first)]).into()),
        ];
        match state {
            None => {
                let past = ports.past_words.iter().chain(&ports.past_audio);
                inputs.extend(past.map(|port| (*port, (&nothing).into())));
            }
            Some(of_words) => {
                let words = ports.past_words.iter().zip(of_words);
                inputs.extend(words.map(|(port, value)| (*port, value.into())));
                let audio = ports.past_audio.iter().zip(&self.of_audio);
                inputs.extend(audio.map(|(port, value)| (*port, value.into())));
            }
        }
        let wanted = if first { &ports.first_outputs } else { &ports.next_outputs };
        let mut outputs = decoder.run(inputs, wanted, self.threads)?.into_iter();

        let scores = outputs.next().ok_or_else(|| decoder.surprise("it has no output"))?;
        let of_words = outputs.by_ref().take(ports.past_words.len()).collect();
        if first {
            self.of_audio = outputs.collect();
        }
        let scores = decoder.floats(scores)?;
        if scores.is_empty() {
            return Err(decoder.surprise("it scores no tokens"));
        }
        Ok((scores, of_words))
    }
}

/// People say up to about seven tokens a second; a decoder that goes on beyond has lost the
/// thread and repeats itself.
fn most_tokens(samples: usize) -> usize {
    samples * 7 / SAMPLE_RATE_HZ as usize + 6
}

struct EncoderPorts {
    samples: NodeId,
    mask: Option<NodeId>,
    encoded: NodeId,
}

impl EncoderPorts {
    fn of(network: &Network) -> Result<Self, OfflineError> {
        Ok(Self {
            samples: network.node("input_values")?,
            mask: network.node("attention_mask").ok(),
            encoded: network.node("last_hidden_state")?,
        })
    }
}

struct DecoderPorts {
    token: NodeId,
    encoded: NodeId,
    mask: NodeId,
    use_cache: NodeId,
    past_words: Vec<NodeId>,
    past_audio: Vec<NodeId>,
    /// Scores, then what follows `past_words`, then what follows `past_audio`.
    first_outputs: Vec<NodeId>,
    /// Scores, then what follows `past_words`.
    next_outputs: Vec<NodeId>,
}

impl DecoderPorts {
    fn of(network: &Network) -> Result<Self, OfflineError> {
        let ports = |prefix: &str, half: &str| -> Result<Vec<NodeId>, OfflineError> {
            let names = (0..).map(|layer| format!("{prefix}.{layer}.{half}"));
            let mut ports = Vec::new();
            for name in names {
                match network.node(&format!("{name}.key")) {
                    Ok(key) => ports.extend([key, network.node(&format!("{name}.value"))?]),
                    Err(error) if ports.is_empty() => return Err(error),
                    Err(_) => break,
                }
            }
            Ok(ports)
        };
        let mut next_outputs = vec![network.node("logits")?];
        next_outputs.extend(ports("present", "decoder")?);
        let mut first_outputs = next_outputs.clone();
        first_outputs.extend(ports("present", "encoder")?);
        Ok(Self {
            token: network.node("input_ids")?,
            encoded: network.node("encoder_hidden_states")?,
            mask: network.node("encoder_attention_mask")?,
            use_cache: network.node("use_cache_branch")?,
            past_words: ports("past_key_values", "decoder")?,
            past_audio: ports("past_key_values", "encoder")?,
            first_outputs,
            next_outputs,
        })
    }
}

fn network(file: ModelFile, packed: Vec<u8>) -> Result<Network, OfflineError> {
    let mut onnx = Vec::new();
    ruzstd::decoding::StreamingDecoder::new(packed.as_slice())
        .map_err(|error| unusable(file.name(), error))?
        .read_to_end(&mut onnx)
        .map_err(|error| unusable(file.name(), error))?;
    drop(packed);
    Network::load(file.name(), onnx)
}
