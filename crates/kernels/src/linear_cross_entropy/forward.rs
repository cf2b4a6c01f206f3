//! The kernel of the forward pass.

use fulmen_error::Result;

use super::{HIDDEN, LinearCrossEntropy, Logits, Sized, Sizes, Step};
use crate::Kernel;

impl LinearCrossEntropy {
    /// From features, weight and targets to the sums over the logits of each token.
    pub(super) fn forward_kernel(&self, sizes: &Sizes) -> Result<Sized> {
        let bytes = 2 * sizes.dtype.size_in_bytes();
        let blocks = self.blocks(sizes, |tokens, classes| bytes * (tokens + classes));
        let wide = sizes.wide();
        let row = [1, blocks.tokens];
        let last = blocks.class_blocks() as i32 - 1;
        let grid = [sizes.groups, blocks.token_blocks(), blocks.class_blocks()];
        let kernel = Kernel::record("linear_cross_entropy", &grid, |k| {
            k.parallel(2);
            let step = Step::new(k, sizes, blocks, k.program(1), k.program(2));
            let ty = blocks.row_ty(sizes, wide);
            let results = [0; 3].map(|_| k.output(&ty, &[1, 1, blocks.tokens], step.row_map()));
            let largest = k.scratch(wide, row);
            let sums = [0; 3].map(|_| k.scratch(wide, row));
            k.when(k.program(2).equals(0), || {
                largest.store(&k.full(wide, row, HIDDEN));
                for sum in &sums {
                    sum.store(&k.full(wide, row, 0.0));
                }
            });
            let Logits { logits, is_target, is_class, .. } = step.logits(self.softcap);
            let [exponentials, of_target, sum] = &sums;
            let shown = step.hide(&is_class, &logits, HIDDEN);
            let before = largest.load();
            let after = before.maximum(&shown.max(0));
            let shrunk = exponentials.load() * (before - &after).exp();
            exponentials.store(&(shrunk + (shown - &after).exp().sum(0)));
            largest.store(&after);
            let target = is_target.select(&logits, &k.full(wide, logits.shape(), 0.0));
            of_target.store(&(of_target.load() + target.sum(0)));
            sum.store(&(sum.load() + step.hide(&is_class, &logits, 0.0).sum(0)));
            k.when(k.program(2).equals(last), || {
                results[0].store(&(largest.load() + exponentials.load().log()));
                results[1].store(&of_target.load());
                results[2].store(&sum.load());
            });
        })?;
        Ok(Sized { kernel, blocks })
    }
}
