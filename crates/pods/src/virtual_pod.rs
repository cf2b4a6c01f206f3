//! [`VirtualPod`]: the shape and the plugins of a virtual pod. Out of scope: what the plugin does
//! (`fulmen-virtual-pod`), and finding it (the caller's [`Providers`]).

use std::io::Write;

use fulmen_tpu::PodShape;

use crate::Result;
use crate::binary::Binary;
use crate::providers::Providers;

/// A virtual pod.
#[derive(Clone, Debug)]
pub(crate) struct VirtualPod {
    pub(crate) shape: PodShape,
    plugin: Binary,
    /// The plugin that computes.
    cpu_plugin: Binary,
}

impl VirtualPod {
    /// Finds the plugins.
    ///
    /// # Errors
    /// A plugin can be neither found nor built or downloaded.
    pub(crate) fn find(
        shape: PodShape,
        providers: &Providers,
        out: &mut dyn Write,
    ) -> Result<VirtualPod> {
        let plugins = (providers.virtual_pod)(out)?;
        Ok(VirtualPod {
            shape,
            plugin: Binary::open(&plugins.plugin)?,
            cpu_plugin: Binary::open(&plugins.cpu_plugin)?,
        })
    }

    /// The files that each process needs, with the variables that name them.
    pub(crate) fn files(&self) -> [(&'static str, &Binary); 2] {
        [("FULMEN_PJRT_PLUGIN", &self.plugin), ("FULMEN_VIRTUAL_POD_CPU_PLUGIN", &self.cpu_plugin)]
    }
}
