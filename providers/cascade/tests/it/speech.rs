//! The ears hear what the mouth says.

use std::{
    f32::consts::TAU,
    fs,
    path::{Path, PathBuf},
};

use antiphon_audio::{Resampler, SpeechDetector};
use antiphon_cascade::{
    Recognizer, SpeechRequest, Synthesizer, Utterance,
    offline::{Detector, OfflineError, OfflineOptions, OfflineSpeech},
};
use antiphon_types::{AudioFormat, AudioFrame, Status};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

fn models_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// One set of models for all tests of this binary.
async fn parts() -> &'static OfflineSpeech {
    static PARTS: OnceCell<OfflineSpeech> = OnceCell::const_new();
    PARTS
        .get_or_init(|| async {
            let mut options = OfflineOptions::default();
            options.models = Some(models_path());
            OfflineSpeech::load(options).await.unwrap()
        })
        .await
}

async fn say(text: &str) -> Vec<i16> {
    let stream = parts().await.synthesizer.synthesize(SpeechRequest::new(text)).await.unwrap();
    let frames: Vec<AudioFrame> = stream.try_collect().await.unwrap();
    let mut samples = Vec::new();
    for frame in frames {
        assert_eq!(frame.format, AudioFormat::pcm16(24_000));
        samples.extend(frame.data.as_chunks::<2>().0.iter().map(|pair| i16::from_le_bytes(*pair)));
    }
    samples
}

fn for_the_ears(samples: &[i16]) -> Vec<i16> {
    let mut resampler = Resampler::new(24_000, 16_000).unwrap();
    let mut out = Vec::new();
    resampler.process(samples, &mut out);
    resampler.flush(&mut out);
    out
}

async fn hear(samples: &[i16]) -> String {
    let audio = AudioFrame::from_pcm16(16_000, samples);
    parts().await.recognizer.recognize(Utterance::new(audio)).await.unwrap().text
}

async fn echo(text: &str) -> String {
    hear(&for_the_ears(&say(text).await)).await
}

fn words(text: &str) -> Vec<String> {
    text.to_lowercase()
        .replace('-', " ")
        .split_whitespace()
        .map(|word| {
            word.chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ':' | '$' | '%' | '.'))
                .collect::<String>()
        })
        .map(|word| word.trim_matches(['.', ':']).to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// Words that must be changed to make one text of the other.
fn word_errors(spoken: &str, heard: &str) -> usize {
    let (spoken, heard) = (words(spoken), words(heard));
    let mut row: Vec<usize> = (0..=heard.len()).collect();
    for (i, word) in spoken.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in heard.iter().enumerate() {
            let change = diagonal + usize::from(word != other);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[heard.len()]
}

#[tokio::test]
async fn what_is_spoken_is_heard() {
    let sentences = [
        "Set a timer for five minutes.",
        "What time is it in London?",
        "Please turn on the lights in the kitchen.",
        "Your timer is ready.",
        "I am sorry, I did not understand that.",
        "Tell me what the weather will be tomorrow.",
        "I have added milk to your shopping list.",
        "You are allowed to send money to your brother.",
        "The quick brown fox jumps over the lazy dog.",
        "Remind me to call the doctor on Friday.",
    ];
    let (mut errors, mut total) = (0, 0);
    for sentence in sentences {
        let heard = echo(sentence).await;
        let wrong = word_errors(sentence, &heard);
        println!("{wrong} {sentence:?} -> {heard:?}");
        errors += wrong;
        total += words(sentence).len();
    }
    assert!(errors * 100 <= total * 8, "{errors} of {total} words are wrong");
}

#[tokio::test]
async fn numbers_times_and_money_are_said_in_words() {
    // The recogniser writes some of them in digits again: each may come back in several ways.
    let cases: [(&str, &[&str]); 8] = [
        ("The alarm is set for 7:30.", &["seven thirty", "7:30", "730"]),
        ("That makes $5.50.", &["five dollars and fifty cents", "$5.50"]),
        ("It is 21°C outside.", &["twenty one degrees", "21 degrees", "21°"]),
        ("12 km are about 7.5 miles.", &["twelve kilomet", "12 kilomet", "12 km"]),
        ("You have 3 messages.", &["three messages", "3 messages"]),
        ("The answer is 42%.", &["forty two percent", "42 percent", "42%"]),
        ("It was built in 1984.", &["nineteen eighty four", "1984"]),
        ("Dr. Smith lives at No. 9.", &["doctor smith", "dr smith", "dr. smith"]),
    ];
    for (text, expected) in cases {
        let heard = echo(text).await;
        println!("{text:?} -> {heard:?}");
        let heard = heard.to_lowercase().replace('-', " ");
        assert!(expected.iter().any(|way| heard.contains(way)), "{text:?} came back as {heard:?}");
    }
}

#[tokio::test]
async fn the_same_text_gives_the_same_samples() {
    assert_eq!(say("Good morning.").await, say("Good morning.").await);
}

#[tokio::test]
async fn speech_is_streamed_by_sentence_and_long_ones_by_clause() {
    let pieces = async |text: &str| {
        let stream = parts().await.synthesizer.synthesize(SpeechRequest::new(text)).await.unwrap();
        stream.map(|frame| frame.unwrap().duration()).collect::<Vec<_>>().await
    };
    assert_eq!(pieces("Good morning. How are you? I am well.").await.len(), 3);
    let long = "When the evening comes and all the lamps are lit along the river, \
                the boats return one by one to the harbour, and the people who waited on the \
                quay since noon go home together, tired but content with what they have seen.";
    assert!(pieces(long).await.len() > 1);
}

#[tokio::test]
async fn what_has_no_sound_is_silence_not_an_error() {
    for text in ["", "   ", "...", "🎸 🎸", "()", "\u{0}\u{1}"] {
        assert!(say(text).await.is_empty(), "{text:?}");
    }
}

#[tokio::test]
async fn unknown_and_foreign_words_have_a_sound() {
    for text in ["xqzzt", "Zürich", "Brandybuck", "GPT-4o", "Ωμέγα", "naïve café"] {
        assert!(say(text).await.len() > 24_000 / 5, "{text:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_said_is_refused() {
    let mouth = &parts().await.synthesizer;
    let refused = async |request| mouth.synthesize(request).await.err().unwrap().status;

    let mut voice = SpeechRequest::new("Hello.");
    voice.voice = Some("nobody".into());
    assert_eq!(refused(voice).await, Status::NotFound);

    let mut locale = SpeechRequest::new("Hallo.");
    locale.locale = Some("de-DE".into());
    assert_eq!(refused(locale).await, Status::Unimplemented);

    assert_eq!(refused(SpeechRequest::new("a ".repeat(1 << 16))).await, Status::InvalidArgument);
}

#[tokio::test]
async fn silence_and_nothing_are_no_words() {
    assert_eq!(hear(&[]).await, "");
    assert_eq!(hear(&[0; 16_000]).await, "");
    assert_eq!(hear(&[3; 10]).await, "");
}

#[tokio::test]
async fn audio_in_the_wrong_format_is_refused() {
    let audio = AudioFrame::from_pcm16(8_000, &[0; 800]);
    let error = parts().await.recognizer.recognize(Utterance::new(audio)).await.unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(error.message.contains("16000"), "{error}");
}

#[tokio::test]
async fn a_speech_of_more_than_thirty_seconds_is_heard_to_its_end() {
    let sentence = for_the_ears(&say("The boats return to the harbour in the evening.").await);
    let mut speech = Vec::new();
    while speech.len() < 36 * 16_000 {
        speech.extend_from_slice(&sentence);
        speech.extend_from_slice(&[0; 8_000]);
    }
    let said = speech.len() / (sentence.len() + 8_000);
    let heard = hear(&speech).await.to_lowercase();
    let count = heard.matches("evening").count();
    assert!(count + 1 >= said && count <= said, "{said} times, heard {heard:?}");
}

/// The share of a detector's frames that it takes for speech, in percent.
fn voiced(detector: &mut dyn SpeechDetector, samples: &[i16]) -> usize {
    let frames: Vec<bool> = samples
        .chunks_exact(detector.frame_samples())
        .map(|frame| detector.score(frame) > 0.5)
        .collect();
    frames.iter().filter(|voiced| **voiced).count() * 100 / frames.len()
}

#[tokio::test]
async fn speech_is_told_from_noise_and_tones() {
    let mut detector = parts().await.detector();
    assert_eq!(detector.sample_rate_hz(), 16_000);
    let speech = for_the_ears(&say("Please set a timer for twenty five minutes.").await);
    let mut state = 1_u32;
    let noise: Vec<i16> = (0..32_000)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as i16) / 16
        })
        .collect();
    let tone: Vec<i16> =
        (0..32_000).map(|i| ((i as f32 * TAU * 440.0 / 16_000.0).sin() * 8_000.0) as i16).collect();

    assert!(voiced(&mut *detector, &speech) > 70);
    detector.reset();
    assert_eq!(voiced(&mut *detector, &[0; 16_000]), 0);
    detector.reset();
    assert!(voiced(&mut *detector, &noise) < 10);
    detector.reset();
    assert!(voiced(&mut *detector, &tone) < 10);
}

#[tokio::test]
async fn detectors_do_not_share_their_state() {
    let speech = for_the_ears(&say("One, two, three.").await);
    let scores = |detector: &mut dyn SpeechDetector| {
        speech.chunks_exact(512).map(|frame| detector.score(frame)).collect::<Vec<_>>()
    };
    let (mut one, mut other) = (parts().await.detector(), parts().await.detector());
    let alone = scores(&mut *one);
    one.reset();
    let mut together = Vec::new();
    for frame in speech.chunks_exact(512) {
        together.push(one.score(frame));
        other.score(&[0; 512]);
        assert_eq!(other.score(&frame[..100]), 0.0);
    }
    assert_eq!(alone, together);
}

#[tokio::test]
async fn a_directory_without_models_is_refused_with_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = OfflineOptions::default();
    options.models = Some(directory.path().into());
    let error = OfflineSpeech::load(options).await.unwrap_err();
    assert!(matches!(error, OfflineError::ModelMissing { .. }), "{error}");
    assert_eq!(error.status(), Status::NotFound);
    assert!(error.to_string().contains(&directory.path().display().to_string()));
}

#[tokio::test]
async fn a_corrupt_model_is_refused_with_both_sums() {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(models_path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, directory.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let broken = directory.path().join("moonshine-tiny-en.encoder.onnx.zst");
    let mut bytes = fs::read(&broken).unwrap();
    bytes[1_000_000] ^= 1;
    fs::write(&broken, bytes).unwrap();

    let mut options = OfflineOptions::default();
    options.models = Some(directory.path().into());
    options.detector = Detector::Earshot;
    match OfflineSpeech::load(options).await.unwrap_err() {
        OfflineError::ModelCorrupt { path, expected, got } => {
            assert_eq!(path, broken);
            assert_ne!(expected, got);
            assert_eq!((expected.len(), got.len()), (64, 64));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_paused_clock_stands_still_while_models_run() {
    let before = tokio::time::Instant::now();
    let heard = echo("Good evening.").await;
    assert_eq!(heard, "Good evening.");
    assert_eq!(before.elapsed().as_millis(), 0);
}
