//! Limits in a SQLite file that processes share.

use std::{
    fmt,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};
use serde::{Deserialize, Serialize};

use super::{
    Draw, LimitError, LimitStore, ReservationId, Reserved,
    window::{Room, Used, Window, total},
};
use crate::policy::Spent;

/// How long an operation waits for other processes. A session waits a little longer
/// ([`ExecutorLimits::record_deadline`](antiphon_agent::ExecutorLimits)), and denies.
const BUSY: Duration = Duration::from_secs(4);

/// `ANTL`: the file is one of limits.
const APPLICATION_ID: i64 = 0x414e_544c;
const VERSION: i64 = 2;

/// A reservation that is older belongs to a process that is gone: what it took stays taken, and nobody
/// is going to settle it.
const ABANDONED_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// After so many reservations, keys that nobody takes from any more are looked for.
const SWEEP_EVERY: u64 = 1_000;

/// Limits in a SQLite file: a restart does not reset them, and all processes that open the file take
/// from the same. What was taken is on the disk before a tool runs, also when the power fails.
pub struct SqliteLimits {
    writer: Mutex<Connection>,
    /// A look at what was spent does not wait for writes.
    reader: Mutex<Connection>,
}

impl SqliteLimits {
    /// Opens the file, or makes it, readable for its owner only.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, LimitError> {
        let path = path.as_ref();
        create(path).map_err(|error| LimitError(format!("{}: {error}", path.display())))?;
        let opened = || -> Result<_, Trouble> {
            let mut writer = connect(path)?;
            prepare(&mut writer)?;
            let reader = connect(path)?;
            reader.pragma_update(None, "query_only", true)?;
            Ok(Self { writer: Mutex::new(writer), reader: Mutex::new(reader) })
        };
        opened().map_err(|Trouble(error)| LimitError(format!("{}: {error}", path.display())))
    }

    fn write<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Trouble>,
    ) -> Result<T, LimitError> {
        let mut connection = lock(&self.writer);
        let done = || -> Result<T, Trouble> {
            let transaction =
                connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        done().map_err(LimitError::from)
    }
}

impl LimitStore for SqliteLimits {
    fn reserve(&self, now: Timestamp, draws: &[Draw]) -> Result<Reserved, LimitError> {
        self.write(|transaction| {
            for draw in draws {
                let until = match Window::of(draw.window).room(&used(transaction, now, draw)?, draw)
                {
                    Room::Yes => continue,
                    Room::At(until) => Some(until),
                    Room::Never => None,
                };
                return Ok(Reserved::No { limit: draw.limit.clone(), until });
            }
            let mut taken = Vec::with_capacity(draws.len());
            for draw in draws {
                let window = Window::of(draw.window);
                let ((start, length), amount) = (window.step_of(now), units(draw.amount)?);
                let end = start.saturating_add(length);
                // Another host may give the limit a longer window, of which its steps tell.
                let (newest, longest): (Option<i64>, Option<i64>) = transaction
                    .prepare_cached("SELECT max(until), max(length) FROM used WHERE key = ?1")?
                    .query_row([&draw.key], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let kept_for = longest.map_or(window, |step| window.longer(Window::of_step(step)));
                transaction
                    .prepare_cached(
                        "INSERT INTO used (key, until, length, calls, amount) VALUES (?1, ?2, ?3, 1, ?4)
                         ON CONFLICT (key, until, length) DO UPDATE
                         SET calls = calls + 1, amount = amount + excluded.amount",
                    )?
                    .execute(params![draw.key, end, length, amount])?;
                transaction
                    .prepare_cached("DELETE FROM used WHERE key = ?1 AND until < ?2")?
                    .execute(params![draw.key, kept_for.forgettable(now, newest)])?;
                taken.push(Taken { key: draw.key.clone(), end, length, amount });
            }
            let taken = serde_json::to_string(&taken)?;
            transaction
                .prepare_cached("INSERT INTO reservation (at, taken) VALUES (?1, ?2)")?
                .execute(params![now.as_millisecond(), taken])?;
            let id = u64::try_from(transaction.last_insert_rowid())?;
            if id.is_multiple_of(SWEEP_EVERY) {
                sweep(transaction, now)?;
            }
            Ok(Reserved::Yes(ReservationId(id)))
        })
    }

    fn settle(&self, reservation: ReservationId) -> Result<(), LimitError> {
        self.write(|transaction| {
            take(transaction, reservation)?;
            Ok(())
        })
    }

    fn give_back(&self, reservation: ReservationId) -> Result<(), LimitError> {
        self.write(|transaction| {
            let Some(taken) = take(transaction, reservation)? else { return Ok(()) };
            for Taken { key, end, length, amount } in serde_json::from_str::<Vec<Taken>>(&taken)? {
                transaction
                    .prepare_cached(
                        "UPDATE used SET calls = max(calls - 1, 0), amount = max(amount - ?4, 0)
                         WHERE key = ?1 AND until = ?2 AND length = ?3",
                    )?
                    .execute(params![key, end, length, amount])?;
            }
            Ok(())
        })
    }

    fn spent(&self, now: Timestamp, draws: &[Draw]) -> Result<Vec<Spent>, LimitError> {
        let connection = lock(&self.reader);
        let spent = draws.iter().map(|draw| {
            let (calls, amount) = total(&used(&connection, now, draw)?);
            Ok(Spent::new(draw.limit.clone(), calls, amount))
        });
        spent.collect::<Result<_, Trouble>>().map_err(LimitError::from)
    }
}

impl fmt::Debug for SqliteLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteLimits").finish_non_exhaustive()
    }
}

/// What a reservation took from one limit.
#[derive(Serialize, Deserialize)]
struct Taken {
    key: String,
    end: i64,
    length: i64,
    amount: i64,
}

fn used(connection: &Connection, now: Timestamp, draw: &Draw) -> Result<Vec<Used>, Trouble> {
    let mut statement = connection.prepare_cached(
        "SELECT until, length, calls, amount FROM used WHERE key = ?1 AND until > ?2 ORDER BY until",
    )?;
    let begins = Window::of(draw.window).begins(now);
    let rows = statement.query_map(params![draw.key, begins], |row| {
        let (end, length): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok((end, length, row.get::<_, i64>(2)?, row.get::<_, i64>(3)?))
    })?;
    rows.map(|row| {
        let (end, length, calls, amount) = row?;
        let start = end.saturating_sub(length);
        Ok(Used { start, length, calls: calls.try_into()?, amount: amount.try_into()? })
    })
    .collect()
}

/// Forgets what does not count any more, of whatever key: four windows after it was used. A clock that jumps
/// is not believed before something was used by it.
fn sweep(transaction: &Transaction<'_>, now: Timestamp) -> Result<(), Trouble> {
    transaction.execute(
        "DELETE FROM used
         WHERE until + length * 240 < min(?1, (SELECT max(until) FROM used))",
        [now.as_millisecond()],
    )?;
    Ok(())
}

fn take(
    transaction: &Transaction<'_>,
    reservation: ReservationId,
) -> Result<Option<String>, Trouble> {
    let id = i64::try_from(reservation.0)?;
    let mut statement =
        transaction.prepare_cached("DELETE FROM reservation WHERE id = ?1 RETURNING taken")?;
    Ok(statement.query_row([id], |row| row.get(0)).optional()?)
}

fn units(amount: u64) -> Result<i64, Trouble> {
    Ok(amount.try_into()?)
}

fn connect(path: &Path) -> Result<Connection, Trouble> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "fullfsync", true)?;
    // What was taken must not be free again after the power failed.
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}

/// Makes the tables in a file that is new. Processes may do so at the same time.
fn prepare(connection: &mut Connection) -> Result<(), Trouble> {
    use_log(connection)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let number = |name| transaction.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    match (number("application_id")?, number("user_version")?) {
        (APPLICATION_ID, VERSION) => {
            let now = Timestamp::now().as_millisecond();
            transaction.execute("DELETE FROM reservation WHERE at < ?1", [now - ABANDONED_MS])?;
            sweep(&transaction, Timestamp::now())?;
        }
        (APPLICATION_ID, version) => {
            return Err(Trouble(format!("it has version {version} of limits, not {VERSION}")));
        }
        (0, 0) => {
            let tables: i64 =
                transaction
                    .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables > 0 {
                return Err(Trouble("it is another program's database".into()));
            }
            transaction.execute_batch(
                "CREATE TABLE used (
                     key TEXT NOT NULL,
                     -- When the step ends, and how long it is, in milliseconds: whatever window the
                     -- limit has by then, what was used counts.
                     until INTEGER NOT NULL,
                     length INTEGER NOT NULL,
                     calls INTEGER NOT NULL,
                     amount INTEGER NOT NULL,
                     PRIMARY KEY (key, until, length)
                 ) WITHOUT ROWID, STRICT;
                 -- Numbers are never used again: one that is settled must not name another.
                 CREATE TABLE reservation (
                     id INTEGER PRIMARY KEY AUTOINCREMENT,
                     at INTEGER NOT NULL,
                     taken TEXT NOT NULL
                 ) STRICT;",
            )?;
            transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        _ => return Err(Trouble("it is another program's database".into())),
    }
    transaction.commit()?;
    Ok(())
}

/// Has the file keep a write-ahead log. That needs a moment in which nobody else uses it, and SQLite
/// does not wait for one.
fn use_log(connection: &Connection) -> Result<(), Trouble> {
    let asked = Instant::now();
    loop {
        let mode = connection
            .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => return Ok(()),
            Ok(mode) => return Err(Trouble(format!("no write-ahead log is possible, but {mode}"))),
            Err(error)
                if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
                    && asked.elapsed() < BUSY =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn create(path: &Path) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(drop)
}

/// What went wrong, in words.
struct Trouble(String);

impl<E: std::error::Error> From<E> for Trouble {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl From<Trouble> for LimitError {
    fn from(Trouble(reason): Trouble) -> Self {
        Self(reason)
    }
}

/// A transaction that was not committed is rolled back, so a poisoned lock still guards whole data.
fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}
