//! Choices derived from a string of bytes, for tests of random cases. The same bytes give the same
//! choices. After the end of the bytes, all choices are small and simple.

use fulmen_tensor::{DType, Tensor, TensorType};

/// The remaining bytes.
pub(crate) struct Choices<'a>(pub(crate) &'a [u8]);

impl Choices<'_> {
    #[allow(dead_code, reason = "the fuzzer makes calls until there are no choices left")]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn byte(&mut self) -> usize {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first.into()
            }
            None => 0,
        }
    }

    /// A number below `n`, or 0.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.byte() % n.max(1)
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// The size of an axis, a count or a start: usually small, sometimes extreme.
    pub(crate) fn size(&mut self) -> usize {
        match self.byte() {
            250 => 1 << 20,
            251 => usize::MAX,
            252 => 1 << 47,
            byte => [1, 2, 3, 0, 4, 5][byte % 6],
        }
    }

    pub(crate) fn signed(&mut self) -> i64 {
        match self.byte() {
            250 => i64::MAX,
            251 => i64::MIN,
            byte => [0, 1, -1, 2, -2, 3][byte % 6],
        }
    }

    pub(crate) fn number(&mut self) -> f64 {
        self.one_of(&[0.5, 1.0, 0.0, -1.0, 2.0, -0.25, 300.0, f64::INFINITY, f64::NAN])
    }

    /// An axis of `x`, rarely one that does not exist.
    pub(crate) fn axis(&mut self, x: &Tensor) -> isize {
        let rank = x.rank() as isize;
        match self.byte() {
            255 => rank,
            254 => isize::MIN,
            byte => byte as isize % (2 * rank).max(1) - rank,
        }
    }

    /// A few axes of `x`, sometimes with a duplicate.
    pub(crate) fn axes(&mut self, x: &Tensor) -> Vec<isize> {
        let n = self.below(x.rank() + 1);
        (0..n).map(|_| self.axis(x)).collect()
    }

    /// One number for each axis of `x`, rarely one less.
    fn for_axes<T>(&mut self, x: &Tensor, mut one: impl FnMut(&mut Self, usize) -> T) -> Vec<T> {
        let n = if self.byte() > 250 { x.rank().saturating_sub(1) } else { x.rank() };
        (0..n).map(|axis| one(self, axis)).collect()
    }

    pub(crate) fn sizes(&mut self, x: &Tensor) -> Vec<usize> {
        self.for_axes(x, |c, _| c.size())
    }

    pub(crate) fn signs(&mut self, x: &Tensor) -> Vec<i64> {
        self.for_axes(x, |c, _| c.signed())
    }

    /// A size within each axis of `x`.
    pub(crate) fn within(&mut self, x: &Tensor) -> Vec<usize> {
        self.for_axes(x, |c, axis| c.below(x.shape()[axis] + 1))
    }

    /// All axes in some order.
    pub(crate) fn order(&mut self, x: &Tensor) -> Vec<isize> {
        let mut left: Vec<isize> = (0..x.rank() as isize).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            order.push(left.remove(self.below(left.len())));
        }
        order
    }

    pub(crate) fn dtype(&mut self) -> DType {
        let all: Vec<DType> = DType::all().collect();
        self.one_of(&all)
    }

    pub(crate) fn shape(&mut self) -> Vec<usize> {
        let rank = self.one_of(&[2, 1, 3, 0, 4]);
        (0..rank).map(|_| self.one_of(&[2, 3, 1, 4, 0])).collect()
    }

    pub(crate) fn pick<'t>(&mut self, x: &'t [Tensor]) -> &'t Tensor {
        &x[self.below(x.len())]
    }

    /// Types that fit together more often than random ones: some like the first type, an index and
    /// a condition.
    pub(crate) fn types(&mut self) -> Vec<TensorType> {
        // Half of the types are f32, since most rules require floats.
        let dtype = if self.bool() { self.dtype() } else { DType::F32 };
        let first = TensorType::new(dtype, self.shape());
        let second = match self.below(6) {
            0..=2 => first.clone(),
            3 => TensorType::new(self.dtype(), &first.shape),
            4 => TensorType::new(dtype, &first.shape[first.shape.rank() / 2..]),
            _ => TensorType::new(dtype, self.shape()),
        };
        let third = if self.bool() { first.clone() } else { TensorType::new(dtype, self.shape()) };
        let shape = self.shape();
        let index = match self.below(3) {
            0 => TensorType::new(DType::I32, []),
            1 => TensorType::new(DType::I32, &first.shape),
            _ => TensorType::new(DType::I32, shape),
        };
        let condition = TensorType::new(DType::Bool, &first.shape);
        vec![first, second, third, index, condition]
    }
}
