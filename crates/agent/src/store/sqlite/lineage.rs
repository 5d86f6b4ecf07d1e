//! How a store keeps lists that grow: each item once, whatever number of snapshots has it.
//!
//! Items lie on *tracks*. A track is only ever appended to, and may begin where a [`Point`] of
//! another track is. A snapshot names a point: the first so many items of a track, counted from the
//! beginning of the lineage. What a point stands for never changes, so it may be remembered for
//! ever, and by whoever read it.
//!
//! A turn appends to the track that its parent's point is the end of. Where something else was
//! appended there already, it is a fork and begins a track; so does a list that differs earlier. A
//! fork from within an ancestor's part begins at the ancestor, so the depth of tracks is that of the
//! forks, not of the turns.
//!
//! Everything here is pure: the store reads and writes.

use std::{hash::Hash, ops::Range};

use super::recent::Recent;
use crate::Messages;

/// The first `len` items of a list, as `track` and the tracks that it goes on from have them. An
/// empty list has no point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Point {
    /// The track that the last of the items lies on.
    pub(super) track: u64,
    /// How many items there are from the beginning of the lineage; at least one.
    pub(super) len: usize,
}

/// What the store knows of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Track {
    /// Where it begins; `None` is a beginning of its own.
    pub(super) from: Option<Point>,
    /// How many items a point at its end has, those before its beginning included.
    pub(super) end: usize,
}

impl Track {
    fn start(&self) -> usize {
        self.from.map_or(0, |from| from.len)
    }
}

/// Where a list comes to lie, and what has to be written for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placement {
    /// All of it is there, at this point.
    There(Option<Point>),
    /// Its items from index `at` on are appended to the track, of which `at` is the end.
    Append { track: u64, at: usize },
    /// Its items from that point on, or all, are the first ones of a new track.
    Begin(Option<Point>),
}

/// Items of one track, by their index from the beginning of the lineage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) track: u64,
    pub(super) items: Range<usize>,
}

/// What a store says of its tracks is not possible; why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// Places a list of `len` items, of which the first `shared` are those of `base`. `track` looks a
/// track up; it has to be asked while nobody else can append.
pub(super) fn place<E: From<Broken>>(
    base: Option<Point>,
    shared: usize,
    len: usize,
    mut track: impl FnMut(u64) -> Result<Track, E>,
) -> Result<Placement, E> {
    let Some((point, on)) = within(base, shared, &mut track)? else {
        return Ok(if len == 0 { Placement::There(None) } else { Placement::Begin(None) });
    };
    if point.len == len {
        return Ok(Placement::There(Some(point)));
    }
    if on.end == point.len {
        return Ok(Placement::Append { track: point.track, at: point.len });
    }
    Ok(Placement::Begin(Some(point)))
}

/// Where the items of `point` from index `start` on lie, oldest first.
pub(super) fn pieces<E: From<Broken>>(
    point: Option<Point>,
    start: usize,
    mut track: impl FnMut(u64) -> Result<Track, E>,
) -> Result<Vec<Piece>, E> {
    let mut pieces = Vec::new();
    let mut next = point;
    while let Some(point) = next.filter(|point| point.len > start) {
        let on = checked(point, &mut track)?;
        pieces.push(Piece { track: point.track, items: on.start().max(start)..point.len });
        next = on.from;
    }
    pieces.reverse();
    Ok(pieces)
}

/// The point of the first `len` items of `base`, on the track that the last of them lies on.
fn within<E: From<Broken>>(
    base: Option<Point>,
    len: usize,
    track: &mut impl FnMut(u64) -> Result<Track, E>,
) -> Result<Option<(Point, Track)>, E> {
    let mut next = base;
    while let Some(base) = next {
        let on = checked(base, track)?;
        if len > base.len {
            return Err(Broken("a point has fewer items than it shares").into());
        }
        if len > on.start() {
            return Ok(Some((Point { len, ..base }, on)));
        }
        next = on.from;
    }
    Ok(None)
}

/// The track of a point, which it must be possible to have.
fn checked<E: From<Broken>>(
    point: Point,
    track: &mut impl FnMut(u64) -> Result<Track, E>,
) -> Result<Track, E> {
    let on = track(point.track)?;
    // So the start falls with each step to an ancestor, and a walk comes to its end.
    if point.len <= on.start() {
        return Err(Broken("a track begins after a point of it").into());
    }
    if point.len > on.end {
        return Err(Broken("a track ends before a point of it").into());
    }
    Ok(on)
}

/// The lists that a process knows by their tracks: those used last, up to a number of bytes. It
/// makes the messages that are read, written and held by a running session the same ones.
pub(super) struct KnownLists<K> {
    lists: Recent<K, KnownList>,
}

/// A list, and about how many bytes it takes.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownList {
    pub(super) items: Messages,
    pub(super) bytes: usize,
}

impl<K: Eq + Hash> KnownLists<K> {
    /// Of all lists but one, which may be larger, at most so many bytes.
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { lists: Recent::new(max_bytes) }
    }

    /// What is known of the first `len` items of a track: those, fewer, or nothing.
    pub(super) fn find(&self, track: &K, len: usize) -> KnownList {
        let mut found = self.lists.find(track).unwrap_or_default();
        if found.items.len() > len {
            found.bytes = found.bytes / found.items.len() * len;
            found.items.truncate(len);
        }
        found
    }

    /// Remembers the first items of a track. Of two lists the longer one is remembered, and of two
    /// of the same length the newer.
    pub(super) fn insert(&self, track: K, list: KnownList) {
        let bytes = list.bytes;
        self.lists
            .insert_unless(track, list, bytes, |known, new| known.items.len() > new.items.len());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Message;

    /// A store of lists of numbers, as simple as can be.
    #[derive(Default)]
    struct Store {
        tracks: Vec<(Option<Point>, Vec<u32>)>,
        written: usize,
    }

    impl Store {
        fn track(&self, track: u64) -> Result<Track, Broken> {
            let (from, items) = &self.tracks[track as usize];
            let start = from.map_or(0, |from| from.len);
            Ok(Track { from: *from, end: start + items.len() })
        }

        fn write(&mut self, base: Option<Point>, list: &[u32]) -> Option<Point> {
            let known = self.read(base, 0);
            let shared = known.iter().zip(list).take_while(|(a, b)| a == b).count();
            let placement = place(base, shared, list.len(), |track| self.track(track)).unwrap();
            let (track, at) = match placement {
                Placement::There(point) => return point,
                Placement::Append { track, at } => (track, at),
                Placement::Begin(from) => {
                    self.tracks.push((from, Vec::new()));
                    (self.tracks.len() as u64 - 1, from.map_or(0, |from| from.len))
                }
            };
            assert_eq!(at, self.track(track).unwrap().end);
            self.tracks[track as usize].1.extend(&list[at..]);
            self.written += list.len() - at;
            Some(Point { track, len: list.len() })
        }

        fn read(&self, point: Option<Point>, start: usize) -> Vec<u32> {
            let mut read = Vec::new();
            for piece in pieces(point, start, |track| self.track(track)).unwrap() {
                assert_eq!(piece.items.start, start + read.len());
                let (from, items) = &self.tracks[piece.track as usize];
                let skipped = from.map_or(0, |from| from.len);
                read.extend(&items[piece.items.start - skipped..piece.items.end - skipped]);
            }
            read
        }
    }

    #[test]
    fn turns_append_and_forks_begin_at_the_track_that_has_their_last_item() {
        let mut store = Store::default();
        let root = store.write(None, &[1, 2]);
        let next = store.write(root, &[1, 2, 3, 4]);
        assert_eq!(next, Some(Point { track: 0, len: 4 }));
        let fork = store.write(root, &[1, 2, 5]);
        assert_eq!(fork, Some(Point { track: 1, len: 3 }));
        // What differs before the fork goes on from the first track, whatever its base.
        let other = store.write(fork, &[1, 6]);
        assert_eq!(store.tracks[2].0, Some(Point { track: 0, len: 1 }));
        assert_eq!(other, Some(Point { track: 2, len: 2 }));
        // All of it is there: nothing is written.
        assert_eq!(store.write(fork, &[1, 2]), root);
        assert_eq!(store.write(fork, &[]), None);
        assert_eq!(store.write(None, &[]), None);
        assert_eq!(store.written, 6);
        assert_eq!(store.write(fork, &[7]), Some(Point { track: 3, len: 1 }));
        assert_eq!(store.tracks[3].0, None);
    }

    #[test]
    fn tracks_that_cannot_be_are_errors_and_no_endless_walk() {
        let point = Some(Point { track: 0, len: 3 });
        let cycle = |_| Ok::<_, Broken>(Track { from: point, end: 9 });
        assert!(pieces(point, 0, cycle).is_err());
        assert!(place(point, 0, 1, cycle).is_err());
        let short = |_| Ok::<_, Broken>(Track { from: None, end: 2 });
        assert!(pieces(point, 0, short).is_err());
        assert!(place(point, 3, 4, short).is_err());
        let long = |_| Ok::<_, Broken>(Track { from: None, end: 9 });
        assert!(place(point, 4, 5, long).is_err());
    }

    fn numbered(numbers: &[usize]) -> Messages {
        numbers.iter().map(|number| Message::user(number.to_string())).collect()
    }

    #[test]
    fn known_lists_are_bounded_and_those_used_last_stay() {
        let known = KnownLists::new(100);
        let list = |bytes| KnownList { items: numbered(&[1, 2]), bytes };
        known.insert("a", list(40));
        known.insert("b", list(40));
        assert_eq!(known.find(&"a", 1).items, numbered(&[1]));
        known.insert("c", list(40));
        assert_eq!(known.find(&"b", 9).items.len(), 0);
        assert_eq!(known.find(&"a", 9).items.len(), 2);
        // A shorter one does not take the place of a longer one.
        known.insert("a", KnownList { items: numbered(&[1]), bytes: 1 });
        assert_eq!(known.find(&"a", 9).items.len(), 2);
        // One alone may be larger than all.
        known.insert("d", list(1000));
        assert_eq!(known.find(&"d", 9).items.len(), 2);
        assert_eq!(known.find(&"a", 9).items.len(), 0);
    }

    proptest! {
        #[test]
        fn every_point_reads_back_for_ever(
            steps in prop::collection::vec(
                (any::<prop::sample::Index>(), 0..12usize, prop::collection::vec(0..3u32, 0..4)),
                1..40,
            ),
        ) {
            let mut store = Store::default();
            let mut rows: Vec<(Option<Point>, Vec<u32>)> = vec![(None, vec![])];
            for (base, keep, new) in steps {
                let (point, list) = base.get(&rows).clone();
                let mut list = list[..keep.min(list.len())].to_vec();
                list.extend(new);
                let point = store.write(point, &list);
                rows.push((point, list));
                for (point, list) in &rows {
                    for start in 0..=list.len() {
                        prop_assert_eq!(&store.read(*point, start), &list[start..]);
                    }
                }
            }
            // A track begins within the own part of the one that it goes on from.
            for (from, items) in &store.tracks {
                prop_assert!(!items.is_empty());
                if let Some(from) = from {
                    let parent = store.track(from.track).unwrap();
                    prop_assert!(parent.start() < from.len && from.len <= parent.end);
                }
            }
        }
    }
}
