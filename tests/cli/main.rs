//! Runs the real program as a user would.
