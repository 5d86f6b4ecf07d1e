mod admit;
mod edges;
mod elsewhere;
mod run;
mod waiting;
