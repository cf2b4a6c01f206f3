//! [`Sharding`]: how the axes of a value are split over the axes of a mesh, and their order in device
//! memory. [`Block`]: the part that one device holds.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::axis_order::AxisOrder;
use crate::{Error, Mesh, Result, Shape, TensorType};

/// How a value is split over a [`Mesh`], like JAX's `PartitionSpec`. Each axis of the value has the
/// mesh axes that it is split over. An axis without mesh axes is not split, and trailing axes may
/// be omitted. [`Sharding::in_order`] adds an order of the axes in device memory, like JAX's
/// `Format`.
///
/// ```
/// use fulmen_tensor::{Mesh, Shape, Sharding};
///
/// let mesh = Mesh::new([("data", 4), ("model", 2)])?;
/// let rows = Sharding::new([Some("data"), None]);
/// assert_eq!(rows.shard_shape(&mesh, &Shape::from([8, 3])).unwrap(), Shape::from([2, 3]));
/// assert!(rows.shard_shape(&mesh, &Shape::from([6, 3])).unwrap_err().contains("4"));
/// assert_eq!(Sharding::over([vec!["data", "model"]]).to_string(), "[data+model]");
/// assert!(Sharding::replicated().is_replicated());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct Sharding {
    axes: Arc<[Vec<String>]>,
    order: Option<AxisOrder>,
}

impl Sharding {
    /// Every device holds the whole value.
    pub fn replicated() -> Sharding {
        Sharding { axes: [].into(), order: None }
    }

    /// Splits each axis of the value over at most one mesh axis.
    pub fn new<'a>(axes: impl IntoIterator<Item = Option<&'a str>>) -> Sharding {
        Sharding::over(axes.into_iter().map(|axis| axis.into_iter().collect::<Vec<_>>()))
    }

    /// Splits each axis of the value over any number of mesh axes, slowest first.
    pub fn over<'a>(axes: impl IntoIterator<Item = Vec<&'a str>>) -> Sharding {
        let mut axes: Vec<Vec<String>> =
            axes.into_iter().map(|names| names.into_iter().map(str::to_owned).collect()).collect();
        while axes.last().is_some_and(Vec::is_empty) {
            axes.pop();
        }
        Sharding { axes: axes.into(), order: None }
    }

    /// Stores the axes in a different order on each device, slowest first. The order changes only
    /// where elements are in memory. It applies to the parameters and results of programs, and to
    /// arrays; within a program, the compiler chooses the order of each value.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, Devices, Literal, Runtime, Sharding};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let kernel = Literal::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3])?;
    /// let array = runtime.to_devices(&kernel, &Sharding::replicated().in_order(&[1, 0]))?;
    /// assert_eq!((array.ty().shape.dims(), array.shards()[0].dims()), (&[2, 3][..], &[3, 2][..]));
    /// assert_eq!(runtime.read(&[&array])?.wait()?[0].to_vec::<f32>()?, kernel.to_vec::<f32>()?);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn in_order(self, axes: &[usize]) -> Sharding {
        Sharding { order: AxisOrder::new(axes.to_vec()), ..self }
    }

    /// The order of the axes in device memory; `None` for the value's own order.
    pub(crate) fn order(&self) -> Option<&AxisOrder> {
        self.order.as_ref()
    }

    /// The same order of axes on one device.
    pub(crate) fn on_one_device(&self) -> Sharding {
        Sharding { order: self.order.clone(), ..Sharding::replicated() }
    }

    /// The mesh axes that each axis of the value is split over. Trailing axes that are not split
    /// are left out.
    pub fn axes(&self) -> &[Vec<String>] {
        &self.axes
    }

    /// Whether every device holds the whole value.
    pub fn is_replicated(&self) -> bool {
        self.axes.is_empty()
    }

    /// The sharding of a stack of values with this sharding, along a new first axis, in the usual
    /// order of axes.
    ///
    /// ```
    /// use fulmen_tensor::Sharding;
    /// assert_eq!(Sharding::new([Some("data")]).stacked().to_string(), "[-, data]");
    /// ```
    pub fn stacked(&self) -> Sharding {
        Sharding::over(
            std::iter::once(Vec::new())
                .chain(self.axes.iter().map(|names| names.iter().map(String::as_str).collect())),
        )
    }

    /// The sharding of one row of a value with this sharding, without the first axis, in the usual
    /// order of axes.
    ///
    /// ```
    /// use fulmen_tensor::Sharding;
    /// let row = Sharding::new([Some("data")]);
    /// assert_eq!(row.stacked().row(), row);
    /// ```
    pub fn row(&self) -> Sharding {
        Sharding { axes: self.axes.iter().skip(1).cloned().collect(), order: None }
    }

    /// The sharding of a transposed value: its axis `i` is axis `permutation[i]` of a value with
    /// this sharding.
    pub(crate) fn permute_axes(&self, permutation: &[usize]) -> Sharding {
        let names = |&axis: &usize| {
            self.axes.get(axis).into_iter().flatten().map(String::as_str).collect::<Vec<_>>()
        };
        Sharding::over(permutation.iter().map(names))
    }

    /// The shape of the part that one device holds.
    ///
    /// # Errors
    /// A message, if the sharding has more axes than the shape, a mesh axis does not exist or is
    /// used twice, a size is not divisible by the number of devices, or the order of axes does not
    /// have each axis once.
    pub fn shard_shape(&self, mesh: &Mesh, shape: &Shape) -> Result<Shape, String> {
        if self.axes.len() > shape.rank() {
            return Err(format!("the sharding {self} has more axes than {shape}"));
        }
        if self.order.as_ref().is_some_and(|order| !order.fits(shape.rank())) {
            return Err(format!("the sharding {self} does not have each axis of {shape} once"));
        }
        let mut names_in_use: Vec<&str> = Vec::new();
        let mut dims = shape.dims().to_vec();
        for (axis, names) in self.axes.iter().enumerate() {
            let mut parts = 1;
            for name in names {
                let Some(size) = mesh.size(name) else {
                    return Err(format!(
                        "the sharding {self} names the axis `{name}`; the mesh is {mesh}"
                    ));
                };
                if names_in_use.contains(&name.as_str()) {
                    return Err(format!("the sharding {self} uses the mesh axis `{name}` twice"));
                }
                names_in_use.push(name);
                parts *= size;
            }
            if !dims[axis].is_multiple_of(parts) {
                return Err(format!(
                    "axis {axis} of {shape} cannot be split evenly over {} ({parts} devices)",
                    names.join("+")
                ));
            }
            dims[axis] /= parts;
        }
        Ok(Shape::from(dims))
    }

    /// The block of a value that the device with this index holds. The sharding must fit the mesh
    /// and the shape.
    pub(crate) fn block(&self, mesh: &Mesh, shape: &Shape, device: usize) -> Block {
        let mut block = Block { start: vec![0; shape.rank()], size: shape.dims().to_vec() };
        for (axis, names) in self.axes.iter().enumerate().take(shape.rank()) {
            let mut parts = 1;
            let mut part = 0;
            for name in names {
                let size = mesh.size(name).unwrap_or(1);
                parts *= size;
                part = part * size + mesh.coordinate(device, name);
            }
            block.size[axis] /= parts;
            block.start[axis] = part * block.size[axis];
        }
        block
    }

    /// The body of the Shardy attribute for a value of this rank, as it is in device memory.
    pub(crate) fn attribute_in_memory(&self, rank: usize) -> String {
        match &self.order {
            Some(order) => self.permute_axes(order.axes()).attribute(rank),
            None => self.attribute(rank),
        }
    }

    /// The body of the Shardy attribute for a value of this rank.
    pub(crate) fn attribute(&self, rank: usize) -> String {
        let axis = |i| {
            let names: Vec<_> =
                self.axes.get(i).into_iter().flatten().map(|name| format!("\"{name}\"")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let axes: Vec<_> = (0..rank).map(axis).collect();
        format!("<@mesh, [{}]>", axes.join(", "))
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self
            .axes
            .iter()
            .map(|names| if names.is_empty() { "-".to_owned() } else { names.join("+") })
            .collect();
        write!(f, "[{}]", axes.join(", "))?;
        match &self.order {
            Some(order) => write!(f, " in the order {:?}", order.axes()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({self})")
    }
}

/// The part of a value that one device holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    /// The index of the first element along each axis.
    pub start: Vec<usize>,
    /// The number of elements along each axis.
    pub size: Vec<usize>,
}

impl Block {
    /// The block of all elements.
    pub fn whole(shape: &Shape) -> Block {
        Block { start: vec![0; shape.rank()], size: shape.dims().to_vec() }
    }

    /// The elements of this block, from the bytes of all elements of a value of type `ty`.
    ///
    /// ```
    /// use fulmen_tensor::{Block, DType, TensorType};
    ///
    /// let ty = TensorType::new(DType::U8, [2, 3]);
    /// let column = Block { start: vec![0, 1], size: vec![2, 1] };
    /// assert_eq!(*column.elements_of(&ty, &[1, 2, 3, 4, 5, 6])?, [2, 5]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The block is not within the value, or the number of bytes is not that of the value.
    pub fn elements_of<'a>(&self, ty: &TensorType, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>> {
        self.check_within(&ty.shape)?;
        if bytes.len() != ty.size_in_bytes() {
            let expected = ty.size_in_bytes();
            return Err(Error::usage(format!(
                "{ty} takes {expected} bytes, but got {}",
                bytes.len()
            )));
        }
        if self.size[..] == ty.shape[..] {
            return Ok(Cow::Borrowed(bytes));
        }
        let size = ty.dtype.size_in_bytes();
        let mut part = vec![0; self.size.iter().product::<usize>() * size];
        self.contiguous_runs(&ty.shape, |offset, part_offset, length| {
            part[part_offset * size..][..length * size]
                .copy_from_slice(&bytes[offset * size..][..length * size]);
        });
        Ok(Cow::Owned(part))
    }

    /// Checks that the block is within a value of this shape.
    pub(crate) fn check_within(&self, shape: &Shape) -> Result<()> {
        let Block { start, size } = self;
        let fits = start.len() == shape.rank()
            && size.len() == shape.rank()
            && (0..shape.rank()).all(|axis| {
                start[axis].checked_add(size[axis]).is_some_and(|end| end <= shape[axis])
            });
        if fits {
            return Ok(());
        }
        Err(Error::usage(format!("the block {self:?} is not within a value of shape {shape}")))
    }

    /// Calls `copy(offset in the whole, offset in the block, length)`, in elements, for each run
    /// that is contiguous in both. Makes no call if the block is not within the shape.
    pub fn contiguous_runs(&self, shape: &Shape, mut copy: impl FnMut(usize, usize, usize)) {
        if self.size.contains(&0) || self.check_within(shape).is_err() {
            return;
        }
        // The block has the axes from `whole` on completely, so one run spans these and the block's
        // part of the axis before.
        let rank = shape.rank();
        let mut whole = rank;
        while whole > 0 && self.size[whole - 1] == shape[whole - 1] {
            whole -= 1;
        }
        let first = whole.saturating_sub(1);
        let inner: usize = shape[whole..].iter().product();
        let length = if whole == 0 { inner } else { self.size[first] * inner };
        let mut index = vec![0; first];
        let mut block_offset = 0;
        loop {
            let mut offset = 0;
            for axis in 0..rank {
                let i = index.get(axis).copied().unwrap_or(0);
                offset = offset * shape[axis] + self.start[axis] + i;
            }
            copy(offset, block_offset, length);
            block_offset += length;
            let Some(axis) = (0..first).rev().find(|&axis| index[axis] + 1 < self.size[axis])
            else {
                return;
            };
            index[axis] += 1;
            index[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_all_devices_cover_each_element_equally_often() {
        let mesh = Mesh::new([("data", 2), ("model", 3)]).unwrap();
        let shape = Shape::from([4, 6, 5]);
        let shardings = [
            Sharding::new([Some("data"), Some("model")]),
            Sharding::new([None, Some("model")]),
            Sharding::over([Vec::new(), vec!["model", "data"]]),
            Sharding::new([Some("data")]),
        ];
        for sharding in shardings {
            let mut copies = vec![0; shape.num_elements()];
            for device in 0..mesh.num_devices() {
                let block = sharding.block(&mesh, &shape, device);
                let mut expected_offset = 0;
                block.contiguous_runs(&shape, |offset, block_offset, length| {
                    assert_eq!(block_offset, expected_offset);
                    expected_offset += length;
                    copies[offset..offset + length].iter_mut().for_each(|n| *n += 1);
                });
                assert_eq!(expected_offset, block.size.iter().product::<usize>());
            }
            let first = copies[0];
            assert!(first > 0 && copies.iter().all(|&n| n == first), "{sharding}: {copies:?}");
        }
        let block = Sharding::new([None, Some("model")]).block(&mesh, &shape, 4);
        assert_eq!((block.start, block.size), (vec![0, 2, 0], vec![4, 2, 5]));
    }

    #[test]
    fn messages_say_why_a_sharding_or_mesh_is_invalid() {
        let mesh = Mesh::new([("data", 4)]).unwrap();
        let message = |sharding: Sharding, shape: &[usize]| {
            sharding.shard_shape(&mesh, &Shape::from(shape)).unwrap_err()
        };
        assert!(message(Sharding::new([None, Some("data")]), &[8]).contains("more axes"));
        assert!(message(Sharding::new([Some("model")]), &[8]).contains("the mesh is data=4"));
        assert!(message(Sharding::new([Some("data"), Some("data")]), &[8, 8]).contains("twice"));
        assert!(message(Sharding::new([Some("data")]), &[6]).contains("4 devices"));
        for axes in
            [Vec::new(), vec![("", 1)], vec![("a", 1), ("a", 2)], vec![("a", 0)], vec![("a\"", 2)]]
        {
            assert!(Mesh::new(axes).unwrap_err().to_string().starts_with("mesh: "));
        }
    }
}
