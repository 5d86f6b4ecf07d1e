mod admit;
mod run;
