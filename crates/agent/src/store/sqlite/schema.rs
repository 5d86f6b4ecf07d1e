//! The tables, and the versions of them.
//!
//! A file says in its header whose it is (`application_id`) and of which version (`user_version`).
//! Both are looked at before anything is written: what is foreign, newer or no database is refused
//! and left as it is.

use std::{
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

use rusqlite::{Connection, TransactionBehavior};

use super::fault::Fault;
use crate::store::StoreErrorKind;

/// `Anti` in ASCII: what the header of a file of ours has at byte 68.
pub(super) const APPLICATION_ID: i64 = 0x416e_7469;

/// What leads from each version to the next, the first from an empty file.
pub(super) const MIGRATIONS: &[&str] = &[VERSION_1, VERSION_2];

// An id (of a snapshot, a session) is a BLOB of 16 bytes where it is a UUID in its canonical form,
// else TEXT. Scope 0 is that of callers without a tenant. Columns without a type keep what they
// are given.
const VERSION_1: &str = "
CREATE TABLE scopes (no INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);

CREATE TABLE sessions (
    no INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    id NOT NULL,
    UNIQUE (scope, id)
);

CREATE TABLE snapshots (
    no INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    session INTEGER NOT NULL,
    id NOT NULL,
    parent,
    -- Seconds since 1970, and nanoseconds of the same sign.
    created_s INTEGER NOT NULL,
    created_ns INTEGER NOT NULL,
    -- Nanoseconds since 1970, or TEXT where they are too many.
    updated,
    heartbeat,
    -- Counts the writes of the row.
    version INTEGER NOT NULL,
    status TEXT NOT NULL,
    finish_reason TEXT,
    -- JSON.
    error TEXT,
    extra TEXT,
    -- The state, of which there is none where the number of messages is NULL. 0 as its session is
    -- that of the row.
    messages INTEGER,
    messages_track INTEGER,
    artifacts INTEGER,
    artifacts_track INTEGER,
    -- JSON, or the number of a content.
    custom,
    state_session,
    state_extra TEXT
);
CREATE UNIQUE INDEX snapshots_by_id ON snapshots (scope, id);
CREATE INDEX snapshots_by_time ON snapshots (session, created_s, created_ns);

-- Lists that grow by their end. One may begin with the first items of another.
CREATE TABLE tracks (no INTEGER PRIMARY KEY, from_track INTEGER, from_len INTEGER);

-- Items of a track that were written together, as a JSON list: messages, or the numbers of
-- contents that are artifacts. The place is track << 32 | index of the first item, which keeps a
-- track together and lets its end grow without gaps in the pages.
CREATE TABLE runs (place INTEGER PRIMARY KEY, items INTEGER NOT NULL, body TEXT NOT NULL);

-- Custom states and artifacts, as JSON.
CREATE TABLE contents (no INTEGER PRIMARY KEY, body TEXT NOT NULL);

CREATE TABLE memory (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
";

const VERSION_2: &str = "
-- Tool calls. The session need not have a row.
CREATE TABLE calls (
    no INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL,
    key NOT NULL,
    session NOT NULL,
    -- Counts the writes.
    version INTEGER NOT NULL,
    settled INTEGER NOT NULL,
    -- JSON.
    body TEXT NOT NULL,
    UNIQUE (scope, key)
);
CREATE INDEX open_calls ON calls (scope, session) WHERE settled = 0;
";

/// Looks at the file without SQLite, which would create what is missing and recover what is not
/// ours. Whether there is something in it.
pub(super) fn inspect(path: &Path) -> Result<bool, Fault> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(Fault::File(error)),
    };
    let mut header = Vec::new();
    file.by_ref().take(100).read_to_end(&mut header).map_err(Fault::File)?;
    if header.is_empty() {
        return Ok(false);
    }
    if header.len() < 100 || !header.starts_with(b"SQLite format 3\0") {
        return Err(Fault::of(StoreErrorKind::Foreign, "it is not a SQLite database"));
    }
    let number = |at: usize| {
        header[at..at + 4].iter().fold(0, |number: i64, byte| number << 8 | i64::from(*byte))
    };
    checked_identity(number(68), number(60), MIGRATIONS.len())?;
    Ok(true)
}

/// Brings the tables of an open file to the current version.
pub(super) fn migrate(connection: &mut Connection, migrations: &[&str]) -> Result<(), Fault> {
    if identity(connection)? == (APPLICATION_ID, migrations.len() as i64) {
        return Ok(());
    }
    // Whoever comes second waits here, and finds the work done.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (application, version) = identity(&transaction)?;
    if application == 0 && version == 0 {
        let tables: i64 =
            transaction.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
        if tables > 0 {
            return Err(foreign());
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    } else {
        checked_identity(application, version, migrations.len())?;
    }
    for migration in migrations.iter().skip(usize::try_from(version).unwrap_or(0)) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", migrations.len() as i64)?;
    Ok(transaction.commit()?)
}

/// A file that is opened for reading only has to be of the current version.
pub(super) fn check(connection: &Connection) -> Result<(), Fault> {
    let (application, version) = identity(connection)?;
    checked_identity(application, version, MIGRATIONS.len())?;
    if version < MIGRATIONS.len() as i64 {
        return Err(Fault::of(
            StoreErrorKind::ReadOnly,
            format_args!("it is of version {version} and has to be opened for writing once"),
        ));
    }
    Ok(())
}

fn identity(connection: &Connection) -> Result<(i64, i64), Fault> {
    let read = |pragma| connection.pragma_query_value(None, pragma, |row| row.get(0));
    Ok((read("application_id")?, read("user_version")?))
}

fn checked_identity(application: i64, version: i64, current: usize) -> Result<(), Fault> {
    if application != APPLICATION_ID {
        return Err(foreign());
    }
    if version > current as i64 {
        return Err(Fault::of(
            StoreErrorKind::NewerVersion,
            format_args!("it is of version {version}, and {current} is the newest known here"),
        ));
    }
    if version < 0 {
        return Err(Fault::of(StoreErrorKind::Corrupt, format_args!("its version is {version}")));
    }
    Ok(())
}

fn foreign() -> Fault {
    Fault::of(StoreErrorKind::Foreign, "it is a database of another program")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: Result<(), Fault>) -> Option<StoreErrorKind> {
        result.err().map(|fault| fault.at(Path::new("x")).kind)
    }

    #[test]
    fn a_file_is_brought_to_the_newest_version_and_never_to_an_older_one() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &["CREATE TABLE a (x)", "INSERT INTO a VALUES (1)"]).unwrap();
        let next = &["no SQL", "no SQL", "ALTER TABLE a ADD y", "UPDATE a SET y = 2"];
        migrate(&mut connection, next).unwrap();
        migrate(&mut connection, next).unwrap();
        let sum: i64 = connection.query_row("SELECT x + y FROM a", (), |row| row.get(0)).unwrap();
        assert_eq!(sum, 3);
        assert_eq!(identity(&connection).unwrap(), (APPLICATION_ID, 4));

        let older = migrate(&mut connection, &["CREATE TABLE a (x)"]);
        assert_eq!(kind(older), Some(StoreErrorKind::NewerVersion));
        assert_eq!(identity(&connection).unwrap(), (APPLICATION_ID, 4));
    }

    #[test]
    fn a_migration_that_fails_changes_nothing() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, &["CREATE TABLE a (x)"]).unwrap();
        let broken = migrate(&mut connection, &["", "DROP TABLE a", "no SQL"]);
        assert!(broken.is_err());
        assert_eq!(identity(&connection).unwrap(), (APPLICATION_ID, 1));
        connection.execute("INSERT INTO a VALUES (1)", ()).unwrap();
    }

    #[test]
    fn the_database_of_another_program_is_refused() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE a (x)").unwrap();
        assert_eq!(kind(migrate(&mut connection, MIGRATIONS)), Some(StoreErrorKind::Foreign));
        connection.pragma_update(None, "application_id", 7).unwrap();
        assert_eq!(kind(migrate(&mut connection, MIGRATIONS)), Some(StoreErrorKind::Foreign));
    }
}
