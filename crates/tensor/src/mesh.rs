//! [`Mesh`]: a grid of devices with named axes. The [`Runtime`](crate::Runtime) has the devices
//! themselves.

use std::fmt;
use std::sync::Arc;

use crate::{Error, Result};

/// A grid of devices with named axes, like JAX's `Mesh` without the devices. Devices are in
/// row-major order: the index along the last axis changes fastest.
///
/// ```
/// use fulmen_tensor::Mesh;
/// let mesh = Mesh::new([("data", 4), ("model", 2)])?;
/// assert_eq!(mesh.num_devices(), 8);
/// assert_eq!(mesh.size("model"), Some(2));
/// assert_eq!(mesh.to_string(), "data=4 × model=2");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Mesh(Arc<[(String, usize)]>);

impl Mesh {
    /// A mesh with these axes.
    ///
    /// # Errors
    /// - There are no axes, or an axis has size 0.
    /// - A name is empty, repeated, or has characters other than letters, digits, `_` and `-`.
    /// - The number of devices overflows `usize`.
    pub fn new<N: Into<String>>(axes: impl IntoIterator<Item = (N, usize)>) -> Result<Mesh> {
        let axes: Vec<(String, usize)> =
            axes.into_iter().map(|(name, size)| (name.into(), size)).collect();
        let wrong = |message: String| Err(Error::usage(format!("mesh: {message}")));
        if axes.is_empty() {
            return wrong("it needs at least one axis, such as (\"data\", 8)".into());
        }
        for (i, (name, size)) in axes.iter().enumerate() {
            if name.is_empty()
                || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
            {
                return wrong(format!(
                    "`{name}` is not a valid axis name; use letters, digits, `_` and `-`"
                ));
            }
            if axes[..i].iter().any(|earlier| earlier.0 == *name) {
                return wrong(format!("two axes have the name `{name}`"));
            }
            if *size == 0 {
                return wrong(format!(
                    "the axis `{name}` has no devices; its size must be at least 1"
                ));
            }
        }
        match axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.1)) {
            Some(_) => Ok(Mesh(axes.into())),
            None => wrong("the number of devices overflows".into()),
        }
    }

    /// A mesh with the single axis `data`.
    pub(crate) fn data(devices: usize) -> Mesh {
        Mesh([("data".to_owned(), devices.max(1))].into())
    }

    /// The mesh for devices in equal TPU slices, unless you choose another. On one slice it has the
    /// single axis `data`. Several slices are the axis `data`, and the devices of a slice are the
    /// axis `fsdp`: what FSDP gathers stays within a slice, and only gradients cross the slower
    /// network.
    ///
    /// ```
    /// use fulmen_tensor::Mesh;
    /// assert_eq!(Mesh::of_slices(1, 8)?.to_string(), "data=8");
    /// assert_eq!(Mesh::of_slices(2, 4)?.to_string(), "data=2 × fsdp=4");
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// A number is 0, or the number of devices overflows `usize`.
    pub fn of_slices(slices: usize, devices_of_each: usize) -> Result<Mesh> {
        match slices {
            1 => Mesh::new([("data", devices_of_each)]),
            _ => Mesh::new([("data", slices), ("fsdp", devices_of_each)]),
        }
    }

    /// The axes with their sizes, slowest first.
    pub fn axes(&self) -> &[(String, usize)] {
        &self.0
    }

    /// The size of the axis with this name, if there is one.
    pub fn size(&self, axis: &str) -> Option<usize> {
        self.0.iter().find(|a| a.0 == axis).map(|a| a.1)
    }

    /// The number of devices: the product of the sizes.
    pub fn num_devices(&self) -> usize {
        self.0.iter().map(|a| a.1).product()
    }

    /// The coordinate of the device with this index along an axis; 0 if there is no such axis.
    pub(crate) fn coordinate(&self, device: usize, axis: &str) -> usize {
        let Some(i) = self.0.iter().position(|a| a.0 == axis) else { return 0 };
        let faster: usize = self.0[i + 1..].iter().map(|a| a.1).product();
        device / faster % self.0[i].1
    }

    /// The StableHLO declaration of the mesh, which shardings refer to.
    pub(crate) fn declaration(&self) -> String {
        let axes: Vec<_> = self.0.iter().map(|(name, size)| format!("\"{name}\"={size}")).collect();
        format!("sdy.mesh @mesh = <[{}]>", axes.join(", "))
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<_> = self.0.iter().map(|(name, size)| format!("{name}={size}")).collect();
        f.write_str(&axes.join(" × "))
    }
}

impl fmt::Debug for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mesh({self})")
    }
}
