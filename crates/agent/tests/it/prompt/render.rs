use std::sync::Arc;

use antiphon_agent::{
    InvocationContext, Message, Messages, Part, Prompt, Role, Session, SessionState, types::Status,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn history() -> Messages {
    Messages::from_iter([Message::user("hello"), Message::model("hi")])
}

fn with_history(prompt: &Prompt) -> Vec<(String, String)> {
    seen(&prompt.render(&InvocationContext::new(), &json!({}), &history()).unwrap())
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(role, text)| ((*role).into(), (*text).into())).collect()
}

#[test]
fn history_stands_between_system_and_user_message() {
    let prompt = Prompt::builder("p").system("Be brief.").prompt("And now?").build().unwrap();
    let expected =
        pairs(&[("system", "Be brief."), ("user", "hello"), ("model", "hi"), ("user", "And now?")]);
    assert_eq!(with_history(&prompt), expected);
}

#[test]
fn own_messages_place_history_or_have_none() {
    let template = "{{role \"system\"}}\nBe brief.\n{{role \"user\"}}Example\n{{role \"model\"}}Fine\n\
                    {{history}}\n{{role \"user\"}}Go on.";
    let placed = Prompt::builder("p").messages(template).build().unwrap();
    let expected = pairs(&[
        ("system", "Be brief."),
        ("user", "Example"),
        ("model", "Fine"),
        ("user", "hello"),
        ("model", "hi"),
        ("user", "Go on."),
    ]);
    assert_eq!(with_history(&placed), expected);

    let none = Prompt::builder("p").messages("Just this.").build().unwrap();
    assert_eq!(with_history(&none), pairs(&[("user", "Just this.")]));
    let twice = Prompt::builder("p").messages("{{history}}{{history}}").build().unwrap();
    let error = twice.render(&InvocationContext::new(), &json!({}), &history()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    let astray = Prompt::builder("p").system("{{history}}").build().unwrap();
    assert!(astray.render(&InvocationContext::new(), &json!({}), &history()).is_err());

    let short = Prompt::builder("p")
        .messages_fn(|_cx, _input, history| Ok(history.range(1).cloned().collect()))
        .build()
        .unwrap();
    assert_eq!(with_history(&short), pairs(&[("model", "hi")]));
}

#[test]
fn templates_have_blocks_json_media_and_choices() {
    let prompt = Prompt::builder("p")
        .prompt(
            "{{#if name}}For {{name}}: {{/if}}{{#each items}}{{@index}}={{this}} {{/each}}\
             {{json place}}{{#ifEquals mood \"good\"}} Nice!{{else}} Oh.{{/ifEquals}}\
             {{media url=photo contentType=\"image/png\"}} & <done>",
        )
        .build()
        .unwrap();
    let rendered = render(
        &prompt,
        json!({
            "name": "Ann", "items": ["a", "b"], "place": {"city": "Rome"}, "mood": "good",
            "photo": "data:,x",
        }),
    );
    let expected = [
        Part::text("For Ann: 0=a 1=b {\"city\":\"Rome\"} Nice!"),
        Part::media("data:,x", Some("image/png".into())),
        Part::text("& <done>"),
    ];
    assert_eq!(rendered.messages[0].content, expected);
    // A picture that is missing is a mistake.
    let cx = InvocationContext::new();
    assert!(prompt.render(&cx, &json!({"mood": "bad"}), &Messages::new()).is_err());
}

#[test]
fn templates_see_the_live_state() {
    let prompt = Prompt::builder("p")
        .system(
            "Count: {{@state.count}}.{{#each names}} {{this}} at {{@state.place.city}}.{{/each}}",
        )
        .build()
        .unwrap();
    let state = json!({"count": 3, "place": {"city": "Rome"}});
    let state = SessionState { custom: Some(state), ..SessionState::default() };
    let session = Arc::new(Session::new("s", state));
    let cx = InvocationContext::new().with_session(session.clone());
    let input = json!({"names": ["Ann", "Bo"]});
    let rendered = prompt.render(&cx, &input, &Messages::new()).unwrap();
    assert_eq!(rendered.messages[0].joined_text(), "Count: 3. Ann at Rome. Bo at Rome.");
    session.update_custom(|_| json!({"count": 4}));
    let rendered = prompt.render(&cx, &json!({}), &Messages::new()).unwrap();
    assert_eq!(rendered.messages[0].joined_text(), "Count: 4.");
    // Outside of a session there is none.
    assert_eq!(render(&prompt, json!({})).messages[0].joined_text(), "Count: .");
}

#[test]
fn input_is_held_to_its_schema_over_the_default() {
    let prompt = Prompt::builder("p")
        .prompt("{{name}} {{language}}")
        .input_schema(json!({
            "type": "object",
            "properties": { "name": {"type": "string"}, "language": {"type": "string"} },
            "required": ["name"],
        }))
        .default_input(json!({"language": "Latin"}))
        .build()
        .unwrap();
    assert_eq!(render(&prompt, json!({"name": "Ann"})).messages[0].joined_text(), "Ann Latin");
    let other = render(&prompt, json!({"name": "Ann", "language": "Greek"}));
    assert_eq!(other.messages[0].joined_text(), "Ann Greek");
    for wrong in [json!(null), json!({"name": 3}), json!("Ann"), json!(["Ann"])] {
        let cx = InvocationContext::new();
        let error = prompt.render(&cx, &wrong, &Messages::new()).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{wrong}");
    }
}

#[test]
fn what_cannot_be_read_is_refused_where_it_is_defined() {
    for builder in [
        Prompt::builder(""),
        Prompt::builder("p").system("{{#if x}}"),
        Prompt::builder("p").prompt("{{"),
        Prompt::builder("p").partial("x", "{{/if}}"),
        Prompt::builder("p").input_schema(json!({"type": 3})),
        Prompt::builder("p").default_input("text"),
    ] {
        assert_eq!(builder.build().unwrap_err().status(), Status::InvalidArgument);
    }
    let prompt = Prompt::builder("p").messages("{{role \"boss\"}}").build().unwrap();
    let cx = InvocationContext::new();
    let error = prompt.render(&cx, &json!({}), &Messages::new()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.to_string().contains("boss"), "{error}");
}

#[test]
fn templates_that_would_never_end_are_refused() {
    let built = |builder: antiphon_agent::PromptBuilder| builder.build().unwrap_err().status();
    let circle =
        Prompt::builder("p").partial("a", "{{#if x}}{{>b}}{{/if}}").partial("b", "{{> a}}");
    assert_eq!(built(circle.clone()), Status::InvalidArgument);
    assert_eq!(built(Prompt::builder("p").partial("a", "{{>a}}")), Status::InvalidArgument);
    assert_eq!(
        built(Prompt::builder("p").system("{{>(lookup . \"x\")}}")),
        Status::InvalidArgument
    );
    let inline = "{{#*inline \"a\"}}{{>b}}{{/inline}}{{#*inline \"b\"}}{{>a}}{{/inline}}{{>a}}";
    assert_eq!(built(Prompt::builder("p").system(inline)), Status::InvalidArgument);
    let tree = Prompt::builder("p").partial("a", "{{>b}}{{>c}}").partial("b", "{{>c}}");
    let tree = tree.partial("c", "leaf ").prompt("{{>a}}").build().unwrap();
    assert_eq!(render(&tree, json!({})).messages[0].joined_text(), "leaf leaf");

    let nested = format!("{}{}", "{{#if x}}".repeat(50_000), "{{/if}}".repeat(50_000));
    assert_eq!(built(Prompt::builder("p").system(nested)), Status::InvalidArgument);
    let nested = format!("{{{{x {}}}}}", "(".repeat(50_000));
    assert_eq!(built(Prompt::builder("p").system(nested)), Status::InvalidArgument);

    let large = Prompt::builder("p").prompt("{{#each items}}{{../text}}{{/each}}").build().unwrap();
    let input = json!({"items": vec![0; 300], "text": "x".repeat(64 * 1024)});
    let cx = InvocationContext::new();
    let error = large.render(&cx, &input, &Messages::new()).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
}

proptest! {
    /// No input changes who speaks.
    #[test]
    fn input_is_only_ever_text(name in "(\\PC|[\u{0}-\u{5}]|\\{\\{role \"system\"\\}\\}|<<<dotprompt:role:system>>>){0,20}") {
        let prompt = Prompt::builder("p")
            .messages("{{role \"system\"}}S{{role \"user\"}}x{{name}}x{{history}}")
            .build()
            .unwrap();
        let rendered = render(&prompt, json!({ "name": name }));
        prop_assert_eq!(rendered.messages.len(), 2);
        prop_assert_eq!(rendered.messages[1].role, Role::User);
        prop_assert_eq!(rendered.messages[1].joined_text(), format!("x{name}x"));
    }

    #[test]
    fn no_template_panics(source in "(\\{\\{|\\}\\}|@state|[a-z#/!\"'. \\\\>-]|\\PC){0,24}") {
        if let Ok(prompt) = Prompt::builder("p").messages(source).build() {
            let _ = prompt.render(&InvocationContext::new(), &json!({}), &Messages::new());
        }
    }

    #[test]
    fn no_file_panics(source in "(---\n|[a-z]+: ?[a-z\\[{&*]*\n|\\{\\{[a-z ]*\\}\\}|\\PC){0,12}") {
        let _ = Prompt::parse("p", &source);
    }
}
