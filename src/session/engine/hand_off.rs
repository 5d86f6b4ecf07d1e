//! Handing the conversation over from one agent to another: at a clean point, and as a whole.
//!
//! The reply of the agent that had it ends first, and is heard to its end; its calls have their
//! outputs. Then instructions, tools and voice change together, in place where the provider can, else
//! by a new connection that goes on from the old one. What is asked for afterwards the next agent
//! answers.

use std::sync::Arc;

use antiphon_live::LiveCommand;
use antiphon_types::ToolDefinition;
use serde::{Deserialize, Serialize};

use super::{
    Engine,
    io::{Origin, Output},
    prompts,
    sequencer::{Wanted, Why},
    timers::Timer,
    workflow::Workflow,
};
use crate::session::EventKind;

/// The conversation is to go over to another agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HandOff {
    /// Counts them within the session; names what runs the agent's tools.
    pub(crate) number: u64,
    /// Who it is; `None`: who had it first.
    pub(crate) to: Option<Arc<str>>,
    /// `None`: as it was.
    pub(crate) persona: Option<Persona>,
    /// The next agent speaks first.
    pub(crate) speaks: bool,
}

/// What an agent is to a provider.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Persona {
    pub(crate) instructions: Option<String>,
    pub(crate) tools: Vec<ToolDefinition>,
    /// `None`: the voice stays.
    pub(crate) voice: Option<Arc<str>>,
}

/// Who has the conversation.
#[derive(Debug, Default)]
pub(super) struct Agents {
    /// `None`: the first.
    present: Option<Arc<str>>,
    /// What the first one is, while another has it.
    first: Option<(Persona, Option<Workflow>)>,
    wanted: Option<HandOff>,
}

impl Engine {
    /// What the first agent is, while another has the conversation.
    pub(super) fn first_persona(&mut self) -> Option<&mut Persona> {
        self.agents.first.as_mut().map(|(persona, _)| persona)
    }

    pub(super) fn on_hand_off(&mut self, order: HandOff) {
        // The last word counts.
        self.agents.wanted = Some(order);
    }

    /// Hands over, once that is due and nothing of the present agent is under way.
    pub(super) fn hand_off_if_clean(&mut self) {
        if self.agents.wanted.is_none() || !self.is_clean() {
            return;
        }
        let Some(HandOff { number, to, persona, speaks }) = self.agents.wanted.take() else {
            return;
        };
        let Some(next) = self.change_places(&to, persona) else { return };
        let from = std::mem::replace(&mut self.agents.present, to.clone());
        let live = Arc::make_mut(&mut self.live);
        let voice_changes = next.voice.is_some() && next.voice != live.voice;
        live.instructions.clone_from(&next.instructions);
        live.tools.clone_from(&next.tools);
        if voice_changes {
            live.voice = next.voice;
        }
        self.prompt_outputs.push_back(Output::HandOver { number });
        self.emit(EventKind::HandedOff { from, to });
        let in_place = !voice_changes
            && next.instructions.is_some()
            && self.can(|can| can.update_instructions && can.update_tools);
        if in_place {
            let instructions = self.instructions_in_place(next.instructions.unwrap_or_default());
            self.send(LiveCommand::UpdateInstructions(instructions), Origin::None);
            self.send(LiveCommand::UpdateTools(next.tools.into()), Origin::None);
        } else {
            self.replace_because("another agent has the conversation now", true);
        }
        let answers = self.replies.is_waiting();
        if speaks && !answers {
            self.let_speak();
        }
    }

    /// Whether nothing of what the present agent says and does is left.
    fn is_clean(&self) -> bool {
        let speaks = self.replies.active.is_some()
            || self.replies.asked.is_some()
            || !self.replies.playing.is_empty();
        let works = self.calls.any_at_work() || self.calls.first_parked().is_some();
        // The user's words, and what they will lead to, are still the present agent's.
        let listens = self.attention.user_speaks() || self.timers.is_set(Timer::TranscriptWait);
        self.connected && !speaks && !works && !listens && !self.clearing
    }

    /// What the next agent is; what the first one is stays known.
    fn change_places(
        &mut self,
        to: &Option<Arc<str>>,
        persona: Option<Persona>,
    ) -> Option<Persona> {
        match persona {
            Some(next) => {
                if self.agents.first.is_none() {
                    let live = &self.live;
                    let (instructions, voice) = (live.instructions.clone(), live.voice.clone());
                    let first = Persona { instructions, tools: live.tools.clone(), voice };
                    self.agents.first = Some((first, self.workflow.take()));
                }
                Some(next)
            }
            None => {
                debug_assert!(to.is_none(), "only the first is known by itself");
                let (first, workflow) = self.agents.first.take()?;
                self.workflow = workflow;
                Some(first)
            }
        }
    }

    /// The next agent speaks, though nobody said anything.
    fn let_speak(&mut self) {
        let wanted = if self.can(|can| can.create_reply) {
            Wanted::Reply
        } else {
            let text = prompts::go_on(self.language).to_owned();
            Wanted::Text { text, reply: true }
        };
        if self.can(|can| can.create_reply || can.text_input) {
            self.want_reply(wanted, Why::Tools);
        }
    }
}
