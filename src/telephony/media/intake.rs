//! From the packets of a carrier to a stream without gaps.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use antiphon_audio::{AudioFormat, AudioFrame};

use super::conceal;
use crate::telephony::dialect::{Capabilities, Media};

/// A packet that does not come is waited for so long while later ones are there.
const REORDER: Duration = Duration::from_millis(60);
/// Packets that wait for an earlier one, at most.
const MAX_WAITING: usize = 16;
/// A lost piece of up to this length is concealed, a longer one is silence.
const CONCEAL: Duration = Duration::from_millis(60);
/// Time stamps and samples may differ by so much: carriers round.
const SLACK: Duration = Duration::from_millis(15);
/// A jump of more than this is a new time line and no loss.
const RESYNC: Duration = Duration::from_secs(10);
/// Without media for so long, time goes on by itself: for a carrier that sends no silence, and for
/// one that should.
const QUIET: Duration = Duration::from_millis(100);
const STALLED: Duration = Duration::from_millis(500);
/// By so much time goes on at once then.
const TICK: Duration = Duration::from_millis(20);
/// The length of audio by which lost audio is continued: a pitch period or two.
const CONTEXT: Duration = Duration::from_millis(10);

/// Makes a gapless stream of the packets of one caller. Its clock is the count of samples: a jump of
/// time stamps is filled, so that speech keeps its place in time; packets that come out of order wait
/// for each other, for a little while; and where nothing comes, silence does, so that turns end.
#[derive(Debug)]
pub struct Intake {
    format: AudioFormat,
    ordered: bool,
    /// How long nothing may come before time goes on by itself; packets that are longer are waited for
    /// longer.
    quiet: Duration,
    /// Samples so far, fillings included.
    samples: u64,
    /// What time stamp belongs to the first sample, in nanoseconds; it may be before the carrier's
    /// zero.
    origin: Option<i128>,
    next_sequence: Option<u64>,
    waiting: BTreeMap<u64, (Media, Instant)>,
    /// When media came last, or time went on by itself.
    last: Option<Instant>,
    /// Silence that was put in because nothing came, and may turn out to have been a stall.
    borrowed: u64,
    context: Vec<i16>,
    ready: VecDeque<Segment>,
    stats: IntakeStats,
}

/// A piece of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The audio.
    pub audio: AudioFrame,
    /// Nobody said it: it fills a gap.
    pub filled: bool,
}

/// What an [`Intake`] saw go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct IntakeStats {
    /// Packets.
    pub packets: u64,
    /// Samples of them.
    pub samples: u64,
    /// Samples put in for audio that was lost.
    pub concealed: u64,
    /// Samples of silence put in while nothing came.
    pub silent: u64,
    /// Packets that came in another order than they were sent.
    pub reordered: u64,
    /// Packets that came too late, or twice, and were dropped.
    pub dropped: u64,
    /// Packets that came before anybody answered, and are not among the newest, which are kept.
    pub early: u64,
    /// Jumps of the carrier's clock that are no loss.
    pub resyncs: u64,
}

impl std::ops::AddAssign for IntakeStats {
    fn add_assign(&mut self, other: Self) {
        self.packets += other.packets;
        self.samples += other.samples;
        self.concealed += other.concealed;
        self.silent += other.silent;
        self.reordered += other.reordered;
        self.dropped += other.dropped;
        self.early += other.early;
        self.resyncs += other.resyncs;
    }
}

impl Intake {
    /// For audio in `format` from a carrier with these `capabilities`.
    pub fn new(format: AudioFormat, capabilities: &Capabilities) -> Self {
        Self {
            format,
            ordered: capabilities.ordered,
            quiet: if capabilities.sends_silence { STALLED } else { QUIET },
            samples: 0,
            origin: None,
            next_sequence: None,
            waiting: BTreeMap::new(),
            last: None,
            borrowed: 0,
            context: Vec::new(),
            ready: VecDeque::new(),
            stats: IntakeStats::default(),
        }
    }

    /// What went by so far.
    pub fn stats(&self) -> IntakeStats {
        self.stats
    }

    /// The length of the stream so far.
    pub fn media_time(&self) -> Duration {
        self.format.duration_of(self.samples)
    }

    /// A packet came. Audio in another format, or none, is left out.
    pub fn push(&mut self, media: Media, now: Instant) {
        if media.audio.format != self.format || media.audio.is_empty() {
            return;
        }
        self.stats.packets += 1;
        self.stats.samples += media.audio.samples() as u64;
        self.last = Some(now);
        // Two packets and a half: one may be late by its own length.
        self.quiet = self.quiet.max((media.audio.duration() * 5 / 2).min(STALLED));
        match media.sequence.filter(|_| !self.ordered) {
            Some(sequence) => self.sort_in(sequence, media, now),
            None => self.take(media),
        }
    }

    /// Time went on.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_late = |(_, came): &(Media, Instant)| now.duration_since(*came) >= REORDER;
        if self.waiting.values().any(is_late) {
            // What is missing is not waited for any longer.
            if let Some((&first, _)) = self.waiting.first_key_value() {
                self.next_sequence = Some(first);
            }
            self.release();
        }
        let tick = self.format.samples_in(TICK) as usize;
        while let Some(due) = self.quiet_deadline().filter(|due| *due <= now) {
            self.ready
                .push_back(Segment { audio: conceal::silence(self.format, tick), filled: true });
            self.samples += tick as u64;
            self.borrowed += tick as u64;
            self.stats.silent += tick as u64;
            // Absolute: a late wake-up makes no hole.
            self.last = Some(due + TICK - self.quiet);
            if now.duration_since(due) > RESYNC {
                self.last = Some(now);
            }
        }
    }

    /// When to call [`Intake::handle_timeout`].
    pub fn next_deadline(&self) -> Option<Instant> {
        let late = self.waiting.values().map(|(_, came)| *came + REORDER).min();
        [late, self.quiet_deadline()].into_iter().flatten().min()
    }

    /// The next piece of the stream.
    pub fn pop(&mut self) -> Option<Segment> {
        self.ready.pop_front()
    }

    fn quiet_deadline(&self) -> Option<Instant> {
        Some(self.last? + self.quiet)
    }

    fn sort_in(&mut self, sequence: u64, media: Media, now: Instant) {
        let next = *self.next_sequence.get_or_insert(sequence);
        // A carrier that counts anew is another time line.
        let restarted = sequence.saturating_add(1_000) < next;
        if restarted {
            self.stats.resyncs += 1;
            self.origin = None;
            self.next_sequence = Some(sequence);
        } else if sequence < next || self.waiting.contains_key(&sequence) {
            self.stats.dropped += 1;
            return;
        }
        if self.waiting.last_key_value().is_some_and(|(last, _)| *last > sequence) {
            self.stats.reordered += 1;
        }
        self.waiting.insert(sequence, (media, now));
        if self.waiting.len() > MAX_WAITING
            && let Some((&first, _)) = self.waiting.first_key_value()
        {
            self.next_sequence = Some(first);
        }
        self.release();
    }

    /// Takes the packets that nothing is missing before.
    fn release(&mut self) {
        while let Some(next) = self.next_sequence
            && let Some((media, _)) = self.waiting.remove(&next)
        {
            self.next_sequence = Some(next.wrapping_add(1));
            self.take(media);
        }
    }

    /// Appends a packet, and before it what is missing.
    fn take(&mut self, media: Media) {
        if let Some(timestamp) = media.timestamp {
            self.place(timestamp);
        } else {
            self.borrowed = 0;
        }
        let samples = media.audio.samples();
        let context = self.format.samples_in(CONTEXT) as usize;
        let tail = media.audio.slice(samples.saturating_sub(context), samples);
        self.context.clear();
        conceal::decode(&tail, &mut self.context);
        self.samples += samples as u64;
        self.ready.push_back(Segment { audio: media.audio, filled: false });
    }

    /// Fills up to `timestamp`, where that is later than the samples so far.
    fn place(&mut self, timestamp: Duration) {
        let here = self.media_time().as_nanos() as i128;
        let stamp = timestamp.as_nanos() as i128;
        let borrowed = std::mem::take(&mut self.borrowed);
        let Some(origin) = self.origin else {
            self.origin = Some(stamp - here);
            return;
        };
        let (slack, resync) = (SLACK.as_nanos() as i128, RESYNC.as_nanos() as i128);
        let ahead = stamp - (origin + here);
        let borrowed = self.format.duration_of(borrowed).as_nanos() as i128;
        if ahead > resync || ahead < -borrowed - slack {
            self.stats.resyncs += 1;
            self.origin = Some(stamp - here);
        } else if ahead < -slack {
            // The line was stalled and no audio is missing: the silence in between is an addition.
            self.origin = Some(stamp - here);
        } else if ahead > slack {
            self.fill(Duration::from_nanos(ahead as u64));
        }
    }

    fn fill(&mut self, gap: Duration) {
        let samples = self.format.samples_in(gap) as usize;
        let audio = if gap <= CONCEAL {
            conceal::continuation(self.format, &self.context, samples)
        } else {
            conceal::silence(self.format, samples)
        };
        self.samples += samples as u64;
        self.stats.concealed += samples as u64;
        self.ready.push_back(Segment { audio, filled: true });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telephony::dialect::{Carrier, DialectOptions, dialect};

    const PCMU: AudioFormat = AudioFormat::Mulaw8k;

    fn intake(carrier: Carrier) -> Intake {
        Intake::new(PCMU, dialect(carrier, &DialectOptions::default()).capabilities())
    }

    fn packet(sequence: u64, at_ms: u64, ms: usize) -> Media {
        let audio = AudioFrame::new(PCMU, vec![0x20; ms * 8]);
        Media { sequence: Some(sequence), timestamp: Some(Duration::from_millis(at_ms)), audio }
    }

    fn all(intake: &mut Intake) -> Vec<(usize, bool)> {
        std::iter::from_fn(|| intake.pop())
            .map(|segment| (segment.audio.samples() / 8, segment.filled))
            .collect()
    }

    #[test]
    fn a_jump_of_time_stamps_is_filled_so_that_speech_keeps_its_place() {
        let (mut intake, now) = (intake(Carrier::Twilio), Instant::now());
        intake.push(packet(1, 100, 20), now);
        intake.push(packet(2, 120, 20), now);
        intake.push(packet(3, 240, 20), now);
        assert_eq!(all(&mut intake), [(20, false), (20, false), (100, true), (20, false)]);
        assert_eq!(intake.media_time(), Duration::from_millis(160));
        assert_eq!(intake.stats().concealed, 800);
    }

    #[test]
    fn a_short_loss_is_concealed_by_fading_speech_and_a_long_one_is_silence() {
        let (mut intake, now) = (intake(Carrier::Twilio), Instant::now());
        intake.push(packet(1, 0, 20), now);
        intake.push(packet(2, 40, 20), now);
        intake.push(packet(3, 200, 20), now);
        let pieces: Vec<_> = std::iter::from_fn(|| intake.pop()).collect();
        assert!(pieces[1].filled && pieces[3].filled);
        assert!(pieces[1].audio.data.iter().any(|code| *code != 0xff), "goes on for a while");
        assert!(pieces[3].audio.data.iter().all(|code| *code == 0xff));
    }

    #[test]
    fn packets_in_another_order_wait_for_each_other() {
        let (mut intake, now) = (intake(Carrier::Telnyx), Instant::now());
        for (sequence, at) in [(1, 0), (3, 40), (2, 20), (4, 60)] {
            intake.push(packet(sequence, at, 20), now);
        }
        assert_eq!(all(&mut intake), [(20, false); 4]);
        assert_eq!(intake.stats().reordered, 1);
        assert_eq!(intake.stats().concealed, 0);
    }

    #[test]
    fn a_lost_packet_is_waited_for_sixty_milliseconds_and_a_late_one_is_dropped() {
        let (mut intake, now) = (intake(Carrier::Telnyx), Instant::now());
        intake.push(packet(1, 0, 20), now);
        intake.push(packet(3, 40, 20), now);
        assert_eq!(all(&mut intake), [(20, false)]);
        assert_eq!(intake.next_deadline(), Some(now + REORDER));
        intake.handle_timeout(now + REORDER);
        assert_eq!(all(&mut intake), [(20, true), (20, false)]);
        intake.push(packet(2, 20, 20), now + REORDER);
        assert_eq!(all(&mut intake), []);
        assert_eq!(intake.stats().dropped, 1);
    }

    #[test]
    fn where_a_carrier_sends_no_silence_time_goes_on_all_the_same() {
        let (mut intake, now) = (intake(Carrier::Asterisk), Instant::now());
        assert_eq!(intake.next_deadline(), None, "nothing has begun");
        let audio = AudioFrame::new(PCMU, vec![0x20; 160]);
        intake.push(Media { sequence: None, timestamp: None, audio }, now);
        all(&mut intake);
        let at = |ms| now + Duration::from_millis(ms);
        intake.handle_timeout(at(99));
        assert_eq!(all(&mut intake), []);
        intake.handle_timeout(at(145));
        assert_eq!(all(&mut intake), [(20, true); 3], "due at 100, 120 and 140");
        assert_eq!(intake.next_deadline(), Some(at(160)));
    }

    #[test]
    fn a_stalled_line_that_catches_up_is_no_loss() {
        let (mut intake, now) = (intake(Carrier::Twilio), Instant::now());
        intake.push(packet(1, 0, 20), now);
        intake.handle_timeout(now + Duration::from_millis(700));
        let silence: usize = all(&mut intake)[1..].iter().map(|(ms, _)| ms).sum();
        assert!(silence >= 200, "{silence}");
        for n in 0..30 {
            intake.push(packet(n + 2, 20 + n * 20, 20), now + Duration::from_millis(701));
        }
        assert!(all(&mut intake).iter().all(|(_, filled)| !filled));
        assert_eq!(intake.stats().resyncs, 0);
    }

    #[test]
    fn packets_of_any_length_are_taken_as_they_are() {
        let (mut intake, now) = (intake(Carrier::Twilio), Instant::now());
        let mut at = 0;
        for (n, ms) in [30, 30, 10, 60, 21, 43].into_iter().enumerate() {
            intake.push(packet(n as u64 + 1, at, ms), now);
            at += ms as u64;
        }
        assert!(all(&mut intake).iter().all(|(_, filled)| !filled));
        assert_eq!(intake.media_time(), Duration::from_millis(at));
    }

    proptest::proptest! {
        #[test]
        fn whatever_comes_the_stream_is_as_long_as_its_clock(
            packets in proptest::collection::vec((0_u64..64, 0_u64..20_000, 0_usize..80, 0_u64..200), 0..80),
            ordered in proptest::bool::ANY,
        ) {
            let carrier = if ordered { Carrier::Twilio } else { Carrier::Telnyx };
            let mut intake = intake(carrier);
            let mut now = Instant::now();
            let mut samples = 0;
            for (sequence, at, ms, pause) in packets {
                now += Duration::from_millis(pause);
                intake.handle_timeout(now);
                intake.push(packet(sequence, at, ms), now);
                samples += std::iter::from_fn(|| intake.pop()).map(|s| s.audio.samples()).sum::<usize>();
            }
            let stats = intake.stats();
            let waiting = intake.waiting.values().map(|(m, _)| m.audio.samples()).sum::<usize>();
            proptest::prop_assert!(samples as u64 <= stats.samples + stats.concealed + stats.silent);
            proptest::prop_assert!(samples + waiting >= stats.silent as usize);
            proptest::prop_assert!(intake.waiting.len() <= MAX_WAITING + 1);
        }
    }
}
