//! `antiphon talk`.

mod device;
mod floor;
mod kept;
mod plan;
mod print;
mod provider;
pub mod realtime;
mod run;
mod script;
mod tape;

use crate::{
    args::{Given, TalkArguments},
    failure::Failure,
};

/// Reads what the command line names, and talks.
pub fn run(arguments: Box<TalkArguments>, order: &[Given]) -> Result<(), Failure> {
    let plan = plan::Plan::new(*arguments, order)?;
    let runtime = if plan.fast {
        // Paused time jumps to the next deadline whenever nothing can run, so nothing is waited
        // for, and the order of all that happens is that of real time.
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    };
    let runtime = runtime.map_err(Failure::failed)?;
    let done = runtime.block_on(run::talk(plan));
    // A tool that blocks and ignores its cancellation does not keep the program.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    done
}
