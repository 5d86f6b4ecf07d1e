//! Timers that ring aloud.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use antiphon_agent::{FuncTool, Tool, ToolError};
use antiphon_types::{AudioFrame, Status, ToolSpeech};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{output, read_args};

/// Timers that run at the same time; a further one is refused.
const MAX_TIMERS: usize = 64;
const MAX_SECONDS: u64 = 24 * 60 * 60;

/// The tools `set_timer`, `cancel_timer` and `list_timers`. They do not ring by themselves: the
/// host takes each [`Ring`] from [`Rings`] and plays it, so that timers hold no session.
///
/// Time is tokio's, so timers ring in virtual time where the clock is paused.
#[derive(Clone, Debug, Default)]
pub struct Timers {
    shared: Arc<Shared>,
}

/// A timer that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// The timer's name: what the user called it, or how long it ran.
    pub name: String,
    /// How long it ran.
    pub duration: Duration,
}

impl Ring {
    /// What to say aloud.
    pub fn announcement(&self) -> String {
        format!("Your {} timer is done.", self.name)
    }
}

/// Timers as they become due.
#[derive(Debug)]
pub struct Rings {
    shared: Arc<Shared>,
}

impl Timers {
    /// No timers, and where they ring.
    pub fn new() -> (Self, Rings) {
        let timers = Self::default();
        let rings = Rings { shared: timers.shared.clone() };
        (timers, rings)
    }

    /// When the next timer is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.shared.lock().first().map(|timer| timer.due)
    }

    /// The tool `set_timer`.
    pub fn set_tool(&self) -> impl Tool + use<> {
        let timers = self.clone();
        let schema = json!({
            "type": "object",
            "properties": {
                "duration": {
                    "type": "number", "minimum": 1, "maximum": MAX_SECONDS,
                    "x-slot": "duration", "description": "How long, in seconds."
                },
                "name": {
                    "type": "string", "minLength": 1, "maxLength": 40,
                    "description": "What the timer is for, such as pasta."
                },
            },
            "required": ["duration"],
            "additionalProperties": false,
        });
        FuncTool::new(
            "set_timer",
            "Sets a timer that rings aloud after a duration.",
            schema,
            move |_, args| {
                let timers = timers.clone();
                async move {
                    let SetTimer { duration, name } = read_args(args)?;
                    let duration = Duration::from_secs_f64(duration.clamp(0.0, MAX_SECONDS as f64));
                    let name = timers.set(duration, name)?;
                    Ok(output(json!({
                        "name": name, "for": in_words(duration), "duration": duration.as_secs_f64()
                    })))
                }
            },
        )
        .speech(
            ToolSpeech::phrases([
                "set a timer for {duration}",
                "set a {duration} timer",
                "start a timer for {duration}",
                "start a {duration} timer",
                "timer for {duration}",
                "{duration} timer",
                "set a {name} timer for {duration}",
                "set a timer for {duration} for the {name}",
                "wake me in {duration}",
                "count down {duration}",
                "set a timer",
                "start a timer",
            ])
            .answer("I set a timer for {for}.")
            .question("duration", "For how long?"),
        )
    }

    /// The tool `cancel_timer`.
    pub fn cancel_tool(&self) -> impl Tool + use<> {
        let timers = self.clone();
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {
                    "type": "string", "maxLength": 40,
                    "description": "Which timer. All, when there is no name."
                },
            },
            "additionalProperties": false,
        });
        FuncTool::new("cancel_timer", "Cancels timers.", schema, move |_, args| {
            let timers = timers.clone();
            async move {
                let CancelTimer { name } = read_args(args)?;
                let cancelled = timers.cancel(name.as_deref());
                let spoken = match (cancelled, name) {
                    (0, Some(name)) => format!("There is no {name} timer."),
                    (0, None) => "No timer is running.".to_owned(),
                    (1, _) => "I cancelled the timer.".to_owned(),
                    (many, _) => format!("I cancelled {many} timers."),
                };
                Ok(output(json!({"cancelled": cancelled, "spoken": spoken})))
            }
        })
        .speech(
            ToolSpeech::phrases([
                "cancel the timer",
                "cancel my timer",
                "stop the timer",
                "delete the timer",
                "cancel all timers",
                "stop all timers",
                "cancel the {name} timer",
                "stop the {name} timer",
            ])
            .answer("{spoken}"),
        )
    }

    /// The tool `list_timers`.
    pub fn list_tool(&self) -> impl Tool + use<> {
        let timers = self.clone();
        FuncTool::new("list_timers", "Tells which timers run, and how long.", None, move |_, _| {
            let timers = timers.clone();
            async move { Ok(timers.list(Instant::now())) }
        })
        .speech(
            ToolSpeech::phrases([
                "how long is left",
                "how much time is left",
                "how much time is left on the timer",
                "how long is left on my timer",
                "what timers are running",
                "which timers are running",
                "list my timers",
                "what timers do i have",
            ])
            .answer("{spoken}"),
        )
    }

    fn set(&self, duration: Duration, name: Option<String>) -> Result<String, ToolError> {
        let name = name
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| as_adjective(duration));
        let mut timers = self.shared.lock();
        if timers.len() >= MAX_TIMERS {
            return Err(ToolError::new(format!("{MAX_TIMERS} timers run already"))
                .with_status(Status::ResourceExhausted));
        }
        let due = Instant::now() + duration;
        // Sorted by time; of equal ones the older first.
        let at = timers.partition_point(|timer| timer.due <= due);
        timers.insert(at, Timer { name: name.clone(), duration, due });
        drop(timers);
        self.shared.changed.notify_one();
        Ok(name)
    }

    fn cancel(&self, name: Option<&str>) -> usize {
        let mut timers = self.shared.lock();
        let before = timers.len();
        timers.retain(|timer| name.is_some_and(|name| !timer.name.eq_ignore_ascii_case(name)));
        let cancelled = before - timers.len();
        drop(timers);
        self.shared.changed.notify_one();
        cancelled
    }

    fn list(&self, now: Instant) -> antiphon_types::JsonObject {
        let timers = self.shared.lock();
        let left: Vec<(String, Duration)> = timers
            .iter()
            .map(|timer| (timer.name.clone(), timer.due.saturating_duration_since(now)))
            .collect();
        drop(timers);
        let spoken = match left.as_slice() {
            [] => "No timer is running.".to_owned(),
            [(name, left)] => format!("The {name} timer has {} left.", in_words(*left)),
            many => {
                let each: Vec<String> = many
                    .iter()
                    .map(|(name, left)| format!("the {name} timer has {} left", in_words(*left)))
                    .collect();
                format!("{} timers are running: {}.", many.len(), each.join(", "))
            }
        };
        let timers: Vec<_> = left
            .iter()
            .map(|(name, left)| json!({"name": name, "seconds_left": left.as_secs()}))
            .collect();
        output(json!({"timers": timers, "spoken": spoken}))
    }
}

impl Rings {
    /// Waits for the next timer that is due. Cancel safe: no ring is lost.
    pub async fn next(&mut self) -> Ring {
        loop {
            let due = self.shared.lock().first().map(|timer| timer.due);
            let changed = self.shared.changed.notified();
            match due {
                Some(due) if due <= Instant::now() => {
                    let mut timers = self.shared.lock();
                    // Cancelled since it was looked at.
                    if timers.first().is_none_or(|timer| timer.due != due) {
                        continue;
                    }
                    let timer = timers.remove(0);
                    return Ring { name: timer.name, duration: timer.duration };
                }
                Some(due) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = changed => {}
                },
                None => changed.await,
            }
        }
    }
}

/// The sound of a timer: two strokes of a bell, 24 kHz, 0.9 seconds.
pub fn chime() -> AudioFrame {
    const RATE: u32 = 24_000;
    const STROKE: f32 = 0.45;
    let samples: Vec<i16> = (0..(RATE as f32 * STROKE * 2.0) as usize)
        .map(|index| {
            let time = index as f32 / RATE as f32;
            let (pitch, since) =
                if time < STROKE { (880.0, time) } else { (1_318.5, time - STROKE) };
            // A short rise keeps it from clicking; the fall is a bell's. The second partial gives
            // it its colour.
            let envelope = (since / 0.005).min(1.0) * (-since * 7.0).exp();
            let end = ((STROKE - since) / 0.01).min(1.0);
            let phase = std::f32::consts::TAU * pitch * since;
            let tone = phase.sin() + 0.3 * (2.76 * phase).sin();
            (tone * envelope * end * 0.4 * f32::from(i16::MAX)) as i16
        })
        .collect();
    AudioFrame::from_pcm16(RATE, &samples)
}

#[derive(Debug, Default)]
struct Shared {
    timers: Mutex<Vec<Timer>>,
    changed: Notify,
}

#[derive(Debug)]
struct Timer {
    name: String,
    duration: Duration,
    due: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Timer>> {
        self.timers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
struct SetTimer {
    duration: f64,
    name: Option<String>,
}

#[derive(Deserialize)]
struct CancelTimer {
    name: Option<String>,
}

/// `1 hour 5 minutes`; below a second as 0 seconds.
fn in_words(duration: Duration) -> String {
    let parts = parts(duration);
    let words: Vec<String> = parts
        .iter()
        .map(|(count, unit)| format!("{count} {unit}{}", if *count == 1 { "" } else { "s" }))
        .collect();
    words.join(" ")
}

/// `5 minute`, as in `your 5 minute timer`.
fn as_adjective(duration: Duration) -> String {
    let words: Vec<String> =
        parts(duration).iter().map(|(count, unit)| format!("{count} {unit}")).collect();
    words.join(" ")
}

fn parts(duration: Duration) -> Vec<(u64, &'static str)> {
    let seconds = duration.as_secs() + u64::from(duration.subsec_millis() >= 500);
    let parts =
        [(seconds / 3_600, "hour"), (seconds / 60 % 60, "minute"), (seconds % 60, "second")];
    let some: Vec<_> = parts.into_iter().filter(|(count, _)| *count > 0).collect();
    if some.is_empty() { vec![(0, "second")] } else { some }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn timers_ring_in_order_and_on_time() {
        let (timers, mut rings) = Timers::new();
        let start = Instant::now();
        timers.set(5 * SECOND, None).unwrap();
        timers.set(3 * SECOND, Some("egg".into())).unwrap();
        assert_eq!(rings.next().await.name, "egg");
        assert_eq!(start.elapsed().as_secs(), 3);
        let second = rings.next().await;
        assert_eq!(second.announcement(), "Your 5 second timer is done.");
        assert_eq!(start.elapsed().as_secs(), 5);
        assert_eq!(timers.next_due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_set_while_one_waits_is_not_missed() {
        let (timers, mut rings) = Timers::new();
        timers.set(60 * SECOND, Some("long".into())).unwrap();
        let late = timers.clone();
        let waiting = tokio::spawn(async move { rings.next().await.name });
        tokio::task::yield_now().await;
        late.set(SECOND, Some("short".into())).unwrap();
        assert_eq!(waiting.await.unwrap(), "short");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_timers_do_not_ring() {
        let (timers, mut rings) = Timers::new();
        timers.set(SECOND, Some("tea".into())).unwrap();
        timers.set(2 * SECOND, Some("egg".into())).unwrap();
        assert_eq!(timers.cancel(Some("Tea")), 1);
        assert_eq!(timers.cancel(Some("cake")), 0);
        assert_eq!(rings.next().await.name, "egg");
        assert_eq!(timers.cancel(None), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_list_is_speakable() {
        let (timers, _rings) = Timers::new();
        assert_eq!(timers.list(Instant::now())["spoken"], "No timer is running.");
        timers.set(90 * SECOND, Some("tea".into())).unwrap();
        assert_eq!(
            timers.list(Instant::now())["spoken"],
            "The tea timer has 1 minute 30 seconds left."
        );
    }

    #[tokio::test(start_paused = true)]
    async fn their_number_is_bounded() {
        let (timers, _rings) = Timers::new();
        for _ in 0..MAX_TIMERS {
            timers.set(SECOND, None).unwrap();
        }
        assert_eq!(timers.set(SECOND, None).unwrap_err().status(), Status::ResourceExhausted);
    }

    #[test]
    fn durations_in_words() {
        assert_eq!(in_words(Duration::from_secs(3_661)), "1 hour 1 minute 1 second");
        assert_eq!(in_words(Duration::ZERO), "0 seconds");
        assert_eq!(as_adjective(Duration::from_secs(300)), "5 minute");
    }

    #[test]
    fn the_chime_is_audible_and_does_not_clip() {
        let chime = chime();
        let samples: Vec<i16> =
            chime.data.chunks_exact(2).map(|pair| i16::from_le_bytes([pair[0], pair[1]])).collect();
        let peak = samples.iter().map(|sample| sample.unsigned_abs()).max().unwrap();
        assert!((8_000..32_000).contains(&peak), "{peak}");
        assert_eq!(chime.duration().as_millis(), 900);
    }
}
