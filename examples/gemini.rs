//! The quick start of the README with Gemini Live. With another address, such as that of a server of
//! one's own, it asks there.
//!
//! `GEMINI_API_KEY=... cargo run --example gemini --features gemini [-- URL]`

mod quick_start;

use std::error::Error;

use antiphon::{live::LiveConfig, providers::gemini::Gemini};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut config = LiveConfig::new().api_key(std::env::var("GEMINI_API_KEY")?).voice("Puck");
    config.endpoint = std::env::args().nth(1);
    quick_start::ask(Gemini::new(), config).await
}
