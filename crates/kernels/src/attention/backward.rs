//! The kernels of the backward pass: one for the queries, and one for the keys and values.

use fulmen_error::Result;

use super::pairs::{At, Pairs};
use super::{FlashAttention, Place, Scores, Sizes};
use crate::{Index, Kernel, Memory, Tile, Tiles};

/// The blocks that a step of the backward pass sees.
struct Blocks {
    q: Memory,
    k: Memory,
    v: Memory,
    ids: Option<[Memory; 2]>,
    /// The cotangents of the means.
    of_means: Memory,
    log_sums: Memory,
    /// For each query, the number that the derivatives of all its weights share.
    shared: Memory,
}

/// What a step computes from its blocks, transposed: keys are rows.
struct Weights {
    weights: Tile,
    /// The cotangents of the products of queries and keys.
    of_products: Tile,
}

impl Blocks {
    /// Declares the inputs. `head` is the query head, and `key_head` the head of keys.
    fn new(k: &Tiles, sizes: &Sizes, at: &At, head: &Index, key_head: &Index) -> Blocks {
        let zero = || Index::from(0);
        let query_map = || [k.program(0), head.clone(), at.query.clone(), zero()];
        let key_map = || [k.program(0), key_head.clone(), at.key.clone(), zero()];
        let sum_map = || [k.program(0), head.clone(), zero(), at.query.clone()];
        let of_query = |dtype, width| {
            k.input(&sizes.of_queries(dtype, width), &[1, 1, sizes.query_block, width], query_map())
        };
        let of_key = |dtype, width| {
            k.input(&sizes.of_keys(dtype, width), &[1, 1, sizes.key_block, width], key_map())
        };
        let of_sums = || k.input(&sizes.of_sums(), &[1, 1, 1, sizes.query_block], sum_map());
        Blocks {
            q: of_query(sizes.dtype, sizes.width),
            k: of_key(sizes.dtype, sizes.width),
            v: of_key(sizes.value_dtype, sizes.value_width),
            ids: sizes.ids(k, &at.query, &at.key),
            of_means: of_query(sizes.value_dtype, sizes.value_width),
            log_sums: of_sums(),
            shared: of_sums(),
        }
    }
}

impl FlashAttention {
    fn weights(&self, k: &Tiles, sizes: &Sizes, at: &At, blocks: &Blocks) -> Weights {
        let wide = sizes.wide();
        let product = blocks.k.load().dot(&blocks.q.load(), [1, 1], wide);
        let Scores { scores, slope } = self.scores(&product);
        let place = Place {
            query: &at.query * sizes.query_block as i32,
            key: &at.key * sizes.key_block as i32,
            query_axis: 1,
        };
        let mut weights = (scores - blocks.log_sums.load()).exp();
        if let Some(visible) = self.visible(k, sizes, &place, &blocks.ids) {
            weights = visible.select(&weights, &k.full(wide, weights.shape(), 0.0));
        }
        let of_weights = blocks.v.load().dot(&blocks.of_means.load(), [1, 1], wide);
        let mut of_products = &weights * (of_weights - blocks.shared.load()) * self.scale;
        if let Some(slope) = slope {
            of_products = of_products * slope;
        }
        Weights { weights, of_products }
    }

    /// To the cotangents of the queries.
    pub(super) fn query_kernel(&self, sizes: &Sizes) -> Result<Kernel> {
        let pairs = Pairs::by_query(self, sizes);
        let wide = sizes.wide();
        let shape = [sizes.query_block, sizes.width];
        let grid = [sizes.batch, sizes.heads, pairs.len()];
        Kernel::record("flash_attention_queries_vjp", &grid, |k| {
            k.parallel(2);
            let at = pairs.tables(k);
            let head = k.program(1);
            let blocks = Blocks::new(k, sizes, &at, &head, &(&head / sizes.group() as i32));
            let of_q = k.output(
                &sizes.of_queries(sizes.dtype, sizes.width),
                &[1, 1, shape[0], shape[1]],
                [k.program(0), head, at.query.clone(), Index::from(0)],
            );
            let total = k.scratch(wide, shape);
            k.when(at.is_first(), || total.store(&k.full(wide, shape, 0.0)));
            let Weights { of_products, .. } = self.weights(k, sizes, &at, &blocks);
            let of_products = of_products.to_dtype(sizes.dtype);
            total.store(&(total.load() + of_products.dot(&blocks.k.load(), [0, 0], wide)));
            k.when(at.is_last(), || of_q.store(&total.load().to_dtype(sizes.dtype)));
        })
    }

    /// To the cotangents of the keys and of the values, summed over the query heads that share them.
    pub(super) fn key_kernel(&self, sizes: &Sizes) -> Result<Kernel> {
        let pairs = Pairs::by_key(self, sizes);
        let wide = sizes.wide();
        let grid = [sizes.batch, sizes.key_heads, pairs.len()];
        Kernel::record("flash_attention_keys_vjp", &grid, |k| {
            k.parallel(2);
            let at = pairs.tables(k);
            let key_head = k.program(1);
            let head = &key_head * sizes.group() as i32 + &at.head;
            let blocks = Blocks::new(k, sizes, &at, &head, &key_head);
            let output = |dtype, width| {
                k.output(
                    &sizes.of_keys(dtype, width),
                    &[1, 1, sizes.key_block, width],
                    [k.program(0), key_head.clone(), at.key.clone(), Index::from(0)],
                )
            };
            let of_k = output(sizes.dtype, sizes.width);
            let of_v = output(sizes.value_dtype, sizes.value_width);
            let totals = [sizes.width, sizes.value_width]
                .map(|width| k.scratch(wide, [sizes.key_block, width]));
            let shapes = [sizes.width, sizes.value_width].map(|width| [sizes.key_block, width]);
            k.when(at.is_first(), || {
                for (total, shape) in totals.iter().zip(shapes) {
                    total.store(&k.full(wide, shape, 0.0));
                }
            });
            let Weights { weights, of_products } = self.weights(k, sizes, &at, &blocks);
            let products = [
                of_products.to_dtype(sizes.dtype).dot(&blocks.q.load(), [1, 0], wide),
                weights.to_dtype(sizes.value_dtype).dot(&blocks.of_means.load(), [1, 0], wide),
            ];
            for (total, product) in totals.iter().zip(products) {
                total.store(&(total.load() + product));
            }
            k.when(at.is_last(), || {
                of_k.store(&totals[0].load().to_dtype(sizes.dtype));
                of_v.store(&totals[1].load().to_dtype(sizes.value_dtype));
            });
        })
    }
}
