//! A compiled program that can be inspected without running it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::analysis::{CostAnalysis, MemoryAnalysis};
use crate::api::{Api, list, text};
use crate::client_inner::ClientInner;
use crate::element_type::{ArrayType, ElementType};
use crate::envelope::Envelope;
use crate::error::{self, Error, Fact, Result};
use crate::hlo;
use crate::hlo::proto::HeaderWithConfig;
use crate::named_value::read_named;
use crate::plugin::Plugin;
use crate::signature::Signature;

/// A compiled program that is not loaded on any device. It can be inspected, or stored and loaded
/// elsewhere.
///
/// A [`LoadedExecutable`](crate::LoadedExecutable) dereferences to one.
pub struct Executable {
    raw: NonNull<PJRT_Executable>,
    plugin: Plugin,
    name: String,
    num_replicas: usize,
    num_partitions: usize,
    header: HeaderWithConfig,
    signature: Signature,
    /// Whether the plugin can serialize it.
    has_code: bool,
    // Dropped after `raw` is destroyed.
    client: Option<Arc<ClientInner>>,
}

/// Where an executable comes from.
pub(crate) enum Origin {
    Compiled,
    /// Stored bytes, with the header of the program if they have one.
    Stored(Option<Box<HeaderWithConfig>>),
}

// SAFETY: executables are thread-safe by the API's contract.
unsafe impl Send for Executable {}
// SAFETY: as above.
unsafe impl Sync for Executable {}

impl Executable {
    /// Takes ownership of an executable from the plugin. Without a header, it requests the whole
    /// program from the plugin, which takes tens of milliseconds.
    pub(crate) fn new(
        plugin: Plugin,
        client: Option<Arc<ClientInner>>,
        raw: NonNull<PJRT_Executable>,
        origin: Origin,
    ) -> Result<Executable> {
        let api = plugin.api();
        let (header, is_stored) = match origin {
            Origin::Compiled => (None, false),
            Origin::Stored(header) => (header.map(|header| *header), true),
        };
        // CPU plugins drop the code of such a program, and then serialize it without code.
        let has_code = !(is_stored && client.as_ref().is_some_and(|client| client.is_cpu()));
        let owned = Owned { api, raw };
        let raw = owned.raw.as_ptr();
        let mut name = PJRT_Executable_Name_Args::new();
        name.executable = raw;
        let mut replicas = PJRT_Executable_NumReplicas_Args::new();
        replicas.executable = raw;
        let mut partitions = PJRT_Executable_NumPartitions_Args::new();
        partitions.executable = raw;
        // SAFETY: the executable is alive; the name lives as long as it does.
        let name = unsafe {
            api.call(&mut name)?;
            api.call(&mut replicas)?;
            api.call(&mut partitions)?;
            text(name.executable_name, name.executable_name_size)
        };
        // SAFETY: the executable is alive.
        let (header, signature) = unsafe {
            let header = match header {
                Some(header) => header,
                None => Signature::header(&optimized_program(api, owned.raw)?)?,
            };
            let signature = Signature::new(&header)?;
            let outputs = output_types(api, owned.raw)?;
            if outputs != signature.outputs {
                let reported =
                    outputs.iter().map(ArrayType::to_string).collect::<Vec<_>>().join(", ");
                return Err(error::broken(format!(
                    "the plugin contradicts itself about the program {name}: its signature is {signature}, but its \
                     outputs are ({reported})"
                )));
            }
            (header, signature)
        };
        Ok(Self {
            raw: owned.release(),
            plugin,
            name,
            num_replicas: replicas.num_replicas,
            num_partitions: partitions.num_partitions,
            header,
            signature,
            has_code,
            client,
        })
    }

    fn api(&self) -> Api {
        self.plugin.api()
    }

    /// The name of the program's module.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of replicas.
    pub fn num_replicas(&self) -> usize {
        self.num_replicas
    }

    /// The number of devices that each replica is split over.
    pub fn num_partitions(&self) -> usize {
        self.num_partitions
    }

    /// The program's arguments and results on each device.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The plugin's fingerprint of this program.
    pub fn fingerprint(&self) -> Result<String> {
        let mut args = PJRT_Executable_Fingerprint_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive, and the answer lives as long as it does. It may be
        // binary.
        unsafe {
            self.api().call(&mut args)?;
            let bytes =
                list(args.executable_fingerprint.cast::<u8>(), args.executable_fingerprint_size);
            Ok(match std::str::from_utf8(bytes) {
                Ok(text) if !text.chars().any(char::is_control) => text.to_owned(),
                _ => crate::hash::hex(bytes),
            })
        }
    }

    /// The compiler's estimate of the cost of one execution. The default CPU plugin does not report
    /// it ([unsupported](Error::is_unsupported)).
    pub fn cost_analysis(&self) -> Result<CostAnalysis> {
        let mut args = PJRT_Executable_GetCostAnalysis_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive, and the answer lives as long as it does.
        let properties = unsafe {
            self.api().call(&mut args)?;
            read_named(args.properties, args.num_properties)?
        };
        Ok(CostAnalysis::new(properties))
    }

    /// The memory that one execution needs on each device.
    pub fn memory_analysis(&self) -> Result<MemoryAnalysis> {
        let mut args = PJRT_Executable_GetCompiledMemoryStats_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive.
        unsafe { self.api().call(&mut args) }?;
        Ok(MemoryAnalysis::from_raw(&args))
    }

    /// The program after the compiler's passes: a binary `HloModuleProtoWithConfig`.
    pub fn optimized_hlo(&self) -> Result<Vec<u8>> {
        // SAFETY: the executable is alive.
        unsafe { optimized_program(self.api(), self.raw) }
    }

    /// The program after the compiler's passes, in readable form.
    pub fn hlo(&self) -> Result<hlo::Module> {
        hlo::Module::decode(
            &self.optimized_hlo()?,
            self.num_replicas.saturating_mul(self.num_partitions),
        )
    }

    /// The machine code with a checksum, for [`Client::load`](crate::Client::load) with the same
    /// plugin file on a CPU with the same features.
    ///
    /// # Errors
    /// The plugin cannot serialize programs, or this is a program for a CPU that was itself loaded
    /// from stored bytes ([unsupported](Error::is_unsupported)).
    pub fn serialize(&self) -> Result<Vec<u8>> {
        if !self.has_code {
            return Err(Error::of(
                Fact::Unsupported,
                format!(
                    "the program {} was loaded from stored bytes, and a CPU plugin does not keep the code of such a \
                     program; keep those bytes, or compile it again",
                    self.name
                ),
            ));
        }
        let mut args = PJRT_Executable_Serialize_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: the executable is alive. The bytes live until the deleter is called, once.
        unsafe {
            self.api().call(&mut args)?;
            let payload = list(args.serialized_bytes.cast::<u8>(), args.serialized_bytes_size);
            let platform = self.client.as_ref().map_or("", |client| client.platform_name());
            let envelope = Envelope::wrap(
                &self.plugin,
                platform,
                self.num_replicas,
                self.num_partitions,
                &self.header,
                payload,
            );
            if let Some(delete) = args.serialized_executable_deleter {
                crate::api::guarded("the deleter of serialized bytes", || {
                    delete(args.serialized_executable)
                });
            }
            envelope
        }
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        drop(Owned { api: self.api(), raw: self.raw });
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Executable({} {})", self.name, self.signature)
    }
}

/// Destroys the executable unless released.
struct Owned {
    api: Api,
    raw: NonNull<PJRT_Executable>,
}

impl Owned {
    fn release(self) -> NonNull<PJRT_Executable> {
        std::mem::ManuallyDrop::new(self).raw
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut args = PJRT_Executable_Destroy_Args::new();
        args.executable = self.raw.as_ptr();
        // SAFETY: we own the executable, and this is its last use.
        unsafe { self.api.destroy(&mut args) }
    }
}

/// # Safety
/// `raw` must be alive.
unsafe fn optimized_program(api: Api, raw: NonNull<PJRT_Executable>) -> Result<Vec<u8>> {
    let mut program = PJRT_Program::new();
    let mut args = PJRT_Executable_OptimizedProgram_Args::new();
    args.executable = raw.as_ptr();
    args.program = &mut program;
    // SAFETY: without a buffer for the code, the plugin returns its size.
    unsafe { api.call(&mut args) }?;
    // SAFETY: as above; the format is a constant of the plugin.
    let format = unsafe { text(program.format, program.format_size) };
    if format != "hlo_with_config" {
        return Err(error::broken(format!(
            "the plugin returns its optimized program as {format:?}; fulmen-pjrt reads \"hlo_with_config\""
        )));
    }
    let mut code = vec![0_u8; program.code_size];
    program.code = code.as_mut_ptr().cast();
    args.program = &mut program;
    // SAFETY: `code` has the size that the plugin requested.
    unsafe { api.call(&mut args) }?;
    Ok(code)
}

/// The types of the outputs, which the plugin also reports separately from the program. They are
/// used as a check.
///
/// # Safety
/// `raw` must be alive.
unsafe fn output_types(api: Api, raw: NonNull<PJRT_Executable>) -> Result<Vec<ArrayType>> {
    let mut types = PJRT_Executable_OutputElementTypes_Args::new();
    types.executable = raw.as_ptr();
    let mut dims = PJRT_Executable_OutputDimensions_Args::new();
    dims.executable = raw.as_ptr();
    let mut number = PJRT_Executable_NumOutputs_Args::new();
    number.executable = raw.as_ptr();
    // SAFETY: the executable is alive, and the lists live as long as it does. `dims` holds the
    // dimensions of all outputs; `dim_sizes` has the number of dimensions of each.
    unsafe {
        api.call(&mut number)?;
        api.call(&mut types)?;
        dims.num_outputs = number.num_outputs;
        api.call(&mut dims)?;
        let types = list(types.output_types, types.num_output_types);
        let ranks = list(dims.dim_sizes, dims.num_outputs);
        if types.len() != number.num_outputs || ranks.len() != number.num_outputs {
            return Err(error::broken(format!(
                "the plugin's counts of the program's outputs differ: {}, {} and {}",
                number.num_outputs,
                types.len(),
                ranks.len()
            )));
        }
        let all = list(dims.dims, ranks.iter().sum());
        let mut rest = all;
        let mut outputs = Vec::with_capacity(types.len());
        for (&element_type, &rank) in types.iter().zip(ranks) {
            let (dims, after) = rest.split_at(rank.min(rest.len()));
            rest = after;
            let dims = dims
                .iter()
                .map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX))
                .collect::<Vec<_>>();
            outputs.push(ArrayType::new(ElementType::from_raw(element_type)?, dims));
        }
        Ok(outputs)
    }
}
