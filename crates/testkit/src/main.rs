//! The scripted servers as processes, for clients in other languages.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use antiphon_live::acceptor::TlsIdentity;
use antiphon_testkit::{gemini, openai};

const USAGE: &str = "usage: antiphon-testkit openai|gemini [--script FILE] [--port P] \
                     [--tls CERT KEY] [--record FILE]";

#[tokio::main]
async fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// Whose server.
#[derive(Clone, Copy, Default)]
enum Vendor {
    #[default]
    OpenAi,
    Gemini,
}

#[derive(Default)]
struct Options {
    vendor: Vendor,
    script: Option<PathBuf>,
    port: u16,
    tls: Option<(PathBuf, PathBuf)>,
    record: Option<PathBuf>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let vendor = match arguments.next().as_deref() {
            Some("openai") => Vendor::OpenAi,
            Some("gemini") => Vendor::Gemini,
            Some(other) => return Err(format!("no server is called {other}")),
            None => return Err("which server?".into()),
        };
        let mut options = Self { vendor, ..Self::default() };
        while let Some(name) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{name} needs a value"));
            match name.as_str() {
                "--script" => options.script = Some(value()?.into()),
                "--record" => options.record = Some(value()?.into()),
                "--tls" => options.tls = Some((value()?.into(), value()?.into())),
                "--port" => {
                    let port = value()?;
                    options.port = port.parse().map_err(|_| format!("{port} is no port"))?;
                }
                _ => return Err(format!("{name} is not known")),
            }
        }
        Ok(options)
    }
}

async fn run(options: Options) -> Result<(), String> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let script = options.script.as_ref().map(read).transpose()?;
    let bad = |path: &Option<PathBuf>, error: &dyn std::fmt::Display| {
        format!("{}: {error}", path.as_deref().unwrap_or(Path::new("")).display())
    };
    let identity = match &options.tls {
        None => None,
        Some((certificate, key)) => Some(
            TlsIdentity::from_pem(read(certificate)?.as_bytes(), read(key)?.as_bytes())
                .map_err(|error| error.to_string())?,
        ),
    };
    let unread = |error: serde_json::Error| bad(&options.script, &error);
    let unwritable = |error: std::io::Error| bad(&options.record, &error);
    let port = options.port;
    let serving = match options.vendor {
        Vendor::OpenAi => {
            let script = script.as_deref().map_or(Ok(openai::Script::auto()), |text| {
                openai::Script::from_json(text).map_err(unread)
            })?;
            let server = match &options.record {
                None => openai::Server::without_records(script),
                Some(path) => openai::Server::recording(script, path).map_err(unwritable)?,
            };
            server.listen_on(port, identity).await
        }
        Vendor::Gemini => {
            let script = script.as_deref().map_or(Ok(gemini::Script::auto()), |text| {
                gemini::Script::from_json(text).map_err(unread)
            })?;
            let server = match &options.record {
                None => gemini::Server::without_records(script),
                Some(path) => gemini::Server::recording(script, path).map_err(unwritable)?,
            };
            server.listen_on(port, identity).await
        }
    };
    let serving = serving.map_err(|error| format!("port {port}: {error}"))?;
    println!("{}", serving.url());
    std::future::pending().await
}
