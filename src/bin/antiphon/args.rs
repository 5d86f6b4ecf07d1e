//! The flags.

use std::{net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use antiphon::agent::{Caller, InvocationContext};
use clap::{ArgAction, ArgMatches, Args, Parser, Subcommand, ValueEnum};

/// A realtime voice-agent toolkit.
#[derive(Debug, Parser)]
#[command(name = "antiphon", version, about, propagate_version = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold a spoken conversation with an agent.
    Talk(Box<TalkArguments>),
    /// Write with an agent: each line of standard input is a turn.
    Chat(Box<ChatArguments>),
    /// Look through the conversations of a store.
    Snapshots(SnapshotsArguments),
    /// Decide over tool calls that wait for a person.
    Approvals(ApprovalsArguments),
    /// Answer telephone calls.
    Bridge(BridgeArguments),
    /// Look at what a policy says of tool calls.
    Policy(PolicyArguments),
    /// Check a log of receipts.
    Receipts(ReceiptsArguments),
    /// Speak a text into a WAV file.
    Speak(SpeakArguments),
    /// Run a recorded conversation again, and say whether it goes the same way.
    Replay(RecordingArguments),
    /// Say of each turn of a recorded conversation why the agent was silent, cut off or late.
    Explain(RecordingArguments),
    /// Say what is present, what is missing, and how to mend it.
    Doctor(DoctorArguments),
}

/// Flags of `talk`.
#[derive(Debug, Args)]
#[command(after_help = TALK_HELP)]
pub struct TalkArguments {
    /// Who hears, thinks and speaks.
    #[arg(long, value_enum, default_value_t)]
    pub provider: Provider,
    /// Who goes on with the conversation where the provider cannot be reached, or ends the connection
    /// for good. May be repeated; they are tried in this order.
    #[arg(long, value_name = "NAME", value_enum)]
    pub fallback: Vec<Provider>,
    /// The server, in place of the provider's own: `wss://`, `https://`, `ws://` or `http://`.
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// The model. Default: the provider's own.
    #[arg(long)]
    pub model: Option<String>,
    /// The model that writes down what you say, of servers that speak like OpenAI. Default: the
    /// provider's own; at Azure, where it is a deployment of yours, the one in
    /// AZURE_OPENAI_TRANSCRIBER, else none.
    #[arg(long, value_name = "MODEL")]
    pub transcriber: Option<String>,
    #[command(flatten)]
    pub chat_model: ChatModelArguments,
    /// The voice. Default: the provider's first.
    #[arg(long)]
    pub voice: Option<String>,
    /// Who decides when you have spoken: the agent by listening, or you (files: around each file;
    /// microphone: the Enter key).
    #[arg(long, value_enum, default_value_t)]
    pub vad: Vad,
    /// `mic`, or a WAV file that is spoken to the agent. May be repeated.
    #[arg(long, value_name = "mic|FILE.wav", num_args = 1.., action = ArgAction::Append)]
    pub input: Vec<InputArgument>,
    /// `speaker`, a WAV file that becomes the time line of the agent's voice, or `none`.
    #[arg(long, value_name = "speaker|FILE.wav|none")]
    pub output: Option<OutputArgument>,
    /// A line that is given to the agent as text. May be repeated.
    #[arg(long, value_name = "TEXT", action = ArgAction::Append, allow_hyphen_values = true)]
    pub text: Vec<String>,
    /// Speaks the file over an answer, MS milliseconds after its first sound. May be repeated: the
    /// second one interrupts the second answer.
    #[arg(long, value_name = "FILE.wav@MS", action = ArgAction::Append)]
    pub barge_in: Vec<BargeInArgument>,
    /// A JSON list of tools whose bodies are commands.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// A JSON file of rules over tool calls, or of policies and limits, in place of the built-in rules.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub books: BookArguments,
    #[command(flatten)]
    pub who: CallerArguments,
    /// A JSON file of what the agent may not say aloud, and of what the user says that no tool acts on.
    #[arg(long, value_name = "FILE")]
    pub guard: Option<PathBuf>,
    /// After this much silence the agent asks whether you are there, such as `3s` or `2m`.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub idle_remind: Option<Duration>,
    /// After this much silence the agent says goodbye and the session ends.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub idle_stop: Option<Duration>,
    /// A file that keeps the memory (notes) from one conversation to the next. Default with --store: in
    /// the store.
    #[arg(long, value_name = "FILE")]
    pub memory: Option<PathBuf>,
    /// Where the conversation is kept, turn by turn: a SQLite file, or a directory (one that is
    /// there, or a name that ends in `/`).
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Goes on from this snapshot, or from the latest one of this session.
    #[arg(long, value_name = "ID", requires = "store", allow_hyphen_values = true)]
    pub resume: Option<String>,
    /// Goes on from the latest snapshot in the store.
    #[arg(long, requires = "store", conflicts_with = "resume")]
    pub resume_latest: bool,
    /// What becomes of a turn that is under way when you hang up (Ctrl-C).
    #[arg(long, value_enum, default_value_t, requires = "store")]
    pub on_hangup: HangUp,
    /// How often work that was left behind says in the store that it is alive; without that for twice
    /// as long it is taken to be dead. Default: 30s.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "store")]
    pub heartbeat: Option<Duration>,
    /// For how long a call waits that a person is to decide over. Default: a day.
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "store")]
    pub approve_within: Option<Duration>,
    /// How to print what happens.
    #[arg(long, value_enum, default_value_t)]
    pub events: EventFormat,
    /// Records what happens, for `replay` and `explain`, into a new file in the folder: all words
    /// and tool calls, no keys, and of the voices only the lengths.
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,
    /// The recording also holds the voices.
    #[arg(long, requires = "record")]
    pub record_audio: bool,
    /// Does not wait for real time: files only; the output file is the same.
    #[arg(long)]
    pub fast: bool,
    #[command(flatten)]
    pub models: ModelArguments,
}

/// Flags of `bridge`.
#[derive(Debug, Args)]
pub struct BridgeArguments {
    #[command(subcommand)]
    pub command: Option<BridgeCommand>,
    /// The configuration.
    #[arg(long, value_name = "FILE", default_value = "bridge.toml", global = true)]
    pub config: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum BridgeCommand {
    /// Say what is right with the configuration, and what is not.
    Check,
    /// Print a token for one stream.
    Token(TokenArguments),
    /// Make a call. Its stream comes to the bridge that runs with the same configuration.
    Call(CallArguments),
}

/// Flags of `bridge call`.
#[derive(Debug, Args)]
pub struct CallArguments {
    /// The number, in the form +15550100.
    pub to: String,
    /// The tenant whose call it is.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// The agent that is to speak.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
}

/// Flags of `bridge token`.
#[derive(Debug, Args)]
pub struct TokenArguments {
    /// The carrier's name of the call, where it is known.
    #[arg(long, value_name = "ID")]
    pub call: Option<String>,
    /// The tenant whose call it is.
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
    /// The agent that is to answer.
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// How long it is good.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s")]
    pub lifetime: Duration,
}

/// Flags of `chat`.
#[derive(Debug, Args)]
#[command(after_help = CHAT_HELP)]
pub struct ChatArguments {
    /// `echo`, `offline`, `assistant`, or the name of a prompt in the folder of prompts.
    #[arg(long, value_name = "echo|offline|assistant|NAME")]
    pub agent: Option<String>,
    /// The folder in which NAME.prompt files are.
    #[arg(long, value_name = "DIR", default_value = "prompts")]
    pub prompts: PathBuf,
    #[command(flatten)]
    pub chat_model: ChatModelArguments,
    /// A JSON list of tools whose bodies are commands.
    #[arg(long, value_name = "FILE")]
    pub tools: Option<PathBuf>,
    /// A JSON file of rules over tool calls, or of policies and limits, in place of the built-in rules.
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub books: BookArguments,
    #[command(flatten)]
    pub who: CallerArguments,
    /// A file that keeps the memory (notes) from one conversation to the next.
    #[arg(long, value_name = "FILE")]
    pub memory: Option<PathBuf>,
    /// Where the conversation is kept, turn by turn: a SQLite file, or a directory (one that is
    /// there, or a name that ends in `/`).
    #[arg(long, value_name = "FILE")]
    pub store: Option<PathBuf>,
    /// Goes on from this snapshot, or from the latest one of this session.
    #[arg(long, value_name = "ID", requires = "store", allow_hyphen_values = true)]
    pub resume: Option<String>,
    /// Goes on from the latest snapshot in the store.
    #[arg(long, requires = "store", conflicts_with = "resume")]
    pub resume_latest: bool,
    /// How to print what happens.
    #[arg(long, value_enum, default_value_t)]
    pub events: EventFormat,
}

/// Flags of `snapshots`.
#[derive(Debug, Args)]
#[command(after_help = SNAPSHOTS_HELP)]
pub struct SnapshotsArguments {
    #[command(subcommand)]
    pub command: SnapshotsCommand,
    /// Work in the background that has not said for so long that it is alive is shown as expired:
    /// twice what `talk --heartbeat` says.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "60s", global = true)]
    pub stale_after: Duration,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotsCommand {
    /// The sessions in the store, those begun last first.
    List {
        #[command(flatten)]
        common: StoreArguments,
    },
    /// The snapshots of a session as a tree: where it was forked, a branch for each.
    History {
        /// The session, or one of its snapshots. Default: the session with the latest snapshot.
        #[arg(value_name = "ID")]
        id: Option<String>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// What a snapshot holds.
    Show {
        /// The snapshot, or a session, whose latest it is then.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// What came and went from one snapshot to another.
    Diff {
        /// The snapshot before, or a session.
        #[arg(value_name = "FROM")]
        from: String,
        /// The snapshot after, or a session.
        #[arg(value_name = "TO")]
        to: String,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Writes a snapshot as JSON; of a session each, one a line.
    Export {
        /// The snapshot or the session.
        #[arg(value_name = "ID")]
        id: String,
        /// The file to write, in place of standard output. It must not be there.
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Waits until the work in the background that a snapshot stands for is over. Exit status 1: it did
    /// not end well, or not in time.
    Wait {
        /// The snapshot.
        #[arg(value_name = "ID")]
        id: String,
        /// How long to wait. Default: as long as it takes.
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        within: Option<Duration>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Asks the work in the background that a snapshot stands for to stop.
    Abort {
        /// The snapshot.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        common: StoreArguments,
    },
}

/// In whose name a conversation is.
#[derive(Clone, Debug, Default, Args)]
pub struct CallerArguments {
    /// Who calls, as policies, limits and receipts know them.
    #[arg(long, value_name = "NAME")]
    pub caller: Option<String>,
    /// The tenant that the caller belongs to; what one tenant keeps no other sees.
    #[arg(long, value_name = "TENANT")]
    pub tenant: Option<String>,
}

impl CallerArguments {
    /// `None`: nobody in particular.
    pub fn caller(&self) -> Option<Caller> {
        let Self { caller, tenant } = self;
        if caller.is_none() && tenant.is_none() {
            return None;
        }
        let caller = Caller::new(caller.as_deref().unwrap_or_default());
        Some(match tenant {
            Some(tenant) => caller.scope(tenant.as_str()),
            None => caller,
        })
    }

    pub fn context(&self) -> InvocationContext {
        match self.caller() {
            Some(caller) => InvocationContext::new().with_caller(caller),
            None => InvocationContext::new(),
        }
    }
}

/// Where the policy keeps its books.
#[derive(Clone, Debug, Default, Args)]
pub struct BookArguments {
    /// A log of receipts: each decision over a tool call before anything runs, and each outcome. See
    /// `antiphon receipts`.
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// A SQLite file that remembers what was used of the policy's limits. Default: nothing is
    /// remembered once this conversation is over.
    #[arg(long, value_name = "FILE")]
    pub limits: Option<PathBuf>,
}

/// Flags of `policy`.
#[derive(Debug, Args)]
#[command(after_help = POLICY_HELP)]
pub struct PolicyArguments {
    #[command(subcommand)]
    pub command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Says what is wrong with a policy file, and which patterns fit no tool.
    Check {
        /// A JSON file of policies and limits, or of rules; or policies in Cedar (`.cedar`).
        #[arg(value_name = "POLICY")]
        policy: PathBuf,
        /// A JSON list of tools whose bodies are commands: patterns that fit none of them and none of
        /// the built-in ones are told, and policies in Cedar have to fit them.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
    },
    /// Prints what policies in Cedar see of the tools and limits, as a schema of Cedar.
    Schema {
        /// A policy file, for its limits.
        #[arg(value_name = "POLICY")]
        policy: Option<PathBuf>,
        /// A JSON list of tools whose bodies are commands.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
    },
    /// Asks the policy about each call of a table of scenarios, and says which of them are not as
    /// expected.
    Test {
        /// A JSON file of policies and limits, or of rules; or policies in Cedar (`.cedar`).
        #[arg(value_name = "POLICY")]
        policy: PathBuf,
        /// A JSON list of calls with what is expected of each.
        #[arg(value_name = "SCENARIOS")]
        scenarios: PathBuf,
        /// A JSON list of tools whose bodies are commands, which policies in Cedar are about.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
    },
    /// Says what each policy says of one call, and which of them decide.
    Explain {
        /// A JSON file of policies and limits, or of rules; or policies in Cedar (`.cedar`).
        #[arg(value_name = "POLICY")]
        policy: PathBuf,
        /// The call, as in a table of scenarios: `{"tool": "pay", "args": {"cents": 5}}`.
        #[arg(value_name = "CALL")]
        call: String,
        /// A JSON list of tools whose bodies are commands, which policies in Cedar are about.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
    },
}

/// Flags of `receipts`.
#[derive(Debug, Args)]
pub struct ReceiptsArguments {
    #[command(subcommand)]
    pub command: ReceiptsCommand,
}

#[derive(Debug, Subcommand)]
pub enum ReceiptsCommand {
    /// Finds the first entry that was changed, removed or moved.
    Verify {
        /// The log.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Prints `COUNT:HASH`, to be kept elsewhere.
        #[arg(long)]
        print_head: bool,
        /// A head that the log had: with it also a tail that was removed is found, and a log that was
        /// written anew.
        #[arg(long, value_name = "COUNT:HASH", value_parser = antiphon::policy::receipts::Head::from_str)]
        head: Option<antiphon::policy::receipts::Head>,
    },
}

/// Flags of `approvals`.
#[derive(Debug, Args)]
#[command(after_help = APPROVALS_HELP)]
pub struct ApprovalsArguments {
    #[command(subcommand)]
    pub command: ApprovalsCommand,
}

#[derive(Debug, Subcommand)]
pub enum ApprovalsCommand {
    /// The calls that wait.
    List {
        /// Those of this session only.
        #[arg(value_name = "SESSION")]
        session: Option<String>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// A call that waits, or did.
    Show {
        /// Its key.
        #[arg(value_name = "KEY")]
        key: String,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Approves a call and runs its tool.
    Approve {
        /// Its key.
        #[arg(value_name = "KEY")]
        key: String,
        /// Who approves it.
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// The arguments that you were shown, as a JSON object: a call with others is not approved.
        #[arg(long, value_name = "JSON")]
        arguments: Option<String>,
        /// What a tool that asked is told: a JSON object.
        #[arg(long, value_name = "JSON")]
        answer: Option<String>,
        /// A JSON list of tools whose bodies are commands.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
        /// The agent whose tools these are: a call that another one asked for is refused. Default: the agent
        /// of the session.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// The policy that the conversation had, which judges the call once more: a JSON file, or one in
        /// Cedar; `built-in` for the rules that come with the program.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        #[command(flatten)]
        books: BookArguments,
        /// The file that keeps the memory (notes), as `talk --memory` was given it. Default: in the store.
        #[arg(long, value_name = "FILE")]
        memory: Option<PathBuf>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Lets others decide over HTTP: `GET /approvals`, `GET /approvals/KEY`, `POST /approvals/KEY/approve`
    /// and `/deny`. Ctrl-C ends it.
    Serve {
        /// Where to listen. Port 0 takes a free one.
        #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8089")]
        listen: SocketAddr,
        /// The environment variable that holds the token which every request has to show
        /// (`Authorization: Bearer TOKEN`).
        #[arg(long, value_name = "NAME", default_value = "ANTIPHON_APPROVALS_TOKEN")]
        token_env: String,
        /// In its place, a file with a token for each who decides, a line `name = token` each: what is
        /// decided by a token was decided by its name.
        #[arg(long, value_name = "FILE", conflicts_with = "token_env")]
        tokens: Option<PathBuf>,
        /// A JSON list of tools whose bodies are commands.
        #[arg(long, value_name = "FILE")]
        tools: Option<PathBuf>,
        /// The agent whose tools these are: a call that another one asked for is refused. Default: the agent
        /// of the session.
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// The policy that the conversations had, which judges each call once more: a JSON file, or one
        /// in Cedar; `built-in` for the rules that come with the program.
        #[arg(long, value_name = "FILE")]
        policy: PathBuf,
        #[command(flatten)]
        books: BookArguments,
        /// The file that keeps the memory (notes), as `talk --memory` was given it. Default: in the store.
        #[arg(long, value_name = "FILE")]
        memory: Option<PathBuf>,
        #[command(flatten)]
        common: StoreArguments,
    },
    /// Refuses a call.
    Deny {
        /// Its key.
        #[arg(value_name = "KEY")]
        key: String,
        /// Who refuses it.
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
        /// Why; the agent is told.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// The log of receipts, which says who refused the call.
        #[arg(long, value_name = "FILE", requires = "policy")]
        receipts: Option<PathBuf>,
        /// The policy that the conversation had: it says what receipts do not show.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        #[command(flatten)]
        common: StoreArguments,
    },
}

/// Which store, and how to print.
#[derive(Clone, Debug, Args)]
pub struct StoreArguments {
    /// The store: a SQLite file, or a directory.
    #[arg(long, value_name = "FILE")]
    pub store: PathBuf,
    /// The tenant whose conversations are meant. Default: those that belong to no tenant.
    #[arg(long, value_name = "TENANT")]
    pub scope: Option<String>,
    /// Prints for programs: one JSON object per line.
    #[arg(long)]
    pub json: bool,
}

/// Flags of `speak`.
#[derive(Debug, Args)]
pub struct SpeakArguments {
    /// What to say.
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    pub text: String,
    /// The file to write.
    #[arg(short, long, value_name = "FILE.wav")]
    pub output: PathBuf,
    /// The voice. Default: the first.
    #[arg(long)]
    pub voice: Option<String>,
    /// Samples per second.
    #[arg(long, value_name = "HZ", default_value_t = 16_000, value_parser = clap::value_parser!(u32).range(8_000..=48_000))]
    pub rate: u32,
    #[command(flatten)]
    pub models: ModelArguments,
}

/// Flags of `replay` and `explain`.
#[derive(Debug, Args)]
pub struct RecordingArguments {
    /// A file that `talk --record` made.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Flags of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    #[command(flatten)]
    pub models: ModelArguments,
}

/// Where the models are.
#[derive(Clone, Debug, Args)]
pub struct ModelArguments {
    /// The folder of the model files. Default: `$ANTIPHON_MODELS`, else beside the program.
    #[arg(long, value_name = "DIR")]
    pub models: Option<PathBuf>,
}

/// Which language model answers.
#[derive(Clone, Debug, Args)]
pub struct ChatModelArguments {
    /// The language model, such as `qwen3:8b`.
    #[arg(long, value_name = "MODEL")]
    pub chat_model: Option<String>,
    /// The server of the language model, such as `http://localhost:11434/v1`. Default: the
    /// vendor's, with the key in OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY.
    #[arg(long, value_name = "URL")]
    pub chat_url: Option<String>,
    /// How that server wants to be spoken to.
    #[arg(long, value_enum, value_name = "API")]
    pub chat_api: Option<ChatApiArgument>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ChatApiArgument {
    /// Chat completions: OpenAI, Ollama, llama.cpp, vLLM and many more.
    #[default]
    Openai,
    Anthropic,
    Gemini,
}

const CHAT_HELP: &str = "\
Agents: `echo` repeats what you write; `offline` understands the sample phrases of its tools and \
needs no network (the default without --chat-model); `assistant` is the language model of \
--chat-model with the tools (the default with it); any other name is that of a file NAME.prompt, a \
Genkit prompt file with the model's instructions in it.

With --store each turn is followed by `committed ID`, the snapshot that holds it, once it would \
survive the loss of power; `antiphon snapshots` shows them.

Where the policy wants a call confirmed, the next line is the answer: yes or no. Ctrl-C stops an \
answer that is under way, and the program when none is.

Exit status: 0 at the end of the input, 2 for wrong usage, 1 otherwise.";

const SNAPSHOTS_HELP: &str = "\
A store is what `antiphon talk --store`, `antiphon chat --store` or an agent of one's own keeps its conversations in. It may \
be in use meanwhile.

Exit status: 0 when it is done, 2 for wrong usage, a store or an id that is not there, 1 otherwise.";

const POLICY_HELP: &str = "\
SCENARIOS is a JSON list such as [{\"name\": \"too much\", \"tool\": \"pay\", \"args\": {\"cents\": 99999},
\"caller\": \"ann\", \"spent\": {\"daily\": {\"amount\": 100}}, \"expect\": \"ask\", \"by\": [\"large\"]}].
Exit status 1: a scenario is not as expected.";

const APPROVALS_HELP: &str = "\
A call waits where the rule of a policy says `ask`, or its tool does. It waits in the store of the conversation, which may be in \
use or over; approved, its tool runs in this program, once, after the policy was asked again. `serve` does so for whoever has \
a token, over plain HTTP: put TLS before it where it is not for this machine alone.

Exit status: 0 when it is done, 2 for wrong usage, a store, a key or a tool that is not there, 1 otherwise: also where the call \
does not wait any more.";

const TALK_HELP: &str = "\
Files and texts are given one after the other, in the order of the command line, each after the \
agent's answer to the one before was heard. After the last one the session ends by itself, once \
the answer has been heard and timers that are due within ten seconds have rung; with --idle-stop \
it listens on until that ends it, with --idle-remind until the reminder was heard.

Without --input and --text it uses microphone and loudspeaker when there are any, else questions \
that come with the program, with the answers in antiphon-talk.wav.

With --store each turn is told as `committed ID` once its snapshot would survive the loss of power; \
`antiphon snapshots` shows them, and `--resume` goes on from any. With --on-hangup detach the first \
Ctrl-C, or closing the terminal, leaves the running turn to be finished under a pending snapshot, for which the program stays; \
the second ends the program, and the snapshot is shown as expired within twice the --heartbeat.

Exit status: 0 after an ordinary end, 2 for wrong usage, 1 otherwise.";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum HangUp {
    /// It is aborted.
    #[default]
    Abort,
    /// It goes on in the background until it is done; `antiphon snapshots abort` stops it.
    Detach,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// Everything on this machine; no network, no key.
    #[default]
    Offline,
    /// The ears and the mouth of the offline provider with a language model between them: see
    /// --chat-model.
    Cascade,
    /// OpenAI Realtime, with the key in OPENAI_API_KEY; or with --url a server that speaks like it.
    Openai,
    /// Gemini Live, with the key in GEMINI_API_KEY; or with --url a server that speaks like it.
    Gemini,
    /// Azure OpenAI: the key in AZURE_OPENAI_API_KEY, the resource in AZURE_OPENAI_ENDPOINT or --url,
    /// the deployment in AZURE_OPENAI_DEPLOYMENT or --model, and that of a transcriber, if there is one,
    /// in AZURE_OPENAI_TRANSCRIBER or --transcriber.
    Azure,
    /// Azure Voice Live: the key in AZURE_VOICELIVE_API_KEY, the resource in AZURE_VOICELIVE_ENDPOINT
    /// or --url.
    VoiceLive,
    /// xAI's Grok, with the key in XAI_API_KEY.
    Xai,
    /// Qwen-Omni, with the key in DASHSCOPE_API_KEY: of Singapore, or with --url
    /// wss://dashscope.aliyuncs.com of Beijing.
    Qwen,
    /// Inworld, with the key in INWORLD_API_KEY.
    Inworld,
}

impl Provider {
    /// Whether it is behind a network, at an address and with a key.
    pub fn is_remote(self) -> bool {
        !matches!(self, Self::Offline | Self::Cascade)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Vad {
    #[default]
    Auto,
    Manual,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EventFormat {
    /// A transcript for people.
    #[default]
    Pretty,
    /// One JSON object per line; see `schemas/talk-events.schema.json`.
    Json,
}

/// `mic` or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputArgument {
    Microphone,
    File(PathBuf),
}

impl FromStr for InputArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a file name is expected".to_owned()),
            "mic" => Ok(Self::Microphone),
            file => Ok(Self::File(file.into())),
        }
    }
}

/// `speaker`, a file, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputArgument {
    Speaker,
    File(PathBuf),
    None,
}

impl FromStr for OutputArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("a file name is expected".to_owned()),
            "speaker" => Ok(Self::Speaker),
            "none" => Ok(Self::None),
            file if file.to_ascii_lowercase().ends_with(".wav") => Ok(Self::File(file.into())),
            _ => Err("expected `speaker`, `none`, or a file that ends in .wav".to_owned()),
        }
    }
}

/// `FILE.wav@MS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BargeInArgument {
    pub file: PathBuf,
    pub after: Duration,
}

impl FromStr for BargeInArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // The last `@` counts: a file name may hold others.
        let (file, ms) =
            text.rsplit_once('@').ok_or("expected FILE.wav@MS, such as stop.wav@800")?;
        let ms: u64 = ms.parse().map_err(|_| format!("{ms:?} is no number of milliseconds"))?;
        if file.is_empty() || ms > 600_000 {
            return Err("expected a file and at most 600000 milliseconds".to_owned());
        }
        Ok(Self { file: file.into(), after: Duration::from_millis(ms) })
    }
}

/// One thing to give to the agent, by its place in the list of its flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    Input(usize),
    Text(usize),
}

/// Inputs and texts in the order of the command line.
pub fn order(matches: &ArgMatches) -> Vec<Given> {
    let places = |id: &str| -> Vec<usize> {
        matches.indices_of(id).map(Iterator::collect).unwrap_or_default()
    };
    let mut given: Vec<(usize, Given)> = Vec::new();
    given.extend(places("input").into_iter().enumerate().map(|(n, at)| (at, Given::Input(n))));
    given.extend(places("text").into_iter().enumerate().map(|(n, at)| (at, Given::Text(n))));
    given.sort_by_key(|(at, _)| *at);
    given.into_iter().map(|(_, given)| given).collect()
}

/// `500ms`, `3s`, `1m 30s`, `2 minutes`.
fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "expected a duration such as 500ms, 3s or 2m".to_owned())?;
    let duration = Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())?;
    if duration.is_zero() || duration > Duration::from_secs(24 * 60 * 60) {
        return Err("must be above zero and at most a day".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn inputs_and_texts_keep_the_order_of_the_command_line() {
        let matches = Arguments::command().get_matches_from([
            "antiphon", "talk", "--text", "one", "--input", "a.wav", "b.wav", "--text", "two",
            "--input", "mic",
        ]);
        assert_eq!(
            order(matches.subcommand_matches("talk").unwrap()),
            [Given::Text(0), Given::Input(0), Given::Input(1), Given::Text(1), Given::Input(2)]
        );
    }

    #[test]
    fn durations_are_humane() {
        assert_eq!(duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2 minutes"), Ok(Duration::from_secs(120)));
        for bad in ["", "3", "-3s", "0s", "soon", "9999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_barge_in_needs_a_file_and_a_time() {
        let parsed: BargeInArgument = "dir@x/stop.wav@800".parse().unwrap();
        assert_eq!(parsed.file, PathBuf::from("dir@x/stop.wav"));
        assert_eq!(parsed.after, Duration::from_millis(800));
        for bad in ["stop.wav", "stop.wav@", "stop.wav@soon", "@5", "a@-1"] {
            assert!(bad.parse::<BargeInArgument>().is_err(), "{bad}");
        }
    }
}
