//! `#[derive(Module)]`: shows a module's fields, by name, to a visitor.
//!
//! Only the macro. `fulmen-nn`, which re-exports it, documents modules and visitors.

mod attributes;
mod expand;

use proc_macro::TokenStream;

/// Implements `Module` by visiting every field under its name.
///
/// - Named fields are visited under their names, the fields of a tuple struct under `0`, `1`, …
/// - An enum visits the fields of its current variant. The variant's name is not part of the path,
///   and a variant with a single value is visited as that value. So
///   `enum Norm { Batch(BatchNorm2d), None }` in a field `bn` has `bn.weight`.
/// - Every type parameter that a visited field mentions must be a `Module`.
///
/// Attributes change how a field is visited:
///
/// | attribute | effect |
/// | --- | --- |
/// | `#[module(skip)]` | the field is not visited; its type need not be a `Module` |
/// | `#[module(rename = "fc")]` | the field is visited under this name |
/// | `#[module(flatten)]` | the contents of the field are visited as if they were in the struct itself |
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    expand::expand(&input).unwrap_or_else(|error| error.to_compile_error()).into()
}
