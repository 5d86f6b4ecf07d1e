//! A scripted Gemini Live server.
//!
//! Without a script it behaves like the vendor's: it answers `setup` with `setupComplete`, hears
//! turns by their loudness, replies with a tone for a voice and its words, or with tool calls, is
//! interrupted by speech, hands out handles to resume by, says that it goes away, and hangs up on
//! what the vendor hangs up on: media before `setupComplete`, a second set-up, unknown keys, tool
//! outputs that are no objects, a handle that is stale or whose socket is still open. What it says
//! depends on the generation of the model that it is asked for. A [`Script`] says what it replies,
//! what goes wrong, or every single step.
//!
//! ```no_run
//! use antiphon_testkit::gemini::{Reply, Rule, Script, Server};
//! use serde_json::json;
//!
//! # async fn example() -> std::io::Result<()> {
//! let script = Script::auto()
//!     .transcript("What is the weather in Paris?")
//!     .reply(Rule::on_text("weather", Reply::call("get_weather", json!({"city": "Paris"}))))
//!     .reply(Rule::on_tool_output("get_weather", Reply::spoken("It is 18 degrees.", 1_500)));
//! let server = Server::new(script);
//! let over_pipes = server.connector(); // on paused time
//! let over_tcp = server.listen(None).await?; // over_tcp.url()
//! # Ok(())
//! # }
//! ```
//!
//! # Script files
//!
//! A script file is one JSON object, with the rules, replies, faults and steps of
//! [`crate::openai`]. Its keys are `refuse`, `keys`, `replies`, `transcripts`, `pace`, `faults`,
//! `steps`, `connections`, and:
//!
//! | key | meaning |
//! |---|---|
//! | `text_frames` | writes text frames, as some proxies do; the vendor writes binary ones |
//! | `lifetime_s` | the connection ends after so long, with 1011. Default: 600 |
//! | `notice_s` | so long before, `goAway` says so. Default: 50 |
//! | `handle_valid_s` | a handle is good for so long after its connection. Default: 7200 |
//! | `ends_at_once` | turns end when all was said, not when it would have been heard |
//! | `setup_ms` | from `setup` to `setupComplete`. Default: 5 |
//!
//! Faults name their event by the finest thing in it: `setupComplete`, `modelTurn`,
//! `inputTranscription`, `outputTranscription`, `generationComplete`, `interrupted`,
//! `turnComplete`, `toolCall`, `toolCallCancellation`, `goAway`, `sessionResumptionUpdate`,
//! `voiceActivity`. A reply that is `incomplete` ends with that `turnCompleteReason`; one that is to
//! `fail` closes with 1011 and its message. `{instructions}` is not filled in.
//!
//! # As a process
//!
//! `cargo run -p antiphon-testkit -- gemini [--script FILE] [--port P] [--tls CERT KEY]
//! [--record FILE]` prints its address on the first line and serves until it is killed.

mod engine;
mod replying;
mod script;
mod server;

pub use crate::scripted::{
    Call, Failure, Fault, Pace, Record, Refusal, Reply, Rule, Serving, Side, Step, Transcript, When,
};
pub use script::Script;
pub use server::{Server, ServerConnector};
