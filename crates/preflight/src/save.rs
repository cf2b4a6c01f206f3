//! Saves programs compiled for a slice to a file, for a process that starts on that slice.

use std::path::Path;

use fulmen_pjrt::compile_cache::SavedPrograms;
use fulmen_pjrt::{NamedValue, Plugin, Topology};
use fulmen_tensor::{Function, Mesh};

use crate::{Error, Result, Slice};

/// The devices of a slice as libtpu's compiler sees them.
///
/// # Errors
/// libtpu does not know the slice, or gives it another number of devices.
pub fn topology(plugin: &Plugin, slice: &Slice) -> Result<Topology> {
    let topology = plugin
        .topology_with(&slice.single_name(), &topology_options(slice))
        .map_err(|e| Error::runtime(format!("describing {slice}"), e))?;
    let expected = slice.num_devices();
    let actual = topology.devices().len();
    if actual != expected {
        return Err(Error::usage(format!(
            "libtpu says that {slice} has {actual} devices instead of {expected}"
        )));
    }
    Ok(topology)
}

/// The options that give a topology the same devices as real machines.
fn topology_options(slice: &Slice) -> Vec<(&'static str, NamedValue)> {
    let mut options = Vec::new();
    if slice.generation().name == "v4" {
        options.push(("chip_config_name", "megacore".into()));
    }
    if slice.num_slices() > 1 {
        options.push(("num_slices", (slice.num_slices() as i64).into()));
    }
    options
}

/// Compiles functions over a mesh as a process on those devices would, and writes them to a file
/// for [`Runtime::with_saved_programs`](fulmen_tensor::Runtime::with_saved_programs).
///
/// ```
/// use fulmen_preflight::save;
/// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
///
/// let product = Function::trace("product", TensorType::new(DType::F32, [8, 8]), |x| x.matmul(&x));
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("product.fulmen");
/// // For a slice that is not present: `topology(&libtpu, &"v5e:2x4".parse()?)?`
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
/// save(&runtime.client().topology()?, runtime.mesh(), [&product], &file)?;
/// runtime.with_saved_programs(&file)?.compile(&product)?; // loads it
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A function has a mistake; the mesh has a different number of devices; the compiler fails; the
/// file cannot be written.
pub fn save<'a>(
    topology: &Topology,
    mesh: &Mesh,
    functions: impl IntoIterator<Item = &'a Function>,
    file: &Path,
) -> Result<()> {
    let mut saved = SavedPrograms::default();
    for function in functions {
        function.compile_for(topology, mesh, &mut saved)?;
    }
    saved.write(file).map_err(|e| Error::runtime("saving compiled programs", e))
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{Accelerator, DType, Devices, Runtime, TensorType};

    use super::*;

    #[test]
    fn programs_of_a_tpu_are_saved_and_rejected_on_a_cpu() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step.fulmen");
        let ty = TensorType::new(DType::F32, [256, 256]);
        let function = Function::trace("step", ty, |x| x.matmul(&x));
        let topology = topology(&plugin, &"v5e:2x4".parse().unwrap()).unwrap();
        let mesh = Mesh::new([("data", 8)]).unwrap();
        save(&topology, &mesh, [&function], &file).unwrap();
        assert!(file.metadata().unwrap().len() > 1000);
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(8)).unwrap();
        let error = runtime.with_saved_programs(&file).err().unwrap().to_string();
        let expected = "step.fulmen: its programs were compiled for another machine: the platform: tpu then, cpu now; the \
                        devices: TPU v5 lite 0";
        assert!(
            error.contains(expected) && error.ends_with("save them again for this one"),
            "{error}"
        );
    }
}
