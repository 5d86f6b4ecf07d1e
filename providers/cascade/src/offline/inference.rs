//! Running networks: never on a session's task, never more at once than there is room for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use antiphon_types::Status;
use rten::{Model, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use tokio::sync::Semaphore;

use super::OfflineError;
use crate::SpeechError;

/// A loaded network whose inputs and outputs were looked up once.
pub(super) struct Network {
    name: &'static str,
    model: Model,
}

impl Network {
    pub(super) fn load(name: &'static str, onnx: Vec<u8>) -> Result<Self, OfflineError> {
        let model = Model::load(onnx).map_err(|error| unusable(name, error))?;
        Ok(Self { name, model })
    }

    pub(super) fn node(&self, name: &str) -> Result<NodeId, OfflineError> {
        self.model.node_id(name).map_err(|error| unusable(self.name, error))
    }

    pub(super) fn run(
        &self,
        inputs: Vec<(NodeId, ValueOrView)>,
        outputs: &[NodeId],
        threads: &Arc<ThreadPool>,
    ) -> Result<Vec<Value>, SpeechError> {
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(threads)));
        self.model
            .run(inputs, outputs, Some(options))
            .map_err(|error| SpeechError::new(self.name, Status::Internal, error.to_string()))
    }

    /// The values of an output that must be numbers.
    pub(super) fn floats(&self, value: Value) -> Result<Vec<f32>, SpeechError> {
        match value.into_tensor::<f32>() {
            Some(tensor) => Ok(tensor.into_data()),
            None => Err(self.surprise("an output is not of floating-point numbers")),
        }
    }

    pub(super) fn surprise(&self, what: &str) -> SpeechError {
        SpeechError::new(self.name, Status::Internal, what)
    }
}

pub(super) fn unusable(model: &str, reason: impl ToString) -> OfflineError {
    OfflineError::ModelUnusable { model: model.to_owned(), reason: reason.to_string() }
}

/// A lane for blocking work: a few jobs at a time, a bounded queue before it. Jobs run on tokio's
/// blocking threads, so that a paused clock stands still while they do.
pub(super) struct Lane {
    part: &'static str,
    running: Arc<Semaphore>,
    admitted: Arc<Semaphore>,
    threads: Arc<ThreadPool>,
}

/// Jobs that may wait for their turn on a lane; one more is refused.
const QUEUE: usize = 256;

impl Lane {
    pub(super) fn new(part: &'static str, at_once: usize, threads: usize) -> Self {
        Self {
            part,
            running: Arc::new(Semaphore::new(at_once)),
            admitted: Arc::new(Semaphore::new(at_once + QUEUE)),
            threads: Arc::new(ThreadPool::with_num_threads(threads.max(1))),
        }
    }

    /// The result of `work`, which is given the threads to compute on and a flag that says when
    /// nobody waits for it any more.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, SpeechError>
    where
        T: Send + 'static,
        F: FnOnce(&Arc<ThreadPool>, &GivenUp) -> Result<T, SpeechError> + Send + 'static,
    {
        let Ok(place) = Arc::clone(&self.admitted).try_acquire_owned() else {
            return Err(SpeechError::new(self.part, Status::ResourceExhausted, "too busy"));
        };
        let closed = || SpeechError::new(self.part, Status::Internal, "the lane is closed");
        let turn = Arc::clone(&self.running).acquire_owned().await.map_err(|_| closed())?;

        let given_up = GivenUp::default();
        let waiting = Waiting(given_up.clone());
        let threads = Arc::clone(&self.threads);
        let job = tokio::task::spawn_blocking(move || {
            // A job whose caller is gone ends soon, but it holds its place until it has.
            let _held = (place, turn);
            work(&threads, &given_up)
        });
        let result = job.await;
        drop(waiting);
        result.unwrap_or_else(|error| {
            Err(SpeechError::new(self.part, Status::Internal, error.to_string()))
        })
    }
}

/// Whether the caller of a job has stopped waiting.
#[derive(Clone, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

impl GivenUp {
    pub(super) fn check(&self, part: &'static str) -> Result<(), SpeechError> {
        match self.0.load(Ordering::Relaxed) {
            true => Err(SpeechError::new(part, Status::Cancelled, "nobody waits for it")),
            false => Ok(()),
        }
    }
}

struct Waiting(GivenUp);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_of_a_job_is_an_error_and_frees_its_place() {
        let lane = Lane::new("test", 1, 1);
        let lost: Result<(), _> = lane.run(|_, _| panic!("no such thing")).await;
        assert_eq!(lost.unwrap_err().status, Status::Internal);
        assert_eq!(lane.run(|_, _| Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_job_learns_that_its_caller_went_away() {
        let lane = Arc::new(Lane::new("test", 1, 1));
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let caller = tokio::spawn({
            let lane = Arc::clone(&lane);
            async move {
                lane.run::<(), _>(move |_, given_up| {
                    let _ = started.send(());
                    while given_up.check("test").is_ok() {
                        std::thread::yield_now();
                    }
                    let _ = ended.send(());
                    Ok(())
                })
                .await
            }
        });
        has_started.await.unwrap();
        caller.abort();
        has_ended.await.unwrap();
        assert_eq!(lane.run(|_, _| Ok(1)).await.unwrap(), 1);
    }
}
