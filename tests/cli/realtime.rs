//! Talking to servers behind a network, by name.

use antiphon::providers::openai::wire::Dialect;
use antiphon_testkit::openai::{Reply, Rule, Script, Server};
use serde_json::Value;

use crate::program::Program;

/// The providers, what they speak, and the variable of their key.
const PROVIDERS: [(&str, Dialect, &str); 6] = [
    ("openai", Dialect::Ga, "OPENAI_API_KEY"),
    ("azure", Dialect::Azure, "AZURE_OPENAI_API_KEY"),
    ("voice-live", Dialect::VoiceLive, "AZURE_VOICELIVE_API_KEY"),
    ("xai", Dialect::Xai, "XAI_API_KEY"),
    ("qwen", Dialect::Qwen, "DASHSCOPE_API_KEY"),
    ("inworld", Dialect::Inworld, "INWORLD_API_KEY"),
];

fn talk(provider: &str) -> Program {
    Program::new(["talk", "--provider", provider, "--events", "json", "--output", "none"])
}

#[test]
fn each_provider_is_talked_to_in_its_dialect() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for (provider, dialect, key) in PROVIDERS {
        let mut script = Script::auto()
            .dialect(dialect)
            .transcript("What time is it?")
            .reply(Rule::always(Reply::spoken("It is noon.", 300)));
        script.keys = Some(vec!["k1".into()]);
        let (server, serving) = runtime.block_on(async {
            let server = Server::new(script);
            let serving = server.listen(None).await.unwrap();
            (server, serving)
        });
        let url = serving.url().trim_end_matches("/v1/realtime").to_owned();
        let mut program = talk(provider);
        if provider == "azure" {
            // Who writes down the user's words there is a deployment, like the model.
            program = program.args(["--transcriber", "scribe"]);
        }
        let run = program
            .args(["--url", &url, "--model", "m1"])
            .question("time.wav")
            .environment(key, "k1")
            .run()
            .ok();
        for words in ["What time is it?", "It is noon."] {
            assert!(run.stdout.contains(words), "{provider}: {}\n{}", run.stdout, run.stderr);
        }
        let refused = server.records().into_iter().filter(|record| record.frame["type"] == "error");
        let refused: Vec<_> = refused.map(|record| record.frame).collect();
        assert!(refused.is_empty(), "{provider}: {refused:?}");
    }
}

#[test]
fn who_writes_down_what_is_said_is_named_by_flag_or_variable() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, serving) = runtime.block_on(async {
        let server = Server::new(Script::auto().dialect(Dialect::Azure));
        let serving = server.listen(None).await.unwrap();
        (server, serving)
    });
    let url = serving.url().trim_end_matches("/v1/realtime").to_owned();
    let azure = || {
        talk("azure")
            .args(["--url", &url, "--model", "m1", "--text", "Hello."])
            .environment("AZURE_OPENAI_API_KEY", "k1")
    };
    azure().run().ok();
    azure().environment("AZURE_OPENAI_TRANSCRIBER", "of-variable").run().ok();
    azure().args(["--transcriber", "of-flag"]).run().ok();
    let updates =
        server.client_events().into_iter().filter(|event| event["type"] == "session.update");
    let named: Vec<_> = updates
        .map(|event| event["session"]["audio"]["input"]["transcription"]["model"].clone())
        .collect();
    assert_eq!(named, [Value::Null, "of-variable".into(), "of-flag".into()]);
    let run = Program::new(["talk", "--transcriber", "x", "--text", "Hello."]).run();
    assert_eq!(run.status, 2, "{}", run.stderr);
    assert!(
        run.stderr.contains("--transcriber does not go with --provider offline"),
        "{}",
        run.stderr
    );
}

#[test]
fn what_is_missing_is_said_in_one_line() {
    let missing = |program: Program, words: &[&str]| {
        let run = program.args(["--text", "hello"]).run();
        assert_eq!(run.status, 1, "{}{}", run.stdout, run.stderr);
        assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
        for word in words {
            assert!(run.stderr.contains(word), "{word:?} is not in {}", run.stderr);
        }
    };
    for (provider, _, key) in PROVIDERS {
        missing(talk(provider), &["no API key", key]);
    }
    let azure = || talk("azure").environment("AZURE_OPENAI_API_KEY", "k");
    missing(azure(), &["--url", "https://NAME.openai.azure.com", "AZURE_OPENAI_ENDPOINT"]);
    let named = azure().environment("AZURE_OPENAI_ENDPOINT", "https://nobody.openai.azure.com");
    missing(named, &["deployment", "--model", "AZURE_OPENAI_DEPLOYMENT"]);
    let live = talk("voice-live").environment("AZURE_VOICELIVE_API_KEY", "k");
    missing(live, &["https://NAME.services.ai.azure.com", "AZURE_VOICELIVE_ENDPOINT"]);
}

#[test]
fn the_doctor_says_which_keys_there_are() {
    let well = Program::new(["doctor"])
        .environment("XAI_API_KEY", "k")
        .environment("AZURE_OPENAI_API_KEY", "k");
    let well = well.run().ok();
    for line in [
        "ok       --provider xai: xAI, key in XAI_API_KEY",
        "missing  --provider azure: a key in AZURE_OPENAI_API_KEY, but nothing in \
         AZURE_OPENAI_ENDPOINT, AZURE_OPENAI_DEPLOYMENT",
        "missing  keys: no OPENAI_API_KEY (openai)",
    ] {
        assert!(well.stdout.contains(line), "{line}\n{}", well.stdout);
    }
    let azure = Program::new(["doctor"])
        .environment("AZURE_OPENAI_API_KEY", "k")
        .environment("AZURE_OPENAI_ENDPOINT", "https://nobody.openai.azure.com")
        .environment("AZURE_OPENAI_DEPLOYMENT", "m1");
    let azure = azure.run().ok();
    for line in [
        "ok       --provider azure: Azure OpenAI, key in AZURE_OPENAI_API_KEY",
        "missing  --provider azure: what you say is not written down",
        "in AZURE_OPENAI_TRANSCRIBER",
    ] {
        assert!(azure.stdout.contains(line), "{line}\n{}", azure.stdout);
    }
}

#[test]
fn a_conversation_that_is_kept_goes_on_by_the_handle_of_its_provider() {
    use antiphon_testkit::gemini;

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, serving) = runtime.block_on(async {
        let server = gemini::Server::new(gemini::Script::auto().ends_at_once());
        let serving = server.listen(None).await.unwrap();
        (server, serving)
    });
    let host = serving.url().split('/').take(3).collect::<Vec<_>>().join("/");
    let talk = |text: &str| {
        let program = Program::new(["talk", "--provider", "gemini", "--events", "json"]);
        let program = program.args(["--output", "none", "--url", &host, "--text", text]);
        program.args(["--store", "turns.db"]).environment("GEMINI_API_KEY", "k1")
    };
    let run = talk("My name is Ann.").run().ok();
    let run = talk("Who am I?").args(["--resume-latest"]).in_folder_of(run).run().ok();
    let resumed = run.one("session_resumed");
    assert_eq!((&resumed["by_handle"], &resumed["restored"]), (&true.into(), &"full".into()));
    let setups = server.client_messages().into_iter().filter_map(|message| {
        let resumption = message["setup"].get("sessionResumption")?;
        Some(resumption["handle"].as_str().map(str::to_owned))
    });
    let setups: Vec<_> = setups.collect();
    assert!(matches!(&setups[..], [None, Some(_)]), "{setups:?}");

    // What was said to another since is in no handle.
    let offline = Program::talk().text("what time is it").args(["--output", "none"]);
    let offline = offline.args(["--store", "turns.db", "--resume-latest"]);
    let run = offline.in_folder_of(run).run().ok();
    let run = talk("And now?").args(["--resume-latest"]).in_folder_of(run).run().ok();
    assert_eq!(run.one("session_resumed").get("by_handle"), None);
    assert_eq!(server.connections(), 3);
}
