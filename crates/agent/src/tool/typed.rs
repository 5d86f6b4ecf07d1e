//! Tools whose arguments and outputs are types of the host's.

use std::{any::type_name, fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use antiphon_types::{
    JsonObject, Status, ToolBehavior, ToolDefinition, ToolResponseScheduling, ToolSpeech,
};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{Effects, FuncTool, OnInterruption, Tool, ToolContext, ToolLimits, interrupts};
use crate::{RuntimeError, ToolError, message::Part, schema};

/// A tool from a closure over types; both have JSON Schemas, which the model is told. Clones share
/// the closure: keep one to answer interrupts.
///
/// ```
/// use antiphon_agent::{ToolRegistry, TypedTool};
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Place {
///     /// Name of the city.
///     city: String,
/// }
///
/// let weather = TypedTool::new("weather", "Tells the weather.", |_cx, place: Place| async move {
///     Ok(format!("sunny in {}", place.city))
/// });
/// ToolRegistry::new().must_register(weather);
/// ```
pub struct TypedTool<In, Out> {
    tool: FuncTool,
    types: PhantomData<fn(In) -> Out>,
}

impl<In, Out> TypedTool<In, Out>
where
    In: DeserializeOwned + JsonSchema + Send + 'static,
    Out: Serialize + JsonSchema + Send + 'static,
{
    /// A tool that does its work in a future, which must not block its thread. `In` has to be a
    /// struct, a map, or `()` where there are no arguments.
    pub fn new<F, Fut>(
        name: impl Into<Arc<str>>,
        description: impl Into<Arc<str>>,
        invoke: F,
    ) -> Self
    where
        F: Fn(ToolContext, In) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, ToolError>> + Send + 'static,
    {
        let definition = define::<In, Out>(name.into(), description.into());
        let tool = FuncTool::from_definition(definition, move |cx, args| {
            let output = decode(args).map(|input| invoke(cx, input));
            async move { encode(output?.await?) }
        });
        Self { tool, types: PhantomData }
    }
}

impl<In, Out: Serialize> TypedTool<In, Out> {
    /// The part that answers an interrupted call of this tool in its place. Errs with
    /// `INVALID_ARGUMENT` where `part` is no interrupted request of this tool.
    pub fn respond(&self, part: &Part, output: Out) -> Result<Part, RuntimeError> {
        owns(&self.tool, part)?;
        interrupts::respond(part, output)
    }
}

/// A tool that may pause with [`interrupt`](super::interrupt) and is run again with somebody's
/// answer. Clones share the closure: keep one to answer.
///
/// ```
/// use antiphon_agent::{InterruptibleTool, tool::interrupt};
/// use serde_json::json;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct Transfer {
///     to: String,
///     amount: f64,
/// }
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Confirmation {
///     approved: bool,
/// }
///
/// let transfer = InterruptibleTool::new(
///     "transfer",
///     "Transfers money to another account.",
///     |_cx, input: Transfer, answer: Option<Confirmation>| async move {
///         match answer {
///             None if input.amount > 100.0 => Err(interrupt(json!({ "amount": input.amount }))),
///             Some(Confirmation { approved: false }) => Ok("cancelled"),
///             _ => Ok("completed"),
///         }
///     },
/// );
/// # let _ = transfer;
/// ```
pub struct InterruptibleTool<In, Out, Res> {
    tool: FuncTool,
    types: PhantomData<fn(In, Res) -> Out>,
}

impl<In, Out, Res> InterruptibleTool<In, Out, Res>
where
    In: DeserializeOwned + JsonSchema + Send + 'static,
    Out: Serialize + JsonSchema + Send + 'static,
    Res: DeserializeOwned + Send + 'static,
{
    /// A tool that does its work in a future, which must not block its thread. Its last argument is
    /// the answer when the call runs again after an interrupt. An answer without data, `true`, is a
    /// `Res` of no members; an answer that is no `Res` fails the call.
    pub fn new<F, Fut>(
        name: impl Into<Arc<str>>,
        description: impl Into<Arc<str>>,
        invoke: F,
    ) -> Self
    where
        F: Fn(ToolContext, In, Option<Res>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Out, ToolError>> + Send + 'static,
    {
        let definition = define::<In, Out>(name.into(), description.into());
        let tool = FuncTool::from_definition(definition, move |cx, args| {
            let output = decode(args).and_then(|input| {
                let answer = cx.resumed().map(decode_answer).transpose()?;
                Ok(invoke(cx, input, answer))
            });
            async move { encode(output?.await?) }
        });
        Self { tool, types: PhantomData }
    }
}

impl<In, Out, Res> InterruptibleTool<In, Out, Res> {
    /// The part that has an interrupted call of this tool run again with this answer, which has to
    /// be a JSON object. Errs with `INVALID_ARGUMENT` where it is none, and where `part` is no
    /// interrupted request of this tool.
    pub fn resume(&self, part: &Part, answer: Res) -> Result<Part, RuntimeError>
    where
        Res: Serialize,
    {
        owns(&self.tool, part)?;
        interrupts::resume(part, answer)
    }

    /// The part that answers an interrupted call of this tool in its place. Errs with
    /// `INVALID_ARGUMENT` where `part` is no interrupted request of this tool.
    pub fn respond(&self, part: &Part, output: Out) -> Result<Part, RuntimeError>
    where
        Out: Serialize,
    {
        owns(&self.tool, part)?;
        interrupts::respond(part, output)
    }
}

/// What a typed tool shares with the [`FuncTool`] it is made of.
macro_rules! as_func_tool {
    ($name:ident<$($generic:ident),+>) => {
        impl<$($generic),+> $name<$($generic),+> {
            /// Sets how it is asked for and answered in spoken words.
            pub fn speech(self, speech: ToolSpeech) -> Self {
                self.with(|tool| tool.speech(speech))
            }

            /// Sets the template of the words by which a call is read back before it runs.
            pub fn read_back(self, template: impl Into<String>) -> Self {
                self.with(|tool| tool.read_back(template))
            }

            /// Sets its bounds.
            pub fn limits(self, limits: ToolLimits) -> Self {
                self.with(|tool| tool.limits(limits))
            }

            /// Sets what a call changes.
            pub fn effects(self, effects: Effects) -> Self {
                self.with(|tool| tool.effects(effects))
            }

            /// Sets how long a call may take.
            pub fn timeout(self, timeout: Duration) -> Self {
                self.with(|tool| tool.timeout(timeout))
            }

            /// Sets whether the model waits for the result.
            pub fn behavior(self, behavior: ToolBehavior) -> Self {
                self.with(|tool| tool.behavior(behavior))
            }

            /// Sets when the result of a non-blocking tool is to be spoken.
            pub fn scheduling(self, scheduling: ToolResponseScheduling) -> Self {
                self.with(|tool| tool.scheduling(scheduling))
            }

            /// Sets what an interruption by the user does to a call that runs.
            pub fn on_interruption(self, on_interruption: OnInterruption) -> Self {
                self.with(|tool| tool.on_interruption(on_interruption))
            }

            fn with(self, change: impl FnOnce(FuncTool) -> FuncTool) -> Self {
                Self { tool: change(self.tool), types: PhantomData }
            }
        }

        #[async_trait]
        impl<$($generic: 'static),+> Tool for $name<$($generic),+> {
            fn name(&self) -> &str {
                self.tool.name()
            }

            fn description(&self) -> &str {
                self.tool.description()
            }

            fn input_schema(&self) -> Option<Arc<Value>> {
                self.tool.input_schema()
            }

            fn output_schema(&self) -> Option<Arc<Value>> {
                Tool::output_schema(&self.tool)
            }

            fn behavior(&self) -> ToolBehavior {
                Tool::behavior(&self.tool)
            }

            fn scheduling(&self) -> ToolResponseScheduling {
                Tool::scheduling(&self.tool)
            }

            fn on_interruption(&self) -> OnInterruption {
                Tool::on_interruption(&self.tool)
            }

            fn speech(&self) -> Option<Arc<ToolSpeech>> {
                Tool::speech(&self.tool)
            }

            fn read_back(&self) -> Option<&str> {
                Tool::read_back(&self.tool)
            }

            fn limits(&self) -> ToolLimits {
                Tool::limits(&self.tool)
            }

            fn effects(&self) -> Effects {
                Tool::effects(&self.tool)
            }

            async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError> {
                self.tool.invoke(cx, args).await
            }
        }

        impl<$($generic),+> Clone for $name<$($generic),+> {
            fn clone(&self) -> Self {
                Self { tool: self.tool.clone(), types: PhantomData }
            }
        }

        impl<$($generic),+> fmt::Debug for $name<$($generic),+> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.tool).finish()
            }
        }
    };
}

as_func_tool!(TypedTool<In, Out>);
as_func_tool!(InterruptibleTool<In, Out, Res>);

fn define<In: JsonSchema, Out: JsonSchema>(
    name: Arc<str>,
    description: Arc<str>,
) -> ToolDefinition {
    let mut definition = ToolDefinition::new(name, description);
    let input = schema::of_input::<In>();
    // `()`: a tool without parameters.
    let none = input.get("type").is_some_and(|kind| kind == "null");
    definition.input_schema = (!none).then(|| Arc::new(input));
    definition.output_schema = Some(Arc::new(schema::of_output::<Out>()));
    definition
}

fn decode<In: DeserializeOwned>(args: JsonObject) -> Result<In, ToolError> {
    let empty = args.is_empty();
    In::deserialize(Value::Object(args)).or_else(|error| {
        let unit = empty.then(|| In::deserialize(Value::Null).ok()).flatten();
        unit.ok_or_else(|| invalid(format!("invalid arguments: {error}")))
    })
}

fn decode_answer<Res: DeserializeOwned>(answer: &Value) -> Result<Res, ToolError> {
    let bare =
        || (*answer == true).then(|| Res::deserialize(Value::Object(JsonObject::new())).ok());
    Res::deserialize(answer).or_else(|error| {
        bare().flatten().ok_or_else(|| {
            let wanted = type_name::<Res>();
            ToolError::private(format!("the answer to the interrupt is no {wanted}: {error}"))
                .with_status(Status::InvalidArgument)
        })
    })
}

fn encode(output: impl Serialize) -> Result<Value, ToolError> {
    serde_json::to_value(output).map_err(|error| {
        ToolError::private(format!("the output is no JSON: {error}")).with_status(Status::Internal)
    })
}

fn owns(tool: &FuncTool, part: &Part) -> Result<(), RuntimeError> {
    let request = interrupts::interrupted(part)?;
    if *request.name != *tool.definition.name {
        return Err(RuntimeError::InvalidArgument(format!(
            "the interrupt is of tool {:?}, not of {:?}",
            request.name, tool.definition.name
        )));
    }
    Ok(())
}

fn invalid(message: String) -> ToolError {
    ToolError::new(message).with_status(Status::InvalidArgument).not_done()
}
