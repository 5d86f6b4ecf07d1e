//! The quick start of the README: a question in writing, the answer aloud, in `answer.wav`.
//!
//! `OPENAI_API_KEY=... cargo run --example openai`

mod quick_start;

use std::error::Error;

use antiphon::{live::LiveConfig, providers::openai::OpenAi};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let config = LiveConfig::new().api_key(std::env::var("OPENAI_API_KEY")?).voice("marin");
    quick_start::ask(OpenAi::new(), config).await
}
