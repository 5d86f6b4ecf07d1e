//! What code outside of Antiphon cannot do: see the tests. They are a crate of their own, so that each case is
//! compiled as a user's code would be, and with no more of Antiphon than it needs.
