//! The device files, and the kernel's information about devices. Out of scope: which processes have
//! them open.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{DeviceFile, Roots};
use crate::locate::Platform;

/// Google's PCI vendor number.
const GOOGLE: &str = "0x1ae0";

/// The device files of this kind, ordered by their numbers.
pub(super) fn device_files(platform: Platform, roots: &Roots) -> Vec<PathBuf> {
    match platform {
        Platform::Cpu => Vec::new(),
        Platform::Cuda => numbered(&roots.dev, "nvidia"),
        Platform::Tpu => {
            let mut files = numbered(&roots.dev, "accel");
            let google = google_devices(&roots.sys);
            // A file here is a group of PCI devices of any vendor.
            let groups =
                google.iter().filter_map(|device| device.group.as_deref()).collect::<BTreeSet<_>>();
            files.extend(numbered(&roots.dev.join("vfio"), "").into_iter().filter(|path| {
                let number = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                // If the kernel does not report the groups, a device of Google's is good enough
                // evidence.
                groups.contains(number) || (groups.is_empty() && !google.is_empty())
            }));
            files
        }
    }
}

/// Further remarks: the places without devices, and the kernel's information.
pub(super) fn notes(platform: Platform, roots: &Roots, device_files: &[DeviceFile]) -> Vec<String> {
    let none_like =
        |folder: &Path, name: &str| format!("{}: not found", folder.join(name).display());
    let is_in = |file: &DeviceFile, folder: &Path| file.path.parent() == Some(folder);
    let mut notes = Vec::new();
    match platform {
        Platform::Cpu => {}
        Platform::Cuda => {
            if device_files.is_empty() {
                notes.push(none_like(&roots.dev, "nvidia*"));
            }
            let version = roots.proc.join("driver/nvidia/version");
            notes.push(match fs::read_to_string(&version) {
                Ok(text) => format!(
                    "{}: {}",
                    version.display(),
                    text.lines().next().unwrap_or_default().trim()
                ),
                Err(_) => {
                    format!("{}: not found; the NVIDIA driver is not loaded", version.display())
                }
            });
        }
        Platform::Tpu => {
            let vfio = roots.dev.join("vfio");
            if !device_files.iter().any(|file| is_in(file, &roots.dev)) {
                notes.push(none_like(&roots.dev, "accel*"));
            }
            if !device_files.iter().any(|file| is_in(file, &vfio)) {
                let others = numbered(&vfio, "").len();
                notes.push(match others {
                    0 => none_like(&vfio, "*"),
                    _ => format!(
                        "{}: {others} files, but none for a Google device",
                        vfio.join("*").display()
                    ),
                });
            }
            let folder = roots.sys.join("bus/pci/devices");
            let names = google_devices(&roots.sys)
                .into_iter()
                .map(|device| device.name)
                .collect::<Vec<_>>();
            notes.push(match (fs::read_dir(&folder), &names[..]) {
                (Err(error), _) => format!("{}: cannot be read ({error})", folder.display()),
                (Ok(_), []) => {
                    format!("{}: no Google accelerator (vendor {GOOGLE})", folder.display())
                }
                (Ok(_), names) => {
                    format!("{}: Google accelerators at {}", folder.display(), names.join(", "))
                }
            });
        }
    }
    notes
}

/// Whether this process may read and write the file. The file is not opened, because that could
/// disturb a device.
pub(super) fn is_allowed(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: the path is a C string.
    unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK) == 0 }
}

/// The files in a folder whose names are `prefix` and a number, in numeric order.
fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut files = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix(prefix)?;
            // `parse` would also accept a sign.
            let digits = number.bytes().all(|byte| byte.is_ascii_digit());
            number.parse::<u32>().ok().filter(|_| digits).map(|number| (number, entry.path()))
        })
        .collect::<Vec<_>>();
    files.sort();
    files.into_iter().map(|(_, path)| path).collect()
}

/// The address of a Google accelerator that the kernel found, with or without a driver.
pub(super) fn google_accelerator(sys: &Path) -> Option<String> {
    google_devices(sys).into_iter().next().map(|device| device.name)
}

/// A PCI device.
struct PciDevice {
    /// The address, such as `0000:00:04.0`.
    name: String,
    /// The number of its group, which is the name of its VFIO file.
    group: Option<String>,
}

/// Google's PCI devices, without the network cards and disks of its virtual machines.
fn google_devices(sys: &Path) -> Vec<PciDevice> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let mut devices = fs::read_dir(sys.join("bus/pci/devices"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| read(entry.path().join("vendor")).trim() == GOOGLE)
        .filter(|entry| {
            let class = read(entry.path().join("class"));
            !(class.starts_with("0x01") || class.starts_with("0x02"))
        })
        .map(|entry| PciDevice {
            name: entry.file_name().to_string_lossy().into_owned(),
            group: fs::read_link(entry.path().join("iommu_group"))
                .ok()
                .and_then(|link| Some(link.file_name()?.to_str()?.to_owned())),
        })
        .collect::<Vec<_>>();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    devices
}
