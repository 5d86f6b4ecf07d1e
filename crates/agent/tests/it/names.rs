//! `docs/names.md` says of every name of Genkit's agents where it is found here.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs,
    path::Path,
};

use syn::{Fields, ImplItem, Item, TraitItem, Visibility};

const TABLE: &str = include_str!("../../docs/names.md");
const GO: &str = include_str!("names/genkit-go.txt");
const GO_OLDER: &str = include_str!("names/genkit-go-older.txt");
const GO_TOOLS: &str = include_str!("names/genkit-go-tools.txt");
const JAVASCRIPT: &str = include_str!("names/genkit-js-client.txt");

#[test]
fn each_name_has_one_row_and_no_row_is_of_a_name_that_is_not_listed() {
    assert_eq!(names(&[GO, GO_OLDER, GO_TOOLS]), rows("Go").into_keys().collect());
    assert_eq!(names(&[JAVASCRIPT]), rows("JavaScript").into_keys().collect());
}

#[test]
fn at_most_one_name_in_twenty_is_not_needed_and_each_of_those_says_why() {
    for (language, list) in
        [("Go", GO), ("Go", GO_OLDER), ("Go", GO_TOOLS), ("JavaScript", JAVASCRIPT)]
    {
        let rows = rows(language);
        let names = names(&[list]);
        let reasons: Vec<_> =
            names.iter().filter_map(|name| rows[name].strip_prefix("none: ")).collect();
        assert!(reasons.len() * 20 <= names.len(), "{language}: {reasons:#?}");
        for reason in reasons {
            assert!(reason.split_whitespace().count() >= 5, "{reason:?} is no reason");
        }
    }
}

/// That the whole path leads there is what rustdoc says, for which each cell is a link.
#[test]
fn each_name_leads_to_a_public_item() {
    let ours = public_items();
    for (name, cell) in rows("Go").into_iter().chain(rows("JavaScript")) {
        if cell.starts_with("none: ") {
            continue;
        }
        for link in cell.split(", ") {
            let path = link.strip_prefix("[`").and_then(|rest| rest.strip_suffix("`]"));
            let path = path.unwrap_or_else(|| panic!("{name}: {link:?} is no link"));
            let path = path.split_once('@').map_or(path, |(_, path)| path);
            let path = path.trim_end_matches("()");
            let mut end = path.rsplitn(3, "::");
            let item = match (end.next(), end.next()) {
                (Some(last), Some(owner)) if owner.starts_with(char::is_uppercase) => {
                    format!("{owner}::{last}")
                }
                (Some(last), _) => last.to_owned(),
                (None, _) => unreachable!("a split has a piece"),
            };
            assert!(ours.contains(&item), "{name}: there is no {item}");
        }
    }
}

fn names(lists: &[&'static str]) -> BTreeSet<&'static str> {
    let mut all = BTreeSet::new();
    for list in lists {
        let mut own = HashSet::new();
        for name in list.lines() {
            assert!(own.insert(name), "{name} is listed twice");
        }
        all.extend(own);
    }
    all
}

/// The rows of the table under this title: the name there, and the cell beside it.
fn rows(title: &str) -> BTreeMap<&'static str, &'static str> {
    let (_, section) = TABLE.split_once(&format!("\n# {title}\n")).expect("a title");
    let section = section.split("\n# ").next().expect("a split has a piece");
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells = line.strip_prefix("| `").and_then(|line| line.strip_suffix(" |"));
        let (name, cell) = cells.and_then(|cells| cells.split_once("` | ")).expect(line);
        assert!(rows.insert(name, cell).is_none(), "{name} has two rows");
    }
    rows
}

/// What the sources say is public: `Item`, and `Item::member` for fields, variants and functions.
fn public_items() -> HashSet<String> {
    let mut found = HashSet::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found
}

fn read(directory: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
            file.items.into_iter().for_each(|item| note(item, found));
        }
    }
}

fn note(item: Item, found: &mut HashSet<String>) {
    let public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    match item {
        Item::Struct(item) if public(&item.vis) => {
            if let Fields::Named(fields) = item.fields {
                let fields = fields.named.into_iter().filter(|field| public(&field.vis));
                let fields = fields.filter_map(|field| field.ident);
                found.extend(fields.map(|field| format!("{}::{field}", item.ident)));
            }
            found.insert(item.ident.to_string());
        }
        Item::Enum(item) if public(&item.vis) => {
            let variants = item.variants.iter();
            found.extend(variants.map(|variant| format!("{}::{}", item.ident, variant.ident)));
            found.insert(item.ident.to_string());
        }
        Item::Trait(item) if public(&item.vis) => {
            for member in item.items {
                if let TraitItem::Fn(function) = member {
                    found.insert(format!("{}::{}", item.ident, function.sig.ident));
                }
            }
            found.insert(item.ident.to_string());
        }
        Item::Impl(item) if item.trait_.is_none() => {
            let syn::Type::Path(owner) = *item.self_ty else { return };
            let Some(owner) = owner.path.segments.last() else { return };
            for member in item.items {
                if let ImplItem::Fn(function) = member
                    && public(&function.vis)
                {
                    found.insert(format!("{}::{}", owner.ident, function.sig.ident));
                }
            }
        }
        Item::Fn(item) if public(&item.vis) => {
            found.insert(item.sig.ident.to_string());
        }
        Item::Type(item) if public(&item.vis) => {
            found.insert(item.ident.to_string());
        }
        _ => {}
    }
}
