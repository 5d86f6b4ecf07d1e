//! Tests of the live contract from outside.

mod conformance;
