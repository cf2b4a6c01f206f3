//! Images, texts and histograms: how a step computes them at log points, and how the host reads
//! them.

use std::fmt;
use std::sync::Arc;

use fulmen_tensor::{DType, Literal, Tensor, cond};

use crate::logs::log_entry::{LogEntry, LoggedValue, log_error};
use crate::{Batch, Histogram, Images, Media, Result, error};

/// Turns token ids into a text.
type Decode = dyn Fn(&[i64]) -> String + Send + Sync;

/// The kind of a logged tensor.
#[derive(Clone)]
pub(crate) enum MediaKind {
    Image,
    Histogram(usize),
    Text(Arc<Decode>),
}

impl fmt::Debug for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MediaKind::Image => f.write_str("image"),
            MediaKind::Histogram(bins) => write!(f, "histogram of {bins}"),
            MediaKind::Text(_) => f.write_str("text"),
        }
    }
}

/// The words before a histogram's counts: low, high, sum and sum of squares as float bits, and the
/// count of non-finite values.
const HEAD: usize = 5;
/// The most bins. `histogram` compares every element with every bin.
const MAX_BINS: usize = 4096;

impl MediaKind {
    /// Checks that a tensor can be logged as this kind. The error says what is wrong.
    pub(crate) fn check(&self, value: &Tensor, batch: &Batch) -> Result<(), String> {
        let ty = value.ty();
        let dims = ty.shape.dims();
        match self {
            MediaKind::Image => {
                let fits = |c: usize, h: usize, w: usize| [1, 3, 4].contains(&c) && h > 0 && w > 0;
                match (dims, ty.dtype == DType::U8 || ty.dtype.is_float()) {
                    (&[c, h, w], true) if fits(c, h, w) => Ok(()),
                    (&[n, c, h, w], true) if n > 0 && fits(c, h, w) => Ok(()),
                    _ => Err(format!(
                        "an image is [C, H, W], several are [N, C, H, W], with 1, 3 or 4 channels, of u8 or \
                         floating-point numbers from 0 to 1; the value is {ty}"
                    )),
                }
            }
            MediaKind::Text(_) if ty.dtype.is_integer() && matches!(dims.len(), 1 | 2) => Ok(()),
            MediaKind::Text(_) => {
                Err(format!("token ids are [T] or [N, T] of an integer type; the value is {ty}"))
            }
            MediaKind::Histogram(bins) if !(1..=MAX_BINS).contains(bins) => {
                Err(format!("a histogram has 1 to {MAX_BINS} bins, not {bins}"))
            }
            MediaKind::Histogram(_) if ty.dtype.is_complex() || ty.shape.num_elements() == 0 => {
                Err(format!("a histogram needs at least one real number; the value is {ty}"))
            }
            MediaKind::Histogram(_) => {
                let depends_on_batch =
                    batch.inputs().any(|field| !field.is(batch.mask()) && value.depends_on(field));
                let masked = dims.first() == Some(&batch.size()) || value.depends_on(batch.mask());
                if batch.is_padded() && depends_on_batch && !masked {
                    return Err(format!(
                        "the last batch is padded, and the value {ty} does not have the batch axis first, so padding would be \
                         counted; log a tensor with the batch axis first, or one that depends on the batch's mask"
                    ));
                }
                Ok(())
            }
        }
    }

    /// Records the tensor that the host reads.
    pub(crate) fn record(&self, value: &Tensor, batch: &Batch) -> Tensor {
        match self {
            MediaKind::Text(_) => value.clone(),
            MediaKind::Image if value.dtype() == DType::U8 => value.clone(),
            MediaKind::Image => {
                let clamped = value.to_dtype(DType::F32).clamp(0.0, 1.0);
                let number = clamped.is_finite().select(&clamped, &clamped.zeros_like());
                (number * 255.0).round().to_dtype(DType::U8)
            }
            MediaKind::Histogram(bins) => histogram(value, batch, *bins),
        }
    }

    /// Converts the recorded tensor on the host.
    pub(crate) fn read(&self, literal: &Literal) -> Result<Media> {
        let dims = literal.ty().shape.dims();
        Ok(match self {
            MediaKind::Image => {
                let shape = match *dims {
                    [n, c, h, w] => [n, c, h, w],
                    [c, h, w] => [1, c, h, w],
                    _ => {
                        return Err(error::data(format!(
                            "the step returned {} for an image, expected 3 or 4 dimensions",
                            literal.ty()
                        )));
                    }
                };
                Media::Image(Images { shape, pixels: literal.to_vec::<u8>()? })
            }
            MediaKind::Text(decode) => {
                let ids: Vec<i64> = literal.to_f64().into_iter().map(|id| id as i64).collect();
                let row = dims.last().copied().unwrap_or(1).max(1);
                Media::Text(ids.chunks(row).map(|ids| decode(ids)).collect())
            }
            MediaKind::Histogram(_) => {
                let words = literal.to_vec::<i32>()?;
                let number = |i: usize| f64::from(f32::from_bits(words[i] as u32));
                let counts: Vec<u64> = words[HEAD..].iter().map(|&count| count as u64).collect();
                let empty = counts.iter().all(|&count| count == 0);
                let [low, high] = if empty { [0.0, 0.0] } else { [number(0), number(1)] };
                let sum = number(2);
                let sum_squares = number(3);
                let non_finite = words[4] as u64;
                Media::Histogram(Histogram { low, high, sum, sum_squares, counts, non_finite })
            }
        })
    }
}

/// The media that a step returns to the host. Steps between log points don't compute media. Without
/// `is_log_point`, every step computes them.
pub(crate) fn media_outputs(
    logged: &[LogEntry],
    batch: &Batch,
    is_log_point: Option<&Tensor>,
) -> Result<Vec<(String, Tensor)>> {
    let media: Vec<(&LogEntry, &Tensor, &MediaKind)> = logged
        .iter()
        .filter_map(|entry| match &entry.value {
            LoggedValue::Media(value, kind) => Some((entry, value, kind)),
            _ => None,
        })
        .collect();
    if media.is_empty() {
        return Ok(Vec::new());
    }
    let record =
        || media.iter().map(|(_, value, kind)| kind.record(value, batch)).collect::<Vec<_>>();
    let tensors = match is_log_point {
        Some(is_log_point) => cond(
            is_log_point,
            (),
            |()| record(),
            |()| record().iter().map(Tensor::zeros_like).collect(),
        ),
        None => record(),
    };
    let outputs = media.iter().zip(tensors).map(|((entry, ..), tensor)| {
        tensor.check().map_err(|e| log_error(entry, e.to_string()))?;
        Ok((entry.name.clone(), tensor))
    });
    outputs.collect()
}

/// A histogram as one i32 vector. It compares every element with every bin, which is fast on every
/// device.
fn histogram(value: &Tensor, batch: &Batch, bins: usize) -> Tensor {
    let x = value.to_dtype(DType::F32);
    let finite = x.is_finite();
    let real = match x.shape().dims().split_first() {
        Some((rows, others)) if batch.is_padded() && *rows == batch.size() => {
            let dims = [&[*rows], &vec![1; others.len()][..]].concat();
            batch.mask().gt(0.0).reshape(dims).broadcast_to(x.shape())
        }
        _ => x.eq(&x).or(x.ne(&x)),
    };
    let counted = finite.and(&real);
    let axes: Vec<isize> = (0..x.rank() as isize).collect();
    let zeros = x.zeros_like();
    let smallest = counted.select(&x, &(&zeros + f64::INFINITY)).min(&axes);
    let largest = counted.select(&x, &(&zeros - f64::INFINITY)).max(&axes);
    let half = smallest.eq(&largest).to_dtype(DType::F32) * 0.5;
    let low = smallest - &half;
    let high = largest + &half;
    let bin =
        (((&x - &low) * (bins as f64 / (&high - &low))).floor()).clamp(0.0, (bins - 1) as f64);
    let bin_or_none = counted
        .select(&bin, &(&zeros - 1.0))
        .to_dtype(DType::I32)
        .reshape([value.shape().num_elements(), 1]);
    let counts = bin_or_none.eq(Tensor::iota(DType::I32, [1, bins], 1)).to_dtype(DType::I32).sum(0);
    let numbers = counted.select(&x, &zeros);
    let bits = |number: &Tensor| number.bitcast(DType::I32).broadcast_to([1]);
    let non_finite = finite.not().and(&real).to_dtype(DType::I32).sum_all().broadcast_to([1]);
    let [low, high] = [&low, &high].map(bits);
    let [sum, squares] = [numbers.sum_all(), numbers.square().sum_all()].map(|sum| bits(&sum));
    Tensor::concatenate(&[&low, &high, &sum, &squares, &non_finite, &counts], 0)
}
