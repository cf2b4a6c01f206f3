//! What TPU a machine has: the kind and the number of its chips, and the version of libtpu.
//!
//! The kind is the kernel's: the PCI identifiers of the chips, as in the package `tpu-info`.
//! libtpu's metrics do not contain it. Out of scope: what the chips do (`libtpu_metrics.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use fulmen_durable::messages::quantity;
use fulmen_pjrt::locate::{Platform, locate};
use fulmen_tpu::Generation;

use crate::{Holders, Tpu};

/// Google's number as a maker of PCI devices.
const GOOGLE: &str = "0x1ae0";

/// The chips and the libtpu of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inventory {
    /// The generation of the chips, such as `v5e`; `None` if the kernel shows no chip that is known.
    pub kind: Option<&'static str>,
    /// The number of chips.
    pub chips: usize,
    /// The libtpu that a process uses or, if no process shows one, the one that a program would
    /// load.
    pub libtpu: Option<Libtpu>,
}

/// A file `libtpu.so`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Libtpu {
    /// Where it is.
    pub path: PathBuf,
    /// The version of its package; `None` if the file belongs to no package.
    pub version: Option<String>,
    /// Whether a process that holds the TPU has mapped it.
    pub is_used: bool,
}

impl Tpu {
    /// The chips and the libtpu of this machine. `holders` are the processes that use them.
    pub fn inventory(&self, holders: &Holders) -> Inventory {
        let chips = Chips::find(&self.root);
        let used = holders.processes.iter().flat_map(|process| &process.libraries).next();
        let installed = || locate(Platform::Tpu, None).ok();
        let path = used.cloned().or_else(installed);
        let libtpu = path.map(|path| Libtpu {
            version: package(&path).map(|(_, version)| version),
            is_used: used.is_some(),
            path,
        });
        let kind = chips.generation.map(|generation| generation.name);
        Inventory { kind, chips: chips.number(), libtpu }
    }
}

/// The TPU chips that the kernel shows.
#[derive(Default)]
pub(crate) struct Chips {
    generation: Option<&'static Generation>,
    /// The PCI addresses without the function, because a chip of several devices has a function for
    /// each.
    addresses: BTreeSet<String>,
}

impl Chips {
    /// The chips of the machine whose `sys` is in this folder.
    pub(crate) fn find(root: &Path) -> Chips {
        let folder = root.join("sys/bus/pci/devices");
        let mut chips = Chips::default();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let read = |name: &str| {
                fs::read_to_string(entry.path().join(name)).unwrap_or_default().trim().to_owned()
            };
            if read("vendor") != GOOGLE {
                continue;
            }
            let generation = Generation::of_pci_numbers(&read("device"), &read("subsystem_device"));
            let Some(generation) = generation else { continue };
            let address = entry.file_name().to_string_lossy().into_owned();
            let chip = address.rsplit_once('.').map_or(address.as_str(), |(chip, _)| chip);
            chips.addresses.insert(chip.to_owned());
            chips.generation = Some(generation);
        }
        chips
    }

    pub(crate) fn generation(&self) -> Option<&'static Generation> {
        self.generation
    }

    pub(crate) fn number(&self) -> usize {
        self.addresses.len()
    }
}

/// The package of a libtpu and its version. pip puts `libtpu-0.0.51.dist-info` next to the
/// package's folder, and a package that Fulmen fetched is in a folder named `libtpu-0.0.51`.
pub(crate) fn package(libtpu: &Path) -> Option<(String, String)> {
    let folder = libtpu.parent()?;
    let split = |name: &str| {
        let (name, version) = name.rsplit_once('-')?;
        name.starts_with("libtpu").then(|| (name.replace('_', "-"), version.to_owned()))
    };
    let siblings = fs::read_dir(folder.parent()?).into_iter().flatten().flatten();
    let pip_package = |name: String| split(name.strip_suffix(".dist-info")?);
    let mut packages =
        siblings.filter_map(|entry| pip_package(entry.file_name().into_string().ok()?));
    packages.next().or_else(|| split(folder.file_name()?.to_str()?))
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{}, {kind}", quantity(self.chips, "TPU chip"))?,
            None => f.write_str("kind not reported: the kernel shows no known TPU chip")?,
        }
        match &self.libtpu {
            Some(Libtpu { version: Some(version), is_used: true, .. }) => {
                write!(f, "; libtpu {version}")
            }
            Some(Libtpu { version: Some(version), .. }) => {
                write!(f, "; libtpu {version} is installed, and no visible process uses it")
            }
            Some(Libtpu { path, version: None, .. }) => {
                write!(f, "; libtpu's version not reported: {} has no package", path.display())
            }
            None => f.write_str("; libtpu not found"),
        }
    }
}
