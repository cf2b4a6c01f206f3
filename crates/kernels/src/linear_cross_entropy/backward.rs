//! The kernels of the backward pass: one for the features, and one for the weight.

use fulmen_error::Result;
use fulmen_tensor::TensorType;

use super::{HIDDEN, LinearCrossEntropy, Logits, Sized, Sizes, Step};
use crate::{Index, Kernel, Tile};

impl LinearCrossEntropy {
    /// The cotangents of the products of a pair of blocks, `[classes, tokens]`, in the dtype of the
    /// features. Declares the logarithms of the sums, and the cotangents of the three results.
    fn of_products(&self, step: &Step) -> Tile {
        let [log_sum, of_log_sum, of_target, of_sum] = [0; 4].map(|_| step.row_input());
        let Logits { logits, slope, is_target, is_class } = step.logits(self.softcap);
        let shape = logits.shape();
        let zero = step.k.full(step.sizes.wide(), shape, 0.0);
        let shown = step.hide(&is_class, &logits, HIDDEN);
        let softmax = (shown - log_sum.load()).exp();
        let of_logits = softmax * of_log_sum.load()
            + is_target.select(&of_target.load().broadcast(shape), &zero)
            + step.hide(&is_class, &of_sum.load().broadcast(shape), 0.0);
        let of_products = match slope {
            Some(slope) => of_logits * slope,
            None => of_logits,
        };
        of_products.to_dtype(step.sizes.dtype)
    }

    /// To the cotangents of the features.
    pub(super) fn token_kernel(&self, sizes: &Sizes) -> Result<Sized> {
        let bytes = sizes.dtype.size_in_bytes();
        let wide = sizes.wide();
        let blocks = self.blocks(sizes, |tokens, classes| {
            (4 * bytes + wide.size_in_bytes()) * tokens + 2 * bytes * classes
        });
        let shape = [blocks.tokens, sizes.width];
        let last = blocks.class_blocks() as i32 - 1;
        let grid = [sizes.groups, blocks.token_blocks(), blocks.class_blocks()];
        let kernel = Kernel::record("linear_cross_entropy_tokens_vjp", &grid, |k| {
            k.parallel(2);
            let step = Step::new(k, sizes, blocks, k.program(1), k.program(2));
            let of_products = self.of_products(&step);
            let of_x = k.output(
                &blocks.x_ty(sizes),
                &[1, shape[0], shape[1]],
                [k.program(0), k.program(1), Index::from(0)],
            );
            let total = k.scratch(wide, shape);
            k.when(k.program(2).equals(0), || total.store(&k.full(wide, shape, 0.0)));
            let product = of_products.dot(&step.weight.load(), [0, 0], wide);
            total.store(&(total.load() + product));
            k.when(k.program(2).equals(last), || of_x.store(&total.load().to_dtype(sizes.dtype)));
        })?;
        Ok(Sized { kernel, blocks })
    }

    /// To the cotangents of the weight, of each group.
    pub(super) fn class_kernel(&self, sizes: &Sizes) -> Result<Sized> {
        let bytes = sizes.dtype.size_in_bytes();
        let wide = sizes.wide();
        let blocks = self.blocks(sizes, |tokens, classes| {
            2 * bytes * tokens + (4 * bytes + wide.size_in_bytes()) * classes
        });
        let shape = [blocks.classes, sizes.width];
        let last = blocks.token_blocks() as i32 - 1;
        let grid = [sizes.groups, blocks.class_blocks(), blocks.token_blocks()];
        let ty = TensorType::new(sizes.dtype, [sizes.groups, blocks.padded_classes, sizes.width]);
        let kernel = Kernel::record("linear_cross_entropy_classes_vjp", &grid, |k| {
            k.parallel(2);
            let step = Step::new(k, sizes, blocks, k.program(2), k.program(1));
            let of_products = self.of_products(&step);
            let of_weight = k.output(
                &ty,
                &[1, shape[0], shape[1]],
                [k.program(0), k.program(1), Index::from(0)],
            );
            let total = k.scratch(wide, shape);
            k.when(k.program(2).equals(0), || total.store(&k.full(wide, shape, 0.0)));
            let product = of_products.dot(&step.x.load(), [1, 0], wide);
            total.store(&(total.load() + product));
            k.when(k.program(2).equals(last), || {
                of_weight.store(&total.load().to_dtype(sizes.dtype))
            });
        })?;
        Ok(Sized { kernel, blocks })
    }
}
