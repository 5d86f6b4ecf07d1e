//! Calls that the user is asked about.

use antiphon::{
    agent::{Outcome, Verdict},
    live::{LiveCommand, LiveEvent, TextUpdate},
    session::*,
    types::{JsonObject, ToolCall},
};
use antiphon_testkit::{LatchedTool, ToolPlan};
use serde_json::json;

use crate::rig::*;

fn confirming() -> (Setup, antiphon_testkit::ToolLatch) {
    let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
    let setup = Setup::new().build(|builder| {
        builder.tool(tool).authorize(policy(|call| Verdict::Confirm {
            read_back: format!("Send {} euros?", call.args["amount"]),
        }))
    });
    (setup, latch)
}

/// A call that waits for the user's answer: its read-back has been spoken.
async fn read_back(rig: &mut Rig) {
    read_back_call(rig, r#"{"amount": 5}"#).await;
}

async fn read_back_call(rig: &mut Rig, args: &str) {
    rig.calls_tool("r1", "c1", "send_money", args);
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, text }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(text, "Send 5 euros?");
    rig.reply_to("r2", *request).words("r2", text).audio("r2", 100).done("r2");
    rig.settle().await;
    rig.speaker.play_all();
    rig.settle().await;
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_confirmed_call_runs_with_what_was_read_back() {
    for by_voice in [true, false] {
        let (setup, latch) = confirming();
        let mut rig = setup.start().await;
        read_back(&mut rig).await;
        assert!(latch.calls().is_empty() && rig.outputs().await.is_empty());
        if by_voice {
            rig.user_says("u1", "Yes, please.");
        } else {
            rig.session.send_text("yes").unwrap();
        }
        let outputs = rig.outputs().await;
        assert_eq!(outputs.len(), 1);
        assert_eq!(latch.calls().len(), 1);
        assert_eq!(json!(latch.calls()[0].1), json!({"amount": 5}));
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Success)]);
    }
}

struct Narrows;

impl LifecycleHooks for Narrows {
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        let mut args = call.args.clone();
        args.retain(|name, _| name == "amount");
        Ok(args)
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_yes_stands_for_the_words_that_were_read_back() {
    for (hooked, args) in [(false, r#"{"amount": 5}"#), (true, r#"{"amount": 5, "x": 1}"#)] {
        for (second, outcome) in
            [("Send 5 euros?", Outcome::Success), ("Send 500 euros?", Outcome::Denied)]
        {
            let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
            // This policy always asks, and perhaps something else the second time.
            let setup = Setup::new().build(|builder| {
                let builder = builder.tool(tool).authorize(
                    move |cx: &antiphon::agent::CallContext, _: &ToolCall| Verdict::Confirm {
                        read_back: if cx.confirmed { second } else { "Send 5 euros?" }.into(),
                    },
                );
                if hooked { builder.hooks(Narrows) } else { builder.hooks(NoHooks) }
            });
            let mut rig = setup.start().await;
            read_back_call(&mut rig, args).await;
            rig.user_says("u1", "Yes.");
            assert_eq!(rig.outputs().await.len(), 1);
            let ends = outcomes(&rig.now().await);
            if outcome == Outcome::Success {
                assert_eq!(ends, [("c1".into(), outcome)]);
                assert_eq!(json!(latch.calls()[0].1), json!({"amount": 5}));
            } else {
                assert!(matches!(ends[0].1, Outcome::Denied | Outcome::NotConfirmed), "{ends:?}");
                assert!(latch.calls().is_empty(), "{second}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_anything_but_a_yes_is_a_no_and_so_is_silence() {
    for answer in [Some("no"), Some("yes but make it fifty"), None] {
        let (setup, latch) = confirming();
        let mut rig = setup.start().await;
        read_back(&mut rig).await;
        match answer {
            Some(words) => {
                rig.user_says("u1", words);
            }
            None => tokio::time::sleep(61 * SECOND).await,
        }
        assert_eq!(rig.outputs().await.len(), 1, "{answer:?}");
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::NotConfirmed)]);
        assert!(latch.calls().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_words_from_before_the_read_back_decide_nothing() {
    let (setup, latch) = confirming();
    let mut rig = setup.start().await;
    rig.emit(LiveEvent::SpeechStarted { audio_start_ms: None });
    rig.settle().await;
    rig.calls_tool("r1", "c1", "send_money", r#"{"amount": 5}"#);
    let commands = rig.commands().await;
    let [LiveCommand::Say { request, .. }] = &commands[..] else { panic!("{commands:?}") };
    rig.reply_to("r2", *request).audio("r2", 100);
    // The transcript of what the user said before comes late.
    rig.emit(heard("u0", TextUpdate::Final(Some("yes".into()))));
    rig.settle().await;
    assert!(latch.calls().is_empty() && rig.outputs().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn trial_d23_two_calls_are_read_back_one_after_the_other() {
    let (setup, latch) = confirming();
    let mut rig = setup.start().await;
    let two = [("a", "send_money", r#"{"amount":1}"#), ("b", "send_money", r#"{"amount":2}"#)];
    rig.reply("r1").calls("r1", &two).done("r1");
    for (index, answer) in ["yes", "no"].into_iter().enumerate() {
        let commands = rig.commands().await;
        let says: Vec<_> = commands
            .iter()
            .filter_map(|command| match command {
                LiveCommand::Say { request, text } => Some((*request, text.clone())),
                _ => None,
            })
            .collect();
        let [(request, text)] = &says[..] else { panic!("{commands:?}") };
        assert_eq!(*text, format!("Send {} euros?", index + 1));
        let reply = format!("s{index}");
        rig.reply_to(&reply, *request).audio(&reply, 50).done(&reply);
        rig.settle().await;
        rig.speaker.play_all();
        rig.user_says(&format!("u{index}"), answer);
    }
    rig.settle().await;
    let outcomes = outcomes(&rig.now().await);
    assert_eq!(outcomes, [("a".into(), Outcome::Success), ("b".into(), Outcome::NotConfirmed)]);
    assert_eq!(latch.calls().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn trial_d26_a_parked_call_ends_with_its_session() {
    let (setup, _) = confirming();
    let mut rig = setup.start().await;
    read_back(&mut rig).await;
    rig.far.close(4000, "gone");
    let (events, _) = rig.end().await;
    assert_eq!(outcomes(&events).len(), 1);
}

/// Makes something else of a call once it was read back, or always.
struct Changes(&'static str, serde_json::Value);

impl LifecycleHooks for Changes {
    fn authorize_tool_call(
        &self,
        _: &SessionContext,
        call: &ToolCall,
    ) -> Result<JsonObject, DeniedCall> {
        let mut args = call.args.clone();
        args.insert(self.0.into(), self.1.clone());
        Ok(args)
    }
}

#[tokio::test(start_paused = true)]
async fn trial_d22_a_yes_is_for_no_other_arguments_than_those_that_were_read_back() {
    // Content once the user has said yes, whatever the arguments.
    let rules = |cx: &antiphon::agent::CallContext, call: &ToolCall| match cx.confirmed {
        true => Verdict::Allow,
        false => Verdict::Confirm { read_back: format!("Send {} euros?", call.args["amount"]) },
    };
    for (field, value, runs) in [("amount", json!(4), false), ("note", json!("hi"), true)] {
        let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
        let setup = Setup::new()
            .build(|it| it.tool(tool).authorize(rules).hooks(Changes(field, value.clone())));
        let mut rig = setup.start().await;
        read_back(&mut rig).await;
        rig.user_says("u1", "Yes.");
        assert_eq!(rig.outputs().await.len(), 1);
        // What the words do not say may change.
        let expected = if runs { Outcome::Success } else { Outcome::Denied };
        assert_eq!(outcomes(&rig.now().await), [("c1".into(), expected)], "{field}");
        assert_eq!(latch.calls().len(), usize::from(runs));
    }
    // Nor may the policy itself.
    let (tool, latch) = LatchedTool::open("send_money", ToolPlan::Succeed);
    let raises = move |cx: &antiphon::agent::CallContext, call: &ToolCall| match cx.confirmed {
        true => {
            let mut args = call.args.clone();
            args.insert("amount".into(), 500.into());
            Verdict::AllowWith(args)
        }
        false => rules(cx, call),
    };
    let mut rig = Setup::new().build(|it| it.tool(tool).authorize(raises)).start().await;
    read_back(&mut rig).await;
    rig.user_says("u1", "Yes.");
    rig.settle().await;
    assert_eq!(outcomes(&rig.now().await), [("c1".into(), Outcome::Denied)]);
    assert!(latch.calls().is_empty());
}
