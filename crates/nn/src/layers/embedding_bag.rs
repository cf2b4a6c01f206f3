//! [`EmbeddingBag`]: combines rows of a table, bag by bag.

use std::fmt;

use fulmen_tensor::{AsTensor, DType, Tensor};

use super::embedding::{check_sparse, rows_of};
use crate::library::NN;
use crate::precision::wide;
use crate::{Init, Module, Parameter, Visit};

/// How the rows of a bag are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BagMode {
    /// The mean of the rows, PyTorch's default.
    #[default]
    Mean,
    /// The sum of the rows.
    Sum,
    /// The maximum of each feature.
    Max,
}

impl Module for BagMode {
    fn visit(&self, _: &mut Visit<'_>) {}
}

/// One row for each bag of integers: indices `[bags, length]` become `[bags, width]`. Like
/// PyTorch's `nn.EmbeddingBag` for inputs with two axes; fill up shorter bags with
/// [`padding_idx`](EmbeddingBag::padding_idx).
///
/// The weight `[rows, width]` is initialized normally with standard deviation 1. An index outside
/// the table gives NaN.
///
/// ```
/// use fulmen_nn::{BagMode, EmbeddingBag, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let bag = EmbeddingBag::new(100, 8).mode(BagMode::Sum);
/// bag.initialize(0);
/// assert_eq!(bag.forward(&Tensor::zeros(DType::I32, [4, 3])).ty().to_string(), "f32[4, 8]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct EmbeddingBag {
    /// `[rows, width]`.
    pub weight: Parameter,
    num_embeddings: usize,
    embedding_dim: usize,
    mode: BagMode,
    padding_idx: Option<usize>,
    sparse: bool,
}

impl EmbeddingBag {
    /// A table of `num_embeddings` rows of width `embedding_dim`; bags are means.
    pub fn new(num_embeddings: usize, embedding_dim: usize) -> EmbeddingBag {
        let weight = Parameter::new([num_embeddings, embedding_dim], Init::normal(0.0, 1.0));
        EmbeddingBag {
            weight,
            num_embeddings,
            embedding_dim,
            mode: BagMode::Mean,
            padding_idx: None,
            sparse: false,
        }
    }

    /// How the rows of a bag are combined.
    pub fn mode(mut self, mode: BagMode) -> EmbeddingBag {
        self.mode = mode;
        self
    }

    /// The row that bags ignore: initially zeros and without a gradient. A bag without other rows
    /// gives zeros.
    #[track_caller]
    pub fn padding_idx(mut self, row: usize) -> EmbeddingBag {
        let rest = Box::new(Init::normal(0.0, 1.0));
        self.weight =
            Parameter::new([self.num_embeddings, self.embedding_dim], Init::ZeroRow { row, rest });
        self.padding_idx = Some(row);
        let sparse = self.sparse;
        self.sparse(sparse)
    }

    /// Whether training computes the gradient only for the rows that a step looks up, and changes
    /// only those rows: see [`Embedding::sparse`](crate::Embedding::sparse).
    #[track_caller]
    pub fn sparse(mut self, sparse: bool) -> EmbeddingBag {
        self.weight.set_sparse_gradient(sparse);
        self.sparse = sparse;
        self
    }

    /// Combines the bags.
    ///
    /// Poisoned if the input is not integers `[bags, length]`, or if the padding row is outside the
    /// table.
    #[track_caller]
    pub fn forward(&self, indices: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let indices = indices.as_tensor().live()?;
            if let Some(row) = self.padding_idx.filter(|&row| row >= self.num_embeddings) {
                let rows = self.num_embeddings;
                return Err(format!(
                    "padding_idx {row} is not a row of the table: there are {rows} rows"
                )
                .into());
            }
            if indices.rank() != 2 || !indices.dtype().is_integer() {
                return Err(
                    format!("the input {} must be integers [bags, length]", indices.ty()).into()
                );
            }
            check_sparse(self.sparse, &self.weight)?;
            let indices = &rows_of("EmbeddingBag", indices, self.num_embeddings)?;
            let rows = self.weight.get().take(0, indices);
            rows.live()?;
            let is_counted = match self.padding_idx {
                // In i64, no index wraps around to a different one.
                Some(row) => indices.to_dtype(DType::I64).ne(row as f64),
                None => Tensor::ones(DType::Bool, indices.shape()),
            };
            let counts = is_counted.unsqueeze(-1);
            let dtype = rows.dtype();
            let rows = wide(&rows);
            let number = counts.to_dtype(rows.dtype()).sum(1);
            if self.mode == BagMode::Max {
                let lowest = Tensor::full(rows.dtype(), [], f64::NEG_INFINITY);
                let largest = counts.select(&rows, &lowest).max(1);
                return Ok(number.gt(0.0).select(&largest, &largest.zeros_like()).to_dtype(dtype));
            }
            let sum = counts.select(&rows, &rows.zeros_like()).sum(1);
            let bag = if self.mode == BagMode::Mean { sum / number.maximum(1.0) } else { sum };
            Ok(bag.to_dtype(dtype))
        })
    }
}

impl fmt::Display for EmbeddingBag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EmbeddingBag({} x {})", self.num_embeddings, self.embedding_dim)
    }
}
