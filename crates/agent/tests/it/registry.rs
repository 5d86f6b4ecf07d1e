use std::{collections::BTreeSet, sync::Arc};

use antiphon_agent::{FuncTool, RegistryError, Tool, ToolRegistry, types::Status};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::object;

fn named(name: &str) -> FuncTool {
    FuncTool::new(name, "Does nothing.", None, |_, _| async { Ok(object(json!({}))) })
}

fn with_schema(schema: Value) -> FuncTool {
    FuncTool::new("tool", "Does nothing.", schema, |_, _| async { Ok(object(json!({}))) })
}

#[test]
fn c09_definitions_are_sorted_by_byte_order() {
    let registry = ToolRegistry::new();
    for name in ["b", "a", "B", "ä", "a_1", "a1"] {
        registry.register(named(name)).unwrap();
    }
    let names: Vec<_> =
        registry.definitions().into_iter().map(|definition| definition.name.to_string()).collect();
    assert_eq!(names, ["B", "a", "a1", "a_1", "b", "ä"]);
    let tools: Vec<_> = registry.all().iter().map(|tool| tool.name().to_owned()).collect();
    assert_eq!(tools, names);
}

#[test]
fn refuses_a_second_tool_of_a_name_and_keeps_the_first() {
    let registry = ToolRegistry::new();
    let first: Arc<dyn Tool> = Arc::new(named("tool"));
    registry.register_shared(first.clone()).unwrap();
    let error = registry.register(named("tool")).unwrap_err();
    assert_eq!(error, RegistryError::Duplicate("tool".into()));
    assert_eq!(error.status(), Status::AlreadyExists);
    assert!(Arc::ptr_eq(&registry.lookup("tool").unwrap(), &first));
    assert_eq!(registry.len(), 1);
}

#[test]
fn refuses_a_nameless_tool() {
    let registry = ToolRegistry::new();
    assert_eq!(registry.register(named("")), Err(RegistryError::NoName));
    assert_eq!(registry.register(named(" \t")), Err(RegistryError::NoName));
    assert!(registry.is_empty());
}

#[test]
fn refuses_schemas_that_cannot_describe_arguments() {
    for schema in [
        json!({"type": "objekt"}),
        json!({"type": "string"}),
        json!({"type": 7}),
        json!({"properties": {"a": {"minimum": "low"}}}),
        json!({"properties": {"a": {"pattern": "("}}}),
        json!({"$ref": "https://example.com/schema.json"}),
        json!({"$ref": "#/$defs/missing"}),
        json!("object"),
        json!(true),
    ] {
        let registry = ToolRegistry::new();
        let error = registry.register(with_schema(schema.clone())).unwrap_err();
        assert!(matches!(error, RegistryError::InvalidSchema { .. }), "{schema}: {error}");
        assert_eq!(error.status(), Status::InvalidArgument);
        assert!(registry.is_empty());
    }
}

#[test]
#[should_panic(expected = "registered already")]
fn must_register_panics() {
    let registry = ToolRegistry::new();
    registry.must_register(named("tool"));
    registry.must_register(named("tool"));
}

#[test]
fn look_up_is_exact_and_unregister_removes() {
    let registry = ToolRegistry::new();
    registry.must_register(named("tool"));
    assert!(registry.lookup("Tool").is_none());
    assert!(registry.lookup("tool ").is_none());
    assert!(registry.unregister("tool").is_some());
    assert!(registry.unregister("tool").is_none());
    assert!(registry.lookup("tool").is_none());
    registry.must_register(named("tool"));
}

#[test]
fn registers_from_many_threads_exactly_once_each() {
    let registry = ToolRegistry::new();
    let taken: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let registry = &registry;
                scope.spawn(move || {
                    (0..50).filter(|i| registry.register(named(&format!("t{i}"))).is_ok()).count()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(taken, 50);
    assert_eq!(registry.len(), 50);
}

proptest! {
    #[test]
    fn behaves_like_a_sorted_map(names in prop::collection::vec("[ -~]{0,3}", 0..40)) {
        let registry = ToolRegistry::new();
        let mut model = BTreeSet::new();
        for name in names {
            let fits = !name.trim().is_empty() && model.insert(name.clone());
            prop_assert_eq!(registry.register(named(&name)).is_ok(), fits);
        }
        let listed: Vec<_> =
            registry.definitions().into_iter().map(|tool| tool.name.to_string()).collect();
        prop_assert_eq!(listed, model.into_iter().collect::<Vec<_>>());
    }
}
