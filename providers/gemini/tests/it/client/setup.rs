//! The set-up: what a configuration becomes, and how it is refused.

use std::time::Duration;

use antiphon_gemini::{Client, Platform};
use antiphon_live::{
    Frame, HistoryItem, HistoryRole, LiveConfig, LiveError, Resumption, Sensitivity, ThinkingLevel,
    VoiceActivity,
};
use antiphon_types::{Status, ToolBehavior, ToolCall};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::talk::{MIDDLE, NEW, OLD, Talk, tool};

fn setup_of(client: Client) -> Value {
    let mut talk = Talk::opened(client);
    talk.sent_one()["setup"].clone()
}

fn setup(config: &LiveConfig) -> Value {
    setup_of(Client::new(config, None).unwrap())
}

fn option(mut config: LiveConfig, id: &str, value: Value) -> LiveConfig {
    config.provider_options.insert(id.into(), value);
    config
}

fn refusal(config: &LiveConfig) -> LiveError {
    Client::new(config, None).unwrap_err()
}

#[test]
fn a_plain_configuration_asks_for_voice_words_and_handles() {
    assert_eq!(
        setup(&LiveConfig::new()),
        json!({
            "model": "models/gemini-3.8-live",
            "generationConfig": {"responseModalities": ["AUDIO"]},
            "inputAudioTranscription": {},
            "outputAudioTranscription": {},
            "sessionResumption": {},
            "contextWindowCompression": {"triggerTokens": 12_000,
                "slidingWindow": {"targetTokens": 6_000}},
        })
    );
}

#[test]
fn everything_that_is_set_is_asked_for() {
    let mut config = LiveConfig::new()
        .model(OLD)
        .voice("Puck")
        .instructions("Be brief.")
        .locale("de-DE")
        .host_tool(tool("clock"));
    config.refinement = Some("And kind.".into());
    config.vocabulary_hint = Some("Antiphon, hocket; antiphon".into());
    config.policies.affective_dialog = true;
    config.policies.activity.start_sensitivity = Sensitivity::Low;
    config.policies.activity.end_sensitivity = Sensitivity::High;
    config.policies.activity.silence = Some(Duration::from_millis(700));
    config.policies.activity.handling = antiphon_live::ActivityHandling::NoInterruption;
    config.policies.activity.coverage = antiphon_live::TurnCoverage::AllInput;
    config.policies.context_compression.enabled = false;
    for (id, value) in [
        ("temperature", json!(0.5)),
        ("top_k", json!(40)),
        ("max_output_tokens", json!(512)),
        ("proactive_audio", json!(true)),
        ("custom_vocabulary", json!(["Antiphon"])),
        ("google_search", json!(true)),
        ("media_resolution", json!("MEDIA_RESOLUTION_LOW")),
        ("odd", json!(1)),
    ] {
        config = option(config, id, value);
    }
    let client = Client::new(&config, None).unwrap();
    let unsupported: Vec<String> =
        client.capabilities().unsupported_options.iter().map(ToString::to_string).collect();
    assert_eq!(unsupported, ["odd"]);
    let setup = setup_of(client);
    assert_eq!(
        setup["systemInstruction"]["parts"][0]["text"],
        "Be brief.\n\nAnd kind.\n\nNames and terms that may come up: Antiphon, hocket.\n\nThe \
         user's language is de-DE; speak it unless the user speaks another one."
    );
    assert_eq!(
        setup["generationConfig"],
        json!({"responseModalities": ["AUDIO"], "temperature": 0.5, "topK": 40.0,
            "maxOutputTokens": 512, "enableAffectiveDialog": true,
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
            "speechConfig": {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "Puck"}}}})
    );
    assert_eq!(
        setup["realtimeInputConfig"],
        json!({"automaticActivityDetection": {
                "startOfSpeechSensitivity": "START_SENSITIVITY_LOW",
                "endOfSpeechSensitivity": "END_SENSITIVITY_HIGH", "silenceDurationMs": 700},
            "activityHandling": "NO_INTERRUPTION", "turnCoverage": "TURN_INCLUDES_ALL_INPUT"})
    );
    assert_eq!(setup["proactivity"], json!({"proactiveAudio": true}));
    assert_eq!(setup["inputAudioTranscription"], json!({"customVocabulary": ["Antiphon"]}));
    assert_eq!(setup["tools"][0]["functionDeclarations"][0]["name"], "clock");
    assert_eq!(setup["tools"][1], json!({"googleSearch": {}}));
    assert!(setup.get("contextWindowCompression").is_none());
}

#[test]
fn generations_are_asked_in_their_own_words() {
    let mut config = LiveConfig::new();
    config.policies.thinking.enabled = Some(false);
    let thinking =
        |config: LiveConfig| setup(&config)["generationConfig"]["thinkingConfig"].clone();
    assert_eq!(thinking(config.clone().model(OLD)), json!({"thinkingBudget": 0}));
    assert_eq!(thinking(config.clone().model(MIDDLE)), json!({"thinkingLevel": "MINIMAL"}));
    assert_eq!(thinking(config.clone().model(NEW)), Value::Null);
    let client = Client::new(&config, None).unwrap();
    assert!(client.capabilities().unsupported_options.iter().any(|id| &**id == "thinking"));
    config.policies.thinking.enabled = Some(true);
    config.policies.thinking.level = Some(ThinkingLevel::High);
    assert_eq!(thinking(config.clone().model(OLD)), json!({"thinkingBudget": -1}));
    assert_eq!(thinking(config.model(MIDDLE)), json!({"thinkingLevel": "HIGH"}));

    let mut slow = tool("slow");
    slow.behavior = ToolBehavior::NonBlocking;
    let config = LiveConfig::new().host_tool(slow).host_tool(tool("plain"));
    let declared = |model: &str| {
        let setup = setup(&config.clone().model(model));
        let declared = setup["tools"][0]["functionDeclarations"].clone();
        [declared[0]["behavior"].clone(), declared[1]["behavior"].clone()]
    };
    assert_eq!(declared(OLD), [json!("NON_BLOCKING"), Value::Null]);
    assert_eq!(declared(MIDDLE), [Value::Null, Value::Null]);
    assert_eq!(declared(NEW), [json!("NON_BLOCKING"), Value::Null]);
    let can = |model: &str| {
        let client = Client::new(&LiveConfig::new().model(model), None).unwrap();
        let can = client.capabilities();
        (can.non_blocking_tools, can.update_tools, can.update_instructions)
    };
    assert_eq!(can(OLD), (true, false, false));
    assert_eq!(can(MIDDLE), (false, false, false));
    assert_eq!(can(NEW), (true, true, true));
}

#[test]
fn turns_by_hand_switch_the_detection_off() {
    let config = LiveConfig::new().voice_activity(VoiceActivity::Manual);
    assert_eq!(
        setup(&config)["realtimeInputConfig"],
        json!({"automaticActivityDetection": {"disabled": true}})
    );
    let config = LiveConfig::new().voice_activity(VoiceActivity::Off);
    assert_eq!(setup(&config)["realtimeInputConfig"]["activityHandling"], "NO_INTERRUPTION");
}

#[test]
fn trial_e02_what_only_vertex_has_is_refused_elsewhere() {
    for id in ["transparent_resumption", "explicit_vad_signal"] {
        let config = option(LiveConfig::new(), id, json!(true));
        assert!(matches!(refusal(&config), LiveError::InvalidConfig(_)), "{id}");
    }
    let vertex = Platform::Vertex { project: Some("p".into()), location: None };
    let config = option(LiveConfig::new(), "transparent_resumption", json!(true));
    let setup = setup_of(Client::new(&config, Some(&vertex)).unwrap());
    assert_eq!(setup["sessionResumption"], json!({"transparent": true}));
    assert_eq!(setup["explicitVadSignal"], true);
    assert_eq!(
        setup["model"],
        "projects/p/locations/global/publishers/google/models/gemini-3.8-live"
    );
}

#[test]
fn what_cannot_work_is_refused() {
    let with = |id: &str, value: Value| refusal(&option(LiveConfig::new(), id, value));
    for (id, value) in [
        ("temperature", json!(3)),
        ("temperature", json!("hot")),
        ("output_modality", json!("smell")),
        ("proactive_audio", json!(false)),
        ("safety_settings", json!("none")),
        ("platform", json!("azure")),
        ("project", json!("a/b")),
    ] {
        assert!(matches!(with(id, value.clone()), LiveError::InvalidConfig(_)), "{id} {value}");
    }
    let mut config = LiveConfig::new();
    config.policies.activity.silence = Some(Duration::from_secs(11));
    assert!(matches!(refusal(&config), LiveError::InvalidConfig(_)));
    let mut config = LiveConfig::new();
    config.policies.context_compression.trigger_tokens = 10;
    assert!(matches!(refusal(&config), LiveError::InvalidConfig(_)));
}

#[test]
fn quirk_60_what_was_said_before_comes_first() {
    let history = || {
        let call = ToolCall { id: "c".into(), name: "clock".into(), args: Default::default() };
        vec![
            HistoryItem::Message { role: HistoryRole::User, text: "What time is it?".into() },
            HistoryItem::Tool { call, response: Default::default() },
            HistoryItem::Message { role: HistoryRole::Agent, text: "Noon.".into() },
            HistoryItem::Message { role: HistoryRole::Agent, text: " ".into() },
        ]
    };
    for (model, announced) in [(OLD, false), (MIDDLE, true), (NEW, true)] {
        let client = Client::new(&LiveConfig::new().model(model), None).unwrap();
        let mut talk = Talk::opened(client.history(history()));
        let setup = talk.sent_one();
        let told = setup["setup"]["historyConfig"]["initialHistoryInClientContent"] == true;
        assert_eq!(told, announced, "{model}");
        talk.server(json!({"setupComplete": {}}));
        assert_eq!(talk.told(), ["ready"]);
        let sent = talk.sent_one();
        let turns = sent["clientContent"]["turns"].as_array().unwrap();
        let roles: Vec<_> = turns.iter().map(|turn| turn["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["user", "model", "model"]);
        assert_eq!(sent["clientContent"]["turnComplete"], announced);
    }
    // By a handle the service knows it all.
    let handle = Resumption { handle: SecretString::from("h7") };
    let client = Client::new(&LiveConfig::new(), None).unwrap();
    let mut talk = Talk::opened(client.history(history()).resume(Some(handle)));
    let setup = talk.sent_one();
    assert_eq!(setup["setup"]["sessionResumption"]["handle"], "h7");
    assert!(setup["setup"].get("historyConfig").is_none());
    talk.server(json!({"setupComplete": {"sessionId": "s"}}));
    assert!(talk.sent().is_empty());
}

#[test]
fn quirk_40_the_set_up_is_sent_once_and_nothing_before_it_is_complete() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    assert_eq!(talk.sent().len(), 1);
    let early = talk.try_command(antiphon_live::LiveCommand::EndAudio);
    assert!(matches!(early, Err(LiveError::InvalidCommand(_))));
    talk.server(json!({"serverContent": {"turnComplete": true}}));
    talk.server(json!({"setupComplete": {}}));
    talk.server(json!({"setupComplete": {}}));
    assert_eq!(talk.told(), ["ready", "ignored a message that says nothing"]);
    assert!(talk.sent().is_empty());
}

#[test]
fn quirk_43_a_close_within_the_set_up_says_why() {
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let why = "Request contains an invalid argument.";
    let error = talk.try_frame(Frame::Close(Some((1007, why.into())))).unwrap_err();
    assert!(matches!(&error, LiveError::InvalidConfig(told) if told.contains(why)), "{error}");
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let error = json!({"error": {"code": 404, "message": "No model.", "status": "NOT_FOUND"}});
    assert_eq!(talk.try_server(error).unwrap_err().status(), Status::NotFound);
    let mut talk = Talk::opened(Client::new(&LiveConfig::new(), None).unwrap());
    let error = json!({"error": {"code": 400, "message": "API key not valid."}});
    assert!(matches!(talk.try_server(error).unwrap_err(), LiveError::Unauthorized(_)));
}

#[test]
fn quirk_48_search_beside_functions_is_sent_and_its_refusal_says_why() {
    let mut config = LiveConfig::new().model(OLD).host_tool(tool("clock"));
    config.options.insert("google_search".into(), true.into());
    let mut talk = Talk::opened(Client::new(&config, None).unwrap());
    let tools = talk.sent_one()["setup"]["tools"].clone();
    let kinds: Vec<_> = tools
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|tool| tool.as_object().unwrap().keys())
        .collect();
    assert_eq!(kinds, ["functionDeclarations", "googleSearch"]);
    // Which models take both only they know.
    let why = "Tool use with function calling is unsupported.";
    let error = talk.try_frame(Frame::Close(Some((1007, why.into())))).unwrap_err();
    assert!(matches!(&error, LiveError::InvalidConfig(told) if told.contains(why)), "{error}");
    assert!(!error.is_recoverable(), "trying again mends nothing");
}

#[test]
fn a_handle_that_is_good_no_more_is_told_as_that() {
    let handle = Resumption { handle: SecretString::from("old") };
    let client = Client::new(&LiveConfig::new(), None).unwrap().resume(Some(handle));
    let mut talk = Talk::opened(client);
    let close = Frame::Close(Some((1008, "Requested entity was not found.".into())));
    let error = talk.try_frame(close).unwrap_err();
    assert!(matches!(error, LiveError::NoResumableSession), "{error}");
}

#[test]
fn instructions_may_change_where_the_generation_lets_them() {
    use antiphon_live::LiveCommand::UpdateInstructions;
    let mut config = LiveConfig::new().model(NEW);
    config.refinement = Some("Be kind.".into());
    let mut talk = Talk::ready(&config);
    talk.command(UpdateInstructions("Be brief.".into()));
    assert_eq!(
        talk.sent_one(),
        json!({"contextUpdate": {"systemInstruction":
            {"parts": [{"text": "Be brief.\n\nBe kind."}]}}})
    );
    let vertex = Platform::Vertex { project: Some("p".into()), location: None };
    let client = Client::new(&LiveConfig::new().model(OLD), Some(&vertex)).unwrap();
    let mut talk = Talk::ready_client(client);
    talk.command(UpdateInstructions("Be brief.".into()));
    let sent = talk.sent_one();
    assert_eq!(sent["clientContent"]["turns"][0]["role"], "system");
}

#[test]
fn tools_that_the_service_runs_without_asking_are_refused_where_a_policy_decides() {
    let config = |tools: Value| {
        let mut config = LiveConfig::new();
        config.tools_ask = true;
        config.provider_options.insert("tools".into(), tools);
        config
    };
    for acts in [json!([{"mcpServers": [{"name": "docs"}]}]), json!([{"computerUse": {}}])] {
        let error = Client::new(&config(acts), None).unwrap_err();
        assert!(matches!(error, LiveError::InvalidConfig(_)), "{error}");
    }
    assert!(Client::new(&config(json!([{"googleSearch": {}}])), None).is_ok());
}
