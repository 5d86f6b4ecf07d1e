//! Where things are in the directory of a store.
//!
//! ```text
//! antiphon-store.json        what this directory is, and in which version
//! tmp/                       files that are being written
//! unscoped/                  what belongs to no tenant
//!   sessions/ID.log          what the snapshots of a session are made of, only ever appended to
//!   snapshots/5f/ID.row      a row
//!   calls/KEY.call           a tool call that is not settled
//!   calls/settled/KEY.call   one that waited for a person and is
//!   calls.lock               held by whoever changes a call
//! scopes/TENANT/             what belongs to a tenant, in the same way
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

use super::failure::{corrupt, failed, refused};
use crate::{RuntimeError, id::new_id, store::StoreErrorKind};

/// The version of the files that is written.
const VERSION: u64 = 1;
const FORMAT: &str = "antiphon-snapshots";
const FORMAT_FILE: &str = "antiphon-store.json";
/// A file that is being written is not older than this.
const STALE: Duration = Duration::from_secs(60 * 60);

/// The directory of a store.
#[derive(Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Format {
    format: String,
    version: u64,
}

impl Layout {
    /// Opens a directory, or makes one where there is none. One that is not empty and not a store,
    /// or a store of a newer version, is refused and left alone.
    pub(super) fn open(root: &Path) -> Result<Self, RuntimeError> {
        match private_directory().create(root) {
            Ok(()) => sync_directory(root.parent())?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(root, "make the directory", &error)),
        }
        if !root.is_dir() {
            return Err(refused(StoreErrorKind::Foreign, root, "it is not a directory"));
        }
        let root = root.canonicalize().map_err(|error| failed(root, "open", &error))?;
        let layout = Self { root };
        let format = layout.root.join(FORMAT_FILE);
        match fs::read(&format) {
            Ok(text) => check(&format, &text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => layout.begin(&format)?,
            Err(error) => return Err(failed(&format, "read", &error)),
        }
        layout.sweep();
        Ok(layout)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Makes an empty directory a store.
    fn begin(&self, format: &Path) -> Result<(), RuntimeError> {
        let entries = fs::read_dir(&self.root).map_err(|e| failed(&self.root, "read", &e))?;
        for entry in entries {
            let entry = entry.map_err(|error| failed(&self.root, "read", &error))?;
            // Another process may be at the same.
            if entry.file_name() != *FORMAT_FILE && entry.file_name() != *"tmp" {
                return Err(refused(
                    StoreErrorKind::Foreign,
                    &self.root,
                    format_args!(
                        "it is no store: it has no {FORMAT_FILE} and is not empty (there is {:?})",
                        entry.file_name()
                    ),
                ));
            }
        }
        let text = serde_json::to_vec(&Format { format: FORMAT.to_owned(), version: VERSION })
            .map_err(|error| RuntimeError::internal(error.to_string()))?;
        let written = self.write_aside(&text)?;
        written.replace(format)
    }

    /// The file of a session.
    pub(super) fn log(&self, scope: Option<&str>, session: &str) -> PathBuf {
        let mut path = self.sessions(scope).join(encoded(session));
        path.add_extension("log");
        path
    }

    /// The directory of the sessions of a tenant.
    pub(super) fn sessions(&self, scope: Option<&str>) -> PathBuf {
        self.tenant(scope).join("sessions")
    }

    /// The directories of all tenants.
    pub(super) fn tenants(&self) -> PathBuf {
        self.root.join("scopes")
    }

    /// The file of a row.
    pub(super) fn row(&self, scope: Option<&str>, snapshot: &str) -> PathBuf {
        // Not all in one directory: there may be millions.
        let shard = format!("{:02x}", crc32fast::hash(snapshot.as_bytes()) & 0xff);
        let mut path = self.tenant(scope).join("snapshots").join(shard).join(encoded(snapshot));
        path.add_extension("row");
        path
    }

    /// The directory of the calls of a tenant that are not settled.
    pub(super) fn open_calls(&self, scope: Option<&str>) -> PathBuf {
        self.tenant(scope).join("calls")
    }

    /// The file that whoever changes calls of a tenant holds.
    pub(super) fn calls_lock(&self, scope: Option<&str>) -> PathBuf {
        self.tenant(scope).join("calls.lock")
    }

    /// The file of a call while it is open, and once it is settled.
    pub(super) fn call(&self, scope: Option<&str>, key: &str) -> [PathBuf; 2] {
        let (open, mut name) = (self.open_calls(scope), PathBuf::from(encoded(key)));
        name.add_extension("call");
        [open.join(&name), open.join("settled").join(name)]
    }

    fn tenant(&self, scope: Option<&str>) -> PathBuf {
        match scope {
            None => self.root.join("unscoped"),
            Some(scope) => self.tenants().join(encoded(scope)),
        }
    }

    /// Makes the directory of `file`, on the disk when this returns.
    pub(super) fn make_directory_of(&self, file: &Path) -> Result<(), RuntimeError> {
        let Some(directory) = file.parent() else { return Ok(()) };
        if directory.is_dir() {
            return Ok(());
        }
        // The root is there, so this ends.
        self.make_directory_of(directory)?;
        match fs::create_dir(directory) {
            Ok(()) => sync_directory(directory.parent()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {
                // Whoever made it may not have come to that yet.
                sync_directory(directory.parent())
            }
            Err(error) => Err(failed(directory, "make the directory", &error)),
        }
    }

    /// Writes a file that is not in its place yet, on the disk when this returns.
    pub(super) fn write_aside(&self, content: &[u8]) -> Result<Aside, RuntimeError> {
        let path = self.root.join("tmp").join(&*new_id());
        self.make_directory_of(&path)?;
        let aside = Aside { path: Some(path) };
        let path = aside.path.as_deref().unwrap_or(&self.root);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|error| failed(path, "make", &error))?;
        file.write_all(content)
            .and_then(|()| file.sync_data())
            .map_err(|error| failed(path, "write", &error))?;
        Ok(aside)
    }

    /// Removes what processes that were killed left behind. It only takes space.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(self.root.join("tmp")) else { return };
        for entry in entries.flatten() {
            let modified = entry.metadata().and_then(|metadata| metadata.modified());
            let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
            if age.is_some_and(|age| age > STALE) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// A file that is not in its place yet; removed where it is dropped before.
pub(super) struct Aside {
    path: Option<PathBuf>,
}

impl Aside {
    /// Puts it in the place of `path`.
    pub(super) fn replace(mut self, path: &Path) -> Result<(), RuntimeError> {
        let Some(aside) = self.path.as_deref() else { return Ok(()) };
        fs::rename(aside, path).map_err(|error| failed(path, "write", &error))?;
        self.path = None;
        sync_directory(path.parent())
    }

    /// Gives it the name `path`. False where there is such a file already.
    pub(super) fn claim(mut self, path: &Path) -> Result<bool, RuntimeError> {
        let Some(aside) = self.path.as_deref() else { return Ok(false) };
        // Unlike a rename, a link does not take the place of a file that came to be meanwhile.
        match fs::hard_link(aside, path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) if without_links(&error) => {
                if path.exists() {
                    return Ok(false);
                }
                fs::rename(aside, path).map_err(|error| failed(path, "write", &error))?;
                self.path = None;
            }
            Err(error) => return Err(failed(path, "write", &error)),
        }
        sync_directory(path.parent())?;
        Ok(true)
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// What makes a directory that its owner alone can enter: conversations are private.
fn private_directory() -> fs::DirBuilder {
    #[cfg(unix)]
    let builder = {
        use std::os::unix::fs::DirBuilderExt;
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        builder
    };
    #[cfg(not(unix))]
    let builder = fs::DirBuilder::new();
    builder
}

/// Whether the file system knows no hard links, such as FAT.
fn without_links(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied)
}

/// Brings the names in a directory to the disk.
pub(super) fn sync_directory(directory: Option<&Path>) -> Result<(), RuntimeError> {
    let Some(directory) = directory else { return Ok(()) };
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    // Elsewhere a directory cannot be opened, and its names are on the disk with the file.
    #[cfg(unix)]
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed(directory, "write", &error))?;
    Ok(())
}

fn check(path: &Path, text: &[u8]) -> Result<(), RuntimeError> {
    let format: Format = serde_json::from_slice(text).map_err(|error| corrupt(path, error))?;
    if format.format != FORMAT {
        return Err(refused(
            StoreErrorKind::Foreign,
            path,
            format_args!("it is of another format: {:?}", format.format),
        ));
    }
    if format.version != VERSION {
        return Err(refused(
            StoreErrorKind::NewerVersion,
            path,
            format_args!(
                "it is of version {}, and {VERSION} is what is known here",
                format.version
            ),
        ));
    }
    Ok(())
}

/// The longest name that is kept readable.
const MAX_NAME: usize = 180;

/// A file name for any id: lower-case letters, digits, `-` and `_` stand for themselves, any other
/// byte is `%` and two digits, so that no two names differ by case only and none leaves the
/// directory. Of long ids the name ends in a hash.
pub(super) fn encoded(id: &str) -> String {
    let mut name = String::with_capacity(id.len());
    for byte in id.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            _ => {
                name.push('%');
                name.push(char::from(b"0123456789abcdef"[usize::from(byte >> 4)]));
                name.push(char::from(b"0123456789abcdef"[usize::from(byte & 15)]));
            }
        }
        if name.len() > MAX_NAME {
            // `%h` is no byte, so this is the name of no short id.
            name.truncate(MAX_NAME / 2);
            name.push_str("%h");
            name.push_str(&blake3::hash(id.as_bytes()).to_hex());
            return name;
        }
    }
    if name.is_empty() {
        // A tenant may have no name.
        name.push_str("%n");
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn any_id_has_a_name_of_its_own_within_the_directory() {
        let long = "x".repeat(100_000);
        let ids = [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a",
            "A",
            "ä",
            "a.row",
            "%2e",
            "%n",
            "nul\0",
            "3b241101-e2bb-4255-8caf-4136c566a962",
            "C:\\x",
            " ",
            &"y".repeat(180),
            &"y".repeat(181),
            &"y".repeat(182),
            &long,
        ];
        let names: HashSet<_> = ids.iter().map(|id| encoded(id).to_lowercase()).collect();
        assert_eq!(names.len(), ids.len());
        for name in names {
            assert!(!name.contains(['/', '\\', '.', '\0']) && name.len() < 250, "{name}");
        }
    }
}
