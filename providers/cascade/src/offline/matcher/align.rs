//! Laying what was said over the sample phrases, at the least cost.
//!
//! Each word of a phrase weighs something. Saying it otherwise costs in proportion to how different
//! it sounds, leaving it out costs a little more than its weight, and so does every word too many. A
//! phrase whose cost is a small part of its weight is a match.

use std::cell::RefCell;

use antiphon_agent::types::JsonObject;

use super::{
    super::phonemes::Phonemes,
    catalog::{Catalog, Phrase, SLOT_WEIGHT, Token},
    respell,
    slots::{Read, Reading, singular},
    sounds::{self, Sound},
    words::{Kind, Word},
};

/// A match costs at most this part of the phrase's weight.
pub(super) const ACCEPT: f32 = 0.3;
/// The same for phrases that take any words.
const ACCEPT_OPEN: f32 = 0.2;
/// The next tool must cost at least this much more.
const MARGIN: f32 = 0.05;

const SWAPPED: f32 = 0.1;
/// What it adds to the cost that the beginning had to be taken apart.
const MELTED: f32 = 0.1;
const SLOT_LEFT_OUT: f32 = 0.25;
const GARBLED: f32 = 0.2;

/// A tool that fits what was said.
#[derive(Clone, Debug)]
pub(super) struct Match {
    /// Its place in [`Catalog::tools`].
    pub(super) tool: usize,
    /// The cost as a part of the phrase's weight; 0 is word for word.
    pub(super) cost: f32,
    pub(super) args: JsonObject,
    literal_weight: f32,
    open: bool,
}

/// What comes of matching.
#[derive(Clone, Debug)]
pub(super) enum Matching {
    Match(Match),
    /// Nothing fits well enough, or two tools fit equally. The nearest tool, if any is near.
    Nothing {
        nearest: Option<usize>,
    },
}

/// Finds the one tool that `words` ask for.
pub(super) fn find(catalog: &Catalog, words: &[Word], phonemes: &Phonemes) -> Matching {
    let found = find_with_numbers(catalog, words, phonemes);
    if matches!(found, Matching::Match(_)) {
        return found;
    }
    let Some(apart) = respell::beginning_apart(words, catalog, phonemes) else { return found };
    match find_with_numbers(catalog, &apart, phonemes) {
        Matching::Match(mut meant) if meant.cost + MELTED <= ACCEPT_OPEN => {
            meant.cost += MELTED;
            Matching::Match(meant)
        }
        _ => found,
    }
}

fn find_with_numbers(catalog: &Catalog, words: &[Word], phonemes: &Phonemes) -> Matching {
    let as_heard = find_as_heard(catalog, words, phonemes);
    let Some(respelled) = respell::numbers_respelled(words) else { return as_heard };
    match (&as_heard, find_as_heard(catalog, &respelled, phonemes)) {
        (Matching::Match(heard), Matching::Match(meant))
            if heard.tool != meant.tool || heard.cost <= meant.cost =>
        {
            as_heard
        }
        (_, meant @ Matching::Match(_)) => meant,
        _ => as_heard,
    }
}

fn find_as_heard(catalog: &Catalog, words: &[Word], phonemes: &Phonemes) -> Matching {
    if !words.iter().any(|word| word.kind != Kind::Filler) {
        return Matching::Nothing { nearest: None };
    }
    let heard = Heard::new(catalog, words, phonemes);
    let mut best: Vec<Option<Match>> = vec![None; catalog.tools.len()];
    for phrase in &catalog.phrases {
        if heard.least_cost(phrase) > ACCEPT * 2.0 * phrase.weight {
            continue;
        }
        let Some(found) = heard.align(phrase) else { continue };
        let kept = &mut best[phrase.tool];
        let better = |kept: &Match| {
            let filled = found.args.len().cmp(&kept.args.len());
            found.cost < kept.cost - 1e-4
                || ((found.cost - kept.cost).abs() <= 1e-4 && filled.is_gt())
        };
        if kept.as_ref().is_none_or(better) {
            *kept = Some(found);
        }
    }
    let mut ranked: Vec<Match> = best.into_iter().flatten().collect();
    ranked.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let nearest = ranked.first().map(|found| found.tool);
    let Some(mut first) = ranked.first().cloned() else {
        return Matching::Nothing { nearest: None };
    };
    if let Some(second) = ranked.get(1)
        && second.cost - first.cost < MARGIN
    {
        // Both fit: the phrase that says more in its own words is meant, if one does.
        let (more, less) = match first.literal_weight >= second.literal_weight {
            true => (first.clone(), second),
            false => (second.clone(), &first),
        };
        let said_exactly = more.cost < 0.06 && more.literal_weight - less.literal_weight > 0.4;
        let exact = first.cost < 0.02 && second.cost - first.cost > 0.02;
        if said_exactly {
            first = more;
        } else if !exact {
            return Matching::Nothing { nearest };
        }
    }
    let most = if first.open { ACCEPT_OPEN } else { ACCEPT };
    if first.cost > most {
        return Matching::Nothing { nearest };
    }
    Matching::Match(first)
}

/// What was said, with everything that several phrases ask of it worked out once.
struct Heard<'a> {
    catalog: &'a Catalog,
    words: &'a [Word],
    phonemes: &'a Phonemes,
    /// `I need a timer`: the verb of the command goes without saying.
    wished: bool,
    /// The sound of each word, then of each word with the next.
    sounds: Vec<Sound>,
    /// Distance of sound and literal; NaN where not computed yet.
    distances: RefCell<Vec<f32>>,
    /// By tool, slot and first word.
    readings: RefCell<Vec<Vec<Option<Vec<Reading>>>>>,
}

impl<'a> Heard<'a> {
    fn new(catalog: &'a Catalog, words: &'a [Word], phonemes: &'a Phonemes) -> Self {
        let singles: Vec<Sound> =
            words.iter().map(|word| sounds::sound(phonemes, &word.norm)).collect();
        let pairs = singles.windows(2).map(|pair| [&*pair[0], &*pair[1]].concat().into());
        let sounds: Vec<Sound> = singles.iter().cloned().chain(pairs).collect();
        let distances = vec![f32::NAN; sounds.len() * catalog.literals.len()];
        let readings =
            catalog.tools.iter().map(|tool| vec![None; tool.slots.len() * words.len()]).collect();
        Self {
            catalog,
            words,
            phonemes,
            wished: words
                .iter()
                .take_while(|word| word.kind == Kind::Filler)
                .any(|word| matches!(word.norm.as_str(), "need" | "want" | "like" | "have")),
            sounds,
            distances: RefCell::new(distances),
            readings: RefCell::new(readings),
        }
    }

    /// How far the word at `at`, alone or with its successor, is from a literal.
    fn distance(&self, at: usize, pair: bool, literal: usize) -> f32 {
        let sound = if pair { self.words.len() + at } else { at };
        let index = sound * self.catalog.literals.len() + literal;
        let known = self.distances.borrow()[index];
        if !known.is_nan() {
            return known;
        }
        let meant = &self.catalog.literals[literal];
        let distance = match pair {
            true => sounds::distance(&self.sounds[sound], &meant.sound),
            false => {
                let said = &self.words[at];
                word_distance(said, &self.sounds[sound], &meant.text, &meant.sound, meant.kind)
            }
        };
        self.distances.borrow_mut()[index] = distance;
        distance
    }

    /// Whether the words at `at` and behind may be one word that was taken apart: not when one of
    /// them alone is the word already, or means too much to be swallowed.
    fn may_be_one(&self, at: usize, literal: usize) -> bool {
        let pair = [at, at + 1];
        let weighty = |&at: &usize| matches!(self.words[at].kind, Kind::Negation | Kind::Number);
        let enough = |&at: &usize| self.distance(at, false, literal) < 0.1;
        !pair.iter().any(weighty) && !pair.iter().any(enough)
    }

    /// A lower bound of what `phrase` costs: each of its words at its best.
    fn least_cost(&self, phrase: &Phrase) -> f32 {
        let mut cost = 0.0;
        for (index, token) in phrase.tokens.iter().enumerate() {
            let &Token::Literal(literal, weight) = token else { continue };
            if weight < 0.9 {
                continue; // glue is cheap and everywhere
            }
            let count = self.words.len();
            let single = (0..count).map(|at| self.distance(at, false, literal));
            let pair = (0..count - 1).map(|at| self.distance(at, true, literal));
            let best = single.chain(pair).fold(1.0, f32::min);
            cost += (weight * replaced(best)).min(self.left_out(index, literal, weight));
        }
        cost
    }

    /// What it costs to leave a literal out.
    fn left_out(&self, index: usize, literal: usize, weight: f32) -> f32 {
        match weight {
            _ if index == 0 && self.wished && is_verb(&self.catalog.literals[literal].text) => 0.4,
            glue if glue < 0.5 => glue,
            _ => weight * 1.3,
        }
    }

    fn readings(&self, tool: usize, slot: usize, at: usize) -> Vec<Reading> {
        let index = slot * self.words.len() + at;
        if let Some(known) = &self.readings.borrow()[tool][index] {
            return known.clone();
        }
        let slot = &self.catalog.tools[tool].slots[slot];
        let rest = &self.words[at..];
        let mut readings = slot.readings(rest, self.phonemes);
        if !slot.is_open() {
            let longest = rest.len().min(3);
            readings.extend((1..=longest).map(|words| Reading {
                words,
                cost: GARBLED + 0.15 * words as f32,
                value: Read::Garbled,
            }));
        }
        self.readings.borrow_mut()[tool][index] = Some(readings.clone());
        readings
    }

    /// The cheapest way to say `phrase` as it was heard.
    fn align(&self, phrase: &Phrase) -> Option<Match> {
        let (said, tokens) = (self.words.len(), phrase.tokens.len());
        let width = tokens + 1;
        let give_up = ACCEPT * 2.0 * phrase.weight;
        let mut cells = vec![Cell::default(); (said + 1) * width];
        cells[0].cost = 0.0;
        for i in 0..=said {
            for j in 0..=tokens {
                let cost = cells[i * width + j].cost;
                if cost > give_up {
                    continue;
                }
                let mut reach = |di: usize, dj: usize, more: f32, step: Step| {
                    let cell = &mut cells[(i + di) * width + j + dj];
                    if cost + more < cell.cost {
                        *cell = Cell { cost: cost + more, from: (di, dj), step };
                    }
                };
                if i < said {
                    reach(1, 0, too_many(self.words, i), Step::Other);
                }
                match phrase.tokens.get(j) {
                    None => {}
                    Some(&Token::Literal(literal, weight)) => {
                        let glue = weight < 0.5;
                        reach(0, 1, self.left_out(j, literal, weight), Step::Other);
                        if i == said {
                            continue;
                        }
                        let strict = if phrase.open { 2.0 } else { 1.0 };
                        let apart = self.distance(i, false, literal);
                        // Glue is never said for another word: it was left out, and that one added.
                        let negated = self.words[i].kind == Kind::Negation && apart > 0.0;
                        if !negated && (!glue || apart < 0.5) {
                            reach(1, 1, weight * replaced(apart) * strict, Step::Other);
                        }
                        if i + 1 < said {
                            let pair = self.distance(i, true, literal);
                            if pair < 0.35 && !glue && self.may_be_one(i, literal) {
                                reach(2, 1, weight * replaced(pair) * strict + 0.1, Step::Other);
                            }
                            if let Some(&Token::Literal(next, _)) = phrase.tokens.get(j + 1)
                                && self.distance(i, false, next) == 0.0
                                && self.distance(i + 1, false, literal) == 0.0
                            {
                                reach(2, 2, SWAPPED, Step::Other);
                            }
                        }
                    }
                    Some(&Token::Slot(slot)) => {
                        reach(0, 1, SLOT_LEFT_OUT, Step::Other);
                        if i == said {
                            continue;
                        }
                        for (n, reading) in self.readings(phrase.tool, slot, i).iter().enumerate() {
                            reach(reading.words, 1, reading.cost, Step::Slot(slot, n));
                        }
                    }
                }
            }
        }
        let cost = cells[said * width + tokens].cost;
        if cost > give_up {
            return None;
        }
        let mut args = JsonObject::new();
        let (mut i, mut j) = (said, tokens);
        while (i, j) != (0, 0) {
            let cell = &cells[i * width + j];
            (i, j) = (i - cell.from.0, j - cell.from.1);
            let Step::Slot(slot, reading) = cell.step else { continue };
            let reading = self.readings(phrase.tool, slot, i).swap_remove(reading);
            let slot = &self.catalog.tools[phrase.tool].slots[slot];
            let value = match reading.value {
                Read::Value(value) => Some(value),
                Read::Span => slot.spelled_out(&self.words[i..i + reading.words]),
                Read::Garbled => None,
            };
            if let Some(value) = value {
                args.insert(slot.property.clone(), value);
            }
        }
        // Where a slot was left out, its weight does not count.
        let filled = SLOT_WEIGHT * args.len() as f32;
        let weight = (phrase.literal_weight + filled).min(phrase.weight).max(0.1);
        Some(Match {
            tool: phrase.tool,
            cost: cost / weight,
            args,
            literal_weight: phrase.literal_weight,
            open: phrase.open,
        })
    }
}

#[derive(Clone, Copy)]
struct Cell {
    cost: f32,
    /// How many words and tokens before.
    from: (usize, usize),
    step: Step,
}

impl Default for Cell {
    fn default() -> Self {
        Self { cost: f32::INFINITY, from: (0, 0), step: Step::Other }
    }
}

#[derive(Clone, Copy)]
enum Step {
    Other,
    /// A slot, and which of its readings.
    Slot(usize, usize),
}

/// What a word costs that the phrase does not have.
fn too_many(words: &[Word], at: usize) -> f32 {
    let word = &words[at];
    // `to to`, a stumble.
    if at > 0 && words[at - 1].norm == word.norm {
        return 0.05;
    }
    match word.kind {
        Kind::Filler => 0.0,
        Kind::Function => 0.15,
        Kind::Question => 0.5,
        // Beside a number it is likely a part of it: `wenty one`.
        Kind::Content if beside_number(words, at) => 1.5,
        Kind::Content => 0.65,
        // A number or a `not` that nobody asked for: the sentence means something else.
        Kind::Number => 1.5,
        Kind::Negation => 5.0,
    }
}

fn beside_number(words: &[Word], at: usize) -> bool {
    let is_number = |word: Option<&Word>| word.is_some_and(|word| word.kind == Kind::Number);
    is_number(words.get(at + 1)) || is_number(at.checked_sub(1).and_then(|at| words.get(at)))
}

/// What a literal costs, of its weight, when a word at this distance was said.
fn replaced(distance: f32) -> f32 {
    if distance >= 0.4 {
        return 1.3;
    }
    distance + 4.0 * (distance - 0.25).max(0.0)
}

/// How far a spoken word is from the word of a phrase, beyond its sound.
fn word_distance(said: &Word, said_sound: &[char], meant: &str, sound: &[char], kind: Kind) -> f32 {
    if said.norm == meant {
        return 0.0;
    }
    if singular(&said.norm) == singular(meant) {
        return 0.03;
    }
    if opposite(&said.norm, meant) || said.kind == Kind::Negation || kind == Kind::Negation {
        return 1.0;
    }
    if same_meaning(&said.norm, meant) {
        return 0.15;
    }
    if said.kind == Kind::Function && kind == Kind::Function {
        return 0.3;
    }
    // Numbers are never nearly right.
    if said.kind == Kind::Number || kind == Kind::Number {
        return if said_sound == sound { 0.1 } else { 1.0 };
    }
    let distance = sounds::distance(said_sound, sound);
    // One sound more or less makes another word of a short one.
    if sound.len() <= 2 { (distance * 1.3).min(1.0) } else { distance }
}

fn opposite(a: &str, b: &str) -> bool {
    const OPPOSITES: [(&str, &str); 19] = [
        ("on", "off"),
        ("up", "down"),
        ("start", "stop"),
        ("add", "remove"),
        ("add", "delete"),
        ("increase", "decrease"),
        ("open", "close"),
        ("lock", "unlock"),
        ("mute", "unmute"),
        ("enable", "disable"),
        ("more", "less"),
        ("raise", "lower"),
        ("first", "last"),
        ("next", "previous"),
        ("pause", "resume"),
        ("high", "low"),
        ("left", "right"),
        ("send", "spend"),
        ("send", "lend"),
    ];
    OPPOSITES.iter().any(|&(x, y)| (a == x && b == y) || (a == y && b == x))
}

/// Verbs that ask for the same thing whatever the tool.
const VERBS: [&[&str]; 8] = [
    &["set", "start", "make", "create", "begin", "put"],
    &["show", "tell", "give", "read", "list"],
    &["turn", "switch"],
    &["cancel", "stop", "end"],
    &["delete", "remove", "erase", "clear"],
    &["send", "transfer"],
    &["convert", "change"],
    &["dim", "lower"],
];

fn same_meaning(a: &str, b: &str) -> bool {
    VERBS.iter().any(|group| group.contains(&a) && group.contains(&b))
}

/// Verbs of asking for a thing, which wishing for it replaces.
fn is_verb(word: &str) -> bool {
    VERBS[..2].iter().any(|group| group.contains(&word))
}
