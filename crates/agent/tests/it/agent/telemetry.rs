//! The spans of an invocation.

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

use super::{cx, fresh, stored};

/// Notes spans and events with their fields.
#[derive(Clone)]
struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
    next: Arc<AtomicU64>,
    level: Level,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

struct Line(String);

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("antiphon_agent") && *metadata.level() <= self.level
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line(span.metadata().name().to_owned());
        span.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
        Id::from_u64(self.next.fetch_add(1, SeqCst) + 1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line("event".to_owned());
        event.record(&mut line);
        self.lines.lock().unwrap().push(line.0);
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn lines_of_two_turns(level: Level) -> (Vec<String>, String) {
    let notes = Notes { lines: Arc::default(), next: Arc::default(), level };
    let _guard = tracing::subscriber::set_default(notes.clone());
    let agent = stored();
    let mut connection = agent.connect(&cx(), fresh()).await.unwrap();
    connection.send_text("one").await.unwrap();
    connection.send_text("two").await.unwrap();
    let output = connection.output().await.unwrap();
    let lines = notes.lines.lock().unwrap().clone();
    (lines, output.session_id.unwrap().to_string())
}

#[tokio::test(start_paused = true)]
async fn root_span_carries_session_id_and_turns_are_numbered() {
    let (lines, session) = lines_of_two_turns(Level::INFO).await;
    let root = lines.iter().find(|line| line.starts_with("agent ")).unwrap();
    assert!(root.contains(&format!("genkit:metadata:agent:sessionId=\"{session}\"")), "{root}");
    let turns: Vec<_> = lines.iter().filter(|line| line.starts_with("runTurn ")).collect();
    assert_eq!(turns.len(), 2);
    assert!(turns[0].contains("otel.name=\"runTurn-1\""), "{}", turns[0]);
    assert!(turns[1].contains("otel.name=\"runTurn-2\""), "{}", turns[1]);
    assert!(turns[0].contains("genkit:metadata:agent:snapshotId="), "{}", turns[0]);
    // What was said stays out of ordinary logs.
    assert!(!lines.iter().any(|line| line.contains("heard one")), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn turn_span_output_is_the_raw_state_for_whoever_traces() {
    let (lines, _) = lines_of_two_turns(Level::TRACE).await;
    let outputs: Vec<_> = lines.iter().filter(|line| line.contains("genkit:output=")).collect();
    assert_eq!(outputs.len(), 2);
    assert!(outputs[0].contains("heard one"), "{}", outputs[0]);
}
