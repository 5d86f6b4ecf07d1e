//! How a call begins: what the stream tells and shows, before anybody is asked to answer.

use antiphon_agent::Caller;
use tokio::time::sleep_until;

use super::{Call, EARLY, SILENT_START, YEAR, frame_of, lost};
use crate::telephony::{
    bridge::{
        CallEnd, CallRecord, IncomingCall,
        office::{Admission, Admitted},
    },
    dialect::{CallStart, Carrier, CarrierEvent, Heard},
    token::Claims,
};

/// What a stream begins.
pub(super) enum Begun {
    /// A call.
    Call(Box<CallStart>, Vec<CarrierEvent>, Admission),
    /// It goes on with one that is held already. `named`: its token was made for this call.
    Back { start: Box<CallStart>, early: Vec<CarrierEvent>, named: bool },
}

impl Call {
    /// Waits until the carrier has said what call it is, and whether it may be one.
    pub(super) async fn start(&mut self, record: &mut CallRecord) -> Result<Begun, CallEnd> {
        let began = tokio::time::Instant::now();
        let until = began + self.office.limits().start.min(YEAR);
        let mut silent_at = began + SILENT_START;
        let mut heard = Heard::default();
        let office = self.office.clone();
        loop {
            tokio::select! {
                frame = self.link.recv() => {
                    let frame = frame_of(frame, &*self.dialect)?;
                    self.dialect.parse(&frame, &mut heard)?;
                }
                () = sleep_until(silent_at) => {
                    // Its name may still be on the way.
                    silent_at += SILENT_START;
                    self.dialect.quiet(&mut heard);
                }
                () = sleep_until(until) => return Err(CallEnd::NeverStarted),
                () = office.drained() => return Err(CallEnd::Drained),
            }
            self.link.send(&mut heard.frames).await.map_err(lost)?;
            let mut events = std::mem::take(&mut heard.events).into_iter();
            while let Some(event) = events.next() {
                match event {
                    CarrierEvent::Started(mut start) => {
                        self.complete(&mut start);
                        self.name(&mut start);
                        record.started(&start);
                        let claims = self.check(&start)?;
                        record.authorised = true;
                        self.waiting = None;
                        self.line = Some(start.call_id.clone());
                        record.tenant.clone_from(&claims.tenant);
                        let named = claims.call.is_some();
                        let early = events.collect();
                        return match self.office.admit(self.dialect.carrier(), &start, claims)? {
                            Admitted::Call(admission) => Ok(Begun::Call(start, early, admission)),
                            Admitted::Held => Ok(Begun::Back { start, early, named }),
                        };
                    }
                    CarrierEvent::Connected { token: Some(token) } => {
                        self.token.get_or_insert(token);
                    }
                    CarrierEvent::Stopped { .. } => return Err(CallEnd::CallerHungUp),
                    CarrierEvent::Ignored { .. } => record.ignored += 1,
                    _ => {}
                }
            }
        }
    }

    /// What the address said belongs to the call too (Asterisk's `v(...)` comes there).
    fn complete(&mut self, start: &mut CallStart) {
        for (name, value) in self.parameters.drain(..) {
            match &*name {
                "from" => start.from = start.from.take().or(Some(value)),
                "to" => start.to = start.to.take().or(Some(value)),
                _ => {
                    start.parameters.entry(name).or_insert(value);
                }
            }
        }
    }

    /// Asterisk names each WebSocket anew: the dialplan may say by `v(call=...)` which call it is.
    fn name(&self, start: &mut CallStart) {
        if self.dialect.carrier() == Carrier::Asterisk
            && let Some(call) = start.parameters.get("call").filter(|call| !call.is_empty())
        {
            start.call_id.clone_from(call);
        }
    }

    fn check(&mut self, start: &CallStart) -> Result<Claims, CallEnd> {
        let unauthorized = |detail: String| CallEnd::Unauthorized { detail };
        let carrier = self.dialect.carrier();
        if let Some(account) = self.office.account_of(carrier)
            && start.account_id.as_deref().is_some_and(|told| told != account)
        {
            return Err(unauthorized("another account".into()));
        }
        let token = self.token.take().or_else(|| start.parameters.get("token").cloned());
        if !self.verify.token() {
            // One that is shown all the same says whose call it is.
            let shown = token.and_then(|token| self.office.take_token(&token, &start.call_id).ok());
            return Ok(shown.unwrap_or_else(|| self.office.claims_of(start)));
        }
        let token = token.ok_or_else(|| unauthorized("no token".into()))?;
        self.office
            .take_token(&token, &start.call_id)
            .map_err(|error| unauthorized(error.to_string()))
    }

    /// Reads what comes before the call is answered, until it is over.
    pub(super) async fn listen(
        &mut self,
        early: &mut Vec<CarrierEvent>,
        dropped: &mut u64,
    ) -> CallEnd {
        let mut heard = Heard::default();
        loop {
            let parsed = match frame_of(self.link.recv().await, &*self.dialect) {
                Ok(frame) => self.dialect.parse(&frame, &mut heard),
                Err(end) => return end,
            };
            for event in heard.events.drain(..) {
                if matches!(event, CarrierEvent::Stopped { .. }) {
                    return CallEnd::CallerHungUp;
                }
                // The newest audio is worth more, and a key more than audio.
                if early.len() >= EARLY {
                    let audio = |event: &CarrierEvent| matches!(event, CarrierEvent::Media(_));
                    let oldest = early.iter().position(audio).unwrap_or(0);
                    early.remove(oldest);
                    *dropped += 1;
                }
                early.push(event);
            }
            if let Err(error) = parsed {
                return error.into();
            }
            if let Err(error) = self.link.send(&mut heard.frames).await {
                return lost(error);
            }
        }
    }
}

/// Who calls, as policy, tools and memory know it. A number is what somebody says of himself: it is a
/// claim, and nobody may do anything because of it. Whoever withholds it is nobody: not somebody else with
/// each call, for whom limits would begin anew.
pub(super) fn caller(call: &IncomingCall) -> Caller {
    let start = &call.start;
    let mut caller = Caller::new(start.from.as_deref().unwrap_or_default())
        .claim("carrier", call.carrier.name())
        .claim("call_id", start.call_id.as_str())
        .claim("stream_id", start.stream_id.as_str());
    let told = [("from", &start.from), ("to", &start.to), ("account_id", &start.account_id)];
    for (name, value) in told {
        if let Some(value) = value {
            caller = caller.claim(name, value.as_str());
        }
    }
    for (name, value) in &start.parameters {
        // A token opens nothing any more, and is nobody's business all the same.
        if !matches!(&**name, "token" | "from" | "to") {
            caller = caller.claim(format!("parameter.{name}"), value.as_str());
        }
    }
    if let Some(tenant) = &call.tenant {
        caller = caller.scope(tenant.as_str());
    }
    caller
}
