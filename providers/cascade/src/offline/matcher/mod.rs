//! The offline brain: calls tools by the sample phrases they declare, and says their answers.
//!
//! [`PhraseMatcher`] is a [`Model`] without a language model. It knows no tool by name. All it goes by
//! is what tools declare in [`ToolDefinition::speech`] and their JSON Schema, and it keeps nothing
//! between requests: what it has to remember, such as a question it asked, travels in the metadata of
//! its messages.
//!
//! # Sample phrases
//!
//! `set [a|the] timer for {duration} [called {name}]`: braces hold a slot, which is a property of the
//! input schema; square brackets an optional part; parentheses and bars alternatives. Case,
//! punctuation and politeness do not matter. What is said need not be word for word: words that sound
//! alike, small words more or less, and a few verbs of the same meaning (`set`, `start`, `create`) are
//! forgiven. What is not near any phrase is refused, and so is what is near to two tools: it asks
//! back rather than guess. A tool without phrases is reached by its name (`read_notes`: `read notes`).
//!
//! # Slots
//!
//! | in the schema of the property | said as | argument |
//! |---|---|---|
//! | `"type": "number"` or `"integer"` | `two point five`, `a hundred`, `third` | number |
//! | `"x-slot": "duration"` with a number type | `an hour and a half` | seconds |
//! | `"x-slot": "duration"` or `"format": "duration"` with type string | the same | ISO 8601, `PT1H30M` |
//! | `"x-slot": "time"` or `"format": "time"` | `half past seven`, `7:30 pm` | `"19:30"` |
//! | `"x-slot": "amount"` | `two euros fifty`, `20` | number in the main unit |
//! | `"x-slot": "name"` | one to three words | text with capitals |
//! | `"enum": [...]` | one of the values, or of `"x-synonyms": {value: [words]}` | that value |
//! | `"type": "boolean"` | `on`, `off`, `yes`, `no` | boolean |
//! | `"type": "string"` | anything | text |
//! | `"type": "array"` of strings | `milk, eggs and bread` | array of text |
//!
//! `minimum`, `maximum`, `exclusiveMinimum`, `exclusiveMaximum`, `minLength` and `maxLength` are kept: a
//! value outside is named and asked for again. A required property that was not said takes its
//! `default`, or is asked for with [`ToolSpeech::questions`](antiphon_agent::types::ToolSpeech::questions), else
//! in general words. `"x-currency": "EUR"` names the unit of an amount for the ear.
//!
//! # What else may have been said
//!
//! A recogniser that gives other readings ([`Transcript::alternatives`](crate::Transcript::alternatives))
//! is asked for the likeliest one that makes sense to a tool. Where two numbers are about as likely
//! (`fifteen` and `fifty`) the matcher asks which, once.
//!
//! # Answers
//!
//! [`ToolSpeech::answer`](antiphon_agent::types::ToolSpeech::answer) is a template such as
//! `It is {time}.`, filled from the output, then from the arguments; `{place.city}` reaches into objects
//! and `[ in {city}]` goes when there is no city. Durations and amounts are said with their units (for outputs:
//! where `output_schema` has the same `x-slot`, or the input has a property of that name). Without
//! a template the output is said plainly.

mod align;
mod answer;
mod catalog;
mod dialogue;
mod hearing;
mod phrase;
mod respell;
mod slots;
mod small_talk;
mod sounds;
mod values;
mod words;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use antiphon_agent::{
    Model, ModelChunk, ModelError, ModelRequest, ModelStream,
    model::ModelFinish,
    types::{Status, ToolArguments, ToolCallRequest, ToolDefinition},
};
use async_trait::async_trait;

use self::catalog::Catalogs;
use super::phonemes::Phonemes;

pub use self::phrase::PhraseError;

const NAME: &str = "phrase-matcher";

/// A [`Model`] that matches what is said with the sample phrases of tools; see the [module](self).
#[derive(Clone, Default)]
pub struct PhraseMatcher {
    catalogs: Arc<Catalogs>,
}

impl PhraseMatcher {
    /// A matcher. The pronunciation lexicon is loaded with the first request, or by
    /// [`PhraseMatcher::warm_up`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Loads the pronunciation lexicon, which the process has once, and makes `tools` ready. Blocks
    /// for some tenths of a second.
    pub fn warm_up(&self, tools: &Arc<[ToolDefinition]>) {
        self.catalogs.of(tools, &Phonemes::shared());
    }

    /// Checks the sample phrases of a tool. Requests skip phrases with errors; whoever takes
    /// tools from a file wants to hear of them.
    pub fn check(tool: &ToolDefinition) -> Result<(), PhraseError> {
        catalog::check(tool, &Phonemes::shared())
    }
}

impl fmt::Debug for PhraseMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhraseMatcher").finish_non_exhaustive()
    }
}

#[async_trait]
impl Model for PhraseMatcher {
    fn name(&self) -> &str {
        NAME
    }

    async fn generate(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        let catalogs = Arc::clone(&self.catalogs);
        let work = tokio::task::spawn_blocking(move || {
            let phonemes = Phonemes::shared();
            let catalog = catalogs.of(&request.tools, &phonemes);
            dialogue::reply(&catalog, &request.messages, &phonemes)
        });
        let reply = work.await.map_err(|error| {
            ModelError::new(NAME, Status::Internal, format!("matching failed: {error}"))
        })?;
        let texts = answer::sentences(&reply.text).into_iter().map(ModelChunk::Text);
        let calls = reply.calls.into_iter().map(|(name, args)| {
            ModelChunk::ToolCall(ToolCallRequest {
                id: call_id(),
                name: name.into(),
                arguments: ToolArguments::Object(args),
            })
        });
        let done = ModelChunk::Done {
            reason: ModelFinish::Stop,
            usage: None,
            metadata: Some(reply.metadata),
        };
        let chunks: Vec<_> = texts.chain(calls).chain([done]).map(Ok).collect();
        Ok(Box::pin(futures_util::stream::iter(chunks)))
    }
}

/// An id that no other call of this process has.
fn call_id() -> Arc<str> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("match-{}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}
