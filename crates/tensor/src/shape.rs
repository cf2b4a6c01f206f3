//! [`Shape`]: the sizes of a tensor's axes, with the broadcasting rule. [`TensorType`]: a dtype
//! with a shape.

use std::fmt::{self, Write as _};
use std::ops::Deref;
use std::sync::Arc;

use crate::DType;

/// The largest number of bytes of a tensor, and the largest padding, stride or dilation: the
/// address space of a process. Compilers compute sizes with 64 bits. On overflow they abort or
/// compute wrong sizes.
pub(crate) const LARGEST: usize = 1 << 47;

/// Checks that an attribute of an axis is within [`LARGEST`]. The error is a message.
pub(crate) fn within_reach(attribute: &str, axis: usize, amount: i128) -> Result<(), String> {
    if amount.unsigned_abs() <= LARGEST as u128 {
        Ok(())
    } else {
        Err(format!(
            "{attribute} {amount} of axis {axis} is beyond what a program can address, 2^47"
        ))
    }
}

/// The sizes of a tensor's axes, outermost first. A scalar has rank 0. Cheap to clone; derefs to
/// `[usize]`.
/// ```
/// use fulmen_tensor::Shape;
///
/// let images = Shape::from([8, 3, 32, 32]);
/// assert_eq!((images.rank(), images.num_elements(), images[1]), (4, 24_576, 3));
/// // Axes count from the end too, and broadcasting follows NumPy.
/// assert_eq!(images.axis(-1), Ok(3));
/// assert_eq!(images.broadcast(&Shape::from([3, 1, 1])), Ok(images.clone()));
/// assert!(images.broadcast(&Shape::from([5])).is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Arc<[usize]>);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape::from([])
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; 1 for a scalar. Saturates on overflow.
    pub fn num_elements(&self) -> usize {
        self.0.iter().fold(1usize, |n, &d| n.saturating_mul(d))
    }

    /// The sizes as a slice.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The index of an axis. Negative axes count from the end: −1 is the last.
    ///
    /// # Errors
    /// There is no such axis. The message names the axis and the shape.
    pub fn axis(&self, axis: isize) -> Result<usize, String> {
        let rank = self.rank() as isize;
        let index = if axis < 0 { axis + rank } else { axis };
        if (0..rank).contains(&index) {
            Ok(index as usize)
        } else {
            Err(format!("axis {axis} is not one of the {rank} axes of {self}"))
        }
    }

    /// Like [`Shape::axis`] for several axes, which must differ. Returns sorted indices.
    pub(crate) fn axes(&self, axes: &[isize]) -> Result<Vec<usize>, String> {
        let mut indices = self.indices(axes)?;
        indices.sort_unstable();
        match indices.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("axis {} is named twice in {axes:?}", pair[0])),
            None => Ok(indices),
        }
    }

    /// Like [`Shape::axis`] for several axes, in their own order.
    pub(crate) fn indices(&self, axes: &[isize]) -> Result<Vec<usize>, String> {
        axes.iter().map(|&axis| self.axis(axis)).collect()
    }

    /// The shape that both broadcast to by NumPy's rule: align the axes from the last; the sizes of
    /// each pair must be equal, or one of them must be 1.
    ///
    /// # Errors
    /// The shapes do not broadcast. The message names both shapes and the axis.
    ///
    /// ```
    /// use fulmen_tensor::Shape;
    /// assert_eq!(Shape::from([3, 1]).broadcast(&Shape::from([4])).unwrap(), Shape::from([3, 4]));
    /// assert!(Shape::from([3]).broadcast(&Shape::from([4])).unwrap_err().contains("3 and 4"));
    /// ```
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, String> {
        let rank = self.rank().max(other.rank());
        let size = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |i| s[i]);
        let mut out = Vec::with_capacity(rank);
        for i in 0..rank {
            out.push(match (size(self, i), size(other, i)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                (a, b) => {
                    return Err(format!(
                        "{self} and {other} do not broadcast: counted from the last, axis -{} has {a} and {b}, \
                         and neither is 1",
                        rank - i
                    ));
                }
            });
        }
        Ok(Shape::from(out))
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(dims.into())
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.into())
    }
}
impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(Arc::new(dims))
    }
}
impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(dims: &[usize; N]) -> Shape {
        Shape(Arc::new(*dims))
    }
}
impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The type of a tensor: its dtype and shape. Displays as `f32[32, 784]`.
///
/// ```
/// use fulmen_tensor::{DType, TensorType};
///
/// let ty = TensorType::new(DType::Bf16, [32, 784]);
/// assert_eq!(ty.to_string(), "bf16[32, 784]");
/// assert_eq!(ty.shape[1], 784);
/// assert_eq!(ty.size_in_bytes(), 2 * 32 * 784);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The sizes of the axes.
    pub shape: Shape,
}

impl TensorType {
    /// The type with this dtype and shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// The type of a scalar.
    pub fn scalar(dtype: DType) -> TensorType {
        TensorType::new(dtype, [])
    }

    /// The number of bytes of a value in host memory.
    pub fn size_in_bytes(&self) -> usize {
        self.shape.num_elements().saturating_mul(self.dtype.size_in_bytes())
    }

    /// Whether a program can address such a value: it has at most [`LARGEST`] bytes. Axes of size 0
    /// count as 1, since compilers multiply the other sizes.
    pub(crate) fn is_addressable(&self) -> bool {
        let bytes =
            self.shape.iter().try_fold(self.dtype.size_in_bytes(), |n, &d| n.checked_mul(d.max(1)));
        bytes.is_some_and(|bytes| bytes <= LARGEST)
    }

    /// The message for a type that is not addressable.
    pub(crate) fn too_large(&self) -> String {
        format!("{self} has more bytes than a program can address, 2^47")
    }

    /// The type in StableHLO text: `tensor<32x784xf32>`.
    pub fn stablehlo(&self) -> String {
        let mut text = String::with_capacity(32);
        text.push_str("tensor<");
        for size in self.shape.iter() {
            // Writing to a string cannot fail.
            let _ = write!(text, "{size}x");
        }
        text.push_str(self.dtype.stablehlo());
        text.push('>');
        text
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_count_from_both_ends() {
        let shape = Shape::from([2, 3, 4]);
        assert_eq!(shape.axis(-1), Ok(2));
        assert_eq!(shape.axis(0), Ok(0));
        assert_eq!(shape.axis(3).unwrap_err(), "axis 3 is not one of the 3 axes of [2, 3, 4]");
        assert_eq!(shape.axes(&[-1, 2]).unwrap_err(), "axis 2 is named twice in [-1, 2]");
    }

    #[test]
    fn types_have_a_short_and_a_stablehlo_form() {
        let ty = TensorType::new(DType::U8, [2, 3]);
        assert_eq!(ty.to_string(), "u8[2, 3]");
        assert_eq!(ty.stablehlo(), "tensor<2x3xui8>");
        assert_eq!(TensorType::scalar(DType::Bool).stablehlo(), "tensor<i1>");
    }
}
