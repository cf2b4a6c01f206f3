//! A set of texts with numbers, that finds which of them a text begins with.

use std::ops::Range;

/// No text ends at a node.
const NONE: u32 = u32::MAX;

/// The texts as a tree of their bytes. The children of a node are next to each other, ordered by
/// their byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Trie {
    nodes: Vec<Node>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    byte: u8,
    first_child: u32,
    children: u32,
    number: u32,
}

/// A text at the beginning of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) length: usize,
    pub(super) number: u32,
}

/// The texts that share the bytes up to a node.
struct Group {
    node: usize,
    depth: usize,
    texts: Range<usize>,
}

impl Trie {
    pub(super) fn new<'a>(texts: impl Iterator<Item = (&'a str, u32)>) -> Trie {
        let mut sorted: Vec<(&[u8], u32)> =
            texts.map(|(text, number)| (text.as_bytes(), number)).collect();
        sorted.sort_unstable();
        let root = Node { byte: 0, first_child: 0, children: 0, number: NONE };
        let mut nodes = vec![root];
        let mut groups =
            std::collections::VecDeque::from([Group { node: 0, depth: 0, texts: 0..sorted.len() }]);
        while let Some(Group { node, depth, mut texts }) = groups.pop_front() {
            while texts.start < texts.end && sorted[texts.start].0.len() == depth {
                nodes[node].number = sorted[texts.start].1;
                texts.start += 1;
            }
            nodes[node].first_child = index(nodes.len());
            while texts.start < texts.end {
                let byte = sorted[texts.start].0[depth];
                let same = sorted[texts.clone()].partition_point(|(text, _)| text[depth] <= byte);
                let child = texts.start..texts.start + same;
                texts.start = child.end;
                nodes[node].children += 1;
                groups.push_back(Group { node: nodes.len(), depth: depth + 1, texts: child });
                nodes.push(Node { byte, ..root });
            }
        }
        Trie { nodes }
    }

    /// The texts that these bytes begin with, the shortest first.
    pub(super) fn prefixes<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = Prefix> + 'a {
        let mut node = self.nodes.first();
        let mut rest = bytes.iter().enumerate();
        std::iter::from_fn(move || {
            loop {
                let (position, byte) = rest.next()?;
                node = self.child(node?, *byte);
                let number = node?.number;
                if number != NONE {
                    return Some(Prefix { length: position + 1, number });
                }
            }
        })
    }

    /// The number of this text.
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        let mut node = self.nodes.first()?;
        for &byte in text {
            node = self.child(node, byte)?;
        }
        Some(node.number).filter(|&number| number != NONE)
    }

    fn child(&self, node: &Node, byte: u8) -> Option<&Node> {
        let first = node.first_child as usize;
        let children = self.nodes.get(first..first + node.children as usize)?;
        let place = children.binary_search_by_key(&byte, |child| child.byte).ok()?;
        children.get(place)
    }
}

/// Files are smaller than 4 GiB, so nodes are fewer than fit.
fn index(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(NONE)
}
