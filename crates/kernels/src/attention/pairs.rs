//! The pairs of a block of queries and a block of keys that an attention computes.

use super::{FlashAttention, Sizes};
use crate::{Condition, Index, Table, Tiles};

/// A pair, with the query head of those that share a key head.
#[derive(Clone, Copy)]
struct Pair {
    query: usize,
    key: usize,
    head: usize,
}

/// The pairs of a grid's last axis, in the order in which it visits them.
pub(super) struct Pairs {
    all: Vec<Pair>,
    /// Whether the pairs of one block of keys follow each other, instead of one of queries.
    by_key: bool,
}

/// The pair of a step.
pub(super) struct At {
    pub(super) query: Index,
    pub(super) key: Index,
    /// Which of the query heads that share a key head.
    pub(super) head: Index,
    edge: Index,
}

/// What [`At::edge`] is made of.
const FIRST: i32 = 1;
const LAST: i32 = 2;

impl Pairs {
    /// The pairs in which any query sees any key, in the order of the queries. A block of queries that
    /// sees no key has one pair, whose scores are all hidden, so that its results are written.
    pub(super) fn by_query(how: &FlashAttention, sizes: &Sizes) -> Pairs {
        let mut all = Vec::new();
        for query in 0..sizes.query_blocks() {
            let before = all.len();
            let keys = (0..sizes.key_blocks()).filter(|&key| how.is_seen(sizes, query, key));
            all.extend(keys.map(|key| Pair { query, key, head: 0 }));
            if all.len() == before {
                all.push(Pair { query, key: 0, head: 0 });
            }
        }
        Pairs { all, by_key: false }
    }

    /// The same in the order of the keys, for each of the query heads that share a key head.
    pub(super) fn by_key(how: &FlashAttention, sizes: &Sizes) -> Pairs {
        let mut all = Vec::new();
        for key in 0..sizes.key_blocks() {
            let before = all.len();
            for head in 0..sizes.group() {
                let queries =
                    (0..sizes.query_blocks()).filter(|&query| how.is_seen(sizes, query, key));
                all.extend(queries.map(|query| Pair { query, key, head }));
            }
            if all.len() == before {
                all.push(Pair { query: 0, key, head: 0 });
            }
        }
        Pairs { all, by_key: true }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The pair at the position along the axis 2 of the grid, read from tables.
    pub(super) fn tables(&self, k: &Tiles) -> At {
        let table = |of: &dyn Fn(usize) -> i32| -> Index {
            let elements: Vec<i32> = (0..self.all.len()).map(of).collect();
            Table::at(k.table(&elements), k.program(2))
        };
        let run = |at: usize| if self.by_key { self.all[at].key } else { self.all[at].query };
        let edge = |at: usize| {
            let is_first = at == 0 || run(at - 1) != run(at);
            let is_last = at + 1 == self.all.len() || run(at + 1) != run(at);
            FIRST * i32::from(is_first) + LAST * i32::from(is_last)
        };
        let has_heads = self.all.iter().any(|pair| pair.head > 0);
        At {
            query: table(&|at| self.all[at].query as i32),
            key: table(&|at| self.all[at].key as i32),
            head: if has_heads { table(&|at| self.all[at].head as i32) } else { Index::from(0) },
            edge: table(&edge),
        }
    }
}

impl At {
    /// Whether the pair is the first of its block of queries or keys.
    pub(super) fn is_first(&self) -> Condition {
        (&self.edge % 2).equals(FIRST)
    }

    /// Whether the pair is the last of its block of queries or keys.
    pub(super) fn is_last(&self) -> Condition {
        (&self.edge / 2).equals(1)
    }
}

impl FlashAttention {
    /// Whether any query of a block sees any key of a block.
    fn is_seen(&self, sizes: &Sizes, query: usize, key: usize) -> bool {
        let first_query = query * sizes.query_block;
        let last_query = (first_query + sizes.query_block).min(sizes.queries) - 1;
        let first_key = key * sizes.key_block;
        let last_key = (first_key + sizes.key_block).min(sizes.keys) - 1;
        let is_later = self.causal && first_key > last_query;
        let is_too_early =
            self.window.is_some_and(|window| last_key.saturating_add(window) <= first_query);
        !is_later && !is_too_early
    }
}
