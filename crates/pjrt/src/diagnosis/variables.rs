//! Environment variables that affect devices: obsolete ones of earlier runtimes, and those that
//! hide devices.

use std::ffi::OsString;
use std::fmt;

use crate::locate::Platform;

/// A variable that is set, but that no software reads any more.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObsoleteVariable {
    /// Its name.
    pub name: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

impl fmt::Display for ObsoleteVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the environment variable {} is set but obsolete: {}", self.name, self.instead)
    }
}

/// XRT, the runtime before PJRT, reached a TPU over the network.
const ON_THE_VM: &str = "it gave the address of a TPU to XRT, which PJRT has replaced; run this program on the TPU \
     VM itself, where libtpu opens the TPU, and unset it. For several hosts, see TPU_WORKER_HOSTNAMES and \
     FULMEN_COORDINATOR";

const OBSOLETE: &[ObsoleteVariable] = &[
    ObsoleteVariable { name: "XRT_TPU_CONFIG", instead: ON_THE_VM },
    ObsoleteVariable { name: "TPU_IP_ADDRESS", instead: ON_THE_VM },
    ObsoleteVariable { name: "COLAB_TPU_ADDR", instead: ON_THE_VM },
    ObsoleteVariable { name: "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", instead: ON_THE_VM },
    ObsoleteVariable {
        name: "XRT_MESH_SERVICE_ADDRESS",
        instead: "XRT no longer exists; FULMEN_COORDINATOR is the address at which processes meet",
    },
    ObsoleteVariable {
        name: "XRT_SHARD_WORLD_SIZE",
        instead: "XRT no longer exists; FULMEN_NUM_PROCESSES is the number of processes",
    },
    ObsoleteVariable {
        name: "XRT_SHARD_ORDINAL",
        instead: "XRT no longer exists; FULMEN_PROCESS_ID is the index of this process",
    },
    ObsoleteVariable {
        name: "XRT_HOST_ORDINAL",
        instead: "XRT no longer exists; FULMEN_PROCESS_ID is the index of this process",
    },
    ObsoleteVariable {
        name: "XRT_WORKERS",
        instead: "XRT no longer exists; libtpu's TPU_WORKER_HOSTNAMES lists the hosts",
    },
    ObsoleteVariable {
        name: "XRT_LOCAL_WORKER",
        instead: "XRT no longer exists; libtpu's TPU_WORKER_ID is the index of this host",
    },
    ObsoleteVariable {
        name: "XRT_DEVICE_MAP",
        instead: "XRT no longer exists; FULMEN_DEVICES selects the devices",
    },
];

/// The obsolete variables that are set. Only users of TPUs need to know about them.
pub(super) fn obsolete(
    platform: Platform,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<ObsoleteVariable> {
    let set = |name| variable(name).is_some_and(|value| !value.is_empty());
    OBSOLETE.iter().filter(|known| platform == Platform::Tpu && set(known.name)).cloned().collect()
}

/// One line for each variable that is set and hides devices from the plugin.
pub(super) fn hiding(
    platform: Platform,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<String> {
    let names: &[&str] = match platform {
        Platform::Cpu => &[],
        // An empty value hides all devices.
        Platform::Cuda => &["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"],
        Platform::Tpu => &["TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"],
    };
    names
        .iter()
        .filter_map(|name| variable(name).map(|value| (name, value)))
        .map(|(name, value)| {
            format!(
                "the environment variable {name} is {:?}: the plugin sees no other devices",
                value.to_string_lossy()
            )
        })
        .collect()
}
