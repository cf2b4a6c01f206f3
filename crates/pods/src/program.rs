//! The program that is copied: its hash, and what it needs of a host.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::read::ReadCache;
use object::read::elf::FileHeader;
use object::{Endianness, elf};
use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A file that hosts are to run.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// SHA-256 in hexadecimal.
    pub(crate) hash: String,
    needs: Needs,
}

/// What an ELF file needs; a script needs nothing that is known here.
#[derive(Clone, Debug, Default)]
struct Needs {
    /// As `uname -m` says it.
    machine: Option<&'static str>,
    glibc: Option<Version>,
}

/// A version of glibc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl Version {
    /// Reads `2.31` or `2.2.5`.
    pub(crate) fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim().split('.').map(|number| number.parse().ok());
        Some(Version(numbers.next()??, numbers.next()??, numbers.next().unwrap_or(Some(0))?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Program {
    pub(crate) fn open(path: &Path) -> Result<Program> {
        let unreadable = |e| Error::usage(format!("{}: {e}; give a program of this machine after --", path.display()));
        let mut file = File::open(path).map_err(unreadable)?;
        let (mut hash, mut block) = (Sha256::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut block).map_err(unreadable)? {
                0 => break,
                count => hash.update(&block[..count]),
            }
        }
        let hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Program { path: path.to_owned(), hash, needs: Needs::of(&file).unwrap_or_default() })
    }

    /// Why a host cannot run it.
    pub(crate) fn refused_by(&self, machine: &str, glibc: Option<Version>) -> Option<String> {
        let (path, needs) = (self.path.display(), &self.needs);
        if let Some(needed) = needs.machine.filter(|needed| *needed != machine) {
            return Some(format!("its processor is {machine}, but {path} is built for {needed}"));
        }
        let needed = needs.glibc?;
        let advice =
            "build the program on the oldest host, or with `cargo zigbuild --target x86_64-unknown-linux-gnu.2.31`";
        match glibc {
            Some(version) if version >= needed => None,
            Some(version) => Some(format!("it has glibc {version}, but {path} needs {needed}; {advice}")),
            None => Some(format!("it has no glibc, but {path} needs {needed}; link the program statically")),
        }
    }
}

impl Needs {
    /// `None` if the file is not a 64-bit ELF file.
    fn of(file: &File) -> Option<Needs> {
        let data = ReadCache::new(file);
        let header = elf::FileHeader64::<Endianness>::parse(&data).ok()?;
        let endian = header.endian().ok()?;
        let machine = match header.e_machine(endian) {
            elf::EM_X86_64 => Some("x86_64"),
            elf::EM_AARCH64 => Some("aarch64"),
            _ => None,
        };
        let mut needs = Needs { machine, glibc: None };
        let sections = header.sections(endian, &data).ok()?;
        let Ok(Some((mut files, link))) = sections.gnu_verneed(endian, &data) else { return Some(needs) };
        let names = sections.strings(endian, &data, link).ok()?;
        while let Ok(Some((_, mut versions))) = files.next() {
            while let Ok(Some(version)) = versions.next() {
                let name = version.name(endian, names).ok().and_then(|name| std::str::from_utf8(name).ok());
                let glibc = name.and_then(|name| name.strip_prefix("GLIBC_")).and_then(Version::parse);
                needs.glibc = needs.glibc.max(glibc);
            }
        }
        Some(needs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_an_older_glibc_or_another_processor_is_refused() {
        let program = Program::open(&std::env::current_exe().unwrap()).unwrap();
        let needed = program.needs.glibc.unwrap();
        // `OpenOptions::custom_flags`, threads and the like need more than the first 64-bit glibc, and the tests' own
        // machine has enough.
        assert!(needed > Version(2, 2, 5) && needed < Version(3, 0, 0), "{needed}");
        let machine = program.needs.machine.unwrap();
        assert_eq!(program.refused_by(machine, Some(needed)), None);
        let older = program.refused_by(machine, Version::parse("2.3")).unwrap();
        assert!(older.contains("glibc 2.3, but") && older.contains(&format!("needs {needed}")), "{older}");
        assert!(program.refused_by(machine, None).unwrap().contains("statically"));
        assert!(program.refused_by("riscv64", Some(needed)).unwrap().contains("its processor is riscv64"));
    }

    #[test]
    fn versions_are_compared_as_numbers_and_a_script_needs_none() {
        assert!(Version::parse("2.31") > Version::parse("2.4") && Version::parse("2.2.5") > Version::parse("2.2"));
        assert_eq!([Version::parse("PRIVATE"), Version::parse("")], [None, None]);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.sh");
        std::fs::write(&path, "abc").unwrap();
        let program = Program::open(&path).unwrap();
        assert_eq!(program.hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(program.refused_by("x86_64", None), None);
        let error = Program::open(&folder.path().join("absent")).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("absent"), "{error}");
    }
}
