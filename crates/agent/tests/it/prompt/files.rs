use std::fs;

use antiphon_agent::{
    InvocationContext, Message, Messages, Prompt, ToolChoice, ToolExecutor, ToolRegistry,
    TypedTool, generate, types::Status,
};
use antiphon_testkit::{ModelTurn, ScriptedModel};
use serde_json::json;

use super::*;

const GREET: &str = r#"---
model: acme/large
description: Greets.
config:
  temperature: 0.2
  maxOutputTokens: 40
  stopSequences: [END]
input:
  schema:
    name: string, who it is
    language?: string
  default:
    language: Latin
output:
  schema:
    greeting: string
tools: [weather]
maxTurns: 2
toolChoice: required
ext:
  more: ignored
---
{{role "system"}}
You greet people in {{language}}.
{{role "user"}}
Greet {{name}}.
"#;

#[tokio::test]
async fn a_file_says_all_that_a_prompt_can() {
    let prompt = Prompt::parse("greet", GREET).unwrap();
    assert_eq!(prompt.description().map(|it| &**it), Some("Greets."));
    assert_eq!(prompt.input_schema().unwrap()["required"], json!(["name"]));
    let cx = InvocationContext::new();
    let history = Messages::from_iter([Message::user("hello"), Message::model("hi")]);
    let rendered = prompt.render(&cx, &json!({"name": "Ann"}), &history).unwrap();
    let roles: Vec<_> = seen(&rendered).into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["system", "user", "model", "user"]);

    let registry = ToolRegistry::new();
    for name in ["weather", "other"] {
        registry.must_register(TypedTool::new(name, "", |_cx, (): ()| async { Ok(()) }));
    }
    let tools = ToolExecutor::new(std::sync::Arc::new(registry), None);
    let model =
        ScriptedModel::new([ModelTurn::calls("1", "other", json!({})), ModelTurn::says("{}")]);
    let request = rendered.generate(model.shared(), Some(&tools)).unwrap();
    let response = generate(&cx, request).await.unwrap();
    let asked = &model.requests()[0];
    assert_eq!(asked.instructions.as_deref(), Some("You greet people in Latin."));
    assert_eq!(asked.config["temperature"], 0.2);
    assert_eq!(asked.max_output_tokens, Some(40));
    assert_eq!(asked.tool_choice, ToolChoice::Required);
    assert_eq!(asked.output_schema.as_ref().unwrap()["required"], json!(["greeting"]));
    assert_eq!(asked.tools.len(), 1);
    // It must call one, not for ever.
    assert_eq!(model.requests()[1].tool_choice, ToolChoice::Auto);
    // A tool that the prompt does not name cannot be called by guessing.
    let refused = response.history().iter().flat_map(|it| it.tool_responses()).next().unwrap();
    assert!(refused.1.output.as_ref().unwrap()["error"].as_str().unwrap().contains("unknown"));

    let none = prompt.render(&cx, &json!({"name": "Ann"}), &history).unwrap();
    let error = none.generate(model.shared(), None).unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
}

#[test]
fn a_file_may_be_a_template_alone() {
    let prompt = Prompt::parse("p", "Hello {{name}}!\n").unwrap();
    assert_eq!(
        seen(&render(&prompt, json!({"name": "Ann"}))),
        [("user".into(), "Hello Ann!".into())]
    );
    let prompt = Prompt::parse("p", "---\n---\nHello\n---\nWorld").unwrap();
    assert_eq!(seen(&render(&prompt, json!({}))), [("user".into(), "Hello\n---\nWorld".into())]);
    // Not closed: no front matter.
    let prompt = Prompt::parse("p", "---\nmodel: x").unwrap();
    assert_eq!(seen(&render(&prompt, json!({}))), [("user".into(), "---\nmodel: x".into())]);
}

#[test]
fn front_matter_that_is_wrong_is_refused() {
    for front in ["model: [a]", "tools: x", "maxTurns: -1", "a: b: c", "input: {schema: text}", "{"]
    {
        let error = Prompt::parse("p", &format!("---\n{front}\n---\nHi")).unwrap_err();
        assert_eq!(error.status(), Status::InvalidArgument, "{front}");
        assert!(error.to_string().contains("\"p\""), "{error}");
    }
    // A few lines that would be gigabytes.
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
        bomb.push_str(&format!("a{n}: &a{n} [{aliases}]\n"));
    }
    let error = Prompt::parse("p", &format!("---\n{bomb}---\nHi")).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
}

#[test]
fn a_directory_is_loaded_with_its_partials() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("people")).unwrap();
    write("_sign.prompt", "Yours, {{who}}");
    write("letter.prompt", "Dear Ann. {{>sign}}");
    write("people/greet.formal.prompt", "Good day.");
    write("notes.txt", "no prompt");
    let prompts = Prompt::load_dir(directory.path()).unwrap();
    let names: Vec<_> = prompts.iter().map(|prompt| prompt.name().to_string()).collect();
    assert_eq!(names, ["letter", "people/greet.formal"]);
    let letter = render(&prompts[0], json!({"who": "Bo"}));
    assert_eq!(letter.messages[0].joined_text(), "Dear Ann. Yours, Bo");

    let error = Prompt::load_dir(&directory.path().join("none")).unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
    write("bad.prompt", "{{#if}}");
    assert!(Prompt::load_dir(directory.path()).unwrap_err().to_string().contains("bad"));
}
