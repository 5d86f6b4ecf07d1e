//! Time and date.

use antiphon_agent::{Effects, FuncTool, Tool};
use antiphon_types::ToolSpeech;
use jiff::ZonedDateTime;
use serde_json::json;

use super::output;

/// The tool `clock`: the local time.
pub fn clock() -> impl Tool {
    FuncTool::new("clock", "Tells the local time and date.", None, |_, _| async {
        Ok(describe(&ZonedDateTime::now()))
    })
    .effects(Effects::ReadOnly)
    .speech(
        ToolSpeech::phrases([
            "what time is it",
            "what is the time",
            "tell me the time",
            "what's the current time",
            "do you know what time it is",
            "what time is it now",
            "how late is it",
        ])
        .answer("It is {time}."),
    )
}

/// The tool `today`: the local date.
pub fn today() -> impl Tool {
    FuncTool::new("today", "Tells today's date and day of the week.", None, |_, _| async {
        Ok(describe(&ZonedDateTime::now()))
    })
    .effects(Effects::ReadOnly)
    .speech(
        ToolSpeech::phrases([
            "what day is it",
            "what day is it today",
            "what is the date",
            "what is today's date",
            "tell me the date",
            "which day is today",
            "what is the date today",
        ])
        .answer("Today is {date}."),
    )
}

/// The words are English, like the voice that speaks them; `iso` is for language models.
fn describe(now: &ZonedDateTime) -> antiphon_types::JsonObject {
    output(json!({
        "time": now.strftime("%-I:%M %p").to_string(),
        "date": now.strftime("%A, %B %-d, %Y").to_string(),
        "iso": now.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        "time_zone": now.time_zone().iana_name().unwrap_or("local"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_and_date_are_written_as_they_are_spoken() {
        let moment: ZonedDateTime = "2026-03-04T15:07:09[+01:00]".parse().unwrap();
        let told = describe(&moment);
        assert_eq!(told["time"], "3:07 PM");
        assert_eq!(told["date"], "Wednesday, March 4, 2026");
        assert_eq!(told["iso"], "2026-03-04T15:07:09+01:00");
    }
}
