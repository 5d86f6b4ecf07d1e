//! What the command line asks for, checked before anything starts.

use std::{
    fs::File,
    io::{self, Cursor, Read},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use antiphon::{
    agent::{Caller, chat_model::ChatModel},
    audio::{AudioError, Resampler, WavAudio},
    policy::guards::GuardFile,
    session::{IdleConfig, recording::Recording},
};

use super::{
    kept::Kept,
    realtime::{self, Server},
    script::{BargeIn, Ending, INPUT_RATE_HZ, Item, Speech},
};
use crate::{
    args::{
        EventFormat, Given, InputArgument, ModelArguments, OutputArgument, Provider, TalkArguments,
        Vad,
    },
    chat_model,
    failure::Failure,
    toolbox::Equipment,
};

/// Where the answers go when there is no loudspeaker and no file was named.
const DEFAULT_OUTPUT: &str = "antiphon-talk.wav";

/// Questions for a machine without a microphone.
const BUNDLED_QUESTIONS: [(&str, &[u8]); 5] = [
    ("time.wav", include_bytes!("../../../../examples/audio/time.wav")),
    ("convert.wav", include_bytes!("../../../../examples/audio/convert.wav")),
    ("send-money.wav", include_bytes!("../../../../examples/audio/send-money.wav")),
    ("yes.wav", include_bytes!("../../../../examples/audio/yes.wav")),
    ("timer.wav", include_bytes!("../../../../examples/audio/timer.wav")),
];

/// A conversation that can begin.
pub struct Plan {
    pub items: Vec<Item>,
    pub barge_ins: Vec<BargeIn>,
    pub by_hand: bool,
    pub ending: Ending,
    pub output: Output,
    pub equipment: Equipment,
    pub caller: Option<Caller>,
    pub guards: Option<GuardFile>,
    pub memory: Option<PathBuf>,
    pub kept: Option<Kept>,
    pub voice: Option<String>,
    pub idle: IdleConfig,
    pub events: EventFormat,
    pub fast: bool,
    pub recording: Option<Recording>,
    pub provider: Voices,
    pub fallbacks: Vec<Voices>,
}

/// Who hears, thinks and speaks.
pub enum Voices {
    Offline { models: ModelArguments },
    Cascade { models: ModelArguments, chat: Arc<ChatModel> },
    Realtime(Server),
    Gemini { url: Option<String>, model: Option<String> },
}

impl Voices {
    /// The provider, and those that are fallen back on.
    fn all(arguments: &TalkArguments) -> Result<(Self, Vec<Self>), Failure> {
        let TalkArguments {
            provider,
            fallback,
            url,
            model,
            transcriber,
            chat_model: chat,
            models,
            fast,
            ..
        } = arguments;
        let used: Vec<_> = std::iter::once(*provider).chain(fallback.iter().copied()).collect();
        if used.iter().enumerate().any(|(at, one)| used[..at].contains(one)) {
            return Err(Failure::usage("--fallback names another provider each time"));
        }
        let any = |fits: fn(Provider) -> bool| used.iter().any(|used| fits(*used));
        let given = [
            ("--url", url.is_some(), any(Provider::is_remote)),
            ("--model", model.is_some(), any(Provider::is_remote)),
            ("--transcriber", transcriber.is_some(), any(|used| realtime::dialect(used).is_some())),
            ("--models", models.models.is_some(), any(|used| !used.is_remote())),
            ("--chat-model", chat.chat_model.is_some(), any(|used| used == Provider::Cascade)),
            ("--chat-url", chat.chat_url.is_some(), any(|used| used == Provider::Cascade)),
            ("--chat-api", chat.chat_api.is_some(), any(|used| used == Provider::Cascade)),
            // Nobody else's time can be hurried.
            ("--fast", *fast, used.iter().all(|used| *used == Provider::Offline)),
        ];
        if let Some((flag, ..)) = given.into_iter().find(|(_, given, fits)| *given && !fits) {
            return Err(Failure::usage(match provider {
                Provider::Gemini if flag == "--transcriber" => {
                    format!("{flag} goes only with servers that speak like OpenAI")
                }
                Provider::Offline => format!("{flag} does not go with --provider offline"),
                Provider::Cascade => format!("{flag} does not go with --provider cascade"),
                _ => format!("{flag} goes only with --provider offline"),
            }));
        }
        // An address and models are of one vendor: of the first that has any.
        let named = used.iter().position(|used| used.is_remote());
        let written = used.iter().position(|used| realtime::dialect(*used).is_some());
        let mut all = Vec::with_capacity(used.len());
        for (at, one) in used.into_iter().enumerate() {
            let (url, model) = match named == Some(at) {
                true => (url.clone(), model.clone()),
                false => (None, None),
            };
            let transcriber = transcriber.clone().filter(|_| written == Some(at));
            all.push(Self::of(one, url, model, transcriber, arguments)?);
        }
        let fallbacks = all.split_off(1);
        let first = all.remove(0);
        Ok((first, fallbacks))
    }

    fn of(
        provider: Provider,
        url: Option<String>,
        model: Option<String>,
        transcriber: Option<String>,
        arguments: &TalkArguments,
    ) -> Result<Self, Failure> {
        let TalkArguments { chat_model: chat, models, .. } = arguments;
        if let Some(named) = realtime::dialect(provider) {
            return Ok(Self::Realtime(Server::new(named, url, model, transcriber)));
        }
        Ok(match provider {
            Provider::Cascade => {
                Self::Cascade { models: models.clone(), chat: chat_model::open(chat)?.into() }
            }
            Provider::Gemini => Self::Gemini { url, model },
            _ => Self::Offline { models: models.clone() },
        })
    }
}

/// Where the agent's voice goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Speaker,
    File(PathBuf),
    None,
}

impl Plan {
    /// Reads every file that the command line names.
    pub fn new(arguments: TalkArguments, order: &[Given]) -> Result<Self, Failure> {
        let (provider, fallbacks) = Voices::all(&arguments)?;
        let mut devices = Devices::default();
        let mut items = items(&arguments, order)?;
        let output = match &arguments.output {
            Some(OutputArgument::Speaker) if arguments.fast => {
                return Err(Failure::usage("--fast does not go with --output speaker"));
            }
            Some(OutputArgument::Speaker) => Output::Speaker,
            Some(OutputArgument::None) => Output::None,
            Some(OutputArgument::File(path)) => Output::File(writable(path.clone())?),
            None if !arguments.fast && devices.output() => Output::Speaker,
            None => {
                let questions =
                    if items.is_empty() { "spoken questions that come with it, and " } else { "" };
                eprintln!(
                    "antiphon: no loudspeaker ({}): using {questions}{DEFAULT_OUTPUT} for the answers",
                    if arguments.fast { "--fast" } else { devices.why_no_output() },
                );
                Output::File(writable(DEFAULT_OUTPUT.into())?)
            }
        };
        if items.is_empty() {
            let live = output == Output::Speaker && !arguments.fast && devices.input();
            if live {
                items.push(Item::Microphone);
            } else {
                if arguments.output.is_some() {
                    eprintln!("antiphon: using spoken questions that come with it");
                }
                items = bundled_questions()?;
            }
        }
        if arguments.fast && items.iter().any(|item| matches!(item, Item::Microphone)) {
            return Err(Failure::usage("--fast does not go with --input mic"));
        }
        let barge_ins = arguments
            .barge_in
            .iter()
            .map(|barge_in| {
                Ok(BargeIn { speech: read_speech(&barge_in.file)?, after: barge_in.after })
            })
            .collect::<Result<_, Failure>>()?;
        let equipment = Equipment::read(
            arguments.tools.as_deref(),
            arguments.policy.as_deref(),
            &arguments.books,
        )?;
        equipment.asks_only_with(arguments.store.as_deref())?;
        Ok(Self {
            caller: arguments.who.caller(),
            items,
            barge_ins,
            by_hand: arguments.vad == Vad::Manual,
            ending: match (arguments.idle_remind, arguments.idle_stop) {
                (_, Some(_)) => Ending::Idle,
                (Some(_), None) => Ending::Reminded,
                (None, None) => Ending::Answered,
            },
            output,
            equipment,
            guards: arguments
                .guard
                .as_ref()
                .map(GuardFile::load)
                .transpose()
                .map_err(Failure::usage)?,
            kept: Kept::new(&arguments),
            memory: arguments.memory,
            voice: arguments.voice,
            idle: match (arguments.idle_remind, arguments.idle_stop) {
                (None, None) => IdleConfig::default(),
                (remind, stop) => IdleConfig::new(remind, stop),
            },
            events: arguments.events,
            fast: arguments.fast,
            recording: arguments
                .record
                .map(|dir| Recording::new(dir).audio(arguments.record_audio)),
            provider,
            fallbacks,
        })
    }
}

fn items(arguments: &TalkArguments, order: &[Given]) -> Result<Vec<Item>, Failure> {
    let mut items = Vec::new();
    for given in order {
        if matches!(items.last(), Some(Item::Microphone)) {
            return Err(Failure::usage("nothing can come after --input mic, which never ends"));
        }
        items.push(match given {
            Given::Input(index) => match &arguments.input[*index] {
                InputArgument::Microphone => Item::Microphone,
                InputArgument::File(path) => Item::Speech(read_speech(path)?),
            },
            Given::Text(index) => {
                let text = arguments.text[*index].trim();
                if text.is_empty() {
                    return Err(Failure::usage("--text is blank"));
                }
                Item::Text(text.to_owned())
            }
        });
    }
    Ok(items)
}

fn bundled_questions() -> Result<Vec<Item>, Failure> {
    BUNDLED_QUESTIONS
        .iter()
        .map(|(name, bytes)| {
            let audio = WavAudio::read(Cursor::new(*bytes), name).map_err(Failure::failed)?;
            speech(name, audio).map(Item::Speech).map_err(Failure::failed)
        })
        .collect()
}

fn read_speech(path: &Path) -> Result<Speech, Failure> {
    let audio = if is_pipe(path) { read_pipe(path)? } else { WavAudio::open(path) };
    let audio = audio.map_err(Failure::usage)?;
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    speech(&name, audio).map_err(Failure::usage)
}

/// How long nothing may come from a pipe.
const PIPE_PATIENCE: Duration = Duration::from_secs(10);

fn is_pipe(path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
    }
    #[cfg(not(unix))]
    {
        let _ = path;
        false
    }
}

/// Reads a pipe, whose other end may never be opened and never be closed. A reader that waits for
/// ever is left to the end of the program.
fn read_pipe(path: &Path) -> Result<Result<WavAudio, AudioError>, Failure> {
    let (news, arrives) = mpsc::channel();
    let owned = path.to_owned();
    thread::spawn(move || {
        let name = owned.display().to_string();
        let audio = match File::open(&owned) {
            Ok(file) => WavAudio::read(Told { file, news: news.clone() }, &name),
            Err(error) => Err(AudioError::File { path: name, reason: error.to_string() }),
        };
        let _ = news.send(Some(audio));
    });
    loop {
        match arrives.recv_timeout(PIPE_PATIENCE) {
            Ok(Some(audio)) => return Ok(audio),
            Ok(None) => {}
            Err(_) => {
                return Err(Failure::usage(format!(
                    "{}: nobody wrote to this pipe for {} s",
                    path.display(),
                    PIPE_PATIENCE.as_secs()
                )));
            }
        }
    }
}

/// A pipe that tells when something came.
struct Told<T> {
    file: File,
    news: mpsc::Sender<Option<T>>,
}

impl<T> Read for Told<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer);
        let _ = self.news.send(None);
        read
    }
}

fn speech(name: &str, audio: WavAudio) -> Result<Speech, AudioError> {
    let mut samples = Vec::new();
    let mut resampler = Resampler::new(audio.sample_rate_hz, INPUT_RATE_HZ)?;
    resampler.process(&audio.samples, &mut samples);
    resampler.flush(&mut samples);
    // A file that resamples to nothing (a few samples) is still one frame.
    if samples.is_empty() {
        samples.push(0);
    }
    Ok(Speech { name: name.to_owned(), samples: Arc::from(samples) })
}

/// Complains about a file that cannot be written before the conversation, not after it.
fn writable(path: PathBuf) -> Result<PathBuf, Failure> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(Failure::usage(format!(
            "{}: there is no folder {}",
            path.display(),
            folder.display()
        )));
    }
    if path.is_dir() {
        return Err(Failure::usage(format!("{}: is a folder", path.display())));
    }
    Ok(path)
}

/// Looks for devices once, and only when somebody asks.
#[derive(Default)]
struct Devices {
    #[cfg(feature = "devices")]
    report: Option<antiphon::audio::device::DeviceReport>,
}

#[cfg(feature = "devices")]
impl Devices {
    fn output(&mut self) -> bool {
        self.report().output.is_ok()
    }

    fn input(&mut self) -> bool {
        self.report().input.is_ok()
    }

    fn why_no_output(&mut self) -> &str {
        self.report().output.as_ref().map_or_else(String::as_str, |_| "")
    }

    fn report(&mut self) -> &antiphon::audio::device::DeviceReport {
        self.report.get_or_insert_with(antiphon::audio::device::devices)
    }
}

#[cfg(not(feature = "devices"))]
impl Devices {
    fn output(&mut self) -> bool {
        false
    }

    fn input(&mut self) -> bool {
        false
    }

    fn why_no_output(&mut self) -> &str {
        "built without devices"
    }
}
