//! The active reply: a model's text on its way to becoming speech, sentence by sentence.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use antiphon_agent::{ModelChunk, ModelFinish, ModelRequest, Part, PartKind, message::ToolRequest};
use antiphon_live::{LiveEvent, ReplyId, ReplyOutcome, TextUpdate};
use antiphon_types::{AudioFrame, JsonObject, ToolArguments, ToolCallRequest, Usage};
use serde_json::Value;

use super::{
    Job, JobId, Outputs, Settings,
    history::{Mark, Said},
    sentences::{SentenceSplitter, is_speakable},
};
use crate::SpeechRequest;

/// Sentences in synthesis at a time: the one being sent, and the next.
const SENTENCES_AHEAD: usize = 2;
/// An audio event is at most this long.
const EVENT_LENGTH: Duration = Duration::from_millis(100);
/// More audio for one sentence is a synthesiser that does not stop.
const MAX_SENTENCE: Duration = Duration::from_secs(120);
/// A reply's text is at most so many bytes; then it ends as incomplete.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// A reply's calls are at most so many; further ones are dropped.
const MAX_CALLS: usize = 64;

/// The active reply.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) id: ReplyId,
    item: Arc<str>,
    settings: Arc<Settings>,
    /// The running generation.
    generation: Option<JobId>,
    splitter: SentenceSplitter,
    /// Complete sentences not yet in synthesis.
    waiting: VecDeque<String>,
    /// Sentences in synthesis; the first is being sent.
    speaking: VecDeque<Sentence>,
    outcome: ReplyOutcome,
    generated_bytes: usize,
    samples: u64,
    usage: Usage,
    /// What is said so far: the words whose audio was begun.
    said: Said,
    /// What of it the user heard, as far as the session said so already.
    heard: Option<(Option<String>, u32)>,
}

#[derive(Debug)]
struct Sentence {
    text: String,
    /// `None`: there is nothing to say aloud.
    job: Option<JobId>,
    /// What came while the sentence before was still being sent.
    frames: VecDeque<AudioFrame>,
    samples: u64,
    begun: bool,
    done: bool,
}

impl Reply {
    /// A reply by the model.
    pub(crate) fn generate(
        id: ReplyId,
        settings: Arc<Settings>,
        request: ModelRequest,
        out: &mut Outputs,
    ) -> Self {
        let mut reply = Self::new(id, settings);
        reply.generation = Some(out.start(Job::Generate(request)));
        reply
    }

    /// A reply of exactly this text.
    pub(crate) fn say(id: ReplyId, settings: Arc<Settings>, text: &str, out: &mut Outputs) -> Self {
        let mut reply = Self::new(id, settings);
        reply.take_text(text);
        reply.waiting.extend(reply.splitter.finish());
        reply.advance(out);
        reply
    }

    fn new(id: ReplyId, settings: Arc<Settings>) -> Self {
        let item: Arc<str> = format!("{id}_item").into();
        Self {
            said: Said { item: item.clone(), ..Said::default() },
            id,
            item,
            settings,
            generation: None,
            splitter: SentenceSplitter::default(),
            waiting: VecDeque::new(),
            speaking: VecDeque::new(),
            outcome: ReplyOutcome::Completed,
            generated_bytes: 0,
            samples: 0,
            usage: Usage::default(),
            heard: None,
        }
    }

    /// Whether `job` is the running generation.
    pub(crate) fn is_generated_by(&self, job: JobId) -> bool {
        self.generation == Some(job)
    }

    /// Whether `job` speaks one of the sentences.
    pub(crate) fn is_spoken_by(&self, job: JobId) -> bool {
        self.speaking.iter().any(|sentence| sentence.job == Some(job))
    }

    /// Whether all is generated and sent.
    pub(crate) fn is_over(&self) -> bool {
        self.generation.is_none() && self.waiting.is_empty() && self.speaking.is_empty()
    }

    /// The model went on.
    pub(crate) fn chunk(&mut self, chunk: ModelChunk, out: &mut Outputs) {
        match chunk {
            ModelChunk::Text(text) => self.take_text(&text),
            ModelChunk::ToolCall(call) => self.take_call(call, out),
            ModelChunk::Part(part) => self.take_part(*part, out),
            ModelChunk::Whole(parts) => {
                parts.into_iter().for_each(|part| self.take_part(part, out));
            }
            ModelChunk::Done { reason, usage, metadata } => {
                match reason {
                    ModelFinish::Length => self.outcome = ReplyOutcome::Incomplete,
                    ModelFinish::Blocked => self.outcome = ReplyOutcome::Blocked,
                    _ => {}
                }
                if let Some(usage) = usage {
                    self.usage.add(&usage);
                }
                self.said.metadata = metadata;
                self.generated(out);
            }
            // Thoughts are not spoken.
            _ => {}
        }
        if self.generated_bytes > MAX_TEXT_BYTES && self.generation.is_some() {
            self.outcome = ReplyOutcome::Incomplete;
            self.stop_generation(out);
        }
        self.advance(out);
    }

    /// The generation is over.
    pub(crate) fn generated(&mut self, out: &mut Outputs) {
        self.generation = None;
        self.waiting.extend(self.splitter.finish());
        self.advance(out);
    }

    /// A piece of a sentence's audio came. The error is for the session.
    pub(crate) fn frame(
        &mut self,
        job: JobId,
        frame: AudioFrame,
        out: &mut Outputs,
    ) -> Result<(), String> {
        let expected = self.settings.output;
        if frame.format != expected {
            return Err(format!("audio is {:?} where {expected:?} was announced", frame.format));
        }
        let found = self.speaking.iter_mut().find(|sentence| sentence.job == Some(job));
        let Some(sentence) = found.filter(|sentence| !sentence.done) else { return Ok(()) };
        sentence.samples += frame.samples() as u64;
        if expected.duration_of(sentence.samples) > MAX_SENTENCE {
            return Err(format!("a sentence takes more than {MAX_SENTENCE:?}"));
        }
        sentence.frames.push_back(frame);
        self.advance(out);
        Ok(())
    }

    /// A sentence is spoken to its end.
    pub(crate) fn spoken(&mut self, job: JobId, out: &mut Outputs) {
        for sentence in &mut self.speaking {
            sentence.done |= sentence.job == Some(job);
        }
        self.advance(out);
    }

    /// Stops everything that runs for this reply.
    pub(crate) fn stop(&mut self, out: &mut Outputs) {
        self.stop_generation(out);
        self.waiting.clear();
        for job in self.speaking.drain(..).filter_map(|sentence| sentence.job) {
            out.cancel(job);
        }
    }

    /// Ends the reply: tells the session, and gives what the conversation is to remember.
    /// `outcome` is `None` when the reply ended by itself.
    pub(crate) fn finish(mut self, outcome: Option<ReplyOutcome>, out: &mut Outputs) -> Said {
        if self.speaking.front().is_some_and(|sentence| sentence.begun) {
            self.mark();
        }
        self.stop(out);
        let outcome = outcome.unwrap_or(self.outcome);
        let cut = matches!(outcome, ReplyOutcome::Interrupted | ReplyOutcome::Cancelled);
        if !cut && !self.said.text.is_empty() && self.settings.output_transcripts {
            out.event(LiveEvent::OutputTranscript {
                reply: self.id.clone(),
                item: self.item.clone(),
                text: TextUpdate::Final(Some(self.said.text.clone())),
            });
        }
        if outcome == ReplyOutcome::Completed {
            for call in &mut self.said.calls {
                call.id = out.unique_call_id(&call.id);
            }
        } else {
            // Nobody knows whether the model would have meant it.
            self.said.calls.clear();
        }
        if !self.said.calls.is_empty() {
            out.event(LiveEvent::ToolCalls {
                reply: Some(self.id.clone()),
                calls: self.said.calls.clone(),
            });
        }
        self.usage.output_audio_ms += self.milliseconds();
        out.event(LiveEvent::ReplyDone { reply: self.id, outcome, usage: Some(self.usage) });
        self.said
    }

    /// The user heard only part of `item`, though the reply goes on or is about to be stopped.
    /// False: the item is another one's.
    pub(crate) fn truncate(&mut self, item: &str, heard: Option<&str>, audio_end_ms: u32) -> bool {
        if *self.item != *item {
            return false;
        }
        self.heard = Some((heard.map(str::to_owned), audio_end_ms));
        true
    }

    /// What [`Reply::truncate`] was told.
    pub(crate) fn take_heard(&mut self) -> Option<(Option<String>, u32)> {
        self.heard.take()
    }

    /// Adds to what the reply cost.
    pub(crate) fn add_input_ms(&mut self, milliseconds: u64) {
        self.usage.input_audio_ms += milliseconds;
    }

    fn take_text(&mut self, text: &str) {
        self.generated_bytes += text.len();
        self.splitter.push(text, &mut self.waiting);
    }

    fn take_call(&mut self, call: ToolCallRequest, out: &mut Outputs) {
        if self.said.calls.len() < MAX_CALLS {
            self.said.calls.push(call);
        } else {
            out.error("model", "the model asks for too many tools at once");
        }
    }

    /// Words and calls count; what cannot be spoken does not.
    fn take_part(&mut self, part: Part, out: &mut Outputs) {
        match part.kind {
            PartKind::Text(text) => self.take_text(&text),
            PartKind::ToolRequest(ToolRequest { name, id, input, .. }) => {
                let arguments = match input {
                    Some(Value::Object(object)) => ToolArguments::Object(object),
                    None | Some(Value::Null) => ToolArguments::Object(JsonObject::new()),
                    // No object: the session refuses it.
                    Some(other) => ToolArguments::Json(other.to_string()),
                };
                let id = id.unwrap_or_default();
                self.take_call(ToolCallRequest { id, name, arguments }, out);
            }
            _ => {}
        }
    }

    fn stop_generation(&mut self, out: &mut Outputs) {
        if let Some(job) = self.generation.take() {
            out.cancel(job);
        }
    }

    /// Sends what may be sent and starts what may be started.
    fn advance(&mut self, out: &mut Outputs) {
        loop {
            while let Some(sentence) = self.speaking.front_mut() {
                if !sentence.begun && (sentence.done || !sentence.frames.is_empty()) {
                    sentence.begun = true;
                    self.said.text.push_str(&sentence.text);
                    if self.settings.output_transcripts {
                        out.event(LiveEvent::OutputTranscript {
                            reply: self.id.clone(),
                            item: self.item.clone(),
                            text: TextUpdate::Delta(sentence.text.clone()),
                        });
                    }
                }
                let frames = std::mem::take(&mut sentence.frames);
                let done = sentence.done;
                for frame in frames {
                    self.send(&frame, out);
                }
                if !done {
                    break;
                }
                self.mark();
                self.speaking.pop_front();
            }
            if self.speaking.len() >= SENTENCES_AHEAD {
                return;
            }
            let Some(text) = self.waiting.pop_front() else { return };
            let job = is_speakable(&text).then(|| out.start(Job::Synthesize(self.request(&text))));
            self.speaking.push_back(Sentence {
                text,
                done: job.is_none(),
                job,
                frames: VecDeque::new(),
                samples: 0,
                begun: false,
            });
        }
    }

    fn mark(&mut self) {
        let mark = Mark { end_ms: self.milliseconds(), text_end: self.said.text.len() };
        self.said.marks.push(mark);
    }

    fn request(&self, text: &str) -> SpeechRequest {
        SpeechRequest {
            text: text.trim().to_owned(),
            voice: self.settings.voice.clone(),
            locale: self.settings.locale.clone(),
        }
    }

    fn send(&mut self, frame: &AudioFrame, out: &mut Outputs) {
        let step = frame.format.samples_in(EVENT_LENGTH).max(1) as usize;
        for from in (0..frame.samples()).step_by(step) {
            let piece = frame.slice(from, from + step);
            self.samples += piece.samples() as u64;
            out.event(LiveEvent::Audio {
                reply: self.id.clone(),
                item: self.item.clone(),
                content_index: 0,
                frame: piece,
            });
        }
    }

    fn milliseconds(&self) -> u64 {
        self.settings.output.duration_of(self.samples).as_millis() as u64
    }
}
