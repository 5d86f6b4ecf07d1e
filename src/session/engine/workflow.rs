//! The steps of a conversation.

use std::sync::Arc;

use antiphon_live::{LiveConfig, WorkflowConfig};

/// Where a conversation is in its workflow.
#[derive(Debug)]
pub(crate) struct Workflow {
    config: WorkflowConfig,
    base: String,
    /// `None` after the last step.
    step: Option<usize>,
    step_turns: u32,
    turns: u32,
    required_ran: bool,
}

/// The workflow went on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advanced {
    /// The step it is at; `None` after the last.
    pub(crate) step: Option<Arc<str>>,
    /// What the model is told, if anything.
    pub(crate) instructions: Option<String>,
}

impl Workflow {
    /// The workflow of `config`, if it has one with steps.
    pub(crate) fn new(config: &LiveConfig) -> Option<Self> {
        let workflow = config.workflow.as_ref().filter(|workflow| !workflow.steps.is_empty())?;
        let base = workflow.base_prompt.as_ref().or(config.instructions.as_ref());
        let first =
            if workflow.initial_step < workflow.steps.len() { workflow.initial_step } else { 0 };
        Some(Self {
            config: workflow.clone(),
            base: base.cloned().unwrap_or_default(),
            step: Some(first),
            step_turns: 0,
            turns: 0,
            required_ran: false,
        })
    }

    /// The instructions of the step it is at.
    pub(crate) fn instructions(&self) -> Option<String> {
        let step = self.config.steps.get(self.step?)?;
        let mut text = self.base.clone();
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&format!(
            "[{}: step {}]\n{}",
            self.config.sequence_id, step.id, step.instruction
        ));
        if let Some(criteria) = &step.exit_criteria {
            text.push_str(&format!("\nThis step is done when: {criteria}"));
        }
        Some(text)
    }

    /// The user finished a turn.
    pub(crate) fn user_turn(&mut self) -> Option<Advanced> {
        let step = self.config.steps.get(self.step?)?;
        self.step_turns += 1;
        self.turns += 1;
        let reached = |turns: u32, max: Option<u32>| max.is_some_and(|max| turns >= max);
        let due =
            reached(self.step_turns, step.max_turns) || reached(self.turns, self.config.max_turns);
        let may_leave = self.required_ran || step.require_tools.is_empty();
        (due && may_leave).then(|| self.advance()).flatten()
    }

    /// A tool ran.
    pub(crate) fn tool_ran(&mut self, name: &str) {
        let Some(step) = self.step.and_then(|step| self.config.steps.get(step)) else { return };
        self.required_ran |= step.require_tools.iter().any(|required| &**required == name);
    }

    /// Goes to the next step. `None`: the last one is over already.
    pub(crate) fn advance(&mut self) -> Option<Advanced> {
        let next = self.step? + 1;
        self.step = (next < self.config.steps.len()).then_some(next);
        self.step_turns = 0;
        self.required_ran = false;
        Some(match self.step {
            Some(step) => Advanced {
                step: Some(self.config.steps[step].id.clone()),
                instructions: self.instructions(),
            },
            None => Advanced { step: None, instructions: self.config.completion.clone() },
        })
    }
}

#[cfg(test)]
mod tests {
    use antiphon_live::WorkflowStep;

    use super::*;

    fn workflow(edit: impl FnOnce(&mut WorkflowConfig)) -> Workflow {
        let mut first = WorkflowStep::new("greet", "Greet.");
        first.max_turns = Some(2);
        let mut config =
            WorkflowConfig::new("intake", vec![first, WorkflowStep::new("ask", "Ask.")]);
        edit(&mut config);
        let config = LiveConfig::new().instructions("Be kind.").workflow(config);
        Workflow::new(&config).unwrap()
    }

    #[test]
    fn instructions_have_base_step_and_criteria() {
        let workflow =
            workflow(|config| config.steps[0].exit_criteria = Some("a name is known".into()));
        let text = workflow.instructions().unwrap();
        for part in ["Be kind.", "intake", "greet", "Greet.", "a name is known"] {
            assert!(text.contains(part), "{part} is missing in {text}");
        }
    }

    #[test]
    fn turns_advance_a_step_and_the_last_one_completes() {
        let mut workflow = workflow(|config| config.completion = Some("Done.".into()));
        assert_eq!(workflow.user_turn(), None);
        assert_eq!(workflow.user_turn().unwrap().step.as_deref(), Some("ask"));
        assert_eq!(workflow.user_turn(), None);
        let last = workflow.advance().unwrap();
        assert_eq!(last, Advanced { step: None, instructions: Some("Done.".into()) });
        assert_eq!(workflow.advance(), None);
        assert_eq!(workflow.user_turn(), None);
    }

    #[test]
    fn turns_of_the_whole_conversation_advance_a_step_as_well() {
        let mut workflow = workflow(|config| {
            config.steps[0].max_turns = None;
            config.max_turns = Some(3);
        });
        assert_eq!((workflow.user_turn(), workflow.user_turn()), (None, None));
        assert_eq!(workflow.user_turn().unwrap().step.as_deref(), Some("ask"));
    }

    #[test]
    fn a_required_tool_holds_the_step() {
        let mut workflow = workflow(|config| config.steps[0].require_tools = vec!["id".into()]);
        for _ in 0..5 {
            assert_eq!(workflow.user_turn(), None);
        }
        workflow.tool_ran("other");
        assert_eq!(workflow.user_turn(), None);
        workflow.tool_ran("id");
        assert!(workflow.user_turn().is_some());
    }

    #[test]
    fn an_initial_step_out_of_range_is_the_first() {
        assert!(
            workflow(|config| config.initial_step = 9).instructions().unwrap().contains("greet")
        );
    }
}
