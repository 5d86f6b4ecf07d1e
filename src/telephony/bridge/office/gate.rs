//! Who may come in: what becomes of each request, before anything costs anything.

use std::sync::{Arc, atomic::Ordering};

use antiphon_live::acceptor::{Answer as HttpAnswer, Request};
use secrecy::ExposeSecret;

use super::{Draining, Office, ROOT, announced::First, lock, unix, webhooks};
use crate::telephony::{
    answer,
    bridge::news::Line,
    config::{CarrierConfig, Verify},
    dialect::Carrier,
    signature::{Signed, TwilioSignature, same_secret},
};

impl Office {
    /// What becomes of a request. Decided before anything costs anything.
    pub(in crate::telephony::bridge) fn gate(self: &Arc<Self>, request: &Request) -> HttpAnswer {
        let not_found = || HttpAnswer::http(404, "not here\n");
        let Some(path) = request.path().strip_prefix(ROOT) else { return not_found() };
        let (name, rest) = match path.split_once('/') {
            Some((_, "")) => return not_found(),
            Some(split) => split,
            None => (path, ""),
        };
        // AudioSocket has a port of its own; its dialplan asks here all the same.
        let is_here = |carrier: &Carrier| *carrier != Carrier::AudioSocket || rest == "next";
        let carrier = name.parse().ok().filter(is_here);
        let Some((carrier, config)) =
            carrier.and_then(|carrier| Some((carrier, self.config.carriers.get(&carrier)?)))
        else {
            return not_found();
        };
        match (rest, request.method()) {
            ("", _) => self.stream(carrier, config, request),
            ("answer", "POST") => self.webhook(carrier, config, request),
            (rest, method) => self.ask(carrier, config, request, method, rest),
        }
    }

    fn stream(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(why) = self.may_open(carrier, config, request) {
            self.counters.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%carrier, why, "a stream was refused");
            return HttpAnswer::http(403, "forbidden\n");
        }
        let draining = *self.draining.borrow();
        // Whose stream it is shows with its start: where one is waited for, that decides.
        let returns = draining != Draining::Over && self.may_return(carrier, request);
        if draining != Draining::No && !returns {
            return HttpAnswer::http(503, "stopping\n").header("retry-after", "10");
        }
        let full = *self.active.borrow() >= self.config.limits.calls && !returns;
        if full || self.is_crowded() {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return HttpAnswer::http(503, "too many calls\n").header("retry-after", "5");
        }
        match carrier {
            Carrier::Asterisk => HttpAnswer::upgrade_as("media"),
            _ => HttpAnswer::upgrade(),
        }
    }

    /// Whether a stream may be one of a call that is held already.
    fn may_return(&self, carrier: Carrier, request: &Request) -> bool {
        let calls = lock(&self.calls);
        let mut held = calls.active.iter().filter(|((of, _), _)| *of == carrier);
        if held.any(|(_, held)| held.line != Line::Here) {
            return true;
        }
        let token = shown(request).and_then(|token| self.peek_token(&token).ok());
        let call = token.and_then(|claims| claims.call);
        call.is_some_and(|call| calls.active.contains_key(&(carrier, call)))
    }

    fn may_open(
        &self,
        carrier: Carrier,
        config: &CarrierConfig,
        request: &Request,
    ) -> Result<(), &'static str> {
        if config.verify.signature() {
            let url = self.public(request, "ws").ok_or("no public address")?;
            self.check_signature(config, request, Signed::get(&url))?;
        }
        match config.verify {
            Verify::Secret => {
                let secret = config.secret.as_ref().ok_or("no secret is set")?;
                let shown = shown(request).ok_or("no secret")?;
                if !same_secret(secret.expose_secret(), &shown) {
                    return Err("a wrong secret");
                }
            }
            Verify::Token | Verify::SignatureAndToken => match shown(request) {
                Some(token) => {
                    self.peek_token(&token).map_err(|_| "a token that is not good")?;
                }
                // It comes with the start; Asterisk has no other place for it.
                None if carrier == Carrier::Asterisk => return Err("no token"),
                None => {}
            },
            // A page in a browser of this machine is nobody's telephone.
            Verify::None if request.header("origin").is_some() => return Err("a browser"),
            Verify::Signature | Verify::None => {}
        }
        Ok(())
    }

    pub(super) fn check_signature(
        &self,
        config: &CarrierConfig,
        request: &Request,
        signed: Signed<'_>,
    ) -> Result<(), &'static str> {
        let token = config.auth_token.clone().ok_or("no auth token is set")?;
        let mut checker = TwilioSignature::new(token);
        if let Some(key) = &config.shared_key {
            checker = checker.shared_key(key.clone());
        }
        let signature = request
            .header("x-twilio-signature")
            .or_else(|| request.header("x-signalwire-signature"));
        let settings = request.header("x-twilio-webhooks-signature-settings");
        checker.check(signed, signature, settings).map_err(|_| "a wrong signature")
    }

    /// The answer to a carrier that asks what to do with a call.
    fn webhook(&self, carrier: Carrier, config: &CarrierConfig, request: &Request) -> HttpAnswer {
        if let Err(refused) = self.signed(carrier, config, request) {
            return refused;
        }
        let xml = |body: String| HttpAnswer::http(200, body).header("content-type", "text/xml");
        if self.is_full() {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
            return xml(answer::busy().into());
        }
        let field = |name: &str| webhooks::field(request, name);
        let (from, to) = (field("From").unwrap_or_default(), field("To").unwrap_or_default());
        let Some(call) = field("CallSid").filter(|call| !call.is_empty()) else {
            return HttpAnswer::http(400, "no CallSid\n");
        };
        let now = unix();
        let mut announced = lock(&self.announced);
        match announced.look(carrier, &call, now) {
            First::Yes => {}
            First::Again(answer) => return xml(answer),
            // Signatures have no time: somebody plays an old request again.
            First::No => return self.forbidden(carrier, "a call that was answered before"),
        }
        let parameters = [("from", &*from), ("to", &*to)];
        match self.connect(carrier, Some(call.clone()), &parameters) {
            Ok(body) => {
                announced.answered(carrier, &call, &body, now);
                xml(body)
            }
            Err(refused) => refused,
        }
    }

    /// The public address of a request; `scheme` is `http` or `ws`.
    pub(super) fn public(&self, request: &Request, scheme: &str) -> Option<String> {
        let (secure, host) = self.config.public_url.as_deref()?.split_once("://")?;
        let s = if secure == "https" { "s" } else { "" };
        let query = request.query().map(|query| format!("?{query}")).unwrap_or_default();
        Some(format!("{scheme}{s}://{host}{}{query}", request.path()))
    }

    pub(super) fn public_stream(&self, carrier: Carrier) -> Option<String> {
        let (secure, host) = self.config.public_url.as_deref()?.split_once("://")?;
        let s = if secure == "https" { "s" } else { "" };
        Some(format!("ws{s}://{host}{ROOT}{carrier}"))
    }
}

/// What a request shows: a bearer token, Telnyx's header, or the parameter `token`.
pub(in crate::telephony::bridge) fn shown(request: &Request) -> Option<String> {
    let header = request.bearer().or_else(|| request.header("x-telnyx-streaming-auth-token"));
    let shown = header.map(str::to_owned);
    shown.or_else(|| request.parameter("token").map(|token| token.into_owned()))
}
