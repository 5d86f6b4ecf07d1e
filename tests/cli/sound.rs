//! What can be heard in the output file.

use crate::program::{Program, Run};

/// Whether anything sounds in a span of the file, in milliseconds.
fn sounds(run: &Run, file: &str, from_ms: u64, to_ms: u64) -> bool {
    let (samples, rate) = run.samples(file);
    let at = |ms: u64| ((ms * u64::from(rate) / 1_000) as usize).min(samples.len());
    samples[at(from_ms)..at(to_ms)].iter().any(|sample| sample.unsigned_abs() > 500)
}

#[test]
fn a_timer_rings_in_the_file_and_as_an_event() {
    let run = Program::talk().question("timer.wav").args(["--output", "out.wav"]).run().ok();
    let set = run.one("tool_result");
    assert_eq!(set["response"]["duration"], 3.0, "{set}");
    let ring = run.one("timer")["t_ms"].as_u64().unwrap();
    let after = ring - set["t_ms"].as_u64().unwrap();
    assert!((2_900..=3_200).contains(&after), "it rang after {after} ms");
    assert!(!sounds(&run, "out.wav", ring - 100, ring), "there is sound before it rings");
    assert!(sounds(&run, "out.wav", ring, ring + 500), "it does not ring");
    assert!(run.said().last().unwrap().contains("timer is done"), "{:?}", run.said());
}

#[test]
fn the_file_is_the_time_line_of_the_session() {
    let run = Program::talk().question("time.wav").args(["--output", "out.wav"]).run().ok();
    let (samples, rate) = run.samples("out.wav");
    let length_ms = samples.len() as u64 * 1_000 / u64::from(rate);
    let end_ms = run.events.last().unwrap()["t_ms"].as_u64().unwrap();
    assert!(length_ms.abs_diff(end_ms) < 200, "{length_ms} ms of a session of {end_ms} ms");
    let started = run.of("playback_started")[0]["t_ms"].as_u64().unwrap();
    let finished = run.of("playback_finished")[0]["t_ms"].as_u64().unwrap();
    assert!(!sounds(&run, "out.wav", 0, started), "sound before the answer");
    assert!(sounds(&run, "out.wav", started, finished), "no sound in the answer");
}

#[test]
fn a_cut_answer_is_silent_at_once() {
    let path = crate::program::bundled("time.wav");
    let run = Program::talk()
        .text("convert ten miles to kilometers")
        .args(["--barge-in", &format!("{}@300", path.display()), "--output", "out.wav"])
        .run()
        .ok();
    let cut = run.of("interrupted")[0]["t_ms"].as_u64().unwrap();
    let next = run.of("playback_started")[1]["t_ms"].as_u64().unwrap();
    assert!(sounds(&run, "out.wav", cut - 200, cut), "nothing was cut");
    assert!(!sounds(&run, "out.wav", cut + 40, next), "it goes on after it was cut");
}
