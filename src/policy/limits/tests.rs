use std::sync::Arc;

use antiphon_agent::{Caller, InMemory, InvocationContext};
use antiphon_types::JsonObject;
use proptest::prelude::*;
use serde_json::json;

use super::{window::Window, *};

fn at(millisecond: i64) -> Timestamp {
    Timestamp::from_millisecond(millisecond).unwrap()
}

fn draw(amount: u64, calls: Option<u64>, max: Option<u64>) -> Draw {
    Draw {
        limit: "limit".into(),
        key: "key".into(),
        window: Duration::from_secs(60),
        amount,
        max_calls: calls,
        max_amount: max,
    }
}

fn stores(directory: &std::path::Path) -> Vec<Box<dyn LimitStore>> {
    let mut stores: Vec<Box<dyn LimitStore>> = vec![Box::new(InMemoryLimits::new())];
    if cfg!(feature = "sqlite") {
        stores.extend(sqlite(&directory.join("limits.db")));
    }
    stores
}

#[cfg(feature = "sqlite")]
fn sqlite(path: &std::path::Path) -> Option<Box<dyn LimitStore>> {
    Some(Box::new(SqliteLimits::open(path).unwrap()))
}

#[cfg(not(feature = "sqlite"))]
fn sqlite(_: &std::path::Path) -> Option<Box<dyn LimitStore>> {
    None
}

fn taken(store: &dyn LimitStore, now: i64, draw: &Draw) -> Option<ReservationId> {
    match store.reserve(at(now), std::slice::from_ref(draw)).unwrap() {
        Reserved::Yes(id) => Some(id),
        Reserved::No { .. } => None,
    }
}

#[test]
fn what_is_taken_counts_until_its_window_is_over_or_it_is_given_back() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let store = &*store;
        let draw = draw(40, None, Some(100));
        let first = taken(store, 0, &draw).unwrap();
        let second = taken(store, 30_000, &draw).unwrap();
        assert_eq!(
            store.reserve(at(30_000), std::slice::from_ref(&draw)).unwrap(),
            Reserved::No { limit: "limit".into(), until: Some(at(61_000)) }
        );
        assert_eq!(taken(store, 60_999, &draw), None);
        store.settle(first).unwrap();
        store.give_back(first).unwrap();
        assert_eq!(taken(store, 30_000, &draw), None, "settled is settled");
        store.give_back(second).unwrap();
        store.give_back(second).unwrap();
        let spent = store.spent(at(30_000), std::slice::from_ref(&draw)).unwrap();
        assert_eq!(spent, [Spent::new("limit", 1, 40)], "given back once only");
        assert!(taken(store, 30_000, &draw).is_some());
        assert!(taken(store, 61_000, &draw).is_some());
        assert!(taken(store, 61_001, &draw).is_none());
    }
}

#[test]
fn more_than_the_limit_never_fits_and_calls_are_counted_too() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let store = &*store;
        let never = store.reserve(at(0), &[draw(101, None, Some(100))]).unwrap();
        assert_eq!(never, Reserved::No { limit: "limit".into(), until: None });
        let huge = draw(u64::MAX / 2, None, Some(u64::MAX / 2));
        assert!(taken(store, 0, &huge).is_some());
        assert_eq!(taken(store, 1, &huge), None, "sums that overflow do not fit");
        let twice = Draw { key: "calls".into(), ..draw(0, Some(2), None) };
        assert!(taken(store, 0, &twice).is_some() && taken(store, 1, &twice).is_some());
        assert_eq!(taken(store, 2, &twice), None);
        assert_eq!(taken(store, 2, &Draw { key: "none".into(), ..draw(0, Some(0), None) }), None);
    }
}

#[test]
fn a_call_takes_from_all_its_limits_or_from_none() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let wide = Draw { limit: "wide".into(), key: "wide".into(), ..draw(10, None, Some(1000)) };
        let tight = Draw { limit: "tight".into(), key: "tight".into(), ..draw(10, None, Some(10)) };
        let both = [wide.clone(), tight];
        assert!(matches!(store.reserve(at(0), &both).unwrap(), Reserved::Yes(_)));
        let refused = store.reserve(at(0), &both).unwrap();
        assert!(matches!(refused, Reserved::No { limit, .. } if *limit == *"tight"));
        assert_eq!(store.spent(at(0), &[wide]).unwrap(), [Spent::new("wide", 1, 10)]);
    }
}

#[test]
fn a_clock_that_is_set_back_frees_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let store = &*store;
        let draw = draw(100, None, Some(100));
        assert!(taken(store, 1_000_000, &draw).is_some());
        for now in [900_000, 0, -5_000_000, 1_000_001] {
            assert_eq!(taken(store, now, &draw), None, "{now}");
        }
        // An hour ahead, for one call, and back.
        let ahead = Draw { key: "other".into(), ..draw.clone() };
        assert!(taken(store, 1_000_000, &ahead).is_some());
        assert!(taken(store, 1_065_000, &ahead).is_some());
        assert_eq!(taken(store, 1_000_000, &ahead), None);
    }
}

#[test]
fn a_window_that_is_changed_forgets_nothing_and_blocks_nobody() {
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let store = &*store;
        let day = Draw { window: Duration::from_millis(DAY as u64), ..draw(60, None, Some(100)) };
        let week = Draw { window: day.window * 7, ..day.clone() };
        let now = 1_700_000_000_000;
        assert!(taken(store, now, &day).is_some());
        // The same day, whatever the window is now: longer, shorter, and back.
        for other in [&week, &day, &Draw { window: Duration::from_secs(60), ..day.clone() }, &week]
        {
            assert_eq!(taken(store, now + 1_000, other), None, "{other:?}");
        }
        // Two days later it still counts for the week, and not for the day.
        assert_eq!(taken(store, now + 2 * DAY, &week), None);
        let refused = store.reserve(at(now + 2 * DAY), std::slice::from_ref(&week)).unwrap();
        let Reserved::No { until: Some(until), .. } = refused else { panic!("{refused:?}") };
        let days = (until.as_millisecond() - now) as f64 / DAY as f64;
        assert!((7.0..7.2).contains(&days), "{days} days");
        assert!(taken(store, now + 2 * DAY, &day).is_some());
        // What was taken by the shorter window counts for the longer one.
        assert_eq!(taken(store, now + 8 * DAY, &week), None);
        assert!(taken(store, now + 10 * DAY, &week).is_some());
    }
}

#[test]
fn a_clock_that_jumps_ahead_for_a_call_forgets_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for store in stores(directory.path()) {
        let store = &*store;
        let draw = draw(100, None, Some(100));
        assert!(taken(store, 1_000_000, &draw).is_some());
        assert!(taken(store, 90_000_000, &draw).is_some());
        assert_eq!(taken(store, 1_000_000, &draw), None);
        let spent = store.spent(at(1_000_000), std::slice::from_ref(&draw)).unwrap();
        assert_eq!(spent, [Spent::new("limit", 2, 200)]);
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn a_restart_resets_nothing_and_other_databases_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.db");
    let draw = draw(60, None, Some(100));
    assert!(taken(&SqliteLimits::open(&path).unwrap(), 0, &draw).is_some());
    let again = SqliteLimits::open(&path).unwrap();
    assert_eq!(taken(&again, 1, &draw), None);

    let other = directory.path().join("other.db");
    rusqlite::Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let error = SqliteLimits::open(&other).unwrap_err().to_string();
    assert!(error.contains("another program's"), "{error}");
    std::fs::write(directory.path().join("text"), "no database at all, but some text").unwrap();
    assert!(SqliteLimits::open(directory.path().join("text")).is_err());
    assert!(SqliteLimits::open(directory.path().join("no/such/directory")).is_err());
}

/// What a process of the test below does.
#[cfg(feature = "sqlite")]
#[test]
fn worker() {
    let Some(path) = std::env::var_os("ANTIPHON_LIMITS_WORKER") else { return };
    let store = SqliteLimits::open(path).unwrap();
    for _ in 0..4 {
        let now = Timestamp::now();
        match store.reserve(now, &[hundred()]).unwrap() {
            Reserved::Yes(id) => {
                println!("took {}", id.0);
                store.settle(id).unwrap();
            }
            Reserved::No { .. } => println!("full"),
        }
    }
}

#[cfg(feature = "sqlite")]
fn hundred() -> Draw {
    Draw { window: Duration::from_secs(24 * 60 * 60), ..draw(100, None, Some(5_000)) }
}

#[cfg(feature = "sqlite")]
#[test]
fn fifty_processes_on_one_file_cannot_overspend() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.db");
    let program = std::env::current_exe().unwrap();
    // The name of this test is that of its thread.
    let here = std::thread::current().name().unwrap_or_default().to_owned();
    let name = here.rsplit_once("::").map_or("worker".to_owned(), |(m, _)| format!("{m}::worker"));
    let started: Vec<_> = (0..50)
        .map(|_| {
            std::process::Command::new(&program)
                .args(["--exact", name.as_str(), "--nocapture"])
                .env("ANTIPHON_LIMITS_WORKER", &path)
                .stdout(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut taken = Vec::new();
    for process in started {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        taken.extend(text.lines().filter(|line| line.starts_with("took ")).map(str::to_owned));
    }
    assert_eq!(taken.len(), 50, "of 200 that were asked for");
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 50, "each reservation has a name of its own");
    let store = SqliteLimits::open(&path).unwrap();
    let spent = store.spent(Timestamp::now(), &[hundred()]).unwrap();
    assert_eq!(spent, [Spent::new("limit", 50, 5_000)]);
}

#[test]
fn nobody_has_the_count_of_another() {
    let context = |session: &str, caller: Option<Caller>| {
        let mut cx = CallContext::new(session, 1, Arc::new(InMemory::new()));
        if let Some(caller) = caller {
            cx.invocation = InvocationContext::new().with_caller(caller);
        }
        cx
    };
    let call = |name: &str, cents: i64| ToolCall {
        id: "1".into(),
        name: name.into(),
        args: JsonObject::from_iter([("cents".to_owned(), json!(cents))]),
    };
    let limit = Limit::new("l", "pay_*", Duration::from_secs(60)).unwrap();
    let key = |limit: &Limit, cx: &CallContext| {
        limit.draw(cx, &call("pay_in", 5)).map(|draw| draw.unwrap().key)
    };
    assert_eq!(limit.draw(&context("s", None), &call("look", 5)), Ok(None));
    assert_eq!(key(&limit, &context("s", None)), key(&limit, &context("t", None)));
    let per = limit.clone().per(Per::Caller);
    assert!(key(&per, &context("s", None)).is_err());
    assert!(key(&per, &context("s", Some(Caller::new("")))).is_err());
    let ann = |scope: &str| Some(Caller::new("ann").scope(scope));
    assert_ne!(key(&per, &context("s", ann("a"))), key(&per, &context("s", ann("b"))));
    assert_eq!(key(&per, &context("s", ann("a"))), key(&per, &context("t", ann("a"))));
    let quoted = Some(Caller::new("ann\",\"a"));
    assert_ne!(key(&per, &context("s", quoted)), key(&per, &context("s", ann("a"))));
    assert!(key(&limit.clone().per(Per::Tenant), &context("s", Some(Caller::new("a")))).is_err());
    let session = limit.clone().per(Per::Session);
    assert_ne!(key(&session, &context("s", None)), key(&session, &context("t", None)));
    let tool = limit.clone().per(Per::Tool);
    let of = |name| tool.draw(&context("s", None), &call(name, 5)).unwrap().unwrap().key;
    assert_ne!(of("pay_in"), of("pay_out"));
    let cents = limit.amount(AmountField::minor("cents"), 100);
    assert_eq!(cents.draw(&context("s", None), &call("pay_in", 7)).unwrap().unwrap().amount, 7);
    assert!(cents.draw(&context("s", None), &call("pay_in", -7)).is_err());
}

proptest! {
    /// Within no window of time is more used than the limit says, whatever the calls are.
    #[test]
    fn no_window_holds_more_than_the_limit(
        calls in prop::collection::vec((0_i64..40_000, 0_u64..60, any::<bool>()), 1..60),
    ) {
        let store = InMemoryLimits::new();
        let (mut now, mut used) = (0, Vec::new());
        for (pause, amount, kept) in calls {
            now += pause;
            let draw = draw(amount, Some(5), Some(100));
            let Some(id) = taken(&store, now, &draw) else { continue };
            match kept {
                true => used.push((now, amount)),
                false => store.give_back(id).unwrap(),
            }
        }
        for (start, _) in &used {
            let within: Vec<_> =
                used.iter().filter(|(at, _)| (*start..start + 60_000).contains(at)).collect();
            prop_assert!(within.len() <= 5);
            prop_assert!(within.iter().map(|(_, amount)| amount).sum::<u64>() <= 100);
        }
    }

    /// When a limit says from when on there is room, there is then, and none a moment before.
    #[test]
    fn until_is_when_there_is_room(
        uses in prop::collection::vec((0_i64..20_000, 1_u64..60), 1..20),
        length in 1_u64..200_000,
    ) {
        let store = InMemoryLimits::new();
        let mut now = 0;
        for (pause, amount) in uses {
            now += pause;
            let draw = Draw { window: Duration::from_millis(length), ..draw(amount, None, Some(100)) };
            if let Reserved::No { until, .. } = store.reserve(at(now), std::slice::from_ref(&draw)).unwrap() {
                let until = until.unwrap().as_millisecond();
                prop_assert!(until > now);
                let used = store.spent(at(until - 1), std::slice::from_ref(&draw)).unwrap()[0].amount;
                prop_assert!(used + amount > 100, "there was room before");
                let used = store.spent(at(until), &[draw]).unwrap()[0].amount;
                prop_assert!(used + amount <= 100, "there is no room yet");
            }
        }
    }

    #[test]
    fn no_time_and_no_length_overflows(now in any::<i64>(), length in any::<u64>()) {
        let now = Timestamp::from_millisecond(now).unwrap_or(Timestamp::MIN);
        let window = Window::of(Duration::from_millis(length));
        prop_assert!(window.forgettable(now, None) < window.begins(now));
        let (start, length) = window.step_of(now);
        prop_assert!(window.begins(now) < start.saturating_add(length));
        prop_assert!(start <= now.as_millisecond());
    }
}

#[test]
fn a_shorter_window_of_another_host_deletes_nothing_that_a_longer_one_counts() {
    let directory = tempfile::tempdir().unwrap();
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    for store in stores(directory.path()) {
        let store = &*store;
        let of = |seconds: u64| Draw {
            window: Duration::from_secs(seconds),
            ..draw(60, None, Some(100))
        };
        let (minute, day, week) = (of(60), of(86_400), of(7 * 86_400));
        assert!(taken(store, 0, &day).is_some());
        assert!(taken(store, DAY + 60_000 * 60, &minute).is_some(), "it has left its window");
        assert_eq!(store.spent(at(2 * DAY), std::slice::from_ref(&week)).unwrap()[0].amount, 120);
        assert!(taken(store, 2 * DAY, &week).is_none());
    }
}
