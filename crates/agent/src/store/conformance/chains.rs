//! Conversations over many rows.

use std::sync::Arc;

use serde_json::json;

use super::bench::{Bench, Checked};
use crate::{
    Artifact, Message, Part,
    state::{SessionSnapshot, SessionState, SnapshotStatus, add_artifact},
};

/// Says more in `state`, sharing what was said before.
fn extended(state: &SessionState, turn: usize) -> SessionState {
    let mut state = state.clone();
    state.messages.push(Message::user(format!("question {turn}")));
    state.messages.push(Message::model(format!("answer {turn}")));
    state.custom =
        Some(json!({ "turn": turn, "last": [turn, { "even": turn.is_multiple_of(2) }] }));
    state
}

pub(super) async fn linear_chain_reads_back_every_row(bench: Bench) -> Checked {
    const TURNS: usize = 60;
    let mut state = bench.state("start");
    let mut rows: Vec<SessionSnapshot> = Vec::new();
    for turn in 0..TURNS {
        state = extended(&state, turn);
        if turn == TURNS / 2 {
            // The host compacts the conversation.
            let last = state.messages.iter().skip(state.messages.len() - 4).cloned();
            let summary = Arc::new(Message::system("They talked about questions."));
            state.messages = std::iter::once(summary).chain(last).collect();
        }
        if turn.is_multiple_of(7) {
            let content = vec![Part::text(format!("version {turn}"))];
            add_artifact(&mut state.artifacts, Arc::new(Artifact::new("doc", content)));
        }
        let name = format!("turn-{turn:02}");
        let mut row = bench.row("");
        row.parent_id = rows.last().map(|parent| parent.snapshot_id.clone());
        row.state = Some(state.clone());
        if turn == 40 {
            // A turn in the background: a row without state first.
            let mut pending = bench.pending();
            pending.parent_id = row.parent_id.clone();
            let pending = bench.put(&name, pending).await?;
            row.created_at = pending.created_at;
        }
        rows.push(bench.put(&name, row).await?);
    }
    for (turn, row) in rows.iter().enumerate() {
        bench.reads(&format!("turn-{turn:02}"), row).await?;
    }
    bench.latest_is("turn-59").await
}

pub(super) async fn branches_read_back_independently(bench: Bench) -> Checked {
    let root = bench.put("root", bench.row("root")).await?;
    let mut rows = vec![("root".to_owned(), root.clone())];
    for branch in ["left", "right"] {
        let mut parent = root.clone();
        for turn in 0..5 {
            let mut state = extended(&parent.state.clone().unwrap_or_default(), turn);
            state.messages.push(Message::user(branch));
            let row = SessionSnapshot {
                parent_id: Some(parent.snapshot_id.clone()),
                state: Some(state),
                ..bench.row("")
            };
            let name = format!("{branch}-{turn}");
            parent = bench.put(&name, row).await?;
            rows.push((name, parent.clone()));
        }
    }
    for (name, row) in &rows {
        bench.reads(name, row).await?;
    }
    bench.latest_is("right-4").await
}

pub(super) async fn leaf_rewrite_keeps_ancestors(bench: Bench) -> Checked {
    let root = bench.put("root", bench.row("root")).await?;
    let state = root.state.clone().unwrap_or_default();
    let leaf = SessionSnapshot {
        parent_id: Some(root.snapshot_id.clone()),
        state: Some(extended(&state, 0)),
        ..bench.row("")
    };
    let leaf = bench.put("leaf", leaf).await?;
    // The second message, which both rows share, and the custom state become others.
    let mut rewritten = extended(&state, 1);
    rewritten.messages.replace(1, Message::model("No."));
    let rewritten = SessionSnapshot {
        status: Some(SnapshotStatus::Failed),
        updated_at: Some(bench.now()),
        state: Some(rewritten),
        ..leaf
    };
    bench.put("leaf", rewritten.clone()).await?;
    bench.reads("root", &root).await?;
    bench.reads("leaf", &rewritten).await
}
