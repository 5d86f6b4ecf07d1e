mod broken;
mod memory;
