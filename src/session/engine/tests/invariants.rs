//! What must be true of an engine whatever happens, by what goes in and comes out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use antiphon_audio::Generation;
use antiphon_live::{LiveCommand, LiveEvent, ReplyId};
use antiphon_types::AudioFrame;

use super::super::{Decision, Engine, HostCommand, Input, Output, Ticket};
use crate::session::{EventKind, SessionState};

/// Watches an engine. The first thing that is not true stays in `broken`.
#[derive(Debug, Default)]
pub(super) struct Invariants {
    pub(super) broken: Option<String>,
    epoch: Option<u32>,
    /// A connection that stands beside the one that is used.
    beside: Option<u32>,
    /// The reply that the provider is at work on.
    active: Option<ReplyId>,
    started: Vec<ReplyId>,
    /// What came of these before the sink was cleared must not be heard after it.
    cut: BTreeSet<ReplyId>,
    /// The audio that the engine was given last, and is at work on.
    given: Option<(ReplyId, AudioFrame)>,
    /// The audio that came for each content part of this connection.
    received: HashMap<(Arc<str>, u32), Duration>,
    /// The same of the connections before, which one that continues them knows of.
    received_before: HashMap<(Arc<str>, u32), Duration>,
    generation: Generation,
    paused: bool,
    approved: BTreeSet<Ticket>,
    /// Calls that a verdict was asked for, by id, with the outputs that the host was told of.
    outputs: BTreeMap<Arc<str>, u32>,
    /// Outputs on the wire, by id of the call.
    sent: BTreeMap<Arc<str>, u32>,
    state: Option<SessionState>,
    end_events: u32,
    ended: bool,
}

impl Invariants {
    /// Keeps `what` where it is the first thing that does not hold.
    pub(super) fn check(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(what());
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.epoch.is_some()
    }

    /// The connection of this epoch is the one that is used.
    fn uses(&mut self, epoch: Option<u32>) {
        self.epoch = epoch;
        self.active = None;
        if epoch.is_some() {
            self.received_before.extend(self.received.drain());
        }
    }

    /// The engine is given this.
    pub(super) fn input(&mut self, input: &Input) {
        self.given = None;
        match input {
            Input::Connected { epoch, .. } if self.epoch.is_some() => self.beside = Some(*epoch),
            Input::Connected { epoch, .. } => self.uses(Some(*epoch)),
            Input::Disconnected { epoch, .. } if self.epoch == Some(*epoch) => {
                self.epoch = None;
                self.active = None;
            }
            Input::Provider { epoch, event } if self.epoch == Some(*epoch) => self.event(event),
            Input::Admission { ticket, decision: Decision::Run { .. } } => {
                self.approved.insert(*ticket);
            }
            // It says nothing of a call that the model made.
            Input::Host(HostCommand::ToolResponse(response))
                if response.will_continue == Some(true) =>
            {
                self.sent.entry(response.id.clone()).or_default();
            }
            _ => {}
        }
    }

    fn event(&mut self, event: &LiveEvent) {
        match event {
            LiveEvent::ReplyStarted { reply, .. } => {
                self.active = Some(reply.clone());
                self.started.push(reply.clone());
            }
            LiveEvent::ReplyDone { reply, .. } if self.active.as_ref() == Some(reply) => {
                self.active = None;
            }
            LiveEvent::Audio { reply, item, content_index, frame } => {
                if !self.started.contains(reply) {
                    self.started.push(reply.clone());
                }
                let part = (item.clone(), *content_index);
                *self.received.entry(part).or_default() += frame.duration();
                self.given = Some((reply.clone(), frame.clone()));
            }
            _ => {}
        }
    }

    /// The engine gives this.
    pub(super) fn output(&mut self, output: &Output, engine: &Engine) {
        let ended = self.ended;
        self.check(!ended, || format!("{output:?} after the end"));
        match output {
            Output::Send { epoch, command, .. } => {
                let now = self.epoch;
                self.check(now == Some(*epoch), || format!("{command:?} for another connection"));
                self.command(command, engine);
            }
            Output::Close { epoch } if self.beside == Some(*epoch) => self.beside = None,
            Output::Close { epoch } if self.epoch == Some(*epoch) => {
                let next = self.beside.take();
                self.uses(next);
            }
            Output::Play { generation, frame } => self.play(*generation, frame),
            Output::PausePlayback => {
                let paused = std::mem::replace(&mut self.paused, true);
                self.check(!paused, || "paused twice".into());
            }
            Output::ResumePlayback => {
                let paused = std::mem::take(&mut self.paused);
                self.check(paused, || "goes on without a pause".into());
            }
            Output::ClearPlayback { next } => {
                let above = *next > self.generation;
                self.check(above, || format!("cleared up to {next:?}, which played already"));
                self.generation = *next;
                self.paused = false;
                self.cut.extend(self.started.drain(..));
            }
            Output::Admit { request, .. } => {
                self.outputs.entry(request.id.clone()).or_default();
            }
            Output::Invoke { ticket, .. } => {
                let approved = self.approved.remove(ticket);
                self.check(approved, || format!("{ticket:?} starts without a verdict, or twice"));
            }
            Output::Discard { ticket } => {
                self.approved.remove(ticket);
            }
            Output::Emit(event) => self.told(&event.kind),
            Output::Ended { .. } => self.ended = true,
            _ => {}
        }
    }

    fn command(&mut self, command: &LiveCommand, engine: &Engine) {
        match command {
            LiveCommand::Say { .. }
            | LiveCommand::CreateReply { .. }
            | LiveCommand::Text { reply: true, .. } => {
                let active = self.active.as_ref().filter(|id| !engine.replies.was_done(id));
                let active = active.cloned();
                self.check(active.is_none(), || format!("asked for a reply beside {active:?}"));
            }
            LiveCommand::Truncate { item, content_index, audio_end_ms, .. } => {
                let part = (item.clone(), *content_index);
                let before = self.received_before.get(&part).filter(|_| engine.reconnect.resumed);
                let received = self.received.get(&part).or(before).copied();
                let ms = u64::from(*audio_end_ms);
                // Words that were never spoken are cut at their beginning.
                let known = received.or((ms == 0).then_some(Duration::ZERO));
                let within = known.is_some_and(|received| ms <= received.as_millis() as u64);
                self.check(within, || format!("truncates {item} at {ms} ms of {received:?}"));
            }
            LiveCommand::ToolResponse(response) if response.will_continue != Some(true) => {
                let sent = self.sent.entry(response.id.clone()).or_default();
                *sent += 1;
                let once = *sent == 1;
                self.check(once, || format!("{} has two outputs on the wire", response.id));
            }
            _ => {}
        }
    }

    fn play(&mut self, generation: Generation, frame: &AudioFrame) {
        let current = generation >= self.generation;
        self.check(current, || format!("audio of {generation:?}, which is over"));
        self.generation = self.generation.max(generation);
        let Some((reply, given)) = &self.given else { return };
        let same = given.format == frame.format && given.data.as_ptr() == frame.data.as_ptr();
        let stale = same && self.cut.contains(reply);
        let reply = reply.clone();
        self.check(!stale, || format!("audio of {reply}, which was cut off"));
    }

    fn told(&mut self, kind: &EventKind) {
        let over = self.end_events > 0;
        self.check(!over, || format!("{kind:?} after the last event"));
        match kind {
            EventKind::ToolResult { id, .. } => {
                let outputs = self.outputs.entry(id.clone()).or_default();
                *outputs += 1;
                let once = *outputs == 1;
                self.check(once, || format!("{id} has two outputs"));
            }
            EventKind::State { state } => {
                let before = self.state.replace(*state);
                self.check(before != Some(*state), || format!("the state {state} twice"));
            }
            EventKind::SessionEnded { .. } => self.end_events += 1,
            _ => {}
        }
    }

    /// The session is over.
    pub(super) fn finish(&mut self) {
        let (ended, end_events, paused) = (self.ended, self.end_events, self.paused);
        self.check(ended && end_events == 1, || format!("{end_events} end events"));
        self.check(!paused, || "it stays paused".into());
        let open: Vec<_> = self
            .outputs
            .iter()
            .filter(|(_, outputs)| **outputs != 1)
            .map(|(id, _)| id.clone())
            .collect();
        self.check(open.is_empty(), || format!("{open:?} have no output"));
    }

    /// Whether [`Output::Ended`] came.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}
