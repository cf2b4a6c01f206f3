//! [`Devices`]: how many devices to compute on, or which ones.

use std::fmt;
use std::str::FromStr;

use fulmen_durable::messages::quantity;

use crate::{Error, Result, error};

/// How many devices to compute on, or which ones.
///
/// A number is a count, and a list holds device indices. `8` selects eight devices, and `[5]`
/// selects only the device with index 5.
///
/// ```
/// use fulmen_tensor::Devices;
/// assert_eq!("auto".parse::<Devices>()?, Devices::auto());
/// assert_eq!("8".parse::<Devices>()?, Devices::from(8));
/// assert_eq!("[5]".parse::<Devices>()?, Devices::from([5]));
/// assert_eq!("0,2".parse::<Devices>()?, Devices::from([0, 2]));
/// assert!("eight".parse::<Devices>().is_err());
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Devices(Selection);

/// The user's selection. Its numbers are checked when the devices are known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Selection {
    Auto,
    Count(i64),
    Indices(Vec<i64>),
    /// An invalid text: an error when the devices are chosen.
    Unknown(String),
}

impl Default for Devices {
    fn default() -> Devices {
        Devices::auto()
    }
}

/// The count that means all devices, as in PyTorch Lightning.
const ALL: i64 = -1;

/// The largest number of devices that a CPU is split into. A larger number would only make it
/// slower.
const MAX_CPU_DEVICES: i64 = 64;

impl Devices {
    /// All TPU or GPU devices of this machine, or one device on a CPU. The count -1 means the same.
    pub fn auto() -> Devices {
        Devices(Selection::Auto)
    }

    /// The number of devices that a CPU client needs for this selection.
    ///
    /// # Errors
    /// The count or an index is too large, or the selection is an invalid text.
    pub(crate) fn cpu_device_count(&self) -> Result<usize> {
        let needed = match &self.0 {
            Selection::Auto | Selection::Count(ALL) => 1,
            Selection::Count(count) => *count,
            Selection::Indices(indices) => {
                indices.iter().max().map_or(0, |index| index.saturating_add(1))
            }
            Selection::Unknown(text) => return Err(error::devices(unknown(text))),
        };
        if needed > MAX_CPU_DEVICES {
            return Err(
                self.wrong(&format!("a CPU can be split into at most {MAX_CPU_DEVICES} devices"))
            );
        }
        Ok(usize::try_from(needed).unwrap_or(0).max(1))
    }

    /// The indices of the selected devices, all below `available`. An error message lists the
    /// devices with `names`.
    ///
    /// # Errors
    /// - The count is not positive or exceeds `available`.
    /// - The list is empty.
    /// - An index is negative, repeated or not below `available`.
    pub(crate) fn choose(
        &self,
        available: usize,
        names: impl FnOnce() -> String,
    ) -> Result<Vec<usize>> {
        let refuse = |reason: String| Err(self.wrong(&format!("{reason}; available: {}", names())));
        match &self.0 {
            Selection::Auto | Selection::Count(ALL) => Ok((0..available).collect()),
            Selection::Count(count) => match usize::try_from(*count) {
                Ok(0) | Err(_) => refuse("at least one device is needed".into()),
                Ok(count) if count > available => {
                    refuse(format!("this host has {}", quantity(available, "device")))
                }
                Ok(count) => Ok((0..count).collect()),
            },
            Selection::Indices(indices) => {
                let mut chosen = Vec::new();
                for &index in indices {
                    let Some(index) =
                        usize::try_from(index).ok().filter(|&index| index < available)
                    else {
                        return refuse(format!("there is no device with the index {index}"));
                    };
                    if chosen.contains(&index) {
                        return refuse(format!("the index {index} is given twice"));
                    }
                    chosen.push(index);
                }
                if chosen.is_empty() { refuse("the list is empty".into()) } else { Ok(chosen) }
            }
            Selection::Unknown(text) => Err(error::devices(unknown(text))),
        }
    }

    fn wrong(&self, reason: &str) -> Error {
        error::devices(format!("{self} is not possible: {reason}"))
    }
}

fn unknown(text: &str) -> Error {
    Error::usage(format!(
        "`{text}` does not select devices; use a count (8), a list of indices ([5] or 0,2) or auto"
    ))
}

impl FromStr for Devices {
    type Err = Error;
    fn from_str(text: &str) -> Result<Devices> {
        let text = text.trim();
        let wrong = || unknown(text);
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Devices::auto());
        }
        let list = match (text.strip_prefix('['), text.contains(',')) {
            (Some(rest), _) => Some(rest.strip_suffix(']').ok_or_else(wrong)?),
            (None, true) => Some(text),
            (None, false) => None,
        };
        let number = |text: &str| text.trim().parse::<i64>().map_err(|_| wrong());
        match list {
            Some(list) if list.trim().is_empty() => Ok(Devices(Selection::Indices(Vec::new()))),
            Some(list) => {
                Ok(Devices(Selection::Indices(list.split(',').map(number).collect::<Result<_>>()?)))
            }
            None => number(text).map(|count| Devices(Selection::Count(count))),
        }
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Selection::Auto => f.write_str("auto"),
            Selection::Count(count) => count.fmt(f),
            Selection::Indices(indices) => {
                let indices: Vec<_> = indices.iter().map(i64::to_string).collect();
                write!(f, "[{}]", indices.join(","))
            }
            Selection::Unknown(text) => f.write_str(text),
        }
    }
}

/// An invalid text becomes an error when a [`Runtime`](crate::Runtime) is opened.
impl From<&str> for Devices {
    fn from(text: &str) -> Devices {
        text.parse().unwrap_or_else(|_| Devices(Selection::Unknown(text.to_owned())))
    }
}

/// A number that does not fit into `i64` becomes `i64::MAX`, which no machine has.
macro_rules! from_numbers {
    ($($int:ty),*) => {$(
        impl From<$int> for Devices {
            fn from(count: $int) -> Devices {
                Devices(Selection::Count(i64::try_from(count).unwrap_or(i64::MAX)))
            }
        }
        impl<const N: usize> From<[$int; N]> for Devices {
            fn from(indices: [$int; N]) -> Devices {
                Devices::from(&indices[..])
            }
        }
        impl From<Vec<$int>> for Devices {
            fn from(indices: Vec<$int>) -> Devices {
                Devices::from(&indices[..])
            }
        }
        impl From<&[$int]> for Devices {
            fn from(indices: &[$int]) -> Devices {
                Devices(Selection::Indices(indices.iter().map(|&i| i64::try_from(i).unwrap_or(i64::MAX)).collect()))
            }
        }
    )*};
}

from_numbers!(i32, i64, u32, u64, usize);

#[cfg(test)]
mod tests {
    use super::*;

    fn choose(devices: impl Into<Devices>, available: usize) -> Result<Vec<usize>, String> {
        let names = || (0..available).map(|i| format!("tpu:{i}")).collect::<Vec<_>>().join(", ");
        devices.into().choose(available, names).map_err(|e| e.to_string())
    }

    #[test]
    fn a_number_is_a_count_and_a_list_names_indices() {
        assert_eq!(choose(3, 8).unwrap(), [0, 1, 2]);
        assert_eq!(choose([5], 8).unwrap(), [5]);
        assert_eq!(choose([2, 0], 8).unwrap(), [2, 0]);
        assert_eq!(choose(Devices::auto(), 2).unwrap(), [0, 1]);
        for text in ["auto", "8", "[5]", "[0,2]", "[]", "-1"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        for text in ["", "x", "[1", "1]", "1;2", "[a]"] {
            assert!(text.parse::<Devices>().unwrap_err().to_string().contains("auto"), "{text}");
        }
    }

    #[test]
    fn a_refusal_lists_the_available_devices() {
        assert_eq!(
            choose(4, 2).unwrap_err(),
            "devices: 4 is not possible: this host has 2 devices; available: tpu:0, tpu:1"
        );
        assert!(choose(0, 2).unwrap_err().contains("at least one"));
        assert!(choose(-2, 2).unwrap_err().contains("at least one"));
        assert_eq!(
            (choose(-1, 2).unwrap(), Devices::from(-1).cpu_device_count().unwrap()),
            (vec![0, 1], 1)
        );
        assert!(choose([2], 2).unwrap_err().contains("no device with the index 2"));
        assert!(choose([-1], 2).unwrap_err().contains("no device with the index -1"));
        assert!(choose([1, 1], 2).unwrap_err().contains("twice"));
        assert!(choose(Vec::<i32>::new(), 2).unwrap_err().contains("the list is empty"));
        assert!(
            Devices::from(65).cpu_device_count().unwrap_err().to_string().contains("at most 64")
        );
        assert_eq!(Devices::from([5]).cpu_device_count().unwrap(), 6);
    }
}
