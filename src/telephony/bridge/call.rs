//! One call: its socket, its dialect and its session, on one task.

mod line;
mod screening;

use std::{
    collections::VecDeque,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_agent::Caller;
use antiphon_audio::AudioFrame;
use antiphon_live::{Frame, SocketError};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep_until, timeout},
};

use self::{
    line::{Line, Outcome, requested},
    screening::Screening,
};
use super::{
    Answer, CallControl, CallEnd, CallRecord, IncomingCall,
    control::Command,
    link::Link,
    news::{Back, News},
    office::{Admission, Admitted, Office},
    voice::{Voice, voice},
};
use crate::{
    session::{
        AgentSession, EndReason, EventKind, EventStream, SayOptions, SessionEvent, SessionState,
    },
    telephony::{
        config::{Keys, Verify},
        dialect::{
            CallStart, Capabilities, Carrier, CarrierEvent, ControlBy, Dialect, DialectError, Heard,
        },
        media::{Collected, DigitCollector, DigitRules, Greeted, Intake, Playout, Send},
        token::Claims,
    },
};

/// The caller's audio that is kept until the session runs.
const HELD: Duration = Duration::from_secs(1);
/// The session has so long to end.
const SHUTDOWN: Duration = Duration::from_secs(5);
/// After its hang-up the carrier has so long to close the socket.
const GOODBYE: Duration = Duration::from_secs(2);
/// A carrier that is asked to end a call has so long.
const HANG_UP: Duration = Duration::from_secs(8);
/// A goodbye that was asked for is waited for so long at most.
const ENDING: Duration = Duration::from_secs(30);
/// When nobody has said anything for so long after the hang-up was asked for, nobody will.
const QUIET: Duration = Duration::from_millis(1_500);
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
}

/// What a stream begins.
enum Begun {
    /// A call.
    Call(Box<CallStart>, Vec<CarrierEvent>, Admission),
    /// It goes on with one that is held already. `named`: its token was made for this call.
    Back { start: Box<CallStart>, early: Vec<CarrierEvent>, named: bool },
}

impl Call {
    /// Holds the call, from its first frame to its record.
    pub(super) async fn run(mut self) {
        let began = tokio::time::Instant::now();
        let mut record = CallRecord::new(self.dialect.carrier());
        let end = match self.start(&mut record).await {
            Ok(Begun::Call(start, early, admission)) => {
                self.hold(*start, early, admission, &mut record).await
            }
            Ok(Begun::Back { start, early, named }) => {
                let Self { office, link, dialect, .. } = self;
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
        self.link.close(code, words).await;
        self.office.record(record);
    }

    /// Waits until the carrier has said what call it is, and whether it may be one.
    async fn start(&mut self, record: &mut CallRecord) -> Result<Begun, CallEnd> {
        let until = tokio::time::Instant::now() + self.office.limits().start;
        let mut heard = Heard::default();
        loop {
            let frame = tokio::select! {
                frame = self.link.recv() => frame,
                () = sleep_until(until) => return Err(CallEnd::NeverStarted),
            };
            self.dialect.parse(&frame_of(frame)?, &mut heard)?;
            self.link.send(&mut heard.frames).await.map_err(lost)?;
            let mut events = std::mem::take(&mut heard.events).into_iter();
            while let Some(event) = events.next() {
                match event {
                    CarrierEvent::Started(mut start) => {
                        self.name(&mut start);
                        record.started(&start);
                        let claims = self.check(&start)?;
                        self.line = Some(start.call_id.clone());
                        record.tenant.clone_from(&claims.tenant);
                        let named = claims.call.is_some();
                        let early = events.collect();
                        return match self.office.admit(self.dialect.carrier(), &start, claims)? {
                            Admitted::Call(admission) => Ok(Begun::Call(start, early, admission)),
                            Admitted::Held => Ok(Begun::Back { start, early, named }),
                        };
                    }
                    CarrierEvent::Connected { token: Some(token) } => {
                        self.token.get_or_insert(token);
                    }
                    CarrierEvent::Stopped { .. } => return Err(CallEnd::CallerHungUp),
                    CarrierEvent::Ignored { .. } => record.ignored += 1,
                    _ => {}
                }
            }
        }
    }

    /// Asterisk names each WebSocket anew: the dialplan may say by `v(call=...)` which call it is.
    fn name(&self, start: &mut CallStart) {
        if self.dialect.carrier() == Carrier::Asterisk
            && let Some(call) = start.parameters.get("call").filter(|call| !call.is_empty())
        {
            start.call_id.clone_from(call);
        }
    }

    fn check(&mut self, start: &CallStart) -> Result<Claims, CallEnd> {
        if !self.verify.token() {
            return Ok(Claims::default());
        }
        let token = self.token.take().or_else(|| start.parameters.get("token").cloned());
        let unauthorized = |detail: String| CallEnd::Unauthorized { detail };
        let token = token.ok_or_else(|| unauthorized("no token".into()))?;
        self.office
            .take_token(&token, &start.call_id)
            .map_err(|error| unauthorized(error.to_string()))
    }

    /// From the answer to the end.
    async fn hold(
        &mut self,
        start: CallStart,
        early: Vec<CarrierEvent>,
        mut admission: Admission,
        record: &mut CallRecord,
    ) -> CallEnd {
        let able = self.dialect.capabilities().clone();
        let offers = self.office.offers(self.dialect.carrier(), &able);
        let (control, commands) = CallControl::new(offers);
        let line = Line::new(admission.news());
        let (sink, voice) = voice(Playout::new(start.output, &able));
        let call = IncomingCall {
            carrier: self.dialect.carrier(),
            start,
            tenant: admission.claims.tenant.clone(),
            agent: admission.claims.agent.clone(),
            control,
        };
        let limits = self.office.limits();
        let answered = timeout(limits.answer, self.office.agent().answer(&call)).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return CallEnd::NoAnswer { detail: error.to_string() },
            Err(_) => return CallEnd::NoAnswer { detail: "the agent took too long".into() },
        };
        let Answer { builder, config, idle, mut limits, keys, keys_interrupt, .. } = answer;
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
            collector: None,
            told_keys: None,
            keys,
            keys_interrupt,
            ending: None,
            greeting,
            screening: None,
            greeted: None,
            line,
            media_at: now,
            began: now,
            sends: Vec::new(),
            out: Vec::new(),
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
        match self.dialect.capabilities().hang_up {
            // Nobody is there to be told.
            ControlBy::Message if matches!(self.link, Link::Gone) => {}
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
                let carrier = self.dialect.carrier();
                match timeout(HANG_UP, self.office.hang_up(carrier, &call_id)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%carrier, %error, "not hung up"),
                    Err(_) => tracing::warn!(%carrier, "not hung up in time"),
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
    /// A tool waits for a field of keys.
    collector: Option<(DigitCollector, oneshot::Sender<Collected>)>,
    /// Keys that the model will be told of.
    told_keys: Option<DigitCollector>,
    keys: Keys,
    keys_interrupt: bool,
    ending: Option<Ending>,
    /// What the agent says first, until it has.
    greeting: Option<(String, SayOptions)>,
    /// It is not known yet who has answered.
    screening: Option<Screening>,
    greeted: Option<Greeted>,
    line: Line,
    media_at: Instant,
    began: Instant,
    /// Kept for their memory.
    sends: Vec<Send>,
    out: Vec<Frame>,
    record: &'a mut CallRecord,
}

/// The call ends once the goodbye was heard.
struct Ending {
    until: Instant,
    quiet_since: Option<Instant>,
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
        let answer_until = tokio::time::Instant::now() + self.office.limits().answer;
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
                    let parsed =
                        frame_of(frame).and_then(|frame| Ok(dialect.parse(&frame, &mut heard)?));
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
        for send in self.sends.drain(..) {
            match send {
                Send::Audio(audio) => dialect.audio(&audio, &mut self.out)?,
                Send::Mark(name) => dialect.mark(&name, &mut self.out)?,
                Send::Clear => dialect.clear(&mut self.out)?,
            }
        }
        link.send(&mut self.out).await.map_err(lost)?;
        self.intake.handle_timeout(now);
        self.forward();
        self.settle_keys(now);
        let line = self.step_line(link, dialect, now).await?;
        let office = self.office.clone();
        let limits = office.limits();
        let sends = self.able.sends_silence && self.line.is_here();
        if sends && now.duration_since(self.media_at) >= limits.no_media {
            return Err(CallEnd::NoMedia);
        }
        let longest = self.began + limits.max_length + OVERTIME;
        if now >= longest {
            return Err(CallEnd::TooLong);
        }
        let ending = self.is_over(now)?;
        let no_media = sends.then(|| self.media_at + limits.no_media);
        let keys = self.collector.as_ref().and_then(|(collector, _)| collector.next_deadline());
        let told = self.told_keys.as_ref().and_then(DigitCollector::next_deadline);
        let all = [voice_due, self.intake.next_deadline(), no_media, keys, told, ending, line];
        Ok(all.into_iter().flatten().min().map_or(longest, |due| due.min(longest)))
    }

    /// Whether the goodbye was heard; else when to look again.
    fn is_over(&mut self, now: Instant) -> Result<Option<Instant>, CallEnd> {
        let quiet = self.voice.is_idle() && self.session.state() == SessionState::Listening;
        let Some(ending) = &mut self.ending else { return Ok(None) };
        if !quiet {
            ending.quiet_since = None;
            // The session tells when it changes; a goodbye has its longest time.
            return if now >= ending.until {
                Err(CallEnd::AgentHungUp)
            } else {
                Ok(Some(ending.until))
            };
        }
        let since = *ending.quiet_since.get_or_insert(now);
        let over = (since + QUIET).min(ending.until);
        if now >= over { Err(CallEnd::AgentHungUp) } else { Ok(Some(over)) }
    }

    /// Gives the session what the caller said.
    fn forward(&mut self) {
        while let Some(mut segment) = self.intake.pop() {
            if self.screen(&segment.audio) || !self.line.is_heard() {
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
            }
        }
    }

    fn carrier(&mut self, event: CarrierEvent, now: Instant) -> Result<(), CallEnd> {
        match event {
            CarrierEvent::Media(media) => {
                self.media_at = now;
                self.intake.push(media, now);
                self.forward();
            }
            CarrierEvent::Mark { name } => self.voice.marked(&name, now),
            CarrierEvent::Digit { digit, .. } => self.digit(digit, now),
            CarrierEvent::Flow { open } => self.voice.set_open(open),
            CarrierEvent::Stopped { .. } => return Err(CallEnd::CallerHungUp),
            CarrierEvent::Error { code, message } => {
                self.record.carrier_errors += 1;
                let code = code.as_deref().unwrap_or_default();
                tracing::warn!(carrier = %self.call.carrier, code, message, "told by the carrier");
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

    fn digit(&mut self, digit: char, now: Instant) {
        self.record.keys += 1;
        if let Some((collector, _)) = &mut self.collector {
            collector.press(digit, now);
        } else if self.keys == Keys::Tell {
            let first = self.told_keys.is_none();
            let new = || DigitCollector::new(DigitRules::default(), now);
            self.told_keys.get_or_insert_with(new).press(digit, now);
            if !first || !self.keys_interrupt {
                return;
            }
        } else if !self.keys_interrupt {
            return;
        }
        if self.keys_interrupt {
            let _ = self.session.interrupt();
        }
        self.settle_keys(now);
    }

    /// Hands over fields of keys that are complete.
    fn settle_keys(&mut self, now: Instant) {
        if let Some((collector, _)) = &mut self.collector {
            collector.handle_timeout(now);
        }
        let field = self.collector.as_ref().and_then(|(collector, _)| collector.collected());
        if let Some(field) = field
            && let Some((_, done)) = self.collector.take()
        {
            // The tool may have been cancelled.
            let _ = done.send(field);
        }
        if let Some(collector) = &mut self.told_keys {
            collector.handle_timeout(now);
            if let Some(field) = collector.collected() {
                self.told_keys = None;
                let keys: Vec<String> = field.digits.chars().map(String::from).collect();
                if !keys.is_empty() {
                    let _ =
                        self.session.send_text(format!("I pressed the keys {}.", keys.join(" ")));
                }
            }
        }
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
                let until = now + ENDING;
                self.ending.get_or_insert(Ending { until, quiet_since: None });
            }
            Command::Transfer { to, done } => self.hand_on(to, done, now),
            Command::SendDigits { digits, done } => self.press_keys(&digits, done, dialect),
            Command::Collect { rules, done } => {
                // Keys that were pressed ahead of the question belong to it.
                self.told_keys = None;
                self.collector = Some((DigitCollector::new(rules, now), done));
            }
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

/// Who calls, as policy, tools and memory know it. A number is what somebody says of himself: it is a
/// claim, and nobody may do anything because of it.
fn caller(call: &IncomingCall) -> Caller {
    let id = call.start.from.as_deref().unwrap_or(&call.start.call_id);
    let mut caller = Caller::new(id)
        .claim("carrier", call.carrier.name())
        .claim("call_id", call.start.call_id.as_str());
    if let Some(from) = &call.start.from {
        caller = caller.claim("from", from.as_str());
    }
    if let Some(to) = &call.start.to {
        caller = caller.claim("to", to.as_str());
    }
    if let Some(tenant) = &call.tenant {
        caller = caller.scope(tenant.as_str());
    }
    caller
}

fn frame_of(frame: Option<Result<Frame, SocketError>>) -> Result<Frame, CallEnd> {
    match frame {
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
