//! A conversation that is kept, turn by turn.

use std::{path::PathBuf, time::Duration};

use antiphon::{
    agent::{Agent, InvocationContext, Parking, RuntimeLimits, Voice},
    session::{OnHangup, SessionBuilder},
};

use crate::{
    args::{HangUp, TalkArguments},
    failure::Failure,
    store::Store,
};

/// Where a conversation is kept, and what it goes on from.
pub struct Kept {
    store: PathBuf,
    from: From,
    on_hangup: OnHangup,
    heartbeat: Option<Duration>,
    approve_within: Option<Duration>,
    cx: InvocationContext,
}

enum From {
    Nothing,
    Latest,
    Id(String),
}

impl Kept {
    /// What the command line says of it, if anything.
    pub fn new(arguments: &TalkArguments) -> Option<Self> {
        let from = match (&arguments.resume, arguments.resume_latest) {
            (Some(id), _) => From::Id(id.clone()),
            (None, true) => From::Latest,
            (None, false) => From::Nothing,
        };
        let on_hangup = match arguments.on_hangup {
            HangUp::Abort => OnHangup::Abort,
            HangUp::Detach => OnHangup::Detach,
        };
        Some(Self {
            store: arguments.store.clone()?,
            from,
            on_hangup,
            heartbeat: arguments.heartbeat,
            approve_within: arguments.approve_within,
            cx: arguments.who.context(),
        })
    }

    /// Opens the store.
    pub async fn open(&self) -> Result<Store, Failure> {
        Store::open(&self.store).await
    }

    /// Has each turn of the session kept in it.
    pub async fn link(
        &self,
        store: &Store,
        builder: SessionBuilder,
    ) -> Result<SessionBuilder, Failure> {
        let cx = &self.cx;
        let from = match &self.from {
            From::Nothing => None,
            From::Latest => Some(store.latest(cx).await?),
            From::Id(id) => match store.find(cx, id).await {
                Ok(found) => Some(found),
                // One that was killed in its first turn has no snapshot, but may have calls.
                Err(_) if store.has_calls(cx, id).await? => None,
                Err(nothing) => return Err(nothing),
            },
        };
        let mut limits = RuntimeLimits::default();
        if let Some(heartbeat) = self.heartbeat {
            (limits.heartbeat, limits.stale_after) = (heartbeat, heartbeat * 2);
        }
        let mut parking = Parking::default();
        parking.expires_after = self.approve_within.or(parking.expires_after);
        // The tools are the session's own, and so are the instructions.
        let agent: Agent =
            Agent::custom("talk", |_cx, _responder, runner| async move { Ok(runner.result()) })
                .voice(Voice::new(""))
                .shared_store(store.shared())
                .limits(limits)
                .build();
        // Beside the words of the conversation they give nothing away.
        let handles = store.memory().await?;
        let builder = builder.agent(&agent).on_hangup(self.on_hangup).parking(parking);
        let builder = builder.keep_handles(handles);
        Ok(match from {
            Some(from) => match (&self.from, from.session_id) {
                (From::Id(id), _) if **id == *from.snapshot_id => {
                    builder.resume_snapshot(from.snapshot_id)
                }
                // By its session it goes on from before work that was left behind and lost.
                (_, Some(session)) => builder.resume(session),
                (_, None) => builder.resume_snapshot(from.snapshot_id),
            },
            None => match &self.from {
                From::Id(id) => builder.resume(id.as_str()),
                From::Latest | From::Nothing => builder,
            },
        })
    }
}
