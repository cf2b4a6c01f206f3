//! Estimates a program for TPUs that you do not have: does it fit, what does it cost, and what
//! limits its speed?
//!
//! libtpu compiles the program for a slice by name, without a TPU. The estimate is read from the
//! result: memory, FLOPs, bytes, and the optimized program itself. Times follow from a roofline
//! over published peaks. Nothing runs and nothing is measured.
//!
//! ```
//! use fulmen_pjrt::Plugin;
//! use fulmen_pjrt::locate::{Platform, locate};
//! use fulmen_preflight::{Prices, Slice, Step, estimate};
//! use fulmen_tensor::{DType, Function, Mesh, TensorType};
//!
//! let types = [TensorType::new(DType::Bf16, [1024, 512]), TensorType::new(DType::Bf16, [512, 256])];
//! let product = Function::trace("product", types, |[x, w]| x.matmul(&w));
//! let slices = Slice::parse_list("v5e:1x1,v6e:1x1")?;
//! let prices = Prices::built_in()?;
//! // If libtpu is not installed, `fulmen_pjrt::fetch::libtpu` fetches it.
//! if let Ok(path) = locate(Platform::Tpu, None) {
//!     let plugin = Plugin::load(path)?;
//!     let report = estimate(&plugin, &slices, Some(&prices), |slice| {
//!         let mesh = Mesh::new([("data", slice.num_devices())])?;
//!         Ok::<_, Box<dyn std::error::Error>>(Step::new(&product, &mesh)?)
//!     })?;
//!     assert!(report.all_fit());
//!     println!("{report}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Out of scope: recording a module's training step. The Trainer does that.

mod against;
mod data_supply;
mod display;
mod estimate;
mod gpus;
mod html;
mod largest_tensors;
#[cfg(test)]
#[path = "../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;
mod lifetimes;
mod line_costs;
mod report;
mod roofline;
mod save;
mod splits;
pub mod warnings;

pub use against::Against;
pub use data_supply::{DataDemand, LoaderSpeed};
pub use estimate::{Step, estimate};
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use fulmen_tpu::{Generation, Host, Price, Prices, Slice};
pub use gpus::{Gpu, GpuPrice};
pub use largest_tensors::{LargeTensor, largest_tensors};
pub use line_costs::cost_by_line;
pub use report::{Feasibility, LineCost, Report, StepCost, StepSetting};
pub use roofline::{Bound, Roofline};
pub use save::{save, topology};
pub use warnings::Warning;
