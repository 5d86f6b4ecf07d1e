//! Time: what comes from a carrier becomes a gapless stream, and what goes to it is sent in time and
//! accounted for. Pure: the caller says what time it is.

mod answering;
mod conceal;
mod digits;
mod intake;
mod playout;

pub use self::{
    answering::{AnsweringEar, Greeted},
    digits::{CollectEnd, Collected, DigitCollector, DigitRules},
    intake::{Intake, IntakeStats, Segment},
    playout::{Playout, PlayoutStats, Send},
};
