//! Records: lines of checked JSON.
//!
//! A record is one line: a letter for its kind, the CRC-32 of what follows as eight hexadecimal
//! digits, a space, JSON, a line feed. Compact JSON holds no line feed, so that whoever reads over
//! a record that was torn finds the next one at the next line.

use std::{fmt, ops::Range};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first of a log: whose it is.
    Header,
    /// Messages, and what they follow.
    Messages,
    /// An artifact.
    Artifact,
    /// A list of artifacts by their places.
    Artifacts,
    /// A custom state.
    Custom,
    /// A row that was written, the last of what was written with it.
    Written,
    /// A row, in a file of its own.
    Row,
    /// A tool call, in a file of its own.
    Call,
}

impl Kind {
    const fn letter(self) -> u8 {
        match self {
            Self::Header => b'h',
            Self::Messages => b'm',
            Self::Artifact => b'a',
            Self::Artifacts => b'l',
            Self::Custom => b'c',
            Self::Written => b'w',
            Self::Row => b'r',
            Self::Call => b'k',
        }
    }
}

/// Where a record is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub(super) struct Place {
    /// The byte at which it begins.
    pub(super) at: u64,
    /// Its length in bytes, with the line feed.
    pub(super) len: u64,
}

impl Place {
    pub(super) fn end(self) -> u64 {
        self.at.saturating_add(self.len)
    }
}

impl From<(u64, u64)> for Place {
    fn from((at, len): (u64, u64)) -> Self {
        Self { at, len }
    }
}

impl From<Place> for (u64, u64) {
    fn from(place: Place) -> Self {
        (place.at, place.len)
    }
}

/// Why bytes are not the record that they should be.
#[derive(Debug)]
pub(super) struct Damaged(String);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The letter, the checksum and the space.
const PREFIX: usize = 1 + 8 + 1;

/// Appends a record to `out`. Returns where in `out` it is.
pub(super) fn encode(
    out: &mut Vec<u8>,
    kind: Kind,
    content: &impl Serialize,
) -> serde_json::Result<Range<usize>> {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX]);
    if let Err(error) = serde_json::to_writer(&mut *out, content) {
        out.truncate(start);
        return Err(error);
    }
    let prefix = prefix(kind, &out[start + PREFIX..]);
    out[start..start + PREFIX].copy_from_slice(&prefix);
    out.push(b'\n');
    Ok(start..out.len())
}

/// The JSON of the record that `line` is.
pub(super) fn content(line: &[u8], kind: Kind) -> Result<&[u8], Damaged> {
    let Some((prefix_found, rest)) = line.split_at_checked(PREFIX) else {
        return Err(Damaged("a record is cut off".to_owned()));
    };
    let Some(json) = rest.strip_suffix(b"\n") else {
        return Err(Damaged("a record is cut off".to_owned()));
    };
    if prefix_found != prefix(kind, json) {
        return Err(Damaged("the checksum of a record does not fit".to_owned()));
    }
    Ok(json)
}

/// What the record that `line` is holds.
pub(super) fn decode<T: DeserializeOwned>(line: &[u8], kind: Kind) -> Result<T, Damaged> {
    serde_json::from_slice(content(line, kind)?)
        .map_err(|error| Damaged(format!("a record does not read: {error}")))
}

/// Whether the line claims to be of this kind; cheap, and nothing is checked.
pub(super) fn claims(line: &[u8], kind: Kind) -> bool {
    line.first() == Some(&kind.letter())
}

fn prefix(kind: Kind, json: &[u8]) -> [u8; PREFIX] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut prefix = [b' '; PREFIX];
    prefix[0] = kind.letter();
    let crc = crc32fast::hash(json);
    for (digit, shift) in prefix[1..9].iter_mut().zip((0..8).rev()) {
        *digit = DIGITS[(crc >> (4 * shift)) as usize & 15];
    }
    prefix
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_record_reads_back_and_damage_is_found() {
        let value = json!({ "text": "line\nfeed \u{2028} \0", "n": [1, null] });
        let mut out = b"before\n".to_vec();
        let place = encode(&mut out, Kind::Custom, &value).unwrap();
        let line = &out[place.clone()];
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(decode::<Value>(line, Kind::Custom).unwrap(), value);
        assert!(decode::<Value>(line, Kind::Messages).is_err(), "another kind");
        for at in place {
            for flip in [1, 128] {
                let mut damaged = out.clone();
                damaged[at] ^= flip;
                let line = &damaged[b"before\n".len()..];
                assert!(decode::<Value>(line, Kind::Custom).is_err(), "byte {at}");
            }
        }
        for len in 0..line.len() {
            assert!(decode::<Value>(&line[..len], Kind::Custom).is_err(), "cut to {len}");
        }
    }
}
