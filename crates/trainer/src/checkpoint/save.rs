//! [`SaveJob`]: writes a training state from the devices to its stores while training continues.
//!
//! `fit/checkpoints.rs` starts the jobs; `fulmen-checkpoint` has the format of checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fulmen_checkpoint::{CheckpointWriter, Part, Rectangle, Run, WrittenShard, remove};
use fulmen_nn::safetensors::to_format;
use fulmen_pjrt::HostBuffer;
use fulmen_tensor::{
    Argument, Block, Compiled, DeviceArray, DevicePart, Literal, Runtime, TensorType,
};
use tracing::debug_span;

use super::agreement::not_shared;
use super::{OpenStore, store_and_name};
use crate::console::warning;
use crate::hooks::actions::{CheckpointRole, Save};
use crate::process_group::ProcessGroup;
use crate::state::names::is_training_state;
use crate::state::{EntryId, State};
use crate::{Error, Result, error};

/// The niceness of the thread that writes. When it competes with a thread of normal niceness, it
/// gets about a seventieth of a core.
const NICENESS: i32 = 19;

/// The parts of a state tensor that this process saves.
pub(crate) struct StateTensor {
    name: String,
    ty: TensorType,
    values: Values,
}

enum Values {
    Host(Vec<(Block, Bytes)>),
    /// A copy on the devices, which only this save uses. It is read from the device when it is
    /// written.
    Device(DeviceArray),
}

/// Bytes on the host: a buffer, and where they begin in it.
struct Bytes {
    buffer: Arc<HostBuffer>,
    start: usize,
}

impl Bytes {
    fn new(buffer: HostBuffer) -> Bytes {
        Bytes { buffer: Arc::new(buffer), start: 0 }
    }
}

impl StateTensor {
    /// Makes the tensor of a value that all processes have.
    pub(crate) fn replicated(
        name: &str,
        literal: &Literal,
        process_group: Option<&Arc<ProcessGroup>>,
    ) -> Result<StateTensor> {
        let ty = literal.ty().clone();
        let block = Block { start: vec![0; ty.shape.rank()], size: ty.shape.dims().to_vec() };
        let bytes = HostBuffer::copy_of(literal.bytes())
            .map_err(|e| Error::usage(format!("not enough memory for a checkpoint: {e}")))?;
        let is_own =
            process_group.is_none_or(|process_group| process_group.process().is_coordinator());
        let values =
            Values::Host(if is_own { vec![(block, Bytes::new(bytes))] } else { Vec::new() });
        Ok(StateTensor { name: name.to_owned(), ty, values })
    }

    fn copy(&self) -> Option<&DeviceArray> {
        if let Values::Device(array) = &self.values { Some(array) } else { None }
    }
}

/// The program that copies values of the state on the devices.
pub(crate) struct CopyProgram {
    pub(crate) compiled: Compiled,
    /// The entries that it copies, in the order of the state.
    pub(crate) entries: Vec<EntryId>,
}

/// Takes the state as it is now. The values that `copy` copies stay on the devices. Of the others,
/// the parts that this process saves go to the host.
pub(crate) fn take(
    state: &State,
    copy: Option<&CopyProgram>,
    runtime: &Runtime,
    process_group: Option<&Arc<ProcessGroup>>,
) -> Result<Vec<StateTensor>> {
    let layout = state.layout();
    let names = layout.names_in_file();
    // An entry may have several names, each with its own value.
    let saved = |id: EntryId, values: Vec<Values>| {
        let ty = layout[id].row_type();
        let named = names[id.index()].clone().into_iter().zip(values);
        named.map(move |(name, values)| StateTensor { name, ty: ty.clone(), values })
    };
    let mut tensors = Vec::new();
    let mut copied = [].iter().peekable();
    if let Some(CopyProgram { compiled, entries }) = copy {
        let arrays = entries
            .iter()
            .map(|&id| Ok(Argument::Borrow(state.array(id)?)))
            .collect::<Result<_>>()?;
        let mut copies = compiled.call(arrays)?.arrays.into_iter().map(Values::Device);
        tensors.extend(
            entries
                .iter()
                .flat_map(|&id| saved(id, copies.by_ref().take(names[id.index()].len()).collect())),
        );
        copied = entries.iter().peekable();
    }
    let rest: Vec<EntryId> = layout.ids().filter(|id| copied.next_if_eq(&id).is_none()).collect();
    let arrays = rest.iter().map(|&id| state.array(id)).collect::<Result<Vec<_>>>()?;
    let own = DeviceArray::own_parts(
        &arrays,
        process_group.map(|process_group| process_group.process().index()),
    );
    let device_parts: Vec<_> = own.iter().flatten().collect();
    let mut bytes = runtime.read_parts(&device_parts)?.into_iter().map(Bytes::new);
    for (id, parts) in rest.into_iter().zip(own) {
        let parts: Vec<(Block, Bytes)> =
            parts.into_iter().map(|part| part.block).zip(bytes.by_ref()).collect();
        // A part of a joined value has all rows, one after the other.
        let row = |row: usize| {
            let row_of_part = |(block, bytes): &(Block, Bytes)| {
                let block = layout[id].row_block(block);
                let size =
                    block.size.iter().product::<usize>() * layout[id].ty.dtype.size_in_bytes();
                (block, Bytes { buffer: bytes.buffer.clone(), start: bytes.start + row * size })
            };
            Values::Host(parts.iter().map(row_of_part).collect())
        };
        tensors.extend(saved(id, (0..names[id.index()].len()).map(row).collect()));
    }
    Ok(tensors)
}

/// Writes checkpoints of one state, one after the other.
pub(crate) struct SaveJob {
    pub(crate) tensors: Vec<StateTensor>,
    /// The checkpoints to write, each with the run for its manifest.
    pub(crate) saves: Vec<(Save, Run)>,
    /// The checkpoints to remove after that.
    pub(crate) removals: Vec<PathBuf>,
    pub(crate) open: OpenStore,
    pub(crate) runtime: Runtime,
    pub(crate) process_group: Option<Arc<ProcessGroup>>,
    /// The optimizer step of the state.
    pub(crate) global_step: u64,
    /// The names of the tensors that must be finite.
    pub(crate) finite: BTreeSet<String>,
    /// The checkpoints from before this job.
    pub(crate) outcome: SaveOutcome,
}

/// The result of a job.
#[derive(Debug, Default)]
pub(crate) struct SaveOutcome {
    pub(crate) last: Option<PathBuf>,
    pub(crate) best: Option<PathBuf>,
    pub(crate) failure: Option<Error>,
}

/// A running job.
pub(crate) struct SaveThread(JoinHandle<SaveOutcome>);

impl SaveThread {
    /// Waits until the job ends.
    pub(crate) fn wait(self) -> SaveOutcome {
        let panicked = || {
            Error::usage(
                "the thread that wrote a checkpoint panicked; the checkpoint was not saved",
            )
        };
        self.0
            .join()
            .unwrap_or_else(|_| SaveOutcome { failure: Some(panicked()), ..SaveOutcome::default() })
    }
}

impl SaveJob {
    /// Runs the job on its own thread, which yields to the threads that train.
    pub(crate) fn start(self) -> Result<SaveThread> {
        let run = move || {
            // On Linux this sets the niceness of this thread only. If it fails, the thread competes
            // with training.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            self.run()
        };
        let thread = thread::Builder::new().name("fulmen-checkpoint".into()).spawn(run);
        Ok(SaveThread(thread.map_err(|e| {
            Error::usage(format!("cannot start the thread that writes a checkpoint: {e}"))
        })?))
    }

    /// Runs the job on this thread. An earlier checkpoint of the same name stays until the new one
    /// is complete.
    pub(crate) fn run(mut self) -> SaveOutcome {
        let _write = debug_span!("write checkpoint").entered();
        let mut last_complete = self.outcome.last.clone();
        for (save, run) in std::mem::take(&mut self.saves) {
            if let Err(error) = self.save(&save, run) {
                let is_checkpoint = error.is_checkpoint();
                self.outcome.failure = Some(if is_checkpoint {
                    error::with_last_checkpoint(error, last_complete.as_deref())
                } else {
                    error
                });
                return self.outcome;
            }
            if !save.weights_only {
                last_complete = Some(save.path.clone());
            }
            match save.role {
                CheckpointRole::Last => self.outcome.last = Some(save.path),
                CheckpointRole::Best => self.outcome.best = Some(save.path),
                CheckpointRole::Extra => {}
            }
        }
        // The best and the last one stay, even if a callback wants to remove them.
        let kept = [&self.outcome.last, &self.outcome.best];
        let unused = self
            .removals
            .iter()
            .filter(|path| !kept.iter().any(|kept| kept.as_ref() == Some(*path)));
        for path in unused.filter(|_| {
            self.process_group
                .as_ref()
                .is_none_or(|process_group| process_group.process().is_coordinator())
        }) {
            let removed = store_and_name(&*self.open, path)
                .and_then(|(store, name)| remove(&store, &name).map_err(error::checkpoint_file));
            if let Err(error) = removed {
                warning!("cannot remove a checkpoint: {error}");
            }
        }
        self.outcome
    }

    /// Writes the shard of this process. When all processes have written theirs, process 0 writes
    /// the manifest.
    fn save(&self, save: &Save, run: Run) -> Result<()> {
        let (store, name) = store_and_name(&*self.open, &save.path)?;
        let folder = PathBuf::from(store.describe(&name));
        let writer = CheckpointWriter::new(store, &name).map_err(error::checkpoint_file)?;
        let shard = self.write_shard(&writer, save.weights_only);
        let commit =
            |shards| writer.clone().commit(run, shards).map(drop).map_err(error::checkpoint_file);
        let Some(process_group) = &self.process_group else {
            return commit(shard?.into_iter().collect());
        };
        let message = match &shard {
            Ok(shard) => serde_json::to_string(shard).map_err(|e| e.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let mut committed = Ok(());
        let answer = process_group.gather("checkpoint", message, |shards| {
            let read = |text: &String| {
                serde_json::from_str::<Option<WrittenShard>>(text).map_err(|e| e.to_string())
            };
            let shards: Vec<_> = shards.iter().map(read).collect::<Result<_, _>>()?;
            committed = check_shared(&writer, &shards, process_group, &folder)
                .and_then(|()| commit(shards.into_iter().flatten().collect()));
            committed.as_ref().map(|()| "saved".to_owned()).map_err(Error::to_string)
        })?;
        shard.and(committed)?;
        answer.map(drop).map_err(|e| error::checkpoint_elsewhere(&save.path, &e))
    }

    /// Writes the shard of this process. A process without a part of the state has no shard, unless
    /// it is the only one.
    fn write_shard(
        &self,
        writer: &CheckpointWriter,
        weights_only: bool,
    ) -> Result<Option<WrittenShard>> {
        enum Source<'a> {
            Host(&'a Bytes),
            Device(DevicePart<'a>),
        }
        let process =
            self.process_group.as_ref().map(|process_group| process_group.process().index());
        let mut parts = Vec::new();
        let mut sources = BTreeMap::new();
        let written =
            || self.tensors.iter().filter(|saved| !weights_only || !is_training_state(&saved.name));
        let copies: Vec<&DeviceArray> = written().filter_map(StateTensor::copy).collect();
        let mut own_copies = DeviceArray::own_parts(&copies, process).into_iter();
        for StateTensor { name, ty, values } in written() {
            let Some(dtype) = to_format(ty.dtype) else {
                return Err(Error::usage(format!(
                    "`{name}` is {ty}, but checkpoints don't support this element type"
                )));
            };
            let blocks: Vec<(Block, Source<'_>)> = match values {
                Values::Host(parts) => parts
                    .iter()
                    .map(|(block, bytes)| (block.clone(), Source::Host(bytes)))
                    .collect(),
                Values::Device(_) => {
                    let own = own_copies.next().unwrap_or_default();
                    own.into_iter().map(|part| (part.block.clone(), Source::Device(part))).collect()
                }
            };
            for (Block { start, size }, source) in blocks {
                let rectangle = Rectangle::new(to_u64s(&start), to_u64s(&size));
                sources.insert(
                    (name.as_str(), rectangle.offset.clone()),
                    (source, TensorType::new(ty.dtype, size)),
                );
                parts.push(Part::slice(name, dtype, to_u64s(ty.shape.dims()), rectangle));
            }
        }
        if parts.is_empty() && self.process_group.is_some() {
            return Ok(None);
        }
        let file = format!("shard_{}.safetensors", process.unwrap_or_default());
        let mut shard = writer.shard(&file, parts).map_err(error::checkpoint_file)?;
        while let Some(part) = shard.next_part() {
            let Some((source, ty)) = sources.get(&(part.name(), part.rectangle().offset.clone()))
            else {
                break;
            };
            let device_parts;
            let (bytes, start) = match source {
                Source::Host(bytes) => (&*bytes.buffer, bytes.start),
                Source::Device(part) => {
                    device_parts = self.runtime.read_parts(&[part])?;
                    let [bytes] = &device_parts[..] else { break };
                    (bytes, 0)
                }
            };
            let bytes = &bytes[start..start + ty.size_in_bytes()];
            self.check_finite(part.name(), ty, bytes)?;
            shard.write(bytes).map_err(error::checkpoint_file)?;
        }
        shard.commit().map(Some).map_err(error::checkpoint_file)
    }

    fn check_finite(&self, name: &str, ty: &TensorType, bytes: &[u8]) -> Result<()> {
        if ty.dtype.is_float() && self.finite.contains(name) {
            let literal = Literal::from_bytes(ty.clone(), bytes)?;
            if literal.to_f64().iter().any(|value| !value.is_finite()) {
                return Err(error::not_finite(
                    self.global_step,
                    &format!("`{name}`"),
                    self.outcome.last.as_deref(),
                    None,
                ));
            }
        }
        Ok(())
    }
}

/// Checks that this process sees the shards of all processes. `folder` is where they are.
fn check_shared(
    writer: &CheckpointWriter,
    shards: &[Option<WrittenShard>],
    process_group: &ProcessGroup,
    folder: &Path,
) -> Result<()> {
    let missing = || writer.first_missing(shards).map_err(error::checkpoint_file);
    // Another host's file may appear late.
    process_group.wait_for_file(folder, || missing().is_ok_and(|process| process.is_none()))?;
    match missing()? {
        None => Ok(()),
        Some(process) => {
            let what = "the file that was written by";
            Err(not_shared(process_group, folder, what, 0, process))
        }
    }
}

pub(super) fn to_u64s(sizes: &[usize]) -> Vec<u64> {
    sizes.iter().map(|&size| size as u64).collect()
}
