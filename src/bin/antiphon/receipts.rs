//! `antiphon receipts`.

use std::{
    fs::File,
    io::{self, BufReader, Read},
};

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
    let whole =
        whole_entries(&opened).map_err(|error| Failure::failed(format!("{name}: {error}")))?;
    let found = verify(BufReader::new(opened.take(whole)), head.as_ref())
        .map_err(|tampered| Failure::failed(format!("{name}: {tampered}")))?;
    match print_head {
        true => println!("{found}"),
        false => println!("{name}: {} entries, each as it was written", found.count),
    }
    Ok(())
}

/// How long the log is while nobody is in the middle of an entry. Who writes waits for this and no longer:
/// tools do not run before their receipts are written.
fn whole_entries(log: &File) -> io::Result<u64> {
    // Who does not let us is read all the same.
    let held = log.try_lock_shared().is_ok();
    let length = log.metadata().map(|metadata| metadata.len());
    if held {
        log.unlock()?;
    }
    length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_read_is_written_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("receipts");
        std::fs::write(&path, "an entry\n").unwrap();
        let (reads, writes) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert_eq!(whole_entries(&reads).unwrap(), 9);
        assert!(writes.try_lock().is_ok(), "nobody is kept from the log");
        assert_eq!(whole_entries(&reads).unwrap(), 9, "nor from reading it");
    }
}
