//! The list of what servers do unexpectedly, held against the tests that it names.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Where tests may be.
const FOLDERS: [&str; 4] = ["crates", "providers", "src", "tests"];
/// The lines of the list.
const LINES: usize = 75;

#[test]
fn every_line_of_the_list_names_tests_and_each_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list = fs::read_to_string(root.join("docs/wire-quirks.md")).unwrap();
    let lines: Vec<&str> = list.lines().filter(|line| number(line).is_some()).collect();
    let numbers: Vec<usize> = lines.iter().filter_map(|line| number(line)).collect();
    assert_eq!(numbers, (1..=LINES).collect::<Vec<_>>());
    let there = tests(root);
    for line in lines {
        let named: Vec<&str> =
            line.split('`').skip(1).step_by(2).filter(|word| word.len() > 25).collect();
        assert!(!named.is_empty(), "no test: {line}");
        for name in named {
            assert!(there.contains(name), "no test of this name is there: {name}");
        }
    }
}

fn number(line: &str) -> Option<usize> {
    line.strip_prefix("| ")?.split(' ').next()?.parse().ok()
}

/// The names of all functions of the sources, and of the trials that a macro makes tests of.
fn tests(root: &Path) -> BTreeSet<String> {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| collect(&root.join(folder), &mut files));
    let mut names = BTreeSet::new();
    for file in files {
        let source = fs::read_to_string(file).unwrap();
        for word in source.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            if word.starts_with("trial_") {
                names.insert(word.to_owned());
            }
        }
        for rest in source.split("fn ").skip(1) {
            let end = rest.find('(').unwrap_or_default();
            names.insert(rest[..end].to_owned());
        }
    }
    names
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
