//! Whether somebody speaks, and when a turn begins and ends.

mod detector;
mod turn;

pub use detector::{EarshotDetector, EnergyDetector, SpeechDetector};
pub use turn::{TurnConfig, TurnDetector, TurnEvent};
