//! The items of a conversation, in their order.

use antiphon_openai::wire::{ApiError, Content, ContentType, Item, Message, Role};

use super::kept::Line;

/// Ids that a client chooses may be so long.
const MAX_ID_CHARS: usize = 32;

/// The items.
#[derive(Default)]
pub(super) struct Conversation {
    entries: Vec<Entry>,
}

/// An item and what the server alone knows of it.
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) item: Item,
    /// Milliseconds of the model's voice in it.
    pub(super) voice_ms: u64,
    /// Audio of the item, for those who ask for it.
    pub(super) audio: Vec<u8>,
    /// What the user said, whether the client wants to know or not.
    pub(super) heard: Option<String>,
}

/// What came last into the conversation.
pub(super) enum Last<'a> {
    /// Something of the user.
    User,
    /// The output of a tool.
    Output { tool: &'a str },
    /// Nothing, or something of the model's own.
    Nothing,
}

impl Conversation {
    pub(super) fn find(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id == id)
    }

    pub(super) fn find_mut(&mut self, id: &str) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.id == id)
    }

    /// The item before `id`.
    pub(super) fn before(&self, id: &str) -> Option<String> {
        let at = self.entries.iter().position(|entry| entry.id == id)?;
        Some(self.entries.get(at.checked_sub(1)?)?.id.clone())
    }

    /// The id of the last item.
    pub(super) fn last_id(&self) -> Option<String> {
        self.entries.last().map(|entry| entry.id.clone())
    }

    /// Puts an item that has an id at the end.
    pub(super) fn push(&mut self, id: String, item: Item) -> &mut Entry {
        let at = self.entries.len();
        self.insert_at(at, id, item)
    }

    /// Puts a client's item where it wants it to be. `id` is used where it has none. `beta`: parts
    /// may have the beta's names.
    pub(super) fn create(
        &mut self,
        mut item: Item,
        previous: Option<&str>,
        id: impl FnOnce() -> String,
        beta: bool,
    ) -> Result<String, ApiError> {
        check(&item, beta)?;
        self.check_call(&item)?;
        let at = match previous {
            None => self.entries.len(),
            Some("root") => 0,
            Some(previous) => {
                let at = self.entries.iter().position(|entry| entry.id == previous);
                let message = format!("Previous item with ID '{previous}' does not exist.");
                at.ok_or_else(|| invalid("invalid_value", &message, "previous_item_id"))? + 1
            }
        };
        let id = match item.id() {
            Some(id) if !id.is_empty() => id.to_owned(),
            _ => id(),
        };
        if self.find(&id).is_some() {
            let message = format!("Item with ID '{id}' already exists.");
            return Err(invalid("invalid_value", &message, "item.id"));
        }
        item.set_id(id.clone());
        self.insert_at(at, id.clone(), item);
        Ok(id)
    }

    pub(super) fn delete(&mut self, id: &str) -> Result<(), ApiError> {
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else {
            return Err(unknown_item("item_delete_invalid_item_id", "deleting", id));
        };
        self.entries.remove(at);
        Ok(())
    }

    /// Cuts the model's voice in an item to what was heard.
    pub(super) fn truncate(
        &mut self,
        id: &str,
        content_index: u32,
        audio_end_ms: u64,
    ) -> Result<(), ApiError> {
        let Some(entry) = self.find_mut(id) else {
            return Err(unknown_item("item_truncate_invalid_item_id", "truncating", id));
        };
        let voice = match &mut entry.item {
            Item::Message(message) if message.role == Role::Assistant && entry.voice_ms > 0 => {
                message.content.get_mut(content_index as usize)
            }
            _ => None,
        };
        let Some(part) = voice else {
            let message = "Only model output audio messages can be truncated.";
            return Err(ApiError { code: None, ..invalid("", message, "item_id") });
        };
        if audio_end_ms > entry.voice_ms {
            let message = format!(
                "Audio content of {}ms is already shorter than {audio_end_ms}ms.",
                entry.voice_ms
            );
            return Err(invalid("invalid_value", &message, "audio_end_ms"));
        }
        entry.voice_ms = audio_end_ms;
        part.transcript = None;
        Ok(())
    }

    /// What was said, for a later connection.
    pub(super) fn lines(&self) -> Vec<Line> {
        let line = |entry: &Entry| (entry.id.clone(), entry.item.clone(), entry.heard.clone());
        self.entries.iter().map(line).collect()
    }

    /// Goes on with what was said on an earlier connection. Returns the ids of the items.
    pub(super) fn adopt(&mut self, lines: Vec<Line>) -> Vec<String> {
        let mut ids = Vec::with_capacity(lines.len());
        for (at, (id, item, heard)) in lines.into_iter().enumerate() {
            self.insert_at(at, id.clone(), item).heard = heard;
            ids.push(id);
        }
        ids
    }

    /// What a reply would answer.
    pub(super) fn last(&self) -> Last<'_> {
        let Some(entry) = self.entries.last() else { return Last::Nothing };
        match &entry.item {
            Item::FunctionCallOutput(output) => {
                let tool = self.entries.iter().find_map(|entry| match &entry.item {
                    Item::FunctionCall(call)
                        if call.call_id.as_deref() == Some(output.call_id.as_str()) =>
                    {
                        Some(call.name.as_str())
                    }
                    _ => None,
                });
                Last::Output { tool: tool.unwrap_or("") }
            }
            Item::Message(message) if message.role == Role::User => Last::User,
            _ => Last::Nothing,
        }
    }

    /// The user's last words, wherever they are.
    pub(super) fn last_user_words(&self) -> &str {
        self.entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.item {
                Item::Message(message) if message.role == Role::User => {
                    Some(entry.heard.as_deref().unwrap_or_else(|| words(message)))
                }
                _ => None,
            })
            .unwrap_or("")
    }

    /// The output that a tool gave last.
    pub(super) fn last_output(&self) -> &str {
        self.entries
            .iter()
            .rev()
            .find_map(|entry| match &entry.item {
                Item::FunctionCallOutput(output) => Some(output.output.as_str()),
                _ => None,
            })
            .unwrap_or("")
    }

    fn insert_at(&mut self, at: usize, id: String, item: Item) -> &mut Entry {
        let entry = Entry { id, item, voice_ms: 0, audio: Vec::new(), heard: None };
        self.entries.insert(at, entry);
        &mut self.entries[at]
    }

    fn check_call(&self, item: &Item) -> Result<(), ApiError> {
        let Item::FunctionCallOutput(output) = item else { return Ok(()) };
        let known = self.entries.iter().any(|entry| {
            matches!(&entry.item, Item::FunctionCall(call)
                if call.call_id.as_deref() == Some(output.call_id.as_str()))
        });
        if known {
            return Ok(());
        }
        let message = format!("Tool call ID '{}' not found in conversation.", output.call_id);
        Err(invalid("invalid_tool_call_id", &message, "item.call_id"))
    }
}

/// The words of a message, in its last part that has any.
pub(super) fn words(message: &Message) -> &str {
    message.content.iter().rev().find_map(Content::words).unwrap_or("")
}

/// What the vendor refuses in an item of a client's.
fn check(item: &Item, beta: bool) -> Result<(), ApiError> {
    let too_long = |param: &str, value: Option<&str>| {
        let length = value.map_or(0, |value| value.chars().count());
        if length <= MAX_ID_CHARS {
            return Ok(());
        }
        let message = format!(
            "Invalid '{param}': string too long. Expected a string with maximum length \
             {MAX_ID_CHARS}, but got a string with length {length} instead."
        );
        Err(invalid("string_above_max_length", &message, param))
    };
    too_long("item.id", item.id())?;
    match item {
        Item::Message(message) => check_message(message, beta),
        Item::FunctionCall(call) => too_long("item.call_id", call.call_id.as_deref()),
        Item::FunctionCallOutput(output) => too_long("item.call_id", Some(&output.call_id)),
        Item::McpApprovalResponse(_) => Ok(()),
        other => {
            let message = format!("Invalid value: '{}'.", other.kind());
            Err(invalid("invalid_value", &message, "item.type"))
        }
    }
}

fn check_message(message: &Message, beta: bool) -> Result<(), ApiError> {
    use ContentType::{InputAudio, InputImage, InputText, OutputText, Text};

    let allowed: &[ContentType] = match message.role {
        Role::User => &[InputText, InputAudio, InputImage],
        Role::Assistant if beta => &[Text, OutputText],
        Role::Assistant => &[OutputText],
        Role::System => &[InputText],
        _ => {
            let message = format!("Invalid value: '{}'.", message.role.as_str());
            return Err(invalid("invalid_value", &message, "item.role"));
        }
    };
    for (index, part) in message.content.iter().enumerate() {
        if !allowed.contains(&part.kind) {
            let param = format!("item.content[{index}].type");
            let allowed: Vec<_> =
                allowed.iter().map(|kind| format!("'{}'", kind.as_str())).collect();
            let message = format!(
                "Invalid value: '{}'. Value must be {}.",
                part.kind.as_str(),
                allowed.join(" or ")
            );
            return Err(invalid("invalid_value", &message, &param));
        }
    }
    Ok(())
}

pub(super) fn unknown_item(code: &str, doing: &str, id: &str) -> ApiError {
    let message = format!("Error {doing} item: the item with id '{id}' does not exist.");
    invalid(code, &message, "item_id")
}

pub(super) fn invalid(code: &str, message: &str, param: &str) -> ApiError {
    ApiError { param: Some(param.into()), ..ApiError::invalid_request(code, message) }
}
