//! The published data of each TPU generation. Each row names its sources. Nothing here was
//! measured.

/// A generation of TPUs. Numbers are for one chip unless stated otherwise.
#[derive(Debug, PartialEq)]
pub struct Generation {
    /// The name that libtpu's topologies begin with.
    pub name: &'static str,
    /// Other names in use.
    pub aliases: &'static [&'static str],
    /// TensorCores.
    pub cores: usize,
    /// Devices that a program sees. v4 and v5p present both cores as one device.
    pub devices: usize,
    /// Whether accelerator types (`v3-8`) count TensorCores; otherwise they count chips.
    pub named_by_cores: bool,
    /// Peak FLOP/s of the matrix units in `bf16`.
    pub bf16_flops: f64,
    /// Peak operations per second of the matrix units in `int8`, if `int8` is faster than `bf16`.
    pub int8_ops: Option<f64>,
    /// Bytes of HBM.
    pub hbm_bytes: u64,
    /// Bytes per second between HBM and the chip.
    pub hbm_bandwidth: f64,
    /// Bytes per second that a chip can send to other chips over all its links together.
    pub ici_bandwidth: f64,
    /// The number of links of a chip to other chips.
    pub ici_links: usize,
    /// Bytes per second that a chip's share of its host's network can send to other slices, and the
    /// source of the number. `None` if slices cannot be connected.
    pub dcn_bandwidth: Option<(f64, &'static str)>,
    /// The number of axes of a slice.
    pub axes: usize,
    /// The lengths of axes whose ends are connected into a ring.
    pub(crate) ring_axes: RingAxes,
    /// The rows and columns of a matrix unit.
    pub matrix_unit: u64,
    /// The machines that hold the chips, the one with the fewest chips first.
    pub hosts: &'static [Host],
    /// The PCI numbers of the chips, from `device.py` of Google's `tpu-info`.
    pub(crate) pci: PciNumbers,
    /// The sources of the numbers.
    pub sources: &'static [&'static str],
}

/// A machine with TPU chips. A program of each host feeds the host's chips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// The number of chips.
    pub chips: usize,
    /// The number of virtual processors.
    pub vcpus: usize,
    /// Memory in GB (10⁹ bytes); `None` if it is not known.
    pub gigabytes: Option<usize>,
}

const fn host(chips: usize, vcpus: usize, gigabytes: usize) -> Host {
    Host { chips, vcpus, gigabytes: Some(gigabytes) }
}

/// Which axes of a slice are rings; the others are lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingAxes {
    /// Axes as long as the pod.
    Length(usize),
    /// Axes whose length is a multiple of 4.
    MultipleOfFour,
}

/// How a chip names itself on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PciNumbers {
    device: &'static str,
    /// `None` if every subsystem of the device is of this generation.
    subsystem: Option<&'static str>,
}

const fn pci(device: &'static str) -> PciNumbers {
    PciNumbers { device, subsystem: None }
}

const TERA: f64 = 1e12;
const GIGA: f64 = 1e9;
const GIB: u64 = 1 << 30;

const SECOND_HAND_SOURCES: &str = "second-hand, no page of Google's was read: peak and memory from encyclopedias; links (four of 496 \
                           Gbit/s) from Jouppi et al., CACM 63(7), 2020, as remembered";
const TPU_MACHINES: &str = "docs.cloud.google.com/compute/docs/tpus/tpu-machines";
const SCALING_BOOK: &str = "How to Scale Your Model, jax-ml.github.io/scaling-book/tpus (matrix unit of 256 × 256 from v6e on)";

/// Every generation, oldest first, as published in 2025 and 2026.
pub(crate) static GENERATIONS: &[Generation] = &[
    Generation {
        name: "v2",
        aliases: &[],
        cores: 2,
        devices: 2,
        named_by_cores: true,
        bf16_flops: 45.0 * TERA,
        int8_ops: None,
        hbm_bytes: 16 * GIB,
        hbm_bandwidth: 600.0 * GIGA,
        ici_bandwidth: 248.0 * GIGA,
        ici_links: 4,
        dcn_bandwidth: None,
        axes: 2,
        ring_axes: RingAxes::Length(16),
        matrix_unit: 128,
        hosts: &[Host { chips: 4, vcpus: 96, gigabytes: None }],
        pci: PciNumbers { device: "0x0027", subsystem: Some("0x004e") },
        sources: &[SECOND_HAND_SOURCES],
    },
    Generation {
        name: "v3",
        aliases: &[],
        cores: 2,
        devices: 2,
        named_by_cores: true,
        bf16_flops: 123.0 * TERA,
        int8_ops: None,
        hbm_bytes: 32 * GIB,
        hbm_bandwidth: 900.0 * GIGA,
        // 340 TB/s of all-reduce for a pod of 1024 chips.
        ici_bandwidth: 332.0 * GIGA,
        ici_links: 4,
        dcn_bandwidth: None,
        axes: 2,
        ring_axes: RingAxes::Length(32),
        matrix_unit: 128,
        hosts: &[Host { chips: 4, vcpus: 96, gigabytes: None }],
        pci: PciNumbers { device: "0x0027", subsystem: Some("0x004f") },
        sources: &["docs.cloud.google.com/tpu/docs/v3"],
    },
    Generation {
        name: "v4",
        aliases: &[],
        cores: 2,
        devices: 1,
        named_by_cores: true,
        bf16_flops: 275.0 * TERA,
        int8_ops: None,
        hbm_bytes: 32 * GIB,
        hbm_bandwidth: 1200.0 * GIGA,
        // 1.1 PB/s of all-reduce for a pod of 4096 chips.
        ici_bandwidth: 268.0 * GIGA,
        ici_links: 6,
        dcn_bandwidth: Some((
            6.25 * GIGA,
            "25 GB/s of a host with 4 chips, jax-ml.github.io/scaling-book/tpus",
        )),
        axes: 3,
        ring_axes: RingAxes::MultipleOfFour,
        matrix_unit: 128,
        hosts: &[host(4, 240, 407)],
        pci: pci("0x005e"),
        sources: &["docs.cloud.google.com/tpu/docs/v4"],
    },
    Generation {
        name: "v5e",
        aliases: &["v5litepod", "v5lite"],
        cores: 1,
        devices: 1,
        named_by_cores: false,
        bf16_flops: 197.0 * TERA,
        int8_ops: Some(393.0 * TERA),
        hbm_bytes: 16 * GIB,
        hbm_bandwidth: 819.0 * GIGA,
        // 400 GB/s counting both directions; 51.2 TB/s of all-reduce for a pod of 256 chips.
        ici_bandwidth: 200.0 * GIGA,
        ici_links: 4,
        dcn_bandwidth: Some((
            3.125 * GIGA,
            "6.4 Tbit/s of a pod with 256 chips, docs.cloud.google.com/tpu/docs/v5e",
        )),
        axes: 2,
        ring_axes: RingAxes::Length(16),
        matrix_unit: 128,
        hosts: &[host(1, 24, 48), host(4, 112, 192), host(8, 224, 384)],
        pci: pci("0x0063"),
        sources: &["docs.cloud.google.com/tpu/docs/v5e"],
    },
    Generation {
        name: "v5p",
        aliases: &[],
        cores: 2,
        devices: 1,
        named_by_cores: true,
        bf16_flops: 459.0 * TERA,
        int8_ops: Some(918.0 * TERA),
        hbm_bytes: 95 * GIB,
        hbm_bandwidth: 2765.0 * GIGA,
        // 1200 GB/s counting both directions.
        ici_bandwidth: 600.0 * GIGA,
        ici_links: 6,
        dcn_bandwidth: Some((6.25 * GIGA, TPU_MACHINES)),
        axes: 3,
        ring_axes: RingAxes::MultipleOfFour,
        matrix_unit: 128,
        hosts: &[host(4, 208, 448)],
        pci: pci("0x0062"),
        sources: &[
            "docs.cloud.google.com/tpu/docs/v5p",
            "int8: jax-ml.github.io/scaling-book/tpus",
        ],
    },
    Generation {
        name: "v6e",
        aliases: &["trillium"],
        cores: 1,
        devices: 1,
        named_by_cores: false,
        bf16_flops: 918.0 * TERA,
        int8_ops: Some(1836.0 * TERA),
        hbm_bytes: 32 * GIB,
        hbm_bandwidth: 1600.0 * GIGA,
        // 800 GB/s counting both directions.
        ici_bandwidth: 400.0 * GIGA,
        ici_links: 4,
        dcn_bandwidth: Some((12.5 * GIGA, TPU_MACHINES)),
        axes: 2,
        ring_axes: RingAxes::Length(16),
        matrix_unit: 256,
        hosts: &[host(1, 44, 176), host(4, 180, 720), host(8, 180, 1440)],
        pci: pci("0x006f"),
        sources: &["docs.cloud.google.com/tpu/docs/v6e", SCALING_BOOK],
    },
    Generation {
        name: "tpu7x",
        aliases: &["v7x", "ironwood"],
        cores: 2,
        devices: 2,
        named_by_cores: true,
        bf16_flops: 2307.0 * TERA,
        int8_ops: None,
        hbm_bytes: 192 * GIB,
        hbm_bandwidth: 7380.0 * GIGA,
        // 1200 GB/s counting both directions.
        ici_bandwidth: 600.0 * GIGA,
        ici_links: 6,
        dcn_bandwidth: Some((12.5 * GIGA, TPU_MACHINES)),
        axes: 3,
        ring_axes: RingAxes::MultipleOfFour,
        matrix_unit: 256,
        hosts: &[host(4, 224, 960)],
        pci: pci("0x0076"),
        sources: &["docs.cloud.google.com/tpu/docs/tpu7x", SCALING_BOOK],
    },
];

impl Generation {
    /// The generation with this name or alias, ignoring case.
    pub fn find(name: &str) -> Option<&'static Generation> {
        let matches = |candidate: &str| candidate.eq_ignore_ascii_case(name);
        GENERATIONS.iter().find(|g| matches(g.name) || g.aliases.iter().any(|alias| matches(alias)))
    }

    /// The generation of a device by the kind that a plugin reports, such as `TPU v5 lite`.
    pub fn of_kind(kind: &str) -> Option<&'static Generation> {
        let words: Vec<&str> =
            kind.split_whitespace().filter(|word| !word.eq_ignore_ascii_case("tpu")).collect();
        let name = words.concat();
        // `lite` is libtpu's name for the smaller chip of a generation.
        Generation::find(&name)
            .or_else(|| Generation::find(&format!("{}e", name.strip_suffix("lite")?)))
    }

    /// The generation of a chip by the numbers that Linux shows for it on the PCI bus, in the files
    /// `device` and `subsystem_device`.
    ///
    /// ```
    /// use fulmen_tpu::Generation;
    ///
    /// assert_eq!(Generation::of_pci_numbers("0x0063", "0x0000"), Generation::find("v5e"));
    /// assert_eq!(Generation::of_pci_numbers("0x1234", "0x0000"), None);
    /// ```
    pub fn of_pci_numbers(device: &str, subsystem: &str) -> Option<&'static Generation> {
        GENERATIONS.iter().find(|generation| {
            let pci = generation.pci;
            pci.device == device && pci.subsystem.is_none_or(|known| known == subsystem)
        })
    }

    /// The machine with exactly this number of chips, if Google has such a machine.
    ///
    /// ```
    /// use fulmen_tpu::Generation;
    ///
    /// let v5e = Generation::find("v5e").unwrap();
    /// assert_eq!(v5e.host_with_chips(4).map(|host| host.vcpus), Some(112));
    /// assert_eq!(v5e.host_with_chips(2), None);
    /// ```
    pub fn host_with_chips(&self, chips: usize) -> Option<&'static Host> {
        self.hosts.iter().find(|host| host.chips == chips)
    }

    /// The `bf16` peak of one device, in FLOP/s.
    pub fn device_flops(&self) -> f64 {
        self.bf16_flops / self.devices as f64
    }

    /// The HBM bandwidth of one device, in bytes per second.
    pub fn device_hbm_bandwidth(&self) -> f64 {
        self.hbm_bandwidth / self.devices as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_found_once() {
        assert_eq!(Generation::find("V5LitePod").unwrap().name, "v5e");
        assert_eq!(Generation::find("ironwood").unwrap().name, "tpu7x");
        assert!(Generation::find("v9").is_none() && Generation::find("").is_none());
        let names: Vec<_> =
            GENERATIONS.iter().flat_map(|g| g.aliases.iter().copied().chain([g.name])).collect();
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(names.len(), different.len());
    }

    #[test]
    fn two_generations_share_a_device_number() {
        let name =
            |device, subsystem| Generation::of_pci_numbers(device, subsystem).map(|g| g.name);
        assert_eq!(name("0x0027", "0x004e"), Some("v2"));
        assert_eq!(name("0x0027", "0x004f"), Some("v3"));
        assert_eq!(name("0x0027", "0x0001"), None);
        assert_eq!(name("0x006f", "0x0001"), Some("v6e"));
    }

    #[test]
    fn hosts_are_in_the_order_of_their_chips() {
        for generation in GENERATIONS {
            assert!(generation.hosts.is_sorted_by(|a, b| a.chips < b.chips));
            assert!(generation.hosts.iter().any(|host| host.chips == 4), "{}", generation.name);
        }
    }

    #[test]
    fn a_device_has_its_part_of_the_chip() {
        let device = |name| Generation::find(name).unwrap().device_flops() / 1e12;
        assert_eq!(
            (device("v2"), device("v3"), device("v4"), device("v5e")),
            (22.5, 61.5, 275.0, 197.0)
        );
        assert_eq!((device("v5p"), device("tpu7x")), (459.0, 1153.5));
        for generation in GENERATIONS {
            assert!(!generation.sources.is_empty() && generation.cores >= generation.devices);
            assert!(generation.ici_links == 2 * generation.axes);
            // The network between slices is the slower one.
            assert!(generation.dcn_bandwidth.is_none_or(|dcn| dcn.0 < generation.ici_bandwidth));
        }
    }
}
