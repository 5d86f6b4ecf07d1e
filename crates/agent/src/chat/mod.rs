//! Conversations from the client's side: the same in the agent's process and over a wire.
//!
//! An [`AgentApi`] stands for one agent behind an [`AgentTransport`]. Its [`AgentChat`]s keep what
//! has to travel from turn to turn (a snapshot's id, or the whole state where the agent keeps none),
//! and what was said, streamed and produced so far.
//!
//! ```
//! use antiphon_agent::{Agent, AgentInit, Message, TurnResult};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let agent = Agent::<u32>::custom("counter", |_cx, _responder, runner: antiphon_agent::SessionRunner<u32>| async move {
//! #     runner
//! #         .run(|_cx, _input| async {
//! #             runner.update_custom(|count| count + 1);
//! #             runner.add_messages([Message::model(format!("{}", runner.custom()))]);
//! #             Ok(TurnResult::default())
//! #         })
//! #         .await?;
//! #     Ok(runner.result())
//! # })
//! # .build();
//! let chat = agent.api().chat(AgentInit::default());
//! chat.send("Count.").await?;
//!
//! let mut turn = chat.send_stream("Again.");
//! while let Some(chunk) = turn.next_chunk().await {
//!     if let Some(count) = chunk.custom() {
//!         println!("at {count}");
//!     }
//! }
//! assert_eq!(turn.response().await?.text(), "2");
//! assert_eq!(chat.state(), Some(2));
//! # Ok(())
//! # }
//! ```
//!
//! A turn that fails leaves the chat as it was before: the next one goes on from the last good
//! state.

mod api;
mod chunk;
mod conversation;
mod driver;
mod in_process;
mod interrupt;
mod local;
mod response;
mod transport;
mod turn;

pub use self::{
    api::{AgentApi, SnapshotLookup},
    chunk::AgentChunk,
    conversation::AgentChat,
    interrupt::AgentInterrupt,
    response::{AgentError, AgentResponse},
    transport::{AgentTransport, TurnRun},
    turn::AgentTurn,
};
