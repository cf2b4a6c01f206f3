//! [`StaticCache`]: the cache of a whole model.

use fulmen_nn::attention::KeyValueCache;
use fulmen_tensor::{Fault, FromFault, Tensor, Tree};

/// The keys and values of all layers, and the number of padding tokens at the front of each
/// sequence.
#[derive(Clone, Debug, Tree)]
pub struct StaticCache {
    layers: Vec<KeyValueCache>,
    /// A loop does not change it.
    #[tree(skip)]
    padding: Option<Tensor>,
}

impl StaticCache {
    /// The caches of the layers, of sequences without padding.
    pub fn new(layers: impl IntoIterator<Item = KeyValueCache>) -> StaticCache {
        StaticCache { layers: layers.into_iter().collect(), padding: None }
    }

    /// The cache of each layer.
    pub fn layers(&self) -> &[KeyValueCache] {
        &self.layers
    }

    /// The number of padding tokens at the front of each sequence, i32 `[batch]`.
    pub fn padding(&self) -> Option<&Tensor> {
        self.padding.as_ref()
    }

    /// This cache with other padding.
    pub(crate) fn with_padding(self, padding: Option<Tensor>) -> StaticCache {
        StaticCache { padding, ..self }
    }

    /// This cache with other layers.
    pub(crate) fn with_layers(&self, layers: Vec<KeyValueCache>) -> StaticCache {
        StaticCache { layers, padding: self.padding.clone() }
    }

    /// Applies `f` to every tensor with a row for each sequence.
    pub(super) fn map_rows(&self, f: impl Fn(&Tensor) -> Tensor) -> StaticCache {
        let layers = self.layers.iter().map(|layer| {
            let [keys, values, position] = layer.tensors();
            KeyValueCache::from_tensors([f(&keys), f(&values), position])
        });
        StaticCache { layers: layers.collect(), padding: self.padding.as_ref().map(&f) }
    }
}

/// A single poisoned layer, which poisons everything that follows.
impl FromFault for StaticCache {
    fn from_fault(fault: Fault) -> StaticCache {
        StaticCache::new([KeyValueCache::from_fault(fault)])
    }
}
