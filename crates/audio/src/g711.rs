//! G.711 by table: mu-law and A-law, one byte a sample, 8,000 samples a second.
//!
//! Source: ITU-T Recommendation G.711 (11/88), tables 1 and 2. Values are 16-bit samples: the
//! recommendation's 14-bit (mu-law) and 13-bit (A-law) values shifted to the top.

/// One of the two companding laws of G.711.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// North America and Japan.
    Mu,
    /// Everywhere else.
    A,
}

impl Law {
    /// The sample that `code` stands for.
    pub fn decode(self, code: u8) -> i16 {
        self.decode_table()[usize::from(code)]
    }

    /// The code of the interval that `sample` is in.
    pub fn encode(self, sample: i16) -> u8 {
        encode_with(self.encode_table(), sample)
    }

    /// Appends the samples that `codes` stand for to `out`.
    pub fn decode_into(self, codes: &[u8], out: &mut Vec<i16>) {
        let table = self.decode_table();
        out.extend(codes.iter().map(|&code| table[usize::from(code)]));
    }

    /// Appends the codes of `samples` to `out`.
    pub fn encode_into(self, samples: &[i16], out: &mut Vec<u8>) {
        let table = self.encode_table();
        out.extend(samples.iter().map(|&sample| encode_with(table, sample)));
    }

    /// The code of silence.
    pub fn silence(self) -> u8 {
        self.encode(0)
    }

    fn decode_table(self) -> &'static [i16; 256] {
        match self {
            Self::Mu => &MU_DECODE,
            Self::A => &A_DECODE,
        }
    }

    fn encode_table(self) -> &'static EncodeTable {
        match self {
            Self::Mu => &MU_ENCODE,
            Self::A => &A_ENCODE,
        }
    }
}

/// Codes by the upper 14 bits of a sample, as unsigned; no decision of either law needs more.
type EncodeTable = [u8; 1 << 14];

static MU_DECODE: [i16; 256] = decode_table(Law::Mu);
static A_DECODE: [i16; 256] = decode_table(Law::A);
static MU_ENCODE: EncodeTable = encode_table(Law::Mu);
static A_ENCODE: EncodeTable = encode_table(Law::A);

fn encode_with(table: &EncodeTable, sample: i16) -> u8 {
    table[usize::from(sample as u16 >> 2)]
}

const fn decode_table(law: Law) -> [i16; 256] {
    let mut table = [0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = match law {
            Law::Mu => mu_decode(code as u8),
            Law::A => a_decode(code as u8),
        };
        code += 1;
    }
    table
}

const fn encode_table(law: Law) -> EncodeTable {
    let mut table = [0; 1 << 14];
    let mut index = 0;
    while index < table.len() {
        // The index is the upper bits of the sample, sign and all.
        let sample = ((index << 2) as u16) as i16;
        table[index] = match law {
            Law::Mu => mu_encode(sample),
            Law::A => a_encode(sample),
        };
        index += 1;
    }
    table
}

/// Eight segments of sixteen steps that double in size. A bias of 33 (of 14 bits) makes each
/// segment start at a power of two. All bits are inverted on the line.
const fn mu_decode(code: u8) -> i16 {
    let code = !code;
    let (segment, step) = ((code >> 4) & 7, (code & 15) as i32);
    let magnitude = (((step << 1) + 33) << segment) - 33;
    let value = magnitude << 2;
    (if code & 0x80 == 0 { value } else { -value }) as i16
}

const fn mu_encode(sample: i16) -> u8 {
    let (sign, magnitude) = sign_and_magnitude(sample);
    // The largest code stands for everything above its decision value.
    let biased = if (magnitude >> 2) > 8_158 { 8_191 } else { (magnitude >> 2) + 33 };
    let segment = biased.ilog2() - 5;
    let step = (biased >> (segment + 1)) & 15;
    !(sign | ((segment as u8) << 4) | step as u8)
}

/// Like mu-law without a bias, so that the first two segments have steps of one size. The even bits
/// are inverted on the line.
const fn a_decode(code: u8) -> i16 {
    let code = code ^ 0x55;
    let (segment, step) = ((code >> 4) & 7, (code & 15) as i32);
    let magnitude = match segment {
        0 => (step << 1) + 1,
        _ => ((step << 1) + 33) << (segment - 1),
    };
    let value = magnitude << 3;
    (if code & 0x80 == 0 { -value } else { value }) as i16
}

const fn a_encode(sample: i16) -> u8 {
    let (sign, magnitude) = sign_and_magnitude(sample);
    let magnitude = magnitude >> 4;
    let (segment, step) = if magnitude < 16 {
        (0, magnitude)
    } else {
        let segment = magnitude.ilog2() - 3;
        (segment, (magnitude >> (segment - 1)) & 15)
    };
    ((sign ^ 0x80) | ((segment as u8) << 4) | step as u8) ^ 0x55
}

/// The sign bit, and the magnitude as one's complement: the decision values are then the same on
/// both sides of zero, and no sample overflows.
const fn sign_and_magnitude(sample: i16) -> (u8, i32) {
    if sample < 0 { (0x80, !(sample as i32)) } else { (0, sample as i32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The recommendation's tables, told another way: the widths of the 128 intervals on one side
    /// of zero, and the value in the middle of each. Returns `(upper decision value, output)`.
    fn intervals(law: Law) -> Vec<(i32, i32)> {
        let widths: Vec<i32> = match law {
            Law::Mu => std::iter::once(1)
                .chain(std::iter::repeat_n(2, 15))
                .chain((1..8).flat_map(|segment| std::iter::repeat_n(2 << segment, 16)))
                .collect(),
            Law::A => std::iter::repeat_n(2, 32)
                .chain((2..8).flat_map(|segment| std::iter::repeat_n(1 << segment, 16)))
                .collect(),
        };
        let mut low = 0;
        widths
            .into_iter()
            .enumerate()
            .map(|(index, width)| {
                let high = low + width;
                let output = if law == Law::Mu && index == 0 { 0 } else { (low + high) / 2 };
                low = high;
                (high, output)
            })
            .collect()
    }

    /// Number of the interval and bits on the line, as the recommendation's tables print them.
    fn expected(law: Law, sample: i16, intervals: &[(i32, i32)]) -> (u8, i32) {
        let shift = if law == Law::Mu { 2 } else { 3 };
        let (negative, magnitude) =
            if sample < 0 { (true, -1 - i32::from(sample)) } else { (false, i32::from(sample)) };
        let value = magnitude >> shift;
        let index = intervals.iter().position(|&(high, _)| value < high).unwrap_or(127);
        let bits = match law {
            Law::Mu if negative => 0x7f - index as u8,
            Law::Mu => 0xff - index as u8,
            Law::A if negative => index as u8 ^ 0x55,
            Law::A => (0x80 + index as u8) ^ 0x55,
        };
        let output = intervals[index].1 << shift;
        (bits, if negative { -output } else { output })
    }

    #[test]
    fn all_samples_agree_with_the_tables_of_the_recommendation() {
        for law in [Law::Mu, Law::A] {
            let intervals = intervals(law);
            assert_eq!(intervals[127].0, if law == Law::Mu { 8_159 } else { 4_096 });
            for sample in i16::MIN..=i16::MAX {
                let (code, output) = expected(law, sample, &intervals);
                assert_eq!(law.encode(sample), code, "{law:?} {sample}");
                assert_eq!(i32::from(law.decode(code)), output, "{law:?} {sample}");
            }
        }
    }

    #[test]
    fn codes_survive_a_round_trip() {
        for law in [Law::Mu, Law::A] {
            for code in 0..=255 {
                // Mu-law has a negative zero, which is a zero like the other.
                let expected = if law == Law::Mu && code == 0x7f { 0xff } else { code };
                assert_eq!(law.encode(law.decode(code)), expected, "{law:?} {code:#x}");
            }
        }
    }

    #[test]
    fn known_codes() {
        assert_eq!(Law::Mu.silence(), 0xff);
        assert_eq!(Law::A.silence(), 0xd5);
        assert_eq!((Law::Mu.decode(0x00), Law::Mu.decode(0x80)), (-32_124, 32_124));
        assert_eq!((Law::A.decode(0x2a), Law::A.decode(0xaa)), (-32_256, 32_256));
        assert_eq!((Law::Mu.encode(i16::MIN), Law::Mu.encode(i16::MAX)), (0x00, 0x80));
        assert_eq!((Law::A.encode(i16::MIN), Law::A.encode(i16::MAX)), (0x2a, 0xaa));
        // One period of the digital test sequence of table 5 (A-law) and 6 (mu-law): a 1 kHz tone
        // at 0 dBm0. It is symmetric, and its peaks lie 3.17 and 3.14 dB below overload.
        let mut mu = Vec::new();
        Law::Mu.decode_into(&[0x1e, 0x0b, 0x0b, 0x1e, 0x9e, 0x8b, 0x8b, 0x9e], &mut mu);
        assert_eq!(mu, [-8_828, -20_860, -20_860, -8_828, 8_828, 20_860, 20_860, 8_828]);
        let mut a = Vec::new();
        Law::A.decode_into(&[0x34, 0x21, 0x21, 0x34, 0xb4, 0xa1, 0xa1, 0xb4], &mut a);
        assert_eq!(a, [-8_960, -20_992, -20_992, -8_960, 8_960, 20_992, 20_992, 8_960]);
    }

    #[test]
    fn tables_and_single_samples_agree() {
        let samples: Vec<i16> = (i16::MIN..=i16::MAX).step_by(7).collect();
        let mut codes = Vec::new();
        Law::A.encode_into(&samples, &mut codes);
        assert!(samples.iter().zip(&codes).all(|(&sample, &code)| Law::A.encode(sample) == code));
    }
}
