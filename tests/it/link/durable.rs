//! Over a store on disk.

use antiphon::agent::SqliteSessionStore;

use super::*;
use crate::rig::*;

#[tokio::test(start_paused = true)]
async fn what_is_told_as_committed_is_there_for_others_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turns.db");
    let store = SqliteSessionStore::open(&path).await.unwrap();
    let agent = speaking(Arc::new(store), Arc::default());
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    let others = SqliteSessionStore::open(&path).await.unwrap();
    let mut parent = None;
    for n in 1..4 {
        let row = rig.turn(&agent, &format!("Question {n}"), "Answer.").await;
        let theirs = others.get_snapshot(&cx(), &row.snapshot_id).await.unwrap().unwrap();
        assert_eq!((&theirs.parent_id, lines(&theirs).len()), (&parent, 2 * n));
        parent = Some(row.snapshot_id);
    }
    rig.session.shutdown(SECOND).await.unwrap();
    let agent = speaking(Arc::new(others), Arc::default());
    let mut rig = linked(&agent, |builder| builder.resume("s")).await;
    assert_eq!(rig.provider.requests()[0].history.len(), 6);
    assert_eq!(rig.turn(&agent, "Question 4", "Answer.").await.parent_id, parent);
}
