//! One table of trials, each a script of frames with times, run over every line that can show it:
//! OpenAI's words, those of its dialects, Gemini's, and a cascade of recogniser, model and synthesiser.

#[cfg(feature = "gemini")]
mod gemini;
#[cfg(feature = "cascade")]
mod house;
mod people;
mod script;
mod trials;
mod wire;

#[cfg(feature = "cascade")]
pub use house::cascade_of;

use std::pin::Pin;

use antiphon::{
    agent::{Denial, FuncTool, Tool, ToolContext, ToolError, Verdict},
    audio::AudioFormat,
    live::{LiveConfig, LiveProvider},
    providers::openai::wire::Dialect,
    session::*,
    types::{JsonObject, ToolDefinition, ToolResponse},
};
use antiphon_testkit::{LatchedTool, Speaker, SpeakerControl, ToolLatch, ToolPlan, tone};
use async_trait::async_trait;
use serde_json::Value;

use self::{
    script::{Do, Seen, Trial},
    trials::TRIALS,
};
use crate::rig::{MS, PER_MS, now, policy};

/// A provider that trials run over.
trait Line {
    fn name(&self) -> &'static str;

    /// Runs a trial to its end.
    fn run(&self, trial: &'static Trial) -> Pin<Box<dyn Future<Output = Seen> + '_>>;
}

fn lines() -> Vec<Box<dyn Line>> {
    let mut lines: Vec<Box<dyn Line>> = Vec::new();
    for dialect in Dialect::ALL {
        lines.push(Box::new(wire::Wire(dialect)));
    }
    #[cfg(feature = "gemini")]
    for generation in gemini::Gemini::ALL {
        lines.push(Box::new(generation));
    }
    #[cfg(feature = "cascade")]
    lines.push(Box::new(house::House));
    lines
}

/// A session with the tools of all trials, and whoever listens and speaks.
struct Stage {
    session: AgentSession,
    events: EventStream,
    speaker: SpeakerControl,
    slow: ToolLatch,
    quick: ToolLatch,
    /// The rate of the user's audio, as the provider takes it.
    rate_hz: u32,
    desk: people::Desk,
}

/// The tool `slow`, which an interruption may end.
struct Slow(LatchedTool, antiphon::agent::OnInterruption);

#[async_trait]
impl Tool for Slow {
    fn name(&self) -> &str {
        "slow"
    }
    fn description(&self) -> &str {
        "takes its time"
    }
    fn on_interruption(&self) -> antiphon::agent::OnInterruption {
        self.1
    }
    async fn invoke(&self, cx: ToolContext, args: JsonObject) -> Result<Value, ToolError> {
        self.0.invoke(cx, args).await
    }
}

impl Stage {
    async fn start(trial: &Trial, provider: impl LiveProvider, mut config: LiveConfig) -> Self {
        let (sink, speaker) = Speaker::new(AudioFormat::pcm16(24_000), 24_000 * 600);
        let (slow, slow_latch) = LatchedTool::new("slow", ToolPlan::Succeed);
        let (quick, quick_latch) = LatchedTool::open("quick", ToolPlan::Succeed);
        let (panics, _) = LatchedTool::open("panics", ToolPlan::Panic);
        let flood = FuncTool::new("flood", "too much", None, |_, _| async {
            Ok(JsonObject::from_iter([("text".to_owned(), "ä".repeat(40_000).into())]))
        });
        let rate_hz = provider.capabilities(&config).unwrap().input.sample_rate_hz();
        let mut builder = AgentSession::builder(std::sync::Arc::new(provider))
            .sink(sink)
            .tool(Slow(slow, trial.setup.slow))
            .tool(quick)
            .tool(panics)
            .tool(flood);
        if trial.setup.judged {
            builder = builder.barge_in(BargeIn::Judged(SpeechJudge::default()));
        }
        if trial.setup.denies {
            builder = builder.authorize(policy(|_| Verdict::Deny(Denial::private("not here"))));
        }
        if trial.setup.hosts {
            config = config.host_tool(ToolDefinition::new("mine", "the host's"));
        }
        let mut limits = SessionLimits::default();
        let mut prices = PriceTable::default();
        (prices.input_audio, prices.cached_audio) = (Cost::new(32.0), Cost::new(0.4));
        prices.output_audio = Cost::new(64.0);
        limits.prices = Some(prices);
        let (desk, builder) = people::Desk::open(trial.setup.people, builder).await;
        let session = builder.limits(limits).build().unwrap();
        let events = session.events();
        let idle = IdleConfig::new(trial.setup.remind.map(std::time::Duration::from_secs), None);
        session.start(config, idle).await.unwrap();
        let (slow, quick) = (slow_latch, quick_latch);
        Self { session, events, speaker, slow, quick, rate_hz, desk }
    }

    /// Lets everything that can happen now happen.
    async fn settle(&self) {
        tokio::time::sleep(MS).await;
    }

    /// Something of the user's audio goes out.
    async fn sound(&self, ms: u32) {
        self.session.send_audio(tone(self.rate_hz, 0.0, ms)).unwrap();
    }

    /// What the host and the listener do.
    async fn host(&self, step: &Do) {
        match step {
            Do::Text(text) => self.session.send_text(*text).unwrap(),
            Do::Say(text) => self.session.say(*text).unwrap(),
            Do::Interrupt => self.session.interrupt().unwrap(),
            Do::Answer(id) => {
                let response = ToolResponse::new(*id, "mine", JsonObject::new());
                self.session.send_tool_response(response).unwrap();
            }
            Do::Play(ms) => {
                self.speaker.play(ms * PER_MS);
            }
            Do::PlayAll => {
                self.speaker.play_all();
            }
            Do::Release => self.slow.release(1),
            Do::Sound(ms) => self.sound(*ms).await,
            Do::Reconnect => self.session.reconnect().unwrap(),
            Do::Approve { changed } => self.desk.approve(&self.session, *changed).await,
            _ => {}
        }
        self.settle().await;
    }

    /// What was seen, apart from what the provider was sent.
    async fn end(&mut self) -> Seen {
        self.settle().await;
        let events = now(&mut self.events).await;
        let ran = self.slow.calls().into_iter().chain(self.quick.calls());
        Seen {
            events,
            heard_ms: self.speaker.heard_samples().len() / PER_MS,
            queued_ms: self.speaker.queued() / PER_MS,
            ran: ran.map(|(id, _)| id.to_string()).collect(),
            state: self.session.state(),
            stats: self.session.stats(),
            decided: self.desk.decided(),
            ..Seen::default()
        }
    }
}

/// Runs one trial over every line that can show it. Gives how many there were, and the others with
/// their reasons.
async fn run(trial: &'static Trial) -> (usize, Vec<String>) {
    let mut shown = 0;
    let mut others = Vec::new();
    for line in lines() {
        // A reason may be one of all generations.
        let is_of = |name: &str| {
            name == line.name() || name == "gemini" && line.name().starts_with("gemini-")
        };
        if let Some((_, why)) = trial.not.iter().find(|(name, _)| is_of(name)) {
            others.push(format!("{} x {}: {why}", trial.name, line.name()));
            continue;
        }
        let seen = line.run(trial).await;
        let over = seen.state == SessionState::Inactive;
        assert_eq!(over, trial.setup.ends, "{} x {}: {seen:#?}", trial.name, line.name());
        let held = std::panic::catch_unwind(|| (trial.holds)(&seen));
        assert!(held.is_ok(), "{} x {}: {seen:#?}", trial.name, line.name());
        shown += 1;
    }
    (shown, others)
}

/// The line that a run ends with: every pair was run, or has its reason.
#[tokio::test(start_paused = true)]
async fn every_trial_runs_over_every_dialect_that_can_show_it() {
    let dialects = lines().len();
    let (mut shown, mut reasons) = (0, Vec::new());
    for trial in &TRIALS {
        let (runs, others) = run(trial).await;
        shown += runs;
        reasons.extend(others);
    }
    assert_eq!(shown + reasons.len(), TRIALS.len() * dialects);
    println!("{} trials x {dialects} dialects = {shown}, skipped 0", TRIALS.len());
    println!("{} pairs that do not apply:", reasons.len());
    reasons.iter().for_each(|reason| println!("  {reason}"));
}

/// A test of its own for each trial, named after its line in the list of faults.
macro_rules! trials {
    ($($test:ident),* $(,)?) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $test() {
                let name = stringify!($test).strip_prefix("trial_").unwrap();
                let trial = TRIALS.iter().find(|trial| trial.name == name).unwrap();
                let (shown, _) = run(trial).await;
                assert!(shown > 0);
            }
        )*

        #[test]
        fn every_trial_of_the_table_has_a_test_of_its_name() {
            let tests = [$(stringify!($test)),*];
            let names: Vec<_> = TRIALS.iter().map(|trial| format!("trial_{}", trial.name)).collect();
            assert_eq!(names, tests);
        }
    };
}

trials!(
    trial_a01_a_collision_with_an_automatic_reply_is_survived,
    trial_a02_texts_wait_for_the_active_reply,
    trial_a04_what_never_begins_times_out_and_the_session_lives_on,
    trial_a05_a_call_eight_seconds_after_the_request_is_in_time,
    trial_a07_a_request_waits_for_the_end_of_the_cancelled_reply,
    trial_b01_a_cut_is_never_beyond_what_came,
    trial_b03_nothing_is_cut_before_the_first_frame,
    trial_b04_a_cut_is_relative_to_its_item,
    trial_b07_later_items_are_cut_at_nothing,
    trial_b08_the_heard_part_is_kept,
    trial_b12_a_provider_that_stopped_itself_is_not_told_to,
    trial_b15_the_reply_after_an_interruption_is_heard_whole,
    trial_b16_late_audio_of_a_cancelled_reply_is_not_heard,
    trial_c01_a_noise_resumes_at_the_same_sample,
    trial_c03_a_backchannel_is_no_turn,
    trial_c07_speech_within_a_tool_does_not_bring_the_reminder,
    trial_c09_noises_do_not_put_the_reminder_off,
    trial_c10_the_reminder_needs_no_audio_to_start_with,
    trial_d01_an_interrupted_tool_has_its_one_output,
    trial_d02_a_call_of_an_unknown_tool_is_answered,
    trial_d04_a_call_of_an_interrupted_reply_is_answered_and_not_run,
    trial_d04_a_call_that_is_taken_back_at_once_leaves_no_mark,
    trial_d05_a_call_that_an_interruption_overtakes_never_starts,
    trial_d07_a_call_of_a_reply_that_was_stopped_does_not_run,
    trial_d07_a_call_of_a_reply_that_is_over_does_not_run,
    trial_d07_arguments_of_megabytes_run_nothing,
    trial_d08_broken_arguments_run_nothing,
    trial_d09_a_tool_that_panics_is_answered_for,
    trial_d11_an_output_that_was_refused_may_be_given_again,
    trial_d17_an_output_beyond_all_bounds_is_cut_and_the_talk_goes_on,
    trial_d23_a_denied_call_is_answered_and_not_run,
    trial_e01_an_expiry_in_mid_reply_is_followed_by_a_connection_that_knows,
    trial_e03_after_its_notice_a_connection_may_end_anyhow_and_the_talk_goes_on,
    trial_e05_a_notice_during_a_tool_waits_for_the_handle_after_it,
    trial_e07_a_server_that_answers_no_ping_for_25_seconds_is_kept,
    trial_e09_a_drop_in_mid_reply_leaves_nobody_waiting,
    trial_e10_a_clean_close_ends_the_session,
    trial_e12_the_host_leaves_a_poisoned_connection_with_its_context,
    trial_e14_the_users_audio_goes_to_the_new_connection,
    trial_e16_an_idle_session_outlives_its_connections_without_an_error,
    trial_h02_words_that_come_late_stand_before_the_reply,
    trial_h04_cached_tokens_are_paid_for_once,
);
