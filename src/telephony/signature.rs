//! Whether a request comes from the carrier.
//!
//! Sources: Twilio, "Validating requests"; Telnyx, "Webhook signing". The address that was signed is
//! the public one, as configured: behind a proxy nothing in the request tells it reliably.

use std::{borrow::Cow, collections::BTreeSet, time::Duration};

use base64_simd::STANDARD;
use ring::{digest, hmac, signature};
use secrecy::{ExposeSecret, SecretString};

/// Checks signatures of Twilio, and of SignalWire, which signs alike.
#[derive(Clone, Debug)]
pub struct TwilioSignature {
    auth_token: SecretString,
    /// For requests that are signed with SHA-256.
    shared_key: Option<SecretString>,
}

/// One request as it is signed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Signed<'a> {
    /// The public address, with scheme and query: `wss://` for a stream.
    pub url: &'a str,
    /// The content type of the body.
    pub content_type: Option<&'a str>,
    /// The body of a POST.
    pub body: &'a [u8],
}

impl<'a> Signed<'a> {
    /// A request without a body.
    pub fn get(url: &'a str) -> Self {
        Self { url, content_type: None, body: &[] }
    }

    /// A request with one.
    pub fn post(url: &'a str, content_type: Option<&'a str>, body: &'a [u8]) -> Self {
        Self { url, content_type, body }
    }
}

/// Why a request is not the carrier's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignatureError {
    /// There is no signature.
    #[error("no signature")]
    Missing,
    /// It cannot be read.
    #[error("a malformed signature")]
    Malformed,
    /// It is made in a way that is not known.
    #[error("a signature of an unknown kind")]
    Unknown,
    /// It is another request's.
    #[error("a wrong signature")]
    Wrong,
    /// It is too old, or from the future.
    #[error("a signature that is too old")]
    Expired,
}

impl TwilioSignature {
    /// With the account's auth token (Twilio) or signing key (SignalWire).
    pub fn new(auth_token: SecretString) -> Self {
        Self { auth_token, shared_key: None }
    }

    /// Takes signatures by SHA-256 with this key, too.
    pub fn shared_key(mut self, key: SecretString) -> Self {
        self.shared_key = Some(key);
        self
    }

    /// Checks `X-Twilio-Signature`, and `X-Twilio-Webhooks-Signature-Settings` where it is there.
    pub fn check(
        &self,
        request: Signed<'_>,
        signature: Option<&str>,
        settings: Option<&str>,
    ) -> Result<(), SignatureError> {
        let signature = signature.ok_or(SignatureError::Missing)?;
        let signature =
            STANDARD.decode_to_vec(signature.trim()).map_err(|_| SignatureError::Malformed)?;
        let key = self.key(settings)?;
        let suffix = match body_of(request) {
            Body::None => String::new(),
            Body::Form(form) => form,
            Body::Other => {
                check_digest(request)?;
                String::new()
            }
        };
        let signed = spellings(request.url).into_iter().any(|url| {
            let text = format!("{url}{suffix}");
            hmac::verify(&key, text.as_bytes(), &signature).is_ok()
        });
        if signed { Ok(()) } else { Err(SignatureError::Wrong) }
    }

    fn key(&self, settings: Option<&str>) -> Result<hmac::Key, SignatureError> {
        let Some(settings) = settings else {
            let token = self.auth_token.expose_secret().as_bytes();
            return Ok(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, token));
        };
        let algorithm = settings.split(',').find_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            (name.trim() == "algorithm").then(|| value.trim())
        });
        match (algorithm, &self.shared_key) {
            (Some("HMAC_SHA256"), Some(key)) => {
                Ok(hmac::Key::new(hmac::HMAC_SHA256, key.expose_secret().as_bytes()))
            }
            _ => Err(SignatureError::Unknown),
        }
    }
}

/// Checks signatures of Telnyx: ed25519 over `timestamp|body`.
#[derive(Clone, Debug)]
pub struct TelnyxSignature {
    key: [u8; 32],
}

impl TelnyxSignature {
    /// A signature may be so old, or so far ahead.
    pub const WINDOW: Duration = Duration::from_secs(300);

    /// With the account's public key, in base64.
    pub fn new(public_key: &str) -> Result<Self, SignatureError> {
        let key =
            STANDARD.decode_to_vec(public_key.trim()).map_err(|_| SignatureError::Malformed)?;
        Ok(Self { key: key.try_into().map_err(|_| SignatureError::Malformed)? })
    }

    /// Checks `telnyx-signature-ed25519` and `telnyx-timestamp` (seconds since 1970).
    pub fn check(
        &self,
        body: &[u8],
        signature: Option<&str>,
        timestamp: Option<&str>,
        now_unix: Duration,
    ) -> Result<(), SignatureError> {
        let (Some(signature), Some(timestamp)) = (signature, timestamp) else {
            return Err(SignatureError::Missing);
        };
        let signature =
            STANDARD.decode_to_vec(signature.trim()).map_err(|_| SignatureError::Malformed)?;
        let at: u64 = timestamp.trim().parse().map_err(|_| SignatureError::Malformed)?;
        if now_unix.as_secs().abs_diff(at) > Self::WINDOW.as_secs() {
            return Err(SignatureError::Expired);
        }
        let mut signed = Vec::with_capacity(timestamp.len() + 1 + body.len());
        signed.extend_from_slice(timestamp.trim().as_bytes());
        signed.push(b'|');
        signed.extend_from_slice(body);
        signature::UnparsedPublicKey::new(&signature::ED25519, &self.key)
            .verify(&signed, &signature)
            .map_err(|_| SignatureError::Wrong)
    }
}

/// Whether two secrets are the same, in a time that does not tell where they differ.
pub fn same_secret(one: &str, other: &str) -> bool {
    // Under a key of the moment the digests of both are compared by the verifier, which takes its time.
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"comparison");
    let tag = hmac::sign(&key, one.as_bytes());
    hmac::verify(&key, other.as_bytes(), tag.as_ref()).is_ok()
}

enum Body {
    None,
    /// Names and values, as they are signed.
    Form(String),
    /// Signed by its digest in the query.
    Other,
}

fn body_of(request: Signed<'_>) -> Body {
    let is_form = request
        .content_type
        .is_some_and(|kind| kind.trim_start().starts_with("application/x-www-form-urlencoded"));
    if is_form {
        let pairs: BTreeSet<(Cow<'_, str>, Cow<'_, str>)> =
            form_urlencoded::parse(request.body).collect();
        return Body::Form(pairs.into_iter().flat_map(|(name, value)| [name, value]).collect());
    }
    if request.body.is_empty() { Body::None } else { Body::Other }
}

fn check_digest(request: Signed<'_>) -> Result<(), SignatureError> {
    let query = request.url.split_once('?').map_or("", |(_, query)| query);
    let told = form_urlencoded::parse(query.as_bytes())
        .find(|(name, _)| name == "bodySHA256")
        .ok_or(SignatureError::Missing)?
        .1;
    let digest = digest::digest(&digest::SHA256, request.body);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if same_secret(&hex, &told.to_ascii_lowercase()) { Ok(()) } else { Err(SignatureError::Wrong) }
}

/// The address with and without the port that its scheme has anyway: carriers differ.
fn spellings(url: &str) -> Vec<String> {
    let mut all = vec![url.to_owned()];
    let Some((scheme, rest)) = url.split_once("://") else { return all };
    let port = if matches!(scheme, "https" | "wss") { ":443" } else { ":80" };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    if let Some(bare) = host.strip_suffix(port) {
        all.push(format!("{scheme}://{bare}{path}"));
    } else if !host.rsplit(']').next().is_some_and(|tail| tail.contains(':')) {
        all.push(format!("{scheme}://{host}{port}{path}"));
    }
    all
}

#[cfg(test)]
mod tests {
    use ring::signature::{Ed25519KeyPair, KeyPair};

    use super::*;

    fn twilio() -> TwilioSignature {
        TwilioSignature::new("12345".into())
    }

    fn form(pairs: &[(&str, &str)]) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish()
    }

    const FORM: Option<&str> = Some("application/x-www-form-urlencoded; charset=utf-8");

    #[test]
    fn the_vendors_signature_of_a_form_is_taken_and_any_change_is_not() {
        let url = "https://mycompany.com/myapp.php?foo=1&bar=2";
        let signature = Some("RSOYDt4T1cUTdK1PDd93/VVr8B8=");
        let pairs = [
            ("CallSid", "CA1234567890ABCDE"),
            ("Caller", "+14158675309"),
            ("Digits", "1234"),
            ("From", "+14158675309"),
            ("To", "+18005551212"),
        ];
        let body = form(&pairs);
        let check = |url, body: &str| {
            twilio().check(Signed::post(url, FORM, body.as_bytes()), signature, None)
        };
        assert_eq!(check(url, &body), Ok(()));
        let mut turned = pairs;
        turned.reverse();
        assert_eq!(check(url, &form(&turned)), Ok(()), "the order does not count");
        assert_eq!(check(url, &format!("{body}&To=%2B18005551212")), Ok(()), "nor twice the same");
        assert_eq!(check(url, &body.replace("1234", "1235")), Err(SignatureError::Wrong));
        assert_eq!(check("https://mycompany.com/myapp.php", &body), Err(SignatureError::Wrong));
        let get = Signed::get(url);
        assert_eq!(twilio().check(get, None, None), Err(SignatureError::Missing));
        assert_eq!(twilio().check(get, Some("&&&"), None), Err(SignatureError::Malformed));
    }

    #[test]
    fn the_address_of_a_stream_is_signed_with_its_scheme_slash_and_port() {
        for (url, signature) in [
            ("wss://example.com/media", "7PR3qMkpDyEJtMrVOY/LDyNq8J8="),
            ("wss://example.com/media/", "T+WBXwUXC0/CyoZ1DA+p9ilZORs="),
            ("https://example.com/media", "6HZQ7Cq/dSYDCAiy3qRA6PZfACI="),
            ("wss://example.com:443/media", "zyyJQiPZXIGCLy3HYdHEfry0yDg="),
        ] {
            let check = |url| twilio().check(Signed::get(url), Some(signature), None);
            assert_eq!(check(url), Ok(()), "{url}");
            assert_eq!(check("wss://example.com/other"), Err(SignatureError::Wrong));
        }
        // Signed with the port, configured without it, and the other way round.
        let check = |url, signature| twilio().check(Signed::get(url), Some(signature), None);
        assert_eq!(check("wss://example.com/media", "zyyJQiPZXIGCLy3HYdHEfry0yDg="), Ok(()));
        assert_eq!(check("wss://example.com:443/media", "7PR3qMkpDyEJtMrVOY/LDyNq8J8="), Ok(()));
        let slash = check("wss://example.com/media/", "7PR3qMkpDyEJtMrVOY/LDyNq8J8=");
        assert_eq!(slash, Err(SignatureError::Wrong));
    }

    #[test]
    fn a_kind_of_signature_that_is_not_known_is_refused() {
        let get = Signed::get("wss://example.com/media");
        let settings = Some("key=K1,algorithm=HMAC_SHA256");
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"shared");
        let tag = hmac::sign(&key, b"wss://example.com/media");
        let signature = STANDARD.encode_to_string(tag.as_ref());
        let with = twilio().shared_key("shared".into());
        assert_eq!(with.check(get, Some(&signature), settings), Ok(()));
        let without = twilio().check(get, Some(&signature), settings);
        assert_eq!(without, Err(SignatureError::Unknown));
        let other = with.check(get, Some(&signature), Some("key=K1,algorithm=MD5"));
        assert_eq!(other, Err(SignatureError::Unknown));
        assert_eq!(with.check(get, Some(&signature), None), Err(SignatureError::Wrong));
    }

    #[test]
    fn a_body_that_is_no_form_is_signed_by_its_digest() {
        let body = br#"{"a":1}"#;
        let digest = digest::digest(&digest::SHA256, body);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let url = format!("https://example.com/hook?bodySHA256={hex}");
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, b"12345");
        let signature = STANDARD.encode_to_string(hmac::sign(&key, url.as_bytes()).as_ref());
        let json = Some("application/json");
        let check = |body| twilio().check(Signed::post(&url, json, body), Some(&signature), None);
        assert_eq!(check(body), Ok(()));
        assert_eq!(check(br#"{"a":2}"#), Err(SignatureError::Wrong));
    }

    #[test]
    fn telnyx_signs_time_and_body() {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
        let public = STANDARD.encode_to_string(pair.public_key().as_ref());
        let telnyx = TelnyxSignature::new(&public).unwrap();
        let signature = STANDARD.encode_to_string(pair.sign(b"1700000000|{}").as_ref());
        let check = |body: &[u8], stamp, at| {
            telnyx.check(body, Some(&signature), Some(stamp), Duration::from_secs(at))
        };
        assert_eq!(check(b"{}", "1700000000", 1_700_000_300), Ok(()));
        assert_eq!(check(b"{}", "1700000000", 1_700_000_301), Err(SignatureError::Expired));
        assert_eq!(check(b"{ }", "1700000000", 1_700_000_000), Err(SignatureError::Wrong));
        assert_eq!(check(b"{}", "1700000001", 1_700_000_000), Err(SignatureError::Wrong));
        assert!(matches!(TelnyxSignature::new("AAAA"), Err(SignatureError::Malformed)));
    }

    #[test]
    fn secrets_are_in_no_log() {
        assert!(!format!("{:?}", twilio()).contains("12345"));
        assert!(same_secret("abc", "abc") && !same_secret("abc", "abd") && !same_secret("abc", ""));
    }
}
