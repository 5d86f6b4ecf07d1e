//! The contract suite passes a provider that keeps the contract, and names the case for each one
//! that does not.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use antiphon_live::{
    Capabilities, ConnectRequest, LiveCommand, LiveConfig, LiveConnection, LiveError, LiveEvent,
    LiveProvider, ReplyId, ReplyOutcome, TextUpdate,
    conformance::{self, Options, Outcome, Report, ToolProbe},
    types::{AudioFormat, AudioFrame, JsonObject, ToolArguments, ToolCallRequest, ToolDefinition},
};
use async_trait::async_trait;
use futures_core::Stream;
use futures_sink::Sink;

/// One broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NoName,
    LateReady,
    TwoReplies,
    OtherReplyDone,
    AudioAfterDone,
    TakesEverything,
    TakesAnyFormat,
    NeverDone,
    ForgetsTheRequest,
    DeafToTools,
    EndsTwice,
    PanicsOnBlankText,
}

/// A provider that answers every text with its words and a little audio.
struct Parrot(Fault);

struct Connection {
    fault: Fault,
    capabilities: Arc<Capabilities>,
    events: VecDeque<LiveEvent>,
    tool: Option<Arc<str>>,
    replies: u32,
    /// The running reply: it ends once the session looks again.
    active: Option<ReplyId>,
    closed: bool,
    yielded_after_end: bool,
    waker: Option<Waker>,
}

fn capabilities() -> Capabilities {
    let mut capabilities =
        Capabilities::audio_only(AudioFormat::pcm16(16_000), AudioFormat::pcm16(24_000));
    capabilities.text_input = true;
    capabilities.say = true;
    capabilities.create_reply = true;
    capabilities.cancel_reply = true;
    capabilities.tools = true;
    capabilities.replies_after_tools = true;
    capabilities
}

#[async_trait]
impl LiveProvider for Parrot {
    fn name(&self) -> &str {
        if self.0 == Fault::NoName { "" } else { "parrot" }
    }

    fn model(&self, _: &LiveConfig) -> Arc<str> {
        "echo".into()
    }

    fn capabilities(&self, _: &LiveConfig) -> Result<Capabilities, LiveError> {
        Ok(capabilities())
    }

    async fn connect(&self, request: ConnectRequest) -> Result<Box<dyn LiveConnection>, LiveError> {
        let capabilities = Arc::new(capabilities());
        let mut events = VecDeque::new();
        if self.0 == Fault::LateReady {
            events.push_back(LiveEvent::Ignored { kind: "hello".into() });
        }
        events.push_back(LiveEvent::Ready { capabilities: capabilities.clone() });
        Ok(Box::new(Connection {
            fault: self.0,
            capabilities,
            events,
            tool: request.config.tools.first().map(|tool| tool.name.clone()),
            replies: 0,
            active: None,
            closed: false,
            yielded_after_end: false,
            waker: None,
        }))
    }
}

impl Connection {
    fn start(&mut self, request: Option<u64>, text: &str) {
        self.replies += 1;
        let reply = ReplyId::from(format!("r{}", self.replies).as_str());
        let request = request.filter(|_| self.fault != Fault::ForgetsTheRequest);
        self.events.push_back(LiveEvent::ReplyStarted { reply: reply.clone(), request });
        if self.fault == Fault::TwoReplies {
            let reply = ReplyId::from("second");
            self.events.push_back(LiveEvent::ReplyStarted { reply, request: None });
        }
        self.events.push_back(LiveEvent::OutputTranscript {
            reply: reply.clone(),
            item: "item".into(),
            text: TextUpdate::Final(Some(text.into())),
        });
        self.events.push_back(audio(&reply));
        if let Some(tool) = self.tool.take()
            && self.fault != Fault::DeafToTools
        {
            self.events.push_back(LiveEvent::ToolCalls {
                reply: Some(reply.clone()),
                calls: vec![ToolCallRequest {
                    id: "c1".into(),
                    name: tool,
                    arguments: ToolArguments::Object(JsonObject::new()),
                }],
            });
        }
        self.active = Some(reply);
    }

    fn done(&mut self, outcome: ReplyOutcome) {
        let Some(mut reply) = self.active.take() else { return };
        if self.fault == Fault::NeverDone {
            return;
        }
        if self.fault == Fault::OtherReplyDone {
            reply = "somebody".into();
        }
        self.events.push_back(LiveEvent::ReplyDone { reply: reply.clone(), outcome, usage: None });
        if self.fault == Fault::AudioAfterDone {
            self.events.push_back(audio(&reply));
        }
    }
}

fn audio(reply: &ReplyId) -> LiveEvent {
    LiveEvent::Audio {
        reply: reply.clone(),
        item: "item".into(),
        content_index: 0,
        frame: AudioFrame::from_pcm16(24_000, &[1; 480]),
    }
}

impl LiveConnection for Connection {
    fn capabilities(&self) -> &Arc<Capabilities> {
        &self.capabilities
    }

    fn unsent_bytes(&self) -> usize {
        0
    }
}

impl Stream for Connection {
    type Item = Result<LiveEvent, LiveError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.closed {
            let again = this.fault == Fault::EndsTwice && this.yielded_after_end;
            this.yielded_after_end = true;
            let late = LiveEvent::Ignored { kind: "late".into() };
            return Poll::Ready(again.then_some(Ok(late)));
        }
        if this.events.is_empty() {
            this.done(ReplyOutcome::Completed);
        }
        match this.events.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(event))),
            None => {
                this.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Sink<LiveCommand> for Connection {
    type Error = LiveError;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        Poll::Ready(if self.closed { Err(LiveError::NotConnected) } else { Ok(()) })
    }

    fn start_send(self: Pin<&mut Self>, command: LiveCommand) -> Result<(), LiveError> {
        let this = self.get_mut();
        if let Err(what) = this.capabilities.check(&command)
            && this.fault != Fault::TakesEverything
        {
            return Err(LiveError::unsupported("parrot", what));
        }
        match command {
            LiveCommand::AppendAudio(frame)
                if frame.format != this.capabilities.input
                    && this.fault != Fault::TakesAnyFormat =>
            {
                return Err(LiveError::InvalidCommand("format".into()));
            }
            LiveCommand::Text { text, .. } | LiveCommand::Say { text, .. }
                if text.trim().is_empty() =>
            {
                assert!(this.fault != Fault::PanicsOnBlankText, "blank");
                return Err(LiveError::InvalidCommand("blank".into()));
            }
            LiveCommand::Text { text, reply: true } => this.start(None, &text),
            LiveCommand::Say { request, text } => this.start(Some(request), &text),
            LiveCommand::CreateReply { request } => this.start(Some(request), "Well."),
            LiveCommand::ToolResponse(_) => this.start(None, "Done."),
            LiveCommand::CancelReply { reply } if reply == this.active => {
                this.done(ReplyOutcome::Cancelled);
            }
            _ => {}
        }
        if let Some(waker) = this.waker.take() {
            waker.wake();
        }
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LiveError>> {
        self.get_mut().closed = true;
        Poll::Ready(Ok(()))
    }
}

async fn report(fault: Fault) -> Report {
    let tool =
        ToolProbe::new(ToolDefinition::new("clock", "The time."), "Time?", JsonObject::new());
    let options = Options::new().tool(tool).deadline(Duration::from_secs(5));
    conformance::run(&Parrot(fault), options).await
}

#[tokio::test(start_paused = true)]
async fn c18_a_provider_that_keeps_the_contract_passes() {
    let report = report(Fault::None).await;
    report.assert_passed();
    let skipped = report.cases.iter().filter(|case| matches!(case.outcome, Outcome::Skipped(_)));
    assert_eq!(skipped.map(|case| case.name).collect::<Vec<_>>(), ["audio_turn"]);
}

#[tokio::test(start_paused = true)]
async fn c18_each_broken_promise_fails_the_case_that_states_it() {
    for (fault, case) in [
        (Fault::NoName, "name"),
        (Fault::LateReady, "ready_first"),
        (Fault::TwoReplies, "text_turn"),
        (Fault::OtherReplyDone, "text_turn"),
        (Fault::AudioAfterDone, "text_turn"),
        (Fault::TakesEverything, "excluded_commands"),
        (Fault::TakesAnyFormat, "wrong_format"),
        (Fault::NeverDone, "text_turn"),
        (Fault::ForgetsTheRequest, "say"),
        (Fault::DeafToTools, "tool_round"),
        (Fault::EndsTwice, "close_twice"),
        (Fault::PanicsOnBlankText, "blank_text"),
    ] {
        let report = report(fault).await;
        assert!(report.failed().contains(&case), "{fault:?} must fail {case}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn c18_the_report_names_what_failed() {
    let report = report(Fault::TakesAnyFormat).await;
    assert_eq!(report.failed(), ["wrong_format"]);
    assert!(report.to_string().contains("FAILED   wrong_format: append_audio was not refused"));
    assert!(report.passed().contains(&"text_turn"));
}
