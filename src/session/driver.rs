//! The one task of a session: moves bytes, time and results in and out of the engine. No behaviour of its own.
use super::engine::{Engine, HostCommand, Input, Output, ToolFailure};
use antiphon_agent::{Admission, AdmittedCall, CallContext, ToolExecutor};
use antiphon_audio::AudioSink;
use antiphon_live::{LiveConnection, LiveError};
use antiphon_types::ToolResponse;
use futures_util::{SinkExt, StreamExt};
use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, Sleep},
};

pub struct Driver {
    pub engine: Engine,
    pub connection: Option<(u32, Box<dyn LiveConnection>)>,
    pub sink: Box<dyn AudioSink>,
    pub commands: mpsc::Receiver<HostCommand>,
    pub executor: Arc<ToolExecutor>,
    pub tools: JoinSet<(super::engine::Ticket, Result<ToolResponse, ToolFailure>)>,
    pub timer: std::pin::Pin<Box<Sleep>>,
    pub call: CallContext,
}
enum Wake {
    Input(Input),
    Timeout,
    WireReady,
    Fatal(LiveError),
}

impl Driver {
    pub async fn run(mut self) {
        loop {
            if self.drain() {
                return;
            }
            if let Some(at) = self.engine.next_deadline() {
                self.timer.as_mut().reset(Instant::from_std(at));
            }
            let wake = poll_fn(|cx| self.poll_wake(cx)).await;
            let now = Instant::now().into_std();
            match wake {
                Wake::Input(i) => self.engine.handle(i, now),
                Wake::Timeout => self.engine.handle_timeout(now),
                Wake::WireReady => {}
                Wake::Fatal(error) => return tracing::warn!(%error, "connection failed"),
            }
        }
    }
    /// Both directions of the wire, the device, tools, host and clock in one poll: nothing is cancelled, nothing hops.
    fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<Wake> {
        if let Some((epoch, c)) = &mut self.connection {
            let epoch = *epoch;
            if let Poll::Ready(e) = c.poll_next_unpin(cx) {
                return Poll::Ready(match e {
                    Some(Ok(event)) => Wake::Input(Input::Provider { epoch, event }),
                    Some(Err(e)) => Wake::Fatal(e),
                    None => Wake::Input(Input::Stop(super::EndReason::Stopped)),
                });
            }
            if let Poll::Ready(Err(e)) = c.poll_flush_unpin(cx) {
                return Poll::Ready(Wake::Fatal(e));
            }
            if c.unsent_bytes() < 32 * 1024
                && self.engine.has_uplink()
                && c.poll_ready_unpin(cx).is_ready()
            {
                if let Some(cmd) = self.engine.poll_uplink() {
                    let _ = c.start_send_unpin(cmd);
                }
                return Poll::Ready(Wake::WireReady);
            }
        }
        if let Poll::Ready(Ok(p)) = self.sink.poll_progress(cx) {
            return Poll::Ready(Wake::Input(Input::Played(p)));
        }
        if let Poll::Ready(Some(Ok((ticket, result)))) = self.tools.poll_join_next(cx) {
            return Poll::Ready(Wake::Input(Input::ToolDone { ticket, result }));
        }
        if let Poll::Ready(Some(c)) = self.commands.poll_recv(cx) {
            return Poll::Ready(Wake::Input(Input::Host(c)));
        }
        if self.engine.next_deadline().is_some() && self.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Wake::Timeout);
        }
        Poll::Pending
    }
    fn drain(&mut self) -> bool {
        while let Some(out) = self.engine.poll_output() {
            match out {
                Output::Play { generation, audio } => {
                    let _ = self.sink.write(generation, audio);
                }
                Output::ClearPlayback { next } => {
                    if let Ok(played) = self.sink.clear(next) {
                        self.engine.handle(
                            Input::Cleared { generation: next, played },
                            Instant::now().into_std(),
                        );
                    }
                }
                Output::Admit { ticket, call } => {
                    // Sketch: here inline. The real driver sends `admit` to a blocking lane with a deadline and goes on polling; the verdict comes back as an input.
                    let admission = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        self.executor.admit(&self.call, call)
                    }));
                    let admission = admission.ok();
                    let (admitted, input) = match admission {
                        Some(Admission::Run(c)) => (Some(c), true),
                        _ => (None, false),
                    };
                    self.engine.handle(
                        Input::Admission { ticket, runs: input },
                        Instant::now().into_std(),
                    );
                    if let Some(c) = admitted {
                        self.spawn(ticket, c);
                    }
                }
                Output::Ended(_) => return true,
                _ => {}
            }
        }
        false
    }
    fn spawn(&mut self, ticket: super::engine::Ticket, call: AdmittedCall) {
        let executor = self.executor.clone();
        self.tools.spawn(async move {
            let r = executor.run(call).await;
            (
                ticket,
                r.map(|output| ToolResponse { id: "".into(), name: "".into(), output })
                    .map_err(|e| ToolFailure::Error(e.message)),
            )
        });
    }
}
fn assert_send<T: Send>(_: T) {}
pub fn driver_is_send(d: Driver) {
    assert_send(d.run())
}
