//! Finding the latest row of a session.

use super::bench::{Bench, Checked, refused, same};
use crate::state::{SessionSnapshot, SnapshotStatus};

pub(super) async fn picks_most_recently_created(bench: Bench) -> Checked {
    // The ids sort the other way.
    for name in ["c", "b", "a"] {
        bench.put(name, bench.row(name)).await?;
        bench.latest_is(name).await?;
    }
    Ok(())
}

pub(super) async fn ignores_rewrites_of_older_rows(bench: Bench) -> Checked {
    let older = bench.put("older", bench.row("older")).await?;
    bench.put("newer", bench.row("newer")).await?;
    let rewritten = SessionSnapshot {
        updated_at: Some(bench.now()),
        state: Some(bench.state("rewritten")),
        ..older
    };
    bench.put("older", rewritten).await?;
    bench.latest_is("newer").await
}

pub(super) async fn returns_any_status(bench: Bench) -> Checked {
    for status in [
        SnapshotStatus::Completed,
        SnapshotStatus::Pending,
        SnapshotStatus::Aborting,
        SnapshotStatus::Failed,
        SnapshotStatus::Aborted,
    ] {
        let row = SessionSnapshot { status: Some(status), ..bench.row("any") };
        bench.put(status.as_str(), row).await?;
        bench.latest_is(status.as_str()).await?;
    }
    Ok(())
}

pub(super) async fn breaks_created_at_ties_by_snapshot_id(bench: Bench) -> Checked {
    let row = bench.row("tied");
    for name in ["b", "c", "a"] {
        bench.put(name, row.clone()).await?;
    }
    bench.latest_is("c").await
}

pub(super) async fn ignores_backdated_new_row(bench: Bench) -> Checked {
    let backdated = bench.row("backdated");
    bench.put("newer", bench.row("newer")).await?;
    bench.put("backdated", backdated).await?;
    bench.latest_is("newer").await
}

pub(super) async fn keeps_sessions_apart(bench: Bench) -> Checked {
    let other = bench.id("other-session");
    bench.put("mine", bench.row("mine")).await?;
    let row = bench.row("other");
    let row = SessionSnapshot { session_id: Some(other.as_str().into()), ..row };
    bench.put("other", row).await?;
    bench.latest_is("mine").await?;
    bench.latest_of_is(&other, "other").await
}

pub(super) async fn unknown_session_is_nil(bench: Bench) -> Checked {
    bench.put("row", bench.row("one")).await?;
    // Nor is a part of another's id, or the id of a row, one.
    let session = bench.session();
    for unknown in [bench.id("unknown"), bench.id("row"), session[..session.len() - 1].to_owned()] {
        let found = bench.store.get_latest_snapshot(&bench.cx, &unknown).await?;
        same("the latest row of an unknown session", &found, &None)?;
    }
    Ok(())
}

pub(super) async fn empty_session_id_fails(bench: Bench) -> Checked {
    bench.put("row", bench.row("one")).await?;
    let found = bench.store.get_latest_snapshot(&bench.cx, "").await;
    refused("reading the latest row of an empty session", found)
}
