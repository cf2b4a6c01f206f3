//! Starts members of a pod: this test program, as several processes, with a folder as their
//! key-value store.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use fulmen_pjrt::{KeyValueError, KeyValueStore};

/// The variable that names the task of a member.
pub(crate) const TASK: &str = "VIRTUAL_POD_TASK";
pub(crate) const FOLDER: &str = "VIRTUAL_POD_FOLDER";
pub(crate) const INDEX: &str = "VIRTUAL_POD_INDEX";

/// A store whose keys are files.
pub(crate) struct FolderStore(pub(crate) PathBuf);

impl FolderStore {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "-"))
    }
}

impl KeyValueStore for FolderStore {
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, KeyValueError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Ok(value) = fs::read(self.path(key)) {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                return Err(KeyValueError::timed_out(format!("the key {key} is not set")));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>, KeyValueError> {
        Ok(fs::read(self.path(key)).ok())
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<(), KeyValueError> {
        let new = self.path(&format!("{key}.new"));
        fs::write(&new, value).map_err(|e| e.to_string())?;
        fs::rename(&new, self.path(key)).map_err(|e| e.to_string())?;
        Ok(())
    }
}

/// A pod of processes that all run one task.
pub(crate) struct Members {
    folder: tempfile::TempDir,
    children: Vec<Child>,
}

impl Members {
    /// Starts the processes of a pod with this shape, such as `4x2`.
    pub(crate) fn start(shape: &str, task: &str, variables: &[(&str, &str)]) -> Members {
        let folder = tempfile::tempdir().unwrap();
        let count: usize = shape.split_once('x').unwrap().0.parse().unwrap();
        let children = (0..count).map(|index| {
            Command::new(env::current_exe().unwrap())
                .args(["--exact", "member::member", "--ignored", "--nocapture"])
                .env(TASK, task)
                .env(FOLDER, folder.path())
                .env(INDEX, index.to_string())
                .env("FULMEN_VIRTUAL_POD", shape)
                .env_remove("FULMEN_COORDINATOR")
                .envs(variables.iter().copied())
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        });
        let children = children.collect();
        Members { folder, children }
    }

    /// Waits until a member has said something.
    pub(crate) fn wait_for(&self, key: &str) {
        FolderStore(self.folder.path().to_owned()).get(key, Duration::from_secs(120)).unwrap();
    }

    pub(crate) fn kill(&mut self, index: usize) {
        self.children[index].kill().unwrap();
        self.children[index].wait().unwrap();
    }

    /// What each of the members says at its end. They must end well.
    pub(crate) fn outputs(mut self, indices: impl IntoIterator<Item = usize>) -> Vec<String> {
        let mut outputs = Vec::new();
        for index in indices {
            let status = self.children[index].wait().unwrap();
            assert!(status.success(), "process {index} ended with {status}");
            outputs.push(fs::read_to_string(output(self.folder.path(), index)).unwrap());
        }
        outputs
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The file with what a member says.
pub(crate) fn output(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("output-{index}"))
}
