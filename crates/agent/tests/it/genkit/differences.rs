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
const COMMITTED: &str = "follows the Go line: a turn in which the model was reached is committed when \
                         it fails, up to its last round of tools, and can be resumed from there";
const STOPPED: &str = "follows the Go line: a turn that its caller stops is aborted, and its \
                       snapshot says so; theirs runs on for nobody";
const INPUT: &str = "follows the Go line: an input is the user's, and says something or goes on";
const NOTHING: &str = "follows the Go line: an input of null is none";
const NO_INIT: &str = "follows the Go line: without a start it is a fresh session";
const NO_STORE: &str = "follows the Go line: a detach without a store fails its invocation; theirs \
                        ends the server";
const BLOCKED: &str = "follows the Go line: that the model was blocked is an end like others";
const BOTH: &str = "follows the Go line: with both ids the session is an assertion";
const BARE: &str = "follows the Go line: the state is left out where it is not asked for";
const AGAIN: &str = "follows the Go line: a tool may interrupt again when it is restarted";
const INTERRUPTING: &str = "follows the Go line: the last chunk has the requests that interrupt";
const STALE: &str = "follows the Go line: only the last message of the model can be answered";
const UNKNOWN: &str = "follows the Go line: an unknown snapshot is not found";

/// Snapshots of turns that failed, which the recordings name at the ends of the turns.
const FAILED_17: &str = "d49f2857-6690-4dd4-8f55-ecfb99b37a2e";
const FAILED_18: &str = "02bd8b68-2601-4301-aa81-fe3b0963802b";
const FAILED_21: &str = "3dfad24f-d569-4352-9e15-a5e76dac9ecf";
const BLOCKED_22: &str = "f619c2ac-07f8-42ca-b63c-68d53cd046d0";

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
        ("11-interrupt-restart", 1) => {
            let id = json!("7cd96a98-bc1f-4218-a95f-a1ca5db8bbd5");
            let request = json!({
                "toolRequest": {
                    "name": "transfer",
                    "ref": "t1",
                    "input": {"to": "alice", "amount": 200},
                },
                "metadata": {"interrupt": {"reason": "large_amount", "amount": 200}},
            });
            let chunks = json!([
                {"modelChunk": {"role": "tool", "content": [request]}},
                {"turnEnd": {"snapshotId": id, "finishReason": "interrupted"}},
            ]);
            let reason = put("/result/finishReason", json!("interrupted"));
            let (error, id) = (drop("/result/error"), put("/result/snapshotId", id));
            vec![(vec![put("/chunks", chunks), error, reason, id], AGAIN)]
        }
        ("13-interrupt-with-finished-sibling", 0) => {
            vec![(vec![drop("/chunks/0/modelChunk/content/0")], INTERRUPTING)]
        }
        ("14-forged-restart", 1) | ("15-forged-respond", 1 | 2) | ("40-resume-plus-message", 1) => {
            vec![
                (vec![drop("/chunks/0/turnEnd/snapshotId")], ROLLED_BACK),
                (vec![drop("/result/message")], NO_MESSAGE),
            ]
        }
        ("16-stale-resume", 3) => vec![
            (vec![put("/result/error/status", json!("INVALID_ARGUMENT"))], STALE),
            (vec![drop("/chunks/0/turnEnd/snapshotId")], ROLLED_BACK),
            (vec![drop("/result/message")], NO_MESSAGE),
        ],
        ("17-failing-turn", 1) => vec![
            (vec![put("/result/snapshotId", json!(FAILED_17))], COMMITTED),
            (vec![drop("/result/message")], NO_MESSAGE),
        ],
        ("18-failing-first-turn", 0) => {
            vec![(vec![put("/result/snapshotId", json!(FAILED_18))], COMMITTED)]
        }
        ("21-tool-throws", 0) => {
            vec![(vec![put("/result/snapshotId", json!(FAILED_21))], COMMITTED)]
        }
        ("22-finish-reasons", 1) => vec![(
            vec![
                put("/chunks/0/turnEnd/finishReason", json!("blocked")),
                put("/result/finishReason", json!("blocked")),
                put("/result/snapshotId", json!(BLOCKED_22)),
                put("/result/message/content", json!([])),
                drop("/result/error"),
            ],
            BLOCKED,
        )],
        ("27-detach-prompt-abort", 1) => {
            vec![(vec![put("/result/status", json!("aborting"))], AFTERWARDS)]
        }
        ("27-detach-prompt-abort", 2 | 3) => {
            let said = json!([{"role": "user", "content": [{"text": "slow"}]}]);
            let reason = put("/result/finishReason", json!("aborted"));
            vec![
                (vec![drop("/result/heartbeatAt"), reason], ABORTED),
                (vec![put("/result/state/messages", said)], COMMITTED),
            ]
        }
        ("34-bad-init", 3) => {
            let error = put("/error", json!({ "status": "NOT_FOUND" }));
            vec![(vec![drop("/result"), error], REFUSED)]
        }
        ("34-bad-init", 8) => vec![(invalid(), REFUSED)],
        ("35-bad-input", 0) => {
            let nothing = put("/result", json!({ "sessionId": "fresh" }));
            vec![(vec![drop("/error"), nothing], NOTHING)]
        }
        ("35-bad-input", 1) => {
            let output = json!({
                "sessionId": "no init",
                "snapshotId": "its first",
                "finishReason": "stop",
                "message": {
                    "role": "model",
                    "content": [{"text": "Hello, you said \"no init\""}],
                },
            });
            vec![(vec![drop("/error"), put("/result", output)], NO_INIT)]
        }
        ("35-bad-input", 3 | 4) => vec![(
            vec![
                put("/result/error", json!({ "status": "INVALID_ARGUMENT" })),
                put("/result/finishReason", json!("failed")),
                drop("/result/message"),
                drop("/result/snapshotId"),
            ],
            INPUT,
        )],
        ("35-bad-input", 5) => vec![(invalid(), REFUSED)],
        ("36-getSnapshot-raw", 3) => {
            let session = "821cb04b-1e9e-429b-bf3f-56e5e398279c";
            let row = json!({
                "snapshotId": "77f4d34a-fd4e-42d2-9672-72891a7e4e3f",
                "sessionId": session,
                "createdAt": "then",
                "updatedAt": "then",
                "status": "completed",
                "finishReason": "stop",
                "state": {
                    "sessionId": session,
                    "messages": [
                        {"role": "user", "content": [{"text": "x"}]},
                        {"role": "model", "content": [{"text": "Hello, you said \"x\""}]},
                    ],
                },
            });
            vec![(vec![drop("/error"), put("/result", row)], BOTH)]
        }
        ("36-getSnapshot-raw", 6) => vec![(vec![drop("/result/state")], BARE)],
        ("37-abort-inflight-turn", 1) => vec![(
            vec![
                put("/result/status", json!("aborted")),
                put("/result/finishReason", json!("aborted")),
                put("/result/error", json!({ "status": "CANCELLED" })),
                drop("/result/state/messages/1"),
            ],
            STOPPED,
        )],
        ("99-detach-no-store", 0) => {
            let output = json!({
                "sessionId": "detached",
                "finishReason": "failed",
                "error": {"status": "FAILED_PRECONDITION"},
                "state": {"sessionId": "detached"},
            });
            vec![(vec![drop("/error"), put("/result", output)], NO_STORE)]
        }
        _ => vec![],
    };
    let patch = |operations| serde_json::from_value(Value::Array(operations)).unwrap();
    list.into_iter().map(|(operations, because)| (patch(operations), because)).collect()
}

/// A call that fails.
fn invalid() -> Vec<Value> {
    vec![drop("/result"), put("/error", json!({ "status": "INVALID_ARGUMENT" }))]
}

fn drop(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

fn put(path: &str, value: Value) -> Value {
    json!({ "op": "add", "path": path, "value": value })
}
