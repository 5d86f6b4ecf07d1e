//! Writing a recording, beside the session's task.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::{sync::mpsc, task::JoinHandle};

use super::{
    form::{End, EndLine, Header, Step},
    tape,
};

/// Steps that may wait for the disk: 10 seconds of two voices in frames of 20 ms.
const MAX_WAITING: usize = 1_024;
/// Steps that are written at a time.
const BATCH: usize = 256;

/// The file of a recording that begins.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) audio: bool,
    pub(crate) unix_ms: u64,
}

/// What became of a recording.
#[derive(Debug, Default)]
pub(super) struct Fate {
    dropped: AtomicU64,
    complete: AtomicBool,
}

impl Fate {
    /// Steps that were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// One was dropped: nothing that comes after it can be replayed, so it is dropped as well.
    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.dropped() > 0
    }

    /// The session's end was reached.
    pub(super) fn complete(&self) {
        self.complete.store(true, Ordering::Relaxed);
    }

    fn end(&self) -> End {
        let dropped = self.dropped();
        End { complete: dropped == 0 && self.complete.load(Ordering::Relaxed), dropped }
    }
}

/// The near end of the task that writes. Dropping it lets the task end after what it still has.
#[derive(Debug)]
pub(crate) struct Writer {
    steps: Option<mpsc::Sender<Box<Step>>>,
    task: JoinHandle<()>,
}

impl Writer {
    pub(super) fn spawn(
        file: NewFile,
        header: Header,
        key: Option<SecretString>,
        fate: Arc<Fate>,
    ) -> Self {
        let (steps, waiting) = mpsc::channel(MAX_WAITING);
        let audio = file.audio;
        let scribe = Scribe { file: BufWriter::new(file.file), key, audio };
        let task = tokio::spawn(async move {
            let path = file.path;
            if let Err(error) = write_all(scribe, header, waiting, &fate).await {
                // Whoever pushes finds the queue closed, and counts.
                tracing::warn!(path = %path.display(), %error, "the recording ends early");
            }
        });
        Self { steps: Some(steps), task }
    }

    /// Leaves a step, if there is room.
    pub(super) fn push(&mut self, step: Step, fate: &Fate) {
        let pushed = self.steps.as_ref().map(|steps| steps.try_send(Box::new(step)));
        if !matches!(pushed, Some(Ok(()))) {
            fate.drop_one();
        }
    }

    /// No more comes.
    pub(super) fn close(&mut self) {
        self.steps = None;
    }

    /// Waits until all is written, at most so long.
    pub(crate) async fn finish(mut self, within: Duration) {
        self.close();
        if tokio::time::timeout(within, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Writes until nobody can push any more, and what became of it.
async fn write_all(
    mut scribe: Scribe,
    header: Header,
    mut waiting: mpsc::Receiver<Box<Step>>,
    fate: &Fate,
) -> io::Result<()> {
    scribe = scribe.beside(move |scribe| scribe.line(&header)).await?;
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, BATCH).await > 0 {
        let mut steps = std::mem::take(&mut batch);
        let write = move |scribe: &mut Scribe| steps.iter_mut().try_for_each(|s| scribe.step(s));
        scribe = scribe.beside(write).await?;
    }
    let end = fate.end();
    scribe.beside(move |scribe| scribe.line(&EndLine { end })).await?;
    Ok(())
}

/// Writes lines. Blocks.
struct Scribe {
    file: BufWriter<File>,
    /// Never written, wherever it turns up: a provider may repeat it in an error.
    key: Option<SecretString>,
    audio: bool,
}

impl Scribe {
    /// Runs `write` where blocking holds up nobody.
    async fn beside(
        mut self,
        write: impl FnOnce(&mut Self) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let written = tokio::task::spawn_blocking(move || {
            write(&mut self)?;
            self.file.flush()?;
            Ok(self)
        });
        written.await.map_err(io::Error::other)?
    }

    fn step(&mut self, step: &mut Step) -> io::Result<()> {
        if let Some(input) = step.input.as_deref_mut().filter(|_| !self.audio) {
            tape::without_samples(input);
        }
        self.line(step)
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        let key = self.key.as_ref().map(|key| key.expose_secret()).filter(|key| key.len() >= 8);
        let Some(key) = key else {
            serde_json::to_writer(&mut self.file, line)?;
            return self.file.write_all(b"\n");
        };
        let mut text = serde_json::to_string(line)?;
        if text.contains(key) {
            text = text.replace(key, "[secret]");
        }
        text.push('\n');
        self.file.write_all(text.as_bytes())
    }
}
