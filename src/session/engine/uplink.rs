//! What goes up in order with the user's audio: a ring by duration that drops its oldest audio.

use std::{collections::VecDeque, time::Duration};

use antiphon_live::LiveCommand;
use antiphon_types::AudioFrame;

/// Marks that may wait between audio; the host's commands are bounded before they come here.
const MAX_MARKS: usize = 256;
/// Bytes of images that may wait among them.
const MAX_IMAGE_BYTES: usize = 32 * 1024 * 1024;

/// The user's audio not yet taken by the wire, with the commands that belong between.
#[derive(Debug)]
pub(crate) struct Uplink {
    items: VecDeque<LiveCommand>,
    queued: Duration,
    /// While the wire takes audio.
    usual: Duration,
    /// Now.
    limit: Duration,
    dropped: Duration,
    /// Of that, what was dropped before the wire last took something.
    dropped_before: Duration,
    marks: usize,
    /// Of the images among them.
    image_bytes: usize,
    /// An activity began on the wire and has not ended there.
    active: bool,
}

impl Uplink {
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            items: VecDeque::new(),
            queued: Duration::ZERO,
            usual: limit,
            limit,
            dropped: Duration::ZERO,
            dropped_before: Duration::ZERO,
            marks: 0,
            image_bytes: 0,
            active: false,
        }
    }

    /// Adds audio; the oldest goes when there is more than the limit.
    pub(crate) fn audio(&mut self, frame: AudioFrame) {
        self.queued += frame.duration();
        self.items.push_back(LiveCommand::AppendAudio(frame));
        while self.queued > self.limit && self.drop_oldest_audio() {}
    }

    /// There is no wire for a while: more is kept, until the next one has caught up.
    pub(crate) fn keep(&mut self, limit: Duration) {
        self.limit = self.limit.max(limit);
    }

    /// What was taken and did not reach the wire comes first again, in this order. Images go where that
    /// is too much.
    pub(crate) fn give_back(&mut self, items: Vec<LiveCommand>) {
        for item in items.into_iter().rev() {
            match &item {
                LiveCommand::AppendAudio(frame) => self.queued += frame.duration(),
                LiveCommand::Image { data, .. } => {
                    if !self.has_room_for(&item) {
                        continue;
                    }
                    self.image_bytes += data.len();
                    self.marks += 1;
                }
                _ => self.marks += 1,
            }
            match &item {
                LiveCommand::ActivityStart => self.active = false,
                LiveCommand::ActivityEnd => self.active = true,
                _ => {}
            }
            self.items.push_front(item);
        }
    }

    /// What the last wire took, and whoever continues by the next one has not heard, comes first again;
    /// of its audio the last part that there is room for.
    pub(crate) fn say_again(&mut self, mut items: Vec<LiveCommand>) {
        let mut room = self.limit.saturating_sub(self.queued);
        let audio = |item: &LiveCommand| match item {
            LiveCommand::AppendAudio(frame) => Some(frame.duration()),
            _ => None,
        };
        let fits = |item: &LiveCommand| {
            let left = audio(item).map_or(Some(room), |audio| room.checked_sub(audio));
            room = left.unwrap_or_default();
            left.is_some()
        };
        let kept = items.iter().rev().map(fits).collect::<Vec<_>>();
        let mut kept = kept.into_iter().rev();
        items.retain(|_| kept.next().unwrap_or_default());
        self.give_back(items);
    }

    /// So much of what was taken did not reach anybody, and nobody has it any more.
    pub(crate) fn lose(&mut self, lost: Duration) {
        self.dropped += lost;
    }

    /// There is another wire: an activity that the last one knew of begins there once more. Whether
    /// one does that is not over.
    pub(crate) fn begin_again(&mut self) -> bool {
        if !std::mem::take(&mut self.active) {
            return false;
        }
        self.marks += 1;
        self.items.push_front(LiveCommand::ActivityStart);
        !self.items.contains(&LiveCommand::ActivityEnd)
    }

    /// Whether a turn by hand is on its way, or goes on.
    pub(crate) fn holds_a_turn(&self) -> bool {
        self.active || self.has_marks()
    }

    /// Adds a command that must not overtake the audio before it. `false`: too many wait.
    pub(crate) fn mark(&mut self, command: LiveCommand) -> bool {
        if !self.has_room_for(&command) {
            return false;
        }
        if let LiveCommand::Image { data, .. } = &command {
            self.image_bytes += data.len();
        }
        self.marks += 1;
        self.items.push_back(command);
        true
    }

    /// Whether something waits that is no audio.
    pub(crate) fn has_marks(&self) -> bool {
        self.marks > 0
    }

    fn has_room_for(&self, command: &LiveCommand) -> bool {
        let bytes = match command {
            LiveCommand::Image { data, .. } => data.len(),
            _ => 0,
        };
        // One image of any size may wait.
        let fits = self.image_bytes == 0 || self.image_bytes + bytes <= MAX_IMAGE_BYTES;
        self.marks < MAX_MARKS && (bytes == 0 || fits)
    }

    /// Forgets the audio.
    pub(crate) fn clear_audio(&mut self) {
        self.items.retain(|item| !matches!(item, LiveCommand::AppendAudio(_)));
        self.queued = Duration::ZERO;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.queued = Duration::ZERO;
        self.marks = 0;
        self.image_bytes = 0;
    }

    /// The next command for the wire.
    pub(crate) fn pop(&mut self) -> Option<LiveCommand> {
        let item = self.items.pop_front()?;
        self.dropped_before = self.dropped;
        match &item {
            LiveCommand::AppendAudio(frame) => self.queued -= frame.duration(),
            LiveCommand::Image { data, .. } => {
                self.image_bytes -= data.len();
                self.marks -= 1;
            }
            _ => self.marks -= 1,
        }
        match &item {
            LiveCommand::ActivityStart => self.active = true,
            LiveCommand::ActivityEnd => self.active = false,
            _ => {}
        }
        if self.queued <= self.usual {
            self.limit = self.usual;
        }
        Some(item)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Audio dropped so far.
    pub(crate) fn dropped(&self) -> Duration {
        self.dropped
    }

    /// Audio dropped until the wire last took something. What was dropped since is lost with it, if it
    /// takes nothing more.
    pub(crate) fn dropped_before(&self) -> Duration {
        self.dropped_before
    }

    /// Milliseconds dropped so far.
    pub(crate) fn dropped_ms(&self) -> u64 {
        self.dropped.as_millis() as u64
    }

    fn drop_oldest_audio(&mut self) -> bool {
        let oldest = self.items.iter().position(|item| matches!(item, LiveCommand::AppendAudio(_)));
        let Some(LiveCommand::AppendAudio(frame)) = oldest.and_then(|at| self.items.remove(at))
        else {
            return false;
        };
        self.queued -= frame.duration();
        self.dropped += frame.duration();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(value: i16) -> AudioFrame {
        AudioFrame::from_pcm16(16_000, &[value; 320])
    }

    #[test]
    fn drops_the_oldest_audio_and_counts_it() {
        let mut uplink = Uplink::new(Duration::from_millis(60));
        for value in 0..5 {
            uplink.audio(frame(value));
        }
        assert_eq!(uplink.dropped_ms(), 40);
        assert_eq!(uplink.pop(), Some(LiveCommand::AppendAudio(frame(2))));
    }

    #[test]
    fn a_mark_stays_between_its_neighbours_and_is_never_dropped() {
        let mut uplink = Uplink::new(Duration::from_millis(20));
        uplink.audio(frame(1));
        assert!(uplink.mark(LiveCommand::EndAudio));
        uplink.audio(frame(2));
        assert_eq!(uplink.pop(), Some(LiveCommand::EndAudio));
        assert_eq!(uplink.pop(), Some(LiveCommand::AppendAudio(frame(2))));
        assert_eq!(uplink.pop(), None);
    }

    #[test]
    fn what_is_kept_without_a_wire_goes_out_whole() {
        let mut uplink = Uplink::new(Duration::from_millis(40));
        uplink.keep(Duration::from_millis(100));
        for value in 0..6 {
            uplink.audio(frame(value));
        }
        assert_eq!(uplink.dropped_ms(), 20);
        // A wire again, and it is not yet as fast as the user speaks.
        assert_eq!(uplink.pop(), Some(LiveCommand::AppendAudio(frame(1))));
        uplink.audio(frame(6));
        for value in 2..5 {
            assert_eq!(uplink.pop(), Some(LiveCommand::AppendAudio(frame(value))));
        }
        assert_eq!(uplink.dropped_ms(), 20);
        for value in 7..10 {
            uplink.audio(frame(value));
        }
        assert_eq!(uplink.dropped_ms(), 80, "it had caught up");
    }

    #[test]
    fn what_comes_back_stands_before_what_waits() {
        let mut uplink = Uplink::new(Duration::from_secs(1));
        uplink.audio(frame(3));
        uplink.give_back(vec![
            LiveCommand::AppendAudio(frame(1)),
            LiveCommand::EndAudio,
            LiveCommand::AppendAudio(frame(2)),
        ]);
        let all: Vec<_> = std::iter::from_fn(|| uplink.pop()).collect();
        let audio = |value| LiveCommand::AppendAudio(frame(value));
        assert_eq!(all, [audio(1), LiveCommand::EndAudio, audio(2), audio(3)]);
        assert!(uplink.is_empty());
    }

    #[test]
    fn what_is_said_again_leaves_room_for_what_waits() {
        let mut uplink = Uplink::new(Duration::from_millis(80));
        uplink.audio(frame(5));
        let audio = |value| LiveCommand::AppendAudio(frame(value));
        let all = [audio(1), audio(2), LiveCommand::ActivityStart, audio(3), audio(4)];
        uplink.say_again(all.to_vec());
        let said: Vec<_> = std::iter::from_fn(|| uplink.pop()).collect();
        let expected = [audio(2), LiveCommand::ActivityStart, audio(3), audio(4), audio(5)];
        assert_eq!(said, expected);
        assert_eq!(uplink.dropped_ms(), 0, "it was heard once");
    }

    #[test]
    fn an_activity_that_goes_on_begins_again_on_the_next_wire() {
        let mut uplink = Uplink::new(Duration::from_secs(1));
        let all = |uplink: &mut Uplink| std::iter::from_fn(|| uplink.pop()).collect::<Vec<_>>();
        uplink.mark(LiveCommand::ActivityStart);
        assert!(!uplink.begin_again(), "nobody knows of it yet");
        all(&mut uplink);
        uplink.audio(frame(1));
        assert!(uplink.begin_again());
        uplink.mark(LiveCommand::ActivityEnd);
        assert!(uplink.holds_a_turn());
        let audio = LiveCommand::AppendAudio(frame(1));
        let told = [LiveCommand::ActivityStart, audio.clone(), LiveCommand::ActivityEnd];
        assert_eq!(all(&mut uplink), told);
        assert!(!uplink.begin_again(), "it is over");
        // All of it comes back, or only its end.
        uplink.give_back(told.to_vec());
        assert!(!uplink.begin_again());
        all(&mut uplink);
        uplink.give_back(vec![audio, LiveCommand::ActivityEnd]);
        assert!(!uplink.begin_again(), "the user has done speaking");
        assert_eq!(all(&mut uplink), told);
        assert!(uplink.is_empty() && !uplink.holds_a_turn());
    }

    #[test]
    fn marks_are_bounded() {
        let mut uplink = Uplink::new(Duration::from_secs(1));
        assert_eq!((0..1_000).filter(|_| uplink.mark(LiveCommand::EndAudio)).count(), MAX_MARKS);
        // Turns that come back are not lost, and nothing more is taken meanwhile.
        uplink.give_back(vec![LiveCommand::ActivityEnd, image(1)]);
        assert!((0..1_000).all(|_| !uplink.mark(LiveCommand::EndAudio)));
        assert_eq!(uplink.pop(), Some(LiveCommand::ActivityEnd));
        assert!(!uplink.mark(LiveCommand::EndAudio));
        uplink.pop();
        assert!(uplink.mark(LiveCommand::EndAudio));
    }

    #[test]
    fn nothing_is_left_of_what_is_forgotten() {
        let mut uplink = Uplink::new(Duration::from_millis(40));
        uplink.audio(frame(1));
        uplink.audio(frame(2));
        uplink.mark(image(MAX_IMAGE_BYTES));
        uplink.clear();
        assert!(uplink.is_empty() && !uplink.has_marks());
        assert!(uplink.mark(image(MAX_IMAGE_BYTES)), "there is room again");
        uplink.audio(frame(3));
        uplink.audio(frame(4));
        assert_eq!(uplink.dropped_ms(), 0);
        uplink.clear_audio();
        assert_eq!(uplink.pop(), Some(image(MAX_IMAGE_BYTES)));
        assert!(uplink.is_empty());
    }

    #[test]
    fn images_are_bounded_in_bytes() {
        let mut uplink = Uplink::new(Duration::from_secs(1));
        let (large, part) = (image(MAX_IMAGE_BYTES + 1), image(MAX_IMAGE_BYTES / 4));
        assert!(uplink.mark(large.clone()), "one of any size");
        assert!(!uplink.mark(part.clone()));
        uplink.pop();
        assert_eq!((0..10).filter(|_| uplink.mark(part.clone())).count(), 4);
        uplink.give_back(vec![part.clone()]);
        assert_eq!(std::iter::from_fn(|| uplink.pop()).count(), 4);
        assert!(uplink.mark(large));
    }

    fn image(bytes: usize) -> LiveCommand {
        LiveCommand::Image { media_type: "image/png".into(), data: vec![0; bytes].into() }
    }
}
