//! Code that must not compile, with what the compiler says of it. After a change on purpose
//! `TRYBUILD=overwrite` writes that anew.

#[test]
fn nothing_runs_that_was_not_admitted() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/runs_once.rs");
    cases.compile_fail("tests/ui/made_by_hand.rs");
    cases.compile_fail("tests/ui/copied.rs");
    cases.compile_fail("tests/ui/runs_twice.rs");
    cases.compile_fail("tests/ui/verdict_alone.rs");
    cases.compile_fail("tests/ui/body_by_hand.rs");
}
