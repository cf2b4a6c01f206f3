//! Names of TPU slices: libtpu's (`v5e:2x4`), Google Cloud's accelerator types (`v3-8`,
//! `v5litepod-8`), and several equal slices (`2*v5e:2x4`).

use std::fmt;
use std::str::FromStr;

use crate::generations::{GENERATIONS, RingAxes};
use crate::{Error, Generation, Host, Result};

/// A TPU slice, or several equal slices that train together. The chips of a slice are connected to
/// each other; slices are connected by the data center network.
///
/// ```
/// use fulmen_tpu::Slice;
///
/// // Accelerator types count TensorCores up to v5p, and chips for v5e and v6e.
/// let v3: Slice = "v3-8".parse()?;
/// assert_eq!((v3.name(), v3.num_chips(), v3.num_devices()), ("v3:2x2", 4, 8));
/// let v5e: Slice = "v5litepod-8".parse()?;
/// assert_eq!((v5e.name(), v5e.num_chips(), v5e.num_devices()), ("v5e:2x4", 8, 8));
/// let two: Slice = "2*v5e:2x4".parse()?;
/// assert_eq!((two.name(), two.num_slices(), two.num_devices()), ("2*v5e:2x4", 2, 16));
/// # Ok::<(), fulmen_tpu::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    requested_name: String,
    name: String,
    generation: &'static Generation,
    axes: Vec<usize>,
    count: usize,
}

/// The maximum number of chips of a slice, more than any slice has.
const MAX_CHIPS: usize = 9216;
/// The maximum number of slices that are estimated.
const MAX_SLICES: usize = 64;

/// The shapes of slices by number of chips, for generations with two and three axes.
const SHAPES_2D: &[&[usize]] = &[
    &[1, 1],
    &[2, 2],
    &[2, 4],
    &[4, 4],
    &[4, 8],
    &[8, 8],
    &[8, 16],
    &[16, 16],
    &[16, 32],
    &[32, 32],
];
const SHAPES_3D: &[&[usize]] = &[
    &[1, 1, 1],
    &[2, 2, 1],
    &[2, 2, 2],
    &[2, 2, 4],
    &[2, 4, 4],
    &[4, 4, 4],
    &[4, 4, 8],
    &[4, 8, 8],
    &[8, 8, 8],
    &[8, 8, 16],
    &[8, 16, 16],
    &[16, 16, 16],
];

impl Slice {
    /// The name as the user wrote it.
    pub fn requested_name(&self) -> &str {
        &self.requested_name
    }

    /// libtpu's name. Several slices have their number before it: `2*v5e:4x4`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// libtpu's name of one slice.
    ///
    /// ```
    /// let slices: fulmen_tpu::Slice = "2*v5litepod-8".parse()?;
    /// assert_eq!(slices.single_name(), "v5e:2x4");
    /// # Ok::<(), fulmen_tpu::Error>(())
    /// ```
    pub fn single_name(&self) -> String {
        slice_name(self.generation, &self.axes)
    }

    /// Google Cloud's name (accelerator type), such as `v5litepod-8` or `v3-8`; `None` for a slice
    /// of an unusual shape, and for several slices.
    pub fn accelerator_type(&self) -> Option<String> {
        let generation =
            if self.generation.name == "v5e" { "v5litepod" } else { self.generation.name };
        let name = format!("{generation}-{}", accelerator_size(self.generation, self.num_chips()));
        name.parse().is_ok_and(|slice: Slice| slice.name == self.name).then_some(name)
    }

    /// The generation of the chips.
    pub fn generation(&self) -> &'static Generation {
        self.generation
    }

    /// The number of slices.
    pub fn num_slices(&self) -> usize {
        self.count
    }

    /// The hosts of the slice: the smallest that has all its chips, or hosts with 4 chips each. All
    /// hosts are of one kind.
    ///
    /// ```
    /// use fulmen_tpu::Slice;
    ///
    /// let slice: Slice = "v5e:2x4".parse()?;
    /// assert_eq!((slice.num_hosts(), slice.host().vcpus), (1, 224));
    /// let slice: Slice = "v5e:4x4".parse()?;
    /// assert_eq!((slice.num_hosts(), slice.host().vcpus), (4, 112));
    /// # Ok::<(), fulmen_tpu::Error>(())
    /// ```
    pub fn host(&self) -> &'static Host {
        let hosts = self.generation.hosts;
        let chips = self.chips_of_a_slice();
        hosts
            .iter()
            .find(|host| host.chips >= chips)
            .or_else(|| hosts.iter().find(|host| host.chips == 4))
            .expect("each generation has hosts with 4 chips")
    }

    /// The number of hosts of all slices.
    pub fn num_hosts(&self) -> usize {
        self.chips_of_a_slice().div_ceil(self.host().chips) * self.count
    }

    /// Whether one host has all chips.
    pub fn has_one_host(&self) -> bool {
        self.num_hosts() == 1
    }

    fn chips_of_a_slice(&self) -> usize {
        self.axes.iter().product()
    }

    /// The number of chips of all slices, for which you pay.
    pub fn num_chips(&self) -> usize {
        self.chips_of_a_slice() * self.count
    }

    /// The number of devices that a program sees, in all slices.
    pub fn num_devices(&self) -> usize {
        self.num_chips() * self.generation.devices
    }

    /// The share of a chip's links that lead to another chip of the slice.
    pub fn links(&self) -> f64 {
        let axis_links = |&length: &usize| match (length, self.generation.ring_axes) {
            (1, _) => 0,
            (length, RingAxes::Length(ring)) if length == ring => 2,
            (length, RingAxes::MultipleOfFour) if length % 4 == 0 => 2,
            _ => 1,
        };
        self.axes.iter().map(axis_links).sum::<usize>() as f64 / self.generation.ici_links as f64
    }

    /// Parses the name of a single slice.
    ///
    /// # Errors
    /// The name is not valid, or names several slices.
    pub fn parse_single(name: &str) -> Result<Slice> {
        let slice: Slice = name.parse()?;
        if slice.count == 1 {
            return Ok(slice);
        }
        let single = slice.single_name();
        Err(Error::usage(format!(
            "`{name}` is {} slices, expected one, such as {single}",
            slice.count
        )))
    }

    /// Parses several names, separated by commas.
    ///
    /// # Errors
    /// The first name that is not valid; an empty list.
    pub fn parse_list(names: &str) -> Result<Vec<Slice>> {
        names.split(',').map(|name| name.trim().parse()).collect()
    }
}

fn slice_name(generation: &Generation, axes: &[usize]) -> String {
    let lengths: Vec<_> = axes.iter().map(ToString::to_string).collect();
    format!("{}:{}", generation.name, lengths.join("x"))
}

fn shapes(generation: &Generation) -> impl Iterator<Item = &'static [usize]> {
    let longest = match generation.ring_axes {
        RingAxes::Length(ring) => ring,
        RingAxes::MultipleOfFour => 16,
    };
    let shapes = if generation.axes == 2 { SHAPES_2D } else { SHAPES_3D };
    shapes.iter().copied().filter(move |axes| axes.iter().all(|&length| length <= longest))
}

/// The number in an accelerator type: of TensorCores or of chips.
fn accelerator_size(generation: &Generation, chips: usize) -> usize {
    if generation.named_by_cores { chips * generation.cores } else { chips }
}

/// The lengths of axes such as `2x4`, or why they are none.
fn parse_axes(size: &str) -> Result<Vec<usize>, String> {
    let lengths: Result<Vec<usize>, _> = size.split('x').map(str::parse).collect();
    lengths.map_err(|_| format!("`{size}` is not a size"))
}

/// The shape of an accelerator type with this number, such as 8, or why there is none.
fn named_shape(generation: &Generation, number: &str) -> Result<Vec<usize>, String> {
    let Ok(size) = number.parse::<usize>() else {
        return Err(format!("`{number}` is not a number"));
    };
    let size_of = |axes: &[usize]| accelerator_size(generation, axes.iter().product());
    if let Some(axes) = shapes(generation).find(|axes| size_of(axes) == size) {
        return Ok(axes.to_vec());
    }
    let unit = if generation.named_by_cores { "TensorCores" } else { "chips" };
    let names: Vec<_> =
        shapes(generation).map(|axes| format!("{}-{}", generation.name, size_of(axes))).collect();
    Err(format!(
        "the number counts {unit}, and the slices with a name of this kind are {}",
        names.join(", ")
    ))
}

impl FromStr for Slice {
    type Err = Error;

    fn from_str(full_name: &str) -> Result<Slice> {
        let (count, requested_name) = match full_name.split_once('*') {
            Some((count, name)) => (count.trim(), name.trim()),
            None => ("1", full_name),
        };
        let wrong = |reason: String| {
            let names: Vec<_> = GENERATIONS.iter().map(|g| g.name).collect();
            Err(Error::usage(format!(
                "`{full_name}` is not a TPU slice: {reason}. A slice is named like v5e:2x4 (the chips along each axis) or like \
                 v3-8, and several slices like 2*v5e:2x4; there are {}",
                names.join(", ")
            )))
        };
        let Some((name, size)) = requested_name.split_once([':', '-']) else {
            return wrong("it has no size".into());
        };
        let Some(generation) = Generation::find(name) else {
            return wrong(format!("there is no generation `{name}`"));
        };
        let by_axes = requested_name.contains(':');
        let axes = if by_axes { parse_axes(size) } else { named_shape(generation, size) };
        let axes = match axes {
            Ok(axes) => axes,
            Err(reason) => return wrong(reason),
        };
        if axes.len() != generation.axes {
            let example = if generation.axes == 2 { SHAPES_2D[1] } else { SHAPES_3D[1] };
            return wrong(format!(
                "slices of {} have {} axes, such as {}",
                generation.name,
                generation.axes,
                slice_name(generation, example)
            ));
        }
        let chips = axes.iter().try_fold(1_usize, |n, &length| n.checked_mul(length));
        if !chips.is_some_and(|chips| (1..=MAX_CHIPS).contains(&chips)) {
            return wrong(format!("a slice has from 1 to {MAX_CHIPS} chips"));
        }
        let count = count.parse().ok().filter(|count| (1..=MAX_SLICES).contains(count));
        let Some(count) = count else {
            return wrong(format!("the number of slices is from 1 to {MAX_SLICES}"));
        };
        if count > 1 && generation.dcn_bandwidth.is_none() {
            return wrong(format!("Google Cloud does not connect slices of {}", generation.name));
        }
        let single = slice_name(generation, &axes);
        Ok(Slice {
            requested_name: full_name.to_owned(),
            name: if count == 1 { single } else { format!("{count}*{single}") },
            generation,
            axes,
            count,
        })
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_has_the_hosts_that_google_gives_it() {
        for (name, count, vcpus, gigabytes) in [
            ("v3-8", 1, 96, None),
            ("v4-16", 2, 240, Some(407)),
            ("v5e-1", 1, 24, Some(48)),
            ("v5e-4", 1, 112, Some(192)),
            ("v5e-8", 1, 224, Some(384)),
            ("v5e-16", 4, 112, Some(192)),
            ("v5p-8", 1, 208, Some(448)),
            ("v6e-8", 1, 180, Some(1440)),
            ("2*v6e:2x4", 2, 180, Some(1440)),
        ] {
            let slice: Slice = name.parse().unwrap();
            let host = slice.host();
            let found = (slice.num_hosts(), host.vcpus, host.gigabytes);
            assert_eq!(found, (count, vcpus, gigabytes), "{name}");
            assert_eq!(slice.has_one_host(), count == 1, "{name}");
        }
    }

    #[test]
    fn accelerator_types_count_cores_or_chips() {
        let check = |requested_name: &str, name: &str, chips: usize, devices: usize| {
            let slice: Slice = requested_name.parse().unwrap();
            assert_eq!(
                (slice.name(), slice.num_chips(), slice.num_devices()),
                (name, chips, devices),
                "{requested_name}"
            );
            assert_eq!(slice.requested_name(), requested_name);
            let accelerator_type: Option<Slice> =
                slice.accelerator_type().map(|name| name.parse().unwrap());
            assert!(
                accelerator_type.is_none_or(|accelerator_type| accelerator_type.name() == name),
                "{requested_name}"
            );
        };
        check("v2-8", "v2:2x2", 4, 8);
        check("v3-8", "v3:2x2", 4, 8);
        check("v3-32", "v3:4x4", 16, 32);
        check("v3-2048", "v3:32x32", 1024, 2048);
        check("v4-8", "v4:2x2x1", 4, 4);
        check("v5p-8", "v5p:2x2x1", 4, 4);
        check("v5p-128", "v5p:4x4x4", 64, 64);
        check("v5litepod-8", "v5e:2x4", 8, 8);
        check("v5e-256", "v5e:16x16", 256, 256);
        check("v6e-8", "v6e:2x4", 8, 8);
        check("v6e-1", "v6e:1x1", 1, 1);
        check("tpu7x-128", "tpu7x:4x4x4", 64, 128);
        check("V5E:2x4", "v5e:2x4", 8, 8);
        check("v5litepod:4x8", "v5e:4x8", 32, 32);
        check("tpu7x:2x2x1", "tpu7x:2x2x1", 4, 8);
        let accelerator_type = |name: &str| name.parse::<Slice>().unwrap().accelerator_type();
        assert_eq!(
            (accelerator_type("v5e:4x4").as_deref(), accelerator_type("v3:2x2").as_deref()),
            (Some("v5litepod-16"), Some("v3-8"))
        );
        assert_eq!(accelerator_type("v5p:4x4x12"), None);
    }

    #[test]
    fn several_slices_have_their_number_before_the_name() {
        let slice: Slice = "2*v5litepod-16".parse().unwrap();
        assert_eq!((slice.name(), slice.single_name().as_str()), ("2*v5e:4x4", "v5e:4x4"));
        assert_eq!((slice.num_slices(), slice.num_chips(), slice.num_devices()), (2, 32, 32));
        assert_eq!(slice.accelerator_type(), None);
        let two_cores: Slice = "3 * tpu7x:2x2x1".parse().unwrap();
        assert_eq!((two_cores.num_chips(), two_cores.num_devices()), (12, 24));
        assert_eq!("1*v5e:4x4".parse::<Slice>().unwrap().name(), "v5e:4x4");
        assert_eq!(Slice::parse_single("v5e:4x4").unwrap().num_slices(), 1);
        let error = Slice::parse_single("2*v5e:4x4").unwrap_err().to_string();
        assert_eq!(error, "`2*v5e:4x4` is 2 slices, expected one, such as v5e:4x4");
    }

    #[test]
    fn a_wrong_name_has_a_message_with_the_valid_ones() {
        let check = |name: &str, expected: &str| {
            let error = name.parse::<Slice>().unwrap_err();
            assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
        };
        check("", "it has no size");
        check("v5e", "it has no size");
        check("v9:2x2", "there is no generation `v9`");
        check("v9:2x2", "there are v2, v3, v4, v5e, v5p, v6e, tpu7x");
        check(
            "v3-7",
            "counts TensorCores, and the slices with a name of this kind are v3-2, v3-8, v3-16",
        );
        check(
            "v6e-9",
            "counts chips, and the slices with a name of this kind are v6e-1, v6e-4, v6e-8",
        );
        check("v5e-x", "`x` is not a number");
        check("v5e:2x2x1", "slices of v5e have 2 axes, such as v5e:2x2");
        check("v5p:4x4", "slices of v5p have 3 axes, such as v5p:2x2x1");
        check("v5e:0x4", "from 1 to 9216 chips");
        check("v5e:99999999999x99999999999", "from 1 to 9216 chips");
        check("v5e:2y4", "`2y4` is not a size");
        check("0*v5e:2x4", "`0*v5e:2x4` is not a TPU slice: the number of slices is from 1 to 64");
        check("two*v5e:2x4", "the number of slices is from 1 to 64");
        check("65*v5e:2x4", "the number of slices is from 1 to 64");
        check("2*2*v5e:2x4", "there is no generation `2*v5e`");
        check("2*v3-8", "Google Cloud does not connect slices of v3");
        assert!(Slice::parse_list("v5e:2x4, v3-8").is_ok_and(|list| list.len() == 2));
        assert!(Slice::parse_list("v5e:2x4,").is_err());
    }

    #[test]
    fn links_that_lead_nowhere_do_not_count() {
        let links = |name: &str| name.parse::<Slice>().unwrap().links();
        assert_eq!((links("v5e:1x1"), links("v5e:2x4"), links("v5e:16x16")), (0.0, 0.5, 1.0));
        assert_eq!(
            (links("v5p:2x2x1"), links("v5p:4x4x4"), links("v5p:4x4x8")),
            (2.0 / 6.0, 1.0, 1.0)
        );
        assert_eq!((links("v5e:4x16"), links("v3:32x32")), (0.75, 1.0));
    }
}
