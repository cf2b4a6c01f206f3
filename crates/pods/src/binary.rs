//! The binary to copy: its hash, and its requirements of a host.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use fulmen_durable::open_regular;
use object::read::ReadCache;
use object::read::elf::{FileHeader, Sym as _};
use object::{Endianness, elf};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A file to run on hosts, usually an executable.
#[derive(Clone, Debug)]
pub(crate) struct Binary {
    pub(crate) path: PathBuf,
    /// SHA-256 in hexadecimal.
    pub(crate) hash: String,
    requirements: Requirements,
}

/// The requirements of an ELF file. The requirements of a script are unknown.
#[derive(Clone, Debug, Default)]
struct Requirements {
    /// As `uname -m` prints it.
    machine: Option<&'static str>,
    glibc: Option<Glibc>,
    /// The symbol that needs this version, if a symbol needs it.
    symbol: Option<String>,
}

/// A version of glibc.
///
/// ```
/// use fulmen_pods::Glibc;
///
/// assert!(Glibc::parse("2.31") > Glibc::parse("2.4"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(u32, u32, u32);

impl Glibc {
    /// Reads `2.31` or `2.2.5`.
    pub fn parse(text: &str) -> Option<Glibc> {
        let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
        Some(Glibc(numbers.next()??, numbers.next()??, numbers.next().unwrap_or(Some(0))?))
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Binary {
    pub(crate) fn open(path: &Path) -> Result<Binary> {
        let unreadable = |e| {
            Error::usage(format!(
                "{}: {e}; pass a program of this machine after --",
                path.display()
            ))
        };
        let mut file = open_regular(path).map_err(unreadable)?;
        let mut hash = Sha256::new();
        let mut block = vec![0; 1 << 20];
        loop {
            match file.read(&mut block).map_err(unreadable)? {
                0 => break,
                count => hash.update(&block[..count]),
            }
        }
        let hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Binary {
            path: path.to_owned(),
            hash,
            requirements: Requirements::from_elf(&file).unwrap_or_default(),
        })
    }

    /// Why a host cannot run it.
    pub(crate) fn incompatibility(&self, machine: &str, glibc: Option<Glibc>) -> Option<String> {
        let path = self.path.display();
        let requirements = &self.requirements;
        if let Some(needed) = requirements.machine.filter(|needed| *needed != machine) {
            return Some(format!("its processor is {machine}, but {path} is built for {needed}"));
        }
        let needed = requirements.glibc?;
        let advice = "build the program on the oldest host, or with `fulmen build --for tpu-vm`";
        match glibc {
            Some(version) if version >= needed => None,
            Some(version) => {
                Some(format!("it has glibc {version}, but {path} needs {needed}; {advice}"))
            }
            None => Some(format!(
                "it has no glibc, but {path} needs {needed}; link the program statically"
            )),
        }
    }
}

impl Requirements {
    /// `None` if the file is not a 64-bit ELF file.
    fn from_elf(file: &File) -> Option<Requirements> {
        let data = ReadCache::new(file);
        let header = elf::FileHeader64::<Endianness>::parse(&data).ok()?;
        let endian = header.endian().ok()?;
        let machine = match header.e_machine(endian) {
            elf::EM_X86_64 => Some("x86_64"),
            elf::EM_AARCH64 => Some("aarch64"),
            _ => None,
        };
        let mut requirements = Requirements { machine, ..Requirements::default() };
        let sections = header.sections(endian, &data).ok()?;
        let Ok(Some((mut files, link))) = sections.gnu_verneed(endian, &data) else {
            return Some(requirements);
        };
        let names = sections.strings(endian, &data, link).ok()?;
        while let Ok(Some((_, mut versions))) = files.next() {
            while let Ok(Some(version)) = versions.next() {
                let glibc = version.name(endian, names).ok().and_then(version_of);
                requirements.glibc = requirements.glibc.max(glibc);
            }
        }
        let versions = sections.versions(endian, &data).ok().flatten();
        let symbols = sections.symbols(endian, &data, elf::SHT_DYNSYM).ok();
        requirements.symbol = versions.zip(symbols).and_then(|(versions, symbols)| {
            let newest = symbols.enumerate().find(|(index, symbol)| {
                let version = versions
                    .version(versions.version_index(endian, *index).index())
                    .ok()
                    .flatten()
                    .and_then(|version| version_of(version.name()));
                symbol.is_undefined(endian) && version.is_some() && version == requirements.glibc
            });
            let name = newest?.1.name(endian, symbols.strings()).ok()?;
            Some(String::from_utf8_lossy(name).into_owned())
        });
        Some(requirements)
    }
}

/// The version in a name such as `GLIBC_2.31`.
fn version_of(name: &[u8]) -> Option<Glibc> {
    match std::str::from_utf8(name).ok()?.strip_prefix("GLIBC_")? {
        // Packed relative relocations, which loaders support since this version.
        "ABI_DT_RELR" => Some(Glibc(2, 36, 0)),
        number => Glibc::parse(number),
    }
}

/// Returns the oldest glibc with which a program runs, and a symbol that needs this version. `None`
/// if the program needs no glibc.
///
/// # Errors
/// The file cannot be read.
pub fn required_glibc(path: &Path) -> Result<Option<(Glibc, String)>> {
    let file = open_regular(path).map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    let requirements = Requirements::from_elf(&file).unwrap_or_default();
    Ok(requirements.glibc.map(|version| {
        (version, requirements.symbol.unwrap_or_else(|| "the format of the file".into()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_an_older_glibc_or_another_processor_is_refused() {
        let binary = Binary::open(&std::env::current_exe().unwrap()).unwrap();
        let (needed, symbol) = required_glibc(&binary.path).unwrap().unwrap();
        assert!(!symbol.contains(' ') && binary.requirements.glibc == Some(needed), "{symbol}");
        // Threads and similar features need more than the first 64-bit glibc. The machine that runs
        // the tests has a glibc that is new enough.
        assert!(needed > Glibc(2, 2, 5) && needed < Glibc(3, 0, 0), "{needed}");
        let machine = binary.requirements.machine.unwrap();
        assert_eq!(binary.incompatibility(machine, Some(needed)), None);
        let older = binary.incompatibility(machine, Glibc::parse("2.3")).unwrap();
        assert!(
            older.contains("glibc 2.3, but") && older.contains(&format!("needs {needed}")),
            "{older}"
        );
        assert!(binary.incompatibility(machine, None).unwrap().contains("statically"));
        assert!(
            binary
                .incompatibility("riscv64", Some(needed))
                .unwrap()
                .contains("its processor is riscv64")
        );
    }

    #[test]
    fn versions_are_compared_as_numbers_and_a_script_needs_none() {
        assert!(
            Glibc::parse("2.31") > Glibc::parse("2.4")
                && Glibc::parse("2.2.5") > Glibc::parse("2.2")
        );
        assert_eq!([Glibc::parse("PRIVATE"), Glibc::parse("")], [None, None]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.sh");
        std::fs::write(&path, "abc").unwrap();
        let binary = Binary::open(&path).unwrap();
        assert_eq!(binary.hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(binary.incompatibility("x86_64", None), None);
        let error = Binary::open(&folder.path().join("absent")).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("absent"), "{error}");
    }
}
