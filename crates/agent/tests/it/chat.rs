mod recorded;
mod replay;
mod scripted;
mod turns;
