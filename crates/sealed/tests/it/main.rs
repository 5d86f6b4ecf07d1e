//! Code that must not compile.

#[test]
fn an_admitted_call_is_made_by_admit_alone() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/runs_once.rs");
    cases.compile_fail("tests/ui/made_by_hand.rs");
}
