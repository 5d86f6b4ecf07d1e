//! Ogg Opus files as `opusinfo` and `opusdec` (Debian package `opus-tools`) see them.

use std::{path::Path, process::Command};

use antiphon_audio::{
    AudioFrame,
    opus::{OggOpusWriter, OpusOptions},
};

fn tone(rate: u32, samples: usize) -> Vec<i16> {
    let step = 440.0 * std::f64::consts::TAU / f64::from(rate);
    (0..samples).map(|i| ((i as f64 * step).sin() * 8_000.0) as i16).collect()
}

fn write(path: &Path, rate: u32, samples: &[i16]) {
    let mut writer = OggOpusWriter::create(path, rate, OpusOptions::default()).unwrap();
    for piece in samples.chunks(1_000) {
        writer.write(&AudioFrame::from_pcm16(rate, piece)).unwrap();
    }
    writer.finish().unwrap();
}

fn run(tool: &str, args: &[&Path]) -> String {
    let output = Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{tool} of the package opus-tools: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{tool}: {text}");
    text
}

#[test]
fn opusinfo_finds_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    for (rate, samples) in [(8_000, 1), (16_000, 64_000), (24_000, 24_001), (48_000, 150_000)] {
        let path = dir.path().join(format!("{rate}.opus"));
        write(&path, rate, &tone(rate, samples));
        let report = run("opusinfo", &[&path]);
        let report = report.to_lowercase();
        assert!(!report.contains("warning") && !report.contains("error"), "{rate} Hz: {report}");
        assert!(report.contains(&format!("original sample rate: {rate} hz")), "{report}");
        assert!(report.contains("channels: 1"), "{report}");
    }
}

#[test]
fn an_empty_file_is_a_file_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.opus");
    write(&path, 16_000, &[]);
    let report = run("opusinfo", &[&path]).to_lowercase();
    assert!(!report.contains("warning") && !report.contains("error"), "{report}");
}

#[test]
fn opusdec_decodes_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let (opus, wav) = (dir.path().join("tone.opus"), dir.path().join("tone.wav"));
    let written = tone(48_000, 48_000);
    write(&opus, 48_000, &written);
    run("opusdec", &[Path::new("--quiet"), Path::new("--force-wav"), &opus, &wav]);
    let bytes = std::fs::read(&wav).unwrap();
    let data = bytes.windows(4).position(|tag| tag == b"data").unwrap() + 8;
    let decoded: Vec<i16> =
        bytes[data..].chunks_exact(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(decoded.len(), written.len(), "pre-skip and padding are cut");
    let dot = |a: &[i16], b: &[i16]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    // Past the start, where the coder still adapts.
    let (a, b) = (&written[9_600..], &decoded[9_600..]);
    let same = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    assert!(same > 0.9, "in step with what was written: {same}");
}
