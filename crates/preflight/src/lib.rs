//! Judges a program for TPUs that are not in the room: does it fit, what does it cost, what bounds it.
//!
//! libtpu compiles the program for a slice by name, with no TPU here, and what it says of the result is read: memory,
//! FLOPs and bytes, and the program itself. Times are a roofline over published peaks. Nothing runs and nothing is
//! measured.
//!
//! ```
//! use fulmen_pjrt::Plugin;
//! use fulmen_pjrt::locate::{Platform, locate};
//! use fulmen_preflight::{Prices, Slice, Step, estimate};
//! use fulmen_tensor::{DType, Function, Mesh, TensorType};
//!
//! let types = [TensorType::new(DType::Bf16, [1024, 512]), TensorType::new(DType::Bf16, [512, 256])];
//! let product = Function::trace("product", &types, |x| vec![x[0].matmul(&x[1])]);
//! let slices = Slice::parse_list("v5e:1x1,v6e:1x1")?;
//! let prices = Prices::built_in()?;
//! // Where libtpu is not installed, `fulmen_pjrt::fetch::libtpu` fetches it.
//! if let Ok(path) = locate(Platform::Tpu, None) {
//!     let plugin = Plugin::load(path)?;
//!     let report = estimate(&plugin, &slices, Some(&prices), |devices| {
//!         Ok::<_, Box<dyn std::error::Error>>(Step::new(&product, &Mesh::new([("data", devices)])?)?)
//!     })?;
//!     assert!(report.all_fit());
//!     println!("{report}");
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Not here: how the training step of a module is recorded, which the Trainer does.

mod display;
mod error;
mod estimate;
mod generations;
mod html;
mod largest_tensors;
#[cfg(test)]
#[path = "../../pjrt/tests/it/common/libtpu.rs"]
mod libtpu;
mod line_costs;
mod prices;
mod report;
mod roofline;
mod save;
mod slice;
pub mod warnings;

pub use error::{Error, Result};
pub use estimate::{Step, estimate};
pub use generations::{GENERATIONS, Generation, Ring};
pub use largest_tensors::LargeTensor;
pub use line_costs::cost_by_line;
pub use prices::{Price, Prices};
pub use report::{Feasibility, LineCost, Report, StepCost, StepSetting};
pub use roofline::{Bound, Roofline};
pub use save::{save, topology};
pub use slice::Slice;
pub use warnings::Warning;
