//! Who may decide: tokens, and whose they are.

use std::{collections::HashSet, fmt, hint::black_box, sync::Arc};

use antiphon_types::Status;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};

/// The least that a token has, in bytes.
const MIN_TOKEN: usize = 8;
/// The longest name, in bytes.
const MAX_NAME: usize = 200;

/// The tokens by which requests show whose they are. Kept as digests: of one length, whatever somebody
/// shows, and of no use to whoever sees them.
///
/// ```
/// use antiphon::serve::approvals::Tokens;
///
/// let tokens = Tokens::parse("# who decides at night\nann = 7f3c1e0a94b2\nbob = c0ffee15900d\n")?;
/// # Ok::<(), antiphon::serve::approvals::TokenError>(())
/// ```
#[derive(Clone, Default)]
pub struct Tokens {
    all: Vec<Token>,
}

#[derive(Clone)]
struct Token {
    /// `None`: whoever has it says who they are.
    name: Option<Arc<str>>,
    digest: [u8; 32],
}

/// Whose a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bearer {
    /// Anybody's who has it.
    Anybody,
    /// This one's.
    Named(Arc<str>),
}

/// Tokens that keep nobody out, or of which it is not clear whose they are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is too short.
    #[error("a token of approvals has to have {MIN_TOKEN} characters at least")]
    Short,
    /// The name is empty or too long.
    #[error("a token of approvals has a name of 1 to {MAX_NAME} bytes")]
    Name,
    /// Two tokens have this name.
    #[error("{0:?} has two tokens of approvals")]
    NamedTwice(Arc<str>),
    /// Two people have the same token.
    #[error("{0:?} has the token of approvals of somebody else")]
    Shared(Arc<str>),
    /// A line of a file is not `name = token`.
    #[error("line {0} of the tokens of approvals is not `name = token`")]
    Line(usize),
    /// There is none.
    #[error("there is no token of approvals: nobody could decide")]
    Nobody,
}

impl TokenError {
    /// The canonical code.
    pub fn status(&self) -> Status {
        Status::InvalidArgument
    }
}

impl Tokens {
    /// None yet: nobody is let in.
    pub fn new() -> Self {
        Self::default()
    }

    /// One for all who decide. Who it was is what they say themselves.
    pub fn one(token: SecretString) -> Result<Self, TokenError> {
        Self::new().add(None, &token)
    }

    /// Adds the token of somebody: what is decided by it was decided by them.
    pub fn named(self, name: impl Into<Arc<str>>, token: SecretString) -> Result<Self, TokenError> {
        let name = name.into();
        if name.trim().is_empty() || name.len() > MAX_NAME {
            return Err(TokenError::Name);
        }
        self.add(Some(name), &token)
    }

    /// The tokens of a file: `name = token` a line; blank lines, and those that begin with `#`, say
    /// nothing.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let mut tokens = Self::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, token) = line.split_once('=').ok_or(TokenError::Line(at + 1))?;
            tokens = tokens.named(name.trim(), token.trim().into())?;
        }
        if tokens.all.is_empty() { Err(TokenError::Nobody) } else { Ok(tokens) }
    }

    fn add(mut self, name: Option<Arc<str>>, token: &SecretString) -> Result<Self, TokenError> {
        let token = token.expose_secret();
        if token.len() < MIN_TOKEN {
            return Err(TokenError::Short);
        }
        let digest = digest(token);
        for known in &self.all {
            match &name {
                Some(name) if known.name.as_ref() == Some(name) => {
                    return Err(TokenError::NamedTwice(name.clone()));
                }
                _ if known.digest == digest => {
                    return Err(TokenError::Shared(name.unwrap_or_else(|| "everybody".into())));
                }
                _ => {}
            }
        }
        self.all.push(Token { name, digest });
        Ok(self)
    }

    /// Whose this token is. All are looked at, each to its end: the time that it takes tells nothing.
    pub(super) fn bearer(&self, shown: &str) -> Option<Bearer> {
        let shown = digest(shown);
        let mut bearer = None;
        for token in &self.all {
            if is_same(&token.digest, &shown) {
                bearer = Some(match &token.name {
                    Some(name) => Bearer::Named(name.clone()),
                    None => Bearer::Anybody,
                });
            }
        }
        bearer
    }
}

/// Without tokens.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: HashSet<_> = self.all.iter().map(|token| token.name.as_deref()).collect();
        f.debug_struct("Tokens").field("names", &names).finish_non_exhaustive()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// Takes the same time wherever they differ.
fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    let differences = one.iter().zip(other).fold(0u8, |all, (a, b)| all | (a ^ b));
    black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_somebodys() {
        let file = "# night\n\n ann = 12345678 \nbob=a=token=of=bob\n";
        let tokens = Tokens::parse(file).unwrap();
        let named = |name: &str| Some(Bearer::Named(name.into()));
        assert_eq!(tokens.bearer("12345678"), named("ann"));
        assert_eq!(tokens.bearer("a=token=of=bob"), named("bob"));
        for nobodys in ["", "ann", "123456789", "1234567", " 12345678"] {
            assert_eq!(tokens.bearer(nobodys), None, "{nobodys}");
        }
        assert!(!format!("{tokens:?}").contains("12345678"));
        let one = Tokens::one("12345678".into()).unwrap();
        assert_eq!(one.bearer("12345678"), Some(Bearer::Anybody));
        assert_eq!(Tokens::new().bearer("12345678"), None);
    }

    #[test]
    fn tokens_that_would_not_tell_who_decided_are_refused() {
        for (file, why) in [
            ("ann = short", TokenError::Short),
            ("= 12345678", TokenError::Name),
            ("ann = 12345678\nann = 87654321", TokenError::NamedTwice("ann".into())),
            ("ann = 12345678\nbob = 12345678", TokenError::Shared("bob".into())),
            ("\nann 12345678", TokenError::Line(2)),
            ("# nobody", TokenError::Nobody),
        ] {
            let error = Tokens::parse(file).unwrap_err();
            assert_eq!(error, why, "{file}");
            assert!(!error.to_string().contains("1234"), "{error}");
        }
        assert_eq!(Tokens::one("short".into()).unwrap_err(), TokenError::Short);
    }
}
