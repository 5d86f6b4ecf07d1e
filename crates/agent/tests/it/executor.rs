mod admit;
mod edges;
mod run;
mod waiting;
