//! Ready-made policies.
