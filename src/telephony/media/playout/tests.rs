use super::*;
use crate::telephony::dialect::{Carrier, DialectOptions, dialect};

const PCMU: AudioFormat = AudioFormat::Mulaw8k;
const SLIN: AudioFormat = AudioFormat::pcm16(8_000);
const ONE: Generation = Generation(1);
const TWO: Generation = Generation(2);

fn playout(carrier: Carrier) -> Playout {
    let format = if carrier == Carrier::AudioSocket { SLIN } else { PCMU };
    Playout::new(format, dialect(carrier, &DialectOptions::default()).capabilities())
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A call whose audio and marks go nowhere.
struct Line {
    playout: Playout,
    start: Instant,
    now: Instant,
    sent: Vec<(u64, Send)>,
}

impl Line {
    fn new(carrier: Carrier) -> Self {
        let start = Instant::now();
        Self { playout: playout(carrier), start, now: start, sent: Vec::new() }
    }

    fn at(&self) -> u64 {
        self.now.duration_since(self.start).as_millis() as u64
    }

    /// Writes as the session does: as there is room.
    fn say(&mut self, generation: Generation, total_ms: usize) {
        let format = self.playout.format();
        let samples = total_ms * 8;
        let mut left = samples;
        while left > 0 {
            let now = self.playout.room().min(left);
            if now == 0 {
                self.pass(20);
                continue;
            }
            let audio = AudioFrame::new(format, vec![7; now * format.bytes_per_sample()]);
            self.playout.write(generation, &audio, self.now).unwrap();
            left -= now;
            self.pump();
        }
        self.playout.finish(generation, self.now).unwrap();
        self.pump();
    }

    fn pump(&mut self) {
        while let Some(send) = self.playout.poll_send(self.now) {
            let at = self.at();
            self.sent.push((at, send));
        }
    }

    /// Lets time pass, waking up exactly when the playout wants to.
    fn pass(&mut self, span: u64) {
        let until = self.now + ms(span);
        while let Some(next) = self.playout.next_send().filter(|next| *next <= until) {
            self.now = next.max(self.now);
            self.pump();
        }
        self.now = until;
        self.pump();
    }

    /// The same, and marks come back when the caller has heard what is before them: one each 400 ms,
    /// 100 ms after their audio.
    fn pass_marked(&mut self, span: u64) {
        let due = |line: &Self| (line.at().saturating_sub(100) / 400) as usize;
        for _ in 0..span / 100 {
            let before = due(self);
            self.pass(100);
            for name in self.marks().iter().take(due(self)).skip(before) {
                self.playout.marked(name, self.now);
            }
        }
    }

    fn audio_ms(&self) -> usize {
        let width = self.playout.format().bytes_per_sample();
        let bytes = self.sent.iter().map(|(_, send)| match send {
            Send::Audio(audio) => audio.data.len(),
            _ => 0,
        });
        bytes.sum::<usize>() / width / 8
    }

    fn marks(&self) -> Vec<String> {
        let names = self.sent.iter().filter_map(|(_, send)| match send {
            Send::Mark(name) => Some(name.clone()),
            _ => None,
        });
        names.collect()
    }

    fn heard_ms(&self) -> Option<u64> {
        self.playout.position(self.now).map(|played| played.samples / 8)
    }
}

#[test]
fn a_carrier_that_paces_is_kept_three_seconds_ahead_and_no_more() {
    let mut line = Line::new(Carrier::Twilio);
    line.say(ONE, 3_900);
    assert!((3_000..=3_120).contains(&line.audio_ms()), "{}", line.audio_ms());
    line.pass(1_000);
    assert_eq!(line.audio_ms(), 3_900);
}

#[test]
fn where_we_pace_a_quantum_goes_out_each_twenty_milliseconds_without_drift() {
    let mut line = Line::new(Carrier::AudioSocket);
    line.say(ONE, 60_000);
    line.pass(2_000);
    let times: Vec<u64> = line.sent.iter().map(|(at, _)| *at).collect();
    assert_eq!(times.len(), 3_000);
    assert!(line.sent.iter().all(|(_, send)| matches!(send, Send::Audio(a) if a.samples() == 160)));
    for (n, at) in times.iter().enumerate().skip(3) {
        assert_eq!(*at, (n as u64 - 2) * 20, "quantum {n}");
    }
    assert_eq!(line.playout.stats().skipped, 0);
}

#[test]
fn a_late_wake_up_is_made_up_for_and_a_long_stall_is_skipped() {
    let mut line = Line::new(Carrier::AudioSocket);
    line.playout.write(ONE, &AudioFrame::new(SLIN, vec![0; 16_000]), line.now).unwrap();
    line.pump();
    assert_eq!(line.audio_ms(), 60);
    line.now += ms(50);
    line.pump();
    assert_eq!((line.audio_ms(), line.playout.stats().skipped), (100, 0));
    line.now += ms(300);
    line.pump();
    assert_eq!(line.audio_ms(), 160, "no burst of what was missed");
    assert!(line.playout.stats().skipped >= 10);
}

#[test]
fn a_remainder_waits_for_more_and_is_filled_with_silence_once() {
    let mut line = Line::new(Carrier::Twilio);
    line.playout.write(ONE, &AudioFrame::new(PCMU, vec![7; 250]), line.now).unwrap();
    line.pump();
    assert_eq!(line.audio_ms(), 20);
    line.playout.write(ONE, &AudioFrame::new(PCMU, vec![7; 100]), line.now).unwrap();
    line.pump();
    assert_eq!(line.audio_ms(), 40);
    line.playout.finish(ONE, line.now).unwrap();
    line.pump();
    let Some((_, Send::Audio(last))) =
        line.sent.iter().rev().find(|(_, send)| matches!(send, Send::Audio(_)))
    else {
        panic!("no audio")
    };
    assert_eq!(last.data[..30], [7; 30]);
    assert_eq!(last.data[30..], [0xff; 130]);
    let name = line.marks().pop().unwrap();
    line.now += ms(200);
    line.playout.marked(&name, line.now);
    let news = line.playout.news(line.now).unwrap();
    assert_eq!((news.samples, news.complete), (350, true), "silence is not counted as heard");
}

#[test]
fn what_was_heard_is_told_by_the_clock_and_corrected_by_marks() {
    let mut line = Line::new(Carrier::Twilio);
    line.say(ONE, 2_000);
    assert_eq!(line.marks().len(), 5, "each 400 ms");
    assert_eq!(line.heard_ms(), Some(0));
    line.pass(600);
    assert_eq!(line.heard_ms(), Some(500), "100 ms are the way there");
    // The line is slower than thought.
    let first = line.marks()[0].clone();
    line.playout.marked(&first, line.now);
    assert_eq!(line.heard_ms(), Some(400));
    let at = line.playout.position(line.now).unwrap();
    assert_eq!(at.source, PositionSource::CarrierMark);
    line.pass(100);
    assert_eq!(line.heard_ms(), Some(500));
    line.pass(5_000);
    assert_eq!(line.heard_ms(), Some(1_000), "no further mark came: the line is stalled");
}

#[test]
fn trial_b06_everything_is_sent_and_the_caller_still_gets_silence_at_once() {
    let mut line = Line::new(Carrier::Twilio);
    line.say(ONE, 2_900);
    assert_eq!(line.audio_ms(), 2_900);
    line.pass_marked(1_100);
    let heard = line.playout.clear(TWO, line.now).unwrap();
    assert_eq!((heard.generation, heard.samples / 8, heard.complete), (ONE, 1_000, false));
    line.pump();
    assert_eq!(line.sent.last().unwrap().1, Send::Clear);
    // The carrier answers the marks behind what it cleared: no proof of anything.
    let before = line.playout.stats();
    for name in line.marks() {
        line.playout.marked(&name, line.now);
    }
    assert_eq!(line.playout.stats().marks_heard, before.marks_heard);
    assert_eq!(line.playout.news(line.now), None);
    // A second clear has nothing to clear.
    line.playout.clear(Generation(3), line.now);
    assert_eq!(line.playout.poll_send(line.now), None);
}

#[test]
fn audio_of_a_cleared_reply_is_stale_and_the_next_one_plays() {
    let mut line = Line::new(Carrier::Telnyx);
    line.say(ONE, 500);
    line.playout.clear(TWO, line.now);
    let audio = AudioFrame::new(PCMU, vec![7; 160]);
    assert_eq!(line.playout.write(ONE, &audio, line.now), Err(SinkError::Stale));
    line.pump();
    line.sent.clear();
    line.say(TWO, 500);
    assert_eq!(line.audio_ms(), 500);
    assert_eq!(line.playout.stats().stale, 1);
}

#[test]
fn a_mark_that_never_comes_keeps_nobody_waiting() {
    let mut line = Line::new(Carrier::Asterisk);
    line.say(ONE, 500);
    assert_eq!(line.playout.news(line.now + ms(600)), None, "a mark may still come");
    let due = line.playout.next_news().unwrap();
    assert!(due > line.now + ms(2_000) && due < line.now + ms(3_000));
    line.now = due + ms(200);
    let news = line.playout.news(line.now).unwrap();
    assert!(news.complete && news.samples == 4_000);
    assert!(matches!(news.source, PositionSource::Estimate { .. }));
    assert!(line.playout.stats().marks_lost > 0);
}

#[test]
fn a_pause_takes_back_what_is_not_heard_and_goes_on_at_that_sample() {
    let mut line = Line::new(Carrier::Twilio);
    line.say(ONE, 2_000);
    line.pass_marked(1_100);
    line.playout.pause(line.now);
    line.pump();
    assert_eq!(line.sent.last().unwrap().1, Send::Clear);
    assert_eq!(line.heard_ms(), Some(1_000));
    line.pass(3_000);
    assert_eq!(line.heard_ms(), Some(1_000));
    line.sent.clear();
    line.playout.resume(line.now);
    line.pump();
    assert_eq!(line.audio_ms(), 1_000, "the second half again");
    line.pass(600);
    assert_eq!(line.heard_ms(), Some(1_500));
    let name = line.marks().pop().unwrap();
    line.pass(500);
    line.playout.marked(&name, line.now);
    let news = line.playout.news(line.now).unwrap();
    assert!(news.complete && news.samples == 16_000);
}

#[test]
fn a_mark_behind_a_clear_proves_nothing_that_the_clock_said() {
    let mut line = Line::new(Carrier::Twilio);
    line.say(ONE, 2_000);
    // No mark has come back.
    line.pass(1_100);
    line.playout.pause(line.now);
    line.pump();
    assert_eq!(line.sent.last().unwrap().1, Send::Clear);
    let heard = line.playout.position(line.now).unwrap();
    assert!(heard.samples > 0 && heard.source != PositionSource::CarrierMark, "{heard:?}");
    line.sent.clear();
    line.playout.resume(line.now);
    line.pump();
    assert!(matches!(line.sent[0].1, Send::Audio(_)), "no mark before the next audio");
    let again = line.playout.position(line.now).unwrap();
    assert_eq!((again.samples, again.source), (heard.samples, heard.source));
}

#[test]
fn a_carrier_that_takes_nothing_is_waited_for_and_told_to_forget_all_the_same() {
    let mut line = Line::new(Carrier::Asterisk);
    line.playout.write(ONE, &AudioFrame::new(PCMU, vec![7; 1_600]), line.now).unwrap();
    line.pump();
    line.playout.set_open(false);
    line.playout.write(ONE, &AudioFrame::new(PCMU, vec![7; 1_600]), line.now).unwrap();
    line.pump();
    assert_eq!(line.audio_ms(), 200);
    line.playout.clear(TWO, line.now);
    line.pump();
    assert_eq!(line.sent.last().unwrap().1, Send::Clear);
}

#[test]
fn without_marks_the_clock_says_when_a_reply_was_heard() {
    let mut line = Line::new(Carrier::AudioSocket);
    line.say(ONE, 100);
    line.pass(100);
    assert_eq!(line.playout.news(line.now), None);
    let due = line.playout.next_news().unwrap();
    assert_eq!(due.duration_since(line.start), ms(160), "100 of audio and 60 on the way");
    let news = line.playout.news(due).unwrap();
    assert!(news.complete && news.samples == 800);
    assert!(line.playout.is_idle());
}

proptest::proptest! {
    /// Whatever is written, cleared, paused and marked: what was heard is never more than was written
    /// and sent. (A mark that is late may prove less than the clock had said.)
    #[test]
    fn the_ledger_never_tells_more_than_was_sent(
        steps in proptest::collection::vec((0_u8..7, 0_usize..2_000, 0_u64..300), 0..120),
        carrier in proptest::sample::select(Carrier::ALL.to_vec()),
    ) {
        let mut line = Line::new(carrier);
        let width = line.playout.format().bytes_per_sample();
        let (mut generation, mut written) = (1_u64, 0_u64);
        for (step, size, pause) in steps {
            match step {
                0 | 1 => {
                    let samples = size.min(line.playout.room());
                    let audio = AudioFrame::new(line.playout.format(), vec![7; samples * width]);
                    if line.playout.write(Generation(generation), &audio, line.now).is_ok() {
                        written += samples as u64;
                    }
                }
                2 => {
                    let _ = line.playout.finish(Generation(generation), line.now);
                    generation += 1;
                    written = 0;
                }
                3 => {
                    generation += 1;
                    line.playout.clear(Generation(generation), line.now);
                    written = 0;
                }
                4 => line.playout.pause(line.now),
                5 => line.playout.resume(line.now),
                _ => if let Some(name) = line.marks().pop() {
                    line.playout.marked(&name, line.now);
                },
            }
            line.pass(pause);
            while line.playout.news(line.now).is_some() {}
            if let Some(played) = line.playout.position(line.now)
                && played.generation == Generation(generation)
            {
                proptest::prop_assert!(played.samples <= written);
            }
        }
    }
}
