//! The quick start of the README with Azure OpenAI, whose servers speak OpenAI's words in a dialect of
//! their own. The model is a deployment of yours, and so is who writes down what the user says.
//!
//! `AZURE_OPENAI_API_KEY=... cargo run --example azure --features openai -- https://NAME.openai.azure.com
//! DEPLOYMENT [TRANSCRIBER]`

mod quick_start;

use std::{env, error::Error};

use antiphon::{
    live::LiveConfig,
    providers::openai::{OpenAi, wire::Dialect},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(resource), Some(deployment)) = (arguments.next(), arguments.next()) else {
        return Err("name the address of the resource, and the deployment of the model".into());
    };
    let mut config =
        LiveConfig::new().api_key(env::var("AZURE_OPENAI_API_KEY")?).model(deployment.as_str());
    config.endpoint = Some(resource);
    if let Some(transcriber) = arguments.next() {
        config.options.insert("transcription_model".into(), transcriber.into());
    }
    // An address ending in openai.azure.com tells the dialect; another server has to be told.
    quick_start::ask(OpenAi::new().dialect(Dialect::Azure), config).await
}
