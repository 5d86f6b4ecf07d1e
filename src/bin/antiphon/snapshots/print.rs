//! What is printed of snapshots.

use std::io::{self, Write};

use antiphon::agent::{
    Message, Messages, Part, Role, SessionSnapshot, SessionState, SessionSummary, SnapshotStatus,
    SnapshotSummary, diff,
};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::tree;

/// The longest text on a line, in characters.
const MAX_TEXT: usize = 60;

/// Prints for people or for programs.
pub struct Printer<'a> {
    out: &'a mut dyn Write,
    json: bool,
}

impl<'a> Printer<'a> {
    pub fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json }
    }

    pub fn sessions(mut self, sessions: &[SessionSummary]) -> io::Result<()> {
        for session in sessions {
            if self.json {
                self.object(json!({
                    "sessionId": session.session_id,
                    "snapshots": session.snapshots,
                    "firstCreatedAt": session.first_created_at,
                    "latest": session.latest,
                }))?;
                continue;
            }
            let count = session.snapshots;
            let plural = if count == 1 { "" } else { "s" };
            writeln!(
                self.out,
                "{}  {}  {count:>5} snapshot{plural}, latest {} {}{}",
                session.session_id,
                time(session.first_created_at),
                session.latest.snapshot_id,
                time(session.latest.created_at),
                standing(&session.latest),
            )?;
        }
        Ok(())
    }

    pub fn history(
        mut self,
        session: &str,
        rows: &[SnapshotSummary],
        said: &[Option<String>],
    ) -> io::Result<()> {
        if self.json {
            for row in rows {
                let mut object = json!(row.snapshot);
                object["messages"] = json!(row.messages);
                object["artifacts"] = json!(row.artifacts);
                self.object(object)?;
            }
            return Ok(());
        }
        writeln!(self.out, "session {session}")?;
        let nodes: Vec<_> = rows
            .iter()
            .map(|row| (&*row.snapshot.snapshot_id, row.snapshot.parent_id.as_deref()))
            .collect();
        for tree::Line { prefix, node } in tree::lines(&nodes) {
            let row = &rows[node];
            let count = row.messages.map(|count| format!("  {count} messages")).unwrap_or_default();
            let said = said.get(node).and_then(Option::as_deref);
            let said = said.map(|said| format!("  {}", shortened(said))).unwrap_or_default();
            writeln!(
                self.out,
                "{prefix}* {}  {}{}{count}{said}",
                row.snapshot.snapshot_id,
                time(row.snapshot.created_at),
                standing(&row.snapshot),
            )?;
        }
        Ok(())
    }

    pub fn snapshot(mut self, snapshot: &SessionSnapshot) -> io::Result<()> {
        if self.json {
            return self.object(json!(snapshot));
        }
        writeln!(self.out, "snapshot   {}", snapshot.snapshot_id)?;
        self.member("session", snapshot.session_id.as_deref())?;
        self.member("parent", snapshot.parent_id.as_deref())?;
        self.member("made", Some(&*time(snapshot.created_at)))?;
        let changed = snapshot.updated_at.filter(|at| *at != snapshot.created_at);
        self.member("changed", changed.map(time).as_deref())?;
        self.member("heartbeat", snapshot.heartbeat_at.map(time).as_deref())?;
        self.member("status", Some(snapshot.status().as_str()))?;
        self.member("ended by", snapshot.finish_reason.map(|reason| reason.as_str()))?;
        self.member("error", snapshot.error.as_ref().map(ToString::to_string).as_deref())?;
        let Some(state) = &snapshot.state else { return writeln!(self.out, "no state") };
        self.member("custom", state.custom.as_ref().map(ToString::to_string).as_deref())?;
        for artifact in &state.artifacts {
            let name = artifact.name.as_deref().unwrap_or("(without a name)");
            let parts = artifact.parts.iter().map(part).collect::<Vec<_>>().join(" ");
            writeln!(self.out, "artifact   {name}: {}", shortened(&parts))?;
        }
        for message in &state.messages {
            writeln!(self.out, "{}", line(message))?;
        }
        Ok(())
    }

    fn member(&mut self, name: &str, value: Option<&str>) -> io::Result<()> {
        match value {
            Some(value) => writeln!(self.out, "{name:<9}  {value}"),
            None => Ok(()),
        }
    }

    pub fn difference(mut self, from: &SessionSnapshot, to: &SessionSnapshot) -> io::Result<()> {
        let (before, after) = (state_of(from), state_of(to));
        let common = common(&before.messages, &after.messages);
        let (removed, added) = (before.messages.range(common), after.messages.range(common));
        let custom = diff(&json!(before.custom), &json!(after.custom));
        let artifacts = diff(&json!(before.artifacts), &json!(after.artifacts));
        if self.json {
            return self.object(json!({
                "from": from.snapshot_id,
                "to": to.snapshot_id,
                "commonMessages": common,
                "removedMessages": removed.collect::<Vec<_>>(),
                "addedMessages": added.collect::<Vec<_>>(),
                "custom": custom,
                "artifacts": artifacts,
            }));
        }
        writeln!(self.out, "--- {}\n+++ {}", from.snapshot_id, to.snapshot_id)?;
        if from.status() != to.status() {
            writeln!(self.out, "status {} -> {}", from.status(), to.status())?;
        }
        writeln!(self.out, "  {common} messages in common")?;
        for message in removed {
            writeln!(self.out, "- {}", line(message))?;
        }
        for message in added {
            writeln!(self.out, "+ {}", line(message))?;
        }
        for (name, patch) in [("custom", json!(custom)), ("artifacts", json!(artifacts))] {
            for operation in patch.as_array().into_iter().flatten() {
                let text = |member: &str| match &operation[member] {
                    Value::String(text) if member != "value" => text.clone(),
                    Value::Null if member == "value" && operation["op"] == "remove" => {
                        String::new()
                    }
                    value => shortened(&value.to_string()),
                };
                writeln!(self.out, "{name} {} {} {}", text("op"), text("path"), text("value"))?;
            }
        }
        Ok(())
    }

    fn object(&mut self, object: Value) -> io::Result<()> {
        writeln!(self.out, "{object}")
    }
}

/// The last text of the user.
pub fn last_said(state: &SessionState) -> Option<String> {
    let mut users = state.messages.iter_back().filter(|message| message.role == Role::User);
    users.next().map(|message| message.joined_text())
}

fn state_of(snapshot: &SessionSnapshot) -> SessionState {
    snapshot.state.clone().unwrap_or_default()
}

/// How many messages at the beginning are equal.
fn common(before: &Messages, after: &Messages) -> usize {
    let same = before.shared_prefix(after);
    same + before.range(same).zip(after.range(same)).take_while(|(a, b)| a == b).count()
}

/// A message on one line.
fn line(message: &Message) -> String {
    let parts: Vec<_> = message.content.iter().map(part).collect();
    let role = json!(message.role);
    format!("{:<9}  {}", role.as_str().unwrap_or(""), cleaned(&parts.join(" ")))
}

fn part(part: &Part) -> String {
    if let Some(text) = part.as_text() {
        return text.to_owned();
    }
    let value = json!(part);
    let short = |value: &Value| shortened(&value.to_string());
    match (value.get("toolRequest"), value.get("toolResponse")) {
        (Some(request), _) => {
            let waits = if part.is_interrupt() { " (waits)" } else { "" };
            format!(
                "> {} {}{waits}",
                request["name"].as_str().unwrap_or(""),
                short(&request["input"])
            )
        }
        (_, Some(response)) => {
            format!("< {} {}", response["name"].as_str().unwrap_or(""), short(&response["output"]))
        }
        _ => short(&value),
    }
}

fn standing(snapshot: &SessionSnapshot) -> String {
    match snapshot.status() {
        SnapshotStatus::Completed => String::new(),
        status => format!(" {status}"),
    }
}

/// To the second, in UTC.
fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn shortened(text: &str) -> String {
    let text = cleaned(text);
    if text.chars().count() <= MAX_TEXT {
        return text;
    }
    text.chars().take(MAX_TEXT - 1).chain(['…']).collect()
}

/// One line, without what would do something to a terminal.
fn cleaned(text: &str) -> String {
    let printable: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}
