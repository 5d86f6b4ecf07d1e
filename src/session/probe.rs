//! The engine alone, for measurements. Not part of the public interface.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use antiphon_audio::{Generation, Played, PositionSource};
use antiphon_live::{Capabilities, LiveConfig, LiveEvent, ReplyId};
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
