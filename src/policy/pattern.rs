//! Which tools are meant.

use std::fmt;

/// Names of tools: one, or a pattern in which `*` stands for any characters.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ToolPattern(String);

impl ToolPattern {
    /// Errs with what is wrong where no tool has such a name.
    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        if pattern.trim().is_empty() {
            return Err("it needs the name of a tool".to_owned());
        }
        if let Some(odd) = pattern.chars().find(|c| !may_stand_in_pattern(*c)) {
            return Err(format!(
                "{odd:?} in the pattern {pattern:?}: only `*` stands for other characters, and no \
                 tool has such a name"
            ));
        }
        Ok(Self(pattern.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn fits(&self, tool: &str) -> bool {
        matches_pattern(&self.0, tool)
    }
}

impl fmt::Debug for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `*`, and what names of tools are made of; `send_[mo]ney` and `send?` would fit nothing.
fn may_stand_in_pattern(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '*' | '_' | '-' | '.' | ':' | '/')
}

/// Whether `name` fits `pattern`, in which `*` stands for any characters, also none. Greedy with
/// one step back, so linear in practice and never worse than the product of the lengths.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, n));
            p += 1;
        } else if p < pattern.len() && pattern[p] == name[n] {
            p += 1;
            n += 1;
        } else if let Some((star_p, star_n)) = star {
            star = Some((star_p, star_n + 1));
            p = star_p + 1;
            n = star_n + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_pattern_with_stars_fits_what_it_was_made_of(
            parts in prop::collection::vec("[a-c]{0,4}", 1..5),
            gaps in prop::collection::vec("[a-c]{0,4}", 4),
        ) {
            let pattern = parts.join("*");
            let mut name = parts[0].clone();
            for (part, gap) in parts[1..].iter().zip(&gaps) {
                name.push_str(gap);
                name.push_str(part);
            }
            prop_assert!(matches_pattern(&pattern, &name));
        }
    }
}
