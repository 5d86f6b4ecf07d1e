mod in_process;
mod interleaved;
mod recorded;
mod replay;
mod scripted;
mod turns;
