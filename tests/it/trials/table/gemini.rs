//! Trials over Gemini's words, through sockets in memory.

use std::pin::Pin;

use antiphon::{live::LiveConfig, providers::gemini};
use antiphon_testkit::gemini::{Script, Server, Side, Step};
use serde_json::{Value, json};

use super::{
    Line, Stage,
    script::{Do, Seen, Sent, Trial},
};
use crate::rig::MS;

/// A generation of models. They differ in whether speech is told, in which channel takes texts, and in
/// how a call stands to the end of its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gemini(pub Generation);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Says nothing of speech; a call ends the turn.
    V2_5,
    /// Says nothing of speech; a turn with a call ends once its output came.
    V3_1,
    /// Says when the user speaks.
    V3_8,
}

impl Gemini {
    pub const ALL: [Self; 3] =
        [Self(Generation::V2_5), Self(Generation::V3_1), Self(Generation::V3_8)];

    fn model(self) -> &'static str {
        match self.0 {
            Generation::V2_5 => "gemini-2.5-flash-native-audio-preview-12-2025",
            Generation::V3_1 => "gemini-3.1-flash-live-preview",
            Generation::V3_8 => "gemini-3.8-live",
        }
    }
}

impl Line for Gemini {
    fn name(&self) -> &'static str {
        match self.0 {
            Generation::V2_5 => "gemini-2.5",
            Generation::V3_1 => "gemini-3.1",
            Generation::V3_8 => "gemini-3.8",
        }
    }

    fn run(&self, trial: &'static Trial) -> Pin<Box<dyn Future<Output = Seen> + '_>> {
        Box::pin(play(*self, trial))
    }
}

async fn play(line: Gemini, trial: &'static Trial) -> Seen {
    let began = tokio::time::Instant::now();
    let mut calls = Vec::new();
    let set_up = || set_up(line.model());
    let connections = trial.connections(set_up, |step| said(line.0, step, &mut calls)).into_iter();
    let server = Server::new(Script::connections(connections.map(Script::steps)));
    let provider = gemini::Gemini::new().connector(server.connector());
    let config = LiveConfig::new().api_key("test").model(line.model());
    let mut stage = Stage::start(trial, provider, config).await;
    for (at, step) in trial.script {
        tokio::time::sleep_until(began + *at as u32 * MS).await;
        // What the provider does at this moment comes first.
        stage.settle().await;
        match step {
            Do::Starts | Do::Stops => stage.sound(20).await,
            other => stage.host(other).await,
        }
    }
    let mut seen = stage.end().await;
    // What was said before is no word of now.
    let mut history = false;
    for record in server.records().into_iter().filter(|record| record.from == Side::Client) {
        let frame = &record.frame;
        history |= frame["setup"]["historyConfig"].is_object();
        let ends = frame["clientContent"]["turnComplete"] == true;
        let is_history = history;
        history &= !ends;
        if let Some(handle) = frame["setup"]["sessionResumption"]["handle"].as_str() {
            seen.resumed_by.push(handle.to_owned());
        }
        if !is_history {
            seen.sent.extend(sent(frame));
        }
        if let Some(audio) = frame["realtimeInput"]["audio"]["data"].as_str() {
            seen.uplink_ms += audio.len() * 3 / 4 / 32;
        }
    }
    seen.connections = server.connections();
    assert_eq!(server.failures(), Vec::<String>::new());
    seen
}

fn set_up(model: &str) -> Vec<Step> {
    vec![
        Step::Expect(json!({"setup": {"model": format!("models/{model}")}})),
        Step::Emit(json!({"setupComplete": {}})),
    ]
}

/// The provider's part of a step. `calls`: those of the reply that is being made.
fn said(generation: Generation, step: &Do, calls: &mut Vec<&'static str>) -> Vec<Step> {
    let untold = generation != Generation::V3_8 && matches!(step, Do::Starts | Do::Stops);
    // The turn goes on with the output.
    let goes_on = generation == Generation::V3_1 && matches!(step, Do::Done) && !calls.is_empty();
    match step {
        Do::Call(id, ..) | Do::CallOf(id, ..) => calls.push(id),
        Do::Begins | Do::Done | Do::Cancelled => calls.clear(),
        _ => {}
    }
    if untold || goes_on {
        return Vec::new();
    }
    match step {
        Do::Interrupted if !calls.is_empty() => {
            let cancelled = json!({"toolCallCancellation": {"ids": std::mem::take(calls)}});
            let [interrupted, done] = [json!({"interrupted": true}), json!({"turnComplete": true})]
                .map(|content| Step::Emit(json!({ "serverContent": content })));
            vec![interrupted, Step::Emit(cancelled), done]
        }
        Do::Expires => {
            let why = "Deadline expired before operation could complete.";
            vec![Step::close(1011, why)]
        }
        other => frames(other).into_iter().map(Step::Emit).collect(),
    }
}

fn frames(step: &Do) -> Vec<Value> {
    let content = |content: Value| json!({ "serverContent": content });
    let activity = |kind: &str| vec![json!({"voiceActivity": {"voiceActivityType": kind}})];
    let done = || content(json!({"turnComplete": true, "interactionStatus": "IDLE"}));
    match step {
        Do::Starts => activity("ACTIVITY_START"),
        Do::Stops => activity("ACTIVITY_END"),
        Do::Heard(words) => {
            vec![content(json!({"inputTranscription": {"text": words, "finished": true}}))]
        }
        Do::Words(words) => vec![content(json!({"outputTranscription": {"text": words}}))],
        Do::Voice(ms) => {
            let data = base64_simd::STANDARD.encode_to_string(vec![7; ms * 48]);
            let blob = json!({"mimeType": "audio/pcm;rate=24000", "data": data});
            let parts = json!([{ "inlineData": blob }]);
            vec![content(json!({"modelTurn": {"role": "model", "parts": parts}}))]
        }
        Do::Call(id, name, arguments) => {
            // What is no object can only be a text there.
            let args = serde_json::from_str(arguments).unwrap_or_else(|_| Value::from(*arguments));
            let call = json!({"id": id, "name": name, "args": args});
            vec![json!({"toolCall": {"functionCalls": [call]}})]
        }
        Do::CallOf(id, name, bytes) => {
            let call = json!({"id": id, "name": name, "args": {"text": "x".repeat(*bytes)}});
            vec![json!({"toolCall": {"functionCalls": [call]}})]
        }
        Do::Handle(handle) => {
            vec![json!({"sessionResumptionUpdate": {"newHandle": handle, "resumable": true}})]
        }
        Do::GoesAway(seconds) => vec![json!({"goAway": {"timeLeft": format!("{seconds}s")}})],
        Do::Done => vec![content(json!({"generationComplete": true})), done()],
        Do::Cancelled => vec![done()],
        Do::Fails => {
            let mut failed = done();
            failed["serverContent"]["turnCompleteReason"] = "MALFORMED_FUNCTION_CALL".into();
            vec![failed]
        }
        Do::Interrupted => vec![content(json!({"interrupted": true})), done()],
        Do::Paid => {
            let audio = |count: u32| json!([{"modality": "AUDIO", "tokenCount": count}]);
            let mut paid = done();
            paid["usageMetadata"] = json!({"promptTokenCount": 800, "responseTokenCount": 1_000,
                "cachedContentTokenCount": 500, "promptTokensDetails": audio(800),
                "cacheTokensDetails": audio(500), "responseTokensDetails": audio(1_000)});
            vec![paid]
        }
        // Nothing announces a reply, and nothing is refused.
        _ => Vec::new(),
    }
}

fn sent(frame: &Value) -> Vec<Sent> {
    if let Some(responses) = frame["toolResponse"]["functionResponses"].as_array() {
        let outputs = responses.iter().map(|response| {
            let id = response["id"].as_str().unwrap_or_default().to_owned();
            Sent::Output(id, response["response"].get("error").is_none())
        });
        return outputs.collect();
    }
    if let Some(text) = frame["realtimeInput"]["text"].as_str() {
        let users = !text.starts_with("Say the following");
        let text = users.then(|| Sent::Text(text.into()));
        return text.into_iter().chain([Sent::Create]).collect();
    }
    let content = &frame["clientContent"];
    let text = content["turns"][0]["parts"][0]["text"].as_str();
    // A text to be said is an instruction, not the user's.
    let users = text.filter(|text| !text.starts_with("Say the following"));
    let mut sent: Vec<Sent> = users.map(|text| Sent::Text(text.into())).into_iter().collect();
    sent.extend((content["turnComplete"] == true).then_some(Sent::Create));
    sent
}
