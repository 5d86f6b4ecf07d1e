//! Tenants.

use super::bench::{Bench, Checked, same};
use crate::state::SnapshotStatus;

/// Two tenants, and nobody in particular.
fn tenants(bench: &Bench) -> [Bench; 3] {
    [bench.scoped("tenant"), bench.scoped("tenant-2"), bench.scoped_to_nobody()]
}

pub(super) async fn isolates_reads(bench: Bench) -> Checked {
    let [mine, other, nobody] = tenants(&bench);
    let written = mine.put("row", mine.row("mine")).await?;
    for stranger in [&other, &nobody] {
        stranger.absent("row").await?;
        let found = stranger.store.get_latest_snapshot(&stranger.cx, &bench.session()).await?;
        same("the latest row of another tenant's session", &found, &None)?;
        if let Some(reader) = stranger.store.metadata_reader() {
            let row = reader.get_snapshot_metadata(&stranger.cx, &bench.id("row")).await?;
            same("another tenant's row", &row, &None)?;
            let session = bench.session();
            let row = reader.get_latest_snapshot_metadata(&stranger.cx, &session).await?;
            same("the latest row of another tenant's session", &row, &None)?;
        }
    }
    mine.reads("row", &written).await?;
    mine.latest_is("row").await
}

pub(super) async fn isolates_writes(bench: Bench) -> Checked {
    // The same ids for all.
    let tenants = tenants(&bench);
    let mut written = Vec::new();
    for (tenant, text) in tenants.iter().zip(["mine", "other", "nobody's"]) {
        written.push(tenant.put("row", tenant.row(text)).await?);
    }
    for (tenant, row) in tenants.iter().zip(&written) {
        tenant.reads("row", row).await?;
        tenant.latest_is("row").await?;
    }
    tenants[0].set_status("row", SnapshotStatus::Failed).await?;
    for (tenant, row) in tenants.iter().zip(&written).skip(1) {
        tenant.reads("row", row).await?;
    }
    Ok(())
}

pub(super) async fn isolates_subscriptions(bench: Bench) -> Checked {
    bench.subscriber()?;
    let [mine, other, _] = tenants(&bench);
    mine.put("mine-alone", mine.pending()).await?;
    let mut statuses = other.subscribe("mine-alone")?;
    let first = futures_util::StreamExt::next(&mut statuses.0).await;
    same("what is told of another tenant's row", &first, &None)?;

    for tenant in [&mine, &other] {
        tenant.put("row", tenant.pending()).await?;
    }
    let mut statuses = mine.subscribe("row")?;
    same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    other.set_status("row", SnapshotStatus::Failed).await?;
    mine.set_status("row", SnapshotStatus::Completed).await?;
    statuses.until(SnapshotStatus::Completed, &[SnapshotStatus::Failed]).await
}
