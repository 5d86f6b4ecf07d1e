//! When the user's turn begins and ends.

use std::time::Duration;

use antiphon_live::{ActivityHandling, LiveConfig, LiveError, Sensitivity, VoiceActivity};
use serde_json::Value;

use super::Options;
use crate::wire::{Detection, Eagerness, Facts, Patch, SemanticVad, ServerVad, TurnDetection};

/// The longest any time of turn detection may be.
const MAX_DETECTION: Duration = Duration::from_secs(10);

/// The turn detection of a session.
pub(super) fn turn_detection(
    config: &LiveConfig,
    options: &Options<'_>,
    facts: &Facts,
) -> Result<Patch<TurnDetection>, LiveError> {
    if config.voice_activity != VoiceActivity::Auto {
        return Ok(Patch::Clear);
    }
    let activity = &config.policies.activity;
    let by_itself = !activity.session_answers;
    let create_response = options.take("create_response")?.unwrap_or(by_itself);
    let create_response = facts.detection_flags.then_some(create_response);
    let interrupts = activity.handling == ActivityHandling::Interrupts;
    let interrupt_response = facts.detection_flags.then_some(interrupts);
    let eagerness = options.word("eagerness", &["low", "medium", "high", "auto"])?;
    let words: Vec<&'static str> = facts.detections.iter().map(|(word, _)| *word).collect();
    let word = options.word("turn_detection", &words)?.unwrap_or("server_vad");
    let takes = facts.detections.iter().find(|(known, _)| *known == word);
    if takes.is_some_and(|(_, takes)| *takes == Detection::Eagerness) {
        let eagerness = eagerness.or(match activity.end_sensitivity {
            Sensitivity::Low => Some("low"),
            Sensitivity::Medium => None,
            Sensitivity::High => Some("high"),
        });
        return Ok(Patch::Set(TurnDetection::SemanticVad(SemanticVad {
            eagerness: eagerness.map(Eagerness::from),
            create_response,
            interrupt_response,
        })));
    }
    let threshold =
        options.number("vad_threshold", 0.0, 1.0)?.or(match activity.start_sensitivity {
            Sensitivity::Low => Some(0.7),
            Sensitivity::Medium => None,
            Sensitivity::High => Some(0.3),
        });
    let silence = activity.silence.or(match activity.end_sensitivity {
        Sensitivity::Low => Some(Duration::from_millis(800)),
        Sensitivity::Medium => None,
        Sensitivity::High => Some(Duration::from_millis(300)),
    });
    let detection = TurnDetection::ServerVad(ServerVad {
        threshold,
        prefix_padding_ms: milliseconds("prefix", activity.prefix_padding)?,
        silence_duration_ms: milliseconds("silence", silence)?,
        create_response,
        interrupt_response,
        idle_timeout_ms: options.take::<u32>("idle_timeout_ms")?.map_or(Patch::Keep, Patch::Set),
    });
    if word == "server_vad" {
        return Ok(Patch::Set(detection));
    }
    // Another vendor's own kind, which is told the same.
    let mut detection = serde_json::to_value(&detection).unwrap_or_default();
    detection["type"] = word.into();
    Ok(Patch::Set(TurnDetection::Other(detection)))
}

fn milliseconds(what: &str, duration: Option<Duration>) -> Result<Option<u32>, LiveError> {
    match duration {
        Some(duration) if duration > MAX_DETECTION => Err(LiveError::InvalidConfig(format!(
            "a {what} of {duration:?} is more than ten seconds"
        ))),
        duration => Ok(duration.map(|duration| duration.as_millis() as u32)),
    }
}

/// The silence after which speech is taken for over; where that depends on what was said, the
/// default's.
pub(super) fn end_silence(detection: &Patch<TurnDetection>, facts: &Facts) -> Duration {
    let told = match detection.value() {
        Some(TurnDetection::ServerVad(vad)) => vad.silence_duration_ms.map(u64::from),
        Some(TurnDetection::Other(vad)) => vad.get("silence_duration_ms").and_then(Value::as_u64),
        _ => None,
    };
    told.map_or(facts.silence, Duration::from_millis)
}

/// Silence after which the server has certainly ended the user's turn.
pub(super) fn tail(detection: &Patch<TurnDetection>, facts: &Facts) -> Duration {
    let longest = match detection.value() {
        Some(TurnDetection::SemanticVad(vad)) => match vad.eagerness {
            Some(Eagerness::Low) => Duration::from_secs(8),
            Some(Eagerness::High) => Duration::from_secs(2),
            _ => Duration::from_secs(4),
        },
        // By what is said, of which nobody tells how long it may take.
        Some(TurnDetection::Other(_)) => Duration::from_secs(4).max(end_silence(detection, facts)),
        _ => end_silence(detection, facts),
    };
    longest + Duration::from_millis(300)
}
