//! [`Embedding`]: a table lookup by index.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::internal::{IndexRule, check_indices};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};

use crate::library::NN;
use crate::{Init, Module, Parameter};

/// Looks up a row of its weight for each integer: indices `[…]` become `[…, width]`. Like PyTorch's
/// `nn.Embedding`.
///
/// The weight `[rows, width]` is initialized normally with standard deviation 1. An index outside
/// the table is an error: here if the host knows the index, and otherwise of the training step or
/// evaluation. Elsewhere, it gives NaN.
///
/// ```
/// use fulmen_nn::{Embedding, Linear, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let embedding = Embedding::new(50_000, 64);
/// let head = Linear::new(64, 50_000).bias(false);
/// head.weight.tie(&embedding.weight)?;
/// let x = embedding.forward(&Tensor::zeros(DType::I32, [8, 128]));
/// assert!(x.fault().unwrap().message().contains("no value yet"));
///
/// let model = (embedding, head);
/// model.initialize(0);
/// let logits = model.1.forward(&model.0.forward(&Tensor::zeros(DType::I32, [8, 128])));
/// assert_eq!(logits.ty().to_string(), "f32[8, 128, 50000]");
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Parameter,
    num_embeddings: usize,
    embedding_dim: usize,
    padding_idx: Option<usize>,
    sparse: bool,
}

impl Embedding {
    /// A table of `num_embeddings` rows of width `embedding_dim`.
    pub fn new(num_embeddings: usize, embedding_dim: usize) -> Embedding {
        let weight = Parameter::new([num_embeddings, embedding_dim], Init::normal(0.0, 1.0));
        Embedding { weight, num_embeddings, embedding_dim, padding_idx: None, sparse: false }
    }

    /// The row for padding, if there is one: initially zeros and without a gradient, so that it
    /// does not change.
    #[track_caller]
    pub fn padding_idx(mut self, row: impl Into<Option<usize>>) -> Embedding {
        let Some(row) = row.into() else { return self };
        let rest = Box::new(Init::normal(0.0, 1.0));
        self.weight =
            Parameter::new([self.num_embeddings, self.embedding_dim], Init::ZeroRow { row, rest });
        self.padding_idx = Some(row);
        let sparse = self.sparse;
        self.sparse(sparse)
    }

    /// Whether training computes the gradient only for the rows that a step looks up, and changes
    /// only those rows and their optimizer state (PyTorch's `sparse=True`). The cost of a step then
    /// does not grow with the table. By default, the gradient has the shape of the table.
    ///
    /// The optimizer must be [`Sgd`](crate::optim::Sgd) without momentum,
    /// [`Adagrad`](crate::optim::Adagrad), or [`Adam`](crate::optim::Adam) or
    /// [`AdamW`](crate::optim::AdamW), which then follow PyTorch's `SparseAdam`; all without weight
    /// decay. Gradients are clipped as usual, but not accumulated over batches. The table must be
    /// used only in look-ups, outside of `scan`, `cond` and other bodies. The Trainer rejects
    /// everything else. Outside of the Trainer, [`grad`](fulmen_tensor::grad) gives the gradient of
    /// the whole table.
    ///
    /// ```
    /// use fulmen_nn::Embedding;
    /// let users = Embedding::new(10_000_000, 16).sparse(true);
    /// assert!(users.weight.sparse_gradient_location().is_some());
    /// ```
    #[track_caller]
    pub fn sparse(mut self, sparse: bool) -> Embedding {
        self.weight.set_sparse_gradient(sparse);
        self.sparse = sparse;
        self
    }

    /// Looks up the rows.
    #[track_caller]
    pub fn forward(&self, indices: impl AsTensor) -> Tensor {
        NN.record(self, || {
            let indices = indices.as_tensor().live()?;
            if !indices.dtype().is_integer() {
                let message =
                    format!("the input {} must be integers, the indices of rows", indices.ty());
                return Err(message.into());
            }
            check_sparse(self.sparse, &self.weight)?;
            let indices = &rows_of("Embedding", indices, self.num_embeddings)?;
            let rows = self.weight.rows(indices);
            rows.live()?;
            let Some(padding) = self.padding_idx else { return Ok(rows) };
            if padding >= self.num_embeddings {
                let message = format!(
                    "padding_idx {padding} is not a row of the table: there are {} rows",
                    self.num_embeddings
                );
                return Err(message.into());
            }
            // Only an index outside the table could wrap to the padding row, and it has no gradient
            // either.
            let dtype = if i32::try_from(padding).is_ok() { DType::I32 } else { DType::I64 };
            let is_padding = indices.to_dtype(dtype).eq(padding as f64).unsqueeze(-1);
            Ok(is_padding.select(&rows.detach(), &rows))
        })
    }
}

/// Checks the indices of the rows of a table.
pub(super) fn rows_of(layer: &str, indices: &Tensor, rows: usize) -> Result<Tensor, Refusal> {
    let reason = format!("the table has {}", quantity(rows, "row"));
    check_indices(indices, IndexRule::below(layer, "an index", rows, reason))
}

/// Rejects a weight that replaced the one with sparse gradients.
pub(super) fn check_sparse(sparse: bool, weight: &Parameter) -> Result<(), String> {
    if sparse && weight.sparse_gradient_location().is_none() {
        return Err(
            "the weight was replaced or tied after sparse(true); call sparse(true) afterwards, or \
                    set_sparse_gradient(true) on the weight"
                .into(),
        );
    }
    Ok(())
}

impl fmt::Display for Embedding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Embedding({} x {})", self.num_embeddings, self.embedding_dim)
    }
}
