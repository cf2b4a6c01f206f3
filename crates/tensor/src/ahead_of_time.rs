//! Ahead-of-time compilation: compiles for devices that this machine need not have, and saves the
//! programs in a file.

use std::time::{Duration, Instant};

use fulmen_durable::messages::quantity;
use fulmen_pjrt::Topology;
use fulmen_pjrt::compile_cache::SavedPrograms;
use fulmen_pjrt::locate::Platform;

use crate::disk_cache::program_key;
use crate::lower::lower;
use crate::partitioner::compile_error;
use crate::runtime::{check_size, options_for};
use crate::{Error, Function, Mesh, Result};

impl Function {
    /// Compiles the function for all devices of a topology, as
    /// [`Runtime::compile`](crate::Runtime::compile) does on those devices, and adds the program to
    /// `saved`. Write `saved` to a file for
    /// [`Runtime::with_saved_programs`](crate::Runtime::with_saved_programs). Returns the time that
    /// the compiler took.
    ///
    /// ```
    /// use fulmen_pjrt::compile_cache::SavedPrograms;
    /// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?.with_compile_cache(None);
    /// let topology = runtime.client().topology()?; // or `plugin.topology("v5e:2x4")` with libtpu, without a TPU
    /// let square = Function::trace("square", TensorType::new(DType::F32, [4]), |x| &x * &x);
    /// let mut saved = SavedPrograms::default();
    /// square.compile_for(&topology, runtime.mesh(), &mut saved)?;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("square.fulmen");
    /// saved.write(&path)?;
    ///
    /// let runtime = runtime.with_saved_programs(&path)?;
    /// assert!(runtime.compile(&square)?.compile_time().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - The function has a fault.
    /// - The mesh and the topology have different numbers of devices.
    /// - The compiler fails.
    /// - The plugin cannot store programs.
    pub fn compile_for(
        &self,
        topology: &Topology,
        mesh: &Mesh,
        saved: &mut SavedPrograms,
    ) -> Result<Duration> {
        let mut devices: Vec<_> = topology.devices().iter().collect();
        if devices.len() != mesh.num_devices() {
            return Err(Error::usage(format!(
                "the mesh {mesh} has {}, but the topology has {}; use a mesh with as many devices",
                quantity(mesh.num_devices(), "device"),
                devices.len()
            )));
        }
        // A runtime orders its devices in the same way.
        devices.sort_by_key(|device| (device.process_index(), device.id()));
        let platform = topology.platform_name();
        let lowered = lower(self, mesh, Platform::from_name(platform))?;
        check_size(self, &lowered, platform)?;
        let ids = devices.iter().map(|device| device.id()).collect();
        let options = options_for(platform).partitions(devices.len()).device_assignment([ids]);
        let failed = |error| Error::runtime(format!("compiling `{}`", self.name()), error);
        let start = Instant::now();
        let compiled = topology.plugin().compile(topology, &lowered.text, &options);
        let program = compiled.map_err(|error| compile_error(self, mesh, error))?;
        let time = start.elapsed();
        let key = program_key(topology, self, &lowered.key, &options).map_err(failed)?;
        saved.add(&key, &program, time).map_err(failed)?;
        Ok(time)
    }
}
