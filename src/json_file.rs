//! Reading the JSON files that a person writes by hand: every complaint says where.

use std::{fmt, fs, io::Read, path::Path};

use serde::{Deserialize, de::Visitor};
use serde_json::value::RawValue;

/// Files above this are refused: nobody writes a megabyte of rules by hand.
const MAX_BYTES: u64 = 1024 * 1024;

/// What is wrong with a file, and where. `Display` is one line: `path:line:column: reason`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct FileError {
    /// The file.
    pub path: String,
    /// From 1; `None` where the file as a whole is meant.
    pub line: Option<usize>,
    /// From 1, in bytes.
    pub column: Option<usize>,
    /// What is wrong.
    pub reason: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(column) = self.column {
            write!(f, ":{column}")?;
        }
        // A reason from elsewhere may hold line breaks; a complaint is one line.
        write!(f, ": {}", self.reason.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// The text of a file, to be read piece by piece.
pub(crate) struct JsonFile {
    path: String,
    text: String,
}

impl JsonFile {
    /// Reads a file from disk.
    pub(crate) fn read(path: &Path) -> Result<Self, FileError> {
        let name = path.display().to_string();
        let fail =
            |reason: String| FileError { path: name.clone(), line: None, column: None, reason };
        let file = fs::File::open(path).map_err(|error| fail(error.to_string()))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| fail(error.to_string()))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(fail(format!("larger than {MAX_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| fail("not UTF-8 text".to_owned()))?;
        Ok(Self::new(name, text))
    }

    /// A text that is at hand, under a name for complaints.
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        let mut text = text.into();
        // Some editors begin a file with a byte order mark.
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        Self { path: path.into(), text }
    }

    /// What it is called.
    #[cfg(feature = "cedar")]
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The whole file.
    pub(crate) fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, FileError> {
        serde_json::from_str(&self.text).map_err(|error| self.error_within(&self.text, &error))
    }

    /// A piece of the file.
    pub(crate) fn parse_piece<'a, T: Deserialize<'a>>(
        &'a self,
        piece: &'a RawValue,
    ) -> Result<T, FileError> {
        serde_json::from_str(piece.get()).map_err(|error| self.error_within(piece.get(), &error))
    }

    /// A complaint about a piece of the file.
    pub(crate) fn error_at(&self, piece: &RawValue, reason: impl Into<String>) -> FileError {
        self.error_at_offset(self.offset_of(piece.get()), reason)
    }

    fn error_within(&self, piece: &str, error: &serde_json::Error) -> FileError {
        let offset = self.offset_of(piece) + offset_in(piece, error.line(), error.column());
        let text = error.to_string();
        let reason = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]);
        self.error_at_offset(offset, reason)
    }

    fn error_at_offset(&self, offset: usize, reason: impl Into<String>) -> FileError {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
        FileError {
            path: self.path.clone(),
            line: Some(line),
            column: Some(column),
            reason: reason.into(),
        }
    }

    /// Where `piece` begins. Pieces borrow from the text, so their address tells; a piece that
    /// does not (never built here) counts as the beginning.
    fn offset_of(&self, piece: &str) -> usize {
        let offset = (piece.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
        if offset <= self.text.len() { offset } else { 0 }
    }
}

/// The byte offset of a line and column of serde_json: lines from 1; columns count the bytes
/// read in the line, so that a complaint about the first byte has column 1.
fn offset_in(text: &str, line: usize, column: usize) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (start + column.saturating_sub(1)).min(text.len())
}

/// An object of the file that refuses a key that occurs twice. (`serde_json::Value` keeps the
/// last one in silence.)
pub(crate) struct UniqueKeys;

impl<'de> Deserialize<'de> for UniqueKeys {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueKeysVisitor)
    }
}

struct UniqueKeysVisitor;

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = UniqueKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<UniqueKeys, A::Error> {
        let mut seen = std::collections::HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            map.next_value::<UniqueKeys>()?;
            if seen.contains(&key) {
                return Err(serde::de::Error::custom(format!("key {key:?} occurs twice")));
            }
            seen.insert(key);
        }
        Ok(UniqueKeys)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<UniqueKeys, A::Error> {
        while seq.next_element::<UniqueKeys>()?.is_some() {}
        Ok(UniqueKeys)
    }

    fn visit_bool<E>(self, _: bool) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_i64<E>(self, _: i64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_u64<E>(self, _: u64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_f64<E>(self, _: f64) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_str<E>(self, _: &str) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }

    fn visit_unit<E>(self) -> Result<UniqueKeys, E> {
        Ok(UniqueKeys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Entry {
        #[allow(dead_code)] // it is read from the file and never looked at
        name: String,
    }

    #[test]
    fn a_syntax_error_is_where_it_is() {
        let file = JsonFile::new("f.json", "[\n  1,\n  }\n]");
        let error = file.parse::<Vec<u8>>().unwrap_err();
        assert_eq!((error.line, error.column), (Some(3), Some(3)));
    }

    #[test]
    fn an_error_within_a_piece_counts_lines_of_the_file() {
        let file = JsonFile::new(
            "f.json",
            "[\n  {\"name\": \"a\"},\n  {\"name\": \"b\",\n   \"nam\": 1}\n]",
        );
        let pieces: Vec<&RawValue> = file.parse().unwrap();
        assert!(file.parse_piece::<Entry>(pieces[0]).is_ok());
        let error = file.parse_piece::<Entry>(pieces[1]).unwrap_err();
        assert_eq!(error.line, Some(4));
        assert!(error.to_string().starts_with("f.json:4:"), "{error}");
        assert!(!error.to_string().contains("at line"), "{error}");
    }

    #[test]
    fn keys_that_occur_twice_are_refused_at_any_depth() {
        let file = JsonFile::new("f.json", "{\"a\": [{\"b\": 1,\n \"b\": 2}]}");
        let error = file.parse::<UniqueKeys>().err().unwrap();
        assert_eq!(error.line, Some(2));
    }

    #[test]
    fn a_missing_file_says_so_in_one_line() {
        let error = JsonFile::read(Path::new("/nonexistent/x.json")).err().unwrap();
        assert!(error.to_string().starts_with("/nonexistent/x.json: "));
    }
}
