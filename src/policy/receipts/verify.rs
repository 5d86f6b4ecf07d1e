//! Whether a log is what was written.

use std::{
    fmt,
    io::{self, BufRead},
    str::FromStr,
};

use serde::Deserialize;

use super::{AFTER, BEFORE, BETWEEN, GENESIS, sha256};

/// Lines that are longer are no entries.
const MAX_LINE: u64 = 16 * 1024 * 1024;

/// How many entries a log has, and the hash of the last one. As text: `COUNT:HASH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Entries.
    pub count: u64,
    /// 64 hexadecimal digits; zeros where there is no entry.
    pub hash: String,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.count, self.hash)
    }
}

/// A text that is no head.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a head is a count and 64 hexadecimal digits, such as 12:3f9a…")]
pub struct HeadError;

impl FromStr for Head {
    type Err = HeadError;

    fn from_str(text: &str) -> Result<Self, HeadError> {
        let (count, hash) = text.trim().split_once(':').ok_or(HeadError)?;
        let hash = hash.to_ascii_lowercase();
        if !is_hash(&hash) || !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(HeadError);
        }
        Ok(Self { count: count.parse().map_err(|_| HeadError)?, hash })
    }
}

/// Where a log is not what was written.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Tampered {
    /// The line, from 1. One past the last where the end is missing.
    pub line: u64,
    /// What is wrong there.
    pub what: Tampering,
}

/// What is wrong with a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Tampering {
    /// The line is no entry: it was changed, or is not whole.
    #[error("this is no whole entry")]
    NoEntry,
    /// The entry was changed.
    #[error("this entry was changed: its hash does not fit")]
    Changed,
    /// Entries are missing before this one.
    #[error("entries {from} to {to} are missing before this one")]
    Removed {
        /// The first that is missing.
        from: u64,
        /// The last.
        to: u64,
    },
    /// The entry is not where it was.
    #[error("entry {found} is in the place of entry {expected}: entries were moved or repeated")]
    Moved {
        /// Its number.
        found: u64,
        /// The number that belongs here.
        expected: u64,
    },
    /// The entry before this one was replaced.
    #[error("the entry before this one is not the one that it followed")]
    Replaced,
    /// The end is missing.
    #[error("the log ends here, and had {count} entries: its end was removed")]
    CutOff {
        /// How many it had.
        count: u64,
    },
    /// This entry is another one than it was.
    #[error("this entry is not the one that the head names: the log was written anew")]
    Rewritten,
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

/// Checks a whole log, and returns its head.
///
/// `known`: a head that the log had at some time, kept elsewhere. The log may have grown since; without
/// one, entries that are missing at the end cannot be noticed, nor a log that was written anew.
///
/// # Errors
///
/// The first place where the log is not what was written.
pub fn verify(mut log: impl BufRead, known: Option<&Head>) -> Result<Head, Tampered> {
    let mut head = Head { count: 0, hash: GENESIS.to_owned() };
    let mut bytes = Vec::new();
    loop {
        let line = head.count + 1;
        let wrong = |what| Tampered { line, what };
        bytes.clear();
        let mut limited = io::Read::take(&mut log, MAX_LINE);
        limited.read_until(b'\n', &mut bytes).map_err(|error| wrong(Tampering::Io(error)))?;
        if bytes.is_empty() {
            break;
        }
        let text = bytes.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
        let (body, hash) = text.and_then(split_line).ok_or_else(|| wrong(Tampering::NoEntry))?;
        if sha256(body.as_bytes()) != hash {
            return Err(wrong(Tampering::Changed));
        }
        let (found, prev) = parse_line(body).ok_or_else(|| wrong(Tampering::NoEntry))?;
        if found > line {
            return Err(wrong(Tampering::Removed { from: line, to: found - 1 }));
        }
        if found < line {
            return Err(wrong(Tampering::Moved { found, expected: line }));
        }
        if prev != head.hash {
            return Err(wrong(Tampering::Replaced));
        }
        head = Head { count: found, hash: hash.to_owned() };
        if known.is_some_and(|known| known.count == found && known.hash != head.hash) {
            return Err(wrong(Tampering::Rewritten));
        }
    }
    match known {
        Some(known) if known.count > head.count => {
            let what = Tampering::CutOff { count: known.count };
            Err(Tampered { line: head.count + 1, what })
        }
        Some(known) if known.count == 0 && known.hash != GENESIS => {
            Err(Tampered { line: 1, what: Tampering::Rewritten })
        }
        _ => Ok(head),
    }
}

/// The entry of a line, and its hash.
pub(super) fn split_line(line: &str) -> Option<(&str, &str)> {
    let inner = line.strip_prefix(BEFORE)?.strip_suffix(AFTER)?;
    let at = inner.len().checked_sub(64 + BETWEEN.len())?;
    let body = inner.get(..at)?;
    let hash = inner.get(at..)?.strip_prefix(BETWEEN)?;
    is_hash(hash).then_some((body, hash))
}

/// The number of an entry, and the hash of the one before it.
pub(super) fn parse_line(body: &str) -> Option<(u64, String)> {
    #[derive(Deserialize)]
    struct Numbered {
        seq: u64,
        prev: String,
    }
    let Numbered { seq, prev } = serde_json::from_str(body).ok()?;
    (seq > 0).then_some((seq, prev))
}

fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use antiphon_agent::ledger::canonical_json;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// A log as the documentation describes it.
    fn log(count: u64) -> Vec<String> {
        let mut prev = GENESIS.to_owned();
        (1..=count)
            .map(|seq| {
                let entry = json!({ "seq": seq, "prev": prev, "text": format!("entry {seq}") });
                let body = canonical_json(&entry).unwrap();
                prev = sha256(body.as_bytes());
                format!("{{\"entry\":{body},\"hash\":\"{prev}\"}}\n")
            })
            .collect()
    }

    fn check(lines: &[String], known: Option<&Head>) -> Result<Head, (u64, String)> {
        let text = lines.concat();
        verify(text.as_bytes(), known).map_err(|error| (error.line, error.what.to_string()))
    }

    #[test]
    fn a_log_as_it_was_written_is_fine_and_a_head_grows_old() {
        let lines = log(5);
        let head = check(&lines, None).unwrap();
        assert_eq!(head.count, 5);
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
        let old = check(&lines[..3], None).unwrap();
        assert_eq!(check(&lines, Some(&old)).unwrap(), head);
        assert_eq!(check(&[], None).unwrap().to_string(), format!("0:{GENESIS}"));
        assert_eq!(check(&lines, Some(&check(&[], None).unwrap())).unwrap(), head);
        for text in
            ["", "5", "5:abc", ":", "x:00", &format!("-1:{GENESIS}"), &format!("5:{GENESIS}0")]
        {
            assert!(text.parse::<Head>().is_err(), "{text}");
        }
    }

    #[test]
    fn removed_moved_and_repeated_entries_are_found_where_they_are() {
        let lines = log(6);
        let without = |n: usize| {
            let mut lines = lines.clone();
            lines.remove(n - 1);
            lines
        };
        for n in 1..6 {
            let (line, what) = check(&without(n), None).unwrap_err();
            assert_eq!(line, n as u64);
            assert!(what.contains("missing"), "{what}");
        }
        let mut swapped = lines.clone();
        swapped.swap(2, 3);
        assert_eq!(check(&swapped, None).unwrap_err().0, 3);
        let mut repeated = lines.clone();
        repeated.insert(4, lines[3].clone());
        let (line, what) = check(&repeated, None).unwrap_err();
        assert!(line == 5 && what.contains("moved or repeated"), "{what}");
        let mut torn = lines.clone();
        torn[5].truncate(40);
        assert_eq!(check(&torn, None).unwrap_err(), (6, "this is no whole entry".into()));
        torn[5] = String::from("\n");
        assert_eq!(check(&torn, None).unwrap_err().0, 6);
    }

    #[test]
    fn a_head_finds_a_tail_that_was_removed_and_a_log_that_was_written_anew() {
        let lines = log(6);
        let head = check(&lines, None).unwrap();
        assert!(check(&lines[..4], None).is_ok(), "nobody can see this without a head");
        let (line, what) = check(&lines[..4], Some(&head)).unwrap_err();
        assert!(line == 5 && what.contains("removed"), "{what}");
        let mut anew = log(3);
        let body = format!("{{\"prev\":\"{}\",\"seq\":4}}", check(&anew, None).unwrap().hash);
        anew.push(format!("{{\"entry\":{body},\"hash\":\"{}\"}}\n", sha256(body.as_bytes())));
        let whole = check(&lines[..4], None).unwrap();
        assert!(check(&anew, None).is_ok());
        let (line, what) = check(&anew, Some(&whole)).unwrap_err();
        assert!(line == 4 && what.contains("anew"), "{what}");
        // One entry changed with its hash, as a careful forger would.
        let mut forged = lines.clone();
        forged[2] = anew[2].replace("entry 3", "entry X");
        let (body, _) = split_line(forged[2].trim_end()).unwrap();
        let hash = sha256(body.as_bytes());
        forged[2] = format!("{{\"entry\":{body},\"hash\":\"{hash}\"}}\n");
        let (line, what) = check(&forged, None).unwrap_err();
        assert!(line == 4 && what.contains("not the one that it followed"), "{what}");
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_found_in_its_line(
            count in 1_u64..6, at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let text = log(count).concat().into_bytes();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            let line = text[..at].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
            let mut changed = text;
            changed[at] = byte;
            let found = verify(changed.as_slice(), None).unwrap_err();
            prop_assert_eq!(found.line, line);
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = verify(bytes.as_slice(), None);
        }
    }
}
