//! A setting that can be left alone, cleared, or set.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A setting of an update: absent, `null`, or a value. In a snapshot of a session
/// [`Patch::Clear`] reads as "off".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Absent: stays as it is.
    #[default]
    Keep,
    /// `null`: off.
    Clear,
    /// A new value.
    Set(T),
}

impl<T> Patch<T> {
    /// Whether the key is absent.
    pub const fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    /// The value, if one is set.
    pub const fn value(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Keep | Self::Clear => None,
        }
    }

    /// What `self` is after `update`.
    pub fn apply(&mut self, update: Self) {
        if !update.is_keep() {
            *self = update;
        }
    }
}

impl<T> From<T> for Patch<T> {
    fn from(value: T) -> Self {
        Self::Set(value)
    }
}

impl<T: Serialize> Serialize for Patch<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}
