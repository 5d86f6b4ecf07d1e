//! One call: its socket, its dialect and its session, on one task.

mod ending;
mod line;
mod screening;
mod start;

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_audio::AudioFrame;
use antiphon_live::{Frame, SocketError};
use tokio::{
    sync::mpsc,
    time::{sleep_until, timeout, timeout_at},
};

use self::{
    ending::Ending,
    line::{Line, Outcome, requested},
    screening::Screening,
    start::{Begun, caller},
};
use super::{
    Answer, AnsweredBy, CallControl, CallEnd, CallRecord, IncomingCall,
    control::Command,
    keys::{KeyPad, KeySettings},
    link::{Link, WRITE},
    news::{Back, News},
    office::{Admission, Office, Waiting},
    record::Recorded,
    voice::{Voice, voice},
};
use crate::{
    session::{
        AgentSession, EndReason, EventKind, EventStream, SayOptions, SessionEvent, SessionState,
    },
    telephony::{
        config::Verify,
        dialect::{CallStart, Capabilities, CarrierEvent, ControlBy, Dialect, DialectError, Heard},
        media::{Greeted, Intake, Playout, Send},
    },
};

/// The caller's audio that is kept until the session runs.
const HELD: Duration = Duration::from_secs(1);
/// The session has so long to end.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// After its hang-up the carrier has so long to close the socket.
const GOODBYE: Duration = Duration::from_secs(2);
/// Whoever says nothing for so long after the socket stands may have a silent caller.
const SILENT_START: Duration = Duration::from_millis(300);
/// Of what comes before a call is answered so many messages are kept.
const EARLY: usize = 256;
/// Whether a carrier that took nothing takes something again is looked after so often.
const STALLED: Duration = Duration::from_millis(20);
/// No call is longer.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
/// Beyond its longest time, in which the agent takes leave, a call is given so much.
const OVERTIME: Duration = Duration::from_secs(20);

/// A call before it has begun.
pub(super) struct Call {
    pub(super) office: Arc<Office>,
    pub(super) link: Link,
    pub(super) dialect: Box<dyn Dialect>,
    /// What the stream must show, and what it has shown by now.
    pub(super) verify: Verify,
    pub(super) token: Option<String>,
    /// The call that it has shown to be the stream of, until that was hung up.
    pub(super) line: Option<String>,
    /// What the address of the upgrade said beside the token.
    pub(super) parameters: Vec<(String, String)>,
    /// Its place among the streams that have not started.
    pub(super) waiting: Option<Waiting>,
    /// The call that the carrier was asked to end, and may not have.
    pub(super) stands: Option<String>,
}

impl Call {
    /// Holds the call, from its first frame to its record.
    pub(super) async fn run(mut self) {
        let began = tokio::time::Instant::now();
        let mut record = Recorded::new(&self.office, self.dialect.carrier());
        // Whoever has shown something with the upgrade has a call; others have one by its start.
        record.authorised = !self.verify.token() || self.token.is_some();
        let end = match self.start(&mut record).await {
            Ok(Begun::Call(start, early, admission)) => {
                self.hold(*start, early, admission, &mut record).await
            }
            Ok(Begun::Back { start, early, named }) => {
                let Self { office, link, dialect, .. } = self;
                let record = record.taken();
                let back = Back { link, dialect, start: *start, early };
                return office.passed_on(back, named, record, began.elapsed()).await;
            }
            Err(end) => end,
        };
        if end.leaves_line() {
            self.hang_up().await;
        }
        let (code, words) = (end.close_code(), end.words());
        record.ended(end, began.elapsed());
        self.office.record(record.taken());
        self.link.close(code, words).await;
        if let Some(call_id) = self.stands {
            self.office.insist(self.dialect.carrier(), &call_id).await;
        }
    }

    /// From the answer to the end.
    async fn hold(
        &mut self,
        start: CallStart,
        mut early: Vec<CarrierEvent>,
        mut admission: Admission,
        record: &mut CallRecord,
    ) -> CallEnd {
        let able = self.dialect.capabilities().clone();
        let offers = self.office.offers(self.dialect.carrier(), &able);
        let (control, commands) = CallControl::new(offers);
        let line = Line::new(admission.news(), now());
        let (sink, voice) = voice(Playout::new(start.output, &able));
        let call = IncomingCall {
            carrier: self.dialect.carrier(),
            start,
            tenant: admission.claims.tenant.clone(),
            agent: admission.claims.agent.clone(),
            control,
        };
        let office = self.office.clone();
        let answer_until = tokio::time::Instant::now() + office.limits().answer.min(YEAR);
        let answered = tokio::select! {
            biased;
            end = self.listen(&mut early, &mut record.intake.early) => return end,
            () = office.drained() => return CallEnd::Drained,
            answered = timeout_at(answer_until, office.agent().answer(&call)) => answered,
        };
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return CallEnd::NoAnswer { detail: error.to_string() },
            Err(_) => return CallEnd::NoAnswer { detail: "the agent took too long".into() },
        };
        let Answer { builder, config, idle, mut limits, .. } = answer;
        let keys = KeyPad::new(KeySettings {
            keys: answer.keys,
            interrupt: answer.keys_interrupt,
            secret: answer.keys_secret,
            between: answer.keys_between,
        });
        let mut options = SayOptions::new();
        options.protected = answer.protect_greeting;
        let greeting = answer.greeting.map(|text| (text, options));
        let bounds = self.office.limits();
        limits.max_length =
            Some(limits.max_length.map_or(bounds.max_length, |own| own.min(bounds.max_length)));
        limits.max_silence =
            Some(limits.max_silence.map_or(bounds.max_silence, |own| own.min(bounds.max_silence)));
        let builder = builder.sink(sink).limits(limits).caller(caller(&call));
        let session = match builder.build() {
            Ok(session) => session,
            Err(error) => return CallEnd::NoAnswer { detail: error.to_string() },
        };
        let now = now();
        let mut conversation = Conversation {
            office: self.office.clone(),
            intake: Intake::new(call.start.input, &able),
            events: session.events(),
            session: session.clone(),
            call,
            able,
            voice,
            commands,
            held: VecDeque::new(),
            running: false,
            keys,
            ending: None,
            greeting,
            screening: None,
            greeted: None,
            told_early: None,
            line,
            answer_until,
            media_at: now,
            began: now,
            sends: Vec::new(),
            out: Vec::new(),
            stalled_since: None,
            record,
        };
        conversation.begin_screening(now);
        let starting = session.start(config, idle);
        let end = conversation.run(&mut self.link, &mut self.dialect, early, starting).await;
        let hang_up = async {
            if end.leaves_line() {
                self.hang_up().await;
            }
        };
        // Neither waits for the other: a provider costs while it is connected.
        tokio::join!(hang_up, conversation.finish());
        drop(admission);
        end
    }

    /// Ends the call as the carrier has it, once.
    async fn hang_up(&mut self) {
        let Some(call_id) = self.line.take() else { return };
        let carrier = self.dialect.carrier();
        let gone = matches!(self.link, Link::Gone);
        let by = match self.dialect.capabilities().hang_up {
            // Without a stream there is nothing to close.
            ControlBy::Closing if gone && self.office.asks(carrier) => ControlBy::Rest,
            by => by,
        };
        match by {
            // Nobody is there to be told.
            ControlBy::Message if gone => {}
            ControlBy::Message => {
                let mut frames = Vec::new();
                if self.dialect.hang_up(&mut frames).is_ok()
                    && self.link.send(&mut frames).await.is_ok()
                {
                    let closed = async {
                        while let Some(Ok(frame)) = self.link.recv().await
                            && !matches!(frame, Frame::Close(_))
                        {}
                    };
                    let _ = timeout(GOODBYE, closed).await;
                }
            }
            ControlBy::Rest => {
                if !self.office.hang_up(carrier, &call_id).await {
                    self.stands = Some(call_id);
                }
            }
            // To close the socket is to hang up, as far as we can.
            ControlBy::Closing | ControlBy::Nothing => {}
        }
    }
}

/// A call that has begun.
struct Conversation<'a> {
    office: Arc<Office>,
    call: IncomingCall,
    able: Capabilities,
    session: AgentSession,
    events: EventStream,
    intake: Intake,
    voice: Voice,
    commands: mpsc::Receiver<Command>,
    /// The caller's audio before the session runs.
    held: VecDeque<AudioFrame>,
    running: bool,
    keys: KeyPad,
    ending: Option<Ending>,
    /// What the agent says first, until it has.
    greeting: Option<(String, SayOptions)>,
    /// It is not known yet who has answered.
    screening: Option<Screening>,
    greeted: Option<Greeted>,
    /// The carrier has told who answered before the stream began.
    told_early: Option<(AnsweredBy, bool)>,
    line: Line,
    /// The provider must have answered by then.
    answer_until: tokio::time::Instant,
    media_at: Instant,
    began: Instant,
    /// Kept for its memory.
    sends: Vec<Send>,
    /// What the carrier has not taken yet, and since when it takes nothing.
    out: Vec<Frame>,
    stalled_since: Option<Instant>,
    record: &'a mut CallRecord,
}

/// What woke the call.
enum Woken {
    Frame(Option<Result<Frame, SocketError>>),
    Voice,
    Event(Option<SessionEvent>),
    Command(Command),
    Time,
    Drain,
    Requested(Outcome),
    News(News),
    Started(Result<(), crate::session::StartError>),
}

impl Conversation<'_> {
    async fn run(
        &mut self,
        link: &mut Link,
        dialect: &mut Box<dyn Dialect>,
        early: Vec<CarrierEvent>,
        starting: impl Future<Output = Result<(), crate::session::StartError>>,
    ) -> CallEnd {
        for event in early {
            if let Err(end) = self.carrier(event, now()) {
                return end;
            }
        }
        let mut starting = pin!(starting);
        let mut is_starting = true;
        let answer_until = self.answer_until;
        let office = self.office.clone();
        let drained = office.drained();
        let mut drained = pin!(drained);
        let mut heard = Heard::default();
        loop {
            let due = match self.step(link, &mut **dialect).await {
                Ok(due) => due,
                Err(end) => match self.stream_ended(end, link, now()) {
                    Some(end) => return end,
                    None => continue,
                },
            };
            let due = tokio::time::Instant::from_std(due);
            let woken = tokio::select! {
                biased;
                () = self.voice.changed() => Woken::Voice,
                result = &mut starting, if is_starting => Woken::Started(result),
                () = sleep_until(answer_until), if is_starting => {
                    return CallEnd::NoAnswer { detail: "the provider took too long".into() };
                }
                event = self.events.next(), if self.running => Woken::Event(event),
                Some(command) = self.commands.recv() => Woken::Command(command),
                outcome = requested(&mut self.line.requests) => Woken::Requested(outcome),
                Some(news) = self.line.news.recv() => Woken::News(news),
                frame = link.recv() => Woken::Frame(frame),
                () = sleep_until(due) => Woken::Time,
                () = &mut drained => Woken::Drain,
            };
            let now = now();
            match woken {
                Woken::Voice | Woken::Time => {}
                Woken::Started(Ok(())) => {
                    is_starting = false;
                    self.running = true;
                    self.record.session_id = Some(self.session.session_id().to_string());
                    for frame in std::mem::take(&mut self.held) {
                        let _ = self.session.send_audio(frame);
                    }
                    self.greet();
                }
                Woken::Started(Err(error)) => {
                    return CallEnd::NoAnswer { detail: error.to_string() };
                }
                Woken::Frame(frame) => {
                    let parsed = frame_of(frame, &**dialect)
                        .and_then(|frame| Ok(dialect.parse(&frame, &mut heard)?));
                    self.out.append(&mut heard.frames);
                    let told =
                        heard.events.drain(..).try_for_each(|event| self.carrier(event, now));
                    if let Err(end) = told.and(parsed)
                        && let Some(end) = self.stream_ended(end, link, now)
                    {
                        return end;
                    }
                }
                Woken::Requested(outcome) => {
                    if let Some(end) = self.answered(outcome, now) {
                        return end;
                    }
                }
                Woken::News(news) => {
                    if let Some(end) = self.told(news, link, dialect, now) {
                        return end;
                    }
                }
                Woken::Event(Some(event)) => {
                    if let Some(end) = self.event(&event) {
                        return end;
                    }
                }
                Woken::Event(None) => {
                    return CallEnd::SessionEnded { reason: EndReason::Cancelled };
                }
                Woken::Command(command) => {
                    if let Some(end) = self.command(command, &mut **dialect, now) {
                        return end;
                    }
                }
                Woken::Drain if self.line.is_handed_on() => return CallEnd::Transferred,
                Woken::Drain => return CallEnd::Drained,
            }
        }
    }

    /// Everything that is due now; returns when more is.
    async fn step(
        &mut self,
        link: &mut Link,
        dialect: &mut dyn Dialect,
    ) -> Result<Instant, CallEnd> {
        let now = now();
        let voice_due = self.voice.due(now, &mut self.sends);
        if self.stalled_since.is_some() && self.sends.contains(&Send::Clear) {
            // What has not left yet is not to be heard either.
            self.out.clear();
        }
        for send in self.sends.drain(..) {
            match send {
                Send::Audio(audio) => dialect.audio(&audio, &mut self.out)?,
                Send::Mark(name) => dialect.mark(&name, &mut self.out)?,
                Send::Clear => dialect.clear(&mut self.out)?,
            }
        }
        let alive = self.keep_alive(dialect, now)?;
        // A carrier that takes nothing is heard all the same.
        let idle = self.out.is_empty() && self.stalled_since.is_none();
        let stalled = match idle || link.offer(&mut self.out).await.map_err(lost)? {
            true => {
                self.stalled_since = None;
                None
            }
            false => {
                let since = *self.stalled_since.get_or_insert(now);
                if now >= since + WRITE {
                    return Err(lost(SocketError::Timeout {
                        what: "room on the wire",
                        after: WRITE,
                    }));
                }
                Some(now + STALLED)
            }
        };
        self.intake.handle_timeout(now);
        self.forward(now);
        let asking = !self.voice.is_idle() || self.session.state() == SessionState::Speaking;
        // Before the session runs, nobody can be told.
        if self.running
            && let Some(told) = self.keys.settle(asking, now)
        {
            let _ = self.session.send_text(told);
        }
        let line = self.step_line(link, dialect, now).await?;
        let office = self.office.clone();
        let limits = office.limits();
        let sends = self.able.sends_silence && self.line.is_here();
        if sends && now.duration_since(self.media_at) >= limits.no_media {
            return Err(CallEnd::NoMedia);
        }
        let longest = self.began + limits.max_length.min(YEAR) + OVERTIME;
        if now >= longest {
            return Err(CallEnd::TooLong);
        }
        let ending = self.is_over(now)?;
        let no_media = sends.then(|| self.media_at + limits.no_media);
        let keys = self.keys.next_deadline().filter(|_| self.running);
        let intake = self.intake.next_deadline();
        let all = [voice_due, intake, no_media, keys, ending, line, alive, stalled];
        Ok(all.into_iter().flatten().min().map_or(longest, |due| due.min(longest)))
    }

    /// Gives the session what the caller said.
    fn forward(&mut self, now: Instant) {
        while let Some(mut segment) = self.intake.pop() {
            // Tones and figures of a secret are for nobody.
            let silent = !self.line.is_heard() || self.keys.is_secret(now);
            if self.screen(&segment.audio) || silent {
                segment.audio = segment.audio.silenced();
            }
            if self.running {
                // A session that has just ended is told of below.
                let _ = self.session.send_audio(segment.audio);
                continue;
            }
            self.held.push_back(segment.audio);
            let mut held: Duration = self.held.iter().map(AudioFrame::duration).sum();
            while held > HELD
                && let Some(oldest) = self.held.pop_front()
            {
                held -= oldest.duration();
                self.record.intake.early += 1;
            }
        }
    }

    fn carrier(&mut self, event: CarrierEvent, now: Instant) -> Result<(), CallEnd> {
        match event {
            CarrierEvent::Media(media) => {
                self.media_at = now;
                self.intake.push(media, now);
                self.forward(now);
            }
            CarrierEvent::Mark { name } => self.voice.marked(&name, now),
            CarrierEvent::Digit { digit, .. } => {
                self.record.keys += 1;
                if self.keys.press(digit, now) {
                    // What is protected is heard to its end, whatever is pressed.
                    let _ = self.session.cut_in();
                }
            }
            CarrierEvent::Flow { open } => self.voice.set_open(open),
            CarrierEvent::Stopped { .. } => return Err(CallEnd::CallerHungUp),
            CarrierEvent::Error { code, message } => {
                self.record.carrier_errors += 1;
                let code = code.as_deref().unwrap_or_default();
                tracing::warn!(carrier = %self.call.carrier, code, message, "told by the carrier");
            }
            CarrierEvent::Format { input } => {
                self.record.intake += self.intake.stats();
                self.intake = Intake::new(input, &self.able);
                self.call.start.input = input;
            }
            CarrierEvent::Started(_) => {
                return Err(DialectError::OutOfOrder("a second start").into());
            }
            CarrierEvent::Ignored { .. } => self.record.ignored += 1,
            CarrierEvent::MarkCleared { .. }
            | CarrierEvent::Cleared
            | CarrierEvent::Connected { .. } => {}
        }
        Ok(())
    }

    fn event(&mut self, event: &SessionEvent) -> Option<CallEnd> {
        self.record.event(event);
        match &event.kind {
            EventKind::SessionEnded { .. } if self.line.is_handed_on() => {
                Some(CallEnd::Transferred)
            }
            EventKind::SessionEnded { reason, .. } => {
                Some(CallEnd::SessionEnded { reason: reason.clone() })
            }
            EventKind::TurnFinished { .. } if self.ending.is_some() => Some(CallEnd::AgentHungUp),
            EventKind::Interrupted => {
                // The caller has something to say after all.
                self.ending = None;
                self.interrupted();
                None
            }
            _ => None,
        }
    }

    fn command(
        &mut self,
        command: Command,
        dialect: &mut dyn Dialect,
        now: Instant,
    ) -> Option<CallEnd> {
        match command {
            Command::HangUp { when_heard: false } => return Some(CallEnd::AgentHungUp),
            Command::HangUp { when_heard: true } => {
                self.ending.get_or_insert_with(|| Ending::new(None, now));
            }
            Command::Transfer { to, done } => self.hand_on(to, done, now),
            Command::SendDigits { digits, done } => self.press_keys(&digits, done, dialect),
            Command::Collect { rules, done } => self.keys.collect(rules, done, now),
            Command::Hold { time } => self.hold(time, now),
            Command::Mute { on } => self.mute(on),
        }
        None
    }

    /// Ends the session and fills in the record.
    async fn finish(mut self) {
        if self.running {
            if let Err(error) = self.session.shutdown(SHUTDOWN).await {
                tracing::warn!(%error, "the session did not end in order");
            }
            let rest = async {
                while let Some(event) = self.events.next().await {
                    self.record.event(&event);
                }
            };
            let _ = timeout(GOODBYE, rest).await;
        } else {
            self.session.stop();
        }
        if self.record.session.is_none() && self.running {
            self.record.session = Some(self.session.stats());
        }
        self.record.intake += self.intake.stats();
        self.record.playout = self.voice.stats();
    }
}

fn frame_of(
    frame: Option<Result<Frame, SocketError>>,
    dialect: &dyn Dialect,
) -> Result<Frame, CallEnd> {
    match frame {
        // Where a call does not end with its stream, its end is told.
        Some(Ok(Frame::Close(_))) | None if dialect.capabilities().hang_up == ControlBy::Rest => {
            Err(CallEnd::Lost { detail: "the carrier closed the stream".into() })
        }
        Some(Ok(frame)) => Ok(frame),
        Some(Err(SocketError::TooLarge { size, limit })) => {
            Err(DialectError::TooLarge { size, limit }.into())
        }
        Some(Err(error)) => Err(lost(error)),
        None => Err(CallEnd::CallerHungUp),
    }
}

fn lost(error: SocketError) -> CallEnd {
    CallEnd::Lost { detail: error.to_string() }
}

/// The time of this wake-up; virtual where the runtime's is.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
