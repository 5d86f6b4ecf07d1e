//! What the behaving server says, calls, and when its turn is over.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use antiphon_gemini::{
    server::Hangup,
    wire::{
        Blob, Content, FunctionCall, FunctionResponse, InteractionStatus, MediaModality, MediaType,
        ModalityTokenCount, Part, Role, Scheduling, ServerContent, ServerMessage,
        ToolCallCancellation, ToolCallMessage, Transcription, TurnCompleteReason, UsageMetadata,
        Whole,
    },
};
use serde_json::{Map, Value};

use super::engine::Engine;
use crate::scripted::{Call, Reply, Rule, codec::Codec, voice};

/// Milliseconds of voice for a word, where the script does not say.
const MS_PER_WORD: u32 = 300;
/// The shortest voice, where the script does not say.
const SHORTEST_MS: u32 = 400;
/// How our own client asks for words to be said.
const SAY: &str = "Say the following text exactly";

/// What was said or given last.
pub(super) enum Last {
    Nothing,
    Words(String),
    Output { tool: String, output: String },
}

impl Last {
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Words(words) => words,
            _ => "",
        }
    }
}

/// The turn of the model that goes on, and calls that wait.
pub(super) struct Replying {
    connection: u32,
    running: Option<Running>,
    pending: Vec<Pending>,
    /// Outputs of functions that the model did not wait for, until it is idle.
    later: VecDeque<Last>,
    replies: u32,
    calls: u32,
    /// How often each rule was taken.
    taken: Vec<u32>,
}

struct Pending {
    id: String,
    name: String,
    waits: bool,
}

/// A turn of the model.
struct Running {
    beats: VecDeque<(Duration, Act)>,
    /// When the next beat is due.
    due: Instant,
    began: Instant,
    voice_ms: u64,
    words: u64,
}

/// One thing that a turn does.
enum Act {
    Say { text: String, voice: Option<(u64, u64)>, hz: f32 },
    Call(Vec<Call>),
    AllSaid,
    End(Option<String>),
    Fail(String),
}

impl Replying {
    pub(super) fn new(connection: u32) -> Self {
        Self {
            connection,
            running: None,
            pending: Vec::new(),
            later: VecDeque::new(),
            replies: 0,
            calls: 0,
            taken: Vec::new(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.running.as_ref().map(|running| running.due)
    }
}

impl Engine {
    /// The model answers what came last.
    pub(super) fn begin_reply(&mut self, now: Instant) {
        self.replying.replies += 1;
        let reply = self.choose();
        let pace = reply.pace.clone().unwrap_or_else(|| self.script().pace.clone());
        let speaks = self.session().is_none_or(|session| session.speaks);
        let hz = reply.tone_hz.unwrap_or(voice::DEFAULT_HZ);
        let texts = reply.text.iter().chain(&reply.more).map(|text| self.filled(text));
        let mut beats = VecDeque::new();
        let mut wait = pace.think();
        let mut at_ms = 0;
        for text in texts.collect::<Vec<_>>() {
            let words: Vec<&str> = text.split_inclusive(' ').collect();
            let length = u32::try_from(words.len()).unwrap_or(u32::MAX);
            let default = length.saturating_mul(MS_PER_WORD).max(SHORTEST_MS);
            let voice_ms = reply.audio_ms.unwrap_or(default);
            let pieces = voice_ms.div_ceil(pace.delta_ms.max(1)).max(1) as usize;
            for piece in 0..pieces {
                let of = |n: usize| words.len() * n / pieces;
                let said: String = words[of(piece)..of(piece + 1)].concat();
                let from = u64::from(pace.delta_ms) * piece as u64;
                let to = (from + u64::from(pace.delta_ms)).min(voice_ms.into());
                let voice = (speaks && !reply.text_only).then_some((at_ms + from, at_ms + to));
                beats.push_back((wait, Act::Say { text: said, voice, hz }));
                wait = pace.interval();
            }
            at_ms += u64::from(voice_ms);
        }
        if !reply.calls.is_empty() {
            beats.push_back((wait, Act::Call(reply.calls.clone())));
            wait = Duration::ZERO;
        }
        match &reply.fail {
            Some(failure) => beats.push_back((wait, Act::Fail(failure.message.clone()))),
            None => {
                beats.push_back((wait, Act::AllSaid));
                beats.push_back((Duration::ZERO, Act::End(reply.incomplete.clone())));
            }
        }
        let due = now + beats.front().map_or(Duration::ZERO, |(after, _)| *after);
        self.replying.running = Some(Running { beats, due, began: now, voice_ms: 0, words: 0 });
        self.tell_handle(false);
    }

    /// The user speaks, or writes: the turn that goes on is over, and its calls are taken back.
    pub(super) fn interrupt(&mut self, _: Instant) {
        let running = self.replying.running.take();
        let ids: Vec<String> =
            self.replying.pending.extract_if(.., |call| call.waits).map(|call| call.id).collect();
        if running.is_some() {
            self.tell(ServerContent { interrupted: Some(true), ..ServerContent::default() });
        }
        if !ids.is_empty() {
            let tool_call_cancellation = Some(ToolCallCancellation { ids: Some(ids) });
            self.say(ServerMessage { tool_call_cancellation, ..ServerMessage::default() });
        }
        if let Some(running) = running {
            self.end_turn(&running, None);
        }
    }

    pub(super) fn advance_reply(&mut self, now: Instant) {
        while let Some(mut running) = self.replying.running.take() {
            if running.due > now {
                self.replying.running = Some(running);
                return;
            }
            let Some((_, act)) = running.beats.pop_front() else { continue };
            match self.act(act, &mut running) {
                // The rest is not said.
                Next::Pause => return,
                Next::Over => self.speak_of_what_came(now),
                Next::GoOn(after) => {
                    let wait = running.beats.front().map_or(Duration::ZERO, |(wait, _)| *wait);
                    running.due = running.due.max(after) + wait;
                    self.replying.running = Some(running);
                }
            }
        }
    }

    fn act(&mut self, act: Act, running: &mut Running) -> Next {
        match act {
            Act::Say { text, voice, hz } => {
                running.words += u64::from(!text.trim().is_empty());
                self.say_piece(text, voice, hz, running);
            }
            Act::Call(calls) => {
                let waits = self.call(calls);
                if waits && !self.turn_ends_at_call() {
                    return Next::Pause;
                }
                if waits {
                    // Nothing more comes; the turn is over at once.
                    self.end_turn(running, None);
                    return Next::Pause;
                }
            }
            Act::AllSaid => {
                let generation_complete = Some(true);
                self.tell(ServerContent { generation_complete, ..ServerContent::default() });
                if !self.script().ends_at_once {
                    let heard = running.began + Duration::from_millis(running.voice_ms);
                    return Next::GoOn(heard);
                }
            }
            Act::End(reason) => {
                self.end_turn(running, reason.as_deref());
                return Next::Over;
            }
            Act::Fail(message) => {
                self.hang_up(Hangup::new(1011, message));
                return Next::Pause;
            }
        }
        Next::GoOn(running.due)
    }

    fn turn_ends_at_call(&self) -> bool {
        self.session().is_some_and(|session| session.generation.turn_ends_at_call)
    }

    fn say_piece(
        &mut self,
        text: String,
        voice: Option<(u64, u64)>,
        hz: f32,
        running: &mut Running,
    ) {
        let Some(session) = self.session() else { return };
        let several = session.generation.name != "2.5";
        let transcribes = session.output_transcripts;
        let Some((from, to)) = voice else {
            if !text.is_empty() {
                self.tell(of_model(vec![Part::text(text)]));
            }
            return;
        };
        running.voice_ms += to - from;
        // Newer models send several parts at once, and words beside the voice.
        let middle = if several { from + (to - from) / 2 } else { to };
        let parts = [(from, middle), (middle, to)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(|(from, to)| {
                let data = voice::bytes(Codec::Pcm(24_000), hz, from, to);
                Part::inline(Blob::new(MediaType::pcm(24_000), data))
            })
            .collect();
        let mut content = of_model(parts);
        if transcribes && !text.is_empty() {
            let words = Transcription { text: Some(text), ..Transcription::default() };
            if several {
                content.output_transcription = Some(words);
            } else {
                self.tell(ServerContent {
                    output_transcription: Some(words),
                    ..ServerContent::default()
                });
            }
        }
        self.tell(content);
    }

    /// Calls functions; tells whether the model waits for one.
    fn call(&mut self, calls: Vec<Call>) -> bool {
        let mut waits = false;
        let mut told = Vec::new();
        for call in calls {
            self.replying.calls += 1;
            let (connection, number) = (self.replying.connection, self.replying.calls);
            let id = call
                .call_id
                .clone()
                .unwrap_or_else(|| format!("function-call-{connection}-{number}"));
            let blocks = self.session().is_none_or(|session| session.waits_for(&call.name));
            waits |= blocks;
            let args = match call.arguments {
                Value::Null => Value::Object(Map::new()),
                args => args,
            };
            let (name, args) = (Some(call.name.clone()), Some(args));
            let function = FunctionCall { id: Some(id.clone()), name, args, ..Default::default() };
            told.push(function);
            self.replying.pending.push(Pending { id, name: call.name, waits: blocks });
        }
        let tool_call = Some(ToolCallMessage { function_calls: Some(told) });
        self.say(ServerMessage { tool_call, ..ServerMessage::default() });
        waits
    }

    /// The output of a function.
    pub(super) fn take_output(&mut self, response: FunctionResponse, now: Instant) {
        let pending = &mut self.replying.pending;
        let of = |call: &Pending| Some(&*call.id) == response.id.as_deref();
        let Some(at) = pending.iter().position(of) else { return };
        let waited = pending[at].waits;
        let tool = match response.will_continue == Some(true) && !waited {
            true => pending[at].name.clone(),
            false => pending.remove(at).name,
        };
        let output = Value::Object(response.response.unwrap_or_default()).to_string();
        let output = Last::Output { tool, output };
        if waited {
            self.last = output;
            if !self.replying.pending.iter().any(|call| call.waits) {
                self.begin_reply(now);
            }
            return;
        }
        match response.scheduling {
            Some(Scheduling::Silent) => self.last = output,
            Some(Scheduling::Interrupt) => {
                self.interrupt(now);
                self.last = output;
                self.begin_reply(now);
            }
            _ => {
                self.replying.later.push_back(output);
                if self.replying.running.is_none() {
                    self.speak_of_what_came(now);
                }
            }
        }
    }

    fn speak_of_what_came(&mut self, now: Instant) {
        if let Some(output) = self.replying.later.pop_front() {
            self.last = output;
            self.begin_reply(now);
        }
    }

    fn end_turn(&mut self, running: &Running, reason: Option<&str>) {
        let newest = self.session().is_some_and(|session| session.generation.tells_speech);
        let works = self.replying.pending.iter().any(|call| !call.waits);
        let status = if works { InteractionStatus::InProgress } else { InteractionStatus::Idle };
        let content = ServerContent {
            turn_complete: Some(true),
            turn_complete_reason: reason.map(TurnCompleteReason::from),
            interaction_status: newest.then_some(status),
            ..ServerContent::default()
        };
        self.say(ServerMessage {
            usage_metadata: Some(usage(self.replying.replies, running)),
            ..ServerMessage::content(content)
        });
        if self.replying.pending.is_empty() {
            self.tell_handle(true);
        }
    }

    /// The reply that the script has for what came last.
    fn choose(&mut self) -> Reply {
        let script = self.script();
        self.replying.taken.resize(script.replies.len(), 0);
        let fits = |rule: &Rule, taken: u32| {
            let when = &rule.when;
            let text = when.text.as_ref().is_none_or(|wanted| match &self.last {
                Last::Words(words) => words.to_lowercase().contains(&wanted.to_lowercase()),
                _ => false,
            });
            let output = when.tool_output.as_ref().is_none_or(|wanted| match &self.last {
                Last::Output { tool, .. } => wanted == "*" || wanted == tool,
                _ => false,
            });
            let nth = when.nth.is_none_or(|nth| nth == self.replying.replies);
            let left = rule.times.is_none_or(|times| taken < times);
            text && output && nth && left && when.instructions.is_none()
        };
        let mut rules = script.replies.iter().zip(&self.replying.taken);
        let found = rules.position(|(rule, taken)| fits(rule, *taken));
        if let Some(at) = found {
            self.replying.taken[at] += 1;
            return script.replies[at].reply.clone();
        }
        Reply::text(match &self.last {
            Last::Nothing => "Hello.".to_owned(),
            Last::Words(words) if words.starts_with(SAY) => {
                words.split_once("\n\n").map_or_else(String::new, |(_, text)| text.to_owned())
            }
            Last::Words(words) => format!("You said: {words}"),
            Last::Output { output, .. } => format!("The tool says: {output}"),
        })
    }

    fn filled(&self, text: &str) -> String {
        let (words, output) = match &self.last {
            Last::Nothing => ("", ""),
            Last::Words(words) => (words.as_str(), ""),
            Last::Output { output, .. } => ("", output.as_str()),
        };
        text.replace("{text}", words).replace("{output}", output)
    }
}

/// What a turn does after an act.
enum Next {
    /// It says nothing more until it has an output, or at all.
    Pause,
    /// It is over.
    Over,
    /// It goes on, not before.
    GoOn(Instant),
}

fn of_model(parts: Vec<Part>) -> ServerContent {
    let model_turn = Some(Content { parts: Some(parts), role: Some(Role::Model) });
    ServerContent { model_turn, ..ServerContent::default() }
}

/// What a turn costs: more with every one, as the conversation grows.
fn usage(replies: u32, running: &Running) -> UsageMetadata {
    let whole = |count: u64| Some(Whole(i64::try_from(count).unwrap_or(i64::MAX)));
    let of = |modality, count| ModalityTokenCount {
        modality: Some(modality),
        token_count: whole(count),
    };
    let (text, audio) = (u64::from(replies) * 20, u64::from(replies) * 50);
    // 25 tokens for a second of voice.
    let spoken = running.voice_ms / 40;
    let written = if spoken == 0 { running.words } else { 0 };
    UsageMetadata {
        prompt_token_count: whole(text + audio),
        response_token_count: whole(spoken + written),
        total_token_count: whole(text + audio + spoken + written),
        prompt_tokens_details: Some(vec![
            of(MediaModality::Text, text),
            of(MediaModality::Audio, audio),
        ]),
        response_tokens_details: Some(vec![
            of(MediaModality::Audio, spoken),
            of(MediaModality::Text, written),
        ]),
        ..UsageMetadata::default()
    }
}
