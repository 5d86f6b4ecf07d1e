//! What an agent can do with its call, and the tools by which a model does so.

use std::{sync::Arc, time::Duration};

use antiphon_agent::{FuncTool, OnInterruption, Tool, ToolError, ToolLimits};
use antiphon_types::JsonObject;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::keys::FieldDone;
use crate::telephony::{
    dialect::{DialectError, is_digit},
    media::{CollectEnd, Collected, DigitRules},
};

/// Commands that may wait for the call's task.
const QUEUE: usize = 16;
/// How long a request to the carrier may take.
const REQUEST: Duration = Duration::from_secs(30);
/// How long it may take until a call is handed on: it is announced, and the number rings.
const HANDING_ON: Duration = Duration::from_secs(140);
const DAY: Duration = Duration::from_secs(86_400);
/// A model puts a call on hold for so long at most, in seconds.
const LONGEST_HOLD: u64 = 300;

/// A handle on a call, for its agent and its tools.
#[derive(Clone, Debug)]
pub struct CallControl {
    commands: mpsc::Sender<Command>,
    offers: Offers,
}

/// What can be done to a call, by its carrier and by the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offers {
    pub(super) transfer: bool,
    pub(super) keys: bool,
}

#[derive(Debug)]
pub(super) enum Command {
    /// Ends the call: once the turn was heard, or now.
    HangUp {
        when_heard: bool,
    },
    Transfer {
        to: String,
        done: oneshot::Sender<Result<(), ControlError>>,
    },
    SendDigits {
        digits: String,
        done: oneshot::Sender<Result<(), ControlError>>,
    },
    Collect {
        rules: DigitRules,
        done: FieldDone,
    },
    /// The caller hears nothing, and is not heard, for so long at most.
    Hold {
        time: Duration,
    },
    /// The caller is not heard, or is again.
    Mute {
        on: bool,
    },
}

/// Why something was not done to a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The call is over.
    #[error("the call is over")]
    Over,
    /// The carrier cannot do it over this connection.
    #[error("{0}")]
    Unsupported(DialectError),
    /// No number, or one that may not be called.
    #[error("this number may not be called")]
    NotAllowed,
    /// The carrier refused.
    #[error("the carrier refused: {0}")]
    Refused(String),
    /// Nobody knows whether it was done: the connection to the carrier broke, or the carrier failed.
    #[error("it is not known whether the carrier did it: {0}")]
    Unknown(String),
    /// The number that the call was handed on to was busy, did not answer, or could not be reached: the
    /// agent has the call again.
    #[error("the number was not reached: {0}")]
    NotReached(String),
    /// The caller spoke before it was done.
    #[error("the caller spoke before it was done")]
    Interrupted,
    /// Another field of keys is waited for in its place.
    #[error("another field is waited for")]
    Replaced,
    /// It took too long.
    #[error("the carrier did not answer in time")]
    TimedOut,
}

impl CallControl {
    pub(super) fn new(offers: Offers) -> (Self, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(QUEUE);
        (Self { commands, offers }, receiver)
    }

    /// Whether the call can be handed on.
    pub fn can_transfer(&self) -> bool {
        self.offers.transfer
    }

    /// Whether keys can be pressed towards the other end.
    pub fn can_send_digits(&self) -> bool {
        self.offers.keys
    }

    /// Ends the call once the present turn was heard to its end; if the caller interrupts it, the call
    /// goes on.
    pub async fn hang_up_when_heard(&self) -> Result<(), ControlError> {
        self.send(Command::HangUp { when_heard: true }).await
    }

    /// Ends the call now.
    pub async fn hang_up(&self) -> Result<(), ControlError> {
        self.send(Command::HangUp { when_heard: false }).await
    }

    /// Hands the call on to a number (E.164: `+15550001`), once what was said was heard. Returns when
    /// somebody answers there, where the carrier tells that. On `Err` the agent still has the call, or
    /// has it again: because the number was not reached, or because the caller spoke.
    pub async fn transfer(&self, to: impl Into<String>) -> Result<(), ControlError> {
        let (done, outcome) = oneshot::channel();
        self.send(Command::Transfer { to: to.into(), done }).await?;
        answer(outcome, HANDING_ON).await
    }

    /// Has the carrier press keys.
    pub async fn send_digits(&self, digits: impl Into<String>) -> Result<(), ControlError> {
        let digits = digits.into();
        if digits.is_empty() || digits.len() > 64 || !digits.chars().all(is_digit) {
            return Err(ControlError::Unsupported(DialectError::Unsupported("these keys")));
        }
        let (done, outcome) = oneshot::channel();
        self.send(Command::SendDigits { digits, done }).await?;
        answer(outcome, REQUEST).await
    }

    /// Waits for a field of keys. One that is asked for while another is waited for takes its place.
    pub async fn collect_digits(&self, rules: DigitRules) -> Result<Collected, ControlError> {
        let (done, outcome) = oneshot::channel();
        self.send(Command::Collect { rules, done }).await?;
        outcome.await.map_err(|_| ControlError::Over)?
    }

    /// Puts the caller on hold: he hears nothing and is not heard, for so long at most. What the agent
    /// says meanwhile, and what he had not heard yet, he hears afterwards. Zero ends it; a day is the
    /// most.
    pub async fn hold(&self, time: Duration) -> Result<(), ControlError> {
        self.send(Command::Hold { time: time.min(DAY) }).await
    }

    /// The caller is not heard, or is again. He hears the agent all the same.
    pub async fn mute(&self, on: bool) -> Result<(), ControlError> {
        self.send(Command::Mute { on }).await
    }

    async fn send(&self, command: Command) -> Result<(), ControlError> {
        self.commands.send(command).await.map_err(|_| ControlError::Over)
    }
}

async fn answer(
    outcome: oneshot::Receiver<Result<(), ControlError>>,
    within: Duration,
) -> Result<(), ControlError> {
    match tokio::time::timeout(within, outcome).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ControlError::Over),
        Err(_) => Err(ControlError::TimedOut),
    }
}

/// The tools by which a model handles its call: `hang_up`, `collect_keys`, `hold_call`, `mute_caller`,
/// and where the carrier and the configuration make it possible `transfer_call` and `press_keys`. They
/// pass the session's policy as all tools do.
pub fn call_tools(control: &CallControl) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(hang_up(control.clone())),
        Arc::new(collect_keys(control.clone())),
        Arc::new(hold(control.clone())),
        Arc::new(mute(control.clone())),
    ];
    if control.can_transfer() {
        tools.push(Arc::new(transfer(control.clone())));
    }
    if control.can_send_digits() {
        tools.push(Arc::new(press_keys(control.clone())));
    }
    tools
}

fn hang_up(control: CallControl) -> FuncTool {
    let what = "Ends the telephone call, after what you say now was heard. Say goodbye with it.";
    FuncTool::new("hang_up", what, None, move |_, _| {
        let control = control.clone();
        async move {
            control.hang_up_when_heard().await.map_err(failed)?;
            Ok(object(json!({ "status": "the call ends once your goodbye was heard" })))
        }
    })
    .speech(
        antiphon_types::ToolSpeech::phrases(["goodbye", "good bye", "bye", "hang up", "bye bye"])
            .answer("Goodbye."),
    )
}

fn transfer(control: CallControl) -> FuncTool {
    let schema = json!({
        "type": "object",
        "properties": { "to": { "type": "string", "pattern": "^\\+[1-9][0-9]{3,14}$" } },
        "required": ["to"],
        "additionalProperties": false
    });
    let what = "Hands the telephone call on to another number, in the form +15550001. Say so with it. \
        If nobody answers there, you have the call again.";
    let limits = ToolLimits::default().timeout(HANDING_ON + Duration::from_secs(5));
    FuncTool::new("transfer_call", what, schema, move |_, args| {
        let control = control.clone();
        async move {
            let to = args.get("to").and_then(Value::as_str).unwrap_or_default().to_owned();
            control.transfer(to).await.map_err(failed)?;
            Ok(object(json!({ "status": "handed on" })))
        }
    })
    .limits(limits)
}

fn hold(control: CallControl) -> FuncTool {
    let schema = json!({
        "type": "object",
        "properties": {
            "seconds": {
                "type": "integer", "minimum": 0, "maximum": LONGEST_HOLD,
                "description": "How long at most; 0 ends it."
            }
        },
        "required": ["seconds"],
        "additionalProperties": false
    });
    let what = "Puts the caller on hold: he hears nothing and is not heard.";
    FuncTool::new("hold_call", what, schema, move |_, args| {
        let control = control.clone();
        async move {
            let seconds = args.get("seconds").and_then(Value::as_u64).unwrap_or_default();
            let time = Duration::from_secs(seconds.min(LONGEST_HOLD));
            control.hold(time).await.map_err(failed)?;
            let status = if time.is_zero() { "the caller hears you" } else { "on hold" };
            Ok(object(json!({ "status": status })))
        }
    })
}

fn mute(control: CallControl) -> FuncTool {
    let schema = json!({
        "type": "object",
        "properties": { "on": { "type": "boolean" } },
        "required": ["on"],
        "additionalProperties": false
    });
    let what = "The caller is not heard any more (on), or is again. He hears you all the same.";
    FuncTool::new("mute_caller", what, schema, move |_, args| {
        let control = control.clone();
        async move {
            let on = args.get("on").and_then(Value::as_bool).unwrap_or_default();
            control.mute(on).await.map_err(failed)?;
            Ok(object(json!({ "status": if on { "muted" } else { "heard again" } })))
        }
    })
}

fn press_keys(control: CallControl) -> FuncTool {
    let schema = json!({
        "type": "object",
        "properties": { "keys": { "type": "string", "pattern": "^[0-9*#A-D]{1,64}$" } },
        "required": ["keys"],
        "additionalProperties": false
    });
    FuncTool::new("press_keys", "Presses keys of the telephone.", schema, move |_, args| {
        let control = control.clone();
        async move {
            let keys = args.get("keys").and_then(Value::as_str).unwrap_or_default().to_owned();
            control.send_digits(keys).await.map_err(failed)?;
            Ok(object(json!({ "status": "pressed" })))
        }
    })
}

fn collect_keys(control: CallControl) -> FuncTool {
    let schema = json!({
        "type": "object",
        "properties": {
            "most": { "type": "integer", "minimum": 1, "maximum": 64 },
            "least": { "type": "integer", "minimum": 1, "maximum": 64 },
            "terminator": {
                "type": "string", "enum": ["#", "*", "none"],
                "description": "the key that ends the number; the hash key where it is not said"
            },
            "first_seconds": {
                "type": "integer", "minimum": 1, "maximum": 60,
                "description": "how long the first key is waited for, once you have spoken"
            },
            "between_seconds": {
                "type": "integer", "minimum": 1, "maximum": 30,
                "description": "how long each further key is waited for"
            },
            "interrupt": {
                "type": "boolean",
                "description": "whether the first key stops your speech"
            },
            "secret": {
                "type": "boolean",
                "description": "You are given a name for the keys in place of them."
            }
        },
        "additionalProperties": false
    });
    let what = "Waits for the caller to key in a number on the telephone, ended by the hash key. Ask \
        for it first.";
    let limits = ToolLimits::default().timeout(Duration::from_secs(300));
    FuncTool::new("collect_keys", what, schema, move |cx, args| {
        let control = control.clone();
        async move {
            let number = |name: &str| args.get(name).and_then(Value::as_u64);
            let mut rules = DigitRules::default();
            if let Some(most) = number("most") {
                rules.most = most as usize;
            }
            if let Some(least) = number("least") {
                rules.least = least as usize;
            }
            if let Some(key) = args.get("terminator").and_then(Value::as_str) {
                rules.terminator = key.chars().next().filter(|key| is_digit(*key));
            }
            if let Some(seconds) = number("first_seconds") {
                rules.first = Duration::from_secs(seconds);
            }
            if let Some(seconds) = number("between_seconds") {
                rules.between = Duration::from_secs(seconds);
            }
            rules.interrupts = args.get("interrupt").and_then(Value::as_bool);
            rules.secret = args.get("secret").and_then(Value::as_bool) == Some(true);
            let field = control.collect_digits(rules).await.map_err(failed)?;
            let end = json!(field.end);
            if field.end == CollectEnd::TooShort {
                return Ok(object(json!({ "status": "nothing was keyed in", "end": end })));
            }
            let count = field.digits.len();
            if !field.secret {
                return Ok(object(json!({ "keys": field.digits, "end": end })));
            }
            // The keys stay here: other tools find them in the session's memory by this name.
            let handle = format!("keys/{}", cx.call_id);
            cx.memory.set(&handle, &field.digits).await.map_err(failed)?;
            Ok(object(json!({ "handle": handle, "count": count, "end": end })))
        }
    })
    .limits(limits)
    .on_interruption(OnInterruption::Keep)
    .speech(
        antiphon_types::ToolSpeech::phrases([
            "i want to enter a code",
            "enter a code",
            "key in a code",
        ])
        .answer("You entered {keys}."),
    )
}

fn failed(error: impl std::fmt::Display) -> ToolError {
    ToolError::new(error.to_string())
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    }
}

#[cfg(test)]
mod tests {
    use antiphon_agent::{
        Admission, Authorizer, CallContext, Denial, InMemory, Outcome, ToolExecutor, ToolRegistry,
        Verdict,
    };
    use antiphon_types::{ToolArguments, ToolCall, ToolCallRequest};

    use super::*;

    /// Each tool that does something to the call, with arguments that it would take.
    const ACTIONS: [(&str, &str); 6] = [
        ("hang_up", "{}"),
        ("transfer_call", r#"{"to": "+15550001"}"#),
        ("press_keys", r#"{"keys": "12#"}"#),
        ("collect_keys", "{}"),
        ("hold_call", r#"{"seconds": 5}"#),
        ("mute_caller", r#"{"on": true}"#),
    ];

    #[tokio::test]
    async fn nothing_is_done_to_a_call_that_a_policy_denies() {
        let offers = Offers { transfer: true, keys: true };
        let (control, mut commands) = CallControl::new(offers);
        let registry = ToolRegistry::new();
        for tool in call_tools(&control) {
            registry.register_shared(tool).unwrap();
        }
        let names: Vec<_> = ACTIONS.iter().map(|(name, _)| *name).collect();
        let mut there: Vec<_> =
            registry.definitions().iter().map(|tool| tool.name.to_string()).collect();
        there.sort_by_key(|name| names.iter().position(|known| known == name));
        assert_eq!(there, names, "whoever adds a tool adds it here");
        let deny: Arc<dyn Authorizer> = Arc::new(|_: &CallContext, _: &ToolCall| {
            Verdict::Deny(Denial::private("nothing is allowed"))
        });
        let executor = ToolExecutor::new(Arc::new(registry), Some(deny));
        let cx = CallContext::new("call", 1, Arc::new(InMemory::new()));
        for (name, args) in ACTIONS {
            let (id, arguments) = (name.into(), ToolArguments::Json(args.into()));
            let request = ToolCallRequest { id, name: name.into(), arguments };
            let admission = executor.admit_within(&cx, request, Some(Duration::from_secs(5))).await;
            let Admission::Refused(refused) = admission else { panic!("{name}: {admission:?}") };
            assert_eq!(refused.outcome, Outcome::Denied, "{name}");
        }
        assert!(commands.try_recv().is_err(), "the call's task was asked for nothing");
    }
}
