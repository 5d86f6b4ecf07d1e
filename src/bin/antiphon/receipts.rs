//! `antiphon receipts`.

use std::{fs::File, io::BufReader};

use antiphon::policy::receipts::verify;

use crate::{
    args::{ReceiptsArguments, ReceiptsCommand},
    failure::Failure,
};

/// Does what the command line says.
pub fn run(arguments: ReceiptsArguments) -> Result<(), Failure> {
    let ReceiptsCommand::Verify { file, print_head, head } = arguments.command;
    let name = file.display();
    let opened = File::open(&file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    // Not in the middle of an entry of somebody who writes; who does not let us reads all the same.
    let _ = opened.try_lock_shared();
    let found = verify(BufReader::new(opened), head.as_ref())
        .map_err(|tampered| Failure::failed(format!("{name}: {tampered}")))?;
    match print_head {
        true => println!("{found}"),
        false => println!("{name}: {} entries, each as it was written", found.count),
    }
    Ok(())
}
