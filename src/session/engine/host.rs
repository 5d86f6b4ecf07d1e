//! What the host asks for.

use antiphon_agent::ledger::CallState;
use antiphon_live::{LiveCommand, VoiceActivity};
use antiphon_types::AudioFrame;

use super::{
    Engine, Phase, confirm,
    io::{HostCommand, Origin, Output},
    prompts::Delivery,
    sequencer::{Wanted, Why},
    workflow::Advanced,
};
use crate::session::{
    EventKind, HostPromptKind, RequestEnd, SayOptions, SessionState, approvals::Settled,
    config::NEVER,
};

impl Engine {
    /// The user's audio.
    pub(super) fn on_host_audio(&mut self, frame: AudioFrame) {
        if !matches!(self.phase, Phase::Closing(_)) && !self.has_hung_up() {
            let frame = self.audible_to_provider(frame);
            self.reconnect.silence.audio(&frame, self.now);
            self.listen_for_speech(&frame);
            self.uplink.audio(frame);
        }
    }

    pub(super) fn on_host(&mut self, command: HostCommand) {
        if matches!(self.phase, Phase::Closing(_)) {
            match command {
                HostCommand::Progress { token, .. } | HostCommand::ToolOutput { token, .. } => {
                    self.answer_prompt(Some(token), false);
                }
                HostCommand::Settled(settled) => self.on_settled(settled),
                _ => {}
            }
            return;
        }
        match command {
            HostCommand::Audio(frame) => self.on_host_audio(frame),
            HostCommand::EndAudio => self.on_end_audio(),
            HostCommand::ClearAudio => {
                self.uplink.clear_audio();
                self.speech_is_answered();
                self.send(LiveCommand::ClearAudio, Origin::None);
            }
            HostCommand::Text(text) => self.on_host_text(text),
            HostCommand::Image { media_type, data } => {
                self.user_is_active();
                self.mark(LiveCommand::Image { media_type, data });
            }
            HostCommand::ActivityStart => {
                self.user_is_active();
                self.mark(LiveCommand::ActivityStart);
                self.user_begins(true);
            }
            HostCommand::ActivityEnd => {
                self.mark(LiveCommand::ActivityEnd);
                self.user_ends();
            }
            HostCommand::Interrupt => {
                self.times.barge_in.reset();
                self.interrupt(true);
            }
            HostCommand::CutIn => {
                if self.replies.protected().is_none() {
                    self.times.barge_in.reset();
                    self.interrupt(true);
                }
            }
            HostCommand::Say { text, options, request } => {
                self.want_host(Wanted::Say(text), options, request);
            }
            HostCommand::Play { frame, options, request } => {
                self.want_host(Wanted::Play(frame), options, request);
            }
            HostCommand::EchoCancelled(cancelled) => self.set_echo_cancelled(cancelled),
            HostCommand::ToolResponse(response) => self.on_host_response(response),
            HostCommand::CancelTool { id } => match self.calls.find_by_id(&id) {
                Some(call) => {
                    let ticket = call.ticket;
                    self.cancel_call(ticket);
                }
                None => self.emit_error("tool", format!("no call {id:?} is open")),
            },
            HostCommand::UpdateInstructions(instructions) => match self.first_persona() {
                Some(first) => first.instructions = Some(instructions),
                None => self.update_instructions(instructions),
            },
            HostCommand::UpdateTools { all, hosts } => {
                // They are the session's own agent's, who may have handed over.
                if let Some(first) = self.first_persona() {
                    first.tools = all.to_vec();
                    return;
                }
                std::sync::Arc::make_mut(&mut self.live).tools = all.to_vec();
                self.prompt_outputs.push_back(Output::HostTools { definitions: hosts });
                self.send(LiveCommand::UpdateTools(all), Origin::None);
            }
            HostCommand::AdvanceWorkflow => {
                if let Some(advanced) = self.workflow.as_mut().and_then(|flow| flow.advance()) {
                    self.workflow_advanced(advanced);
                }
            }
            HostCommand::HandOff(order) => self.on_hand_off(order),
            HostCommand::Reconnect => self.on_host_reconnect(),
            HostCommand::SetIdle(config) => self.attention.configure(config),
            HostCommand::Settled(settled) => self.on_settled(settled),
            HostCommand::Progress { token, text } => {
                self.host_prompt(HostPromptKind::AgentProgress, token, text);
            }
            HostCommand::ToolOutput { token, text } => {
                self.host_prompt(HostPromptKind::ToolOutput, token, text);
            }
        }
    }

    pub(super) fn count_workflow_turn(&mut self) {
        if let Some(advanced) = self.workflow.as_mut().and_then(|flow| flow.user_turn()) {
            self.workflow_advanced(advanced);
        }
    }

    fn on_end_audio(&mut self) {
        self.mark(LiveCommand::EndAudio);
        // With automatic turn-taking silence is no turn; otherwise this ends one.
        let spoke = self.attention.user_speaks() || self.turn.pending;
        if self.live.voice_activity != VoiceActivity::Auto || spoke {
            self.user_ends();
        }
    }

    /// The host says that the user's turn is over.
    fn user_ends(&mut self) {
        self.speeches.ends(self.now);
        self.attention.speech_is_over();
        self.timers.stop(super::Timer::TranscriptWait);
        self.turn.pending = true;
        self.latency.user_ended(self.now);
        if self.state == SessionState::Listening && self.phase == Phase::Running {
            self.set_state(SessionState::Processing);
        }
    }

    fn on_host_text(&mut self, text: String) {
        self.user_is_active();
        if self.is_asking() {
            // The words decide over a call; its output is what the model answers.
            let turn = self.begin_turn();
            let said = text.trim().to_owned();
            self.emit_in(turn, EventKind::UserMessage { text: said.clone() });
            self.screen_words(turn, &said);
            self.remember_user(turn, &said);
            self.count_workflow_turn();
            self.send(LiveCommand::Text { text, reply: false }, Origin::None);
            self.decide_read_back(confirm::parse(&said));
            return;
        }
        if !self.want_reply(Wanted::Text { text, reply: true }, Why::User) {
            self.emit_error("queue", "too much waits to be said; it was dropped");
        }
    }

    fn want_host(&mut self, wanted: Wanted, options: SayOptions, host_id: Option<u64>) {
        let begin_within = options.begin_within.map(|within| within.min(NEVER));
        let mut request = self.request(Why::Host);
        request.host_id = host_id;
        request.protected = options.protected;
        request.within = begin_within.unwrap_or(request.within);
        request.by = begin_within.map(|within| self.now + within);
        if !self.replies.want(request, wanted) {
            self.emit_error("queue", "too much waits to be said; it was dropped");
            self.tell_request_end(request, RequestEnd::Refused);
        }
    }

    fn mark(&mut self, command: LiveCommand) {
        if !self.uplink.mark(command) {
            self.emit_error("queue", "too many commands wait for the wire; one was dropped");
        }
    }

    fn host_prompt(&mut self, kind: HostPromptKind, token: u64, text: String) {
        let now_is_the_time = self.state == SessionState::Listening
            && !text.trim().is_empty()
            && self.can(|can| can.text_input);
        if !now_is_the_time {
            return self.answer_prompt(Some(token), false);
        }
        self.ask_prompt(kind, Delivery::Ask(text), Some(token));
    }

    /// A call that waited for a person has its outcome: the user is told at a free moment.
    fn on_settled(&mut self, settled: Settled) {
        let Settled { record, framed, words } = settled;
        let CallState::Ended { outcome, output, .. } = record.state else { return };
        self.note_untold();
        let approval = record.approval.as_ref();
        let by_provider = approval.is_some_and(|approval| approval.by_provider);
        let permission = by_provider.then(|| self.settle_permission(&record.key, outcome, &output));
        let by = approval.and_then(|it| it.decision.as_ref()).and_then(|it| it.by.clone());
        self.emit(EventKind::ApprovalSettled {
            approval: record.key,
            id: record.call_id,
            name: record.tool,
            args: record.arguments,
            outcome,
            output,
            by,
        });
        if permission == Some(true) {
            // The model tells what comes of it.
            return;
        }
        let wanted = if self.has_hung_up() || matches!(self.phase, Phase::Closing(_)) {
            // Nobody hears it; the history has it.
            return;
        } else if self.can(|can| can.say) {
            Wanted::Say(words)
        } else if self.can(|can| can.text_input) {
            Wanted::Text { text: framed, reply: true }
        } else {
            return;
        };
        self.want_host(wanted, SayOptions::default(), None);
    }

    fn workflow_advanced(&mut self, advanced: Advanced) {
        self.emit(EventKind::WorkflowStep { step: advanced.step });
        if let Some(instructions) = advanced.instructions {
            self.update_instructions(instructions);
        }
    }

    fn update_instructions(&mut self, instructions: String) {
        std::sync::Arc::make_mut(&mut self.live).instructions = Some(instructions.clone());
        if self.connected && !self.send_instructions(instructions) {
            self.emit_error("provider", "the provider takes no new instructions in a session");
        }
    }

    /// Tells the connection its instructions. `false`: it takes none.
    pub(super) fn send_instructions(&mut self, instructions: String) -> bool {
        let command = if self.can(|can| can.update_instructions) {
            LiveCommand::UpdateInstructions(self.instructions_in_place(instructions))
        } else {
            LiveCommand::Text { text: instructions, reply: false }
        };
        self.send(command, Origin::None)
    }
}
