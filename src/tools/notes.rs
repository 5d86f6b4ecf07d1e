//! Notes, kept in memory.

use std::sync::Arc;

use antiphon_agent::{FuncTool, Memory, MemoryError, Tool, ToolError};
use antiphon_types::{Status, ToolSpeech};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::{output, read_args};

const PREFIX: &str = "notes/";
/// Notes kept; a further one is refused.
const MAX_NOTES: usize = 100;

/// The tools `add_note`, `read_notes` and `delete_notes` over a memory. Keys are
/// `notes/{number}`; whoever opens the same memory again finds the notes again.
#[derive(Clone)]
pub struct Notes {
    memory: Arc<dyn Memory>,
    /// One change at a time, so that two calls at once do not take the same number.
    changes: Arc<Mutex<()>>,
}

impl Notes {
    /// Notes in this memory.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        Self { memory, changes: Arc::default() }
    }

    /// The tool `add_note`.
    pub fn add_tool(&self) -> impl Tool + use<> {
        let notes = self.clone();
        let schema = json!({
            "type": "object",
            "properties": {
                "text": {
                    "type": "string", "minLength": 1, "maxLength": 1_000,
                    "description": "The words to note.", "examples": ["buy milk"]
                },
            },
            "required": ["text"],
            "additionalProperties": false,
        });
        FuncTool::new("add_note", "Takes a note.", schema, move |_, args| {
            let notes = notes.clone();
            async move {
                let Note { text } = read_args(args)?;
                let count = notes.add(text.trim()).await?;
                Ok(output(json!({"text": text, "count": count})))
            }
        })
        .speech(
            ToolSpeech::phrases([
                "take a note {text}",
                "make a note {text}",
                "add a note {text}",
                "note that {text}",
                "write down {text}",
                "remember that {text}",
                "remember to {text}",
                "take a note",
                "make a note",
            ])
            .answer("Noted: {text}.")
            .question("text", "What shall I note?"),
        )
    }

    /// The tool `read_notes`.
    pub fn read_tool(&self) -> impl Tool + use<> {
        let notes = self.clone();
        FuncTool::new("read_notes", "Reads all notes.", None, move |_, _| {
            let notes = notes.clone();
            async move {
                let all = notes.all().await?;
                let spoken = match all.len() {
                    0 => "You have no notes.".to_owned(),
                    1 => format!("You have one note: {}.", all[0]),
                    many => format!("You have {many} notes: {}.", all.join(". ")),
                };
                Ok(output(json!({"notes": all, "spoken": spoken})))
            }
        })
        .speech(
            ToolSpeech::phrases([
                "read my notes",
                "read me my notes",
                "what are my notes",
                "what did i note",
                "tell me my notes",
                "show my notes",
                "do i have any notes",
                "what notes do i have",
            ])
            .answer("{spoken}"),
        )
    }

    /// The tool `delete_notes`; it asks before.
    pub fn delete_tool(&self) -> impl Tool + use<> {
        let notes = self.clone();
        FuncTool::new("delete_notes", "Deletes all notes.", None, move |_, _| {
            let notes = notes.clone();
            async move {
                let count = notes.clear().await?;
                let spoken = match count {
                    0 => "There were no notes.".to_owned(),
                    1 => "I deleted one note.".to_owned(),
                    many => format!("I deleted {many} notes."),
                };
                Ok(output(json!({"deleted": count, "spoken": spoken})))
            }
        })
        .read_back("Delete all notes?")
        .speech(
            ToolSpeech::phrases([
                "delete my notes",
                "delete all notes",
                "delete all my notes",
                "clear my notes",
                "remove all my notes",
                "erase my notes",
            ])
            .answer("{spoken}"),
        )
    }

    async fn add(&self, text: &str) -> Result<usize, ToolError> {
        if text.is_empty() {
            return Err(ToolError::new("the note is empty").with_status(Status::InvalidArgument));
        }
        let _one_at_a_time = self.changes.lock().await;
        let keys = self.memory.list(PREFIX).await.map_err(failed)?;
        if keys.len() >= MAX_NOTES {
            return Err(ToolError::new(format!("there are {MAX_NOTES} notes already"))
                .with_status(Status::ResourceExhausted));
        }
        let last = keys.iter().filter_map(|key| number(key)).max().unwrap_or(0);
        let key = format!("{PREFIX}{:06}", last + 1);
        self.memory.set(&key, text).await.map_err(failed)?;
        Ok(keys.len() + 1)
    }

    async fn all(&self) -> Result<Vec<String>, ToolError> {
        let mut notes = Vec::new();
        for key in self.memory.list(PREFIX).await.map_err(failed)? {
            notes.extend(self.memory.get(&key).await.map_err(failed)?);
        }
        Ok(notes)
    }

    async fn clear(&self) -> Result<usize, ToolError> {
        let _one_at_a_time = self.changes.lock().await;
        let keys = self.memory.list(PREFIX).await.map_err(failed)?;
        for key in &keys {
            self.memory.delete(key).await.map_err(failed)?;
        }
        Ok(keys.len())
    }
}

#[derive(Deserialize)]
struct Note {
    text: String,
}

fn number(key: &str) -> Option<u64> {
    key.strip_prefix(PREFIX)?.parse().ok()
}

/// What went wrong with the host's memory is the host's business.
fn failed(error: MemoryError) -> ToolError {
    ToolError::private(error.to_string()).with_status(error.status)
}

#[cfg(test)]
mod tests {
    use antiphon_agent::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn notes_are_kept_in_order_and_deleted() {
        let memory: Arc<dyn Memory> = Arc::new(InMemory::default());
        let notes = Notes::new(memory.clone());
        for text in ["buy milk", "call mum", "water the plants"] {
            notes.add(text).await.unwrap();
        }
        assert_eq!(notes.all().await.unwrap(), ["buy milk", "call mum", "water the plants"]);
        assert_eq!(Notes::new(memory.clone()).all().await.unwrap().len(), 3);
        assert_eq!(notes.clear().await.unwrap(), 3);
        assert!(notes.all().await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn two_notes_at_once_are_two_notes_and_their_number_is_bounded() {
        let notes = Notes::new(Arc::new(InMemory::default()));
        let (a, b) = tokio::join!(notes.add("a"), notes.add("b"));
        assert_eq!(a.unwrap() + b.unwrap(), 3);
        for _ in 2..MAX_NOTES {
            notes.add("x").await.unwrap();
        }
        let error = notes.add("one too many").await.unwrap_err();
        assert_eq!(error.status(), Status::ResourceExhausted);
    }

    #[tokio::test]
    async fn other_keys_of_the_memory_are_left_alone() {
        let memory: Arc<dyn Memory> = Arc::new(InMemory::default());
        memory.set("settings/voice", "x").await.unwrap();
        let notes = Notes::new(memory.clone());
        notes.add("a").await.unwrap();
        notes.clear().await.unwrap();
        assert_eq!(memory.get("settings/voice").await.unwrap().as_deref(), Some("x"));
    }
}
