use antiphon_audio::{AudioSink, Generation, SinkError};
use antiphon_testkit::Speaker;
use antiphon_types::{AudioFormat, AudioFrame};
use std::time::Instant;

fn frame(value: i16, samples: usize) -> AudioFrame {
    AudioFrame::from_pcm16(24_000, &vec![value; samples])
}

#[test]
fn it_plays_what_the_test_says_and_clears_the_rest() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _guard = runtime.enter();
    let (mut speaker, control) = Speaker::new(AudioFormat::pcm16(24_000), 1_000);
    let now = Instant::now();
    speaker.write(Generation(1), &frame(7, 400), now).unwrap();
    speaker.write(Generation(2), &frame(8, 100), now).unwrap();
    assert_eq!(speaker.room(now), 500);
    assert_eq!(control.play(150), 150);
    let played = speaker.clear(Generation(3), now).unwrap().unwrap();
    assert_eq!((played.generation, played.samples), (Generation(1), 150));
    assert_eq!(speaker.write(Generation(2), &frame(9, 1), now), Err(SinkError::Stale));
    speaker.write(Generation(3), &frame(5, 10), now).unwrap();
    speaker.finish(Generation(3), now).unwrap();
    assert_eq!(control.play_all(), 10);
    assert_eq!(control.heard_samples(), [vec![7; 150], vec![5; 10]].concat());
}
