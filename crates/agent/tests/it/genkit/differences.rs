//! Where the answers here differ from the recorded ones, and what they follow instead.

use antiphon_agent::patch::JsonPatch;
use serde_json::{Value, json};

/// What is different in one exchange, from theirs to ours, and why.
pub(super) type Difference = (JsonPatch, &'static str);

const ROLLED_BACK: &str = "follows the Go line: a turn that fails and returns no result is rolled \
                           back; it leaves no snapshot, and nothing of it is seen";
const NO_MESSAGE: &str =
    "follows the Go line: a failed output has no message; a client would append it once more";
const REFUSED: &str =
    "follows the Go line: where an invocation cannot start, its call fails, not its turn";
const PENDING: &str = "follows the Go line: a pending snapshot has no state";
const PARENT: &str = "follows the Go line: a snapshot that settles keeps its parent; theirs \
                      becomes its own";
const AFTERWARDS: &str = "follows the Go line: abort tells the status after it";
const ABORTED: &str = "follows the Go line: an aborted snapshot says why it ended, has no \
                       heartbeat, and can be resumed";
const BESIDE: &str = "follows the Go line: no turn runs beside work in the background; theirs \
                      forks without a word";
const UNKNOWN: &str = "follows the Go line: an unknown snapshot is not found";

/// The differences of one exchange.
pub(super) fn of(scenario: &str, exchange: usize) -> Vec<Difference> {
    let refused = |chunks: bool| {
        let chunks = chunks.then(|| put("/chunks", json!([])));
        let error = put("/error", json!({ "status": "FAILED_PRECONDITION" }));
        chunks.into_iter().chain([drop("/result"), error]).collect::<Vec<_>>()
    };
    let list = match (scenario, exchange) {
        ("19-failing-custom", 1) => vec![
            (vec![drop("/chunks/3/turnEnd/snapshotId")], ROLLED_BACK),
            (vec![drop("/result/message")], NO_MESSAGE),
        ],
        ("19-failing-custom", 2) => vec![(
            vec![put(
                "/result",
                json!({
                    "snapshotId": "575a162f-67ee-4327-ba49-bcd5e66d740f",
                    "sessionId": "3a2d0053-940e-4ea0-b998-6b75702c278d",
                    "createdAt": "then",
                    "updatedAt": "then",
                    "status": "completed",
                    "finishReason": "stop",
                    "state": {
                        "sessionId": "3a2d0053-940e-4ea0-b998-6b75702c278d",
                        "custom": {"counter": 1, "status": "done", "items": ["a"]},
                        "messages": [
                            {"role": "user", "content": [{"text": "a"}]},
                            {"role": "model", "content": [{"text": "done a turn=0"}]},
                        ],
                    },
                }),
            )],
            ROLLED_BACK,
        )],
        ("20-failing-client-managed", 1) => vec![(vec![drop("/result/message")], NO_MESSAGE)],
        ("23-detach-poll-wait", 2..=9) => vec![(vec![drop("/result/state")], PENDING)],
        ("23-detach-poll-wait", 10 | 11) => {
            let parent = json!("fcc637a9-4949-47c6-b4d3-5edcd2836f7c");
            vec![(vec![put("/result/parentId", parent)], PARENT)]
        }
        ("24-detach-abort", 2) | ("28-resume-while-pending", 4) => {
            vec![(vec![put("/result/status", json!("aborting"))], AFTERWARDS)]
        }
        ("24-detach-abort", 4 | 5) => vec![(
            vec![drop("/result/heartbeatAt"), put("/result/finishReason", json!("aborted"))],
            ABORTED,
        )],
        ("24-detach-abort", 6) => vec![(
            vec![
                put(
                    "/chunks",
                    json!([
                        {"customPatch": [{
                            "op": "replace",
                            "path": "",
                            "value": {"counter": 2, "status": "working", "items": ["first"]},
                        }]},
                        {"customPatch": [{"op": "add", "path": "/items/-", "value": "x"}]},
                        {"modelChunk": {
                            "role": "model",
                            "index": 0,
                            "content": [{"text": "working on x"}],
                        }},
                        {"customPatch": [{"op": "replace", "path": "/status", "value": "done"}]},
                        {"turnEnd": {"snapshotId": "resumed", "finishReason": "stop"}},
                    ]),
                ),
                put(
                    "/result",
                    json!({
                        "sessionId": "5ba2cc3b-90e4-44e3-ab7b-7ca524a51f3e",
                        "snapshotId": "resumed",
                        "finishReason": "stop",
                        "message": {"role": "model", "content": [{"text": "done x turn=0"}]},
                    }),
                ),
            ],
            ABORTED,
        )],
        ("24-detach-abort", 7) => {
            let value = json!({"counter": 3, "status": "working", "items": ["first", "x"]});
            vec![(vec![put("/chunks/0/customPatch/0/value", value)], ABORTED)]
        }
        ("25-detach-fail", 1) => vec![
            (vec![drop("/result/state/custom"), drop("/result/state/messages")], ROLLED_BACK),
            (vec![drop("/result/parentId")], PARENT),
        ],
        ("28-resume-while-pending", 2) => vec![(refused(false), REFUSED)],
        ("28-resume-while-pending", 3) => vec![(refused(true), BESIDE)],
        ("29-abort-unknown-and-settled", 2) => {
            let error = put("/error", json!({ "status": "NOT_FOUND" }));
            vec![(vec![drop("/result"), error], UNKNOWN)]
        }
        _ => vec![],
    };
    let patch = |operations| serde_json::from_value(Value::Array(operations)).unwrap();
    list.into_iter().map(|(operations, because)| (patch(operations), because)).collect()
}

fn drop(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

fn put(path: &str, value: Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}
