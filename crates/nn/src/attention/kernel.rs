//! Attention by the kernel of `fulmen_kernels`.

use fulmen_kernels::FlashAttention;
use fulmen_tensor::{Refusal, Tensor};

use super::blocks::{Blocks, Inputs};

impl Blocks {
    /// The weighted means of the values, `[…, g, queries, value width]`.
    pub(super) fn forward_by_kernel(self, inputs: &Inputs) -> Result<Tensor, Refusal> {
        if inputs.mask.is_some() || inputs.dropout.is_some() {
            return Err(
                "attention by `kernel` has neither masks nor dropout; use the method `blocks`"
                    .into(),
            );
        }
        let [outer @ .., group, queries, width] = inputs.q.live()?.shape().dims() else {
            return Err("attention by `kernel` needs queries with heads".into());
        };
        let value_width = inputs.v.live()?.size(-1);
        let keys = inputs.k.live()?.size(-2);
        // Segment ids may differ between heads: then each head is a batch of its own.
        let rows = inputs.segment_ids.as_ref().map_or(&[][..], |ids| &ids.shape()[..outer.len()]);
        let has_heads = !outer.is_empty() && rows.last().is_none_or(|&size| size == 1);
        let (batches, key_heads) = outer.split_at(outer.len() - usize::from(has_heads));
        let batch: usize = batches.iter().product();
        let key_heads: usize = key_heads.iter().product();
        let q = inputs.q.reshape([batch, key_heads * group, *queries, *width]);
        let k = inputs.k.reshape([batch, key_heads, keys, *width]);
        let v = inputs.v.reshape([batch, key_heads, keys, value_width]);
        let ids = inputs.segment_ids.as_ref().map(|ids| {
            if rows.iter().all(|&size| size == 1) {
                return ids.reshape([1, *queries]);
            }
            let own = [&rows[..batches.len()], &[*queries]].concat();
            let all = [batches, &[*queries]].concat();
            ids.reshape(own).broadcast_to(all).reshape([batch, *queries])
        });
        let means = FlashAttention::new(self.scale)
            .causal(self.causal)
            .window(self.window)
            .softcap(self.softcap)
            .block_size(self.block_size)
            .forward(&q, &k, &v, ids.as_ref());
        let shape = [outer, &[*group, *queries, value_width]].concat();
        Ok(means.live()?.reshape(shape))
    }
}
