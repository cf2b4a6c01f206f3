//! Tests of every operation: values and gradients against JAX, and gradients against central
//! differences.
//!
//! An operation is a row of `fulmen-catalogue`, which has its cases, too. Its README says what a
//! family of operations needs.

mod coverage;
mod finite_differences;
mod portable;
mod reference;
mod second_derivatives;
mod table;

/// Makes two tests of each family.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        /// Compares values and gradients with JAX, one test for each family.
        mod agrees_with_jax {
            $(#[test]
            fn $name() {
                crate::operations::reference::check(stringify!($name));
            })*
        }

        /// Compares gradients with central differences, one test for each family.
        mod agrees_with_differences {
            $(#[test]
            fn $name() {
                crate::operations::finite_differences::check(stringify!($name));
            })*
        }
    };
}

fulmen_catalogue::with_families!(tests);
