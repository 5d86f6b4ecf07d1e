//! The contract suite, over a WebSocket against the scripted server.

use antiphon_gemini::{Gemini, Platform};
use antiphon_live::{
    LiveConfig, LiveProvider, VoiceActivity,
    conformance::{self, Options, Outcome, Report, ToolProbe},
};
use antiphon_testkit::{
    gemini::{Fault, Reply, Rule, Script, Server, Step},
    voice_like,
};
use antiphon_types::{JsonObject, ToolBehavior, ToolDefinition};
use serde_json::json;

const MODELS: [&str; 3] = [
    "gemini-2.5-flash-native-audio-preview-12-2025",
    "gemini-3.1-flash-live-preview",
    "gemini-3.8-live",
];

fn script() -> Script {
    Script::auto()
        .reply(Rule::on_text("work", Reply::call("clock", json!({}))))
        .reply(Rule::on_tool_output("clock", Reply::spoken("It is noon.", 800)))
}

fn config(model: &str) -> LiveConfig {
    LiveConfig::new().api_key("AIza-test").model(model)
}

async fn run(script: Script, config: LiveConfig, behavior: ToolBehavior) -> (Report, Server) {
    let server = Server::new(script);
    let provider = Gemini::new().connector(server.connector());
    let report = run_with(&provider, config, behavior).await;
    (report, server)
}

async fn run_with(provider: &Gemini, config: LiveConfig, behavior: ToolBehavior) -> Report {
    let speech = voice_like(16_000, 1_000);
    assert_eq!(provider.capabilities(&config).unwrap().input, speech.format);
    let mut tool = ToolDefinition::new("clock", "The time.");
    tool.behavior = behavior;
    let options = Options::new().config(config).speech(speech).tool(ToolProbe::new(
        tool,
        "work",
        JsonObject::new(),
    ));
    conformance::run(provider, options).await
}

#[tokio::test(start_paused = true)]
async fn c18_gemini_keeps_the_contract() {
    for model in MODELS {
        for mode in [VoiceActivity::Auto, VoiceActivity::Manual, VoiceActivity::Off] {
            let config = config(model).voice_activity(mode);
            let (report, server) = run(script(), config, ToolBehavior::ProviderDefault).await;
            report.assert_passed();
            let skipped = report.cases.iter().filter(|case| case.outcome != Outcome::Passed);
            assert_eq!(skipped.count(), 0, "{model} {mode:?}: {report}");
            assert_eq!(server.failures(), Vec::<String>::new());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c18_tools_of_both_kinds_keep_the_contract() {
    for model in MODELS {
        for behavior in [ToolBehavior::Blocking, ToolBehavior::NonBlocking] {
            let (report, _) = run(script(), config(model), behavior).await;
            report.assert_passed();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c18_text_answers_and_text_frames_keep_the_contract() {
    let mut text = config(MODELS[2]);
    text.provider_options.insert("output_modality".into(), json!("text"));
    let mut script = script();
    script.text_frames = true;
    let (report, _) = run(script, text, ToolBehavior::Blocking).await;
    report.assert_passed();
}

#[tokio::test(start_paused = true)]
async fn c18_vertex_keeps_the_contract() {
    let server = Server::new(script());
    let project = Some("p".to_owned());
    let provider = Gemini::new()
        .platform(Platform::Vertex { project, location: None })
        .connector(server.connector());
    for model in MODELS {
        let report = run_with(&provider, config(model), ToolBehavior::ProviderDefault).await;
        report.assert_passed();
    }
}

#[tokio::test(start_paused = true)]
async fn c18_a_server_full_of_quirks_does_not_break_the_contract() {
    let emit = |frame| Step::Emit(frame);
    let script = script()
        // Quirk 56: nothing but a bill before the first voice.
        .fault(
            Fault::after(
                "inputTranscription",
                [emit(json!({"serverContent": {}, "usageMetadata": {"promptTokenCount": 7}}))],
            )
            .times(1_000),
        )
        // Words that come twice, and things that nobody knows.
        .fault(Fault::after("outputTranscription", [Step::Duplicate]).times(1_000))
        .fault(
            Fault::after("generationComplete", [emit(json!({"hologram": {"depth": 3}}))])
                .times(1_000),
        );
    for model in MODELS {
        let (report, _) = run(script.clone(), config(model), ToolBehavior::ProviderDefault).await;
        report.assert_passed();
    }
}
