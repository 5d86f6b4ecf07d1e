//! The house plan: which part may use which.

use std::{fs, path::Path};

/// Parts of `src/` and the parts of `src/` that they must not use.
const FORBIDDEN: &[(&str, &[&str])] = &[
    ("src/session", &["crate::link", "crate::policy", "crate::tools", "crate::providers"]),
    ("src/link", &["crate::policy", "crate::tools", "crate::providers"]),
    ("src/policy", &["crate::tools", "crate::providers"]),
    ("src/telephony", &["crate::link", "crate::memory", "crate::tools", "crate::providers"]),
];

/// Crates and the crates of this workspace that they must not use.
const FORBIDDEN_CRATES: &[(&str, &[&str])] = &[
    (
        "crates/types/src",
        &[
            "antiphon_live",
            "antiphon_audio",
            "antiphon_agent",
            "antiphon_cascade",
            "antiphon_openai",
        ],
    ),
    (
        "crates/live/src",
        &["antiphon_audio", "antiphon_agent", "antiphon_cascade", "antiphon_openai"],
    ),
    (
        "crates/audio/src",
        &["antiphon_live", "antiphon_agent", "antiphon_cascade", "antiphon_openai"],
    ),
    (
        "crates/agent/src",
        &["antiphon_live", "antiphon_audio", "antiphon_cascade", "antiphon_openai"],
    ),
    ("crates/testkit/src", &["antiphon::", "antiphon_cascade"]),
    ("providers/cascade/src", &["antiphon::", "antiphon_testkit", "antiphon_openai"]),
    (
        "providers/openai/src",
        &["antiphon::", "antiphon_testkit", "antiphon_agent", "antiphon_cascade"],
    ),
];

/// Pure parts: no clock is read in them, nothing is spawned, no socket or file is touched.
const PURE: &[&str] = &[
    "src/session/engine",
    "src/link/turns",
    "src/link/history",
    "src/telephony/dialect",
    "src/telephony/media",
    "crates/audio/src/playout",
    "crates/audio/src/vad",
    "crates/testkit/src/openai/engine",
    "crates/testkit/src/scripted/player",
    "crates/testkit/src/openai/replying",
    "providers/openai/src/client",
    "providers/openai/src/wire",
    "providers/gemini/src/client",
    "providers/gemini/src/wire",
];
const IMPURE: &[&str] =
    &["Instant::now(", "SystemTime::now(", "tokio::", "std::fs", "std::net", "std::thread"];

#[test]
fn arrows_between_parts_point_down_only() {
    let mut wrong = Vec::new();
    for (part, forbidden) in FORBIDDEN.iter().chain(FORBIDDEN_CRATES) {
        wrong.extend(uses(part, forbidden));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_parts_read_no_clock_and_do_no_io() {
    let wrong: Vec<String> = PURE.iter().flat_map(|part| uses(part, IMPURE)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Lines of code, comments and tests left out, that contain one of `words`.
fn uses(part: &str, words: &[&str]) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(part);
    let mut files = Vec::new();
    collect(&root, &mut files);
    assert!(!files.is_empty(), "nothing at {part}");
    let mut found = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let line = line.trim_start();
            if !line.starts_with("//") && words.iter().any(|word| line.contains(word)) {
                found.push(format!("{}:{}: {line}", file.display(), number + 1));
            }
        }
    }
    found
}

fn collect(path: &Path, files: &mut Vec<std::path::PathBuf>) {
    if path.ends_with("tests") {
        return;
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), files);
        }
        return;
    }
    let file = path.with_extension("rs");
    if file.is_file() && !file.ends_with("tests.rs") {
        files.push(file);
    }
}
