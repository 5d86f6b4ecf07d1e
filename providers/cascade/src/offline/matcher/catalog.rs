//! The tools of a request, made ready for matching.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, PoisonError},
};

use antiphon_agent::types::ToolDefinition;

use super::{
    super::phonemes::Phonemes,
    phrase::{self, PhraseError, Piece},
    slots::{Slot, SlotKind},
    sounds::{self, Sound},
    words::{self, Kind},
};

/// More sample phrases than this over all tools, each form counted, are not looked at.
const MAX_PHRASES: usize = 4096;

/// How many sets of tools are kept ready.
const KEPT: usize = 4;

/// Tools, their phrases and the words in them.
pub(super) struct Catalog {
    pub(super) definitions: Arc<[ToolDefinition]>,
    pub(super) tools: Vec<ToolEntry>,
    pub(super) phrases: Vec<Phrase>,
    pub(super) literals: Vec<Literal>,
}

/// One tool that can be asked for.
pub(super) struct ToolEntry {
    /// Its place in [`Catalog::definitions`].
    pub(super) definition: usize,
    pub(super) slots: Vec<Slot>,
    /// What to say to get it, as an example; `None` for tools without phrases of their own.
    pub(super) example: Option<String>,
}

/// One form of a sample phrase.
pub(super) struct Phrase {
    /// Its place in [`Catalog::tools`].
    pub(super) tool: usize,
    pub(super) tokens: Vec<Token>,
    /// What its words and slots weigh together.
    pub(super) weight: f32,
    /// What its words weigh.
    pub(super) literal_weight: f32,
    /// It holds a slot that takes any words.
    pub(super) open: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Token {
    /// A place in [`Catalog::literals`], and the word's weight in this phrase.
    Literal(usize, f32),
    /// A place in [`ToolEntry::slots`].
    Slot(usize),
}

/// A word that phrases are made of.
pub(super) struct Literal {
    pub(super) text: String,
    pub(super) sound: Sound,
    pub(super) kind: Kind,
}

/// What a filled slot adds to a phrase's weight.
pub(super) const SLOT_WEIGHT: f32 = 0.5;

impl Catalog {
    fn new(definitions: &Arc<[ToolDefinition]>, phonemes: &Phonemes) -> Self {
        let mut catalog = Self {
            definitions: Arc::clone(definitions),
            tools: Vec::new(),
            phrases: Vec::new(),
            literals: Vec::new(),
        };
        let mut known = HashMap::new();
        for (definition, tool) in definitions.iter().enumerate() {
            let slots = Slot::all(tool, phonemes);
            let speechless = |slot: &Slot| slot.required && matches!(slot.kind, SlotKind::Unspoken);
            if slots.iter().any(|slot| speechless(slot) && slot.default.is_none()) {
                tracing::warn!(tool = &*tool.name, "needs an argument that cannot be said");
                continue;
            }
            let entry = catalog.tools.len();
            let (mut example, mut reads_well_already) = (None, false);
            let spoken_name = super::slots::spoken_name(&tool.name);
            let declared = tool.speech.as_ref().map_or(&[][..], |speech| &speech.phrases);
            let named = [spoken_name];
            let phrases = if declared.is_empty() { &named[..] } else { declared };
            for text in phrases {
                match compile(text, &slots) {
                    Ok(forms) => {
                        let shown = forms.iter().max_by_key(|form| {
                            // The form that asks for most is the best example, the first of them.
                            (form.iter().filter(|p| matches!(p, Piece::Slot(_))).count(), -1)
                        });
                        // A word in place of any words reads badly: only where there is no other.
                        let good = shown.is_some_and(|form| reads_well(form, &slots));
                        let better = example.is_none() || (good && !reads_well_already);
                        if better && !declared.is_empty() {
                            example = shown.map(|form| shown_form(form, &slots));
                            reads_well_already = good;
                        }
                        for form in forms {
                            catalog.add(entry, &form, &slots, &mut known, phonemes);
                        }
                    }
                    Err(error) => tracing::warn!(tool = &*tool.name, %error, "phrase ignored"),
                }
            }
            catalog.tools.push(ToolEntry { definition, slots, example });
        }
        catalog
    }

    fn add(
        &mut self,
        tool: usize,
        form: &[Piece],
        slots: &[Slot],
        known: &mut HashMap<String, usize>,
        phonemes: &Phonemes,
    ) {
        if self.phrases.len() >= MAX_PHRASES {
            tracing::warn!(limit = MAX_PHRASES, "too many sample phrases; the rest is ignored");
            return;
        }
        let content = |piece: &Piece| matches!(piece, Piece::Word(w) if is_content(w));
        let has_content = form.iter().any(content);
        let mut literal_weight = 0.0;
        let mut tokens = Vec::with_capacity(form.len());
        for piece in form {
            tokens.push(match piece {
                Piece::Word(word) => {
                    let id = *known.entry(word.clone()).or_insert_with(|| {
                        self.literals.push(Literal {
                            text: word.clone(),
                            sound: sounds::sound(phonemes, word),
                            kind: words::kind_of(word),
                        });
                        self.literals.len() - 1
                    });
                    // In a phrase of glue alone (`how are you`) each word counts in full.
                    let weight = match self.literals[id].kind {
                        _ if !has_content => 1.0,
                        Kind::Question => 0.6,
                        Kind::Function | Kind::Filler => 0.3,
                        Kind::Content | Kind::Number | Kind::Negation => 1.0,
                    };
                    literal_weight += weight;
                    Token::Literal(id, weight)
                }
                Piece::Slot(name) => {
                    let slot = slots.iter().position(|slot| slot.property == *name);
                    Token::Slot(slot.unwrap_or_default()) // `compile` has seen to it
                }
            });
        }
        let filled = tokens.iter().filter(|token| matches!(token, Token::Slot(_))).count();
        let open =
            tokens.iter().any(|token| matches!(token, Token::Slot(slot) if slots[*slot].is_open()));
        self.phrases.push(Phrase {
            tool,
            tokens,
            weight: literal_weight + SLOT_WEIGHT * filled as f32,
            literal_weight,
            open,
        });
    }

    pub(super) fn definition(&self, tool: usize) -> &ToolDefinition {
        &self.definitions[self.tools[tool].definition]
    }
}

/// Checks a tool's sample phrases.
pub(super) fn check(tool: &ToolDefinition, phonemes: &Phonemes) -> Result<(), PhraseError> {
    let Some(speech) = &tool.speech else { return Ok(()) };
    let slots = Slot::all(tool, phonemes);
    speech.phrases.iter().try_for_each(|phrase| compile(phrase, &slots).map(drop))
}

fn compile(phrase: &str, slots: &[Slot]) -> Result<Vec<Vec<Piece>>, PhraseError> {
    let forms = phrase::forms(phrase)?;
    for piece in forms.iter().flatten() {
        if let Piece::Slot(name) = piece
            && !slots.iter().any(|slot| slot.property == *name)
        {
            let (phrase, slot) = (phrase.to_owned(), name.clone());
            return Err(PhraseError::UnknownSlot { phrase, slot });
        }
    }
    Ok(forms)
}

fn is_content(word: &str) -> bool {
    matches!(words::kind_of(word), Kind::Content | Kind::Number | Kind::Negation)
}

fn reads_well(form: &[Piece], slots: &[Slot]) -> bool {
    form.iter().all(|piece| match piece {
        Piece::Word(_) => true,
        Piece::Slot(name) => slots.iter().any(|slot| slot.property == *name && slot.has_example()),
    })
}

fn shown_form(form: &[Piece], slots: &[Slot]) -> String {
    let shown: Vec<String> = form
        .iter()
        .map(|piece| match piece {
            Piece::Word(word) => word.clone(),
            Piece::Slot(name) => slots
                .iter()
                .find(|slot| slot.property == *name)
                .map(Slot::example)
                .unwrap_or_default(),
        })
        .collect();
    shown.join(" ")
}

/// The last few catalogues, since tools seldom change between requests.
#[derive(Default)]
pub(super) struct Catalogs {
    kept: Mutex<VecDeque<Arc<Catalog>>>,
}

impl Catalogs {
    /// The catalogue of `definitions`. Making one takes milliseconds.
    pub(super) fn of(
        &self,
        definitions: &Arc<[ToolDefinition]>,
        phonemes: &Phonemes,
    ) -> Arc<Catalog> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |catalog: &Arc<Catalog>| {
            Arc::ptr_eq(&catalog.definitions, definitions) || catalog.definitions == *definitions
        };
        if let Some(found) = kept.iter().find(|catalog| same(catalog)) {
            return Arc::clone(found);
        }
        let catalog = Arc::new(Catalog::new(definitions, phonemes));
        kept.push_front(Arc::clone(&catalog));
        kept.truncate(KEPT);
        catalog
    }
}
