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
    sync::mpsc,
    time::{sleep_until, timeout, timeout_at},
};

use self::{
    line::{Line, Outcome, requested},
    screening::Screening,
};
use super::{
    Answer, CallControl, CallEnd, CallRecord, IncomingCall,
    control::Command,
    keys::{KeyPad, KeySettings},
    link::Link,
    news::{Back, News},
    office::{Admission, Admitted, Office, Waiting},
    record::Recorded,
    voice::{Voice, voice},
};
use crate::{
    session::{
        AgentSession, EndReason, EventKind, EventStream, SayOptions, SessionEvent, SessionState,
    },
    telephony::{
        config::Verify,
        dialect::{
            CallStart, Capabilities, Carrier, CarrierEvent, ControlBy, Dialect, DialectError, Heard,
        },
        media::{Greeted, Intake, Playout, Send},
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
/// Of a longer one that is still being heard, so much.
const LONGEST_ENDING: Duration = Duration::from_secs(180);
/// Whoever says nothing for so long after the socket stands may have a silent caller.
const SILENT_START: Duration = Duration::from_millis(300);
/// Of what comes before a call is answered so many messages are kept.
const EARLY: usize = 256;
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
    /// What the address of the upgrade said beside the token.
    pub(super) parameters: Vec<(String, String)>,
    /// Its place among the streams that have not started.
    pub(super) waiting: Option<Waiting>,
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
    }

    /// Waits until the carrier has said what call it is, and whether it may be one.
    async fn start(&mut self, record: &mut CallRecord) -> Result<Begun, CallEnd> {
        let began = tokio::time::Instant::now();
        let until = began + self.office.limits().start;
        let mut silent_at = Some(began + SILENT_START);
        let mut heard = Heard::default();
        let office = self.office.clone();
        loop {
            tokio::select! {
                frame = self.link.recv() => self.dialect.parse(&frame_of(frame)?, &mut heard)?,
                () = sleep_until(silent_at.unwrap_or(until)), if silent_at.is_some() => {
                    silent_at = None;
                    self.dialect.quiet(&mut heard);
                }
                () = sleep_until(until) => return Err(CallEnd::NeverStarted),
                () = office.drained() => return Err(CallEnd::Drained),
            }
            self.link.send(&mut heard.frames).await.map_err(lost)?;
            let mut events = std::mem::take(&mut heard.events).into_iter();
            while let Some(event) = events.next() {
                match event {
                    CarrierEvent::Started(mut start) => {
                        self.complete(&mut start);
                        self.name(&mut start);
                        record.started(&start);
                        let claims = self.check(&start)?;
                        record.authorised = true;
                        self.waiting = None;
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

    /// What the address said belongs to the call too (Asterisk's `v(...)` comes there).
    fn complete(&mut self, start: &mut CallStart) {
        for (name, value) in self.parameters.drain(..) {
            match &*name {
                "from" => start.from = start.from.take().or(Some(value)),
                "to" => start.to = start.to.take().or(Some(value)),
                _ => {
                    start.parameters.entry(name).or_insert(value);
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
        let unauthorized = |detail: String| CallEnd::Unauthorized { detail };
        let carrier = self.dialect.carrier();
        if let Some(account) = self.office.account_of(carrier)
            && start.account_id.as_deref().is_some_and(|told| told != account)
        {
            return Err(unauthorized("another account".into()));
        }
        let token = self.token.take().or_else(|| start.parameters.get("token").cloned());
        if !self.verify.token() {
            // One that is shown all the same says whose call it is.
            let shown = token.and_then(|token| self.office.take_token(&token, &start.call_id).ok());
            return Ok(shown.unwrap_or_else(|| self.office.claims_of(start)));
        }
        let token = token.ok_or_else(|| unauthorized("no token".into()))?;
        self.office
            .take_token(&token, &start.call_id)
            .map_err(|error| unauthorized(error.to_string()))
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
        let answer_until = tokio::time::Instant::now() + office.limits().answer;
        let answered = tokio::select! {
            biased;
            end = self.listen(&mut early) => return end,
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
            line,
            answer_until,
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

    /// Reads what comes before the call is answered, until it is over.
    async fn listen(&mut self, early: &mut Vec<CarrierEvent>) -> CallEnd {
        let mut heard = Heard::default();
        loop {
            let parsed = match frame_of(self.link.recv().await) {
                Ok(frame) => self.dialect.parse(&frame, &mut heard),
                Err(end) => return end,
            };
            for event in heard.events.drain(..) {
                if matches!(event, CarrierEvent::Stopped { .. }) {
                    return CallEnd::CallerHungUp;
                }
                // The newest is worth more.
                if early.len() >= EARLY {
                    early.remove(0);
                }
                early.push(event);
            }
            if let Err(error) = parsed {
                return error.into();
            }
            if let Err(error) = self.link.send(&mut heard.frames).await {
                return lost(error);
            }
        }
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
    keys: KeyPad,
    ending: Option<Ending>,
    /// What the agent says first, until it has.
    greeting: Option<(String, SayOptions)>,
    /// It is not known yet who has answered.
    screening: Option<Screening>,
    greeted: Option<Greeted>,
    line: Line,
    /// The provider must have answered by then.
    answer_until: tokio::time::Instant,
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
    /// However long the goodbye is.
    last: Instant,
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
        let alive = self.keep_alive(dialect, now)?;
        link.send(&mut self.out).await.map_err(lost)?;
        self.intake.handle_timeout(now);
        self.forward(now);
        let asking = !self.voice.is_idle() || self.session.state() == SessionState::Speaking;
        if let Some(told) = self.keys.settle(asking, now) {
            let _ = self.session.send_text(told);
        }
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
        let keys = self.keys.next_deadline();
        let all = [voice_due, self.intake.next_deadline(), no_media, keys, ending, line, alive];
        Ok(all.into_iter().flatten().min().map_or(longest, |due| due.min(longest)))
    }

    /// Whether the goodbye was heard; else when to look again.
    fn is_over(&mut self, now: Instant) -> Result<Option<Instant>, CallEnd> {
        let silent = self.voice.is_idle();
        let quiet = silent && self.session.state() == SessionState::Listening;
        let ends_at = self.voice.ends_at().filter(|_| !silent);
        let Some(ending) = &mut self.ending else { return Ok(None) };
        if let Some(ends_at) = ends_at {
            // A long goodbye is heard to its end.
            ending.until = ending.until.max(ends_at + GOODBYE).min(ending.last);
        }
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
                let (until, last) = (now + ENDING, now + LONGEST_ENDING);
                self.ending.get_or_insert(Ending { until, last, quiet_since: None });
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

/// Who calls, as policy, tools and memory know it. A number is what somebody says of himself: it is a
/// claim, and nobody may do anything because of it. Whoever withholds it is nobody: not somebody else with
/// each call, for whom limits would begin anew.
fn caller(call: &IncomingCall) -> Caller {
    let start = &call.start;
    let mut caller = Caller::new(start.from.as_deref().unwrap_or_default())
        .claim("carrier", call.carrier.name())
        .claim("call_id", start.call_id.as_str())
        .claim("stream_id", start.stream_id.as_str());
    let told = [("from", &start.from), ("to", &start.to), ("account_id", &start.account_id)];
    for (name, value) in told {
        if let Some(value) = value {
            caller = caller.claim(name, value.as_str());
        }
    }
    for (name, value) in &start.parameters {
        // A token opens nothing any more, and is nobody's business all the same.
        if !matches!(&**name, "token" | "from" | "to") {
            caller = caller.claim(format!("parameter.{name}"), value.as_str());
        }
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
