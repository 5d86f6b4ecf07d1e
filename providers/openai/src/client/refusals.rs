//! What the server refuses: a request for a reply, the session, or nothing that matters.

use std::time::Instant;

use antiphon_live::{ErrorInfo, LiveError, LiveEvent, Outbox};

use super::{Client, Phase, errors, ignored, replies::Stop, requests};
use crate::wire::ApiError;

impl Client {
    pub(super) fn on_error(
        &mut self,
        error: &ApiError,
        now: Instant,
        out: &mut Outbox,
    ) -> Result<(), LiveError> {
        if let Some(fatal) = errors::fatal(error) {
            return Err(fatal);
        }
        self.told = Some(error.clone());
        match self.phase {
            Phase::Ready => {}
            Phase::Asked { with_voice: true, .. }
                if error.code.as_deref() == Some(errors::CANNOT_UPDATE_VOICE) =>
            {
                self.ask_for_session(false, now, out);
                return Ok(());
            }
            Phase::Asked { .. } => return Err(errors::refused_session(error)),
            // It may be followed by a close that says more.
            Phase::New | Phase::Opened { .. } => return Ok(()),
        }
        let answered = self.refused_request(error);
        let code = error.code.as_deref().unwrap_or(&error.kind);
        // The vendor asks to try again after a fault of its own, too.
        if answered && (code == errors::ALREADY_ACTIVE || error.kind == "server_error") {
            let known = self.replies.active.is_some();
            if let Some(given_up) = self.requests.put_back(now, known) {
                self.fail_request(&given_up, code, &error.message, out);
            }
            self.pump(now, out);
            return Ok(());
        }
        if answered {
            let sent = self.requests.in_flight.take();
            if let Some(sent) = sent.filter(|sent| !sent.cancelled) {
                self.fail_request(&sent.wanted, code, &error.message, out);
            }
            self.pump(now, out);
            return Ok(());
        }
        if errors::is_nothing_to_truncate(error)
            && let Some(event_id) = &error.event_id
        {
            self.delete_uncuttable(event_id, out);
        }
        if code == errors::NOTHING_TO_CANCEL
            && let Some(active) = self.replies.active.as_ref().filter(|reply| reply.cancel_sent)
        {
            // The reply that the server was asked to stop is over; the word of that was lost.
            let outcome = active.stopped.unwrap_or(Stop::Cancelled).outcome();
            self.end_reply(outcome, None, now, out);
        }
        if errors::is_benign(error) || code == errors::ALREADY_ACTIVE {
            out.events.push_back(ignored(code));
            return Ok(());
        }
        let code = if code.is_empty() { "error" } else { code };
        let mut told = ErrorInfo::new(code, errors::describe(error));
        told.call = error.event_id.as_deref().and_then(|event_id| self.refused_output(event_id));
        out.events.push_back(LiveEvent::Error(told));
        Ok(())
    }

    /// Whether an error refuses the request for a reply that is in flight. Where the server does
    /// not say which of our events it means, only its code can tell (quirk 8).
    fn refused_request(&self, error: &ApiError) -> bool {
        let Some(sent) = &self.requests.in_flight else { return false };
        match &error.event_id {
            Some(id) => requests::number_of(id) == Some(sent.number),
            None => error.code.as_deref() == Some(errors::ALREADY_ACTIVE),
        }
    }
}
