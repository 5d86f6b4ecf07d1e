//! `send_money`, a demonstration of a guarded tool.

use std::sync::{Arc, Mutex, PoisonError};

use antiphon_agent::{FuncTool, Tool, ToolError};
use antiphon_types::{Status, ToolSpeech};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{output, read_args};

/// Transfers kept; later ones are refused.
const MAX_TRANSFERS: usize = 1_000;

/// The transfers that the demonstration tool `send_money` recorded. No money moves anywhere.
/// Clones share.
#[derive(Clone, Debug, Default)]
pub struct Transfers(Arc<Mutex<Vec<Transfer>>>);

/// One recorded transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// To whom.
    pub name: String,
    /// How much, in euros.
    pub amount: f64,
}

impl Transfers {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// All transfers so far, oldest first.
    pub fn all(&self) -> Vec<Transfer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tool `send_money`. It reads every call back before it runs; a limit is the business of
    /// the host's policy.
    pub fn tool(&self) -> impl Tool + use<> {
        let transfers = self.clone();
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {
                    "type": "string", "minLength": 1, "maxLength": 100, "x-slot": "name",
                    "description": "To whom."
                },
                "amount": {
                    "type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000,
                    "x-slot": "amount", "x-currency": "EUR", "description": "How much, in euros."
                },
            },
            "required": ["name", "amount"],
            "additionalProperties": false,
        });
        FuncTool::new(
            "send_money",
            "Sends money to a person. A demonstration: it records the transfer in memory, and no \
             money moves.",
            schema,
            move |_, args| {
                let transfers = transfers.clone();
                async move {
                    let transfer: Transfer = read_args(args)?;
                    transfers.record(transfer.clone())?;
                    Ok(output(json!({
                        "sent": true, "amount": transfer.amount, "name": transfer.name
                    })))
                }
            },
        )
        .read_back("Send {amount} euros to {name}?")
        .speech(
            ToolSpeech::phrases([
                "send {amount} to {name}",
                "send {amount} euros to {name}",
                "send {name} {amount}",
                "send {name} {amount} euros",
                "pay {name} {amount}",
                "pay {name} {amount} euros",
                "pay {amount} to {name}",
                "transfer {amount} to {name}",
                "transfer {amount} euros to {name}",
                "send money to {name}",
            ])
            .answer("Done. I sent {amount} to {name}.")
            .question("name", "To whom?")
            .question("amount", "How much?"),
        )
    }

    fn record(&self, transfer: Transfer) -> Result<(), ToolError> {
        let mut transfers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if transfers.len() >= MAX_TRANSFERS {
            return Err(ToolError::new("too many transfers in one session")
                .with_status(Status::ResourceExhausted));
        }
        transfers.push(transfer);
        Ok(())
    }
}
