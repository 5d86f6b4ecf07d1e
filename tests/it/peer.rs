//! Against a peer that sends ten seconds of its voice at once, and hears the user after 1.5 seconds:
//! what it is told, what the file holds and what the record says agree.

use std::sync::Arc;

use antiphon::{
    audio::{TimelineSink, WavAudio},
    live::LiveConfig,
    providers::openai::OpenAi,
    session::*,
};
use antiphon_testkit::{
    openai::{Pace, Reply, Rule, Script, Server},
    voice_like,
};

use crate::rig::*;

/// Thirty words in ten seconds: three a second.
const STORY: &str = "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19 w20 w21 \
                     w22 w23 w24 w25 w26 w27 w28 w29 w30";

/// A peer that has its whole reply ready at once, and never answers a second time.
fn peer() -> Server {
    let mut at_once = Pace::default();
    at_once.interval_ms = 0;
    let script = Script::auto()
        .reply(Rule::on_text("story", Reply::spoken(STORY, 10_000)))
        .transcript("Stop")
        .reply(Rule::always(Reply::default()))
        .pace(at_once);
    Server::new(script)
}

#[tokio::test(start_paused = true)]
async fn an_interruption_after_one_and_a_half_seconds_is_the_same_in_truncate_file_and_words() {
    for policy in [
        BargeIn::Immediate,
        BargeIn::Judged(SpeechJudge::default().min_speech(std::time::Duration::ZERO)),
    ] {
        interrupted_story(policy).await;
    }
}

async fn interrupted_story(policy: BargeIn) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("heard.wav");
    let server = peer();
    let start = tokio::time::Instant::now().into_std();
    let sink = TimelineSink::create(&path, 24_000, start).unwrap();
    let provider = OpenAi::new().connector(server.connector());
    let session =
        AgentSession::builder(Arc::new(provider)).sink(sink).barge_in(policy).build().unwrap();
    let mut events = session.events();
    session.start(LiveConfig::new().api_key("sk-test"), IdleConfig::OFF).await.unwrap();
    session.send_text("Tell me a story").unwrap();
    until(&mut events, |kind| *kind == EventKind::PlaybackStarted).await;
    tokio::time::sleep(1_500 * MS).await;
    // The peer hears the user within thirty milliseconds of sound.
    session.send_audio(voice_like(24_000, 400)).unwrap();
    let seen = until(&mut events, |kind| matches!(kind, EventKind::AgentMessage { .. })).await;
    tokio::time::sleep(5 * SECOND).await;
    session.shutdown(SECOND).await.unwrap();
    drop(session);

    let cuts: Vec<_> = server
        .client_events()
        .into_iter()
        .filter(|frame| frame["type"] == "conversation.item.truncate")
        .collect();
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    let cut_ms = cuts[0]["audio_end_ms"].as_u64().unwrap() as u32;
    assert!((1_300..=1_700).contains(&cut_ms), "{cut_ms}");

    let Some(EventKind::AgentMessage { text, interrupted: true, heard: Some(heard), .. }) =
        seen.last()
    else {
        panic!("{seen:#?}")
    };
    assert!(heard.heard_ms.abs_diff(cut_ms) <= 60, "{heard:?}, {cut_ms}");
    assert_eq!(heard.generated_ms, 10_000);
    let words = text.split_whitespace().count() as u32;
    assert!(words.abs_diff(cut_ms * 3 / 1_000) <= 1, "{words} words of {cut_ms} ms: {text}");
    assert!(STORY.starts_with(text.as_str()));

    let wav = WavAudio::open(&path).unwrap();
    let voiced = voice_in(&wav);
    let (first, last) = (voiced.start, voiced.end);
    let file_ms = ((last - first) / PER_MS) as u32;
    assert!(file_ms.abs_diff(cut_ms) <= 60, "{file_ms} ms are in the file, {cut_ms} were told");
}

/// From the first to behind the last sample that is not silent.
fn voice_in(wav: &WavAudio) -> std::ops::Range<usize> {
    let first = wav.samples.iter().position(|sample| *sample != 0).unwrap();
    let last = wav.samples.iter().rposition(|sample| *sample != 0).unwrap();
    first..last + 1
}
