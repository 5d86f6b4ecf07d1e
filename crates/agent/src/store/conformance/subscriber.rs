//! Being told of changes.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bench::{Bench, Checked, Statuses, same};
use crate::state::{SessionSnapshot, SnapshotStatus};

pub(super) async fn yields_current_status_first(bench: Bench) -> Checked {
    bench.subscriber()?;
    bench.put("pending", bench.pending()).await?;
    bench.put("completed", bench.row("done")).await?;
    for status in [SnapshotStatus::Pending, SnapshotStatus::Completed] {
        let first = bench.subscribe(status.as_str())?.next().await?;
        same("the first status", &first, &status)?;
    }
    Ok(())
}

pub(super) async fn delivers_status_changes(bench: Bench) -> Checked {
    bench.subscriber()?;
    bench.put("row", bench.pending()).await?;
    let mut statuses = bench.subscribe("row")?;
    same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    for status in [SnapshotStatus::Aborting, SnapshotStatus::Aborted] {
        bench.set_status("row", status).await?;
        statuses.until(status, &[SnapshotStatus::Completed, SnapshotStatus::Failed]).await?;
    }
    // What came in between need not be told, but the last must.
    bench.put("fast", bench.pending()).await?;
    let mut statuses = bench.subscribe("fast")?;
    for status in [SnapshotStatus::Aborting, SnapshotStatus::Failed] {
        bench.set_status("fast", status).await?;
    }
    statuses.until(SnapshotStatus::Failed, &[SnapshotStatus::Completed]).await
}

pub(super) async fn delivers_in_place_status_change(bench: Bench) -> Checked {
    bench.subscriber()?;
    bench.put("row", bench.pending()).await?;
    let mut statuses = bench.subscribe("row")?;
    same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    // Nothing but the status changes, not even a time.
    bench
        .change("row", |row| {
            Some(SessionSnapshot { status: Some(SnapshotStatus::Aborting), ..row.clone() })
        })
        .await?;
    statuses.until(SnapshotStatus::Aborting, &[SnapshotStatus::Completed]).await
}

pub(super) async fn fans_out_to_every_subscriber(bench: Bench) -> Checked {
    bench.subscriber()?;
    bench.put("row", bench.pending()).await?;
    let mut subscriptions = Vec::new();
    for _ in 0..3 {
        subscriptions.push(bench.subscribe("row")?);
    }
    for statuses in &mut subscriptions {
        same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    }
    // One that goes does not take the others with it.
    subscriptions.pop();
    bench.set_status("row", SnapshotStatus::Aborting).await?;
    for statuses in &mut subscriptions {
        statuses.until(SnapshotStatus::Aborting, &[SnapshotStatus::Completed]).await?;
    }
    Ok(())
}

pub(super) async fn missing_snapshot_closes_the_channel(bench: Bench) -> Checked {
    bench.subscriber()?;
    let first = bench.subscribe("missing")?.0.next().await;
    same("what is told of a row that is not there", &first, &None)
}

pub(super) async fn closes_on_context_cancel(bench: Bench) -> Checked {
    bench.put("row", bench.pending()).await?;
    let cancelled = CancellationToken::new();
    let cx = bench.cx.clone().with_cancellation(cancelled.clone());
    let id = bench.id("row");
    let mut statuses = Statuses(bench.subscriber()?.on_snapshot_status_change(&cx, &id));
    same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    cancelled.cancel();
    statuses.end().await;
    Ok(())
}

pub(super) async fn closes_on_context_deadline(bench: Bench) -> Checked {
    bench.put("row", bench.pending()).await?;
    let cx = bench.cx.clone().with_deadline(Instant::now() + Duration::from_millis(5));
    let id = bench.id("row");
    Statuses(bench.subscriber()?.on_snapshot_status_change(&cx, &id)).end().await;
    Ok(())
}
