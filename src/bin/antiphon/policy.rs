//! `antiphon policy`.

use std::path::Path;

use antiphon::{
    agent::{Tool, Verdict},
    policy::{Expected, Explanation, PolicyFile, Scenario},
    tools::load_tools,
};

use crate::{
    args::{PolicyArguments, PolicyCommand},
    failure::Failure,
};

/// Does what the command line says.
pub fn run(arguments: PolicyArguments) -> Result<(), Failure> {
    match arguments.command {
        PolicyCommand::Check { policy, tools } => check(&policy, tools.as_deref()),
        PolicyCommand::Test { policy, scenarios } => test(&policy, &scenarios),
        PolicyCommand::Explain { policy, call } => explain(&policy, &call),
    }
}

fn check(policy: &Path, tools: Option<&Path>) -> Result<(), Failure> {
    let file = load(policy)?;
    let mut unused = Vec::new();
    if let Some(tools) = tools {
        let tools = load_tools(tools).map_err(Failure::usage)?;
        let names = tools.tools.iter().map(|tool| tool.name());
        unused = file.unused_patterns(names).into_iter().map(str::to_owned).collect();
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

fn test(policy: &Path, scenarios: &Path) -> Result<(), Failure> {
    let file = load(policy)?;
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

fn explain(policy: &Path, call: &str) -> Result<(), Failure> {
    let file = load(policy)?;
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

fn load(policy: &Path) -> Result<PolicyFile, Failure> {
    let file = PolicyFile::load(policy).map_err(Failure::usage)?;
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
