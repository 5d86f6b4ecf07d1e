//! `antiphon policy`.

use std::{path::Path, sync::Arc};

use antiphon::{
    agent::{Verdict, memory::InMemory},
    policy::{Cedar, Expected, Explanation, PolicyFile, Scenario},
    tools::load_tools,
    types::ToolDefinition,
};

use crate::{
    args::{PolicyArguments, PolicyCommand},
    bridge,
    failure::Failure,
    toolbox::Toolbox,
};

/// Does what the command line says.
pub fn run(arguments: PolicyArguments) -> Result<(), Failure> {
    match arguments.command {
        PolicyCommand::Check { policy, tools } => check(&policy, tools.as_deref()),
        PolicyCommand::Schema { policy, tools } => schema(policy.as_deref(), tools.as_deref()),
        PolicyCommand::Test { policy, scenarios, tools } => {
            test(&policy, &scenarios, tools.as_deref())
        }
        PolicyCommand::Explain { policy, call, tools } => explain(&policy, &call, tools.as_deref()),
    }
}

fn check(policy: &Path, tools: Option<&Path>) -> Result<(), Failure> {
    let known = known_tools(tools)?;
    let file = load(policy, &known)?;
    let mut unused = Vec::new();
    // Without them nobody knows which tools there are going to be.
    if tools.is_some() {
        unused = file.unused_patterns(known.iter().map(|tool| &*tool.name));
    }
    for pattern in &unused {
        println!("{}: no tool fits {pattern:?}", policy.display());
    }
    match unused.is_empty() {
        true => println!("{}: fine", policy.display()),
        false => return Err(Failure::Told),
    }
    Ok(())
}

fn schema(policy: Option<&Path>, tools: Option<&Path>) -> Result<(), Failure> {
    let tools = known_tools(tools)?;
    let limits = match policy {
        Some(path) => PolicyFile::load(path).map_err(Failure::usage)?.limits().to_vec(),
        None => Vec::new(),
    };
    println!("{}", Cedar::schema_text(&tools, &limits).map_err(Failure::failed)?);
    Ok(())
}

fn test(policy: &Path, scenarios: &Path, tools: Option<&Path>) -> Result<(), Failure> {
    let file = load(policy, &known_tools(tools)?)?;
    let scenarios = Scenario::load_all(scenarios).map_err(Failure::usage)?;
    let (all, mut failed) = (scenarios.len(), 0_usize);
    for (index, scenario) in scenarios.into_iter().enumerate() {
        let explanation = scenario.explain(&file).map_err(Failure::usage)?;
        let met = scenario.is_met_by(&explanation);
        failed += usize::from(!met);
        let mark = if met { "ok  " } else { "FAIL" };
        let name = match scenario.name.as_str() {
            "" => format!("{} ({})", index + 1, scenario.tool),
            name => name.to_owned(),
        };
        println!("{mark} {name}: {}", in_words(&explanation));
        if !met {
            let expected = scenario.expect.map_or("anything", Expected::name);
            let by = scenario.by.unwrap_or_default().join(", ");
            let by = if by.is_empty() { String::new() } else { format!(" by {by}") };
            println!("     expected: {expected}{by}");
        }
    }
    println!("{} of {all} scenarios are as expected", all - failed);
    if failed > 0 { Err(Failure::Told) } else { Ok(()) }
}

fn explain(policy: &Path, call: &str, tools: Option<&Path>) -> Result<(), Failure> {
    let file = load(policy, &known_tools(tools)?)?;
    let scenarios = Scenario::parse_all("CALL", &format!("[{call}]")).map_err(Failure::usage)?;
    for scenario in scenarios {
        let explanation = scenario.explain(&file).map_err(Failure::usage)?;
        for (policy, verdict) in &explanation.each {
            println!("{policy}: {}", words_of(verdict));
        }
        println!("=> {}", in_words(&explanation));
    }
    Ok(())
}

/// The built-in tools, those of the file, and those of a telephone call.
fn known_tools(tools: Option<&Path>) -> Result<Vec<ToolDefinition>, Failure> {
    let tools = tools.map(load_tools).transpose().map_err(Failure::usage)?;
    let toolbox = Toolbox::with_tools(tools.as_ref(), Arc::new(InMemory::new()))?;
    let mut known = toolbox.registry.definitions();
    for of_a_call in bridge::call_definitions() {
        if known.iter().all(|tool| tool.name != of_a_call.name) {
            known.push(of_a_call);
        }
    }
    Ok(known)
}

fn load(policy: &Path, tools: &[ToolDefinition]) -> Result<PolicyFile, Failure> {
    let file = PolicyFile::load(policy).map_err(Failure::usage)?;
    let file = file.for_tools(tools).map_err(Failure::usage)?;
    // What only shows when the parts come together.
    file.host().build().map_err(Failure::usage)?;
    Ok(file)
}

fn in_words(explanation: &Explanation) -> String {
    let by = explanation.policies.join(", ");
    let by = if by.is_empty() { "nobody".to_owned() } else { by };
    format!("{} (decided by {by})", words_of(&explanation.verdict))
}

fn words_of(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Allow => "allow".to_owned(),
        Verdict::AllowWith(args) => {
            format!("allow with {}", serde_json::Value::Object(args.clone()))
        }
        Verdict::Deny(denial) => format!("deny: {}", denial.reason),
        Verdict::Ask { reason } => format!("ask a person: {reason}"),
        Verdict::Confirm { read_back } => format!("ask the user: {read_back}"),
        Verdict::RateLimited(limit) => {
            format!("rate limited until {}: {}", limit.until, limit.reason)
        }
        other => format!("{other:?}"),
    }
}
