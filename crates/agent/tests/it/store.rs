mod broken;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
