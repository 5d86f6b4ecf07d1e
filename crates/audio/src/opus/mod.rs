//! Opus (RFC 6716) and Ogg Opus files (RFC 7845), feature `opus`. One channel, frames of 20 ms.

mod codec;
mod ogg;

pub use codec::{OpusDecoder, OpusEncoder, OpusOptions};
pub use ogg::OggOpusWriter;
