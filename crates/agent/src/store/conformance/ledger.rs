//! The account of tool calls.

use antiphon_types::ToolCall;
use serde_json::json;

use super::bench::{Bench, Checked, Failure, broken, ensure, refused, same};
use crate::{
    Outcome, RuntimeError,
    ledger::{CallChange, CallLedger, CallRecord, CallState},
};

impl Bench {
    fn ledger(&self) -> Checked<&dyn CallLedger> {
        let none = || Failure::Skipped("the store keeps no account of calls".into());
        self.store.call_ledger().ok_or_else(none)
    }

    /// A call of the session that runs since now.
    fn call(&self, name: &str) -> CallRecord {
        let mut args = antiphon_types::JsonObject::new();
        args.insert("amount".into(), json!(1.5));
        args.insert("deep".into(), json!([{ "ä": null }]));
        let call = ToolCall { id: name.into(), name: "pay".into(), args };
        let mut record = CallRecord::new(self.id(name), self.session(), &call, self.now());
        record.snapshot_id = Some(self.id("snapshot").into());
        record
    }

    async fn write_call(&self, record: &CallRecord) -> Checked {
        let write = |_: Option<&CallRecord>| Ok(CallChange::Write(Box::new(record.clone())));
        let written = self.ledger()?.save_call(&self.cx, &record.key, &write).await?;
        same("what save_call returned", &written.as_ref(), &Some(record))
    }

    async fn call_is(&self, name: &str, expected: Option<&CallRecord>) -> Checked {
        let found = self.ledger()?.call(&self.cx, &self.id(name)).await?;
        same("the record", &found.as_ref(), &expected)
    }

    async fn open(&self) -> Checked<Vec<CallRecord>> {
        Ok(self.ledger()?.open_calls(&self.cx, Some(&self.session())).await?)
    }
}

pub(super) async fn keeps_what_it_is_given(bench: Bench) -> Checked {
    let mut call = bench.call("one");
    bench.call_is("one", None).await?;
    bench.write_call(&call).await?;
    bench.call_is("one", Some(&call)).await?;
    let at = bench.now();
    let (output, detail) = (json!({ "paid": [1, "x"] }), Some("in words".to_owned()));
    call.state = CallState::Ended { at, outcome: Outcome::Success, output, detail };
    bench.write_call(&call).await?;
    bench.call_is("one", Some(&call)).await?;
    let keep = bench.ledger()?.save_call(&bench.cx, &call.key, &|_| Ok(CallChange::Keep)).await?;
    same("what save_call returned", &keep, &Some(call))
}

pub(super) async fn lists_what_is_not_settled_in_order(bench: Bench) -> Checked {
    let calls = [bench.call("b"), bench.call("a"), bench.call("c")];
    for call in &calls {
        bench.write_call(call).await?;
    }
    same("the open calls", &bench.open().await?[..], &calls[..])?;
    let mut settled = calls[1].clone();
    settled.settled = true;
    bench.write_call(&settled).await?;
    same("the open calls", &bench.open().await?, &vec![calls[0].clone(), calls[2].clone()])?;
    bench.call_is("a", Some(&settled)).await?;
    let all = bench.ledger()?.open_calls(&bench.cx, None).await?;
    ensure(calls[2..].iter().all(|call| all.contains(call)), "an open call is not in the list")?;
    let other = bench.ledger()?.open_calls(&bench.cx, Some(&bench.id("other"))).await?;
    same("the open calls of another session", &other, &Vec::new())
}

pub(super) async fn forgets_what_is_removed(bench: Bench) -> Checked {
    let call = bench.call("one");
    bench.write_call(&call).await?;
    let remove = |_: Option<&CallRecord>| Ok(CallChange::Remove);
    let removed = bench.ledger()?.save_call(&bench.cx, &call.key, &remove).await?;
    same("what save_call returned", &removed, &None)?;
    bench.call_is("one", None).await?;
    same("the open calls", &bench.open().await?, &Vec::new())?;
    let again = bench.ledger()?.save_call(&bench.cx, &call.key, &remove).await?;
    same("what save_call returned", &again, &None)
}

pub(super) async fn leaves_all_as_it_is_where_the_update_errs(bench: Bench) -> Checked {
    let call = bench.call("one");
    bench.write_call(&call).await?;
    let fails = |_: Option<&CallRecord>| Err(RuntimeError::internal("no"));
    let failed = bench.ledger()?.save_call(&bench.cx, &call.key, &fails).await;
    ensure(failed.is_err_and(|error| error.to_string() == "no"), "the error was not passed on")?;
    bench.call_is("one", Some(&call)).await?;
    refused("an empty key", bench.ledger()?.call(&bench.cx, "").await)?;
    refused("an empty key", bench.ledger()?.save_call(&bench.cx, "", &fails).await)
}

/// Of many who want the same call, one gets it.
pub(super) async fn lets_one_of_many_win(bench: Bench) -> Checked {
    let mut call = bench.call("one");
    call.state = CallState::Waiting;
    bench.write_call(&call).await?;
    let stores = [Some(&bench.store), bench.second.as_ref()];
    let stores: Vec<_> = stores.into_iter().flatten().collect();
    let (now, key) = (bench.now(), &call.key);
    let claims = (0..8).map(|number| {
        let (store, cx) = (stores[number % stores.len()].clone(), bench.cx.clone());
        async move {
            let claim = |record: Option<&CallRecord>| {
                let mut record = record.cloned().ok_or_else(|| RuntimeError::internal("gone"))?;
                if !record.is_waiting() {
                    return Err(RuntimeError::FailedPrecondition("taken".into()));
                }
                record.state = CallState::Running { since: now, lease: None };
                record.turn = number as u64;
                Ok(CallChange::Write(Box::new(record)))
            };
            match store.call_ledger() {
                Some(ledger) => ledger.save_call(&cx, key, &claim).await.ok().flatten(),
                None => None,
            }
        }
    });
    let claimed = futures_util::future::join_all(claims).await;
    let winners: Vec<_> = claimed.into_iter().flatten().collect();
    let [winner] = &winners[..] else {
        return broken(format_args!("{} claimed the call", winners.len()));
    };
    bench.call_is("one", Some(winner)).await
}

pub(super) async fn keeps_tenants_apart(bench: Bench) -> Checked {
    let (mine, other) = (bench.scoped("tenant"), bench.scoped("tenant-2"));
    let call = mine.call("one");
    mine.write_call(&call).await?;
    other.call_is("one", None).await?;
    bench.call_is("one", None).await?;
    same("the open calls of another tenant", &other.open().await?, &Vec::new())?;
    let mut own = other.call("one");
    own.turn = 7;
    other.write_call(&own).await?;
    mine.call_is("one", Some(&call)).await
}
