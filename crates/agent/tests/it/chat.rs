mod in_process;
mod recorded;
mod replay;
mod scripted;
mod turns;
