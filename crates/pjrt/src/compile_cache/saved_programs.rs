//! [`SavedPrograms`]: compiled programs in one file, for another process that has the right
//! devices.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;

use super::ProgramKey;
use super::entry::Header;
use super::key;
use crate::client::Client;
use crate::compile_cache::MAX_PROGRAM_BYTES;
use crate::error::{self, Result};
use crate::executable::Executable;
use crate::hash;
use crate::loaded_executable::LoadedExecutable;

/// Changes with the file format.
const MAGIC: &[u8; 8] = b"FULMENS1";
const DIGEST: usize = 32;

/// Compiled programs in one file. They can be compiled without the devices, and are loaded on a
/// machine that has them.
///
/// ```
/// # use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
/// use std::time::Duration;
/// use fulmen_pjrt::CompileOptions;
/// use fulmen_pjrt::compile_cache::{ProgramKey, SavedPrograms};
///
/// # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("same.fulmen");
/// let program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }";
/// let options = CompileOptions::new();
/// let key = ProgramKey::new(&client.topology()?, "same", program, &options, [])?;
/// let mut saved = SavedPrograms::default();
/// saved.add(&key, &*client.compile(program, &options)?, Duration::from_millis(20))?;
/// saved.write(&path)?;
/// let read = SavedPrograms::read(&path, &client)?;
/// assert_eq!(read.load(&client, &key)?.unwrap().signature().to_string(), "(f32[4]) -> (f32[4])");
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
///
/// The file contains machine code: load only files from people that you trust.
#[derive(Clone, Debug, Default)]
pub struct SavedPrograms {
    path: PathBuf,
    digest: String,
    programs: Programs,
}

#[derive(Clone, PartialEq, Message)]
struct Programs {
    #[prost(message, repeated, tag = "1")]
    all: Vec<Program>,
}

#[derive(Clone, PartialEq, Message)]
struct Program {
    #[prost(message, required, tag = "1")]
    header: Header,
    #[prost(bytes = "vec", required, tag = "2")]
    executable: Vec<u8>,
}

impl SavedPrograms {
    /// Adds a program that took this long to compile.
    ///
    /// # Errors
    /// The plugin cannot serialize programs ([unsupported](crate::Error::is_unsupported)).
    pub fn add(
        &mut self,
        key: &ProgramKey,
        program: &Executable,
        compile_time: Duration,
    ) -> Result<()> {
        let program =
            Program { header: Header::new(key, compile_time), executable: program.serialize()? };
        self.programs.all.push(program);
        Ok(())
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to; the disk is full.
    pub fn write(&self, path: &Path) -> Result<()> {
        let body = self.programs.encode_to_vec();
        let bytes = [&MAGIC[..], &hash::of_bytes(&body), &body].concat();
        fulmen_durable::write(path, Some(bytes.len() as u64), |file| file.write_all(&bytes))
            .map_err(|error| error::io(format!("cannot write {}", path.display()), error))
    }

    /// Reads the programs of a file for a client.
    ///
    /// # Errors
    /// The file cannot be read. It is damaged or is not a file of programs, or its programs are for
    /// other devices, another plugin or another CPU than the client's
    /// ([corrupt](crate::Error::is_corrupt)).
    pub fn read(path: &Path, client: &Client) -> Result<SavedPrograms> {
        let bytes = fulmen_durable::read_regular(path, MAX_PROGRAM_BYTES)
            .map_err(|error| error::io(format!("cannot read {}", path.display()), error))?;
        let refuse = |why: String| Err(error::corrupt(format!("{}: {why}", path.display())));
        let split = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(DIGEST));
        let Some((digest, body)) = split else {
            return refuse(
                "not a file of compiled programs, or it is cut off; save the programs again"
                    .to_owned(),
            );
        };
        if hash::of_bytes(body) != digest {
            return refuse(
                "the file is damaged: its checksum does not match; copy it again or save the programs again".to_owned(),
            );
        }
        let Ok(programs) = Programs::decode(body) else {
            return refuse(
                "a different version of Fulmen wrote it; save the programs again".to_owned(),
            );
        };
        let machine = key::of_machine(&client.topology()?)?;
        let differ = programs
            .all
            .iter()
            .map(|program| key::differences(&machine, &key::part(&program.header.facts, true)));
        if let Some(lines) = differ.into_iter().find(|lines| !lines.is_empty()) {
            return refuse(format!(
                "its programs were compiled for another machine: {}; save them again for this one",
                key::shorten(lines).join("; ")
            ));
        }
        Ok(Self { path: path.to_owned(), digest: hash::hex(digest), programs })
    }

    /// The file that the programs were read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A SHA-256 over the programs that were read, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Loads the program with this key, ready to run; `None` if there is none.
    ///
    /// # Errors
    /// The plugin does not load it.
    pub fn load(&self, client: &Client, key: &ProgramKey) -> Result<Option<LoadedExecutable>> {
        self.load_with(key, |executable| client.load(executable))
    }

    /// Like [`SavedPrograms::load`], but `load` gets the saved executable, as
    /// [`Executable::serialize`] returned it.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn load_with<T>(
        &self,
        key: &ProgramKey,
        load: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let program = self.programs.all.iter().find(|program| program.header.key == key.digest());
        let loaded = program.map(|program| load(&program.executable)).transpose();
        loaded.map_err(|error| error.context(self.path.display()))
    }

    /// The differences from the most similar program with the same name and variant, one per line;
    /// `None` if no program is similar.
    pub fn nearest(&self, key: &ProgramKey) -> Option<Vec<String>> {
        key.nearest(self.programs.all.iter().map(|program| &program.header))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let header = Header { key: "k".into(), program: "step".into(), ..Header::default() };
        let program = Program { header, executable: vec![1, 2, 3] };
        let saved =
            SavedPrograms { programs: Programs { all: vec![program] }, ..SavedPrograms::default() };
        let file = tempfile::NamedTempFile::new().unwrap();
        let plugin =
            crate::Plugin::load(crate::locate::locate(crate::locate::Platform::Cpu, None).unwrap())
                .unwrap();
        let client = plugin.create_client(&[("cpu_device_count", 1.into())]).unwrap();
        saved.write(file.path()).unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(file.path(), bytes).unwrap();
            let error = SavedPrograms::read(file.path(), &client).unwrap_err();
            assert!(error.is_corrupt() && error.to_string().contains("save"), "{error}");
        };
        for i in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[i / 8] ^= 1 << (i % 8);
            refused(&flipped);
        }
        (0..bytes.len()).for_each(|length| refused(&bytes[..length]));
    }
}
