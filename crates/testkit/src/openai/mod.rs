//! A scripted OpenAI Realtime server.
//!
//! Without a script it behaves like the vendor's: it greets with `session.created`, answers
//! `session.update` with the whole session, keeps the conversation, hears turns by their loudness,
//! replies with text, a tone for a voice, or tool calls, is interrupted by speech, and refuses what
//! the vendor refuses. A [`Script`] says what it replies, what goes wrong, or every single step.
//!
//! ```no_run
//! use antiphon_testkit::openai::{Reply, Rule, Script, Server};
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
//! A script file is one JSON object. All keys may be left out; an unknown key is an error.
//!
//! | key | meaning |
//! |---|---|
//! | `refuse` | `{"status":429,"body":"…","retry_after":3}`: answers the upgrade so |
//! | `keys` | `["sk-test"]`: other keys are refused with 401; without it every key is taken |
//! | `dialect` | `"ga"` (default), `"beta"`, `"azure"`, `"azure_preview"`, `"voice_live"`, `"xai"`, `"qwen"` or `"inworld"`: its addresses, keys, words and refusals |
//! | `session` | merged into the session that `session.created` tells of |
//! | `plain_sessions` | leaves `id`, `object` and `expires_at` out of sessions, which the vendor sends and its own SDK types do not know |
//! | `replies` | rules, see below; the first that fits is taken |
//! | `transcripts` | what the user's audio turns say, in order: `"words"`, or `{"fail":"why"}` |
//! | `pace` | `{"think_ms":20,"delta_ms":100,"interval_ms":20,"transcript_ms":30}` |
//! | `faults` | what goes wrong, see below |
//! | `steps` | exact steps instead of behaving, see below |
//! | `expires_in_s` | the session expires: `session_expired`, then close 1001. Default: 3600 |
//! | `connections` | a list of scripts, one for each connection in order; the last repeats |
//!
//! A rule is `{"when":{…},"reply":{…},"times":1}`. `when` may hold `text` (the user's last words
//! hold it, without regard to case), `tool_output` (the output of a call of this tool came last;
//! `"*"` is any), `instructions` (the `response.create` has some that hold it) and `nth` (the
//! response's number, from 1). All that is given must be so.
//!
//! A reply may hold `text` and `more` (a list: further messages), in which `{text}`, `{output}` and
//! `{instructions}` stand for the user's last words, the last tool output and the instructions of
//! the `response.create`; `audio_ms` (default: 300 for each word, at least 400), `tone_hz` (440),
//! `calls` (`[{"name":"f","arguments":{},"call_id":"call_1"}]`; arguments that are a string are
//! sent as they are), `text_only`, `incomplete` (`"max_output_tokens"`), `fail`
//! (`{"type":"server_error","code":"…","message":"…"}`) and `pace`. `{}` is an empty response.
//! Without a rule that fits it says `You said: {text}`, `The tool says: {output}` or
//! `{instructions}`.
//!
//! A fault is `{"at":"response.output_audio.delta","nth":1,"times":1,"instead":false,"do":[…]}`:
//! at the nth event of that type, after it or instead of it, the steps of `do` are taken. Beside
//! those of exact scripts there are `"duplicate"` (the event again) and `"swap"` (with `instead`:
//! the event after the one that follows).
//!
//! Steps are `{"expect":{…}}` (the client's next event that is not audio holds all of this; a string
//! `"$name"` takes what stands there), `{"emit":{…}}` (`"$name"` stands for what was taken;
//! `event_id` is added), `{"error":{"code":"…","message":"…"}}`, `{"raw":"…"}` (any text),
//! `{"binary":100}`, `{"big":20000000}` (bytes), `{"delay_ms":50}`, `{"at_ms":900}` (so long after the
//! server was made), `{"stall_ms":50}` (neither reads nor writes),
//! `{"close":{"code":1011,"reason":"…"}}`, `"drop"` (no close frame) and
//! `{"auto":{"until":"response.done","times":1}}` (behaves until then; `{"auto":{}}` for good, and
//! begins with `session.created` unless a step has sent one). A client that does something else is
//! closed with 4900, and [`Server::failures`] tells.
//!
//! A server of a dialect that keeps conversations (xAI) goes on with one whose name stands as
//! `conversation_id` in the address: its items are told again once the session asks for that.
//!
//! # As a process
//!
//! `cargo run -p antiphon-testkit -- openai [--script FILE] [--port P] [--tls CERT KEY]
//! [--record FILE]` prints its address on the first line and serves until it is killed. `--record`
//! writes each frame of both directions as a line
//! `{"connection":1,"t_ms":12,"dir":"client","frame":{…}}`; one that is not JSON stands under
//! `raw`.

mod conversation;
mod dialect;
mod engine;
mod hearing;
mod kept;
mod replying;
mod response;
mod script;
mod server;
mod session;

pub use crate::scripted::{
    Call, Failure, Fault, Pace, Record, Refusal, Reply, Rule, Serving, Side, Step, Transcript, When,
};
pub use script::Script;
pub use server::{Server, ServerConnector};
