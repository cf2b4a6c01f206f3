//! A readable view of a compiled program: its instructions, loops, collectives, matrix products and
//! largest arrays. Out of scope: changing or running programs.
//!
//! ```
//! use fulmen_pjrt::{CompileOptions, Plugin, locate::{Platform, locate}};
//!
//! let client = Plugin::load(locate(Platform::Cpu, None)?)?.create_client(&[("cpu_device_count", 1.into())])?;
//! let program = client.compile(
//!     "func.func @main(%x: tensor<64x32xf32>, %w: tensor<32x16xf32>) -> tensor<64x16xf32> {
//!        %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
//!          : (tensor<64x32xf32>, tensor<32x16xf32>) -> tensor<64x16xf32>
//!        return %y : tensor<64x16xf32>
//!      }",
//!     &CompileOptions::new(),
//! )?;
//! let module = program.hlo()?;
//! assert_eq!(module.products()[0].product.flops, 2.0 * 64.0 * 32.0 * 16.0);
//! assert!(module.collectives().is_empty() && module.loops().is_empty());
//! # Ok::<(), fulmen_pjrt::Error>(())
//! ```

mod buffers;
mod collective;
mod cost;
mod loops;
mod matrix;
mod module;
pub(crate) mod proto;
mod shape;

pub use buffers::LargeArray;
pub use collective::{Collective, CollectiveKind};
pub use cost::Cost;
pub use loops::Loop;
pub use matrix::{PlacedProduct, Precision, Product};
pub use module::{Computation, Instruction, Module, Source};
pub use shape::{Array, Shape};
