//! Tools that start and finish when told.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use antiphon_agent::{Tool, ToolContext, ToolError};
use antiphon_types::JsonObject;
use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// What a [`LatchedTool`] does once it is released.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ToolPlan {
    /// Returns `{"ok": true}`.
    Succeed,
    /// Returns this object.
    Return(JsonObject),
    /// Errs with this text.
    Fail(String),
    /// Panics.
    Panic,
    /// Never returns, and ignores cancellation.
    Hang,
}

/// A tool that waits for its latch.
pub struct LatchedTool {
    name: String,
    schema: Option<Arc<Value>>,
    latch: ToolLatch,
}

/// The test's side of a [`LatchedTool`].
#[derive(Clone)]
pub struct ToolLatch {
    inner: Arc<Inner>,
}

struct Inner {
    plan: Mutex<ToolPlan>,
    calls: Mutex<Vec<(Arc<str>, JsonObject)>>,
    running: AtomicUsize,
    finished: AtomicUsize,
    started: Semaphore,
    release: Semaphore,
}

impl LatchedTool {
    /// A tool that takes any object, and its latch.
    pub fn new(name: &str, plan: ToolPlan) -> (Self, ToolLatch) {
        let latch = ToolLatch {
            inner: Arc::new(Inner {
                plan: Mutex::new(plan),
                calls: Mutex::default(),
                running: AtomicUsize::new(0),
                finished: AtomicUsize::new(0),
                started: Semaphore::new(0),
                release: Semaphore::new(0),
            }),
        };
        (Self { name: name.into(), schema: None, latch: latch.clone() }, latch)
    }

    /// A tool that needs no release: it does what it does at once.
    pub fn open(name: &str, plan: ToolPlan) -> (Self, ToolLatch) {
        let (tool, latch) = Self::new(name, plan);
        latch.release(1_000);
        (tool, latch)
    }

    /// Sets the input schema.
    pub fn schema(mut self, schema: Value) -> Self {
        self.schema = Some(Arc::new(schema));
        self
    }
}

impl ToolLatch {
    /// Lets so many calls finish.
    pub fn release(&self, calls: usize) {
        self.inner.release.add_permits(calls);
    }

    /// Waits until one more call has started.
    pub async fn started(&self) {
        let permit = self.inner.started.acquire().await;
        permit.expect("the semaphore is never closed").forget();
    }

    /// Every call so far: id and arguments.
    pub fn calls(&self) -> Vec<(Arc<str>, JsonObject)> {
        self.inner.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bodies that started and were neither finished nor dropped.
    pub fn running(&self) -> usize {
        self.inner.running.load(Ordering::SeqCst)
    }

    /// Bodies that ran to their end.
    pub fn finished(&self) -> usize {
        self.inner.finished.load(Ordering::SeqCst)
    }

    /// Changes what later calls do.
    pub fn plan(&self, plan: ToolPlan) {
        *self.inner.plan.lock().unwrap_or_else(PoisonError::into_inner) = plan;
    }
}

#[async_trait]
impl Tool for LatchedTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> &str {
        "waits for the test"
    }

    fn input_schema(&self) -> Option<Arc<Value>> {
        self.schema.clone()
    }

    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError> {
        let inner = &self.latch.inner;
        let plan = inner.plan.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.calls.lock().unwrap_or_else(PoisonError::into_inner).push((cx.call_id, args));
        let _running = Running::new(&inner.running);
        inner.started.add_permits(1);
        inner.release.acquire().await.expect("the semaphore is never closed").forget();
        let result = match plan {
            ToolPlan::Succeed => Ok(json!({ "ok": true })),
            ToolPlan::Return(object) => Ok(Value::Object(object)),
            ToolPlan::Fail(text) => Err(ToolError::new(text)),
            ToolPlan::Panic => panic!("a tool that panics, as planned"),
            ToolPlan::Hang => std::future::pending().await,
        };
        inner.finished.fetch_add(1, Ordering::SeqCst);
        result
    }
}

struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
