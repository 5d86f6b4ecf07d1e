//! Gemini Live as a live provider: of the Gemini API, and of Vertex AI.
//!
//! [`Gemini`] connects; its documentation says what each setting becomes on the wire. A session
//! takes it as it takes any provider. By itself it is used like this:
//!
//! ```no_run
//! use antiphon_gemini::Gemini;
//! use antiphon_live::{
//!     ConnectRequest, LiveCommand, LiveConfig, LiveError, LiveEvent, LiveProvider, TextUpdate,
//! };
//! use futures_util::{SinkExt, StreamExt};
//!
//! # async fn example(key: String) -> Result<(), LiveError> {
//! let config = LiveConfig::new()
//!     .api_key(key)
//!     .model("gemini-3.8-live")
//!     .voice("Puck")
//!     .instructions("You are a friendly receptionist. Be brief.");
//! let request = ConnectRequest::new(config.into());
//! let mut connection = Gemini::new().connect(request).await?;
//!
//! let text = "Good morning! Are you open on Sundays?".to_owned();
//! connection.send(LiveCommand::Text { text, reply: true }).await?;
//! while let Some(event) = connection.next().await {
//!     match event? {
//!         LiveEvent::Audio { frame, .. } => println!("{:?} of voice", frame.duration()),
//!         LiveEvent::OutputTranscript { text: TextUpdate::Delta(text), .. } => print!("{text}"),
//!         LiveEvent::ReplyDone { .. } => break,
//!         _ => {}
//!     }
//! }
//! connection.close().await
//! # }
//! ```
//!
//! What the generations of models can do differs; [`Generation`] is the table. [`Client`] is the
//! client half as a pure state machine, for tests and other transports; [`server::Server`] is the
//! server half, for gateways and tests. [`wire`] holds the protocol: every message of both directions
//! as a type.
//!
//! With the feature `adc`, `ApplicationDefault` gives tokens for Vertex AI from Google's
//! application-default credentials.

#[cfg(feature = "adc")]
mod adc;
mod client;
mod generation;
mod provider;
pub mod server;
mod token;
pub mod wire;

#[cfg(feature = "adc")]
pub use adc::ApplicationDefault;
pub use client::{Client, Platform};
pub use generation::{Generation, InitialHistory, Proactivity, TextChannel, ThinkingBy};
pub use provider::Gemini;
pub use token::{EphemeralToken, EphemeralTokenRequest};
