//! The engine against random inputs.
