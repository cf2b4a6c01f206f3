//! [`Prompt`]: token ids to continue, in sequences of different lengths.

use fulmen_tensor::{DType, Tensor};

/// A batch of token ids that [`generate`](crate::generate()) continues.
///
/// ```
/// use fulmen_models::Prompt;
/// // What a tokenizer made of two texts. The shorter one is padded at the front.
/// let prompt = Prompt::new(&[vec![5, 6, 7], vec![8]]);
/// assert_eq!(prompt.ids().ty().to_string(), "i32[2, 3]");
/// ```
#[derive(Clone, Debug)]
pub struct Prompt {
    ids: Tensor,
    padding: Option<Tensor>,
}

impl Prompt {
    /// One sequence of ids per row. Shorter rows are padded at the front to the longest one; no
    /// token sees the padding.
    ///
    /// Poisoned if there are no rows, or a row is empty.
    #[track_caller]
    pub fn new<R: AsRef<[u32]>>(rows: &[R]) -> Prompt {
        Prompt::at_least(rows, 0)
    }

    /// Like [`Prompt::new`], padded to at least `length`. Prompts of the same padded length share a
    /// compiled program.
    #[track_caller]
    pub fn at_least<R: AsRef<[u32]>>(rows: &[R], length: usize) -> Prompt {
        let rows: Vec<&[u32]> = rows.iter().map(AsRef::as_ref).collect();
        if rows.is_empty() || rows.iter().any(|row| row.is_empty()) {
            let empty_row = rows.iter().position(|row| row.is_empty());
            let message =
                empty_row.map_or("there is no row".into(), |row| format!("row {row} has no token"));
            return Prompt { ids: Tensor::poison("Prompt", message), padding: None };
        }
        let length = rows.iter().map(|row| row.len()).fold(length, usize::max);
        let padded: Vec<u32> = rows
            .iter()
            .flat_map(|row| std::iter::repeat_n(0, length - row.len()).chain(row.iter().copied()))
            .collect();
        let padding: Vec<i32> = rows.iter().map(|row| (length - row.len()) as i32).collect();
        let is_rectangular = length == rows[0].len() && padding.iter().all(|&count| count == 0);
        Prompt {
            ids: Tensor::from_slice(&padded, [rows.len(), length]).to_dtype(DType::I32),
            padding: (!is_rectangular).then(|| Tensor::from_slice(&padding, [rows.len()])),
        }
    }

    /// The ids, i32 `[batch, length]`.
    pub fn ids(&self) -> &Tensor {
        &self.ids
    }

    /// The number of padding ids at the front of each row, i32 `[batch]`; `None` if all rows have
    /// the same length.
    pub fn padding(&self) -> Option<&Tensor> {
        self.padding.as_ref()
    }
}

/// Integers `[batch, length]` without padding.
impl From<&Tensor> for Prompt {
    #[track_caller]
    fn from(ids: &Tensor) -> Prompt {
        let ids = match ids.fault() {
            None if ids.rank() != 2 || ids.size(1) == 0 => {
                Tensor::poison("Prompt", format!("the ids {} are not [batch, length]", ids.ty()))
            }
            _ => ids.to_dtype(DType::I32),
        };
        Prompt { ids, padding: None }
    }
}
