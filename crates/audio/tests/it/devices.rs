//! Microphone and loudspeaker over a real sound server: a private PulseAudio daemon with null sinks.
//!
//! The server's address is in the environment, which a test cannot change for itself; so each test
//! starts a daemon and runs itself again as a child beside it.

use std::{
    future::poll_fn,
    io::Write,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use antiphon_audio::{
    AudioError, AudioFrame, AudioSink, Generation, Played,
    device::{Loudspeaker, LoudspeakerOptions, Microphone, MicrophoneOptions, devices},
};

const RATE: u32 = 24_000;
const CHILD: &str = "ANTIPHON_AUDIO_TEST_CHILD";

#[test]
fn what_is_played_is_heard_to_its_end() {
    beside_a_sound_server("devices::what_is_played_is_heard_to_its_end", || {
        let recorder = Recorder::start();
        let mut loudspeaker = loudspeaker();
        let generation = Generation(1);
        let tone = tone(RATE, 1_000);
        play(&mut loudspeaker, generation, &tone, Duration::MAX);
        loudspeaker.finish(generation, Instant::now()).unwrap();
        let played = completion(&mut loudspeaker);
        assert_eq!((played.generation, played.samples), (generation, tone.len() as u64));
        let heard = recorder.stop();
        let sounding = sounding_ms(&heard);
        assert!(sounding.abs_diff(1_000) <= 30, "{sounding} ms of sound");
        let hz = frequency(&heard, RATE);
        assert!((hz - 440.0).abs() < 15.0, "{hz} Hz");
    });
}

#[test]
fn clear_silences_at_once_and_knows_what_was_heard() {
    beside_a_sound_server("devices::clear_silences_at_once_and_knows_what_was_heard", || {
        let recorder = Recorder::start();
        let mut loudspeaker = loudspeaker();
        play(&mut loudspeaker, Generation(1), &tone(RATE, 3_000), Duration::from_millis(600));
        let played = loudspeaker.clear(Generation(2), Instant::now()).unwrap().unwrap();
        let told_ms = played.samples * 1_000 / u64::from(RATE);
        // Long enough for all that the ring holds, if it were still played.
        std::thread::sleep(Duration::from_millis(500));
        let sounding = sounding_ms(&recorder.stop());
        assert!(!played.complete);
        // The device's own buffer, 40 ms at most, cannot be taken back.
        assert!(
            (told_ms.saturating_sub(20)..=told_ms + 70).contains(&sounding),
            "{sounding} ms of sound, {told_ms} told"
        );
    });
}

#[test]
fn the_microphone_hears_what_is_said_and_knows_when_there_is_nothing() {
    beside_a_sound_server(
        "devices::the_microphone_hears_what_is_said_and_knows_when_there_is_nothing",
        || {
            let mut microphone = Microphone::open(MicrophoneOptions::default()).unwrap();
            let quiet = listen(&mut microphone, 25);
            assert!(quiet.iter().all(|&sample| sample == 0));
            assert!(microphone.stats().silent_for >= Duration::from_millis(400));
            let mut speaker = speak(&tone(RATE, 1_000));
            let heard = listen(&mut microphone, 100);
            speaker.wait().unwrap();
            assert_eq!(heard.len(), 100 * 320, "frames of 20 ms at 16 kHz");
            let hz = frequency(&heard, 16_000);
            assert!((hz - 440.0).abs() < 15.0, "{hz} Hz");
            assert_eq!(microphone.stats().dropped, Duration::ZERO);
        },
    );
}

#[test]
fn the_devices_are_named() {
    beside_a_sound_server("devices::the_devices_are_named", || {
        let report = devices();
        assert!(report.usable(), "{report:?}");
        assert_eq!(report.host, "PulseAudio");
        assert_eq!(report.inputs.len(), 2);
        let name = report.output.unwrap().name;
        assert!(report.outputs.contains(&name));
        let by_name = Loudspeaker::open(LoudspeakerOptions::default().device(&name)).unwrap();
        assert_eq!(by_name.info().name, name);
        let unknown = Microphone::open(MicrophoneOptions::default().device("Moon"));
        assert!(matches!(unknown, Err(AudioError::NoDevice(reason)) if reason.contains("Moon")));
    });
}

#[test]
fn without_a_sound_server_opening_fails_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = format!("unix:{}/nobody", dir.path().display());
    as_child("devices::without_a_sound_server_opening_fails_with_a_reason", &server, || {
        let microphone = Microphone::open(MicrophoneOptions::default()).map(|_| ());
        let loudspeaker = Loudspeaker::open(LoudspeakerOptions::default()).map(|_| ());
        for opened in [microphone, loudspeaker] {
            assert!(matches!(opened, Err(AudioError::NoDevice(_))), "{opened:?}");
        }
        assert!(!devices().usable());
    });
}

fn loudspeaker() -> Loudspeaker {
    Loudspeaker::open(LoudspeakerOptions::default().sample_rate_hz(RATE)).unwrap()
}

/// Writes as a session does: what fits, until all is written or `for_at_most` is over.
fn play(sink: &mut Loudspeaker, generation: Generation, samples: &[i16], for_at_most: Duration) {
    let started = Instant::now();
    let mut left = samples.chunks(480).peekable();
    while started.elapsed() < for_at_most {
        let Some(chunk) = left.peek() else { return };
        if sink.room(Instant::now()) < chunk.len() {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        sink.write(generation, &AudioFrame::from_pcm16(RATE, chunk), Instant::now()).unwrap();
        left.next();
    }
}

/// Waits as a session does: for a wake-up or the sink's deadline.
fn completion(sink: &mut Loudspeaker) -> Played {
    runtime().block_on(async {
        loop {
            let news = poll_fn(|cx| sink.poll_progress(cx, Instant::now()));
            let until = Duration::from_secs(10);
            let played = tokio::time::timeout(until, news);
            // Completion comes by the passing of time; a wake-up tells when to look at the deadline.
            let played = match tokio::time::timeout(Duration::from_millis(20), played).await {
                Ok(Ok(played)) => played.unwrap(),
                Ok(Err(_)) => panic!("never complete"),
                Err(_) => continue,
            };
            if played.complete {
                return played;
            }
        }
    })
}

fn listen(microphone: &mut Microphone, frames: usize) -> Vec<i16> {
    runtime().block_on(async {
        let mut heard = Vec::new();
        for _ in 0..frames {
            let frame = tokio::time::timeout(Duration::from_secs(5), microphone.next()).await;
            let frame = frame.unwrap().unwrap().unwrap();
            heard.extend(frame.data.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])));
        }
        heard
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

fn tone(rate: u32, ms: usize) -> Vec<i16> {
    let step = 440.0 * std::f64::consts::TAU / f64::from(rate);
    (0..rate as usize * ms / 1_000).map(|i| ((i as f64 * step).sin() * 10_000.0) as i16).collect()
}

/// Milliseconds with sound in them. Gaps do not count: the sound server may be late on a busy
/// machine.
fn sounding_ms(samples: &[i16]) -> u64 {
    let loud = |block: &&[i16]| block.iter().any(|sample| sample.unsigned_abs() > 300);
    samples.chunks(RATE as usize / 1_000).filter(loud).count() as u64
}

/// Of the sounding milliseconds put together.
fn frequency(samples: &[i16], rate: u32) -> f64 {
    let loud: Vec<i16> = samples
        .chunks_exact(rate as usize / 1_000)
        .filter(|block| block.iter().any(|sample| sample.unsigned_abs() > 300))
        .flatten()
        .copied()
        .collect();
    let crossings = loud.windows(2).filter(|pair| (pair[0] < 0) != (pair[1] < 0)).count();
    crossings as f64 / 2.0 * f64::from(rate) / loud.len() as f64
}

/// Records what the loudspeaker plays.
struct Recorder {
    child: Child,
    file: tempfile::NamedTempFile,
}

impl Recorder {
    fn start() -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rate = format!("--rate={RATE}");
        let args =
            ["-d", "spk.monitor", "--format=s16le", &rate, "--channels=1", "--latency-msec=20"];
        let child =
            Command::new("parec").args(args).stdout(file.reopen().unwrap()).spawn().unwrap();
        // It records once it delivers.
        let deadline = Instant::now() + Duration::from_secs(10);
        while file.as_file().metadata().unwrap().len() == 0 {
            assert!(Instant::now() < deadline, "parec delivers nothing");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { child, file }
    }

    fn stop(mut self) -> Vec<i16> {
        std::thread::sleep(Duration::from_millis(200));
        // Asked to end, it writes what it has first.
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap();
        let bytes = std::fs::read(self.file.path()).unwrap();
        bytes.chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect()
    }
}

/// Speaks into the microphone. Far ahead: on a busy machine a short lead leaves gaps.
fn speak(samples: &[i16]) -> Child {
    let rate = format!("--rate={RATE}");
    let args =
        ["--raw", "-d", "mic", "--format=s16le", &rate, "--channels=1", "--latency-msec=300"];
    let mut child = Command::new("paplay").args(args).stdin(Stdio::piped()).spawn().unwrap();
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    child
}

/// A daemon that ends with the test.
struct SoundServer {
    dir: tempfile::TempDir,
    address: String,
}

impl SoundServer {
    fn start() -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/audio/pulse-up.sh");
        let dir = tempfile::tempdir().unwrap();
        let started = Command::new(script).arg(dir.path()).output().unwrap();
        let error = String::from_utf8_lossy(&started.stderr).into_owned();
        assert!(started.status.success(), "{error}");
        let address = String::from_utf8(started.stdout).unwrap().trim().to_owned();
        Self { dir, address }
    }
}

impl Drop for SoundServer {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.dir.path().join("pid")) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
    }
}

fn beside_a_sound_server(test: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let server = SoundServer::start();
    as_child(test, &server.address, body);
}

/// Runs `body` in a process of its own whose sound server is at `address`.
fn as_child(test: &str, address: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, "1")
        .env("PULSE_SERVER", address)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&[child.stdout, child.stderr].concat()).into_owned();
    assert!(child.status.success(), "{told}");
    assert!(told.contains("1 passed"), "the test is not called {test}: {told}");
}
