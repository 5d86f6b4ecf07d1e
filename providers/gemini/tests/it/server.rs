//! The server half: what it takes and refuses.

use std::time::{Duration, Instant};

use antiphon_gemini::{
    server::{Handles, Hangup, Server},
    wire::{ClientMessage, ServerMessage},
};
use serde_json::{Value, json};

const OLD: &str = "models/gemini-2.5-flash-native-audio";
const NEW: &str = "models/gemini-3.8-live";

fn handles() -> Handles<String> {
    Handles::new(Duration::from_secs(7_200))
}

fn send(server: &mut Server<String>, frame: &Value) -> Result<ClientMessage, Hangup> {
    server.frame(frame.to_string().as_bytes(), Instant::now())
}

fn set_up(handles: &Handles<String>, setup: Value) -> Result<Server<String>, Hangup> {
    let mut server = Server::new(handles);
    send(&mut server, &json!({ "setup": setup }))?;
    let complete = server.setup_complete();
    server.message(&complete);
    Ok(server)
}

fn code(refused: Result<ClientMessage, Hangup>) -> u16 {
    refused.unwrap_err().code
}

fn told(server: &mut Server<String>, message: Value) {
    server.message(&ServerMessage::decode(message.to_string().as_bytes()).unwrap());
}

#[test]
fn nothing_comes_before_the_set_up_is_complete_and_none_after_it() {
    let mut server = Server::new(&handles());
    let audio = json!({"realtimeInput": {"audio": {"mimeType": "audio/pcm", "data": "AAAA"}}});
    let setup = json!({"setup": {"model": OLD}});
    assert_eq!(code(send(&mut server, &audio)), 1007);
    assert!(send(&mut server, &setup).is_ok());
    assert_eq!(code(send(&mut server, &audio)), 1007, "it is not complete");
    let complete = server.setup_complete();
    server.message(&complete);
    assert!(send(&mut server, &audio).is_ok());
    assert_eq!(code(send(&mut server, &setup)), 1007);
}

#[test]
fn quirk_61_a_handle_is_refused_while_its_socket_is_open_and_when_it_is_stale() {
    let (handles, now) = (handles(), Instant::now());
    let by = |handle: &str| json!({"model": OLD, "sessionResumption": {"handle": handle}});
    let mut first = set_up(&handles, json!({"model": OLD, "sessionResumption": {}})).unwrap();
    first.resumable("one", "what was said".into()).unwrap();
    let told = first.resumable("two", "and more".into()).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&first.message(&told)).unwrap(),
        json!({"sessionResumptionUpdate": {"newHandle": "two", "resumable": true}})
    );
    assert_eq!(set_up(&handles, by("two")).unwrap_err().code, 1011);
    assert_eq!(set_up(&handles, by("one")).unwrap_err().code, 1008);
    first.closed(now);
    let mut second = set_up(&handles, by("two")).unwrap();
    assert_eq!(second.take_memory().as_deref(), Some("and more"));
    assert_eq!(set_up(&handles, by("two")).unwrap_err().code, 1011, "it is in use again");
    second.closed(now);
    let late = now + Duration::from_secs(7_201);
    let setup = json!({"setup": by("two")}).to_string();
    let refused = Server::new(&handles).frame(setup.as_bytes(), late).unwrap_err();
    assert_eq!(refused, Hangup::not_found());
    // Who asks for none is told none.
    let mut plain = set_up(&handles, json!({"model": OLD})).unwrap();
    assert!(plain.resumable("three", String::new()).is_none());
    assert!(plain.not_resumable().is_none());
}

#[test]
fn quirk_46_outputs_are_objects_and_of_calls_that_were_made() {
    let setup = json!({"model": NEW, "tools": [{"functionDeclarations":
        [{"name": "waits", "behavior": "BLOCKING"}, {"name": "runs"}]}]});
    let mut server = set_up(&handles(), setup).unwrap();
    let output = |response: Value| json!({"toolResponse": {"functionResponses": [response]}});
    for (wrong, expected) in [
        (json!({"id": "c1", "name": "waits", "response": "sunny"}), 1007),
        (json!({"id": "c1", "name": "waits"}), 1007),
        (json!({"name": "waits", "response": {}}), 1007),
        (json!({"id": "c1", "name": "waits", "response": {}}), 1008),
    ] {
        assert_eq!(code(send(&mut server, &output(wrong.clone()))), expected, "{wrong}");
    }
    told(
        &mut server,
        json!({"toolCall": {"functionCalls": [{"id": "c1", "name": "waits"},
            {"id": "c2", "name": "runs"}, {"id": "c3", "name": "runs"}]}}),
    );
    let waits: Vec<bool> = server.calls().iter().map(|call| call.waits).collect();
    assert_eq!(waits, [true, false, false]);
    told(&mut server, json!({"toolCallCancellation": {"ids": ["c3"]}}));
    for (id, goes_on, expected) in [
        ("c2", true, Ok(())),
        ("c2", false, Ok(())),
        ("c2", false, Err(1008)),
        ("c1", false, Ok(())),
        ("c3", false, Err(1008)),
    ] {
        let response = json!({"id": id, "name": "f", "response": {}, "willContinue": goes_on});
        let taken = send(&mut server, &output(response)).map(|_| ()).map_err(|why| why.code);
        assert_eq!(taken, expected, "{id}");
    }
    assert!(server.calls().is_empty());
    assert_eq!(code(send(&mut server, &json!({"toolResponse": {}}))), 1007);
}

#[test]
fn what_the_vendor_hangs_up_on() {
    let by_hand = json!({"model": OLD,
        "realtimeInputConfig": {"automaticActivityDetection": {"disabled": true}}});
    let history = json!({"model": NEW, "historyConfig": {"initialHistoryInClientContent": true}});
    for (setup, message) in [
        (json!({"model": OLD}), json!({"realtimeInput": {"activityStart": {}}})),
        (by_hand, json!({"realtimeInput": {"audioStreamEnd": true}})),
        (json!({"model": NEW}), json!({"realtimeInput": {"mediaChunks": []}})),
        (json!({"model": OLD}), json!({"realtimeInput": {"audio": {"mimeType": "image/png"}}})),
        (json!({"model": OLD}), json!({"realtimeInput": {"pitch": 1}})),
        (json!({"model": OLD}), json!({"contextUpdate": {"tools": {"tools": []}}})),
        (json!({"model": OLD}), json!({"clientContent": {"mood": "good"}})),
        (json!({"model": OLD}), json!({"hologram": {}})),
        (history, json!({"realtimeInput": {"text": "Hello."}})),
    ] {
        let mut server = set_up(&handles(), setup).unwrap();
        assert_eq!(code(send(&mut server, &message)), 1007, "{message}");
    }
    for (setup, expected) in [
        (json!({"model": "gemini"}), 1008),
        (json!({"model": OLD, "voice": "Puck"}), 1007),
        (
            json!({"model": OLD, "generationConfig": {"responseModalities": ["TEXT", "AUDIO"]}}),
            1007,
        ),
        (json!({"model": OLD, "sessionResumption": {"transparent": true}}), 1007),
        (json!({"model": NEW, "proactivity": {"proactiveAudio": false}}), 1007),
    ] {
        assert_eq!(set_up(&handles(), setup.clone()).unwrap_err().code, expected, "{setup}");
    }
    let mut vertex = Server::new(&handles()).vertex();
    let setup = json!({"setup": {"model": "publishers/google/models/gemini-3.8-live",
        "sessionResumption": {"transparent": true}, "explicitVadSignal": true}});
    assert!(send(&mut vertex, &setup).is_ok());
    assert!(vertex.session().unwrap().tells_speech);
    let big = vec![b' '; 17 * 1024 * 1024];
    assert_eq!(vertex.frame(&big, Instant::now()).unwrap_err().code, 1009);
}

#[test]
fn history_that_was_announced_comes_first_and_ends() {
    let setup = json!({"model": NEW, "historyConfig": {"initialHistoryInClientContent": true}});
    let mut server = set_up(&handles(), setup).unwrap();
    let turns = json!([{"role": "user", "parts": [{"text": "I am Ada."}]}]);
    for complete in [false, true] {
        assert!(server.session().unwrap().history_comes);
        let content = json!({"clientContent": {"turns": turns, "turnComplete": complete}});
        assert!(send(&mut server, &content).is_ok());
    }
    assert!(!server.session().unwrap().history_comes);
    let text = json!({"realtimeInput": {"text": "Who am I?"}});
    assert!(send(&mut server, &text).is_ok());
}
