//! [`KeyValueCache`]: the keys and values of past tokens, in tensors of fixed shapes.

use fulmen_tensor::{AsTensor, DType, Fault, FromFault, Refusal, Tensor, TensorType, Tree};

use crate::library::{NN, live};

/// The keys and values of past tokens for one attention layer. With it, generation computes only
/// one query for each new token. It has room for `max_len` tokens and counts those that it holds.
///
/// The shapes do not change from token to token, so one compiled program serves all steps: the
/// three tensors are passed in, donated, and returned. A cache is a value;
/// [`append`](KeyValueCache::append) returns a new one.
///
/// A device cannot report that the cache is full, so with too many tokens all later results are
/// NaN.
///
/// ```
/// use fulmen_nn::attention::{Attention, KeyValueCache};
/// use fulmen_tensor::{DType, Tensor};
///
/// let cache = KeyValueCache::new(DType::F32, 1, 2, 16, 4); // a batch of 1, 2 heads, 16 tokens, width 4
/// let q = Tensor::ones(DType::F32, [1, 2, 3, 4]);
/// let k = Tensor::ones(DType::F32, [1, 2, 3, 4]);
/// let v = Tensor::ones(DType::F32, [1, 2, 3, 4]);
/// let cache = cache.append(&k, &v);
/// let y = Attention::new().mask(&cache.mask(3)).forward(&q, cache.keys(), cache.values());
/// assert_eq!(y.eval()?.to_vec::<f32>()?, [1.0; 24]);
/// assert_eq!(cache.position().eval()?.to_vec::<i32>()?, [3]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Tree)]
#[must_use]
pub struct KeyValueCache {
    keys: Tensor,
    values: Tensor,
    position: Tensor,
}

impl KeyValueCache {
    /// An empty cache: keys and values `[batch, heads, max_len, width]`. With grouped queries,
    /// `heads` is the number of key heads.
    #[track_caller]
    pub fn new(
        dtype: DType,
        batch: usize,
        heads: usize,
        max_len: usize,
        width: usize,
    ) -> KeyValueCache {
        let _scope = NN.open();
        let room = Tensor::zeros(dtype, [batch, heads, max_len, width]);
        KeyValueCache { keys: room.clone(), values: room, position: Tensor::zeros(DType::I32, []) }
    }

    /// Makes a cache of keys, values and position, in the order of
    /// [`tensors`](KeyValueCache::tensors).
    pub fn from_tensors([keys, values, position]: [Tensor; 3]) -> KeyValueCache {
        KeyValueCache { keys, values, position }
    }

    /// Keys, values and position, to return from a compiled function.
    pub fn tensors(&self) -> [Tensor; 3] {
        [self.keys.clone(), self.values.clone(), self.position.clone()]
    }

    /// The types of [`tensors`](KeyValueCache::tensors), for the inputs of a compiled function.
    pub fn types(&self) -> [TensorType; 3] {
        [self.keys.ty().clone(), self.values.ty().clone(), self.position.ty().clone()]
    }

    /// The keys, `[batch, heads, max_len, width]`; unused positions are zero.
    pub fn keys(&self) -> &Tensor {
        &self.keys
    }

    /// The values, `[batch, heads, max_len, width]`; unused positions are zero.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// The number of tokens, an i32 scalar.
    pub fn position(&self) -> &Tensor {
        &self.position
    }

    /// The positions of the next `count` tokens, i32 `[count]`, for
    /// [`RotaryEmbedding`](super::RotaryEmbedding) and other encodings.
    #[track_caller]
    pub fn next_positions(&self, count: usize) -> Tensor {
        let _scope = NN.open();
        Tensor::arange(DType::I32, count) + &self.position
    }

    /// The cache with the keys and values `[batch, heads, count, width]` of the next `count` tokens
    /// added, in the cache's dtype.
    ///
    /// Poisoned if the shapes do not fit, or if `count` alone exceeds `max_len`.
    #[track_caller]
    pub fn append(&self, keys: impl AsTensor, values: impl AsTensor) -> KeyValueCache {
        let _scope = NN.open();
        let keys = keys.as_tensor();
        let values = values.as_tensor();
        let count = keys.size(-2);
        let write = |room, new| NN.record("KeyValueCache", || self.write(room, new));
        let new_keys = write(&self.keys, keys);
        let new_values = write(&self.values, values);
        KeyValueCache {
            keys: new_keys,
            values: new_values,
            position: &self.position + count as f64,
        }
    }

    fn write(&self, room: &Tensor, new: &Tensor) -> Result<Tensor, Refusal> {
        live(&[room, new, &self.position])?;
        let has_room = match (room.shape().dims(), new.shape().dims()) {
            ([a, b, max_len, d], [e, f, count, g]) => {
                a == e && b == f && d == g && count <= max_len
            }
            _ => false,
        };
        if !has_room {
            return Err(format!("{} does not fit into a cache of {}", new.ty(), room.ty()).into());
        }
        let last = (room.size(2) - new.size(2)) as f64;
        let new = new.to_dtype(room.dtype());
        let new = self.position.le(last).select(&new, &Tensor::full(room.dtype(), [], f64::NAN));
        let start = Tensor::zeros(DType::I32, []);
        Ok(room.dynamic_update_slice(
            &new,
            &[start.clone(), start.clone(), self.position.clone(), start],
        ))
    }

    /// Which keys the last `count` tokens see, bool `[count, max_len]`: each token sees itself and
    /// those before it. For [`Attention::mask`](super::Attention::mask).
    #[track_caller]
    pub fn mask(&self, count: usize) -> Tensor {
        let _scope = NN.open();
        let first = &self.position - count as f64;
        let query = Tensor::iota(DType::I32, [count, 1], 0) + first;
        Tensor::iota(DType::I32, [1, self.keys.size(-2)], 1).le(query)
    }
}

/// The position is poisoned too, so that a mistake poisons all later results.
impl FromFault for KeyValueCache {
    fn from_fault(fault: Fault) -> KeyValueCache {
        KeyValueCache::from_tensors(FromFault::from_fault(fault))
    }
}
