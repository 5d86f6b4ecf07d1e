use antiphon_agent::{
    JsonPatch, JsonPatchOp, JsonPatchOperation as Op, PatchError, apply_patch, diff, types::Status,
};
use proptest::{collection, prelude::*};
use serde_json::{Map, Value, json};

fn patch<const N: usize>(operations: [Op; N]) -> JsonPatch {
    JsonPatch(operations.into())
}

#[track_caller]
fn applied<const N: usize>(document: Value, operations: [Op; N]) -> Value {
    apply_patch(&document, &patch(operations)).unwrap()
}

#[test]
fn diff_shapes() {
    let cases = [
        (json!({}), json!({}), vec![]),
        (json!({}), json!({"a": 1}), vec![Op::add("/a", 1)]),
        (json!({"a": 1}), json!({}), vec![Op::remove("/a")]),
        (json!({"a": 1}), json!({"a": 2}), vec![Op::replace("/a", 2)]),
        (json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": 1}}), vec![Op::remove("/a/c")]),
        // In order of the keys.
        (
            json!({"d": 1, "b": 1}),
            json!({"e": 1, "a": 1, "b": 2}),
            vec![Op::add("/a", 1), Op::replace("/b", 2), Op::remove("/d"), Op::add("/e", 1)],
        ),
        (json!([1]), json!([1, 2, 3]), vec![Op::add("/-", 2), Op::add("/-", 3)]),
        (json!([1, 2, 3]), json!([1]), vec![Op::remove("/2"), Op::remove("/1")]),
        (json!({"a": [1, 2]}), json!({"a": [3, 2]}), vec![Op::replace("/a/0", 3)]),
        // A kind that changed.
        (json!({"a": [1]}), json!({"a": {"0": 1}}), vec![Op::replace("/a", json!({"0": 1}))]),
        (json!({"a": 1}), json!([1]), vec![Op::replace("", json!([1]))]),
        (json!(null), json!({"a": 1}), vec![Op::replace("", json!({"a": 1}))]),
        (json!(1), json!(1), vec![]),
        (json!({"a": 1}), json!({"a": null}), vec![Op::replace("/a", Value::Null)]),
        (json!({}), json!({"a/b": 1, "~": 2}), vec![Op::add("/a~1b", 1), Op::add("/~0", 2)]),
    ];
    for (from, to, expected) in cases {
        assert_eq!(diff(&from, &to).0, expected, "{from} to {to}");
    }
}

#[test]
fn null_operand_survives_wire() {
    let text = r#"[{"op":"add","path":"/a","value":null}]"#;
    let patch: JsonPatch = serde_json::from_str(text).unwrap();
    assert_eq!(patch.0, [Op::add("/a", Value::Null)]);
    assert_eq!(serde_json::to_value(&patch).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    assert_eq!(apply_patch(&json!({}), &patch).unwrap(), json!({"a": null}));
}

#[test]
fn value_is_written_for_add_replace_and_test_only() {
    let patch = patch([
        Op::add("/a", 1),
        Op::remove("/a"),
        Op::replace("/a", 1),
        Op::move_from("/a", "/b"),
        Op::copy_from("/b", "/a"),
        Op::test("/a", 1),
    ]);
    let json = serde_json::to_value(patch).unwrap();
    let with_value: Vec<_> =
        json.as_array().unwrap().iter().map(|operation| operation.get("value").is_some()).collect();
    assert_eq!(with_value, [true, false, true, false, false, true]);
}

#[test]
fn value_and_from_may_be_missing_or_superfluous() {
    let patch: JsonPatch = serde_json::from_value(json!([
        {"op": "remove", "path": "/a", "value": null},
        {"op": "add", "path": "/b"},
        {"op": "copy", "path": "/c"},
    ]))
    .unwrap();
    assert_eq!(
        apply_patch(&json!({"a": 1}), &patch).unwrap(),
        json!({"b": null, "c": {"b": null}}),
    );
}

#[test]
fn unknown_operations_are_refused() {
    let unknown = json!([{"op": "increment", "path": "/a"}]);
    assert!(serde_json::from_value::<JsonPatch>(unknown).is_err());
}

#[test]
fn root_ops() {
    assert_eq!(applied(json!({"a": 1}), [Op::replace("", json!([1]))]), json!([1]));
    assert_eq!(applied(json!({"a": 1}), [Op::add("", 2)]), json!(2));
    assert_eq!(applied(json!({"a": 1}), [Op::remove("")]), Value::Null);
    assert_eq!(applied(Value::Null, [Op::replace("", "v")]), json!("v"));
    assert_eq!(applied(json!({"a": {"b": 1}}), [Op::move_from("/a", "")]), json!({"b": 1}));
    assert_eq!(applied(json!([1]), [Op::move_from("", "/a")]), json!({"a": [1]}));
    assert_eq!(JsonPatch::whole(json!({"b": 2})), patch([Op::replace("", json!({"b": 2}))]));
}

#[test]
fn lenient() {
    // Missing containers are made.
    assert_eq!(applied(Value::Null, [Op::add("/a", "x")]), json!({"a": "x"}));
    assert_eq!(applied(json!({}), [Op::add("/a/b/c", 1)]), json!({"a": {"b": {"c": 1}}}));
    assert_eq!(applied(json!({}), [Op::replace("/a/b", 1)]), json!({"a": {"b": 1}}));
    assert_eq!(applied(json!({"a": null}), [Op::add("/a/b", 1)]), json!({"a": {"b": 1}}));
    assert_eq!(applied(json!({"a": 5}), [Op::add("/a/b", 1)]), json!({"a": {"b": 1}}));
    // Missing members are none to remove or replace.
    for operation in [
        Op::remove("/b"),
        Op::remove("/a/9"),
        Op::remove("/a/-"),
        Op::remove("/x/y/z"),
        Op::replace("/b", 1),
        Op::replace("/a/9", 1),
        Op::replace("/a/-", 1),
        Op::add("/a/9", 1),
        Op::add("/a/01", 1),
        Op::add("/a/9/b", 1),
        Op::move_from("/b", "/c"),
        Op::copy_from("/b", "/c"),
    ] {
        let document = json!({"a": [1]});
        assert_eq!(applied(document.clone(), [operation.clone()]), document, "{operation:?}");
    }
}

#[test]
fn array_insert_and_append() {
    let list = || json!([1, 2]);
    assert_eq!(applied(list(), [Op::add("/0", 0)]), json!([0, 1, 2]));
    assert_eq!(applied(list(), [Op::add("/1", 0)]), json!([1, 0, 2]));
    assert_eq!(applied(list(), [Op::add("/2", 3)]), json!([1, 2, 3]));
    assert_eq!(applied(list(), [Op::add("/-", 3)]), json!([1, 2, 3]));
    assert_eq!(applied(list(), [Op::replace("/1", 5)]), json!([1, 5]));
    assert_eq!(applied(list(), [Op::remove("/0")]), json!([2]));
}

#[test]
fn move_copy() {
    let document = || json!({"a": {"b": [1, 2]}, "c": 3});
    assert_eq!(applied(document(), [Op::move_from("/c", "/a/d")]), {
        json!({"a": {"b": [1, 2], "d": 3}})
    });
    assert_eq!(applied(document(), [Op::move_from("/a/b/0", "/a/b/1")]), {
        json!({"a": {"b": [2, 1]}, "c": 3})
    });
    assert_eq!(applied(document(), [Op::copy_from("/a/b", "/c")]), {
        json!({"a": {"b": [1, 2]}, "c": [1, 2]})
    });
    // The copy is one.
    assert_eq!(applied(document(), [Op::copy_from("/a/b", "/c"), Op::remove("/c/0")]), {
        json!({"a": {"b": [1, 2]}, "c": [2]})
    });
}

#[test]
fn test_op() {
    let document = json!({"a": {"b": 1}, "n": null});
    for passes in [Op::test("/a", json!({"b": 1.0})), Op::test("/n", Value::Null)] {
        assert_eq!(apply_patch(&document, &patch([passes])).unwrap(), document);
    }
    for (path, fails) in [("/a", json!({"b": "1"})), ("/x", Value::Null), ("", json!({}))] {
        let error = apply_patch(&document, &patch([Op::remove("/n"), Op::test(path, fails)]));
        let error = error.unwrap_err();
        assert_eq!(error, PatchError::TestFailed(path.into()));
        assert_eq!(error.status(), Status::InvalidArgument);
    }
}

#[test]
fn paths_are_pointers() {
    for operation in [Op::add("a", 1), Op::move_from("b", "/a"), Op::test("x/y", 1)] {
        let error = apply_patch(&json!({}), &patch([operation])).unwrap_err();
        assert!(matches!(error, PatchError::InvalidPointer(_)), "{error}");
    }
}

#[test]
fn does_not_mutate_input() {
    let document = json!({"a": [1, {"b": 2}]});
    let before = document.clone();
    let operations = patch([Op::add("/a/1/c", 3), Op::remove("/a/0"), Op::test("/none", 1)]);
    assert!(apply_patch(&document, &operations).is_err());
    assert_eq!(document, before);
}

#[test]
fn keys_of_prototypes_are_ordinary() {
    for key in ["__proto__", "prototype", "constructor"] {
        let to = Value::Object(Map::from_iter([(key.to_owned(), json!({"polluted": true}))]));
        assert_eq!(apply_patch(&json!({}), &diff(&json!({}), &to)).unwrap(), to);
    }
}

#[test]
fn a_patch_that_would_grow_without_bound_is_refused() {
    // Nested ever deeper by copying the document into itself.
    let doubling = vec![Op::copy_from("", "/a/a/a"); 200];
    let error = apply_patch(&json!({}), &JsonPatch(doubling)).unwrap_err();
    assert_eq!(error, PatchError::TooDeep);
    let deep = "/a".repeat(100_000);
    assert_eq!(
        apply_patch(&json!({}), &patch([Op::add(deep, 1)])).unwrap_err(),
        PatchError::TooDeep,
    );
    // Or twice as large each time.
    let mut doubling = vec![Op::replace("", json!({"a": [1, 2, 3]}))];
    for _ in 0..64 {
        doubling.extend([Op::copy_from("/a", "/b"), Op::add("/c", json!([]))]);
        doubling.extend([Op::move_from("/a", "/c/0"), Op::move_from("/b", "/c/1")]);
        doubling.push(Op::move_from("/c", "/a"));
    }
    let error = apply_patch(&json!({}), &JsonPatch(doubling)).unwrap_err();
    assert_eq!(error, PatchError::TooLarge);
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["", "a", "b", "/", "~", "~1", "0", "1", "-", "__proto__"])
            .prop_map(String::from),
        "\\PC{0,3}",
    ]
}

fn document() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3..3i64).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // Quarters, which text keeps exactly.
        any::<i32>().prop_map(|number| Value::from(f64::from(number) / 4.0)),
        "\\PC{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            collection::vec((key(), inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn path() -> impl Strategy<Value = String> {
    let token = key().prop_map(|key| format!("/{}", key.replace('~', "~0").replace('/', "~1")));
    prop_oneof![
        9 => collection::vec(token, 0..4).prop_map(|tokens| tokens.concat()),
        1 => "\\PC{0,5}",
    ]
}

fn operation() -> impl Strategy<Value = Op> {
    let op = prop::sample::select(vec![
        JsonPatchOp::Add,
        JsonPatchOp::Remove,
        JsonPatchOp::Replace,
        JsonPatchOp::Move,
        JsonPatchOp::Copy,
        JsonPatchOp::Test,
    ]);
    (op, path(), prop::option::of(path()), prop::option::of(document()))
        .prop_map(|(op, path, from, value)| Op { op, path, from, value })
}

proptest! {
    #[test]
    fn what_diff_finds_apply_does(from in document(), to in document()) {
        let patch = diff(&from, &to);
        prop_assert_eq!(patch.is_empty(), from == to);
        prop_assert_eq!(&apply_patch(&from, &patch).unwrap(), &to);
        // And once more after it was on the wire.
        let text = serde_json::to_string(&patch).unwrap();
        let patch: JsonPatch = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&apply_patch(&from, &patch).unwrap(), &to);
    }

    #[test]
    fn small_changes_are_found(
        from in document(),
        changes in collection::vec(operation(), 1..4),
    ) {
        if let Ok(to) = apply_patch(&from, &JsonPatch(changes)) {
            prop_assert_eq!(apply_patch(&from, &diff(&from, &to)).unwrap(), to);
        }
    }

    #[test]
    fn no_patch_panics_or_changes_its_input(
        document in document(),
        operations in collection::vec(operation(), 0..8),
    ) {
        let before = document.clone();
        let first = apply_patch(&document, &JsonPatch(operations.clone()));
        prop_assert_eq!(&document, &before);
        prop_assert_eq!(first, apply_patch(&document, &JsonPatch(operations)));
    }
}
