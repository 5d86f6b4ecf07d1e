//! `antiphon chat`.

mod agents;
mod console;
mod conversation;

use crate::{args::ChatArguments, failure::Failure};

/// Reads what the command line names, and chats.
pub fn run(arguments: ChatArguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    let done = runtime.block_on(conversation::chat(arguments));
    // A tool that blocks and ignores its cancellation does not keep the program, nor does the
    // thread that waits for a line.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    done
}
