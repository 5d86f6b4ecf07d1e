//! How audio is coded on the wires of the servers.

/// How audio is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Codec {
    /// 24,000 samples of 16 bits a second.
    Pcm,
    /// 16,000 of them.
    Pcm16k,
    Ulaw,
    Alaw,
}

impl Codec {
    pub(crate) const fn samples_per_ms(self) -> usize {
        match self {
            Self::Pcm => 24,
            Self::Pcm16k => 16,
            Self::Ulaw | Self::Alaw => 8,
        }
    }

    pub(crate) const fn bytes_per_ms(self) -> usize {
        match self {
            Self::Pcm => 48,
            Self::Pcm16k => 32,
            Self::Ulaw | Self::Alaw => 8,
        }
    }
}
