//! Every operation that users record: its values and gradients against JAX, its gradients against central differences.
//!
//! An operation is a row of `catalogue`, its cases are those of `../reference`. To add a family of operations is to write
//! `catalogue/FAMILY.rs` and `reference/FAMILY.py`, and to name it in `catalogue/mod.rs` and `reference/generate.py`.

mod attrs;
mod case;
mod catalogue;
mod complete;
mod differences;
mod reference;
mod second;
mod table;
