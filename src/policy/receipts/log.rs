//! Writing the log.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use antiphon_agent::{Receipt, ledger::canonical_object};
use antiphon_types::JsonObject;
use serde_json::json;

use super::{
    AFTER, BEFORE, BETWEEN, GENESIS, Head, sha256,
    verify::{parse_line, split_line},
};

/// A log of receipts. Several processes may write one: each locks the file for the moment of an entry,
/// and goes on from the last one, whoever wrote that.
///
/// Each entry is handed to the operating system before [`ReceiptLog::append`] returns, so that all
/// processes can read it and a crash of this one loses nothing; [`ReceiptLog::append_durably`] also
/// waits for the disk. Of entries that wait at the same time one waits for all.
#[derive(Debug)]
pub struct ReceiptLog {
    path: PathBuf,
    file: File,
    /// Of the file.
    identity: Identity,
    tail: Mutex<Tail>,
    disk: Mutex<Disk>,
    synced: Condvar,
    /// Brings what was written to the disk.
    sync_data: fn(&File) -> io::Result<()>,
}

#[derive(Debug)]
struct Tail {
    head: Head,
    length: u64,
    /// Part of an entry may be in the file: nothing can follow it.
    broken: Option<String>,
}

#[derive(Debug, Default)]
struct Disk {
    /// All entries up to this one are on it.
    through: u64,
    busy: bool,
    /// The disk failed. What comes after may be told that all is well, although what was written before
    /// is lost: nobody is told so here.
    failed: Option<String>,
}

/// Why a receipt could not be written, or a log not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// The file is not there any more, or another one is in its place: whoever looks for entries does
    /// not find those that would be written.
    #[error("{}: the log was moved or removed while it was written", .0.display())]
    Moved(PathBuf),
    /// Entries that were there are not there any more.
    #[error("{}: entries were removed while the log was written", .0.display())]
    Removed(PathBuf),
    /// Its end is no entry of a log.
    #[error("{}: {reason}", path.display())]
    NoLog {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file system failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// How.
        error: io::Error,
    },
    /// An entry before this one was written in part, and could not be taken back.
    #[error("the log is broken: {0}")]
    Broken(String),
    /// The entry has no canonical form.
    #[error("the entry has no canonical form")]
    NotCanonical,
}

impl ReceiptLog {
    /// Opens a log to go on writing it, or begins one that only its owner can read. Only its last
    /// entry is looked at: see [`verify`](super::verify()).
    ///
    /// An entry that was cut off when a process died is removed (nobody has acted on it), and the next
    /// entry says so.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReceiptError> {
        let path = path.as_ref().to_owned();
        let io = |error| ReceiptError::Io { path: path.clone(), error };
        let new = !path.exists();
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path).map_err(io)?;
        if new {
            sync_directory(&path).map_err(io)?;
        }
        let identity = identity(&file.metadata().map_err(io)?);
        let held = Held::of(&file).map_err(io)?;
        let found = last(&file, &path);
        drop(held);
        let Last { head, length, torn } = found?;
        let log = Self {
            disk: Mutex::new(Disk { through: head.count, ..Disk::default() }),
            tail: Mutex::new(Tail { head, length, broken: None }),
            path,
            file,
            identity,
            synced: Condvar::new(),
            sync_data: File::sync_data,
        };
        if torn > 0 {
            let mut tail = lock(&log.tail);
            let _held = Held::of(&log.file).map_err(|error| log.io(error))?;
            // Somebody else may have been quicker.
            log.catch_up(&mut tail)?;
        }
        Ok(log)
    }

    /// A log that takes no entry.
    #[cfg(test)]
    pub(crate) fn read_only(path: &Path) -> Self {
        let head = Head { count: 0, hash: GENESIS.to_owned() };
        let file = File::open(path).expect("a file to read");
        Self {
            path: path.to_owned(),
            identity: identity(&file.metadata().expect("a file that is open")),
            file,
            disk: Mutex::default(),
            tail: Mutex::new(Tail { head, length: 0, broken: None }),
            synced: Condvar::new(),
            sync_data: File::sync_data,
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many entries there are, and the hash of the last one.
    pub fn head(&self) -> Head {
        lock(&self.tail).head.clone()
    }

    /// Adds an entry, with its number and the hash of the one before it. On return it is with the
    /// operating system.
    ///
    /// # Errors
    ///
    /// The entry is not in the log.
    pub fn append(&self, entry: JsonObject) -> Result<Receipt, ReceiptError> {
        let mut tail = lock(&self.tail);
        if let Some(reason) = &tail.broken {
            return Err(ReceiptError::Broken(reason.clone()));
        }
        let _held = Held::of(&self.file).map_err(|error| self.io(error))?;
        if self.length_in_place()? != tail.length {
            self.catch_up(&mut tail)?;
        }
        self.write(&mut tail, entry)
    }

    /// Writes an entry after the last one. The file is locked.
    fn write(&self, tail: &mut Tail, mut entry: JsonObject) -> Result<Receipt, ReceiptError> {
        let sequence = tail.head.count + 1;
        entry.insert("v".into(), 1.into());
        entry.insert("seq".into(), sequence.into());
        entry.insert("prev".into(), tail.head.hash.as_str().into());
        let body = canonical_object(&entry).ok_or(ReceiptError::NotCanonical)?;
        let hash = sha256(body.as_bytes());
        let mut line = String::with_capacity(body.len() + 128);
        for part in [BEFORE, &body, BETWEEN, &hash, AFTER, "\n"] {
            line.push_str(part);
        }
        if let Err(error) = (&self.file).write_all(line.as_bytes()) {
            // What is there of it must go, or the next entry would be no line of its own.
            if let Err(stuck) = self.file.set_len(tail.length) {
                tail.broken = Some(format!("{error}; then {stuck}"));
            }
            return Err(self.io(error));
        }
        tail.length += line.len() as u64;
        tail.head = Head { count: sequence, hash: hash.clone() };
        Ok(Receipt::new(sequence, hash, entry))
    }

    /// Goes on from the last entry that there is, whoever wrote it. One that was cut off when a process
    /// died is removed (nobody has acted on it), and the next entry says so. The file is locked.
    fn catch_up(&self, tail: &mut Tail) -> Result<(), ReceiptError> {
        let Last { head, length, torn } = last(&self.file, &self.path)?;
        let shorter = head.count < tail.head.count;
        if shorter || (head.count == tail.head.count && head.hash != tail.head.hash) {
            return Err(ReceiptError::Removed(self.path.clone()));
        }
        (tail.head, tail.length) = (head, length);
        if torn > 0 {
            self.file.set_len(length).map_err(|error| self.io(error))?;
            let entry = json!({ "kind": "recovered", "removed_bytes": torn });
            self.write(tail, entry.as_object().cloned().unwrap_or_default())?;
        }
        Ok(())
    }

    /// The length of the file at the log's place, which is still the one that is written: one look for
    /// both.
    fn length_in_place(&self) -> Result<u64, ReceiptError> {
        let there = fs::metadata(&self.path).ok().filter(|there| self.identity == identity(there));
        let there = there.ok_or_else(|| ReceiptError::Moved(self.path.clone()))?;
        Ok(there.len())
    }

    fn io(&self, error: io::Error) -> ReceiptError {
        ReceiptError::Io { path: self.path.clone(), error }
    }

    /// Adds an entry that is on the disk on return.
    ///
    /// # Errors
    ///
    /// The entry may be in the log, but perhaps not on the disk.
    pub fn append_durably(&self, entry: JsonObject) -> Result<Receipt, ReceiptError> {
        let receipt = self.append(entry)?;
        self.sync(receipt.sequence)?;
        Ok(receipt)
    }

    /// Waits until the disk has all entries up to this one. One thread syncs for all that wait.
    fn sync(&self, sequence: u64) -> Result<(), ReceiptError> {
        let mut disk = lock(&self.disk);
        while disk.through < sequence {
            if let Some(reason) = &disk.failed {
                return Err(ReceiptError::Broken(reason.clone()));
            }
            if disk.busy {
                disk = self.synced.wait(disk).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            disk.busy = true;
            drop(disk);
            let written = self.head().count;
            let done = (self.sync_data)(&self.file);
            disk = lock(&self.disk);
            disk.busy = false;
            self.synced.notify_all();
            match done {
                Ok(()) => disk.through = disk.through.max(written),
                Err(error) => {
                    // After a failed sync nobody knows what the disk has; and whoever syncs again may
                    // be told that all is well.
                    let reason = format!("sync: {error}");
                    disk.failed = Some(reason.clone());
                    lock(&self.tail).broken = Some(reason);
                    return Err(ReceiptError::Io { path: self.path.clone(), error });
                }
            }
        }
        Ok(())
    }
}

/// What tells a file from any other that was or is at its place; elsewhere than on Unix nothing does.
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(metadata: &fs::Metadata) -> Identity {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &fs::Metadata) -> Identity {
    (0, 0)
}

/// The file is ours alone while this is there.
struct Held<'a>(&'a File);

impl<'a> Held<'a> {
    /// Waits for others, who hold it for the moment of an entry.
    fn of(file: &'a File) -> io::Result<Self> {
        let asked = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                Err(TryLockError::WouldBlock) if asked.elapsed() < HOLD_LIMIT => {
                    thread::sleep(Duration::from_micros(200));
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "another process holds the log",
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // The lock also goes with the file.
        let _ = self.0.unlock();
    }
}

/// How long an entry waits for those of other processes.
const HOLD_LIMIT: Duration = Duration::from_secs(4);

/// The end of a log that others wrote.
struct Last {
    head: Head,
    /// Bytes of whole entries.
    length: u64,
    /// Bytes after them.
    torn: u64,
}

fn last(mut file: &File, path: &Path) -> Result<Last, ReceiptError> {
    let io = |error| ReceiptError::Io { path: path.to_owned(), error };
    let no_log = |reason: &str| ReceiptError::NoLog {
        path: path.to_owned(),
        reason: format!("its last entry is none: {reason}"),
    };
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(ReceiptError::NoLog { path: path.to_owned(), reason: "it is no file".into() });
    }
    let size = metadata.len();
    let mut window = 64 * 1024_u64;
    loop {
        let start = size.saturating_sub(window);
        file.seek(SeekFrom::Start(start)).map_err(io)?;
        let mut end = Vec::new();
        Read::by_ref(&mut file).take(window).read_to_end(&mut end).map_err(io)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let begin = end[..whole.saturating_sub(1)].iter().rposition(|byte| *byte == b'\n');
        let begin = match begin {
            Some(at) => at + 1,
            None if start == 0 => 0,
            None if window >= MAX_TAIL => return Err(no_log("it is too long")),
            None => {
                window *= 4;
                continue;
            }
        };
        let torn = (end.len() - whole) as u64;
        if whole == 0 {
            // Not even one whole entry. Somebody else's text is not to be removed.
            let begun = end.iter().zip(BEFORE.as_bytes()).all(|(byte, ours)| byte == ours);
            if !begun {
                return Err(no_log("it begins as no log does"));
            }
            let head = Head { count: 0, hash: GENESIS.to_owned() };
            return Ok(Last { head, length: 0, torn });
        }
        let line = std::str::from_utf8(&end[begin..whole - 1]).map_err(|_| no_log("no text"))?;
        let (body, hash) = split_line(line).ok_or_else(|| no_log("another form"))?;
        if sha256(body.as_bytes()) != hash {
            return Err(no_log("its hash is another one"));
        }
        let (count, _) = parse_line(body).ok_or_else(|| no_log("it has no number"))?;
        let head = Head { count, hash: hash.to_owned() };
        return Ok(Last { head, length: size - torn, torn });
    }
}

/// More than any entry has.
const MAX_TAIL: u64 = 16 * 1024 * 1024;

/// A file that is new is only found after a power failure once its directory is on the disk.
fn sync_directory(path: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()
}

/// Only plain data is moved under these locks, so a poisoned one still guards whole data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::BufReader};

    use serde_json::Value;

    use super::*;
    use crate::policy::receipts::verify;

    fn entry(text: &str) -> JsonObject {
        JsonObject::from_iter([("text".to_owned(), Value::from(text))])
    }

    fn verified(path: &Path) -> Head {
        verify(BufReader::new(File::open(path).unwrap()), None).unwrap()
    }

    #[test]
    fn a_log_is_gone_on_with_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        let log = ReceiptLog::open(&path).unwrap();
        assert_eq!(log.head().count, 0);
        let first = log.append(entry("one")).unwrap();
        assert_eq!((first.sequence, &first.entry["prev"]), (1, &Value::from(GENESIS)));
        let second = log.append_durably(entry("zwei ä \u{2028} \"")).unwrap();
        assert_eq!(second.entry["prev"], Value::from(&*first.hash));
        drop(log);
        let log = ReceiptLog::open(&path).unwrap();
        assert_eq!(log.head(), Head { count: 2, hash: second.hash.to_string() });
        log.append(entry(&"long".repeat(100_000))).unwrap();
        drop(log);
        let log = ReceiptLog::open(&path).unwrap();
        log.append(entry("four")).unwrap();
        assert_eq!(verified(&path), log.head());
        assert_eq!(log.head().count, 4);
    }

    #[test]
    fn an_entry_that_was_cut_off_is_removed_and_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        for kept in [3, 200] {
            let log = ReceiptLog::open(&path).unwrap();
            let before = log.head().count;
            log.append(entry("one")).unwrap();
            let length = fs::metadata(&path).unwrap().len();
            log.append(entry(&"x".repeat(300))).unwrap();
            drop(log);
            OpenOptions::new().write(true).open(&path).unwrap().set_len(length + kept).unwrap();
            let log = ReceiptLog::open(&path).unwrap();
            assert_eq!(verified(&path).count, before + 2);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.lines().last().unwrap().contains(r#""kind":"recovered""#), "{text}");
            assert_eq!(log.head(), verified(&path));
        }
        let alone = directory.path().join("alone");
        fs::write(&alone, r#"{"entry":{"k"#).unwrap();
        assert_eq!(ReceiptLog::open(&alone).unwrap().head().count, 1);
    }

    #[test]
    fn several_who_write_a_log_write_one_chain() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        let logs: Vec<_> = (0..4).map(|_| ReceiptLog::open(&path).unwrap()).collect();
        std::thread::scope(|scope| {
            for (writer, log) in logs.iter().enumerate() {
                scope.spawn(move || {
                    for n in 0..25 {
                        let entry = entry(&format!("{writer} {n}"));
                        match n % 5 {
                            0 => log.append_durably(entry).unwrap(),
                            _ => log.append(entry).unwrap(),
                        };
                    }
                });
            }
        });
        assert_eq!(verified(&path).count, 100);
        // One of them dies in the middle of an entry: the next one, whoever writes it, tidies up.
        let mut torn = OpenOptions::new().append(true).open(&path).unwrap();
        torn.write_all(br#"{"entry":{"kind":"dec"#).unwrap();
        logs[3].append(entry("after")).unwrap();
        logs[0].append(entry("the last")).unwrap();
        assert_eq!(verified(&path), logs[0].head());
        assert_eq!(logs[0].head().count, 103);
    }

    #[cfg(unix)]
    #[test]
    fn a_log_that_was_moved_removed_or_cut_takes_no_entry() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        let log = ReceiptLog::open(&path).unwrap();
        for text in ["one", "two"] {
            log.append(entry(text)).unwrap();
        }
        let elsewhere = directory.path().join("receipts.1");
        fs::rename(&path, &elsewhere).unwrap();
        assert!(matches!(log.append(entry("lost")), Err(ReceiptError::Moved(_))));
        let other = ReceiptLog::open(&path).unwrap();
        other.append(entry("another log")).unwrap();
        assert!(matches!(log.append_durably(entry("lost")), Err(ReceiptError::Moved(_))));
        fs::rename(&elsewhere, &path).unwrap();
        assert_eq!(log.append(entry("three")).unwrap().sequence, 3);

        let whole = fs::read_to_string(&path).unwrap();
        let first = whole.lines().next().unwrap();
        fs::write(&path, format!("{first}\n")).unwrap();
        assert!(matches!(log.append(entry("four")), Err(ReceiptError::Removed(_))));
        fs::remove_file(&path).unwrap();
        assert!(matches!(log.append(entry("four")), Err(ReceiptError::Moved(_))));
    }

    #[test]
    fn after_a_failed_sync_nobody_is_told_that_all_is_well() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static SYNCS: AtomicUsize = AtomicUsize::new(0);
        // The first one takes its time and fails; the kernel says of a second one that all is well.
        fn fails_once(_: &File) -> io::Result<()> {
            match SYNCS.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    std::thread::sleep(Duration::from_millis(100));
                    Err(io::Error::other("as tested"))
                }
                _ => Ok(()),
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let mut log = ReceiptLog::open(directory.path().join("receipts")).unwrap();
        log.sync_data = fails_once;
        let written = std::thread::scope(|scope| {
            let each: Vec<_> = (0..8)
                .map(|n| {
                    scope.spawn({
                        let log = &log;
                        move || log.append_durably(entry(&n.to_string())).is_ok()
                    })
                })
                .collect();
            each.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(written, [false; 8]);
        assert!(matches!(log.append(entry("later")), Err(ReceiptError::Broken(_))));
    }

    #[test]
    fn what_is_no_log_is_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        for text in ["my notes", "my notes\n", "{}\n", "{\"entry\":{},\"hash\":\"00\"}\n"] {
            fs::write(&path, text).unwrap();
            assert!(matches!(ReceiptLog::open(&path), Err(ReceiptError::NoLog { .. })), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(ReceiptLog::open(directory.path().join("no/such")).is_err());
        assert!(ReceiptLog::open(directory.path()).is_err());
    }

    #[test]
    fn entries_of_many_threads_are_one_chain_and_on_the_disk() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("receipts");
        let log = ReceiptLog::open(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let log = &log;
                scope.spawn(move || {
                    for n in 0..20 {
                        let durable = log.append_durably(entry(&format!("{thread} {n}"))).unwrap();
                        assert!(lock(&log.disk).through >= durable.sequence);
                    }
                });
            }
        });
        assert_eq!(verified(&path).count, 160);
    }
}
