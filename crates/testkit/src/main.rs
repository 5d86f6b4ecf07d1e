//! The scripted servers as processes, for clients in other languages.

use std::{path::PathBuf, process::ExitCode};

use antiphon_live::acceptor::TlsIdentity;
use antiphon_testkit::openai::{Script, Server};

const USAGE: &str = "usage: antiphon-testkit openai [--script FILE] [--port P] [--tls CERT KEY] \
                     [--record FILE]";

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

#[derive(Default)]
struct Options {
    script: Option<PathBuf>,
    port: u16,
    tls: Option<(PathBuf, PathBuf)>,
    record: Option<PathBuf>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        match arguments.next().as_deref() {
            Some("openai") => {}
            Some(other) => return Err(format!("no server is called {other}")),
            None => return Err("which server?".into()),
        }
        let mut options = Self::default();
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
    let script = match &options.script {
        None => Script::auto(),
        Some(path) => Script::from_json(&read(path)?)
            .map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let server = match &options.record {
        None => Server::without_records(script),
        Some(path) => Server::recording(script, path)
            .map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let identity = match &options.tls {
        None => None,
        Some((certificate, key)) => Some(
            TlsIdentity::from_pem(read(certificate)?.as_bytes(), read(key)?.as_bytes())
                .map_err(|error| error.to_string())?,
        ),
    };
    let serving = server
        .listen_on(options.port, identity)
        .await
        .map_err(|error| format!("port {}: {error}", options.port))?;
    println!("{}", serving.url());
    std::future::pending().await
}
