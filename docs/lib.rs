//! The programs in the README and in the chapters of the book, as doc tests.
//!
//! Out of scope: the book's links and tables, which are tests of `fulmen`.

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
#[cfg(doctest)]
#[doc = include_str!("src/introduction.md")]
mod introduction {}
#[cfg(doctest)]
#[doc = include_str!("src/quick-start.md")]
mod quick_start {}
#[cfg(doctest)]
#[doc = include_str!("src/coming-from-torch-gpu.md")]
mod coming_from_torch_gpu {}
#[cfg(doctest)]
#[doc = include_str!("src/coming-from-lightning.md")]
mod coming_from_lightning {}
#[cfg(doctest)]
#[doc = include_str!("src/coming-from-torch-xla.md")]
mod coming_from_torch_xla {}
#[cfg(doctest)]
#[doc = include_str!("src/tensors.md")]
mod tensors {}
#[cfg(doctest)]
#[doc = include_str!("src/control-flow.md")]
mod control_flow {}
#[cfg(doctest)]
#[doc = include_str!("src/operations.md")]
mod operations {}
#[cfg(doctest)]
#[doc = include_str!("src/models.md")]
mod models {}
#[cfg(doctest)]
#[doc = include_str!("src/ready-made.md")]
mod ready_made {}
#[cfg(doctest)]
#[doc = include_str!("src/fine-tuning.md")]
mod fine_tuning {}
#[cfg(doctest)]
#[doc = include_str!("src/exporting.md")]
mod exporting {}
#[cfg(doctest)]
#[doc = include_str!("src/data.md")]
mod data {}
#[cfg(doctest)]
#[doc = include_str!("src/files.md")]
mod files {}
#[cfg(doctest)]
#[doc = include_str!("src/images.md")]
mod images {}
#[cfg(doctest)]
#[doc = include_str!("src/text.md")]
mod text {}
#[cfg(doctest)]
#[doc = include_str!("src/cache.md")]
mod cache {}
#[cfg(doctest)]
#[doc = include_str!("src/preparing.md")]
mod preparing {}
#[cfg(doctest)]
#[doc = include_str!("src/bottleneck.md")]
mod bottleneck {}
#[cfg(doctest)]
#[doc = include_str!("src/training.md")]
mod training {}
#[cfg(doctest)]
#[doc = include_str!("src/own-loop.md")]
mod own_loop {}
#[cfg(doctest)]
#[doc = include_str!("src/logging.md")]
mod logging {}
#[cfg(doctest)]
#[doc = include_str!("src/reports.md")]
mod reports {}
#[cfg(doctest)]
#[doc = include_str!("src/metrics.md")]
mod metrics {}
#[cfg(doctest)]
#[doc = include_str!("src/checkpoints.md")]
mod checkpoints {}
#[cfg(doctest)]
#[doc = include_str!("src/callbacks.md")]
mod callbacks {}
#[cfg(doctest)]
#[doc = include_str!("src/options.md")]
mod options {}
#[cfg(doctest)]
#[doc = include_str!("src/command-line.md")]
mod command_line {}
#[cfg(doctest)]
#[doc = include_str!("src/devices.md")]
mod devices {}
#[cfg(doctest)]
#[doc = include_str!("src/selftest.md")]
mod selftest {}
#[cfg(doctest)]
#[doc = include_str!("src/libtpu.md")]
mod libtpu {}
#[cfg(doctest)]
#[doc = include_str!("src/troubleshooting.md")]
mod troubleshooting {}
#[cfg(doctest)]
#[doc = include_str!("src/machines.md")]
mod machines {}
#[cfg(doctest)]
#[doc = include_str!("src/several-devices.md")]
mod several_devices {}
#[cfg(doctest)]
#[doc = include_str!("src/many-hosts.md")]
mod many_hosts {}
#[cfg(doctest)]
#[doc = include_str!("src/pods.md")]
mod pods {}
#[cfg(doctest)]
#[doc = include_str!("src/rehearse-a-pod.md")]
mod rehearse_a_pod {}
#[cfg(doctest)]
#[doc = include_str!("src/tpu-vms.md")]
mod tpu_vms {}
#[cfg(doctest)]
#[doc = include_str!("src/preflight.md")]
mod preflight {}
#[cfg(doctest)]
#[doc = include_str!("src/getting-a-tpu.md")]
mod getting_a_tpu {}
#[cfg(doctest)]
#[doc = include_str!("src/choosing-a-tpu.md")]
mod choosing_a_tpu {}
#[cfg(doctest)]
#[doc = include_str!("src/performance.md")]
mod performance {}
#[cfg(doctest)]
#[doc = include_str!("src/comparison.md")]
mod comparison {}
#[cfg(doctest)]
#[doc = include_str!("src/seen.md")]
mod seen {}
