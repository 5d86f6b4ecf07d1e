//! `antiphon bridge`: answers telephone calls.

mod agents;
mod check;

use std::{
    env, fs,
    io::Write,
    path::Path,
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    time::{Duration, SystemTime},
};

use antiphon::{
    policy::{LimitStore, SqliteLimits},
    telephony::{
        Bridge, BridgeConfig,
        config::{AgentConfig, ConfigError},
        outbound::{DialOrder, Outbound},
        rest::Accounts,
        token::{Claims, Tokens},
    },
};

use tokio::{sync::oneshot, time::timeout};

pub use self::agents::call_definitions;
use self::agents::{Agents, known_provider};
use crate::{
    args::{BridgeArguments, BridgeCommand, CallArguments, TokenArguments},
    failure::Failure,
};

/// At the end, what is still to be printed has so long.
const PRINTING: Duration = Duration::from_secs(2);

/// Answers calls, or looks whether it could.
pub fn run(arguments: BridgeArguments) -> Result<(), Failure> {
    let (config, text) = read(&arguments.config)?;
    match arguments.command {
        Some(BridgeCommand::Token(token)) => print_token(&config, token),
        Some(BridgeCommand::Check) => check::check(&config, &text),
        Some(BridgeCommand::Call(call)) => run_to_end(dial(config, call)),
        None => {
            for (path, agent) in agents_of(&config) {
                let provider = known_provider(agent);
                provider.map_err(|why| {
                    Failure::usage(ConfigError::at_setting(
                        &text,
                        &[&path[..], &["provider"]].concat(),
                        why,
                    ))
                })?;
            }
            run_to_end(serve(config))
        }
    }
}

fn run_to_end(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failure::failed)?;
    let done = runtime.block_on(work);
    // A tool that blocks and ignores its cancellation does not keep the program.
    runtime.shutdown_timeout(Duration::from_millis(200));
    done
}

fn accounts(config: &BridgeConfig) -> Result<Option<Accounts>, Failure> {
    let all: Vec<_> = config
        .carriers
        .iter()
        .filter_map(|(carrier, config)| Some((*carrier, config.account.clone()?)))
        .collect();
    if all.is_empty() {
        return Ok(None);
    }
    Accounts::new(all).map(Some).map_err(Failure::failed)
}

/// What makes calls.
fn outbound(config: &BridgeConfig) -> Result<Outbound, Failure> {
    let Some(accounts) = accounts(config)? else {
        return Err(Failure::usage("no carrier has an account in the configuration"));
    };
    Outbound::new(config, accounts, ledger(config)?).map_err(Failure::usage)
}

/// What remembers the limits of calls that are made, where there are any.
fn ledger(config: &BridgeConfig) -> Result<Option<Arc<dyn LimitStore>>, Failure> {
    let path = config.outbound.as_ref().and_then(|outbound| outbound.ledger.as_ref());
    let ledger = path.map(SqliteLimits::open).transpose().map_err(Failure::usage)?;
    Ok(ledger.map(|ledger| Arc::new(ledger) as Arc<dyn LimitStore>))
}

/// Makes a call, and prints the carrier's name of it.
async fn dial(config: BridgeConfig, arguments: CallArguments) -> Result<(), Failure> {
    known_agent(&config, arguments.agent.as_deref())?;
    let outbound = outbound(&config)?;
    let mut order = DialOrder::new(arguments.to);
    order.tenant = arguments.tenant;
    order.agent = arguments.agent;
    let call = outbound.dial(&order).await.map_err(Failure::failed)?;
    println!("{call}");
    Ok(())
}

/// Refuses an agent of whom the configuration says nothing.
fn known_agent(config: &BridgeConfig, name: Option<&str>) -> Result<(), Failure> {
    match name {
        Some(name) if !config.agents.contains_key(name) => {
            Err(Failure::usage(format!("the configuration has no [agents.{name}]")))
        }
        _ => Ok(()),
    }
}

/// The configuration, and its text.
fn read(path: &Path) -> Result<(BridgeConfig, String), Failure> {
    let name = path.display();
    let text =
        fs::read_to_string(path).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let config = BridgeConfig::from_toml(&text, |variable| env::var(variable).ok())
        .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    Ok((config, text))
}

async fn serve(config: BridgeConfig) -> Result<(), Failure> {
    let agents = Agents::open(&config).await?;
    let accounts = accounts(&config)?;
    let ledger = ledger(&config)?;
    let (lines, printed) = printer();
    let bridge = Bridge::new(config, agents).on_record(move |record| {
        // Where nobody reads any more, the file of records has it.
        if let Ok(line) = serde_json::to_string(record) {
            let _ = lines.try_send(line);
        }
    });
    let bridge = match accounts {
        Some(accounts) => bridge.carriers(accounts),
        None => bridge,
    };
    let bridge = match ledger {
        Some(ledger) => bridge.ledger(ledger),
        None => bridge,
    };
    let bound = bridge.bind().await.map_err(Failure::failed)?;
    let web = bound.local_addr().map_err(Failure::failed)?;
    eprintln!("antiphon: answering calls at http://{web}/telephony/");
    if let Some(tcp) = bound.audiosocket_addr() {
        eprintln!("antiphon: answering AudioSocket at {tcp}");
    }
    let ended = bound.run(stopped()).await.map_err(Failure::failed);
    // The bridge is gone, and with it whoever has lines to print.
    let _ = timeout(PRINTING, printed).await;
    ended
}

/// Prints one line for each call, for those who watch. A thread of its own does: one who does not read
/// what is printed holds up no call.
fn printer() -> (SyncSender<String>, oneshot::Receiver<()>) {
    let (lines, queue) = sync_channel::<String>(1_024);
    let (done, printed) = oneshot::channel();
    std::thread::spawn(move || {
        for line in queue {
            if writeln!(std::io::stdout().lock(), "{line}").is_err() {
                break;
            }
        }
        let _ = done.send(());
    });
    (lines, printed)
}

/// Returns at Ctrl-C, and where the system asks the program to end.
async fn stopped() {
    let interrupted = tokio::signal::ctrl_c();
    #[cfg(unix)]
    if let Ok(mut term) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
    {
        tokio::select! {
            _ = interrupted => {}
            _ = term.recv() => {}
        }
        return;
    }
    let _ = interrupted.await;
}

fn print_token(config: &BridgeConfig, arguments: TokenArguments) -> Result<(), Failure> {
    let Some(secret) = &config.token_secret else {
        return Err(Failure::usage("the configuration names no `token_secret_env`"));
    };
    known_agent(config, arguments.agent.as_deref())?;
    let tokens = Tokens::new(secret).map_err(Failure::usage)?;
    let claims = Claims::new(arguments.call, arguments.tenant, arguments.agent);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let token = tokens.mint(claims, now, arguments.lifetime).map_err(Failure::failed)?;
    println!("{token}");
    Ok(())
}

/// All agents, and the tables in which they stand.
fn agents_of(config: &BridgeConfig) -> impl Iterator<Item = (Vec<&str>, &AgentConfig)> {
    let named = config.agents.iter().map(|(name, agent)| (vec!["agents", name], agent));
    std::iter::once((vec!["agent"], &config.agent)).chain(named)
}
