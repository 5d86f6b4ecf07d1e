//! The suite names what is wrong with stores that break their promises.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use antiphon_agent::{
    InMemorySessionStore, InvocationContext, RuntimeError, SessionSnapshot, SessionStore,
    SnapshotReader, SnapshotStatus, SnapshotSubscriber, SnapshotUpdate, SnapshotWriter,
    store::conformance::{self, Report, Stores},
    types::Status,
};
use async_trait::async_trait;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    LosesSessionOnRewrite,
    LatestByUpdate,
    SwallowsErrors,
    WritesBeforeOthersAreDone,
    IgnoresTenants,
    InfersSessions,
    StampsTimes,
    DropsEmptyStates,
    NeverClosesSubscriptions,
    TellsFirstStatusOnly,
    AnswersForUnknownRows,
    KeepsOldMembers,
    AliasesBySession,
}

/// A simple store with one fault.
struct Faulty {
    fault: Fault,
    rows: Mutex<HashMap<(Option<String>, String), SessionSnapshot>>,
    /// Where subscriptions are what is broken.
    inner: InMemorySessionStore,
}

impl Faulty {
    fn key(&self, cx: &InvocationContext, id: &str) -> (Option<String>, String) {
        let scope = cx.scope().filter(|_| self.fault != Fault::IgnoresTenants);
        (scope.map(Into::into), id.into())
    }

    fn subscribes(&self) -> bool {
        matches!(
            self.fault,
            Fault::NeverClosesSubscriptions
                | Fault::TellsFirstStatusOnly
                | Fault::AnswersForUnknownRows
        )
    }
}

fn required(id: &str) -> Result<(), RuntimeError> {
    if id.is_empty() {
        return Err(RuntimeError::InvalidArgument("the id is empty".into()));
    }
    Ok(())
}

#[async_trait]
impl SnapshotReader for Faulty {
    async fn get_snapshot(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required(id)?;
        if self.subscribes() {
            return self.inner.get_snapshot(cx, id).await;
        }
        Ok(self.rows.lock().unwrap().get(&self.key(cx, id)).cloned())
    }

    async fn get_latest_snapshot(
        &self,
        cx: &InvocationContext,
        session: &str,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        required(session)?;
        if self.subscribes() {
            return self.inner.get_latest_snapshot(cx, session).await;
        }
        let rows = self.rows.lock().unwrap();
        let scope = self.key(cx, "").0;
        let of_session = rows.iter().filter(|((in_scope, _), row)| {
            *in_scope == scope && row.session_id.as_deref() == Some(session)
        });
        Ok(of_session
            .map(|(_, row)| row)
            .max_by_key(|row| match self.fault {
                Fault::LatestByUpdate => (row.updated_at, row.snapshot_id.clone()),
                _ => (Some(row.created_at), row.snapshot_id.clone()),
            })
            .cloned())
    }
}

#[async_trait]
impl SnapshotWriter for Faulty {
    async fn save_snapshot(
        &self,
        cx: &InvocationContext,
        id: Option<&str>,
        update: &SnapshotUpdate<'_>,
    ) -> Result<Option<SessionSnapshot>, RuntimeError> {
        if self.subscribes() {
            return self.inner.save_snapshot(cx, id, update).await;
        }
        id.map_or(Ok(()), required)?;
        static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let made = || MADE.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let id = id.map_or_else(|| format!("made-{}", made()), Into::into);
        let key = self.key(cx, &id);
        loop {
            let before = self.rows.lock().unwrap().get(&key).cloned();
            if self.fault == Fault::WritesBeforeOthersAreDone {
                tokio::task::yield_now().await;
            }
            let mut after = match update(before.as_ref()) {
                Ok(Some(after)) => after,
                Ok(None) => return Ok(None),
                Err(_) if self.fault == Fault::SwallowsErrors => return Ok(None),
                Err(error) => return Err(error),
            };
            after.snapshot_id = id.as_str().into();
            after.status = Some(after.status());
            if let Some(before) = &before
                && self.fault != Fault::LosesSessionOnRewrite
            {
                after.session_id = before.session_id.clone();
            }
            if after.session_id.as_deref().is_none_or(str::is_empty) {
                let parent = after.parent_id.as_deref().unwrap_or_default();
                let rows = self.rows.lock().unwrap();
                match rows.get(&self.key(cx, parent)) {
                    Some(parent) if self.fault == Fault::InfersSessions => {
                        after.session_id = parent.session_id.clone();
                    }
                    _ => return Err(RuntimeError::SessionIdRequired),
                }
            }
            match (self.fault, &before) {
                (Fault::StampsTimes, _) => after.updated_at = Some(jiff::Timestamp::now()),
                (Fault::DropsEmptyStates, _) => {
                    after.state = after.state.filter(|state| *state != Default::default());
                }
                (Fault::KeepsOldMembers, Some(before)) => {
                    after.heartbeat_at = after.heartbeat_at.or(before.heartbeat_at);
                }
                _ => {}
            }
            let mut rows = self.rows.lock().unwrap();
            if rows.get(&key) != before.as_ref() && self.fault != Fault::WritesBeforeOthersAreDone {
                continue;
            }
            if self.fault == Fault::AliasesBySession {
                // The state of a session is one, whichever row it belongs to.
                let others = rows.values_mut().filter(|row| row.session_id == after.session_id);
                others.for_each(|row| row.state = after.state.clone());
            }
            rows.insert(key, after.clone());
            return Ok(Some(after));
        }
    }
}

impl SnapshotSubscriber for Faulty {
    fn on_snapshot_status_change(
        &self,
        cx: &InvocationContext,
        id: &str,
    ) -> BoxStream<'static, SnapshotStatus> {
        let statuses = self.inner.on_snapshot_status_change(cx, id);
        match self.fault {
            Fault::NeverClosesSubscriptions => statuses.chain(stream::pending()).boxed(),
            Fault::TellsFirstStatusOnly => {
                let cx = cx.clone();
                let ended =
                    stream::once(async move { cx.ended().await }).filter_map(async |_| None);
                statuses.take(1).chain(ended).boxed()
            }
            _ => statuses.chain(stream::iter([SnapshotStatus::Completed])).take(1).boxed(),
        }
    }
}

impl SessionStore for Faulty {
    fn subscriber(&self) -> Option<&dyn SnapshotSubscriber> {
        self.subscribes().then_some(self)
    }
}

async fn report(fault: Fault) -> Report {
    let factory = || async move {
        let (rows, inner) = (Mutex::default(), InMemorySessionStore::new());
        Stores::new(Arc::new(Faulty { fault, rows, inner }))
    };
    conformance::run(&factory).await
}

#[track_caller]
fn assert_failed(report: &Report, expected: &[&str]) {
    assert_eq!(report.failed(), expected, "{report}");
}

#[tokio::test]
async fn a_simple_store_conforms_and_what_it_cannot_do_is_skipped() {
    let report = report(Fault::None).await;
    report.assert_passed();
    let skipped = report.skipped();
    assert!(skipped.iter().all(|name| {
        ["metadata", "subscriber", "second_instance", "ledger", "scopes_isolates_subscriptions"]
            .iter()
            .any(|group| name.starts_with(group))
    }));
    assert_eq!(skipped.len(), 6 + 7 + 3 + 6 + 1);
}

#[tokio::test]
async fn a_store_that_loses_the_session_on_rewrite_is_found() {
    let report = report(Fault::LosesSessionOnRewrite).await;
    assert_failed(&report, &["save_preserves_session_id_on_rewrite"]);
}

#[tokio::test]
async fn a_store_that_takes_the_last_written_for_the_latest_is_found() {
    let report = report(Fault::LatestByUpdate).await;
    assert_failed(&report, &["latest_ignores_rewrites_of_older_rows"]);
}

#[tokio::test]
async fn a_store_that_swallows_the_errors_of_closures_is_found() {
    let report = report(Fault::SwallowsErrors).await;
    assert_failed(&report, &["save_returns_the_fn_error"]);
}

#[tokio::test]
async fn a_store_that_loses_writes_is_found() {
    let report = report(Fault::WritesBeforeOthersAreDone).await;
    assert_failed(&report, &["save_serializes_concurrent_rewrites"]);
}

#[tokio::test]
async fn a_store_that_mixes_tenants_is_found() {
    let report = report(Fault::IgnoresTenants).await;
    assert_failed(&report, &["scopes_isolates_reads", "scopes_isolates_writes"]);
}

#[tokio::test]
async fn a_store_that_infers_sessions_is_found() {
    let report = report(Fault::InfersSessions).await;
    assert_failed(&report, &["save_rejects_row_without_session_id"]);
}

#[tokio::test]
async fn a_store_that_stamps_times_is_found() {
    let report = report(Fault::StampsTimes).await;
    assert!(
        report.failed().contains(&"lifecycle_heartbeat_advances_only_heartbeat_at"),
        "{report}"
    );
    assert!(report.failed().contains(&"save_persists_fields_verbatim"), "{report}");
}

#[tokio::test]
async fn a_store_that_drops_empty_states_is_found() {
    let report = report(Fault::DropsEmptyStates).await;
    assert_failed(&report, &["save_keeps_nil_and_empty_state_apart"]);
}

#[tokio::test]
async fn a_store_that_merges_instead_of_replacing_is_found() {
    let report = report(Fault::KeepsOldMembers).await;
    assert!(
        report.failed().contains(&"lifecycle_finalize_lands_state_and_clears_heartbeat"),
        "{report}",
    );
}

#[tokio::test]
async fn a_store_whose_rows_share_one_state_is_found() {
    let report = report(Fault::AliasesBySession).await;
    for name in [
        "chains_linear_chain_reads_back_every_row",
        "chains_branches_read_back_independently",
        "chains_leaf_rewrite_keeps_ancestors",
    ] {
        assert!(report.failed().contains(&name), "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_subscriptions_never_close_is_found() {
    let report = report(Fault::NeverClosesSubscriptions).await;
    assert_failed(
        &report,
        &[
            "subscriber_missing_snapshot_closes_the_channel",
            "subscriber_closes_on_context_cancel",
            "subscriber_closes_on_context_deadline",
            "scopes_isolates_subscriptions",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_tell_of_changes_is_found() {
    let report = report(Fault::TellsFirstStatusOnly).await;
    for name in [
        "subscriber_delivers_status_changes",
        "subscriber_delivers_in_place_status_change",
        "subscriber_fans_out_to_every_subscriber",
    ] {
        assert!(report.failed().contains(&name), "{report}");
    }
}

#[tokio::test]
async fn a_store_that_tells_of_rows_that_are_not_there_is_found() {
    let report = report(Fault::AnswersForUnknownRows).await;
    assert!(
        report.failed().contains(&"subscriber_missing_snapshot_closes_the_channel"),
        "{report}"
    );
}

#[tokio::test]
async fn a_store_that_panics_fails_the_case_and_not_the_suite() {
    struct Panics;
    #[async_trait]
    impl SnapshotReader for Panics {
        async fn get_snapshot(
            &self,
            _: &InvocationContext,
            _: &str,
        ) -> Result<Option<SessionSnapshot>, RuntimeError> {
            panic!("of course")
        }

        async fn get_latest_snapshot(
            &self,
            _: &InvocationContext,
            _: &str,
        ) -> Result<Option<SessionSnapshot>, RuntimeError> {
            Err(RuntimeError::new(Status::Unavailable, "gone"))
        }
    }
    #[async_trait]
    impl SnapshotWriter for Panics {
        async fn save_snapshot(
            &self,
            _: &InvocationContext,
            _: Option<&str>,
            _: &SnapshotUpdate<'_>,
        ) -> Result<Option<SessionSnapshot>, RuntimeError> {
            panic!("of course")
        }
    }
    impl SessionStore for Panics {}

    let report = conformance::run(&|| async { Stores::new(Arc::new(Panics)) }).await;
    assert_eq!(report.passed(), Vec::<&str>::new());
    let text = report.to_string();
    assert!(text.contains("FAILED   save_uses_the_given_id: the store panicked"), "{text}");
}
