mod broken;
mod files;
mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
