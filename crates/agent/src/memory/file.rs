//! Memory in a file.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex, PoisonError, RwLock, RwLockReadGuard, Weak},
    time::Duration,
};

use antiphon_types::Status;
use async_trait::async_trait;

use super::{DEFAULT_MAX_BYTES, Memory, MemoryError, Table};

/// A memory that is kept in one file, a JSON object of strings, sorted and readable.
///
/// A change is on the disk when [`Memory::set`] returns: the whole file is written beside the old
/// one, synchronised and put in its place, so it is the old or the new one after a crash, and
/// never half of both. That suits notes and settings, not thousands of changes a second. Reads are
/// answered from memory and never see a change that is not on the disk.
///
/// All memories of one path in a process share their state. A second process is refused: a lock is
/// held on a file beside it, with `.lock` at the end of its name.
#[derive(Clone)]
pub struct FileMemory {
    shared: Arc<Shared>,
    deadline: Duration,
}

impl FileMemory {
    /// Opens the file, which may be missing or empty; its directory must exist. A file that does
    /// not hold a JSON object of strings is refused and left alone. At most 16 MiB.
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, MemoryError> {
        let path = path.into();
        let shared = tokio::task::spawn_blocking(move || Shared::of(&path))
            .await
            .map_err(|error| MemoryError::new(Status::Internal, error.to_string()))??;
        Ok(Self { shared, deadline: Duration::from_secs(5) })
    }

    /// Sets how long a change may take, waiting for others included. When it is over, the change
    /// may still reach the disk. Default: 5 seconds.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    async fn change(
        &self,
        change: impl FnOnce(&mut Table) -> Result<(), MemoryError> + Send + 'static,
    ) -> Result<(), MemoryError> {
        let shared = self.shared.clone();
        let changed = async {
            // Held by the work, not by this future: a change that is given up goes on undisturbed.
            let writing = shared.writing.clone().lock_owned().await;
            let work = tokio::task::spawn_blocking(move || {
                let _writing = writing;
                let mut next = shared.table().clone();
                change(&mut next)?;
                shared.store(next)
            });
            work.await.map_err(|error| MemoryError::new(Status::Internal, error.to_string()))?
        };
        match tokio::time::timeout(self.deadline, changed).await {
            Ok(changed) => changed,
            Err(_) => Err(MemoryError::new(
                Status::DeadlineExceeded,
                format!(
                    "{}: not written within {} ms",
                    self.path().display(),
                    self.deadline.as_millis()
                ),
            )),
        }
    }
}

#[async_trait]
impl Memory for FileMemory {
    async fn get(&self, key: &str) -> Result<Option<String>, MemoryError> {
        Ok(self.shared.table().get(key))
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), MemoryError> {
        let (key, value) = (key.to_owned(), value.to_owned());
        self.change(move |table| table.set(&key, &value)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<String>, MemoryError> {
        Ok(self.shared.table().list(prefix))
    }

    async fn delete(&self, key: &str) -> Result<(), MemoryError> {
        if self.shared.table().get(key).is_none() {
            return Ok(());
        }
        let key = key.to_owned();
        self.change(move |table| {
            table.delete(&key);
            Ok(())
        })
        .await
    }
}

impl fmt::Debug for FileMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileMemory").field("path", &self.path()).finish_non_exhaustive()
    }
}

/// The state of one file.
struct Shared {
    path: PathBuf,
    /// What is on the disk.
    table: RwLock<Table>,
    /// Held while the file is written.
    writing: Arc<tokio::sync::Mutex<()>>,
    /// Keeps other processes out until it is dropped.
    _lock: File,
}

/// The files that are open in this process, by canonical path.
static OPEN: LazyLock<Mutex<HashMap<PathBuf, Weak<Shared>>>> = LazyLock::new(Mutex::default);

impl Shared {
    fn of(path: &Path) -> Result<Arc<Self>, MemoryError> {
        let path = canonical(path)?;
        // Two that open the same path at once are to find the same state, so the file is read under
        // the lock; this runs on the blocking pool.
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|_, shared| shared.strong_count() > 0);
        if let Some(shared) = open.get(&path).and_then(Weak::upgrade) {
            return Ok(shared);
        }
        let lock = lock_out_others(&path)?;
        let shared = Arc::new(Self {
            table: RwLock::new(read(&path)?),
            writing: Arc::default(),
            _lock: lock,
            path: path.clone(),
        });
        open.insert(path, Arc::downgrade(&shared));
        Ok(shared)
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `next` to the disk; only then it is what readers see.
    fn store(&self, next: Table) -> Result<(), MemoryError> {
        write(&self.path, &next.entries).map_err(|error| failed(&self.path, "write", &error))?;
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(())
    }
}

/// The one name of the file, through links, even where it does not exist yet.
fn canonical(path: &Path) -> Result<PathBuf, MemoryError> {
    match fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = path.file_name().ok_or_else(|| failed(path, "open", &error))?;
            let directory = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            let directory = fs::canonicalize(directory).map_err(|e| failed(path, "open", &e))?;
            Ok(directory.join(name))
        }
        Err(error) => Err(failed(path, "open", &error)),
    }
}

fn lock_out_others(path: &Path) -> Result<File, MemoryError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".lock");
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path.with_file_name(name))
        .map_err(|error| failed(path, "lock", &error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(MemoryError::new(
            Status::FailedPrecondition,
            format!("{} is in use by another process", path.display()),
        )),
        Err(TryLockError::Error(error)) => Err(failed(path, "lock", &error)),
    }
}

fn read(path: &Path) -> Result<Table, MemoryError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Table::new(DEFAULT_MAX_BYTES));
        }
        Err(error) => return Err(failed(path, "read", &error)),
    };
    // JSON writes a control character in six bytes.
    let max_bytes = 8 * DEFAULT_MAX_BYTES as u64;
    let mut text = String::new();
    match file.take(max_bytes + 1).read_to_string(&mut text) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            return Err(corrupt(path, "it is not UTF-8"));
        }
        Err(error) => return Err(failed(path, "read", &error)),
        Ok(_) => {}
    }
    if text.is_empty() {
        return Ok(Table::new(DEFAULT_MAX_BYTES));
    }
    let too_large = || {
        MemoryError::new(
            Status::ResourceExhausted,
            format!("{} holds more than {DEFAULT_MAX_BYTES} bytes", path.display()),
        )
    };
    if text.len() as u64 > max_bytes {
        return Err(too_large());
    }
    let entries: BTreeMap<String, String> =
        serde_json::from_str(&text).map_err(|error| corrupt(path, &error.to_string()))?;
    Table::from_entries(entries, DEFAULT_MAX_BYTES).ok_or_else(too_large)
}

fn write(path: &Path, entries: &BTreeMap<String, String>) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    if let Ok(old) = fs::metadata(path) {
        file.as_file().set_permissions(old.permissions())?;
    }
    let mut text = serde_json::to_vec_pretty(entries)?;
    text.push(b'\n');
    file.write_all(&text)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    // The new name is in the directory, which has to reach the disk as well.
    #[cfg(unix)]
    File::open(directory)?.sync_all()?;
    Ok(())
}

fn failed(path: &Path, what: &str, error: &io::Error) -> MemoryError {
    let status = match error.kind() {
        io::ErrorKind::NotFound => Status::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Status::PermissionDenied
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::ResourceExhausted,
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => Status::InvalidArgument,
        _ => Status::Unavailable,
    };
    MemoryError::new(status, format!("cannot {what} {}: {error}", path.display()))
}

fn corrupt(path: &Path, reason: &str) -> MemoryError {
    MemoryError::new(
        Status::DataLoss,
        format!("{} is not a JSON object of strings: {reason}", path.display()),
    )
}
