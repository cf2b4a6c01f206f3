//! Fourier transforms.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("fft", &["fft"], |x, a| x[0].fft(&a.axes())),
        row("ifft", &["ifft"], |x, a| x[0].ifft(&a.axes())),
        row("rfft", &["rfft"], |x, a| x[0].rfft(&a.axes())),
        row("irfft", &["irfft"], |x, a| x[0].irfft(&a.axes(), a.usize("n"))),
    ]
}
