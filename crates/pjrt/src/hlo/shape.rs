//! Shapes in a compiled program: element type, dimensions, and the layout and memory of an array.

use std::fmt;

use super::proto;
use crate::element_type::{ArrayType, ElementType};
use crate::error::{self, Result};

/// The type of an instruction's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One array.
    Array(Array),
    /// Several values.
    Tuple(Vec<Shape>),
    /// No data: a token, or a value that only the compiler knows.
    Opaque,
}

/// An array in a device's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The element type and the dimensions.
    pub ty: ArrayType,
    /// 0 is the main memory (HBM on a TPU). TPU programs keep some arrays in 1, the memory on the
    /// chip.
    pub memory_space: i64,
    /// The dimensions from the fastest to the slowest varying; empty if the program does not
    /// specify them.
    minor_to_major: Vec<usize>,
    /// The tile that the fastest varying dimensions are padded to, slowest first; empty if there is
    /// none.
    tile: Vec<usize>,
}

impl Array {
    /// The size of the elements in bytes, without padding.
    pub fn bytes(&self) -> u64 {
        bytes(self.ty.dims.iter().copied(), self.ty.element_type)
    }

    /// The size in memory in bytes. The fastest varying dimensions are padded to whole tiles, 8 ×
    /// 128 on a TPU.
    pub fn padded_bytes(&self) -> u64 {
        if self.tile.is_empty() || self.minor_to_major.len() != self.ty.dims.len() {
            return self.bytes();
        }
        let mut dims = self.ty.dims.clone();
        for (&dim, &tile) in self.minor_to_major.iter().zip(self.tile.iter().rev()) {
            if let Some(size) = dims.get_mut(dim) {
                *size = size.checked_next_multiple_of(tile.max(1)).unwrap_or(*size);
            }
        }
        bytes(dims.into_iter(), self.ty.element_type)
    }

    /// The number of elements.
    pub fn num_elements(&self) -> u64 {
        self.ty.dims.iter().fold(1, |n, &dim| n.saturating_mul(dim as u64))
    }
}

fn bytes(dims: impl Iterator<Item = usize>, element_type: ElementType) -> u64 {
    let elements = dims.fold(1_u64, |n, dim| n.saturating_mul(dim as u64));
    elements.saturating_mul(element_type.size_in_bits() as u64).div_ceil(8)
}

impl Shape {
    pub(super) fn read(shape: &proto::Shape) -> Result<Shape> {
        match shape.element_type {
            proto::TUPLE => {
                Ok(Self::Tuple(shape.tuple_shapes.iter().map(Self::read).collect::<Result<_>>()?))
            }
            proto::BUFFER => shape.tuple_shapes.first().map_or(Ok(Self::Opaque), Self::read),
            element => {
                let Ok(element_type) = ElementType::from_primitive(element) else {
                    return Ok(Self::Opaque);
                };
                Ok(Self::Array(Array::read(shape, element_type)?))
            }
        }
    }

    /// The array, if the shape is a single array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// All arrays in the shape.
    pub fn arrays(&self) -> Vec<&Array> {
        match self {
            Self::Array(array) => vec![array],
            Self::Tuple(parts) => parts.iter().flat_map(Self::arrays).collect(),
            Self::Opaque => Vec::new(),
        }
    }

    /// The size of all arrays in bytes, without padding.
    pub fn bytes(&self) -> u64 {
        self.arrays().iter().map(|array| array.bytes()).sum()
    }
}

impl Array {
    fn read(shape: &proto::Shape, element_type: ElementType) -> Result<Array> {
        let sizes = |list: &[i64], what: &str| {
            let sizes = list.iter().map(|&n| usize::try_from(n)).collect::<Result<Vec<_>, _>>();
            sizes.map_err(|_| {
                error::broken(format!("the compiled program has an array of {what} {list:?}"))
            })
        };
        let dims = sizes(&shape.dimensions, "dimensions")?;
        let layout = shape.layout.clone().unwrap_or_default();
        Ok(Self {
            ty: ArrayType::new(element_type, dims),
            memory_space: layout.memory_space,
            minor_to_major: sizes(&layout.minor_to_major, "layout")?,
            tile: layout
                .tiles
                .first()
                .map_or(Ok(Vec::new()), |tile| sizes(&tile.dimensions, "tile"))?,
        })
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(array) => array.ty.fmt(f),
            Self::Tuple(parts) => {
                f.write_str("(")?;
                for (i, part) in parts.iter().enumerate() {
                    write!(f, "{}{part}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
            Self::Opaque => f.write_str("opaque"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(dims: &[i64], minor_to_major: &[i64], tile: &[i64]) -> Array {
        let layout = proto::Layout {
            minor_to_major: minor_to_major.to_vec(),
            tiles: vec![
                proto::Tile { dimensions: tile.to_vec() },
                proto::Tile { dimensions: vec![2, 1] },
            ],
            ..Default::default()
        };
        let shape = proto::Shape {
            element_type: 16,
            dimensions: dims.to_vec(),
            layout: Some(layout),
            ..Default::default()
        };
        match Shape::read(&shape).unwrap() {
            Shape::Array(array) => array,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tiles_pad_the_fastest_dimensions() {
        let check = |dims: &[i64], order: &[i64], tile: &[i64], padded: u64| {
            let array = array(dims, order, tile);
            assert_eq!(
                (array.bytes(), array.padded_bytes()),
                (2 * array.num_elements(), 2 * padded),
                "{dims:?}"
            );
        };
        check(&[256, 100], &[1, 0], &[8, 128], 256 * 128);
        check(&[256, 100], &[0, 1], &[8, 128], 256 * 104);
        check(&[3, 5, 7], &[2, 1, 0], &[8, 128], 3 * 8 * 128);
        check(&[10], &[0], &[128], 128);
        check(&[], &[], &[128], 1);
    }

    #[test]
    fn shapes_without_arrays_have_no_bytes() {
        let token = proto::Shape { element_type: 17, ..Default::default() };
        let inner = proto::Shape { element_type: 11, dimensions: vec![2, 3], ..Default::default() };
        let buffer = proto::Shape {
            element_type: proto::BUFFER,
            tuple_shapes: vec![inner.clone()],
            ..Default::default()
        };
        let tuple = proto::Shape {
            element_type: proto::TUPLE,
            tuple_shapes: vec![token, inner, buffer],
            ..Default::default()
        };
        let shape = Shape::read(&tuple).unwrap();
        assert_eq!(shape.to_string(), "(opaque, f32[2,3], f32[2,3])");
        assert_eq!((shape.bytes(), shape.arrays().len()), (48, 2));
        let wrong = proto::Shape { element_type: 11, dimensions: vec![-1], ..Default::default() };
        assert!(Shape::read(&wrong).unwrap_err().to_string().contains("dimensions [-1]"));
    }
}
