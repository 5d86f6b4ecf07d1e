//! `antiphon doctor`.

use std::{env, io::Write, path::Path, time::Instant};

use antiphon::providers::cascade::{
    Recognizer, SpeechRequest, Utterance,
    offline::{MODELS_VARIABLE, ModelDirectory, OfflineSpeech},
};

use crate::{
    args::{DoctorArguments, ModelArguments},
    failure::Failure,
    offline, speak,
    talk::realtime::{GEMINI_KEY, PROVIDERS, variable},
};

/// What the self-test says to itself.
const SENTENCE: &str = "Set a timer for ten minutes.";

/// Says what is present, what is missing, and how to mend it. Fails when `talk` would not work.
pub fn run(arguments: DoctorArguments) -> Result<(), Failure> {
    let mut report = Report::default();
    report.fine("program", &format!("antiphon {}, {}", env!("CARGO_PKG_VERSION"), features()));
    let models = check_models(&mut report, &arguments.models);
    check_devices(&mut report);
    check_folder(&mut report);
    check_keys(&mut report);
    if models {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let tested = runtime.map_err(Failure::failed)?.block_on(check_speech(&arguments.models));
        match tested {
            Ok(line) => report.fine("self-test", &line),
            Err(failure) => report.bad("self-test", &failure.to_string(), SEND_A_REPORT),
        }
    }
    report.finish()
}

const SEND_A_REPORT: &str = "please report this, with the lines above";

fn features() -> String {
    let parts = [
        ("offline", cfg!(feature = "offline")),
        ("devices", cfg!(feature = "devices")),
        ("opus", cfg!(feature = "opus")),
    ];
    let named = |wanted: bool| {
        let names: Vec<&str> =
            parts.iter().filter(|(_, is)| *is == wanted).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    match named(false).as_str() {
        "" => format!("with {}", named(true)),
        without => format!("with {}, without {without}", named(true)),
    }
}

fn check_models(report: &mut Report, arguments: &ModelArguments) -> bool {
    let began = Instant::now();
    let found = ModelDirectory::locate(arguments.models.as_deref());
    match found.and_then(|folder| folder.verify().map(|()| folder)) {
        Ok(folder) => {
            let folder = folder.path().display();
            report.fine("models", &format!("{folder}, all sums right, {}", ms(began)));
            true
        }
        Err(error) => {
            let mend = format!(
                "copy the folder `models` of the source tree beside the program, or name it with \
                 --models or ${MODELS_VARIABLE}"
            );
            report.bad("models", &error.to_string(), &mend);
            false
        }
    }
}

/// Speaks a sentence, and hears what was said.
async fn check_speech(arguments: &ModelArguments) -> Result<String, Failure> {
    let loading = Instant::now();
    let OfflineSpeech { recognizer: ears, synthesizer: voice, .. } =
        offline::load(arguments).await?;
    let loaded = ms(loading);
    let speaking = Instant::now();
    let request = SpeechRequest::new(SENTENCE);
    let audio = speak::synthesize(&*voice, request, ears.sample_rate_hz()).await?;
    let spoken = ms(speaking);
    let hearing = Instant::now();
    let heard = ears.recognize(Utterance::new(audio.frame())).await.map_err(Failure::failed)?;
    let recognised = ms(hearing);
    let words = |text: &str| {
        text.chars()
            .filter(|letter| letter.is_alphabetic() || *letter == ' ')
            .collect::<String>()
            .to_lowercase()
    };
    // Digits or words for the number are both right.
    if words(&heard.text.replace("10", "ten")) != words(SENTENCE) {
        return Err(Failure::failed(format!("said {SENTENCE:?}, heard {:?}", heard.text)));
    }
    Ok(format!("loaded in {loaded}, spoke in {spoken}, understood in {recognised}"))
}

#[cfg(feature = "devices")]
fn check_devices(report: &mut Report) {
    let devices = antiphon::audio::device::devices();
    let system =
        if devices.host.is_empty() { String::new() } else { format!(", {}", devices.host) };
    for (name, device) in [("microphone", &devices.input), ("loudspeaker", &devices.output)] {
        match device {
            Ok(device) => report.fine(name, &format!("{device}{system}")),
            Err(reason) => report.missing(
                name,
                reason,
                "connect one, start a sound server, or use WAV files (--input, --output)",
            ),
        }
    }
}

#[cfg(not(feature = "devices"))]
fn check_devices(report: &mut Report) {
    report.missing(
        "devices",
        "not compiled in",
        "build with `--features devices` (Debian: apt-get install libasound2-dev), or use WAV files",
    );
}

/// Which providers behind a network can be talked to.
fn check_keys(report: &mut Report) {
    let mut absent = Vec::new();
    for (_, name, dialect) in PROVIDERS {
        let facts = dialect.facts();
        let variables = &facts.variables;
        if variable(variables.key).is_none() {
            absent.push(format!("{} ({name})", variables.key));
            continue;
        }
        let what = format!("--provider {name}");
        let wanted = [
            variables.address.filter(|_| facts.address.is_none()),
            variables.model.filter(|_| facts.wants_model()),
        ];
        let unset: Vec<&str> =
            wanted.into_iter().flatten().filter(|name| variable(name).is_none()).collect();
        match unset.is_empty() {
            true => {
                report.fine(&what, &format!("{}, key in {}", facts.vendor, variables.key));
                if let Some(name) = variables.transcriber.filter(|name| variable(name).is_none()) {
                    let mend = format!(
                        "name the deployment of a transcriber with --transcriber or in {name}"
                    );
                    report.missing(&what, "what you say is not written down", &mend);
                }
            }
            false => report.missing(
                &what,
                &format!("a key in {}, but nothing in {}", variables.key, unset.join(", ")),
                "name the resource with --url and the deployment with --model, or in these variables",
            ),
        }
    }
    match variable(GEMINI_KEY) {
        Some(_) => {
            let finding = format!("Gemini Live, key in {GEMINI_KEY}");
            report.fine("--provider gemini", &finding);
        }
        None => absent.push(format!("{GEMINI_KEY} (gemini)")),
    }
    if !absent.is_empty() {
        report.missing(
            "keys",
            &format!("no {}", absent.join(", ")),
            "only for models behind a network: put a key into its environment variable",
        );
    }
}

/// Where `talk` writes when nothing is said.
fn check_folder(report: &mut Report) {
    let folder = env::current_dir().unwrap_or_else(|_| Path::new(".").to_path_buf());
    let probe = folder.join(format!(".antiphon-doctor-{}", std::process::id()));
    let written = std::fs::File::create(&probe).and_then(|mut file| file.write_all(b"x"));
    let _ = std::fs::remove_file(&probe);
    match written {
        Ok(()) => report.fine("folder", &format!("{} can be written", folder.display())),
        Err(error) => report.missing(
            "folder",
            &format!("{}: {error}", folder.display()),
            "name files for --output and --memory in a folder that you may write",
        ),
    }
}

fn ms(since: Instant) -> String {
    format!("{} ms", since.elapsed().as_millis())
}

/// Prints as it goes: a line per finding.
#[derive(Default)]
struct Report {
    broken: usize,
}

impl Report {
    fn fine(&mut self, what: &str, finding: &str) {
        println!("ok       {what}: {finding}");
    }

    /// Missing, but `talk` works without.
    fn missing(&mut self, what: &str, finding: &str, mend: &str) {
        println!("missing  {what}: {finding}");
        println!("         -> {mend}");
    }

    fn bad(&mut self, what: &str, finding: &str, mend: &str) {
        self.broken += 1;
        println!("BROKEN   {what}: {finding}");
        println!("         -> {mend}");
    }

    fn finish(self) -> Result<(), Failure> {
        if self.broken == 0 {
            println!("`antiphon talk` will work");
            return Ok(());
        }
        println!("`antiphon talk` will not work");
        Err(Failure::Told)
    }
}
