//! `antiphon bridge check`: whether the bridge could run as it is configured.

use std::{fs, net::TcpListener, path::Path};

use antiphon::telephony::{
    BridgeConfig,
    config::{AgentConfig, ConfigError},
    dialect::Carrier,
};

use super::{
    agents::{Equipment, known_provider},
    outbound,
};
use crate::failure::Failure;

/// Says of each part whether it can be used.
pub(super) fn check(config: &BridgeConfig, text: &str) -> Result<(), Failure> {
    let mut report = Report { text, wrong: 0 };
    let free = |address| match TcpListener::bind(address) {
        Ok(_) => Ok(format!("{address} is free")),
        Err(error) => Err(format!("{address}: {error}")),
    };
    report.tell(&["listen"], free(config.listen));
    if let Some(address) = config.audiosocket {
        report.tell(&["audiosocket"], free(address));
    }
    for (carrier, how) in &config.carriers {
        let address = match (&config.public_url, carrier) {
            (_, Carrier::AudioSocket) => "AudioSocket".to_owned(),
            (Some(url), _) => format!("{}/telephony/{carrier}", url.replacen("http", "ws", 1)),
            (None, _) => format!("ws://{}/telephony/{carrier}", config.listen),
        };
        let verified = format!("{address}, verified by {:?}", how.verify);
        report.tell(&["carriers", carrier.name()], Ok(verified));
    }
    report.agent(&["agent"], &config.agent);
    for (name, agent) in &config.agents {
        report.agent(&["agents", name], agent);
    }
    if let Some(calls) = &config.outbound {
        let can = outbound(config).map_err(|why| why.to_string());
        let how = format!("by {}, from {}", calls.carrier, calls.from);
        report.tell(&["outbound"], can.map(|_| how));
    }
    if let Some(path) = &config.records {
        let file = fs::OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()));
        report.tell(&["records"], file.map(|_| path.display().to_string()));
    }
    if report.wrong == 0 { Ok(()) } else { Err(Failure::Told) }
}

struct Report<'a> {
    /// Of the configuration.
    text: &'a str,
    wrong: usize,
}

impl Report<'_> {
    /// What is found of a setting.
    fn tell(&mut self, path: &[&str], found: Result<String, String>) {
        let name = path.join(".");
        match found {
            Ok(how) => println!("ok      {name}: {how}"),
            Err(why) => {
                self.wrong += 1;
                println!("failed  {name}: {}", ConfigError::at_setting(self.text, path, why));
            }
        }
    }

    fn agent(&mut self, table: &[&str], agent: &AgentConfig) {
        let at = |setting| [table, &[setting]].concat();
        self.tell(&at("provider"), known_provider(agent));
        let folder = |path: &Path| match path.is_dir() {
            true => Ok(path.display().to_string()),
            false => Err(format!("{} is no folder", path.display())),
        };
        if let Some(models) = agent.models.as_deref().filter(|_| agent.provider == "offline") {
            self.tell(&at("models"), folder(models));
        }
        match Equipment::read(agent) {
            Err(wrong) => self.tell(&at(wrong.0), Err(wrong.1)),
            Ok(_) => {
                let files = [
                    ("tools", &agent.tools),
                    ("policy", &agent.policy),
                    ("guards", &agent.guards),
                    ("limits", &agent.limits),
                    ("receipts", &agent.receipts),
                ];
                for (setting, path) in files {
                    if let Some(path) = path {
                        self.tell(&at(setting), Ok(path.display().to_string()));
                    }
                }
            }
        }
    }
}
