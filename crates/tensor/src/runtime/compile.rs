//! Compiles functions for the devices of a [`Runtime`], and keeps the compiled programs.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fulmen_pjrt::locate::Platform;
use fulmen_pjrt::{CompileOptions, LoadedExecutable, NamedValue};
use tracing::debug_span;

use super::programs::{CompileKey, Programs};
use super::{Peers, Runtime};
use crate::array::DeviceSet;
use crate::disk_cache::Slot;
use crate::emit::{Captured, LargestValue};
use crate::lower::{Lowered, lower};
use crate::partitioner::compile_error;
use crate::{Compiled, DType, Error, Function, Result, TensorType, test_programs};

/// The compiler for CPUs counts a loop's steps with 32 bits. With 2³⁶ or more elements we observed
/// that the process dies from a division by zero.
const TOO_MANY_FOR_THE_CPU: usize = (1 << 35) + 1;

/// A function to compile, with the results of [`Runtime::preload`] if it was called.
pub struct Preloaded<'f> {
    function: &'f Function,
    lowering: Option<PreloadedLowering>,
}

/// A lowered function for these devices, and its program if it was on disk.
struct PreloadedLowering {
    device_set: Arc<DeviceSet>,
    lowered: Lowered,
    executable: Option<LoadedExecutable>,
}

impl<'f> Preloaded<'f> {
    /// The function.
    pub fn function(&self) -> &'f Function {
        self.function
    }
}

impl<'f> From<&'f Function> for Preloaded<'f> {
    fn from(function: &'f Function) -> Preloaded<'f> {
        Preloaded { function, lowering: None }
    }
}

impl Runtime {
    /// Compiles a function for the mesh. Reuses a program that this process compiled before, or one
    /// on disk. If the devices belong to several processes, all of them call this for the same
    /// function, and get the code of process 0.
    ///
    /// # Errors
    /// The function has a fault, a sharding does not fit the mesh, or the compiler fails.
    pub fn compile(&self, function: &Function) -> Result<Compiled> {
        self.compile_with(function.into(), self.peers(), None::<fn(Option<String>)>)
    }

    /// Like [`Runtime::compile`], but never waits for other processes, which may not get to the same
    /// point: for the clean-up after a failure. The function must not need collectives, because
    /// each process decides on its own whether to load the program or to compile it.
    ///
    /// # Errors
    /// As for [`Runtime::compile`].
    pub fn compile_alone(&self, function: &Function) -> Result<Compiled> {
        self.compile_with(function.into(), None, None::<fn(Option<String>)>)
    }

    /// Like [`Runtime::compile`], and calls `announce` before the compiler runs, which may take
    /// minutes. `announce` is not called for a program that was compiled before. Its argument says
    /// how the program differs from the most similar program on disk with the same name, if there
    /// is one. [`Compiled::compile_time`] is the compiler's time. `function` may be the result of
    /// [`Runtime::preload`].
    ///
    /// # Errors
    /// As for [`Runtime::compile`].
    pub fn compile_announced<'f>(
        &self,
        function: impl Into<Preloaded<'f>>,
        announce: impl FnOnce(Option<String>),
    ) -> Result<Compiled> {
        self.compile_with(function.into(), self.peers(), Some(announce))
    }

    /// Lowers a function for [`Runtime::compile_announced`], and loads its program if it is on
    /// disk. Call this on another thread to do other work in the meantime.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let square = Function::trace("square", TensorType::new(DType::F32, [2]), |x| &x * &x);
    /// let preloaded = runtime.preload(&square)?;
    /// let compiled = runtime.compile_announced(preloaded, |_| println!("compiling"))?;
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The function has a fault, or a sharding does not fit the mesh.
    pub fn preload<'f>(&self, function: &'f Function) -> Result<Preloaded<'f>> {
        let _load = debug_span!("load", program = function.name()).entered();
        let lowered = lower(function, self.mesh(), self.platform())?;
        let key = self.compile_key(&lowered);
        // Processes agree on a program first.
        let on_disk = self.peers().is_none()
            && !self.compiled().contains(&key)
            && self.disk_cache.may_have(function);
        let options = self.compile_options(&key);
        let slot = on_disk
            .then(|| self.disk_cache.slot(self.client(), function, &key.text, &options))
            .flatten();
        let executable = slot.as_ref().and_then(Slot::load);
        let lowering =
            PreloadedLowering { device_set: self.device_set.clone(), lowered, executable };
        Ok(Preloaded { function, lowering: Some(lowering) })
    }

    /// The program as [`Runtime::compile`] passes it to the compiler, as StableHLO text. A few
    /// operations are written in a form that is faster on this platform;
    /// [`Function::stablehlo_for`] keeps them.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, DType, Devices, Function, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let square = Function::trace("square", TensorType::new(DType::F32, [2]), |x| &x * &x);
    /// assert!(runtime.stablehlo(&square)?.contains("stablehlo.multiply"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The function has a fault, or a sharding does not fit the mesh.
    pub fn stablehlo(&self, function: &Function) -> Result<String> {
        Ok(lower(function, self.mesh(), self.platform())?.text)
    }

    /// Compiles StableHLO text, such as a program of another library, for the one device of this
    /// runtime. `parameters` and `results` are the types that the text is expected to have.
    ///
    /// ```
    /// use fulmen_tensor::{Accelerator, Argument, DType, Devices, Literal, Runtime, TensorType};
    ///
    /// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
    /// let text = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    ///     %y = stablehlo.add %x, %x : tensor<2xf32>
    ///     return %y : tensor<2xf32>
    /// }";
    /// let ty = [TensorType::new(DType::F32, [2])];
    /// let double = runtime.compile_stablehlo("double", text, &ty, &ty)?;
    /// let x = runtime.to_device(&Literal::from_slice(&[1.0f32, 2.0], [2])?)?;
    /// let outputs = double.call(vec![Argument::Borrow(&x)])?;
    /// let y = runtime.read(&[&outputs.arrays[0]])?.wait()?;
    /// assert_eq!(y[0].to_vec::<f32>()?, [2.0, 4.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// - The runtime has several devices.
    /// - The text has a `stablehlo.custom_call`. What it calls depends on the platform and the
    ///   version of the plugin, and nothing checks its arguments.
    /// - The compiler rejects the text.
    /// - The program has other parameters or results.
    pub fn compile_stablehlo(
        &self,
        name: &str,
        text: &str,
        parameters: &[TensorType],
        results: &[TensorType],
    ) -> Result<Compiled> {
        let wrong = |message: String| Err(Error::usage(format!("`{name}`: {message}")));
        if self.devices().len() > 1 {
            return wrong(format!(
                "StableHLO text is compiled for one device, but the runtime has {}",
                self.devices().len()
            ));
        }
        if let Some((line, target)) = custom_call(text) {
            return wrong(format!(
                "line {line}: a custom call of {target}, which is not portable; write the program without it"
            ));
        }
        let device_ids: Vec<i32> = self.devices().iter().map(|device| device.id()).collect();
        let options = self.shared.options.clone().partitions(1).device_assignment([device_ids]);
        let start = Instant::now();
        let executable = self
            .shared
            .client
            .compile(text, &options)
            .map_err(|e| Error::runtime(format!("compiling `{name}`"), e))?;
        let time = start.elapsed();
        self.count_compilation(time);
        let signature = executable.signature();
        for (what, actual, expected) in [
            ("parameters", &signature.parameters, parameters),
            ("results", &signature.outputs, results),
        ] {
            let is_expected = actual.len() == expected.len()
                && actual.iter().zip(expected).all(|(actual, ty)| {
                    actual.element_type == ty.dtype.element_type() && actual.dims == ty.shape.dims()
                });
            if !is_expected {
                let list = |types: Vec<String>| format!("[{}]", types.join("; "));
                let actual = actual.iter().map(|ty| {
                    DType::from_element_type(ty.element_type).map_or_else(
                        || ty.to_string(),
                        |dtype| TensorType::new(dtype, &ty.dims[..]).to_string(),
                    )
                });
                let expected = list(expected.iter().map(ToString::to_string).collect());
                let actual = list(actual.collect());
                return wrong(format!("its {what} are {actual}, expected {expected}"));
            }
        }
        Compiled::from_text(name, self, executable, parameters, results, time)
    }

    /// The platform of the devices, for the lowering.
    fn platform(&self) -> Option<Platform> {
        Platform::from_name(self.client().platform_name())
    }

    /// The compiled programs of this client. Don't hold the lock while compiling, which may take
    /// minutes.
    pub(super) fn compiled(&self) -> MutexGuard<'_, Programs> {
        self.shared.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that run the programs of this runtime together, if there are several.
    fn peers(&self) -> Option<&Peers> {
        let spans = || self.devices().iter().any(|device| !device.is_addressable());
        self.shared.peers.get().filter(|_| spans())
    }

    /// Keeps a compiled program. If another thread was first, returns its program.
    fn keep(&self, key: CompileKey, executable: Arc<LoadedExecutable>) -> Arc<LoadedExecutable> {
        let mut compiled = self.compiled();
        if let Some(first) = compiled.get(&key) {
            return first;
        }
        let dropped = compiled.insert(key, executable.clone());
        drop(compiled);
        drop(dropped);
        executable
    }

    /// The key of a lowered function's program.
    pub(super) fn compile_key(&self, lowered: &Lowered) -> CompileKey {
        let device_ids = self.devices().iter().map(|device| device.id()).collect();
        CompileKey { text: lowered.key.clone(), device_ids }
    }

    /// The options that compile a program for its devices.
    pub(super) fn compile_options(&self, key: &CompileKey) -> CompileOptions {
        let device_ids = key.device_ids.clone();
        self.shared.options.clone().partitions(device_ids.len()).device_assignment([device_ids])
    }

    fn compile_with(
        &self,
        Preloaded { function, lowering }: Preloaded<'_>,
        peers: Option<&Peers>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<Compiled> {
        let (lowered, preloaded) =
            match lowering.filter(|lowering| lowering.device_set == self.device_set) {
                Some(lowering) => (lowering.lowered, lowering.executable),
                None => (lower(function, self.mesh(), self.platform())?, None),
            };
        check_size(function, &lowered, self.shared.client.platform_name())?;
        let key = self.compile_key(&lowered);
        let compiled_before = self.compiled().get(&key);
        let (executable, time) = match (peers, compiled_before) {
            (Some(peers), before) => {
                self.agree_on_program(peers, function, &lowered, key, before, announce)?
            }
            (None, Some(executable)) => {
                self.metrics.count("CachedCompile", 1);
                (executable, None)
            }
            (None, None) => {
                let options = self.compile_options(&key);
                let (executable, time) =
                    self.load_or_compile(function, &lowered, &options, preloaded, announce)?;
                self.metrics.count("CreateCompileHandles", 1);
                (self.keep(key, Arc::new(executable)), time)
            }
        };
        let captured = lowered
            .captured
            .into_iter()
            .map(|(captured, sharding)| match captured {
                Captured::Device(array) => self.array_here(&array, &sharding),
                Captured::Host(ty, elements) => {
                    self.host_to_devices(&ty, &elements, &sharding).map(Arc::new)
                }
            })
            .collect::<Result<_>>()?;
        Compiled::new(function, self, executable, captured, time)
    }

    /// Loads a program from disk, or compiles and stores it. Returns the compiler's time if it ran.
    fn load_or_compile(
        &self,
        function: &Function,
        lowered: &Lowered,
        options: &CompileOptions,
        preloaded: Option<LoadedExecutable>,
        announce: Option<impl FnOnce(Option<String>)>,
    ) -> Result<(LoadedExecutable, Option<Duration>)> {
        let _compile = debug_span!("compile", program = function.name()).entered();
        let client = &self.shared.client;
        let slot = self.disk_cache.slot(client, function, &lowered.key, options);
        if let Some(stored) = preloaded.or_else(|| slot.as_ref()?.load()) {
            self.metrics.count("PersistentCacheHit", 1);
            return Ok((stored, None));
        }
        if let Some(announce) = announce {
            announce(slot.as_ref().and_then(Slot::nearest));
        }
        let (executable, _, time) = self.compile_now(function, lowered, options, slot.is_some())?;
        if let Some(slot) = slot {
            slot.store(&executable, time);
        }
        Ok((executable, Some(time)))
    }

    /// Compiles a program. Returns also its code, if it has that already, and the compiler's time.
    pub(super) fn compile_now(
        &self,
        function: &Function,
        lowered: &Lowered,
        options: &CompileOptions,
        is_stored: bool,
    ) -> Result<(LoadedExecutable, Option<Vec<u8>>, Duration)> {
        let client = &self.shared.client;
        let start = Instant::now();
        let compiled = if is_stored {
            // A program that was loaded cannot be stored: the plugin does not keep its code.
            client.compile(&lowered.text, options).map(|executable| (executable, None))
        } else {
            test_programs::compile(client, function.name(), &lowered.text, options)
        };
        let (executable, code) = compiled.map_err(|e| compile_error(function, self.mesh(), e))?;
        let time = start.elapsed();
        self.count_compilation(time);
        Ok((executable, code, time))
    }

    pub(super) fn count_compilation(&self, time: Duration) {
        self.metrics.count("UncachedCompile", 1);
        self.metrics.record_time("CompileTime", time);
    }
}

/// The line and the target of the first custom call in StableHLO text.
fn custom_call(text: &str) -> Option<(usize, String)> {
    const OPERATION: &str = "stablehlo.custom_call";
    let position = text.find(OPERATION)?;
    let line = text[..position].matches('\n').count() + 1;
    let rest = &text[position + OPERATION.len()..];
    // `stablehlo.custom_call @target(…)`, or `"stablehlo.custom_call"(…) {call_target_name = "target"}`.
    let name = rest.split_once('@').or_else(|| rest.split_once("call_target_name = \""));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_.$-".contains(c);
    let target = name.map(|(_, name)| name.split(|c| !is_part(c)).next().unwrap_or_default());
    Some((line, target.unwrap_or("an unknown function").to_owned()))
}

/// Refuses programs that would crash the CPU plugin, and the process with it.
pub(crate) fn check_size(function: &Function, lowered: &Lowered, platform: &str) -> Result<()> {
    match &lowered.largest {
        Some(LargestValue { ty, location })
            if platform == "cpu" && ty.shape.num_elements() >= TOO_MANY_FOR_THE_CPU =>
        {
            Err(Error::usage(format!(
                "compiling `{}`: {ty} has more elements than the CPU's compiler supports, 2^35\n  recorded at {location}",
                function.name()
            )))
        }
        _ => Ok(()),
    }
}

/// The compiler flags of a platform.
pub(crate) fn options_for(platform: &str) -> CompileOptions {
    let mut options = CompileOptions::new();
    if platform == "cpu" {
        // XLA's fast minimum and maximum drop NaNs, so a relu or a max would hide a NaN in the
        // loss.
        options = options.override_flag("xla_cpu_enable_fast_min_max", NamedValue::Bool(false));
        // XLA's default computes each value as soon as its operands are known, so that independent
        // operations can run at the same time. Values for the backward pass then wait in memory
        // during the forward pass: 272 MB of temporaries for ResNet-18 at 32 × 32, instead of 195.
        options =
            options.override_flag("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED");
        // Measured on CPUs with AVX-512: elementwise code is up to 1.8 × faster at full width.
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            options = options.override_flag("xla_cpu_prefer_vector_width", NamedValue::Int(512));
        }
        options = test_programs::with_flags(options);
    }
    options
}
