//! Writing rows.

use std::sync::Arc;

use antiphon_types::{JsonObject, Status};
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::bench::{Bench, Checked, broken, ensure, refused, same};
use crate::{
    Artifact, Message, Part, Role, RuntimeError,
    state::{AgentErrorDetails, AgentFinishReason, SessionSnapshot, SessionState, SnapshotStatus},
};

pub(super) async fn generates_id_when_empty(bench: Bench) -> Checked {
    let first = bench.write(None, bench.row("one")).await?;
    let second = bench.write(None, bench.row("two")).await?;
    ensure(!first.snapshot_id.is_empty(), "the id that the store made is empty")?;
    ensure(first.snapshot_id != second.snapshot_id, "the store made the same id twice")?;
    for row in [first, second] {
        let read = bench.store.get_snapshot(&bench.cx, &row.snapshot_id).await?;
        same("the row of the id that the store made", &read, &Some(row))?;
    }
    Ok(())
}

pub(super) async fn uses_the_given_id(bench: Bench) -> Checked {
    let mut row = bench.row("one");
    row.snapshot_id = bench.id("other").into();
    bench.put("given", row).await?;
    same("the id", &*bench.read("given").await?.snapshot_id, bench.id("given").as_str())?;
    bench.absent("other").await
}

pub(super) async fn passes_the_current_row_to_fn(bench: Bench) -> Checked {
    let id = bench.id("row");
    let first = |row: Option<&SessionSnapshot>| match row {
        None => Ok(Some(bench.row("one"))),
        Some(_) => Err(RuntimeError::internal("the closure was given a row before there was one")),
    };
    let written = bench.store.save_snapshot(&bench.cx, Some(&id), &first).await?;
    let seen = std::sync::Mutex::new(None);
    let second = |row: Option<&SessionSnapshot>| {
        *seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = row.cloned();
        Ok(None)
    };
    bench.store.save_snapshot(&bench.cx, Some(&id), &second).await?;
    let seen = seen.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    same("the row that the closure was given", &seen, &written)
}

pub(super) async fn skips_the_write_when_fn_returns_nil(bench: Bench) -> Checked {
    let written = bench.put("row", bench.row("one")).await?;
    for name in ["none", "row"] {
        let id = bench.id(name);
        let result = bench.store.save_snapshot(&bench.cx, Some(&id), &|_| Ok(None)).await?;
        same("the result of writing nothing", &result, &None)?;
    }
    bench.absent("none").await?;
    bench.reads("row", &written).await?;
    bench.latest_is("row").await
}

pub(super) async fn returns_the_fn_error(bench: Bench) -> Checked {
    let written = bench.put("row", bench.row("one")).await?;
    for name in ["none", "row"] {
        let id = bench.id(name);
        let refuse = |_: Option<&SessionSnapshot>| {
            Err(RuntimeError::new(Status::PermissionDenied, "not for you"))
        };
        match bench.store.save_snapshot(&bench.cx, Some(&id), &refuse).await {
            Err(error) => {
                same("the error's status", &error.status(), &Status::PermissionDenied)?;
                same("the error", &error.to_string(), &"not for you".to_owned())?;
            }
            Ok(_) => return broken("the error of the closure was not returned"),
        }
    }
    bench.absent("none").await?;
    bench.reads("row", &written).await
}

pub(super) async fn defaults_empty_status_to_completed(bench: Bench) -> Checked {
    let id = bench.id("row");
    let row = SessionSnapshot { status: None, ..bench.row("one") };
    let written = bench.write(Some(&id), row).await?;
    same("the status returned", &written.status, &Some(SnapshotStatus::Completed))?;
    same("the status read", &bench.read("row").await?.status, &Some(SnapshotStatus::Completed))
}

pub(super) async fn persists_fields_verbatim(bench: Bench) -> Checked {
    let mut row = bench.row("one");
    row.parent_id = Some(bench.id("parent-that-is-not-there").into());
    row.updated_at = Some(bench.now() + SignedDuration::from_hours(1));
    row.heartbeat_at = Some(bench.now() - SignedDuration::from_hours(1));
    row.status = Some(SnapshotStatus::Failed);
    row.finish_reason = Some(AgentFinishReason::Length);
    let mut error = AgentErrorDetails::new(Status::Unavailable, "the line was cut");
    error.details = Some(json!({ "attempts": [1, 2, null] }));
    row.error = Some(error);
    row.extra.insert("origin".into(), json!({ "channel": "telephone" }));
    let full = bench.put("full", row).await?;
    bench.reads("full", &full).await?;

    let mut bare = SessionSnapshot::new("", bench.session(), bench.now());
    bare.updated_at = None;
    bare.status = Some(SnapshotStatus::Aborted);
    let bare = bench.put("bare", bare).await?;
    bench.reads("bare", &bare).await?;
    // Nor does a rewrite keep what the new row leaves out.
    let full = SessionSnapshot { snapshot_id: full.snapshot_id, ..bare };
    bench.put("full", full.clone()).await?;
    bench.reads("full", &full).await
}

pub(super) async fn keeps_the_given_session_id(bench: Bench) -> Checked {
    for (name, session) in [("a", bench.id("no-uuid_7.x")), ("b", crate::id::new_id().to_string())]
    {
        let row = bench.row(name);
        bench
            .put(name, SessionSnapshot { session_id: Some(session.as_str().into()), ..row })
            .await?;
        bench.latest_of_is(&session, name).await?;
    }
    Ok(())
}

pub(super) async fn preserves_session_id_on_rewrite(bench: Bench) -> Checked {
    let written = bench.put("row", bench.row("one")).await?;
    let other = bench.id("another-session");
    for session_id in [None, Some(Arc::from("")), Some(Arc::from(other.as_str()))] {
        let rewrite = SessionSnapshot { session_id, ..written.clone() };
        let returned = bench.write(Some(&bench.id("row")), rewrite).await?;
        same("the session returned by a rewrite", &returned.session_id, &written.session_id)?;
        bench.reads("row", &written).await?;
        bench.latest_is("row").await?;
    }
    let found = bench.store.get_latest_snapshot(&bench.cx, &other).await?;
    same("the latest row of a session that was never used", &found, &None)
}

pub(super) async fn rejects_row_without_session_id(bench: Bench) -> Checked {
    let parent = bench.put("parent", bench.row("one")).await?;
    for session_id in [None, Some(Arc::from(""))] {
        let mut row = bench.row("two");
        row.session_id = session_id;
        row.parent_id = Some(parent.snapshot_id.clone());
        for id in [Some(bench.id("row")), None] {
            let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
            let result = bench.store.save_snapshot(&bench.cx, id.as_deref(), &update);
            match result.await {
                Err(RuntimeError::SessionIdRequired) => {}
                Err(error) => return broken(format_args!("it failed otherwise: {error}")),
                Ok(row) => return broken(format_args!("it was written: {row:?}")),
            }
        }
    }
    bench.absent("row").await?;
    bench.latest_is("parent").await
}

pub(super) async fn keeps_nil_and_empty_state_apart(bench: Bench) -> Checked {
    for (name, state) in [("none", None), ("empty", Some(SessionState::default()))] {
        let row = SessionSnapshot { state, ..bench.row(name) };
        let written = bench.put(name, row).await?;
        bench.reads(name, &written).await?;
    }
    Ok(())
}

pub(super) async fn round_trips_rich_state(bench: Bench) -> Checked {
    let mut row = bench.row("");
    row.state = Some(rich_state());
    let written = bench.put("row", row).await?;
    bench.reads("row", &written).await
}

fn rich_state() -> SessionState {
    let text = "NUL \0 BOM \u{feff} right-to-left \u{200f} astral \u{1f600}\u{1d4b3} \
                quote \" backslash \\ newline \r\n tab \t line separator \u{2028}";
    let object = |value: Value| match value {
        Value::Object(object) => object,
        _ => JsonObject::new(),
    };
    let mut media = Part::media("data:image/png;base64,iVBORw0KGgo=", Some("image/png".into()));
    media.extra.insert("unknown".into(), json!([null]));
    let mut user = Message::new(Role::User, vec![Part::text(text), Part::text(""), media]);
    user.metadata = Some(object(json!({ "heard": { "ms": 1200, "cut": null } })));
    user.extra.insert("later".into(), json!(true));
    let thoughts = Part::reasoning("Let me see.").with_metadata_entry("signature", "AAECAwQF/+8=");
    let request = Part::tool_request("pay", Some("call_1".into()), json!({ "amount": 1.5 }))
        .with_metadata_entry("interrupt", json!({ "ask": "Really?" }));
    let response = Part::tool_response("pay", None, json!(false));
    let nothing = Part::tool_response("pay", Some("call_1".into()), Value::Null);
    let deep = (0..60).fold(json!("deep"), |inner, _| json!([{ "inner": inner }]));
    SessionState {
        session_id: None,
        messages: vec![
            user,
            Message::new(Role::Model, vec![thoughts, request, Part::data(json!([null, {}, []]))]),
            Message::new(Role::Tool, vec![response, nothing]),
            Message::new(Role::Model, vec![]),
        ]
        .into(),
        custom: Some(json!({
            "": "empty key",
            "a/b~c": 1,
            "__proto__": { "polluted": true },
            "text": text,
            "null": null,
            "numbers": [0, -1, 0.5, 1.5e10, i64::MIN, u64::MAX],
            "list": [[], {}, [null], false, ""],
            "deep": deep,
        })),
        artifacts: vec![
            Arc::new(Artifact::new("doc", vec![Part::text("v1"), Part::data(Value::Null)])),
            Arc::new(Artifact { parts: vec![Part::text("nameless")], ..Artifact::default() }),
            Arc::new(Artifact { name: Some("".into()), ..Artifact::default() }),
        ],
        extra: object(json!({ "theme": { "dark": null } })),
    }
}

pub(super) async fn round_trips_large_state(bench: Bench) -> Checked {
    let sized = |size: usize| {
        let mut state = bench.state("large");
        state.messages.push(Message::user("0123456789abcdef".repeat(size / 16)));
        state
    };
    const MIB: usize = 1 << 20;
    let row = bench.row("large");
    // It grows and shrinks again on rewrite.
    for size in [2 * MIB + MIB / 2, 4 * MIB, 16] {
        let row = SessionSnapshot { state: Some(sized(size)), ..row.clone() };
        let written = bench.put("row", row).await?;
        let read = bench.read("row").await?;
        ensure(read == written, format_args!("a state of {size} bytes is read back otherwise"))?;
    }
    Ok(())
}

pub(super) async fn does_not_alias_caller_values(bench: Bench) -> Checked {
    fn scribble(row: &mut SessionSnapshot) {
        row.parent_id = Some("scribbled".into());
        row.extra.insert("scribbled".into(), json!(true));
        if let Some(state) = &mut row.state {
            state.custom = Some(json!("scribbled"));
            state.messages.replace(0, Message::user("scribbled"));
            state.messages.push(Message::user("scribbled"));
            state.artifacts.push(Arc::new(Artifact::new("scribbled", vec![])));
        }
    }
    let given = bench.row("one");
    let id = bench.id("row");
    let mut returned = bench.write(Some(&id), given.clone()).await?;
    let expected = SessionSnapshot { snapshot_id: id.as_str().into(), ..given.clone() };
    // What the closure gave, what came of it, and what was read.
    let mut given = given;
    scribble(&mut given);
    bench.reads("row", &expected).await?;
    scribble(&mut returned);
    bench.reads("row", &expected).await?;
    let mut read = bench.read("row").await?;
    scribble(&mut read);
    bench.reads("row", &expected).await?;
    let mut latest = bench.store.get_latest_snapshot(&bench.cx, &bench.session()).await?;
    latest.as_mut().map(scribble);
    bench.reads("row", &expected).await?;
    // A copy of what the closure was shown, which it then does not write.
    bench
        .change("row", |row| {
            scribble(&mut row.clone());
            None
        })
        .await?;
    bench.reads("row", &expected).await
}

pub(super) async fn serializes_concurrent_rewrites(bench: Bench) -> Checked {
    bench.put("row", bench.row("one")).await?;
    append_from(&bench, [&bench.store; 8]).await
}

/// Every one of `stores` appends a number of its own to the row, at the same time, and all land.
pub(super) async fn append_from<const N: usize>(
    bench: &Bench,
    stores: [&Arc<dyn super::super::SessionStore>; N],
) -> Checked {
    let mut writers = JoinSet::new();
    for (number, store) in stores.into_iter().enumerate() {
        let (store, cx, id) = (store.clone(), bench.cx.clone(), bench.id("row"));
        writers.spawn(async move {
            let append = |row: Option<&SessionSnapshot>| {
                let mut row = row.cloned();
                if let Some(state) = row.as_mut().and_then(|row| row.state.as_mut()) {
                    state.messages.push(Message::user(number.to_string()));
                }
                Ok(row)
            };
            store.save_snapshot(&cx, Some(&id), &append).await
        });
    }
    while let Some(written) = writers.join_next().await {
        match written {
            Ok(written) => ensure(written?.is_some(), "a writer found no row")?,
            Err(_) => return broken("the store panicked"),
        }
    }
    let messages = bench.read("row").await?.state.unwrap_or_default().messages;
    let mut landed: Vec<_> = messages.range(2).map(|message| message.joined_text()).collect();
    landed.sort_unstable();
    let expected: Vec<_> = (0..N).map(|number| number.to_string()).collect();
    same("what writers at the same time appended", &landed, &expected)
}

pub(super) async fn accepts_concurrent_new_rows(bench: Bench) -> Checked {
    let parent = bench.put("parent", bench.row("one")).await?;
    let mut writers = JoinSet::new();
    let names: Vec<_> = (0..8).map(|number| format!("fork-{number}")).collect();
    for name in &names {
        let mut row = bench.row(name);
        row.parent_id = Some(parent.snapshot_id.clone());
        let (store, cx, id) = (bench.store.clone(), bench.cx.clone(), bench.id(name));
        writers.spawn(async move {
            store.save_snapshot(&cx, Some(&id), &|_| Ok(Some(row.clone()))).await
        });
    }
    while let Some(written) = writers.join_next().await {
        match written {
            Ok(written) => ensure(written?.is_some(), "a new row was not written")?,
            Err(_) => return broken("the store panicked"),
        }
    }
    for name in &names {
        let said = bench.read(name).await?.state.and_then(|state| state.custom);
        same("the state of a fork", &said, &Some(json!({ "said": name })))?;
    }
    bench.latest_is("fork-7").await
}

pub(super) async fn empty_snapshot_id_fails(bench: Bench) -> Checked {
    let row = bench.row("one");
    let update = |_: Option<&SessionSnapshot>| Ok(Some(row.clone()));
    let written = bench.store.save_snapshot(&bench.cx, Some(""), &update).await;
    refused("writing a row of an empty id", written)?;
    refused("reading a row of an empty id", bench.store.get_snapshot(&bench.cx, "").await)
}
