//! Two instances over the same rows, as in two processes.

use std::sync::Arc;

use super::{
    bench::{Bench, Checked, Failure, Statuses, same},
    save::append_from,
};
use crate::{state::SnapshotStatus, store::SessionStore};

fn second(bench: &Bench) -> Checked<Arc<dyn SessionStore>> {
    let none = || Failure::Skipped("there is no second instance".into());
    bench.second.clone().ok_or_else(none)
}

pub(super) async fn reads_rows_written_by_the_other(bench: Bench) -> Checked {
    let second = second(&bench)?;
    let written = bench.put("row", bench.row("one")).await?;
    let read = second.get_snapshot(&bench.cx, &bench.id("row")).await?;
    same("the row that the other wrote", &read.as_ref(), &Some(&written))?;
    let latest = second.get_latest_snapshot(&bench.cx, &bench.session()).await?;
    same("the latest row that the other wrote", &latest.as_ref(), &Some(&written))?;
    // And after the other rewrote it, though it was read before.
    bench.set_status("row", SnapshotStatus::Failed).await?;
    let read = second.get_snapshot(&bench.cx, &bench.id("row")).await?;
    same("the row that the other rewrote", &read, &Some(bench.read("row").await?))
}

pub(super) async fn delivers_status_changes_from_the_other(bench: Bench) -> Checked {
    let second = second(&bench)?;
    bench.subscriber()?;
    bench.put("row", bench.pending()).await?;
    let subscriber = second.subscriber();
    let none = || Failure::Broken("only one of the instances can tell of changes".into());
    let subscriber = subscriber.ok_or_else(none)?;
    let statuses = subscriber.on_snapshot_status_change(&bench.cx, &bench.id("row"));
    let mut statuses = Statuses(statuses);
    same("the first status", &statuses.next().await?, &SnapshotStatus::Pending)?;
    bench.set_status("row", SnapshotStatus::Aborting).await?;
    statuses.until(SnapshotStatus::Aborting, &[SnapshotStatus::Completed]).await
}

pub(super) async fn serializes_rewrites_with_the_other(bench: Bench) -> Checked {
    let second = second(&bench)?;
    bench.put("row", bench.row("one")).await?;
    let (one, two) = (&bench.store, &second);
    append_from(&bench, [one, two, one, two, one, two, one, two]).await
}
