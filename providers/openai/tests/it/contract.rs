//! The contract suite, over a WebSocket against the scripted server.

use antiphon_live::{
    LiveConfig, LiveProvider, VoiceActivity,
    conformance::{self, Options, Outcome, Report, ToolProbe},
};
use antiphon_openai::{OpenAi, wire::Dialect};
use antiphon_testkit::{
    openai::{Fault, Reply, Rule, Script, Server, Side, Step},
    voice_like,
};
use antiphon_types::{AudioFormat, AudioFrame, JsonObject, ToolDefinition};
use serde_json::json;

fn script() -> Script {
    Script::auto()
        .reply(Rule::on_text("work", Reply::call("clock", json!({}))))
        .reply(Rule::on_tool_output("clock", Reply::spoken("It is noon.", 800)))
}

async fn run(script: Script, dialect: Dialect, config: LiveConfig) -> (Report, Server) {
    let server = Server::new(script);
    let provider = OpenAi::new().dialect(dialect).connector(server.connector());
    let input = provider.capabilities(&config).unwrap().input;
    let options = Options::new().config(config).speech(speech(input)).tool(ToolProbe::new(
        ToolDefinition::new("clock", "The time."),
        "work",
        JsonObject::new(),
    ));
    (conformance::run(&provider, options).await, server)
}

/// A second of something loud.
fn speech(format: AudioFormat) -> AudioFrame {
    match format {
        AudioFormat::Pcm16 { sample_rate_hz } => voice_like(sample_rate_hz, 1_000),
        _ => AudioFrame::new(format, [0x00, 0x80].repeat(4_000)),
    }
}

fn config(options: &[(&str, &str)]) -> LiveConfig {
    let mut config = LiveConfig::new().api_key("sk-test");
    for (id, value) in options {
        config.provider_options.insert((*id).to_owned(), json!(value));
    }
    config
}

#[tokio::test(start_paused = true)]
async fn c18_openai_keeps_the_contract() {
    for mode in [VoiceActivity::Auto, VoiceActivity::Manual, VoiceActivity::Off] {
        let config = config(&[]).voice_activity(mode);
        let (report, server) = run(script(), Dialect::Ga, config).await;
        report.assert_passed();
        let skipped = report.cases.iter().filter(|case| case.outcome != Outcome::Passed);
        let skipped: Vec<&str> = skipped.map(|case| case.name).collect();
        // By hand there is nothing that it cannot do.
        let expected: &[&str] = match mode {
            VoiceActivity::Manual => &["excluded_commands"],
            _ => &[],
        };
        assert_eq!(skipped, expected, "{report}");
        assert_eq!(server.failures(), Vec::<String>::new());
    }
}

#[tokio::test(start_paused = true)]
async fn c18_telephone_audio_and_text_keep_the_contract() {
    for options in [
        &[("input_audio_format", "g711_ulaw"), ("output_audio_format", "g711_ulaw")][..],
        &[("input_audio_format", "g711_alaw"), ("output_audio_format", "pcm16")][..],
        &[("output_modality", "text")][..],
        &[("turn_detection", "semantic_vad")][..],
    ] {
        let (report, _) = run(script(), Dialect::Ga, config(options)).await;
        report.assert_passed();
    }
}

#[tokio::test(start_paused = true)]
async fn c18_every_dialect_keeps_the_contract() {
    for dialect in Dialect::ALL {
        for mode in [VoiceActivity::Auto, VoiceActivity::Manual] {
            let mut config = config(&[]).voice_activity(mode);
            config.endpoint = match dialect {
                Dialect::Azure | Dialect::AzurePreview => Some("https://r.openai.azure.com".into()),
                Dialect::VoiceLive => Some("https://r.services.ai.azure.com".into()),
                _ => None,
            };
            config.model = config.endpoint.as_ref().map(|_| "deployment".into());
            if matches!(dialect, Dialect::Azure | Dialect::AzurePreview) {
                config.provider_options.insert("transcription_model".into(), json!("whisper"));
            }
            // One that is not asked for a text in writing.
            let script = match dialect {
                Dialect::Qwen => Script::auto()
                    .reply(Rule::on_tool_output("clock", Reply::spoken("It is noon.", 800))),
                _ => script(),
            };
            let (report, server) = run(script.dialect(dialect), dialect, config).await;
            report.assert_passed();
            println!("{dialect} {mode:?}: {report}");
            // What a server refused would be told as an error.
            let refused = server.records().into_iter().filter(|record| {
                record.from == Side::Server
                    && ["unknown_parameter", "missing_required_parameter", "invalid_type"]
                        .contains(&record.frame["error"]["code"].as_str().unwrap_or_default())
            });
            let refused: Vec<_> = refused.map(|record| record.frame).collect();
            assert!(refused.is_empty(), "{dialect}: {refused:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c18_a_server_full_of_quirks_does_not_break_the_contract() {
    let emit = |frame| Step::Emit(frame);
    let script = script()
        // Quirk 18: nothing is announced.
        .fault(Fault::instead_of("response.output_item.added", []).times(1_000))
        .fault(Fault::instead_of("response.content_part.added", []).times(1_000))
        .fault(Fault::instead_of("response.output_audio_transcript.done", []).times(1_000))
        // What nobody knows.
        .fault(
            Fault::after("response.created", [emit(json!({"type": "future.event", "x": [1]}))])
                .times(1_000),
        )
        // What is left of a reply that nobody knows.
        .fault(
            Fault::after(
                "response.output_audio.done",
                [emit(json!({"type": "response.output_audio.delta", "response_id": "resp_old",
                    "item_id": "item_old", "output_index": 0, "content_index": 0,
                    "delta": "AAAA"}))],
            )
            .times(1_000),
        );
    let (report, _) = run(script, Dialect::Ga, config(&[])).await;
    report.assert_passed();
}
