//! How readily a detector fires.

use serde::{Deserialize, Serialize};

/// How readily a detector fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sensitivity {
    /// Late and sure.
    Low,
    /// In between.
    #[default]
    Medium,
    /// Early, at the price of false alarms.
    High,
}
