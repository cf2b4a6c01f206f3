//! Tests of every operation: values and gradients against JAX, and gradients against central
//! differences.
//!
//! An operation is a row of `catalogue`; its cases are in `../reference`. To add a family of
//! operations, write `catalogue/FAMILY.rs` and `reference/FAMILY.py`, and add its name to
//! `catalogue/mod.rs` and `reference/generate.py`.

mod attrs;
mod case;
mod catalogue;
mod coverage;
mod finite_differences;
mod portable;
mod reference;
mod second_derivatives;
mod table;
