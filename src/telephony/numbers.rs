//! Which numbers may be dialled.

/// Numbers that cost much wherever they are dialled from: premium rates, satellites, international
/// networks. A list allows them only by naming them: `+1900` and not `+1`.
const COSTLY: &[&str] = &[
    "+1900", "+1976", "+44871", "+44872", "+44873", "+449", "+870", "+881", "+882", "+883", "+888",
    "+979",
];

/// Whether it is a number as E.164 writes it: `+15550001`. Short numbers, among them those of emergency
/// services, are none.
pub fn is_number(to: &str) -> bool {
    let digits = to.strip_prefix('+').unwrap_or_default();
    (7..=15).contains(&digits.len())
        && digits.bytes().all(|byte| byte.is_ascii_digit())
        && !digits.starts_with('0')
}

/// Whether a number may be dialled where numbers that begin with one of `allow` may be.
pub fn is_allowed(to: &str, allow: &[String]) -> bool {
    let costly = COSTLY.iter().find(|prefix| to.starts_with(**prefix));
    is_number(to)
        && allow.iter().any(|prefix| {
            to.starts_with(prefix.as_str())
                && costly.is_none_or(|costly| prefix.len() >= costly.len())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_list_names_may_be_dialled() {
        let allow = |prefixes: &[&str]| prefixes.iter().map(|&p| p.to_owned()).collect::<Vec<_>>();
        assert!(is_allowed("+15550100", &allow(&["+1555"])));
        assert!(!is_allowed("+15560100", &allow(&["+1555"])));
        assert!(!is_allowed("+15550100", &[]));
        for bad in ["", "+", "911", "+911", "15550100", "+1555010O", "+0555010012", "+1555 0100"] {
            assert!(!is_allowed(bad, &allow(&["+", "+1", "1", "9"])), "{bad:?}");
        }
        assert!(!is_allowed("+19005550100", &allow(&["+1"])), "a premium number");
        assert!(is_allowed("+19005550100", &allow(&["+1900"])));
        assert!(!is_allowed("+881612345678", &allow(&["+8"])), "a satellite");
    }
}
