//! The conversation itself.

use std::{
    fmt,
    io::{self, BufRead, Stdout, Write},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use antiphon::{
    agent::{
        Memory,
        memory::{FileMemory, InMemory},
    },
    audio::AudioError,
    session::{AgentSession, EndReason, EventKind, EventStream, SendError, SessionEvent},
    tools::{Ring, chime},
    types::AudioFrame,
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    device::{self, Microphone},
    floor::Floor,
    plan::{Output, Plan},
    print::{self, Printer, TimerEvent},
    provider,
    script::{Action, FRAME, Item, Script},
    tape::Tape,
};
use crate::{failure::Failure, signals::interrupted, toolbox::Toolbox};

/// How long the session may take to end once it was asked to.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// The id of a session whose memory outlives it, so that it finds its keys again.
const PERSISTENT_ID: &str = "talk";

/// Talks until the plan is done.
pub async fn talk(plan: Plan) -> Result<(), Failure> {
    let store = match &plan.kept {
        Some(kept) => Some(kept.open().await?),
        None => None,
    };
    let memory: Arc<dyn Memory> = match (&plan.memory, &store) {
        (Some(path), _) => Arc::new(FileMemory::open(path).await.map_err(Failure::usage)?),
        (None, Some(store)) => store.memory().await?,
        (None, None) => Arc::new(InMemory::new()),
    };
    let (provider, config) = provider::open(&plan).await?;
    let builder = provider::fall_back(&plan, AgentSession::builder(provider)).await?;
    let (toolbox, policy) = Toolbox::new(plan.equipment, memory.clone())?;
    let tape = match &plan.output {
        Output::File(path) => Some(Tape::create(path)?),
        Output::Speaker | Output::None => None,
    };

    let mut builder = builder.registry(toolbox.registry.clone()).authorize(policy).memory(memory);
    if let Some(caller) = plan.caller {
        builder = builder.caller(caller);
    }
    if let (Some(kept), Some(store)) = (&plan.kept, &store) {
        builder = kept.link(store, builder).await?;
    } else if plan.memory.is_some() {
        builder = builder.session_id(PERSISTENT_ID);
    }
    if let Some(guards) = plan.guards {
        builder = guards.apply(builder);
    }
    if let Some(tape) = &tape {
        builder = builder.sink(tape.clone());
    } else if plan.output == Output::Speaker {
        builder = device::speaker(builder)?;
    }
    let session = builder.build().map_err(Failure::failed)?;
    if let Some(recording) = plan.recording {
        session.record(recording);
    }
    let listens = plan.items.iter().any(|item| matches!(item, Item::Microphone));
    let microphone = Microphone::open(listens)?;
    let keys = (listens && plan.by_hand).then(enter_key);

    let mut conversation = Conversation {
        events: session.events(),
        floor: Floor::new(Instant::now()),
        script: Script::new(plan.items, plan.barge_ins, plan.by_hand, plan.ending),
        printer: Printer::new(plan.events, io::stdout()),
        toolbox,
        microphone,
        keys,
        talking: false,
        by_hand: plan.by_hand,
        last: LastSeen { started: Instant::now(), epoch: 0, turn: 0 },
        session: session.clone(),
        unprinted: None,
        deaf: None,
    };
    session.start(config, plan.idle).await.map_err(Failure::failed)?;
    let reason = conversation.run().await;
    // Work that was left behind is not waited for by who leaves a second time.
    let _ = tokio::time::timeout(2 * SHUTDOWN, session.shutdown(SHUTDOWN)).await;
    let deaf = conversation.deaf.take();
    let unprinted = conversation.unprinted.take();
    drop(conversation);
    if let Some(file) = session.recording_file() {
        say(format_args!("recorded in {}", file.display()));
        let missing = session.stats().unrecorded_inputs;
        if missing > 0 {
            say(format_args!("the disk was too slow: the recording lacks {missing} steps"));
        }
    }
    if let Some(tape) = tape {
        tape.close()?;
    }
    if let Some(error) = deaf {
        return Err(Failure::failed(error));
    }
    // Who closes the pipe has read enough; a full disk is another matter.
    if let Some(error) = unprinted.filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        return Err(Failure::failed(format!("standard output: {error}")));
    }
    match reason {
        Some(EndReason::Stopped | EndReason::Idle | EndReason::Limit { .. }) => Ok(()),
        // Said by the last event already.
        Some(reason) => Err(Failure::failed(print::in_words(&reason))),
        None => Err(Failure::failed("the session ended without a reason")),
    }
}

struct Conversation {
    session: AgentSession,
    events: EventStream,
    floor: Floor,
    script: Script,
    printer: Printer<Stdout>,
    toolbox: Toolbox,
    microphone: Microphone,
    keys: Option<mpsc::Receiver<()>>,
    /// Push to talk: the user's turn is open.
    talking: bool,
    by_hand: bool,
    last: LastSeen,
    /// Why events can no longer be printed.
    unprinted: Option<io::Error>,
    /// Why the microphone is gone: then the end that follows is no ordinary one.
    deaf: Option<AudioError>,
}

/// What the last event said, for events of our own.
struct LastSeen {
    started: Instant,
    epoch: u32,
    turn: u64,
}

impl Conversation {
    /// Until the session's last event. The reason of the end.
    async fn run(&mut self) -> Option<EndReason> {
        let mut frames = interval(FRAME);
        // A real microphone catches up, too.
        frames.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut begun = false;
        let mut signals = pin!(interrupted());
        let mut interrupts = 0;
        loop {
            // Events first: what the script does depends on them.
            tokio::select! {
                biased;
                event = self.events.next() => {
                    let event = event?;
                    begun |= matches!(event.kind, EventKind::SessionStarted { .. });
                    self.event(&event);
                    if let EventKind::SessionEnded { reason, .. } = event.kind {
                        return Some(reason);
                    }
                }
                ring = self.toolbox.rings.next() => self.ring(ring),
                pressed = next_key(&mut self.keys) => self.key(pressed),
                frame = self.microphone.next() => self.microphone_frame(frame),
                () = &mut signals => {
                    signals.set(interrupted());
                    interrupts += 1;
                    if interrupts > 1 {
                        return Some(EndReason::Cancelled);
                    }
                    self.session.stop();
                }
                _ = frames.tick(), if begun => self.tick(),
            }
            if self.unprinted.is_some() {
                self.session.stop();
            }
        }
    }

    fn event(&mut self, event: &SessionEvent) {
        let now = Instant::now();
        if matches!(event.kind, EventKind::SessionStarted { .. }) {
            self.last.started = now - Duration::from_millis(event.t_ms);
        }
        self.last.epoch = event.epoch;
        self.last.turn = event.turn;
        let printed = self.printer.event(event);
        self.printed(printed);
        self.floor.event(&event.kind, now);
        self.script.event(&event.kind, now);
    }

    /// The first failure counts: it ends the conversation.
    fn printed(&mut self, printed: io::Result<()>) {
        if let Err(error) = printed {
            self.unprinted.get_or_insert(error);
        }
    }

    fn tick(&mut self) {
        let now = Instant::now();
        let next_timer = self.toolbox.timers.next_due();
        for action in self.script.tick(&mut self.floor, next_timer, now) {
            let sent = match action {
                Action::Audio(frame) => self.session.send_audio(frame),
                Action::Text(text) => self.session.send_text(text),
                Action::ActivityStart => self.session.activity_start(),
                Action::ActivityEnd => self.session.activity_end(),
                Action::Note(note) => {
                    say(format_args!("{note}"));
                    Ok(())
                }
                Action::Finish => {
                    if self.script.unused_barge_ins() > 0 {
                        say(format_args!("no answer was left to barge in on"));
                    }
                    self.session.stop();
                    Ok(())
                }
            };
            complain(sent);
        }
    }

    fn ring(&mut self, ring: Ring) {
        let now = Instant::now();
        let event = TimerEvent {
            t_ms: now.saturating_duration_since(self.last.started).as_millis() as u64,
            epoch: self.last.epoch,
            turn: self.last.turn,
            name: ring.name.clone(),
        };
        let printed = self.printer.timer(&event);
        self.printed(printed);
        self.floor.announce(now);
        complain(self.session.play(chime()));
        complain(self.session.say(ring.announcement()));
    }

    fn microphone_frame(&mut self, frame: Option<Result<AudioFrame, AudioError>>) {
        match frame {
            Some(Ok(frame)) if self.script.listens() && (!self.by_hand || self.talking) => {
                complain(self.session.send_audio(frame));
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                self.deaf = Some(error);
                self.session.stop();
            }
            None => self.microphone = Microphone::none(),
        }
    }

    /// Enter begins the user's turn, and ends it.
    fn key(&mut self, pressed: Option<()>) {
        if pressed.is_none() {
            // Standard input is closed: nobody will press a key any more.
            self.keys = None;
            self.session.stop();
            return;
        }
        if !self.script.listens() {
            return;
        }
        self.talking = !self.talking;
        complain(if self.talking {
            say(format_args!("listening; Enter when you have finished"));
            self.session.activity_start()
        } else {
            self.session.activity_end()
        });
    }
}

/// What could not be sent. A session that ends says so by its last event.
fn complain(sent: Result<(), SendError>) {
    match sent {
        Ok(()) | Err(SendError::NotActive) => {}
        Err(error) => tracing::warn!(%error, "not sent"),
    }
}

/// A line for the user. The terminal may be gone, and work goes on without it.
fn say(words: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "antiphon: {words}");
}

/// Presses of the Enter key. Reading standard input cannot be cancelled, so it has a plain thread
/// that ends with the process. (Never in virtual time.)
fn enter_key() -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel(4);
    say(format_args!("press Enter and speak"));
    std::thread::spawn(move || {
        let mut line = String::new();
        while io::stdin().lock().read_line(&mut line).is_ok_and(|read| read > 0) {
            line.clear();
            if sender.blocking_send(()).is_err() {
                return;
            }
        }
    });
    receiver
}

async fn next_key(keys: &mut Option<mpsc::Receiver<()>>) -> Option<()> {
    match keys {
        Some(keys) => keys.recv().await,
        None => std::future::pending().await,
    }
}
