//! The engine alone, for measurements. Not part of the public interface.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{Capabilities, LiveConfig, LiveEvent, ReplyId, ReplyOutcome, TextUpdate};
use antiphon_types::{AudioFormat, AudioFrame};

use super::{
    BargeIn, IdleConfig, ReconnectPolicy, SessionLimits,
    engine::{Engine, EngineConfig, HostCommand, Input, Output},
};

/// An engine in the middle of a reply that never ends, with a loudspeaker that keeps up.
#[doc(hidden)]
#[derive(Debug)]
pub struct EngineProbe {
    engine: Engine,
    reply: ReplyId,
    item: Arc<str>,
    now: Instant,
    generation: Generation,
    played: u64,
    turns: u64,
}

impl EngineProbe {
    /// Connected, and the first reply has begun.
    #[allow(clippy::new_without_default)] // there is nothing default about a clock
    pub fn new(now: Instant) -> Self {
        let config = EngineConfig {
            session_id: "probe".into(),
            provider: "probe".into(),
            model: "probe".into(),
            live: LiveConfig::new(),
            idle: IdleConfig::default(),
            limits: SessionLimits::default(),
            reconnect: ReconnectPolicy::default(),
            barge_in: BargeIn::default(),
            sink_format: None,
            first_generation: 1,
            seed: None,
            lifetime: Default::default(),
            linked: None,
            output_guard: None,
            input_guard: None,
        };
        let pcm = AudioFormat::pcm16(24_000);
        let capabilities = Arc::new(Capabilities::audio_only(pcm, pcm));
        let mut probe = Self {
            engine: Engine::new(config, now),
            reply: ReplyId("reply".into()),
            item: "item".into(),
            now,
            generation: Generation(0),
            played: 0,
            turns: 0,
        };
        probe.drain();
        probe.step(Input::Connected { epoch: 1, capabilities });
        probe.step(Input::StartHookDone);
        let event = LiveEvent::ReplyStarted { reply: probe.reply.clone(), request: None };
        probe.step(Input::Provider { epoch: 1, event });
        probe
    }

    /// One frame of the agent's voice, until its output was taken; then it is heard.
    pub fn audio(&mut self, frame: &AudioFrame) -> usize {
        self.now += frame.duration();
        let event = LiveEvent::Audio {
            reply: self.reply.clone(),
            item: self.item.clone(),
            content_index: 0,
            frame: frame.clone(),
        };
        let played = self.step(Input::Provider { epoch: 1, event });
        self.played += played as u64;
        let heard = Played {
            generation: self.generation,
            samples: self.played,
            complete: false,
            at: self.now,
            source: PositionSource::DeviceClock,
        };
        self.step(Input::Played(heard));
        played
    }

    /// One frame of the user's voice, until the wire took it.
    pub fn uplink(&mut self, frame: &AudioFrame) -> usize {
        self.now += Duration::from_millis(20);
        self.step(Input::Host(HostCommand::Audio(frame.clone())));
        std::iter::from_fn(|| self.engine.poll_uplink()).count()
    }

    /// A whole turn: the user says something, the agent answers in ten pieces of words and fifty
    /// frames, all of which are heard. How many events that was.
    pub fn turn(&mut self, frame: &AudioFrame) -> usize {
        let reply = std::mem::replace(&mut self.reply, ReplyId::from(&*self.turns.to_string()));
        if self.turns == 0 {
            let outcome = ReplyOutcome::Completed;
            self.event(LiveEvent::ReplyDone { reply, outcome, usage: None });
        }
        self.turns += 1;
        self.now += Duration::from_secs(1);
        self.event(LiveEvent::SpeechStarted { audio_start_ms: None });
        self.now += Duration::from_secs(1);
        self.event(LiveEvent::SpeechStopped { audio_end_ms: None });
        let text = TextUpdate::Final(Some("What time is it?".into()));
        let item = self.reply.0.clone();
        self.event(LiveEvent::InputTranscript { item, text, speaker: None });
        self.event(LiveEvent::ReplyStarted { reply: self.reply.clone(), request: None });
        let mut samples = 0;
        for number in 0..50 {
            let (reply, item) = (self.reply.clone(), self.item.clone());
            if number % 5 == 0 {
                let (reply, item) = (reply.clone(), item.clone());
                let text = TextUpdate::Delta("It is five. ".into());
                self.event(LiveEvent::OutputTranscript { reply, item, text });
            }
            let frame = frame.clone();
            samples += self.event(LiveEvent::Audio { reply, item, content_index: 0, frame });
        }
        let (reply, outcome) = (self.reply.clone(), ReplyOutcome::Completed);
        self.event(LiveEvent::ReplyDone { reply, outcome, usage: None });
        self.now += frame.duration() * 50;
        let heard = Played {
            generation: self.generation,
            samples: samples as u64,
            complete: true,
            at: self.now,
            source: PositionSource::DeviceClock,
        };
        self.step(Input::Played(heard));
        4 + 50 + 10 + 2
    }

    fn event(&mut self, event: LiveEvent) -> usize {
        self.step(Input::Provider { epoch: 1, event })
    }

    fn step(&mut self, input: Input) -> usize {
        self.engine.handle(input, self.now);
        self.drain()
    }

    fn drain(&mut self) -> usize {
        let mut samples = 0;
        while let Some(output) = self.engine.poll_output() {
            if let Output::Play { generation, frame } = output {
                self.generation = generation;
                samples += frame.samples();
            }
        }
        samples
    }
}
