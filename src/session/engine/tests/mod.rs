//! The engine against random lives: `world` does what a driver does, `invariants` watches.
//!
//! A life that breaks an invariant is shortened as far as it still does, and printed as a recording
//! that `antiphon replay` and `antiphon explain` read. What a life by chance seldom shows is played by
//! hand in `scenes`.

mod able;
mod fault;
mod invariants;
mod scenes;
mod steps;
mod world;

use std::{cell::RefCell, env, panic::catch_unwind};

use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};

use self::{
    fault::Fault,
    invariants::Invariants,
    steps::{KINDS, Pairs, Step, step},
    world::World,
};
use crate::session::recording::{self, Act};

/// Steps of one case; a life that ends early is followed by another.
const STEPS: usize = 400;
/// Cases of one test in the gate, where `PROPTEST_CASES` does not say. Four tests take 200,000
/// steps.
const CASES: u32 = 140;

/// Lives one case. What was broken, if anything was.
fn live(able: u8, steps: &[Step], fault: Fault, pairs: &mut Pairs) -> Result<(), String> {
    let mut world = World::new(able, fault, false);
    let mut last = None;
    for step in steps {
        if world.has_ended() {
            world.finish()?;
            world = World::new(able, fault, false);
            last = None;
        }
        if world.step(step)? {
            pairs.met(last, step);
            last = Some(step);
        }
    }
    world.finish()
}

/// The life in which a case breaks, as a recording.
fn script(able: u8, steps: &[Step], fault: Fault) -> String {
    let mut world = World::new(able, fault, true);
    for step in steps {
        if world.has_ended() {
            if world.finish().is_err() {
                return world.script();
            }
            world = World::new(able, fault, true);
        }
        if world.step(step).is_err() {
            return world.script();
        }
    }
    let _ = world.finish();
    world.script()
}

/// A case that breaks, shortened.
struct Broken {
    why: String,
    able: u8,
    steps: Vec<Step>,
}

/// Leaves out steps as long as something is broken all the same: first many at a time, then one.
fn shorten(able: u8, mut steps: Vec<Step>, fault: Fault, mut why: String) -> Broken {
    let mut length = steps.len() / 2;
    while length > 0 {
        let (mut from, before) = (0, steps.len());
        while from < steps.len() {
            let to = (from + length).min(steps.len());
            let without: Vec<_> = [&steps[..from], &steps[to..]].concat();
            match live_caught(able, &without, fault) {
                Ok(()) => from = to,
                Err(broken) => (steps, why) = (without, broken),
            }
        }
        if length > 1 || steps.len() == before {
            length /= 2;
        }
    }
    Broken { why, able, steps }
}

/// [`live`], where a panic breaks like anything else.
fn live_caught(able: u8, steps: &[Step], fault: Fault) -> Result<(), String> {
    let lived = catch_unwind(|| live(able, steps, fault, &mut Pairs::default()));
    lived.unwrap_or_else(|_| Err("it panicked".into()))
}

/// Lives many cases; also how often each pair of steps met.
fn live_many(seed: u8, cases: u32, fault: Fault) -> (Result<(), Broken>, Pairs) {
    let config = Config {
        cases,
        failure_persistence: None,
        // What breaks is shortened by `shorten`, which is faster.
        max_shrink_iters: 0,
        ..Config::default()
    };
    let mut runner = match env::var_os("PROPTEST_CASES") {
        // The long runs look for what the others do not see.
        Some(_) => TestRunner::new(config),
        None => {
            let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
            TestRunner::new_with_rng(config, rng)
        }
    };
    let pairs = RefCell::new(Pairs::default());
    let cases = (any::<u8>(), prop::collection::vec(step(), STEPS));
    let lived = runner.run(&cases, |(able, steps)| {
        live(able, &steps, fault, &mut pairs.borrow_mut()).map_err(TestCaseError::fail)
    });
    let lived = lived.map_err(|error| match error {
        TestError::Fail(why, (able, steps)) => {
            shorten(able, steps, fault, why.message().to_owned())
        }
        TestError::Abort(why) => panic!("{why}"),
    });
    (lived, pairs.into_inner())
}

/// One of the four tests of the gate.
fn whatever_happens(seed: u8) {
    // A case here has many times the steps of others: 20,000 make a million steps of each test.
    let asked = env::var_os("PROPTEST_CASES").map(|_| Config::default().cases / 8);
    let cases = asked.unwrap_or(CASES).max(1);
    let (lived, pairs) = live_many(seed, cases, Fault::None);
    if let Err(Broken { why, able, steps }) = lived {
        println!("{}", script(able, &steps, Fault::None));
        panic!("{why}\nafter {steps:?} of {able}; as a recording above");
    }
    println!("{pairs}");
    let never = pairs.never();
    assert!(never.is_empty() || cases < CASES, "these never met: {never:?}");
}

#[test]
fn whatever_happens_the_invariants_hold_1() {
    whatever_happens(1);
}

#[test]
fn whatever_happens_the_invariants_hold_2() {
    whatever_happens(2);
}

#[test]
fn whatever_happens_the_invariants_hold_3() {
    whatever_happens(3);
}

#[test]
fn whatever_happens_the_invariants_hold_4() {
    whatever_happens(4);
}

/// Watches a recorded life with the same eyes, and through the same fault.
fn watch(script: &str, fault: Fault) -> (recording::Replayed, Option<String>) {
    let mut watch = Invariants::default();
    let replayed = recording::watch(script.as_bytes(), |scene| match scene.act {
        Act::Input(input) => watch.input(input),
        Act::Timeout => {}
        Act::Output(output) => fault.watch(output, scene.engine, &mut watch),
    });
    (replayed.unwrap(), watch.broken)
}

#[test]
fn a_fault_is_found_and_shrinks_to_a_script_that_replays() {
    for (fault, why) in [
        (Fault::PlaysOn, "which is over"),
        (Fault::AnswersTwice, "two outputs on the wire"),
        (Fault::ClaimsToBeHeard, "truncates"),
        (Fault::EndsTwice, "after the last event"),
    ] {
        let (lived, _) = live_many(7, CASES, fault);
        let Err(broken) = lived else { panic!("{fault:?} was not found") };
        assert!(broken.why.contains(why), "{fault:?}: {}", broken.why);
        let Broken { able, steps, .. } = broken;
        assert!(steps.len() <= 12, "{fault:?} takes {} steps: {steps:?}", steps.len());
        assert!(
            live(able, &steps, Fault::None, &mut Pairs::default()).is_ok(),
            "no fault, no harm"
        );

        let script = script(able, &steps, fault);
        println!("{fault:?} by {steps:?}:\n{script}");
        let (replayed, broken) = watch(&script, fault);
        assert!(replayed.difference.is_none(), "{replayed}");
        assert!(broken.is_some_and(|broken| broken.contains(why)), "{fault:?} replays");
        assert_eq!(watch(&script, Fault::None).1, None);
    }
}

#[test]
fn an_engine_that_does_otherwise_than_its_recording_is_told_apart() {
    let steps = [Step::Start { reply: 1, answers: false }, Step::Voice { ms: 500 }];
    let script = script(63, &steps, Fault::None);
    assert!(recording::replay(script.as_bytes()).unwrap().is_same());
    let longer = script.replace(r#""zeros":24000"#, r#""zeros":24002"#);
    let replayed = recording::replay(longer.as_bytes()).unwrap();
    let difference = replayed.difference.unwrap().to_string();
    assert!(difference.contains("Play"), "{difference}");
    assert_eq!(KINDS.len(), 19);
}
