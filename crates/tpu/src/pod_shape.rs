//! [`PodShape`]: how many processes and devices a pod has. Out of scope: which TPUs these are.

use std::fmt;
use std::str::FromStr;

/// The shape of a pod: the number of processes, and of each one's devices.
///
/// ```
/// use fulmen_tpu::PodShape;
///
/// let shape: PodShape = "4x2".parse()?;
/// assert_eq!((shape.processes, shape.devices), (4, 2));
/// assert_eq!(shape.to_string(), "4x2");
/// // Two slices, each with two processes.
/// let shape: PodShape = "2*2x2".parse()?;
/// assert_eq!((shape.slices, shape.processes, shape.devices), (2, 4, 2));
/// assert!("0x2".parse::<PodShape>().unwrap_err().contains("such as 4x2"));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodShape {
    /// The number of slices, which share the processes.
    pub slices: usize,
    /// The number of processes of all slices.
    pub processes: usize,
    /// The number of devices of each process.
    pub devices: usize,
}

impl fmt::Display for PodShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PodShape { slices, processes, devices } = self;
        match slices {
            1 => write!(f, "{processes}x{devices}"),
            _ => write!(f, "{slices}*{}x{devices}", processes / slices),
        }
    }
}

/// The error says what is expected.
impl FromStr for PodShape {
    type Err = String;

    fn from_str(text: &str) -> Result<PodShape, String> {
        let (slices, of_a_slice) = text.split_once('*').unwrap_or(("1", text));
        let numbers = of_a_slice.split_once('x').and_then(|(processes, devices)| {
            Some([slices.parse().ok()?, processes.parse().ok()?, devices.parse().ok()?])
        });
        let all = |numbers: &[usize; 3]| numbers.iter().try_fold(1_usize, |n, &m| n.checked_mul(m));
        match numbers.filter(|numbers| all(numbers).is_some_and(|all| (1..=1024).contains(&all))) {
            Some([slices, processes, devices]) => {
                Ok(PodShape { slices, processes: slices * processes, devices })
            }
            None => Err("expected PROCESSESxDEVICES, such as 4x2, or SLICES*PROCESSESxDEVICES, such as 2*2x2, with at \
                         most 1024 devices in all"
                .into()),
        }
    }
}
