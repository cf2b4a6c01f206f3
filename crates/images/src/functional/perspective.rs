//! Perspective maps.
//!
//! Out of scope: affine maps (`affine`), and interpolation (`warp`).

use super::warp::{to_fixed_point, warp};
use super::{Fill, check_finite};
use crate::{Image, Interpolation};
use fulmen_data::{Error, Result};

/// The positions of the upper left, upper right, lower right and lower left corners: x and y in
/// pixels from the upper left.
pub type Corners = [(f64, f64); 4];

/// Applies the perspective map that takes the points `from` to the points `to`. Points outside the
/// image have the fill's color. Points on or beyond the horizon have unspecified but deterministic
/// colors.
///
/// The result is torchvision's, with the differences that [`affine`](super::affine) lists.
///
/// # Errors
/// Three collinear points, and those of [`affine`](super::affine).
pub fn perspective(
    image: &Image,
    from: Corners,
    to: Corners,
    mode: Interpolation,
    fill: &Fill,
) -> Result<Image> {
    for (x, y) in from.into_iter().chain(to) {
        check_finite("place of a corner", x)?;
        check_finite("place of a corner", y)?;
    }
    let [a, b, c, d, e, f, g, h] = coefficients(to, from)?;
    let size = (image.width(), image.height());
    warp(image, size, mode, fill, |row| {
        let y = row as f64 + 0.5;
        (0..size.0).map(move |column| {
            let x = column as f64 + 0.5;
            let depth = g * x + h * y + 1.0;
            // A point that is NaN is outside.
            let to_fixed = |numerator: f64| {
                if (numerator / depth).is_finite() {
                    to_fixed_point(snap(numerator / depth - 0.5))
                } else {
                    to_fixed_point(-1e9)
                }
            };
            (to_fixed(a * x + b * y + c), to_fixed(d * x + e * y + f))
        })
    })
}

/// Whether a perspective map takes the points `from` to the points `to`.
pub(crate) fn is_possible(from: Corners, to: Corners) -> bool {
    coefficients(to, from).is_ok()
}

/// Rounds to a multiple of 2⁻²⁰, which is finer than the precision of interpolation and coarser
/// than the rounding errors of the equations.
fn snap(pixels: f64) -> f64 {
    (pixels * 1_048_576.0).round() / 1_048_576.0
}

/// The numbers `a` to `h` for which `x' = (a·x + b·y + c) / (g·x + h·y + 1)` and `y' = (d·x + e·y +
/// f) / (g·x + h·y + 1)` at all four points. They solve eight linear equations, by Gaussian
/// elimination with row pivots.
fn coefficients(from: Corners, to: Corners) -> Result<[f64; 8]> {
    let mut rows: Vec<[f64; 9]> = Vec::new();
    for ((x, y), (to_x, to_y)) in from.into_iter().zip(to) {
        rows.push([x, y, 1.0, 0.0, 0.0, 0.0, -to_x * x, -to_x * y, to_x]);
        rows.push([0.0, 0.0, 0.0, x, y, 1.0, -to_y * x, -to_y * y, to_y]);
    }
    for column in 0..8 {
        let pivot_row = (column..8)
            .max_by(|&i, &j| rows[i][column].abs().total_cmp(&rows[j][column].abs()))
            .unwrap_or(column);
        rows.swap(column, pivot_row);
        let pivot = rows[column];
        if pivot[column].abs() < 1e-9 {
            return Err(Error::usage(format!(
                "no perspective map takes the points {from:?} to {to:?}: three of them are collinear"
            )));
        }
        for (number, row) in rows.iter_mut().enumerate() {
            let share = row[column] / pivot[column];
            if number != column {
                row.iter_mut().zip(pivot).for_each(|(entry, above)| *entry -= share * above);
            }
        }
    }
    Ok(std::array::from_fn(|column| rows[column][8] / rows[column][column]))
}
