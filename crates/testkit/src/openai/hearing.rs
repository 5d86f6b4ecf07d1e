//! What the server does with the user's audio: turns, transcripts, and a user who says nothing.

use std::time::{Duration, Instant};

use antiphon_openai::wire::{
    ApiError, AudioEnd, AudioStart, BufferCommitted, Content, ContentType, Item, Message, Patch,
    Role, ServerEvent, TimeoutTriggered, TranscriptDone, TranscriptionCompleted,
    TranscriptionDelta, TranscriptionError, TranscriptionFailed, TranscriptionTokens,
    TranscriptionUsage, TurnDetection,
};

use super::{
    conversation::invalid,
    engine::{Engine, stamp},
};
use crate::scripted::{
    Transcript,
    listening::{FULL_THRESHOLD_RMS, Heard, TurnParameters},
};

/// The largest append, in base64.
const MAX_APPEND: usize = 15 * 1024 * 1024;

impl Engine {
    pub(super) fn append(&mut self, base64: &str, now: Instant) -> Result<(), ApiError> {
        if base64.len() > MAX_APPEND {
            return Err(invalid("invalid_value", "The audio is larger than 15 MiB.", "audio"));
        }
        let audio = base64_simd::STANDARD.decode_to_vec(base64).map_err(|_| {
            invalid("invalid_value", "Invalid 'audio': expected base64-encoded bytes.", "audio")
        })?;
        let turns = self.session.turns().cloned();
        for heard in self.listening.append(&audio, turns.as_ref().map(turn_parameters)) {
            match heard {
                Heard::Started { at_ms } => self.speech_started(at_ms),
                Heard::Stopped { at_ms } => self.speech_stopped(at_ms, turns.as_ref(), now),
            }
        }
        Ok(())
    }

    fn speech_started(&mut self, audio_start_ms: u64) {
        self.idle_at = None;
        let item_id = self.ids.item();
        self.speech_item = Some(item_id.clone());
        let event_id = self.ids.event();
        self.emit(ServerEvent::SpeechStarted(AudioStart { event_id, audio_start_ms, item_id }));
        if self.session.turns().is_some_and(TurnDetection::interrupts_replies) {
            self.interrupt_response();
        }
    }

    fn speech_stopped(&mut self, audio_end_ms: u64, turns: Option<&TurnDetection>, now: Instant) {
        let item_id = self.speech_item.take().unwrap_or_else(|| self.ids.item());
        let event_id = self.ids.event();
        let event = AudioEnd { event_id, audio_end_ms, item_id: item_id.clone() };
        self.emit(ServerEvent::SpeechStopped(event));
        self.commit(item_id, now);
        if turns.is_some_and(TurnDetection::creates_replies) {
            self.reply_to_turn(now);
        }
    }

    /// Makes the buffer an item.
    pub(super) fn commit(&mut self, item_id: String, now: Instant) {
        let audio = self.listening.take();
        let ms = self.session.input_format().ms(audio.len()) as u64;
        let event = BufferCommitted {
            event_id: self.ids.event(),
            previous_item_id: self.conversation.last_id(),
            item_id: item_id.clone(),
        };
        self.emit(ServerEvent::BufferCommitted(event));
        let mut item =
            Item::Message(Message::new(Role::User, vec![Content::new(ContentType::InputAudio)]));
        item.set_id(item_id.clone());
        stamp(&mut item);
        let transcript = self
            .transcripts
            .pop_front()
            .unwrap_or_else(|| Transcript::Words(format!("{ms} milliseconds of speech")));
        let entry = self.conversation.push(item_id.clone(), item);
        entry.audio = audio;
        if let Transcript::Words(words) = &transcript {
            entry.heard = Some(words.clone());
        }
        self.emit_item(&item_id, false);
        self.emit_item(&item_id, true);
        if self.session.transcribes() {
            let due = now + self.opening.script.pace.transcript();
            self.due_transcripts.push_back((due, item_id, transcript));
        }
    }

    pub(super) fn tell_transcript(&mut self, item_id: &str, transcript: Transcript) {
        match transcript {
            Transcript::Fails { fail } => {
                let event_id = self.ids.event();
                self.emit(ServerEvent::TranscriptionFailed(TranscriptionFailed {
                    event_id,
                    item_id: item_id.into(),
                    content_index: 0,
                    error: TranscriptionError {
                        kind: Some("server_error".into()),
                        code: Some("audio_unintelligible".into()),
                        message: Some(fail),
                        param: None,
                    },
                }));
            }
            Transcript::Words(words) => {
                let mut pieces: Vec<&str> = words.split_inclusive(' ').collect();
                if pieces.len() > 2 {
                    pieces = vec![pieces[0], &words[pieces[0].len()..]];
                }
                let mut so_far = String::new();
                for piece in pieces {
                    let event_id = self.ids.event();
                    if self.facts.cumulative_transcripts {
                        so_far.push_str(piece);
                        self.emit(ServerEvent::TranscriptionUpdated(TranscriptDone {
                            event_id,
                            item_id: item_id.into(),
                            transcript: Some(so_far.clone()),
                            ..TranscriptDone::default()
                        }));
                        continue;
                    }
                    self.emit(ServerEvent::TranscriptionDelta(TranscriptionDelta {
                        event_id,
                        item_id: item_id.into(),
                        content_index: Some(0),
                        delta: Some(piece.into()),
                        logprobs: None,
                    }));
                }
                let Some(entry) = self.conversation.find_mut(item_id) else { return };
                let seconds = self.session.input_format().ms(entry.audio.len()) / 1_000.0;
                if let Item::Message(message) = &mut entry.item
                    && let Some(part) = message.content.first_mut()
                {
                    part.transcript = Some(words.clone());
                }
                let (input, output) = (seconds as u64 * 10 + 1, words.len() as u64 / 4 + 1);
                let usage = TranscriptionUsage::Tokens {
                    input_tokens: input,
                    output_tokens: output,
                    total_tokens: input + output,
                    input_token_details: Some(TranscriptionTokens {
                        audio_tokens: Some(input),
                        text_tokens: Some(0),
                    }),
                };
                let event_id = self.ids.event();
                self.emit(ServerEvent::TranscriptionCompleted(TranscriptionCompleted {
                    event_id,
                    item_id: item_id.into(),
                    transcript: words,
                    usage: Some(usage).filter(|_| self.facts.tells_usage),
                    ..TranscriptionCompleted::default()
                }));
            }
        }
    }

    /// The user said nothing for as long as the session allows.
    pub(super) fn user_is_idle(&mut self, now: Instant) {
        if self.listening.is_speaking() || self.replying.is_active() {
            return;
        }
        let audio_end_ms = self.listening.written_ms();
        let buffered = self.listening.buffered_ms() as u64;
        let item_id = self.ids.item();
        let event = TimeoutTriggered {
            event_id: self.ids.event(),
            audio_start_ms: audio_end_ms.saturating_sub(buffered),
            audio_end_ms,
            item_id: item_id.clone(),
        };
        self.emit(ServerEvent::TimeoutTriggered(event));
        self.commit(item_id, now);
        self.reply_to_turn(now);
    }

    /// When the user has been idle for too long after a reply with so much voice.
    pub(super) fn idle_after(&self, voice_ms: u64, now: Instant) -> Option<Instant> {
        let Some(TurnDetection::ServerVad(vad)) = self.session.turns() else { return None };
        let Patch::Set(idle_ms) = vad.idle_timeout_ms else { return None };
        Some(now + Duration::from_millis(voice_ms + u64::from(idle_ms)))
    }
}

/// How the session hears turns.
fn turn_parameters(turns: &TurnDetection) -> TurnParameters {
    match turns {
        TurnDetection::ServerVad(vad) => TurnParameters {
            rms: vad.threshold.unwrap_or(0.5) * FULL_THRESHOLD_RMS,
            prefix_ms: vad.prefix_padding_ms.unwrap_or(300).into(),
            silence_ms: vad.silence_duration_ms.unwrap_or(200).into(),
        },
        // It waits for meaning; we have none, so it waits a while.
        _ => TurnParameters { rms: 0.5 * FULL_THRESHOLD_RMS, prefix_ms: 300, silence_ms: 600 },
    }
}
