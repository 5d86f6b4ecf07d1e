//! Work in the background, as the runtime writes it: heartbeats, aborts and the last rewrite.

use jiff::Timestamp;

use super::bench::{Bench, Checked, same};
use crate::{
    RuntimeError,
    state::{AgentFinishReason, SessionSnapshot, SnapshotStatus},
};

/// What a sign of life makes of a row.
fn beaten(row: &SessionSnapshot, now: Timestamp) -> Option<SessionSnapshot> {
    let at_work = !row.status().is_terminal();
    at_work.then(|| SessionSnapshot { heartbeat_at: Some(now), ..row.clone() })
}

/// What the wish to stop makes of a row.
fn aborting(row: &SessionSnapshot, now: Timestamp) -> SessionSnapshot {
    match row.status() {
        SnapshotStatus::Pending => SessionSnapshot {
            status: Some(SnapshotStatus::Aborting),
            updated_at: Some(now),
            ..row.clone()
        },
        _ => row.clone(),
    }
}

/// What the end of the work makes of a row.
fn finalized(row: &SessionSnapshot, done: &SessionSnapshot) -> Option<SessionSnapshot> {
    let status = match row.status() {
        SnapshotStatus::Pending => SnapshotStatus::Completed,
        SnapshotStatus::Aborting => SnapshotStatus::Aborted,
        _ => return None,
    };
    Some(SessionSnapshot {
        parent_id: row.parent_id.clone(),
        created_at: row.created_at,
        status: Some(status),
        ..done.clone()
    })
}

/// Rows that are settled.
const SETTLED: [SnapshotStatus; 3] =
    [SnapshotStatus::Completed, SnapshotStatus::Failed, SnapshotStatus::Aborted];

pub(super) async fn heartbeat_advances_only_heartbeat_at(bench: Bench) -> Checked {
    let mut expected = bench.put("row", bench.pending()).await?;
    for status in [SnapshotStatus::Pending, SnapshotStatus::Aborting] {
        bench.change("row", |row| Some(with_status(status, row))).await?;
        expected = with_status(status, &expected);
        let now = bench.now();
        bench.change("row", |row| beaten(row, now)).await?;
        expected.heartbeat_at = Some(now);
        bench.reads("row", &expected).await?;
    }
    Ok(())
}

fn with_status(status: SnapshotStatus, row: &SessionSnapshot) -> SessionSnapshot {
    SessionSnapshot { status: Some(status), ..row.clone() }
}

pub(super) async fn heartbeat_skips_settled_row(bench: Bench) -> Checked {
    for status in SETTLED {
        let row = SessionSnapshot { status: Some(status), ..bench.row("done") };
        let written = bench.put(status.as_str(), row).await?;
        let now = bench.now();
        let result = bench.change(status.as_str(), |row| beaten(row, now)).await?;
        same("the result of a late heartbeat", &result, &None)?;
        bench.reads(status.as_str(), &written).await?;
    }
    Ok(())
}

pub(super) async fn heartbeat_keeps_recency(bench: Bench) -> Checked {
    bench.put("older", bench.pending()).await?;
    bench.put("newer", bench.row("newer")).await?;
    let now = bench.now();
    bench.change("older", |row| beaten(row, now)).await?;
    bench.latest_is("newer").await
}

pub(super) async fn abort_flips_pending_to_aborting(bench: Bench) -> Checked {
    let pending = bench.put("row", bench.pending()).await?;
    let now = bench.now();
    let expected = SessionSnapshot {
        status: Some(SnapshotStatus::Aborting),
        updated_at: Some(now),
        ..pending
    };
    for time in [now, bench.now()] {
        let returned = bench.change("row", |row| Some(aborting(row, time))).await?;
        same("the row that the abort returned", &returned.as_ref(), &Some(&expected))?;
        bench.reads("row", &expected).await?;
    }
    Ok(())
}

pub(super) async fn abort_leaves_settled_row_alone(bench: Bench) -> Checked {
    for status in SETTLED {
        let row = SessionSnapshot { status: Some(status), ..bench.row("done") };
        let written = bench.put(status.as_str(), row).await?;
        let now = bench.now();
        let returned = bench.change(status.as_str(), |row| Some(aborting(row, now))).await?;
        same("the row that the abort returned", &returned.as_ref(), &Some(&written))?;
        bench.reads(status.as_str(), &written).await?;
    }
    Ok(())
}

pub(super) async fn abort_of_missing_row_writes_nothing(bench: Bench) -> Checked {
    let now = bench.now();
    let update =
        |row: Option<&SessionSnapshot>| Ok::<_, RuntimeError>(row.map(|row| aborting(row, now)));
    let result = bench.store.save_snapshot(&bench.cx, Some(&bench.id("row")), &update).await?;
    same("the result of aborting nothing", &result, &None)?;
    bench.absent("row").await
}

pub(super) async fn finalize_lands_state_and_clears_heartbeat(bench: Bench) -> Checked {
    for (name, abort) in [("completed", false), ("aborted", true)] {
        let mut pending = bench.pending();
        pending.parent_id = Some(bench.id("parent").into());
        pending.extra.insert("only".into(), "while pending".into());
        let pending = bench.put(name, pending).await?;
        if abort {
            bench.set_status(name, SnapshotStatus::Aborting).await?;
        }
        let mut done = bench.row("done");
        done.finish_reason = Some(AgentFinishReason::Stop);
        bench.change(name, |row| finalized(row, &done)).await?;
        // As a whole, not added to what was there.
        let expected = SessionSnapshot {
            snapshot_id: pending.snapshot_id,
            parent_id: pending.parent_id,
            created_at: pending.created_at,
            status: Some(match abort {
                true => SnapshotStatus::Aborted,
                false => SnapshotStatus::Completed,
            }),
            ..done
        };
        same("the heartbeat of a settled row", &expected.heartbeat_at, &None)?;
        bench.reads(name, &expected).await?;
    }
    Ok(())
}

pub(super) async fn finalize_skips_settled_row(bench: Bench) -> Checked {
    for status in SETTLED {
        let row = SessionSnapshot { status: Some(status), ..bench.row("done") };
        let written = bench.put(status.as_str(), row).await?;
        let late = bench.row("late");
        let result = bench.change(status.as_str(), |row| finalized(row, &late)).await?;
        same("the result of a late finalize", &result, &None)?;
        bench.reads(status.as_str(), &written).await?;
    }
    Ok(())
}
