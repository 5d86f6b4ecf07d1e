//! Only these tools.

use antiphon_agent::{Denial, Verdict};
use antiphon_types::ToolCall;

use super::{Policy, PolicyContext, PolicyError, pattern::ToolPattern};

/// Allows calls of some tools, and denies all others.
#[derive(Clone, Debug)]
pub struct AllowList {
    id: String,
    tools: Vec<ToolPattern>,
}

impl AllowList {
    /// Tools by name, or by a pattern in which `*` stands for any characters. Errs with a pattern that
    /// no tool could fit.
    pub fn new<'a>(
        id: &str,
        tools: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, PolicyError> {
        let tools = tools.into_iter().map(|tool| super::pattern_of(id, tool));
        Ok(Self { id: id.to_owned(), tools: tools.collect::<Result<_, _>>()? })
    }
}

impl Policy for AllowList {
    fn id(&self) -> &str {
        &self.id
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, _: &PolicyContext, call: &ToolCall) -> Verdict {
        match self.tools.iter().any(|tool| tool.fits(&call.name)) {
            true => Verdict::Allow,
            false => Verdict::Deny(Denial::private("the tool is not on the list")),
        }
    }
}
