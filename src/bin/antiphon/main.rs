//! The command line.

mod approvals;
mod args;
mod bridge;
mod chat;
mod chat_model;
mod doctor;
mod failure;
mod offline;
mod policy;
mod receipts;
mod recorded;
mod signals;
mod snapshots;
mod speak;
mod store;
mod talk;
mod toolbox;

use std::{io::Write, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

use crate::{
    args::{Arguments, Command},
    failure::Failure,
};

fn main() -> ExitCode {
    let parsed = Arguments::command().try_get_matches().and_then(|matches| {
        let arguments = Arguments::from_arg_matches(&matches)?;
        Ok((matches, arguments))
    });
    let (matches, arguments) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return wrong_flags(&error),
    };
    log_to_stderr();
    let done = match arguments.command {
        Command::Talk(talk) => {
            let order = matches.subcommand_matches("talk").map(args::order).unwrap_or_default();
            talk::run(talk, &order)
        }
        Command::Chat(chat) => chat::run(*chat),
        Command::Snapshots(arguments) => snapshots::run(arguments),
        Command::Approvals(arguments) => approvals::run(arguments),
        Command::Bridge(arguments) => bridge::run(arguments),
        Command::Policy(arguments) => policy::run(arguments),
        Command::Receipts(arguments) => receipts::run(arguments),
        Command::Speak(speak) => speak::run(speak),
        Command::Replay(replay) => recorded::replay(&replay),
        Command::Explain(explain) => recorded::explain(&explain),
        Command::Doctor(doctor) => doctor::run(doctor),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told) => ExitCode::FAILURE,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "antiphon: {failure}");
            failure.exit_code()
        }
    }
}

/// Help and version go to standard output as they are; what is wrong becomes one line.
fn wrong_flags(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.exit()
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    // After the first empty line come tips and the usage.
    let reason = text.split("\n\n").next().unwrap_or(text);
    let failure = Failure::usage(format!("{} (see --help)", reason.trim_end()));
    eprintln!("antiphon: {failure}");
    failure.exit_code()
}

/// Logs go to standard error, by `RUST_LOG`; silent unless that asks for more than warnings.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    // Where standard error is gone, as with a closed terminal, the work goes on in silence.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false)
        .init();
}
