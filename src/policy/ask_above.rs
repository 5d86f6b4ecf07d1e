//! Larger amounts are for a person.

use antiphon_agent::{Denial, Verdict};
use antiphon_types::ToolCall;

use super::{AmountField, Policy, PolicyContext, PolicyError, pattern::ToolPattern};

/// Has a person decide over calls of some tools above an amount; a call whose amount cannot be read
/// is denied.
#[derive(Clone, Debug)]
pub struct AskAbove {
    id: String,
    tools: ToolPattern,
    amount: AmountField,
    above: u64,
}

impl AskAbove {
    /// Calls of these tools above so many minor units.
    pub fn new(
        id: &str,
        tools: &str,
        amount: AmountField,
        above: u64,
    ) -> Result<Self, PolicyError> {
        Ok(Self { id: id.to_owned(), tools: super::pattern_of(id, tools)?, amount, above })
    }
}

impl Policy for AskAbove {
    fn id(&self) -> &str {
        &self.id
    }

    fn reads_spent(&self) -> bool {
        false
    }

    fn decide(&self, cx: &PolicyContext, call: &ToolCall) -> Verdict {
        if !self.tools.fits(&call.name) {
            return Verdict::Allow;
        }
        match self.amount.read(&call.args) {
            Err(error) => Verdict::Deny(Denial::told(error.to_string())),
            Ok(amount) if amount > self.above && !cx.approved => {
                let reason = format!("{amount} is above {} (minor units)", self.above);
                Verdict::Ask { reason }
            }
            Ok(_) => Verdict::Allow,
        }
    }
}
