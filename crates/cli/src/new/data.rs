//! The data. Put your own here: the readers of images, tables, texts and shards are features of
//! `fulmen`.

use std::f32::consts::PI;

use fulmen::cli;
use fulmen::prelude::*;

/// Points on two spirals, with the fields `point`, `f32[2]`, and `spiral`, `i32[]`, which is 0 or 1.
pub(crate) fn spirals(count: usize) -> cli::Result<TensorDataset> {
    let mut points = Vec::new();
    let mut spirals = Vec::new();
    for i in 0..count {
        let spiral = i % 2;
        let radius = (i + 1) as f32 / count as f32;
        let angle = 2.0 * PI * radius + PI * spiral as f32;
        points.extend([radius * angle.cos(), radius * angle.sin()]);
        spirals.push(spiral as i32);
    }
    Ok(TensorDataset::builder()
        .array("point", [count, 2], points)
        .array("spiral", [count], spirals)
        .build()?)
}
