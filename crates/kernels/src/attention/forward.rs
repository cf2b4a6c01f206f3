//! The kernel of the forward pass.

use fulmen_error::Result;

use super::pairs::Pairs;
use super::{FlashAttention, HIDDEN, Place, Scores, Sizes};
use crate::{Index, Kernel};

impl FlashAttention {
    /// From queries, keys, values and segment ids to the weighted means and the logarithm of each
    /// query's sum of exponentials, which is 0 if it sees no key.
    pub(super) fn forward_kernel(&self, sizes: &Sizes) -> Result<Kernel> {
        let pairs = Pairs::by_query(self, sizes);
        let wide = sizes.wide();
        let query_block = sizes.query_block;
        let grid = [sizes.batch, sizes.heads, pairs.len()];
        Kernel::record("flash_attention", &grid, |k| {
            k.parallel(2);
            let at = pairs.tables(k);
            let zero = || Index::from(0);
            let of_query = || [k.program(0), k.program(1), at.query.clone(), zero()];
            let of_key =
                || [k.program(0), k.program(1) / sizes.group() as i32, at.key.clone(), zero()];
            let key_block = |width| [1, 1, sizes.key_block, width];
            let q = k.input(
                &sizes.of_queries(sizes.dtype, sizes.width),
                &[1, 1, query_block, sizes.width],
                of_query(),
            );
            let keys = k.input(
                &sizes.of_keys(sizes.dtype, sizes.width),
                &key_block(sizes.width),
                of_key(),
            );
            let values = k.input(
                &sizes.of_keys(sizes.value_dtype, sizes.value_width),
                &key_block(sizes.value_width),
                of_key(),
            );
            let ids = sizes.ids(k, &at.query, &at.key);
            let means = k.output(
                &sizes.of_queries(sizes.value_dtype, sizes.value_width),
                &[1, 1, query_block, sizes.value_width],
                of_query(),
            );
            let log_sums = k.output(
                &sizes.of_sums(),
                &[1, 1, 1, query_block],
                [k.program(0), k.program(1), zero(), at.query.clone()],
            );
            let total = k.scratch(wide, [query_block, sizes.value_width]);
            let largest = k.scratch(wide, [query_block, 1]);
            let sum = k.scratch(wide, [query_block, 1]);
            k.when(at.is_first(), || {
                total.store(&k.full(wide, [query_block, sizes.value_width], 0.0));
                largest.store(&k.full(wide, [query_block, 1], HIDDEN));
                sum.store(&k.full(wide, [query_block, 1], 0.0));
            });
            let Scores { scores, .. } = self.scores(&q.load().dot(&keys.load(), [1, 1], wide));
            let place = Place {
                query: &at.query * query_block as i32,
                key: &at.key * sizes.key_block as i32,
                query_axis: 0,
            };
            let visible = self.visible(k, sizes, &place, &ids);
            let hide = |x, value| match &visible {
                Some(visible) => visible.select(&x, &k.full(wide, x.shape(), value)),
                None => x,
            };
            let scores = hide(scores, HIDDEN);
            let before = largest.load();
            let after = before.maximum(&scores.max(1));
            let weights = hide((scores - &after).exp(), 0.0);
            let shrink = (before - &after).exp();
            sum.store(&(sum.load() * &shrink + weights.sum(1)));
            largest.store(&after);
            let more = weights.to_dtype(sizes.value_dtype).dot(&values.load(), [1, 0], wide);
            total.store(&(total.load() * shrink + more));
            k.when(at.is_last(), || {
                let sum = sum.load();
                let none = sum.eq(&k.full(wide, [query_block, 1], 0.0));
                let divisor = none.select(&k.full(wide, [query_block, 1], 1.0), &sum);
                means.store(&(total.load() / &divisor).to_dtype(sizes.value_dtype));
                let log_sum = largest.load() + divisor.log();
                let log_sum = none.select(&k.full(wide, [query_block, 1], 0.0), &log_sum);
                log_sums.store(&log_sum.transpose());
            });
        })
    }
}
