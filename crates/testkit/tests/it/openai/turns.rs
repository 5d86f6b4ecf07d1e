//! The user's voice.

use std::time::Duration;

use antiphon_testkit::{
    openai::{Pace, Reply, Rule, Script, Transcript},
    tone,
};
use tokio::time::Instant;

use super::*;

fn speech(ms: u32) -> Vec<u8> {
    tone(24_000, 200.0, ms).data.to_vec()
}

fn silence(ms: usize) -> Vec<u8> {
    vec![0; ms * 48]
}

#[tokio::test(start_paused = true)]
async fn a_spoken_turn_is_heard_committed_transcribed_and_answered() {
    let script = Script::auto().transcript("What time is it?");
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.update(json!({"audio": {"input": {"transcription": {"model": "whisper-1"}}}})).await;
    client.append(&silence(500)).await;
    for piece in speech(800).chunks(960) {
        client.append(piece).await;
    }
    client.append(&silence(300)).await;
    let started = client.expect("input_audio_buffer.speech_started").await;
    assert_eq!(started["audio_start_ms"], 200, "the padding of 300 ms is before the onset");
    let stopped = client.expect("input_audio_buffer.speech_stopped").await;
    assert_eq!(stopped["audio_end_ms"], 1_500);
    let committed = client.expect("input_audio_buffer.committed").await;
    for event in [&stopped, &committed] {
        assert_eq!(event["item_id"], started["item_id"]);
    }
    let item = client.expect("conversation.item.added").await["item"].clone();
    assert_eq!(item["content"][0]["type"], "input_audio");
    client.expect("conversation.item.done").await;
    let events = client.until("response.done").await;
    let transcript = events
        .iter()
        .find(|event| event["type"] == "conversation.item.input_audio_transcription.completed")
        .unwrap();
    assert_eq!(transcript["transcript"], "What time is it?");
    assert_eq!(transcript["item_id"], started["item_id"]);
    assert_eq!(transcript["usage"]["type"], "tokens");
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["content"][0]["transcript"], "You said: What time is it?");
}

#[tokio::test(start_paused = true)]
async fn speech_interrupts_the_reply_unless_it_must_not() {
    for interrupts in [true, false] {
        let reply = Reply::spoken("A long story.", 20_000);
        let script = Script::auto().reply(Rule::on_text("story", reply)).pace(Pace::real_time());
        let (mut client, _) = Client::greeted(&Server::new(script)).await;
        let turns = json!({"type": "server_vad", "interrupt_response": interrupts, "create_response": false});
        client.update(json!({"audio": {"input": {"turn_detection": turns}}})).await;
        client.say("Tell me a story").await;
        client.send(json!({"type": "response.create"})).await;
        client.until("response.output_audio.delta").await;
        client.append(&speech(200)).await;
        let events = client.until("response.done").await;
        let done = &events.last().unwrap()["response"];
        if interrupts {
            assert_eq!(
                done["status_details"],
                json!({"type": "cancelled", "reason": "turn_detected"})
            );
        } else {
            assert_eq!(done["status"], "completed");
        }
        assert!(kinds(&events).contains(&"input_audio_buffer.speech_started"));
    }
}

#[tokio::test(start_paused = true)]
async fn clicks_and_silence_are_no_speech() {
    let (mut client, _) = Client::greeted(&auto()).await;
    for _ in 0..50 {
        client.append(&speech(20)).await;
        client.append(&silence(80)).await;
    }
    client.send(json!({"type": "input_audio_buffer.clear"})).await;
    client.expect("input_audio_buffer.cleared").await;
}

#[tokio::test(start_paused = true)]
async fn turns_by_hand_are_committed_by_the_client() {
    let (mut client, _) = Client::greeted(&auto()).await;
    client.update(json!({"audio": {"input": {"turn_detection": null}}})).await;
    client.append(&speech(900)).await;
    client.send(json!({"type": "input_audio_buffer.commit"})).await;
    let item = client.expect("input_audio_buffer.committed").await["item_id"].clone();
    client.expect("conversation.item.added").await;
    client.expect("conversation.item.done").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(client.is_quiet(), "nobody asked for a response");
    client.send(json!({"type": "conversation.item.retrieve", "item_id": item})).await;
    let item = client.expect("conversation.item.retrieved").await["item"].clone();
    let audio = item["content"][0]["audio"].as_str().unwrap();
    assert_eq!(base64_simd::STANDARD.decode_to_vec(audio).unwrap(), speech(900));
}

#[tokio::test(start_paused = true)]
async fn telephone_audio_is_heard_and_spoken() {
    let (mut client, _) = Client::greeted(&auto()).await;
    let format = json!({"type": "audio/pcmu"});
    client
        .update(json!({"audio": {"input": {"format": format}, "output": {"format": format}}}))
        .await;
    let loud: Vec<u8> = std::iter::repeat_n([0x80, 0x00], 8 * 300).flatten().collect();
    client.append(&loud).await;
    client.append(&vec![0xff; 8 * 300]).await;
    client.expect("input_audio_buffer.speech_started").await;
    let events = client.until("response.done").await;
    let delta = events.iter().find(|event| event["type"] == "response.output_audio.delta").unwrap();
    let audio = base64_simd::STANDARD.decode_to_vec(delta["delta"].as_str().unwrap()).unwrap();
    assert_eq!(audio.len(), 100 * 8);
}

#[tokio::test(start_paused = true)]
async fn a_transcription_may_fail() {
    let mut script = Script::auto();
    script.transcripts.push(Transcript::Fails { fail: "mumbled".into() });
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    client.update(json!({"audio": {"input": {"transcription": {"model": "whisper-1"}}}})).await;
    client.append(&speech(500)).await;
    client.append(&silence(300)).await;
    let failed =
        client.until("conversation.item.input_audio_transcription.failed").await.pop().unwrap();
    assert_eq!(failed["error"]["message"], "mumbled");
}

#[tokio::test(start_paused = true)]
async fn a_silent_user_is_spoken_to_after_the_idle_time() {
    let script = Script::auto().reply(Rule::always(Reply::spoken("Are you there?", 1_000)));
    let (mut client, _) = Client::greeted(&Server::new(script)).await;
    let turns = json!({"type": "server_vad", "idle_timeout_ms": 6_000});
    client.update(json!({"audio": {"input": {"turn_detection": turns}}})).await;
    client.send(json!({"type": "response.create"})).await;
    client.until("response.done").await;
    let before = Instant::now();
    client.expect("input_audio_buffer.timeout_triggered").await;
    assert_eq!(before.elapsed(), Duration::from_secs(7), "the playback, then the idle time");
    client.expect("input_audio_buffer.committed").await;
    client.until("response.done").await;
}
