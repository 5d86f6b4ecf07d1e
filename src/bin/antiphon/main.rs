//! The command line.

mod args;
mod doctor;
mod failure;
mod offline;
mod speak;
mod talk;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::{
    args::{Arguments, Command},
    failure::Failure,
};

fn main() -> ExitCode {
    // `--help`, `--version` and wrong flags end the process here; wrong flags with status 2.
    let matches = Arguments::command().get_matches();
    let arguments = match Arguments::from_arg_matches(&matches) {
        Ok(arguments) => arguments,
        Err(error) => error.exit(),
    };
    log_to_stderr();
    let done = match arguments.command {
        Command::Talk(talk) => {
            let order = matches.subcommand_matches("talk").map(args::order).unwrap_or_default();
            talk::run(talk, &order)
        }
        Command::Speak(speak) => speak::run(speak),
        Command::Doctor(doctor) => doctor::run(doctor),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("antiphon: {failure}");
            failure.exit_code()
        }
    }
}

/// Logs go to standard error, by `RUST_LOG`; silent unless that asks for more than warnings.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
