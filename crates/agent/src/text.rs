//! Small helpers for texts that others wrote.

/// `text`, cut at a character boundary to at most `max_bytes` and marked where it was cut.
pub(crate) fn shorten(text: &str, max_bytes: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max_bytes.saturating_sub(MARK.len()));
    format!("{}{MARK}", &text[..end])
}
