//! Receipts: a log of decisions over tool calls, and of what came of them, that shows whether anything
//! in it was changed, removed or moved.
//!
//! The log is a text file with one entry a line: `{"entry":…,"hash":…}`. An entry is JSON in its
//! canonical form ([RFC 8785](https://www.rfc-editor.org/rfc/rfc8785)) and holds its number (`seq`, from
//! one) and the hash of the entry before it (`prev`); the hash is the SHA-256 of the entry's bytes. So
//! whoever changes an entry has to change all that follow; and whoever knows the number and the hash
//! of the last entry, the *head*, from elsewhere also sees a tail that was cut off or a log that was
//! written anew: see [`verify()`].
//!
//! An entry of `kind` `decision` is written before anybody acts on it, so before the tool runs; one of
//! `kind` `outcome` after.

mod entry;
mod log;
mod verify;

use sha2::{Digest, Sha256};

pub(crate) use self::entry::{Argument, Hidden, UNSAFE_NUMBER};
pub use self::{
    entry::{Redaction, proves},
    log::{ReceiptError, ReceiptLog},
    verify::{Head, HeadError, Tampered, Tampering, verify},
};

/// What the first entry has for the hash of the one before it.
const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";

const BEFORE: &str = r#"{"entry":"#;
const BETWEEN: &str = r#","hash":""#;
const AFTER: &str = r#""}"#;

/// The SHA-256 of a text.
pub(crate) fn text_hash(text: &str) -> String {
    sha256(text.as_bytes())
}

fn sha256(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        for digit in [byte >> 4, byte & 15] {
            // Below 16.
            text.push(char::from_digit(digit.into(), 16).unwrap_or_default());
        }
    }
    text
}
