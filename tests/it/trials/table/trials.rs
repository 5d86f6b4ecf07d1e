//! The table.

use antiphon::{agent::Outcome, session::*};

use super::script::{
    Do::{self, *},
    Sent, Setup, Trial,
};
use crate::rig::outcomes;

const NO_REFUSALS: (&str, &str) = ("house", "a cascade has no server that refuses");
const ONE_ITEM: (&str, &str) = ("house", "its replies have one item of audio each");
const NO_CUTS: [(&str, &str); 2] =
    [("qwen", "it cannot be told what was heard"), ("inworld", "it cannot be told what was heard")];
const NO_TEXT: (&str, &str) = ("qwen", "it takes no text");
const NO_JUDGE: (&str, &str) = ("qwen", "it answers every turn of the user by itself");
const NO_CONNECTION: (&str, &str) = ("house", "it has no connection that could end");
const NO_UNASKED: (&str, &str) = ("house", "it begins no reply that nobody asked for");

const REFUSES_NOTHING: (&str, &str) = ("gemini", "a server that refuses something hangs up");
const ITS_ONE_ITEM: (&str, &str) = ("gemini", "its replies have one item of audio each");
const CUTS_ITSELF: (&str, &str) =
    ("gemini", "its server reckons by itself what was heard, and takes no cut");
const NO_CANCELLING: (&str, &str) = ("gemini", "its wire has no word for cancelling");
const NOT_JUDGED: (&str, &str) =
    ("gemini", "it interrupts and answers by itself, so that speech cannot be judged");
const RUNS_AT_ONCE: (&str, &str) = (
    "gemini",
    "its model waits for a call, which runs as soon as it comes, before anybody could stop the \
     reply: see d04 where both come at once",
);
const NAMES_NO_REPLY: (&str, &str) =
    ("gemini", "nothing names replies there: what comes after the end of one is another");
const HEARS_BY_ITSELF: (&str, &str) =
    ("house", "it stops for the voice that it hears itself: see the trial before");
const NO_NOTICE: &str = "its servers do not say that they go away";
const TEN_MINUTES: (&str, &str) =
    ("gemini", "its connections last ten minutes: see this trial in lifetime/gemini.rs");

const HALF_AN_HOUR: (&str, &str) =
    ("qwen", "its connections are left after half an hour, so that none is an hour old");

/// The user asks, and a reply of some seconds begins; all at their usual times.
macro_rules! asked {
    ($($rest:expr),* $(,)?) => {
        &[
            (100, Starts),
            (600, Stops),
            (1_400, Heard("Tell me")),
            (1_500, Begins),
            $($rest),*
        ]
    };
}

pub const TRIALS: [Trial; 42] = [
    Trial {
        name: "a01_a_collision_with_an_automatic_reply_is_survived",
        script: &[
            (100, Starts),
            (600, Stops),
            (700, Heard("Note it")),
            (800, Begins),
            (850, Call("c1", "quick", "{}")),
            (900, Done),
            // The server goes on by itself before it gets our request, and says so.
            (902, Begins),
            (903, Busy { named: false }),
            (904, Words("Noted. ")),
            (905, Voice(500)),
            (1_000, Done),
            (1_200, PlayAll),
            (2_500, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.outputs(), [("c1", true)]);
            assert!(seen.messages().contains(&("Noted.".into(), false)));
            assert_eq!(seen.heard_ms, 500);
            // One request, and at most one more for the one that the server refused.
            assert!((1..=2).contains(&seen.creates()));
        },
        not: &[NO_REFUSALS, REFUSES_NOTHING],
    },
    Trial {
        name: "a02_texts_wait_for_the_active_reply",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(600)),
            (2_000, Text("one")),
            (2_100, Text("two")),
            (3_000, Do::Done),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            let texts = seen.count(|sent| matches!(sent, Sent::Text(_)));
            assert_eq!(texts, 1, "the second waits for the answer to the first");
            assert!(seen.creates() <= 1);
        },
        not: &[NO_TEXT],
    },
    Trial {
        name: "a04_what_never_begins_times_out_and_the_session_lives_on",
        script: &[
            (100, Say("Hello")),
            (14_000, Text("Are you there?")),
            (17_000, Begins),
            (17_050, Words("Yes. ")),
            (17_060, Voice(200)),
            (17_070, Do::Done),
            (17_500, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            let late = seen.told(|kind| {
                matches!(kind, EventKind::ReplyRequest { outcome: RequestEnd::TimedOut, .. })
            });
            assert_eq!(late, 1);
            assert_eq!(seen.messages(), [("Yes.".to_owned(), false)]);
        },
        not: &[NO_TEXT, ("house", "what it is given to say begins at once")],
    },
    Trial {
        name: "a05_a_call_eight_seconds_after_the_request_is_in_time",
        script: &[
            (100, Text("Do it")),
            (8_100, Begins),
            (8_150, Call("c1", "quick", "{}")),
            (8_200, Do::Done),
            (8_400, Begins),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.outputs(), [("c1", true)]);
            let errors = seen.told(|kind| matches!(kind, EventKind::Error { .. }));
            assert_eq!(errors, 0);
        },
        not: &[NO_TEXT],
    },
    Trial {
        name: "a07_a_request_waits_for_the_end_of_the_cancelled_reply",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(800)),
            (2_000, Interrupt),
            (2_010, Say("New.")),
            (2_300, Cancelled),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            let at = |is: &dyn Fn(&Sent) -> bool| seen.sent.iter().position(is);
            let cancel = at(&|sent| *sent == Sent::Cancel).unwrap();
            let create = seen.sent.iter().rposition(|sent| *sent == Sent::Create).unwrap();
            assert!(cancel < create);
            assert_eq!(seen.cancels(), 1);
        },
        not: &[NO_CANCELLING],
    },
    Trial {
        name: "b01_a_cut_is_never_beyond_what_came",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(500)),
            (1_700, PlayAll),
            (4_700, Interrupt),
            (4_800, Cancelled),
        ],
        setup: Setup::PLAIN,
        holds: |seen| assert!(seen.truncations().iter().all(|(_, ms)| *ms <= 500)),
        not: &[],
    },
    Trial {
        name: "b03_nothing_is_cut_before_the_first_frame",
        script: asked![(1_600, Words("Well. ")), (2_000, Starts), (2_150, Interrupted)],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!(seen.truncations(), []),
        not: &[],
    },
    Trial {
        name: "b04_a_cut_is_relative_to_its_item",
        script: asked![
            (1_600, VoiceOf("first", 1_000)),
            (1_650, VoiceOf("second", 1_000)),
            (1_700, Play(1_300)),
            (2_000, Interrupt),
            (2_100, Cancelled),
        ],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!(seen.truncations(), [("second", 300)]),
        not: &[ONE_ITEM, NO_CUTS[0], NO_CUTS[1], ITS_ONE_ITEM],
    },
    Trial {
        name: "b07_later_items_are_cut_at_nothing",
        script: asked![
            (1_600, VoiceOf("first", 1_000)),
            (1_650, VoiceOf("second", 1_000)),
            (1_660, VoiceOf("third", 1_000)),
            (1_670, Do::Done),
            (1_700, Play(1_400)),
            (2_000, Starts),
            (2_300, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.truncations(), [("second", 400), ("third", 0)]);
            assert_eq!((seen.heard_ms, seen.queued_ms), (1_400, 0));
        },
        not: &[ONE_ITEM, NO_CUTS[0], NO_CUTS[1], ITS_ONE_ITEM],
    },
    Trial {
        name: "b08_the_heard_part_is_kept",
        script: asked![
            (1_600, Words("First sentence. ")),
            (1_650, Voice(600)),
            (1_700, Words("Second sentence. ")),
            (1_750, Voice(600)),
            (1_800, Words("The last one. ")),
            (1_850, Voice(600)),
            (1_900, Do::Done),
            (2_000, Play(600)),
            (2_100, Interrupt),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.messages(), [("First sentence.".to_owned(), true)]);
            assert_eq!(seen.truncations().len(), 1);
            assert_eq!(seen.truncations()[0].1, 600);
        },
        not: &[NO_CUTS[0], NO_CUTS[1], CUTS_ITSELF],
    },
    Trial {
        name: "b12_a_provider_that_stopped_itself_is_not_told_to",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(800)),
            (1_700, Play(500)),
            (2_000, Starts),
            (2_004, Do::Interrupted),
            (2_500, Stops),
            (3_300, Heard("Wait")),
            (3_400, Begins),
            (3_450, Words("Yes? ")),
            (3_460, Voice(200)),
            (3_500, Do::Done),
            (4_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.cancels(), 0);
            assert_eq!(seen.truncations().len(), 1);
            assert_eq!(seen.heard_ms, 700);
        },
        not: &[NO_CUTS[0], NO_CUTS[1], CUTS_ITSELF],
    },
    Trial {
        name: "b15_the_reply_after_an_interruption_is_heard_whole",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(800)),
            (2_000, Starts),
            (2_100, Do::Interrupted),
            (2_500, Stops),
            (3_300, Heard("Wait")),
            (3_320, Begins),
            (3_330, Words("New. ")),
            (3_340, Voice(300)),
            (3_350, Do::Done),
            (4_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!((seen.heard_ms, seen.queued_ms), (300, 0)),
        not: &[],
    },
    Trial {
        name: "b16_late_audio_of_a_cancelled_reply_is_not_heard",
        script: asked![
            (1_600, Words("Well then. ")),
            (1_650, Voice(100)),
            (2_000, Interrupt),
            (2_010, Voice(20)),
            (2_020, Voice(20)),
            (2_030, Voice(20)),
            (2_100, Cancelled),
            (2_110, Voice(20)),
            (2_500, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!((seen.heard_ms, seen.queued_ms), (0, 0)),
        not: &[NAMES_NO_REPLY],
    },
    Trial {
        name: "c01_a_noise_resumes_at_the_same_sample",
        script: asked![
            (1_600, Words("One two three four five. ")),
            (1_650, Voice(1_500)),
            (1_660, Do::Done),
            (1_700, Play(600)),
            (2_000, Starts),
            (2_300, Play(500)),
            (2_350, Stops),
            (3_300, Heard("")),
            (6_000, PlayAll),
        ],
        setup: Setup::JUDGED,
        holds: |seen| {
            assert_eq!(seen.told(|kind| *kind == EventKind::Interrupted), 0);
            assert_eq!(seen.told(|kind| *kind == EventKind::PlaybackPaused), 1);
            assert_eq!(seen.truncations(), []);
            assert_eq!(seen.heard_ms, 1_500);
            assert_eq!(seen.creates(), 1, "only the question is answered");
        },
        not: &[NO_JUDGE, NOT_JUDGED],
    },
    Trial {
        name: "c03_a_backchannel_is_no_turn",
        script: asked![
            (1_600, Words("One two three four five. ")),
            (1_650, Voice(1_500)),
            (1_660, Do::Done),
            (1_700, Play(600)),
            (2_000, Starts),
            (2_350, Stops),
            (3_300, Heard("Yes.")),
            (6_000, PlayAll),
            (20_000, PlayAll),
        ],
        setup: Setup::JUDGED,
        holds: |seen| {
            assert_eq!(seen.users(), ["Tell me"]);
            assert_eq!((seen.heard_ms, seen.creates()), (1_500, 1));
        },
        not: &[NO_JUDGE, NOT_JUDGED],
    },
    Trial {
        name: "c07_speech_within_a_tool_does_not_bring_the_reminder",
        script: asked![
            (1_600, Call("c1", "slow", "{}")),
            (1_700, Do::Done),
            (6_000, Say("One moment.")),
            (6_100, Begins),
            (6_110, Words("One moment. ")),
            (6_120, Voice(300)),
            (6_130, Do::Done),
            (6_500, PlayAll),
            (28_000, Release),
        ],
        setup: Setup { remind: Some(12), ..Setup::PLAIN },
        holds: |seen| {
            assert_eq!((seen.told(is_prompt), seen.heard_ms), (0, 300));
            assert_eq!(seen.outputs(), [("c1", true)]);
        },
        not: &[],
    },
    Trial {
        name: "c09_noises_do_not_put_the_reminder_off",
        script: &[
            (1_000, Starts),
            (1_200, Stops),
            (2_000, Heard("")),
            (4_000, Starts),
            (4_200, Stops),
            (5_000, Heard("")),
            (7_000, Starts),
            (7_200, Stops),
            (8_000, Heard("")),
            (10_000, Starts),
            (10_200, Stops),
            (11_000, Heard("")),
            (14_000, Starts),
            (14_200, Stops),
            (15_000, Heard("")),
            (24_000, PlayAll),
        ],
        setup: Setup { remind: Some(12), ..Setup::PLAIN },
        holds: |seen| assert!(seen.told(is_prompt) > 0),
        not: &[],
    },
    Trial {
        name: "c10_the_reminder_needs_no_audio_to_start_with",
        script: &[(14_000, PlayAll)],
        setup: Setup { remind: Some(12), ..Setup::PLAIN },
        holds: |seen| assert!(seen.told(is_prompt) > 0),
        not: &[],
    },
    Trial {
        name: "d01_an_interrupted_tool_has_its_one_output",
        script: asked![
            (1_600, Words("Let me look. ")),
            (1_650, Voice(600)),
            (1_700, Call("c1", "slow", "{}")),
            (1_750, Do::Done),
            (2_000, Interrupt),
            (3_000, Release),
        ],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!(seen.outputs(), [("c1", true)]),
        not: &[],
    },
    Trial {
        name: "d02_a_call_of_an_unknown_tool_is_answered",
        script: asked![(1_600, Call("c1", "nothing", "{}")), (1_700, Do::Done)],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.outputs(), [("c1", false)]);
            assert_eq!(outcomes(&seen.events), [("c1".into(), Outcome::UnknownTool)]);
        },
        not: &[("xai", "a call of a tool that nobody declared is the server's own there")],
    },
    Trial {
        name: "d04_a_call_of_an_interrupted_reply_is_answered_and_not_run",
        script: asked![
            (1_600, Words("Bye. ")),
            (1_650, Voice(500)),
            (1_700, Call("c1", "quick", "{}")),
            (1_710, Interrupt),
            (1_900, Cancelled),
            (2_500, Starts),
            (3_000, Stops),
            (3_800, Heard("Go on")),
            (3_900, Begins),
            (3_950, Words("Sure. ")),
            (3_960, Voice(100)),
            (3_970, Do::Done),
            (4_500, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert!(seen.outputs().iter().all(|(_, good)| !good));
            assert!(seen.told(|kind| matches!(kind, EventKind::TurnFinished { .. })) > 0);
        },
        not: &[RUNS_AT_ONCE],
    },
    Trial {
        name: "d04_a_call_that_is_taken_back_at_once_leaves_no_mark",
        script: asked![
            (1_600, Words("Bye. ")),
            (1_650, Voice(500)),
            (1_700, Call("c1", "quick", "{}")),
            (1_700, Call("c2", "slow", "{}")),
            (1_700, Do::Interrupted),
            (2_500, Starts),
            (3_000, Stops),
            (3_800, Heard("Go on")),
            (3_900, Begins),
            (3_950, Words("Sure. ")),
            (3_960, Voice(100)),
            (3_970, Do::Done),
            (4_500, PlayAll),
            (5_000, Release),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert!(seen.outputs().iter().all(|(_, good)| !good));
            assert!(seen.messages().contains(&("Sure.".into(), false)));
            assert_eq!(seen.state, SessionState::Listening, "nothing is under way");
        },
        not: &[HEARS_BY_ITSELF],
    },
    Trial {
        name: "d05_a_call_that_an_interruption_overtakes_never_starts",
        script: asked![
            (1_600, Words("Bye. ")),
            (1_650, Voice(500)),
            (1_700, Call("c1", "quick", "{}")),
            (1_710, Starts),
            (1_900, Do::Interrupted),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert!(seen.outputs().len() <= 1);
        },
        not: &[RUNS_AT_ONCE],
    },
    Trial {
        name: "d07_a_call_of_a_reply_that_was_stopped_does_not_run",
        script: asked![(1_600, Call("c1", "quick", "{}")), (1_620, Interrupt), (1_650, Cancelled),],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!(seen.ran, Vec::<String>::new()),
        not: &[RUNS_AT_ONCE],
    },
    Trial {
        name: "d07_a_call_of_a_reply_that_is_over_does_not_run",
        script: asked![
            (1_600, Words("Bye. ")),
            (1_650, Voice(200)),
            (1_700, Interrupt),
            (1_750, Call("c1", "quick", "{}")),
            (1_800, Cancelled),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert!(seen.outputs().iter().all(|(_, good)| !good));
        },
        not: &[],
    },
    Trial {
        name: "d07_arguments_of_megabytes_run_nothing",
        script: asked![(1_600, CallOf("c1", "quick", 5_000_000)), (1_700, Do::Done)],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert_eq!(seen.outputs(), [("c1", false)]);
        },
        not: &[],
    },
    Trial {
        name: "d08_broken_arguments_run_nothing",
        script: asked![(1_600, Call("c1", "quick", r#"{"amount":"#)), (1_700, Do::Done)],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert_eq!(seen.outputs(), [("c1", false)]);
        },
        not: &[],
    },
    Trial {
        name: "d09_a_tool_that_panics_is_answered_for",
        script: asked![(1_600, Call("c1", "panics", "{}")), (1_700, Do::Done)],
        setup: Setup::PLAIN,
        holds: |seen| assert_eq!(seen.outputs(), [("c1", false)]),
        not: &[],
    },
    Trial {
        name: "d11_an_output_that_was_refused_may_be_given_again",
        script: asked![
            (1_600, Call("c1", "mine", "{}")),
            (1_700, Do::Done),
            (2_000, Answer("c1")),
            (2_100, Rejects("item-2")),
            (2_500, Answer("c1")),
        ],
        setup: Setup { hosts: true, ..Setup::PLAIN },
        holds: |seen| {
            assert_eq!(seen.outputs(), [("c1", true), ("c1", true)]);
            let failures = seen.told(|kind| {
                matches!(kind, EventKind::Error { kind, message }
                    if &**kind == "tool" && message.contains("c1"))
            });
            assert_eq!(failures, 1);
        },
        not: &[NO_REFUSALS, REFUSES_NOTHING],
    },
    Trial {
        name: "d17_an_output_beyond_all_bounds_is_cut_and_the_talk_goes_on",
        script: asked![
            (1_600, Call("c1", "flood", "{}")),
            (1_700, Do::Done),
            (2_000, Begins),
            (2_050, Words("A lot. ")),
            (2_060, Voice(100)),
            (2_070, Do::Done),
            (2_500, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.outputs(), [("c1", true)]);
            assert_eq!(seen.messages(), [("A lot.".to_owned(), false)]);
        },
        not: &[],
    },
    Trial {
        name: "d23_a_denied_call_is_answered_and_not_run",
        script: asked![(1_600, Call("c1", "quick", "{}")), (1_700, Do::Done)],
        setup: Setup { denies: true, ..Setup::PLAIN },
        holds: |seen| {
            assert_eq!(seen.ran, Vec::<String>::new());
            assert_eq!(seen.outputs(), [("c1", false)]);
            assert_eq!(seen.told(|kind| matches!(kind, EventKind::ToolDenied { .. })), 1);
        },
        not: &[],
    },
    Trial {
        name: "e01_an_expiry_in_mid_reply_is_followed_by_a_connection_that_knows",
        script: asked![
            (1_600, Words("Once upon a time. ")),
            (1_650, Voice(2_000)),
            (1_700, Play(500)),
            (1_800, Expires),
            (1_900, Sound(200)),
            (2_600, Starts),
            (3_100, Stops),
            (3_900, Heard("Go on")),
            (4_000, Begins),
            (4_050, Words("There. ")),
            (4_060, Voice(300)),
            (4_070, Do::Done),
            (9_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.connections, 2);
            assert_ne!(seen.restored(), [Continuity::None]);
            assert_eq!(seen.restored().len(), 1);
            assert_eq!(seen.users(), ["Tell me", "Go on"]);
            assert!(seen.messages().contains(&("There.".into(), false)));
            assert_eq!(seen.told(is_error), 0);
            assert_eq!(seen.uplink_ms, 280, "all of the user's audio, once");
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e03_after_its_notice_a_connection_may_end_anyhow_and_the_talk_goes_on",
        script: asked![
            (1_600, Words("Yes. ")),
            (1_650, Voice(200)),
            (1_700, Do::Done),
            (1_750, Handle("h1")),
            (2_500, PlayAll),
            (3_000, Starts),
            (3_100, GoesAway(50)),
            (3_500, Close(1011, "Internal error encountered.")),
            (5_000, Starts),
            (5_500, Stops),
            (6_300, Heard("Go on")),
            (6_400, Begins),
            (6_450, Words("There. ")),
            (6_460, Voice(300)),
            (6_470, Do::Done),
            (9_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.connections, 2);
            match &seen.restored()[..] {
                [Continuity::Full] => assert_eq!(seen.resumed_by, ["h1"]),
                [Continuity::History | Continuity::Digest] => assert!(seen.resumed_by.is_empty()),
                others => panic!("{others:?}"),
            }
            assert_eq!(seen.users(), ["Tell me", "Go on"]);
            assert!(seen.messages().contains(&("There.".into(), false)));
            assert_eq!(seen.told(is_error), 0);
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e05_a_notice_during_a_tool_waits_for_the_handle_after_it",
        script: asked![
            (1_520, Handle("h1")),
            (1_600, Call("c1", "slow", "{}")),
            (2_000, GoesAway(50)),
            (8_000, Release),
            (8_500, Begins),
            (8_550, Words("Noted. ")),
            (8_560, Voice(200)),
            (8_570, Do::Done),
            (8_600, Handle("h2")),
            (8_900, Leaves),
            (9_000, PlayAll),
            (10_000, Starts),
            (10_500, Stops),
            (11_300, Heard("Go on")),
            (11_400, Begins),
            (11_450, Words("There. ")),
            (11_460, Voice(300)),
            (11_470, Do::Done),
            (13_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!((seen.connections, &seen.restored()[..]), (2, &[Continuity::Full][..]));
            assert_eq!(seen.resumed_by, ["h2"]);
            assert_eq!(seen.outputs(), [("c1", true)]);
            assert_eq!(seen.messages(), [("Noted.".into(), false), ("There.".into(), false)]);
        },
        not: &[
            ("ga", NO_NOTICE),
            ("beta", NO_NOTICE),
            ("azure", NO_NOTICE),
            ("azure_preview", NO_NOTICE),
            ("voice_live", NO_NOTICE),
            ("xai", NO_NOTICE),
            ("qwen", NO_NOTICE),
            ("inworld", NO_NOTICE),
            NO_CONNECTION,
        ],
    },
    Trial {
        name: "e07_a_server_that_answers_no_ping_for_25_seconds_is_kept",
        script: asked![
            (1_600, Words("Yes. ")),
            (1_650, Voice(200)),
            (1_700, Do::Done),
            (2_500, PlayAll),
            (3_000, Stalls(25_000)),
            (30_000, Starts),
            (30_500, Stops),
            (31_300, Heard("Go on")),
            (31_400, Begins),
            (31_450, Words("There. ")),
            (31_460, Voice(300)),
            (31_470, Do::Done),
            (33_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!((seen.connections, seen.told(is_error)), (1, 0));
            assert_eq!(seen.messages(), [("Yes.".into(), false), ("There.".into(), false)]);
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e09_a_drop_in_mid_reply_leaves_nobody_waiting",
        script: asked![
            (1_600, Words("Once upon ")),
            (1_650, Voice(200)),
            (1_700, Drop),
            (2_500, PlayAll),
            (3_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.messages(), [("Once upon".to_owned(), true)]);
            assert_eq!((seen.state, seen.heard_ms), (SessionState::Listening, 200));
            assert_eq!(seen.connections, 2);
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e10_a_clean_close_ends_the_session",
        script: asked![
            (1_600, Words("Yes. ")),
            (1_650, Voice(200)),
            (1_700, Do::Done),
            (2_500, PlayAll),
            (5_000, Close(1000, "bye")),
            (9_000, PlayAll),
        ],
        setup: Setup { ends: true, ..Setup::PLAIN },
        holds: |seen| {
            let reason = EndReason::ProviderClosed { code: 1000, reason: "bye".into() };
            let is_end = |kind: &EventKind| matches!(kind, EventKind::SessionEnded { reason: why, .. } if *why == reason);
            assert_eq!((seen.told(is_end), seen.connections), (1, 1));
            assert!(is_end(seen.events.last().unwrap()), "and nothing after it");
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e12_the_host_leaves_a_poisoned_connection_with_its_context",
        script: asked![
            (1_550, Fails),
            (3_000, Reconnect),
            (4_000, Begins),
            (4_050, Words("Better now. ")),
            (4_060, Voice(300)),
            (4_070, Do::Done),
            (6_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.connections, 2);
            assert_ne!(seen.restored(), [Continuity::None]);
            assert_eq!(seen.restored().len(), 1);
            assert!(seen.messages().contains(&("Better now.".into(), false)));
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e14_the_users_audio_goes_to_the_new_connection",
        script: &[
            (1_000, Drop),
            (1_100, Sound(200)),
            (3_000, Sound(200)),
            (4_000, Starts),
            (4_500, Stops),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!((seen.connections, seen.uplink_ms), (2, 440));
            assert_eq!(seen.stats.uplink_dropped_ms, 0);
            assert_eq!(seen.restored(), [Continuity::Full], "nothing was said yet");
        },
        not: &[NO_CONNECTION],
    },
    Trial {
        name: "e16_an_idle_session_outlives_its_connections_without_an_error",
        script: asked![
            (1_600, Words("Yes. ")),
            (1_650, Voice(200)),
            (1_700, Do::Done),
            (2_500, PlayAll),
            (3_600_000, Expires),
            (3_602_000, Starts),
            (3_602_500, Stops),
            (3_603_300, Heard("Still there?")),
            (3_603_400, Begins),
            (3_603_450, Words("Sure. ")),
            (3_603_460, Voice(200)),
            (3_603_470, Do::Done),
            (3_605_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.connections, 2);
            assert_ne!(seen.restored(), [Continuity::None]);
            assert_eq!(seen.users(), ["Tell me", "Still there?"]);
            assert_eq!(seen.messages(), [("Yes.".into(), false), ("Sure.".into(), false)]);
            assert_eq!(seen.told(is_error), 0);
        },
        not: &[NO_CONNECTION, TEN_MINUTES, HALF_AN_HOUR],
    },
    Trial {
        name: "h02_words_that_come_late_stand_before_the_reply",
        script: &[
            (100, Starts),
            (600, Stops),
            (700, Begins),
            (750, Words("It is noon. ")),
            (760, Voice(500)),
            (770, Do::Done),
            (1_000, PlayAll),
            (2_700, Heard("What time is it?")),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            assert_eq!(seen.users(), ["What time is it?"]);
            assert_eq!(seen.stats.turns, 1);
            assert_eq!(seen.state, SessionState::Listening);
        },
        not: &[("house", "it understands before it answers")],
    },
    Trial {
        name: "h04_cached_tokens_are_paid_for_once",
        script: &[
            (100, Begins),
            (150, Words("Hello. ")),
            (160, Voice(500)),
            (170, Do::Paid),
            (1_000, PlayAll),
        ],
        setup: Setup::PLAIN,
        holds: |seen| {
            // 300 x 32 + 500 x 0.4 + 1,000 x 64, per million.
            let by_hand = (9_600.0 + 200.0 + 64_000.0) / 1e6;
            assert!((seen.stats.cost.unwrap().units() - by_hand).abs() < 1e-9);
        },
        not: &[NO_UNASKED],
    },
];

fn is_error(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Error { .. })
}

fn is_prompt(kind: &EventKind) -> bool {
    matches!(kind, EventKind::HostPrompt(prompt) if prompt.prompt == HostPromptKind::IdleReminder)
}
