//! OpenAI Realtime and its dialects as a live provider.
//!
//! [`OpenAi`] connects; its documentation says what each setting becomes on the wire. A session
//! takes it as it takes any provider. By itself it is used like this:
//!
//! ```no_run
//! use antiphon_live::{
//!     ConnectRequest, LiveCommand, LiveConfig, LiveError, LiveEvent, LiveProvider, TextUpdate,
//! };
//! use antiphon_openai::OpenAi;
//! use futures_util::{SinkExt, StreamExt};
//!
//! # async fn example(key: String) -> Result<(), LiveError> {
//! let config = LiveConfig::new()
//!     .api_key(key)
//!     .model("gpt-realtime-2")
//!     .voice("marin")
//!     .instructions("You are a friendly receptionist. Be brief.");
//! let request = ConnectRequest::new(config.into());
//! let mut connection = OpenAi::new().connect(request).await?;
//!
//! let text = "Good morning! Are you open on Sundays?".to_owned();
//! connection.send(LiveCommand::Text { text, reply: true }).await?;
//! while let Some(event) = connection.next().await {
//!     match event? {
//!         LiveEvent::Audio { frame, .. } => println!("{:?} of voice", frame.duration()),
//!         LiveEvent::OutputTranscript { text: TextUpdate::Final(Some(text)), .. } => {
//!             println!("{text}");
//!         }
//!         LiveEvent::ReplyDone { .. } => break,
//!         _ => {}
//!     }
//! }
//! connection.close().await
//! # }
//! ```
//!
//! It also speaks to Azure OpenAI, Azure Voice Live, xAI, Qwen, Inworld and servers that follow any of
//! them: see [`wire::Dialect`].
//! [`Client`] is the client half as a pure state machine, for tests and other transports. [`wire`]
//! holds the protocol, for servers and tools too: every event of both directions as a type.

mod client;
mod provider;
mod secret;
pub mod wire;

pub use client::Client;
pub use provider::OpenAi;
pub use secret::{ClientSecret, ClientSecretRequest, ExpiresAfter};
