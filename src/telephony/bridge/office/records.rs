//! The file of records, written by a thread of its own: a disk that hangs holds up no call.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use tokio::{sync::oneshot, time::timeout};

use crate::telephony::bridge::CallRecord;

/// Records that wait for the disk, at most; further ones are lost, and counted.
const QUEUE: usize = 1_024;
/// At the end they are waited for so long.
const LAST: Duration = Duration::from_secs(5);

/// The file of records.
pub(super) struct Records {
    jobs: SyncSender<Job>,
    lost: Arc<AtomicU64>,
}

enum Job {
    Line(String),
    Flush(oneshot::Sender<()>),
}

impl Records {
    /// Appends to the file at `path`; what cannot be written counts in `lost`.
    pub(super) fn open(path: &Path, lost: Arc<AtomicU64>) -> std::io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let (jobs, queue) = sync_channel(QUEUE);
        let counter = lost.clone();
        let name = "antiphon-records".into();
        thread::Builder::new().name(name).spawn(move || write(file, &queue, &counter))?;
        Ok(Self { jobs, lost })
    }

    pub(super) fn write(&self, record: &CallRecord) {
        let line = serde_json::to_string(record).ok().map(Job::Line);
        if line.is_none_or(|line| self.jobs.try_send(line).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a call was not recorded");
        }
    }

    /// Returns when all of them are in the file, or cannot be.
    pub(super) async fn flush(&self) {
        let (done, written) = oneshot::channel();
        let flushed = async {
            // There is room once the disk goes on.
            let mut job = Job::Flush(done);
            while let Err(std::sync::mpsc::TrySendError::Full(back)) = self.jobs.try_send(job) {
                job = back;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let _ = written.await;
        };
        if timeout(LAST, flushed).await.is_err() {
            tracing::error!("not all calls were recorded in time");
        }
    }
}

fn write(mut file: File, queue: &Receiver<Job>, lost: &AtomicU64) {
    while let Ok(job) = queue.recv() {
        match job {
            Job::Line(line) => {
                if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
                    lost.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(%error, "a call was not recorded");
                }
            }
            Job::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}
