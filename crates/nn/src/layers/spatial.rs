//! The common part of layers over 1, 2 or 3 spatial axes: inputs with and without a batch axis, and
//! the names of the axes.

use fulmen_tensor::Tensor;

use super::sizes::Sizes;

/// The name of the `i`-th of `n` spatial axes.
fn axis_name(n: usize, i: usize) -> &'static str {
    match (n, i) {
        (1, _) => "length",
        (_, i) if i + 1 == n => "width",
        (_, i) if i + 2 == n => "height",
        _ => "depth",
    }
}

/// The names of all `n` spatial axes.
pub(super) fn axis_names(n: usize) -> String {
    (0..n).map(|i| axis_name(n, i)).collect::<Vec<_>>().join(", ")
}

/// Runs `f` on a batch. A sample without a batch axis gets one temporarily.
pub(super) fn with_batch_axis<const N: usize>(
    x: &Tensor,
    f: impl FnOnce(&Tensor) -> Tensor,
) -> Tensor {
    if x.rank() == N + 1 { f(&x.unsqueeze(0)).squeeze(0) } else { f(x) }
}

/// Rejects an input that is neither a batch nor a sample with `channels` and `N` spatial axes.
pub(super) fn check_batch<const N: usize>(
    x: &Tensor,
    channels: impl std::fmt::Display,
) -> Result<(), String> {
    match x.rank() {
        rank if rank == N + 1 || rank == N + 2 => Ok(()),
        _ => Err(format!("the input {} is not [batch, {channels}, {}]", x.ty(), axis_names(N))),
    }
}

/// Rejects a window that is larger than the padded input.
pub(super) fn check_window<const N: usize>(
    x: &Tensor,
    window: Sizes<N>,
    padding: Sizes<N>,
    dilation: Sizes<N>,
) -> Result<(), String> {
    (0..N).try_for_each(|i| {
        let padding = padding.0[i];
        let name = axis_name(N, i);
        let size = padding.saturating_mul(2).saturating_add(x.size(i as isize - N as isize));
        let needs = window.0[i].saturating_sub(1).saturating_mul(dilation.0[i]).saturating_add(1);
        let padded = if padding > 0 { " with its padding" } else { "" };
        if size < needs {
            return Err(format!(
                "the {name} of {}{padded} is {size}, the window needs {needs}",
                x.ty()
            ));
        }
        Ok(())
    })
}

/// The text `, name value` for each setting that differs from its default.
pub(super) fn describe_settings<const N: usize>(settings: &[(&str, Sizes<N>, usize)]) -> String {
    let changed = settings.iter().filter(|(_, value, default)| *value != Sizes::from(*default));
    changed.map(|(name, value, _)| format!(", {name} {value}")).collect()
}

/// Equal padding on both sides of each axis.
pub(super) fn sides<const N: usize>(padding: Sizes<N>) -> Vec<(i64, i64)> {
    // The operation rejects values beyond i64, and so the largest i64.
    padding.0.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).map(|n| (n, n)).collect()
}
