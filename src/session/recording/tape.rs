//! The engine with a tape beside it.

use std::{fmt, fmt::Write, ops::Deref, sync::Arc, time::Instant};

use antiphon_audio::Played;
use antiphon_live::LiveCommand;
use antiphon_types::AudioFrame;
use bytes::Bytes;

use super::{
    NewFile,
    form::{Header, Step, VERSION},
    writer::{Fate, Writer},
};
use crate::session::engine::{Engine, EngineConfig, HostCommand, Input, Output};

/// An [`Engine`] that is recorded where that was asked for. Everything that changes the engine goes
/// through here.
#[derive(Debug)]
pub(crate) struct RecordedEngine {
    engine: Engine,
    tape: Option<Box<Tape>>,
    fate: Option<Arc<Fate>>,
}

impl RecordedEngine {
    /// A session that begins to connect at `now`. Needs a tokio runtime where there is a file.
    pub(crate) fn new(config: EngineConfig, now: Instant, file: Option<NewFile>) -> Self {
        let tape = file.map(|file| Box::new(Tape::start(&config, now, file)));
        let fate = tape.as_ref().map(|tape| tape.fate.clone());
        Self { engine: Engine::new(config, now), tape, fate }
    }

    /// See [`Engine::handle`].
    pub(crate) fn handle(&mut self, input: Input, now: Instant) {
        if let Some(tape) = &mut self.tape {
            tape.call(Some(&input), now);
        }
        self.engine.handle(input, now);
    }

    /// See [`Engine::handle_timeout`].
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if let Some(tape) = &mut self.tape {
            tape.call(None, now);
        }
        self.engine.handle_timeout(now);
    }

    /// See [`Engine::poll_output`].
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        let output = self.engine.poll_output();
        if let Some(tape) = &mut self.tape {
            match &output {
                Some(output) => tape.taken(mark_output(output)),
                None => tape.drained(),
            }
        }
        output
    }

    /// See [`Engine::poll_uplink`].
    pub(crate) fn poll_uplink(&mut self) -> Option<LiveCommand> {
        let command = self.engine.poll_uplink();
        if let (Some(tape), Some(command)) = (&mut self.tape, &command) {
            tape.taken(mark_uplink(command));
        }
        command
    }

    /// Inputs that are not in the recording although they should be.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.fate.as_ref().map_or(0, |fate| fate.dropped())
    }

    /// A session that is recorded in memory.
    #[cfg(test)]
    pub(crate) fn in_memory(config: EngineConfig, now: Instant) -> Self {
        let mut text = serde_json::to_string(&header(&config, 0, false)).unwrap_or_default();
        text.push('\n');
        let fate = Arc::new(Fate::default());
        let reel = Reel::Memory(text);
        let tape = Tape { began: now, step: Step::begin(), fate, reel };
        Self { engine: Engine::new(config, now), tape: Some(Box::new(tape)), fate: None }
    }

    /// What was recorded in memory, as the text of a complete recording.
    #[cfg(test)]
    pub(crate) fn script(&mut self) -> String {
        let Some(mut tape) = self.tape.take() else { return String::new() };
        let step = std::mem::replace(&mut tape.step, Step::begin());
        tape.push(step);
        match tape.reel {
            Reel::Memory(text) => text + "{\"end\":{\"complete\":true}}\n",
            Reel::Disk(_) => String::new(),
        }
    }

    /// The session is over: ends the recording. `None` where there is none.
    pub(crate) fn finish(&mut self) -> Option<Writer> {
        self.tape.take().and_then(|tape| tape.finish())
    }
}

impl Deref for RecordedEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// What is being recorded.
struct Tape {
    began: Instant,
    /// The last call, whose outputs are still being taken.
    step: Step,
    fate: Arc<Fate>,
    reel: Reel,
}

/// Where steps go.
enum Reel {
    Disk(Writer),
    #[cfg(test)]
    Memory(String),
}

impl Tape {
    fn start(config: &EngineConfig, now: Instant, file: NewFile) -> Self {
        let header = header(config, file.unix_ms, file.audio);
        let key = config.live.api_key.clone();
        let fate = Arc::new(Fate::default());
        let reel = Reel::Disk(Writer::spawn(file, header, key, fate.clone()));
        Self { began: now, step: Step::begin(), fate, reel }
    }

    fn call(&mut self, input: Option<&Input>, now: Instant) {
        if self.fate.is_sealed() {
            return self.fate.drop_one();
        }
        let input = input.map(|input| Box::new(input.clone()));
        let played_at_ns = input.as_deref().and_then(played).map(|played| {
            let after = played.at.saturating_duration_since(self.began).as_nanos() as i64;
            let before = self.began.saturating_duration_since(played.at).as_nanos() as i64;
            after - before
        });
        let at_ns = now.saturating_duration_since(self.began).as_nanos() as u64;
        let next = Step { at_ns, input, played_at_ns, taken: Vec::new(), more: true };
        let step = std::mem::replace(&mut self.step, next);
        self.push(step);
    }

    fn push(&mut self, step: Step) {
        match &mut self.reel {
            Reel::Disk(writer) => writer.push(step, &self.fate),
            #[cfg(test)]
            Reel::Memory(text) => {
                *text += &serde_json::to_string(&step).unwrap_or_default();
                text.push('\n');
            }
        }
    }

    fn taken(&mut self, mark: String) {
        if !self.fate.is_sealed() {
            self.step.taken.push(mark);
        }
    }

    fn drained(&mut self) {
        self.step.more = false;
    }

    fn finish(mut self) -> Option<Writer> {
        let step = std::mem::replace(&mut self.step, Step::begin());
        // After a gap nothing is of use, whatever room there is again.
        if self.fate.is_sealed() {
            self.fate.drop_one();
        } else {
            self.push(step);
        }
        self.fate.complete();
        match self.reel {
            Reel::Disk(mut writer) => {
                writer.close();
                Some(writer)
            }
            #[cfg(test)]
            Reel::Memory(_) => None,
        }
    }
}

impl fmt::Debug for Tape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tape").field("dropped", &self.fate.dropped()).finish_non_exhaustive()
    }
}

impl Step {
    /// The engine is made.
    fn begin() -> Self {
        Self { at_ns: 0, input: None, played_at_ns: None, taken: Vec::new(), more: true }
    }
}

/// The first line.
fn header(config: &EngineConfig, unix_ms: u64, audio: bool) -> Header {
    let mut config = config.clone();
    config.live.api_key = None;
    // These may hold keys of their own, and the engine does not look at them.
    config.live.bearer = None;
    config.live.endpoint = None;
    config.live.options.clear();
    config.live.provider_options.clear();
    let toolkit = env!("CARGO_PKG_VERSION").to_owned();
    Header { antiphon_recording: VERSION, toolkit, unix_ms, audio, config }
}

/// The position of playout that an input tells.
fn played(input: &Input) -> Option<&Played> {
    match input {
        Input::Played(played) | Input::Cleared { played: Some(played), .. } => Some(played),
        _ => None,
    }
}

/// Sets when the position of playout that an input tells was true.
pub(super) fn set_played_at(input: &mut Input, at: Instant) {
    if let Input::Played(played) | Input::Cleared { played: Some(played), .. } = input {
        played.at = at;
    }
}

/// Takes the samples out of an input; their number stays.
pub(super) fn without_samples(input: &mut Input) {
    use antiphon_live::LiveEvent;

    let frame = match input {
        Input::Provider { event: LiveEvent::Audio { frame, .. }, .. } => frame,
        Input::Host(command) => match frame_of(command) {
            Some(frame) => frame,
            None => return,
        },
        Input::Returned { commands, unheld, .. } => {
            for frame in commands.iter_mut().chain(unheld).filter_map(frame_of) {
                frame.data = zeros(frame.data.len());
            }
            return;
        }
        _ => return,
    };
    frame.data = zeros(frame.data.len());
}

fn frame_of(command: &mut HostCommand) -> Option<&mut AudioFrame> {
    match command {
        HostCommand::Audio(frame) | HostCommand::Play { frame, .. } => Some(frame),
        _ => None,
    }
}

/// So many bytes that are zero; small ones share their memory.
fn zeros(bytes: usize) -> Bytes {
    static ZEROS: [u8; 16 * 1024] = [0; 16 * 1024];
    match ZEROS.get(..bytes) {
        Some(zeros) => Bytes::from_static(zeros),
        None => vec![0; bytes].into(),
    }
}

/// The name and digest of an output.
pub(super) fn mark_output(output: &Output) -> String {
    let mut digest = Digest::default();
    match output {
        // Samples may be missing in the recording, so that only their number counts.
        Output::Play { generation, frame } => {
            digest.debug(&(generation, frame.format, frame.data.len()));
        }
        Output::Send { epoch, command, origin } => {
            digest.debug(&(epoch, origin));
            digest.command(command);
        }
        // Keys and what only the provider looks at are not recorded.
        Output::Connect { request, provider } => {
            digest.debug(provider);
            let config = &request.config;
            digest.debug(&(request.epoch, request.resume.is_some(), &request.history));
            digest.debug(&(&config.instructions, &config.tools, &config.policies));
        }
        other => digest.debug(other),
    }
    let mut mark = variant(output);
    match output {
        Output::Emit(event) => join(&mut mark, &variant(&event.kind)),
        Output::Send { command, .. } => join(&mut mark, &variant(command)),
        _ => {}
    }
    digest.end(mark)
}

/// The name and digest of what the wire took of the user's audio.
pub(super) fn mark_uplink(command: &LiveCommand) -> String {
    let mut digest = Digest::default();
    digest.command(command);
    let mut mark = UPLINK.to_owned();
    join(&mut mark, &variant(command));
    digest.end(mark)
}

/// Whether a mark is that of something on the way up.
pub(super) fn is_uplink(mark: &str) -> bool {
    mark.starts_with(UPLINK)
}

const UPLINK: &str = "Uplink";

fn join(mark: &mut String, part: &str) {
    mark.push('.');
    mark.push_str(part);
}

/// The name of a value's variant, as `Debug` writes it first.
pub(super) fn variant(value: &impl fmt::Debug) -> String {
    struct Name(String);
    impl Write for Name {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let end = text.find(|c: char| !c.is_alphanumeric());
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            // What follows the name is not even written.
            if end.is_some() { Err(fmt::Error) } else { Ok(()) }
        }
    }
    let mut name = Name(String::new());
    let _ = write!(name, "{value:?}");
    name.0
}

/// A 64-bit FNV-1a hash (<https://datatracker.ietf.org/doc/html/draft-eastlake-fnv>) over what
/// `Debug` writes. `Debug` shows all of an output but secrets.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn debug(&mut self, value: &impl fmt::Debug) {
        // Neither hashing nor `Debug` fails.
        let _ = write!(self, "{value:?}");
    }

    fn command(&mut self, command: &LiveCommand) {
        match command {
            LiveCommand::AppendAudio(frame) => self.debug(&(frame.format, frame.data.len())),
            LiveCommand::Image { media_type, data } => self.debug(&(media_type, data.len())),
            other => self.debug(other),
        }
    }

    /// `mark` with half of the hash, which is enough to tell two outputs apart.
    fn end(self, mut mark: String) -> String {
        let _ = write!(mark, " {:08x}", (self.0 >> 32) as u32 ^ self.0 as u32);
        mark
    }
}

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        time::{Duration, SystemTime},
    };

    use antiphon_live::LiveConfig;

    use super::*;
    use crate::session::{
        BargeIn, EndReason, IdleConfig, ReconnectPolicy, SessionLimits,
        recording::{Recording, replay},
    };

    fn config() -> EngineConfig {
        EngineConfig {
            session_id: "../a b".into(),
            provider: "p".into(),
            model: "m".into(),
            live: LiveConfig::new(),
            idle: IdleConfig::OFF,
            limits: SessionLimits::default(),
            reconnect: ReconnectPolicy::default(),
            barge_in: BargeIn::default(),
            seed: None,
            lifetime: Default::default(),
            linked: None,
            output_guard: None,
            input_guard: None,
            sink_format: None,
            first_generation: 1,
        }
    }

    fn drain(engine: &mut RecordedEngine) {
        while engine.poll_output().is_some() {}
    }

    #[tokio::test]
    async fn a_disk_that_is_too_slow_ends_the_recording_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let unix_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64;
        let file = Recording::new(dir.path()).create("../a b", unix_ms).unwrap();
        let path = file.path.clone();
        assert_eq!(path.parent(), Some(dir.path()), "ids name no folders");
        let now = Instant::now();
        let mut engine = RecordedEngine::new(config(), now, Some(file));
        drain(&mut engine);
        // Nobody else gets to run meanwhile, so nothing is written.
        const INPUTS: u32 = 3_000;
        for step in 0..INPUTS {
            let trouble = Input::SinkFailed { message: "no".into() };
            engine.handle(trouble, now + Duration::from_millis(step.into()));
            drain(&mut engine);
        }
        assert!(engine.unrecorded() > 1_000, "{}", engine.unrecorded());
        engine.handle(Input::Stop { reason: EndReason::Stopped, within: None }, now);
        drain(&mut engine);
        let dropped = engine.unrecorded();
        engine.finish().unwrap().finish(Duration::from_secs(60)).await;
        let text = fs::read_to_string(path).unwrap();
        let replayed = replay(text.as_bytes()).unwrap();
        assert!(!replayed.complete && replayed.difference.is_none(), "{replayed}");
        assert!(replayed.dropped >= dropped, "{replayed}");
        assert!(replayed.to_string().contains("missing"), "{replayed}");
    }

    #[test]
    fn a_variant_is_named_and_its_content_is_not() {
        assert_eq!(variant(&Input::StartHookDone), "StartHookDone");
        assert_eq!(variant(&Output::Close { epoch: 3 }), "Close");
        assert_eq!(mark_uplink(&LiveCommand::EndAudio).split(' ').next(), Some("Uplink.EndAudio"));
    }
}
