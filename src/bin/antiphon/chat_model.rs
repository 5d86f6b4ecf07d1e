//! The language model that the command line names.

use std::env;

use antiphon::agent::chat_model::{ChatApi, ChatModel};

use crate::{
    args::{ChatApiArgument, ChatModelArguments},
    failure::Failure,
};

/// The model, whose server is not asked yet.
pub fn open(arguments: &ChatModelArguments) -> Result<ChatModel, Failure> {
    let Some(model) = &arguments.chat_model else {
        return Err(Failure::usage("which language model? --chat-model names it"));
    };
    let api = match arguments.chat_api.unwrap_or_default() {
        ChatApiArgument::Openai => ChatApi::OpenAi,
        ChatApiArgument::Anthropic => ChatApi::Anthropic,
        ChatApiArgument::Gemini => ChatApi::Gemini,
    };
    let mut builder = ChatModel::builder(api, model.as_str());
    if let Some(url) = &arguments.chat_url {
        builder = builder.url(url.as_str());
    }
    // A server of one's own may want the key as well.
    if let Ok(key) = env::var(api.key_variable()) {
        builder = builder.api_key(key);
    }
    builder.build().map_err(Failure::usage)
}
