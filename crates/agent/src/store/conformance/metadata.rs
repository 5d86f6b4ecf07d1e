//! Reading rows without their state.

use antiphon_types::Status;
use serde_json::json;

use super::bench::{Bench, Checked, Failure, refused, same};
use crate::{
    state::{AgentErrorDetails, AgentFinishReason, SessionSnapshot, SnapshotStatus},
    store::SnapshotMetadataReader,
};

fn reader(bench: &Bench) -> Checked<&dyn SnapshotMetadataReader> {
    let none = || Failure::Skipped("the store reads rows as a whole only".into());
    bench.store.metadata_reader().ok_or_else(none)
}

pub(super) async fn matches_full_read_without_state(bench: Bench) -> Checked {
    let reader = reader(&bench)?;
    let mut failed = bench.row("failed");
    failed.parent_id = Some(bench.id("parent").into());
    failed.status = Some(SnapshotStatus::Failed);
    failed.finish_reason = Some(AgentFinishReason::Failed);
    failed.error = Some(AgentErrorDetails::new(Status::Internal, "it broke"));
    failed.extra.insert("origin".into(), json!("telephone"));
    for (name, row) in [("failed", failed), ("pending", bench.pending())] {
        let written = bench.put(name, row).await?;
        let read = reader.get_snapshot_metadata(&bench.cx, &bench.id(name)).await?;
        same("the row without its state", &read, &Some(written.with_state(None)))?;
    }
    Ok(())
}

pub(super) async fn latest_resolves_the_same_row(bench: Bench) -> Checked {
    let reader = reader(&bench)?;
    let backdated = bench.row("backdated");
    let tied = bench.row("tied");
    for (name, row) in [("b", tied.clone()), ("a", tied), ("c", backdated)] {
        bench.put(name, row).await?;
    }
    let full = bench.store.get_latest_snapshot(&bench.cx, &bench.session()).await?;
    let read = reader.get_latest_snapshot_metadata(&bench.cx, &bench.session()).await?;
    same("the latest row without its state", &read, &full.map(|row| row.with_state(None)))
}

pub(super) async fn unknown_snapshot_is_nil(bench: Bench) -> Checked {
    let read = reader(&bench)?.get_snapshot_metadata(&bench.cx, &bench.id("none")).await?;
    same("an unknown row", &read, &None)
}

pub(super) async fn unknown_session_is_nil(bench: Bench) -> Checked {
    let read = reader(&bench)?.get_latest_snapshot_metadata(&bench.cx, &bench.session()).await?;
    same("the latest row of an unknown session", &read, &None)
}

pub(super) async fn empty_session_id_fails(bench: Bench) -> Checked {
    let reader = reader(&bench)?;
    let latest = reader.get_latest_snapshot_metadata(&bench.cx, "").await;
    refused("reading the latest row of an empty session", latest)?;
    let row = reader.get_snapshot_metadata(&bench.cx, "").await;
    refused("reading a row of an empty id", row)
}

pub(super) async fn does_not_alias_the_store(bench: Bench) -> Checked {
    let reader = reader(&bench)?;
    let written = bench.put("row", bench.row("one")).await?;
    let id = bench.id("row");
    let reads = [
        reader.get_snapshot_metadata(&bench.cx, &id).await?,
        reader.get_latest_snapshot_metadata(&bench.cx, &bench.session()).await?,
    ];
    for read in reads {
        let scribbled = read.map(|mut row: SessionSnapshot| {
            row.parent_id = Some("scribbled".into());
            row.extra.insert("scribbled".into(), json!(true));
            row
        });
        bench.reads("row", &written).await?;
        drop(scribbled);
    }
    Ok(())
}
