//! How audio is coded on the wires of the servers.

/// How audio is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codec {
    /// So many samples of 16 bits a second.
    Pcm(u32),
    Ulaw,
    Alaw,
}

impl Codec {
    /// Samples before a moment; a rate need not be whole thousands.
    pub(crate) fn samples(self, ms: u64) -> usize {
        let rate = match self {
            Self::Pcm(rate) => u64::from(rate),
            Self::Ulaw | Self::Alaw => 8_000,
        };
        usize::try_from(ms * rate / 1_000).unwrap_or(usize::MAX)
    }

    /// Bytes before a moment.
    pub(crate) fn bytes(self, ms: u64) -> usize {
        match self {
            Self::Pcm(_) => self.samples(ms) * 2,
            Self::Ulaw | Self::Alaw => self.samples(ms),
        }
    }

    /// The milliseconds that so many bytes last.
    pub(crate) fn ms(self, bytes: usize) -> f64 {
        bytes as f64 * 1_000.0 / self.bytes(1_000) as f64
    }
}
