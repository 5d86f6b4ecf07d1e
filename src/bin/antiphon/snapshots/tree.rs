//! Snapshots as a tree.

use std::collections::{HashMap, HashSet};

/// A line of a tree: what stands before it, and which node it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    pub prefix: String,
    pub node: usize,
}

/// The lines of the forest in which each node is an id and that of its parent, in the order in which
/// they came to be. What goes straight on stays at its depth; where it is forked there is a branch
/// for each.
pub fn lines(nodes: &[(&str, Option<&str>)]) -> Vec<Line> {
    let places: HashMap<&str, usize> =
        nodes.iter().enumerate().map(|(place, (id, _))| (*id, place)).collect();
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    let mut roots = Vec::new();
    for (place, (_, parent)) in nodes.iter().enumerate() {
        match parent.and_then(|parent| places.get(parent)) {
            // Nobody is his own ancestor, whatever the rows say.
            Some(parent) if !descends(nodes, &places, *parent, place) => {
                children[*parent].push(place);
            }
            _ => roots.push(place),
        }
    }
    let mut lines = Vec::with_capacity(nodes.len());
    // By hand, not by recursion: a conversation may be longer than a stack is deep.
    let mut open: Vec<(usize, String, &str)> =
        roots.into_iter().rev().map(|root| (root, String::new(), "")).collect();
    while let Some((node, indent, branch)) = open.pop() {
        lines.push(Line { prefix: format!("{indent}{branch}"), node });
        let below = match branch {
            "" => indent,
            "├─" => indent + "│ ",
            _ => indent + "  ",
        };
        match children[node].as_slice() {
            [] => {}
            [only] => open.push((*only, below, "")),
            [first @ .., last] => {
                open.push((*last, below.clone(), "└─"));
                open.extend(first.iter().rev().map(|child| (*child, below.clone(), "├─")));
            }
        }
    }
    lines
}

/// Whether `node` comes from `ancestor`, or is it. Parents are mostly older than their children, and
/// then this need not be looked into.
fn descends(
    nodes: &[(&str, Option<&str>)],
    places: &HashMap<&str, usize>,
    node: usize,
    ancestor: usize,
) -> bool {
    if node < ancestor {
        return false;
    }
    let mut seen = HashSet::new();
    let mut next = Some(node);
    while let Some(node) = next.filter(|node| seen.insert(*node)) {
        if node == ancestor {
            return true;
        }
        next = nodes[node].1.and_then(|parent| places.get(parent)).copied();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(nodes: &[(&str, Option<&str>)]) -> Vec<String> {
        let lines = lines(nodes);
        lines.iter().map(|line| format!("{}{}", line.prefix, nodes[line.node].0)).collect()
    }

    #[test]
    fn forks_are_branches_and_what_goes_straight_on_is_not() {
        let nodes = [
            ("a", None),
            ("b", Some("a")),
            ("c", Some("b")),
            ("d", Some("b")),
            ("e", Some("c")),
            ("f", Some("c")),
            ("g", Some("d")),
            ("h", Some("elsewhere")),
        ];
        assert_eq!(drawn(&nodes), ["a", "b", "├─c", "│ ├─e", "│ └─f", "└─d", "  g", "h"]);
    }

    #[test]
    fn rows_that_go_round_in_circles_are_all_there() {
        let nodes = [("a", Some("b")), ("b", Some("a")), ("c", Some("c"))];
        let mut drawn = drawn(&nodes);
        drawn.sort();
        assert_eq!(drawn.len(), 3);
    }

    #[test]
    fn a_long_conversation_is_no_deep_one() {
        let ids: Vec<String> = (0..20_000).map(|number| number.to_string()).collect();
        let nodes: Vec<_> = ids
            .iter()
            .enumerate()
            .map(|(n, id)| (id.as_str(), n.checked_sub(1).map(|before| ids[before].as_str())))
            .collect();
        assert!(lines(&nodes).iter().all(|line| line.prefix.is_empty()));
    }
}
