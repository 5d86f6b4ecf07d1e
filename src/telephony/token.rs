//! Tokens by which a stream of media shows that it belongs to a call that was announced.
//!
//! Whoever answers a carrier's question what to do with a call puts a token into the answer; the
//! carrier hands it back when it opens the stream. A token is good once, for a minute, and for the
//! call that it names; it is signed, so that another process with the same secret can give it.

use std::{collections::HashMap, fmt, time::Duration};

use base64_simd::URL_SAFE_NO_PAD;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

/// Bytes of a secret, at least.
const SECRET: usize = 16;
/// Tokens whose use is remembered, at most; more within one minute are refused.
const MAX_REMEMBERED: usize = 100_000;
/// The longest token that is looked at.
const MAX_TOKEN: usize = 1_024;

/// What a token says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Claims {
    /// The carrier's name of the call, where it is known beforehand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The tenant whose call it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The agent that answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
    /// 128 random bits, in base64url: no two tokens are the same.
    pub nonce: String,
}

impl Claims {
    /// A token for this call, of this tenant, to be answered by this agent, as far as they are known.
    pub fn new(call: Option<String>, tenant: Option<String>, agent: Option<String>) -> Self {
        Self { call, tenant, agent, ..Self::default() }
    }
}

/// Why a token is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is no token.
    #[error("a malformed token")]
    Malformed,
    /// Somebody else made it.
    #[error("a token with a wrong signature")]
    Wrong,
    /// Its time is over.
    #[error("a token whose time is over")]
    Expired,
    /// It was used before.
    #[error("a token that was used before")]
    Used,
    /// It was made for another call.
    #[error("a token of another call")]
    OtherCall,
    /// More tokens than can be remembered are in use.
    #[error("too many tokens in use")]
    Full,
    /// The secret has less than 16 bytes.
    #[error("the secret of tokens needs at least 16 bytes")]
    ShortSecret,
    /// The system gives no random numbers.
    #[error("no randomness")]
    NoRandomness,
}

/// Makes tokens and takes them, each once.
pub struct Tokens {
    key: hmac::Key,
    /// The nonces of tokens that were used, until they would have expired.
    used: HashMap<String, u64>,
}

impl Tokens {
    /// How long a token is good, unless it says otherwise.
    pub const LIFETIME: Duration = Duration::from_secs(60);

    /// With this secret.
    pub fn new(secret: &SecretString) -> Result<Self, TokenError> {
        let secret = secret.expose_secret().as_bytes();
        if secret.len() < SECRET {
            return Err(TokenError::ShortSecret);
        }
        Ok(Self { key: hmac::Key::new(hmac::HMAC_SHA256, secret), used: HashMap::new() })
    }

    /// A token for `claims`, whose time and nonce are set here.
    pub fn mint(
        &self,
        mut claims: Claims,
        now_unix: Duration,
        lifetime: Duration,
    ) -> Result<String, TokenError> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|_| TokenError::NoRandomness)?;
        claims.nonce = URL_SAFE_NO_PAD.encode_to_string(nonce);
        claims.expires = (now_unix + lifetime).as_secs();
        let claims = serde_json::to_vec(&claims).map_err(|_| TokenError::Malformed)?;
        let body = URL_SAFE_NO_PAD.encode_to_string(&claims);
        let tag = hmac::sign(&self.key, body.as_bytes());
        Ok(format!("{body}.{}", URL_SAFE_NO_PAD.encode_to_string(tag.as_ref())))
    }

    /// Whether a token could be taken, without taking it: for answers before the call is known.
    pub fn peek(&self, token: &str, now_unix: Duration) -> Result<Claims, TokenError> {
        let claims = self.read(token)?;
        if claims.expires <= now_unix.as_secs() {
            return Err(TokenError::Expired);
        }
        if self.used.contains_key(&claims.nonce) {
            return Err(TokenError::Used);
        }
        Ok(claims)
    }

    /// Takes a token for the call of this name: it cannot be taken again.
    pub fn take(
        &mut self,
        token: &str,
        call: &str,
        now_unix: Duration,
    ) -> Result<Claims, TokenError> {
        let claims = self.peek(token, now_unix)?;
        if claims.call.as_deref().is_some_and(|named| named != call) {
            return Err(TokenError::OtherCall);
        }
        if self.used.len() >= MAX_REMEMBERED {
            self.used.retain(|_, expires| *expires > now_unix.as_secs());
            if self.used.len() >= MAX_REMEMBERED {
                return Err(TokenError::Full);
            }
        }
        self.used.insert(claims.nonce.clone(), claims.expires);
        Ok(claims)
    }

    fn read(&self, token: &str) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let (body, tag) = token.split_once('.').ok_or(TokenError::Malformed)?;
        let tag = URL_SAFE_NO_PAD.decode_to_vec(tag).map_err(|_| TokenError::Malformed)?;
        hmac::verify(&self.key, body.as_bytes(), &tag).map_err(|_| TokenError::Wrong)?;
        let claims = URL_SAFE_NO_PAD.decode_to_vec(body).map_err(|_| TokenError::Malformed)?;
        serde_json::from_slice(&claims).map_err(|_| TokenError::Malformed)
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("used", &self.used.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_700_000_000);

    fn tokens() -> Tokens {
        Tokens::new(&"a secret of some length".into()).unwrap()
    }

    fn mint(call: Option<&str>) -> String {
        let claims = Claims { call: call.map(str::to_owned), ..Claims::default() };
        tokens().mint(claims, NOW, Tokens::LIFETIME).unwrap()
    }

    #[test]
    fn trial_g07_a_token_is_good_once_for_a_minute_and_for_its_call() {
        let mut tokens = tokens();
        let token = mint(Some("CA1"));
        assert_eq!(tokens.take(&token, "CA2", NOW), Err(TokenError::OtherCall));
        let later = NOW + Duration::from_secs(60);
        assert_eq!(tokens.take(&token, "CA1", later), Err(TokenError::Expired));
        assert_eq!(tokens.take(&token, "CA1", NOW).unwrap().call.as_deref(), Some("CA1"));
        assert_eq!(tokens.take(&token, "CA1", NOW), Err(TokenError::Used));
        assert!(tokens.take(&mint(None), "any", NOW).is_ok());
    }

    #[test]
    fn another_secret_and_any_change_are_refused() {
        let token = mint(None);
        let other = Tokens::new(&"another secret, as long".into()).unwrap();
        assert_eq!(other.peek(&token, NOW), Err(TokenError::Wrong));
        let mut changed = token.clone().into_bytes();
        changed[3] ^= 1;
        let changed = String::from_utf8(changed).unwrap();
        assert_eq!(tokens().peek(&changed, NOW), Err(TokenError::Wrong));
        for bad in ["", ".", "a.b", "no-token", &"x".repeat(5_000)] {
            assert!(tokens().peek(bad, NOW).is_err());
        }
        assert!(matches!(Tokens::new(&"short".into()), Err(TokenError::ShortSecret)));
        assert_ne!(mint(None), mint(None));
    }
}
