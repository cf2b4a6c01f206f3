//! Checkpoints with known values, divided over processes in any way.

use std::path::Path;
use std::sync::Arc;

use crate::{
    Checkpoint, CheckpointWriter, Dtype, LocalStore, Manifest, Part, Rectangle, Result, Run, Store,
    WrittenShard,
};

/// A tensor and the number of pieces along each axis.
pub(crate) type DividedTensor<'a> = (&'a str, Dtype, &'a [u64], &'a [u64]);

pub(crate) fn local(folder: &Path) -> Arc<dyn Store> {
    Arc::new(LocalStore::new(folder))
}

/// The tensors of small checkpoints: each of another rank and width.
pub(crate) const SMALL: [DividedTensor<'static>; 4] = [
    ("fc.weight", Dtype::F32, &[4, 6], &[2, 3]),
    ("fc.bias", Dtype::BF16, &[5], &[2]),
    ("trainer/step", Dtype::I32, &[], &[]),
    ("empty", Dtype::F32, &[0, 3], &[1, 1]),
];

/// The bytes of a tensor's element at a position. Neighboring elements differ.
pub(crate) fn element(name: &str, dtype: Dtype, position: u64) -> Vec<u8> {
    mixed(name, position)[8 - dtype.bitsize() / 8..].to_vec()
}

/// The last bytes are those of a narrower element.
fn mixed(name: &str, position: u64) -> [u8; 8] {
    (position + name.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// The positions of a rectangle's elements in a tensor of this shape, in row-major order. This is a
/// simple reference implementation.
pub(crate) fn positions(shape: &[u64], rectangle: &Rectangle) -> Vec<u64> {
    let mut positions = vec![0];
    for (axis, size) in shape.iter().enumerate() {
        let range = rectangle.offset[axis]..rectangle.offset[axis] + rectangle.extent[axis];
        let mut inner = Vec::with_capacity(positions.len() * rectangle.extent[axis] as usize);
        for before in positions {
            inner.extend(before * size + range.start..before * size + range.end);
        }
        positions = inner;
    }
    positions
}

pub(crate) fn expected(name: &str, dtype: Dtype, shape: &[u64], rectangle: &Rectangle) -> Vec<u8> {
    let positions = positions(shape, rectangle);
    let width = dtype.bitsize() / 8;
    let mut bytes = Vec::with_capacity(positions.len() * width);
    // One allocation, not one for each element: this is called for millions of them.
    for position in positions {
        bytes.extend_from_slice(&mixed(name, position)[8 - width..]);
    }
    bytes
}

/// The pieces of a tensor that is divided into `counts` pieces along each axis. The last piece may
/// be smaller.
pub(crate) fn pieces(shape: &[u64], counts: &[u64]) -> Vec<Rectangle> {
    let mut pieces = vec![Rectangle::new([], [])];
    for (size, count) in shape.iter().zip(counts) {
        let step = size.div_ceil(*count).max(1);
        let mut divided = Vec::new();
        for piece in &pieces {
            for number in 0..*count {
                let start = (number * step).min(*size);
                let mut piece = piece.clone();
                piece.offset.push(start);
                piece.extent.push(step.min(size - start));
                divided.push(piece);
            }
        }
        pieces = divided;
    }
    pieces
}

/// Writes the shard of one process of `processes`: every `processes`-th part, starting with part
/// `process`.
pub(crate) fn write_process(
    writer: &CheckpointWriter,
    tensors: &[DividedTensor<'_>],
    process: usize,
    processes: usize,
) -> Result<WrittenShard> {
    let mut parts = Vec::new();
    for (name, dtype, shape, counts) in tensors {
        for rectangle in pieces(shape, counts) {
            parts.push(Part::slice(*name, *dtype, *shape, rectangle));
        }
    }
    let own_parts: Vec<Part> = parts.into_iter().skip(process).step_by(processes).collect();
    let mut shard = writer.shard(&format!("shard_{process}.safetensors"), own_parts)?;
    while let Some(part) = shard.next_part() {
        let (name, dtype, shape, _) =
            tensors.iter().find(|tensor| tensor.0 == part.name()).unwrap();
        let bytes = expected(name, *dtype, shape, part.rectangle());
        // Write in pieces that match neither blocks nor elements.
        for piece in bytes.chunks(777_777) {
            shard.write(piece)?;
        }
    }
    shard.commit()
}

pub(crate) fn write(
    store: &Arc<dyn Store>,
    step: u64,
    tensors: &[DividedTensor<'_>],
    processes: usize,
) -> Result<Manifest> {
    let writer = CheckpointWriter::new(store.clone(), &format!("step_{step}"))?;
    let shards: Result<Vec<_>> =
        (0..processes).map(|process| write_process(&writer, tensors, process, processes)).collect();
    writer.commit(Run { step, ..Run::default() }, shards?)
}

/// Reads a whole checkpoint and compares it with the written values.
pub(crate) fn read_all(checkpoint: &Checkpoint, tensors: &[DividedTensor<'_>]) -> Result<()> {
    for (name, dtype, shape, _) in tensors {
        let whole = Rectangle::whole(shape);
        let read = checkpoint.read(name, &whole)?;
        assert!(read == expected(name, *dtype, shape, &whole), "{name}");
    }
    Ok(())
}
