//! The cases.

use std::sync::Arc;

use antiphon_types::{AudioFormat, AudioFrame, ToolResponse};
use bytes::Bytes;
use futures_util::{FutureExt, future::try_join};

use super::{
    Outcome, Suite, Verdict,
    probe::{Probe, Seen},
};
use crate::{
    ConnectRequest, LiveCommand, LiveConfig, LiveError, ReplyId, ReplyOutcome, VoiceActivity,
};

/// Request ids that no provider makes up by itself.
const SAY: u64 = 7_001;
const CREATE: u64 = 7_002;

impl Suite<'_> {
    /// A provider has a name and a model, and knows what it can do.
    pub(super) async fn name(&self) -> Verdict {
        if self.provider.name().trim().is_empty() {
            return Err("the provider has no name".into());
        }
        let config = &self.options.config;
        if self.provider.model(config).trim().is_empty() {
            return Err("the provider has no model".into());
        }
        let capabilities = self.provider.capabilities(config);
        capabilities.map_err(|error| format!("the configuration is refused: {error}"))?;
        passed()
    }

    /// The first event is `Ready`, with the connection's capabilities.
    pub(super) async fn ready_first(&self) -> Verdict {
        self.open().await?.close().await?;
        passed()
    }

    /// A text is answered by one reply that says something.
    pub(super) async fn text_turn(&self) -> Verdict {
        let mut probe = self.open().await?;
        if !probe.capabilities().text_input {
            return skipped("the provider takes no text");
        }
        self.ask(&mut probe).await?;
        probe.settle().await?;
        passed()
    }

    /// A text that wants no answer gets none, and what follows is answered once.
    pub(super) async fn text_without_reply(&self) -> Verdict {
        let mut probe = self.open().await?;
        if !probe.capabilities().text_input {
            return skipped("the provider takes no text");
        }
        probe.send(text(&self.options.text, false)).await?;
        self.ask(&mut probe).await?;
        passed()
    }

    /// A spoken question is heard and answered.
    pub(super) async fn audio_turn(&self) -> Verdict {
        let mut probe = self.open().await?;
        let Some(speech) = &self.options.speech else {
            return skipped("no speech was given");
        };
        let manual = self.options.config.voice_activity == VoiceActivity::Manual;
        if manual {
            probe.send(LiveCommand::ActivityStart).await?;
        }
        probe.speak(speech).await?;
        let seen = probe.reply().await?;
        answered(&seen)?;
        if probe.capabilities().input_transcripts && seen.heard.is_none_or(|text| text.is_empty()) {
            return Err("there was no final transcript of the user's words".into());
        }
        probe.close().await?;
        passed()
    }

    /// A call comes with its reply, takes its output, and is spoken of.
    pub(super) async fn tool_round(&self) -> Verdict {
        let Some(tool) = &self.options.tool else { return skipped("no tool was given") };
        let mut config = LiveConfig::clone(&self.options.config);
        config.tools.push(tool.definition.clone());
        let mut probe = self.open_with(config).await?;
        let capabilities = probe.capabilities().clone();
        if !(capabilities.tools && capabilities.text_input) {
            return skipped("the provider takes no tools, or no text");
        }
        probe.send(text(&tool.text, true)).await?;
        let seen = probe.reply().await?;
        let [call] = seen.calls.as_slice() else {
            return Err(format!("there are {} calls instead of one", seen.calls.len()));
        };
        if call.id.is_empty() || call.name != tool.definition.name {
            return Err(format!("the call is {:?} of {:?}", call.id, call.name));
        }
        let output = ToolResponse::new(call.id.clone(), call.name.clone(), tool.output.clone());
        probe.send(LiveCommand::ToolResponse(output)).await?;
        if !capabilities.replies_after_tools {
            probe.send(LiveCommand::CreateReply { request: CREATE }).await?;
        }
        answered(&probe.reply().await?)?;
        probe.close().await?;
        passed()
    }

    /// A given text is spoken as the reply to its request.
    pub(super) async fn say(&self) -> Verdict {
        let mut probe = self.open().await?;
        if !probe.capabilities().say {
            return skipped("the provider speaks no given text");
        }
        probe.send(LiveCommand::Say { request: SAY, text: "One moment.".into() }).await?;
        let seen = probe.reply().await?;
        answered(&seen)?;
        requested(&seen, SAY)?;
        self.ask_if_possible(&mut probe).await?;
        passed()
    }

    /// A reply that was asked for names its request.
    pub(super) async fn create_reply(&self) -> Verdict {
        let mut probe = self.open().await?;
        let capabilities = probe.capabilities().clone();
        if !(capabilities.create_reply && capabilities.text_input) {
            return skipped("the provider cannot be asked for a reply, or takes no text");
        }
        probe.send(text(&self.options.text, false)).await?;
        probe.send(LiveCommand::CreateReply { request: CREATE }).await?;
        let seen = probe.reply().await?;
        answered(&seen)?;
        requested(&seen, CREATE)?;
        probe.close().await?;
        passed()
    }

    /// A cancelled reply is done once, nothing of it comes later, and the next one is whole.
    pub(super) async fn cancel_reply(&self) -> Verdict {
        let mut probe = self.open().await?;
        let capabilities = probe.capabilities().clone();
        if !(capabilities.cancel_reply && capabilities.text_input) {
            return skipped("the provider cannot cancel, or takes no text");
        }
        probe.send(text(&self.options.text, true)).await?;
        let reply = started(&mut probe).await?;
        probe.send(LiveCommand::CancelReply { reply: Some(reply.clone()) }).await?;
        let seen = probe.reply().await?;
        if seen.reply != reply {
            return Err(format!("{} is done instead of the cancelled {reply}", seen.reply));
        }
        // It may have been done before the request came.
        if !matches!(seen.outcome, ReplyOutcome::Cancelled | ReplyOutcome::Completed) {
            return Err(format!("the cancelled reply ended as {:?}", seen.outcome));
        }
        // A late request for a reply that is done must not hit the next one.
        probe.send(LiveCommand::CancelReply { reply: Some(reply) }).await?;
        self.ask(&mut probe).await?;
        passed()
    }

    /// What the capabilities exclude is refused, and the connection goes on.
    pub(super) async fn excluded_commands(&self) -> Verdict {
        let mut probe = self.open().await?;
        let capabilities = probe.capabilities().clone();
        let excluded: Vec<LiveCommand> =
            every_command().into_iter().filter(|c| capabilities.check(c).is_err()).collect();
        if excluded.is_empty() {
            return skipped("the provider can do everything");
        }
        for command in excluded {
            let name = command.name();
            match probe.send_refused(command).await? {
                LiveError::Unsupported { .. } => {}
                error => return Err(format!("{name} is refused as {error:?}")),
            }
        }
        self.ask_if_possible(&mut probe).await?;
        passed()
    }

    /// Audio in another format is refused, and the connection goes on.
    pub(super) async fn wrong_format(&self) -> Verdict {
        let mut probe = self.open().await?;
        let wrong = match probe.capabilities().input {
            AudioFormat::Mulaw8k => AudioFormat::Alaw8k,
            _ => AudioFormat::Mulaw8k,
        };
        let frame = AudioFrame::new(wrong, vec![0; 160]);
        invalid(&mut probe, LiveCommand::AppendAudio(frame)).await?;
        self.ask_if_possible(&mut probe).await?;
        passed()
    }

    /// Blank text is refused, and the connection goes on.
    pub(super) async fn blank_text(&self) -> Verdict {
        let mut probe = self.open().await?;
        let capabilities = probe.capabilities().clone();
        if !(capabilities.text_input || capabilities.say) {
            return skipped("the provider takes no text");
        }
        if capabilities.text_input {
            invalid(&mut probe, text(" \n", true)).await?;
        }
        if capabilities.say {
            invalid(&mut probe, LiveCommand::Say { request: SAY, text: "\t".into() }).await?;
        }
        self.ask_if_possible(&mut probe).await?;
        passed()
    }

    /// A wait for an event that is given up loses nothing.
    pub(super) async fn cancelled_receive(&self) -> Verdict {
        let mut probe = self.open().await?;
        if !probe.capabilities().text_input {
            return skipped("the provider takes no text");
        }
        probe.send(text(&self.options.text, true)).await?;
        answered(&probe.reply_with_cancelled_waits().await?)?;
        probe.close().await?;
        passed()
    }

    /// Connecting that is given up leaves the provider usable.
    pub(super) async fn cancelled_connect(&self) -> Verdict {
        let connect = self.provider.connect(ConnectRequest::new(self.config()));
        drop(connect.now_or_never());
        self.open().await?.close().await?;
        passed()
    }

    /// Two connections at once do not know of each other.
    pub(super) async fn two_connections(&self) -> Verdict {
        let (mut one, mut two) = try_join(self.open(), self.open()).await?;
        if one.capabilities().text_input {
            one.send(text(&self.options.text, true)).await?;
            two.send(text(&self.options.text, true)).await?;
            let (first, second) = try_join(one.reply(), two.reply()).await?;
            answered(&first)?;
            answered(&second)?;
        }
        one.close().await?;
        self.ask_if_possible(&mut two).await?;
        two.close().await?;
        passed()
    }

    /// Closing twice is fine, and ends the stream once and for ever.
    pub(super) async fn close_twice(&self) -> Verdict {
        let mut probe = self.open().await?;
        if probe.capabilities().text_input {
            probe.send(text(&self.options.text, true)).await?;
            started(&mut probe).await?;
        }
        probe.close().await?;
        passed()
    }

    /// A connection dropped in the middle of a reply leaves the provider usable.
    pub(super) async fn drop_during_reply(&self) -> Verdict {
        let mut probe = self.open().await?;
        if probe.capabilities().text_input {
            probe.send(text(&self.options.text, true)).await?;
            started(&mut probe).await?;
        }
        drop(probe);
        let mut probe = self.open().await?;
        self.ask_if_possible(&mut probe).await?;
        probe.close().await?;
        passed()
    }

    async fn open(&self) -> Result<Probe, String> {
        Probe::open(self.provider, self.config(), self.options.deadline).await
    }

    async fn open_with(&self, config: LiveConfig) -> Result<Probe, String> {
        Probe::open(self.provider, Arc::new(config), self.options.deadline).await
    }

    /// Asks by text and is answered.
    async fn ask(&self, probe: &mut Probe) -> Result<(), String> {
        probe.send(text(&self.options.text, true)).await?;
        answered(&probe.reply().await?)
    }

    /// Shows that the connection is usable, where that can be shown by text.
    async fn ask_if_possible(&self, probe: &mut Probe) -> Result<(), String> {
        if probe.capabilities().text_input { self.ask(probe).await } else { Ok(()) }
    }
}

fn passed() -> Verdict {
    Ok(Outcome::Passed)
}

fn skipped(why: &str) -> Verdict {
    Ok(Outcome::Skipped(why.into()))
}

fn text(text: &str, reply: bool) -> LiveCommand {
    LiveCommand::Text { text: text.into(), reply }
}

/// Waits for a reply to begin.
async fn started(probe: &mut Probe) -> Result<ReplyId, String> {
    loop {
        if let crate::LiveEvent::ReplyStarted { reply, .. } = probe.next().await? {
            return Ok(reply);
        }
    }
}

fn answered(seen: &Seen) -> Result<(), String> {
    if seen.outcome != ReplyOutcome::Completed {
        return Err(format!("{} ended as {:?}", seen.reply, seen.outcome));
    }
    if !seen.said && seen.calls.is_empty() {
        return Err(format!("{} says nothing", seen.reply));
    }
    Ok(())
}

fn requested(seen: &Seen, request: u64) -> Result<(), String> {
    if seen.request == Some(request) {
        return Ok(());
    }
    Err(format!("{} answers request {:?} instead of {request}", seen.reply, seen.request))
}

async fn invalid(probe: &mut Probe, command: LiveCommand) -> Result<(), String> {
    let name = command.name();
    match probe.send_refused(command).await? {
        LiveError::InvalidCommand(_) => Ok(()),
        error => Err(format!("{name} is refused as {error:?}")),
    }
}

/// One command of each kind that capabilities can exclude.
fn every_command() -> Vec<LiveCommand> {
    let image = LiveCommand::Image { media_type: "image/png".into(), data: Bytes::new() };
    let truncate = LiveCommand::Truncate {
        item: "item".into(),
        content_index: 0,
        audio_end_ms: 0,
        heard_text: None,
    };
    vec![
        text("Hello.", true),
        image,
        truncate,
        LiveCommand::ClearAudio,
        LiveCommand::ActivityStart,
        LiveCommand::ActivityEnd,
        LiveCommand::CreateReply { request: CREATE },
        LiveCommand::Say { request: SAY, text: "Hello.".into() },
        LiveCommand::CancelReply { reply: None },
        LiveCommand::ToolResponse(ToolResponse::error("call", "tool", "none")),
        LiveCommand::UpdateInstructions("Be brief.".into()),
        LiveCommand::UpdateTools(Arc::new([])),
    ]
}
