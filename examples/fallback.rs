//! The quick start of the README with a second provider, which has the conversation while the first one
//! cannot be reached. It is told what was said; once the first one is back, that gets the conversation
//! again when the connection is next changed. With other addresses it asks there.
//!
//! `OPENAI_API_KEY=... GEMINI_API_KEY=... cargo run --example fallback --features openai,gemini
//! [-- OPENAI-URL GEMINI-URL]`

mod quick_start;

use std::{env, error::Error, sync::Arc};

use antiphon::{
    live::LiveConfig,
    providers::{gemini::Gemini, openai::OpenAi},
    session::AgentSession,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (key, url) = (env::var("GEMINI_API_KEY")?, env::args().nth(2));
    // What names or opens one provider means nothing to another: the second is given its own.
    let gemini = move |config: LiveConfig| {
        let mut config = config.api_key(key.as_str()).voice("Puck");
        config.endpoint.clone_from(&url);
        config
    };
    let mut config = LiveConfig::new().api_key(env::var("OPENAI_API_KEY")?).voice("marin");
    config.endpoint = env::args().nth(1);
    let session =
        AgentSession::builder(Arc::new(OpenAi::new())).fallback(Arc::new(Gemini::new()), gemini);
    quick_start::ask_in(session, config).await
}
